/* topo/plan.h - which layouts of a model a rack should run, and why not the others.
 *
 * Pure: (model shapes, graph, load, SLO) -> the best layouts, each with its ledger, its
 * estimate and a placement of its groups; the discarded ones grouped by reason. Two
 * modes: colocated (each instance prefills and decodes) and split (a prefill and a decode
 * pool). Every layout of every size up to the rack is tried. Any thread. */
#ifndef TOPO_PLAN_H
#define TOPO_PLAN_H

#include "topo/estimate.h"
#include "topo/ledger.h"

struct buf;
struct err;
struct graph;
struct paths;
struct placement;
struct plan;

/* What an instance, or an engine of a pool, is for. */
enum plan_role { PLAN_BOTH, PLAN_PREFILL, PLAN_DECODE };

struct plan_ask {
    const struct shapes *s;
    const struct graph *g;
    const struct paths *paths;
    const int *avoid; /* node ids of cordoned devices */
    int n_avoid;
    double isl, osl;         /* tokens of prompt and output, mean */
    double ttft_ms, tpot_ms; /* SLO, 0 = none */
    double rate; /* requests/s to reach with the fewest devices, 0 = use all */
    double skew; /* of routing, 1 = even */
    int slots;   /* expert replica slots of a layer */
    enum weight_format kv;
    bool with_cp;
    /* For who has the instances already: so many of them (0 = as many as there is room
     * for), of the layouts that `allow` takes (NULL: all). Colocated, or engines of one
     * pool: then judged by prompts or by answers alone, and a row's TTFT or TPOT is 0. */
    int replicas;
    enum plan_role role; /* with replicas */
    bool (*allow)(void *arg, const struct layout *l);
    void *allow_arg;
};
void plan_ask_defaults(struct plan_ask *a);

enum { PLAN_ROWS = 10 };

struct plan_row {
    bool split;
    struct layout l;       /* of an instance, or of a decode worker; replicas set */
    struct layout prefill; /* of a prefill worker, replicas set; split only */
    int devices;
    double concurrency; /* of one instance or decode worker */
    struct ledger ledger, prefill_ledger;
    struct estimate est; /* of the whole: tokens_s over all devices of the row */
    double handoff_ms;
    double sort;              /* smaller is better */
    struct placement *placed; /* owned by the plan; NULL where none was found */
};

/* Discarded layouts of one reason, with the first of them as an example. */
struct plan_reason {
    const char *why;
    int n;
    char layout[96], say[512];
};

/* ERR_NOFIT when no layout is left: the sentence names the commonest reason. */
int plan_make(const struct plan_ask *a, struct plan **ret, struct err *e);
void plan_free(struct plan *p);
int plan_rows(const struct plan *p, const struct plan_row **ret); /* best first */
int plan_reasons(const struct plan *p, const struct plan_reason **ret);
int plan_tried(const struct plan *p);

void plan_print(const struct plan *p, struct buf *out);
void plan_json(const struct plan *p, struct buf *out);
/* Of one row (0 = the best): its groups and ranks as a table, or as Graphviz. Empty where
 * the row has no placement. */
void plan_groups(const struct plan *p, int row, struct buf *out);
void plan_dot(const struct plan *p, int row, struct buf *out);
/* The chapter's order for one layout: capacity, TP, PP, EP, CP, DP, with the number that
 * ended each step. */
int plan_why(const struct plan_ask *a, const struct layout *l, struct buf *out,
             struct err *e);

#endif

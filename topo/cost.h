/* topo/cost.h - how long a step takes under a layout: links by alpha-beta, ops by
 * roofline.
 *
 * Peaks are datasheet figures (facts.h), efficiencies and fixed times are measured ones
 * from published op tables, each a row of cost_consts with its source; none is fitted to
 * end-to-end runs. A device without measured rows uses the nearest one's efficiencies on
 * its own peaks and says so (extrapolated). Host time between steps is not counted. Pure.
 * Any thread. */
#ifndef TOPO_COST_H
#define TOPO_COST_H

#include <stdbool.h>

#include "topo/layout.h"
#include "topo/shapes.h"

struct err;

/* ---- constants ---- */

/* Share of a step's collectives that runs beside its arithmetic. The engine enqueues both
 * on one stream of a rank, so nothing overlaps; a layout that says otherwise (double
 * buffered dispatch) will bring its own figure. */
#define COST_OVERLAP 0.0

struct cost_const {
    const char *name;
    double v;
    const char *unit, *source;
};
const struct cost_const *cost_const_at(int i); /* NULL past the end */

/* One device: what it reaches, by weight format. */
struct cost_device {
    char name[64];
    double hbm_bps;                /* reached by a large read */
    double flops[FORMAT_COUNT];    /* reached by a large GEMM */
    double fixed_us[FORMAT_COUNT]; /* of one GEMM, however small */
    double attn_flops, mla_flops;
    double attn_us, mla_us, moe_us, state_us, mem_us; /* fixed times of the other ops */
    double link_share;     /* of a link's nominal bandwidth that a collective reaches */
    double a2a_share;      /* and an all-to-all of few tokens */
    double a2a_bulk_share; /* and of many */
    double reduce_us, net_us; /* alpha of an all-reduce step, inside and across hosts */
    double a2a_send_us, a2a_recv_us, a2a_bulk_send_us, a2a_bulk_recv_us;
    bool extrapolated;
};
/* By the name of a GPU that facts.h knows, or "cpu". */
int cost_device_open(const char *model, struct cost_device *ret, struct err *e);

/* ---- collectives ---- */

/* A group of n ranks. fast: ranks that share the fast domain (n where all do); cut is the
 * way from one such island to the next, per rank. bps are nominal, or measured ones with
 * measured set (of either), which are taken as they are. */
struct cost_group {
    int n, fast;
    double bps, cut_bps;
    bool measured, cut_measured;
};

enum cost_algo { ALGO_NONE, ALGO_ONE_SHOT, ALGO_RING, ALGO_HIERARCHY };
/* Microseconds; the cheapest algorithm goes to *ret_algo, which may be NULL. */
double cost_all_reduce(const struct cost_device *d, const struct cost_group *g,
                       double bytes, enum cost_algo *ret_algo);
double cost_all_gather(const struct cost_device *d, const struct cost_group *g,
                       double bytes);
/* Tokens that the busiest rank sends, copies of each, bytes of one; combine: the way
 * back.
 */
double cost_all_to_all(const struct cost_device *d, const struct cost_group *g,
                       double tokens, double copies, double token_bytes, bool combine);
double cost_send(const struct cost_device *d, double bps, bool measured, double bytes);

/* ---- steps ---- */

/* What links the groups of a layout have: filled from a placement, or from a rack's
 * uniform figures. */
struct cost_links {
    struct cost_group tp, cp, ep, etp;
    double pp_bps;      /* stage to stage */
    double handoff_bps; /* from a prefill rank to its decode rank, 0 unknown */
    bool pp_measured;
};
/* A rack in four figures. domain: devices that share the fast links. */
struct cost_cut {
    int domain;
    double bps, cut_bps;
    bool measured, cut_measured;
};
/* The usual order: tp closest, then cp, adp, pp; an expert group spans its stage. */
void cost_links_uniform(const struct layout *l, const struct cost_cut *c,
                        struct cost_links *ret);

struct cost_work {
    double decode;  /* sequences of the instance that take one token each */
    double ctx;     /* tokens in front of each, mean */
    double prefill; /* prompt tokens in the step */
    double prompt;  /* tokens of the prompt that they belong to, mean */
    double skew;    /* tokens of the busiest expert rank over the mean, >= 1 */
    enum weight_format kv;
};

#define COST_PART_MAP(X)                                                                 \
    X(GEMM, "dense matrices")                                                            \
    X(ATTENTION, "attention")                                                            \
    X(EXPERTS, "routed experts")                                                         \
    X(SMALL, "norms and other small ops")                                                \
    X(TP, "tensor-parallel collectives")                                                 \
    X(CP, "context-parallel exchange")                                                   \
    X(EP, "expert dispatch and combine")                                                 \
    X(PP, "stage to stage")                                                              \
    X(HEAD, "output head")
enum cost_part {
#define X(id, name) COST_##id,
    COST_PART_MAP(X)
#undef X
        COST_PART_COUNT
};

struct cost_step {
    double us[COST_PART_COUNT];
    double total_us;
    enum cost_part bottleneck;
};
/* One step through all stages, the last token out. */
void cost_step(const struct cost_device *d, const struct shapes *s,
               const struct layout *l, const struct cost_links *k,
               const struct cost_work *w, struct cost_step *ret);
const char *cost_part_name(enum cost_part p);

/* Busiest of ep ranks over the mean, when expert loads fall as rank^-alpha: it holds the
 * hottest expert (which has 1/k of the assignments at most) among average ones. */
double cost_power_skew(const struct shapes *s, int ep, double alpha);

#endif

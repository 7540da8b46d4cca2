/* daemon/ctrl/domain_impl.h - what the files of the domain share: domain.c (views,
 * cordons), domain_read.c (reading in the background), domain_measure.c (measuring). Not
 * for others. */
#ifndef CTRL_DOMAIN_IMPL_H
#define CTRL_DOMAIN_IMPL_H

#include <pthread.h>

#include "daemon/ctrl/domain.h"
#include "state/racknotes.h"

struct loop_timer;
struct probe;
struct side;

enum { DOMAIN_FIGURES_MAX = 4096 };

/* What a reading made, shared by views. With other figures laid over its paths it is
 * another one, whose graph belongs to the first. */
struct domain_rack {
    struct domain_rack *base; /* NULL: this one has the graph */
    struct graph *graph;
    struct paths *paths;
    char host[64];
    int n_measured;
    struct nvlink_count *nvlinks; /* as this reading found them; likewise of the first */
    int n_nvlinks;
    int64_t nvlinks_us;
    atomic_int refs;
};

struct domain {
    char *rack, *gpu;
    struct loop *loop;
    struct store *store;
    void (*news)(void *arg, const struct err *why);
    void *arg;

    /* reading */
    struct side *reader;
    struct probe *probe; /* made once; travels with the reading */
    bool again, loading; /* one more is asked for; domain_load waits */
    struct err load_err;
    struct graph *baseline; /* what findings compare with; NULL none */
    char *next_baseline;    /* JSON of the one at the next reading; NULL: as it is */
    struct loop_timer *fabric, *check;
    int64_t check_s;
    int64_t fabric_since_us, fabric_step_us; /* 0 = all is well */

    /* measuring */
    struct side *measurer;
    domain_measured_fn measured; /* who waits for it */
    void *measured_arg;
    struct measurement_row *figures;
    int n_figures;

    struct domain_cordon cordons[DOMAIN_CORDONS_MAX];
    int n_cordons;

    pthread_mutex_t lock;
    struct domain_view *view; /* by lock */
};

/* ---- domain.c ---- */
void domain_rack_unref(struct domain_rack *r);
/* A view of r, whose reference it takes over, becomes the present one. */
void domain_show(struct domain *d, struct domain_rack *r);
/* Devices that `text` names: their count, the first in *ret. */
int domain_find(const struct graph *g, const char *text, int *ret);
void domain_note(struct domain *d, const char *actor, const char *origin,
                 const char *what, const char *subject, const char *result,
                 const char *detail);

/* ---- domain_measure.c ---- */
/* The stored figures that belong to this graph, over its paths; count of pairs. */
int domain_lay_figures(const struct domain *d, const struct graph *g, struct paths *p);
int domain_read_figures(struct domain *d, struct err *e);
/* Whoever waits for a measurement is told that there will be none. */
void domain_measure_end(struct domain *d);

#endif

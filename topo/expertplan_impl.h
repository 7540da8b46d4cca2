/* topo/expertplan_impl.h - one layer being planned: its map, who holds what, the loads of
 * the devices, kept together by a few changes. For topo/expertplan*.c only. */
#ifndef TOPO_EXPERTPLAN_IMPL_H
#define TOPO_EXPERTPLAN_IMPL_H

#include "topo/expertplan.h"

/* Loads are scaled so that the mean of the devices in use is 1. A layer without load has
 * equal ones, and idle is set. */
struct elayer {
    const struct expert_ask *a;
    int layer;
    int n_use;    /* devices that are not out */
    double scale; /* from load to scaled load */
    bool idle;
    int *cap, *used; /* [n_device]; cap 0: out */
    int16_t *slot;   /* [n_device * n_slot] */
    int16_t *at;     /* [n_expert * n_device]: its slot there, -1 */
    int16_t *holder; /* [n_expert * n_device]: devices with a copy, copies[e] of them */
    int *copies;
    double *w, *load; /* of experts; of devices, copies sharing equally */
    uint8_t *had;     /* [n_expert * n_device]: stood there at the start */
    int *wrote;       /* [n_device]: experts there that were not */
    int writes;       /* the sum of them */
    double *delta;    /* [n_device], scratch of the search: all 0 */
    int *touched;
    long work; /* moves looked at */
};

/* What the search may do. */
struct esearch {
    int max_writes, per_device; /* 0 = any */
    bool frugal;                /* the best for its writes, else the best */
    bool at_home;               /* only swaps of two devices of one host */
    int max_steps;              /* moves carried out; 0 = any */
    long max_work;              /* moves looked at; 0 = any */
    /* after each step; false ends the search */
    bool (*each)(void *arg, const struct elayer *y);
    void *arg;
};

/* Are the hosts few enough for affinity? */
bool expertplan_affine(const struct expert_ask *a);
int expertplan_ask_check(const struct expert_ask *a, struct err *e);

struct elayer *elayer_new(const struct expert_ask *a);
void elayer_free(struct elayer *y);
/* Take layer's loads and the copies of map (NULL: none) that stand on usable devices. */
void elayer_load(struct elayer *y, int layer, const int16_t *map);
void elayer_put(struct elayer *y, int device, int slot, int expert); /* an empty slot */
void elayer_drop(struct elayer *y, int device, int slot);
int elayer_empty(const struct elayer *y, int device); /* an empty slot; -1 */
double elayer_max(const struct elayer *y);
/* Experts without a copy get one, slots beyond a device's limit are given up; -1: no
 * room. */
int elayer_mend(struct elayer *y);
/* Moves that make sum (L_g / mean)^8 fall, until none does or the bounds say so; how
 * many. */
int elayer_search(struct elayer *y, const struct esearch *s);
/* The heaviest load as a layer is judged: with the best shares where slots are few, and
 * by EXPERTPLAN_EQUAL of the difference with equal ones. */
#define EXPERTPLAN_EQUAL (1.0 / 4)
double elayer_high(const struct elayer *y);

/* expertplan_shares.c: loads of the devices [n_device] after so many rounds of pouring.
 */
void expertplan_pour(const struct expert_ask *a, int layer, const int16_t *map,
                     int rounds, double *ret);

/* expertplan_front.c: the best maps of a layer by their writes, beyond those that had to
 * be. Points by rising writes and falling high. */
struct epoint {
    int writes, n_change;
    double high; /* see elayer_high */
    struct echange {
        int16_t slot, expert;
    } * change; /* owned */
};
struct efront {
    struct epoint *point;
    int n, first;  /* first: writes that had to be */
    int taken;     /* the point that is to be, -1: as at the start */
    double start;  /* the heaviest load to begin with, scaled */
    double unit;   /* us of a step for 1 of scaled load; the caller's to set */
    int16_t *base; /* [n_device * n_slot]: the map at the start, mended */
};
void efront_init(struct efront *f, const struct elayer *y); /* y: as mended */
void efront_done(struct efront *f);
void efront_add(struct efront *f, const struct elayer *y, double high);
void efront_map(const struct efront *f, int point, int n_slots, int16_t *ret);

/* What must be repaid, and by which fall. */
struct eworth {
    double steps, write_us, min_gain;
};
/* Sets taken of each front: at most so many writes in all. */
void efront_share_out(struct efront *f, int n_layer, const struct eworth *w, int most);

/* expertplan_chain.c: small layers, by several writes at a time, into the front. */
void elayer_chains(struct elayer *y, const struct esearch *s, struct efront *f);

/* Places so that experts chosen together share a host (expert_ask.affinity). */
void elayer_gather(struct elayer *y);

static inline bool elayer_has(const struct elayer *y, int expert, int device)
{
    return y->at[(size_t)expert * y->a->n_device + device] >= 0;
}

static inline double elayer_per(const struct elayer *y, int expert)
{
    return y->w[expert] / y->copies[expert];
}

#endif

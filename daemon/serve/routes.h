/* daemon/serve/routes.h - where the experts of each layer stand: the route table. Pure.
 *
 * The ranks of an expert group each have n_slot slots a layer; a slot holds one expert or
 * none. An expert has one or more slots, never two on one rank, and each of its slots a
 * share of its rows. A table of a layer is plain data with a generation: it is changed as
 * a whole between two steps, so that all rows of a step see one table. What an expert
 * gives does not depend on the slot that it ran in. One owner at a time. */
#ifndef SERVE_ROUTES_H
#define SERVE_ROUTES_H

#include <stdbool.h>
#include <stdint.h>

struct err;

enum { ROUTES_MAX_EXPERTS = 1024, ROUTES_MAX_SLOTS = 4096 /* of a layer, all ranks */ };

struct routes_dims {
    int n_expert, n_rank, n_slot; /* n_slot: of each rank, spare ones included */
};

/* One layer. */
struct route_layer {
    uint64_t generation; /* 1 = as loaded; one more with each change */
    int16_t *expert;     /* [n_rank * n_slot], rank by rank; -1 = empty */
    float *share; /* likewise: of its expert's rows; of each expert they sum to 1 */
};

struct routes {
    struct routes_dims d;
    int n_layer; /* layers with experts, in order */
    struct route_layer *layer;
};

/* As loaded: each rank has its equal run of the experts (comm_shard) in its first slots,
 * the spare ones are empty. ERR_RANGE beyond the bounds, or where the slots are too few.
 */
int routes_new(const struct routes_dims *d, int n_layer, struct routes **ret,
               struct err *e);
void routes_free(struct routes *r); /* NULL allowed */

/* The slot that an expert was loaded into, as rank * n_slot + slot. */
int routes_home(const struct routes_dims *d, int expert);
/* Copies of an expert; where each is, as rank * n_slot + slot. */
int routes_copies(const struct routes *r, int layer, int expert);
int routes_find(const struct routes *r, int layer, int expert, int rank); /* -1 */
int routes_empty(const struct routes *r, int layer, int rank);            /* a slot; -1 */
/* Put an expert (or -1: nothing) in a slot, shares of those concerned made equal. Refused
 * with a sentence: a second copy on that rank, or the last copy would go. */
int routes_put(struct routes *r, int layer, int rank, int slot, int expert,
               struct err *e);
/* Shares of an expert's copies in order of their slots; made to sum to 1. */
int routes_share(struct routes *r, int layer, int expert, const float *share, int n,
                 struct err *e);
/* Every rule above; for what came from outside, and tests. */
int routes_check(const struct routes *r, struct err *e);

#endif

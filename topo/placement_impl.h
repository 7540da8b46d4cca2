/* topo/placement_impl.h - what placement.c and placement_show.c share. */
#ifndef TOPO_PLACEMENT_IMPL_H
#define TOPO_PLACEMENT_IMPL_H

#include <stdbool.h>

#include "topo/placement.h"

struct place_kind {
    const char *name;
    double weight;
    bool all; /* every pair talks, not only neighbours */
};
extern const struct place_kind place_kinds[PLACE_KIND_COUNT];

/* Groups that a rank is in. */
struct place_member {
    int *group, n;
};

struct placement {
    struct layout pool[2];
    int n_pools, first[2]; /* first rank of a pool */
    struct place_rank *rank;
    int n_ranks;
    struct place_group *group;
    int n_groups, cap_groups;
    struct place_member *member;
    int *dev, n_dev; /* usable devices, node ids */
    double *price;   /* [n_dev][n_dev] */
    int *at;         /* rank -> index into dev */
    int *owner;      /* and back, -1 free */
};

/* Fills nic and numa of every rank. */
void placement_near(struct placement *p, const struct graph *g,
                    const struct paths *paths);

#endif

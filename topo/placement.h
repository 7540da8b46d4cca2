/* topo/placement.h - the ranks of one or two pools on the devices of a rack.
 *
 * Pure: (graph, paths, layouts, cordoned devices) -> which device each rank has, with the
 * NIC and the NUMA node nearest to it. The same input gives the same answer. Groups that
 * talk most lie on the best paths: TP first, then experts, CP, handoff, PP; a device with
 * slow links is taken last. Owned by the caller; any thread may read. */
#ifndef TOPO_PLACEMENT_H
#define TOPO_PLACEMENT_H

#include "topo/layout.h"

struct buf;
struct cost_links;
struct err;
struct graph;
struct paths;
struct placement;

/* id, name, weight of its worst path, all pairs or a ring of neighbours */
#define PLACE_GROUP_MAP(X)                                                               \
    X(TP, "tp", 1000, true)                                                              \
    X(ETP, "etp", 500, true)                                                             \
    X(EP, "ep", 100, true)                                                               \
    X(ULYSSES, "ulysses", 30, true)                                                      \
    X(RING, "ring", 10, false)                                                           \
    X(HANDOFF, "handoff", 2, true)                                                       \
    X(PP, "pp", 1, true)
enum place_group_kind {
#define X(id, name, weight, all) PLACE_##id,
    PLACE_GROUP_MAP(X)
#undef X
        PLACE_KIND_COUNT
};

struct place_rank {
    int pool, replica, pp, adp, cp, tp;
    int device;    /* node ids */
    int nic, numa; /* nearest to it; -1 none */
};

struct place_group {
    enum place_group_kind kind;
    int n;
    const int *rank; /* indices of ranks, in group order */
};

struct placement_ask {
    const struct layout *pool; /* one, or prefill and decode */
    int n_pools;
    const int *avoid; /* node ids of cordoned devices */
    int n_avoid;
};

/* ERR_NOFIT with the counts where there are fewer devices than ranks. */
int placement_compute(const struct graph *g, const struct paths *p,
                      const struct placement_ask *ask, struct placement **ret,
                      struct err *e);
void placement_free(struct placement *p);

int placement_ranks(const struct placement *p, const struct place_rank **ret);
int placement_groups(const struct placement *p, const struct place_group **ret);
/* What the search makes small: weights times worst paths. */
double placement_score(const struct placement *p);
/* The narrowest links of a pool's groups, for the cost model. */
void placement_links(const struct placement *p, const struct graph *g,
                     const struct paths *paths, int pool, struct cost_links *ret);

void placement_print(const struct placement *p, const struct graph *g,
                     const struct paths *paths, struct buf *out); /* a table of groups */
void placement_dot(const struct placement *p, const struct graph *g, struct buf *out);
/* "tp 0.1 moves from 0000:1b:00.0 to ..": calls fn a line; returns how many ranks moved.
 */
int placement_diff(const struct placement *before, const struct graph *g_before,
                   const struct placement *after, const struct graph *g_after,
                   void (*fn)(void *arg, const char *line), void *arg);

#endif

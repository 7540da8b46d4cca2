/* topo/path_impl.h - what is gathered of a rack to find its paths, for path.c and
 * path_links.c only. */
#ifndef TOPO_PATH_IMPL_H
#define TOPO_PATH_IMPL_H

#include <stdbool.h>

#include "topo/graph.h"
#include "topo/path.h"

enum { NETWORKS_MAX = 16 };

/* A path under construction: the narrowest link so far, 0 = nothing limits yet. */
struct acc {
    double bps, latency_us;
    int hops, unmeasured, degraded;
};

struct half {
    int peer; /* other end */
    const struct link *l;
};

/* What one device or NIC has, gathered once. */
struct end {
    const struct node *n;
    struct half *nv; /* NVLinks, by peer */
    int n_nv;
    struct acc top_acc; /* to the NUMA node, or the host where that is unknown */
    int top;
    bool by_c2c, over_bridge;
    int egress[NETWORKS_MAX]; /* end number of the nearest NIC, -1; itself for a NIC */
    struct acc egress_acc[NETWORKS_MAX];
};

struct paths {
    const struct graph *g;
    int n;
    int *end_of; /* node id -> end number, -1 */
    int n_nodes;
    struct end *ends;
    struct half *halves;
    int networks[NETWORKS_MAX], n_networks;
    struct path *p; /* n x n */
    uint64_t work;
};

static inline double link_bps(const struct link *l)
{
    return l->measured.conf == CONF_MEASURED ? l->measured.v : l->nominal.v;
}

static inline void narrow(double *into, double v)
{
    if (v > 0 && (*into == 0 || v < *into))
        *into = v;
}

static inline void acc_add(struct acc *a, const struct acc *b)
{
    narrow(&a->bps, b->bps);
    a->latency_us += b->latency_us;
    a->unmeasured += b->unmeasured;
    a->degraded += b->degraded;
    a->hops += b->hops;
}

/* The link to the node above. */
static inline const struct link *uplink(const struct paths *p, const struct node *n)
{
    const struct link *l = graph_link_between(p->g, n->id, n->parent, LINK_PCI);
    return l ? l : graph_link_between(p->g, n->id, n->parent, LINK_MEMORY);
}

#endif

/* topo/graph_impl.h - what graph.c and graph_read.c share. Not for others. */
#ifndef TOPO_GRAPH_IMPL_H
#define TOPO_GRAPH_IMPL_H

#include "topo/graph.h"

struct graph {
    struct node *nodes;
    struct link *links;
    int *depth;
    struct graph_pair *pairs;
    char **warnings;
    int n_pairs, cap_pairs;
    int n_nodes, n_links, n_warnings, warnings_left_out;
    int cap_nodes, cap_links;
    int *at, *at_first; /* link indices by node: at[at_first[i] .. at_first[i + 1]) */
    int *devices, n_devices;
    int *by_name; /* node ids ordered by host and name */
    char *source;
    bool emulated;
};

/* Links by their ends and kind, for qsort and bsearch. */
int graph_by_ends(const void *pa, const void *pb);

#endif

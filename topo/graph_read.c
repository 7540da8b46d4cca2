/* topo/graph_read.c - what readers ask of a graph, and the names of its kinds. */
#include "topo/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/graph_impl.h"

static const char *const node_names[] = {
#define X(id, name) name,
    NODE_KIND_MAP(X)
#undef X
};
static const char *const link_names[] = {
#define X(id, name) name,
    LINK_KIND_MAP(X)
#undef X
};

const char *fabric_is_name(enum fabric_is f)
{
    static const char *const names[] = {"unknown",     "none",   "not started",
                                        "in progress", "joined", "refused"};
    return names[f];
}

const char *imex_is_name(enum imex_is i)
{
    static const char *const names[] = {"unknown", "absent", "ready"};
    return names[i];
}

const char *node_kind_name(enum node_kind k) { return node_names[k]; }
const char *link_kind_name(enum link_kind k) { return link_names[k]; }

const char *graph_source(const struct graph *g) { return g->source; }
bool graph_emulated(const struct graph *g) { return g->emulated; }
int graph_n_nodes(const struct graph *g) { return g->n_nodes; }
const struct node *graph_node(const struct graph *g, int id) { return &g->nodes[id]; }
int graph_n_links(const struct graph *g) { return g->n_links; }
const struct link *graph_link(const struct graph *g, int i) { return &g->links[i]; }
int graph_pairs(const struct graph *g, const struct graph_pair **ret)
{
    *ret = g->pairs;
    return g->n_pairs;
}

int graph_n_warnings(const struct graph *g) { return g->n_warnings; }
const char *graph_warning(const struct graph *g, int i) { return g->warnings[i]; }

int graph_links_at(const struct graph *g, int node, const int **ret)
{
    *ret = g->at + g->at_first[node];
    return g->at_first[node + 1] - g->at_first[node];
}

int graph_devices(const struct graph *g, const int **ret)
{
    *ret = g->devices;
    return g->n_devices;
}

int graph_count(const struct graph *g, enum node_kind kind)
{
    int n = 0;

    for (int i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].kind == kind;
    return n;
}

int graph_find(const struct graph *g, int host, const char *name)
{
    int lo = 0, hi = g->n_nodes;

    while (lo < hi) {
        int mid = (lo + hi) / 2;
        const struct node *n = &g->nodes[g->by_name[mid]];
        int c = n->host != host ? (n->host < host ? -1 : 1) : strcmp(n->name, name);
        if (c == 0)
            return n->id;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

const struct link *graph_link_between(const struct graph *g, int a, int b,
                                      enum link_kind kind)
{
    struct link key = {.a = a < b ? a : b, .b = a < b ? b : a, .kind = kind};

    if (!g->n_links)
        return NULL;
    return bsearch(&key, g->links, g->n_links, sizeof(key), graph_by_ends);
}

const char *graph_label(const struct graph *g, int node, char *ret, size_t n)
{
    const struct node *d = &g->nodes[node];
    const char *host = "", *sep = "";

    if (d->host >= 0 && d->kind != NODE_HOST && graph_count(g, NODE_HOST) > 1) {
        host = g->nodes[d->host].name;
        sep = " ";
    }
    if (d->kind == NODE_DEVICE && !d->is_cpu && !d->mig && d->index >= 0)
        snprintf(ret, n, "%s%sGPU %d (%s)", host, sep, d->index, d->name);
    else
        snprintf(ret, n, "%s%s%s", host, sep, d->name);
    return ret;
}

/* topo/diff.c - what differs between two rack graphs, in sentences.
 *
 * Nodes meet by host name and own name, links by the names of their ends: both survive a
 * renumbering, which is what a GPU that falls off the bus causes. A link is reported only
 * where both of its ends are still there, so a lost device is one line and not twenty. */
#include "topo/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct diff {
    const struct graph *before, *after;
    graph_diff_fn fn;
    void *arg;
    int n;
    int *to_after;  /* node of before -> node of after, -1 */
    int *to_before; /* the other way */
};

static void say(struct diff *d, enum graph_change c, const char *text)
{
    d->n++;
    if (d->fn)
        d->fn(d->arg, c, text);
}

/* The host node of g that is called as node's host in from; -1 both for racks' own nodes
 * (host -1) and for a host that is not there, told apart by *ret_found. */
static int host_in(const struct graph *g, const struct graph *from, int host,
                   bool *ret_found)
{
    *ret_found = host < 0;
    if (host < 0)
        return -1;
    const char *name = graph_node(from, host)->name;
    for (int i = 0; i < graph_n_nodes(g); i++) {
        const struct node *n = graph_node(g, i);
        if (n->kind == NODE_HOST && !strcmp(n->name, name)) {
            *ret_found = true;
            return i;
        }
    }
    return -1;
}

static int *match(const struct graph *from, const struct graph *to)
{
    int n = graph_n_nodes(from), last_from = -2, last_to = -1;
    int *map = xcalloc(n + 1, sizeof(int));
    bool found = false;

    for (int i = 0; i < n; i++) {
        const struct node *x = graph_node(from, i);
        if (x->host != last_from) {
            last_from = x->host;
            last_to = host_in(to, from, x->host, &found);
        }
        map[i] = found ? graph_find(to, last_to, x->name) : -1;
        if (map[i] >= 0 && graph_node(to, map[i])->kind != x->kind)
            map[i] = -1;
    }
    return map;
}

static void describe(const struct graph *g, int id, char *ret, size_t size)
{
    const struct node *n = graph_node(g, id);
    char extra[128] = "";

    if (n->kind == NODE_DEVICE && !n->is_cpu)
        snprintf(extra, sizeof(extra), " (%s %d, %s)", n->mig ? "MIG" : "GPU", n->index,
                 n->model[0] ? n->model : "model unknown");
    if (n->host >= 0 && n->kind != NODE_HOST && graph_count(g, NODE_HOST) > 1)
        snprintf(ret, size, "%s %s %s%s", node_kind_name(n->kind),
                 graph_node(g, n->host)->name, n->name, extra);
    else
        snprintf(ret, size, "%s %s%s", node_kind_name(n->kind), n->name, extra);
}

static void node_presence(struct diff *d, const struct graph *g, const int *map,
                          enum graph_change c)
{
    char what[256], text[300];

    for (int i = 0; i < graph_n_nodes(g); i++) {
        if (map[i] >= 0)
            continue;
        describe(g, i, what, sizeof(what));
        snprintf(text, sizeof(text), "%s %s", c == GRAPH_LOST ? "lost" : "added", what);
        say(d, c, text);
    }
}

static void changed(struct diff *d, int id, const char *what, const char *from,
                    const char *to)
{
    char name[256], text[640];

    describe(d->before, id, name, sizeof(name));
    snprintf(text, sizeof(text), "changed %s: %s from %.120s to %.120s", name, what,
             from[0] ? from : "unknown", to[0] ? to : "unknown");
    say(d, GRAPH_CHANGED, text);
}

static void changed_num(struct diff *d, int id, const char *what, double from, double to)
{
    char a[32], b[32];

    if (from == to)
        return;
    snprintf(a, sizeof(a), "%.10g", from);
    snprintf(b, sizeof(b), "%.10g", to);
    changed(d, id, what, a, b);
}

static void node_changes(struct diff *d)
{
    static const char *const health[] = {"unknown", "ok", "degraded", "bad"};

    for (int i = 0; i < graph_n_nodes(d->before); i++) {
        if (d->to_after[i] < 0)
            continue;
        const struct node *x = graph_node(d->before, i);
        const struct node *y = graph_node(d->after, d->to_after[i]);
        const struct {
            const char *what, *from, *to;
        } texts[] = {
            {"model", x->model, y->model},
            {"UUID", x->uuid, y->uuid},
            {"fabric", x->fabric_uuid, y->fabric_uuid},
            {"CPUs", x->cpus, y->cpus},
            {"port", x->port_guid, y->port_guid},
            {"health", health[x->health], health[y->health]},
            {"place", x->parent < 0 ? "" : graph_node(d->before, x->parent)->name,
             y->parent < 0 ? "" : graph_node(d->after, y->parent)->name},
        };
        for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
            if (strcmp(texts[k].from, texts[k].to))
                changed(d, i, texts[k].what, texts[k].from, texts[k].to);
        if (x->fabric != y->fabric && x->fabric && y->fabric)
            changed(d, i, "fabric state", fabric_is_name(x->fabric),
                    fabric_is_name(y->fabric));
        if (x->imex != y->imex && x->imex && y->imex)
            changed(d, i, "IMEX", imex_is_name(x->imex), imex_is_name(y->imex));
        changed_num(d, i, "number", x->index, y->index);
        changed_num(d, i, "NUMA node", x->numa, y->numa);
        changed_num(d, i, "compute capability", x->sm, y->sm);
        changed_num(d, i, "MIG mode", x->mig, y->mig);
        changed_num(d, i, "clique", (double)x->clique, (double)y->clique);
        changed_num(d, i, "memory in bytes", x->memory_bytes.v, y->memory_bytes.v);
        changed_num(d, i, "speed in bytes/s", x->speed.v, y->speed.v);
    }
}

static void link_text(const struct graph *g, const struct link *l, char *ret, size_t n)
{
    char a[192], b[192];

    snprintf(ret, n, "%s link of %s and %s", link_kind_name(l->kind),
             graph_label(g, l->a, a, sizeof(a)), graph_label(g, l->b, b, sizeof(b)));
}

static void link_presence(struct diff *d, const struct graph *g, const struct graph *to,
                          const int *map, enum graph_change c)
{
    char what[448], text[512];

    for (int i = 0; i < graph_n_links(g); i++) {
        const struct link *l = graph_link(g, i);
        int a = map[l->a], b = map[l->b];
        if (a < 0 || b < 0 || graph_link_between(to, a, b, l->kind))
            continue;
        link_text(g, l, what, sizeof(what));
        snprintf(text, sizeof(text), "%s %s", c == GRAPH_LOST ? "lost" : "added", what);
        say(d, c, text);
    }
}

static void link_changes(struct diff *d)
{
    char what[448], text[640];

    for (int i = 0; i < graph_n_links(d->before); i++) {
        const struct link *x = graph_link(d->before, i);
        int a = d->to_after[x->a], b = d->to_after[x->b];
        const struct link *y =
            a < 0 || b < 0 ? NULL : graph_link_between(d->after, a, b, x->kind);
        if (!y || (x->width == y->width && x->nominal.v == y->nominal.v &&
                   x->measured.v == y->measured.v && x->health == y->health))
            continue;
        link_text(d->before, x, what, sizeof(what));
        snprintf(text, sizeof(text),
                 "changed %s: from %d wide, %.1f GB/s to %d wide, %.1f GB/s", what,
                 x->width, x->nominal.v / 1e9, y->width, y->nominal.v / 1e9);
        say(d, GRAPH_CHANGED, text);
    }
}

int graph_diff(const struct graph *before, const struct graph *after, graph_diff_fn fn,
               void *arg)
{
    struct diff d = {.before = before, .after = after, .fn = fn, .arg = arg};

    d.to_after = match(before, after);
    d.to_before = match(after, before);
    node_presence(&d, before, d.to_after, GRAPH_LOST);
    node_presence(&d, after, d.to_before, GRAPH_ADDED);
    node_changes(&d);
    link_presence(&d, before, after, d.to_after, GRAPH_LOST);
    link_presence(&d, after, before, d.to_before, GRAPH_ADDED);
    link_changes(&d);
    free(d.to_after);
    free(d.to_before);
    return d.n;
}

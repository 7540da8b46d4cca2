/* topo/placement_show.c - a placement's NICs, links, table, drawing and difference. */
#include "topo/placement.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "topo/cost.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/placement_impl.h"
#include "topo/show.h"

/* ---- near ---- */

/* Better class, then bandwidth; among equals the NIC that fewer ranks have. */
static int nearest_nic(const struct graph *g, const struct paths *paths, int dev,
                       const int *used)
{
    int best = -1;

    for (int i = 0; i < graph_n_nodes(g); i++) {
        const struct path *w, *b;
        if (graph_node(g, i)->kind != NODE_NIC ||
            graph_node(g, i)->health == HEALTH_BAD ||
            graph_node(g, i)->host != graph_node(g, dev)->host)
            continue;
        w = paths_get(paths, dev, i);
        b = best < 0 ? NULL : paths_get(paths, dev, best);
        if (w && w->cls != PATH_DIS &&
            (!b || w->cls < b->cls ||
             (w->cls == b->cls &&
              (w->bps > b->bps * (1 + 1e-9) ||
               (w->bps >= b->bps * (1 - 1e-9) && used[i] < used[best])))))
            best = i;
    }
    return best;
}

static int numa_node(const struct graph *g, int dev)
{
    for (int i = dev; i >= 0; i = graph_node(g, i)->parent)
        if (graph_node(g, i)->kind == NODE_NUMA)
            return i;
    for (int i = 0; i < graph_n_nodes(g); i++)
        if (graph_node(g, i)->kind == NODE_NUMA && graph_node(g, dev)->numa >= 0 &&
            graph_node(g, i)->numa == graph_node(g, dev)->numa &&
            graph_node(g, i)->host == graph_node(g, dev)->host)
            return i;
    return -1;
}

void placement_near(struct placement *p, const struct graph *g, const struct paths *paths)
{
    int *used = xcalloc((size_t)graph_n_nodes(g) + 1, sizeof(*used));

    for (int i = 0; i < p->n_ranks; i++) {
        struct place_rank *r = &p->rank[i];
        r->numa = numa_node(g, r->device);
        r->nic = nearest_nic(g, paths, r->device, used);
        if (r->nic >= 0)
            used[r->nic]++;
    }
    free(used);
}

/* ---- links ---- */

static void group_path(const struct placement *p, const struct place_group *q,
                       const struct paths *paths, struct path *ret)
{
    int *dev = xcalloc((size_t)q->n, sizeof(*dev));

    for (int i = 0; i < q->n; i++)
        dev[i] = p->rank[q->rank[i]].device;
    if (place_kinds[q->kind].all)
        paths_all(paths, dev, q->n, ret);
    else
        paths_ring(paths, dev, q->n, ret);
    free(dev);
}

/* Members that share the first one's fast domain: NVLink, or at least the host. */
static int fast_members(const struct placement *p, const struct place_group *q,
                        const struct graph *g, const struct paths *paths, double *ret_bps,
                        bool *ret_measured)
{
    int first = p->rank[q->rank[0]].device, n = 1;

    *ret_bps = 0;
    *ret_measured = true;
    for (int i = 1; i < q->n; i++) {
        int dev = p->rank[q->rank[i]].device;
        const struct path *w = paths_get(paths, first, dev);
        if (w->cls > PATH_NVB && graph_node(g, dev)->host != graph_node(g, first)->host)
            continue;
        *ret_bps = n == 1 ? w->bps : fmin(*ret_bps, w->bps);
        *ret_measured = *ret_measured && w->measured;
        n++;
    }
    return n;
}

static void note_group(const struct placement *p, const struct place_group *q,
                       const struct graph *g, const struct paths *paths,
                       struct cost_group *ret)
{
    double inside;
    bool measured;
    struct path worst;
    int fast = fast_members(p, q, g, paths, &inside, &measured);

    group_path(p, q, paths, &worst);
    if (ret->bps > 0 && worst.bps >= ret->cut_bps)
        return;
    ret->n = q->n;
    ret->fast = fast;
    ret->bps = fast > 1 ? inside : worst.bps;
    ret->cut_bps = worst.bps;
    ret->measured = fast > 1 ? measured : worst.measured;
    ret->cut_measured = worst.measured;
}

void placement_links(const struct placement *p, const struct graph *g,
                     const struct paths *paths, int pool, struct cost_links *ret)
{
    const struct layout *l = &p->pool[pool];

    *ret = (struct cost_links){.tp = {.n = l->tp, .fast = l->tp},
                               .cp = {.n = l->cp, .fast = l->cp},
                               .ep = {.n = l->ep, .fast = l->ep},
                               .etp = {.n = l->etp, .fast = l->etp}};
    for (int i = 0; i < p->n_groups; i++) {
        const struct place_group *q = &p->group[i];
        struct path w;
        if (q->kind == PLACE_HANDOFF) {
            group_path(p, q, paths, &w);
            ret->handoff_bps =
                ret->handoff_bps > 0 ? fmin(ret->handoff_bps, w.bps) : w.bps;
            continue;
        }
        if (p->rank[q->rank[0]].pool != pool)
            continue;
        if (q->kind == PLACE_TP)
            note_group(p, q, g, paths, &ret->tp);
        else if (q->kind == PLACE_EP)
            note_group(p, q, g, paths, &ret->ep);
        else if (q->kind == PLACE_ETP)
            note_group(p, q, g, paths, &ret->etp);
        else if (q->kind == PLACE_RING || q->kind == PLACE_ULYSSES)
            note_group(p, q, g, paths, &ret->cp);
        else if (q->kind == PLACE_PP) {
            group_path(p, q, paths, &w);
            ret->pp_measured = (ret->pp_bps > 0 ? ret->pp_measured : true) && w.measured;
            ret->pp_bps = ret->pp_bps > 0 ? fmin(ret->pp_bps, w.bps) : w.bps;
        }
    }
    if (ret->etp.bps <= 0) { /* no group of its own: the ranks of cp */
        ret->etp.bps = ret->cp.bps;
        ret->etp.cut_bps = ret->cp.cut_bps;
        ret->etp.measured = ret->cp.measured;
        ret->etp.cut_measured = ret->cp.cut_measured;
    }
}

/* ---- print ---- */

static void print_name(const struct graph *g, int node, struct buf *out)
{
    const struct node *n = graph_node(g, node);

    buf_printf(out, "%s/%s", graph_node(g, n->host)->name, n->name);
}

static void print_group(const struct placement *p, const struct place_group *q,
                        const struct graph *g, const struct paths *paths, struct buf *out)
{
    struct path w;
    char day[16];

    group_path(p, q, paths, &w);
    buf_printf(out, "%-8s %4d %-5s %10.1f ", place_kinds[q->kind].name,
               p->rank[q->rank[0]].pool, path_class_name(w.cls), w.bps / 1e9);
    if (w.measured_ms)
        topo_day(w.measured_ms, day, sizeof(day));
    buf_printf(out, "%-11s", w.measured ? w.measured_ms ? day : "measured" : "nominal");
    for (int j = 0; j < q->n; j++) {
        buf_putc(out, ' ');
        print_name(g, p->rank[q->rank[j]].device, out);
    }
    buf_putc(out, '\n');
}

/* Where the rank's own threads belong: the device's cores, or those of its NUMA node. */
static void print_cores(const struct graph *g, const struct place_rank *r,
                        struct buf *out)
{
    const char *cpus = graph_node(g, r->device)->cpus;

    if (!cpus[0] && r->numa >= 0)
        cpus = graph_node(g, r->numa)->cpus;
    if (cpus[0])
        buf_printf(out, " (CPUs %s)", cpus);
}

void placement_print(const struct placement *p, const struct graph *g,
                     const struct paths *paths, struct buf *out)
{
    buf_printf(out, "%-8s %4s %-5s %10s %-11s %s\n", "group", "pool", "path", "GB/s",
               "measured", "devices");
    for (int i = 0; i < p->n_groups; i++)
        print_group(p, &p->group[i], g, paths, out);
    for (int i = 0; i < p->n_ranks; i++) {
        const struct place_rank *r = &p->rank[i];
        buf_printf(out, "rank %d: pool %d replica %d pp %d adp %d cp %d tp %d on ", i,
                   r->pool, r->replica, r->pp, r->adp, r->cp, r->tp);
        print_name(g, r->device, out);
        if (r->nic >= 0)
            buf_printf(out, ", NIC %s", graph_node(g, r->nic)->name);
        if (r->numa >= 0)
            buf_printf(out, ", %s", graph_node(g, r->numa)->name);
        print_cores(g, r, out);
        buf_putc(out, '\n');
    }
}

/* ---- Graphviz ---- */

/* Names come from files: what ends a string there is escaped. */
static void dot_name(const struct graph *g, int node, struct buf *out)
{
    struct buf b;

    buf_init(&b, 0);
    print_name(g, node, &b);
    for (const char *s = b.p; *s; s++) {
        if (*s == '"' || *s == '\\')
            buf_putc(out, '\\');
        buf_putc(out, *s);
    }
    buf_done(&b);
}

static void dot_rank(const struct placement *p, const struct graph *g, int i,
                     struct buf *out)
{
    const struct place_rank *r = &p->rank[i];

    buf_printf(out, "  r%d [label=\"%d: pp%d adp%d cp%d tp%d\\n", i, i, r->pp, r->adp,
               r->cp, r->tp);
    dot_name(g, r->device, out);
    buf_puts(out, "\"];\n");
}

/* A box for each instance, in it one for each TP group. */
static void dot_instance(const struct placement *p, int pool, int replica,
                         struct buf *out)
{
    static const char *const pools[] = {"prefill", "decode"};

    buf_printf(out, "  subgraph cluster_i%d_%d {\n    label=\"%s %d\";\n", pool, replica,
               p->n_pools == 2 ? pools[pool] : "instance", replica);
    for (int i = 0; i < p->n_ranks; i++)
        if (p->rank[i].pool == pool && p->rank[i].replica == replica)
            buf_printf(out, "    r%d;\n", i);
    for (int i = 0; i < p->n_groups; i++) {
        const struct place_group *q = &p->group[i];
        const struct place_rank *first = &p->rank[q->rank[0]];
        if (q->kind != PLACE_TP || first->pool != pool || first->replica != replica)
            continue;
        buf_printf(out, "    subgraph cluster_%d { label=\"tp\";", i);
        for (int j = 0; j < q->n; j++)
            buf_printf(out, " r%d;", q->rank[j]);
        buf_puts(out, " }\n");
    }
    buf_puts(out, "  }\n");
}

void placement_dot(const struct placement *p, const struct graph *g, struct buf *out)
{
    buf_puts(out, "graph placement {\n  node [shape=box];\n");
    for (int i = 0; i < p->n_ranks; i++)
        dot_rank(p, g, i, out);
    for (int k = 0; k < p->n_pools; k++)
        for (int r = 0; r < p->pool[k].replicas; r++)
            dot_instance(p, k, r, out);
    for (int i = 0; i < p->n_groups; i++) {
        const struct place_group *q = &p->group[i];
        for (int j = 1; j < q->n && q->kind != PLACE_TP; j++)
            buf_printf(out, "  r%d -- r%d [label=\"%s\"];\n", q->rank[j - 1], q->rank[j],
                       place_kinds[q->kind].name);
    }
    buf_puts(out, "}\n");
}

/* ---- difference ---- */

static void rank_name(const struct placement *p, const struct graph *g, int i, char *out,
                      size_t cap)
{
    const struct node *n = graph_node(g, p->rank[i].device);

    snprintf(out, cap, "%s/%s", graph_node(g, n->host)->name, n->name);
}

int placement_diff(const struct placement *before, const struct graph *g_before,
                   const struct placement *after, const struct graph *g_after,
                   void (*fn)(void *arg, const char *line), void *arg)
{
    int n = before->n_ranks > after->n_ranks ? before->n_ranks : after->n_ranks,
        moved = 0;

    for (int i = 0; i < n; i++) {
        char a[160] = "nowhere", b[160] = "nowhere", line[400];
        if (i < before->n_ranks)
            rank_name(before, g_before, i, a, sizeof(a));
        if (i < after->n_ranks)
            rank_name(after, g_after, i, b, sizeof(b));
        if (!strcmp(a, b))
            continue;
        moved++;
        snprintf(line, sizeof(line), "rank %d moves from %s to %s", i, a, b);
        fn(arg, line);
    }
    return moved;
}

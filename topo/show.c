/* topo/show.c - see show.h. */
#include "topo/show.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/mem.h"
#include "topo/finding.h"
#include "topo/graph.h"
#include "topo/path.h"

void topo_day(int64_t ms, char *ret, size_t n)
{
    time_t t = (time_t)(ms / 1000);
    struct tm tm;

    if (!gmtime_r(&t, &tm) || !strftime(ret, n, "%Y-%m-%d", &tm))
        snprintf(ret, n, "?");
}

/* ---- the tree ---- */

static int nvlinks_of(const struct graph *g, int node, double *ret_bps)
{
    const int *at;
    int n = graph_links_at(g, node, &at), width = 0;

    *ret_bps = 0;
    for (int i = 0; i < n; i++) {
        const struct link *l = graph_link(g, at[i]);
        if (l->kind != LINK_NVLINK || l->health == HEALTH_BAD)
            continue;
        width += l->width;
        *ret_bps += l->nominal.v;
    }
    return width;
}

static void put_link(struct buf *b, const struct link *l, const char *name)
{
    if (!l)
        return;
    buf_printf(b, ", %s", name);
    if (l->width > 0)
        buf_printf(b, " x%d", l->width);
    if (l->measured.conf == CONF_MEASURED)
        buf_printf(b, " %.1f GB/s measured", l->measured.v / 1e9);
    else if (l->nominal.v > 0)
        buf_printf(b, " %.1f GB/s", l->nominal.v / 1e9);
}

static void put_device(const struct graph *g, const struct node *n, struct buf *b)
{
    double bps;
    int links = nvlinks_of(g, n->id, &bps);
    const int *at;
    int k = graph_links_at(g, n->id, &at);

    if (n->is_cpu || n->mig || n->index < 0)
        buf_printf(b, "%s", n->name);
    else
        buf_printf(b, "GPU %d  %s", n->index, n->name);
    buf_printf(b, "  %s", n->model[0] ? n->model : "model unknown");
    if (n->memory_bytes.v > 0)
        buf_printf(b, ", %.1f GiB", n->memory_bytes.v / (1 << 30));
    if (links)
        buf_printf(b, ", %d NVLink%s %.0f GB/s", links, links > 1 ? "s" : "", bps / 1e9);
    if (n->fabric > FABRIC_IS_NONE)
        buf_printf(b, ", fabric %s", fabric_is_name(n->fabric));
    if (n->clique >= 0)
        buf_printf(b, ", clique %lld", (long long)n->clique);
    for (int i = 0; i < k; i++)
        if (graph_link(g, at[i])->kind == LINK_C2C)
            put_link(b, graph_link(g, at[i]), "C2C");
}

static void put_node(const struct graph *g, const struct node *n, struct buf *b)
{
    static const char *const health[] = {"", "", "  DEGRADED", "  BAD"};
    int links;
    double bps;

    switch (n->kind) {
    case NODE_DEVICE:
        put_device(g, n, b);
        break;
    case NODE_NIC:
        buf_printf(b, "%s", n->name);
        if (n->pci[0] && strcmp(n->pci, n->name))
            buf_printf(b, "  %s", n->pci);
        if (n->speed.v > 0)
            buf_printf(b, "  NIC, %.0f Gb/s", n->speed.v * 8 / 1e9);
        else
            buf_puts(b, "  NIC, speed unknown");
        break;
    case NODE_NVSWITCH:
        links = nvlinks_of(g, n->id, &bps);
        buf_printf(b, "%s  NVSwitch, %d links", n->name, links);
        break;
    case NODE_NUMA:
        buf_printf(b, "%s  %s", n->name, n->model[0] ? n->model : "NUMA node");
        if (n->cpus[0])
            buf_printf(b, ", CPUs %s", n->cpus);
        break;
    case NODE_SWITCH:
        buf_printf(b, "%s  PCI switch", n->name);
        break;
    default:
        buf_puts(b, n->name);
        if (n->imex)
            buf_printf(b, "  IMEX channel %s", imex_is_name(n->imex));
    }
    if (n->parent >= 0)
        put_link(b, graph_link_between(g, n->id, n->parent, LINK_PCI), "PCI");
    buf_printf(b, "%s\n", health[n->health]);
}

static void put_below(const struct graph *g, const int *child, const int *next, int id,
                      int depth, struct buf *b)
{
    for (int i = child[id]; i >= 0; i = next[i]) {
        buf_printf(b, "%*s", 2 * depth, "");
        put_node(g, graph_node(g, i), b);
        put_below(g, child, next, i, depth + 1, b);
    }
}

static void put_summary(const struct graph *g, struct buf *b)
{
    static const enum node_kind kinds[] = {NODE_NVSWITCH, NODE_NIC, NODE_HOST};
    static const char *const names[] = {"NVSwitch", "NIC", "host"};
    const int *dev;
    int n = graph_devices(g, &dev);

    buf_printf(b, "%s%s: %d device%s", graph_source(g),
               graph_emulated(g) ? " (emulated)" : "", n, n == 1 ? "" : "s");
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        int k = graph_count(g, kinds[i]);
        if (k)
            buf_printf(b, ", %d %s%s", k, names[i],
                       k == 1                      ? ""
                       : kinds[i] == NODE_NVSWITCH ? "es"
                                                   : "s");
    }
    buf_putc(b, '\n');
}

void topo_show_tree(const struct graph *g, struct buf *b)
{
    int n = graph_n_nodes(g);
    int *child = xmalloc((n + 1) * sizeof(int)), *next = xmalloc((n + 1) * sizeof(int));

    memset(child, 0xff, (n + 1) * sizeof(int));
    for (int i = n - 1; i >= 0; i--) {
        int up = graph_node(g, i)->parent;
        next[i] = -1;
        if (up < 0)
            continue;
        next[i] = child[up];
        child[up] = i;
    }
    put_summary(g, b);
    for (int i = 0; i < n; i++) {
        if (graph_node(g, i)->parent >= 0)
            continue;
        put_node(g, graph_node(g, i), b);
        put_below(g, child, next, i, 1, b);
    }
    free(child);
    free(next);
}

/* ---- the matrix ---- */

struct column {
    const struct node *n;
    char head[40];
};

/* NVLinks between two devices: direct, or what both have to the same switches. */
static int nvlinks_between(const struct graph *g, int a, int b)
{
    const struct link *l = graph_link_between(g, a, b, LINK_NVLINK);
    const int *at;
    int n, sum = 0;

    if (l)
        return l->width;
    n = graph_links_at(g, a, &at);
    for (int i = 0; i < n; i++) {
        const struct link *x = graph_link(g, at[i]);
        int sw = x->a == a ? x->b : x->a;
        const struct link *y =
            x->kind == LINK_NVLINK ? graph_link_between(g, b, sw, LINK_NVLINK) : NULL;
        if (y)
            sum += x->width < y->width ? x->width : y->width;
    }
    return sum;
}

static int list_columns(const struct graph *g, struct column *c)
{
    const int *dev;
    int n_dev = graph_devices(g, &dev), n = 0, nic = 0;
    bool hosts = graph_count(g, NODE_HOST) > 1;
    bool nics = n_dev + graph_count(g, NODE_NIC) <= SHOW_ENDS_MAX;

    for (int i = 0; i < n_dev; i++) {
        const struct node *d = graph_node(g, dev[i]);
        char host[24] = "";
        c[n].n = d;
        if (hosts)
            snprintf(host, sizeof(host), "%.22s:", graph_node(g, d->host)->name);
        if (d->is_cpu || d->mig || d->index < 0)
            snprintf(c[n].head, sizeof(c[n].head), "%.15s",
                     d->name); /* cpuN is unique over the rack */
        else
            snprintf(c[n].head, sizeof(c[n].head), "%sGPU%d", host, d->index);
        n++;
    }
    for (int i = 0; nics && i < graph_n_nodes(g); i++)
        if (graph_node(g, i)->kind == NODE_NIC) {
            c[n].n = graph_node(g, i);
            snprintf(c[n].head, sizeof(c[n].head), "NIC%d", nic++);
            n++;
        }
    return n;
}

static void put_row(const struct graph *g, const struct paths *p, const struct column *c,
                    int n, int row, struct buf *b)
{
    const struct node *d = c[row].n, *numa = NULL;
    char cell[16];

    buf_puts(b, c[row].head);
    for (int k = 0; k < n; k++) {
        const struct path *x = paths_get(p, d->id, c[k].n->id);
        if (k == row)
            snprintf(cell, sizeof(cell), " X ");
        else if (x->cls == PATH_NVL)
            snprintf(cell, sizeof(cell), "NV%d", nvlinks_between(g, d->id, c[k].n->id));
        else
            snprintf(cell, sizeof(cell), "%s", path_class_name(x->cls));
        buf_printf(b, "\t%s", cell);
    }
    if (d->kind == NODE_DEVICE) {
        for (int i = d->parent; i >= 0 && !numa; i = graph_node(g, i)->parent)
            numa = graph_node(g, i)->kind == NODE_NUMA ? graph_node(g, i) : NULL;
        buf_printf(b, "\t%s", d->cpus[0] ? d->cpus : numa ? numa->cpus : "");
        if (d->numa >= 0)
            buf_printf(b, "\t%d", d->numa);
        else
            buf_puts(b, "\tN/A");
    }
    buf_putc(b, '\n');
}

/* The figures behind a class, where copies were timed. */
static void put_measured(const struct paths *p, const struct column *c, int n,
                         struct buf *b)
{
    bool any = false;
    char day[16];

    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++) {
            const struct path *x = paths_get(p, c[i].n->id, c[k].n->id);
            if (!x->measured_ms)
                continue;
            if (!any)
                buf_puts(b, "\nMeasured (others are what their links say):\n\n");
            any = true;
            topo_day(x->measured_ms, day, sizeof(day));
            buf_printf(b, "  %s %s: %.2f GB/s +-%.0f%%, %.2f us, measured %s\n",
                       c[i].head, c[k].head, x->bps / 1e9, 50 * x->spread, x->latency_us,
                       day);
        }
}

static void put_legend(const struct graph *g, const struct column *c, int n,
                       struct buf *b)
{
    char name[192];
    bool any = false;

    buf_puts(b, "\nLegend:\n\n"
                "  X    = the same device\n"
                "  NV#  = # NVLinks, direct or through NVSwitches\n"
                "  NVB  = two NVLinks through a GPU in between\n"
                "  C2C  = over the CPU that both are joined to by chip-to-chip links\n"
                "  PIX  = at most one PCI switch\n"
                "  PXB  = several PCI switches, no host bridge\n"
                "  PHB  = a PCI host bridge\n"
                "  NODE = host bridges of one NUMA node\n"
                "  SYS  = NUMA nodes of one host\n"
                "  NET  = the network between hosts\n"
                "  DIS  = no path\n");
    for (int i = 0; i < n; i++) {
        if (c[i].n->kind != NODE_NIC)
            continue;
        if (!any)
            buf_puts(b, "\nNIC Legend:\n\n");
        any = true;
        buf_printf(b, "  %s: %s\n", c[i].head,
                   graph_label(g, c[i].n->id, name, sizeof(name)));
    }
}

void topo_show_matrix(const struct graph *g, const struct paths *p, struct buf *b)
{
    const int *dev;
    int n_dev = graph_devices(g, &dev), nics = graph_count(g, NODE_NIC);
    struct column *c = xcalloc((size_t)n_dev + nics + 1, sizeof(*c));
    int n = list_columns(g, c);

    for (int i = 0; i < n; i++)
        buf_printf(b, "\t%s", c[i].head);
    buf_puts(b, "\tCPU Affinity\tNUMA Affinity\n");
    for (int i = 0; i < n; i++)
        put_row(g, p, c, n, i, b);
    if (n < n_dev + nics)
        buf_printf(b, "\n%d NICs are left out: the matrix would be too wide\n", nics);
    put_measured(p, c, n, b);
    put_legend(g, c, n, b);
    free(c);
}

void topo_show_findings(const struct findings *f, struct buf *b)
{
    if (findings_count(f) == 0)
        buf_puts(b, "nothing odd about this rack\n");
    for (int i = 0; i < findings_count(f); i++) {
        const struct finding *x = findings_get(f, i);
        buf_printf(b, "%-5s %-17s %s\n", severity_name(x->severity),
                   finding_kind_name(x->kind), x->text);
    }
}

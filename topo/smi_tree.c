/* topo/smi_tree.c - the rack graph that gives the matrix of `nvidia-smi topo -m`.
 *
 * The matrix states distances, not a tree. Distances of a PCI forest nest: those within
 * PIX of each other share a switch, such groups within PXB share an upper switch, those
 * within PHB a host bridge, those within NODE a NUMA node. So four rounds of joining give
 * the tree back. NVLink cells hide the PCI distance of their pair; what other cells do
 * not tell is then left apart. Where a cell contradicts the tree (reports do), a warning
 * names it; the NUMA node that the GPU itself states is believed before the cells of
 * NICs. */
#include "topo/file_smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/facts.h"
#include "topo/graph.h"

enum { LEVELS = 4, WARNED_MAX = 8 };

/* NVLinks of a GPU whose model is unknown: the most that one had up to Blackwell. */
enum { NVLINKS_MAX = 18 };
#define NVLINK_BPS_UNKNOWN 20e9

struct tree {
    struct smi *s;
    struct err *e;
    int host, gen;            /* PCI generation assumed */
    int *group[LEVELS];       /* end -> lowest end of its group at this level */
    int *numa_of;             /* by end: number of the NUMA node, -1 unknown */
    int *top;                 /* by end: node above its host bridge */
    int *bridge, *upper, *sw; /* by lowest end of the group: node, -1 */
    int *numas, n_numas;      /* nodes */
    int *node;                /* by end */
};

static struct node blank(struct tree *t, enum node_kind kind, int parent)
{
    return (struct node){.kind = kind,
                         .parent = parent,
                         .host = t->host,
                         .numa = -1,
                         .index = -1,
                         .clique = -1};
}

static int pci_link(struct tree *t, int node, int parent)
{
    struct link l = {.a = parent,
                     .b = node,
                     .kind = LINK_PCI,
                     .width = 16,
                     .nominal = fact_assumed(facts_pcie_bps(t->gen, 16)),
                     .latency_us = fact_assumed(facts_latency_us(LINK_PCI))};
    return graph_add_link(t->s->b, &l, t->e);
}

static int add_named(struct tree *t, enum node_kind kind, int parent, int numa,
                     const char *fmt, int number)
{
    struct node n = blank(t, kind, parent);

    n.numa = numa;
    snprintf(n.name, sizeof(n.name), fmt, number);
    int id = graph_add_node(t->s->b, &n, t->e);
    if (id >= 0 && kind == NODE_SWITCH && pci_link(t, id, parent) < 0)
        return -1;
    return id;
}

/* ---- the tree ---- */

static void join_groups(struct tree *t)
{
    int n = t->s->n_ends;

    for (int level = 0; level < LEVELS; level++) {
        int *g = t->group[level];
        for (int i = 0; i < n; i++)
            g[i] = level ? t->group[level - 1][i] : i;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < i; k++) {
                int a = g[i], b = g[k];
                if (t->s->cells[i * n + k].level > level || a == b)
                    continue;
                for (int x = 0; x < n; x++)
                    if (g[x] == a || g[x] == b)
                        g[x] = a < b ? a : b;
            }
    }
}

/* The one NUMA number that the GPUs of a group state: -1 none does, -2 they differ. */
static int stated_numa(const struct tree *t, int level, int first)
{
    int numa = -1;

    for (int i = 0; i < t->s->n_ends; i++) {
        const struct smi_end *d = &t->s->ends[i];
        if (t->group[level][i] != first || d->numa < 0)
            continue;
        if (numa >= 0 && numa != d->numa)
            return -2;
        numa = d->numa;
    }
    return numa;
}

/* Sockets are joined by a common figure: the text names no CPU. */
static int add_numa(struct tree *t, const struct node *n)
{
    int id = graph_add_node(t->s->b, n, t->e);

    if (id < 0)
        return -1;
    for (int i = 0; i < t->n_numas; i++) {
        struct link l = {
            .a = t->numas[i],
            .b = id,
            .kind = LINK_SOCKET,
            .width = 1,
            .nominal = fact_assumed(facts_socket_bps("x86_64", "GenuineIntel", 6, 0)),
            .latency_us = fact_assumed(facts_latency_us(LINK_SOCKET))};
        if (graph_add_link(t->s->b, &l, t->e) < 0)
            return -1;
    }
    t->numas[t->n_numas++] = id;
    return id;
}

static int numa_node(struct tree *t, int number)
{
    for (int i = 0; i < t->s->n_ends; i++)
        if (t->numa_of[i] == number && t->top[i] >= 0)
            return t->top[i];

    struct node n = blank(t, NODE_NUMA, t->host);
    n.numa = number;
    snprintf(n.name, sizeof(n.name), "numa%d", number);
    for (int i = 0; i < t->s->n_ends; i++)
        if (t->s->ends[i].numa == number && t->s->ends[i].cpus[0]) {
            snprintf(n.cpus, sizeof(n.cpus), "%s", t->s->ends[i].cpus);
            break;
        }
    return add_numa(t, &n);
}

static int unknown_numa(struct tree *t, int number)
{
    struct node n = blank(t, NODE_NUMA, t->host);

    snprintf(n.name, sizeof(n.name), "numa-unknown-%d", number);
    return add_numa(t, &n);
}

/* The unnumbered NUMA node that an end before i of the same NODE group has, -1 none. */
static int unplaced_of_group(const struct tree *t, int group, int i)
{
    for (int k = 0; k < i; k++)
        if (t->group[LEVEL_NODE][k] == group && t->numa_of[k] < 0)
            return t->top[k];
    return -1;
}

/* The node above the host bridge of each end. */
static int place_tops(struct tree *t)
{
    int n = t->s->n_ends, unknown = 0;

    for (int i = 0; i < n; i++)
        t->numa_of[i] = t->top[i] = -1;
    for (int i = 0; i < n; i++) {
        int near = stated_numa(t, LEVEL_PHB, t->group[LEVEL_PHB][i]);
        int wide = stated_numa(t, LEVEL_NODE, t->group[LEVEL_NODE][i]);
        int own = t->s->ends[i].numa;
        int first = t->group[LEVEL_NODE][i];
        int number = own >= 0 ? own : near >= 0 ? near : wide;
        if (number >= 0) {
            if ((t->top[i] = numa_node(t, number)) < 0)
                return -1;
            t->numa_of[i] = number;
        } else if ((t->top[i] = unplaced_of_group(t, first, i)) >= 0) {
            continue;
        } else if ((t->top[i] = unknown_numa(t, unknown++)) < 0) {
            return -1;
        } else if (wide == -2) {
            graph_warn(
                t->s->b,
                "%s reads NODE to GPUs of different NUMA nodes: its own is unknown, "
                "also that of the like",
                t->s->ends[i].label);
        }
    }
    return 0;
}

static int group_size(const struct tree *t, int level, int first)
{
    int n = 0;

    for (int i = 0; i < t->s->n_ends; i++)
        n += t->group[level][i] == first;
    return n;
}

/* The node that an end hangs on, made on demand, from the top down. */
static int place(struct tree *t, int i)
{
    int b = t->group[LEVEL_PHB][i], u = t->group[LEVEL_PXB][i],
        s = t->group[LEVEL_PIX][i];
    bool upper = group_size(t, LEVEL_PXB, u) > group_size(t, LEVEL_PIX, s);

    if (t->bridge[b] < 0 && (t->bridge[b] = add_named(t, NODE_BRIDGE, t->top[b],
                                                      t->numa_of[b], "bridge%d", b)) < 0)
        return -1;
    int under = t->bridge[b];
    if (upper && t->upper[u] < 0 &&
        (t->upper[u] =
             add_named(t, NODE_SWITCH, under, t->numa_of[b], "upper-switch%d", u)) < 0)
        return -1;
    under = upper ? t->upper[u] : under;
    if (!upper && group_size(t, LEVEL_PIX, s) == 1)
        return under;
    if (t->sw[s] < 0 &&
        (t->sw[s] = add_named(t, NODE_SWITCH, under, t->numa_of[b], "switch%d", s)) < 0)
        return -1;
    return t->sw[s];
}

static void check_tree(struct tree *t)
{
    static const char *const names[] = {"PIX", "PXB", "PHB", "NODE", "SYS"};
    int n = t->s->n_ends, wrong = 0;

    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) {
            int level = LEVEL_PIX, said = t->s->cells[i * n + k].level;
            int group = t->group[LEVEL_NODE][i];
            if (said == LEVEL_NODE && stated_numa(t, LEVEL_NODE, group) == -2)
                continue; /* told when it was placed */
            while (level < LEVEL_NODE && t->group[level][i] != t->group[level][k])
                level++;
            if (level == LEVEL_NODE && t->top[i] != t->top[k])
                level = LEVEL_SYS;
            if (said == LEVEL_HIDDEN || said == level || ++wrong > WARNED_MAX)
                continue;
            graph_warn(t->s->b, "%s to %s reads %s, the other cells make it %s",
                       t->s->ends[k].label, t->s->ends[i].label, names[said],
                       names[level]);
        }
    if (wrong > WARNED_MAX)
        graph_warn(t->s->b, "%d more cells contradict each other", wrong - WARNED_MAX);
}

/* ---- devices ---- */

static const struct gpu_facts *facts_of(const struct smi *s, int number)
{
    const struct smi_gpu *g = smi_gpu_at(s, number);
    const struct gpu_facts *f = g ? facts_gpu(g->model) : NULL;

    return f ? f : s->stated;
}

static void judge_links(struct smi *s, const struct smi_gpu *g, struct node *n)
{
    const struct gpu_facts *f = facts_of(s, g->number);
    int expected = f && f->nvlinks > g->links ? f->nvlinks : g->links;

    if (g->all_inactive) {
        graph_warn(s->b, "GPU %d (%s): all NVLinks are inactive", g->number, g->model);
        n->health = HEALTH_DEGRADED;
    } else if (g->links && g->active < expected) {
        graph_warn(s->b, "GPU %d (%s) has %d of %d NVLinks active", g->number, g->model,
                   g->active, expected);
        n->health = HEALTH_DEGRADED;
    }
}

static int add_migs(struct tree *t, const struct smi_gpu *g, int parent)
{
    const struct smi *s = t->s;

    for (int i = 0; i < s->n_migs; i++) {
        const struct smi_mig *m = &s->migs[i];
        const struct gpu_facts *f = facts_of(s, g->number);
        struct node n = blank(t, NODE_DEVICE, parent);
        const char *dot = strchr(m->profile, '.');
        double gib = dot ? strtod(dot + 1, NULL) : 0;
        if (&s->gpus[m->gpu] != g)
            continue;
        n.mig = true;
        n.index = m->number;
        n.sm = f ? f->sm : 0;
        if (gib > 0 && gib < 10000)
            n.memory_bytes = fact_from(FROM_FILE, gib * (1 << 30), CONF_ASSUMED);
        snprintf(n.name, sizeof(n.name), "gpu%d/mig%d", g->number, m->number);
        snprintf(n.model, sizeof(n.model), "%.31s MIG %.20s", g->model, m->profile);
        snprintf(n.uuid, sizeof(n.uuid), "%s", m->uuid);
        if (graph_add_node(s->b, &n, t->e) < 0)
            return -1;
    }
    return 0;
}

static int add_gpu(struct tree *t, int number, int parent, int numa, const char *cpus)
{
    const struct smi_gpu *g = smi_gpu_at(t->s, number);
    const struct gpu_facts *f = facts_of(t->s, number);
    struct node n = blank(t, NODE_DEVICE, parent);

    n.numa = numa;
    n.index = number;
    n.sm = f ? f->sm : 0;
    if (f)
        n.memory_bytes = fact_assumed(f->memory_bytes);
    snprintf(n.name, sizeof(n.name), "gpu%d", number);
    snprintf(n.cpus, sizeof(n.cpus), "%s", cpus);
    if (g) {
        snprintf(n.model, sizeof(n.model), "%s", g->model);
        snprintf(n.uuid, sizeof(n.uuid), "%s", g->uuid);
        judge_links(t->s, g, &n);
    } else if (f) {
        snprintf(n.model, sizeof(n.model), "NVIDIA %s", f->name);
    }
    int id = graph_add_node(t->s->b, &n, t->e);
    if (id < 0 || (parent != t->host && pci_link(t, id, parent) < 0))
        return -1;
    return g && add_migs(t, g, id) < 0 ? -1 : id;
}

static int add_nic(struct tree *t, const struct smi_end *d, int parent, int numa)
{
    struct node n = blank(t, NODE_NIC, parent);
    int used = 0;

    n.numa = numa;
    if (sscanf(d->label, "NIC%4d%n", &n.index, &used) != 1 || d->label[used] ||
        n.index < 0)
        n.index = -1;
    snprintf(n.name, sizeof(n.name), "%s", d->name);
    int id = graph_add_node(t->s->b, &n, t->e);
    if (id < 0 || pci_link(t, id, parent) < 0)
        return -1;
    return id;
}

/* ---- NVLinks ---- */

static int nvlink(struct tree *t, int end, int a, int b, int width)
{
    const struct gpu_facts *f = facts_of(t->s, t->s->ends[end].number);
    double bps = f && f->nvlink_bps > 0 ? f->nvlink_bps : NVLINK_BPS_UNKNOWN;
    struct link l = {.a = a,
                     .b = b,
                     .kind = LINK_NVLINK,
                     .width = width,
                     .expected = f ? f->nvlinks : 0,
                     .nominal = fact_assumed(width * bps),
                     .latency_us = fact_assumed(facts_latency_us(LINK_NVLINK))};
    return graph_add_link(t->s->b, &l, t->e);
}

/* More links to all peers together than a GPU has: then each cell counts the links to the
 * switches, not to that peer. */
static bool behind_switches(const struct tree *t)
{
    int n = t->s->n_ends;

    for (int i = 0; i < n; i++) {
        const struct gpu_facts *f = facts_of(t->s, t->s->ends[i].number);
        int sum = 0, most = f && f->nvlinks ? f->nvlinks : NVLINKS_MAX;
        for (int k = 0; k < n; k++)
            sum += t->s->cells[i * n + k].nv;
        if (sum > most)
            return true;
    }
    return false;
}

static int add_nvlinks(struct tree *t)
{
    int n = t->s->n_ends, hub = -1;
    bool any = false, known = true, switched = behind_switches(t);

    for (int i = 0; i < n; i++) {
        int width = 0;
        for (int k = 0; k < n; k++) {
            int nv = t->s->cells[i * n + k].nv;
            width = nv > width ? nv : width;
            if (!switched && nv && k < i && nvlink(t, i, t->node[k], t->node[i], nv) < 0)
                return -1;
        }
        any |= width > 0;
        if (width)
            known &= facts_of(t->s, t->s->ends[i].number) != NULL;
        if (!switched || !width)
            continue;
        if (hub < 0 &&
            (hub = add_named(t, NODE_NVSWITCH, t->host, -1, "nvswitch-hidden", 0)) < 0)
            return -1;
        if (nvlink(t, i, hub, t->node[i], width) < 0)
            return -1;
    }
    if (any && !known)
        graph_warn(t->s->b, "GPU model unknown: %.0f GB/s per NVLink assumed",
                   NVLINK_BPS_UNKNOWN / 1e9);
    return 0;
}

static int build_matrix(struct tree *t)
{
    struct smi *s = t->s;

    join_groups(t);
    if (place_tops(t) < 0)
        return -1;
    for (int i = 0; i < s->n_ends; i++) {
        const struct smi_end *d = &s->ends[i];
        int parent = place(t, i);
        if (parent < 0)
            return -1;
        t->node[i] = d->gpu ? add_gpu(t, d->number, parent, t->numa_of[i], d->cpus)
                            : add_nic(t, d, parent, t->numa_of[i]);
        if (t->node[i] < 0)
            return -1;
    }
    check_tree(t);
    graph_warn(s->b,
               "no PCI addresses and speeds in this text: devices are named by number, "
               "which shifts when one is lost; Gen%d x16 is assumed",
               t->gen);
    return add_nvlinks(t);
}

/* GPUs that are only in the lists. */
static int build_rest(struct tree *t)
{
    struct smi *s = t->s;

    for (int i = 0; i < s->n_gpus; i++) {
        bool there = false;
        for (int k = 0; k < s->n_ends; k++)
            there |= s->ends[k].gpu && s->ends[k].number == s->gpus[i].number;
        if (there)
            continue;
        if (s->n_ends)
            graph_warn(s->b, "GPU %d is listed, the matrix does not have it",
                       s->gpus[i].number);
        if (add_gpu(t, s->gpus[i].number, t->host, -1, "") < 0)
            return -1;
    }
    if (!s->n_ends)
        graph_warn(s->b, "a device list only: places and links of the GPUs are unknown");
    return 0;
}

int smi_build(struct smi *s, struct err *e)
{
    struct tree t = {.s = s, .e = e, .gen = 3};
    struct node host = {.kind = NODE_HOST,
                        .parent = -1,
                        .host = -1,
                        .numa = -1,
                        .index = -1,
                        .clique = -1};
    int n = s->n_ends, rc = 0;
    int *mem = xcalloc((size_t)(n + 1) * (LEVELS + 7), sizeof(int)), *at = mem;
    int **lists[] = {&t.group[0], &t.group[1], &t.group[2], &t.group[3],
                     &t.numa_of,  &t.top,      &t.numas,    &t.bridge,
                     &t.upper,    &t.sw,       &t.node};

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++, at += n + 1)
        *lists[i] = at;
    for (int i = 0; i < n; i++)
        t.bridge[i] = t.upper[i] = t.sw[i] = t.node[i] = -1;
    for (int i = 0; i < n && t.gen == 3; i++)
        if (s->ends[i].gpu && facts_of(s, s->ends[i].number))
            t.gen = facts_of(s, s->ends[i].number)->pcie_gen;
    snprintf(host.name, sizeof(host.name), "host0");
    t.host = graph_add_node(s->b, &host, e);
    if (t.host < 0 || (n && build_matrix(&t) < 0) || build_rest(&t) < 0)
        rc = -1;
    free(mem);
    return rc;
}

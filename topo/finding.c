/* topo/finding.c - see finding.h. One check per kind; each looks at the whole graph and
 * adds sentences. Siblings are devices of one model: what all of them lack is how the
 * rack is built, what one lacks is a fault. */
#include "topo/finding.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "topo/facts.h"
#include "topo/graph.h"

enum { FINDINGS_MAX = 2000, COMPARED_MAX = 2048 };

struct findings {
    struct finding *list;
    int n, cap;
};

struct check {
    const struct graph *g;
    struct findings *f;
    const int *dev;
    int n_dev;
    int *nvlinks; /* by node: links in all */
    int *expected;
    bool *switched; /* by node: goes to an NVSwitch */
};

static const char *const severities[] = {
#define X(id, name) name,
    SEVERITY_MAP(X)
#undef X
};
static const char *const kinds[] = {
#define X(id, name) name,
    FINDING_KIND_MAP(X)
#undef X
};

const char *severity_name(enum severity s) { return severities[s]; }
const char *finding_kind_name(enum finding_kind k) { return kinds[k]; }

__attribute__((format(printf, 5, 6))) static void add(struct findings *f, enum severity s,
                                                      enum finding_kind k, int node,
                                                      const char *fmt, ...)
{
    va_list ap;

    if (f->n == FINDINGS_MAX)
        return;
    if (f->n == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 16;
        f->list = xrealloc(f->list, f->cap * sizeof(*f->list));
    }
    struct finding *x = &f->list[f->n++];
    *x = (struct finding){.severity = s, .kind = k, .node = node};
    va_start(ap, fmt);
    vsnprintf(x->text, sizeof(x->text), fmt, ap);
    va_end(ap);
}

static const char *label(const struct check *c, int node, char *ret, size_t n)
{
    return graph_label(c->g, node, ret, n);
}

/* ---- NVLinks ---- */

static void count_nvlinks(struct check *c)
{
    for (int i = 0; i < graph_n_links(c->g); i++) {
        const struct link *l = graph_link(c->g, i);
        const int ends[2] = {l->a, l->b};
        if (l->kind != LINK_NVLINK || l->health == HEALTH_BAD)
            continue;
        for (int k = 0; k < 2; k++) {
            c->nvlinks[ends[k]] += l->width;
            if (l->expected > c->expected[ends[k]])
                c->expected[ends[k]] = l->expected;
            c->switched[ends[k]] |= graph_node(c->g, ends[1 - k])->kind == NODE_NVSWITCH;
        }
    }
}

static bool siblings(const struct node *a, const struct node *b)
{
    return a->sm == b->sm && a->mig == b->mig && a->is_cpu == b->is_cpu &&
           !strcmp(a->model, b->model);
}

/* The most links that a device of this model has here. */
static int most_of_model(const struct check *c, const struct node *n, int *ret_with)
{
    int most = 0;

    *ret_with = 0;
    for (int i = 0; i < c->n_dev; i++) {
        const struct node *d = graph_node(c->g, c->dev[i]);
        if (!siblings(n, d))
            continue;
        most = c->nvlinks[d->id] > most ? c->nvlinks[d->id] : most;
        *ret_with += c->nvlinks[d->id] > 0;
    }
    return most;
}

static void check_nvlinks(struct check *c)
{
    char who[192];

    for (int i = 0; i < c->n_dev; i++) {
        const struct node *n = graph_node(c->g, c->dev[i]);
        int have = c->nvlinks[n->id], with;
        int most = most_of_model(c, n, &with);
        if (n->mig || n->is_cpu)
            continue;
        /* a mesh may go to GPUs that are not ours to see: only siblings can tell */
        int want =
            c->switched[n->id] && c->expected[n->id] > most ? c->expected[n->id] : most;
        label(c, n->id, who, sizeof(who));
        if (have == 0 && most > 0)
            add(c->f, SEVERITY_BAD, FINDING_LINKS, n->id,
                "%s has no NVLink, %d others of its model have up to %d", who, with,
                most);
        else if (have < want)
            add(c->f, 2 * have < want ? SEVERITY_BAD : SEVERITY_WARN, FINDING_LINKS,
                n->id, "%s has %d of %d NVLinks", who, have, want);
    }
}

/* ---- baseline ---- */

static void on_change(void *arg, enum graph_change change, const char *what)
{
    struct check *c = arg;
    bool device = strstr(what, " device ") != NULL;
    const char *rest = strchr(what, ' ') + 1;

    if (change == GRAPH_LOST)
        add(c->f, device ? SEVERITY_BAD : SEVERITY_WARN, FINDING_LOST, -1,
            "%s is missing against the recorded baseline", rest);
    else if (change == GRAPH_ADDED)
        add(c->f, SEVERITY_INFO, FINDING_ADDED, -1, "%s is not in the recorded baseline",
            rest);
    else
        add(c->f, SEVERITY_WARN, FINDING_CHANGED, -1, "%s since the recorded baseline",
            what);
}

/* ---- NICs and sockets ---- */

/* "GPUs 4-7", "GPU 3", of the devices of one NUMA node. */
static void gpus_of_numa(const struct check *c, int host, int numa, char *ret,
                         size_t size)
{
    int from = -2, last = -2, n = 0;
    size_t used = 0;
    char text[160] = "";

    for (int i = 0; i <= c->n_dev; i++) {
        const struct node *d = i < c->n_dev ? graph_node(c->g, c->dev[i]) : NULL;
        if (d && (d->host != host || d->numa != numa || d->is_cpu))
            continue;
        if (d)
            n++;
        if (d && d->index == last + 1) {
            last = d->index;
            continue;
        }
        if (from >= 0 && used < sizeof(text))
            used += (size_t)snprintf(text + used, sizeof(text) - used,
                                     from == last ? "%s%d" : "%s%d-%d", used ? "," : "",
                                     from, last);
        from = last = d ? d->index : -2;
    }
    if (text[0])
        snprintf(ret, size, "%s %s", n > 1 ? "GPUs" : "GPU", text);
    else
        snprintf(ret, size, "%d GPUs", n);
}

static bool real_nic(const struct node *n) { return n->kind == NODE_NIC && n->numa >= 0; }

static void check_numa_of_nics(struct check *c, const struct node *numa)
{
    int gpus = 0, own = 0, nics = 0, far = -1;
    char who[192], nic[192];

    for (int i = 0; i < graph_n_nodes(c->g); i++) {
        const struct node *n = graph_node(c->g, i);
        if (n->host != numa->host)
            continue;
        gpus += n->kind == NODE_DEVICE && n->numa == numa->numa && !n->is_cpu;
        nics += real_nic(n);
        own += real_nic(n) && n->numa == numa->numa;
        if (real_nic(n) && far < 0)
            far = i;
    }
    if (!gpus || own || !nics)
        return;
    gpus_of_numa(c, numa->host, numa->numa, who, sizeof(who));
    label(c, far, nic, sizeof(nic));
    if (nics == 1)
        add(c->f, SEVERITY_WARN, FINDING_NIC_FAR, far,
            "NIC %s sits on the other socket from %s (NUMA node %d, they are on %d)", nic,
            who, graph_node(c->g, far)->numa, numa->numa);
    else
        add(c->f, SEVERITY_WARN, FINDING_NIC_FAR, -1,
            "none of the %d NICs is on NUMA node %d with %s; %s is on NUMA node %d", nics,
            numa->numa, who, nic, graph_node(c->g, far)->numa);
}

static void check_nics(struct check *c)
{
    if (graph_count(c->g, NODE_NIC) == 0 || graph_count(c->g, NODE_NUMA) > 1024)
        return;
    for (int i = 0; i < graph_n_nodes(c->g); i++)
        if (graph_node(c->g, i)->kind == NODE_NUMA && graph_node(c->g, i)->numa >= 0)
            check_numa_of_nics(c, graph_node(c->g, i));
    for (int i = 0; i < graph_n_links(c->g); i++) {
        const struct link *l = graph_link(c->g, i);
        char nic[192];
        if (l->kind == LINK_NET && l->health == HEALTH_BAD)
            add(c->f, SEVERITY_WARN, FINDING_HEALTH, l->a, "NIC %s has no link",
                label(c, graph_node(c->g, l->a)->kind == NODE_NIC ? l->a : l->b, nic,
                      sizeof(nic)));
    }
}

/* ---- fabric ---- */

static bool same_clique(const struct node *a, const struct node *b)
{
    return a->clique == b->clique && !strcmp(a->fabric_uuid, b->fabric_uuid);
}

static void check_cliques(struct check *c)
{
    const struct node *first = NULL, *other = NULL;
    int n_first = 0, n_all = 0;

    for (int i = 0; i < c->n_dev; i++) {
        const struct node *d = graph_node(c->g, c->dev[i]);
        if (d->clique < 0 && !d->fabric_uuid[0])
            continue;
        first = first ? first : d;
        n_all++;
        n_first += same_clique(first, d);
        if (!other && !same_clique(first, d))
            other = d;
    }
    if (!other)
        return;
    if (other->clique != first->clique)
        add(c->f, SEVERITY_BAD, FINDING_CLIQUE, other->id,
            "clique ids differ: %d of %d devices in clique %lld, %s in clique %lld",
            n_first, n_all, (long long)first->clique, other->name,
            (long long)other->clique);
    else
        add(c->f, SEVERITY_BAD, FINDING_CLIQUE, other->id,
            "cluster UUIDs differ: %d of %d devices in %s, %s in %s", n_first, n_all,
            first->fabric_uuid, other->name, other->fabric_uuid);
}

/* Links that are up say nothing of a fabric that is not. */
static void check_fabric(struct check *c)
{
    char who[192];

    for (int i = 0; i < graph_n_nodes(c->g); i++) {
        const struct node *n = graph_node(c->g, i);
        if (n->kind == NODE_HOST && n->imex == IMEX_IS_ABSENT)
            add(c->f, SEVERITY_WARN, FINDING_IMEX, i,
                "%s has no IMEX channel (/dev/nvidia-caps-imex-channels): its GPUs reach "
                "none of other hosts over NVLink; is nvidia-imex running, was a channel "
                "made?",
                n->name);
        if (n->kind != NODE_DEVICE || n->fabric == FABRIC_IS_JOINED ||
            n->fabric <= FABRIC_IS_NONE)
            continue;
        label(c, i, who, sizeof(who));
        if (n->fabric == FABRIC_IS_REFUSED)
            add(c->f, SEVERITY_BAD, FINDING_FABRIC, i, "%s was refused by its fabric",
                who);
        else
            add(c->f, SEVERITY_WARN, FINDING_FABRIC, i,
                "%s has not joined its fabric (%s): until then it has no NVLink", who,
                fabric_is_name(n->fabric));
    }
}

static void check_partial(struct check *c, const char *this_host)
{
    int here = 0;

    if (graph_count(c->g, NODE_HOST) == 1) {
        const struct gpu_facts *f =
            c->n_dev ? facts_gpu(graph_node(c->g, c->dev[0])->model) : NULL;
        if (f && f->domain > c->n_dev)
            add(c->f, SEVERITY_INFO, FINDING_PARTIAL, -1,
                "%d of %d devices are on this host; the rest of the NVLink domain is not "
                "in "
                "this graph",
                c->n_dev, f->domain);
        return;
    }
    for (int i = 0; this_host && i < c->n_dev; i++)
        here +=
            !strcmp(graph_node(c->g, graph_node(c->g, c->dev[i])->host)->name, this_host);
    if (this_host)
        add(c->f, SEVERITY_INFO, FINDING_PARTIAL, -1, "%d of %d devices are on this host",
            here, c->n_dev);
}

/* ---- PCI, MIG, NUMA, health ---- */

/* Superchips reach their CPU by C2C; the upstream port of their switch is a stub. */
static bool has_c2c_below(const struct check *c, int sw)
{
    for (int i = 0; i < graph_n_links(c->g); i++) {
        const struct link *l = graph_link(c->g, i);
        if (l->kind != LINK_C2C)
            continue;
        int dev = graph_node(c->g, l->a)->kind == NODE_DEVICE ? l->a : l->b;
        for (int up = dev; up >= 0; up = graph_node(c->g, up)->parent)
            if (up == sw)
                return true;
    }
    return false;
}

/* The best PCI link of what a switch holds, or of the siblings of a device. */
static const struct link *best_pci(const struct check *c, const struct node *low,
                                   const struct link *own)
{
    const struct link *best = own;
    const int *at;
    int k = low->kind == NODE_SWITCH ? graph_links_at(c->g, low->id, &at) : 0;

    for (int i = 0; i < k; i++) {
        const struct link *o = graph_link(c->g, at[i]);
        if (o->kind == LINK_PCI && o->nominal.v > best->nominal.v)
            best = o;
    }
    if (low->kind != NODE_DEVICE || c->n_dev > COMPARED_MAX)
        return best;
    for (int i = 0; i < c->n_dev; i++) {
        const struct node *d = graph_node(c->g, c->dev[i]);
        const struct link *o = siblings(low, d)
                                   ? graph_link_between(c->g, d->id, d->parent, LINK_PCI)
                                   : NULL;
        if (o && o->nominal.v > best->nominal.v)
            best = o;
    }
    return best;
}

static void check_pci(struct check *c)
{
    char who[192];

    for (int i = 0; i < graph_n_links(c->g); i++) {
        const struct link *l = graph_link(c->g, i);
        if (l->kind != LINK_PCI)
            continue;
        const struct node *low = graph_node(c->g, l->a);
        if (low->parent != l->b)
            low = graph_node(c->g, l->b);
        const struct link *best = best_pci(c, low, l);
        bool sw = low->kind == NODE_SWITCH;
        if (best->nominal.v <= l->nominal.v * 1.01)
            continue;
        add(c->f, sw && has_c2c_below(c, low->id) ? SEVERITY_INFO : SEVERITY_WARN,
            FINDING_PCI, low->id,
            "PCI link of %s %s is x%d with %.1f GB/s, that of %s x%d "
            "with %.1f",
            node_kind_name(low->kind), label(c, low->id, who, sizeof(who)), l->width,
            l->nominal.v / 1e9, sw ? "what hangs below it" : "its siblings", best->width,
            best->nominal.v / 1e9);
    }
}

static void check_mig(struct check *c)
{
    int *cut = xcalloc(graph_n_nodes(c->g) + 1, sizeof(int));
    char who[192];

    for (int i = 0; i < graph_n_nodes(c->g); i++) {
        const struct node *n = graph_node(c->g, i);
        if (n->kind == NODE_DEVICE && graph_node(c->g, n->parent)->kind == NODE_DEVICE)
            cut[n->parent]++;
        else if (n->kind == NODE_DEVICE && n->mig)
            add(c->f, SEVERITY_WARN, FINDING_MIG, i,
                "%s has MIG mode on and no instance: it cannot be used", n->name);
    }
    for (int i = 0; i < graph_n_nodes(c->g); i++)
        if (cut[i])
            add(c->f, SEVERITY_WARN, FINDING_MIG, i,
                "MIG is on: %s is cut into %d instances, which form no group with others",
                label(c, i, who, sizeof(who)), cut[i]);
    free(cut);
}

static void check_numa(struct check *c)
{
    int n = 0, all = 0, first = -1;
    char who[192];

    for (int i = 0; i < graph_n_nodes(c->g); i++) {
        const struct node *d = graph_node(c->g, i);
        if ((d->kind != NODE_DEVICE && d->kind != NODE_NIC) || d->mig)
            continue;
        all++;
        n += d->numa < 0;
        if (d->numa < 0 && first < 0)
            first = i;
    }
    if (n)
        add(c->f, SEVERITY_WARN, FINDING_NUMA, first,
            "the NUMA node of %d of %d devices and NICs is unknown, first %s", n, all,
            label(c, first, who, sizeof(who)));
}

static void check_health(struct check *c)
{
    char who[192], to[192];

    for (int i = 0; i < graph_n_nodes(c->g); i++) {
        const struct node *n = graph_node(c->g, i);
        if (n->health >= HEALTH_DEGRADED)
            add(c->f, n->health == HEALTH_BAD ? SEVERITY_BAD : SEVERITY_WARN,
                FINDING_HEALTH, i, "%s is %s", label(c, i, who, sizeof(who)),
                n->health == HEALTH_BAD ? "not usable" : "degraded");
    }
    for (int i = 0; i < graph_n_links(c->g); i++) {
        const struct link *l = graph_link(c->g, i);
        if (l->health >= HEALTH_DEGRADED && l->kind != LINK_NET)
            add(c->f, SEVERITY_WARN, FINDING_HEALTH, l->a,
                "the %s link of %s and %s is %s", link_kind_name(l->kind),
                label(c, l->a, who, sizeof(who)), label(c, l->b, to, sizeof(to)),
                l->health == HEALTH_BAD ? "down" : "degraded");
    }
}

/* By severity; qsort is not stable, so the order of finding is kept by inserting. */
static void sort(struct findings *f)
{
    struct finding *out = xcalloc(f->n + 1, sizeof(*out));
    int n = 0;

    for (int s = 0; s < SEVERITY_COUNT; s++)
        for (int i = 0; i < f->n; i++)
            if ((int)f->list[i].severity == s)
                out[n++] = f->list[i];
    free(f->list);
    f->list = out;
    f->cap = n + 1;
}

struct findings *findings_new(const struct graph *g, const struct graph *baseline,
                              const char *this_host)
{
    struct findings *f = xcalloc(1, sizeof(*f));
    struct check c = {.g = g, .f = f};
    int n = graph_n_nodes(g);

    c.n_dev = graph_devices(g, &c.dev);
    c.nvlinks = xcalloc(n + 1, sizeof(int));
    c.expected = xcalloc(n + 1, sizeof(int));
    c.switched = xcalloc(n + 1, sizeof(bool));
    count_nvlinks(&c);
    if (baseline)
        graph_diff(baseline, g, on_change, &c);
    if (c.n_dev > COMPARED_MAX)
        add(f, SEVERITY_WARN, FINDING_SOURCE, -1,
            "%d devices: more than %d are not compared with each other", c.n_dev,
            COMPARED_MAX);
    else
        check_nvlinks(&c);
    check_cliques(&c);
    check_fabric(&c);
    check_health(&c);
    check_mig(&c);
    check_pci(&c);
    check_nics(&c);
    check_numa(&c);
    check_partial(&c, this_host);
    for (int i = 0; i < graph_n_warnings(g); i++)
        add(f, SEVERITY_INFO, FINDING_SOURCE, -1, "%s", graph_warning(g, i));
    free(c.nvlinks);
    free(c.expected);
    free(c.switched);
    sort(f);
    return f;
}

static bool is_among(const int *list, int n, int node)
{
    for (int i = 0; i < n; i++)
        if (list[i] == node)
            return true;
    return false;
}

void findings_note_cordons(struct findings *f, const struct graph *g, const int *cordoned,
                           int n)
{
    int had = f->n, *said = xcalloc((size_t)had + 1, sizeof(*said)), n_said = 0;
    char who[192];

    for (int i = 0; i < n; i++)
        add(f, SEVERITY_INFO, FINDING_CORDONED, cordoned[i],
            "%s is cordoned: nothing is placed on it",
            graph_label(g, cordoned[i], who, sizeof(who)));
    for (int i = 0; i < had; i++) {
        int node = f->list[i].node;
        enum finding_kind why = f->list[i].kind;
        if (f->list[i].severity != SEVERITY_BAD || node < 0 ||
            graph_node(g, node)->kind != NODE_DEVICE || is_among(cordoned, n, node) ||
            is_among(said, n_said, node))
            continue;
        said[n_said++] = node;
        add(f, SEVERITY_WARN, FINDING_CORDON, node,
            "%s should be cordoned (%s is bad): until then placement may use it",
            graph_label(g, node, who, sizeof(who)), kinds[why]);
    }
    free(said);
    sort(f);
}

void findings_free(struct findings *f)
{
    if (!f)
        return;
    free(f->list);
    free(f);
}

int findings_count(const struct findings *f) { return f->n; }
const struct finding *findings_get(const struct findings *f, int i)
{
    return &f->list[i];
}

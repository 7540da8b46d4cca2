/* topo/graph.c - builds, checks, freezes and compares rack graphs.
 *
 * A builder only appends: a node's parent must be there before it, so there are no
 * cycles by construction and a walk upwards always ends. Each addition is checked on its
 * own (kinds that may hold each other, ends that a link kind may have, finite figures);
 * graph_build then checks what needs the whole: names unique within a host, and one
 * record per pair of ends and kind. Sources often report a link from both of its ends;
 * where the two disagree the smaller figure wins and a warning says so.
 *
 * Lifecycle: graph_builder_new -> graph_add_* -> graph_build (takes the builder) -> any
 * number of readers -> graph_free. Sizes are driven by files, so both lists are limited.
 */
#include "topo/graph.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/graph_impl.h"

enum {
    NODES_MAX = 16384,
    LINKS_MAX = 131072,
    WARNINGS_MAX = 200,
    DEPTH_MAX = 24,
    NETWORKS_MAX = 16,
    HOSTS_MAX = 1024
};

/* A builder is a graph that is not frozen yet. */
struct graph_builder {
    struct graph g;
};

/* Which kinds may stand directly above a kind, as bits. */
#define BIT(k) (1u << (k))
static const unsigned parents_of[NODE_KIND_COUNT] = {
    [NODE_NUMA] = BIT(NODE_HOST),
    [NODE_BRIDGE] = BIT(NODE_HOST) | BIT(NODE_NUMA),
    [NODE_SWITCH] = BIT(NODE_HOST) | BIT(NODE_NUMA) | BIT(NODE_BRIDGE) | BIT(NODE_SWITCH),
    [NODE_DEVICE] = BIT(NODE_HOST) | BIT(NODE_NUMA) | BIT(NODE_BRIDGE) |
                    BIT(NODE_SWITCH) | BIT(NODE_DEVICE),
    [NODE_NVSWITCH] = BIT(NODE_HOST),
    [NODE_NIC] = BIT(NODE_HOST) | BIT(NODE_NUMA) | BIT(NODE_BRIDGE) | BIT(NODE_SWITCH),
};

struct graph_builder *graph_builder_new(void)
{
    return xcalloc(1, sizeof(struct graph_builder));
}

static void graph_done(struct graph *g)
{
    for (int i = 0; i < g->n_warnings; i++)
        free(g->warnings[i]);
    free(g->warnings);
    free(g->pairs);
    free(g->nodes);
    free(g->links);
    free(g->depth);
    free(g->at);
    free(g->at_first);
    free(g->devices);
    free(g->by_name);
    free(g->source);
}

void graph_builder_free(struct graph_builder *b)
{
    if (!b)
        return;
    graph_done(&b->g);
    free(b);
}

void graph_free(struct graph *g)
{
    if (!g)
        return;
    graph_done(g);
    free(g);
}

void graph_warn(struct graph_builder *b, const char *fmt, ...)
{
    struct graph *g = &b->g;
    char text[512];
    va_list ap;

    if (g->n_warnings >= WARNINGS_MAX) {
        g->warnings_left_out++;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    g->warnings = xrealloc(g->warnings, (g->n_warnings + 1) * sizeof(char *));
    g->warnings[g->n_warnings++] = xstrdup(text);
}

static bool fact_ok(const struct fact *f)
{
    return isfinite(f->v) && f->v >= 0 && f->v < 1e30;
}

static int check_text(const struct node *n, struct err *e)
{
    const struct {
        const char *what, *s;
        size_t size;
    } text[] = {
        {"name", n->name, sizeof(n->name)},
        {"model", n->model, sizeof(n->model)},
        {"uuid", n->uuid, sizeof(n->uuid)},
        {"pci", n->pci, sizeof(n->pci)},
        {"fabric_uuid", n->fabric_uuid, sizeof(n->fabric_uuid)},
        {"cpus", n->cpus, sizeof(n->cpus)},
        {"port_guid", n->port_guid, sizeof(n->port_guid)},
    };

    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++) {
        size_t len = strnlen(text[i].s, text[i].size);
        if (len == text[i].size)
            return err_set(e, ERR_INVALID, "node %s is not terminated", text[i].what);
        for (size_t k = 0; k < len; k++)
            if ((unsigned char)text[i].s[k] < 0x20 || text[i].s[k] == 0x7f)
                return err_set(e, ERR_INVALID, "node %s has a control character",
                               text[i].what);
    }
    if (!n->name[0])
        return err_set(e, ERR_INVALID, "a %s has no name", node_kind_name(n->kind));
    return 0;
}

static int check_place(const struct graph *g, const struct node *n, int *ret_depth,
                       struct err *e)
{
    bool top = n->kind == NODE_HOST || n->kind == NODE_NETWORK;
    const char *kind = node_kind_name(n->kind);

    *ret_depth = 0;
    if (top || (n->kind == NODE_NVSWITCH && n->parent < 0 && n->host < 0)) {
        if (n->parent >= 0)
            return err_set(e, ERR_INVALID, "%s '%s' cannot have a parent", kind, n->name);
        return 0;
    }
    if (n->parent < 0 || n->parent >= g->n_nodes)
        return err_set(
            e, ERR_INVALID,
            "%s '%s': its parent must be added before it (got number %d of %d)", kind,
            n->name, n->parent, g->n_nodes);
    const struct node *up = &g->nodes[n->parent];
    if (!(parents_of[n->kind] & BIT(up->kind)))
        return err_set(e, ERR_INVALID, "%s '%s' cannot stand under %s '%s'", kind,
                       n->name, node_kind_name(up->kind), up->name);
    if (n->host != up->host)
        return err_set(e, ERR_INVALID,
                       "%s '%s' says host %d, its parent '%s' is on host %d", kind,
                       n->name, n->host, up->name, up->host);
    *ret_depth = g->depth[n->parent] + 1;
    if (*ret_depth > DEPTH_MAX)
        return err_set(e, ERR_TOOBIG, "%s '%s' is more than %d levels deep", kind,
                       n->name, DEPTH_MAX);
    return 0;
}

int graph_add_node(struct graph_builder *b, const struct node *n, struct err *e)
{
    struct graph *g = &b->g;
    int depth;

    if ((unsigned)n->kind >= NODE_KIND_COUNT)
        return err_set(e, ERR_INVALID, "node kind %d does not exist", (int)n->kind);
    if (g->n_nodes >= NODES_MAX)
        return err_set(e, ERR_TOOBIG, "more than %d nodes", NODES_MAX);
    if (check_text(n, e) < 0 || check_place(g, n, &depth, e) < 0)
        return -1;
    if (n->numa < -1 || n->numa > 65535 || n->index < -1 || n->index > 1000000 ||
        n->sm < 0 || n->sm > 10000 || n->clique < -1)
        return err_set(
            e, ERR_RANGE,
            "'%s': NUMA node %d, number %d, compute capability %d or clique is "
            "out of range",
            n->name, n->numa, n->index, n->sm);
    if (!fact_ok(&n->memory_bytes) || !fact_ok(&n->speed))
        return err_set(e, ERR_RANGE, "'%s': memory and speed must be finite and >= 0",
                       n->name);
    if (g->n_nodes == g->cap_nodes) {
        g->cap_nodes = g->cap_nodes ? 2 * g->cap_nodes : 64;
        g->nodes = xrealloc(g->nodes, g->cap_nodes * sizeof(*g->nodes));
        g->depth = xrealloc(g->depth, g->cap_nodes * sizeof(*g->depth));
    }
    struct node *new = &g->nodes[g->n_nodes];
    *new = *n;
    new->id = g->n_nodes;
    if (n->kind == NODE_HOST)
        new->host = new->id;
    if (n->kind == NODE_NETWORK)
        new->host = -1;
    g->depth[g->n_nodes] = depth;
    return g->n_nodes++;
}

/* The kinds of the two ends that a link may join, in either order. */
static bool ends_ok(const struct node *a, const struct node *b, enum link_kind k)
{
    unsigned both = BIT(a->kind) | BIT(b->kind);

    switch (k) {
    case LINK_PCI:
        return b->parent == a->id || a->parent == b->id;
    case LINK_NVLINK:
        return both == BIT(NODE_DEVICE) ||
               both == (BIT(NODE_DEVICE) | BIT(NODE_NVSWITCH));
    case LINK_C2C:
    case LINK_MEMORY:
        return both == (BIT(NODE_DEVICE) | BIT(NODE_NUMA)) && a->host == b->host;
    case LINK_SOCKET:
        return both == BIT(NODE_NUMA) && a->host == b->host;
    case LINK_NET:
        return both == (BIT(NODE_NIC) | BIT(NODE_NETWORK)) ||
               both == (BIT(NODE_HOST) | BIT(NODE_NETWORK));
    default:
        return false;
    }
}

int graph_add_pair(struct graph_builder *b, const struct graph_pair *p, struct err *e)
{
    struct graph *g = &b->g;

    if (g->n_pairs >= LINKS_MAX)
        return err_set(e, ERR_TOOBIG, "more than %d measured pairs", LINKS_MAX);
    if (p->a < 0 || p->a >= g->n_nodes || p->b < 0 || p->b >= g->n_nodes || p->a == p->b)
        return err_set(e, ERR_INVALID, "a measured pair of nodes %d and %d, of %d nodes",
                       p->a, p->b, g->n_nodes);
    if (!isfinite(p->bps) || p->bps <= 0 || !isfinite(p->spread) || p->spread < 0 ||
        !isfinite(p->latency_us) || p->latency_us < 0 || p->at_ms < 1)
        return err_set(e, ERR_RANGE,
                       "the measured pair '%s' and '%s' needs a rate over 0, a date, and "
                       "spread and latency of 0 or more",
                       g->nodes[p->a].name, g->nodes[p->b].name);
    if (g->n_pairs == g->cap_pairs) {
        g->cap_pairs = g->cap_pairs ? 2 * g->cap_pairs : 64;
        g->pairs = xrealloc(g->pairs, (size_t)g->cap_pairs * sizeof(*g->pairs));
    }
    g->pairs[g->n_pairs++] = *p;
    return 0;
}

int graph_add_link(struct graph_builder *b, const struct link *l, struct err *e)
{
    struct graph *g = &b->g;

    if ((unsigned)l->kind >= LINK_KIND_COUNT)
        return err_set(e, ERR_INVALID, "link kind %d does not exist", (int)l->kind);
    if (g->n_links >= LINKS_MAX)
        return err_set(e, ERR_TOOBIG, "more than %d links", LINKS_MAX);
    if (l->a < 0 || l->a >= g->n_nodes || l->b < 0 || l->b >= g->n_nodes)
        return err_set(e, ERR_INVALID, "a %s link between nodes %d and %d, of %d nodes",
                       link_kind_name(l->kind), l->a, l->b, g->n_nodes);
    const struct node *na = &g->nodes[l->a], *nb = &g->nodes[l->b];
    if (l->a == l->b)
        return err_set(e, ERR_INVALID, "'%s' has a %s link to itself", na->name,
                       link_kind_name(l->kind));
    if (!ends_ok(na, nb, l->kind))
        return err_set(e, ERR_INVALID, "a %s link cannot join %s '%s' and %s '%s'",
                       link_kind_name(l->kind), node_kind_name(na->kind), na->name,
                       node_kind_name(nb->kind), nb->name);
    if (l->width < 0 || l->width > 100000 || l->expected < 0 || l->expected > 100000 ||
        !fact_ok(&l->nominal) || !fact_ok(&l->measured) || !fact_ok(&l->latency_us))
        return err_set(e, ERR_RANGE,
                       "%s link of '%s' and '%s': width and figures must be finite, >= 0",
                       link_kind_name(l->kind), na->name, nb->name);
    if (g->n_links == g->cap_links) {
        g->cap_links = g->cap_links ? 2 * g->cap_links : 64;
        g->links = xrealloc(g->links, g->cap_links * sizeof(*g->links));
    }
    struct link *new = &g->links[g->n_links++];
    *new = *l;
    if (l->a > l->b) {
        new->a = l->b;
        new->b = l->a;
    }
    return 0;
}

/* ---- order ---- */

bool pci_parse(const char *s, uint64_t *ret)
{
    unsigned domain, bus, dev, fn;
    int used = 0;

    if (strlen(s) > 20 || !isxdigit((unsigned char)s[0]))
        return false;
    if (sscanf(s, "%8x:%2x:%2x.%1x%n", &domain, &bus, &dev, &fn, &used) != 4 || s[used])
        return false;
    *ret = (uint64_t)domain << 20 | bus << 12 | dev << 4 | fn;
    return true;
}

/* PCI addresses by number, other names with their digit runs by value. */
static int name_cmp(const char *a, const char *b)
{
    uint64_t x, y;

    if (pci_parse(a, &x) && pci_parse(b, &y) && x != y)
        return x < y ? -1 : 1;
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            char *ea, *eb;
            x = strtoull(a, &ea, 10);
            y = strtoull(b, &eb, 10);
            if (x != y)
                return x < y ? -1 : 1;
            if (ea - a != eb - b)
                return ea - a < eb - b ? -1 : 1;
            a = ea;
            b = eb;
            continue;
        }
        if (*a != *b)
            break;
        a++;
        b++;
    }
    return (unsigned char)*a - (unsigned char)*b;
}

static int by_name(const void *pa, const void *pb, void *arg)
{
    const struct graph *g = arg;
    const struct node *a = &g->nodes[*(const int *)pa], *b = &g->nodes[*(const int *)pb];

    if (a->host != b->host)
        return a->host < b->host ? -1 : 1;
    int c = strcmp(a->name, b->name);
    return c ? c : a->id - b->id;
}

static int by_device(const void *pa, const void *pb, void *arg)
{
    const struct graph *g = arg;
    const struct node *a = &g->nodes[*(const int *)pa], *b = &g->nodes[*(const int *)pb];

    if (a->host != b->host)
        return a->host < b->host ? -1 : 1;
    int c = name_cmp(a->name, b->name);
    return c ? c : a->id - b->id;
}

int graph_by_ends(const void *pa, const void *pb)
{
    const struct link *a = pa, *b = pb;

    if (a->a != b->a)
        return a->a < b->a ? -1 : 1;
    if (a->b != b->b)
        return a->b < b->b ? -1 : 1;
    return (int)a->kind - (int)b->kind;
}

/* ---- the checks that need the whole ---- */

static int check_names(struct graph *g, struct err *e)
{
    g->by_name = xcalloc(g->n_nodes + 1, sizeof(int));
    for (int i = 0; i < g->n_nodes; i++)
        g->by_name[i] = i;
    qsort_r(g->by_name, g->n_nodes, sizeof(int), by_name, g);
    for (int i = 1; i < g->n_nodes; i++) {
        const struct node *a = &g->nodes[g->by_name[i - 1]];
        const struct node *b = &g->nodes[g->by_name[i]];
        /* hosts are their own scope, yet two of one name would not be told apart */
        if (a->host == b->host && !strcmp(a->name, b->name))
            return err_set(e, ERR_CONFLICT, "two nodes of one host are called '%s'",
                           a->name);
    }
    const char *first = NULL;
    int networks = 0, hosts = graph_count(g, NODE_HOST);

    if (hosts > HOSTS_MAX)
        return err_set(e, ERR_TOOBIG, "%d hosts, at most %d", hosts, HOSTS_MAX);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct node *n = &g->nodes[i];
        networks += n->kind == NODE_NETWORK;
        if (n->kind != NODE_HOST)
            continue;
        for (int k = 0; k < i; k++)
            if (g->nodes[k].kind == NODE_HOST && !strcmp(g->nodes[k].name, n->name))
                return err_set(e, ERR_CONFLICT, "two hosts are called '%s'", n->name);
        first = n->name;
    }
    if (!first)
        return err_set(e, ERR_INVALID, "no host in the rack");
    if (networks > NETWORKS_MAX)
        return err_set(e, ERR_TOOBIG, "%d networks, at most %d", networks, NETWORKS_MAX);
    return 0;
}

static void take_smaller(struct fact *into, const struct fact *from)
{
    if (from->conf == CONF_UNKNOWN)
        return;
    if (into->conf == CONF_UNKNOWN || from->v < into->v)
        *into = *from;
}

/* One record per pair and kind: what two ends report of one link is one link. */
static void merge_links(struct graph_builder *b)
{
    struct graph *g = &b->g;
    int n = 0;

    if (g->n_links)
        qsort(g->links, g->n_links, sizeof(*g->links), graph_by_ends);
    for (int i = 0; i < g->n_links; i++) {
        struct link *l = &g->links[i], *into = n ? &g->links[n - 1] : NULL;
        if (!into || graph_by_ends(into, l) != 0) {
            g->links[n++] = *l;
            continue;
        }
        if (into->width != l->width || into->nominal.v != l->nominal.v)
            graph_warn(b,
                       "%s link of %s and %s: one end says %d x %.1f GB/s, the other "
                       "%d x %.1f GB/s in all; the smaller counts",
                       link_kind_name(l->kind), g->nodes[l->a].name, g->nodes[l->b].name,
                       into->width, into->nominal.v / 1e9, l->width, l->nominal.v / 1e9);
        if (l->width < into->width)
            into->width = l->width;
        take_smaller(&into->nominal, &l->nominal);
        take_smaller(&into->measured, &l->measured);
        if (l->health > into->health)
            into->health = l->health;
    }
    g->n_links = n;
}

static void index_links(struct graph *g)
{
    int *fill = xcalloc(g->n_nodes + 1, sizeof(int));

    g->at_first = xcalloc(g->n_nodes + 1, sizeof(int));
    g->at = xcalloc(2 * (size_t)g->n_links + 1, sizeof(int));
    for (int i = 0; i < g->n_links; i++) {
        g->at_first[g->links[i].a + 1]++;
        g->at_first[g->links[i].b + 1]++;
    }
    for (int i = 0; i < g->n_nodes; i++)
        g->at_first[i + 1] += g->at_first[i];
    memcpy(fill, g->at_first, (g->n_nodes + 1) * sizeof(int));
    for (int i = 0; i < g->n_links; i++) {
        g->at[fill[g->links[i].a]++] = i;
        g->at[fill[g->links[i].b]++] = i;
    }
    free(fill);
}

static void list_devices(struct graph *g)
{
    bool *cut = xcalloc(g->n_nodes + 1, sizeof(bool));

    g->devices = xcalloc(g->n_nodes + 1, sizeof(int));
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == NODE_DEVICE &&
            g->nodes[g->nodes[i].parent].kind == NODE_DEVICE)
            cut[g->nodes[i].parent] = true;
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == NODE_DEVICE && !cut[i])
            g->devices[g->n_devices++] = i;
    free(cut);
    qsort_r(g->devices, g->n_devices, sizeof(int), by_device, g);
}

int graph_build(struct graph_builder *b, const char *source, bool emulated,
                struct graph **ret, struct err *e)
{
    struct graph *g = &b->g;

    if (check_names(g, e) < 0) {
        graph_builder_free(b);
        return -1;
    }
    merge_links(b);
    if (g->warnings_left_out) {
        char more[64];
        snprintf(more, sizeof(more), "%d more warnings of this kind are left out",
                 g->warnings_left_out);
        g->warnings = xrealloc(g->warnings, (g->n_warnings + 1) * sizeof(char *));
        g->warnings[g->n_warnings++] = xstrdup(more);
    }
    index_links(g);
    list_devices(g);
    g->source = xstrdup(source);
    g->emulated = emulated;
    *ret = xmalloc(sizeof(**ret));
    **ret = *g;
    free(b);
    return 0;
}

/* topo/path.c - the best path between all pairs of devices and NICs.
 *
 * No general search: a rack is a PCI forest under NUMA nodes, with three additions, and
 * each is asked in the order of its class, so the first answer is the best one:
 *
 *   NVL  direct NVLink, or all NVSwitches that both ends reach (their widths add up)
 *   NVB  two direct NVLinks through one GPU in between
 *   C2C  both GPUs hang on the same CPU by chip-to-chip links
 *   PIX, PXB  the PCI chains meet in a switch (one, or several on the way)
 *   PHB, NODE the chains meet in a host bridge; in the NUMA node. A source that does not
 *             name host bridges cannot tell the two: PHB then, as NCCL does
 *   SYS  same host, other or unknown NUMA node
 *   NET  through the nearest NIC of each side and a network that both reach
 *
 * Work: pairs times (links of a device + depth); paths_work() counts it. MIG instances
 * have no peer-to-peer path: nothing between them is better than PHB. */
#include "topo/path.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/graph.h"
#include "topo/path_impl.h"

enum { ENDS_MAX = 2048 };

static const char *const class_names[] = {
#define X(id, name) name,
    PATH_CLASS_MAP(X)
#undef X
};

const char *path_class_name(enum path_class c) { return class_names[c]; }
uint64_t paths_work(const struct paths *p) { return p->work; }

static void acc_link(struct acc *a, const struct link *l)
{
    if (!l)
        return;
    narrow(&a->bps, link_bps(l));
    a->latency_us += l->latency_us.v;
    a->unmeasured += l->measured.conf != CONF_MEASURED;
    a->degraded += l->health >= HEALTH_DEGRADED;
    a->hops++;
}

static void put(struct path *p, enum path_class c, const struct acc *a)
{
    p->cls = c;
    p->bps = a->bps;
    p->latency_us = a->latency_us;
    p->hops = a->hops;
    p->measured = a->hops > 0 && a->unmeasured == 0;
    p->degraded = a->degraded;
}

/* ---- gathering ---- */

static int by_peer(const void *pa, const void *pb)
{
    const struct half *a = pa, *b = pb;
    return a->peer < b->peer ? -1 : a->peer > b->peer;
}

static struct half *gather_nvlinks(struct paths *p, struct end *d, struct half *free_at)
{
    const int *at;
    int n = graph_links_at(p->g, d->n->id, &at);

    d->nv = free_at;
    for (int i = 0; i < n; i++) {
        const struct link *l = graph_link(p->g, at[i]);
        p->work++;
        if (l->kind != LINK_NVLINK || l->health == HEALTH_BAD || link_bps(l) <= 0)
            continue;
        d->nv[d->n_nv++] = (struct half){.peer = l->a == d->n->id ? l->b : l->a, .l = l};
    }
    qsort(d->nv, d->n_nv, sizeof(*d->nv), by_peer);
    return d->nv + d->n_nv;
}

static void gather_top(struct paths *p, struct end *d)
{
    const struct node *n = d->n;

    while (n->kind != NODE_NUMA && n->kind != NODE_HOST) {
        acc_link(&d->top_acc, uplink(p, n));
        d->over_bridge |= n->kind == NODE_BRIDGE;
        n = graph_node(p->g, n->parent);
        p->work++;
    }
    d->top = n->id;

    const int *at;
    int k = graph_links_at(p->g, d->n->id, &at);
    for (int i = 0; i < k; i++) {
        const struct link *l = graph_link(p->g, at[i]);
        if (l->kind != LINK_C2C || link_bps(l) <= d->top_acc.bps)
            continue;
        d->top = l->a == d->n->id ? l->b : l->a;
        d->top_acc = (struct acc){0};
        acc_link(&d->top_acc, l);
        d->by_c2c = true;
    }
}

static int list_ends(struct paths *p, struct err *e)
{
    const int *dev;
    int n_dev = graph_devices(p->g, &dev), halves = 0;
    const int *at;

    p->n_nodes = graph_n_nodes(p->g);
    p->n = n_dev + graph_count(p->g, NODE_NIC);
    if (p->n > ENDS_MAX)
        return err_set(e, ERR_TOOBIG, "%d devices and NICs, paths take at most %d", p->n,
                       ENDS_MAX);
    p->end_of = try_malloc((p->n_nodes + 1) * sizeof(int));
    p->ends = try_calloc(p->n + 1, sizeof(*p->ends));
    p->p = try_calloc((size_t)p->n * p->n + 1, sizeof(*p->p));
    if (!p->end_of || !p->ends || !p->p)
        return err_set(e, ERR_NOMEM, "no memory for the paths of %d ends", p->n);
    memset(p->end_of, 0xff, (p->n_nodes + 1) * sizeof(int));

    int n = 0;
    for (int i = 0; i < n_dev; i++)
        p->ends[n++].n = graph_node(p->g, dev[i]);
    for (int i = 0; i < p->n_nodes; i++) {
        const struct node *x = graph_node(p->g, i);
        if (x->kind == NODE_NIC)
            p->ends[n++].n = x;
        if (x->kind == NODE_NETWORK && p->n_networks < NETWORKS_MAX)
            p->networks[p->n_networks++] = i;
    }
    for (int i = 0; i < n; i++) {
        p->end_of[p->ends[i].n->id] = i;
        halves += graph_links_at(p->g, p->ends[i].n->id, &at);
    }
    p->halves = try_calloc(halves + 1, sizeof(*p->halves));
    return p->halves ? 0 : err_set(e, ERR_NOMEM, "no memory for %d links", halves);
}

/* ---- within a host, or an NVLink domain ---- */

static bool by_switches(struct paths *p, const struct end *a, const struct end *b,
                        struct acc *ret)
{
    struct acc sum = {.hops = 2};

    for (int i = 0, k = 0; i < a->n_nv && k < b->n_nv; p->work++) {
        const struct half *x = &a->nv[i], *y = &b->nv[k];
        if (x->peer != y->peer) {
            *(x->peer < y->peer ? &i : &k) += 1;
            continue;
        }
        if (graph_node(p->g, x->peer)->kind == NODE_NVSWITCH) {
            double u = link_bps(x->l), v = link_bps(y->l);
            sum.bps += u < v ? u : v;
            sum.latency_us = x->l->latency_us.v + y->l->latency_us.v;
            sum.unmeasured += x->l->measured.conf != CONF_MEASURED ||
                              y->l->measured.conf != CONF_MEASURED;
            sum.degraded +=
                (x->l->health >= HEALTH_DEGRADED) + (y->l->health >= HEALTH_DEGRADED);
        }
        i++;
        k++;
    }
    *ret = sum;
    return sum.bps > 0;
}

static bool by_nvlink(struct paths *p, const struct end *a, const struct end *b,
                      struct acc *ret)
{
    struct half key = {.peer = b->n->id};
    const struct half *h =
        a->n_nv ? bsearch(&key, a->nv, a->n_nv, sizeof(key), by_peer) : NULL;

    p->work++;
    if (!h)
        return by_switches(p, a, b, ret);
    *ret = (struct acc){0};
    acc_link(ret, h->l);
    return true;
}

/* The widest pair of direct links through a device that both reach. */
static bool by_two_nvlinks(struct paths *p, const struct end *a, const struct end *b,
                           struct acc *ret)
{
    bool found = false;

    for (int i = 0, k = 0; i < a->n_nv && k < b->n_nv; p->work++) {
        const struct half *x = &a->nv[i], *y = &b->nv[k];
        if (x->peer != y->peer) {
            *(x->peer < y->peer ? &i : &k) += 1;
            continue;
        }
        struct acc via = {0};
        acc_link(&via, x->l);
        acc_link(&via, y->l);
        if (graph_node(p->g, x->peer)->kind == NODE_DEVICE &&
            (!found || via.bps > ret->bps)) {
            *ret = via;
            found = true;
        }
        i++;
        k++;
    }
    return found;
}

/* The PCI chains meet below the NUMA node: the class, or DIS where they do not. */
static enum path_class by_pci(struct paths *p, const struct end *a, const struct end *b,
                              struct acc *ret)
{
    const struct node *up[2][64];
    int n[2] = {0, 0};
    const struct end *ends[2] = {a, b};

    for (int s = 0; s < 2; s++)
        for (const struct node *x = ends[s]->n;; x = graph_node(p->g, x->parent)) {
            up[s][n[s]++] = x;
            p->work++;
            if (x->kind == NODE_NUMA || x->kind == NODE_HOST)
                break;
        }
    int i = n[0], k = n[1];
    while (i > 0 && k > 0 && up[0][i - 1] == up[1][k - 1]) {
        i--;
        k--;
    }
    if (i == n[0]) /* not even the top is shared */
        return PATH_DIS;
    const struct node *meet = up[0][i];
    if (meet->kind == NODE_NUMA || meet->kind == NODE_HOST)
        return PATH_DIS;
    int switches = meet->kind == NODE_SWITCH;
    *ret = (struct acc){0};
    for (int x = 0; x < i; x++) {
        acc_link(ret, uplink(p, up[0][x]));
        switches += up[0][x]->kind == NODE_SWITCH;
    }
    for (int x = 0; x < k; x++) {
        acc_link(ret, uplink(p, up[1][x]));
        switches += up[1][x]->kind == NODE_SWITCH;
    }
    if (meet->kind != NODE_SWITCH)
        return PATH_PHB;
    return switches > 1 ? PATH_PXB : PATH_PIX;
}

static void path_in_host(struct paths *p, const struct end *a, const struct end *b,
                         struct path *ret)
{
    struct acc acc = {0};
    enum path_class c = PATH_DIS;
    bool same_top = a->top == b->top;
    bool numa = graph_node(p->g, a->top)->kind == NODE_NUMA;

    if (same_top && numa && a->by_c2c && b->by_c2c)
        c = PATH_C2C;
    else if ((c = by_pci(p, a, b, &acc)) != PATH_DIS) {
        put(ret, c, &acc);
        return;
    }
    acc = a->top_acc;
    acc_add(&acc, &b->top_acc);
    if (c == PATH_DIS && same_top && numa)
        c = a->over_bridge || b->over_bridge || a->n->is_cpu ? PATH_NODE : PATH_PHB;
    if (c == PATH_DIS) {
        c = PATH_SYS;
        acc_link(&acc,
                 same_top ? NULL : graph_link_between(p->g, a->top, b->top, LINK_SOCKET));
    }
    put(ret, c, &acc);
}

static void path_local(struct paths *p, int ia, int ib, struct path *ret)
{
    const struct end *a = &p->ends[ia], *b = &p->ends[ib];
    struct acc acc = {0};

    if (ia == ib)
        *ret = (struct path){.cls = PATH_LOC, .measured = 1};
    else if (by_nvlink(p, a, b, &acc))
        put(ret, PATH_NVL, &acc);
    else if (by_two_nvlinks(p, a, b, &acc))
        put(ret, PATH_NVB, &acc);
    else if (a->n->host == b->n->host)
        path_in_host(p, a, b, ret);
    else
        *ret = (struct path){.cls = PATH_DIS};
    if (ret->cls != PATH_LOC && ret->cls < PATH_PHB && (a->n->mig || b->n->mig))
        ret->cls = PATH_PHB;
}

/* ---- between hosts ---- */

/* What a card gives to a network: the ports that share its address and guid add up. */
static bool card_acc(struct paths *p, int nic, int network, struct acc *ret)
{
    const struct node *n = p->ends[nic].n;
    const struct link *own =
        graph_link_between(p->g, n->id, p->networks[network], LINK_NET);

    if (!own || own->health == HEALTH_BAD || link_bps(own) <= 0)
        return false;
    *ret = (struct acc){0};
    acc_link(ret, own);
    for (int i = 0; n->port_guid[0] && n->pci[0] && i < p->n; i++) {
        const struct node *o = p->ends[i].n;
        p->work++;
        if (o == n || o->kind != NODE_NIC || o->parent != n->parent ||
            strcmp(o->pci, n->pci) || strcmp(o->port_guid, n->port_guid))
            continue;
        const struct link *l =
            graph_link_between(p->g, o->id, p->networks[network], LINK_NET);
        if (l && l->health != HEALTH_BAD)
            ret->bps += link_bps(l);
    }
    return true;
}

static void host_egress(struct paths *p, struct end *d, int network)
{
    const struct link *l =
        graph_link_between(p->g, d->n->host, p->networks[network], LINK_NET);

    if (!l || link_bps(l) <= 0)
        return;
    d->egress[network] = p->end_of[d->n->id];
    d->egress_acc[network] = d->top_acc;
    acc_link(&d->egress_acc[network], l);
}

/* Nearest first, then widest: the choice that keeps GPU and NIC on one switch. */
static void choose_egress(struct paths *p, int network)
{
    struct acc *card = xcalloc(p->n + 1, sizeof(*card));
    bool *has = xcalloc(p->n + 1, sizeof(*has));

    for (int i = 0; i < p->n; i++)
        if (p->ends[i].n->kind == NODE_NIC)
            has[i] = card_acc(p, i, network, &card[i]);
    for (int i = 0; i < p->n; i++) {
        struct end *d = &p->ends[i];
        enum path_class best = PATH_DIS;
        d->egress[network] = -1;
        host_egress(p, d, network);
        for (int k = 0; k < p->n; k++) {
            const struct path *to = &p->p[(size_t)i * p->n + k];
            p->work++;
            if (!has[k] || p->ends[k].n->host != d->n->host)
                continue;
            if (d->n->kind == NODE_NIC && k != i)
                continue;
            struct acc acc = card[k];
            narrow(&acc.bps, to->bps);
            acc.hops += to->hops;
            acc.latency_us += to->latency_us;
            acc.unmeasured += !to->measured;
            acc.degraded += to->degraded;
            if (d->egress[network] >= 0 &&
                (to->cls > best ||
                 (to->cls == best && acc.bps <= d->egress_acc[network].bps)))
                continue;
            best = to->cls;
            d->egress[network] = k;
            d->egress_acc[network] = acc;
        }
    }
    free(card);
    free(has);
}

static void path_net(struct paths *p, int ia, int ib, struct path *ret)
{
    const struct end *a = &p->ends[ia], *b = &p->ends[ib];

    for (int k = 0; k < p->n_networks; k++) {
        p->work++;
        if (a->egress[k] < 0 || b->egress[k] < 0)
            continue;
        struct acc acc = a->egress_acc[k];
        acc_add(&acc, &b->egress_acc[k]);
        if (ret->cls == PATH_DIS || acc.bps > ret->bps)
            put(ret, PATH_NET, &acc);
    }
}

int paths_new(const struct graph *g, struct paths **ret, struct err *e)
{
    struct paths *p = xcalloc(1, sizeof(*p));

    p->g = g;
    if (list_ends(p, e) < 0) {
        paths_free(p);
        return -1;
    }
    struct half *free_at = p->halves;
    for (int i = 0; i < p->n; i++) {
        free_at = gather_nvlinks(p, &p->ends[i], free_at);
        gather_top(p, &p->ends[i]);
    }
    for (int i = 0; i < p->n; i++)
        for (int k = i; k < p->n; k++) {
            path_local(p, i, k, &p->p[(size_t)i * p->n + k]);
            p->p[(size_t)k * p->n + i] = p->p[(size_t)i * p->n + k];
        }
    for (int k = 0; k < p->n_networks; k++)
        choose_egress(p, k);
    for (int i = 0; i < p->n; i++)
        for (int k = i + 1; k < p->n; k++) {
            struct path *x = &p->p[(size_t)i * p->n + k];
            if (x->cls == PATH_DIS)
                path_net(p, i, k, x);
            p->p[(size_t)k * p->n + i] = *x;
        }
    const struct graph_pair *m;
    int n = graph_pairs(g, &m);
    paths_measure(p, m, n);
    *ret = p;
    return 0;
}

int paths_measured(const struct paths *p)
{
    int n = 0;

    for (int i = 0; i < p->n; i++)
        for (int k = i + 1; k < p->n; k++)
            n += p->p[(size_t)i * p->n + k].measured_ms > 0;
    return n;
}

int paths_measure(struct paths *p, const struct graph_pair *m, int n)
{
    int taken = 0;

    for (int i = 0; i < n; i++) {
        struct path *x = (struct path *)paths_get(p, m[i].a, m[i].b);
        struct path *y = (struct path *)paths_get(p, m[i].b, m[i].a);
        if (!x || x == y || x->cls == PATH_DIS || !(m[i].bps > 0))
            continue;
        x->bps = m[i].bps;
        x->latency_us = m[i].latency_us;
        x->measured = 1;
        x->spread = m[i].spread;
        x->measured_ms = m[i].at_ms;
        *y = *x;
        taken++;
    }
    return taken;
}

void paths_free(struct paths *p)
{
    if (!p)
        return;
    free(p->end_of);
    free(p->ends);
    free(p->halves);
    free(p->p);
    free(p);
}

const struct path *paths_get(const struct paths *p, int a, int b)
{
    if (a < 0 || b < 0 || a >= p->n_nodes || b >= p->n_nodes || p->end_of[a] < 0 ||
        p->end_of[b] < 0)
        return NULL;
    return &p->p[(size_t)p->end_of[a] * p->n + p->end_of[b]];
}

static void worse(struct path *into, const struct path *p)
{
    if (!p)
        p = &(const struct path){.cls = PATH_DIS};
    if (p->cls > into->cls)
        into->cls = p->cls;
    if (into->bps < 0 || p->bps < into->bps)
        into->bps = p->bps;
    if (p->latency_us > into->latency_us)
        into->latency_us = p->latency_us;
    if (p->hops > into->hops)
        into->hops = p->hops;
    if (p->degraded > into->degraded)
        into->degraded = p->degraded;
    if (p->spread > into->spread)
        into->spread = p->spread;
    if (p->measured_ms && (!into->measured_ms || p->measured_ms < into->measured_ms))
        into->measured_ms = p->measured_ms;
    into->measured = into->measured && p->measured;
}

void paths_ring(const struct paths *p, const int *dev, int n, struct path *ret)
{
    struct path w = {.cls = PATH_LOC, .bps = -1, .measured = 1};

    for (int i = 0; n > 1 && i < n; i++)
        worse(&w, paths_get(p, dev[i], dev[(i + 1) % n]));
    if (w.bps < 0)
        w.bps = 0;
    *ret = w;
}

void paths_all(const struct paths *p, const int *dev, int n, struct path *ret)
{
    struct path w = {.cls = PATH_LOC, .bps = -1, .measured = 1};

    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++)
            worse(&w, paths_get(p, dev[i], dev[k]));
    if (w.bps < 0)
        w.bps = 0;
    *ret = w;
}

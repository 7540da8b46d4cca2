/* topo/path_links.c - the links of a path, in the order in which path.c chooses it.
 *
 * What paths_new keeps of a path is its figures; here it is walked again, for who wants
 * to know which links carry what goes over it. */
#include "topo/path_impl.h"

#include <stddef.h>

/* Links found so far; over: there was no room for all. */
struct walk {
    const struct paths *p;
    struct path_link *to;
    int n, max;
    bool over;
};

/* from: the node at which traffic enters the link. */
static void add(struct walk *w, const struct link *l, int from, double share)
{
    if (!l)
        return;
    if (w->n == w->max) {
        w->over = true;
        return;
    }
    w->to[w->n++] = (struct path_link){.link = (int)(l - graph_link(w->p->g, 0)),
                                       .back = l->a != from,
                                       .share = share,
                                       .bps = link_bps(l)};
}

/* The link between x and the node above or behind it, taken away from x or (down) to it.
 */
static void add_at(struct walk *w, const struct link *l, int x, bool down, double share)
{
    if (l)
        add(w, l, !down ? x : l->a == x ? l->b : l->a, share);
}

static bool is_top(const struct node *n)
{
    return n->kind == NODE_NUMA || n->kind == NODE_HOST;
}

/* From a device to the node `until` above it, or (down) back. */
static void chain(struct walk *w, const struct node *n, int until, bool down)
{
    int first = w->n;

    for (; n->id != until && !is_top(n); n = graph_node(w->p->g, n->parent))
        add_at(w, uplink(w->p, n), n->id, down, 1);
    for (int i = first, k = w->n - 1; down && i < k; i++, k--) {
        struct path_link swap = w->to[i];

        w->to[i] = w->to[k];
        w->to[k] = swap;
    }
}

static void to_top(struct walk *w, const struct end *d, bool down)
{
    if (d->by_c2c)
        add_at(w, graph_link_between(w->p->g, d->n->id, d->top, LINK_C2C), d->n->id, down,
               1);
    else
        chain(w, d->n, d->top, down);
}

/* The node below the tops at which the PCI chains meet, -1 = none. */
static int meeting(const struct paths *p, const struct end *a, const struct end *b)
{
    for (const struct node *x = a->n; !is_top(x); x = graph_node(p->g, x->parent))
        for (const struct node *y = b->n; !is_top(y); y = graph_node(p->g, y->parent))
            if (x == y)
                return x->id;
    return -1;
}

static void in_host(struct walk *w, const struct end *a, const struct end *b)
{
    bool c2c = a->top == b->top && graph_node(w->p->g, a->top)->kind == NODE_NUMA &&
               a->by_c2c && b->by_c2c;
    int meet = c2c ? -1 : meeting(w->p, a, b);

    if (meet >= 0) {
        chain(w, a->n, meet, false);
        chain(w, b->n, meet, true);
        return;
    }
    to_top(w, a, false);
    if (a->top != b->top)
        add(w, graph_link_between(w->p->g, a->top, b->top, LINK_SOCKET), a->top, 1);
    to_top(w, b, true);
}

/* NVLinks of both to each node that both reach. */
typedef void (*both_fn)(void *arg, const struct half *x, const struct half *y);

static void for_both(const struct end *a, const struct end *b, both_fn fn, void *arg)
{
    for (int i = 0, k = 0; i < a->n_nv && k < b->n_nv;) {
        const struct half *x = &a->nv[i], *y = &b->nv[k];

        if (x->peer == y->peer)
            fn(arg, x, y);
        i += x->peer <= y->peer;
        k += y->peer <= x->peer;
    }
}

struct both {
    const struct graph *g;
    struct walk *w;
    int a, b;
    double sum;                /* of the switches side by side */
    const struct half *via[2]; /* the widest way through a device */
};

static double least(const struct half *x, const struct half *y)
{
    double u = link_bps(x->l), v = link_bps(y->l);

    return u < v ? u : v;
}

static void measure_both(void *arg, const struct half *x, const struct half *y)
{
    struct both *o = arg;

    if (graph_node(o->g, x->peer)->kind == NODE_NVSWITCH)
        o->sum += least(x, y);
    else if (graph_node(o->g, x->peer)->kind == NODE_DEVICE &&
             (!o->via[0] || least(x, y) > least(o->via[0], o->via[1]))) {
        o->via[0] = x;
        o->via[1] = y;
    }
}

static void add_switch(void *arg, const struct half *x, const struct half *y)
{
    struct both *o = arg;

    if (graph_node(o->g, x->peer)->kind != NODE_NVSWITCH)
        return;
    add_at(o->w, x->l, o->a, false, least(x, y) / o->sum);
    add_at(o->w, y->l, o->b, true, least(x, y) / o->sum);
}

static bool by_nvlink(struct walk *w, const struct end *a, const struct end *b)
{
    struct both o = {.g = w->p->g, .w = w, .a = a->n->id, .b = b->n->id};

    for (int i = 0; i < a->n_nv; i++)
        if (a->nv[i].peer == b->n->id) {
            add(w, a->nv[i].l, a->n->id, 1);
            return true;
        }
    for_both(a, b, measure_both, &o);
    if (o.sum > 0) {
        for_both(a, b, add_switch, &o);
        return true;
    }
    if (!o.via[0])
        return false;
    add_at(w, o.via[0]->l, o.a, false, 1);
    add_at(w, o.via[1]->l, o.b, true, 1);
    return true;
}

static void local(struct walk *w, const struct end *a, const struct end *b)
{
    if (a != b && !by_nvlink(w, a, b) && a->n->host == b->n->host)
        in_host(w, a, b);
}

/* ---- between hosts ---- */

/* From an end to its network through its nearest NIC (of several ports of one card the
 * first stands for all), or over the host's own link; or back. */
static void to_network(struct walk *w, const struct end *d, int network, bool down)
{
    const struct end *nic = &w->p->ends[d->egress[network]];
    bool own = nic->n->kind == NODE_NIC;
    int at = own ? nic->n->id : d->n->host;
    const struct link *l =
        graph_link_between(w->p->g, at, w->p->networks[network], LINK_NET);

    if (down)
        add_at(w, l, at, true, 1);
    if (!own)
        to_top(w, d, down);
    else if (down)
        local(w, nic, d);
    else
        local(w, d, nic);
    if (!down)
        add_at(w, l, at, false, 1);
}

static void over_net(struct walk *w, const struct end *a, const struct end *b)
{
    double best = 0;
    int network = -1;

    for (int k = 0; k < w->p->n_networks; k++) {
        struct acc acc;

        if (a->egress[k] < 0 || b->egress[k] < 0)
            continue;
        acc = a->egress_acc[k];
        acc_add(&acc, &b->egress_acc[k]);
        if (network < 0 || acc.bps > best) {
            network = k;
            best = acc.bps;
        }
    }
    if (network < 0)
        return;
    to_network(w, a, network, false);
    to_network(w, b, network, true);
}

int paths_links(const struct paths *p, int a, int b, struct path_link *ret, int max)
{
    struct walk w = {.p = p, .to = ret, .max = max};
    const struct path *way = paths_get(p, a, b);

    if (!way || way->cls == PATH_LOC || way->cls == PATH_DIS)
        return 0;
    if (way->cls == PATH_NET)
        over_net(&w, &p->ends[p->end_of[a]], &p->ends[p->end_of[b]]);
    else
        local(&w, &p->ends[p->end_of[a]], &p->ends[p->end_of[b]]);
    return w.over ? 0 : w.n;
}

/* topo/placement.c - finds the devices; placement_show.c prints them.
 *
 * In visible passes:
 *   1. list the ranks of all pools and the groups that they form
 *   2. the price of every pair of usable devices, from its path
 *   3. grow TP groups, each from the seed that gives the cheapest one; join them to
 * stages the same way, and stages to instances: nested groups get nested islands
 *   4. exchange two ranks' devices, or a rank's with a free one, as long as that makes
 * the score smaller The order of devices is the graph's (host, address), every choice
 * takes the first of equals, so that the same rack gives the same placement. */
#include "topo/placement.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/placement_impl.h"

/* Over MANY devices a group grows from the first free seed only and ranks are not
 * exchanged: the work grows with the third power. */
enum { RANKS_MAX = 4096, PASSES_MAX = 32, MANY = 256, FEW = 8 };

const struct place_kind place_kinds[PLACE_KIND_COUNT] = {
#define X(id, name, weight, all) {name, weight, all},
    PLACE_GROUP_MAP(X)
#undef X
};

/* ---- ranks and groups ---- */

static int rank_index(const struct placement *p, int pool, int replica, int pp,
                      int in_stage)
{
    const struct layout *l = &p->pool[pool];

    return p->first[pool] + (replica * l->pp + pp) * layout_stage(l) + in_stage;
}

static void add_ranks(struct placement *p, int pool)
{
    const struct layout *l = &p->pool[pool];
    int n = layout_ranks(l) * l->replicas, stage = layout_stage(l);

    p->first[pool] = p->n_ranks;
    for (int i = 0; i < n; i++) {
        int r = i % stage;
        p->rank[p->n_ranks++] = (struct place_rank){.pool = pool,
                                                    .replica = i / stage / l->pp,
                                                    .pp = i / stage % l->pp,
                                                    .adp = r / l->tp / l->cp,
                                                    .cp = r / l->tp % l->cp,
                                                    .tp = r % l->tp,
                                                    .device = -1,
                                                    .nic = -1,
                                                    .numa = -1};
    }
}

static void add_group(struct placement *p, enum place_group_kind kind, int first,
                      int step, int n)
{
    int *members;

    if (n < 2)
        return;
    if (p->n_groups == p->cap_groups) {
        p->cap_groups = p->cap_groups ? 2 * p->cap_groups : 64;
        p->group = xrealloc(p->group, (size_t)p->cap_groups * sizeof(*p->group));
    }
    members = xmalloc((size_t)n * sizeof(*members));
    for (int i = 0; i < n; i++)
        members[i] = first + i * step;
    p->group[p->n_groups++] = (struct place_group){kind, n, members};
}

/* CP ranks of one attention group and TP index: Ulysses inside, a ring across. */
static void add_cp(struct placement *p, const struct layout *l, int first)
{
    int u = l->cp_method == CP_ULYSSES ? l->cp : l->cp_method == CP_USP ? l->cp_u : 1;

    for (int i = 0; i < l->cp / u; i++)
        add_group(p, PLACE_ULYSSES, first + i * u * l->tp, l->tp, u);
    for (int i = 0; i < u; i++)
        add_group(p, PLACE_RING, first + i * l->tp, u * l->tp, l->cp / u);
}

static void add_stage(struct placement *p, const struct layout *l, int first)
{
    int stage = layout_stage(l);

    for (int i = 0; i < stage; i += l->tp)
        add_group(p, PLACE_TP, first + i, 1, l->tp);
    for (int i = 0; i < stage && l->ep * l->etp == stage; i += l->etp)
        if (l->etp != l->tp && (l->ep > 1 || l->adp > 1))
            add_group(p, PLACE_ETP, first + i, 1, l->etp);
    for (int i = 0; i < l->etp && l->ep * l->etp == stage; i++)
        add_group(p, PLACE_EP, first + i, l->etp, l->ep);
    for (int a = 0; a < l->adp && l->cp > 1; a++)
        for (int t = 0; t < l->tp; t++)
            add_cp(p, l, first + a * l->cp * l->tp + t);
}

static void add_groups(struct placement *p, int pool)
{
    const struct layout *l = &p->pool[pool];
    int stage = layout_stage(l);

    for (int r = 0; r < l->replicas; r++)
        for (int s = 0; s < l->pp; s++) {
            add_stage(p, l, rank_index(p, pool, r, s, 0));
            for (int i = 0; i < stage && s + 1 < l->pp; i++)
                add_group(p, PLACE_PP, rank_index(p, pool, r, s, i), stage, 2);
        }
}

/* Each rank of the larger pool hands over to, or takes from, one of the smaller. */
static void add_handoff(struct placement *p)
{
    int n[2] = {p->first[1] - p->first[0], p->n_ranks - p->first[1]};
    int most = n[0] > n[1] ? n[0] : n[1];

    for (int i = 0; i < most; i++) {
        int a = p->first[0] + i % n[0], b = p->first[1] + i % n[1];
        add_group(p, PLACE_HANDOFF, a, b - a, 2);
    }
}

/* ---- prices ---- */

static bool is_avoided(const struct placement_ask *ask, int dev)
{
    for (int i = 0; i < ask->n_avoid; i++)
        if (ask->avoid[i] == dev)
            return true;
    return false;
}

/* Seconds a GB, mostly; latency and locality decide among equals. A link or a device that
 * is not healthy counts as half as fast, whatever its figure says: it is taken last. */
static double pair_price(const struct graph *g, const struct paths *paths, int a, int b)
{
    const struct path *w = paths_get(paths, a, b);
    const struct node *x = graph_node(g, a), *y = graph_node(g, b);
    double bps, far = x->host != y->host   ? 3
                      : x->numa != y->numa ? 2
                                           : x->parent != y->parent;

    if (!w || w->cls == PATH_DIS || w->bps <= 0)
        return 1e6;
    bps = w->cls == PATH_NVB ? w->bps / 2 : w->bps; /* it takes a third device's links */
    if (w->degraded || x->health == HEALTH_DEGRADED || y->health == HEALTH_DEGRADED)
        bps /= 2;
    return 1e9 / bps + 1e-4 * w->latency_us + 1e-6 * w->cls + 1e-6 * far;
}

static int fill_prices(struct placement *p, const struct graph *g,
                       const struct paths *paths, const struct placement_ask *ask,
                       struct err *e)
{
    const int *dev;
    int n = graph_devices(g, &dev), bad = 0;

    p->dev = xcalloc((size_t)n + 1, sizeof(*p->dev));
    for (int i = 0; i < n; i++) {
        if (!is_avoided(ask, dev[i]) && graph_node(g, dev[i])->health != HEALTH_BAD)
            p->dev[p->n_dev++] = dev[i];
        else
            bad++;
    }
    if (p->n_dev < p->n_ranks)
        return err_set(
            e, ERR_NOFIT,
            "%d ranks need as many devices: %d of %d are usable, %d cordoned or "
            "bad",
            p->n_ranks, p->n_dev, n, bad);
    p->price = xcalloc((size_t)p->n_dev * (size_t)p->n_dev, sizeof(*p->price));
    for (int i = 0; i < p->n_dev; i++)
        for (int j = 0; j < p->n_dev; j++)
            if (i != j)
                p->price[i * p->n_dev + j] = pair_price(g, paths, p->dev[i], p->dev[j]);
    return 0;
}

static double price(const struct placement *p, int a, int b)
{
    return p->price[p->at[a] * p->n_dev + p->at[b]];
}

/* The worst path counts; the mean, lightly, so that a better pair is worth having even
 * where the worst one stays. */
static double group_price(const struct placement *p, const struct place_group *g)
{
    double worst = 0, sum = 0;
    int pairs = 0;

    for (int i = 0; i < g->n; i++) {
        int end = place_kinds[g->kind].all ? g->n : i + 2;
        for (int j = i + 1; j < end; j++, pairs++) {
            double c = price(p, g->rank[i], g->rank[j % g->n]);
            worst = fmax(worst, c);
            sum += c;
        }
    }
    return place_kinds[g->kind].weight * (g->n - 1) * (worst + 0.01 * sum / pairs);
}

double placement_score(const struct placement *p)
{
    double sum = 0;

    for (int i = 0; i < p->n_groups; i++)
        sum += group_price(p, &p->group[i]);
    return sum;
}

/* ---- growing ---- */

/* A bundle of devices that is placed as one: at first single devices, then TP groups,
 * stages, instances. */
struct bundles {
    int n, size;
    int *dev; /* [n][size], indices into placement.dev */
};

static double bundle_price(const struct placement *p, const struct bundles *b, int x,
                           int y)
{
    double worst = 0;

    for (int i = 0; i < b->size; i++)
        for (int j = 0; j < b->size; j++)
            worst = fmax(
                worst,
                p->price[b->dev[x * b->size + i] * p->n_dev + b->dev[y * b->size + j]]);
    return worst;
}

/* Adds the cheapest free bundle until there are k; the sum of what they cost. */
static double grow(const double *m, int n, const bool *taken, int seed, int k, int *out)
{
    double total = 0;

    out[0] = seed;
    for (int c = 1; c < k; c++) {
        double least = INFINITY;
        int pick = -1;
        for (int i = 0; i < n; i++) {
            double sum = 0;
            bool in = taken[i];
            for (int j = 0; j < c; j++) {
                in |= out[j] == i;
                sum += m[i * n + out[j]];
            }
            if (!in && sum < least * (1 - 1e-12)) {
                least = sum;
                pick = i;
            }
        }
        out[c] = pick;
        total += least;
    }
    return total;
}

/* Joins k bundles at a time into `want` larger ones. */
static void join(const struct placement *p, struct bundles *b, int k, int want)
{
    double *m = xcalloc((size_t)b->n * (size_t)b->n, sizeof(*m));
    bool *taken = xcalloc((size_t)b->n, sizeof(*taken));
    int *out = xcalloc((size_t)k, sizeof(*out)),
        *best = xcalloc((size_t)k, sizeof(*best));
    struct bundles r = {want, b->size * k, NULL};

    r.dev = xcalloc((size_t)want * (size_t)r.size, sizeof(*r.dev));
    for (int i = 0; i < b->n; i++)
        for (int j = 0; j < i; j++)
            m[i * b->n + j] = m[j * b->n + i] = bundle_price(p, b, i, j);
    for (int w = 0; w < want; w++) {
        double least = INFINITY;
        for (int s = 0; s < b->n; s++) {
            if (taken[s] || (b->n > MANY && least < INFINITY))
                continue;
            double t = grow(m, b->n, taken, s, k, out);
            if (t < least * (1 - 1e-12)) {
                least = t;
                memcpy(best, out, (size_t)k * sizeof(*out));
            }
        }
        for (int i = 0; i < k; i++) {
            taken[best[i]] = true;
            memcpy(r.dev + (w * k + i) * b->size, b->dev + best[i] * b->size,
                   (size_t)b->size * sizeof(*r.dev));
        }
    }
    free(b->dev);
    free(m);
    free(taken);
    free(out);
    free(best);
    *b = r;
}

/* The devices that are free, best first come first: the pool takes what its ranks need.
 */
static void seed_pool(struct placement *p, int pool)
{
    const struct layout *l = &p->pool[pool];
    int stage = layout_stage(l), ranks = layout_ranks(l) * l->replicas;
    struct bundles b = {0, 1, xcalloc((size_t)p->n_dev, sizeof(int))};

    for (int i = 0; i < p->n_dev; i++)
        if (p->owner[i] < 0)
            b.dev[b.n++] = i;
    if (l->tp > 1)
        join(p, &b, l->tp, ranks / l->tp);
    if (stage > l->tp)
        join(p, &b, stage / l->tp, ranks / stage);
    if (l->pp > 1)
        join(p, &b, l->pp, ranks / stage / l->pp);
    for (int i = 0; i < ranks; i++) {
        p->at[p->first[pool] + i] = b.dev[i];
        p->owner[b.dev[i]] = p->first[pool] + i;
    }
    free(b.dev);
}

/* ---- exchanging ---- */

static void index_groups(struct placement *p)
{
    p->member = xcalloc((size_t)p->n_ranks + 1, sizeof(*p->member));
    for (int i = 0; i < p->n_groups; i++)
        for (int j = 0; j < p->group[i].n; j++) {
            struct place_member *m = &p->member[p->group[i].rank[j]];
            m->group = xrealloc(m->group, (size_t)(m->n + 1) * sizeof(*m->group));
            m->group[m->n++] = i;
        }
}

static bool has_rank(const struct place_group *g, int rank)
{
    for (int i = 0; i < g->n; i++)
        if (g->rank[i] == rank)
            return true;
    return false;
}

/* Price of the groups that a or b (b < 0: none) is in. A swap within one all-pairs group
 * changes nothing there. */
static double around(const struct placement *p, int a, int b)
{
    double sum = 0;

    for (int i = 0; i < p->member[a].n; i++) {
        const struct place_group *g = &p->group[p->member[a].group[i]];
        if (b < 0 || !place_kinds[g->kind].all || !has_rank(g, b))
            sum += group_price(p, g);
    }
    for (int i = 0; b >= 0 && i < p->member[b].n; i++) {
        const struct place_group *g = &p->group[p->member[b].group[i]];
        if (!has_rank(g, a))
            sum += group_price(p, g);
    }
    return sum;
}

static void put(struct placement *p, int rank, int dev)
{
    p->at[rank] = dev;
    p->owner[dev] = rank;
}

/* Gives rank a the device d and its owner, if any, a's device; keeps it if that is
 * better.
 */
static bool try_exchange(struct placement *p, int a, int d)
{
    int b = p->owner[d], mine = p->at[a];
    double before, after;

    if (d == mine)
        return false;
    before = around(p, a, b);
    p->owner[mine] = -1;
    if (b >= 0)
        put(p, b, mine);
    put(p, a, d);
    after = around(p, a, b);
    if (after < before * (1 - 1e-9))
        return true;
    p->owner[d] = -1;
    if (b >= 0)
        put(p, b, d);
    put(p, a, mine);
    return false;
}

static void exchange(struct placement *p)
{
    bool better = true;

    for (int pass = 0; better && pass < PASSES_MAX && p->n_dev <= MANY; pass++) {
        better = false;
        for (int a = 0; a < p->n_ranks; a++)
            for (int d = 0; d < p->n_dev; d++)
                better |= try_exchange(p, a, d);
    }
}

/* ---- all of them ---- */

struct search {
    struct placement *p;
    double best;
    int at[FEW]; /* of the best */
    bool used[FEW];
};

/* Groups whose last rank is this one; ranks are given devices in order. */
static double closed_price(const struct placement *p, int rank)
{
    double sum = 0;

    for (int i = 0; i < p->member[rank].n; i++) {
        const struct place_group *g = &p->group[p->member[rank].group[i]];
        if (g->rank[g->n - 1] == rank)
            sum += group_price(p, g);
    }
    return sum;
}

static void search_rank(struct search *w, int rank, double sum)
{
    struct placement *p = w->p;

    if (rank == p->n_ranks) {
        w->best = sum;
        memcpy(w->at, p->at, (size_t)p->n_ranks * sizeof(*p->at));
        return;
    }
    for (int d = 0; d < p->n_dev; d++) {
        double more;
        if (w->used[d])
            continue;
        p->at[rank] = d;
        more = sum + closed_price(p, rank);
        if (more >= w->best * (1 - 1e-9))
            continue;
        w->used[d] = true;
        search_rank(w, rank + 1, more);
        w->used[d] = false;
    }
}

static void search_all(struct placement *p)
{
    struct search w = {.p = p, .best = placement_score(p)};

    if (p->n_dev > FEW)
        return;
    memcpy(w.at, p->at, (size_t)p->n_ranks * sizeof(*p->at));
    search_rank(&w, 0, 0);
    for (int i = 0; i < p->n_dev; i++)
        p->owner[i] = -1;
    for (int i = 0; i < p->n_ranks; i++)
        put(p, i, w.at[i]);
}

/* ---- the answer ---- */

static int count_ranks(const struct placement_ask *ask, int *ret, struct err *e)
{
    double n = 0;

    for (int i = 0; i < ask->n_pools; i++)
        n += 1.0 * layout_ranks(&ask->pool[i]) * ask->pool[i].replicas;
    if (ask->n_pools < 1 || ask->n_pools > 2 || n < 1 || n > RANKS_MAX)
        return err_set(e, ERR_RANGE,
                       "%.0f ranks in %d pools: 1 to %d ranks in 1 or 2 pools", n,
                       ask->n_pools, RANKS_MAX);
    *ret = (int)n;
    return 0;
}

int placement_compute(const struct graph *g, const struct paths *paths,
                      const struct placement_ask *ask, struct placement **ret,
                      struct err *e)
{
    struct placement *p;
    int n = 0;

    if (count_ranks(ask, &n, e) < 0)
        return -1;
    p = xcalloc(1, sizeof(*p));
    p->n_pools = ask->n_pools;
    p->rank = xcalloc((size_t)n, sizeof(*p->rank));
    for (int i = 0; i < ask->n_pools; i++) {
        p->pool[i] = ask->pool[i];
        add_ranks(p, i);
        add_groups(p, i);
    }
    if (ask->n_pools == 2)
        add_handoff(p);
    if (fill_prices(p, g, paths, ask, e) < 0) {
        placement_free(p);
        return -1;
    }
    p->at = xcalloc((size_t)n, sizeof(*p->at));
    p->owner = xcalloc((size_t)p->n_dev, sizeof(*p->owner));
    for (int i = 0; i < p->n_dev; i++)
        p->owner[i] = -1;
    index_groups(p);
    for (int i = 0; i < p->n_pools; i++)
        seed_pool(p, i);
    exchange(p);
    search_all(p);
    for (int i = 0; i < n; i++)
        p->rank[i].device = p->dev[p->at[i]];
    placement_near(p, g, paths);
    *ret = p;
    return 0;
}

void placement_free(struct placement *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_groups; i++)
        free((int *)p->group[i].rank);
    for (int i = 0; p->member && i < p->n_ranks; i++)
        free(p->member[i].group);
    free(p->member);
    free(p->group);
    free(p->rank);
    free(p->dev);
    free(p->price);
    free(p->at);
    free(p->owner);
    free(p);
}

int placement_ranks(const struct placement *p, const struct place_rank **ret)
{
    *ret = p->rank;
    return p->n_ranks;
}

int placement_groups(const struct placement *p, const struct place_group **ret)
{
    *ret = p->group;
    return p->n_groups;
}

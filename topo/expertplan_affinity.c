/* topo/expertplan_affinity.c - experts often chosen together on one host, and on the
 * hosts that rows come from.
 *
 * Rows are at home on every host alike, and a copy on the row's own host is taken where
 * there is one. Of a pair of experts that a row chose each one that its host lacks sends
 * a result back over the network; the row itself goes out once where another host has
 * both, else once for each (comm_all_to_all sends a row once to a host). The layer's
 * travel is the sum of that over pairs and hosts. Slots of different hosts are swapped,
 * and a slot of an expert with other copies is given to one that its host lacks, as long
 * as the travel falls and no device is loaded beyond what expert_ask.affinity allows (or
 * beyond the heaviest, if that is more); then each host evens out its own. */
#include "topo/expertplan_impl.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum { SWEEPS = 8, ALL_WAYS = 4 /* of a pair: both experts, there and back */ };

struct gather {
    struct elayer *y;
    int n_host;
    int *host;      /* [n_device], numbered from 0 */
    int *on;        /* [n_expert * n_host]: copies there */
    uint64_t *mask; /* [n_expert]: hosts with a copy */
    uint64_t all;   /* every host */
    double total;   /* weight of all pairs */
    double most;    /* load of a device */
};

static int number_hosts(const struct expert_ask *a, int *host)
{
    int n = 0;

    for (int g = 0; g < a->n_device; g++) {
        host[g] = -1;
        for (int i = 0; i < g && host[g] < 0; i++)
            if ((a->host ? a->host[i] : 0) == (a->host ? a->host[g] : 0))
                host[g] = host[i];
        if (host[g] < 0)
            host[g] = n++;
    }
    return n;
}

static const double *pairs_of(const struct expert_ask *a, int layer, int x)
{
    return a->with + ((size_t)layer * a->n_expert + x) * a->n_expert;
}

static int count(uint64_t hosts) { return __builtin_popcountll(hosts); }

/* Of a pair on these hosts: ways to another host, over the hosts that a row may be from.
 */
static int ways(uint64_t x, uint64_t f, uint64_t all)
{
    uint64_t both = x & f;

    return count(all & ~x) + count(all & ~f) + count(all & ~both) +
           (both ? 0 : count(all & ~(x | f)));
}

/* Travel of the pairs of expert x. */
static double travel_of(const struct expert_ask *a, int layer, int x,
                        const uint64_t *mask, uint64_t all)
{
    const double *with = pairs_of(a, layer, x);
    double sum = 0;

    for (int f = 0; f < a->n_expert; f++)
        if (f != x && with[f] > 0)
            sum += with[f] * ways(mask[x], mask[f], all);
    return sum;
}

static void shift(const struct gather *k, int x, int device, int by)
{
    int h = k->host[device], *on = &k->on[x * k->n_host + h];

    *on += by;
    k->mask[x] = *on ? k->mask[x] | UINT64_C(1) << h : k->mask[x] & ~(UINT64_C(1) << h);
}

static void put(const struct gather *k, int device, int slot, int x)
{
    elayer_put(k->y, device, slot, x);
    shift(k, x, device, 1);
}

static int drop(const struct gather *k, int device, int slot)
{
    int x = k->y->slot[device * k->y->a->n_slot + slot];

    elayer_drop(k->y, device, slot);
    shift(k, x, device, -1);
    return x;
}

static double both(const struct gather *k, int e, int f)
{
    const struct elayer *y = k->y;

    return travel_of(y->a, y->layer, e, k->mask, k->all) +
           travel_of(y->a, y->layer, f, k->mask, k->all);
}

static bool better(const struct gather *k, double before, double after)
{
    return after < before - 1e-9 * k->total;
}

/* Swaps slot s of g and slot t of h where that is better. */
static bool try_swap(struct gather *k, int g, int s, int h, int t)
{
    struct elayer *y = k->y;
    const struct expert_ask *a = y->a;
    int e = y->slot[g * a->n_slot + s], f = y->slot[h * a->n_slot + t];

    if (e < 0 || f < 0 || e == f || elayer_has(y, e, h) || elayer_has(y, f, g))
        return false;
    double d = elayer_per(y, e) - elayer_per(y, f);
    if (fmax(y->load[g] - d, y->load[h] + d) > k->most)
        return false;
    double before = both(k, e, f);
    shift(k, e, g, -1);
    shift(k, e, h, 1);
    shift(k, f, h, -1);
    shift(k, f, g, 1);
    bool good = better(k, before, both(k, e, f));
    shift(k, e, h, -1);
    shift(k, e, g, 1);
    shift(k, f, g, -1);
    shift(k, f, h, 1);
    if (good) {
        drop(k, g, s);
        drop(k, h, t);
        put(k, g, s, f);
        put(k, h, t, e);
    }
    return good;
}

/* Gives slot s of g to expert f, of which its host has no copy, where that is better. */
static bool try_gift(struct gather *k, int g, int s, int f)
{
    struct elayer *y = k->y;
    int e = y->slot[g * y->a->n_slot + s];

    if (e == f || (e >= 0 && y->copies[e] < 2) || (e < 0 && y->used[g] >= y->cap[g]) ||
        k->mask[f] >> k->host[g] & 1)
        return false;
    double before = e < 0 ? travel_of(y->a, y->layer, f, k->mask, k->all) : both(k, e, f);
    if (e >= 0)
        drop(k, g, s);
    put(k, g, s, f);
    double after = e < 0 ? travel_of(y->a, y->layer, f, k->mask, k->all) : both(k, e, f);
    if (better(k, before, after) && elayer_max(y) <= k->most)
        return true;
    drop(k, g, s);
    if (e >= 0)
        put(k, g, s, e);
    return false;
}

static bool sweep(struct gather *k)
{
    const struct expert_ask *a = k->y->a;
    int n = a->n_slot, slots = a->n_device * n;
    bool any = false;

    for (int i = 0; i < slots; i++)
        for (int f = 0; k->y->cap[i / n] && f < a->n_expert; f++)
            any |= try_gift(k, i / n, i % n, f);
    for (int i = 0; i < slots; i++)
        for (int j = i + 1; j < slots; j++)
            if (k->host[i / n] != k->host[j / n])
                any |= try_swap(k, i / n, i % n, j / n, j % n);
    return any;
}

void elayer_gather(struct elayer *y)
{
    const struct expert_ask *a = y->a;
    struct gather k = {.y = y, .most = fmax(elayer_max(y), 1 + a->affinity)};
    struct esearch even = {.at_home = true};

    k.host = xcalloc((size_t)a->n_device, sizeof(*k.host));
    k.n_host = number_hosts(a, k.host);
    k.on = xcalloc((size_t)a->n_expert * (size_t)k.n_host, sizeof(*k.on));
    k.mask = xcalloc((size_t)a->n_expert, sizeof(*k.mask));
    for (int g = 0; g < a->n_device; g++)
        k.all |= UINT64_C(1) << k.host[g];
    for (int i = 0; i < a->n_device * a->n_slot; i++)
        if (y->slot[i] >= 0)
            shift(&k, y->slot[i], i / a->n_slot, 1);
    for (int x = 0; x < a->n_expert; x++)
        for (int f = 0; f < a->n_expert; f++)
            k.total += f == x ? 0 : pairs_of(a, y->layer, x)[f];
    for (int i = 0; i < SWEEPS && k.total > 0 && sweep(&k);)
        i++;
    elayer_search(y, &even);
    free(k.host);
    free(k.on);
    free(k.mask);
}

bool expertplan_affine(const struct expert_ask *a)
{
    int *host = xcalloc((size_t)a->n_device, sizeof(*host));
    int n = number_hosts(a, host);

    free(host);
    return n <= EXPERTPLAN_MAX_HOSTS;
}

double expertplan_apart(const struct expert_ask *a, const int16_t *map)
{
    int slots = a->n_device * a->n_slot;
    double travel = 0, total = 0;
    uint64_t all = 0;

    if (!a->with)
        return 0;
    int *host = xcalloc((size_t)a->n_device, sizeof(*host));
    uint64_t *mask = xcalloc((size_t)a->n_expert, sizeof(*mask));
    int n_host = number_hosts(a, host);
    for (int g = 0; g < a->n_device; g++)
        all |= UINT64_C(1) << host[g];
    for (int l = 0; l < a->n_layer; l++, map += slots) {
        for (int x = 0; x < a->n_expert; x++)
            mask[x] = 0;
        for (int i = 0; i < slots; i++)
            if (map[i] >= 0 && !(a->out && a->out[i / a->n_slot]))
                mask[map[i]] |= UINT64_C(1) << host[i / a->n_slot];
        for (int x = 0; x < a->n_expert; x++) {
            travel += travel_of(a, l, x, mask, all);
            for (int f = 0; f < a->n_expert; f++)
                total += f == x ? 0 : pairs_of(a, l, x)[f];
        }
    }
    free(host);
    free(mask);
    return total > 0 ? travel / (total * n_host * ALL_WAYS) : 0;
}

/* topo/expertplan_affinity.c - experts often chosen together on one host.
 *
 * Of a pair of experts that a token chose, the token's row crosses to another host for
 * one of them where no host has both. Slots of different hosts are swapped as long as
 * the weight of such pairs falls and no device is loaded beyond what expert_ask.affinity
 * allows (or beyond the heaviest, if that is more); then each host evens out its own. */
#include "topo/expertplan_impl.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum { SWEEPS = 8 };

struct gather {
    struct elayer *y;
    int n_host;
    int *host;    /* [n_device], numbered from 0 */
    int *on;      /* [n_expert * n_host]: copies there */
    double total; /* weight of all pairs */
    double most;  /* load of a device */
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

/* Weight of the pairs of expert x that no host has both of. */
static double apart_of(const struct expert_ask *a, int layer, int x, const int *on,
                       int n_host)
{
    const double *with = pairs_of(a, layer, x);
    double sum = 0;

    for (int f = 0; f < a->n_expert; f++) {
        bool meet = f == x || with[f] <= 0;
        for (int h = 0; h < n_host && !meet; h++)
            meet = on[x * n_host + h] && on[f * n_host + h];
        sum += meet ? 0 : with[f];
    }
    return sum;
}

static void shift(const struct gather *k, int x, int from, int to, int by)
{
    k->on[x * k->n_host + k->host[from]] -= by;
    k->on[x * k->n_host + k->host[to]] += by;
}

static double both(const struct gather *k, int e, int f)
{
    return apart_of(k->y->a, k->y->layer, e, k->on, k->n_host) +
           apart_of(k->y->a, k->y->layer, f, k->on, k->n_host);
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
    shift(k, e, g, h, 1);
    shift(k, f, h, g, 1);
    double after = both(k, e, f);
    if (after < before - 1e-9 * k->total) {
        elayer_drop(y, g, s);
        elayer_drop(y, h, t);
        elayer_put(y, g, s, f);
        elayer_put(y, h, t, e);
        return true;
    }
    shift(k, e, h, g, 1);
    shift(k, f, g, h, 1);
    return false;
}

void elayer_gather(struct elayer *y)
{
    const struct expert_ask *a = y->a;
    struct gather k = {.y = y, .most = fmax(elayer_max(y), 1 + a->affinity)};
    struct esearch even = {.at_home = true};
    bool better = true;

    k.host = xcalloc((size_t)a->n_device, sizeof(*k.host));
    k.n_host = number_hosts(a, k.host);
    k.on = xcalloc((size_t)a->n_expert * (size_t)k.n_host, sizeof(*k.on));
    for (int i = 0; i < a->n_device * a->n_slot; i++)
        if (y->slot[i] >= 0)
            k.on[y->slot[i] * k.n_host + k.host[i / a->n_slot]]++;
    for (int x = 0; x < a->n_expert; x++)
        for (int f = 0; f < a->n_expert; f++)
            k.total += f == x ? 0 : pairs_of(a, y->layer, x)[f];
    for (int sweep = 0; sweep < SWEEPS && better && k.total > 0; sweep++) {
        better = false;
        for (int i = 0; i < a->n_device * a->n_slot; i++)
            for (int j = i + 1; j < a->n_device * a->n_slot; j++)
                if (k.host[i / a->n_slot] != k.host[j / a->n_slot])
                    better |= try_swap(&k, i / a->n_slot, i % a->n_slot, j / a->n_slot,
                                       j % a->n_slot);
    }
    elayer_search(y, &even);
    free(k.host);
    free(k.on);
}

double expertplan_apart(const struct expert_ask *a, const int16_t *map)
{
    int slots = a->n_device * a->n_slot;
    double apart = 0, total = 0;

    if (!a->with)
        return 0;
    int *host = xcalloc((size_t)a->n_device, sizeof(*host));
    int n_host = number_hosts(a, host);
    int *on = xcalloc((size_t)a->n_expert * (size_t)n_host, sizeof(*on));
    for (int l = 0; l < a->n_layer; l++, map += slots) {
        for (int i = 0; i < a->n_expert * n_host; i++)
            on[i] = 0;
        for (int i = 0; i < slots; i++)
            if (map[i] >= 0 && !(a->out && a->out[i / a->n_slot]))
                on[map[i] * n_host + host[i / a->n_slot]]++;
        for (int x = 0; x < a->n_expert; x++) {
            apart += apart_of(a, l, x, on, n_host);
            for (int f = 0; f < a->n_expert; f++)
                total += f == x ? 0 : pairs_of(a, l, x)[f];
        }
    }
    free(host);
    free(on);
    return total > 0 ? apart / total : 0;
}

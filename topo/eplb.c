/* topo/eplb.c - the published EPLB, from its description.
 *
 * Ties are the published ones: a sort by falling weight that keeps the order of equals,
 * the first lightest pack, the first expert of the highest load. */
#include "topo/eplb.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/expertplan_impl.h"

/* Scratch of one call, all sized by experts or slots. */
struct work {
    double *w;    /* of the items being packed */
    double *sum;  /* of the packs */
    int *order;   /* items by falling weight */
    int *pack;    /* item -> pack */
    int *rank;    /* item -> place in its pack */
    int *fill;    /* pack -> items */
    int *expert;  /* renumbered expert -> expert */
    int *copy_of; /* slot of a node -> renumbered expert */
    int *copies;  /* of each renumbered expert */
    double *load; /* of one layer, as counted */
};

static int capacity(int n, int m, int pack) { return n / m + (pack < n % m); }

static int first(int n, int m, int pack)
{
    return n / m * pack + (pack < n % m ? pack : n % m);
}

int eplb_first(const struct eplb_ask *a, int device)
{
    return first(a->n_slot, a->n_device, device);
}

static int heavier(const void *x, const void *y, void *arg)
{
    const double *w = arg;
    int i = *(const int *)x, j = *(const int *)y;

    if (w[i] != w[j])
        return w[i] > w[j] ? -1 : 1;
    return i - j;
}

/* n items of weights k->w into m packs: k->pack and k->rank. */
static void packing(struct work *k, int n, int m)
{
    if (n == m) {
        for (int i = 0; i < n; i++)
            k->pack[i] = i, k->rank[i] = 0;
        return;
    }
    for (int i = 0; i < n; i++)
        k->order[i] = i;
    qsort_r(k->order, (size_t)n, sizeof(*k->order), heavier, k->w);
    for (int p = 0; p < m; p++)
        k->sum[p] = 0, k->fill[p] = 0;
    for (int i = 0; i < n; i++) {
        int item = k->order[i], best = -1;
        for (int p = 0; p < m; p++)
            if (k->fill[p] < capacity(n, m, p) && (best < 0 || k->sum[p] < k->sum[best]))
                best = p;
        k->pack[item] = best;
        k->rank[item] = k->fill[best]++;
        k->sum[best] += k->w[item];
    }
}

/* The groups of a layer to nodes: k->expert, node by node. */
static void groups_to_nodes(struct work *k, const struct eplb_ask *a, int n_group,
                            int n_node)
{
    int size = a->n_expert / n_group, per_node = n_group / n_node;

    for (int g = 0; g < n_group; g++) {
        k->w[g] = 0;
        for (int i = 0; i < size; i++)
            k->w[g] += k->load[g * size + i];
    }
    packing(k, n_group, n_node);
    for (int g = 0; g < n_group; g++)
        for (int i = 0; i < size; i++)
            k->expert[(k->pack[g] * per_node + k->rank[g]) * size + i] = g * size + i;
}

/* n experts, k->expert from `at` on, to n_slot slots: k->copy_of and k->copies. */
static void replicate(struct work *k, int at, int n, int n_slot)
{
    for (int i = 0; i < n; i++)
        k->copy_of[i] = i, k->copies[i] = 1;
    for (int s = n; s < n_slot; s++) {
        int best = 0;
        double high = -1;
        for (int i = 0; i < n; i++) {
            double per = k->load[k->expert[at + i]] / k->copies[i];
            if (per > high)
                high = per, best = i;
        }
        k->copy_of[s] = best;
        k->copies[best]++;
    }
}

static void plan_layer(struct work *k, const struct eplb_ask *a, int n_group, int n_node,
                       int16_t *ret)
{
    int n = a->n_expert / n_node, n_slot = a->n_slot / n_node;
    int n_device = a->n_device / n_node;

    groups_to_nodes(k, a, n_group, n_node);
    for (int node = 0; node < n_node; node++) {
        int at = node * n;
        replicate(k, at, n, n_slot);
        for (int s = 0; s < n_slot; s++)
            k->w[s] = k->load[k->expert[at + k->copy_of[s]]] / k->copies[k->copy_of[s]];
        packing(k, n_slot, n_device);
        for (int s = 0; s < n_slot; s++)
            ret[node * n_slot + first(n_slot, n_device, k->pack[s]) + k->rank[s]] =
                (int16_t)k->expert[at + k->copy_of[s]];
    }
}

static int check(const struct eplb_ask *a, struct err *e)
{
    if (a->n_layer < 1 || a->n_layer > EXPERTPLAN_MAX_LAYERS || a->n_expert < 1 ||
        a->n_expert > EXPERTPLAN_MAX_EXPERTS || a->n_slot > EXPERTPLAN_MAX_SLOTS ||
        a->n_device < 1 || a->n_device > EXPERTPLAN_MAX_DEVICES || a->n_node < 1 ||
        a->n_group < 1)
        return err_set(e, ERR_RANGE,
                       "eplb: %d layers of %d experts on %d slots of %d devices are "
                       "beyond the bounds",
                       a->n_layer, a->n_expert, a->n_slot, a->n_device);
    if (a->n_slot < a->n_expert)
        return err_set(e, ERR_NOFIT, "eplb: %d slots for %d experts", a->n_slot,
                       a->n_expert);
    for (int i = 0; i < a->n_layer * a->n_expert; i++)
        if (!(a->load[i] >= 0) || !isfinite(a->load[i]))
            return err_set(e, ERR_RANGE, "eplb: the load of expert %d in layer %d is %g",
                           i % a->n_expert, i / a->n_expert, a->load[i]);
    return 0;
}

int eplb_plan(const struct eplb_ask *a, int16_t *ret, struct err *e)
{
    struct work k;
    int n_group = a->n_group, n_node = a->n_node;

    if (check(a, e) < 0)
        return -1;
    if (n_group > a->n_expert || a->n_expert % n_group || n_group % n_node ||
        a->n_device % n_node || a->n_slot % n_node)
        n_group = n_node = 1;

    size_t n = (size_t)(a->n_slot > a->n_device ? a->n_slot : a->n_device);
    double *real = xcalloc(4 * n, sizeof(*real));
    int *whole = xcalloc(7 * n, sizeof(*whole));
    k = (struct work){.w = real,
                      .sum = real + n,
                      .load = real + 2 * n,
                      .order = whole,
                      .pack = whole + n,
                      .rank = whole + 2 * n,
                      .fill = whole + 3 * n,
                      .expert = whole + 4 * n,
                      .copy_of = whole + 5 * n,
                      .copies = whole + 6 * n};
    for (int l = 0; l < a->n_layer; l++) {
        double sum = 0;
        for (int i = 0; i < a->n_expert; i++)
            sum += k.load[i] = a->load[(size_t)l * a->n_expert + i];
        for (int i = 0; sum == 0 && i < a->n_expert; i++)
            k.load[i] = 1;
        plan_layer(&k, a, n_group, n_node, ret + (size_t)l * a->n_slot);
    }
    free(real);
    free(whole);
    return 0;
}

/* Devices in order of hosts, those that are out left away; the number of hosts where all
 * have equally many, else 1. */
static int by_host(const struct expert_ask *a, int *device, int *ret_n)
{
    int n = 0, hosts = 0, size = 0, even = 1;

    for (int g = 0; g < a->n_device; g++) {
        int h = a->host ? a->host[g] : 0, same = 0, seen = 0;
        for (int i = 0; i < g && !seen; i++)
            seen = !(a->out && a->out[i]) && (a->host ? a->host[i] : 0) == h;
        if (seen || (a->out && a->out[g]))
            continue;
        for (int i = g; i < a->n_device; i++)
            if ((a->host ? a->host[i] : 0) == h && !(a->out && a->out[i]))
                device[n++] = i, same++;
        even &= !hosts || same == size;
        size = same;
        hosts++;
    }
    *ret_n = n;
    return even && hosts ? hosts : 1;
}

int eplb_map(const struct expert_ask *a, int n_group, int16_t *ret, struct err *e)
{
    int n, least = a->n_slot, rc;
    int *device;
    struct eplb_ask q = {.n_layer = a->n_layer,
                         .n_expert = a->n_expert,
                         .n_group = n_group,
                         .load = a->load};
    int16_t *flat;

    if (expertplan_ask_check(a, e) < 0)
        return -1;
    device = xcalloc((size_t)a->n_device, sizeof(*device));
    q.n_node = by_host(a, device, &n);
    for (int i = 0; i < n && a->slots; i++)
        if (a->slots[device[i]] < least)
            least = a->slots[device[i]];
    q.n_device = n;
    q.n_slot = n * least;
    flat = xcalloc((size_t)a->n_layer * (size_t)q.n_slot + 1, sizeof(*flat));
    rc = eplb_plan(&q, flat, e);
    if (rc == 0) {
        size_t total = (size_t)a->n_layer * a->n_device * a->n_slot;
        for (size_t i = 0; i < total; i++)
            ret[i] = -1;
        for (int l = 0; l < a->n_layer; l++)
            for (int i = 0; i < n; i++) {
                const int16_t *from = flat + (size_t)l * q.n_slot + i * least;
                int16_t *to = ret + ((size_t)l * a->n_device + device[i]) * a->n_slot;
                for (int s = 0; s < least; s++) {
                    int twice = 0;
                    for (int t = 0; t < s; t++)
                        twice |= from[t] == from[s];
                    to[s] = twice ? -1 : from[s];
                }
            }
    }
    free(flat);
    free(device);
    return rc;
}

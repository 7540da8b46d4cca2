/* topo/expertplan_shares.c - what each copy takes.
 *
 * Water-filling, expert by expert: with all else fixed, an expert's load fills up the
 * least loaded of its devices to one level. Repeated in turn this falls to the least of
 * sum L_g^2 over all ways to share, which is also the one whose heaviest device is
 * lightest. */
#include "topo/expertplan.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "topo/expertplan_impl.h"

enum { ROUNDS = 500 };

struct pour {
    int n; /* copies */
    int expert;
    const int *device, *where; /* of its copies: device, index into the map */
};

/* One expert's load w poured over its devices; how far any share moved. x: what its
 * copies take now, by index into the map. */
static double pour(const struct pour *p, double w, double *x, double *load)
{
    double level = 0, sum = 0, moved = 0;
    int order[EXPERTPLAN_MAX_DEVICES], full = 0;

    for (int i = 0; i < p->n; i++) {
        int j = i;
        load[p->device[i]] -= x[p->where[i]];
        for (; j > 0 && load[p->device[order[j - 1]]] > load[p->device[i]]; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
    for (; full < p->n; full++) {
        double next = load[p->device[order[full]]];
        if (full && next * full - sum >= w)
            break;
        sum += next;
    }
    level = (w + sum) / full;
    for (int i = 0; i < p->n; i++) {
        int c = order[i];
        double take = i < full ? level - load[p->device[c]] : 0;
        if (take < 0)
            take = 0;
        moved = fmax(moved, fabs(take - x[p->where[c]]));
        x[p->where[c]] = take;
        load[p->device[c]] += take;
    }
    return moved;
}

/* The copies of all experts on usable devices, expert by expert. */
static int gather(const struct expert_ask *a, const int16_t *map, int *first, int *device,
                  int *where)
{
    int n = 0, slots = a->n_device * a->n_slot;

    for (int e = 0; e <= a->n_expert; e++)
        first[e] = 0;
    for (int i = 0; i < slots; i++)
        if (map[i] >= 0 && !(a->out && a->out[i / a->n_slot]))
            first[map[i] + 1]++, n++;
    for (int e = 0; e < a->n_expert; e++)
        first[e + 1] += first[e];
    for (int i = slots - 1; i >= 0; i--) /* from the end: first[] ends as the starts */
        if (map[i] >= 0 && !(a->out && a->out[i / a->n_slot])) {
            int at = --first[map[i] + 1];
            device[at] = i / a->n_slot;
            where[at] = i;
        }
    for (int e = 0; e < a->n_expert; e++)
        first[e] = first[e + 1];
    first[a->n_expert] = n;
    return n;
}

/* Pours until no share moves or for so many rounds; of a layer's loads into x [slots] and
 * load [n_device]. first, device, where: see gather. */
static void settle(const struct expert_ask *a, int layer, const int16_t *map, int rounds,
                   int *first, double *x, double *load)
{
    size_t slots = (size_t)a->n_device * a->n_slot;
    const double *w = a->load + (size_t)layer * a->n_expert;
    int *device = first + a->n_expert + 1, *where = device + slots;
    double total = 0;

    gather(a, map, first, device, where);
    for (int e = 0; e < a->n_expert; e++) {
        total += w[e];
        for (int i = first[e]; i < first[e + 1]; i++) {
            x[where[i]] = w[e] / (first[e + 1] - first[e]);
            load[device[i]] += x[where[i]];
        }
    }
    for (int round = 0; round < rounds && total > 0; round++) {
        double moved = 0;
        for (int e = 0; e < a->n_expert; e++) {
            struct pour p = {first[e + 1] - first[e], e, device + first[e],
                             where + first[e]};
            if (p.n > 1 && w[e] > 0)
                moved = fmax(moved, pour(&p, w[e], x, load));
        }
        if (moved < 1e-6 * total / a->n_device)
            break;
    }
}

double expertplan_shares(const struct expert_ask *a, int layer, const int16_t *map,
                         float *ret)
{
    size_t slots = (size_t)a->n_device * a->n_slot;
    const double *w = a->load + (size_t)layer * a->n_expert;
    double *x = xcalloc(slots + (size_t)a->n_device, sizeof(*x)), *load = x + slots;
    int *first = xcalloc((size_t)a->n_expert + 1 + 2 * slots, sizeof(*first));
    const int *where = first + a->n_expert + 1 + slots;
    double high = 0;

    settle(a, layer, map, ROUNDS, first, x, load);
    for (size_t i = 0; i < slots; i++)
        ret[i] = 0;
    for (int e = 0; e < a->n_expert; e++) {
        int n = first[e + 1] - first[e];
        double sum = 0; /* w[e], but where that is lost beside the devices' loads */
        for (int i = first[e]; i < first[e + 1]; i++)
            sum += x[where[i]];
        bool lost = !(w[e] > 0) || fabs(sum - w[e]) > 1e-6 * w[e];
        for (int i = first[e]; i < first[e + 1]; i++)
            ret[where[i]] = (float)(lost ? 1.0 / n : x[where[i]] / sum);
    }
    for (int g = 0; g < a->n_device; g++)
        high = fmax(high, load[g]);
    free(first);
    free(x);
    return high;
}

void expertplan_pour(const struct expert_ask *a, int layer, const int16_t *map,
                     int rounds, double *ret)
{
    size_t slots = (size_t)a->n_device * a->n_slot;
    double *x = xcalloc(slots, sizeof(*x));
    int *first = xcalloc((size_t)a->n_expert + 1 + 2 * slots, sizeof(*first));

    for (int g = 0; g < a->n_device; g++)
        ret[g] = 0;
    settle(a, layer, map, rounds, first, x, ret);
    free(first);
    free(x);
}

double expertplan_balance(const struct expert_ask *a, int layer, const int16_t *map,
                          const float *share, double *ret)
{
    int slots = a->n_device * a->n_slot, use = 0;
    const double *w = a->load + (size_t)layer * a->n_expert;
    double *load = xcalloc((size_t)a->n_device, sizeof(*load)), sum = 0, high = 0;
    int *copies = xcalloc((size_t)a->n_expert, sizeof(*copies));

    for (int i = 0; i < slots; i++)
        if (map[i] >= 0 && !(a->out && a->out[i / a->n_slot]))
            copies[map[i]]++;
    for (int i = 0; i < slots; i++)
        if (map[i] >= 0 && !(a->out && a->out[i / a->n_slot]))
            load[i / a->n_slot] +=
                w[map[i]] * (share ? (double)share[i] : 1.0 / copies[map[i]]);
    for (int g = 0; g < a->n_device; g++) {
        if (ret)
            ret[g] = load[g];
        sum += load[g];
        high = fmax(high, load[g]);
        use += !(a->out && a->out[g]);
    }
    free(load);
    free(copies);
    return high > 0 ? sum / use / high : 1;
}

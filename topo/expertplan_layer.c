/* topo/expertplan_layer.c - the state of a layer being planned, and its repair. */
#include "topo/expertplan_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

int expertplan_ask_check(const struct expert_ask *a, struct err *e)
{
    int room = 0;

    if (a->n_layer < 1 || a->n_layer > EXPERTPLAN_MAX_LAYERS || a->n_expert < 1 ||
        a->n_expert > EXPERTPLAN_MAX_EXPERTS || a->n_device < 1 ||
        a->n_device > EXPERTPLAN_MAX_DEVICES || a->n_slot < 1 ||
        a->n_slot > EXPERTPLAN_MAX_SLOTS / a->n_device)
        return err_set(e, ERR_RANGE,
                       "expert plan: %d layers of %d experts on %d devices of %d slots "
                       "are beyond the bounds",
                       a->n_layer, a->n_expert, a->n_device, a->n_slot);
    for (int g = 0; g < a->n_device; g++) {
        int cap = a->slots ? a->slots[g] : a->n_slot;
        if (cap < 0 || cap > a->n_slot)
            return err_set(e, ERR_RANGE,
                           "expert plan: device %d may hold %d copies a layer, its slots "
                           "are %d",
                           g, cap, a->n_slot);
        room += a->out && a->out[g] ? 0 : cap;
    }
    for (int i = 0; i < a->n_layer * a->n_expert; i++)
        if (!(a->load[i] >= 0) || !isfinite(a->load[i]))
            return err_set(e, ERR_RANGE,
                           "expert plan: the load of expert %d in layer %d is %g",
                           i % a->n_expert, i / a->n_expert, a->load[i]);
    if (a->with && !expertplan_affine(a))
        return err_set(
            e, ERR_RANGE,
            "expert plan: affinity over more than %d hosts is beyond the bounds",
            EXPERTPLAN_MAX_HOSTS);
    if (room < a->n_expert)
        return err_set(e, ERR_NOFIT,
                       "expert plan: %d slots on the devices in use for %d experts", room,
                       a->n_expert);
    return 0;
}

struct elayer *elayer_new(const struct expert_ask *a)
{
    struct elayer *y = xcalloc(1, sizeof(*y));
    size_t d = (size_t)a->n_device, x = (size_t)a->n_expert;

    y->a = a;
    y->cap = xcalloc(d, sizeof(*y->cap));
    y->used = xcalloc(d, sizeof(*y->used));
    y->slot = xcalloc(d * (size_t)a->n_slot, sizeof(*y->slot));
    y->at = xcalloc(x * d, sizeof(*y->at));
    y->holder = xcalloc(x * d, sizeof(*y->holder));
    y->copies = xcalloc(x, sizeof(*y->copies));
    y->w = xcalloc(x, sizeof(*y->w));
    y->load = xcalloc(d, sizeof(*y->load));
    y->had = xcalloc(x * d, sizeof(*y->had));
    y->wrote = xcalloc(d, sizeof(*y->wrote));
    y->delta = xcalloc(d, sizeof(*y->delta));
    y->touched = xcalloc(d, sizeof(*y->touched));
    for (int g = 0; g < a->n_device; g++) {
        bool out = a->out && a->out[g];
        y->cap[g] = out ? 0 : a->slots ? a->slots[g] : a->n_slot;
        y->n_use += !out;
    }
    return y;
}

void elayer_free(struct elayer *y)
{
    if (!y)
        return;
    free(y->cap);
    free(y->used);
    free(y->slot);
    free(y->at);
    free(y->holder);
    free(y->copies);
    free(y->w);
    free(y->load);
    free(y->had);
    free(y->wrote);
    free(y->delta);
    free(y->touched);
    free(y);
}

static void weigh(struct elayer *y, int layer)
{
    const double *load = y->a->load + (size_t)layer * y->a->n_expert;
    double sum = 0;

    for (int i = 0; i < y->a->n_expert; i++)
        sum += load[i];
    y->idle = !(sum > 0);
    y->scale = y->n_use / (y->idle ? y->a->n_expert : sum);
    for (int i = 0; i < y->a->n_expert; i++)
        y->w[i] = y->scale * (y->idle ? 1 : load[i]);
}

void elayer_load(struct elayer *y, int layer, const int16_t *map)
{
    const struct expert_ask *a = y->a;
    size_t pairs = (size_t)a->n_expert * a->n_device;

    y->layer = layer;
    weigh(y, layer);
    memset(y->at, 0xff, pairs * sizeof(*y->at));
    memset(y->slot, 0xff, (size_t)a->n_device * a->n_slot * sizeof(*y->slot));
    memset(y->had, 0, pairs);
    for (int i = 0; i < a->n_expert; i++)
        y->copies[i] = 0;
    for (int g = 0; g < a->n_device; g++)
        y->used[g] = 0, y->load[g] = 0;
    for (int g = 0; map && g < a->n_device; g++)
        for (int s = 0; s < a->n_slot && !(a->out && a->out[g]); s++) {
            int x = map[g * a->n_slot + s];
            if (x < 0 || elayer_has(y, x, g))
                continue;
            y->had[(size_t)x * a->n_device + g] = 1;
            elayer_put(y, g, s, x);
        }
    for (int g = 0; g < a->n_device; g++)
        y->wrote[g] = 0;
    y->writes = 0;
}

void elayer_put(struct elayer *y, int device, int slot, int expert)
{
    int d = y->a->n_device, c = y->copies[expert]++;
    int16_t *held = y->holder + (size_t)expert * d;
    double per = y->w[expert] / (c + 1);

    for (int i = 0; i < c; i++)
        y->load[held[i]] += per - y->w[expert] / c;
    held[c] = (int16_t)device;
    y->load[device] += per;
    y->slot[device * y->a->n_slot + slot] = (int16_t)expert;
    y->at[(size_t)expert * d + device] = (int16_t)slot;
    y->used[device]++;
    if (!y->had[(size_t)expert * d + device])
        y->wrote[device]++, y->writes++;
}

void elayer_drop(struct elayer *y, int device, int slot)
{
    int d = y->a->n_device, expert = y->slot[device * y->a->n_slot + slot];
    int16_t *held = y->holder + (size_t)expert * d;
    int c = --y->copies[expert], i = 0;

    while (held[i] != device)
        i++;
    memmove(held + i, held + i + 1, (size_t)(c - i) * sizeof(*held));
    for (i = 0; i < c; i++)
        y->load[held[i]] += y->w[expert] / c - y->w[expert] / (c + 1);
    y->load[device] -= y->w[expert] / (c + 1);
    y->slot[device * y->a->n_slot + slot] = -1;
    y->at[(size_t)expert * d + device] = -1;
    y->used[device]--;
    if (!y->had[(size_t)expert * d + device])
        y->wrote[device]--, y->writes--;
}

int elayer_empty(const struct elayer *y, int device)
{
    for (int s = 0; s < y->a->n_slot && y->used[device] < y->cap[device]; s++)
        if (y->slot[device * y->a->n_slot + s] < 0)
            return s;
    return -1;
}

double elayer_max(const struct elayer *y)
{
    double high = 0;

    for (int g = 0; g < y->a->n_device; g++)
        if (y->load[g] > high)
            high = y->load[g];
    return high;
}

/* The slot of a device that is missed least: of a copy that has others, else any. */
static int spare_slot(const struct elayer *y, int device, bool or_any)
{
    const int16_t *slot = y->slot + (size_t)device * y->a->n_slot;
    int best = -1, last = -1;
    double low = 0;

    for (int s = 0; s < y->a->n_slot; s++) {
        if (slot[s] < 0)
            continue;
        last = s;
        double gain =
            y->copies[slot[s]] > 1 ? y->w[slot[s]] / (y->copies[slot[s]] - 1) : INFINITY;
        if (gain < INFINITY && (best < 0 || gain < low))
            best = s, low = gain;
    }
    return best < 0 && or_any ? last : best;
}

/* A copy for an expert that has none: where the load is least, in an empty slot first,
 * else in place of a copy that has others. */
static int mend_one(struct elayer *y, int expert)
{
    int best = -1, slot = -1;

    for (int pass = 0; pass < 2 && best < 0; pass++)
        for (int g = 0; g < y->a->n_device; g++) {
            int s = pass ? spare_slot(y, g, false) : elayer_empty(y, g);
            if (y->cap[g] > 0 && s >= 0 && (best < 0 || y->load[g] < y->load[best]))
                best = g, slot = s;
        }
    if (best < 0)
        return -1;
    if (y->slot[best * y->a->n_slot + slot] >= 0)
        elayer_drop(y, best, slot);
    elayer_put(y, best, slot, expert);
    return 0;
}

int elayer_mend(struct elayer *y)
{
    for (int g = 0; g < y->a->n_device; g++)
        while (y->used[g] > y->cap[g])
            elayer_drop(y, g, spare_slot(y, g, true));
    for (;;) {
        int worst = -1;
        for (int i = 0; i < y->a->n_expert; i++)
            if (!y->copies[i] && (worst < 0 || y->w[i] > y->w[worst]))
                worst = i;
        if (worst < 0)
            return 0;
        if (mend_one(y, worst) < 0)
            return -1;
    }
}

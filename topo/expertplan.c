/* topo/expertplan.c - plans from nothing, and the rules for maps.
 *
 * A layer: first as many copies as make the heaviest copy lightest, placed by falling
 * weight on the lightest device that has room and no copy of the expert; then the search.
 * As numbers of copies that are best for themselves are not the best to place, a copy is
 * then taken from one expert for another, at random but always the same way, and all is
 * placed anew, as long as the layer's allowance of work lasts: small layers are so tried
 * many hundred times, large ones hardly. */
#include "topo/expertplan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/expertplan_impl.h"

enum {
    WORK = 25000,  /* moves looked at in a layer, in all */
    TRIES = 400,   /* placings anew */
    PLACED = 40000 /* slots filled in them */
};

void expertplan_weights(const double *tokens, const double *us, int n, double *ret)
{
    double timed_us = 0, timed_tok = 0;

    for (int i = 0; us && i < n; i++)
        if (us[i] > 0 && tokens[i] > 0)
            timed_us += us[i], timed_tok += tokens[i];
    for (int i = 0; i < n; i++)
        ret[i] = !(timed_us > 0)              ? tokens[i]
                 : us[i] > 0 && tokens[i] > 0 ? us[i]
                                              : tokens[i] * timed_us / timed_tok;
}

/* Copies of each expert so that the heaviest copy is lightest, none on two slots of a
 * device. */
static void count_copies(const struct elayer *y, int *c)
{
    int room = 0, n = y->a->n_expert;

    for (int g = 0; g < y->a->n_device; g++)
        room += y->cap[g];
    for (int i = 0; i < n; i++)
        c[i] = 1;
    for (room -= n; room > 0; room--) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (c[i] < y->n_use && (best < 0 || y->w[i] / c[i] > y->w[best] / c[best]))
                best = i;
        if (best < 0)
            return;
        c[best]++;
    }
}

struct filling {
    double *load; /* [n_device], of the copies placed, by their numbers as they will be */
    double *per;  /* [n_expert] */
    int *order;
};

static int heavier(const void *x, const void *y, void *arg)
{
    const double *w = arg;
    int i = *(const int *)x, j = *(const int *)y;

    return w[i] != w[j] ? (w[i] > w[j] ? -1 : 1) : i - j;
}

/* Room only where e is already: another expert moves there and e takes its place. */
static void squeeze(struct elayer *y, struct filling *f, int e)
{
    int n = y->a->n_slot, d = y->a->n_device;

    for (int g = 0; g < d; g++) {
        int room = elayer_empty(y, g);
        for (int h = 0; h < d && room >= 0; h++)
            for (int s = 0; s < n && y->cap[h] && !elayer_has(y, e, h); s++) {
                int x = y->slot[h * n + s];
                if (x < 0 || elayer_has(y, x, g))
                    continue;
                elayer_drop(y, h, s);
                elayer_put(y, g, room, x);
                elayer_put(y, h, s, e);
                f->load[g] += f->per[x];
                f->load[h] += f->per[e] - f->per[x];
                return;
            }
    } /* nowhere: e has copies enough as it is */
}

/* An empty layer filled with c[e] copies of each expert. */
static void fill(struct elayer *y, struct filling *f, const int *c)
{
    const struct expert_ask *a = y->a;

    for (int i = 0; i < a->n_expert; i++)
        f->order[i] = i, f->per[i] = y->w[i] / c[i];
    for (int g = 0; g < a->n_device; g++)
        f->load[g] = 0;
    qsort_r(f->order, (size_t)a->n_expert, sizeof(*f->order), heavier, f->per);
    for (int i = 0; i < a->n_expert; i++) {
        int e = f->order[i];
        for (int k = 0; k < c[e]; k++) {
            int best = -1;
            for (int g = 0; g < a->n_device; g++)
                if (y->used[g] < y->cap[g] && !elayer_has(y, e, g) &&
                    (best < 0 || f->load[g] < f->load[best]))
                    best = g;
            if (best < 0) {
                squeeze(y, f, e);
                continue;
            }
            elayer_put(y, best, elayer_empty(y, best), e);
            f->load[best] += f->per[e];
        }
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ull;
}

/* A copy of one expert for another, both at random. */
static bool shift(const struct elayer *y, int *c, uint64_t *seed)
{
    int n = y->a->n_expert;

    for (int tries = 0; tries < 64; tries++) {
        int from = (int)(next_random(seed) >> 33) % n;
        int to = (int)(next_random(seed) >> 33) % n;
        if (from != to && c[from] > 1 && c[to] < y->n_use) {
            c[from]--;
            c[to]++;
            return true;
        }
    }
    return false;
}

static void plan_layer(struct elayer *y, struct filling *f, int layer, int *copies,
                       int16_t *ret)
{
    const struct expert_ask *a = y->a;
    size_t bytes = (size_t)a->n_device * a->n_slot * sizeof(*ret);
    size_t c_bytes = (size_t)a->n_expert * sizeof(*copies);
    int *now = copies + a->n_expert, placed = 0;
    struct esearch search = {.max_work = WORK};
    uint64_t seed = 88172645463325252ull;
    double best = INFINITY;

    y->work = 0;
    elayer_load(y, layer, NULL);
    count_copies(y, copies);
    for (int i = 0; i < TRIES && placed < PLACED && y->work < WORK; i++) {
        memcpy(now, copies, c_bytes);
        if (i) {
            if (best <= 1 + 1e-9 || y->idle || !shift(y, now, &seed))
                break;
            elayer_load(y, layer, NULL);
        }
        fill(y, f, now);
        for (int g = 0; g < a->n_device; g++)
            placed += y->used[g];
        elayer_search(y, &search);
        double high = elayer_max(y);
        if (high < best - 1e-12) {
            best = high;
            memcpy(ret, y->slot, bytes);
            memcpy(copies, y->copies, c_bytes);
        }
    }
    if (a->with && a->affinity > 0) {
        elayer_load(y, layer, ret);
        elayer_gather(y);
        memcpy(ret, y->slot, bytes);
    }
}

int expertplan_offline(const struct expert_ask *a, int16_t *ret, struct err *e)
{
    if (expertplan_ask_check(a, e) < 0)
        return -1;
    struct elayer *y = elayer_new(a);
    struct filling f = {.load = xcalloc((size_t)a->n_device, sizeof(double)),
                        .per = xcalloc((size_t)a->n_expert, sizeof(double)),
                        .order = xcalloc((size_t)a->n_expert, sizeof(int))};
    int *copies = xcalloc(2 * (size_t)a->n_expert, sizeof(*copies));

    for (int l = 0; l < a->n_layer; l++)
        plan_layer(y, &f, l, copies, ret + (size_t)l * a->n_device * a->n_slot);
    free(copies);
    free(f.load);
    free(f.per);
    free(f.order);
    elayer_free(y);
    return 0;
}

static int check_layer(const struct expert_ask *a, int layer, const int16_t *map,
                       uint8_t *seen, struct err *e)
{
    int n = a->n_slot;

    memset(seen, 0, (size_t)a->n_expert);
    for (int g = 0; g < a->n_device; g++)
        for (int s = 0; s < n; s++) {
            int x = map[g * n + s];
            if (x < -1 || x >= a->n_expert)
                return err_set(e, ERR_RANGE,
                               "expert map: layer %d, device %d, slot %d names expert %d "
                               "of %d",
                               layer, g, s, x, a->n_expert);
            for (int t = 0; t < s && x >= 0; t++)
                if (map[g * n + t] == x)
                    return err_set(e, ERR_INVALID,
                                   "expert map: expert %d of layer %d stands twice on "
                                   "device %d",
                                   x, layer, g);
            if (x >= 0 && !(a->out && a->out[g]))
                seen[x] = 1;
        }
    for (int x = 0; x < a->n_expert; x++)
        if (!seen[x])
            return err_set(e, ERR_INVALID,
                           "expert map: expert %d of layer %d stands on no device in use",
                           x, layer);
    return 0;
}

int expertplan_check(const struct expert_ask *a, const int16_t *map, struct err *e)
{
    uint8_t *seen = xcalloc((size_t)a->n_expert + 1, 1);
    int rc = expertplan_ask_check(a, e);

    for (int l = 0; l < a->n_layer && rc == 0; l++)
        rc = check_layer(a, l, map + (size_t)l * a->n_device * a->n_slot, seen, e);
    free(seen);
    return rc;
}

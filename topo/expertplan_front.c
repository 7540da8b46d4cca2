/* topo/expertplan_front.c - how good a layer can be by how much is written to it, and who
 * of the layers gets the writes.
 *
 * A front keeps, of all maps that were seen of a layer, those that no map with as few
 * writes beats: as points, each with the slots in which it differs from the map at the
 * start. A budget is then shared out over the fronts of all layers: again and again the
 * step of one layer to a point further on that saves most for its writes, as long as one
 * fits. Layers of few slots are judged by the heaviest load with the best shares, which
 * is what they come to once shares follow the move, and a little by that with equal ones,
 * which they have until then; larger ones by equal shares, which is quick to know and no
 * less. */
#include "topo/expertplan_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { FEW_SLOTS = 128 /* that are judged by best shares */ };

double elayer_high(const struct elayer *y)
{
    const struct expert_ask *a = y->a;
    int slots = a->n_device * a->n_slot;
    float share[FEW_SLOTS];

    if (slots > FEW_SLOTS || y->idle)
        return elayer_max(y);
    double shared = y->scale * expertplan_shares(a, y->layer, y->slot, share);
    return shared + (elayer_max(y) - shared) * EXPERTPLAN_EQUAL;
}

void efront_init(struct efront *f, const struct elayer *y)
{
    size_t slots = (size_t)y->a->n_device * y->a->n_slot;

    *f = (struct efront){.first = y->writes, .start = elayer_high(y)};
    f->base = xmalloc(slots * sizeof(*f->base));
    memcpy(f->base, y->slot, slots * sizeof(*f->base));
}

void efront_done(struct efront *f)
{
    for (int i = 0; i < f->n; i++)
        free(f->point[i].change);
    free(f->point);
    free(f->base);
    *f = (struct efront){.n = 0};
}

void efront_add(struct efront *f, const struct elayer *y, double high)
{
    int slots = y->a->n_device * y->a->n_slot, writes = y->writes - f->first;
    int at = 0, gone, n = 0;

    if (high >= f->start - 1e-9)
        return;
    while (at < f->n && f->point[at].writes < writes)
        at++;
    if ((at > 0 && f->point[at - 1].high <= high + 1e-9) ||
        (at < f->n && f->point[at].writes == writes && f->point[at].high <= high + 1e-9))
        return;
    for (gone = at; gone < f->n && f->point[gone].high >= high; gone++)
        free(f->point[gone].change);
    f->point = xrealloc(f->point, (size_t)(f->n + 1) * sizeof(*f->point));
    memmove(f->point + at + 1, f->point + gone,
            (size_t)(f->n - gone) * sizeof(*f->point));
    f->n += 1 - (gone - at);
    for (int i = 0; i < slots; i++)
        n += y->slot[i] != f->base[i];
    f->point[at] = (struct epoint){.writes = writes, .high = high, .n_change = n};
    f->point[at].change = xcalloc((size_t)n + 1, sizeof(*f->point[at].change));
    for (int i = 0, k = 0; i < slots; i++)
        if (y->slot[i] != f->base[i])
            f->point[at].change[k++] = (struct echange){(int16_t)i, y->slot[i]};
}

void efront_map(const struct efront *f, int point, int n_slots, int16_t *ret)
{
    memcpy(ret, f->base, (size_t)n_slots * sizeof(*ret));
    for (int i = 0; point >= 0 && i < f->point[point].n_change; i++)
        ret[f->point[point].change[i].slot] = f->point[point].change[i].expert;
}

/* ---- a budget over the fronts ---- */

/* What a point saves, us net; below 0 where it is too little to be done. */
static double worth(const struct efront *f, int point, const struct eworth *w)
{
    double fall;

    if (point < 0)
        return 0;
    fall = f->start - f->point[point].high;
    return fall < w->min_gain * f->start
               ? -1
               : fall * f->unit * w->steps - f->point[point].writes * w->write_us;
}

struct next {
    int point; /* -1: none */
    double rate;
};

/* The step on from where a layer is that saves most for its writes, of at most `rest`. */
static struct next step_on(const struct efront *f, const struct eworth *w, int rest)
{
    struct next best = {.point = -1};
    double here = worth(f, f->taken, w);
    int writes = f->taken < 0 ? 0 : f->point[f->taken].writes;

    for (int i = f->taken + 1; i < f->n; i++) {
        double more = worth(f, i, w) - here;
        int n = f->point[i].writes - writes;
        /* a point may be had for fewer writes than the one before it was */
        double rate = more / (n > 0 ? n : 0.5);
        if (n <= rest && more > 1e-9 * f->unit * w->steps && rate > best.rate)
            best = (struct next){i, rate};
    }
    return best;
}

void efront_share_out(struct efront *f, int n_layer, const struct eworth *w, int most)
{
    struct next *next = xcalloc((size_t)n_layer, sizeof(*next));

    for (int l = 0; l < n_layer; l++) {
        f[l].taken = -1;
        next[l] = step_on(&f[l], w, most);
    }
    for (;;) {
        int best = -1;
        for (int l = 0; l < n_layer; l++) {
            const struct efront *k = &f[l];
            int had = k->taken < 0 ? 0 : k->point[k->taken].writes;
            if (next[l].point >= 0 && k->point[next[l].point].writes - had > most)
                next[l] = step_on(k, w, most);
            if (next[l].point >= 0 && (best < 0 || next[l].rate > next[best].rate))
                best = l;
        }
        if (best < 0)
            break;
        struct efront *k = &f[best];
        most -= k->point[next[best].point].writes -
                (k->taken < 0 ? 0 : k->point[k->taken].writes);
        k->taken = next[best].point;
        next[best] = step_on(k, w, most);
    }
    free(next);
}

/* topo/expertplan_search.c - the moves that even out one layer.
 *
 * Looks at the heaviest devices in turn and at all that would lighten one: swap one of
 * its slots with a slot elsewhere (an empty one too), or give a slot elsewhere to one of
 * its experts, or its own slot to another expert, where the expert that gives way has
 * other copies. The objective, sum (L_g / mean)^8, is that of the whole layer: near the
 * maximum, but with a slope where several devices are equally heavy. */
#include "topo/expertplan_impl.h"

#include <math.h>
#include <stdlib.h>

enum { LOOK_AT = 3 /* heaviest devices that are tried before giving up */ };

struct step {
    int g, s, h, t; /* swap slot s of g with slot t of h; g < 0: slot t of h */
    int expert;     /* ... becomes this expert's */
    double rank;    /* the fall of the objective, by write where frugal */
};

static double phi(double x)
{
    x *= x;
    x *= x;
    return x * x;
}

static int fresh(const struct elayer *y, int expert, int device)
{
    return !y->had[(size_t)expert * y->a->n_device + device];
}

/* Does the step keep to the bounds of writes? ret: how many it adds. */
static bool within(const struct elayer *y, const struct esearch *b, int device, int in,
                   int out, int other, int *ret)
{
    if (b->at_home && y->a->host &&
        (other < 0 || y->a->host[device] != y->a->host[other]))
        return false;
    int here = (in >= 0 && fresh(y, in, device)) - (out >= 0 && fresh(y, out, device));
    int there =
        other < 0 ? 0
                  : (out >= 0 && fresh(y, out, other)) - (in >= 0 && fresh(y, in, other));

    *ret = here + there;
    if (b->max_writes && *ret > 0 && y->writes + *ret > b->max_writes)
        return false;
    return !b->per_device || ((here <= 0 || y->wrote[device] + here <= b->per_device) &&
                              (there <= 0 || y->wrote[other] + there <= b->per_device));
}

static void offer(struct step *best, const struct esearch *b, struct step s, double fall,
                  int writes)
{
    s.rank = b->frugal ? fall / (writes > 0 ? writes : 0.5) : fall;
    if (fall > 1e-9 && s.rank > best->rank)
        *best = s;
}

/* Slots of g with slots elsewhere. */
static void look_swaps(struct elayer *y, const struct esearch *b, int g,
                       struct step *best)
{
    int n = y->a->n_slot, writes;

    for (int h = 0; h < y->a->n_device; h++) {
        if (h == g || !y->cap[h] || y->load[h] >= y->load[g])
            continue;
        double before = phi(y->load[g]) + phi(y->load[h]);
        int empty = elayer_empty(y, h);
        for (int s = 0; s < n; s++) {
            int e = y->slot[g * n + s];
            if (e < 0 || elayer_has(y, e, h))
                continue;
            double per = elayer_per(y, e);
            for (int t = 0; t < n; t++) {
                int f = y->slot[h * n + t];
                if (f < 0 ? t != empty : elayer_has(y, f, g))
                    continue;
                double d = per - (f < 0 ? 0 : elayer_per(y, f));
                y->work++;
                if (d <= 0 || y->load[h] + d >= y->load[g] ||
                    !within(y, b, h, e, f, g, &writes))
                    continue;
                offer(best, b, (struct step){.g = g, .s = s, .h = h, .t = t},
                      before - phi(y->load[g] - d) - phi(y->load[h] + d), writes);
            }
        }
    }
}

static void touch(struct elayer *y, int *n, int device, double d)
{
    if (y->delta[device] == 0)
        y->touched[(*n)++] = device;
    y->delta[device] += d;
    if (y->delta[device] == 0)
        y->delta[device] = 1e-300; /* touched all the same */
}

/* The fall of the objective where slot t of h goes to expert e. */
static double fall_of_gift(struct elayer *y, int h, int t, int e)
{
    int f = y->slot[h * y->a->n_slot + t], d = y->a->n_device, n = 0, c = y->copies[e];
    const int16_t *held = y->holder + (size_t)e * d;
    double fall = 0, down = y->w[e] / c - y->w[e] / (c + 1);

    y->work++;
    for (int i = 0; i < c; i++)
        touch(y, &n, held[i], -down);
    touch(y, &n, h, y->w[e] / (c + 1));
    if (f >= 0) {
        held = y->holder + (size_t)f * d;
        c = y->copies[f];
        double up = y->w[f] / (c - 1) - y->w[f] / c;
        for (int i = 0; i < c; i++)
            touch(y, &n, held[i], held[i] == h ? -y->w[f] / c : up);
    }
    for (int i = 0; i < n; i++) {
        int g = y->touched[i];
        fall += phi(y->load[g]) - phi(y->load[g] + y->delta[g]);
        y->delta[g] = 0;
    }
    return fall;
}

/* Slots elsewhere to the experts of g. */
static void look_gifts(struct elayer *y, const struct esearch *b, int g,
                       struct step *best)
{
    int n = y->a->n_slot, writes;

    for (int s = 0; s < n; s++) {
        int e = y->slot[g * n + s];
        if (e < 0 || y->copies[e] >= y->n_use)
            continue;
        double per = y->w[e] / (y->copies[e] + 1);
        for (int h = 0; h < y->a->n_device; h++) {
            if (!y->cap[h] || elayer_has(y, e, h))
                continue;
            int empty = elayer_empty(y, h);
            for (int t = 0; t < n; t++) {
                int f = y->slot[h * n + t];
                if (f < 0 ? t != empty : y->copies[f] < 2)
                    continue;
                if (y->load[h] + per - (f < 0 ? 0 : elayer_per(y, f)) >= y->load[g] ||
                    (f >= 0 && y->w[f] / (y->copies[f] - 1) >= y->load[g]) ||
                    !within(y, b, h, e, f, -1, &writes))
                    continue;
                offer(best, b, (struct step){.g = -1, .h = h, .t = t, .expert = e},
                      fall_of_gift(y, h, t, e), writes);
            }
        }
    }
}

/* Slots of g, of experts that have other copies, to other experts. */
static void look_yields(struct elayer *y, const struct esearch *b, int g,
                        struct step *best)
{
    int n = y->a->n_slot, writes;

    for (int s = 0; s < n; s++) {
        int f = y->slot[g * n + s];
        if (f < 0 || y->copies[f] < 2)
            continue;
        double per = elayer_per(y, f);
        for (int e = 0; e < y->a->n_expert; e++) {
            if (y->w[e] / (y->copies[e] + 1) >= per || y->copies[e] >= y->n_use ||
                elayer_has(y, e, g) || !within(y, b, g, e, f, -1, &writes))
                continue;
            offer(best, b, (struct step){.g = -1, .h = g, .t = s, .expert = e},
                  fall_of_gift(y, g, s, e), writes);
        }
    }
}

static void carry_out(struct elayer *y, const struct step *s)
{
    int n = y->a->n_slot, f = y->slot[s->h * n + s->t];

    if (f >= 0)
        elayer_drop(y, s->h, s->t);
    if (s->g < 0) {
        elayer_put(y, s->h, s->t, s->expert);
        return;
    }
    int e = y->slot[s->g * n + s->s];
    elayer_drop(y, s->g, s->s);
    elayer_put(y, s->h, s->t, e);
    if (f >= 0)
        elayer_put(y, s->g, s->s, f);
}

/* The heaviest device lighter than device last (-1: of all); -1. Ties by number. */
static int next_heavy(const struct elayer *y, int last)
{
    int best = -1;

    for (int g = 0; g < y->a->n_device; g++) {
        if (!y->cap[g] || (last >= 0 && (y->load[g] > y->load[last] ||
                                         (y->load[g] == y->load[last] && g <= last))))
            continue;
        if (best < 0 || y->load[g] > y->load[best])
            best = g;
    }
    return best;
}

int elayer_search(struct elayer *y, const struct esearch *b)
{
    int done = 0;

    while ((!b->max_steps || done < b->max_steps) &&
           (!b->max_work || y->work < b->max_work)) {
        struct step best = {.rank = 0};
        int g = -1;
        for (int i = 0; i < LOOK_AT && best.rank <= 0; i++) {
            g = next_heavy(y, g);
            if (g < 0 || y->load[g] <= 1)
                break;
            look_swaps(y, b, g, &best);
            look_gifts(y, b, g, &best);
            look_yields(y, b, g, &best);
        }
        if (best.rank <= 0)
            break;
        carry_out(y, &best);
        done++;
        if (b->each && !b->each(b->arg, y))
            break;
    }
    return done;
}

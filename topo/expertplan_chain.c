/* topo/expertplan_chain.c - small layers: what a few writes can do together.
 *
 * With few slots to spare no single move may help: a copy has to leave for another place
 * before its slot can be had. Maps are tried level by level, a level being how many slots
 * were written: from each of the best maps of a level all that give a slot to another
 * expert, and where the last copy of an expert stood there, in one go with a new place
 * for it, in an empty slot or that of an expert with other copies (so that a swap is one
 * of these too). Only what touches a heaviest device is looked at: a slot of it, or a
 * copy more of one of its experts. Maps are ranked by sum (L_g / mean)^8 with shares
 * that are all but the best. */
#include "topo/expertplan_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    SLOTS = 40,  /* in layers larger than that nothing is done here */
    LEVELS = 6,  /* writes together */
    WIDTH = 6,   /* maps of a level that are gone on from */
    KEPT = 24,   /* that are remembered of it */
    WORK = 1000, /* maps ranked in a layer, in all */
    ROUNDS = 6   /* of pouring, to rank one */
};
static const double EVEN = 1.0005; /* as good as even */
static const double AS_HEAVY = 0.999;

struct node {
    int16_t slot[SLOTS];
    double rank;
    uint64_t hash;
};

struct chain {
    struct elayer *y;
    const struct esearch *s;
    int slots, first, most; /* most: writes beyond those that had to be */
    struct node level[LEVELS + 1][KEPT];
    int n[LEVELS + 1];
    int work;
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Of which experts stand on which device, in whatever slots. */
static uint64_t hash_of(const struct elayer *y, int slots)
{
    uint64_t h = 0;

    for (int i = 0; i < slots; i++)
        if (y->slot[i] >= 0)
            h += mix(((uint64_t)(i / y->a->n_slot + 1) << 16) + (uint64_t)y->slot[i] + 1);
    return h;
}

static double rank_of(const struct elayer *y, double *load)
{
    double sum = 0;

    expertplan_pour(y->a, y->layer, y->slot, ROUNDS, load);
    for (int g = 0; g < y->a->n_device; g++) {
        double x = load[g] * y->scale;
        x += (y->load[g] - x) * EXPERTPLAN_EQUAL;
        x *= x;
        x *= x;
        sum += x * x;
    }
    return sum;
}

/* The layer as it is now, into its level: the worst there gives way. */
static void offer(struct chain *c)
{
    const struct elayer *y = c->y;
    int w = y->writes - c->first, at = 0;
    double load[EXPERTPLAN_MAX_DEVICES];
    struct node *level;

    if (w < 0 || w > c->most)
        return;
    for (int g = 0; c->s->per_device && g < y->a->n_device; g++)
        if (y->wrote[g] > c->s->per_device)
            return;
    level = c->level[w];
    struct node v = {.hash = hash_of(y, c->slots)};
    for (int i = 0; i < c->n[w]; i++)
        if (level[i].hash == v.hash)
            return;
    c->work++;
    v.rank = rank_of(y, load);
    if (c->n[w] == KEPT && v.rank >= level[KEPT - 1].rank)
        return;
    memcpy(v.slot, y->slot, (size_t)c->slots * sizeof(*v.slot));
    for (at = c->n[w] < KEPT ? c->n[w]++ : KEPT - 1; at > 0; at--) {
        if (level[at - 1].rank <= v.rank)
            break;
        level[at] = level[at - 1];
    }
    level[at] = v;
}

static void set(struct elayer *y, int slot, int expert)
{
    int n = y->a->n_slot;

    if (y->slot[slot] >= 0)
        elayer_drop(y, slot / n, slot % n);
    if (expert >= 0)
        elayer_put(y, slot / n, slot % n, expert);
}

static void become(struct elayer *y, int slots, const int16_t *map)
{
    for (int i = 0; i < slots; i++)
        if (y->slot[i] != map[i])
            set(y, i, -1);
    for (int i = 0; i < slots; i++)
        if (y->slot[i] != map[i])
            set(y, i, map[i]);
}

static bool may_take(const struct elayer *y, int slot, int expert)
{
    int device = slot / y->a->n_slot;

    return y->cap[device] && !elayer_has(y, expert, device) &&
           (y->slot[slot] >= 0 || elayer_empty(y, device) == slot % y->a->n_slot);
}

/* Slot i goes to expert e; where that takes an expert's last copy, that one finds a place
 * anywhere. The layer is as before afterwards. */
static void try_one(struct chain *c, int i, int e)
{
    struct elayer *y = c->y;
    int f = y->slot[i];

    set(y, i, e);
    if (f < 0 || y->copies[f] > 0)
        offer(c);
    else
        for (int u = 0; u < c->slots && y->writes - c->first <= c->most; u++) {
            int x = y->slot[u];
            if (u == i || !may_take(y, u, f) || (x >= 0 && y->copies[x] < 2))
                continue;
            set(y, u, f);
            offer(c);
            set(y, u, x);
        }
    set(y, i, f);
}

/* All that may come of one map. */
static void go_on(struct chain *c, const struct node *from)
{
    struct elayer *y = c->y;
    int n = y->a->n_slot, d = y->a->n_device;
    double load[EXPERTPLAN_MAX_DEVICES], high = 0;
    bool heavy[SLOTS]; /* devices */

    become(y, c->slots, from->slot);
    rank_of(y, load);
    for (int g = 0; g < d; g++)
        high = fmax(high, load[g]);
    for (int g = 0; g < d; g++)
        heavy[g] = load[g] >= high * AS_HEAVY;
    for (int e = 0; e < y->a->n_expert; e++) {
        bool of_heavy = false;
        for (int k = 0; k < y->copies[e]; k++)
            of_heavy |= heavy[y->holder[(size_t)e * d + k]];
        for (int i = 0; i < c->slots && c->work < WORK; i++)
            if (of_heavy != heavy[i / n] && may_take(y, i, e))
                try_one(c, i, e);
    }
}

/* The best of a level by best shares; how heavy. */
static double best_of(struct chain *c, int w, struct efront *f)
{
    double best = INFINITY;

    for (int i = 0; i < c->n[w] && i < WIDTH; i++) {
        become(c->y, c->slots, c->level[w][i].slot);
        double high = elayer_high(c->y);
        efront_add(f, c->y, high);
        best = fmin(best, high);
    }
    return best;
}

void elayer_chains(struct elayer *y, const struct esearch *s, struct efront *f)
{
    int slots = y->a->n_device * y->a->n_slot;
    int most = s->max_writes ? s->max_writes - f->first : LEVELS;

    if (slots > SLOTS || y->idle || f->start <= EVEN)
        return;
    struct chain *c = xcalloc(1, sizeof(*c));
    *c = (struct chain){.y = y, .s = s, .slots = slots, .first = f->first};
    c->most = most < LEVELS ? most : LEVELS;
    become(y, slots, f->base);
    offer(c);
    for (int w = 0; w <= c->most; w++) {
        if (best_of(c, w, f) <= EVEN)
            break;
        /* what came into this level meanwhile is as good as what was there */
        for (int i = 0; i < c->n[w] && i < WIDTH; i++) {
            struct node from = c->level[w][i];
            go_on(c, &from);
        }
    }
    free(c);
}

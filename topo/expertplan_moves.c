/* topo/expertplan_moves.c - from the map as it is: what to move, and whether it pays.
 *
 * Each layer is searched from its present map, one move after the other, and small ones
 * by several writes together (expertplan_chain.c); the best maps by their writes are kept
 * (expertplan_front.c). Layers then share the budget, write by write, as long as what is
 * saved until the loads change again is more than the writes cost. Moves are read off the
 * two maps, so a slot is written once however often the search changed it. */
#include "topo/expertplan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/expertplan_impl.h"

enum { WORK = 1000000 /* moves looked at in a layer, in all */ };

static void moves_init(const struct expert_ask *a, struct expert_moves *m)
{
    size_t slots = (size_t)a->n_layer * a->n_device * a->n_slot;

    *m = (struct expert_moves){.move = NULL};
    m->map = xcalloc(slots, sizeof(*m->map));
}

void expertplan_moves_done(struct expert_moves *m)
{
    free(m->move);
    free(m->map);
    *m = (struct expert_moves){.move = NULL};
}

static bool stands(const struct expert_ask *a, const int16_t *map, int device, int expert)
{
    for (int s = 0; s < a->n_slot; s++)
        if (map[device * a->n_slot + s] == expert)
            return true;
    return false;
}

/* The wanted map with each expert that stays on its device in the slot that it has, those
 * that are new there in slots that are given up. */
static void settle(const struct expert_ask *a, const int16_t *now, const int16_t *want,
                   int16_t *ret)
{
    for (int g = 0; g < a->n_device; g++) {
        const int16_t *was = now + g * a->n_slot, *will = want + g * a->n_slot;
        int16_t *to = ret + g * a->n_slot;
        int t = 0, cap = a->slots ? a->slots[g] : a->n_slot;
        for (int s = 0; s < a->n_slot; s++)
            to[s] = was[s] >= 0 && stands(a, want, g, was[s]) ? was[s] : -1;
        for (int s = 0; s < a->n_slot; s++) {
            if (will[s] < 0 || stands(a, now, g, will[s]))
                continue;
            for (t = 0; t < a->n_slot && (to[t] >= 0 || was[t] >= 0); t++)
                ; /* an empty slot, unless the device's limit says: in place of another */
            int held = 0;
            for (int i = 0; i < a->n_slot; i++)
                held += was[i] >= 0 || to[i] >= 0;
            if (t == a->n_slot || held >= cap)
                for (t = 0; t < a->n_slot - 1 && (to[t] >= 0 || was[t] < 0); t++)
                    ;
            to[t] = will[s];
        }
    }
}

/* The changes of one layer as moves without groups; *ret has room for every slot. */
static int read_off(const struct expert_ask *a, int layer, const int16_t *now,
                    const int16_t *then, struct expert_move *ret)
{
    int n = 0, slots = a->n_device * a->n_slot;
    uint8_t *left = xcalloc((size_t)slots, 1); /* copies that go, not yet accounted */

    for (int i = 0; i < slots; i++)
        left[i] = now[i] >= 0 && now[i] != then[i];
    for (int i = 0; i < slots; i++) {
        if (now[i] == then[i])
            continue;
        struct expert_move m = {.layer = layer,
                                .kind = then[i] < 0 ? EXPERT_RETIRE : EXPERT_ADD,
                                .expert = then[i] < 0 ? now[i] : then[i],
                                .device = i / a->n_slot,
                                .slot = i % a->n_slot,
                                .was = now[i],
                                .from = -1,
                                .from_slot = -1,
                                .bytes = then[i] < 0 ? 0 : a->expert_bytes};
        for (int j = 0; then[i] >= 0 && j < slots; j++)
            if (left[j] && now[j] == then[i]) {
                m.kind = EXPERT_MOVE;
                m.from = j / a->n_slot;
                m.from_slot = j % a->n_slot;
                left[j] = 0;
                break;
            }
        ret[n++] = m;
    }
    free(left);
    return n;
}

struct grouping {
    const struct expert_ask *a;
    int16_t *map; /* as it is after the groups so far */
    int *copies;  /* in it, on usable devices */
    int *out_of;  /* group of each move, -1 = none yet */
    struct expert_move *m;
    int n;
};

/* May move i be done alone? Its slot's expert must have another copy in use. */
static bool alone(const struct grouping *k, int i)
{
    const struct expert_move *m = &k->m[i];
    bool out = k->a->out && k->a->out[m->device];

    return m->was < 0 || out || k->copies[m->was] > 1;
}

static void apply(struct grouping *k, int i, int group)
{
    const struct expert_move *m = &k->m[i];
    int to = m->kind == EXPERT_RETIRE ? -1 : m->expert;
    bool out = k->a->out && k->a->out[m->device];

    if (m->was >= 0 && !out)
        k->copies[m->was]--;
    if (to >= 0 && !out)
        k->copies[to]++;
    k->map[m->device * k->a->n_slot + m->slot] = (int16_t)to;
    k->out_of[i] = group;
}

/* A group of moves that only hold together: move i and those that bring back what others
 * of the group take away. */
static void together(struct grouping *k, int i, int group)
{
    apply(k, i, group);
    for (bool more = true; more;) {
        more = false;
        for (int x = 0; x < k->n; x++) {
            const struct expert_move *m = &k->m[x];
            if (k->out_of[x] >= 0 || m->kind == EXPERT_RETIRE || k->copies[m->expert] > 0)
                continue;
            apply(k, x, group);
            more = true;
        }
    }
}

static int by_group(const void *x, const void *y)
{
    const struct expert_move *a = x, *b = y;

    if (a->group != b->group)
        return a->group - b->group;
    return a->device != b->device ? a->device - b->device : a->slot - b->slot;
}

/* Numbers the groups of one layer's moves from *group on, and sorts by them. What can be
 * done alone goes first, writes before what empties a slot. */
static void make_groups(const struct expert_ask *a, const int16_t *now,
                        struct expert_move *m, int n, int *group)
{
    int slots = a->n_device * a->n_slot;
    struct grouping k = {.a = a, .m = m, .n = n};

    k.map = xcalloc((size_t)slots, sizeof(*k.map));
    k.copies = xcalloc((size_t)a->n_expert, sizeof(*k.copies));
    k.out_of = xcalloc((size_t)n + 1, sizeof(*k.out_of));
    memcpy(k.map, now, (size_t)slots * sizeof(*now));
    for (int i = 0; i < slots; i++)
        if (now[i] >= 0 && !(a->out && a->out[i / a->n_slot]))
            k.copies[now[i]]++;
    for (int i = 0; i < n; i++)
        k.out_of[i] = -1;
    for (int done = 0; done < n;) {
        int pick = -1, best = 9;
        for (int i = 0; i < n; i++) {
            if (k.out_of[i] >= 0)
                continue;
            int rank = (alone(&k, i) ? 0 : 4) + (m[i].kind == EXPERT_RETIRE ? 2 : 0) +
                       (m[i].was >= 0);
            if (rank < best)
                best = rank, pick = i;
        }
        if (best < 4)
            apply(&k, pick, (*group)++);
        else
            together(&k, pick, (*group)++);
        for (done = 0; done < n && k.out_of[done] >= 0; done++)
            ;
    }
    for (int i = 0; i < n; i++)
        m[i].group = k.out_of[i];
    qsort(m, (size_t)n, sizeof(*m), by_group);
    free(k.map);
    free(k.copies);
    free(k.out_of);
}

/* One layer's changes behind what m has. gain: of its heaviest device's load. */
static void add_layer(const struct expert_ask *a, int layer, const int16_t *now,
                      const int16_t *want, double gain, struct expert_moves *m)
{
    size_t slots = (size_t)a->n_device * a->n_slot;
    int16_t *then = m->map + (size_t)layer * slots;
    int n, writes = 0;

    settle(a, now, want, then);
    m->move = xrealloc(m->move, ((size_t)m->n + slots) * sizeof(*m->move));
    n = read_off(a, layer, now, then, m->move + m->n);
    make_groups(a, now, m->move + m->n, n, &m->n_group);
    for (int i = m->n; i < m->n + n; i++)
        writes += m->move[i].kind != EXPERT_RETIRE;
    for (int i = m->n; i < m->n + n; i++) {
        m->bytes += m->move[i].bytes;
        m->move[i].gain = writes && m->move[i].kind != EXPERT_RETIRE ? gain / writes : 0;
    }
    m->n += n;
}

static bool note(void *arg, const struct elayer *y)
{
    efront_add(arg, y, elayer_high(y));
    return true;
}

/* Searches one layer; max_writes: beyond those that must be, 0 = any, -1 = none. */
static int try_layer(struct elayer *y, const struct expert_budget *b, int layer,
                     const int16_t *now, int max_writes, struct efront *ret)
{
    struct esearch s = {.per_device = b->per_device,
                        .frugal = true,
                        .max_work = WORK,
                        .each = note,
                        .arg = ret};

    elayer_load(y, layer, now);
    y->work = 0;
    if (elayer_mend(y) < 0)
        return -1;
    efront_init(ret, y);
    ret->unit = b->us_per_load / y->scale;
    s.max_writes = max_writes ? y->writes + max_writes : 0;
    if (y->idle || max_writes < 0)
        return 0;
    elayer_search(y, &s);
    elayer_chains(y, &s, ret);
    return 0;
}

/* Writes that the budget has left: 0 = any, -1 = none. */
static int left(const struct expert_ask *a, const struct expert_budget *b, int written)
{
    int64_t most = b->max_moves ? b->max_moves : INT32_MAX;

    if (b->max_bytes && a->expert_bytes > 0 && b->max_bytes / a->expert_bytes < most)
        most = b->max_bytes / a->expert_bytes;
    if (!b->max_moves && !b->max_bytes)
        return 0;
    return most > written ? (int)(most - written) : -1;
}

int expertplan_step(const struct expert_ask *a, const int16_t *now,
                    const struct expert_budget *b, struct expert_moves *ret,
                    struct err *e)
{
    size_t slots = (size_t)a->n_device * a->n_slot;

    if (expertplan_ask_check(a, e) < 0)
        return -1;
    struct elayer *y = elayer_new(a);
    struct efront *f = xcalloc((size_t)a->n_layer, sizeof(*f));
    struct eworth worth = {.steps = b->steps, .min_gain = b->min_gain};
    int16_t *want = xcalloc(slots, sizeof(*want));
    int written = 0, rest, rc = 0;

    if (b->copy_Bps > 0)
        worth.write_us = 1e6 * (double)a->expert_bytes / b->copy_Bps + b->risk_us;
    for (int l = 0; l < a->n_layer && rc == 0; l++) {
        rc = try_layer(y, b, l, now + l * slots, left(a, b, 0), &f[l]);
        written += f[l].first;
    }
    if (rc < 0) {
        rc = err_set(e, ERR_NOFIT,
                     "expert plan: an expert has no copy in use and no slot is left");
        goto out;
    }
    rest = left(a, b, written);
    efront_share_out(f, a->n_layer, &worth, rest ? (rest > 0 ? rest : 0) : INT32_MAX);
    moves_init(a, ret);
    for (int l = 0; l < a->n_layer; l++) {
        double before;
        elayer_load(y, l, now + l * slots);
        elayer_mend(y);
        before = elayer_max(y);
        efront_map(&f[l], f[l].taken, (int)slots, want);
        elayer_load(y, l, want);
        add_layer(a, l, now + l * slots, want,
                  y->idle ? 0 : (before - elayer_max(y)) / y->scale, ret);
    }
out:
    for (int l = 0; l < a->n_layer; l++)
        efront_done(&f[l]);
    free(want);
    free(f);
    elayer_free(y);
    return rc;
}

int expertplan_diff(const struct expert_ask *a, const int16_t *now, const int16_t *then,
                    struct expert_moves *ret, struct err *e)
{
    size_t slots = (size_t)a->n_device * a->n_slot;
    int use = 0;

    if (expertplan_check(a, then, e) < 0)
        return -1;
    moves_init(a, ret);
    for (int g = 0; g < a->n_device; g++)
        use += !(a->out && a->out[g]);
    for (int l = 0; l < a->n_layer; l++) {
        double before = expertplan_balance(a, l, now + l * slots, NULL, NULL);
        double after = expertplan_balance(a, l, then + l * slots, NULL, NULL);
        double mean = 0;
        for (int i = 0; i < a->n_expert; i++)
            mean += a->load[(size_t)l * a->n_expert + i] / use;
        add_layer(a, l, now + l * slots, then + l * slots, mean / before - mean / after,
                  ret);
    }
    return 0;
}

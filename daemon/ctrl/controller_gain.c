/* daemon/ctrl/controller_gain.c - what each group of a plan is worth: foreseen, and told
 * by the loads that were counted since.
 *
 * Groups of a layer are done in order, and the map is sound after each. What one is worth
 * is how much lighter the heaviest device of the layer is with the map after it than with
 * the map before it, both with the best shares and under the same loads: those planned
 * by, and later those of the window since the plan was over. So the groups of a layer add
 * up to what the layer's plan is worth, and one that only makes room for the next may be
 * worth nothing. A plan of many groups (PARTS) would hold up its thread: there each has
 * an equal part of what its layer's moves bring, foreseen and told alike. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/ctrl/controller_impl.h"

enum { PARTS = 256 };

static size_t slots_of(const struct controller *c)
{
    return (size_t)c->n_rank * (size_t)c->n_slot;
}

/* What the slot holds after the move. */
static int16_t then(const struct expert_move *m)
{
    return m->kind == EXPERT_RETIRE ? -1 : (int16_t)m->expert;
}

static int group_end(const struct expert_move *m, int n, int at)
{
    int end = at;

    while (end < n && m[end].group == m[at].group)
        end++;
    return end;
}

static void put(const struct controller *c, const struct expert_move *m, int n,
                int16_t *map)
{
    for (int i = 0; i < n; i++)
        map[m[i].device * c->n_slot + m[i].slot] = then(&m[i]);
}

static bool stands(const struct controller *c, const struct expert_move *m, int n,
                   const int16_t *map)
{
    for (int i = 0; i < n; i++)
        if (map[m[i].device * c->n_slot + m[i].slot] != then(&m[i]))
            return false;
    return true;
}

/* A group's gain, in equal parts over its moves that write; or over all. */
static void share_out(struct expert_move *m, int n, double gain)
{
    int writes = 0;

    for (int i = 0; i < n; i++)
        writes += m[i].kind != EXPERT_RETIRE;
    for (int i = 0; i < n; i++)
        m[i].gain = !writes ? gain / n : m[i].kind == EXPERT_RETIRE ? 0 : gain / writes;
}

void controller_foresee(struct controller *c, const struct expert_ask *a, int first,
                        int n, double gain)
{
    struct expert_move *m = c->moves.move + first;
    int layer = m[0].layer, groups = m[n - 1].group - m[0].group + 1;
    size_t bytes = slots_of(c) * sizeof(int16_t);
    int16_t *map = xmalloc(bytes);
    double now;

    memcpy(map, c->map + (size_t)layer * slots_of(c), bytes);
    now = c->moves.n_group > PARTS ? 0 : controller_heaviest(c, a, layer, map);
    for (int i = 0, end; i < n; i = end) {
        double was = now;

        end = group_end(m, n, i);
        if (c->moves.n_group > PARTS) {
            share_out(m + i, end - i, gain / groups);
            continue;
        }
        put(c, m + i, end - i, map);
        now = controller_heaviest(c, a, layer, map);
        share_out(m + i, end - i, was - now);
    }
    free(map);
}

void controller_keep(struct controller *c, int layer)
{
    struct layer_mind *m = &c->layer[layer];
    int first = 0;

    free(m->kept);
    m->kept = NULL;
    m->n_kept = 0;
    while (first < c->moves.n && c->moves.move[first].layer != layer)
        first++;
    while (first + m->n_kept < c->moves.n &&
           c->moves.move[first + m->n_kept].layer == layer)
        m->n_kept++;
    if (!m->n_kept)
        return;
    m->kept = xcalloc((size_t)m->n_kept, sizeof(*m->kept));
    memcpy(m->kept, c->moves.move + first, (size_t)m->n_kept * sizeof(*m->kept));
    m->in_parts = c->moves.n_group > PARTS;
}

static void tell(struct controller *c, const struct controller_gain *g)
{
    if (c->act.n_gain == c->cap_gain) {
        c->cap_gain = c->cap_gain ? 2 * c->cap_gain : 64;
        c->gain = xrealloc(c->gain, (size_t)c->cap_gain * sizeof(*c->gain));
    }
    c->gain[c->act.n_gain++] = *g;
    c->act.gain = c->gain;
}

void controller_told(struct controller *c, const struct expert_ask *a, int layer)
{
    struct layer_mind *m = &c->layer[layer];
    size_t at = (size_t)layer * slots_of(c), bytes = slots_of(c) * sizeof(int16_t);
    int16_t *map = xmalloc(bytes);
    const struct expert_move *k = m->kept;
    int done = 0;
    double first, all, now;

    memcpy(map, c->before + at, bytes);
    now = first = controller_heaviest(c, a, layer, map);
    all = first - controller_heaviest(c, a, layer, c->map + at);
    if (m->whole)
        c->outcome[c->act.n_outcome++] =
            (struct controller_outcome){m->watch, layer, m->foreseen, all};
    for (int i = 0, end; i < m->n_kept; i = end) {
        end = group_end(k, m->n_kept, i);
        done += stands(c, k + i, end - i, c->map + at);
    }
    for (int i = 0, end; i < m->n_kept; i = end) {
        struct controller_gain g = {
            .plan = m->watch, .group = k[i].group, .layer = layer};
        double was = now;

        end = group_end(k, m->n_kept, i);
        if (!stands(c, k + i, end - i, c->map + at))
            continue;
        for (int j = i; j < end; j++)
            g.predicted_us += k[j].gain;
        put(c, k + i, end - i, map);
        now = m->in_parts ? now : controller_heaviest(c, a, layer, map);
        g.realised_us = m->in_parts ? all / done : was - now;
        tell(c, &g);
    }
    m->watch = 0;
    free(map);
}

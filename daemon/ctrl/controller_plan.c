/* daemon/ctrl/controller_plan.c - plans for the layers that are to be planned, what they
 * are worth, and what came of them.
 *
 * What a plan is worth is foreseen with the best shares on either map, and told by the
 * same on the loads that were counted since. */
#include "daemon/ctrl/controller_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/routes.h"
#include "topo/eplb.h"

enum { CRAWL = 256 /* steps for an expert where there is no slack */ };

static size_t slots_of(const struct controller *c)
{
    return (size_t)c->n_rank * (size_t)c->n_slot;
}

struct expert_ask controller_ask(const struct controller *c,
                                 const struct controller_devices *d, const double *load)
{
    return (struct expert_ask){.n_layer = c->n_layer,
                               .n_expert = c->n_expert,
                               .n_device = c->n_rank,
                               .n_slot = c->n_slot,
                               .load = load,
                               .slots = d->slots,
                               .out = d->out,
                               .host = d->host,
                               .with = d->with,
                               .affinity = d->affinity,
                               .expert_bytes = d->expert_bytes};
}

void controller_clear(struct controller *c)
{
    expertplan_moves_done(&c->moves);
    c->act = (struct controller_actions){.share = c->share,
                                         .layer = c->said,
                                         .outcome = c->outcome,
                                         .apart_before = NAN,
                                         .apart_after = NAN};
}

double controller_heaviest(const struct controller *c, const struct expert_ask *a,
                           int layer, const int16_t *map)
{
    float *share = xcalloc(slots_of(c), sizeof(*share));
    double high = expertplan_shares(a, layer, map, share);

    free(share);
    return high;
}

static double mean_load(const struct controller *c, const struct expert_ask *a, int layer)
{
    double sum = 0;
    int use = 0;

    for (int i = 0; i < c->n_expert; i++)
        sum += a->load[(size_t)layer * c->n_expert + i];
    for (int g = 0; g < c->n_rank; g++)
        use += !(a->out && a->out[g]);
    return sum / (use ? use : 1);
}

static int writes_of(const struct expert_moves *m, int layer)
{
    int n = 0;

    for (int i = 0; i < m->n; i++)
        n += m->move[i].layer == layer && m->move[i].kind != EXPERT_RETIRE;
    return n;
}

static double cost_us(const struct expert_ask *a, const struct controller_limits *l,
                      int writes)
{
    double copy = l->copy_Bps > 0 ? 1e6 * (double)a->expert_bytes / l->copy_Bps : 0;

    return writes * (copy + l->risk_us);
}

/* Takes a layer's moves out of the plan. */
static void forget(struct expert_moves *m, int layer)
{
    int n = 0, group = -1, last = -1;

    m->bytes = 0;
    for (int i = 0; i < m->n; i++) {
        if (m->move[i].layer == layer)
            continue;
        struct expert_move v = m->move[i];
        if (v.group != last)
            last = v.group, group++;
        v.group = group;
        m->bytes += v.bytes;
        m->move[n++] = v;
    }
    m->n = n;
    m->n_group = group + 1;
}

/* Those of the plan's layers that do not pay with the best shares are left out. */
static void weigh(struct controller *c, const struct expert_ask *a,
                  const struct controller_limits *l, const bool *must)
{
    for (int i = 0; i < c->n_layer; i++) {
        int writes = writes_of(&c->moves, i);
        const int16_t *now = c->map + i * slots_of(c);
        if (!writes || must[i])
            continue;
        double before = controller_heaviest(c, a, i, now);
        double fall =
            before - controller_heaviest(c, a, i, c->moves.map + i * slots_of(c));
        double steps = c->step_us > 0 ? controller_horizon_us(c, i, l) / c->step_us : 0;
        if (fall < l->min_gain * before || fall * steps <= cost_us(a, l, writes))
            forget(&c->moves, i);
    }
}

int64_t controller_pace(const struct controller_limits *l, int64_t expert_bytes)
{
    double slack = l->slack_us > 0 ? l->slack_us * l->slack_share * l->copy_Bps / 1e6 : 0;
    int64_t least = expert_bytes / CRAWL + 1;

    return slack > (double)least ? slack < 9e18 ? (int64_t)slack : INT64_MAX : least;
}

/* What the plan in c->moves is, layer by layer, into the answer. */
void controller_say(struct controller *c, const struct expert_ask *a,
                    const struct controller_limits *l)
{
    struct controller_actions *act = &c->act;

    act->move = c->moves.move;
    act->n_move = c->moves.n;
    act->n_group = c->moves.n_group;
    act->bytes = c->moves.bytes;
    act->bytes_per_step = controller_pace(l, a->expert_bytes);
    for (int i = 0, x = 0; i < c->n_layer; i++) {
        int first = x, writes = writes_of(&c->moves, i);
        while (x < c->moves.n && c->moves.move[x].layer == i)
            x++;
        if (x == first)
            continue;
        double before = controller_heaviest(c, a, i, c->map + i * slots_of(c));
        double after = controller_heaviest(c, a, i, c->moves.map + i * slots_of(c));
        double mean = mean_load(c, a, i);
        c->said[act->n_layer++] =
            (struct controller_layer){.layer = i,
                                      .before = before > 0 ? mean / before : 1,
                                      .after = after > 0 ? mean / after : 1,
                                      .gain_us = before - after,
                                      .cost_us = cost_us(a, l, writes)};
        controller_foresee(c, a, first, x - first, before - after);
    }
}

/* Bytes that a plan may have: the limit, and what fits in a step's slack until the
 * deadline. 0 = any, -1 = none. */
static int64_t most_bytes(const struct controller *c, const struct controller_limits *l)
{
    double slack = l->slack_us * l->slack_share * l->copy_Bps / 1e6;
    double fits = slack * (c->step_us > 0 ? (double)l->deadline_us / c->step_us : 0);
    int64_t most = l->max_bytes;

    if (!(l->slack_us > 0))
        return -1;
    if (l->copy_Bps > 0 && l->deadline_us > 0 && (!most || fits < (double)most))
        most = fits < 9e18 ? (int64_t)fits : INT64_MAX;
    return most > 0 ? most : l->copy_Bps > 0 ? -1 : 0;
}

int controller_plan(struct controller *c, const struct controller_devices *d,
                    const struct controller_limits *l, const bool *which,
                    const bool *must, struct err *e)
{
    size_t n = (size_t)c->n_expert;
    double horizon = 0;
    int64_t bytes = most_bytes(c, l);
    struct expert_ask a = controller_ask(c, d, c->plan);
    struct expert_budget b = {.max_moves = l->max_moves,
                              .max_bytes = bytes > 0 ? bytes : bytes < 0,
                              .per_device = l->per_device,
                              .min_gain = l->min_gain,
                              .us_per_load = 1,
                              .copy_Bps = l->copy_Bps,
                              .risk_us = l->risk_us};

    memset(c->plan, 0, (size_t)c->n_layer * n * sizeof(*c->plan));
    for (int i = 0; i < c->n_layer; i++) {
        const double *load;
        controller_known(c, i, l, &load);
        if (!which[i] && !must[i])
            continue;
        memcpy(c->plan + i * n, load, n * sizeof(*load));
        horizon = fmax(horizon, controller_horizon_us(c, i, l));
    }
    b.steps = c->step_us > 0 ? horizon / c->step_us : 0;
    if (expertplan_step(&a, c->map, &b, &c->moves, e) < 0)
        return -1;
    weigh(c, &a, l, must);
    controller_say(c, &a, l);
    return 0;
}

void controller_shares(struct controller *c, const struct routes *r,
                       const struct controller_devices *d,
                       const struct controller_limits *l)
{
    size_t slots = slots_of(c);
    struct expert_ask a = controller_ask(c, d, c->quick);

    for (int i = 0; i < c->n_layer; i++) {
        const float *now = r->layer[i].share;
        float *best = c->shares + i * slots;
        bool bad = false; /* a share of a copy that is out */
        if (c->layer[i].in_hand || !(mean_load(c, &a, i) > 0))
            continue;
        for (size_t s = 0; s < slots; s++)
            bad |= d->out && d->out[s / c->n_slot] && now[s] > 0 &&
                   c->map[i * slots + s] >= 0;
        double high = expertplan_shares(&a, i, c->map + i * slots, best);
        double before = expertplan_balance(&a, i, c->map + i * slots, now, NULL);
        double after = mean_load(c, &a, i) / high;
        if (!bad && 1 / before - 1 / after < l->share_gain / before)
            continue;
        c->share[c->act.n_share++] = (struct controller_share){i, best, before, after};
    }
}

void controller_outcomes(struct controller *c, const struct controller_devices *d,
                         const struct controller_limits *l, int64_t now_us)
{
    struct expert_ask a = controller_ask(c, d, c->quick);

    for (int i = 0; i < c->n_layer; i++) {
        struct layer_mind *m = &c->layer[i];
        if (!m->watch || now_us - m->watch_us < l->dwell_us / 2)
            continue;
        controller_told(c, &a, i);
    }
}

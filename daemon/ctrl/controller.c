/* daemon/ctrl/controller.c - when something is done. */
#include "daemon/ctrl/controller.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/controller_impl.h"
#include "daemon/serve/routes.h"
#include "topo/eplb.h"

/* LOOKS: at the copies, in a dwell time. AT_ONCE: experts of the layers of one plan, so
 * that making it does not hold up its thread; the other layers have the next plans. */
enum { LOOKS = 16, AT_ONCE = 2048 };

static size_t map_size(const struct controller *c)
{
    return (size_t)c->n_layer * c->n_rank * c->n_slot;
}

struct controller *controller_new(int n_layer, int n_expert, int n_rank, int n_slot)
{
    struct controller *c = xcalloc(1, sizeof(*c));
    size_t n = (size_t)n_layer * (size_t)n_expert;
    double **means[] = {&c->quick, &c->regime, &c->slow, &c->ref, &c->sample, &c->plan};

    c->n_layer = n_layer;
    c->n_expert = n_expert;
    c->n_rank = n_rank;
    c->n_slot = n_slot;
    for (size_t i = 0; i < sizeof(means) / sizeof(*means); i++)
        *means[i] = xcalloc(n, sizeof(double));
    c->scratch = xcalloc((size_t)n_expert, sizeof(*c->scratch));
    c->rows = xcalloc((size_t)n_layer, sizeof(*c->rows));
    c->layer = xcalloc((size_t)n_layer, sizeof(*c->layer));
    for (int i = 0; i < n_layer; i++)
        c->layer[i].acted_us = INT64_MIN;
    c->map = xcalloc(map_size(c), sizeof(*c->map));
    c->before = xcalloc(map_size(c), sizeof(*c->before));
    c->shares = xcalloc(map_size(c), sizeof(*c->shares));
    c->share = xcalloc((size_t)n_layer, sizeof(*c->share));
    c->said = xcalloc((size_t)n_layer, sizeof(*c->said));
    c->outcome = xcalloc((size_t)n_layer, sizeof(*c->outcome));
    c->hand_to = xcalloc((size_t)n_rank, sizeof(*c->hand_to));
    c->out = xcalloc((size_t)n_rank, sizeof(*c->out));
    c->looked_us = c->shared_us = INT64_MIN;
    controller_clear(c);
    return c;
}

void controller_free(struct controller *c)
{
    if (!c)
        return;
    controller_clear(c);
    free(c->quick);
    free(c->regime);
    free(c->slow);
    free(c->ref);
    free(c->sample);
    free(c->plan);
    free(c->scratch);
    free(c->rows);
    for (int i = 0; i < c->n_layer; i++)
        free(c->layer[i].kept);
    free(c->layer);
    free(c->map);
    free(c->before);
    free(c->shares);
    free(c->share);
    free(c->said);
    free(c->outcome);
    free(c->hand_to);
    free(c->out);
    free(c->gain);
    free(c);
}

/* The routes as a map; -1 where they are of another shape or name what is not there. */
static int take_routes(struct controller *c, const struct routes *r, struct err *e)
{
    size_t slots = (size_t)c->n_rank * c->n_slot;

    if (r->n_layer != c->n_layer || r->d.n_expert != c->n_expert ||
        r->d.n_rank != c->n_rank || r->d.n_slot != c->n_slot)
        return err_set(e, ERR_INVALID,
                       "controller: routes of %d layers, %d experts, %d ranks of %d "
                       "slots, it was made for %d, %d, %d of %d",
                       r->n_layer, r->d.n_expert, r->d.n_rank, r->d.n_slot, c->n_layer,
                       c->n_expert, c->n_rank, c->n_slot);
    for (int i = 0; i < c->n_layer; i++)
        for (size_t s = 0; s < slots; s++) {
            int x = r->layer[i].expert[s];
            if (x < -1 || x >= c->n_expert)
                return err_set(e, ERR_INVALID,
                               "controller: slot %zu of layer %d names expert %d", s, i,
                               x);
            c->map[i * slots + s] = (int16_t)x;
        }
    return 0;
}

/* Must a layer change? A copy stands on a rank that is out, or an expert nowhere. */
static bool broken(const struct controller *c, const struct controller_devices *d,
                   int layer)
{
    size_t slots = (size_t)c->n_rank * c->n_slot;
    const int16_t *map = c->map + layer * slots;

    for (int i = 0; i < c->n_expert; i++)
        c->scratch[i] = 0;
    for (size_t s = 0; s < slots; s++) {
        if (map[s] < 0)
            continue;
        if (d->out && d->out[s / c->n_slot])
            return true;
        c->scratch[map[s]] = 1;
    }
    for (int i = 0; i < c->n_expert; i++)
        if (c->scratch[i] == 0)
            return true;
    return false;
}

/* A layer's balancedness as planned by, with the best shares. */
static double balance(struct controller *c, const struct controller_devices *d, int layer,
                      const double *load)
{
    size_t slots = (size_t)c->n_rank * c->n_slot;
    struct expert_ask a = controller_ask(c, d, load - (size_t)layer * c->n_expert);
    float *share = c->shares + layer * slots;

    expertplan_shares(&a, layer, c->map + layer * slots, share);
    return expertplan_balance(&a, layer, c->map + layer * slots, share, NULL);
}

/* Layers to plan now, by what is known, hysteresis and dwell time; how many. */
static int choose(struct controller *c, const struct controller_devices *d,
                  const struct controller_limits *l, int64_t now_us, bool *which)
{
    int n = 0;

    for (int i = 0; i < c->n_layer; i++) {
        struct layer_mind *m = &c->layer[i];
        const double *load;
        if (!controller_known(c, i, l, &load))
            continue;
        double b = balance(c, d, i, load);
        m->balance = b;
        m->acting = b < l->enter || (m->acting && b < l->leave);
        which[i] = m->acting &&
                   (m->acted_us == INT64_MIN || now_us - m->acted_us >= l->dwell_us);
        n += which[i];
    }
    return n;
}

/* Leaves so many layers that a plan is made in good time: those that must change, then
 * the least balanced. */
static void few(struct controller *c, bool *which, bool *must)
{
    int most = c->n_expert < AT_ONCE ? AT_ONCE / c->n_expert : 1, n = 0;

    for (int i = 0; i < c->n_layer; i++) {
        must[i] = must[i] && n < most;
        n += must[i];
        which[i] = which[i] && !must[i];
    }
    for (int k = 0; k < c->n_layer; k++) {
        int worst = -1;

        for (int i = 0; i < c->n_layer; i++)
            if (which[i] && !c->layer[i].chosen &&
                (worst < 0 || c->layer[i].balance < c->layer[worst].balance))
                worst = i;
        if (worst < 0)
            break;
        c->layer[worst].chosen = true;
        which[worst] = n++ < most;
    }
    for (int i = 0; i < c->n_layer; i++)
        c->layer[i].chosen = false;
}

static void call_back(struct controller *c, const char *why)
{
    c->act.call_back = c->hand;
    snprintf(c->act.why, sizeof(c->act.why), "plan %llu is called back: %s",
             (unsigned long long)c->hand, why);
}

/* The plan in hand: does it still hold? */
static void look_at_hand(struct controller *c, const struct controller_devices *d,
                         const struct controller_limits *l, int64_t now_us)
{
    char why[80];

    for (int g = 0; d->out && g < c->n_rank; g++)
        if (d->out[g] && c->hand_to[g]) {
            snprintf(why, sizeof(why), "it writes to rank %d, which is out", g);
            call_back(c, why);
            return;
        }
    if (l->frozen)
        call_back(c, "the experts are frozen");
    else if (l->policy != CONTROLLER_AUTO && !c->asked)
        call_back(c, "the policy is not auto any more");
    else if (l->deadline_us > 0 && now_us - c->hand_us >= l->deadline_us)
        call_back(c, "it was not over by its deadline");
}

/* The plan in the answer gets its number and is remembered; carried: as in hand. */
static void take_up(struct controller *c, bool carried, int64_t now_us)
{
    const struct controller_devices seen = {.out = c->out};
    const struct expert_ask a = controller_ask(c, &seen, c->quick);
    size_t slots = (size_t)c->n_rank * c->n_slot;

    if (!c->act.n_move)
        return;
    c->act.plan = ++c->last_plan;
    for (int i = 0; i < c->act.n_layer; i++) {
        struct layer_mind *m = &c->layer[c->said[i].layer];
        m->acted_us = now_us;
        if (!carried)
            continue;
        if (m->watch) /* no later: then the map is another */
            controller_told(c, &a, c->said[i].layer);
        m->in_hand = true;
        controller_keep(c, c->said[i].layer);
        m->predicted = c->said[i].gain_us;
        memcpy(c->before + c->said[i].layer * slots, c->map + c->said[i].layer * slots,
               slots * sizeof(*c->map));
    }
    if (!carried)
        return;
    c->hand = c->act.plan;
    c->hand_us = now_us;
    c->asked = false;
    memset(c->hand_to, 0, (size_t)c->n_rank);
    for (int i = 0; i < c->act.n_move; i++)
        c->hand_to[c->act.move[i].device] |= c->act.move[i].kind != EXPERT_RETIRE;
}

/* Copies: layers that must change at once, others when it is time. */
static int look_at_copies(struct controller *c, const struct controller_devices *d,
                          const struct controller_limits *l, int64_t now_us,
                          struct err *e)
{
    bool *which = xcalloc(2 * (size_t)c->n_layer, sizeof(*which));
    bool *must = which + c->n_layer;
    int urgent = 0, due = 0, rc = 0;

    for (int i = 0; i < c->n_layer; i++) {
        /* advice is not repeated before its time */
        bool said = l->policy == CONTROLLER_ADVISE && c->layer[i].acted_us != INT64_MIN &&
                    now_us - c->layer[i].acted_us < l->dwell_us;
        must[i] = !said && broken(c, d, i);
        urgent += must[i];
    }
    if (c->looked_us == INT64_MIN || now_us - c->looked_us >= l->dwell_us / LOOKS) {
        c->looked_us = now_us;
        due = choose(c, d, l, now_us, which);
    }
    if (urgent || due) {
        few(c, which, must);
        rc = controller_plan(c, d, l, which, must, e);
    }
    if (rc == 0 && c->act.n_move) {
        snprintf(c->act.why, sizeof(c->act.why),
                 urgent ? "%d layers have copies that are out or missing"
                        : "%d layers are out of balance",
                 urgent ? urgent : due);
        take_up(c, l->policy == CONTROLLER_AUTO, now_us);
    } else if (rc == 0 && due) {
        snprintf(c->act.why, sizeof(c->act.why),
                 "%d layers are out of balance, and no move repays its cost", due);
    }
    free(which);
    return rc;
}

int controller_decide(struct controller *c, const struct controller_series *s,
                      const struct routes *r, const struct controller_devices *d,
                      const struct controller_limits *l, int64_t now_us,
                      const struct controller_actions **ret, struct err *e)
{
    controller_clear(c);
    *ret = &c->act;
    if (take_routes(c, r, e) < 0)
        return -1;
    controller_fold(c, s, l);
    for (int g = 0; g < c->n_rank; g++)
        c->out[g] = d->out && d->out[g];
    if (c->hand)
        look_at_hand(c, d, l, now_us);
    controller_outcomes(c, d, l, now_us);
    if (l->policy == CONTROLLER_OFF || l->frozen)
        return 0;
    c->act.advice = l->policy == CONTROLLER_ADVISE;
    if (!c->hand && !c->held && look_at_copies(c, d, l, now_us, e) < 0)
        return -1;
    if (l->share_every_us > 0 && c->seen_us >= (double)l->share_every_us &&
        (c->shared_us == INT64_MIN || now_us - c->shared_us >= l->share_every_us)) {
        c->shared_us = now_us;
        controller_shares(c, r, d, l);
    }
    return 0;
}

/* The moves to a map made from nothing by the loads as known. */
static int from_nothing(struct controller *c, const struct controller_devices *d,
                        const struct controller_limits *l, enum controller_method m,
                        struct err *e)
{
    struct expert_ask a = controller_ask(c, d, c->plan);
    int rc;

    if (!(c->seen_us > 0))
        return err_set(e, ERR_CONFLICT,
                       "no loads were counted yet: a plan from nothing goes by them");
    int16_t *want = xcalloc(map_size(c), sizeof(*want));
    for (int i = 0; i < c->n_layer; i++) {
        const double *load;
        controller_known(c, i, l, &load);
        memcpy(c->plan + (size_t)i * c->n_expert, load,
               (size_t)c->n_expert * sizeof(*load));
    }
    rc = m == CONTROLLER_EPLB ? eplb_map(&a, d->n_group > 0 ? d->n_group : 1, want, e)
                              : expertplan_offline(&a, want, e);
    if (rc == 0)
        rc = expertplan_diff(&a, c->map, want, &c->moves, e);
    if (rc == 0) {
        controller_say(c, &a, l);
        c->act.apart_before = a.with ? expertplan_apart(&a, c->map) : NAN;
        c->act.apart_after = a.with ? expertplan_apart(&a, c->moves.map) : NAN;
        snprintf(c->act.why, sizeof(c->act.why), "asked for: a plan from nothing by %s",
                 m == CONTROLLER_EPLB ? "EPLB" : "the planner");
    }
    free(want);
    return rc;
}

/* The moves that pay in any layer. */
static int increment(struct controller *c, const struct controller_devices *d,
                     const struct controller_limits *l, struct err *e)
{
    bool *which = xcalloc(2 * (size_t)c->n_layer, sizeof(*which));
    int rc;

    for (int i = 0; i < c->n_layer; i++) {
        which[i] = true;
        which[c->n_layer + i] = broken(c, d, i);
    }
    rc = controller_plan(c, d, l, which, which + c->n_layer, e);
    if (rc == 0)
        snprintf(c->act.why, sizeof(c->act.why), "asked for: %s",
                 c->act.n_move ? "the moves that pay" : "no move repays its cost");
    free(which);
    return rc;
}

static int propose(struct controller *c, const struct routes *r,
                   const struct controller_devices *d, const struct controller_limits *l,
                   enum controller_method m, struct err *e)
{
    controller_clear(c);
    if (take_routes(c, r, e) < 0)
        return -1;
    return m == CONTROLLER_INCREMENT ? increment(c, d, l, e)
                                     : from_nothing(c, d, l, m, e);
}

int controller_preview(struct controller *c, const struct routes *r,
                       const struct controller_devices *d,
                       const struct controller_limits *l, enum controller_method m,
                       const struct controller_actions **ret, struct err *e)
{
    *ret = &c->act;
    if (propose(c, r, d, l, m, e) < 0)
        return -1;
    c->act.advice = true;
    return 0;
}

struct controller *controller_copy(const struct controller *c)
{
    struct controller *n = controller_new(c->n_layer, c->n_expert, c->n_rank, c->n_slot);
    size_t bytes = (size_t)c->n_layer * (size_t)c->n_expert * sizeof(double);

    memcpy(n->regime, c->regime, bytes);
    memcpy(n->slow, c->slow, bytes);
    memcpy(n->layer, c->layer, (size_t)c->n_layer * sizeof(*c->layer));
    for (int i = 0; i < c->n_layer; i++)
        n->layer[i].kept = NULL;
    n->seen_us = c->seen_us;
    n->between_us = c->between_us;
    n->step_us = c->step_us;
    return n;
}

int controller_adopt(struct controller *c, struct controller *copy,
                     const struct controller_limits *l, int64_t now_us,
                     const struct controller_actions **ret, struct err *e)
{
    controller_clear(c);
    *ret = &c->act;
    if (c->hand)
        return err_set(e, ERR_CONFLICT, "plan %llu is in hand",
                       (unsigned long long)c->hand);
    if (l->frozen)
        return err_set(e, ERR_CONFLICT, "the experts are frozen");
    c->moves = copy->moves;
    copy->moves = (struct expert_moves){0};
    memcpy(c->map, copy->map, map_size(c) * sizeof(*c->map));
    memcpy(c->said, copy->said, (size_t)c->n_layer * sizeof(*c->said));
    c->act = copy->act;
    c->act.advice = false;
    c->act.share = c->share;
    c->act.layer = c->said;
    c->act.outcome = c->outcome;
    c->act.gain = c->gain;
    c->act.move = c->moves.move;
    controller_clear(copy);
    take_up(c, true, now_us);
    c->asked = c->act.n_move > 0;
    return 0;
}

void controller_hold(struct controller *c, bool on) { c->held = on; }

void controller_over(struct controller *c, uint64_t plan, bool whole, int64_t now_us)
{
    if (!plan || plan != c->hand)
        return;
    for (int i = 0; i < c->n_layer; i++) {
        struct layer_mind *m = &c->layer[i];
        if (!m->in_hand)
            continue;
        m->in_hand = false;
        m->acted_us = now_us;
        m->watch = plan;
        m->whole = whole;
        m->watch_us = now_us;
        m->foreseen = m->predicted;
    }
    c->hand = 0;
    c->shared_us = INT64_MIN; /* the copies share equally now: better ones at once */
}

uint64_t controller_in_hand(const struct controller *c) { return c->hand; }

const double *controller_loads(const struct controller *c, int layer)
{
    return c->regime + (size_t)layer * c->n_expert;
}

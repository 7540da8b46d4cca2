/* daemon/ctrl/experts_plan.c - a plan on its way: to the engine, and what comes back.
 *
 * Groups of a plan are moves of the engine, in their order. It has all of them at once
 * and does one after the other. The mirror follows at the flip. When one is aborted those
 * behind it are given up too, since they were planned on it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/experts_int.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/wire.h"
#include "daemon/serve/wire_experts.h"
#include "topo/expertplan.h"

/* ---- out ---- */

/* The groups as moves; -1: one has more slots than a move can. */
static int fill_moves(struct expert_set *s, const struct controller_actions *a)
{
    int group = -1;

    s->n_move = s->n_sent = 0;
    if (a->n_group > EXPERTS_PLAN_MOVES)
        return -1;
    free(s->move);
    s->move = xcalloc((size_t)a->n_move + 1, sizeof(*s->move));
    for (int i = 0; i < a->n_move; i++) {
        const struct expert_move *m = &a->move[i];
        struct move *v;

        if (m->group != group) {
            s->move[s->n_move] = (struct experts_move){.state = MOVE_QUEUED};
            s->move[s->n_move].move.id = ++s->x->ids;
            s->move[s->n_move++].move.layer = m->layer;
            group = m->group;
        }
        v = &s->move[s->n_move - 1].move;
        if (v->n == MOVE_PUTS || v->layer != m->layer)
            return -1;
        v->put[v->n++] =
            (struct move_put){(int16_t)m->device, (int16_t)m->slot,
                              (int16_t)(m->kind == EXPERT_RETIRE ? -1 : m->expert)};
        s->move[s->n_move - 1].gain_us += m->gain;
    }
    return 0;
}

/* The next ones, as many as an engine takes well at once. */
static bool send_moves(struct expert_set *s)
{
    struct move v[EXPERTS_AT_ONCE];
    struct wire_expert_orders o = {.moves = v};
    int n = 0;

    while (n < EXPERTS_AT_ONCE && s->n_sent + n < s->n_move) {
        v[n] = s->move[s->n_sent + n].move;
        n++;
    }
    o.h.n_moves = n;
    o.h.copy_share = s->copy_share;
    o.h.step_bytes = s->paced = controller_pace(&s->l, s->expert_bytes);
    if (!s->e.send(s->e.arg, &o))
        return false;
    s->n_sent += n;
    return true;
}

static void end_plan(struct expert_set *s, bool whole, int64_t now_us)
{
    struct experts_event ev = experts_event("plan", s->plan);
    struct experts_progress p;
    int n = 0;

    for (int i = 0; i < s->n_move; i++)
        n += s->move[i].state == MOVE_DONE;
    snprintf(ev.text, sizeof(ev.text), "plan %llu is over: %d of %d moves done%s%.120s",
             (unsigned long long)s->plan, n, s->n_move, whole ? "" : "; ",
             whole ? "" : s->lost);
    experts_note(s, &ev, whole ? "ok" : "failed", NULL);
    p = (struct experts_progress){
        .plan = s->plan, .n_move = s->n_move, .n_done = n, .over = true, .whole = whole};
    snprintf(p.why, sizeof(p.why), "%s", whole ? "" : s->lost);
    experts_order_over(s, &p);
    pthread_mutex_lock(&s->x->lock);
    controller_over(s->c, s->plan, whole, now_us);
    s->plan = 0;
    s->n_move = 0;
    s->failed = false;
    pthread_mutex_unlock(&s->x->lock);
}

static void tell_plan(struct expert_set *s, const struct controller_actions *a)
{
    struct experts_event ev = experts_event(a->advice ? "advice" : "plan", a->plan);
    double gain = 0;

    for (int i = 0; i < a->n_layer; i++)
        gain += a->layer[i].gain_us;
    ev.predicted_us = gain;
    ev.bytes = a->bytes;
    if (a->n_layer == 1)
        ev.layer = a->layer[0].layer;
    snprintf(
        ev.text, sizeof(ev.text),
        "plan %llu: %d slots in %d layers, %lld bytes, predicted %.0f us a step%s%.90s",
        (unsigned long long)a->plan, a->n_move, a->n_layer, (long long)a->bytes, gain,
        a->why[0] ? ": " : "", a->why);
    experts_note(s, &ev, a->advice ? "advice" : "ok", NULL);
}

static void begin_plan(struct expert_set *s, const struct controller_actions *a,
                       int64_t now_us)
{
    int rc;

    pthread_mutex_lock(&s->x->lock);
    s->plan = a->plan;
    s->failed = false;
    s->lost[0] = 0;
    rc = fill_moves(s, a);
    s->plans[a->plan % EXPERTS_PLANS].plan = rc < 0 ? 0 : a->plan;
    s->plans[a->plan % EXPERTS_PLANS].move = s->n_move ? s->move[0].move.id : 0;
    s->plans[a->plan % EXPERTS_PLANS].n = s->n_move;
    pthread_mutex_unlock(&s->x->lock);
    metric_add(s->x->page, M_EXPERT_PLANS, 0, 1);
    if (rc < 0)
        snprintf(s->lost, sizeof(s->lost),
                 "more slots in a group or plan than an engine takes");
    else if (!send_moves(s))
        snprintf(s->lost, sizeof(s->lost), "the engine does not hear");
    else
        return;
    s->n_move = 0;
    end_plan(s, false, now_us);
}

static void send_shares(struct expert_set *s, const struct controller_actions *a)
{
    int n = s->now->d.n_rank * s->now->d.n_slot;

    for (int i = 0; i < a->n_share; i++) {
        const int32_t layer = a->share[i].layer;
        const struct wire_expert_orders o = {.h = {.n_layers = 1, .n_slots = n},
                                             .layers = &layer,
                                             .shares = a->share[i].share};

        if (!s->e.send(s->e.arg, &o))
            return;
        pthread_mutex_lock(&s->x->lock);
        memcpy(s->now->layer[layer].share, a->share[i].share, (size_t)n * sizeof(float));
        pthread_mutex_unlock(&s->x->lock);
        metric_add(s->x->page, M_EXPERT_SHARES, 0, 1);
    }
}

static void tell_outcome(struct expert_set *s, const struct controller_outcome *o)
{
    struct experts_event ev = experts_event("outcome", o->plan);

    ev.layer = o->layer;
    ev.predicted_us = o->predicted_us;
    ev.realised_us = o->realised_us;
    snprintf(ev.text, sizeof(ev.text),
             "plan %llu, layer %d: predicted %.0f us a step, realised %.0f us",
             (unsigned long long)o->plan, o->layer, o->predicted_us, o->realised_us);
    experts_note(s, &ev, "ok", NULL);
}

/* What a move brought goes with its own event, where that is still shown. */
static void tell_gain(struct expert_set *s, const struct controller_gain *g)
{
    struct experts_event ev = experts_event("gain", g->plan);
    size_t at = g->plan % EXPERTS_PLANS;

    if (s->plans[at].plan != g->plan || g->group >= s->plans[at].n)
        return;
    ev.move = s->plans[at].move + (uint64_t)g->group;
    ev.layer = g->layer;
    pthread_mutex_lock(&s->x->lock);
    s->n_measured++;
    s->predicted_us += g->predicted_us;
    s->realised_us += g->realised_us;
    for (int i = 0; i < s->n_history; i++)
        if (s->history[i].move == ev.move)
            s->history[i].realised_us = g->realised_us;
    pthread_mutex_unlock(&s->x->lock);
    snprintf(ev.text, sizeof(ev.text),
             "move %llu, layer %d: predicted %.1f us a step, realised %.1f us",
             (unsigned long long)ev.move, ev.layer, g->predicted_us, g->realised_us);
    experts_journal(s, &ev, "ok", NULL);
}

/* An advice is told when it is a new one. */
static bool news(struct expert_set *s, const struct controller_actions *a)
{
    char now[200];

    snprintf(now, sizeof(now), "%d %d %lld", a->n_move, a->n_layer, (long long)a->bytes);
    if (!strcmp(now, s->said))
        return false;
    memcpy(s->said, now, sizeof(now));
    return true;
}

void experts_act(struct expert_set *s, const struct controller_actions *a, bool own,
                 int64_t now_us)
{
    pthread_mutex_lock(&s->x->lock);
    snprintf(s->why, sizeof(s->why), "%s", a->why);
    pthread_mutex_unlock(&s->x->lock);
    for (int i = 0; i < a->n_outcome; i++)
        tell_outcome(s, &a->outcome[i]);
    for (int i = 0; i < a->n_gain; i++)
        tell_gain(s, &a->gain[i]);
    if (a->call_back && a->call_back == s->plan && !s->failed)
        experts_call_back(s, a->why);
    if (a->advice && !own) {
        if (a->n_move && news(s, a))
            tell_plan(s, a);
        return;
    }
    if (!s->l.frozen)
        send_shares(s, a);
    if (!a->plan || s->plan)
        return;
    tell_plan(s, a);
    begin_plan(s, a, now_us);
}

void experts_call_back(struct expert_set *s, const char *why)
{
    const struct wire_expert_orders o = {.h = {.cancel = 1}};
    struct experts_event ev = experts_event("call-back", s->plan);

    snprintf(ev.text, sizeof(ev.text), "plan %llu: %.200s", (unsigned long long)s->plan,
             why);
    experts_note(s, &ev, "ok", NULL);
    snprintf(s->lost, sizeof(s->lost), "%.190s", why);
    s->failed = true;
    s->e.send(s->e.arg, &o);
}

/* ---- in ---- */

/* The map after the flip. */
static void flipped(struct expert_set *s, const struct move *v)
{
    struct route_layer *l = &s->now->layer[v->layer];
    int n = s->now->d.n_rank * s->now->d.n_slot;

    l->generation++;
    for (int i = 0; i < v->n; i++)
        l->expert[v->put[i].rank * s->now->d.n_slot + v->put[i].slot] = v->put[i].expert;
    for (int i = 0; i < n; i++) {
        int copies = l->expert[i] < 0 ? 0 : routes_copies(s->now, v->layer, l->expert[i]);

        l->share[i] = copies ? 1.0f / (float)copies : 0;
    }
}

static void tell_end(struct expert_set *s, const struct experts_move *v,
                     const struct wire_moved *m)
{
    bool done = m->state == MOVE_DONE;
    struct experts_event ev = experts_event("move", s->plan);
    char steps[96] = "no step ran meanwhile";

    ev.move = m->id;
    ev.layer = m->layer;
    if (done && m->n_steps > 0 && m->before_mean_us > 0) {
        ev.added_us = (double)(m->during_mean_us - m->before_mean_us);
        ev.added_max_us = (double)(m->during_max_us - m->before_max_us);
    }
    ev.bytes = done ? m->bytes : 0;
    ev.predicted_us = v->gain_us;
    if (!isnan(ev.added_us))
        snprintf(steps, sizeof(steps),
                 "steps took %lld us (longest %lld), before %lld (%lld)",
                 (long long)m->during_mean_us, (long long)m->during_max_us,
                 (long long)m->before_mean_us, (long long)m->before_max_us);
    if (done)
        snprintf(ev.text, sizeof(ev.text),
                 "move %llu, layer %d: done in %.3f s, %lld bytes, predicted %.0f us a "
                 "step; %s",
                 (unsigned long long)m->id, m->layer, (double)m->all_us / 1e6,
                 (long long)m->bytes, v->gain_us, steps);
    else
        snprintf(ev.text, sizeof(ev.text),
                 "move %llu, layer %d: the old map stays: %.150s",
                 (unsigned long long)m->id, m->layer, m->why);
    experts_note(s, &ev, done ? "ok" : "failed", NULL);
}

static void count_end(struct expert_set *s, const struct wire_moved *m)
{
    bool done = m->state == MOVE_DONE;

    s->n_done += done;
    s->n_aborted += !done;
    metric_add(s->x->page, M_EXPERT_MOVES, done ? 0 : 1, 1);
    if (!done)
        return;
    s->bytes += (uint64_t)m->bytes;
    metric_add(s->x->page, M_EXPERT_MOVE_BYTES, 0, (double)m->bytes);
    if (m->work_us > 0 && m->bytes > 0)
        s->copy_Bps = s->l.copy_Bps = (double)m->bytes * 1e6 / (double)m->work_us;
    if (m->n_steps > 0 && m->before_mean_us > 0) {
        s->added_mean_us = m->during_mean_us - m->before_mean_us;
        s->added_max_us = m->during_max_us - m->before_max_us;
        metric_set(s->x->page, M_EXPERT_ADDED, 0, (double)s->added_mean_us / 1e6);
    }
}

/* All that were sent. */
static bool all_ended(const struct expert_set *s)
{
    for (int i = 0; i < s->n_sent; i++)
        if (s->move[i].state != MOVE_DONE && s->move[i].state != MOVE_ABORTED)
            return false;
    return true;
}

static void take(struct expert_set *s, struct experts_move *v, const struct wire_moved *m)
{
    bool end = m->state == MOVE_DONE || m->state == MOVE_ABORTED;
    bool stalled = m->why[0] && strstr(m->why, "not done within");

    pthread_mutex_lock(&s->x->lock);
    if (m->state >= MOVE_DRAINING && m->state <= MOVE_DONE && v->state < MOVE_DRAINING)
        flipped(s, &v->move);
    v->state = (enum move_state)m->state;
    snprintf(v->why, sizeof(v->why), "%.120s", m->why);
    s->n_stalled += stalled;
    if (end)
        count_end(s, m);
    pthread_mutex_unlock(&s->x->lock);
    if (stalled)
        metric_add(s->x->page, M_EXPERT_STALLED, 0, 1);
}

void experts_moved(struct experts *x, const void *arg, const struct wire_moved *m,
                   int64_t now_us)
{
    struct expert_set *s = NULL;
    struct experts_move *v = NULL;

    list_for(it, &x->sets)
    {
        struct expert_set *k = list_entry(it, struct expert_set, link);
        if (k->e.arg == arg)
            s = k;
    }
    for (int i = 0; s && i < s->n_move; i++)
        if (s->move[i].move.id == m->id)
            v = &s->move[i];
    if (!v)
        return;
    take(s, v, m);
    if (m->state == MOVE_DONE || m->state == MOVE_ABORTED)
        tell_end(s, v, m);
    if (m->state == MOVE_ABORTED && !s->failed) {
        if (!all_ended(s))
            experts_call_back(s, m->why);
        else
            snprintf(s->lost, sizeof(s->lost), "%.190s", m->why);
        s->failed = true;
    }
    if (!all_ended(s))
        return;
    if (!s->failed && s->n_sent < s->n_move) {
        if (send_moves(s))
            return;
        s->failed = true;
        snprintf(s->lost, sizeof(s->lost), "the engine does not hear");
    }
    end_plan(s, !s->failed, now_us);
}

/* daemon/ctrl/experts_order.c - what operators order: dry runs, plans carried out, freeze
 * and thaw.
 *
 * A plan is made from a copy of all that it goes by, so that whoever makes it holds
 * nobody up: a dry run on the thread that asks, an order on one of its own. Between an
 * order and its plan the controller begins no other, so that the map that it was made
 * from is still the one that it is carried out on. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/experts_int.h"
#include "daemon/ctrl/side.h"
#include "state/store.h"

/* A plan that is asked for: copies of what it goes by. */
struct question {
    uint64_t born; /* the engine's */
    struct controller *c;
    struct routes *now;
    struct controller_limits l;
    struct controller_devices d;
    uint8_t *out;
    int *host;
    double *with;
    enum controller_method m;
};

struct order {
    struct question q;
    char instance[64], actor[64], origin[64];
    const struct controller_actions *a; /* of q.c */
    int rc;
    struct err why;
};

static int none(struct experts *x, const char *instance, struct expert_set **ret,
                struct err *e)
{
    *ret = experts_find(x, instance);
    if (*ret)
        return 0;
    return err_set(
        e, ERR_NOTFOUND,
        "instance '%s' has no experts that can move: a mixture of experts with "
        "experts.spare and layout.ep, and ready, would be right",
        instance);
}

/* ---- a question ---- */

static void question_done(struct question *q)
{
    controller_free(q->c);
    routes_free(q->now);
    free(q->out);
    free(q->host);
    free(q->with);
}

static void *copy_of(const void *p, size_t bytes)
{
    return p ? memcpy(xmalloc(bytes), p, bytes) : NULL;
}

static struct routes *copy_routes(const struct routes *r)
{
    size_t n = (size_t)r->d.n_rank * (size_t)r->d.n_slot;
    struct routes *ret = NULL;
    int rc = routes_new(&r->d, r->n_layer, &ret, NULL);

    assert(rc == 0); /* dimensions that were taken once */
    (void)rc;
    for (int l = 0; l < r->n_layer; l++) {
        ret->layer[l].generation = r->layer[l].generation;
        memcpy(ret->layer[l].expert, r->layer[l].expert, n * sizeof(int16_t));
        memcpy(ret->layer[l].share, r->layer[l].share, n * sizeof(float));
    }
    return ret;
}

/* Which experts are chosen together, a layer at a time, so that nobody waits for long.
 * -1: the engine has ended. */
static int ask_pairs(struct experts *x, const char *instance, struct question *q)
{
    size_t one = (size_t)q->now->d.n_expert * (size_t)q->now->d.n_expert;
    bool known = true, there = true;

    q->with = xcalloc((size_t)q->now->n_layer * one, sizeof(*q->with));
    for (int l = 0; known && there && l < q->now->n_layer; l++) {
        const struct expert_set *s;

        pthread_mutex_lock(&x->lock);
        s = experts_find(x, instance);
        there = s && s->born == q->born;
        known = there &&
                s->e.pairs(s->e.arg, l, q->now->d.n_expert, q->with + (size_t)l * one);
        pthread_mutex_unlock(&x->lock);
    }
    if (known)
        q->d.with = q->with;
    return there ? 0 : -1;
}

/* Any thread. */
static int ask(struct experts *x, const char *instance, enum controller_method m,
               struct question *q, struct err *e)
{
    struct expert_set *s;
    double affinity = 0;
    int rc;

    *q = (struct question){.m = m};
    pthread_mutex_lock(&x->lock);
    rc = none(x, instance, &s, e);
    if (rc == 0) {
        size_t n = (size_t)s->now->d.n_rank;

        q->born = s->born;
        q->c = controller_copy(s->c);
        q->now = copy_routes(s->now);
        q->l = s->l;
        q->out = copy_of(s->out, n);
        q->host = copy_of(s->host, n * sizeof(*q->host));
        q->d = (struct controller_devices){
            .out = q->out, .host = q->host, .expert_bytes = s->expert_bytes};
        if (m == CONTROLLER_PLANNER && s->e.pairs && s->host)
            affinity = s->affinity;
    }
    pthread_mutex_unlock(&x->lock);
    if (rc < 0)
        return -1;
    if (affinity > 0 && ask_pairs(x, instance, q) < 0) {
        question_done(q);
        return err_set(e, ERR_CONFLICT, "the engine of '%s' has just ended", instance);
    }
    q->d.affinity = q->d.with ? affinity : 0;
    return 0;
}

/* ---- a dry run ---- */

int experts_propose(struct experts *x, const char *instance, enum controller_method m,
                    struct experts_proposal *ret, struct err *e)
{
    const struct controller_actions *a;
    struct question q;
    int rc;

    if (ask(x, instance, m, &q, e) < 0)
        return -1;
    rc = controller_preview(q.c, q.now, &q.d, &q.l, m, &a, e);
    if (rc == 0) {
        *ret = (struct experts_proposal){.n_layer = a->n_layer,
                                         .n_move = a->n_move,
                                         .bytes = a->bytes,
                                         .apart_before = a->apart_before,
                                         .apart_after = a->apart_after};
        snprintf(ret->why, sizeof(ret->why), "%s", a->why);
        ret->layer = xcalloc((size_t)a->n_layer + 1, sizeof(*ret->layer));
        ret->move = xcalloc((size_t)a->n_move + 1, sizeof(*ret->move));
        if (a->n_layer)
            memcpy(ret->layer, a->layer, (size_t)a->n_layer * sizeof(*ret->layer));
        if (a->n_move)
            memcpy(ret->move, a->move, (size_t)a->n_move * sizeof(*ret->move));
    }
    question_done(&q);
    return rc;
}

void experts_proposal_done(struct experts_proposal *p)
{
    free(p->layer);
    free(p->move);
    *p = (struct experts_proposal){0};
}

/* ---- an order ---- */

void experts_order_over(struct expert_set *s, const struct experts_progress *p)
{
    if (!s->order)
        return; /* the controller's own plan */
    s->last.order = s->order;
    s->last.p = *p;
    s->order = 0;
}

static void make(void *arg)
{
    struct order *o = arg;
    struct question *q = &o->q;

    o->rc = controller_preview(q->c, q->now, &q->d, &q->l, q->m, &o->a, &o->why);
}

static void free_order(void *arg)
{
    struct order *o = arg;

    question_done(&o->q);
    free(o);
}

/* The plan is made, or cannot be. */
static void made(void *arg, void *job)
{
    struct experts *x = arg;
    struct order *o = job;
    struct expert_set *s = experts_find(x, o->instance);
    const struct experts_who who = {o->actor, o->origin};
    struct experts_event ev = experts_event("apply", 0);
    struct experts_progress p = {.over = true};
    const struct controller_actions *a = NULL;

    if (!s || s->born != o->q.born)
        return; /* it ended, and said so */
    pthread_mutex_lock(&x->lock);
    controller_hold(s->c, false);
    if (o->rc == 0)
        o->rc = controller_adopt(s->c, o->q.c, &s->l, x->now_us, &a, &o->why);
    pthread_mutex_unlock(&x->lock);
    if (o->rc < 0) {
        snprintf(ev.text, sizeof(ev.text), "%.220s", o->why.msg);
        snprintf(p.why, sizeof(p.why), "%.190s", o->why.msg);
        experts_note(s, &ev, "failed", &who);
        experts_order_over(s, &p);
        return;
    }
    ev.plan = a->plan;
    ev.bytes = a->bytes;
    snprintf(ev.text, sizeof(ev.text), "%d slots, %.180s", a->n_move, a->why);
    experts_note(s, &ev, "ok", &who);
    if (!a->plan) {
        p.whole = true;
        experts_order_over(s, &p);
    }
    experts_act(s, a, true, x->now_us);
}

int experts_apply(struct experts *x, const char *instance, enum controller_method m,
                  const struct experts_who *who, uint64_t *ret_order, struct err *e)
{
    struct expert_set *s;
    struct order *o;

    if (none(x, instance, &s, e) < 0)
        return -1;
    if (s->l.frozen)
        return err_set(e, ERR_CONFLICT, "the experts of '%s' are frozen", instance);
    if (s->plan)
        return err_set(e, ERR_CONFLICT, "plan %llu is under way",
                       (unsigned long long)s->plan);
    if (side_busy(x->side))
        return err_set(e, ERR_CONFLICT,
                       "a plan that was ordered before is still being made");
    experts_devices(s); /* it may follow a cordon at once */
    o = xcalloc(1, sizeof(*o));
    snprintf(o->instance, sizeof(o->instance), "%s", instance);
    snprintf(o->actor, sizeof(o->actor), "%s", who->actor);
    snprintf(o->origin, sizeof(o->origin), "%s", who->origin);
    if (ask(x, instance, m, &o->q, e) < 0) {
        free(o);
        return -1;
    }
    const struct side_job j = {
        .run = make, .done = made, .free = free_order, .arg = x, .job = o};
    if (side_start(x->side, &j, e) < 0) {
        free_order(o);
        return -1;
    }
    pthread_mutex_lock(&x->lock);
    controller_hold(s->c, true);
    pthread_mutex_unlock(&x->lock);
    *ret_order = s->order = ++x->orders;
    return 0;
}

int experts_progress(struct experts *x, const char *instance, uint64_t order,
                     struct experts_progress *ret, struct err *e)
{
    struct expert_set *s;

    if (none(x, instance, &s, e) < 0)
        return -1;
    if (s->last.order == order) {
        *ret = s->last.p;
        return 0;
    }
    if (s->order != order)
        return err_set(e, ERR_NOTFOUND,
                       "it ended with its engine, or another was ordered since");
    *ret = (struct experts_progress){.plan = s->plan, .n_move = s->n_move};
    for (int i = 0; i < s->n_move; i++)
        ret->n_done += s->move[i].state == MOVE_DONE;
    return 0;
}

/* ---- freeze ---- */

static void set_frozen(struct experts *x, const char *instance, bool on)
{
    for (int i = 0; i < x->n_frozen; i++)
        if (!strcmp(x->frozen[i], instance))
            memcpy(x->frozen[i--], x->frozen[--x->n_frozen], sizeof(x->frozen[0]));
    if (on && x->n_frozen < CONF_MAX_NAMES)
        snprintf(x->frozen[x->n_frozen++], sizeof(x->frozen[0]), "%s", instance);
}

int experts_freeze(struct experts *x, const char *instance, bool on,
                   const struct experts_who *who, const char *reason, struct err *e)
{
    struct experts_event ev = experts_event(on ? "freeze" : "thaw", 0);
    struct expert_set *s;

    if (none(x, instance, &s, e) < 0)
        return -1;
    if (s->l.frozen == on)
        return err_set(e, ERR_CONFLICT, "the experts of '%s' are %s already", instance,
                       on ? "frozen" : "thawed");
    if (x->store && freeze_put(x->store, instance, on, who->actor, reason ? reason : "",
                               clock_wall_ms(), e) < 0)
        return -1;
    pthread_mutex_lock(&x->lock);
    set_frozen(x, instance, on);
    s->l.frozen = on;
    pthread_mutex_unlock(&x->lock);
    if (on && s->plan)
        experts_call_back(s, "it is called back: the experts are frozen");
    snprintf(ev.text, sizeof(ev.text), "by %.60s%s%.150s", who->actor,
             reason && reason[0] ? ": " : "", reason ? reason : "");
    experts_note(s, &ev, "ok", who);
    return 0;
}

/* daemon/ctrl/fleet.c - units come and go until they are those that a conf wants.
 *
 * A plan becomes a job: one slot for each action that starts an engine. News of units and
 * a timer lead to fleet_step, which is the only place that moves anything on:
 *
 *   unit   DRAINS -> ENDS -> GONE, freed (unless an operator's word keeps it to be shown)
 *   slot   WAITS (for the old engine of a drain-first to have gone, for room)
 *            -> STARTS (its fresh unit) -> DONE: ready, then the old unit leaves
 *                                               or failed, then a fresh one that was to
 *                                               replace leaves and the old one goes on
 *   slot of an engine that retires: WAITS for the others of its instance -> DONE: it
 *          leaves, or goes on where one of them failed
 *   job    done when all its slots are; old units may drain on after that
 *
 * A unit's callbacks only ring (fleet_kick), so nothing is freed under its feet. */
#include "daemon/ctrl/fleet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "daemon/ctrl/fleet_int.h"
#include "daemon/ctrl/layouts.h"
#include "daemon/ctrl/need.h"
#include "daemon/ctrl/router_ctl.h"

static int64_t now_us(void) { return clock_now_us(clock_real()); }

void fleet_kick(void *fleet)
{
    struct fleet *f = fleet;

    loop_timer_set(f->timer, 0);
}

void fleet_note(struct fleet *f, const char *what, const char *instance,
                const char *result, const char *detail)
{
    struct err e;

    if (f->cfg.store &&
        journal_add(f->cfg.store, "daemon", what, instance, result, &e, "%s", detail) < 0)
        log_error("the journal lacks '%s %s': %s", what, result, e.msg);
}

/* ---- who is there ---- */

struct unit *fleet_unit(struct fleet *f, const char *instance)
{
    struct unit *halted = NULL;

    list_for(it, &f->units)
    {
        struct unit *u = list_entry(it, struct unit, link);
        if (strcmp(u->inst->name, instance))
            continue;
        /* the oldest that runs: a fresh one beside it is not the instance's yet */
        if (u->phase == UNIT_RUNS)
            return u;
        if (u->halted)
            halted = u;
    }
    return halted;
}

/* Is any generation of it still there, with its memory? */
static bool present(const struct fleet *f, const char *instance)
{
    list_for(it, &f->units)
    {
        const struct unit *u = list_entry(it, struct unit, link);
        if (u->phase != UNIT_GONE && !strcmp(u->inst->name, instance))
            return true;
    }
    return false;
}

static bool anyone_leaves(const struct fleet *f)
{
    list_for(it, &f->units)
    {
        const struct unit *u = list_entry(it, struct unit, link);
        if (u->phase == UNIT_DRAINS || u->phase == UNIT_ENDS)
            return true;
    }
    return false;
}

const struct admin_row *fleet_admin(const struct fleet *f, const char *instance)
{
    static const struct admin_row nothing;

    for (int i = 0; i < f->n_admin; i++)
        if (!strcmp(f->admin[i].instance, instance))
            return &f->admin[i];
    return &nothing;
}

static int64_t drain_s(const struct fleet *f)
{
    const struct conf *c = f->job.to ? f->job.to : f->conf;

    return c ? c->limits.drain_s : 0;
}

/* ---- slots ---- */

void fleet_slot_done(struct slot *s)
{
    s->state = SLOT_DONE;
    s->fresh = NULL;
    unit_spec_done(&s->spec);
}

static void slot_failed(struct fleet *f, struct slot *s, const struct err *why)
{
    if (f->job.why.code == ERR_OK)
        f->job.why = *why;
    fleet_note(f, "instance.start", s->act.instance, "failed", why->msg);
    fleet_slot_done(s);
}

static void slot_start(struct fleet *f, struct slot *s)
{
    bool drained = !strcmp(fleet_admin(f, s->act.instance)->state, "draining");
    struct err e;

    if (unit_new(&f->env, &s->spec, ++f->generation, &s->fresh, &e) < 0) {
        slot_failed(f, s, &e);
        return;
    }
    s->fresh->need = s->act.need;
    list_push(&f->units, &s->fresh->link);
    s->state = SLOT_STARTS;
    if (drained)
        unit_drain(s->fresh, true);
    fleet_seat(f, s->fresh);
    unit_start(s->fresh);
}

/* The unit that a fresh one takes over from; NULL when there is none. */
static struct unit *old_of(struct fleet *f, const struct slot *s)
{
    struct unit *u = fleet_unit(f, s->act.instance);

    return u && u != s->fresh ? u : NULL;
}

static void leave(struct fleet *f, struct unit *u, const char *what)
{
    struct err why;

    err_set(&why, ERR_UNAVAIL,
            "instance '%s' %s and the %lld s for running requests are over: try again",
            u->inst->name, what, (long long)drain_s(f));
    unit_leave(u, drain_s(f), &why, NULL);
}

/* Ready: the traffic is its own from now on, for the old one takes nothing new. */
static void slot_ready(struct fleet *f, struct slot *s)
{
    struct unit *old = old_of(f, s);

    if (old)
        leave(f, old, "is being replaced");
    if (s->act.kind != FLEET_START) {
        log_about(LOG_LV_INFO, &(struct log_about){.instance = s->act.instance},
                  "instance '%s': a new engine serves it: %s", s->act.instance,
                  s->act.why);
        fleet_note(f, "instance.replace", s->act.instance, "ok", s->act.why);
    }
    fleet_slot_done(s);
}

static void forget_admin(struct fleet *f, const char *instance);

/* Its instance's new engines have the traffic, or there will be none. */
static void slot_retire(struct fleet *f, struct slot *s)
{
    struct unit *u = fleet_unit(f, s->act.instance);

    for (int i = 0; i < f->job.n; i++)
        if (f->job.v[i].state != SLOT_DONE && f->job.v[i].act.kind != FLEET_RETIRE &&
            fleet_same_instance(f->job.v[i].act.instance, s->act.instance))
            return;
    if (u && f->job.why.code == ERR_OK) {
        forget_admin(f, s->act.instance);
        u->halted = false;
        leave(f, u, "has other engines now");
    }
    fleet_slot_done(s);
}

static void slot_step(struct fleet *f, struct slot *s)
{
    if (s->act.kind == FLEET_RETIRE) /* when all others have moved */
        return;
    if (s->state == SLOT_WAITS) {
        if ((s->act.kind == FLEET_DRAIN_FIRST && present(f, s->act.instance)) ||
            (s->roomless && anyone_leaves(f)))
            return;
        slot_start(f, s);
    }
    if (s->state != SLOT_STARTS)
        return;
    if (s->fresh->was_ready) {
        slot_ready(f, s);
    } else if (s->fresh->failed) {
        struct unit *fresh = s->fresh, *old = old_of(f, s);

        slot_failed(f, s, &fresh->why);
        if (old && old->phase == UNIT_RUNS) /* it goes on */
            leave(f, fresh, "was not started");
    }
}

/* ---- steps ---- */

static void job_done(struct fleet *f)
{
    struct job j = f->job;

    for (int i = 0; i < j.n; i++)
        if (j.v[i].state != SLOT_DONE)
            return;
    f->job = (struct job){0};
    free(j.v);
    if (j.to && (j.why.code == ERR_OK || !f->conf)) {
        conf_unref(f->conf);
        f->conf = j.to;
    } else {
        conf_unref(j.to);
    }
    if (j.done) /* may apply the next */
        j.done(j.arg, j.why.code == ERR_OK ? NULL : &j.why);
}

static void step_units(struct fleet *f)
{
    int64_t now = now_us(), next = -1;

    list_for_safe(it, tmp, &f->units)
    {
        struct unit *u = list_entry(it, struct unit, link);
        int64_t at = unit_step(u, now);

        if (at >= 0 && (next < 0 || at < next))
            next = at;
        if (u->phase == UNIT_GONE && !u->halted) {
            list_del(&u->link);
            unit_free(u);
        }
    }
    loop_timer_set(f->timer, next);
}

static void on_step(void *arg)
{
    struct fleet *f = arg;

    step_units(f);
    if (f->stopping)
        return;
    for (int i = 0; f->job.on && i < f->job.n; i++)
        slot_step(f, &f->job.v[i]);
    for (int i = 0; f->job.on && i < f->job.n; i++)
        if (f->job.v[i].state == SLOT_WAITS && f->job.v[i].act.kind == FLEET_RETIRE)
            slot_retire(f, &f->job.v[i]);
    fleet_share_cpus(f);
    if (f->job.on)
        job_done(f);
}

void fleet_begin(struct fleet *f)
{
    struct job *j = &f->job;

    j->on = true;
    for (int i = 0; i < j->n; i++) {
        struct slot *s = &j->v[i];

        s->roomless = s->act.need > s->act.have;
        if (s->act.kind == FLEET_DRAIN_FIRST) {
            struct unit *old = fleet_unit(f, s->act.instance);

            log_about(
                LOG_LV_INFO, &(struct log_about){.instance = s->act.instance},
                "instance '%s': old and new engine do not fit side by side (%llu MiB "
                "are needed, %llu MiB free): the old one drains first",
                s->act.instance, (unsigned long long)(s->act.need >> 20),
                (unsigned long long)(s->act.have >> 20));
            if (old)
                leave(f, old, "is being replaced");
        }
    }
    fleet_kick(f);
}

/* ---- apply ---- */

static void forget_admin(struct fleet *f, const char *instance)
{
    struct admin_row none = {0};
    struct err e;

    snprintf(none.instance, sizeof(none.instance), "%s", instance);
    if (f->cfg.store && admin_put(f->cfg.store, &none, &e) < 0)
        log_error("%s", e.msg);
    for (int i = 0; i < f->n_admin; i++)
        if (!strcmp(f->admin[i].instance, instance))
            f->admin[i--] = f->admin[--f->n_admin];
}

/* An instance that stays stopped is shown all the same. */
static void show_halted(struct fleet *f, const struct conf *to, const char *instance)
{
    const struct conf_instance *i = conf_instance(to, instance);
    struct unit *u = fleet_unit(f, instance);
    struct unit_spec spec;
    char reason[256], refused[256];
    struct err e;

    if (u && u->phase != UNIT_GONE)
        return; /* it still drains */
    if (u) {
        list_del(&u->link);
        unit_free(u);
    }
    fleet_spec(f, to, i, &spec, refused);
    if (unit_new(&f->env, &spec, ++f->generation, &u, &e) < 0) {
        log_about(LOG_LV_ERROR, &(struct log_about){.instance = instance},
                  "instance '%s' cannot be shown: %s", instance, e.msg);
        unit_spec_done(&spec);
        return;
    }
    snprintf(reason, sizeof(reason), "%.250s", fleet_admin(f, instance)->reason);
    list_push(&f->units, &u->link);
    unit_halt(u, reason);
}

static void apply_action(struct fleet *f, const struct conf *to,
                         const struct fleet_action *a)
{
    const struct conf_instance *i = conf_instance(to, a->instance);
    struct unit *u = fleet_unit(f, a->instance);
    char refused[256];
    struct slot *s;

    switch (a->kind) {
    case FLEET_KEEP:
    case FLEET_HOT:
        if (!strcmp(fleet_admin(f, a->instance)->state, "stopped"))
            show_halted(f, to, a->instance);
        else
            unit_hot(u, to, i);
        return;
    case FLEET_STOP:
        forget_admin(f, a->instance);
        u->halted = false;
        leave(f, u, "was removed");
        return;
    case FLEET_RETIRE:
        f->job.v[f->job.n++] = (struct slot){.act = *a};
        return;
    default:
        s = &f->job.v[f->job.n++];
        *s = (struct slot){.act = *a};
        fleet_spec(f, to, i, &s->spec, refused); /* the plan has asked already */
    }
}

int fleet_apply(struct fleet *f, const struct conf *to, fleet_done_fn done, void *arg,
                struct err *e)
{
    struct fleet_action *acts;
    int n;

    if (f->stopping)
        return err_set(e, ERR_UNAVAIL, "the server is stopping");
    if (f->job.on)
        return err_set(e, ERR_CONFLICT, "another change of the instances is under way");
    acts = xcalloc(FLEET_ACTIONS, sizeof(*acts));
    n = fleet_plan(f, to, acts, FLEET_ACTIONS);
    /* at the start each instance goes as far as it gets: its engine says why it cannot */
    for (int i = 0; i < n; i++)
        if (!acts[i].fits && (f->conf || !acts[i].refused[0])) {
            fleet_nofit(&acts[i], e);
            free(acts);
            return -1;
        }
    f->job = (struct job){.to = conf_ref(to), .done = done, .arg = arg};
    f->job.v = xcalloc(FLEET_ACTIONS, sizeof(*f->job.v));
    for (int i = 0; i < n; i++)
        apply_action(f, to, &acts[i]);
    free(acts);
    fleet_begin(f);
    return 0;
}

struct conf *fleet_conf(struct fleet *f) { return f->conf ? conf_ref(f->conf) : NULL; }

/* ---- life ---- */

static void on_ready(void *arg, const char *instance)
{
    struct fleet *f = arg;

    if (f->cfg.ready)
        f->cfg.ready(f->cfg.arg, instance);
}

static void on_trouble(void *arg, const char *instance, enum alarm_engine kind,
                       const char *why)
{
    struct fleet *f = arg;

    if (f->cfg.trouble)
        f->cfg.trouble(f->cfg.arg, instance, kind, why);
}

int fleet_new(const struct fleet_cfg *cfg, struct fleet **ret, struct err *e)
{
    struct fleet *f = xcalloc(1, sizeof(*f));

    f->cfg = *cfg;
    f->env = (struct unit_env){
        .loop = cfg->loop,
        .router = cfg->router,
        .store = cfg->store,
        .page = cfg->page,
        .experts = cfg->experts,
        .domain = cfg->domain,
        .program = cfg->program,
        .open = cfg->open ? cfg->open : loader_open_model,
        .backoff_us = cfg->backoff_us,
        .stop_us = cfg->stop_us,
        .news = fleet_kick,
        .ready = on_ready,
        .trouble = on_trouble,
        .arg = f,
    };
    list_init(&f->units);
    f->need = need_new();
    f->layouts = layouts_new();
    f->timer = loop_timer_new(cfg->loop, on_step, f);
    if (cfg->store)
        f->n_admin = admin_list(cfg->store, f->admin, FLEET_ADMINS, e);
    if (f->n_admin < 0) {
        f->n_admin = 0;
        fleet_free(f);
        return -1;
    }
    *ret = f;
    return 0;
}

void fleet_drain(struct fleet *f)
{
    router_drain(f->cfg.router);
    list_for(it, &f->units) unit_drain(list_entry(it, struct unit, link), true);
}

void fleet_stop(struct fleet *f)
{
    struct err why;

    f->stopping = true;
    router_drain(f->cfg.router);
    err_set(&why, ERR_UNAVAIL, "the server is stopping");
    list_for(it, &f->units) unit_end(list_entry(it, struct unit, link), &why);
    fleet_kick(f);
}

bool fleet_stopped(const struct fleet *f)
{
    list_for(it, &f->units)
    {
        if (list_entry(it, struct unit, link)->phase != UNIT_GONE)
            return false;
    }
    return true;
}

void fleet_free(struct fleet *f)
{
    if (!f)
        return;
    list_for_safe(it, tmp, &f->units)
    {
        list_del(it);
        unit_free(list_entry(it, struct unit, link));
    }
    for (int i = 0; i < f->job.n; i++)
        unit_spec_done(&f->job.v[i].spec);
    free(f->job.v);
    conf_unref(f->job.to);
    conf_unref(f->conf);
    need_free(f->need);
    layouts_free(f->layouts);
    loop_timer_free(f->timer);
    free(f);
}

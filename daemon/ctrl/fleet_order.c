/* daemon/ctrl/fleet_order.c - what operators order of single instances.
 *
 * An order is stored before it has an effect; one that cannot be stored has none. Start
 * and restart are jobs of one slot an engine, as an apply has them. The name of an
 * instance whose engines are in pools means all of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/ctrl/fleet_int.h"

static const char *const names[] = {
    [FLEET_ORDER_START] = "instance.start",     [FLEET_ORDER_STOP] = "instance.stop",
    [FLEET_ORDER_RESTART] = "instance.restart", [FLEET_ORDER_DRAIN] = "instance.drain",
    [FLEET_ORDER_UNDRAIN] = "instance.undrain", [FLEET_ORDER_WIPE] = "instance.wipe",
};

struct order {
    struct fleet *f;
    enum fleet_order kind;
    const char *actor, *origin, *reason;
    const struct conf *conf; /* that the instance stands in, borrowed */
    const struct conf_instance *inst;
    struct unit *unit; /* NULL: none was ever started */
};

static int find(struct order *o, const char *instance, struct err *e)
{
    struct fleet *f = o->f;
    struct buf have;

    o->unit = fleet_unit(f, instance);
    o->conf = f->conf;
    o->inst = f->conf ? conf_instance(f->conf, instance) : NULL;
    if (!o->inst && o->unit) {
        o->conf = o->unit->conf;
        o->inst = o->unit->inst;
    }
    if (o->inst)
        return 0;
    buf_init(&have, 0);
    for (int i = 0; f->conf && i < f->conf->n_instances; i++)
        buf_printf(&have, "%s'%s'", i ? ", " : "", f->conf->instances[i].name);
    err_set(e, ERR_NOTFOUND, "there is no instance '%.64s'; there is %s", instance,
            have.len ? have.p : "none");
    buf_done(&have);
    return -1;
}

/* ---- the operator's word ---- */

static const char *state_of(enum fleet_order k)
{
    return k == FLEET_ORDER_STOP ? "stopped" : k == FLEET_ORDER_DRAIN ? "draining" : "";
}

static void remember(struct fleet *f, const struct admin_row *a)
{
    int i = 0;

    while (i < f->n_admin && strcmp(f->admin[i].instance, a->instance))
        i++;
    if (a->state[0] && i < FLEET_ADMINS) {
        f->admin[i] = *a;
        f->n_admin += i == f->n_admin;
    } else if (!a->state[0] && i < f->n_admin) {
        f->admin[i] = f->admin[--f->n_admin];
    }
}

static int store_word(const struct order *o, struct err *e)
{
    struct fleet *f = o->f;
    struct admin_row a = {.at_ms = clock_wall_ms()};

    snprintf(a.instance, sizeof(a.instance), "%s", o->inst->name);
    snprintf(a.state, sizeof(a.state), "%s", state_of(o->kind));
    snprintf(a.reason, sizeof(a.reason), "by %.60s%s%.180s", o->actor,
             o->reason[0] ? ": " : "", o->reason);
    snprintf(a.actor, sizeof(a.actor), "%s", o->actor);
    if (f->cfg.store && admin_put(f->cfg.store, &a, e) < 0)
        return -1;
    remember(f, &a);
    return 0;
}

/* ---- what follows ---- */

static int may(const struct order *o, struct err *e)
{
    const char *name = o->inst->name;
    bool runs = o->unit && o->unit->phase == UNIT_RUNS;

    if (o->f->stopping)
        return err_set(e, ERR_UNAVAIL, "the server is stopping");
    if ((o->kind == FLEET_ORDER_START || o->kind == FLEET_ORDER_RESTART) && o->f->job.on)
        return err_set(e, ERR_CONFLICT,
                       "another change of the instances is under way: try again");
    if (o->kind == FLEET_ORDER_START && runs)
        return err_set(e, ERR_CONFLICT, "instance '%s' runs already", name);
    if (o->kind != FLEET_ORDER_START && o->kind != FLEET_ORDER_RESTART && !runs)
        return err_set(e, ERR_CONFLICT, "instance '%s' does not run", name);
    return 0;
}

static void start(struct order *v, int n)
{
    struct fleet *f = v->f;

    f->job = (struct job){.v = xcalloc((size_t)n, sizeof(struct slot)), .n = n};
    for (int i = 0; i < n; i++) {
        struct slot *s = &f->job.v[i];

        fleet_spec(f, v[i].conf, v[i].inst, &s->spec, s->act.refused);
        fleet_plan_new_engine(f, &s->spec, &s->act);
        snprintf(s->act.why, sizeof(s->act.why), "by %.60s", v[i].actor);
        if (v[i].unit && v[i].unit->phase != UNIT_RUNS)
            v[i].unit->halted = false; /* goes when it has ended */
    }
    fleet_begin(f);
}

static void stop(struct order *o)
{
    struct fleet *f = o->f;
    int64_t drain_s = o->conf->limits.drain_s;
    struct err why;

    err_set(&why, ERR_UNAVAIL,
            "instance '%s' was stopped and the %lld s for running requests are over",
            o->inst->name, (long long)drain_s);
    for (int i = 0; f->job.on && i < f->job.n; i++) {
        struct slot *s = &f->job.v[i];
        if (strcmp(s->act.instance, o->inst->name) || s->state == SLOT_DONE)
            continue;
        if (s->fresh && s->fresh != o->unit)
            unit_leave(s->fresh, 0, &why, NULL);
        fleet_slot_done(s);
    }
    unit_leave(o->unit, drain_s, &why, fleet_admin(f, o->inst->name)->reason);
}

/* The engines that the order is for into v; for those of a pool that it does not concern
 * (they run already, or do not) it is as if they were not there. */
static int collect(struct order *v, const char *instance, struct err *e)
{
    const struct conf *c;
    int n = 0;

    if (find(v, instance, e) < 0)
        return -1;
    if (conf_is_engine(v->inst))
        return may(v, e) < 0 ? -1 : 1;
    c = v->conf;
    for (int i = 0; i < c->n_instances; i++) {
        const char *name = c->instances[i].name;

        if (!conf_is_engine(&c->instances[i]) || !fleet_same_instance(name, instance))
            continue;
        if (n)
            v[n] = v[0]; /* all but the engine is the same */
        if (find(&v[n], name, e) == 0 && may(&v[n], e) == 0)
            n++;
    }
    return n ? n : -1;
}

static int obey(struct order *v, int n, const char *what, struct err *e)
{
    struct fleet *f = v->f;
    struct err je;

    for (int i = 0; i < n; i++) {
        const struct journal_note note = {v->actor,        v->origin, what,
                                          v[i].inst->name, "ok",      v->reason};

        if (v->kind != FLEET_ORDER_WIPE && store_word(&v[i], e) < 0)
            return -1;
        if (f->cfg.store && journal_note(f->cfg.store, &note, &je) < 0)
            log_error("the journal lacks '%s': %s", what, je.msg);
        if (v->kind == FLEET_ORDER_STOP)
            stop(&v[i]);
        else if (v->kind == FLEET_ORDER_DRAIN || v->kind == FLEET_ORDER_UNDRAIN)
            unit_drain(v[i].unit, v->kind == FLEET_ORDER_DRAIN);
        else if (v->kind == FLEET_ORDER_WIPE)
            unit_wipe(v[i].unit);
    }
    if (v->kind == FLEET_ORDER_START || v->kind == FLEET_ORDER_RESTART)
        start(v, n);
    fleet_kick(f);
    return 0;
}

int fleet_order(struct fleet *f, const char *instance, enum fleet_order kind,
                const char *actor, const char *origin, const char *reason, struct err *e)
{
    struct order *v = xcalloc(CONF_MAX_NAMES, sizeof(*v));
    int n, rc = -1;

    v[0] = (struct order){f, kind, actor, origin, reason ? reason : "", NULL, NULL, NULL};
    n = collect(v, instance, e);
    if (n > 0)
        rc = obey(v, n, names[kind], e);
    free(v);
    return rc;
}

/* daemon/ctrl/fleet_order.c - what operators order of single instances.
 *
 * An order is stored before it has an effect; one that cannot be stored has none. Start
 * and restart are jobs of one slot, as an apply has them. */
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
    [FLEET_ORDER_UNDRAIN] = "instance.undrain",
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

static void start(struct order *o)
{
    struct fleet *f = o->f;
    struct slot *s;

    f->job = (struct job){.v = xcalloc(1, sizeof(*s)), .n = 1};
    s = &f->job.v[0];
    fleet_spec(f, o->conf, o->inst, &s->spec, s->act.refused);
    fleet_plan_new_engine(f, &s->spec, &s->act);
    snprintf(s->act.why, sizeof(s->act.why), "by %.60s", o->actor);
    if (o->unit && o->unit->phase != UNIT_RUNS)
        o->unit->halted = false; /* goes when it has ended */
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

int fleet_order(struct fleet *f, const char *instance, enum fleet_order kind,
                const char *actor, const char *origin, const char *reason, struct err *e)
{
    struct order o = {f, kind, actor, origin, reason ? reason : "", NULL, NULL, NULL};
    const struct journal_note n = {actor, origin, names[kind], instance, "ok", o.reason};
    struct err je;

    if (find(&o, instance, e) < 0 || may(&o, e) < 0 || store_word(&o, e) < 0)
        return -1;
    if (f->cfg.store && journal_note(f->cfg.store, &n, &je) < 0)
        log_error("the journal lacks '%s': %s", names[kind], je.msg);
    if (kind == FLEET_ORDER_START || kind == FLEET_ORDER_RESTART)
        start(&o);
    else if (kind == FLEET_ORDER_STOP)
        stop(&o);
    else
        unit_drain(o.unit, kind == FLEET_ORDER_DRAIN);
    fleet_kick(f);
    return 0;
}

/* daemon/ctrl/fleet_plan.c - what would happen: from what runs to a conf. Changes
 * nothing.
 *
 * Memory: each engine that runs counts with what it was estimated at. A replacement that
 * fits beside everything starts beside; one that fits only without its old engine drains
 * first. What all wanted instances together need must be within the whole. An estimate of
 * 0 (not known) always fits: the engine will say. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "daemon/ctrl/fleet_int.h"
#include "daemon/ctrl/need.h"
#include "daemon/serve/engine_fit.h"

/* a->refused is left where it says something already. */
static uint64_t need_of(struct fleet *f, const struct unit_spec *s,
                        struct fleet_action *a)
{
    struct need_pool pool = {0};
    char why[256] = "";
    uint64_t n =
        f->cfg.need ? f->cfg.need(s->model_path, s->inst)
                    : need_bytes(f->need, s->model_path, s->inst, &s->layout, &pool, why);

    if (!a->refused[0])
        memcpy(a->refused, why, sizeof(why));
    a->ctx = pool.ctx;
    a->block_tok = pool.block_tok;
    return n;
}

/* That engines may use together. */
static uint64_t whole(const struct fleet *f)
{
    return f->cfg.memory_bytes ? (uint64_t)f->cfg.memory_bytes : engine_ram_bytes();
}

static uint64_t held(const struct unit *u)
{
    return u->phase == UNIT_GONE || u->failed ? 0 : u->need;
}

static uint64_t free_now(struct fleet *f)
{
    uint64_t used = 0;

    if (!f->cfg.memory_bytes)
        return need_free_bytes();
    list_for(it, &f->units) used += held(list_entry(it, struct unit, link));
    return used < whole(f) ? whole(f) - used : 0;
}

static void plan_engine(struct fleet *f, const struct unit_spec *spec,
                        const struct unit *old, struct fleet_action *a)
{
    a->need = need_of(f, spec, a);
    a->have = free_now(f);
    a->live = old ? unit_live(old) : 0;
    a->kind = !old ? FLEET_START : FLEET_REPLACE;
    if (old && a->need > a->have && unit_ready(old))
        a->kind = FLEET_DRAIN_FIRST;
}

void fleet_plan_new_engine(struct fleet *f, const struct unit_spec *spec,
                           struct fleet_action *a)
{
    const struct unit *u = fleet_unit(f, spec->inst->name);

    plan_engine(f, spec, u && u->phase == UNIT_RUNS ? u : NULL, a);
    a->fits = a->need <= whole(f);
    snprintf(a->instance, sizeof(a->instance), "%s", spec->inst->name);
}

static bool runs(struct fleet *f, const char *instance)
{
    const struct unit *u = fleet_unit(f, instance);

    return u && u->phase == UNIT_RUNS;
}

static bool starts(const struct fleet_action *a)
{
    return a->kind == FLEET_START || a->kind == FLEET_REPLACE ||
           a->kind == FLEET_DRAIN_FIRST;
}

/* Returns what it needs, while it runs or is to run. */
static uint64_t plan_wanted(struct fleet *f, const struct conf *to,
                            const struct conf_instance *i, struct fleet_action *a)
{
    const struct unit *u = fleet_unit(f, i->name);
    struct fleet_action any = {0};
    char refused[256];
    struct unit_spec spec;
    uint64_t need = 0;

    fleet_spec(f, to, i, &spec, refused);
    snprintf(a->instance, sizeof(a->instance), "%s", i->name);
    a->fits = true;
    if (!strcmp(fleet_admin(f, i->name)->state, "stopped")) {
        a->kind = FLEET_KEEP;
        snprintf(a->why, sizeof(a->why), "stopped by an operator");
        unit_spec_done(&spec);
        return 0;
    }
    need = need_of(f, &spec, &any);
    a->ctx = any.ctx;
    a->block_tok = any.block_tok;
    if (!u || u->phase != UNIT_RUNS) {
        plan_engine(f, &spec, NULL, a);
        snprintf(a->why, sizeof(a->why), "a new instance");
    } else if (unit_spec_differs(&u->spec, &spec, a->why)) {
        plan_engine(f, &spec, u, a);
    } else {
        a->kind = unit_hot_differs(u, i, a->why) ? FLEET_HOT : FLEET_KEEP;
    }
    if (starts(a) && refused[0] && !a->refused[0]) /* first what does not divide */
        memcpy(a->refused, refused, sizeof(refused));
    if (a->refused[0])
        a->fits = false;
    unit_spec_done(&spec);
    return need;
}

bool fleet_same_instance(const char *a, const char *b)
{
    size_t n = conf_name_len(a);

    return n == conf_name_len(b) && !strncmp(a, b, n);
}

/* Is any engine of its instance wanted? */
static bool instance_stays(const struct conf *to, const char *engine)
{
    for (int i = 0; i < to->n_instances; i++)
        if (fleet_same_instance(to->instances[i].name, engine))
            return true;
    return false;
}

static void plan_unwanted(const struct unit *u, const struct conf *to,
                          struct fleet_action *a)
{
    bool stays = instance_stays(to, u->inst->name);

    *a = (struct fleet_action){.kind = stays ? FLEET_RETIRE : FLEET_STOP, .fits = true};
    snprintf(a->instance, sizeof(a->instance), "%s", u->inst->name);
    snprintf(a->why, sizeof(a->why),
             stays ? "the instance has other engines" : "no longer configured");
    a->live = unit_live(u);
}

/* New engines take of what is free one after the other. Where they do not all fit beside
 * those of their instance that leave, these leave first. */
static void share_room(struct fleet_action *v, int n)
{
    uint64_t taken = 0;

    for (int i = 0; i < n; i++) {
        if (v[i].kind == FLEET_START)
            v[i].have = v[i].have > taken ? v[i].have - taken : 0;
        taken += v[i].kind == FLEET_START ? v[i].need : 0;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n && v[i].kind == FLEET_RETIRE; k++)
            if (v[k].kind == FLEET_START && v[k].need > v[k].have &&
                fleet_same_instance(v[i].instance, v[k].instance)) {
                v[i].kind = FLEET_STOP;
                snprintf(v[i].why, sizeof(v[i].why),
                         "the instance's new engines do not fit beside it");
            }
}

/* Engines of two pools hand over KV of whatever length the other takes: their contexts
 * are one, but for what blocks of another size round off. */
static void pair_pools(struct fleet_action *v, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n && starts(&v[i]) && !v[i].refused[0]; k++) {
            int block = v[i].block_tok > v[k].block_tok ? v[i].block_tok : v[k].block_tok;
            if (v[i].ctx <= 0 || v[k].ctx <= 0 ||
                !fleet_same_instance(v[i].instance, v[k].instance) ||
                (v[i].ctx < v[k].ctx + block && v[k].ctx < v[i].ctx + block))
                continue;
            snprintf(v[i].refused, sizeof(v[i].refused),
                     "its KV pool is for a context of %d tokens and that of '%s' for %d, "
                     "so that KV of a longer prompt has no room in both: one ctx, or a "
                     "kv.mib of prefill and decode that holds it, would be right",
                     v[i].ctx, v[k].instance, v[k].ctx);
            v[i].fits = false;
        }
}

/* Engines that run now, and that would: each name once. */
static int engines_now(struct fleet *f)
{
    int n = 0;

    list_for(it, &f->units)
    {
        const struct unit *u = list_entry(it, struct unit, link);

        n += u->phase == UNIT_RUNS && fleet_unit(f, u->inst->name) == u;
    }
    return n;
}

/* Engines that stay share the CPUs with others than before: they are told, nothing else.
 */
static void say_cpus(struct fleet *f, struct fleet_action *v, int n)
{
    int now = engines_now(f), then = 0;

    for (int i = 0; i < n; i++)
        then += starts(&v[i]) || (v[i].kind <= FLEET_HOT && runs(f, v[i].instance));
    for (int i = 0; i < n && now != then; i++)
        if (v[i].kind == FLEET_KEEP && runs(f, v[i].instance)) {
            v[i].kind = FLEET_HOT;
            snprintf(v[i].why, sizeof(v[i].why),
                     "engines that share out the CPUs: %d -> %d", now, then);
        }
}

int fleet_plan(struct fleet *f, const struct conf *to, struct fleet_action *ret, int max)
{
    uint64_t all = 0;
    int n = 0;

    list_for(it, &f->units)
    {
        const struct unit *u = list_entry(it, struct unit, link);
        bool stays = u->phase == UNIT_RUNS || (u->phase == UNIT_GONE && u->halted);
        const struct conf_instance *i = conf_instance(to, u->inst->name);

        if (n < max && stays && (!i || !conf_is_engine(i)))
            plan_unwanted(u, to, &ret[n++]);
    }
    for (int i = 0; i < to->n_instances && n < max; i++) {
        if (!conf_is_engine(&to->instances[i]))
            continue;
        ret[n] = (struct fleet_action){0};
        all += plan_wanted(f, to, &to->instances[i], &ret[n]);
        n++;
    }
    share_room(ret, n);
    pair_pools(ret, n);
    say_cpus(f, ret, n);
    for (int i = 0; i < n && all > whole(f); i++)
        if (starts(&ret[i]))
            ret[i].fits = false;
    return n;
}

int fleet_nofit(const struct fleet_action *a, struct err *e)
{
    if (a->refused[0])
        return err_set(e, ERR_INVALID, "instance '%s': %s", a->instance, a->refused);
    return err_set(e, ERR_NOFIT,
                   "instance '%s' needs %llu MiB and that does not fit beside the other "
                   "instances: lower kv.mib or ctx, or remove one",
                   a->instance, (unsigned long long)(a->need >> 20));
}

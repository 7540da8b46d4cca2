/* daemon/ctrl/unit_hot.c - an instance's values that change while its engine runs.
 *
 * Those that requests take are in the target, limits and the order of prompts in the
 * supervisor, those of experts with their controller. See unit.h. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/experts.h"
#include "daemon/ctrl/quality.h"
#include "daemon/ctrl/supervisor.h"
#include "daemon/ctrl/target.h"
#include "daemon/ctrl/unit.h"
#include "daemon/serve/wire.h"

enum { STUCK_COLOCATED = 30 /* times: a step there may be a whole prompt */ };

static int64_t stuck_us(const struct conf_instance *i)
{
    return i->stuck_s * 1000000 * (i->mode == SCHED_COLOCATED ? STUCK_COLOCATED : 1);
}

/* Does what it answers differ from its model without a measurement that allows it? */
static bool on_trial(const struct unit *u)
{
    struct err e;

    if (!u->env->store || quality_allows(u->env->store, u->conf, u->inst, NULL, &e) == 0)
        return false;
    log_warn("%s answers administrators alone: %s", u->inst->name, e.msg);
    return true;
}

static void set_hot(struct unit *u)
{
    const struct conf_instance *i = u->inst;
    struct served_hot h = {(float)i->sampling.temperature,
                           (float)i->sampling.top_p,
                           i->kv.isolate,
                           i->on_engine_loss == CONF_LOSS_RECOMPUTE,
                           i->restart_wait_s * 1000000,
                           i->handoff.stall_ms * 1000,
                           .trial = on_trial(u)};

    target_set_hot(u->target, &h);
}

void unit_hot_first(struct unit *u, struct supervisor_cfg *c)
{
    const struct conf_instance *i = u->inst;

    set_hot(u);
    c->stuck_us = stuck_us(i);
    c->answer_us = i->answer_ms * 1000;
    c->silent_us = i->stuck_s * 1000000;
}

bool unit_hot_differs(const struct unit *u, const struct conf_instance *to, char why[160])
{
    const struct conf_instance *i = u->inst;

    why[0] = '\0';
    if (i->sampling.temperature != to->sampling.temperature)
        snprintf(why, 160, "sampling.temperature %g -> %g", i->sampling.temperature,
                 to->sampling.temperature);
    else if (i->sampling.top_p != to->sampling.top_p)
        snprintf(why, 160, "sampling.top_p %g -> %g", i->sampling.top_p,
                 to->sampling.top_p);
    else if (i->kv.isolate != to->kv.isolate)
        snprintf(why, 160, "kv.isolate");
    else if (i->stuck_s != to->stuck_s)
        snprintf(why, 160, "stuck_s %lld -> %lld", (long long)i->stuck_s,
                 (long long)to->stuck_s);
    else if (i->answer_ms != to->answer_ms)
        snprintf(why, 160, "answer_ms %lld -> %lld", (long long)i->answer_ms,
                 (long long)to->answer_ms);
    else if (i->on_engine_loss != to->on_engine_loss)
        snprintf(why, 160, "on_engine_loss");
    else if (i->restart_wait_s != to->restart_wait_s)
        snprintf(why, 160, "restart_wait_s %lld -> %lld", (long long)i->restart_wait_s,
                 (long long)to->restart_wait_s);
    else if (i->order != to->order)
        snprintf(why, 160, "order");
    else if (i->refuse_late != to->refuse_late)
        snprintf(why, 160, "refuse_late");
    else if (i->prefill_run != to->prefill_run)
        snprintf(why, 160, "prefill_run %lld -> %lld", (long long)i->prefill_run,
                 (long long)to->prefill_run);
    else if (i->handoff.stall_ms != to->handoff.stall_ms)
        snprintf(why, 160, "handoff.stall_ms %lld -> %lld",
                 (long long)i->handoff.stall_ms, (long long)to->handoff.stall_ms);
    else if (memcmp(&i->experts, &to->experts, sizeof(i->experts)))
        snprintf(why, 160, "experts");
    else if (memcmp(&i->slo, &to->slo, sizeof(i->slo)))
        snprintf(why, 160, "slo");
    return why[0] != '\0';
}

void unit_hot(struct unit *u, const struct conf *c, const struct conf_instance *i)
{
    struct conf *next = conf_ref(c);

    conf_unref(u->conf);
    u->conf = next;
    u->inst = i;
    set_hot(u);
    if (u->env->experts)
        experts_conf(u->env->experts, u, i);
    supervisor_set_limits(u->sup, stuck_us(i), i->answer_ms * 1000, i->stuck_s * 1000000);
    supervisor_set_policy(u->sup,
                          &(struct wire_policy){.order = i->order,
                                                .refuse_late = i->refuse_late,
                                                .prefill_run = (int32_t)i->prefill_run});
}

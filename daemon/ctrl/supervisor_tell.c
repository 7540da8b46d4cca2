/* daemon/ctrl/supervisor_tell.c - what an engine is told while it runs, and remembered
 * for the one after it. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpuset.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "daemon/ctrl/child.h"
#include "daemon/ctrl/supervisor_impl.h"

void supervisor_tell_cpus(struct supervisor *s)
{
    child_cpus(s->child, s->rank_cpus);
    s->moved_on = false;
    s->st.n_threads = s->n_threads;
    target_set_status(s->cfg.target, &s->st);
}

void supervisor_drain(struct supervisor *s, bool on)
{
    s->draining = on;
    target_drain(s->cfg.target, on);
    if (!supervisor_is_ready(s))
        return;
    supervisor_enter(s, on ? INSTANCE_DRAINING : INSTANCE_READY);
    if (on && target_has_other(s->cfg.target))
        child_yield(s->child);
}

void supervisor_wipe(struct supervisor *s)
{
    if (supervisor_is_ready(s))
        child_wipe(s->child);
}

void supervisor_set_spin(struct supervisor *s, bool on)
{
    if (s->no_spin == !on)
        return;
    s->no_spin = !on;
    if (s->told && s->child)
        child_spin(s->child, on);
}

void supervisor_set_cpus(struct supervisor *s, const cpu_set_t *all, const char *by_rank,
                         int n_threads)
{
    if (s->rank_cpus && !strcmp(s->rank_cpus, by_rank) && s->n_threads == n_threads)
        return;
    free(s->rank_cpus);
    s->rank_cpus = xstrdup(by_rank);
    s->cpus = *all;
    s->n_threads = n_threads;
    s->moved_on = s->child != NULL;
    cpuset_print(all, s->st.cpus, sizeof(s->st.cpus));
    target_set_status(s->cfg.target, &s->st);
    if (s->child)
        log_about(LOG_LV_INFO, &(struct log_about){.instance = s->cfg.instance},
                  "'%s': its CPUs are %s from now on, %d threads", s->st.model,
                  s->st.cpus, n_threads);
    if (s->told && s->child)
        supervisor_tell_cpus(s);
}

void supervisor_set_policy(struct supervisor *s, const struct wire_policy *p)
{
    if (s->has_policy && !memcmp(&s->policy, p, sizeof(*p)))
        return;
    s->policy = *p;
    s->has_policy = true;
    if (s->told && s->child)
        child_policy(s->child, p);
}

bool supervisor_experts(struct supervisor *s, const struct wire_expert_orders *o)
{
    return s->child && s->told && child_experts(s->child, o);
}

void supervisor_set_limits(struct supervisor *s, int64_t stuck_us, int64_t answer_us,
                           int64_t silent_us)
{
    s->cfg.stuck_us = stuck_us;
    s->cfg.answer_us = answer_us;
    s->cfg.silent_us = silent_us;
    if (!answer_us)
        supervisor_watch_from_now(s);
    loop_timer_set(s->tick, clock_now_us(clock_real()) + supervisor_tick_us(s));
}

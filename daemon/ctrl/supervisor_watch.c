/* daemon/ctrl/supervisor_watch.c - does an engine get on? See supervisor.c. */
#include <stdio.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/metric.h"
#include "daemon/ctrl/child.h"
#include "daemon/ctrl/split.h"
#include "daemon/ctrl/supervisor_impl.h"
#include "daemon/serve/metrics.h"

/* A watch is checked so many times within its limit. */
enum { TICKS = 8 };

/* The limit that applies now, 0 = none; *ret_moved: there was a sign of life. */
static int64_t watch_limit(struct supervisor *s, bool *ret_moved)
{
    double steps = metric_get(target_page(s->cfg.target), M_STEPS, 0);
    int sent;

    switch (s->st.state) {
    case INSTANCE_STARTING:
        *ret_moved = s->loader != NULL;
        return s->cfg.hello_us;
    case INSTANCE_LOADING:
        *ret_moved = s->st.load_done != s->load_done;
        s->load_done = s->st.load_done;
        return s->cfg.load_us;
    case INSTANCE_READY:
    case INSTANCE_DRAINING:
        target_live(s->cfg.target, &sent);
        *ret_moved = sent == 0 || steps != s->steps;
        s->steps = steps;
        return s->cfg.stuck_us;
    default:
        return 0;
    }
}

static void kill_stuck(struct supervisor *s, int64_t limit)
{
    static const char *const what[INSTANCE_STATE_COUNT] = {
        [INSTANCE_STARTING] = "the engine has said nothing",
        [INSTANCE_LOADING] = "loading has not got on",
        [INSTANCE_READY] = "no step has ended while requests are pending",
        [INSTANCE_DRAINING] = "no step has ended while requests are pending",
    };
    struct err e;

    err_set(&e, ERR_TIMEOUT, "%s for %.1f s", what[s->st.state], (double)limit / 1e6);
    child_kill(s->child, &e);
}

int64_t supervisor_tick_us(const struct supervisor *s)
{
    int64_t t = s->cfg.hello_us, stall = split_patience(s->cfg.target);

    t = s->cfg.load_us < t ? s->cfg.load_us : t;
    if (s->cfg.stuck_us)
        t = s->cfg.stuck_us < t ? s->cfg.stuck_us : t;
    if (stall)
        t = stall < t ? stall : t;
    return t / TICKS;
}

static void look_for_stall(struct supervisor *s, int64_t now)
{
    char detail[128];
    int n;

    if (!supervisor_is_ready(s) || !split_watch(s->cfg.target, now, &n))
        return;
    snprintf(detail, sizeof(detail),
             "no step has ended for %.1f s or more: %d prompts go to decode engines",
             (double)split_patience(s->cfg.target) / 1e6, n);
    supervisor_note(s, "engine.stalled", "failed", detail);
    log_about(LOG_LV_WARN, &(struct log_about){.instance = s->cfg.instance}, "'%s': %s",
              s->cfg.instance, detail);
}

void supervisor_tick(void *arg)
{
    struct supervisor *s = arg;
    bool moved = true;
    int64_t limit = watch_limit(s, &moved), now = clock_now_us(clock_real());

    look_for_stall(s, now);
    if (moved)
        s->moved_us = now;
    else if (limit && s->child && now - s->moved_us >= limit)
        kill_stuck(s, limit);
    if (!supervisor_is_ready(s))
        target_sweep(s->cfg.target);
    loop_timer_set(s->tick, now + supervisor_tick_us(s));
}

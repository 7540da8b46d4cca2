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

/* A watch is checked so many times within its limit, but not more often than so. */
enum { TICKS = 8, TICK_MIN_US = 10000 };

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
    t /= TICKS;
    if (s->cfg.answer_us)
        t = s->cfg.answer_us / PULSE_LOOKS < t ? s->cfg.answer_us / PULSE_LOOKS : t;
    return t < TICK_MIN_US ? TICK_MIN_US : t;
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

/* ---- alarms ---- */

static void say_trouble(struct supervisor *s, enum alarm_engine kind)
{
    const char *why = s->trouble[kind];

    if (s->cfg.trouble)
        s->cfg.trouble(s->cfg.arg, kind, why[0] ? why : NULL);
}

void supervisor_trouble(struct supervisor *s, enum alarm_engine kind, const char *why)
{
    char *is = s->trouble[kind];

    if (!why && !is[0])
        return;
    snprintf(is, sizeof(s->trouble[kind]), "%s", why ? why : "");
    say_trouble(s, kind);
}

/* An engine that is replaced has the name of the one that comes, and ends its alarm. */
static void say_again(struct supervisor *s)
{
    for (int k = 0; k < ALARM_ENGINE_COUNT; k++)
        if (s->trouble[k][0])
            say_trouble(s, (enum alarm_engine)k);
}

/* ---- signs of life ---- */

void supervisor_watch_from_now(struct supervisor *s)
{
    pulse_start(&s->pulse, clock_now_us(clock_real()));
    s->pulse_steps = metric_get(target_page(s->cfg.target), M_STEPS, 0);
    target_set_silent(s->cfg.target, 0);
    supervisor_trouble(s, ALARM_ENGINE_SILENT, NULL);
}

static void tell_life(struct supervisor *s, bool alive, const char *detail)
{
    char row[256];

    snprintf(row, sizeof(row), "%s: %s", s->cfg.instance, detail);
    supervisor_note(s, "engine.silent", alive ? "ok" : "failed", row);
    log_about(alive ? LOG_LV_INFO : LOG_LV_WARN,
              &(struct log_about){.instance = s->cfg.instance}, "'%s': %s",
              s->cfg.instance, detail);
}

void supervisor_heard(struct supervisor *s)
{
    char detail[64];

    snprintf(detail, sizeof(detail), "it answers again after %.1f s",
             (double)s->pulse.quiet_us / 1e6);
    if (!pulse_heard(&s->pulse))
        return;
    target_set_silent(s->cfg.target, 0);
    supervisor_trouble(s, ALARM_ENGINE_SILENT, NULL);
    tell_life(s, true, detail);
}

static void on_silent(struct supervisor *s, int64_t now)
{
    char detail[160], then[64] = "it is not restarted";

    if (s->cfg.silent_us)
        snprintf(then, sizeof(then), "it is restarted after %.1f s",
                 (double)s->cfg.silent_us / 1e6);
    snprintf(
        detail, sizeof(detail),
        "the engine has given no sign of life for %.1f s: new requests go to others; "
        "%s",
        (double)s->pulse.quiet_us / 1e6, then);
    target_set_silent(s->cfg.target, now - s->pulse.quiet_us);
    supervisor_trouble(s, ALARM_ENGINE_SILENT, detail);
    tell_life(s, false, detail);
}

/* What it has, as long as it is silent. */
static void pass_on(struct supervisor *s)
{
    int n = split_pass_on(s->cfg.target) + target_pass_on(s->cfg.target);

    if (n)
        log_about(LOG_LV_WARN, &(struct log_about){.instance = s->cfg.instance},
                  "'%s': %d requests go on without its engine", s->cfg.instance, n);
}

static void look_for_life(struct supervisor *s, int64_t now)
{
    double steps = metric_get(target_page(s->cfg.target), M_STEPS, 0);
    struct err e;

    if (!supervisor_is_ready(s) || !s->child || s->stopping)
        return;
    if (steps != s->pulse_steps)
        supervisor_heard(s);
    s->pulse_steps = steps;
    switch (pulse_look(&s->pulse, now, s->cfg.answer_us)) {
    case PULSE_ASK:
        child_ping(s->child);
        break;
    case PULSE_SILENT:
        on_silent(s, now);
        break;
    case PULSE_NOTHING:
        break;
    }
    if (s->pulse.silent)
        pass_on(s);
    if (!s->pulse.silent || !s->cfg.silent_us || s->pulse.quiet_us < s->cfg.silent_us)
        return;
    err_set(&e, ERR_TIMEOUT, "the engine has not answered for %.1f s",
            (double)s->pulse.quiet_us / 1e6);
    child_kill(s->child, &e);
}

void supervisor_tick(void *arg)
{
    struct supervisor *s = arg;
    bool moved = true;
    int64_t limit = watch_limit(s, &moved), now = clock_now_us(clock_real());

    look_for_stall(s, now);
    look_for_life(s, now);
    say_again(s);
    if (moved)
        s->moved_us = now;
    else if (limit && s->child && now - s->moved_us >= limit)
        kill_stuck(s, limit);
    if (!supervisor_is_ready(s))
        target_sweep(s->cfg.target);
    loop_timer_set(s->tick, now + supervisor_tick_us(s));
}

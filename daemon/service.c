/* daemon/service.c - notices to the service manager, on a timer of the control loop. */
#include "daemon/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/systemd.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/router.h"

enum {
    TICK_US = 2000000,        /* at the latest; half of the watchdog's period if less */
    EXTEND_US = 30000000,     /* asked for while a model loads */
    STOP_SPARE_US = 20000000, /* beside the drain */
};

struct service {
    struct service_cfg cfg;
    struct loop_timer *timer;
    int64_t every_us;
    bool watched, stuck, stopping;
    char told[256];
};

void service_starting(int64_t within_us)
{
    systemd_notify("EXTEND_TIMEOUT_USEC=%lld\nSTATUS=starting", (long long)within_us);
}

bool service_line(struct router *r, bool draining, char *text, size_t cap)
{
    struct instance_status *st = xcalloc(CONF_MAX_NAMES, sizeof(*st)), *loading = NULL;
    int n = router_instances(r, st, CONF_MAX_NAMES), ready = 0;

    for (int i = 0; i < n; i++) {
        ready += st[i].state == INSTANCE_READY;
        if (st[i].state == INSTANCE_LOADING)
            loading = &st[i];
    }
    snprintf(text, cap, "%s%d of %d instances ready", draining ? "draining; " : "", ready,
             n);
    if (loading && !draining)
        snprintf(text + strlen(text), cap - strlen(text), "; '%s' loads, %.0f %%",
                 loading->name, loading->load_done * 100);
    n = loading != NULL;
    free(st);
    return n;
}

static void feed(struct service *s)
{
    bool alive = s->cfg.alive(s->cfg.arg);

    if (alive)
        systemd_notify("WATCHDOG=1");
    else if (!s->stuck)
        log_error("a thread makes no progress: the watchdog is not fed");
    s->stuck = !alive;
}

static void tell(struct service *s)
{
    char text[sizeof(s->told)] = "";
    bool loading = s->cfg.status(s->cfg.arg, text, sizeof(text));

    for (char *p = text; *p; p++)
        *p = *p == '\n' ? ' ' : *p;
    if (loading && !s->stopping)
        systemd_notify("EXTEND_TIMEOUT_USEC=%d", EXTEND_US);
    if (!strcmp(text, s->told))
        return;
    memcpy(s->told, text, sizeof(s->told));
    systemd_notify("STATUS=%s", text);
}

static void on_tick(void *arg)
{
    struct service *s = arg;

    if (s->watched)
        feed(s);
    tell(s);
    loop_timer_set(s->timer, clock_now_us(clock_real()) + s->every_us);
}

struct service *service_new(const struct service_cfg *cfg)
{
    struct service *s = xcalloc(1, sizeof(*s));
    int64_t watchdog = systemd_watchdog_us();

    s->cfg = *cfg;
    s->watched = watchdog > 0;
    s->every_us = watchdog && watchdog / 2 < TICK_US ? watchdog / 2 : TICK_US;
    s->timer = loop_timer_new(cfg->loop, on_tick, s);
    return s;
}

void service_free(struct service *s)
{
    if (!s)
        return;
    loop_timer_free(s->timer);
    free(s);
}

void service_ready(struct service *s)
{
    systemd_notify("READY=1");
    on_tick(s);
}

void service_reload(struct service *s, bool begins)
{
    (void)s;
    if (begins)
        systemd_reloading();
    else
        systemd_notify("READY=1");
}

void service_stopping(struct service *s, int64_t within_us)
{
    s->stopping = true;
    systemd_notify("STOPPING=1\nEXTEND_TIMEOUT_USEC=%lld",
                   (long long)(within_us + STOP_SPARE_US));
    tell(s);
}

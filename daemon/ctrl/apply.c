/* daemon/ctrl/apply.c - confmgr_ops on the real daemon. */
#include "daemon/ctrl/apply.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/fleet.h"
#include "daemon/ctrl/guard.h"
#include "daemon/ctrl/router.h"
#include "daemon/ctrl/slo.h"

enum { ACTIONS = 2 * CONF_MAX_NAMES };

static const char *action_name(enum fleet_action_kind k)
{
    static const char *const names[] = {"keep",        "hot",    "start", "replace",
                                        "drain first", "retire", "stop"};

    return names[k];
}

static int apply(void *arg, const struct conf *to,
                 void (*done)(void *arg2, const struct err *why), void *arg2,
                 struct err *e)
{
    struct apply *a = arg;

    return fleet_apply(a->fleet, to, done, arg2, e);
}

static void runs(void *arg, const struct conf *c, int64_t id)
{
    struct apply *a = arg;

    if (a->runs)
        a->runs(a->arg, c, id);
}

static void put_action(struct jw *w, const struct fleet_action *x)
{
    jw_obj(w);
    jw_kstr(w, "action", action_name(x->kind));
    jw_kstr(w, "instance", x->instance);
    jw_kstr(w, "why", x->why);
    jw_kint(w, "live", x->live);
    jw_kint(w, "need_bytes", (int64_t)x->need);
    jw_kint(w, "have_bytes", (int64_t)x->have);
    jw_kbool(w, "fits", x->fits);
    jw_obj_end(w);
}

/* The first that cannot be; of those that lack room all together, since each may have
 * enough alone. */
static int refusal(const struct fleet_action *v, int n, struct err *e)
{
    const struct fleet_action *first = NULL;
    unsigned long long need = 0;
    int many = 0;

    for (int i = 0; i < n; i++) {
        if (v[i].refused[0])
            return err_set(e, ERR_INVALID, "instance '%s': %s", v[i].instance,
                           v[i].refused);
        if (v[i].fits)
            continue;
        first = first ? first : &v[i];
        need += v[i].need;
        many++;
    }
    if (!first)
        return 0;
    if (many > 1)
        return err_set(
            e, ERR_NOFIT,
            "%d engines ('%s' ..) need %llu MiB together and %llu MiB are "
            "free: fewer engines, or a lower kv.mib, kv.host_mib or ctx, would "
            "be right",
            many, first->instance, need >> 20, (unsigned long long)(first->have >> 20));
    return err_set(e, ERR_NOFIT,
                   "instance '%s' needs %llu MiB and does not fit, %llu MiB are free: a "
                   "lower kv.mib, kv.host_mib or ctx would be right",
                   first->instance, need >> 20, (unsigned long long)(first->have >> 20));
}

/* "actions": [..], "requests": those that would be drained. */
static int describe(void *arg, const struct conf *to, struct buf *json, struct err *e)
{
    struct apply *a = arg;
    struct fleet_action *x;
    int n, requests = 0, rc;
    struct jw w;

    if (a->check && a->check(a->arg, to, e) < 0) { /* no file of it was opened */
        buf_puts(json, "\"actions\":[],\"requests\":0");
        return -1;
    }
    x = xcalloc(ACTIONS, sizeof(*x));
    n = fleet_plan(a->fleet, to, x, ACTIONS);
    buf_puts(json, "\"actions\":");
    jw_init(&w, json);
    jw_arr(&w);
    for (int i = 0; i < n; i++) {
        put_action(&w, &x[i]);
        requests += x[i].live;
    }
    rc = refusal(x, n, e);
    jw_arr_end(&w);
    buf_printf(json, ",\"requests\":%d", requests);
    free(x);
    return rc;
}

static void raise_or_clear(void *arg, const char *id, bool on, const char *text)
{
    struct apply *a = arg;

    if (on)
        alarm_raise(a->alarms, id, ALARM_CRITICAL, text);
    else
        alarm_clear(a->alarms, id);
}

/* Every wanted engine takes requests. */
static bool all_ready(struct apply *a)
{
    struct instance_status *s = xcalloc(ACTIONS, sizeof(*s));
    int n = router_instances(a->router, s, ACTIONS), ready = 0;
    struct conf *c = fleet_conf(a->fleet);
    bool all = c != NULL;

    for (int i = 0; c && i < c->n_instances && all; i++) {
        ready = !conf_is_engine(&c->instances[i]);
        for (int k = 0; k < n && !ready; k++)
            ready =
                s[k].state == INSTANCE_READY && !strcmp(s[k].name, c->instances[i].name);
        all = ready;
    }
    conf_unref(c);
    free(s);
    return all;
}

static void window(void *arg, int64_t from_us, struct guard_window *ret)
{
    struct apply *a = arg;

    slo_window(a->slo, from_us, clock_now_us(clock_real()), ret);
    ret->ready = all_ready(a);
}

static void figures(void *arg, int64_t from_us, struct buf *json)
{
    struct apply *a = arg;
    int64_t now = clock_now_us(clock_real());

    slo_json(a->slo, now, (now - from_us) / 1000000, json);
}

struct confmgr_ops apply_ops(struct apply *a)
{
    return (struct confmgr_ops){
        .apply = apply,
        .runs = runs,
        .window = window,
        .figures = figures,
        .describe = describe,
        .alarm = raise_or_clear,
        .arg = a,
    };
}

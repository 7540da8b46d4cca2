/* daemon/ctrl/chores.c - the store looked after. */
#include "daemon/ctrl/chores.h"

#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/linkwatch.h"
#include "daemon/ctrl/pairview.h"
#include "daemon/ctrl/slo.h"
#include "daemon/serve/metrics.h"
#include "state/store.h"

enum { MINUTE_US = 60000000 };
enum { DAY_MS = 24 * 3600 * 1000 };

static void alarm_if(struct chores *c, bool bad, const char *id, enum alarm_severity s,
                     const char *text)
{
    if (bad)
        alarm_raise(c->alarms, id, s, text);
    else
        alarm_clear(c->alarms, id);
}

static void tell_backup(struct chores *c)
{
    if (c->page)
        metric_set(c->page, M_BACKUP_TIME, 0,
                   (double)store_backup_newest(c->store) / 1e3);
}

static void slow_ones(struct chores *c, int64_t wall_ms)
{
    struct err e = {0};
    int made;

    alarm_if(
        c, !store_tend(c->store), "state.disk", ALARM_MAJOR,
        "the disk of the state is full or nearly so: changes may be refused, and the "
        "room kept for roll-back and journal is in use");
    made = store_backup_due(c->store, wall_ms, DAY_MS, CHORES_BACKUPS_KEPT, &e);
    alarm_if(c, made < 0, "state.backup", ALARM_MAJOR, e.msg);
    if (made > 0)
        log_info("the state was copied to its backups; the last %d are kept",
                 CHORES_BACKUPS_KEPT);
    tell_backup(c);
}

static void look_at_links(struct chores *c, int64_t now_us)
{
    struct domain_view *own = c->domain ? domain_get(c->domain) : NULL;
    struct pair_view *v;
    int n = pairview_get(c->router, &v);

    linkwatch_look(c->links, own, v, n, now_us);
    domain_put(own);
}

void chores_tick(struct chores *c, int64_t now_us, int64_t wall_ms)
{
    struct err e = {0};

    alarm_if(c, slo_tick(c->slo, c->store, now_us, wall_ms, &e) < 0, "state.slo",
             ALARM_WARNING, e.msg);
    if (now_us >= c->look_us) {
        c->look_us = now_us + LINK_LOOK_US;
        look_at_links(c, now_us);
    }
    if (!c->minute_us) {
        c->minute_us = now_us + MINUTE_US; /* a start has better things to do */
        tell_backup(c);
    }
    if (now_us < c->minute_us)
        return;
    c->minute_us = now_us + MINUTE_US;
    slow_ones(c, wall_ms);
}

void chores_end(struct chores *c, int64_t now_us, int64_t wall_ms)
{
    struct err e;

    if (slo_tick(c->slo, c->store, now_us, wall_ms + MINUTE_US / 1000, &e) < 0)
        log_error("the last minute's SLO figures are not kept: %s", e.msg);
}

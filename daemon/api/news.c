/* daemon/api/news.c - operations and events of one server.
 *
 * Journal rows, alarms and operations are told as they come. Changes of instances and log
 * lines are found by the timer: it compares snapshots, since they come from threads and
 * places that must not know of readers. */
#include "daemon/api/news.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/logring.h"
#include "base/loop.h"
#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/events.h"
#include "daemon/api/handler.h"
#include "daemon/api/operation.h"
#include "daemon/api/rows.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/router.h"
#include "state/revision.h"
#include "state/store.h"

enum { TICK_US = 200000, INSTANCES_MAX = 64, LINES_A_TICK = 200 };

struct news {
    struct http *h;
    struct operations *ops;
    struct events *events;
    struct loop_timer *timer;
    struct {
        char name[64];
        int pid;
        enum instance_state state;
    } seen[INSTANCES_MAX];
    int n_seen;
    bool knows; /* seen[] is filled */
    uint64_t log_seq;
    pthread_mutex_t lock;
    struct rev_point point; /* under the lock */
};

static void arm(struct news *n)
{
    loop_timer_set(n->timer, clock_now_us(clock_real()) + TICK_US);
}

/* One event, its data written by put. */
static void tell(struct news *n, enum event_kind kind,
                 void (*put)(struct jw *w, const void *row), const void *row)
{
    struct buf b;
    struct jw w;

    if (!events_wanted(n->events, kind))
        return;
    buf_init(&b, 0);
    jw_init(&w, &b);
    put(&w, row);
    events_tell(n->events, kind, b.p);
    buf_done(&b);
}

static void on_operation(void *arg, const struct operation *op)
{
    tell(arg, EVENT_OPERATION, rows_operation, op);
}

/* Each change of the point is stored together with a journal row. */
static void look_at_point(struct news *n)
{
    struct rev_point p;
    struct err e;

    if (!n->h->cfg.store || rev_point_get(n->h->cfg.store, &p, &e) < 0)
        return; /* what was known stays */
    pthread_mutex_lock(&n->lock);
    n->point = p;
    pthread_mutex_unlock(&n->lock);
}

void news_point(struct news *n, struct rev_point *ret)
{
    *ret = (struct rev_point){0};
    if (!n)
        return;
    pthread_mutex_lock(&n->lock);
    *ret = n->point;
    pthread_mutex_unlock(&n->lock);
}

void news_journal(struct news *n, const struct journal_row *r)
{
    if (!n)
        return;
    look_at_point(n);
    tell(n, EVENT_JOURNAL, rows_journal, r);
}

void news_alarm(struct news *n, const struct alarm_status *a)
{
    if (n)
        tell(n, EVENT_ALARM, rows_alarm, a);
}

static void tell_instances(struct news *n)
{
    struct instance_status *s = xcalloc(INSTANCES_MAX, sizeof(*s));
    int n_now = router_instances(n->h->router, s, INSTANCES_MAX);

    for (int i = 0; i < n_now; i++) {
        bool same = i < n->n_seen && !strcmp(n->seen[i].name, s[i].name) &&
                    n->seen[i].pid == s[i].pid && n->seen[i].state == s[i].state;

        if (n->knows && !same)
            tell(n, EVENT_INSTANCE, rows_instance, &s[i]);
        memcpy(n->seen[i].name, s[i].name, sizeof(n->seen[i].name));
        n->seen[i].pid = s[i].pid;
        n->seen[i].state = s[i].state;
    }
    n->n_seen = n_now;
    n->knows = true;
    free(s);
}

static void tell_log(struct news *n)
{
    struct logring_line lines[LINES_A_TICK];
    int count = 0;

    if (events_wanted(n->events, EVENT_LOG))
        count = logring_get(n->log_seq, lines, LINES_A_TICK);
    else
        n->log_seq = logring_last();
    for (int i = 0; i < count; i++) {
        tell(n, EVENT_LOG, rows_log, &lines[i]);
        n->log_seq = lines[i].seq;
        free(lines[i].text);
    }
}

static void on_tick(void *arg)
{
    struct news *n = arg;
    int64_t now = clock_now_us(clock_real());
    int running = operations_tick(n->ops, now), readers;

    if (events_wanted(n->events, EVENT_INSTANCE))
        tell_instances(n);
    else
        n->knows = false;
    tell_log(n);
    readers = events_tick(n->events, now);
    if (running || readers)
        arm(n);
}

struct news *news_new(struct http *h)
{
    struct news *n = xcalloc(1, sizeof(*n));

    n->h = h;
    n->ops = operations_new(on_operation, n);
    n->events = events_new();
    n->timer = loop_timer_new(h->cfg.loop, on_tick, n);
    pthread_mutex_init(&n->lock, NULL);
    look_at_point(n);
    return n;
}

void news_free(struct news *n)
{
    if (!n)
        return;
    loop_timer_free(n->timer);
    events_free(n->events);
    operations_free(n->ops);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

struct operations *news_operations(struct news *n) { return n->ops; }

int news_join(struct news *n, struct conn *c, unsigned kinds, struct err *e)
{
    if (!events_wanted(n->events, EVENT_LOG))
        n->log_seq = logring_last();
    if (events_join(n->events, c, kinds, e) < 0)
        return -1;
    if (kinds & 1u << EVENT_INSTANCE && !n->knows)
        tell_instances(n);
    arm(n);
    return 0;
}

void news_start(struct news *n, struct conn *c, const char *kind, const char *subject,
                const struct operation_watch *w, const char *members)
{
    char id[OPERATION_ID];
    struct reply r;
    struct err e;

    if (operation_start(n->ops, kind, subject, c->who.actor, w, id, &e) < 0) {
        conn_answer_err(c, &e);
        return;
    }
    arm(n);
    reply_open(&r);
    if (members[0]) {
        buf_puts(&r.b, members);
        buf_puts(&r.b, ",");
    }
    reply_operation(c, &r, id);
}

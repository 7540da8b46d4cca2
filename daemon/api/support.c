/* daemon/api/support.c - what those who help need, in one answer, and the limits.
 *
 * No prompt, no answer and no secret: what the server keeps of requests are numbers, and
 * texts of the store are struck out where they look secret (stored.h). */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/logring.h"
#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/control.h"
#include "daemon/api/events.h"
#include "daemon/api/handler.h"
#include "daemon/api/news.h"
#include "daemon/api/operation.h"
#include "daemon/api/rows.h"
#include "daemon/api/rules.h"
#include "daemon/api/server.h"
#include "daemon/api/stored.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/domain.h"
#include "state/revision.h"
#include "state/store.h"
#include "topo/file.h"
#include "topo/finding.h"

enum { ALARMS_MAX = 512 };

/* ---- limits ---- */

static void put_limits(struct conn *c, struct jw *w)
{
    const struct rules *r = c->rules;
    struct rlimit files = {0};

    getrlimit(RLIMIT_NOFILE, &files);
    jw_obj(w);
    jw_kint(w, "max_connections", r->max_connections);
    jw_kint(w, "connections", atomic_load(&c->h->connections));
    jw_kint(w, "max_body_bytes", (int64_t)r->max_body);
    jw_kint(w, "max_upload_bytes", (int64_t)SPOOL_MAX);
    jw_knum(w, "header_s", (double)r->header_us / 1e6);
    jw_knum(w, "body_s", (double)r->body_us / 1e6);
    jw_knum(w, "idle_s", (double)r->idle_us / 1e6);
    jw_kint(w, "requests_open", atomic_load(&c->h->active));
    jw_kint(w, "event_readers_max", EVENTS_READERS);
    jw_kint(w, "operations_kept", OPERATIONS_MAX);
    jw_kint(w, "descriptors", (int64_t)files.rlim_cur);
    jw_obj_end(w);
}

void control_limits(struct conn *c)
{
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    put_limits(c, &w);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
}

/* ---- support ---- */

static void put_alarms(struct conn *c, struct jw *w)
{
    struct alarm_status *a = xcalloc(ALARMS_MAX, sizeof(*a));
    int n = c->h->cfg.alarms ? alarms_list(c->h->cfg.alarms, a, ALARMS_MAX) : 0;

    jw_key(w, "alarms");
    jw_arr(w);
    for (int i = 0; i < n; i++)
        rows_alarm(w, &a[i]);
    jw_arr_end(w);
    free(a);
}

static void put_log(struct jw *w)
{
    struct logring_line *lines = xcalloc(LOGRING_LINES, sizeof(*lines));
    int n = logring_get(0, lines, LOGRING_LINES);

    jw_key(w, "log");
    jw_arr(w);
    for (int i = 0; i < n; i++) {
        rows_log(w, &lines[i]);
        free(lines[i].text);
    }
    jw_arr_end(w);
    free(lines);
}

static void put_rack(struct conn *c, struct jw *w)
{
    struct domain_view *v = c->h->cfg.domain ? domain_get(c->h->cfg.domain) : NULL;
    struct buf json;

    buf_init(&json, 0);
    if (v)
        topo_to_json(v->graph, v->paths, &json);
    jw_key(w, "rack");
    jw_raw(w, v ? json.p : "null");
    jw_key(w, "findings");
    jw_arr(w);
    for (int i = 0; v && i < findings_count(v->findings); i++)
        jw_str(w, findings_get(v->findings, i)->text);
    jw_arr_end(w);
    buf_done(&json);
    domain_put(v);
}

void control_support(struct conn *c)
{
    struct store *s = handler_store(c);
    struct rev_point p;
    struct reply r;
    struct err e;

    if (!s)
        return;
    news_point(c->h->news, &p);
    reply_open(&r);
    jw_kint(&r.w, "at_ms", clock_wall_ms());
    jw_key(&r.w, "status");
    control_put_status(c, &r.w);
    if (stored_put(s, p.running, &r.w, &e)) {
        buf_done(&r.b);
        conn_answer_err(c, &e);
        return;
    }
    put_alarms(c, &r.w);
    put_log(&r.w);
    jw_key(&r.w, "metrics");
    control_put_metrics(c->h, &r.w);
    jw_key(&r.w, "limits");
    put_limits(c, &r.w);
    put_rack(c, &r.w);
    reply_send(c, &r, 200);
}

/* daemon/api/support.c - what those who help need, in one answer, and the limits.
 *
 * No prompt, no answer and no secret: what the server keeps of requests are numbers, and
 * values of the configuration whose names say that they are secret are struck out. */
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
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/domain.h"
#include "state/revision.h"
#include "state/store.h"
#include "topo/file.h"
#include "topo/finding.h"

enum { JOURNAL_ROWS = 200, ALARMS_MAX = 512 };

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

static bool secret_line(const char *line, size_t n)
{
    static const char *const words[] = {"secret", "password", "passwd", "token",
                                        "api_key"};
    const char *colon = memchr(line, ':', n);

    for (size_t i = 0; colon && i < sizeof(words) / sizeof(words[0]); i++)
        for (const char *p = line; p + strlen(words[i]) <= colon; p++)
            if (!strncasecmp(p, words[i], strlen(words[i])))
                return true;
    return false;
}

/* The text with what stands behind the colon of such lines replaced. */
static void strike_out(const char *text, struct buf *out)
{
    while (*text) {
        size_t n = strcspn(text, "\n");

        if (secret_line(text, n)) {
            buf_add(out, text, strcspn(text, ":"));
            buf_puts(out, ": ***");
        } else {
            buf_add(out, text, n);
        }
        text += n;
        if (*text == '\n') {
            buf_putc(out, '\n');
            text++;
        }
    }
}

static int put_config(struct conn *c, struct jw *w, struct err *e)
{
    struct revision r = {0};
    struct rev_point p;
    struct buf text;

    news_point(c->h->news, &p);
    jw_key(w, "config");
    if (!p.running) {
        jw_null(w);
        return 0;
    }
    if (revision_get(c->h->cfg.store, p.running, &r, e) < 0)
        return -1;
    buf_init(&text, 0);
    strike_out(r.text ? r.text : "", &text);
    jw_obj(w);
    jw_kint(w, "revision", p.running);
    jw_kstr(w, "text", text.p ? text.p : "");
    jw_obj_end(w);
    buf_done(&text);
    revision_done(&r);
    return 0;
}

static int put_journal(struct conn *c, struct jw *w, struct err *e)
{
    struct journal_row *rows = xcalloc(JOURNAL_ROWS, sizeof(*rows));
    int n = journal_list(c->h->cfg.store, 0, rows, JOURNAL_ROWS, e);

    jw_key(w, "journal");
    jw_arr(w);
    for (int i = 0; i < n; i++)
        rows_journal(w, &rows[i]);
    jw_arr_end(w);
    free(rows);
    return n < 0 ? -1 : 0;
}

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
        topo_to_json(v->graph, &json);
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
    struct reply r;
    struct err e;

    if (!handler_store(c))
        return;
    reply_open(&r);
    jw_kint(&r.w, "at_ms", clock_wall_ms());
    jw_key(&r.w, "status");
    control_put_status(c, &r.w);
    if (put_config(c, &r.w, &e) < 0 || put_journal(c, &r.w, &e) < 0) {
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

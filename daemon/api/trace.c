/* daemon/api/trace.c - a trace begun on an instance's engines, and what it has found.
 *
 * A trace ends by itself when its time is over, or when it is read; its events stay until
 * the next one. No prompt, no token and no file is touched. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/query.h"
#include "daemon/api/server.h"
#include "daemon/api/tracejson.h"
#include "daemon/ctrl/router.h"
#include "daemon/ctrl/traceview.h"

enum { MAX_REQUESTS = 4096, SECONDS_MAX = 600, NAME_MAX_CHARS = 63, LABEL_MAX = 71 };

struct wanted {
    const char *instance, *request; /* "" all */
    int64_t seconds;
    uint64_t id; /* of the request, 0 = all */
    char where[64];
};

static int read_wanted(const json_t *root, struct wanted *w, struct err *e)
{
    w->instance = w->request = "";
    w->seconds = 10;
    if (body_text(root, "instance", NAME_MAX_CHARS, &w->instance, e) < 0 ||
        body_text(root, "request", LABEL_MAX, &w->request, e) < 0 ||
        js_get_int(root, "seconds", 1, SECONDS_MAX, &w->seconds, e) < 0)
        return -1;
    return 0;
}

/* The request by its number, or by the id that its client got; its first choice. */
static int find_request(struct conn *c, struct wanted *w, struct err *e)
{
    struct request_status *s = xcalloc(MAX_REQUESTS, sizeof(*s));
    int n = router_requests(c->h->router, s, MAX_REQUESTS);
    char number[24];

    for (int i = 0; i < n && !w->id; i++) {
        snprintf(number, sizeof(number), "%llu", (unsigned long long)s[i].id);
        if (strcmp(number, w->request) && strcmp(s[i].label, w->request))
            continue;
        w->id = s[i].id;
        snprintf(w->where, sizeof(w->where), "%.*s", (int)strcspn(s[i].instance, ":/"),
                 s[i].instance);
    }
    free(s);
    if (w->id)
        return 0;
    if (router_ended(c->h->router, w->request))
        return err_param(e, ERR_NOTFOUND, "request",
                         "request '%.71s' has ended: only one in progress can be traced",
                         w->request);
    return err_param(e, ERR_NOTFOUND, "request",
                     "no request '%.71s' is known: it is neither in progress nor among "
                     "the last that ended",
                     w->request);
}

static int begin(struct conn *c, struct wanted *w, struct err *e)
{
    int64_t now = clock_now_us(clock_real());

    if (*w->request && find_request(c, w, e) < 0)
        return -1;
    if (w->id) /* wherever its instance computes it */
        w->instance = w->where;
    return traceview_begin(c->h->router, w->instance, now, now + w->seconds * 1000000,
                           w->id, e);
}

void control_trace_begin(struct conn *c)
{
    struct wanted w = {0};
    json_t *root = NULL;
    struct err e = {0};
    struct reply r;
    int n = body_object(c, "instance request seconds", &root, &e);

    if (n == 0)
        n = read_wanted(root, &w, &e);
    if (n == 0)
        n = begin(c, &w, &e);
    if (n > 0 && handler_note(c, "trace.begin", w.instance, "ok", w.request, &e) < 0)
        n = -1;
    if (n < 0) {
        conn_answer_err(c, &e);
    } else {
        reply_open(&r);
        jw_kint(&r.w, "engines", n);
        jw_kint(&r.w, "seconds", w.seconds);
        jw_kstr(&r.w, "instance", w.instance);
        jw_kint(&r.w, "request", (int64_t)w.id);
        reply_send(c, &r, 200);
    }
    json_decref(root);
}

void control_trace(struct conn *c)
{
    struct trace_view *v;
    int n = traceview_take(c->h->router, query_text(&c->query, QUERY_instance, ""), &v);
    struct buf b;

    buf_init(&b, 0);
    tracejson(v, n, c->h->version, &b);
    traceview_free(v, n);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
}

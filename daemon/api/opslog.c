/* daemon/api/opslog.c - operations, events and the log: what goes on and what went on. */
#include <stdlib.h>

#include "base/logring.h"
#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/events.h"
#include "daemon/api/handler.h"
#include "daemon/api/news.h"
#include "daemon/api/operation.h"
#include "daemon/api/rows.h"
#include "daemon/api/server.h"

/* The list of operations, or the answer that there is none (a server without a loop). */
static struct operations *operations_of(struct conn *c)
{
    struct err e;

    if (c->h->news)
        return news_operations(c->h->news);
    err_set(&e, ERR_UNAVAIL, "this server has no control thread");
    conn_answer_err(c, &e);
    return NULL;
}

void control_operations(struct conn *c)
{
    struct operations *o = operations_of(c);
    struct operation *ops;
    struct reply r;
    int n;

    if (!o)
        return;
    ops = xcalloc(OPERATIONS_MAX, sizeof(*ops));
    n = operations_list(o, ops, OPERATIONS_MAX);
    reply_open(&r);
    jw_key(&r.w, "operations");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++)
        rows_operation(&r.w, &ops[i]);
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(ops);
}

void control_operation(struct conn *c)
{
    struct operations *o = operations_of(c);
    struct operation op;
    struct buf b;
    struct err e;
    struct jw w;

    if (!o)
        return;
    if (operation_get(o, c->match.arg[0], &op, &e) < 0) {
        conn_answer_err(c, &e);
        return;
    }
    buf_init(&b, 0);
    jw_init(&w, &b);
    rows_operation(&w, &op);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
}

static void join(struct conn *c, unsigned kinds)
{
    struct err e;

    if (news_join(c->h->news, c, kinds, &e) < 0)
        conn_answer_err(c, &e);
}

void control_events(struct conn *c) { join(c, ~(1u << EVENT_LOG)); }

void control_log_stream(struct conn *c) { join(c, 1u << EVENT_LOG); }

void control_log(struct conn *c)
{
    struct logring_line *lines = xcalloc(LOGRING_LINES, sizeof(*lines));
    int n = logring_get(0, lines, LOGRING_LINES);
    struct reply r;

    reply_open(&r);
    jw_kstr(&r.w, "level", log_level_name(log_level_get()));
    jw_key(&r.w, "lines");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++) {
        rows_log(&r.w, &lines[i]);
        free(lines[i].text);
    }
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(lines);
}

/* daemon/api/slo.c - SLO figures: of now, and by minutes from the store. */
#include <stdlib.h>

#include "base/clock.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/slo.h"
#include "state/store.h"

enum { WINDOW_S = 300, HISTORY_MINUTES = 60 };

void control_slo(struct conn *c)
{
    struct reply r;
    struct buf b;
    struct err e;

    if (!c->h->cfg.slo) {
        err_set(&e, ERR_UNAVAIL, "this server keeps no SLO figures");
        conn_answer_err(c, &e);
        return;
    }
    buf_init(&b, 0);
    slo_json(c->h->cfg.slo, clock_now_us(clock_real()),
             query_num(&c->query, QUERY_window_s, WINDOW_S), &b);
    reply_open(&r);
    jw_key(&r.w, "slo");
    jw_raw(&r.w, b.p);
    reply_send(c, &r, 200);
    buf_done(&b);
}

void control_slo_history(struct conn *c)
{
    struct store *s = handler_store(c);
    int64_t to, from, next = 0;
    struct reply r;
    struct buf b;
    struct err e;
    int rc;

    if (!s)
        return;
    to = query_num(&c->query, QUERY_to_minute, clock_wall_ms() / 60000 + 1);
    from = query_num(&c->query, QUERY_from_minute, to - HISTORY_MINUTES);
    buf_init(&b, 0);
    rc = slo_history(s, from, to, &b, &next, &e);
    if (rc < 0) {
        conn_answer_err(c, &e);
        buf_done(&b);
        return;
    }
    reply_open(&r);
    jw_key(&r.w, "history");
    jw_raw(&r.w, b.p);
    if (rc)
        jw_kint(&r.w, "next", next);
    else
        jw_knull(&r.w, "next");
    reply_send(c, &r, 200);
    buf_done(&b);
}

/* daemon/api/conn.c - one HTTP request between the threads that serve it.
 *
 * Life: conn_new at the headers; body gathered by the HTTP thread; then either answered
 * on the spot or parked while a worker and later the control thread fill answer or out;
 * the HTTP thread takes it from there. The `completed` callback of the server marks it
 * finished and lets the owner go. */
#include "daemon/api/conn.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/api/access.h"
#include "daemon/api/answer.h"
#include "daemon/api/link.h"
#include "daemon/api/rules.h"
#include "daemon/api/server.h"
#include "daemon/api/sse.h"
#include "daemon/api/watch.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/metrics.h"

enum { DRAIN_BYTES = 64 << 20 }; /* of a refused body, to be heard at all */

struct conn *conn_new(struct http *h, struct MHD_Connection *mhd, const struct link *link)
{
    struct conn *c = xcalloc(1, sizeof(*c));

    http_ref(h);
    c->h = h;
    c->mhd = mhd;
    c->link = link;
    c->sock = link->sock;
    c->who = link->who;
    c->rules = http_rules(h);
    c->drain_max = DRAIN_BYTES;
    c->out_cap = CONN_OUT_CAP;
    c->file = -1;
    c->start_us = clock_now_us(clock_real());
    atomic_init(&c->refs, 1);
    atomic_init(&c->cancel, false);
    pthread_mutex_init(&c->lock, NULL);
    buf_init(&c->body, 0);
    buf_init(&c->answer, 0);
    buf_init(&c->out, 0);
    return c;
}

struct conn *conn_ref(struct conn *c)
{
    atomic_fetch_add(&c->refs, 1);
    return c;
}

void conn_unref(struct conn *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    conn_account(c, 0);
    if (c->carry_free)
        c->carry_free(c->carry);
    conn_drop_body(c);
    spool_done(&c->spool);
    if (c->file >= 0)
        close(c->file);
    buf_done(&c->answer);
    buf_done(&c->out);
    pthread_mutex_destroy(&c->lock);
    route_match_done(&c->match);
    query_done(&c->query);
    free(c->if_match);
    free(c->origin);
    rules_unref(c->rules);
    http_unref(c->h);
    free(c);
}

uint64_t conn_body_max(const struct conn *c)
{
    return c->route && !strncmp(c->route->request, "octets:", 7) ? SPOOL_MAX
                                                                 : c->rules->max_body;
}

void conn_drop_body(struct conn *c)
{
    atomic_fetch_sub(&c->h->body_bytes, c->body_counted);
    c->body_counted = 0;
    buf_done(&c->body);
    buf_init(&c->body, 0);
}

void conn_account(struct conn *c, int64_t tokens)
{
    if (atomic_exchange(&c->owes, false))
        access_end(c->h->cfg.access, &c->who, clock_now_us(clock_real()), tokens);
}

bool conn_park(struct conn *c)
{
    bool park;

    pthread_mutex_lock(&c->lock);
    park = !c->ready && !c->gone && !atomic_load(&c->h->stopping);
    c->ready = false;
    if (park) {
        c->suspended = true;
        MHD_suspend_connection(c->mhd);
    }
    pthread_mutex_unlock(&c->lock);
    return park;
}

void conn_wake(struct conn *c)
{
    c->ready = true;
    if (!c->suspended || !c->mhd)
        return;
    c->suspended = false;
    MHD_resume_connection(c->mhd);
}

void conn_answer_locked(struct conn *c, int status, const char *content_type,
                        struct buf *body)
{
    if (c->answered || c->streaming || c->finished) {
        buf_clear(body);
        return;
    }
    c->answered = true;
    c->status = status;
    c->content_type = content_type;
    buf_done(&c->answer);
    c->answer = *body;
    buf_init(body, 0);
    conn_wake(c);
}

void conn_answer_err_locked(struct conn *c, const struct err *e)
{
    struct buf b;
    int status = err_status(e->code);

    if (c->answered || c->streaming || c->finished)
        return; /* its thread may be reading the answer without the lock */
    buf_init(&b, 0);
    answer_error(&b, e);
    if ((status == 429 || status == 503) && !c->retry_after_s)
        c->retry_after_s = router_retry_after(c->h->router);
    if (status == 500)
        log_about(LOG_LV_ERROR, &(struct log_about){.request = c->req_id},
                  "request %s: %s", c->req_id, e->msg);
    if (e->code == ERR_BUSY && c->page)
        metric_add(c->page, M_REJECTIONS, 0, 1);
    account_error(c, e, false);
    conn_answer_locked(c, status, "application/json", &b);
    buf_done(&b);
}

void conn_answer(struct conn *c, int status, const char *content_type, struct buf *body)
{
    pthread_mutex_lock(&c->lock);
    conn_answer_locked(c, status, content_type, body);
    pthread_mutex_unlock(&c->lock);
}

void conn_answer_file(struct conn *c, int fd, uint64_t size, const char *content_type)
{
    struct buf none;

    buf_init(&none, 0);
    pthread_mutex_lock(&c->lock);
    if (!c->answered && !c->streaming && !c->finished) {
        c->file = fd;
        c->file_bytes = size;
        conn_answer_locked(c, 200, content_type, &none);
        fd = -1;
    }
    pthread_mutex_unlock(&c->lock);
    if (fd >= 0)
        close(fd);
}

void conn_answer_err(struct conn *c, const struct err *e)
{
    pthread_mutex_lock(&c->lock);
    conn_answer_err_locked(c, e);
    pthread_mutex_unlock(&c->lock);
}

void conn_header(struct conn *c, const char *name, const char *fmt, ...)
{
    va_list ap;

    pthread_mutex_lock(&c->lock);
    if (!c->answered && !c->streaming && !c->finished && c->n_headers < CONN_HEADERS) {
        va_start(ap, fmt);
        vsnprintf(c->header[c->n_headers].value, sizeof(c->header[0].value), fmt, ap);
        va_end(ap);
        c->header[c->n_headers++].name = name;
    }
    pthread_mutex_unlock(&c->lock);
}

bool conn_flush(struct conn *c)
{
    if (c->finished || c->gone || c->overrun) {
        buf_clear(&c->out);
        c->out_off = 0;
        return false;
    }
    if (c->out.len - c->out_off > c->out_cap) {
        c->overrun = true;
        buf_clear(&c->out);
        c->out_off = 0;
        watch_kill(c->h->watch, c->sock);
        conn_wake(c);
        return false;
    }
    c->streaming = true;
    conn_wake(c);
    return true;
}

void conn_end_locked(struct conn *c)
{
    c->stream_end = true;
    conn_wake(c);
}

bool conn_set_owner(struct conn *c, const struct conn_owner *o)
{
    bool ok;

    pthread_mutex_lock(&c->lock);
    ok = !c->gone && !c->finished;
    if (ok)
        c->owner = *o;
    pthread_mutex_unlock(&c->lock);
    return ok;
}

/* The owner, held; tell_owner lets go. Under the lock. */
static struct conn_owner hold_owner(struct conn *c)
{
    if (c->owner.hold)
        c->owner.hold(c->owner.arg);
    return c->owner;
}

static void tell_owner(const struct conn_owner *o)
{
    if (!o->gone)
        return;
    o->gone(o->arg);
    o->release(o->arg);
}

void conn_gone(struct conn *c)
{
    struct conn_owner o = {0};

    atomic_store(&c->cancel, true);
    pthread_mutex_lock(&c->lock);
    if (!c->gone) {
        c->gone = true;
        o = hold_owner(c);
        conn_wake(c);
    }
    pthread_mutex_unlock(&c->lock);
    tell_owner(&o);
}

void conn_abort(struct conn *c, const struct err *e)
{
    struct conn_owner o;

    atomic_store(&c->cancel, true);
    pthread_mutex_lock(&c->lock);
    o = hold_owner(c);
    account_error(c, e, true);
    if (c->streaming && !c->stream_end) {
        sse_error(e, &c->out);
        conn_flush(c);
        conn_end_locked(c);
    } else if (!c->streaming) {
        conn_answer_err_locked(c, e);
    }
    pthread_mutex_unlock(&c->lock);
    tell_owner(&o);
}

/* daemon/api/serve.c - the callbacks of libmicrohttpd: one request through its states.
 *
 * serve_request comes with the headers (admit.c), again for each piece of
 * body, then go_on when all is there and after every resume. Answers that are not there
 * yet leave the connection suspended.
 *
 * What version 0.9.75 forces on us: an answer queued while a body arrives is lost, so an
 * early refusal is kept until the body was read (up to DRAIN_BYTES), except where the
 * client waits for 100-continue: then it is sent at once. Suspended connections have no
 * time-out and do not see their client go: watch.c does. */
#include "daemon/api/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/queue.h"
#include "daemon/api/admit.h"
#include "daemon/api/conn.h"
#include "daemon/api/ctlqueue.h"
#include "daemon/api/pool.h"
#include "daemon/api/route.h"
#include "daemon/api/rules.h"
#include "daemon/api/server.h"
#include "daemon/api/upkeep.h"
#include "daemon/api/watch.h"
#include "daemon/serve/metrics.h"

enum {
    BODIES_HELD = 32, /* bodies of the greatest size, over all connections */
    STREAM_BLOCK = 16 << 10,
};

/* ---- answers ---- */

static void headers_add(struct MHD_Response *r, const struct conn *c)
{
    char num[16];

    MHD_add_response_header(r, "X-Request-Id", c->req_id);
    if (c->retry_after_s > 0) {
        snprintf(num, sizeof(num), "%d", c->retry_after_s);
        MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, num);
    }
    for (int i = 0; i < c->n_headers; i++)
        MHD_add_response_header(r, c->header[i].name, c->header[i].value);
    if (c->match.allow[0])
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, c->match.allow);
    if (c->status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE,
                                "Bearer realm=\"llmrack\"");
    if (c->origin) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", c->origin);
        MHD_add_response_header(r, MHD_HTTP_HEADER_VARY, "Origin");
        MHD_add_response_header(r, "Access-Control-Expose-Headers",
                                "X-Request-Id, Retry-After, ETag, Location");
    }
    if (c->unread || c->close || atomic_load(&c->h->draining))
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
}

static void log_answer(const struct conn *c, int status)
{
    log_debug("%s %s %d %.1f ms %s", c->route ? c->route->method : "-",
              c->route ? c->route->path : "-", status,
              (double)(clock_now_us(clock_real()) - c->start_us) / 1000, c->req_id);
}

static struct MHD_Response *create_answer(struct conn *c)
{
    struct MHD_Response *r;
    size_t n = c->answer.len;
    char *body;

    if (c->file >= 0) {
        r = MHD_create_response_from_fd64(c->file_bytes, c->file);
        c->file = r ? -1 : c->file; /* it closes it */
        return r;
    }
    body = buf_take(&c->answer);
    r = MHD_create_response_from_buffer(n, body ? body : (char *)"",
                                        body ? MHD_RESPMEM_MUST_FREE
                                             : MHD_RESPMEM_PERSISTENT);
    if (!r)
        free(body);
    return r;
}

static enum MHD_Result queue_answer(struct conn *c)
{
    struct MHD_Response *r = create_answer(c);
    enum MHD_Result ok;

    if (!r)
        return MHD_NO;
    if (c->content_type)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, c->content_type);
    headers_add(r, c);
    watch_phase(c->h->watch, c->sock, c, SOCK_SEND);
    http_count(c->h, M_HTTP, c->status / 100 - 1, 1);
    log_answer(c, c->status);
    ok = MHD_queue_response(c->mhd, (unsigned)c->status, r);
    MHD_destroy_response(r);
    return ok;
}

static void time_firsts(struct conn *c)
{
    int64_t now = clock_now_us(clock_real());

    if (c->firsts > 0)
        account_first(c, now);
    for (; c->firsts > 0; c->firsts--)
        metric_observe(c->page, M_TTFT, (double)(now - c->start_us) / 1e6);
}

/* The library asks for bytes of a stream; 0 only with the connection suspended. A stream
 * that nobody reads ends by a write into a socket that is shut: after an end with an
 * error the library forgets the connection until its thread has something else to do. */
static ssize_t on_read(void *cls, uint64_t pos, char *to, size_t max)
{
    struct conn *c = cls;
    ssize_t ret = 0;
    size_t n;

    (void)pos;
    http_enter(c->h);
    do {
        pthread_mutex_lock(&c->lock);
        n = c->out.len - c->out_off;
        n = n < max ? n : max;
        if (c->gone || c->overrun) {
            watch_kill(c->h->watch, c->sock);
            ret = MHD_CONTENT_READER_END_OF_STREAM;
        } else if (n) {
            memcpy(to, c->out.p + c->out_off, n);
            c->out_off += n;
            ret = (ssize_t)n;
            time_firsts(c);
        } else if (c->stream_end) {
            ret = MHD_CONTENT_READER_END_OF_STREAM;
        }
        if (c->out_off == c->out.len) {
            buf_clear(&c->out);
            c->out_off = 0;
        }
        pthread_mutex_unlock(&c->lock);
    } while (ret == 0 && !conn_park(c) && !atomic_load(&c->h->stopping));
    if (ret == 0 && atomic_load(&c->h->stopping))
        ret = MHD_CONTENT_READER_END_WITH_ERROR;
    http_leave(c->h);
    return ret;
}

static enum MHD_Result queue_stream(struct conn *c)
{
    struct MHD_Response *r = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK, on_read, c, NULL);
    enum MHD_Result ok;

    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    MHD_add_response_header(r, "X-Accel-Buffering", "no");
    headers_add(r, c);
    http_count(c->h, M_HTTP, 1, 1);
    log_answer(c, 200);
    ok = MHD_queue_response(c->mhd, MHD_HTTP_OK, r);
    MHD_destroy_response(r);
    return ok;
}

/* ---- one request ---- */

static bool sane_id(const char *s)
{
    size_t n = s ? strlen(s) : 0;

    return n >= 1 && n <= 64 &&
           strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                     "0123456789-_.") == n;
}

static const char *header(struct conn *c, const char *name)
{
    return MHD_lookup_connection_value(c->mhd, MHD_HEADER_KIND, name);
}

static void name_request(struct conn *c)
{
    const char *given = header(c, "X-Request-Id");
    uint64_t r[2] = {0};

    if (sane_id(given)) {
        snprintf(c->req_id, sizeof(c->req_id), "%s", given);
        return;
    }
    if (getrandom(r, sizeof(r), GRND_NONBLOCK) < 0)
        r[0] = (uint64_t)clock_now_us(clock_real());
    snprintf(c->req_id, sizeof(c->req_id), "req-%016llx%08llx", (unsigned long long)r[0],
             (unsigned long long)(r[1] & 0xffffffff));
}

static enum MHD_Result answer_now(struct conn *c)
{
    c->unread = true;
    conn_answer_err(c, &c->early);
    return queue_answer(c);
}

static enum MHD_Result begin(struct conn *c, const char *method, const char *url,
                             const char *version)
{
    const char *expect = header(c, MHD_HTTP_HEADER_EXPECT);

    name_request(c);
    if (!watch_phase(c->h->watch, c->sock, c, SOCK_BODY))
        return MHD_NO;
    MHD_set_connection_option(c->mhd, MHD_CONNECTION_OPTION_TIMEOUT,
                              (unsigned)(c->rules->idle_us / 1000000));
    if (admit(c, method, url, version, &c->early) < 0) {
        c->drop_body = header(c, MHD_HTTP_HEADER_CONTENT_LENGTH) ||
                       header(c, MHD_HTTP_HEADER_TRANSFER_ENCODING);
        if (expect && !strcasecmp(expect, "100-continue"))
            return answer_now(c);
    }
    return MHD_YES;
}

static void refuse_body(struct conn *c)
{
    conn_drop_body(c);
    spool_done(&c->spool);
    c->drop_body = true;
}

static enum MHD_Result spool_body(struct conn *c, const char *data, size_t n)
{
    struct http *h = c->h;

    if (!h->cfg.state_dir)
        err_set(&c->early, ERR_UNAVAIL, "this server keeps no state");
    else if (!c->spool.path && spool_open(&c->spool, h->cfg.state_dir, &c->early) < 0)
        ;
    else if (spool_add(&c->spool, data, n, &c->early) == 0)
        return MHD_YES;
    refuse_body(c);
    return MHD_YES;
}

static enum MHD_Result take_body(struct conn *c, const char *data, size_t n)
{
    struct http *h = c->h;

    c->body_seen += n;
    if (c->drop_body)
        return c->body_seen <= c->drain_max ? MHD_YES : MHD_NO;
    if (c->body_seen > conn_body_max(c)) {
        admit_too_big(c, &c->early);
        refuse_body(c);
        return MHD_YES;
    }
    if (c->route && !strncmp(c->route->request, "octets:", 7))
        return spool_body(c, data, n);
    if (atomic_fetch_add(&h->body_bytes, n) + n > c->rules->max_body * BODIES_HELD) {
        atomic_fetch_sub(&h->body_bytes, n);
        err_set(&c->early, ERR_UNAVAIL, "too many request bodies are being read");
        refuse_body(c);
        return MHD_YES;
    }
    c->body_counted += n;
    buf_add(&c->body, data, n);
    return MHD_YES;
}

static void answer_preflight(struct conn *c)
{
    struct buf none;

    conn_header(c, "Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE");
    conn_header(c, "Access-Control-Allow-Headers",
                "Authorization, Content-Type, If-Match, X-Api-Key, X-Request-Id");
    conn_header(c, "Access-Control-Max-Age", "600");
    buf_init(&none, 0);
    conn_answer(c, MHD_HTTP_NO_CONTENT, NULL, &none);
}

/* The whole request is here: answer it, or set somebody to work on it. */
static void dispatch(struct conn *c)
{
    struct err e;

    c->dispatched = true;
    if (c->inference)
        atomic_fetch_add(&c->h->active, 1);
    c->start_us = clock_now_us(clock_real());
    if (c->early.code != ERR_OK) {
        conn_answer_err(c, &c->early);
        return;
    }
    if (c->preflight) {
        answer_preflight(c);
        return;
    }
    if (c->inference && atomic_load(&c->h->draining)) {
        err_set(&e, ERR_UNAVAIL, "the server is stopping and takes no new requests");
        conn_answer_err(c, &e);
        return;
    }
    if (c->inference && upkeep_check(c->h, &e) < 0) {
        conn_answer_err(c, &e);
        return;
    }
    if (c->route->run == ROUTE_INLINE)
        c->route->handler(c);
    else if ((c->route->run == ROUTE_CONTROL
                  ? ctlqueue_push(c->h->control, c, c->route->handler, &e)
                  : pool_push(c->h->pool, c, c->route->handler, &e)) < 0)
        conn_answer_err(c, &e);
}

static enum MHD_Result go_on(struct conn *c)
{
    bool answered, streaming, gone;

    if (!c->dispatched) {
        /* what is answered on the spot is sent even to a client that closed its side */
        bool later =
            c->early.code == ERR_OK && !c->preflight && c->route->run != ROUTE_INLINE;

        if (!watch_phase(c->h->watch, c->sock, c, later ? SOCK_WORK : SOCK_SEND))
            return MHD_NO;
        dispatch(c);
    }
    do {
        pthread_mutex_lock(&c->lock);
        answered = c->answered;
        streaming = c->streaming;
        gone = c->gone;
        pthread_mutex_unlock(&c->lock);
        if (gone)
            return MHD_NO;
        if (answered)
            return queue_answer(c);
        if (streaming)
            return queue_stream(c);
        if (atomic_load(&c->h->stopping))
            return MHD_NO;
    } while (!conn_park(c));
    return MHD_YES;
}

enum MHD_Result serve_request(void *cls, struct MHD_Connection *mhd, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *data_n, void **con_cls)
{
    struct listener *l = cls;
    struct conn *c = *con_cls;
    const union MHD_ConnectionInfo *sock;
    enum MHD_Result ret;

    http_enter(l->h);
    if (!c) {
        sock = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        c = conn_new(l->h, mhd, sock->socket_context);
        c->local = l->local;
        *con_cls = c;
        atomic_fetch_add(&l->h->requests, 1);
        ret = begin(c, method, url, version);
    } else if (*data_n) {
        ret = take_body(c, data, *data_n);
        *data_n = 0;
    } else {
        ret = go_on(c);
    }
    http_leave(l->h);
    return ret;
}

void serve_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                     enum MHD_RequestTerminationCode why)
{
    struct listener *l = cls;
    struct conn *c = *con_cls;
    struct conn_owner o;

    (void)mhd;
    if (!c)
        return;
    *con_cls = NULL;
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        conn_gone(c);
    pthread_mutex_lock(&c->lock);
    account_close(c);
    c->finished = true;
    c->mhd = NULL;
    o = c->owner;
    c->owner = (struct conn_owner){0};
    pthread_mutex_unlock(&c->lock);
    if (o.release)
        o.release(o.arg);
    watch_phase(l->h->watch, c->sock, NULL, SOCK_IDLE);
    if (c->inference && c->dispatched)
        atomic_fetch_sub(&l->h->active, 1);
    conn_unref(c);
    if (atomic_fetch_sub(&l->h->requests, 1) == 1 && atomic_load(&l->h->stopping))
        queue_push(l->h->idle, l->h);
}

/* daemon/api/watch.c - gone clients and deadlines, by one thread.
 *
 * Client sockets sit in a set that any thread may change (base/hangup.h); the set's
 * descriptor is one watch of the thread's loop, whose timer does the scans. Lock order:
 * a conn's lock may be held when the list's lock is taken, never the other way round, so
 * the thread references the conns it found and calls them after unlocking. */
#include "daemon/api/watch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hangup.h"
#include "base/list.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "daemon/api/answer.h"
#include "daemon/api/conn.h"
#include "daemon/api/rules.h"
#include "daemon/api/server.h"
#include "daemon/serve/metrics.h"

enum { SCAN_US = 250000, DEAD_US = 1000000, HUNG_US = 1000000 };

struct sock {
    struct list link;
    uint64_t serial;
    int fd;
    enum sock_phase phase;
    int64_t since_us;
    bool tls;
    bool armed; /* in the set */
    bool hung;  /* the peer closed while no request was worked on */
    struct conn *conn;
};

struct watch {
    struct http *h;
    struct loop *loop;
    struct loop_fd *set_watch;
    struct loop_timer *timer;
    struct hangup *set; /* client sockets */
    pthread_t thread;
    bool started;
    atomic_int_fast64_t scanned_us;
    atomic_bool stop;
    pthread_mutex_t lock;
    struct list socks;
    uint64_t next_serial;
};

static int64_t now_us(void) { return clock_now_us(clock_real()); }

struct sock *watch_add(struct watch *w, int fd, bool tls)
{
    struct sock *s = xcalloc(1, sizeof(*s));

    s->fd = fd;
    s->tls = tls;
    s->since_us = now_us();
    pthread_mutex_lock(&w->lock);
    s->serial = ++w->next_serial;
    list_push(&w->socks, &s->link);
    s->armed = hangup_arm(w->set, fd, s->serial, false);
    pthread_mutex_unlock(&w->lock);
    return s;
}

void watch_del(struct watch *w, struct sock *s)
{
    pthread_mutex_lock(&w->lock);
    list_del(&s->link);
    if (s->armed)
        hangup_del(w->set, s->fd);
    pthread_mutex_unlock(&w->lock);
    free(s);
}

bool watch_phase(struct watch *w, struct sock *s, struct conn *c, enum sock_phase phase)
{
    bool ok;

    pthread_mutex_lock(&w->lock);
    ok = s->phase != SOCK_DEAD;
    s->conn = c;
    if (ok) {
        s->phase = phase;
        s->since_us = now_us();
        s->hung = false;
        if (phase == SOCK_WORK || phase == SOCK_IDLE || phase == SOCK_BODY)
            s->armed |= hangup_arm(w->set, s->fd, s->serial, s->armed);
    }
    pthread_mutex_unlock(&w->lock);
    return ok;
}

static void cut(struct sock *s, int how)
{
    shutdown(s->fd, how);
    s->phase = SOCK_DEAD;
    s->since_us = now_us();
}

void watch_kill(struct watch *w, struct sock *s)
{
    pthread_mutex_lock(&w->lock);
    cut(s, SHUT_RDWR);
    pthread_mutex_unlock(&w->lock);
}

void watch_kill_all(struct watch *w)
{
    pthread_mutex_lock(&w->lock);
    list_for(it, &w->socks) cut(list_entry(it, struct sock, link), SHUT_RDWR);
    pthread_mutex_unlock(&w->lock);
}

/* key 0: those of all, and sockets without a request are cut. */
static void abort_some(struct watch *w, int64_t key, const struct err *e)
{
    struct conn **found;
    size_t n = 0;

    pthread_mutex_lock(&w->lock);
    list_for(it, &w->socks) n++;
    found = xcalloc(n + 1, sizeof(struct conn *));
    n = 0;
    list_for(it, &w->socks)
    {
        struct sock *s = list_entry(it, struct sock, link);

        if (s->phase == SOCK_WORK && s->conn) {
            if (!key || s->conn->who.key == key)
                found[n++] = conn_ref(s->conn);
        } else if (!key && s->phase != SOCK_SEND) {
            cut(s, SHUT_RDWR);
        }
    }
    pthread_mutex_unlock(&w->lock);

    for (size_t i = 0; i < n; i++) {
        conn_abort(found[i], e);
        conn_unref(found[i]);
    }
    free(found);
}

void watch_abort_all(struct watch *w, const struct err *e) { abort_some(w, 0, e); }

void watch_abort_key(struct watch *w, int64_t key, const struct err *e)
{
    if (key)
        abort_some(w, key, e);
}

/* The server cannot answer while a body is still coming, but no byte of an answer was
 * sent yet, so the socket is ours to write to; not so within TLS. */
static void answer_slow_body(struct watch *w, struct sock *s)
{
    struct err e;
    struct buf body, all;

    if (s->tls) {
        cut(s, SHUT_RDWR);
        return;
    }
    err_set(&e, ERR_TIMEOUT, "the request body came too slowly");
    buf_init(&body, 0);
    buf_init(&all, 0);
    answer_error(&body, &e);
    buf_printf(&all,
               "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
               "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
               body.len, body.p);
    if (send(s->fd, all.p, all.len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        log_debug("no room for a 408 answer");
    http_count(w->h, M_HTTP, 3, 1);
    cut(s, SHUT_WR);
    buf_done(&body);
    buf_done(&all);
}

static void check_deadline(struct watch *w, struct sock *s, const struct rules *r,
                           int64_t now)
{
    int64_t age = now - s->since_us;

    if (s->hung && age > HUNG_US && s->phase != SOCK_DEAD) {
        cut(s, SHUT_RDWR);
        return;
    }
    switch (s->phase) {
    case SOCK_HEADER:
        if (age > r->header_us)
            cut(s, SHUT_RDWR);
        break;
    case SOCK_IDLE:
        if (age > r->idle_us + r->header_us)
            cut(s, SHUT_RDWR);
        break;
    case SOCK_BODY:
        if (age > r->body_us)
            answer_slow_body(w, s);
        break;
    case SOCK_DEAD:
        if (age > DEAD_US)
            cut(s, SHUT_RDWR);
        break;
    case SOCK_WORK:
    case SOCK_SEND:
        break;
    }
}

static void on_scan(void *arg)
{
    struct watch *w = arg;
    int64_t now = now_us();
    struct rules *r = http_rules(w->h);

    pthread_mutex_lock(&w->lock);
    list_for(it, &w->socks) check_deadline(w, list_entry(it, struct sock, link), r, now);
    pthread_mutex_unlock(&w->lock);
    rules_unref(r);
    atomic_store(&w->scanned_us, now);
    loop_timer_set(w->timer, now + SCAN_US);
}

/* Who is served on the socket, referenced; without anybody it is cut by a later scan,
 * since a whole request may have come just before the peer closed its side. The library
 * misses a close that arrives with the last bytes it read. */
static struct conn *peer_left(struct watch *w, uint64_t serial)
{
    struct conn *c = NULL;

    pthread_mutex_lock(&w->lock);
    list_for(it, &w->socks)
    {
        struct sock *s = list_entry(it, struct sock, link);

        if (s->serial != serial)
            continue;
        if (s->phase == SOCK_WORK && s->conn) {
            c = conn_ref(s->conn);
        } else if (s->phase != SOCK_SEND) {
            s->hung = true;
            s->since_us = now_us();
        }
        break;
    }
    pthread_mutex_unlock(&w->lock);
    return c;
}

static void on_gone(void *arg, int fd, uint32_t events)
{
    struct watch *w = arg;
    uint64_t serials[64];
    int n = hangup_take(w->set, serials, 64);

    (void)fd, (void)events;
    for (int i = 0; i < n; i++) {
        struct conn *c = peer_left(w, serials[i]);
        if (c)
            conn_gone(c);
        conn_unref(c);
    }
}

static void *watch_main(void *arg)
{
    struct watch *w = arg;
    struct err e;

    while (!atomic_load(&w->stop))
        if (loop_once(w->loop, -1, &e) < 0) {
            log_error("watch: %s", e.msg);
            break;
        }
    return NULL;
}

int watch_new(struct http *h, struct watch **ret, struct err *e)
{
    struct watch *w = xcalloc(1, sizeof(*w));

    w->h = h;
    list_init(&w->socks);
    atomic_init(&w->scanned_us, now_us());
    pthread_mutex_init(&w->lock, NULL);
    if (loop_new(&w->loop, e) < 0)
        goto fail;
    if (hangup_new(&w->set, e) < 0 || loop_fd_add(w->loop, hangup_fd(w->set), EPOLLIN,
                                                  on_gone, w, &w->set_watch, e) < 0)
        goto fail;
    w->timer = loop_timer_new(w->loop, on_scan, w);
    loop_timer_set(w->timer, now_us() + SCAN_US);
    if (pthread_create(&w->thread, NULL, watch_main, w) != 0) {
        err_set(e, ERR_NOMEM, "no thread for the connection watch");
        goto fail;
    }
    w->started = true;
    *ret = w;
    return 0;

fail:
    watch_free(w);
    return -1;
}

void watch_free(struct watch *w)
{
    if (!w)
        return;
    if (w->started) {
        atomic_store(&w->stop, true);
        loop_wake(w->loop);
        pthread_join(w->thread, NULL);
    }
    loop_fd_del(w->set_watch);
    if (w->timer)
        loop_timer_free(w->timer);
    loop_free(w->loop);
    hangup_free(w->set);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

bool watch_stuck(const struct watch *w, int64_t now, int64_t limit_us)
{
    return now - atomic_load(&w->scanned_us) > limit_us;
}

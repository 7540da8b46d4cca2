/* daemon/api/http.c - libmicrohttpd on TCP and on the UNIX socket.
 *
 * Two daemons of the library, one set of callbacks. A request: on_request with its
 * headers (route, guard, size), again for each piece of body, then go_on when all is
 * there and after every resume. Answers that are not there yet leave the connection
 * suspended.
 *
 * What version 0.9.75 forces on us: an answer queued while a body arrives is lost, so an
 * early refusal is kept until the body was read (up to DRAIN_BYTES), except where the
 * client waits for 100-continue: then it is sent at once. Suspended connections have no
 * time-out and do not see their client go: watch.c does. Stopping with suspended
 * connections is undefined: all are answered and resumed first. */
#include "daemon/api/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/queue.h"
#include "daemon/api/ctlqueue.h"
#include "daemon/api/access.h"
#include "daemon/api/conn.h"
#include "daemon/api/link.h"
#include "daemon/api/listen.h"
#include "daemon/api/news.h"
#include "daemon/api/pool.h"
#include "daemon/api/rules.h"
#include "daemon/api/serve.h"
#include "daemon/api/server.h"
#include "daemon/api/spool.h"
#include "daemon/api/tls.h"
#include "daemon/api/upkeep.h"
#include "daemon/api/watch.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/system.h"

enum {
    READ_POOL = 64 << 10, /* the library's memory for one connection, headers included; it
                             writes all of it, so an idle one has that much too */
    /* of the UNIX socket, whatever TCP clients do: two `llmctl load` and operators beside
     * them; fewer where there are few descriptors */
    LOCAL_CONNECTIONS = 2048,
    LOCAL_LEAST = 64,
    ANY_CONNECTIONS = 1 << 20, /* link_accept holds the limit, which may change */
    CONTENT_BYTES = 8 << 10,   /* of one text in the log */
    STOP_WAIT_US = 3000000,
    STUCK_US = 10000000,      /* a callback, the watch or the control loop */
    STUCK_JOB_US = 120000000, /* reading one request */
    SPARE_FDS = 96,
    CONTROL_WAITING = 32, /* requests for the control thread */
};

/* ---- the shared struct ---- */

void http_ref(struct http *h) { atomic_fetch_add(&h->refs, 1); }

void http_unref(struct http *h)
{
    if (atomic_fetch_sub(&h->refs, 1) != 1)
        return;
    for (int i = 0; i < h->n_keys; i++)
        free(h->keys[i]);
    pthread_mutex_destroy(&h->keys_lock);
    pthread_mutex_destroy(&h->rules_lock);
    rules_unref(h->rules);
    pthread_mutex_destroy(&h->upkeep_lock);
    free(h->listen_host);
    free(h->listen);
    free(h->socket_path);
    free(h->version);
    free(h);
}

void http_count(struct http *h, int id, int label, double v)
{
    if (!atomic_load(&h->stopping))
        metric_add(h->page, id, label, v);
}

void http_note_key(struct http *h, const char *key)
{
    size_t n = strlen(key);
    bool fresh = n > 0 && n <= 40;

    /* a name, not whatever text a client put there */
    fresh = fresh && strspn(key, "abcdefghijklmnopqrstuvwxyz_") == n;
    pthread_mutex_lock(&h->keys_lock);
    for (int i = 0; i < h->n_keys && fresh; i++)
        fresh = strcmp(h->keys[i], key) != 0;
    fresh = fresh && h->n_keys < HTTP_MAX_KEYS;
    if (fresh)
        h->keys[h->n_keys++] = xstrdup(key);
    pthread_mutex_unlock(&h->keys_lock);
    if (fresh)
        log_info("request field '%s' is not known and ignored", key);
}

struct rules *http_rules(struct http *h)
{
    struct rules *r;

    pthread_mutex_lock(&h->rules_lock);
    r = rules_ref(h->rules);
    pthread_mutex_unlock(&h->rules_lock);
    return r;
}

void http_log_content(const struct conn *c, const char *what, const char *text, size_t n)
{
    struct buf b;
    struct jw w;

    if (!c->rules->log_content)
        return;
    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_strn(&w, text, n < CONTENT_BYTES ? n : CONTENT_BYTES);
    log_unkept(LOG_LV_INFO, &(struct log_about){.request = c->req_id},
               "request %s: %s of %zu bytes: %s", c->req_id, what, n, b.p);
    buf_done(&b);
}

static _Thread_local int thread_slot = -1;

void http_enter(struct http *h)
{
    if (thread_slot < 0)
        thread_slot = atomic_fetch_add(&h->n_threads, 1);
    if (thread_slot < HTTP_MAX_THREADS)
        atomic_store(&h->busy_us[thread_slot], clock_now_us(clock_real()));
}

void http_leave(struct http *h)
{
    if (thread_slot < HTTP_MAX_THREADS)
        atomic_store(&h->busy_us[thread_slot], 0);
}

/* ---- start and stop ---- */

/* Fewer connections rather than none where the system's limit is low. Those of the UNIX
 * socket are settled by the first call: its listener has them then. */
static int fit_descriptors(struct http *h, struct rules *r, struct err *e)
{
    long local = h->local_max ? h->local_max : LOCAL_CONNECTIONS, beside, want, have;

    have = system_descriptors(r->max_connections + local + SPARE_FDS, e);
    if (have < 0)
        return -1;
    if (!h->local_max && have < r->max_connections + local + SPARE_FDS) {
        local = have / 4 < LOCAL_CONNECTIONS ? have / 4 : LOCAL_CONNECTIONS;
        local = local > LOCAL_LEAST ? local : LOCAL_LEAST;
    }
    h->local_max = (int)local;
    beside = local + SPARE_FDS;
    want = r->max_connections + beside;
    if (have < want) {
        r->max_connections = (int)(have - beside);
        log_warn("only %ld descriptors are allowed: at most %d connections; raise the "
                 "limit (ulimit -n, LimitNOFILE=) for more",
                 have, r->max_connections);
    }
    return r->max_connections > 0
               ? 0
               : err_set(e, ERR_UNAVAIL,
                         "only %ld descriptors are allowed, which leaves none for "
                         "connections; raise the limit (ulimit -n, LimitNOFILE=)",
                         have);
}

/* %00 would end the path before its end: what names and texts may not have takes its
 * place. */
static size_t unescape(void *arg, struct MHD_Connection *mhd, char *s)
{
    size_t n = MHD_http_unescape(s);

    (void)arg, (void)mhd;
    for (size_t i = 0; i < n; i++)
        if (!s[i])
            s[i] = '\x01';
    return n;
}

static int start_listener(struct listener *l, int n_threads, struct err *e)
{
    const struct rules *r = l->h->rules;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    struct MHD_OptionItem opts[] = {
        {MHD_OPTION_LISTEN_SOCKET, l->fd, NULL},
        {MHD_OPTION_CONNECTION_LIMIT, l->local ? l->h->local_max : ANY_CONNECTIONS, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, READ_POOL, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, r->idle_us / 1000000, NULL},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)serve_completed, l},
        {MHD_OPTION_UNESCAPE_CALLBACK, (intptr_t)unescape, NULL},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)link_notify, l},
        {n_threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, n_threads, NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    /* The library wants a source of certificates, which no session comes to use: each is
     * given the present one when its connection begins. Its option for that is not one
     * that may stand in an array. */
    l->mhd = l->tls
                 ? MHD_start_daemon(flags | MHD_USE_TLS, 0, link_accept, l, serve_request,
                                    l, MHD_OPTION_HTTPS_PRIORITIES, tls_priorities,
                                    MHD_OPTION_HTTPS_CERT_CALLBACK, tls_no_cert,
                                    MHD_OPTION_ARRAY, opts, MHD_OPTION_END)
                 : MHD_start_daemon(flags, 0, link_accept, l, serve_request, l,
                                    MHD_OPTION_ARRAY, opts, MHD_OPTION_END);
    if (!l->mhd)
        return err_set(e, ERR_INTERNAL, "the HTTP library did not start");
    return 0;
}

static void stop_listener(struct listener *l)
{
    if (l->mhd)
        MHD_stop_daemon(l->mhd);
    l->mhd = NULL;
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

static struct http *http_alloc(const struct http_cfg *cfg, struct router *r,
                               struct metric_page *page)
{
    struct http *h = xcalloc(1, sizeof(*h));

    h->cfg = *cfg;
    h->cfg.conf = NULL; /* copied, not kept */
    h->rules = rules_new(cfg->conf);
    pthread_mutex_init(&h->rules_lock, NULL);
    h->socket_path = xstrdup(cfg->socket_path);
    h->version = xstrdup(cfg->version);
    h->router = r;
    h->page = page;
    h->tcp = (struct listener){.h = h, .fd = -1};
    h->local = (struct listener){.h = h, .fd = -1, .local = true};
    atomic_init(&h->refs, 1);
    pthread_mutex_init(&h->keys_lock, NULL);
    pthread_mutex_init(&h->upkeep_lock, NULL);
    return h;
}

/* The TCP listener: reachable from elsewhere only with keys and TLS, or when the
 * configuration insists. */
static int open_tcp(struct http *h, const struct conf *c, struct err *e)
{
    const char *cert = c->listen.tls_cert, *key = c->listen.tls_key;
    bool tls = cert[0] && key[0];
    bool open = c->access.insecure || (tls && access_has_keys(h->cfg.access));
    char host[256] = "";
    bool remote = false;

    access_set_conf(h->cfg.access, c);
    if (c->listen.address[0]) {
        if (listen_tcp(c->listen.address, open, host, sizeof(host), &h->tcp.fd, &h->port,
                       &remote, e) < 0)
            return -1;
        if (tls && tls_new(cert, key, &h->tcp.tls, e) < 0)
            return -1;
        if (remote && c->access.insecure)
            log_warn("%s can be reached from elsewhere and access.insecure is set",
                     c->listen.address);
    }
    access_set_remote(h->cfg.access, remote);
    h->listen_host = xstrdup(host);
    h->listen = !c->listen.address[0]
                    ? xstrdup("")
                    : xasprintf(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, h->port);
    return 0;
}

static int open_local(struct http *h, struct err *e)
{
    bool others = access_find_groups(h->cfg.access);

    if (h->cfg.socket_fd > 0) {
        h->local.fd = h->cfg.socket_fd;
        return 0;
    }
    /* where the groups exist, whoever connects is asked for his; else only we may */
    return listen_unix(h->cfg.socket_path, others ? 0666 : 0600, &h->local.fd, e);
}

int http_start(const struct http_cfg *cfg, struct router *r, struct metric_page *page,
               struct http **ret, struct err *e)
{
    struct http *h = http_alloc(cfg, r, page);
    int max;

    if (cfg->state_dir)
        spool_sweep(cfg->state_dir);
    if (fit_descriptors(h, h->rules, e) < 0 || upkeep_load(h, e) < 0 ||
        open_tcp(h, cfg->conf, e) < 0 || open_local(h, e) < 0)
        goto fail;
    max = h->rules->max_connections;
    if (queue_new(1, &h->idle, e) < 0 || watch_new(h, &h->watch, e) < 0 ||
        pool_new(cfg->n_workers, max, &h->pool, e) < 0 ||
        (cfg->loop && ctlqueue_new(cfg->loop, CONTROL_WAITING, &h->control, e) < 0))
        goto fail;
    h->news = cfg->loop ? news_new(h) : NULL;
    if (h->tcp.fd >= 0 && start_listener(&h->tcp, cfg->n_threads, e) < 0)
        goto fail;
    if (start_listener(&h->local, 1, e) < 0)
        goto fail;
    *ret = h;
    return 0;

fail:
    http_stop(h);
    return -1;
}

int http_check_conf(struct http *h, const struct conf *c, struct err *e)
{
    struct tls *t = NULL;
    bool tls = c->listen.tls_cert[0] && c->listen.tls_key[0];
    bool open = c->access.insecure || (tls && access_has_keys(h->cfg.access));

    if (c->listen.address[0] && listen_check(c->listen.address, open, e) < 0)
        return -1;
    if (tls && tls_new(c->listen.tls_cert, c->listen.tls_key, &t, e) < 0)
        return -1;
    tls_free(t);
    return 0;
}

void http_set_conf(struct http *h, const struct conf *c)
{
    struct rules *r = rules_new(c), *old;
    struct err e;

    if (fit_descriptors(h, r, &e) < 0)
        log_error("%s", e.msg);
    access_set_conf(h->cfg.access, c);
    pthread_mutex_lock(&h->rules_lock);
    old = h->rules;
    h->rules = r;
    pthread_mutex_unlock(&h->rules_lock);
    rules_unref(old);
}

int http_reload_tls(struct http *h, struct err *e)
{
    return h->tcp.tls ? tls_load(h->tcp.tls, e) : 0;
}

int http_port(const struct http *h) { return h->port; }

void http_on_journal(struct http *h, const struct journal_row *r)
{
    if (h)
        news_journal(h->news, r);
}

void http_on_alarm(struct http *h, const struct alarm_status *a)
{
    if (h)
        news_alarm(h->news, a);
}

void http_drain(struct http *h) { atomic_store(&h->draining, true); }

int http_active(const struct http *h) { return atomic_load(&h->active); }

/* No new connections. The descriptor is ours from here on, but the library's threads may
 * still be taking it out of their sets: it is closed after they have ended. */
static void quiesce(struct listener *l)
{
    if (!l->mhd)
        return;
    l->fd = MHD_quiesce_daemon(l->mhd); /* MHD_INVALID_SOCKET is -1 */
    if (l->fd >= 0)
        shutdown(l->fd, SHUT_RDWR);
}

void http_stop(struct http *h)
{
    struct err e;
    int64_t end = clock_now_us(clock_real()) + STOP_WAIT_US;

    if (!h)
        return;
    http_drain(h);
    quiesce(&h->tcp);
    quiesce(&h->local);
    if (h->watch) {
        err_set(&e, ERR_UNAVAIL, "the server stopped");
        watch_abort_all(h->watch, &e);
    }
    atomic_store(&h->stopping, true);
    if (h->watch) /* those that were parked meanwhile */
        watch_abort_all(h->watch, &e);
    while (atomic_load(&h->requests) > 0 && clock_now_us(clock_real()) < end)
        queue_pop_wait(h->idle, end - clock_now_us(clock_real()));
    if (h->watch)
        watch_kill_all(h->watch);
    stop_listener(&h->tcp);
    stop_listener(&h->local);
    tls_free(h->tcp.tls);
    h->tcp.tls = NULL;
    if (h->cfg.socket_fd <= 0 && h->local.fd == -1 && h->watch)
        unlink(h->socket_path);
    pool_free(h->pool);
    ctlqueue_free(h->control);
    news_free(h->news);
    watch_free(h->watch);
    queue_free(h->idle);
    h->pool = NULL;
    h->control = NULL;
    h->news = NULL;
    h->watch = NULL;
    http_unref(h);
}

static bool loop_alive(struct http *h, int64_t now)
{
    uint64_t passes;
    int64_t asked = atomic_load(&h->loop_asked_us);

    if (!h->cfg.loop)
        return true;
    passes = loop_passes(h->cfg.loop);
    if (asked && passes == atomic_load(&h->loop_seen))
        return now - asked < STUCK_US;
    atomic_store(&h->loop_seen, passes);
    atomic_store(&h->loop_asked_us, now);
    loop_wake(h->cfg.loop);
    return true;
}

bool http_alive(struct http *h)
{
    int64_t now = clock_now_us(clock_real());
    bool ok = pool_alive(h->pool, now, STUCK_JOB_US);

    for (int i = 0; i < HTTP_MAX_THREADS; i++) {
        int64_t since = atomic_load(&h->busy_us[i]);
        ok = ok && !(since && now - since > STUCK_US);
    }
    return loop_alive(h, now) && ok && !watch_stuck(h->watch, now, STUCK_US);
}

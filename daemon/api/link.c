/* daemon/api/link.c - one connection from its first moment to its last. */
#include "daemon/api/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/api/listen.h"
#include "daemon/api/rules.h"
#include "daemon/api/server.h"
#include "daemon/api/tls.h"
#include "daemon/api/watch.h"
#include "daemon/serve/metrics.h"

enum { STRANGERS = 16 }; /* connections of peers without rights */

/* TLS, its deadline included, is the watch's from the first byte: the phase is
 * SOCK_HEADER until a request is there. */
static bool begin_tls(struct listener *l, struct MHD_Connection *mhd, struct link *k)
{
    const union MHD_ConnectionInfo *s =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    struct err e;

    if (!l->tls)
        return true;
    err_set(&e, ERR_INTERNAL, "the HTTP library shows no TLS session");
    k->cred = s && s->tls_session ? tls_attach(l->tls, s->tls_session, &e) : NULL;
    if (!k->cred)
        log_error("%s", e.msg);
    return k->cred != NULL;
}

/* False: cut it. */
static bool identify(struct listener *l, int fd, struct link *k)
{
    int one = 1;

    if (!l->local) {
        listen_addr(fd, true, k->who.origin, sizeof(k->who.origin));
        listen_addr(fd, false, k->reached, sizeof(k->reached));
        /* a frame a packet: tokens are not to wait for more */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        return true;
    }
    if (access_peer(l->h->cfg.access, fd, &k->who, &k->denied) == 0)
        return true;
    return atomic_fetch_add(&l->h->strangers, 1) < STRANGERS;
}

static void count(struct listener *l, int by)
{
    struct http *h = l->h;
    struct rules *r = http_rules(h);
    int n = atomic_fetch_add(&h->connections, by) + by;
    int tcp = l->local ? 0 : atomic_fetch_add(&h->tcp_connections, by) + by;

    if (by > 0 && tcp >= r->max_connections / 5 * 4 &&
        !atomic_exchange(&h->crowded, true))
        log_warn("80 %% of the %d connections that are allowed are open",
                 r->max_connections);
    else if (by < 0 && !l->local && tcp < r->max_connections / 2)
        atomic_store(&h->crowded, false);
    rules_unref(r);
    if (!atomic_load(&h->stopping))
        metric_set(h->page, M_CONNECTIONS, 0, n);
}

void link_notify(void *cls, struct MHD_Connection *mhd, void **context,
                 enum MHD_ConnectionNotificationCode what)
{
    struct listener *l = cls;
    struct link *k = *context;

    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        int fd =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;

        k = xcalloc(1, sizeof(*k));
        k->sock = watch_add(l->h->watch, fd, l->tls != NULL);
        *context = k;
        if (!identify(l, fd, k) || !begin_tls(l, mhd, k))
            watch_kill(l->h->watch, k->sock);
        count(l, 1);
        return;
    }
    if (!k)
        return;
    *context = NULL;
    watch_del(l->h->watch, k->sock);
    if (k->denied.code != ERR_OK)
        atomic_fetch_sub(&l->h->strangers, 1);
    tls_cred_unref(k->cred);
    free(k);
    count(l, -1);
}

/* The library's own limit is that of the start; a lower one may have come since. */
enum MHD_Result link_accept(void *cls, const struct sockaddr *addr, socklen_t len)
{
    struct listener *l = cls;
    struct rules *r = http_rules(l->h);
    bool ok = l->local || atomic_load(&l->h->tcp_connections) < r->max_connections;

    (void)addr, (void)len;
    rules_unref(r);
    return ok ? MHD_YES : MHD_NO;
}

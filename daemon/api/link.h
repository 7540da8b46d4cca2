/* daemon/api/link.h - one connection from its first moment to its last: who is at the
 * other end, its certificate, its place in the counts.
 *
 * A peer of the UNIX socket without any right is answered with a refusal; only a few such
 * may be connected at a time, so that they do not use up what operators need. */
#ifndef API_LINK_H
#define API_LINK_H

#include <microhttpd.h>
#include <stdbool.h>

#include "base/err.h"
#include "daemon/api/access.h"

struct sock;
struct tls_cred;

struct link {
    struct sock *sock;
    struct tls_cred *cred; /* of a TLS session */
    struct access_who who; /* UNIX socket: all of it; TCP: where from */
    struct err denied;     /* UNIX socket: why who may nothing; code OK otherwise */
    char reached[64];      /* TCP: our own address as the client sees it */
};

/* Callbacks for libmicrohttpd; cls is their struct listener. Polling threads only. */
void link_notify(void *cls, struct MHD_Connection *mhd, void **context,
                 enum MHD_ConnectionNotificationCode what);
enum MHD_Result link_accept(void *cls, const struct sockaddr *addr, socklen_t len);

#endif

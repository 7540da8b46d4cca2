/* daemon/api/watch.h - the thread that sees what a suspended connection cannot.
 *
 * The server's own time-out is for inactivity only, and a suspended connection has none
 * and does not notice that its client left. So each socket has a record here with its
 * phase: deadlines for headers and bodies by a scan, gone clients by EPOLLRDHUP while
 * their request is worked on. While a record is in the list its descriptor is open, so
 * under the list's lock it may be shut down safely. */
#ifndef API_WATCH_H
#define API_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct err;
struct http;
struct sock;
struct watch;

enum sock_phase {
    SOCK_HEADER, /* connected, no request yet */
    SOCK_IDLE,   /* kept alive after an answer */
    SOCK_BODY,   /* headers are there, body comes */
    SOCK_WORK,   /* parked: we work for it; gone clients are noticed */
    SOCK_SEND,   /* the server sends; it notices by itself */
    SOCK_DEAD,   /* cut by us, about to close */
};

int watch_new(struct http *h, struct watch **ret, struct err *e);
void watch_free(struct watch *w); /* stops the thread; all sockets must be closed */

struct sock *watch_add(struct watch *w, int fd, bool tls);
void watch_del(struct watch *w, struct sock *s); /* before the descriptor closes */
/* The request served on s now, NULL between requests; with it the phase. False when the
 * socket was cut. */
bool watch_phase(struct watch *w, struct sock *s, struct conn *c, enum sock_phase phase);
/* Cut a connection whose reader is too slow. Any thread. */
void watch_kill(struct watch *w, struct sock *s);
/* conn_abort for each request of that key (access_who.key) that is worked on. */
void watch_abort_key(struct watch *w, int64_t key, const struct err *e);
/* conn_abort for each request that is worked on, and an end of sockets that have none; or
 * shut every socket down. */
void watch_abort_all(struct watch *w, const struct err *e);
void watch_kill_all(struct watch *w);
/* The last scan is longer ago than limit_us, for http_alive. */
bool watch_stuck(const struct watch *w, int64_t now_us, int64_t limit_us);

#endif

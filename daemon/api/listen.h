/* daemon/api/listen.h - the two listening sockets. */
#ifndef API_LISTEN_H
#define API_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct err;

/* "host:port" or "[v6]:port"; *ret_port is the one bound (port 0 = any free one). host
 * gets the part before the port without brackets. *ret_remote: it can be reached from
 * other machines; unless that may be it is DENIED, before anything is bound. */
int listen_tcp(const char *where, bool may_be_remote, char *host, size_t host_cap,
               int *ret_fd, int *ret_port, bool *ret_remote, struct err *e);
/* What listen_tcp would refuse without trying the port. */
int listen_check(const char *where, bool may_be_remote, struct err *e);
/* Of that mode from its first moment. A socket that nobody answers on is replaced. */
int listen_unix(const char *path, mode_t mode, int *ret_fd, struct err *e);
/* Numeric address of a socket's other or own end, "" when it has none; an IPv4 address is
 * written as such on an IPv6 socket too. */
void listen_addr(int fd, bool peer, char *to, size_t cap);

#endif

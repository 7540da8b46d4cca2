/* daemon/api/listen.h - the two listening sockets. */
#ifndef API_LISTEN_H
#define API_LISTEN_H

#include <stddef.h>

struct err;

/* "host:port" or "[v6]:port"; *ret_port is the one bound (port 0 = any free one). host
 * gets the part before the port without brackets. */
int listen_tcp(const char *where, char *host, size_t host_cap, int *ret_fd, int *ret_port,
               struct err *e);
/* Mode 0600 from its first moment. A socket that nobody answers on is replaced. */
int listen_unix(const char *path, int *ret_fd, struct err *e);
/* Numeric address of a socket's own end, "" when it has none. */
void listen_local_addr(int fd, char *to, size_t cap);

#endif

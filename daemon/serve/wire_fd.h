/* daemon/serve/wire_fd.h - descriptors that travel beside the bytes of a stream socket.
 *
 * Going out, a descriptor is bound to a byte of the stream and leaves with it; coming in,
 * descriptors queue in order. Inside wire.c only; its connection's thread. */
#ifndef SERVE_WIRE_FD_H
#define SERVE_WIRE_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

enum { WIRE_FDS_MAX = 1024 }; /* that wait, each way */

struct wire_fds {
    struct wire_fd {
        int fd;
        uint64_t at; /* byte of the stream; going out only */
    } * q;           /* head .. n-1 wait */
    size_t head, n, cap;
};

void wire_fds_done(struct wire_fds *f); /* closes what waits */
/* Takes fd, also when it fails: more wait than may. */
int wire_fds_push(struct wire_fds *f, int fd, uint64_t at, struct err *e);
int wire_fds_pop(struct wire_fds *f); /* -1 = none waits */
/* As send and recv; `sent`: bytes of the stream before p. */
ssize_t wire_fds_send(struct wire_fds *f, int sock, const void *p, size_t n,
                      uint64_t sent);
/* ENOBUFS: too many descriptors came. */
ssize_t wire_fds_recv(struct wire_fds *f, int sock, void *p, size_t n);

#endif

/* daemon/serve/wire_impl.h - a connection, for wire.c and wire_msg.c only. */
#ifndef SERVE_WIRE_IMPL_H
#define SERVE_WIRE_IMPL_H

#include "base/err.h"
#include "daemon/serve/wire.h"
#include "daemon/serve/wire_fd.h"

/* Bytes off..len of p are waiting. */
struct wire_buf {
    uint8_t *p;
    size_t off, len, cap;
};

struct wire_conn {
    int fd;
    size_t max_out;
    struct wire_buf in, out;
    uint64_t sent; /* bytes of the stream before out.off */
    struct wire_fds in_fds, out_fds;
    int frame_fd; /* of the frame that wire_next gave last; -1 */
    bool dead, corked;
    struct err why; /* of the death */
    uint8_t *pack;  /* scratch of wire_send_tokens */
    size_t pack_cap;
};

/* Bytes of a payload on the socket. */
static inline size_t wire_padded(size_t n) { return (n + 7) & ~(size_t)7; }

#endif

/* See wire_fd.h. */
#include "daemon/serve/wire_fd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

enum { FDS_AT_ONCE = 16 };

void wire_fds_done(struct wire_fds *f)
{
    for (int fd; (fd = wire_fds_pop(f)) >= 0;)
        close(fd);
    free(f->q);
    *f = (struct wire_fds){0};
}

int wire_fds_push(struct wire_fds *f, int fd, uint64_t at, struct err *e)
{
    if (f->n - f->head >= WIRE_FDS_MAX) {
        close(fd);
        return err_set(e, ERR_TOOBIG, "%d descriptors wait beside messages",
                       WIRE_FDS_MAX);
    }
    if (f->n == f->cap && f->head) {
        memmove(f->q, f->q + f->head, (f->n - f->head) * sizeof(*f->q));
        f->n -= f->head;
        f->head = 0;
    }
    if (f->n == f->cap) {
        f->cap = f->cap ? f->cap * 2 : 8;
        f->q = xrealloc(f->q, f->cap * sizeof(*f->q));
    }
    f->q[f->n++] = (struct wire_fd){fd, at};
    return 0;
}

int wire_fds_pop(struct wire_fds *f) { return f->head < f->n ? f->q[f->head++].fd : -1; }

ssize_t wire_fds_send(struct wire_fds *f, int sock, const void *p, size_t n,
                      uint64_t sent)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } c = {0};
    struct iovec v = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    bool with = f->head < f->n && f->q[f->head].at == sent;
    size_t next = f->head + with;

    if (next < f->n && f->q[next].at - sent < n)
        v.iov_len = (size_t)(f->q[next].at - sent);
    if (with) {
        m.msg_control = c.bytes;
        m.msg_controllen = sizeof(c.bytes);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        *h = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)),
                              .cmsg_level = SOL_SOCKET,
                              .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(h), &f->q[f->head].fd, sizeof(int));
    }
    ssize_t w = sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (w > 0 && with)
        close(wire_fds_pop(f));
    return w;
}

ssize_t wire_fds_recv(struct wire_fds *f, int sock, void *p, size_t n)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_AT_ONCE * sizeof(int))];
    } c;
    struct iovec v = {.iov_base = p, .iov_len = n};
    struct msghdr m = {.msg_iov = &v,
                       .msg_iovlen = 1,
                       .msg_control = c.bytes,
                       .msg_controllen = sizeof(c.bytes)};
    bool over = false;
    ssize_t r = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    if (r < 0)
        return r;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= h->cmsg_len; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(fd));
            over |= wire_fds_push(f, fd, 0, NULL) < 0;
        }
    }
    if (over || (m.msg_flags & MSG_CTRUNC)) {
        errno = ENOBUFS;
        return -1;
    }
    return r;
}

/* base/hangup.c - an epoll set that asks for EPOLLRDHUP only, one shot a socket. */
#include "base/hangup.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

enum { TAKE_MAX = 64 };

struct hangup {
    int fd;
};

int hangup_new(struct hangup **ret, struct err *e)
{
    int fd = epoll_create1(EPOLL_CLOEXEC);
    struct hangup *h;

    if (fd < 0)
        return err_errno(e, ERR_IO, "epoll_create1");
    h = xmalloc(sizeof(*h));
    h->fd = fd;
    *ret = h;
    return 0;
}

void hangup_free(struct hangup *h)
{
    if (!h)
        return;
    close(h->fd);
    free(h);
}

int hangup_fd(const struct hangup *h) { return h->fd; }

bool hangup_arm(struct hangup *h, int fd, uint64_t key, bool again)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = key};

    return epoll_ctl(h->fd, again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev) == 0;
}

void hangup_del(struct hangup *h, int fd) { epoll_ctl(h->fd, EPOLL_CTL_DEL, fd, NULL); }

int hangup_take(struct hangup *h, uint64_t *ret_keys, int max)
{
    struct epoll_event ev[TAKE_MAX];
    int n = epoll_wait(h->fd, ev, max < TAKE_MAX ? max : TAKE_MAX, 0);

    for (int i = 0; i < n; i++)
        ret_keys[i] = ev[i].data.u64;
    return n > 0 ? n : 0;
}

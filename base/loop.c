/* base/loop.c - level-triggered epoll with timers and signals for one control thread.
 *
 * A watch removed while its event is already fetched is only marked, and freed when the
 * pass is over. Timers stand in a plain list: a control thread has tens of them. A timer
 * that its callback arms into the past fires in the next pass, so that a pass ends. */
#include "base/loop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"

enum { EVENTS_MAX = 64, SIGNAL_MAX = 65 };

struct loop_fd {
    struct loop *loop;
    struct list link; /* in loop->fds, or loop->dead */
    int fd;
    bool dead;
    loop_fd_fn fn;
    void *arg;
};

struct loop_timer {
    struct loop *loop;
    struct list link;
    int64_t at_us; /* -1 = not armed */
    uint64_t armed_in;
    loop_timer_fn fn;
    void *arg;
};

struct loop {
    int epoll, wake, sigfd;
    atomic_bool stop;
    atomic_uint_fast64_t passes;
    uint64_t pass;
    struct list fds, dead, timers;
    sigset_t signals;
    struct {
        loop_signal_fn fn;
        void *arg;
    } on_signal[SIGNAL_MAX];
};

static void on_wake(void *arg, int fd, uint32_t events)
{
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof(count));

    (void)arg, (void)events, (void)n;
}

int loop_new(struct loop **ret, struct err *e)
{
    struct loop *l = xcalloc(1, sizeof(*l));

    list_init(&l->fds);
    list_init(&l->dead);
    list_init(&l->timers);
    sigemptyset(&l->signals);
    l->sigfd = -1;
    l->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (l->wake < 0 || l->epoll < 0) {
        err_errno(e, ERR_IO, "cannot make an event loop");
        goto fail;
    }
    if (loop_fd_add(l, l->wake, EPOLLIN, on_wake, l, NULL, e) < 0)
        goto fail;
    *ret = l;
    return 0;
fail:
    loop_free(l);
    return -1;
}

static void bury(struct loop *l)
{
    list_for_safe(it, next, &l->dead)
    {
        struct loop_fd *w = list_entry(it, struct loop_fd, link);
        list_del(it);
        free(w);
    }
}

void loop_free(struct loop *l)
{
    if (!l)
        return;
    bury(l);
    list_for_safe(it, next, &l->fds) free(list_entry(it, struct loop_fd, link));
    list_for_safe(it, next, &l->timers) free(list_entry(it, struct loop_timer, link));
    if (l->epoll >= 0)
        close(l->epoll);
    if (l->wake >= 0)
        close(l->wake);
    if (l->sigfd >= 0)
        close(l->sigfd);
    free(l);
}

int loop_fd_add(struct loop *l, int fd, uint32_t events, loop_fd_fn fn, void *arg,
                struct loop_fd **ret, struct err *e)
{
    struct loop_fd *w = xcalloc(1, sizeof(*w));
    struct epoll_event ev = {.events = events, .data.ptr = w};

    w->loop = l;
    w->fd = fd;
    w->fn = fn;
    w->arg = arg;
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &ev) < 0) {
        free(w);
        return err_errno(e, ERR_IO, "cannot watch descriptor %d", fd);
    }
    list_push(&l->fds, &w->link);
    if (ret)
        *ret = w;
    return 0;
}

void loop_fd_set(struct loop_fd *w, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};

    epoll_ctl(w->loop->epoll, EPOLL_CTL_MOD, w->fd, &ev);
}

void loop_fd_del(struct loop_fd *w)
{
    if (!w)
        return;
    epoll_ctl(w->loop->epoll, EPOLL_CTL_DEL, w->fd, NULL);
    w->dead = true;
    list_del(&w->link);
    list_push(&w->loop->dead, &w->link);
}

struct loop_timer *loop_timer_new(struct loop *l, loop_timer_fn fn, void *arg)
{
    struct loop_timer *t = xcalloc(1, sizeof(*t));

    t->loop = l;
    t->at_us = -1;
    t->fn = fn;
    t->arg = arg;
    list_push(&l->timers, &t->link);
    return t;
}

void loop_timer_set(struct loop_timer *t, int64_t at_us)
{
    t->at_us = at_us;
    t->armed_in = t->loop->pass;
}

void loop_timer_free(struct loop_timer *t)
{
    if (!t)
        return;
    list_del(&t->link);
    free(t);
}

static void on_sigfd(void *arg, int fd, uint32_t events)
{
    struct loop *l = arg;
    struct signalfd_siginfo si;

    (void)events;
    while (read(fd, &si, sizeof(si)) == sizeof(si))
        if (si.ssi_signo < SIGNAL_MAX && l->on_signal[si.ssi_signo].fn)
            l->on_signal[si.ssi_signo].fn(l->on_signal[si.ssi_signo].arg,
                                          (int)si.ssi_signo);
}

int loop_signal(struct loop *l, int signo, loop_signal_fn fn, void *arg, struct err *e)
{
    int fd;

    if (signo < 1 || signo >= SIGNAL_MAX)
        return err_set(e, ERR_RANGE, "there is no signal %d", signo);
    sigaddset(&l->signals, signo);
    if (pthread_sigmask(SIG_BLOCK, &l->signals, NULL) != 0)
        return err_set(e, ERR_INTERNAL, "cannot block signal %d", signo);
    fd = signalfd(l->sigfd, &l->signals, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0)
        return err_errno(e, ERR_IO, "cannot watch signal %d", signo);
    l->on_signal[signo].fn = fn;
    l->on_signal[signo].arg = arg;
    if (l->sigfd >= 0)
        return 0;
    l->sigfd = fd;
    return loop_fd_add(l, fd, EPOLLIN, on_sigfd, l, NULL, e);
}

static struct loop_timer *first_timer(struct loop *l)
{
    struct loop_timer *first = NULL;

    list_for(it, &l->timers)
    {
        struct loop_timer *t = list_entry(it, struct loop_timer, link);
        if (t->at_us >= 0 && (!first || t->at_us < first->at_us))
            first = t;
    }
    return first;
}

/* The earliest due timer that was armed before this pass. */
static struct loop_timer *due_timer(struct loop *l, int64_t now)
{
    struct loop_timer *due = NULL;

    list_for(it, &l->timers)
    {
        struct loop_timer *t = list_entry(it, struct loop_timer, link);
        if (t->at_us >= 0 && t->at_us <= now && t->armed_in < l->pass &&
            (!due || t->at_us < due->at_us))
            due = t;
    }
    return due;
}

static int wait_ms(struct loop *l, int64_t at_us)
{
    struct loop_timer *t = first_timer(l);
    int64_t left;

    if (t && (at_us < 0 || t->at_us < at_us))
        at_us = t->at_us;
    if (at_us < 0)
        return -1;
    left = at_us - clock_now_us(clock_real());
    if (left <= 0)
        return 0;
    return left > 3600000000 ? 3600000 : (int)((left + 999) / 1000);
}

int loop_once(struct loop *l, int64_t at_us, struct err *e)
{
    struct epoll_event ev[EVENTS_MAX];
    struct loop_timer *t;
    int64_t now;
    int n = epoll_wait(l->epoll, ev, EVENTS_MAX, wait_ms(l, at_us));

    if (n < 0 && errno != EINTR)
        return err_errno(e, ERR_IO, "waiting for events");
    l->pass++;
    for (int i = 0; i < n; i++) {
        struct loop_fd *w = ev[i].data.ptr;
        if (!w->dead)
            w->fn(w->arg, w->fd, ev[i].events);
    }
    now = clock_now_us(clock_real());
    while ((t = due_timer(l, now))) {
        t->at_us = -1;
        t->fn(t->arg);
    }
    bury(l);
    atomic_fetch_add(&l->passes, 1);
    return 0;
}

int loop_run(struct loop *l, struct err *e)
{
    while (!atomic_load(&l->stop))
        if (loop_once(l, -1, e) < 0)
            return -1;
    atomic_store(&l->stop, false);
    return 0;
}

void loop_stop(struct loop *l)
{
    atomic_store(&l->stop, true);
    loop_wake(l);
}

void loop_wake(struct loop *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake, &one, sizeof(one));

    (void)n;
}

uint64_t loop_passes(const struct loop *l) { return atomic_load(&l->passes); }

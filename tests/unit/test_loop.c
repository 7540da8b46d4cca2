/* tests/unit/test_loop.c - watches that remove each other, timers in order, signals,
 * waking from another thread. */
#include "tests/test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"

struct pair {
    struct loop_fd *w[2];
    int calls;
};

/* Whichever is called first removes both. */
static void remove_both(void *arg, int fd, uint32_t events)
{
    struct pair *p = arg;

    (void)fd;
    assert_true(events & EPOLLIN);
    p->calls++;
    loop_fd_del(p->w[0]);
    loop_fd_del(p->w[1]);
}

static void removal_in_callback(void **state)
{
    int a[2], b[2];
    struct pair p = {0};
    struct loop *l;
    struct err e;

    (void)state;
    assert_int_equal(loop_new(&l, &e), 0);
    assert_int_equal(pipe(a) | pipe(b), 0);
    assert_int_equal(loop_fd_add(l, a[0], EPOLLIN, remove_both, &p, &p.w[0], &e), 0);
    assert_int_equal(loop_fd_add(l, b[0], 0, remove_both, &p, &p.w[1], &e), 0);
    loop_fd_set(p.w[1], EPOLLIN);
    assert_int_equal(write(a[1], "x", 1) + write(b[1], "x", 1), 2);
    assert_int_equal(loop_once(l, 0, &e), 0);
    assert_int_equal(loop_once(l, 0, &e), 0);
    assert_int_equal(p.calls, 1);
    assert_int_equal(loop_passes(l), 2);
    assert_int_equal(loop_fd_add(l, 9999, EPOLLIN, remove_both, &p, NULL, &e), -1);
    loop_fd_del(NULL);
    loop_free(l);
    loop_free(NULL);
    for (int i = 0; i < 2; i++) {
        close(a[i]);
        close(b[i]);
    }
}

struct ticker {
    struct loop *l;
    struct loop_timer *t;
    int id, *order, *n;
};

static void tick(void *arg)
{
    struct ticker *k = arg;

    k->order[(*k->n)++] = k->id;
    if (k->id == 1 && *k->n < 3)
        loop_timer_set(k->t, 0); /* in the past: next pass, not this one */
}

static void timers(void **state)
{
    int order[8], n = 0;
    int64_t now = clock_now_us(clock_real());
    struct ticker k[3];
    struct loop *l;
    struct err e;

    (void)state;
    assert_int_equal(loop_new(&l, &e), 0);
    for (int i = 0; i < 3; i++) {
        k[i] = (struct ticker){l, NULL, i, order, &n};
        k[i].t = loop_timer_new(l, tick, &k[i]);
    }
    loop_timer_set(k[0].t, now - 1);
    loop_timer_set(k[1].t, now - 2);
    loop_timer_set(k[2].t, now + 3600000000);
    assert_int_equal(loop_once(l, 0, &e), 0);
    assert_int_equal(n, 2);
    assert_int_equal(order[0], 1);
    assert_int_equal(order[1], 0);
    assert_int_equal(loop_once(l, -1, &e), 0);
    assert_int_equal(n, 3);
    assert_int_equal(order[2], 1);
    loop_timer_set(k[0].t, now);
    loop_timer_set(k[0].t, -1);
    assert_int_equal(loop_once(l, clock_now_us(clock_real()) + 2000, &e), 0);
    assert_int_equal(n, 3);
    loop_timer_free(k[0].t);
    loop_timer_free(NULL);
    loop_free(l);
}

static void on_signal(void *arg, int signo)
{
    struct ticker *k = arg;

    k->order[(*k->n)++] = signo;
    if (*k->n == 2)
        loop_stop(k->l);
}

static void signals(void **state)
{
    int order[8], n = 0;
    struct ticker k = {.order = order, .n = &n};
    struct err e;

    (void)state;
    assert_int_equal(loop_new(&k.l, &e), 0);
    assert_int_equal(loop_signal(k.l, SIGUSR1, on_signal, &k, &e), 0);
    assert_int_equal(loop_signal(k.l, SIGUSR2, on_signal, &k, &e), 0);
    assert_int_equal(loop_signal(k.l, 0, on_signal, &k, &e), -1);
    kill(getpid(), SIGUSR2);
    kill(getpid(), SIGUSR1);
    assert_int_equal(loop_run(k.l, &e), 0);
    assert_int_equal(order[0] + order[1], SIGUSR1 + SIGUSR2);
    loop_free(k.l);
}

static void *stop_it(void *arg)
{
    loop_stop(arg);
    return NULL;
}

static void wakes(void **state)
{
    struct loop *l;
    struct err e;
    pthread_t t;

    (void)state;
    assert_int_equal(loop_new(&l, &e), 0);
    loop_wake(l);
    assert_int_equal(loop_once(l, -1, &e), 0);
    assert_int_equal(pthread_create(&t, NULL, stop_it, l), 0);
    assert_int_equal(loop_run(l, &e), 0);
    pthread_join(t, NULL);
    loop_free(l);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(removal_in_callback),
    cmocka_unit_test(timers),
    cmocka_unit_test(signals),
    cmocka_unit_test(wakes),
};

TEST_MAIN("loop", tests)

/* base/clock.c - the one place that asks the system for time. */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

static int64_t real_now(const struct clock *c)
{
    struct timespec ts;

    (void)c;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static int64_t fake_now(const struct clock *c)
{
    return __atomic_load_n(&c->fake_us, __ATOMIC_ACQUIRE);
}

const struct clock *clock_real(void)
{
    static const struct clock real = {real_now, 0};
    return &real;
}

void clock_fake_init(struct clock *c, int64_t start_us)
{
    c->now_us = fake_now;
    c->fake_us = start_us;
}

void clock_fake_advance(struct clock *c, int64_t us)
{
    __atomic_add_fetch(&c->fake_us, us, __ATOMIC_RELEASE);
}

int64_t clock_now_us(const struct clock *c) { return c->now_us(c); }

int64_t clock_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t clock_wall_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void clock_sleep_us(int64_t us)
{
    struct timespec ts = {us / 1000000, us % 1000000 * 1000};

    while (us > 0 && nanosleep(&ts, &ts) < 0 && errno == EINTR)
        continue;
}

/* base/gate.c - raise and wait, with a futex under it.
 *
 * The value and `sleepers` are accessed sequentially consistent: either the waiter sees
 * the new value, or the raiser sees the sleeper. Sleeps are cut into slices, so that a
 * stop that came between the look and the sleep is seen all the same. */
#include "base/gate.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/relax.h"
#include "base/spin.h"

enum {
    SPINS = 2000,
    LOOKS = 64, /* spins between two looks at `stop` */
    SLICE_US = 20000
};

void gate_raise(struct gate *g, uint32_t value)
{
    atomic_store(&g->value, value);
    if (atomic_load(&g->sleepers))
        syscall(SYS_futex, &g->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool stopped(const atomic_uint *stop)
{
    return stop && atomic_load_explicit(stop, memory_order_acquire);
}

/* One slice at most. */
static void sleep_on(struct gate *g, uint32_t value, int64_t left_us)
{
    int64_t us = left_us < SLICE_US ? left_us : SLICE_US;
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    uint32_t now;

    atomic_fetch_add(&g->sleepers, 1);
    now = atomic_load(&g->value);
    if ((int32_t)(now - value) < 0)
        syscall(SYS_futex, &g->value, FUTEX_WAIT, now, &t, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

enum gate_end gate_wait(struct gate *g, uint32_t value, bool spin, int64_t deadline_us,
                        const atomic_uint *stop)
{
    spin = spin && spin_allowed();
    for (int i = 0; spin && i < SPINS; i++) {
        if (gate_reached(g, value))
            return GATE_OPEN;
        if (i % LOOKS == 0 && stopped(stop))
            return GATE_STOPPED;
        relax();
    }
    for (;;) {
        if (gate_reached(g, value))
            return GATE_OPEN;
        if (stopped(stop))
            return GATE_STOPPED;
        int64_t left = deadline_us - clock_now_us(clock_real());
        if (left <= 0)
            return GATE_TIMEOUT;
        sleep_on(g, value, left);
    }
}

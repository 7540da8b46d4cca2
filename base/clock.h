/* base/clock.h - time, real or fake. Nothing else in the project asks the system.
 *
 * Monotonic microseconds for every deadline and duration; wall time only for display
 * and for `created` fields. clock_real() is shared; a fake clock belongs to its test. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

struct clock {
    int64_t (*now_us)(const struct clock *c);
    int64_t fake_us;
};

const struct clock *clock_real(void);
void clock_fake_init(struct clock *c, int64_t start_us);
void clock_fake_advance(struct clock *c, int64_t us);
int64_t clock_now_us(const struct clock *c); /* monotonic */
int64_t clock_now_ns(void);                  /* monotonic, real, for short spans */
int64_t clock_wall_ms(void);                 /* Unix time */
/* A counter that rises evenly, of no known unit: for shares of a span whose ends were
 * also read as nanoseconds. An instruction or two where the processor has one. */
static inline uint64_t clock_ticks(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#else
    return (uint64_t)clock_now_ns();
#endif
}
/* Sleep for real; only start-up code of programs may call it (make layers checks). */
void clock_sleep_us(int64_t us);

#endif

/* base/clock.h - time, real or fake. Nothing else in the project asks the system.
 *
 * Monotonic microseconds for every deadline and duration; wall time only for display
 * and for `created` fields. clock_real() is shared; a fake clock belongs to its test. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

struct clock {
    int64_t (*now_us)(const struct clock *c);
    int64_t fake_us;
};

const struct clock *clock_real(void);
void clock_fake_init(struct clock *c, int64_t start_us);
void clock_fake_advance(struct clock *c, int64_t us);
int64_t clock_now_us(const struct clock *c); /* monotonic */
int64_t clock_wall_ms(void);                 /* Unix time */
/* Sleep for real; only start-up code of programs may call it (make layers checks). */
void clock_sleep_us(int64_t us);

#endif

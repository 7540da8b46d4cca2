/* base/gate.h - a counter in shared memory that is waited for with a deadline.
 *
 * One writer raises it, any number wait until it has reached a value; threads of one
 * process or processes that map the same page. Values wrap: differences count, so a
 * waiter may be at most 2^31 behind. A waiter spins a bounded while (when told to) and
 * then sleeps on a futex. Zeroed memory is a gate at 0. */
#ifndef BASE_GATE_H
#define BASE_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct gate {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
};

enum gate_end { GATE_OPEN, GATE_TIMEOUT, GATE_STOPPED };

void gate_raise(struct gate *g, uint32_t value);
static inline uint32_t gate_value(const struct gate *g)
{
    return atomic_load_explicit(&g->value, memory_order_acquire);
}
static inline bool gate_reached(const struct gate *g, uint32_t value)
{
    return (int32_t)(gate_value(g) - value) >= 0;
}
/* Until the gate reached value, the monotonic deadline passed, or *stop (may be NULL)
 * became non-zero (seen within 20 ms). */
enum gate_end gate_wait(struct gate *g, uint32_t value, bool spin, int64_t deadline_us,
                        const atomic_uint *stop);

#endif

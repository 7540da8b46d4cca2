/* base/spin.c - the switch. */
#include "base/spin.h"

#include <stdatomic.h>

static atomic_bool forbidden;

void spin_allow(bool on) { atomic_store_explicit(&forbidden, !on, memory_order_relaxed); }

bool spin_allowed(void)
{
    return !atomic_load_explicit(&forbidden, memory_order_relaxed);
}

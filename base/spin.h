/* base/spin.h - may the waiting threads of this process spin?
 *
 * One switch for all of them, since who shares the CPUs is known to the machine only: an
 * engine is told by the daemon when others come to its CPUs or leave them. Waiters look
 * at it as they begin to wait. On at first. Any thread. */
#ifndef BASE_SPIN_H
#define BASE_SPIN_H

#include <stdbool.h>

void spin_allow(bool on);
bool spin_allowed(void);

#endif

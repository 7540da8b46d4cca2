/* base/fault.h - named points at which a test kills the process.
 *
 * Only in builds with -DLLMRACK_FAULTS (make crash-test): the environment's
 * LLMRACK_CRASH_AT=NAME, or NAME:N for the N-th time that the point is passed, ends the
 * process there by SIGKILL, as a power cut would. Elsewhere a point is nothing. Points
 * are passed by the control thread. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#ifdef LLMRACK_FAULTS
#include <stdlib.h>

void fault_point(const char *name);
static inline const char *fault_setting(const char *name) { return getenv(name); }
#else
#include <stddef.h>

static inline void fault_point(const char *name) { (void)name; }
/* What a crash test says instead of the system, NULL = nothing. */
static inline const char *fault_setting(const char *name)
{
    (void)name;
    return NULL;
}
#endif

#endif

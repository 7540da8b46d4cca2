/* base/fault.h - named points at which a test kills the process.
 *
 * Only in builds with -DLLMRACK_FAULTS (make crash-test): the environment's
 * LLMRACK_CRASH_AT=NAME, or NAME:N for the N-th time that the point is passed, ends the
 * process there by SIGKILL, as a power cut would. Elsewhere a point is nothing. Points
 * are passed by the control thread.
 *
 * Other points hold the thread that passes them, as a rank that stops or a collective
 * that comes late would: where the file that LLMRACK_FAULT_FILE names says "NAME INDEX
 * MS", the thread INDEX is held at the point NAME for MS milliseconds, 0 for ever. The
 * file is removed as that happens, so that it happens once. Any thread. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#ifdef LLMRACK_FAULTS
#include <stdlib.h>

void fault_point(const char *name);
void fault_hold(const char *name, int index);
static inline const char *fault_setting(const char *name) { return getenv(name); }
#else
#include <stddef.h>

static inline void fault_point(const char *name) { (void)name; }
static inline void fault_hold(const char *name, int index) { (void)name, (void)index; }
/* What a crash test says instead of the system, NULL = nothing. */
static inline const char *fault_setting(const char *name)
{
    (void)name;
    return NULL;
}
#endif

#endif

/* base/fault.h - named points at which a test kills the process.
 *
 * Only in builds with -DLLMRACK_FAULTS (make crash-test): the environment's
 * LLMRACK_CRASH_AT=NAME, or NAME:N for the N-th time that the point is passed, ends the
 * process there by SIGKILL, as a power cut would. Elsewhere a point is nothing. Points
 * are passed by the control thread.
 *
 * Other points hold the thread that passes them, as a rank that stops or a collective
 * that comes late would, or do what its file says to the whole process. The first line of
 * the file that LLMRACK_FAULT_FILE names is NAME INDEX ACTION: the thread INDEX that
 * passes the point NAME
 *
 *   MS     is held for so many milliseconds, 0 for ever
 *   stop   stops the process (SIGSTOP)        kill   ends it (SIGKILL)
 *   fail   is told that what it is about to do fails, where it can
 *
 * NAME@WHO is for the processes that fault_whose named so. The line is removed as that
 * happens, so that it happens once, and the file with its last line. Any thread. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdbool.h>

#ifdef LLMRACK_FAULTS
#include <stdlib.h>

void fault_point(const char *name);
/* True: it is to fail. */
bool fault_hold(const char *name, int index);
void fault_whose(const char *who); /* borrowed; once, before there are threads */
static inline bool fault_on(void)
{
    return true;
} /* such a build: checks that are slow */
static inline const char *fault_setting(const char *name) { return getenv(name); }
#else
#include <stddef.h>

static inline void fault_point(const char *name) { (void)name; }
static inline bool fault_hold(const char *name, int index)
{
    (void)name, (void)index;
    return false;
}
static inline void fault_whose(const char *who) { (void)who; }
static inline bool fault_on(void) { return false; }
/* What a crash test says instead of the system, NULL = nothing. */
static inline const char *fault_setting(const char *name)
{
    (void)name;
    return NULL;
}
#endif

#endif

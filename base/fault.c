/* base/fault.c - dies where LLMRACK_CRASH_AT says, in builds for crash tests. */
#include "base/fault.h"

#ifdef LLMRACK_FAULTS
#include <signal.h>
#include <stdlib.h>
#include <string.h>

void fault_point(const char *name)
{
    static long passed;
    const char *at = getenv("LLMRACK_CRASH_AT");
    size_t n = strlen(name);

    if (!at || strncmp(at, name, n) || (at[n] && at[n] != ':'))
        return;
    if (++passed == (at[n] ? atol(at + n + 1) : 1))
        raise(SIGKILL);
}
#endif

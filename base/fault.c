/* base/fault.c - dies where LLMRACK_CRASH_AT says, hangs where LLMRACK_FAULT_FILE says,
 * in builds for tests. */
#include "base/fault.h"

#ifdef LLMRACK_FAULTS
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

void fault_hold(const char *name, int index)
{
    const char *path = getenv("LLMRACK_FAULT_FILE");
    FILE *f = path ? fopen(path, "re") : NULL;
    char at[32];
    int who = -1;
    long ms = -1;

    if (!f)
        return;
    if (fscanf(f, "%31s %d %ld", at, &who, &ms) != 3)
        ms = -1;
    fclose(f);
    if (ms < 0 || who != index || strcmp(at, name) || unlink(path) < 0)
        return;
    do {
        const struct timespec t = {ms ? ms / 1000 : 3600, ms % 1000 * 1000000};
        nanosleep(&t, NULL);
    } while (!ms);
}
#endif

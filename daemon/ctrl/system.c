/* daemon/ctrl/system.c - CPUs and the descriptor limit, from the kernel. */

#include "daemon/ctrl/system.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"

int system_cpus(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return 1;
    return CPU_COUNT(&set);
}

long system_descriptors(long want, struct err *e)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return err_errno(e, ERR_IO, "limit of descriptors");
    if (r.rlim_cur < (rlim_t)want && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max < (rlim_t)want ? r.rlim_max : (rlim_t)want;
        if (setrlimit(RLIMIT_NOFILE, &r) < 0)
            return err_errno(e, ERR_IO, "limit of descriptors");
    }
    return r.rlim_cur > (rlim_t)want ? want : (long)r.rlim_cur;
}

void system_boot_id(char ret[40])
{
    const char *said = fault_setting("LLMRACK_BOOT_ID");
    FILE *f = said ? NULL : fopen("/proc/sys/kernel/random/boot_id", "re");

    ret[0] = '\0';
    if (said)
        snprintf(ret, 40, "%s", said);
    else if (f && fscanf(f, "%39s", ret) != 1)
        ret[0] = '\0';
    if (f)
        fclose(f);
    if (!ret[0])
        snprintf(ret, 40, "unknown-%lld-%d", (long long)clock_wall_ms(), (int)getpid());
}

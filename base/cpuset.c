/* base/cpuset.c - see cpuset.h. */
#include "base/cpuset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

void cpuset_mine(cpu_set_t *ret)
{
    CPU_ZERO(ret);
    if (sched_getaffinity(0, sizeof(*ret), ret) < 0 || !CPU_COUNT(ret))
        CPU_SET(0, ret);
}

/* A number at *s, moved behind it; -1. */
static long number(const char **s, const char *end)
{
    long v = 0;

    if (*s == end || **s < '0' || **s > '9')
        return -1;
    for (; *s < end && **s >= '0' && **s <= '9'; (*s)++)
        v = v < CPU_SETSIZE ? 10 * v + (**s - '0') : v;
    return v;
}

int cpuset_parse(const char *text, size_t n, cpu_set_t *ret, struct err *e)
{
    const char *s = text, *end = text + n;
    cpu_set_t set;

    CPU_ZERO(&set);
    do {
        long from = number(&s, end), to = from;

        if (from >= 0 && s < end && *s == '-') {
            s++;
            to = number(&s, end);
        }
        if (from < 0 || to < from || (s < end && *s != ','))
            return err_set(e, ERR_SYNTAX, "CPUs '%.*s': a list as 0-3,8 would be right",
                           (int)(n < 64 ? n : 64), text);
        if (to >= CPU_SETSIZE)
            return err_set(e, ERR_RANGE, "CPUs '%.*s': there are CPUs 0 to %d at most",
                           (int)(n < 64 ? n : 64), text, CPU_SETSIZE - 1);
        for (long c = from; c <= to; c++)
            CPU_SET((size_t)c, &set);
    } while (s++ < end);
    *ret = set;
    return 0;
}

void cpuset_print(const cpu_set_t *set, char *ret, size_t cap)
{
    size_t at = 0;

    ret[0] = '\0';
    for (int c = 0; c < CPU_SETSIZE; c++) {
        char one[32];
        int from = c;
        size_t n;

        if (!CPU_ISSET((size_t)c, set))
            continue;
        while (c + 1 < CPU_SETSIZE && CPU_ISSET((size_t)c + 1, set))
            c++;
        n = (size_t)(c > from
                         ? snprintf(one, sizeof(one), "%s%d-%d", at ? "," : "", from, c)
                         : snprintf(one, sizeof(one), "%s%d", at ? "," : "", c));
        if (at + n + 3 > cap) {
            snprintf(ret + at, cap - at, "..");
            return;
        }
        memcpy(ret + at, one, n + 1);
        at += n;
    }
}

int cpuset_list(const cpu_set_t *set, int *ret, int max)
{
    int n = 0;

    for (int c = 0; c < CPU_SETSIZE && n < max; c++)
        if (CPU_ISSET((size_t)c, set))
            ret[n++] = c;
    return n;
}

void cpuset_share(const cpu_set_t *of, int i, int n, cpu_set_t *ret)
{
    int all[CPU_SETSIZE], n_all = cpuset_list(of, all, CPU_SETSIZE), from, to;

    CPU_ZERO(ret);
    if (!n_all)
        return;
    from = n <= n_all ? i * n_all / n : i % n_all;
    to = n <= n_all ? (i + 1) * n_all / n : from + 1;
    for (int k = from; k < to; k++)
        CPU_SET((size_t)all[k], ret);
}

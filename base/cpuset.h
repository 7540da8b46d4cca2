/* base/cpuset.h - sets of CPUs: as text, as a list, shared out.
 *
 * The text is the kernel's: "0-3,8". Any thread. */
#ifndef BASE_CPUSET_H
#define BASE_CPUSET_H

#include <sched.h>
#include <stddef.h>

struct err;

enum { CPUSET_TEXT_MAX = 4096 }; /* of any set */

/* Those that this thread may run on; where the kernel does not say, CPU 0. */
void cpuset_mine(cpu_set_t *ret);
/* n characters of text; at least one CPU. SYNTAX, RANGE. */
int cpuset_parse(const char *text, size_t n, cpu_set_t *ret, struct err *e);
/* Cut off, with "..", where cap is too small. */
void cpuset_print(const cpu_set_t *set, char *ret, size_t cap);
/* In order, at most max; returns the count. */
int cpuset_list(const cpu_set_t *set, int *ret, int max);
/* The share of the i-th of n: neighbours, so many as go round; with more takers than
 * CPUs, one CPU that several share. */
void cpuset_share(const cpu_set_t *of, int i, int n, cpu_set_t *ret);

#endif

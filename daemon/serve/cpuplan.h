/* daemon/serve/cpuplan.h - on which CPUs the threads of an engine's ranks run.
 *
 * From what the daemon says: "0-3", which the ranks share out, or "0-1;2-3", a list for
 * each; "" is all that the process may use. A rank whose threads are as many as its CPUs
 * has one on each; a smaller number must stay free to move away from what else runs
 * there. Pure, but where it says so. */
#ifndef SERVE_CPUPLAN_H
#define SERVE_CPUPLAN_H

#include <sched.h>
#include <stdbool.h>

struct err;

enum { CPUPLAN_TEXT_MAX = 64 << 10 };

struct cpuplan_rank {
    cpu_set_t may; /* none: as they stand */
    int n_threads; /* 1 or more */
    bool pin;      /* a thread on each of may */
};
struct cpuplan {
    cpu_set_t all;
    int n_ranks, n_threads; /* of all ranks */
    bool fits;              /* no more threads than CPUs */
    struct cpuplan_rank *rank;
};

/* threads 0: one for each CPU. SYNTAX, RANGE; INVALID for lists of another number of
 * ranks. */
int cpuplan_make(const char *text, int threads, int n_ranks, struct cpuplan *ret,
                 struct err *e);
/* So many threads, wherever they stand. */
void cpuplan_loose(int threads, int n_ranks, struct cpuplan *ret);
void cpuplan_copy(const struct cpuplan *from, struct cpuplan *ret);
void cpuplan_done(struct cpuplan *p);
/* How many threads an engine has: at least one a rank. */
int cpuplan_threads(int threads, int n_cpus, int n_ranks);
/* Put every thread of this process on these CPUs; what the kernel refuses stays. */
void cpuplan_move_all(const cpu_set_t *to);

#endif

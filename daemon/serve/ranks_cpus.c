/* daemon/serve/ranks_cpus.c - the CPUs of the ranks: at the start, and while they run.
 *
 * The scheduler thread puts a plan in and raises its turn; each rank takes its part of it
 * on its own thread, before it opens and before the next step, since threads that are
 * started and memory that is first touched there are where that thread stands. Results do
 * not depend on the number of threads, so ranks need not change in the same step. */
#include <stdlib.h>

#include "base/cpuset.h"
#include "base/mem.h"
#include "daemon/serve/outs.h"
#include "daemon/serve/rank.h"
#include "daemon/serve/ranks_impl.h"

int ranks_stand(struct ranks *r, int i, int **ret_cpus)
{
    struct cpuplan_rank k;

    pthread_mutex_lock(&r->cpus_lock);
    k = r->cpus.rank[i];
    pthread_mutex_unlock(&r->cpus_lock);
    if (CPU_COUNT(&k.may))
        sched_setaffinity(0, sizeof(k.may), &k.may); /* else it works where it is */
    *ret_cpus = NULL;
    if (k.pin) {
        *ret_cpus = xcalloc((size_t)k.n_threads, sizeof(int));
        cpuset_list(&k.may, *ret_cpus, k.n_threads);
    }
    return k.n_threads;
}

void rank_follow(struct rank *r)
{
    unsigned turn = atomic_load(&r->all->cpus_turn);
    struct err e;
    int *cpus, n;

    if (turn == r->cpus_turn)
        return;
    r->cpus_turn = turn;
    n = ranks_stand(r->all, r->index, &cpus);
    backend_set_threads(r->b, n, cpus, &e);
    free(cpus);
}

void ranks_follow(struct ranks *r)
{
    unsigned turn = atomic_load(&r->cpus_turn);
    struct err e;
    int n, *pins = NULL;

    if (turn == r->outs_turn)
        return;
    r->outs_turn = turn;
    pthread_mutex_lock(&r->cpus_lock);
    n = r->cpus.n_threads;
    if (r->cpus.rank[0].pin) {
        cpu_set_t rest;
        int own;

        pins = xcalloc((size_t)n, sizeof(*pins));
        own = cpuset_list(&r->cpus.rank[r->leader].may, pins, n); /* it is the first */
        CPU_XOR(&rest, &r->cpus.all, &r->cpus.rank[r->leader].may);
        cpuset_list(&rest, pins + own, n - own);
    }
    pthread_mutex_unlock(&r->cpus_lock);
    outs_set_threads(r->outs, n, pins, &e);
    free(pins);
}

void ranks_set_cpus(struct executor *x, const struct cpuplan *p)
{
    struct ranks *r = (struct ranks *)x;
    struct cpuplan next, old;

    cpuplan_copy(p, &next);
    pthread_mutex_lock(&r->cpus_lock);
    old = r->cpus;
    r->cpus = next;
    pthread_mutex_unlock(&r->cpus_lock);
    cpuplan_done(&old);
    atomic_fetch_add(&r->cpus_turn, 1);
}

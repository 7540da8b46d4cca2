/* base/team.c - fork-join and barrier of a fixed team, in about a microsecond.
 *
 * Two words are waited on: `round`, which the owner raises to start a run, and `phase`,
 * which the last one to arrive at a barrier raises; the end of a run is one more barrier.
 * A waiter spins a bounded number of pauses, then announces itself in `sleepers` and
 * sleeps on the futex of the word. The word and `sleepers` are accessed sequentially
 * consistent: either the waiter sees the new word, or the waker sees the sleeper.
 *
 *   owner    round++ .. fn(0) .. barrier
 *   member   wait(round) .. fn(m) .. barrier
 */
#include "base/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/relax.h"
#include "base/spin.h"

enum {
    LINE = 64,
    /* A pause takes 10 to 140 cycles: 20 to 200 us in all. Longer than the gap between
     * two ops of a step, shorter than anyone would notice an idle engine burn. */
    SPINS = 4000
};

struct word {
    _Alignas(LINE) atomic_uint value;
    _Alignas(LINE) atomic_uint sleepers;
};

struct member {
    struct team *team;
    pthread_t thread;
    int index, cpu;
};

struct team {
    struct word round, phase;
    _Alignas(LINE) atomic_uint arrived;
    _Alignas(LINE) int n;
    bool spin;
    int n_started;
    team_fn fn; /* NULL ends the members */
    void *arg;
    struct member *members;
};

static void word_wait(struct word *w, unsigned old, bool spin)
{
    spin = spin && spin_allowed();
    for (int i = 0; spin && i < SPINS; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
            return;
        relax();
    }
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old)
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

static void word_raise(struct word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->sleepers))
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void team_sync(struct team *t)
{
    unsigned phase;

    if (t->n == 1)
        return;
    phase = atomic_load_explicit(&t->phase.value, memory_order_acquire);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == (unsigned)t->n) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        word_raise(&t->phase);
    } else {
        word_wait(&t->phase, phase, t->spin);
    }
}

static int pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct team *t = m->team;
    unsigned round = 0;

    if (m->cpu >= 0)
        pin(m->cpu); /* a member that cannot be pinned still works */
    for (;;) {
        word_wait(&t->round, round, t->spin);
        round++;
        if (!t->fn)
            return NULL;
        t->fn(t->arg, m->index, t->n);
        team_sync(t);
    }
}

int team_new(int n_members, const int *cpus, bool spin, struct team **ret, struct err *e)
{
    struct team *t;

    if (n_members < 1 || n_members > 1024)
        return err_set(e, ERR_RANGE, "a team of %d threads; it must be from 1 to 1024",
                       n_members);
    for (int i = 0; cpus && i < n_members; i++)
        if (cpus[i] < 0 || cpus[i] >= CPU_SETSIZE)
            return err_set(e, ERR_RANGE, "there is no CPU %d", cpus[i]);
    t = aligned_alloc(LINE, (sizeof(*t) + LINE - 1) / LINE * LINE);
    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for a team of threads");
    *t = (struct team){.n = n_members, .spin = spin, .n_started = 1};
    t->members = xcalloc((size_t)n_members, sizeof(*t->members));
    for (int i = 1; i < n_members; i++) {
        t->members[i] = (struct member){t, 0, i, cpus ? cpus[i] : -1};
        if (pthread_create(&t->members[i].thread, NULL, member_main, &t->members[i])) {
            team_free(t);
            return err_set(e, ERR_NOMEM, "cannot start thread %d of a team of %d", i,
                           n_members);
        }
        t->n_started++;
    }
    if (cpus)
        pin(cpus[0]);
    *ret = t;
    return 0;
}

void team_free(struct team *t)
{
    if (!t)
        return;
    t->fn = NULL;
    word_raise(&t->round);
    for (int i = 1; i < t->n_started; i++)
        pthread_join(t->members[i].thread, NULL);
    free(t->members);
    free(t);
}

int team_size(const struct team *t) { return t->n; }

void team_run(struct team *t, team_fn fn, void *arg)
{
    if (t->n == 1) {
        fn(arg, 0, 1);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    word_raise(&t->round);
    fn(arg, 0, t->n);
    team_sync(t);
}

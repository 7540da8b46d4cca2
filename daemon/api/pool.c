/* daemon/api/pool.c - worker threads, one bounded queue each. */
#include "daemon/api/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/queue.h"
#include "daemon/api/conn.h"

enum { IDLE_WAIT_US = 60000000 };

struct job {
    struct conn *c;
    pool_fn fn;
};

struct worker {
    struct pool *pool;
    struct queue *jobs;
    pthread_t thread;
    bool started;
    atomic_int load; /* queued and in work */
    atomic_int_fast64_t busy_us;
};

struct pool {
    int n;
    atomic_bool stop;
    struct job wake; /* an empty job that ends a wait */
    struct worker w[];
};

static void *worker_main(void *arg)
{
    struct worker *w = arg;

    while (!atomic_load(&w->pool->stop) || queue_len(w->jobs)) {
        struct job *j = queue_pop_wait(w->jobs, IDLE_WAIT_US);

        if (!j || !j->c)
            continue;
        atomic_store(&w->busy_us, clock_now_us(clock_real()));
        j->fn(j->c);
        conn_unref(j->c);
        free(j);
        atomic_store(&w->busy_us, 0);
        atomic_fetch_sub(&w->load, 1);
    }
    return NULL;
}

int pool_new(int n_workers, int capacity, struct pool **ret, struct err *e)
{
    struct pool *p = xcalloc(1, sizeof(*p) + (size_t)n_workers * sizeof(struct worker));

    p->n = n_workers;
    for (int i = 0; i < n_workers; i++) {
        struct worker *w = &p->w[i];

        w->pool = p;
        if (queue_new((size_t)capacity, &w->jobs, e) < 0)
            goto fail;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            err_set(e, ERR_NOMEM, "no thread for request worker %d", i);
            goto fail;
        }
        w->started = true;
    }
    *ret = p;
    return 0;

fail:
    pool_free(p);
    return -1;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    for (int i = 0; i < p->n; i++) {
        struct worker *w = &p->w[i];

        if (w->started) {
            queue_push(w->jobs, &p->wake); /* when full, it is awake anyway */
            pthread_join(w->thread, NULL);
        }
        queue_free(w->jobs);
    }
    free(p);
}

int pool_push(struct pool *p, struct conn *c, pool_fn fn, struct err *e)
{
    struct worker *best = &p->w[0];
    struct job *j;

    for (int i = 1; i < p->n; i++)
        if (atomic_load(&p->w[i].load) < atomic_load(&best->load))
            best = &p->w[i];
    j = xmalloc(sizeof(*j));
    *j = (struct job){conn_ref(c), fn};
    atomic_fetch_add(&best->load, 1);
    if (queue_push(best->jobs, j) == 0)
        return 0;
    atomic_fetch_sub(&best->load, 1);
    conn_unref(c);
    free(j);
    return err_set(e, ERR_BUSY, "too many requests wait to be read");
}

bool pool_alive(const struct pool *p, int64_t now_us, int64_t limit_us)
{
    for (int i = 0; i < p->n; i++) {
        int64_t since = atomic_load(&p->w[i].busy_us);
        if (since && now_us - since > limit_us)
            return false;
    }
    return true;
}

/* daemon/api/ctlqueue.c - requests that the control thread answers. */
#include "daemon/api/ctlqueue.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "base/err.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/queue.h"
#include "daemon/api/conn.h"

enum { A_PASS = 8 };

struct job {
    struct conn *c;
    ctlqueue_fn fn;
};

struct ctlqueue {
    struct queue *jobs;
    struct loop_fd *watch;
};

static void job_free(struct job *j)
{
    conn_unref(j->c);
    free(j);
}

static void on_jobs(void *arg, int fd, uint32_t events)
{
    struct ctlqueue *q = arg;
    struct job *j;

    (void)fd;
    (void)events;
    for (int i = 0; i < A_PASS && (j = queue_pop(q->jobs)); i++) {
        if (!atomic_load(&j->c->cancel)) /* its client is still there */
            j->fn(j->c);
        job_free(j);
    }
}

int ctlqueue_new(struct loop *l, int capacity, struct ctlqueue **ret, struct err *e)
{
    struct ctlqueue *q = xcalloc(1, sizeof(*q));

    if (queue_new((size_t)capacity, &q->jobs, e) < 0 ||
        loop_fd_add(l, queue_fd(q->jobs), EPOLLIN, on_jobs, q, &q->watch, e) < 0) {
        ctlqueue_free(q);
        return -1;
    }
    *ret = q;
    return 0;
}

void ctlqueue_free(struct ctlqueue *q)
{
    struct job *j;

    if (!q)
        return;
    loop_fd_del(q->watch);
    while (q->jobs && (j = queue_pop(q->jobs)))
        job_free(j);
    queue_free(q->jobs);
    free(q);
}

int ctlqueue_push(struct ctlqueue *q, struct conn *c, ctlqueue_fn fn, struct err *e)
{
    struct job *j;

    if (!q)
        return err_set(e, ERR_UNAVAIL, "this server has no control thread");
    j = xmalloc(sizeof(*j));
    *j = (struct job){conn_ref(c), fn};
    if (queue_push(q->jobs, j) == 0)
        return 0;
    job_free(j);
    return err_set(e, ERR_UNAVAIL, "too many control requests wait for their turn");
}

/* daemon/ctrl/side.c - see side.h.
 *
 * The thread and the owner share one reference-counted line of jobs that ended. Whoever
 * leaves last frees it with what is still in it, so that neither has to wait for the
 * other. */
#include "daemon/ctrl/side.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/queue.h"

enum { LEAVE_US = 1000000 };

struct line {
    struct queue *ended; /* of struct task */
    atomic_int refs;
};

struct task {
    struct side_job j;
    struct line *line;
};

struct side {
    struct line *line;
    struct loop_fd *watch;
    struct task *task; /* that runs, NULL none */
    int64_t since_us;
};

static void task_free(struct task *t)
{
    if (!t)
        return;
    t->j.free(t->j.job);
    free(t);
}

static void line_unref(struct line *l)
{
    struct task *t;

    if (atomic_fetch_sub(&l->refs, 1) != 1)
        return;
    while (l->ended && (t = queue_pop(l->ended)))
        task_free(t);
    queue_free(l->ended);
    free(l);
}

static void *thread_main(void *arg)
{
    struct task *t = arg;
    struct line *l = t->line;

    t->j.run(t->j.job);
    queue_push(l->ended, t); /* there is room for the one job */
    line_unref(l);
    return NULL;
}

static void end(struct side *s, struct task *t)
{
    s->task = NULL;
    t->j.done(t->j.arg, t->j.job);
    task_free(t);
}

static void on_ended(void *arg, int fd, uint32_t events)
{
    struct side *s = arg;
    struct task *t = queue_pop(s->line->ended);

    (void)fd;
    (void)events;
    if (t)
        end(s, t);
}

int side_new(struct loop *l, struct side **ret, struct err *e)
{
    struct side *s = xcalloc(1, sizeof(*s));

    s->line = xcalloc(1, sizeof(*s->line));
    atomic_init(&s->line->refs, 1);
    if (queue_new(2, &s->line->ended, e) < 0 ||
        loop_fd_add(l, queue_fd(s->line->ended), EPOLLIN, on_ended, s, &s->watch, e) <
            0) {
        side_free(s);
        return -1;
    }
    *ret = s;
    return 0;
}

void side_free(struct side *s)
{
    if (!s)
        return;
    loop_fd_del(s->watch);
    if (s->task)
        task_free(queue_pop_wait(s->line->ended, LEAVE_US));
    line_unref(s->line);
    free(s);
}

bool side_busy(const struct side *s) { return s->task != NULL; }

int side_start(struct side *s, const struct side_job *j, struct err *e)
{
    pthread_attr_t at;
    pthread_t thread;
    int rc;

    if (s->task)
        return err_set(e, ERR_BUSY, "the one before runs for %.1f s and has not ended",
                       (double)(clock_now_us(clock_real()) - s->since_us) / 1e6);
    s->task = xcalloc(1, sizeof(*s->task));
    s->task->j = *j;
    s->task->line = s->line;
    s->since_us = clock_now_us(clock_real());
    atomic_fetch_add(&s->line->refs, 1);
    pthread_attr_init(&at);
    pthread_attr_setdetachstate(&at, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &at, thread_main, s->task);
    pthread_attr_destroy(&at);
    if (rc == 0)
        return 0;
    atomic_fetch_sub(&s->line->refs, 1);
    free(s->task);
    s->task = NULL;
    return err_set(e, ERR_UNAVAIL, "no thread for it (error %d)", rc);
}

int side_wait(struct side *s, int64_t timeout_us, struct err *e)
{
    struct task *t;

    if (!s->task)
        return 0;
    t = queue_pop_wait(s->line->ended, timeout_us);
    if (!t)
        return err_set(e, ERR_TIMEOUT, "it did not end in %.1f s",
                       (double)timeout_us / 1e6);
    end(s, t);
    return 0;
}

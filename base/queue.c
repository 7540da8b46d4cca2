/* base/queue.c - a ring of pointers under a mutex, with an eventfd that is readable while
 * something may be inside. The mutex is held for a few instructions; the eventfd is
 * written only when the consumer has emptied the ring since, so a busy producer makes
 * no system call. */
#include "base/queue.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

struct queue {
    pthread_mutex_t lock;
    size_t cap, head, len;
    int fd;
    bool signalled; /* the eventfd is readable */
    void **items;
};

int queue_new(size_t capacity, struct queue **ret, struct err *e)
{
    struct queue *q = xcalloc(1, sizeof(*q));

    q->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (q->fd < 0) {
        free(q);
        return err_errno(e, ERR_IO, "cannot make an event descriptor");
    }
    pthread_mutex_init(&q->lock, NULL);
    q->cap = capacity;
    q->items = xcalloc(capacity, sizeof(*q->items));
    *ret = q;
    return 0;
}

void queue_free(struct queue *q)
{
    if (!q)
        return;
    close(q->fd);
    pthread_mutex_destroy(&q->lock);
    free(q->items);
    free(q);
}

static void event_set(struct queue *q)
{
    uint64_t one = 1;
    ssize_t n = write(q->fd, &one, sizeof(one));

    (void)n; /* fails only when the count is full, and then it is readable already */
    q->signalled = true;
}

static void event_reset(struct queue *q)
{
    uint64_t count;
    ssize_t n = read(q->fd, &count, sizeof(count));

    (void)n;
    q->signalled = false;
}

int queue_push(struct queue *q, void *item)
{
    int rc = -1;

    pthread_mutex_lock(&q->lock);
    if (q->len < q->cap) {
        q->items[(q->head + q->len++) % q->cap] = item;
        if (!q->signalled)
            event_set(q);
        rc = 0;
    }
    pthread_mutex_unlock(&q->lock);
    return rc;
}

void *queue_pop(struct queue *q)
{
    void *item = NULL;

    pthread_mutex_lock(&q->lock);
    if (q->len) {
        item = q->items[q->head];
        q->head = (q->head + 1) % q->cap;
        q->len--;
    } else if (q->signalled) {
        event_reset(q);
    }
    pthread_mutex_unlock(&q->lock);
    return item;
}

void *queue_pop_wait(struct queue *q, int64_t timeout_us)
{
    int64_t now = clock_now_us(clock_real()), until = now + timeout_us;

    for (;;) {
        struct pollfd p = {q->fd, POLLIN, 0};
        struct timespec ts;
        void *item = queue_pop(q);

        now = clock_now_us(clock_real());
        if (item || now >= until)
            return item;
        ts.tv_sec = (until - now) / 1000000;
        ts.tv_nsec = (until - now) % 1000000 * 1000;
        if (ppoll(&p, 1, &ts, NULL) < 0 && errno != EINTR)
            return NULL;
    }
}

int queue_fd(const struct queue *q) { return q->fd; }

size_t queue_len(const struct queue *q)
{
    struct queue *m = (struct queue *)q;
    size_t n;

    pthread_mutex_lock(&m->lock);
    n = m->len;
    pthread_mutex_unlock(&m->lock);
    return n;
}

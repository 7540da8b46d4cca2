/* daemon/api/operation.c - long work that was answered with 202.
 *
 * A ring in the order of the starts; a new one takes the place of the oldest that has
 * ended. Written by the control thread under the lock, read by any. */
#include "daemon/api/operation.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

struct slot {
    struct operation op; /* seq 0 = empty */
    struct operation_watch watch;
    int64_t until_us;
};

struct operations {
    operation_fn changed;
    void *arg;
    int64_t born_s, seq;
    pthread_mutex_t lock; /* slots are changed under it */
    struct slot slots[OPERATIONS_MAX];
};

const char *operation_state_name(enum operation_state s)
{
    static const char *const names[] = {"running", "done", "failed"};

    return names[s];
}

struct operations *operations_new(operation_fn changed, void *arg)
{
    struct operations *o = xcalloc(1, sizeof(*o));

    o->changed = changed;
    o->arg = arg;
    o->born_s = clock_wall_ms() / 1000;
    pthread_mutex_init(&o->lock, NULL);
    return o;
}

static void let_go(struct operation_watch *w)
{
    if (w->free)
        w->free(w->arg);
    *w = (struct operation_watch){0};
}

void operations_free(struct operations *o)
{
    if (!o)
        return;
    for (int i = 0; i < OPERATIONS_MAX; i++)
        let_go(&o->slots[i].watch);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

/* An empty slot, or the oldest that has ended. */
static struct slot *room(struct operations *o)
{
    struct slot *best = NULL;

    for (int i = 0; i < OPERATIONS_MAX; i++) {
        struct slot *s = &o->slots[i];

        if (s->op.seq && s->op.state == OPERATION_RUNNING)
            continue;
        if (!best || s->op.seq < best->op.seq)
            best = s;
    }
    return best;
}

static int no_room(struct err *e)
{
    return err_set(e, ERR_UNAVAIL, "%d operations are running; wait for one to end",
                   OPERATIONS_MAX);
}

int operation_room(struct operations *o, struct err *e)
{
    return room(o) ? 0 : no_room(e);
}

int operation_start(struct operations *o, const char *kind, const char *subject,
                    const char *actor, const struct operation_watch *w,
                    char ret_id[OPERATION_ID], struct err *e)
{
    struct slot *s = room(o);
    struct operation_watch mine = *w;
    struct operation copy;

    if (!s) {
        let_go(&mine);
        return no_room(e);
    }
    pthread_mutex_lock(&o->lock);
    *s = (struct slot){.watch = mine, .op.seq = ++o->seq};
    s->until_us = clock_now_us(clock_real()) + mine.limit_us;
    snprintf(s->op.id, sizeof(s->op.id), "%llx-%lld", (unsigned long long)o->born_s,
             (long long)o->seq);
    snprintf(s->op.kind, sizeof(s->op.kind), "%s", kind);
    snprintf(s->op.subject, sizeof(s->op.subject), "%s", subject);
    snprintf(s->op.actor, sizeof(s->op.actor), "%s", actor);
    s->op.started_ms = clock_wall_ms();
    copy = s->op;
    pthread_mutex_unlock(&o->lock);
    memcpy(ret_id, copy.id, OPERATION_ID);
    if (o->changed)
        o->changed(o->arg, &copy);
    return 0;
}

/* One look at a running one. */
static void look(struct operations *o, struct slot *s, int64_t now_us)
{
    struct operation was = s->op, is = s->op;

    is.state = s->watch.poll(s->watch.arg, is.message);
    if (is.state == OPERATION_RUNNING && now_us > s->until_us) {
        is.state = OPERATION_FAILED;
        snprintf(is.message, sizeof(is.message), "not done within %lld s",
                 (long long)(s->watch.limit_us / 1000000));
    }
    if (is.state == was.state && !strcmp(is.message, was.message))
        return;
    if (is.state != OPERATION_RUNNING)
        is.ended_ms = clock_wall_ms();
    pthread_mutex_lock(&o->lock);
    s->op = is;
    pthread_mutex_unlock(&o->lock);
    if (is.state != OPERATION_RUNNING)
        let_go(&s->watch);
    if (o->changed)
        o->changed(o->arg, &is);
}

int operations_tick(struct operations *o, int64_t now_us)
{
    int n = 0;

    for (int i = 0; i < OPERATIONS_MAX; i++) {
        struct slot *s = &o->slots[i];

        if (!s->op.seq || s->op.state != OPERATION_RUNNING)
            continue;
        look(o, s, now_us);
        n += s->op.state == OPERATION_RUNNING;
    }
    return n;
}

static int newest_first(const void *a, const void *b)
{
    const struct operation *x = a, *y = b;

    return (x->seq < y->seq) - (x->seq > y->seq);
}

int operations_list(struct operations *o, struct operation *ret, int max)
{
    struct operation *all = xcalloc(OPERATIONS_MAX, sizeof(*all));
    int n = 0;

    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < OPERATIONS_MAX; i++)
        if (o->slots[i].op.seq)
            all[n++] = o->slots[i].op;
    pthread_mutex_unlock(&o->lock);
    qsort(all, (size_t)n, sizeof(*all), newest_first);
    n = n < max ? n : max;
    memcpy(ret, all, (size_t)n * sizeof(*ret));
    free(all);
    return n;
}

int operation_get(struct operations *o, const char *id, struct operation *ret,
                  struct err *e)
{
    int rc = -1;

    pthread_mutex_lock(&o->lock);
    for (int i = 0; i < OPERATIONS_MAX && rc < 0; i++) {
        if (!o->slots[i].op.seq || strcmp(o->slots[i].op.id, id))
            continue;
        *ret = o->slots[i].op;
        rc = 0;
    }
    pthread_mutex_unlock(&o->lock);
    return rc < 0 ? err_set(e, ERR_NOTFOUND,
                            "there is no operation '%.40s'; the last %d are kept", id,
                            OPERATIONS_MAX)
                  : 0;
}

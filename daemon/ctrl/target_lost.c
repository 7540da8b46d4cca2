/* daemon/ctrl/target_lost.c - requests whose engine is gone or silent, or gave them back.
 *
 * The router keeps the ids of every request, prompt and answer so far. So it can be an
 * order again: the next engine gets them all as a prompt and is told how many of them are
 * the answer already. What it then picks is what the first one would have picked, as that
 * depends on ids, seed and position only. Such orders wait in the outbox of their target,
 * in order of arrival, until an engine takes them, or restart_wait_us are over.
 *
 * A request that had LOSSES engines go under it is not tried again: it may be why. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/queue.h"
#include "daemon/ctrl/child.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/ctrl/target.h"
#include "daemon/serve/metrics.h"

enum { LOSSES = 2 };

/* Off the engine; in no outbox. heard: it may still speak of it. Under the lock. */
static void take_back(struct target *t, struct req *q, bool heard)
{
    struct gen_params *p = &q->add.params;

    if (q->outbox.next)
        list_del(&q->outbox);
    split_release(q);
    if (heard || q->leg.asked_us) { /* or another engine, which computed the prompt */
        q->leg = (struct split_leg){0};
        q->n_times = (q->n_times + 1) % ROUTER_TIMES;
        p->id = q->id | (uint64_t)q->n_times << ROUTER_ID_BITS;
    }
    t->n_sent -= q->sent;
    q->sent = false;
    p->n_gen = q->n_out;
    p->n_scored = q->n_scored;
    q->left += q->n_computed;
    t->load += q->n_computed;
    q->n_computed = 0;
    if (!q->lost_us)
        q->lost_us = clock_now_us(clock_real());
}

static int by_id(const void *a, const void *b)
{
    const struct req *p = *(struct req *const *)a, *q = *(struct req *const *)b;

    return p->id < q->id ? -1 : p->id > q->id;
}

/* Its requests by age; malloc'd, NULL without memory. Under the lock. */
static struct req **all_of(struct target *t)
{
    struct req **all = try_calloc((size_t)t->n_live + 1, sizeof(struct req *));
    int n = 0;

    for (int i = 0; all && i < ROUTER_BUCKETS && n < t->n_live; i++)
        list_for(it, &t->r->bucket[i])
        {
            struct req *q = list_entry(it, struct req, link);
            if (q->target == t)
                all[n++] = q;
        }
    if (all)
        qsort(all, (size_t)n, sizeof(*all), by_id);
    return all;
}

/* One that does not go on, with its finish; it is out of the table. */
static void give_up(struct target *t, struct req *q, const struct err *why)
{
    struct gen_finish f = {.stop_id = -1, .n_prompt = q->n_prompt, .n_out = q->n_out};
    struct err e;

    if (q->cancelled) {
        f.reason = FINISH_ABORT;
    } else {
        f.reason = FINISH_ERROR;
        f.error = why;
        if (q->n_lost >= LOSSES)
            f.error =
                (err_set(&e, ERR_INTERNAL,
                         "the engine failed %d times under this request, which is not "
                         "tried again; the last time: %.300s",
                         q->n_lost, why->msg),
                 &e);
    }
    target_end(t, q, &f);
}

int target_lose(struct target *t, const struct err *why)
{
    struct req **all;
    int n, n_kept = 0;

    pthread_mutex_lock(&t->r->lock);
    n = t->n_live;
    all = t->hot.recompute && t->model ? all_of(t) : NULL;
    for (int i = 0; all && i < n; i++) {
        struct req *q = all[i];
        bool sent = q->sent;
        q->n_lost += sent;
        take_back(t, q, false);
        if (q->cancelled || q->forgot || q->n_lost >= LOSSES) {
            router_leave(t->r, q);
            continue;
        }
        list_push(&t->outbox, &q->outbox);
        metric_add(t->page->page, M_REQ_RESUMED, 0, sent);
        n_kept++;
        all[i] = NULL;
    }
    router_move(t->r, t);
    pthread_mutex_unlock(&t->r->lock);
    if (!all)
        target_fail_all(t, why);
    for (int i = 0; all && i < n; i++)
        if (all[i])
            give_up(t, all[i], why);
    free(all);
    return n_kept;
}

void target_return(struct target *t, uint64_t id)
{
    const struct gen_finish back = {.reason = FINISH_RETURNED};
    struct err why;
    struct req *q;

    if (split_finish(t, id, &back))
        return;
    pthread_mutex_lock(&t->r->lock);
    q = router_heard(t->r, id);
    q = q && q->target == t && q->sent ? q : NULL;
    if (q) {
        take_back(t, q, false);
        if (q->cancelled || q->forgot) {
            router_leave(t->r, q);
        } else {
            list_push(&t->outbox, &q->outbox);
            metric_add(t->page->page, M_REQ_RESUMED, 0, 1);
            router_move(t->r, t);
            (void)queue_push(q->target->bell, q->target);
            q = NULL;
        }
    }
    pthread_mutex_unlock(&t->r->lock);
    if (!q)
        return;
    err_set(&why, ERR_UNAVAIL, "the instance is draining, try again");
    give_up(t, q, &why);
}

bool target_has_other(struct target *t)
{
    bool found = false;

    pthread_mutex_lock(&t->r->lock);
    list_for(it, &t->r->targets)
    {
        const struct target *o = list_entry(it, struct target, link);
        found |= o != t && t->model && o->model && router_not_answering(o, NULL) == 0 &&
                 router_same_model(&t->model->pub, &o->model->pub);
    }
    pthread_mutex_unlock(&t->r->lock);
    return found;
}

int target_pass_on(struct target *t)
{
    struct req **all;
    int n, n_gone = 0;

    if (!t->hot.recompute || !target_has_other(t))
        return 0;
    pthread_mutex_lock(&t->r->lock);
    n = t->n_live;
    all = all_of(t);
    for (int i = 0; all && i < n; i++) {
        struct req *q = all[i];
        if (!q->sent || q->cancelled || q->forgot || q->n_lost + 1 >= LOSSES)
            continue;
        if (t->end.line)
            child_cancel(t->end.line, q->add.params.id);
        q->n_lost++;
        take_back(t, q, true);
        list_push(&t->outbox, &q->outbox);
        metric_add(t->page->page, M_REQ_RESUMED, 0, 1);
        n_gone++;
    }
    router_move(t->r, t);
    pthread_mutex_unlock(&t->r->lock);
    free(all);
    return n_gone;
}

/* The first that waits no longer, out of the table; NULL none. */
static struct req *next_over(struct target *t, int64_t now)
{
    struct req *q = NULL;

    pthread_mutex_lock(&t->r->lock);
    list_for(it, &t->outbox)
    {
        q = list_entry(it, struct req, outbox);
        if (!q->sent &&
            (q->cancelled || (q->lost_us && now - q->lost_us >= t->hot.restart_wait_us)))
            break;
        q = NULL;
    }
    if (q)
        router_leave(t->r, q);
    pthread_mutex_unlock(&t->r->lock);
    return q;
}

void target_sweep(struct target *t)
{
    struct err why;
    struct req *q;

    while (queue_pop(t->bell))
        continue;
    err_set(&why, ERR_UNAVAIL,
            "no engine of '%s' has come back within %.0f s, try again: %.300s",
            t->st.model, (double)t->hot.restart_wait_us / 1e6, t->st.error);
    while ((q = next_over(t, clock_now_us(clock_real()))))
        give_up(t, q, &why);
}

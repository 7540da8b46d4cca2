/* daemon/serve/sched_check.c - what must hold between any two calls. For tests: walks
 * everything. */
#include "daemon/serve/sched_impl.h"

#include <stdlib.h>

#include "base/mem.h"

static int check_running(const struct sched *s, const struct sched_seq *q, struct err *e)
{
    unsigned long long id = q->p.id;

    if (q->state != SEQ_RUNNING || !q->kv)
        return err_set(e, ERR_INTERNAL, "request %llu runs without blocks", id);
    if (kvseq_len(q->kv) > q->next_pos)
        return err_set(e, ERR_INTERNAL, "request %llu committed more than was asked", id);
    if (q->n_flight == 0 && kvseq_len(q->kv) != q->next_pos)
        return err_set(e, ERR_INTERNAL, "request %llu has %d positions, next is %d", id,
                       kvseq_len(q->kv), q->next_pos);
    if (q->n_toks > q->limit || (q->n_toks == q->limit && q->limit > q->p.n_prompt))
        return err_set(e, ERR_INTERNAL, "request %llu goes on past its limit", id);
    if (q->importing && (q->n_flight || (q->hold && q->hold->q != q)))
        return err_set(e, ERR_INTERNAL, "request %llu waits for KV and is in a step", id);
    if (!q->n_flight && !q->evict && !q->importing && sched_need(q) <= 0)
        return err_set(e, ERR_INTERNAL, "request %llu waits for nothing", id);
    if (idmap_get(&s->by_id, q->p.id) != q)
        return err_set(e, ERR_INTERNAL, "request %llu runs, but is not known", id);
    return 0;
}

static int check_waiting(const struct sched *s, const struct sched_seq *q, bool parked,
                         struct err *e)
{
    if (q->passed > SCHED_AGE)
        return err_set(e, ERR_INTERNAL, "request %llu was passed over %d times",
                       (unsigned long long)q->p.id, q->passed);
    if (q->state != (parked ? SEQ_PARKED : SEQ_WAITING) || q->kv || q->n_flight ||
        q->evict || idmap_get(&s->by_id, q->p.id) != q)
        return err_set(e, ERR_INTERNAL, "request %llu waits and is not free to",
                       (unsigned long long)q->p.id);
    return 0;
}

static int check_lists(const struct sched *s, struct err *e)
{
    int n_run = 0, n_wait = 0, n_evict = 0, n_class = 0, n_import = 0;
    uint64_t last = 0;

    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (q->num <= last)
            return err_set(e, ERR_INTERNAL, "running requests are out of order");
        last = q->num;
        n_run++;
        n_evict += q->evict;
        n_import += q->importing;
        if (check_running(s, q, e) < 0)
            return -1;
    }
    last = 0;
    list_for(it, &s->waiting)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (q->num <= last)
            return err_set(e, ERR_INTERNAL, "waiting requests are out of order");
        last = q->num;
        n_wait++;
        if (check_waiting(s, q, false, e) < 0)
            return -1;
    }
    for (int c = 0; c < SCHED_CLASSES; c++)
        list_for(it, &s->wclass[c]) n_class++;
    int n_listed = n_wait;
    for (size_t i = 0; i < s->groups.cap; i++) {
        struct seq_group *g = s->groups.slot[i].p;
        if (!g)
            continue;
        if (!list_empty(&g->parked) && (g->ready || !g->lead))
            return err_set(e, ERR_INTERNAL, "choices are parked behind nobody");
        list_for(it, &g->parked)
        {
            n_wait++;
            if (check_waiting(s, list_entry(it, struct sched_seq, link), true, e) < 0)
                return -1;
        }
    }
    if (n_class != n_listed || n_wait != s->n_waiting || n_run != s->n_running ||
        n_evict != s->n_evict || n_import != s->n_importing || n_run > s->max_run)
        return err_set(e, ERR_INTERNAL, "%d run and %d wait, counted as %d and %d", n_run,
                       n_wait, s->n_running, s->n_waiting);
    return 0;
}

static int flights_of(const struct sched *s, const struct sched_seq *q)
{
    int n = 0;

    for (int f = 0; f < s->n_flights; f++) {
        const struct flight *fl = &s->flights[(s->flight_head + f) % s->cfg.depth];
        for (int i = 0; i < fl->n_items; i++)
            n += fl->items[i].q == q;
    }
    return n;
}

static int check_flights(const struct sched *s, struct err *e)
{
    int n_zombie = 0, n = 0, total = 0;

    list_for(it, &s->zombies)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        n_zombie++;
        n += flights_of(s, q);
        if (!q->n_flight || q->n_flight != flights_of(s, q))
            return err_set(e, ERR_INTERNAL, "a finished request is kept for nothing");
    }
    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        n += flights_of(s, q);
        if (q->n_flight != flights_of(s, q))
            return err_set(e, ERR_INTERNAL, "request %llu is in %d steps, counted as %d",
                           (unsigned long long)q->p.id, flights_of(s, q), q->n_flight);
    }
    for (int f = 0; f < s->n_flights; f++)
        total += s->flights[(s->flight_head + f) % s->cfg.depth].n_items;
    if (n != total || n_zombie != s->n_zombie)
        return err_set(e, ERR_INTERNAL, "a step in flight has items of nobody");
    return 0;
}

static int check_holds(const struct sched *s, struct err *e)
{
    int n_held = 0, n;

    list_for(it, &s->holds)
    {
        const struct kv_hold *h = list_entry(it, struct kv_hold, link);
        if (!h->q == !h->kv || (h->q && h->q->hold != h))
            return err_set(e, ERR_INTERNAL, "a pull writes into blocks of nobody");
        if (h->kv) {
            kvseq_blocks(h->kv, 0, &n);
            n_held += n;
        }
    }
    if (n_held != s->n_held)
        return err_set(e, ERR_INTERNAL, "%d KV blocks are held for pulls, counted as %d",
                       n_held, s->n_held);
    return 0;
}

int sched_check(const struct sched *s, struct err *e)
{
    struct kvcache_stats kv;

    if (check_lists(s, e) < 0 || check_flights(s, e) < 0 || check_holds(s, e) < 0 ||
        kvcache_check(s->kv, e) < 0)
        return -1;
    kvcache_stats(s->kv, &kv);
    if (!s->n_running && !s->n_zombie && kv.n_used > kv.n_pinned + s->n_held)
        return err_set(e, ERR_INTERNAL, "%d KV blocks are held by nobody", kv.n_used);
    if (s->by_id.n != (size_t)(s->n_running + s->n_waiting))
        return err_set(e, ERR_INTERNAL, "%zu requests are known, %d run or wait",
                       s->by_id.n, s->n_running + s->n_waiting);
    return 0;
}

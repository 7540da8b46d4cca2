/* daemon/serve/sched_done.c - what a step gave.
 *
 * Each item of a flight remembers what was asked. An item counts when its sequence still
 * runs and nothing has voided it since (epoch). Then its positions are committed, and
 * tokens that are new are taken one by one until one ends the sequence. With several
 * steps in flight:
 *   - a step that accepted no token has its last row run again, and the items that
 *     were built on that token are void;
 *   - after one that accepted several, the next one's token is known already (the same,
 *     as random numbers depend on the position only): its KV counts, its token does not;
 *   - a sequence that ended is a zombie: its items are dropped, and the last returns
 *     the blocks. */
#include "daemon/serve/sched_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/serve/kvtier.h"

static bool ends_it(const struct sched_seq *q, int32_t id)
{
    for (int i = 0; i < q->n_ends; i++)
        if (q->ends[i] == id)
            return true;
    return false;
}

void sched_push_tok(struct sched_seq *q, int32_t id)
{
    if (q->n_toks == q->toks_cap) {
        q->toks_cap = q->toks_cap * 2 < q->limit ? q->toks_cap * 2 : q->limit;
        q->toks = xrealloc(q->toks, (size_t)q->toks_cap * sizeof(*q->toks));
    }
    q->toks[q->n_toks++] = id;
}

/* New tokens of a sequence, until one ends it. */
static void take_tokens(struct sched *s, int64_t now, struct sched_seq *q,
                        const struct step_token *tok, int n)
{
    int32_t stop = -1;
    int used = 0;

    while (used < n && q->n_toks < q->limit && stop < 0) {
        if (ends_it(q, tok[used].id))
            stop = tok[used].id;
        else
            sched_push_tok(q, tok[used++].id);
    }
    if (used) {
        if (q->n_toks - used == q->given)
            q->first_us = now;
        q->last_us = now;
        s->st.gen_tok += (uint64_t)used;
        sched_emit_toks(s, q, false, tok, used);
    }
    if (stop >= 0)
        sched_finish(s, now, q, FINISH_STOP, stop, NULL);
    else if (q->n_toks == q->limit)
        sched_finish(s, now, q, FINISH_LENGTH, -1, NULL);
    else if (used && q->p.handoff == GEN_EXPORT) {
        sched_export(s, q, true);
        sched_finish(s, now, q, FINISH_HANDOFF, -1, NULL);
    }
}

static void accept(struct sched *s, int64_t now, const struct flight_item *fi,
                   const struct step_result *r, const struct step_token *toks)
{
    struct sched_seq *q = fi->q;
    bool again = fi->samples && r->n_accepted == 0;
    int known = fi->first_pos + fi->n_tok;

    assert(fi->first_pos == kvseq_len(q->kv) && known <= q->n_toks);
    kvseq_commit(q->kv, q->toks + fi->first_pos, fi->n_tok - again);
    if (q->p.handoff == GEN_EXPORT)
        sched_export(s, q, false);
    if (fi->n_scored) {
        sched_emit_toks(s, q, true, toks + r->tok_off, fi->n_scored);
        q->n_scored += fi->n_scored;
    }
    if (kvseq_len(q->kv) >= q->p.n_prompt - 1)
        sched_group_ready(s, q);
    if (again) {
        q->epoch++;
        q->next_pos = known - 1;
        q->tail_samples = false;
        q->scored_next = q->n_scored;
    } else if (fi->samples && known == q->n_toks) {
        take_tokens(s, now, q, toks + r->tok_off + fi->n_scored, r->n_accepted);
    } else if (q->p.max_tokens == 0 && q->n_scored == q->p.n_prompt - 1) {
        sched_finish(s, now, q, FINISH_LENGTH, -1, NULL);
    }
}

static bool fits(const struct step_done *d, const struct flight_item *fi, int i)
{
    const struct step_result *r = &d->results[i];

    return r->seq == fi->q->num && r->n_scored == fi->n_scored && r->n_accepted >= 0 &&
           (fi->samples || r->n_accepted == 0) && r->tok_off >= 0 &&
           (int64_t)r->tok_off + r->n_scored + r->n_accepted <= d->n_toks;
}

static void item_back(struct sched *s, int64_t now, const struct step_done *d,
                      const struct flight_item *fi, int i)
{
    struct sched_seq *q = fi->q;
    struct err e;

    q->n_flight--;
    if (q->state == SEQ_ZOMBIE) {
        if (!q->n_flight)
            sched_release(s, q);
        return;
    }
    if (d->error) {
        sched_finish(s, now, q, FINISH_ERROR, -1, d->error);
        return;
    }
    q->altered |= i < d->n_results ? d->results[i].altered : 0;
    if (fi->epoch == q->epoch) {
        if (i >= d->n_results || !fits(d, fi, i)) {
            err_set(&e, ERR_INTERNAL, "the result of step %llu is not what was asked",
                    (unsigned long long)d->number);
            sched_finish(s, now, q, FINISH_ERROR, -1, &e);
            return;
        }
        accept(s, now, fi, &d->results[i], d->toks);
    }
}

void sched_done(struct sched *s, int64_t now, const struct step_done *done)
{
    struct flight *fl = &s->flights[s->flight_head];
    struct kvtier *tier = kvcache_tier(s->kv);

    if (!s->n_flights || !fl->submitted || fl->ticket != done->ticket) {
        s->st.late++;
        return;
    }
    if (tier)
        kvtier_step_done(tier, done->number);
    sched_time_done(s, fl, done);
    for (int i = 0; i < fl->n_items; i++)
        item_back(s, now, done, &fl->items[i], i);
    s->flight_head = (s->flight_head + 1) % s->cfg.depth;
    s->n_flights--;

    if (!s->n_evict)
        return;
    list_for_safe(it, tmp, &s->running)
    {
        struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (q->evict && !q->n_flight)
            sched_preempt(s, q);
    }
}

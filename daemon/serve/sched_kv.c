/* daemon/serve/sched_kv.c - KV that goes to another engine or comes from one.
 *
 * Export: as its chunks are committed, a sequence's full blocks are pinned and told; with
 * the first token the last block too, and the request is over here. Whoever took the
 * outcome gives the pins back.
 *
 * Import: a sequence that has its blocks waits, running but without tokens to compute,
 * for pulls that write into them. What a pull brought is committed; with the last come
 * the tokens that the other engine generated, and it decodes. A sequence that ends, or is
 * computed here after all, while a pull writes leaves its blocks to the pull (kv_hold):
 * they return when that is back. */
#include "daemon/serve/sched_impl.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

/* ---- export ---- */

void sched_export(struct sched *s, struct sched_seq *q, bool last)
{
    int bt = s->cfg.kv.block_tok, len = kvseq_len(q->kv), n;
    const int32_t *ids = kvseq_blocks(q->kv, 0, &n);
    /* the last block comes with the ids, so that there is something to copy then */
    int full = (len < q->given ? len : q->given - 1) / bt;
    int end = last ? (q->given + bt - 1) / bt : full;

    assert(!last || len >= q->given);
    if (end <= q->exported && !last)
        return;
    kvcache_pin(s->kv, ids + q->exported, end - q->exported);
    sched_emit_export(s, q, ids + q->exported, end - q->exported,
                      last ? q->n_toks - q->given : 0);
    q->exported = end;
}

void sched_unpin(struct sched *s, const int32_t *blocks, int n)
{
    kvcache_unpin(s->kv, blocks, n);
    s->pool_state += n > 0;
}

uint32_t sched_block_gen(const struct sched *s, int32_t block)
{
    return kvcache_gen(s->kv, block);
}

/* ---- import ---- */

void sched_import_start(struct sched *s, struct sched_seq *q)
{
    q->importing = true;
    s->n_importing++;
    sched_emit_reserved(s, q);
}

bool sched_import_leave(struct sched *s, struct sched_seq *q)
{
    int n;

    if (!q->hold)
        return false;
    q->hold->q = NULL;
    q->hold->kv = q->kv;
    kvseq_blocks(q->kv, 0, &n);
    s->n_held += n;
    q->hold = NULL;
    return true;
}

const int32_t *sched_pull(struct sched *s, uint64_t id, uint64_t pull, int *ret_n,
                          int *ret_have)
{
    struct sched_seq *q = idmap_get(&s->by_id, id);

    if (!q || !q->importing || q->hold)
        return NULL;
    q->hold = xcalloc(1, sizeof(*q->hold));
    q->hold->pull = pull;
    q->hold->q = q;
    list_push(&s->holds, &q->hold->link);
    *ret_have = kvseq_len(q->kv);
    return kvseq_blocks(q->kv, 0, ret_n);
}

/* Tokens that were generated and told elsewhere. False: it is over. */
static bool take_given(struct sched *s, int64_t now, struct sched_seq *q,
                       const int32_t *ids, int n)
{
    for (int i = 0; i < n && q->n_toks < q->limit; i++)
        sched_push_tok(q, ids[i]);
    q->given = q->n_toks;
    q->p.handoff = GEN_HERE;
    s->n_importing -= q->importing;
    q->importing = false;
    if (q->n_toks < q->limit)
        return true;
    sched_finish(s, now, q, FINISH_LENGTH, -1, NULL);
    return false;
}

static struct kv_hold *find_hold(const struct sched *s, uint64_t pull)
{
    list_for(it, &s->holds)
    {
        struct kv_hold *h = list_entry(it, struct kv_hold, link);
        if (h->pull == pull)
            return h;
    }
    return NULL;
}

static void hold_free(struct sched *s, struct kv_hold *h)
{
    int n;

    if (h->q)
        h->q->hold = NULL;
    if (h->kv) {
        kvseq_blocks(h->kv, 0, &n);
        s->n_held -= n;
        s->pool_state++;
        kvseq_free(h->kv);
    }
    list_del(&h->link);
    free(h);
}

void sched_pulled(struct sched *s, int64_t now, const struct sched_event *ev)
{
    struct kv_hold *h = find_hold(s, ev->pull);
    struct sched_seq *q = h ? h->q : NULL;

    s->st.late += !q;
    if (h)
        hold_free(s, h);
    if (!q)
        return;
    int len = kvseq_len(q->kv), upto = ev->upto < q->given ? ev->upto : q->given;
    if (upto > len) {
        kvseq_commit(q->kv, q->toks + len, upto - len);
        s->st.imported_tok += (uint64_t)(upto - len);
        q->next_pos = upto;
    }
    if (kvseq_len(q->kv) >= q->p.n_prompt - 1)
        sched_group_ready(s, q);
    if (ev->n_gen && kvseq_len(q->kv) == q->given)
        take_given(s, now, q, ev->gen, ev->n_gen);
}

void sched_recompute(struct sched *s, int64_t now, const struct sched_event *ev)
{
    struct sched_seq *q = idmap_get(&s->by_id, ev->id);

    if (!q || q->p.handoff != GEN_IMPORT) {
        s->st.late++;
        return;
    }
    bool held = q->hold != NULL;
    int copies = 0;

    if (!take_given(s, now, q, ev->gen, ev->n_gen))
        return;
    if (q->state != SEQ_RUNNING)
        return;
    q->prefill_end = q->n_toks;
    /* into blocks that nobody else writes */
    if (held || kvseq_reserve(q->kv, q->next_pos, q->n_toks, NULL, &copies, 0) < 0)
        sched_preempt(s, q);
}

void sched_kv_free(struct sched *s)
{
    list_for_safe(it, tmp, &s->holds)
    {
        hold_free(s, list_entry(it, struct kv_hold, link));
    }
}

/* daemon/serve/sched_tier.c - requests and the tiers below the device's KV.
 *
 * A prompt whose prefix is on disk is read into the host tier from its arrival on; until
 * that is done, and SCHED_TIER_WAIT_US at most, its turn does not come. What is in the
 * host tier moves up when it starts, by copies that the same step begins with.
 *
 * KV that goes to another engine, or comes from one, is read and written beside the
 * steps: an import does not start while copies are under way, and an export tells its
 * blocks after the step that brings them. */
#include "daemon/serve/kvtier.h"
#include "daemon/serve/sched_impl.h"

void sched_tier_want(struct sched *s, int64_t now, struct sched_seq *q)
{
    if (!kvcache_tier(s->kv) || q->p.no_cache || q->p.prompt_logprobs ||
        q->p.handoff == GEN_IMPORT || q->state != SEQ_WAITING)
        return;
    for (int i = 0; i < s->shards; i++) {
        uint64_t n = kvcache_want(s->kv, i, q->p.salt, q->toks, q->n_toks);
        q->want = n > q->want ? n : q->want;
    }
    q->want_until_us = now + SCHED_TIER_WAIT_US;
}

bool sched_tier_moving(const struct sched *s)
{
    const struct kvtier *t = kvcache_tier(s->kv);

    return t && kvtier_moving(t);
}

bool sched_tier_waits(const struct sched *s, int64_t now, const struct sched_seq *q)
{
    if (q->p.handoff == GEN_IMPORT)
        return sched_tier_moving(s);
    return q->want && now < q->want_until_us &&
           kvtier_served(kvcache_tier(s->kv)) < q->want;
}

void sched_tier_fill(struct sched *s, struct step *st)
{
    struct kvtier *t = kvcache_tier(s->kv);
    struct step_move *to = step_moves(st);

    if (!t)
        return;
    int n = kvtier_moves(t, s->steps + 1, s->moves);
    for (int i = 0; i < n; i++)
        to[i] = (struct step_move){s->moves[i].block, s->moves[i].slot, s->moves[i].up};
    st->n_moves = n;
}

struct kvtier *sched_tier(struct sched *s) { return kvcache_tier(s->kv); }

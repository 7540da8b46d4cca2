/* daemon/serve/sched_queue.c - who waits, who runs, who has blocks.
 *
 * Waiting requests stand in one list by age and in lists by size class, so that the
 * oldest and a shortest are both found at once. A request that starts gets the blocks of
 * everything it knows (prompt, and output so far when it was preempted), so only decoding
 * ones can run out of blocks later. Admission leaves one spare block per running
 * sequence, else what is admitted now would be preempted a step later.
 *
 * A group's first member computes the prompt; the others are parked until it is in the
 * cache, then attach it. When the first leaves early, the next one takes over. */
#include "daemon/serve/sched_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { SHARE_LOOK = 16 }; /* waiting ones, youngest first, whose prompts are compared */

static int tok_class(int n) { return 31 - __builtin_clz((unsigned)n | 1); }

int sched_class(const struct sched_seq *q) { return tok_class(q->n_toks); }

/* Before the first one that is younger; new ones go to the end at once. */
static void insert_by_age(struct list *head, struct list *n, uint64_t num, size_t off)
{
    struct list *at = head->prev;

#define NUM_OF(l) (((struct sched_seq *)((char *)(l)-off))->num)
    if (at == head || NUM_OF(at) < num) {
        list_push(head, n);
        return;
    }
    for (at = head->next; NUM_OF(at) < num;)
        at = at->next;
#undef NUM_OF
    list_insert(at, n);
}

static void to_waiting(struct sched *s, struct sched_seq *q)
{
    q->state = SEQ_WAITING;
    q->passed = 0;
    q->tried = 0;
    q->wait_tok = sched_rest(q);
    s->wait_tok[tok_class(q->wait_tok)] += q->wait_tok;
    insert_by_age(&s->waiting, &q->link, q->num, offsetof(struct sched_seq, link));
    insert_by_age(&s->wclass[sched_class(q)], &q->clink, q->num,
                  offsetof(struct sched_seq, clink));
}

static bool can_share(const struct sched *s, const struct sched_seq *q)
{
    return s->cfg.kv.reuse && !q->p.no_cache && !q->p.prompt_logprobs && q->p.group &&
           q->p.n_prompt > s->cfg.kv.block_tok;
}

void sched_enqueue(struct sched *s, struct sched_seq *q)
{
    struct seq_group *g = NULL;

    s->n_waiting++;
    if (can_share(s, q)) {
        g = idmap_get(&s->groups, q->p.group);
        if (!g) {
            g = xcalloc(1, sizeof(*g));
            g->id = q->p.group;
            g->lead = q;
            list_init(&g->parked);
            idmap_put(&s->groups, g->id, g);
        }
        q->group = g;
        g->members++;
    }
    if (!g || g->lead == q || g->ready) {
        to_waiting(s, q);
        return;
    }
    q->state = SEQ_PARKED;
    list_push(&g->parked, &q->link);
}

static void unpark_first(struct sched *s, struct seq_group *g)
{
    struct sched_seq *q = list_entry(g->parked.next, struct sched_seq, link);

    list_del(&q->link);
    to_waiting(s, q);
}

void sched_group_ready(struct sched *s, struct sched_seq *q)
{
    struct seq_group *g = q->group;

    if (!g || g->ready)
        return;
    g->ready = true;
    g->lead = NULL;
    while (!list_empty(&g->parked)) {
        struct sched_seq *next = list_entry(g->parked.next, struct sched_seq, link);
        int bt = s->cfg.kv.block_tok, n = (next->p.n_prompt - 1) / bt * bt;
        next->n_found = next->n_found > n ? next->n_found : n;
        unpark_first(s, g);
    }
}

void sched_leave_group(struct sched *s, struct sched_seq *q)
{
    struct seq_group *g = q->group;

    if (!g)
        return;
    q->group = NULL;
    if (g->lead == q) {
        g->lead = NULL;
        if (!list_empty(&g->parked)) {
            g->lead = list_entry(g->parked.next, struct sched_seq, link);
            unpark_first(s, g);
        }
    }
    if (--g->members == 0) {
        idmap_del(&s->groups, g->id);
        free(g);
    }
}

void sched_unlink(struct sched *s, struct sched_seq *q)
{
    s->n_waiting -= q->state == SEQ_WAITING || q->state == SEQ_PARKED;
    if (q->state == SEQ_WAITING)
        s->wait_tok[tok_class(q->wait_tok)] -= q->wait_tok;
    s->n_running -= q->state == SEQ_RUNNING;
    s->n_zombie -= q->state == SEQ_ZOMBIE;
    s->n_evict -= q->evict;
    q->evict = false;
    s->n_importing -= q->importing;
    q->importing = false;
    list_del(&q->link);
    list_del(&q->clink);
}

static void drop_blocks(struct sched *s, struct sched_seq *q)
{
    if (!sched_import_leave(s, q)) {
        s->pool_state += q->kv != NULL;
        kvseq_free(q->kv);
    }
    q->kv = NULL;
}

void sched_release(struct sched *s, struct sched_seq *q)
{
    sched_unlink(s, q);
    sched_leave_group(s, q);
    drop_blocks(s, q);
    free(q->toks);
    free(q->ends);
    free(q->bias);
    free(q);
}

static int blocks_of(const struct sched *s, int n)
{
    return (n + s->cfg.kv.block_tok - 1) / s->cfg.kv.block_tok;
}

/* Tokens of which a cached prefix may be taken: with prompt logprobs only those whose
 * rows were scored before. */
static int attachable(const struct sched_seq *q)
{
    if (q->p.prompt_logprobs && q->n_scored < q->p.n_prompt - 1)
        return q->n_scored + 1;
    return q->n_toks;
}

/* Tokens in whole blocks that q, which is before it, computes for this prompt: more than
 * `least`, or 0. */
static int shared_with(const struct sched *s, const struct sched_seq *q, uint64_t salt,
                       const int32_t *toks, int n, int least)
{
    int bt = s->cfg.kv.block_tok, k = least;

    if (q->p.no_cache || q->p.salt != salt || q->n_toks < least + bt || n < least + bt)
        return 0;
    /* the block that would be more first: most differ there */
    if (memcmp(q->toks + least, toks + least, (size_t)bt * 4) != 0 ||
        memcmp(q->toks, toks, (size_t)least * 4) != 0)
        return 0;
    while (k + bt <= n && k + bt <= q->n_toks &&
           memcmp(q->toks + k, toks + k, (size_t)bt * 4) == 0)
        k += bt;
    return k;
}

int sched_found(struct sched *s, const struct gen_params *p, const int32_t *prompt)
{
    int n = p->n_prompt + p->n_gen, found = 0, k, looked = 0;

    if ((s->cfg.order != SCHED_BY_SLACK && !s->cfg.refuse_late) || !s->cfg.kv.reuse ||
        p->no_cache || p->prompt_logprobs || p->handoff == GEN_IMPORT)
        return 0;
    for (int i = 0; i < s->shards; i++) {
        k = kvcache_peek(s->kv, i, p->salt, prompt, n);
        found = k > found ? k : found;
    }
    found -= found % s->cfg.kv.block_tok;
    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        k = sched_rest(q) > 0 ? shared_with(s, q, p->salt, prompt, n, found) : 0;
        found = k > found ? k : found;
    }
    for (struct list *it = s->waiting.prev; it != &s->waiting && looked < SHARE_LOOK;
         it = it->prev, looked++) {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        k = shared_with(s, q, p->salt, prompt, n, found);
        found = k > found ? k : found;
    }
    return found < n ? found : n - 1;
}

/* What runs in each shard. */
struct shard_load {
    int running;
    int64_t tokens;
};

static void load_of(const struct sched *s, struct shard_load *ret)
{
    memset(ret, 0, (size_t)s->shards * sizeof(*ret));
    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        struct shard_load *l = &ret[kvseq_shard(q->kv)];

        l->running++;
        l->tokens += q->n_toks;
    }
}

/* The shard that has room for it and where the tokens that run, less what is cached of
 * it there, are fewest; -1: none. The prefix search costs a hash per block, so it is made
 * only when it can help: to choose, or, once per state of the pool, to find room. */
static int choose_shard(const struct sched *s, struct sched_seq *q,
                        const struct shard_load *load)
{
    int need = blocks_of(s, q->n_toks), n = attachable(q), best = -1;
    bool tried = q->tried == s->pool_state;
    int64_t least = 0;

    for (int i = 0; i < s->shards; i++) {
        int room = kvcache_available(s->kv, i) - load[i].running, cached = 0;

        if (need > room && (tried || q->p.no_cache))
            continue;
        if (need > room)
            q->tried = s->pool_state;
        if ((need > room || s->shards > 1) && !q->p.no_cache)
            cached = kvcache_peek(s->kv, i, q->p.salt, q->toks, n);
        if (need - cached / s->cfg.kv.block_tok > room)
            continue;
        if (best < 0 || load[i].tokens - cached < least) {
            best = i;
            least = load[i].tokens - cached;
        }
    }
    return best;
}

/* Its blocks, or NULL. */
static struct kvseq *take_blocks(struct sched *s, struct sched_seq *q, int *ret_cached)
{
    struct shard_load load[KV_MAX_SHARDS];

    load_of(s, load);
    int shard = choose_shard(s, q, load);
    if (shard < 0)
        return NULL;
    struct kvseq *kv = kvseq_new(s->kv, shard, q->p.salt, !q->p.no_cache);
    int cached = kvseq_attach(kv, q->toks, attachable(q)), copies = 0;

    kvseq_touch(kv, q->toks, attachable(q));
    /* attached blocks that nobody held are not available any more */
    if (kvseq_need(kv, cached, q->n_toks) + load[shard].running >
            kvcache_available(s->kv, shard) ||
        kvseq_reserve(kv, cached, q->n_toks, NULL, &copies, 0) < 0) {
        kvseq_free(kv);
        return NULL;
    }
    cached += kvseq_fetch(kv, q->toks, attachable(q));
    *ret_cached = cached;
    return kv;
}

bool sched_start(struct sched *s, int64_t now, struct sched_seq *q)
{
    bool import = q->p.handoff == GEN_IMPORT;
    int cached = 0;

    if (sched_tier_waits(s, now, q))
        return false;
    if (import) /* its blocks are written beside the steps */
        kvcache_form(s->kv, false);
    struct kvseq *kv = take_blocks(s, q, &cached);
    kvcache_form(s->kv, true);
    if (!kv)
        return false;
    sched_unlink(s, q);
    q->kv = kv;
    q->state = SEQ_RUNNING;
    q->next_pos = cached;
    q->prefill_end = q->n_toks;
    q->tail_samples = false;
    q->grant = 0;
    s->n_running++;
    insert_by_age(&s->running, &q->link, q->num, offsetof(struct sched_seq, link));
    if (q->p.handoff == GEN_EXPORT &&
        !sched_tier_moving(s)) /* else with its first step */
        sched_export(s, q, false);
    if (import)
        sched_import_start(s, q);
    s->st.recomputed_tok += q->had > cached ? (uint64_t)(q->had - cached) : 0;
    if (q->started)
        return true;
    q->started = true;
    q->start_us = now;
    sched_slack_start(s, now, q);
    q->n_cached = cached < q->p.n_prompt ? cached : q->p.n_prompt;
    if (q->had) /* its prompt was counted where it began */
        return true;
    s->st.prompt_tok += (uint64_t)q->p.n_prompt;
    s->st.cached_tok += (uint64_t)cached;
    return true;
}

void sched_preempt(struct sched *s, struct sched_seq *q)
{
    assert(q->state == SEQ_RUNNING && !q->n_flight);
    sched_unlink(s, q);
    q->had = kvseq_len(q->kv);
    q->n_preempted++;
    q->epoch++;
    s->st.preemptions++;
    drop_blocks(s, q);
    s->n_waiting++;
    to_waiting(s, q);
}

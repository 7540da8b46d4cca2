/* daemon/serve/kvpool.c - blocks of one KV group.
 *
 * Everything is an array indexed by block id with links as ids: taking, sharing and
 * returning a block is O(1), finding one is a bucket walk. The LRU order is the order of
 * the last return. A sequence holds the predecessors of every findable block it holds and
 * returns from its tail, hence on the LRU a block always stands before its predecessor:
 * chains are eaten from the tail, and none is left that cannot be reached. */
#include "daemon/serve/kvpool.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

void kvpool_init(struct kv_pool *p, int n_blocks, int block_tok, int n_shards)
{
    size_t n = (size_t)n_blocks;
    uint32_t buckets = 16;
    int each = n_blocks / n_shards;

    while (buckets < n)
        buckets *= 2;
    assert(each * n_shards == n_blocks);
    *p = (struct kv_pool){.n_blocks = n_blocks,
                          .block_tok = block_tok,
                          .n_shards = n_shards,
                          .mask = buckets - 1};
    p->shard = xcalloc((size_t)n_shards, sizeof(*p->shard));
    for (int i = 0; i < n_shards; i++)
        p->shard[i] = (struct kv_shard){.n_free = each,
                                        .free_head = each ? i * each : -1,
                                        .lru_head = -1,
                                        .lru_tail = -1};
    p->block = xcalloc(n, sizeof(*p->block));
    p->toks = xcalloc(n * (size_t)block_tok, sizeof(*p->toks));
    p->bucket = xmalloc(buckets * sizeof(*p->bucket));
    memset(p->bucket, 0xff, buckets * sizeof(*p->bucket));
    for (int i = 0; i < n_blocks; i++)
        p->block[i].next = (i + 1) % each ? i + 1 : -1;
}

void kvpool_done(struct kv_pool *p)
{
    free(p->shard);
    free(p->block);
    free(p->toks);
    free(p->bucket);
    *p = (struct kv_pool){0};
}

static void lru_unlink(struct kv_pool *p, int32_t id)
{
    struct kv_shard *s = &p->shard[kvpool_shard(p, id)];
    struct kv_block *b = &p->block[id];

    *(b->prev < 0 ? &s->lru_head : &p->block[b->prev].next) = b->next;
    *(b->next < 0 ? &s->lru_tail : &p->block[b->next].prev) = b->prev;
    s->n_lru--;
}

static void lru_append(struct kv_pool *p, int32_t id)
{
    struct kv_shard *s = &p->shard[kvpool_shard(p, id)];
    struct kv_block *b = &p->block[id];

    b->next = -1;
    b->prev = s->lru_tail;
    *(b->prev < 0 ? &s->lru_head : &p->block[b->prev].next) = id;
    s->lru_tail = id;
    s->n_lru++;
}

static int32_t *bucket_of(const struct kv_pool *p, struct kvhash h)
{
    return &p->bucket[(uint32_t)h.w[0] & p->mask];
}

static void unindex(struct kv_pool *p, int32_t id)
{
    int32_t *at = bucket_of(p, p->block[id].hash);

    while (*at != id)
        at = &p->block[*at].hnext;
    *at = p->block[id].hnext;
    p->block[id].indexed = false;
    p->n_indexed--;
}

int32_t kvpool_take(struct kv_pool *p, int shard)
{
    struct kv_shard *s = &p->shard[shard];
    int32_t id = s->free_head;

    if (id >= 0) {
        s->free_head = p->block[id].next;
        s->n_free--;
    } else if (s->lru_head >= 0) {
        id = s->lru_head;
        lru_unlink(p, id);
        unindex(p, id);
        p->evicted++;
    } else {
        return -1;
    }
    p->block[id].ref = 1;
    if (p->gen) {
        atomic_fetch_add_explicit(&p->gen[id], 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
    }
    return id;
}

int32_t kvpool_coldest(const struct kv_pool *p, int shard)
{
    return p->shard[shard].free_head >= 0 ? -1 : p->shard[shard].lru_head;
}

bool kvpool_take_id(struct kv_pool *p, int32_t id)
{
    struct kv_shard *s = &p->shard[kvpool_shard(p, id)];
    int32_t *at = &s->free_head;

    while (*at >= 0 && *at != id)
        at = &p->block[*at].next;
    if (*at < 0)
        return false;
    *at = p->block[id].next;
    s->n_free--;
    p->block[id].ref = 1;
    return true;
}

void kvpool_place(struct kv_pool *p, int32_t id, int32_t after)
{
    struct kv_shard *s = &p->shard[kvpool_shard(p, id)];
    struct kv_block *b = &p->block[id];

    assert(!b->ref && b->indexed && id != after);
    lru_unlink(p, id);
    b->prev = after;
    b->next = after < 0 ? s->lru_head : p->block[after].next;
    *(after < 0 ? &s->lru_head : &p->block[after].next) = id;
    *(b->next < 0 ? &s->lru_tail : &p->block[b->next].prev) = id;
    s->n_lru++;
}

static void put_free(struct kv_pool *p, int32_t id)
{
    struct kv_shard *s = &p->shard[kvpool_shard(p, id)];

    p->block[id].next = s->free_head;
    s->free_head = id;
    s->n_free++;
}

void kvpool_forget(struct kv_pool *p, int32_t id)
{
    if (!p->block[id].ref) {
        lru_unlink(p, id);
        put_free(p, id);
    }
    unindex(p, id);
}

void kvpool_ref(struct kv_pool *p, int32_t id)
{
    if (p->block[id].ref++ == 0)
        lru_unlink(p, id); /* only cached blocks are found with ref 0 */
}

void kvpool_unref(struct kv_pool *p, int32_t id)
{
    struct kv_block *b = &p->block[id];

    assert(b->ref > 0);
    if (--b->ref)
        return;
    if (b->indexed) {
        lru_append(p, id);
        return;
    }
    put_free(p, id);
}

static bool same_hash(struct kvhash a, struct kvhash b)
{
    return a.w[0] == b.w[0] && a.w[1] == b.w[1];
}

int32_t kvpool_find(const struct kv_pool *p, struct kvhash h, struct kvhash before,
                    const int32_t *toks)
{
    size_t bytes = (size_t)p->block_tok * sizeof(*toks);
    int32_t id = *bucket_of(p, h);

    for (; id >= 0; id = p->block[id].hnext)
        if (same_hash(p->block[id].hash, h) && same_hash(p->block[id].before, before) &&
            !memcmp(kvpool_toks(p, id), toks, bytes))
            return id;
    return -1;
}

void kvpool_index(struct kv_pool *p, int32_t id, int depth, struct kvhash h,
                  struct kvhash before, const int32_t *toks)
{
    struct kv_block *b = &p->block[id];

    assert(b->ref == 1 && !b->indexed);
    memcpy(p->toks + (size_t)id * (size_t)p->block_tok, toks,
           (size_t)p->block_tok * sizeof(*toks));
    b->hash = h;
    b->before = before;
    b->depth = depth;
    b->indexed = true;
    b->hnext = *bucket_of(p, h);
    *bucket_of(p, h) = id;
    p->n_indexed++;
}

/* Marks what a list of a shard holds, with mark, mark + step, ..; -1 when it is broken.
 */
static int walk(const struct kv_pool *p, int shard, int32_t head, int n, int mark,
                int step, int32_t *place)
{
    int32_t id = head;

    for (int i = 0; i < n; i++, id = p->block[id].next) {
        if (id < 0 || id >= p->n_blocks || place[id] || p->block[id].ref ||
            kvpool_shard(p, id) != shard)
            return -1;
        place[id] = mark + i * step;
    }
    return id == -1 ? 0 : -1;
}

static int check_lists(const struct kv_pool *p, int32_t *place, struct err *e)
{
    for (int i = 0; i < p->n_shards; i++) {
        const struct kv_shard *s = &p->shard[i];

        if (walk(p, i, s->free_head, s->n_free, 1, 0, place) < 0)
            return err_set(e, ERR_INTERNAL, "the free list of KV blocks is broken");
        if (walk(p, i, s->lru_head, s->n_lru, 2, 1, place) < 0)
            return err_set(e, ERR_INTERNAL, "the LRU list of KV blocks is broken");
    }
    return 0;
}

static int check_index(const struct kv_pool *p, struct err *e)
{
    int n = 0;

    for (uint32_t i = 0; i <= p->mask; i++)
        for (int32_t id = p->bucket[i]; id >= 0; id = p->block[id].hnext, n++)
            if (n > p->n_blocks || !p->block[id].indexed ||
                bucket_of(p, p->block[id].hash) != &p->bucket[i])
                return err_set(e, ERR_INTERNAL, "KV block %d is in a wrong bucket", id);
    if (n != p->n_indexed)
        return err_set(e, ERR_INTERNAL, "%d KV blocks are indexed, counted as %d", n,
                       p->n_indexed);
    return 0;
}

/* place[]: 0 = held, 1 = free, 2 + i = i-th on its shard's LRU list */
static int check_block(const struct kv_pool *p, int32_t id, const int32_t *refs,
                       const int32_t *place, struct err *e)
{
    const struct kv_block *b = &p->block[id];

    if (b->ref != refs[id])
        return err_set(e, ERR_INTERNAL, "KV block %d has %d references, counted as %d",
                       id, refs[id], b->ref);
    if (!b->ref && !place[id])
        return err_set(e, ERR_INTERNAL, "KV block %d is lost", id);
    if (!b->ref && b->indexed != (place[id] >= 2))
        return err_set(e, ERR_INTERNAL, "KV block %d is on the wrong list", id);
    return 0;
}

/* The predecessor of each findable block is held or stands later on the LRU list. */
static int check_chain(const struct kv_pool *p, int32_t id, const int32_t *place,
                       struct err *e)
{
    const struct kv_block *b = &p->block[id];
    int32_t q = *bucket_of(p, b->before);

    for (; q >= 0 && !same_hash(p->block[q].hash, b->before); q = p->block[q].hnext)
        ;
    if (b->depth == 0)
        return 0;
    if (q < 0)
        return err_set(e, ERR_INTERNAL, "KV block %d can be found, its parent not", id);
    if (kvpool_shard(p, q) != kvpool_shard(p, id))
        return err_set(e, ERR_INTERNAL, "KV block %d is in another shard than its parent",
                       id);
    bool held = p->block[q].ref > 0;
    if (held || (b->ref == 0 && place[q] > place[id]))
        return 0;
    return err_set(e, ERR_INTERNAL, "KV block %d would be evicted before its child %d", q,
                   id);
}

int kvpool_check(const struct kv_pool *p, const int32_t *refs, bool chained,
                 struct err *e)
{
    int32_t *place = xcalloc((size_t)p->n_blocks + 1, sizeof(*place));
    int rc = check_lists(p, place, e);

    if (!rc)
        rc = check_index(p, e);
    for (int32_t id = 0; id < p->n_blocks && !rc; id++) {
        rc = check_block(p, id, refs, place, e);
        if (!rc && chained && p->block[id].indexed)
            rc = check_chain(p, id, place, e);
    }
    free(place);
    return rc;
}

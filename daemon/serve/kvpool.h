/* daemon/serve/kvpool.h - blocks of one KV group: free, held by sequences, or cached.
 *
 * A block is in exactly one place: on the free list, on the LRU list (findable by its
 * hash, held by nobody) or held (ref >= 1, findable or not). The ids are cut into equal
 * runs, the shards, each with its own two lists. Used by kvcache only. */
#ifndef SERVE_KVPOOL_H
#define SERVE_KVPOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/serve/kvhash.h"

struct err;

struct kv_block {
    int32_t ref;
    int32_t next, prev;         /* in the free or LRU list, -1 = end */
    int32_t hnext;              /* in its bucket */
    bool indexed;               /* findable */
    int32_t depth;              /* blocks before it in its chain */
    struct kvhash hash, before; /* of the prefix with and without this block */
};

struct kv_shard {
    int n_free, n_lru;
    int32_t free_head;
    int32_t lru_head, lru_tail; /* head = used longest ago */
};

struct kv_pool {
    int n_blocks, block_tok, n_shards;
    struct kv_shard *shard; /* shard i has the ids from i * n_blocks / n_shards on */
    int n_indexed;
    uint64_t evicted;
    struct kv_block *block;
    _Atomic uint32_t *gen; /* counts the takings of each block; NULL, borrowed */
    int32_t *toks;         /* block_tok per block: the keys, where indexed */
    int32_t *bucket;
    uint32_t mask;
};

/* n_shards divides n_blocks. */
void kvpool_init(struct kv_pool *p, int n_blocks, int block_tok, int n_shards);
void kvpool_done(struct kv_pool *p);
/* A block of the shard with ref 1, evicting its oldest cached one if need be; -1 = all
 * are held. Its generation rises before anything is written into it: who copies the block
 * meanwhile finds the change. */
int32_t kvpool_take(struct kv_pool *p, int shard);
/* Free or evictable ones of the shard. */
static inline int kvpool_available(const struct kv_pool *p, int shard)
{
    return p->shard[shard].n_free + p->shard[shard].n_lru;
}
static inline int kvpool_shard(const struct kv_pool *p, int32_t id)
{
    return id / (p->n_blocks / p->n_shards);
}
void kvpool_ref(struct kv_pool *p, int32_t id);
void kvpool_unref(struct kv_pool *p, int32_t id);
/* The block of that hash whose predecessor and tokens are these too, or -1. */
int32_t kvpool_find(const struct kv_pool *p, struct kvhash h, struct kvhash before,
                    const int32_t *toks);
/* Make a held block findable, as number `depth` of its chain. */
void kvpool_index(struct kv_pool *p, int32_t id, int depth, struct kvhash h,
                  struct kvhash before, const int32_t *toks);
/* Is somebody else reading this block, or might somebody find it? */
static inline bool kvpool_shared(const struct kv_pool *p, int32_t id)
{
    return p->block[id].ref > 1 || p->block[id].indexed;
}
/* The one that the next take of this shard would evict, -1 = none (it has free ones). */
int32_t kvpool_coldest(const struct kv_pool *p, int shard);
/* The first of the shard's cached ones, the oldest; the others follow by next. */
static inline int32_t kvpool_coldest_cached(const struct kv_pool *p, int shard)
{
    return p->shard[shard].lru_head;
}
/* A cached one, to stand behind another of its shard; -1: the oldest. */
void kvpool_place(struct kv_pool *p, int32_t id, int32_t after);
/* Not findable any more; who holds it goes on holding it. */
void kvpool_forget(struct kv_pool *p, int32_t id);
bool kvpool_take_id(struct kv_pool *p, int32_t id); /* false: it is not free */
static inline const int32_t *kvpool_toks(const struct kv_pool *p, int32_t id)
{
    return p->toks + (size_t)id * (size_t)p->block_tok;
}
/* refs[n_blocks] as counted from the sequences against what the pool believes; with
 * `chained` also that no block would go before its child. */
int kvpool_check(const struct kv_pool *p, const int32_t *refs, bool chained,
                 struct err *e);

#endif

/* daemon/serve/kvcache.h - who owns which KV block: ids only, no memory.
 *
 * Blocks of block_tok positions with reference counts; full committed blocks are indexed
 * by a chain hash (128 bit, keyed with a secret) over opaque token keys and found again
 * by later sequences; on a hit the keys themselves are compared. Blocks nobody uses stay
 * in an LRU until they are needed. Groups (full, window, latent, state) share one
 * sequence length and have their own blocks. Where several groups of ranks each have KV
 * of their own, block ids are cut into that many equal shards: a sequence lives in one,
 * and finds nothing of the others. Pure; one owner thread (the scheduler's). */
#ifndef SERVE_KVCACHE_H
#define SERVE_KVCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct kvcache;
struct kvseq;

enum kv_kind { KV_FULL, KV_WINDOW };

struct kv_group {
    enum kv_kind kind;
    int n_blocks; /* in the arena */
    int window;   /* KV_WINDOW: positions kept */
};

struct kvtier;

struct kvcache_cfg {
    int n_host, n_disk; /* slots of the tiers below group 0 (kvtier.h), 0 = none */
    int max_moves;      /* of a step, between the device and the host tier */
    int block_tok;
    int n_groups; /* 1 or more; group 0 decides admission figures */
    int shards;   /* 0 = 1; divides the blocks of each group */
    struct kv_group group[4];
    uint8_t secret[16];     /* of the hash chain */
    bool reuse;             /* prefix cache on */
    _Atomic uint32_t *gens; /* of group 0's blocks: rises when one is taken; NULL or
                               n_blocks values, borrowed (what other processes look at) */
};

struct kv_copy {
    int group;
    int32_t src, dst;
};

struct kvcache_stats {
    int n_blocks, n_free, n_cached, n_used; /* group 0: total = free + cached + used */
    int n_pinned;                           /* of used: pinned, by sequences too or not */
    int n_pins;                             /* how often, in all */
    uint64_t query_tok, hit_tok;            /* prefix lookups, in tokens */
    uint64_t evicted;
};

enum { KV_MAX_SHARDS = 128 };

struct kvcache *kvcache_new(const struct kvcache_cfg *cfg);
void kvcache_free(struct kvcache *kv);

/* A sequence of a shard, without blocks. salt keeps tenants' prefixes apart (0 = shared).
 * Without reuse it neither attaches nor leaves anything to find. */
struct kvseq *kvseq_new(struct kvcache *kv, int shard, uint64_t salt, bool reuse);
int kvseq_shard(const struct kvseq *s);
/* Returns all its blocks; committed full ones stay findable. */
void kvseq_free(struct kvseq *s);

/* Attach the longest cached prefix of toks[0..n), whole blocks, at most n - 1 tokens so
 * that one is left to compute. On an empty sequence only. Returns the tokens attached. */
int kvseq_attach(struct kvseq *s, const int32_t *toks, int n);
/* After attach and reserve: what follows of toks in the host tier moves up into the
 * sequence's blocks, whole ones, at most n - 1 tokens; committed at once, as the next
 * step begins with the copies. Returns the tokens. */
int kvseq_fetch(struct kvseq *s, const int32_t *toks, int n);
/* What follows in the host tier what attach found is not to leave it now. */
void kvseq_touch(struct kvseq *s, const int32_t *toks, int n);
/* Read what of a prompt is on disk only into the host tier; the number of the last want
 * (kvtier_want), 0 = none. */
uint64_t kvcache_want(struct kvcache *kv, int shard, uint64_t salt, const int32_t *toks,
                      int n);
/* Between the two, blocks that are given up may move down; outside they are dropped,
 * since nobody knows what writes into them before the next step. */
void kvcache_form(struct kvcache *kv, bool on);
struct kvtier *kvcache_tier(struct kvcache *kv); /* NULL without tiers */
/* The same without attaching: for routing and admission. */
int kvcache_peek(const struct kvcache *kv, int shard, uint64_t salt, const int32_t *toks,
                 int n);

/* Make room for positions 0..len-1, writable from position `from`: shared blocks at or
 * after it are copied on write, the pairs are appended to copies[] (*n_copies counts up
 * to max_copies). -1 when there are too few blocks; then nothing changed. */
int kvseq_reserve(struct kvseq *s, int from, int len, struct kv_copy *copies,
                  int *n_copies, int max_copies);
/* Blocks that reserve(.., len) would take from the pool (new ones and copies). */
int kvseq_need(const struct kvseq *s, int from, int len);
/* Positions len()..len()+n-1 now hold committed tokens toks[0..n). A block that becomes
 * full and equals a findable one is exchanged for it (steps run in order, so one that is
 * in flight may go on reading the old block). */
void kvseq_commit(struct kvseq *s, const int32_t *toks, int n);
/* Forget positions >= len, also inside a block and on shared blocks; blocks reserved past
 * it go back. Never below what a KV_WINDOW group still holds. */
void kvseq_truncate(struct kvseq *s, int len);
int kvseq_len(const struct kvseq *s);                                      /* committed */
const int32_t *kvseq_blocks(const struct kvseq *s, int group, int *ret_n); /* borrowed;
                                                            -1 = fell out of the window */

/* Pinned blocks of group 0 are neither freed nor evicted, whatever becomes of the
 * sequence that had them, until they are unpinned as often. A chain is pinned from its
 * begin on and unpinned as a whole, the last first (unpin goes backwards). */
void kvcache_pin(struct kvcache *kv, const int32_t *ids, int n);
void kvcache_unpin(struct kvcache *kv, const int32_t *ids, int n);
uint32_t kvcache_gen(const struct kvcache *kv, int32_t id); /* 0 without gens */

int kvcache_available(const struct kvcache *kv,
                      int shard); /* free + evictable, group 0 */
void kvcache_stats(const struct kvcache *kv, struct kvcache_stats *ret);
/* For tests: every block owned once or shared as counted, none lost. Sentence in e. */
int kvcache_check(const struct kvcache *kv, struct err *e);

#endif

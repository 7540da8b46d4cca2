/* daemon/serve/kvcache_impl.h - what kvcache*.c share. Not for others. */
#ifndef SERVE_KVCACHE_IMPL_H
#define SERVE_KVCACHE_IMPL_H

#include "base/list.h"
#include "daemon/serve/kvcache.h"
#include "daemon/serve/kvpool.h"
#include "daemon/serve/kvtier.h"

enum { MAX_GROUPS = 4 };

struct kvcache {
    struct kvcache_cfg cfg;
    struct kv_pool pool[MAX_GROUPS];
    struct list seqs;
    uint64_t query_tok, hit_tok;
    struct kv_match *match;
    struct kvtier *tier; /* below group 0; NULL */
    bool forming;
    int32_t *pins; /* of group 0's blocks, from the first pin on */
    int n_pinned, n_pins;
};

struct kv_table {
    int32_t *id;
    int n, cap;
    int first; /* entries before it are -1 */
};

struct kvseq {
    struct list link;
    struct kvcache *kv;
    int shard;
    bool reuse;
    struct kvhash root;
    int len;
    int32_t *toks; /* committed, with reuse */
    int toks_cap;
    struct kvhash *hash; /* of the first len / block_tok blocks, with reuse */
    int hash_cap;
    struct kv_table table[MAX_GROUPS];
};

/* Scratch of a prefix search. */
struct kv_match {
    struct kvhash *hash;
    int32_t *id[MAX_GROUPS];
    int cap;
};

static inline int blocks_of(const struct kvcache *kv, int len)
{
    return (len + kv->cfg.block_tok - 1) / kv->cfg.block_tok;
}

#endif

/* daemon/serve/kvcache.c - sequences over the block pools of the groups.
 *
 * A sequence knows its committed tokens, the chain hash at each full block, and a table
 * of blocks for each group. Life of a block: reserve takes it (writable, not findable);
 * commit counts the tokens in it, and when it is full makes it findable, or drops it for
 * an equal one that is findable already, so equal prefixes are stored once; free returns
 * the table from its tail. Writing into a shared block (only after a truncate) copies it
 * first. Blocks of a KV_WINDOW group wholly before the window are returned at commit;
 * their table entry becomes -1. There, an older block may go before its child: without
 * the later ones it is of no use. */
#include "daemon/serve/kvcache.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/kvcache_impl.h"

struct kvcache *kvcache_new(const struct kvcache_cfg *cfg)
{
    struct kvcache *kv = xcalloc(1, sizeof(*kv));

    assert(cfg->block_tok > 0 && cfg->n_groups >= 1 && cfg->n_groups <= MAX_GROUPS);
    assert(cfg->shards >= 0 && cfg->shards <= KV_MAX_SHARDS);
    kv->cfg = *cfg;
    kv->cfg.shards = cfg->shards ? cfg->shards : 1;
    kv->match = xcalloc(1, sizeof(*kv->match));
    if (cfg->reuse && cfg->n_host)
        kv->tier = kvtier_new(&(struct kvtier_cfg){.n_host = cfg->n_host,
                                                   .n_disk = cfg->n_disk,
                                                   .block_tok = cfg->block_tok,
                                                   .shards = kv->cfg.shards,
                                                   .max_moves = cfg->max_moves});
    list_init(&kv->seqs);
    for (int g = 0; g < cfg->n_groups; g++)
        kvpool_init(&kv->pool[g], cfg->group[g].n_blocks, cfg->block_tok, kv->cfg.shards);
    kv->pool[0].gen = cfg->gens;
    return kv;
}

void kvcache_free(struct kvcache *kv)
{
    if (!kv)
        return;
    assert(list_empty(&kv->seqs));
    for (int g = 0; g < kv->cfg.n_groups; g++) {
        kvpool_done(&kv->pool[g]);
        free(kv->match->id[g]);
    }
    kvtier_free(kv->tier);
    free(kv->match->hash);
    free(kv->match);
    free(kv->pins);
    free(kv);
}

/* Chains of different shards have no link in common. */
static struct kvhash root_hash(const struct kvcache *kv, int shard, uint64_t salt)
{
    const uint64_t root[2] = {salt, (uint64_t)shard};

    return kvhash_bytes(kv->cfg.secret, root, sizeof(root));
}

static struct kvhash next_hash(const struct kvcache *kv, struct kvhash before,
                               const int32_t *toks)
{
    return kvhash_next(kv->cfg.secret, before, toks,
                       (size_t)kv->cfg.block_tok * sizeof(*toks));
}

struct kvseq *kvseq_new(struct kvcache *kv, int shard, uint64_t salt, bool reuse)
{
    struct kvseq *s = xcalloc(1, sizeof(*s));

    assert(shard >= 0 && shard < kv->cfg.shards);
    s->shard = shard;
    s->kv = kv;
    s->reuse = reuse && kv->cfg.reuse;
    s->root = root_hash(kv, shard, salt);
    list_push(&kv->seqs, &s->link);
    return s;
}

static void table_cut(struct kv_pool *p, struct kv_table *t, int n)
{
    while (t->n > n) {
        int32_t id = t->id[--t->n];
        if (id >= 0)
            kvpool_unref(p, id);
    }
    if (t->first > t->n)
        t->first = t->n;
}

void kvseq_free(struct kvseq *s)
{
    if (!s)
        return;
    for (int g = 0; g < s->kv->cfg.n_groups; g++) {
        table_cut(&s->kv->pool[g], &s->table[g], 0);
        free(s->table[g].id);
    }
    list_del(&s->link);
    free(s->toks);
    free(s->hash);
    free(s);
}

static void table_push(struct kv_table *t, int32_t id)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 16;
        t->id = xrealloc(t->id, (size_t)t->cap * sizeof(*t->id));
    }
    t->id[t->n++] = id;
}

static void push_hash(struct kvseq *s, int i, struct kvhash h)
{
    if (i >= s->hash_cap) {
        s->hash_cap = s->hash_cap ? s->hash_cap * 2 : 16;
        s->hash = xrealloc(s->hash, (size_t)s->hash_cap * sizeof(*s->hash));
    }
    s->hash[i] = h;
}

static void push_toks(struct kvseq *s, const int32_t *toks, int n)
{
    if (n == 0)
        return;
    if (s->len + n > s->toks_cap) {
        while (s->len + n > s->toks_cap)
            s->toks_cap = s->toks_cap ? s->toks_cap * 2 : 64;
        s->toks = xrealloc(s->toks, (size_t)s->toks_cap * sizeof(*s->toks));
    }
    memcpy(s->toks + s->len, toks, (size_t)n * sizeof(*toks));
}

/* First block that a group needs to go on from position len. */
static int first_needed(const struct kvcache *kv, int g, int len)
{
    const struct kv_group *gr = &kv->cfg.group[g];

    if (gr->kind == KV_FULL || len <= gr->window)
        return 0;
    return (len - gr->window) / kv->cfg.block_tok;
}

static void match_room(const struct kvcache *kv, int n)
{
    struct kv_match *m = kv->match;

    if (n <= m->cap)
        return;
    m->cap = n;
    m->hash = xrealloc(m->hash, (size_t)n * sizeof(*m->hash));
    for (int g = 0; g < kv->cfg.n_groups; g++)
        m->id[g] = xrealloc(m->id[g], (size_t)n * sizeof(*m->id[g]));
}

/* The last block that going on after k blocks would miss in a window group, or -1. */
static int find_hole(const struct kvcache *kv, int k)
{
    for (int g = 0; g < kv->cfg.n_groups; g++) {
        if (kv->cfg.group[g].kind == KV_FULL)
            continue;
        for (int i = k - 1; i >= first_needed(kv, g, k * kv->cfg.block_tok); i--)
            if (kv->match->id[g][i] < 0)
                return i;
    }
    return -1;
}

/* Fills kv->match for up to `max` blocks of toks; returns the blocks that can be used. */
static int find_prefix(const struct kvcache *kv, struct kvhash root, const int32_t *toks,
                       int max)
{
    struct kvhash before = root;
    int k = 0;

    match_room(kv, max);
    for (; k < max; k++, toks += kv->cfg.block_tok) {
        struct kvhash h = next_hash(kv, before, toks);
        bool miss = false;
        for (int g = 0; g < kv->cfg.n_groups; g++) {
            int32_t id = kvpool_find(&kv->pool[g], h, before, toks);
            kv->match->id[g][k] = id;
            miss |= id < 0 && kv->cfg.group[g].kind == KV_FULL;
        }
        if (miss)
            break;
        kv->match->hash[k] = before = h;
    }
    for (int hole; (hole = find_hole(kv, k)) >= 0;)
        k = hole; /* every longer prefix needs it too */
    return k;
}

int kvcache_peek(const struct kvcache *kv, int shard, uint64_t salt, const int32_t *toks,
                 int n)
{
    int bt = kv->cfg.block_tok;

    if (!kv->cfg.reuse || n <= bt)
        return 0;
    return find_prefix(kv, root_hash(kv, shard, salt), toks, (n - 1) / bt) * bt;
}

int kvseq_attach(struct kvseq *s, const int32_t *toks, int n)
{
    struct kvcache *kv = s->kv;
    int bt = kv->cfg.block_tok;

    assert(s->len == 0 && s->table[0].n == 0);
    if (!s->reuse)
        return 0;
    int k = n > bt ? find_prefix(kv, s->root, toks, (n - 1) / bt) : 0;
    for (int g = 0; g < kv->cfg.n_groups; g++) {
        s->table[g].first = first_needed(kv, g, k * bt);
        for (int i = 0; i < k; i++) {
            int32_t id = i < s->table[g].first ? -1 : kv->match->id[g][i];
            if (id >= 0)
                kvpool_ref(&kv->pool[g], id);
            table_push(&s->table[g], id);
        }
    }
    for (int i = 0; i < k; i++)
        push_hash(s, i, kv->match->hash[i]);
    push_toks(s, toks, k * bt);
    s->len = k * bt;
    kv->query_tok += (uint64_t)n;
    kv->hit_tok += (uint64_t)s->len;
    return s->len;
}

/* ---- the tiers below ---- */

void kvcache_form(struct kvcache *kv, bool on) { kv->forming = on; }

struct kvtier *kvcache_tier(struct kvcache *kv) { return kv->tier; }

/* A block of the shard; what it held moves down. */
static int32_t take(struct kvcache *kv, int g, int shard)
{
    struct kv_pool *p = &kv->pool[g];
    int32_t cold = g == 0 && kv->tier && kv->forming ? kvpool_coldest(p, shard) : -1;

    if (cold >= 0) {
        const struct kv_block *b = &p->block[cold];
        const struct kv_key k = {b->hash, b->before, b->depth, kvpool_toks(p, cold)};
        kvtier_down(kv->tier, shard, cold, &k);
    }
    return kvpool_take(p, shard);
}

/* Key of the block after the chain up to `before`. */
static struct kv_key next_key(const struct kvcache *kv, struct kvhash before, int depth,
                              const int32_t *toks)
{
    return (struct kv_key){next_hash(kv, before, toks), before, depth, toks};
}

static struct kvhash last_hash(const struct kvseq *s)
{
    int n = s->len / s->kv->cfg.block_tok;

    return n ? s->hash[n - 1] : s->root;
}

int kvseq_fetch(struct kvseq *s, const int32_t *toks, int n)
{
    struct kvcache *kv = s->kv;
    int bt = kv->cfg.block_tok, from = s->len;

    if (!kv->tier || !s->reuse || !kv->forming)
        return 0;
    while (s->len + bt < n) {
        struct kv_key k = next_key(kv, last_hash(s), s->len / bt, toks + s->len);
        if (!kvtier_up(kv->tier, &k, s->table[0].id[s->len / bt]))
            break;
        kvseq_commit(s, toks + s->len, bt);
    }
    kv->hit_tok += (uint64_t)(s->len - from);
    return s->len - from;
}

void kvseq_touch(struct kvseq *s, const int32_t *toks, int n)
{
    struct kvcache *kv = s->kv;
    int bt = kv->cfg.block_tok;
    struct kvhash before = last_hash(s);

    if (!kv->tier || !s->reuse)
        return;
    for (int at = s->len; at + bt < n; at += bt) {
        struct kv_key k = next_key(kv, before, at / bt, toks + at);
        if (kvtier_find(kv->tier, &k) != KVTIER_HOST)
            return;
        kvtier_touch(kv->tier, &k);
        before = k.hash;
    }
}

uint64_t kvcache_want(struct kvcache *kv, int shard, uint64_t salt, const int32_t *toks,
                      int n)
{
    int bt = kv->cfg.block_tok;
    struct kvhash before = root_hash(kv, shard, salt);
    uint64_t last = 0;

    if (!kv->tier || !kv->cfg.n_disk)
        return 0;
    for (int at = 0; at + bt < n; at += bt) {
        struct kv_key k = next_key(kv, before, at / bt, toks + at);
        bool here = kvpool_find(&kv->pool[0], k.hash, k.before, k.toks) >= 0;
        enum kvtier_where w = here ? KVTIER_HOST : kvtier_find(kv->tier, &k);
        if (w == KVTIER_NOWHERE)
            break;
        if (w != KVTIER_HOST) {
            uint64_t number = kvtier_want(kv->tier, shard, &k);
            last = number ? number : last;
        }
        before = k.hash;
    }
    return last;
}

/* Shared blocks of group g that writing positions from .. len-1 would change. Only
 * blocks with committed tokens can be shared. */
static int count_shared(const struct kvseq *s, int g, int from, int len)
{
    const struct kv_table *t = &s->table[g];
    int end = blocks_of(s->kv, len < s->len ? len : s->len), n = 0;

    for (int i = from / s->kv->cfg.block_tok; i < end && i < t->n; i++)
        n += t->id[i] >= 0 && kvpool_shared(&s->kv->pool[g], t->id[i]);
    return n;
}

static int need(const struct kvseq *s, int g, int from, int len)
{
    int more = blocks_of(s->kv, len) - s->table[g].n;
    return (more > 0 ? more : 0) + count_shared(s, g, from, len);
}

int kvseq_need(const struct kvseq *s, int from, int len) { return need(s, 0, from, len); }

static void unshare(struct kvseq *s, int g, int from, int len, struct kv_copy *copies,
                    int *n_copies)
{
    struct kv_pool *p = &s->kv->pool[g];
    struct kv_table *t = &s->table[g];
    int bt = s->kv->cfg.block_tok;
    int end = blocks_of(s->kv, len < s->len ? len : s->len);

    for (int i = from / bt; i < end && i < t->n; i++) {
        int32_t old = t->id[i];
        if (old < 0 || !kvpool_shared(p, old))
            continue;
        t->id[i] = take(s->kv, g, s->shard);
        copies[(*n_copies)++] = (struct kv_copy){g, old, t->id[i]};
        kvpool_unref(p, old);
    }
}

int kvseq_reserve(struct kvseq *s, int from, int len, struct kv_copy *copies,
                  int *n_copies, int max_copies)
{
    struct kvcache *kv = s->kv;
    int n_copy = 0;

    for (int g = 0; g < kv->cfg.n_groups; g++) {
        if (need(s, g, from, len) > kvpool_available(&kv->pool[g], s->shard))
            return -1;
        n_copy += count_shared(s, g, from, len);
    }
    if (n_copy && *n_copies + n_copy > max_copies)
        return -1;
    for (int g = 0; g < kv->cfg.n_groups; g++) {
        if (n_copy)
            unshare(s, g, from, len, copies, n_copies);
        while (s->table[g].n < blocks_of(kv, len))
            table_push(&s->table[g], take(kv, g, s->shard));
    }
    return 0;
}

/* Block i is full: make it findable, or use the equal one that is. */
static void settle(struct kvseq *s, int i)
{
    const int32_t *toks = s->toks + (size_t)i * (size_t)s->kv->cfg.block_tok;
    struct kvhash before = i ? s->hash[i - 1] : s->root;
    struct kvhash h = next_hash(s->kv, before, toks);

    push_hash(s, i, h);
    for (int g = 0; g < s->kv->cfg.n_groups; g++) {
        struct kv_pool *p = &s->kv->pool[g];
        int32_t *id = &s->table[g].id[i];
        int32_t have = kvpool_find(p, h, before, toks);
        if (have < 0) {
            kvpool_index(p, *id, i, h, before, toks);
        } else if (have != *id) {
            kvpool_ref(p, have);
            kvpool_unref(p, *id);
            *id = have;
        }
    }
}

static void leave_window(struct kvseq *s, int g)
{
    struct kv_table *t = &s->table[g];
    int first = first_needed(s->kv, g, s->len);

    for (; t->first < first; t->first++) {
        kvpool_unref(&s->kv->pool[g], t->id[t->first]);
        t->id[t->first] = -1;
    }
}

void kvseq_commit(struct kvseq *s, const int32_t *toks, int n)
{
    int bt = s->kv->cfg.block_tok, full = s->len / bt;

    assert(n >= 0 && blocks_of(s->kv, s->len + n) <= s->table[0].n);
    if (n == 0)
        return;
    assert(count_shared(s, 0, s->len, s->len + n) == 0);
    if (s->reuse)
        push_toks(s, toks, n);
    s->len += n;
    for (; s->reuse && full < s->len / bt; full++)
        settle(s, full);
    for (int g = 0; g < s->kv->cfg.n_groups; g++)
        leave_window(s, g);
}

void kvseq_truncate(struct kvseq *s, int len)
{
    if (len < s->len)
        s->len = len;
    for (int g = 0; g < s->kv->cfg.n_groups; g++) {
        assert(s->table[g].first <= first_needed(s->kv, g, s->len));
        table_cut(&s->kv->pool[g], &s->table[g], blocks_of(s->kv, len));
    }
}

int kvseq_len(const struct kvseq *s) { return s->len; }

int kvseq_shard(const struct kvseq *s) { return s->shard; }

const int32_t *kvseq_blocks(const struct kvseq *s, int group, int *ret_n)
{
    *ret_n = s->table[group].n;
    return s->table[group].id;
}

void kvcache_pin(struct kvcache *kv, const int32_t *ids, int n)
{
    if (!kv->pins)
        kv->pins = xcalloc((size_t)kv->cfg.group[0].n_blocks, sizeof(*kv->pins));
    for (int i = 0; i < n; i++) {
        assert(kv->pool[0].block[ids[i]].ref > 0);
        kvpool_ref(&kv->pool[0], ids[i]);
        kv->n_pinned += kv->pins[ids[i]]++ == 0;
    }
    kv->n_pins += n;
}

void kvcache_unpin(struct kvcache *kv, const int32_t *ids, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        assert(kv->pins && kv->pins[ids[i]] > 0);
        kv->n_pinned -= --kv->pins[ids[i]] == 0;
        kvpool_unref(&kv->pool[0], ids[i]);
    }
    kv->n_pins -= n;
}

uint32_t kvcache_gen(const struct kvcache *kv, int32_t id)
{
    return kv->cfg.gens ? atomic_load_explicit(&kv->cfg.gens[id], memory_order_relaxed)
                        : 0;
}

int kvcache_available(const struct kvcache *kv, int shard)
{
    return kvpool_available(&kv->pool[0], shard);
}

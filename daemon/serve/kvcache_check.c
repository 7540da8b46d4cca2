/* daemon/serve/kvcache_check.c - what is in a KV cache, counted and checked. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/kvcache_impl.h"

void kvcache_stats(const struct kvcache *kv, struct kvcache_stats *ret)
{
    const struct kv_pool *p = &kv->pool[0];

    *ret = (struct kvcache_stats){
        .n_blocks = p->n_blocks, .query_tok = kv->query_tok, .hit_tok = kv->hit_tok};
    ret->n_pinned = kv->n_pinned;
    ret->n_pins = kv->n_pins;
    for (int i = 0; i < p->n_shards; i++) {
        ret->n_free += p->shard[i].n_free;
        ret->n_cached += p->shard[i].n_lru;
    }
    ret->n_used = p->n_blocks - ret->n_free - ret->n_cached;
    for (int g = 0; g < kv->cfg.n_groups; g++)
        ret->evicted += kv->pool[g].evicted;
}

static int check_table(const struct kvseq *s, int g, int32_t *refs, struct err *e)
{
    const struct kv_table *t = &s->table[g];
    int n_blocks = s->kv->cfg.group[g].n_blocks;

    if (t->n < blocks_of(s->kv, s->len))
        return err_set(e, ERR_INTERNAL, "a sequence of %d tokens has %d KV blocks",
                       s->len, t->n);
    for (int i = 0; i < t->n; i++) {
        if (i < t->first ? t->id[i] != -1 : t->id[i] < 0 || t->id[i] >= n_blocks)
            return err_set(e, ERR_INTERNAL, "entry %d of a block table is %d", i,
                           t->id[i]);
        if (t->id[i] >= 0 && kvpool_shard(&s->kv->pool[g], t->id[i]) != s->shard)
            return err_set(e, ERR_INTERNAL, "KV block %d is not of shard %d", t->id[i],
                           s->shard);
        if (t->id[i] >= 0)
            refs[t->id[i]]++;
    }
    /* what is not committed yet must be the sequence's own */
    for (int i = blocks_of(s->kv, s->len); i < t->n; i++)
        if (kvpool_shared(&s->kv->pool[g], t->id[i]))
            return err_set(e, ERR_INTERNAL, "KV block %d is shared before it is written",
                           t->id[i]);
    return 0;
}

int kvcache_check(const struct kvcache *kv, struct err *e)
{
    for (int g = 0; g < kv->cfg.n_groups; g++) {
        const struct kv_group *gr = &kv->cfg.group[g];
        int32_t *refs = xcalloc((size_t)gr->n_blocks + 1, sizeof(*refs));
        int rc = 0;
        list_for(it, &kv->seqs)
        {
            if (!rc)
                rc = check_table(list_entry(it, struct kvseq, link), g, refs, e);
        }
        int n_pinned = 0, n_pins = 0;
        for (int i = 0; g == 0 && kv->pins && i < gr->n_blocks; i++) {
            refs[i] += kv->pins[i];
            n_pinned += kv->pins[i] > 0;
            n_pins += kv->pins[i];
        }
        if (!rc && g == 0 && (n_pinned != kv->n_pinned || n_pins != kv->n_pins))
            rc = err_set(e, ERR_INTERNAL,
                         "%d KV blocks are pinned %d times, counted as %d and %d",
                         n_pinned, n_pins, kv->n_pinned, kv->n_pins);
        if (!rc)
            rc = kvpool_check(&kv->pool[g], refs, gr->kind == KV_FULL, e);
        free(refs);
        if (rc < 0)
            return err_wrap(e, "KV group %d", g);
    }
    return kv->tier ? kvtier_check(kv->tier, e) : 0;
}

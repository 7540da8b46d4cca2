/* tests/unit/kv_rig.h - the exported KV of an engine that there is not, in any layout,
 * and what should stand in it: each element tells whose it is, so that no block can be
 * taken for another. */
#ifndef TESTS_UNIT_KV_RIG_H
#define TESTS_UNIT_KV_RIG_H

#include <fcntl.h>
#include <stdatomic.h>

#include "base/err.h"
#include "base/region.h"
#include "daemon/serve/kvmap.h"
#include "kernels/kv_block.h"

enum { KV_LAYERS = 2, KV_HEADS = 2, KV_DIM = 16, KV_REGIONS = 4 };

/* How it is cut; striped: positions over cp one by one, else in blocks. */
struct kv_shape {
    int pp, tp, cp;
    bool striped;
};

struct kv_body {
    struct kvpage *page;
    struct wire_arena a[KV_REGIONS + 1]; /* the last is the page's */
    int fd[KV_REGIONS + 1], n;
};

static inline size_t kv_region_bytes(const struct wire_arena *a)
{
    struct kv_layout l = {.n_layer = a->n_layer,
                          .n_kv_head = a->n_head,
                          .head_dim = a->head_dim,
                          .block_tok = KV_BLOCK_TOK,
                          .type = (enum dtype)a->type,
                          .v_dim = a->v_dim};
    struct err e;

    assert_int_equal(kv_layout_fill(&l, &e), 0);
    return l.block_bytes * (size_t)a->n_blocks;
}

static inline void kv_body_new(struct kv_body *b, const struct kv_shape *s, int n_blocks,
                               uint64_t incarnation)
{
    int n = s->pp * s->tp * s->cp;
    struct err e;

    *b = (struct kv_body){.n = n + 1};
    assert_true(n <= KV_REGIONS);
    assert_int_equal(kvpage_new(n_blocks, incarnation, &b->page, &b->fd[n], &e), 0);
    b->a[n] = (struct wire_arena){.incarnation = incarnation,
                                  .bytes = kvpage_bytes(n_blocks),
                                  .rank = -1,
                                  .n_arenas = n + 1,
                                  .n_blocks = n_blocks};
    for (int i = 0; i < n; i++) {
        struct wire_arena *a = &b->a[i];
        *a = (struct wire_arena){.incarnation = incarnation,
                                 .rank = i,
                                 .n_arenas = n + 1,
                                 .n_blocks = n_blocks,
                                 .first_layer = i / (s->tp * s->cp) * (KV_LAYERS / s->pp),
                                 .n_layer = KV_LAYERS / s->pp,
                                 .all_layers = KV_LAYERS,
                                 .head_from = i / s->cp % s->tp * (KV_HEADS / s->tp),
                                 .n_head = KV_HEADS / s->tp,
                                 .all_heads = KV_HEADS,
                                 .head_dim = KV_DIM,
                                 .type = DT_BF16,
                                 .cp = s->cp,
                                 .cp_at = i % s->cp,
                                 .striped = s->striped,
                                 .block_tok = s->cp * KV_BLOCK_TOK};
        a->bytes = kv_region_bytes(a);
        b->fd[i] = region_file("kv-rig", "KV of a test", a->bytes, &e);
        assert_true(b->fd[i] >= 0);
    }
}

static inline void kv_body_done(struct kv_body *b)
{
    for (int i = 0; i < b->n; i++)
        close(b->fd[i]);
    kvpage_free(b->page);
    *b = (struct kv_body){0};
}

/* As whom it is given to maps it. */
static inline struct kvmap *kv_body_map(const struct kv_body *b, bool writable)
{
    struct kvmap *m = kvmap_new(writable);
    struct err e;

    for (int i = 0; i < b->n; i++)
        if (kvmap_add(m, &b->a[i], fcntl(b->fd[i], F_DUPFD_CLOEXEC, 0), &e) < 0)
            fail_msg("%s", e.msg);
    assert_true(kvmap_whole(m));
    return m;
}

static inline uint16_t kv_value(uint64_t id, int pos, int row, int d)
{
    uint64_t x =
        id * 0x9e3779b97f4a7c15u + ((uint64_t)(pos * 64 + row) << 16) + (uint64_t)d;

    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    return (uint16_t)(x >> 40);
}

/* Positions from .. upto-1 of sequence id are written; or: are they its own? */
static inline bool kv_each(const struct kvmap *m, const int32_t *table, int n_table,
                           uint64_t id, int from, int upto, bool write)
{
    struct kvtable t = {table, 0, n_table};

    for (int p = from; p < upto; p++)
        for (int i = 0; i < KV_LAYERS * KV_HEADS * 2; i++) {
            struct kvspot s = kvmap_find(m, &t, i / 2 / KV_HEADS, i / 2 % KV_HEADS, p);
            const struct kv_layout *l = &s.in->layout;
            uint8_t *at = s.in->mem + s.off + (i % 2 ? l->head_bytes : 0);
            for (int d = 0; d < KV_DIM; d++) {
                size_t k = i % 2 ? kv_v_index(l->type, KV_DIM, s.tok, d)
                                 : kv_k_index(l->type, s.tok, d);
                uint16_t v = kv_value(id, p, i, d);
                if (write)
                    memcpy(at + 2 * k, &v, 2);
                else if (memcmp(at + 2 * k, &v, 2) != 0)
                    return false;
            }
        }
    return true;
}

#endif

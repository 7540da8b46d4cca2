/* tests/model/rig.h - model, backend and forward put together for tests, and steps made
 * by hand: every row of every item gives its logits, kept by sequence and position. */
#ifndef TESTS_MODEL_RIG_H
#define TESTS_MODEL_RIG_H

#include <sys/mman.h>

#include "base/err.h"
#include "daemon/serve/forward.h"
#include "daemon/serve/model.h"
#include "daemon/serve/step.h"
#include "kernels/backend.h"
#include "kernels/kv_block.h"
#include "tests/tiny.h"

enum {
    RIG_SEQS = 8,
    RIG_ROWS = 512,
    RIG_CTX = 1024,
    RIG_BLOCKS = RIG_SEQS * RIG_CTX / 16
};

struct rig_cfg {
    const char *model, *backend, *isa;
    enum dtype kv; /* DT_COUNT = the backend's */
    int threads;
};

struct rig {
    struct model *m;
    struct backend *b;
    struct forward *f;
    struct step *st;
    int n_vocab;
    float *logits[RIG_SEQS]; /* [RIG_CTX, n_vocab] of each sequence, as far as asked */
    int len[RIG_SEQS];       /* positions computed */
    const uint8_t *kv;       /* the arena, where the host may see it */
    size_t kv_bytes;
};

static inline void rig_ok(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->msg);
}

/* False when this machine lacks the instruction set. */
static inline bool rig_open(struct rig *r, const struct rig_cfg *c)
{
    struct err e = {0};
    const struct step_caps caps = {.items = RIG_SEQS,
                                   .toks = RIG_ROWS,
                                   .blocks = RIG_BLOCKS,
                                   .samples = 1,
                                   .hist = 1,
                                   .biases = 1,
                                   .copies = 8,
                                   .refs = 1,
                                   .outs = RIG_ROWS};
    struct forward_cfg fc = {.max_rows = RIG_ROWS,
                             .max_items = RIG_SEQS,
                             .max_ctx = RIG_CTX,
                             .max_outs = 16,
                             .max_copies = 8,
                             .kv_type = c->kv,
                             .n_blocks = RIG_BLOCKS};
    struct backend_cfg bc = {
        .name = c->backend, .n_threads = c->threads, .spin = false, .isa = c->isa};

    memset(r, 0, sizeof(*r));
    rig_ok(model_open(c->model, &r->m, &e), &e);
    forward_caps(model_info(r->m), &fc, &bc.caps);
    if (backend_open(&bc, &r->b, &e) < 0) {
        model_free(r->m);
        if (e.code != ERR_UNSUPPORTED)
            fail_msg("%s", e.msg);
        return false;
    }
    if (c->kv == DT_COUNT)
        fc.kv_type = backend_kv_dtype(r->b);
    rig_ok(forward_new(r->b, r->m, &fc, NULL, NULL, &r->f, &e), &e);
    r->n_vocab = model_info(r->m)->n_vocab;
    model_free(r->m);
    r->m = NULL;
    r->st = step_new(&caps);
    int fd = kv_arena_fd(forward_kv(r->f));
    r->kv_bytes = forward_kv_layout(r->f)->block_bytes * RIG_BLOCKS;
    if (fd >= 0 && !strcmp(c->backend, "cpu"))
        r->kv = mmap(NULL, r->kv_bytes, PROT_READ, MAP_SHARED, fd, 0);
    return true;
}

static inline void rig_close(struct rig *r)
{
    if (r->kv)
        munmap((void *)(uintptr_t)r->kv, r->kv_bytes);
    for (int s = 0; s < RIG_SEQS; s++)
        free(r->logits[s]);
    free(r->st);
    forward_free(r->f);
    backend_close(r->b);
}

/* The i-th block of sequence s: scattered over the arena. */
static inline int rig_block(int s, int i)
{
    return i * RIG_SEQS + (s * 5 + 3) % RIG_SEQS;
}

/* The next n tokens of sequence s as one item. */
static inline void rig_add(struct rig *r, int s, const int32_t *toks, int n)
{
    struct step_item *it = &step_items(r->st)[r->st->n_items++];
    int blocks = (r->len[s] + n + KV_BLOCK_TOK - 1) / KV_BLOCK_TOK;

    *it = (struct step_item){.seq = (uint64_t)s,
                             .first_pos = r->len[s],
                             .n_tok = n,
                             .tok_off = r->st->n_toks,
                             .parent_off = -1,
                             .block_off = r->st->n_blocks,
                             .n_block = blocks,
                             .out_from = 0,
                             .sample = -1,
                             .next = 0,
                             .n_top = -1};
    for (int i = 0; i < n; i++)
        step_toks(r->st)[r->st->n_toks++] = toks[r->len[s] + i];
    for (int i = 0; i < blocks; i++)
        step_blocks(r->st)[r->st->n_blocks++] = rig_block(s, i);
}

static inline void rig_sink(void *arg, int first, int n, const float *logits)
{
    struct rig *r = arg;
    const struct step_item *it = step_items(r->st);
    size_t row = sizeof(float) * (size_t)r->n_vocab;

    while (first >= it->n_tok)
        first -= it++->n_tok;
    for (int i = 0; i < n; i++, first++) {
        if (first == it->n_tok) {
            it++;
            first = 0;
        }
        float **to = &r->logits[it->seq];
        if (!*to)
            *to = malloc(row * RIG_CTX);
        memcpy(*to + (size_t)(it->first_pos + first) * (size_t)r->n_vocab,
               logits + (size_t)i * (size_t)r->n_vocab, row);
    }
}

static inline void rig_run(struct rig *r)
{
    struct err e = {0};

    rig_ok(forward_run(r->f, r->st, rig_sink, r, &e), &e);
    for (int i = 0; i < r->st->n_items; i++)
        r->len[step_items(r->st)[i].seq] += step_items(r->st)[i].n_tok;
    step_clear(r->st);
}

/* A whole sequence in steps of at most budget tokens. */
static inline void rig_feed(struct rig *r, int s, const int32_t *toks, int n, int budget)
{
    while (r->len[s] < n) {
        int left = n - r->len[s];
        rig_add(r, s, toks, left < budget ? left : budget);
        rig_run(r);
    }
}

static inline void rig_restart(struct rig *r)
{
    for (int s = 0; s < RIG_SEQS; s++)
        r->len[s] = 0;
}

/* KV of the first n positions that these blocks hold, the bits of all layers, heads and
 * dimensions in a plain order; NULL where the host may not see the arena. Free it. */
static inline uint16_t *rig_kv_of(const struct rig *r, const int32_t *blocks, int n,
                                  size_t *ret_n)
{
    const struct kv_layout *l = forward_kv_layout(r->f);
    int kinds = l->v_dim ? 1 : 2; /* K, and V where it is stored */
    int per_pos = l->n_layer * kinds * l->n_kv_head * l->head_dim;

    *ret_n = (size_t)n * (size_t)per_pos;
    if (!r->kv)
        return NULL;
    uint16_t *out = malloc(*ret_n * sizeof(*out)), *to = out;
    for (int p = 0; p < n; p++)
        for (int j = 0; j < per_pos; j++) {
            int d = j % l->head_dim, h = j / l->head_dim % l->n_kv_head;
            int v = j / l->head_dim / l->n_kv_head % kinds;
            int layer = j / l->head_dim / l->n_kv_head / kinds, tok = p % KV_BLOCK_TOK;
            size_t i = v ? kv_v_index(l->type, kv_pad_dim(l->head_dim), tok, d)
                         : kv_k_index(l->type, tok, d);
            memcpy(to++,
                   r->kv + (size_t)blocks[p / KV_BLOCK_TOK] * l->block_bytes +
                       kv_head_off(l, layer, v, h) + 2 * i,
                   2);
        }
    return out;
}

/* The same of sequence s of steps made by rig_add. */
static inline uint16_t *rig_kv(const struct rig *r, int s, int n, size_t *ret_n)
{
    int32_t blocks[RIG_CTX / KV_BLOCK_TOK];

    for (int i = 0; i < RIG_CTX / KV_BLOCK_TOK; i++)
        blocks[i] = rig_block(s, i);
    return rig_kv_of(r, blocks, n, ret_n);
}

#endif

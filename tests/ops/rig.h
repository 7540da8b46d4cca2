/* tests/ops/rig.h - a backend with a stream, and attention over made-up sequences.
 *
 * A sequence's q, k and v at a position are drawn from (seed, sequence, position) alone,
 * so the same sequence can be fed in any order of steps and its results compared bit by
 * bit, or with a float64 evaluation of the definition. */
#ifndef TESTS_OPS_RIG_H
#define TESTS_OPS_RIG_H

#include "tests/test.h"

#include <math.h>

#include "base/err.h"
#include "kernels/backend.h"
#include "kernels/cpu_mat.h"

struct rig {
    struct backend *b;
    struct stream *s;
    struct err e;
};

static inline void rig_must(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->msg);
}

static inline void rig_open(struct rig *r, const char *name, const char *isa, int threads,
                            int max_context)
{
    struct backend_cfg cfg = {
        .name = name,
        .n_threads = threads,
        .isa = isa,
        .caps = {600, 512, 16, max_context, 32, 256},
    };

    rig_must(backend_open(&cfg, &r->b, &r->e), &r->e);
    rig_must(stream_new(r->b, &r->s, &r->e), &r->e);
}

static inline void rig_close(struct rig *r)
{
    stream_free(r->s);
    backend_close(r->b);
}

static inline void rig_sync(struct rig *r) { rig_must(stream_sync(r->s, &r->e), &r->e); }

static inline struct dbuf *rig_put(struct rig *r, const void *data, size_t n)
{
    struct dbuf *d;

    rig_must(dbuf_new(r->b, n, &d, &r->e), &r->e);
    if (data) {
        rig_must(stream_upload(r->s, d, 0, data, n, &r->e), &r->e);
        rig_sync(r);
    }
    return d;
}

static inline void rig_get(struct rig *r, void *dst, const struct dbuf *d, size_t n)
{
    rig_must(stream_download(r->s, dst, d, 0, n, &r->e), &r->e);
    rig_sync(r);
}

static inline struct weight *rig_weight(struct rig *r, const float *data, int rows,
                                        int cols, int flags)
{
    struct weight_src src = {"test", DT_F32, rows, cols, data, flags};
    struct weight *w;

    rig_must(weight_new(r->b, &src, &w, &r->e), &r->e);
    return w;
}

/* Near enough to normal: the sum of four uniforms, deviation 1. */
static inline float rig_normal(uint64_t *st)
{
    uint64_t r = test_rand(st);
    int sum = (int)(r & 0xffff) + (int)(r >> 16 & 0xffff) + (int)(r >> 32 & 0xffff) +
              (int)(r >> 48);

    return (float)(sum - 131070) * (1.0f / 37837.0f);
}

static inline void rig_fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rig_normal(&seed);
}

/* sum (a-b)^2 / sum b^2 */
static inline double rig_nmse(const float *a, const double *b, size_t n)
{
    double num = 0, den = 1e-30;

    for (size_t i = 0; i < n; i++) {
        num += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        den += b[i] * b[i];
    }
    return num / den;
}

/* ---- sequences through rope_store and attn ---- */

struct shape {
    int n_head, n_kv_head, dim, rot;
    bool neox, norm;
    int window;
    enum dtype type;
};

enum { MAX_SEQ = 8, MAX_LEN = 1200 };

/* Blocks are dealt out in a scrambled order over an arena with room for all. */
struct feed {
    struct shape sh;
    uint64_t seed;
    int n_seq, len[MAX_SEQ], done[MAX_SEQ];
    int max_blocks, n_blocks;
    bool alias; /* all sequences have the content of sequence 0 */
    float *y[MAX_SEQ];
    struct rig *r;
    struct kv_arena *kv;
    struct weight *freq, *q_norm, *k_norm;
};

static inline float feed_freq(int j, int rot)
{
    return (float)pow(10000.0, -2.0 * j / rot);
}

static inline void feed_row(const struct feed *f, int seq, int pos, float *q, float *k,
                            float *v)
{
    uint64_t st = f->seed * 1000003u + (f->alias ? 0 : (uint64_t)seq * 7919u) +
                  (uint64_t)pos * 104729u + 1;
    size_t d = (size_t)f->sh.dim;

    test_rand(&st);
    for (size_t i = 0; i < d * (size_t)f->sh.n_head; i++)
        q[i] = 1.5f * rig_normal(&st);
    for (size_t i = 0; i < d * (size_t)f->sh.n_kv_head; i++)
        k[i] = 1.5f * rig_normal(&st);
    for (size_t i = 0; i < d * (size_t)f->sh.n_kv_head; i++)
        v[i] = rig_normal(&st);
}

static inline void feed_norm(const struct feed *f, float *w, int which)
{
    uint64_t st = f->seed + 77 + (uint64_t)which;

    for (int i = 0; i < f->sh.dim; i++)
        w[i] = 1.0f + 0.1f * rig_normal(&st);
}

static inline void feed_open(struct feed *f, struct rig *r, struct shape sh,
                             uint64_t seed, int n_seq, const int *len)
{
    struct kv_layout l = {2, sh.n_kv_head, sh.dim, KV_BLOCK_TOK, sh.type, 0, 0, 0, 0};
    float w[512];
    int longest = 0;

    memset(f, 0, sizeof(*f));
    f->sh = sh;
    f->seed = seed;
    f->r = r;
    f->n_seq = n_seq;
    for (int i = 0; i < n_seq; i++) {
        f->len[i] = len[i];
        longest = len[i] > longest ? len[i] : longest;
        f->y[i] = calloc((size_t)len[i] * (size_t)(sh.n_head * sh.dim), sizeof(float));
    }
    f->max_blocks = (longest + KV_BLOCK_TOK - 1) / KV_BLOCK_TOK;
    f->n_blocks = f->max_blocks * n_seq;
    rig_must(kv_arena_new(r->b, &l, f->n_blocks, &f->kv, &r->e), &r->e);
    for (int j = 0; j < sh.rot / 2; j++)
        w[j] = feed_freq(j, sh.rot);
    f->freq = rig_weight(r, w, 1, sh.rot / 2, WEIGHT_VECTOR);
    if (!sh.norm)
        return;
    feed_norm(f, w, 0);
    f->q_norm = rig_weight(r, w, 1, sh.dim, WEIGHT_VECTOR);
    feed_norm(f, w, 1);
    f->k_norm = rig_weight(r, w, 1, sh.dim, WEIGHT_VECTOR);
}

static inline void feed_close(struct feed *f)
{
    for (int i = 0; i < f->n_seq; i++)
        free(f->y[i]);
    weight_free(f->freq);
    weight_free(f->q_norm);
    weight_free(f->k_norm);
    kv_arena_free(f->kv);
}

static inline int feed_block(const struct feed *f, int seq, int at)
{
    return f->n_blocks - 1 - (at * f->n_seq + seq);
}

struct feed_bufs {
    float *q, *k, *v;
    int row[MAX_SEQ + 1], pos[MAX_SEQ], *table, n_rows;
};

static inline void feed_fill(const struct feed *f, int n_items, const int *seq,
                             const int *n, struct feed_bufs *h)
{
    size_t qc = (size_t)(f->sh.n_head * f->sh.dim);
    size_t kc = (size_t)(f->sh.n_kv_head * f->sh.dim);

    h->n_rows = 0;
    for (int i = 0; i < n_items; i++)
        h->n_rows += n[i];
    h->q = malloc(sizeof(float) * qc * (size_t)h->n_rows);
    h->k = malloc(sizeof(float) * kc * (size_t)h->n_rows);
    h->v = malloc(sizeof(float) * kc * (size_t)h->n_rows);
    h->table = calloc((size_t)(n_items * f->max_blocks), sizeof(int));
    for (int i = 0, r = 0; i < n_items; i++) {
        h->row[i] = r;
        h->pos[i] = f->done[seq[i]];
        for (int b = 0; b < f->max_blocks; b++)
            h->table[i * f->max_blocks + b] = feed_block(f, seq[i], b);
        for (int j = 0; j < n[i]; j++, r++)
            feed_row(f, seq[i], h->pos[i] + j, h->q + (size_t)r * qc,
                     h->k + (size_t)r * kc, h->v + (size_t)r * kc);
        h->row[i + 1] = r;
    }
}

/* One step: item i feeds the next n[i] positions of sequence seq[i]. */
static inline void feed_step(struct feed *f, int n_items, const int *seq, const int *n)
{
    struct rig *r = f->r;
    const struct shape *sh = &f->sh;
    int qc = sh->n_head * sh->dim, kc = sh->n_kv_head * sh->dim;
    struct feed_bufs h;
    struct dbuf *q, *k, *v, *y, *row, *pos, *table;
    float *out;

    feed_fill(f, n_items, seq, n, &h);
    q = rig_put(r, h.q, sizeof(float) * (size_t)(qc * h.n_rows));
    k = rig_put(r, h.k, sizeof(float) * (size_t)(kc * h.n_rows));
    v = rig_put(r, h.v, sizeof(float) * (size_t)(kc * h.n_rows));
    y = rig_put(r, NULL, sizeof(float) * (size_t)(qc * h.n_rows));
    row = rig_put(r, h.row, sizeof(int) * (size_t)(n_items + 1));
    pos = rig_put(r, h.pos, sizeof(int) * (size_t)n_items);
    table = rig_put(r, h.table, sizeof(int) * (size_t)(n_items * f->max_blocks));

    struct op_span span = {n_items,
                           h.n_rows,
                           f->max_blocks,
                           f->max_blocks * KV_BLOCK_TOK,
                           {row, 0, n_items + 1},
                           {pos, 0, n_items},
                           {table, 0, n_items * f->max_blocks}};
    struct op_rope_store rope = {.span = span,
                                 .q = {q, 0, h.n_rows, qc, qc},
                                 .k = {k, 0, h.n_rows, kc, kc},
                                 .v = {v, 0, h.n_rows, kc, kc},
                                 .n_head = sh->n_head,
                                 .n_kv_head = sh->n_kv_head,
                                 .head_dim = sh->dim,
                                 .rot_dim = sh->rot,
                                 .neox = sh->neox,
                                 .inv_freq = f->freq,
                                 .attn_scale = 1,
                                 .q_norm = f->q_norm,
                                 .k_norm = f->k_norm,
                                 .eps = 1e-5f,
                                 .kv = f->kv,
                                 .layer = 1};
    struct op_attn attn = {.span = span,
                           .y = {y, 0, h.n_rows, qc, qc},
                           .q = {q, 0, h.n_rows, qc, qc},
                           .n_head = sh->n_head,
                           .n_kv_head = sh->n_kv_head,
                           .head_dim = sh->dim,
                           .scale = 1.0f / sqrtf((float)sh->dim),
                           .window = sh->window,
                           .kv = f->kv,
                           .layer = 1};
    rig_must(op_rope_store(r->s, &rope, &r->e), &r->e);
    rig_must(op_attn(r->s, &attn, &r->e), &r->e);
    out = malloc(sizeof(float) * (size_t)(qc * h.n_rows));
    rig_get(r, out, y, sizeof(float) * (size_t)(qc * h.n_rows));
    for (int i = 0; i < n_items; i++) {
        memcpy(f->y[seq[i]] + (size_t)f->done[seq[i]] * (size_t)qc,
               out + (size_t)h.row[i] * (size_t)qc,
               sizeof(float) * (size_t)qc * (size_t)n[i]);
        f->done[seq[i]] += n[i];
    }
    free(out);
    free(h.q);
    free(h.k);
    free(h.v);
    free(h.table);
    dbuf_free(q);
    dbuf_free(k);
    dbuf_free(v);
    dbuf_free(y);
    dbuf_free(row);
    dbuf_free(pos);
    dbuf_free(table);
}

/* All sequences to their ends, `chunk` positions of each at a time, together or in turn.
 */
static inline void feed_all(struct feed *f, int chunk, bool together)
{
    int seq[MAX_SEQ], n[MAX_SEQ], items;

    for (int first = 0; first < f->n_seq; first += together ? f->n_seq : 1)
        do {
            items = 0;
            for (int s = first; s < (together ? f->n_seq : first + 1); s++) {
                int left = f->len[s] - f->done[s];
                if (!left)
                    continue;
                seq[items] = s;
                n[items++] = left < chunk ? left : chunk;
            }
            if (items)
                feed_step(f, items, seq, n);
        } while (items);
}

#endif

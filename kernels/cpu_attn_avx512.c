/* kernels/cpu_attn_avx512.c - a part of attention with AVX-512: BF16 pairs or F16.
 *
 * Both products are one small kernel, C[r][16 lanes] += A[r][k] * B[k][16 lanes], A
 * broadcast from packed words and B straight from the cache block: for the scores B is K
 * (lanes are positions, k runs over dimensions), for the values B is V (lanes are
 * dimensions, k runs over positions). With BF16 a word is a pair and vdpbf16ps does two k
 * at once; with F16 a word is a float and B is converted on the way. Up to ATTN_A = 6
 * A-rows times 4 vectors of B are held in 24 registers.
 *
 * An accumulator sees the same operations in the same order whatever R is and whoever
 * else is in the tile: k ascending; positions that an A-row does not see have weight
 * zero, which adds +-0, and the sign of a zero is cleared at the end. V behind the last
 * visible position is not read, since a stale NaN times zero would not be zero.
 *
 * Floor. Prefill: 4 * dim operations per score, 64 in a vdpbf16ps, one of those a cycle;
 * the softmax adds about 16 vector instructions per 16 scores to 4 * dim / 4 (64 for dim
 * 64), so about 80 % of the peak is in reach. Decode: 4 * dim bytes per position and KV
 * head, read once. Reached on two Zen 4 cores, `bench_ops -r 15`, 9 heads over 3 of 64
 * (peak 465 GFLOP/s, 40 GB/s):
 *
 *   prefill 2048    BF16 66-70 %, F16 37 % of the BF16 peak
 *   one row at depth 2048    90 % and more of the read bandwidth
 *
 * Tried: prefetch into L1 (as good as half: its few miss buffers bound it), none (70 %),
 * in bursts (50 %).
 */
#include "kernels/cpu_attn.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum kind { BF16, F16 };
enum { LANES = 16, GROUP = 4, LINE = 64 };

/* Bytes of a vector of B in the cache; positions or dimensions of a word of A. */
INLINE size_t vec_bytes(enum kind kind) { return kind == BF16 ? 64 : 32; }
INLINE int word_span(enum kind kind) { return kind == BF16 ? 2 : 1; }

INLINE __m512 load_b(enum kind kind, const char *p)
{
    if (kind == BF16)
        return _mm512_loadu_ps(p);
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 mul_add(enum kind kind, __m512 acc, uint32_t word, __m512 b)
{
    __m512i a = _mm512_set1_epi32((int)word);

    if (kind == BF16)
        return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), b, acc);
}

/* 2^x for x <= 0; exactly 1 at 0 and exactly 0 from -150 down. */
INLINE __m512 exp2_neg(__m512 x)
{
    __m512 n, f, p;

    x = _mm512_max_ps(x, _mm512_set1_ps(-200.0f));
    n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    f = _mm512_sub_ps(x, n);
    p = _mm512_set1_ps(0.001326472731307149f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.009671512991189957f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.05550733581185341f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24022242426872253f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931470036506653f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* ---- scores ---- */

struct work {
    float s[ATTN_A][ATTN_SPLIT];                       /* scores, then F16's weights */
    _Alignas(LINE) uint32_t w[ATTN_A][ATTN_SPLIT / 2]; /* BF16's weights */
};

/* While K is worked on at byte `at` of group b0: ask for the same place of the next group
 * and of this one's V. Spread like this, the misses overlap with arithmetic. */
INLINE void fetch_ahead(const struct attn_part *p, int b0, size_t at)
{
    for (int j = b0; j < b0 + GROUP && j < ATTN_BLOCKS; j++) {
        if (j + GROUP < ATTN_BLOCKS)
            _mm_prefetch(p->k[j + GROUP] + at, _MM_HINT_T1);
        _mm_prefetch(p->v[j] + at, _MM_HINT_T1);
    }
}

/* Scores of NB blocks from b0 on. */
INLINE void scores(enum kind kind, int R, int NB, const struct attn_part *p, int b0,
                   struct work *w)
{
    __m512 acc[ATTN_A][GROUP];
    int words = (p->dim + word_span(kind) - 1) / word_span(kind);
    const uint32_t *q = p->q;

    for (int r = 0; r < R; r++)
        for (int j = 0; j < NB; j++)
            acc[r][j] = _mm512_setzero_ps();
    for (int i = 0; i < words; i++) {
        size_t at = (size_t)i * vec_bytes(kind);
        __m512 b[GROUP];
        for (int j = 0; j < NB; j++)
            b[j] = load_b(kind, p->k[b0 + j] + at);
        if (p->stream && at % LINE == 0)
            fetch_ahead(p, b0, at);
        for (int r = 0; r < R; r++)
            for (int j = 0; j < NB; j++)
                acc[r][j] = mul_add(kind, acc[r][j], q[r * p->pad + i], b[j]);
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < NB; j++)
            _mm512_store_ps(w->s[r] + (b0 + j) * LANES, acc[r][j]);
}

/* ---- weights ---- */

static inline __mmask16 visible(int lo, int hi, int block)
{
    int from = lo - block * LANES, to = hi - block * LANES;
    unsigned upto = to >= LANES ? 0xffffu : (1u << (to < 0 ? 0 : to)) - 1;
    unsigned before = from <= 0 ? 0 : (1u << (from > LANES ? LANES : from)) - 1;

    return (__mmask16)(upto & ~before);
}

INLINE void weights(enum kind kind, struct attn_part *p, int r, int b0, int b1,
                    struct work *w)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    int lo = p->lo[r], hi = p->hi[r];
    __m512 max = none, sum = _mm512_setzero_ps();
    float m;

    for (int b = b0; b < b1; b++) {
        __m512 s = _mm512_load_ps(w->s[r] + b * LANES);
        max = _mm512_mask_max_ps(max, visible(lo, hi, b), max, s);
    }
    m = hi > lo ? _mm512_reduce_max_ps(max) : 0;
    for (int b = b0; b < b1; b++) {
        __mmask16 k = visible(lo, hi, b);
        __m512 s = _mm512_sub_ps(_mm512_load_ps(w->s[r] + b * LANES), _mm512_set1_ps(m));
        __m512 e = _mm512_maskz_mov_ps(k, exp2_neg(s));
        sum = _mm512_add_ps(sum, e);
        if (kind == BF16)
            _mm256_store_si256((__m256i *)(w->w[r] + b * LANES / 2),
                               (__m256i)_mm512_cvtneps_pbh(e));
        else
            _mm512_store_ps(w->s[r] + b * LANES, e);
    }
    p->m[r] = hi > lo ? m : -INFINITY;
    p->l[r] = _mm512_reduce_add_ps(sum);
}

/* ---- values ---- */

INLINE __m512 load_v_last(enum kind kind, const char *p)
{
    if (kind == BF16) /* the second position of the pair is not there */
        return _mm512_castsi512_ps(
            _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(0xffff)));
    return load_b(kind, p);
}

INLINE void values_step(enum kind kind, int R, int NB, const uint32_t *a, const char *v,
                        bool last, __m512 acc[ATTN_A][GROUP])
{
    __m512 b[GROUP];

    for (int j = 0; j < NB; j++) {
        const char *at = v + (size_t)j * vec_bytes(kind);
        b[j] = last ? load_v_last(kind, at) : load_b(kind, at);
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < NB; j++)
            acc[r][j] =
                mul_add(kind, acc[r][j],
                        a[r * (kind == BF16 ? ATTN_SPLIT / 2 : ATTN_SPLIT)], b[j]);
}

/* The share of step i (of a block's n) in the K that this thread turns to next. Values
 * ask for little themselves, V is there by then; so memory has no pause between parts. */
INLINE void fetch_next(const struct attn_part *p, int b, int i, int n)
{
    size_t bytes = (size_t)p->pad * KV_BLOCK_TOK * 2 / (size_t)n;

    for (size_t at = 0; at < bytes; at += LINE)
        _mm_prefetch(p->next[b] + (size_t)i * bytes + at, _MM_HINT_T1);
}

/* NB vectors of dimensions from `dim` on, over positions of blocks b0.. up to end. */
INLINE void values(enum kind kind, int R, int NB, const struct attn_part *p, int dim,
                   int b0, int end, const struct work *w)
{
    const uint32_t *a = kind == BF16 ? w->w[0] : (const uint32_t *)(const void *)w->s[0];
    size_t row = (size_t)p->pad * 2 * (size_t)word_span(kind);
    bool ahead = p->next && dim == 0;
    __m512 acc[ATTN_A][GROUP];

    for (int r = 0; r < R; r++)
        for (int j = 0; j < NB; j++)
            acc[r][j] = _mm512_setzero_ps();
    for (int b = b0; b * LANES < end; b++) {
        const char *v = p->v[b] + (size_t)(dim / LANES) * vec_bytes(kind);
        int left = end - b * LANES, n = (left > LANES ? LANES : left) / word_span(kind);
        const uint32_t *at = a + b * LANES / word_span(kind);
        for (int i = 0; i < n; i++) {
            if (ahead)
                fetch_next(p, b, i, LANES / word_span(kind));
            values_step(kind, R, NB, at + i, v + (size_t)i * row, false, acc);
        }
        if (kind == BF16 && left < LANES && left % 2)
            values_step(kind, R, NB, at + n, v + (size_t)n * row, true, acc);
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < NB; j++)
            _mm512_store_ps(p->o + r * p->pad + dim + j * LANES, acc[r][j]);
}

/* ---- a part ---- */

INLINE void part_rows(enum kind kind, int R, struct attn_part *p)
{
    _Alignas(LINE) struct work w;
    int lo = ATTN_SPLIT, hi = 0, b0, b1, dim = 0;

    for (int r = 0; r < R; r++) {
        if (p->hi[r] <= p->lo[r])
            continue;
        lo = p->lo[r] < lo ? p->lo[r] : lo;
        hi = p->hi[r] > hi ? p->hi[r] : hi;
    }
    b0 = lo / LANES;
    b1 = (hi + LANES - 1) / LANES;
    for (; b0 + GROUP <= b1; b0 += GROUP)
        scores(kind, R, GROUP, p, b0, &w);
    for (; b0 < b1; b0++)
        scores(kind, R, 1, p, b0, &w);
    for (int r = 0; r < R; r++)
        weights(kind, p, r, lo / LANES, b1, &w);
    for (; dim + GROUP * LANES <= p->pad; dim += GROUP * LANES)
        values(kind, R, GROUP, p, dim, lo / LANES, hi, &w);
    for (; dim < p->pad; dim += LANES)
        values(kind, R, 1, p, dim, lo / LANES, hi, &w);
}

#define ROWS(kind, n)                                                                    \
    static __attribute__((noinline)) void part_##kind##_##n(struct attn_part *p)         \
    {                                                                                    \
        part_rows(kind, n, p);                                                           \
    }
#define ROWS_ALL(kind)                                                                   \
    ROWS(kind, 1) ROWS(kind, 2) ROWS(kind, 3) ROWS(kind, 4) ROWS(kind, 5) ROWS(kind, 6)
ROWS_ALL(BF16)
ROWS_ALL(F16)

static void part_bf16(struct attn_part *p)
{
    static void (*const by_rows[])(struct attn_part *) = {
        part_BF16_1, part_BF16_2, part_BF16_3, part_BF16_4, part_BF16_5, part_BF16_6};

    by_rows[p->n_a - 1](p);
}

static void part_f16(struct attn_part *p)
{
    static void (*const by_rows[])(struct attn_part *) = {
        part_F16_1, part_F16_2, part_F16_3, part_F16_4, part_F16_5, part_F16_6};

    by_rows[p->n_a - 1](p);
}

/* ---- rows in and out ---- */

static inline __mmask16 tail(int left)
{
    return left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
}

static void pack_bf16(const float *q, float scale, int dim, int pad, uint32_t *out)
{
    for (int i = 0; i < pad; i += LANES) {
        __m512 v = _mm512_maskz_loadu_ps(dim > i ? tail(dim - i) : 0, q + i);
        v = _mm512_mul_ps(v, _mm512_set1_ps(scale));
        _mm256_storeu_si256((__m256i *)(out + i / 2), (__m256i)_mm512_cvtneps_pbh(v));
    }
}

static void pack_f16(const float *q, float scale, int dim, int pad, uint32_t *out)
{
    for (int i = 0; i < pad; i += LANES) {
        __m512 v = _mm512_maskz_loadu_ps(dim > i ? tail(dim - i) : 0, q + i);
        _mm512_storeu_ps(out + i, _mm512_mul_ps(v, _mm512_set1_ps(scale)));
    }
}

static void merge(float *m, float *l, float *o, float pm, float pl, const float *po,
                  int pad)
{
    float max = pm > *m ? pm : *m;
    __m512 old = exp2_neg(_mm512_set1_ps(*m - max));
    __m512 add = exp2_neg(_mm512_set1_ps(pm - max));

    for (int i = 0; i < pad; i += LANES) {
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(po + i), add);
        _mm512_storeu_ps(o + i, _mm512_fmadd_ps(_mm512_loadu_ps(o + i), old, v));
    }
    *l = fmaf(*l, _mm512_cvtss_f32(old), pl * _mm512_cvtss_f32(add));
    *m = max;
}

/* Plus zero: a sum that came out as -0 for one tiling and +0 for another is +0. */
static void finish(float *y, const float *o, float l, int dim)
{
    for (int i = 0; i < dim; i += LANES) {
        __m512 v = _mm512_div_ps(_mm512_loadu_ps(o + i), _mm512_set1_ps(l));
        _mm512_mask_storeu_ps(y + i, tail(dim - i),
                              _mm512_add_ps(v, _mm512_setzero_ps()));
    }
}

const struct attn_kern attn_kern_avx512_bf16 = {pack_bf16, part_bf16, merge, finish};
const struct attn_kern attn_kern_avx512_f16 = {pack_f16, part_f16, merge, finish};

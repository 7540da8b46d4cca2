/* kernels/cpu_attn_avx2.c - a part of attention with AVX2, FMA and F16C.
 *
 * As the AVX-512 kernel, with what is there: everything is f32, a block of 16 positions
 * is two vectors, and up to ATTN_A = 6 A-rows times 2 vectors of B fill 12 of 16
 * registers. A BF16 pair is split into its even and odd half by a shift and a mask, one
 * multiply-add each, in this order; F16 is converted. Weights stay f32.
 *
 * The rules that keep a row's bits apart from its neighbours are those of AVX-512 too. */
#include "kernels/cpu_attn.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum kind { BF16, F16 };
enum { LANES = 8, NV = 2, TOK = KV_BLOCK_TOK };

/* 2^x for x <= 0; exactly 1 at 0 and exactly 0 from -126 down. */
INLINE __m256 exp2_neg(__m256 x)
{
    const __m256 least = _mm256_set1_ps(-126.0f);
    __m256 keep = _mm256_cmp_ps(x, least, _CMP_GT_OQ), n, f, p;
    __m256i e;

    x = _mm256_max_ps(x, least);
    n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    f = _mm256_sub_ps(x, n);
    p = _mm256_set1_ps(0.001326472731307149f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.009671512991189957f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.05550733581185341f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.24022242426872253f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.6931470036506653f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)),
                          23);
    return _mm256_and_ps(keep, _mm256_mul_ps(p, _mm256_castsi256_ps(e)));
}

INLINE float sum8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

INLINE float max8(__m256 v)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* acc += a0 * (first of B) and, where B holds pairs and both are wanted, += a1 * (second)
 */
INLINE void step(enum kind kind, int R, const float *a, int a_ld, const char *b,
                 bool both, __m256 acc[ATTN_A][NV])
{
    for (int j = 0; j < NV; j++) {
        const char *at = b + j * (kind == BF16 ? 32 : 16);
        __m256i pair;
        __m256 first;
        if (kind == F16) {
            first = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
        } else {
            pair = _mm256_loadu_si256((const __m256i *)at);
            first = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
        }
        for (int r = 0; r < R; r++)
            acc[r][j] =
                _mm256_fmadd_ps(_mm256_broadcast_ss(a + r * a_ld), first, acc[r][j]);
        if (kind == F16 || !both)
            continue;
        first = _mm256_castsi256_ps(
            _mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000u)));
        for (int r = 0; r < R; r++)
            acc[r][j] =
                _mm256_fmadd_ps(_mm256_broadcast_ss(a + r * a_ld + 1), first, acc[r][j]);
    }
}

/* n positions or dimensions of B, `row` bytes apart for each one (F16) or two (BF16). */
INLINE void product(enum kind kind, int R, const float *a, int a_ld, const char *b,
                    size_t row, int n, __m256 acc[ATTN_A][NV])
{
    int per = kind == BF16 ? 2 : 1, i = 0;

    for (; i + per <= n; i += per)
        step(kind, R, a + i, a_ld, b + (size_t)(i / per) * row, true, acc);
    if (i < n)
        step(kind, R, a + i, a_ld, b + (size_t)(i / per) * row, false, acc);
}

INLINE void clear(int R, __m256 acc[ATTN_A][NV])
{
    for (int r = 0; r < R; r++)
        for (int j = 0; j < NV; j++)
            acc[r][j] = _mm256_setzero_ps();
}

struct work {
    float s[ATTN_A][ATTN_SPLIT]; /* scores, then weights */
};

INLINE void scores(enum kind kind, int R, const struct attn_part *p, int b,
                   struct work *w)
{
    __m256 acc[ATTN_A][NV];

    clear(R, acc);
    product(kind, R, (const float *)(const void *)p->q, p->pad, p->k[b],
            kind == BF16 ? 64 : 32, p->dim, acc);
    for (int r = 0; r < R; r++)
        for (int j = 0; j < NV; j++)
            _mm256_store_ps(w->s[r] + b * TOK + j * LANES, acc[r][j]);
}

/* All ones in the lanes from position `at` on that are in [lo, hi). */
INLINE __m256 visible(int lo, int hi, int at)
{
    __m256i pos =
        _mm256_add_epi32(_mm256_set1_epi32(at), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    __m256i over = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), pos);
    __m256i under = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), pos);

    return _mm256_castsi256_ps(_mm256_andnot_si256(under, over));
}

static void weights(struct attn_part *p, int r, int from, int end, struct work *w)
{
    const __m256 none = _mm256_set1_ps(-INFINITY);
    int lo = p->lo[r], hi = p->hi[r];
    __m256 max = none, sum = _mm256_setzero_ps();
    float m;

    for (int t = from; t < end; t += LANES) {
        __m256 s = _mm256_load_ps(w->s[r] + t);
        max = _mm256_max_ps(max, _mm256_blendv_ps(none, s, visible(lo, hi, t)));
    }
    m = hi > lo ? max8(max) : 0;
    for (int t = from; t < end; t += LANES) {
        __m256 s = _mm256_sub_ps(_mm256_load_ps(w->s[r] + t), _mm256_set1_ps(m));
        __m256 e = _mm256_and_ps(exp2_neg(s), visible(lo, hi, t));
        sum = _mm256_add_ps(sum, e);
        _mm256_store_ps(w->s[r] + t, e);
    }
    p->m[r] = hi > lo ? m : -INFINITY;
    p->l[r] = sum8(sum);
}

INLINE void values(enum kind kind, int R, const struct attn_part *p, int dim, int b0,
                   int end, const struct work *w)
{
    size_t row = (size_t)p->pad * (kind == BF16 ? 4 : 2);
    __m256 acc[ATTN_A][NV];

    clear(R, acc);
    for (int b = b0; b * TOK < end; b++)
        product(kind, R, w->s[0] + b * TOK, ATTN_SPLIT,
                p->v[b] + (size_t)dim * (kind == BF16 ? 4 : 2), row,
                end - b * TOK < TOK ? end - b * TOK : TOK, acc);
    for (int r = 0; r < R; r++)
        for (int j = 0; j < NV; j++)
            _mm256_storeu_ps(p->o + r * p->pad + dim + j * LANES, acc[r][j]);
}

/* What comes from memory soon: this block's V and the next block's K. */
static void fetch_ahead(const struct attn_part *p, int b)
{
    int bytes = p->pad * KV_BLOCK_TOK * 2;

    for (int i = 0; i < bytes; i += 64) {
        if (b + 1 < ATTN_BLOCKS)
            _mm_prefetch(p->k[b + 1] + i, _MM_HINT_T1);
        _mm_prefetch(p->v[b] + i, _MM_HINT_T1);
    }
}

INLINE void part_rows(enum kind kind, int R, struct attn_part *p)
{
    _Alignas(32) struct work w;
    int lo = ATTN_SPLIT, hi = 0;

    for (int r = 0; r < R; r++) {
        if (p->hi[r] <= p->lo[r])
            continue;
        lo = p->lo[r] < lo ? p->lo[r] : lo;
        hi = p->hi[r] > hi ? p->hi[r] : hi;
    }
    for (int b = lo / TOK; b * TOK < hi; b++) {
        if (p->stream)
            fetch_ahead(p, b);
        scores(kind, R, p, b, &w);
    }
    for (int r = 0; r < R; r++)
        weights(p, r, lo / TOK * TOK, hi, &w);
    for (int dim = 0; dim < p->pad; dim += NV * LANES)
        values(kind, R, p, dim, lo / TOK, hi, &w);
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

static void part(struct attn_part *p)
{
    static void (*const by_rows[2][ATTN_A])(struct attn_part *) = {
        {part_BF16_1, part_BF16_2, part_BF16_3, part_BF16_4, part_BF16_5, part_BF16_6},
        {part_F16_1, part_F16_2, part_F16_3, part_F16_4, part_F16_5, part_F16_6}};

    by_rows[p->type == DT_BF16 ? BF16 : F16][p->n_a - 1](p);
}

static void pack(const float *q, float scale, int dim, int pad, uint32_t *out)
{
    memset(out, 0, (size_t)pad * sizeof(*out));
    for (int i = 0; i < dim; i++) {
        float f = q[i] * scale;
        memcpy(out + i, &f, sizeof(f));
    }
}

static void merge(float *m, float *l, float *o, float pm, float pl, const float *po,
                  int pad)
{
    float max = pm > *m ? pm : *m;
    __m256 old = exp2_neg(_mm256_set1_ps(*m - max));
    __m256 add = exp2_neg(_mm256_set1_ps(pm - max));

    for (int i = 0; i < pad; i += LANES) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(po + i), add);
        _mm256_storeu_ps(o + i, _mm256_fmadd_ps(_mm256_loadu_ps(o + i), old, v));
    }
    *l = fmaf(*l, _mm256_cvtss_f32(old), pl * _mm256_cvtss_f32(add));
    *m = max;
}

/* Plus zero: a sum that came out as -0 for one tiling and +0 for another is +0. */
static void finish(float *y, const float *o, float l, int dim)
{
    for (int i = 0; i < dim; i++)
        y[i] = o[i] / l + 0.0f;
}

const struct attn_kern attn_kern_avx2 = {pack, part, merge, finish};

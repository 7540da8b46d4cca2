/* kernels/cpu_mat_avx512.c - products with AVX-512 VNNI and BF16.
 *
 * A chunk's weights fill 8 registers; every row of the tile meets them with 8 vpdpbusd
 * (or vdpbf16ps, or FMA) whose other operand is 4 bytes of the row, broadcast from
 * memory. 16 rows of f32 sums, the weights and the scales take 28 of 32 registers, so a
 * panel is unpacked once for 16 rows and nothing is spilled. A row and chunk of a type
 * with minima costs 8 vpdpbusd, a multiply and 2 FMA on the two pipes that multiply: at
 * most 8 in 11 of the int8 peak (8 in 10 without minima). Few rows are bound by memory.
 *
 * Floors of the linear layers of SmolLM2-135M (106.2 M weights, head 28.3 M) and what is
 * reached, two Zen 4 cores of 3.7 GHz: int8 938 GOP/s, bf16 469 GFLOP/s, memory 34 GB/s
 * in the slow and 45 in the fast state. `bench_mat 2 Q4_1 Q8_0` (best of its repeats):
 *   1 to 4 rows  96.5 MB   2.8 ms at 34 GB/s   2.8 ms: all of it in both states
 *   8 rows       1.7 GOP   1.8 ms              3.1 ms: 58 % of int8
 *   32 rows      6.8 GOP   7.2 ms             11.7 ms: 62 %; head 65 %
 *   512 rows     109 GOP   116 ms              198 ms: 58 %
 * `bench_mat 2 BF16 BF16`: 1 row 269 MB 97 % of memory, 32 rows 92 % of the bf16 peak.
 * A single kernel from L1 does 93 % of its own floor; the rest is making tiles of x (3
 * %), storing sums (3 %) and activations from L2.
 *
 * Tried for the prefetch: into L1 (10 to 40 % slower at 1 row), 16 KB ahead (up to 7 %
 * slower), none (20 to 60 % slower: streams are too short for the hardware's own). */
#include "kernels/cpu_mat_impl.h"

#include <immintrin.h>

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

/* ---- activations ---- */
INLINE __m512 load_n(const float *x, int n) /* n <= 16 */
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), x);
}

INLINE float max32(__m512 a, __m512 b)
{
    __m512 v = _mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b));
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

INLINE void quant_chunk(const float *x, uint8_t *q, float *meta, int w, int n_meta)
{
    __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    float top = max32(a, b);
    /* below this the reciprocal would overflow */
    float inv = top > 1e-35f ? 127.0f / top : 0;
    float d = top > 1e-35f ? top * (1.0f / 127) : 0;
    __m512i qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, _mm512_set1_ps(inv)));
    __m512i qb = _mm512_cvtps_epi32(_mm512_mul_ps(b, _mm512_set1_ps(inv)));
    __m256i codes =
        _mm256_set_m128i(_mm512_cvtsepi32_epi8(qb), _mm512_cvtsepi32_epi8(qa));
    __m256i s = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
    __m128i h = _mm_hadd_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    h = _mm_hadd_epi32(h, h);
    int32_t lo = _mm_cvtsi128_si32(h), hi = _mm_extract_epi32(h, 1);
    int32_t *im = (int32_t *)meta;

    _mm256_storeu_si256((__m256i *)q, codes);
    meta[META_D * w] = d;
    meta[META_S * w] = d * (float)(lo + hi);
    if (n_meta > META_N)
        im[META_N * w] = -(lo + hi);
    if (n_meta > META_LO) {
        im[META_LO * w] = -lo;
        im[META_HI * w] = -hi;
    }
}

static void put_row(enum mat_form form, const float *x, int cols, int w, int r,
                    int n_meta, uint8_t *tile, float *meta)
{
    int step = mat_form_elems(form);

    tile += r * MAT_ROW_BYTES;
    for (int k = 0; k < cols; k += step, tile += w * MAT_ROW_BYTES) {
        if (form == FORM_Q8) { /* whole blocks only */
            quant_chunk(x + k, tile, meta + r, w, n_meta);
            meta += META_COUNT * w;
            continue;
        }
        __m512 v = load_n(x + k, cols - k < step ? cols - k : step);
        if (form == FORM_F32)
            _mm256_storeu_ps((float *)tile, _mm512_castps512_ps256(v));
        else
            _mm256_storeu_si256((__m256i *)tile, (__m256i)_mm512_cvtneps_pbh(v));
    }
}

/* ---- weights ---- */
INLINE void unpack(enum mat_code code, const uint8_t *c, __m512i w[8])
{
    const __m512i low = _mm512_set1_epi8(15);

    if (code == CODE_F16) {
        UNROLL for (int g = 0; g < 8; g++) w[g] =
            (__m512i)_mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(c + 32 * g)));
        return;
    }
    if (code != CODE_U4 && code != CODE_U5 && code != CODE_U6) {
        UNROLL for (int g = 0; g < 8; g++) w[g] = _mm512_load_si512(c + 64 * g);
        return;
    }
    UNROLL for (int j = 0; j < 4; j++)
    {
        __m512i v = _mm512_load_si512(c + 64 * j);
        w[j] = _mm512_and_si512(v, low);
        w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
    if (code == CODE_U5) {
        const uint64_t *bits = (const uint64_t *)(c + 256);
        const __m512i fifth = _mm512_set1_epi8(16);
        UNROLL for (int g = 0; g < 8; g++) w[g] =
            _mm512_mask_add_epi8(w[g], _cvtu64_mask64(bits[g]), w[g], fifth);
    }
    if (code == CODE_U6) {
        const __m512i top = _mm512_set1_epi8(48);
        UNROLL for (int p = 0; p < 2; p++)
        {
            __m512i v = _mm512_load_si512(c + 256 + 64 * p);
            /* or(w, and(v, top)) in one */
            w[4 * p] =
                _mm512_ternarylogic_epi32(w[4 * p], _mm512_slli_epi16(v, 4), top, 0xf8);
            w[4 * p + 1] = _mm512_ternarylogic_epi32(w[4 * p + 1],
                                                     _mm512_slli_epi16(v, 2), top, 0xf8);
            w[4 * p + 2] = _mm512_ternarylogic_epi32(w[4 * p + 2], v, top, 0xf8);
            w[4 * p + 3] = _mm512_ternarylogic_epi32(w[4 * p + 3],
                                                     _mm512_srli_epi16(v, 2), top, 0xf8);
        }
    }
}

INLINE __m512 half16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 byte16(const uint8_t *p, int is_signed)
{
    __m128i b = _mm_loadu_si128((const __m128i *)p);
    return _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(b)
                                        : _mm512_cvtepu8_epi32(b));
}

struct scales {
    __m512 d, d_hi, m;
};

INLINE struct scales get_scales(enum mat_scale kind, const uint8_t *sc,
                                const uint8_t *block)
{
    struct scales s = {0};

    if (kind == SCALE_D || kind == SCALE_DM)
        s.d = half16(sc);
    if (kind == SCALE_DM)
        s.m = half16(sc + 32);
    if (kind == SCALE_K) {
        s.d = _mm512_mul_ps(half16(block), byte16(sc, 0));
        s.m =
            _mm512_fnmadd_ps(half16(block + 32), byte16(sc + 16, 0), _mm512_setzero_ps());
    }
    if (kind == SCALE_K6) {
        s.d = _mm512_mul_ps(half16(block), byte16(sc, 1));
        s.d_hi = _mm512_mul_ps(half16(block), byte16(sc + 16, 1));
    }
    return s;
}

/* ---- tiles ---- */
/* Far enough to hide memory, and into L2: on Zen 4 the L1 has too few misses in flight.
 */
enum { AHEAD = 8192, FETCH_WIDTH = 16 };

/* The n bytes of a chunk, AHEAD of where they are read. Wide tiles have time enough. */
INLINE void fetch_ahead(int width, const uint8_t *p, size_t n)
{
    if (width > FETCH_WIDTH)
        return;
    for (size_t i = 0; i < n; i += 64)
        _mm_prefetch((const char *)p + AHEAD + i, _MM_HINT_T1);
}

INLINE __m512i bcast(const void *p) { return _mm512_set1_epi32(*(const int32_t *)p); }

INLINE __m512i dot_groups(__m512i acc, const __m512i w[8], const uint8_t *x, int from,
                          int to)
{
    UNROLL for (int g = from; g < to; g++) acc =
        _mm512_dpbusd_epi32(acc, w[g], bcast(x + 4 * g));
    return acc;
}

INLINE __m512i start(const float *neg, int zero)
{
    return zero ? _mm512_slli_epi32(bcast(neg), zero) : _mm512_setzero_si512();
}

INLINE void quant_tile(enum mat_code code, enum mat_scale kind, int zero, int width,
                       const struct cpu_mat *m, const uint8_t *panel, const uint8_t *x,
                       const float *meta, float *out)
{
    const uint8_t *sc = panel + m->scale_off, *block = panel;
    size_t chunk_bytes = m->chunk_bytes, scale_bytes = m->scale_bytes;
    size_t block_bytes = m->block_bytes;
    const uint8_t *ahead = panel;
    __m512 acc[MAT_TILE], *a;
    __m512i w[8];

    panel += m->code_off;
    UNROLL for (int r = 0; r < width; r++) acc[r] = _mm512_setzero_ps();
    for (int c = 0, n = m->n_chunks; c < n; c++) {
        struct scales s = get_scales(kind, sc, block + (size_t)(c / 8) * block_bytes);
        fetch_ahead(width, ahead, chunk_bytes + scale_bytes);
        unpack(code, panel, w);
        UNROLL for (int r = 0; r < width; r++, x += MAT_ROW_BYTES)
        {
            __m512 d = _mm512_set1_ps(meta[META_D * width + r]);
            a = acc + r;
            if (kind == SCALE_K6) {
                __m512i lo = start(meta + META_LO * width + r, zero);
                __m512i hi = start(meta + META_HI * width + r, zero);
                lo = dot_groups(lo, w, x, 0, 4);
                hi = dot_groups(hi, w, x, 4, 8);
                *a = _mm512_fmadd_ps(_mm512_cvtepi32_ps(lo), _mm512_mul_ps(s.d, d), *a);
                *a =
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(hi), _mm512_mul_ps(s.d_hi, d), *a);
                continue;
            }
            __m512i sum = start(meta + META_N * width + r, zero);
            sum = dot_groups(sum, w, x, 0, 8);
            *a = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(s.d, d), *a);
            if (kind != SCALE_D)
                *a = _mm512_fmadd_ps(s.m, _mm512_set1_ps(meta[META_S * width + r]), *a);
        }
        ahead += chunk_bytes + scale_bytes;
        panel += chunk_bytes;
        sc += scale_bytes;
        meta += META_COUNT * width;
    }
    UNROLL for (int r = 0; r < width; r++) _mm512_storeu_ps(out + r * MAT_PANEL, acc[r]);
}

INLINE void float_tile(enum mat_code code, int width, const struct cpu_mat *m,
                       const uint8_t *panel, const uint8_t *x, float *out)
{
    size_t chunk_bytes = m->chunk_bytes;
    __m512 acc[MAT_TILE];
    __m512i w[8];

    UNROLL for (int r = 0; r < width; r++) acc[r] = _mm512_setzero_ps();
    for (int c = 0, n = m->n_chunks; c < n; c++) {
        fetch_ahead(width, panel, chunk_bytes);
        unpack(code, panel, w);
        UNROLL for (int g = 0; g < 8; g++) UNROLL for (int r = 0; r < width; r++)
        {
            __m512i v = bcast(x + r * MAT_ROW_BYTES + 4 * g);
            if (code == CODE_BF16)
                acc[r] = _mm512_dpbf16_ps(acc[r], (__m512bh)w[g], (__m512bh)v);
            else
                acc[r] = _mm512_fmadd_ps((__m512)w[g], (__m512)v, acc[r]);
        }
        panel += chunk_bytes;
        x += width * MAT_ROW_BYTES;
    }
    UNROLL for (int r = 0; r < width; r++) _mm512_storeu_ps(out + r * MAT_PANEL, acc[r]);
}

INLINE void tile_any(enum mat_code code, enum mat_scale kind, int zero, int width,
                     const struct cpu_mat *m, const uint8_t *panel, const uint8_t *x,
                     const float *meta, float *acc)
{
    if (kind == SCALE_NONE)
        float_tile(code, width, m, panel, x, acc);
    else
        quant_tile(code, kind, zero, width, m, panel, x, meta, acc);
}

#define TILE_FN(w, id, code, scale, zero)                                                \
    static void tile_##id##_##w(const struct cpu_mat *m, const uint8_t *panel,           \
                                const uint8_t *x, const float *meta, float *acc)         \
    {                                                                                    \
        tile_any(code, scale, zero, w, m, panel, x, meta, acc);                          \
    }
#define TILE_FNS(id, code, scale, zero) MAT_WIDTHS(TILE_FN, id, code, scale, zero)
MAT_KIND_MAP(TILE_FNS)

#define TILE_ENTRY(w, id) tile_##id##_##w,
#define TILE_ROW(id, code, scale, zero) {MAT_WIDTHS(TILE_ENTRY, id)},
static const mat_tile_fn TILES[KIND_COUNT][MAT_N_WIDTHS] = {MAT_KIND_MAP(TILE_ROW)};

/* ---- results ---- */
static void finish(const struct mat_out *o, const float *acc)
{
    __mmask16 k = (__mmask16)((1u << o->n) - 1);
    __m512 bias = o->bias ? _mm512_maskz_loadu_ps(k, o->bias) : _mm512_setzero_ps();

    for (int r = 0; r < o->n_rows; r++) {
        float *y = o->y + (size_t)r * (size_t)o->ld;
        __m512 v = _mm512_loadu_ps(acc + r * MAT_PANEL);
        if (o->bias)
            v = _mm512_add_ps(v, bias);
        if (o->add)
            v = _mm512_add_ps(_mm512_maskz_loadu_ps(k, y), v);
        _mm512_mask_storeu_ps(y, k, v);
    }
}

/* exp(x) to about 1 ulp: 2^n * exp(r) with |r| <= ln(2) / 2; 0 and inf at the ends. */
INLINE __m512 exp16(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

static void finish_glu(const struct mat_out *o, const float *gate, const float *up)
{
    __mmask16 k = (__mmask16)((1u << o->n) - 1);
    const __m512 one = _mm512_set1_ps(1.0f);

    for (int r = 0; r < o->n_rows; r++) {
        __m512 g = _mm512_loadu_ps(gate + r * MAT_PANEL);
        __m512 e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), g));
        __m512 v = _mm512_div_ps(g, _mm512_add_ps(one, e));
        v = _mm512_mul_ps(v, _mm512_loadu_ps(up + r * MAT_PANEL));
        _mm512_mask_storeu_ps(o->y + (size_t)r * (size_t)o->ld, k, v);
    }
}

const struct mat_isa mat_isa_avx512 = {TILES, put_row, finish, finish_glu};

/* kernels/cpu_mat_avx2.c - products with AVX2, FMA and F16C.
 *
 * A quantised chunk is unpacked once to the stack and then meets every row of the tile;
 * sums stay in f32 in memory, two vectors a row. vpmaddubsw multiplies unsigned by signed
 * bytes and adds pairs in 16 bits: the pairs of 8 groups of 4-bit codes fit (15 * 127 *
 * 16 < 2^15), of 4 groups of 5-bit and of 2 of 6-bit codes; full bytes are made signed
 * and their sign moved to the activation. Integer sums are exact, so the order of groups
 * does not matter. */
#include "kernels/cpu_mat_impl.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* ---- activations ---- */
INLINE float max8(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

INLINE int32_t sum8(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

static void quant_chunk(const float *x, uint8_t *out, float *meta, int w, int n_meta)
{
    __m256 top = _mm256_setzero_ps();
    __m256i q[4];
    int32_t *im = (int32_t *)meta;

    UNROLL for (int i = 0; i < 4; i++) top = _mm256_max_ps(
        top, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(x + 8 * i)));
    float t = max8(top);
    /* below this the reciprocal would overflow */
    float inv = t > 1e-35f ? 127.0f / t : 0, d = t > 1e-35f ? t * (1.0f / 127) : 0;
    UNROLL for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(
        _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inv)));
    int32_t lo = sum8(_mm256_add_epi32(q[0], q[1]));
    int32_t hi = sum8(_mm256_add_epi32(q[2], q[3]));
    __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]),
                                   _mm256_packs_epi32(q[2], q[3]));
    b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)out, b);
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

    for (int c = 0; c * step < cols; c++) {
        uint8_t *out = tile + (size_t)(c * w + r) * MAT_ROW_BYTES;
        const float *in = x + c * step;
        float part[32] = {0};
        if (cols - c * step < step)
            in = memcpy(part, in, (size_t)(cols - c * step) * sizeof(float));
        if (form == FORM_Q8)
            quant_chunk(in, out, meta + (size_t)c * META_COUNT * w + r, w, n_meta);
        else if (form == FORM_F32)
            memcpy(out, in, MAT_ROW_BYTES);
        else
            for (int k = 0; k < step; k++)
                ((uint16_t *)out)[k] = f32_to_bf16(in[k]);
    }
}

/* ---- weights ---- */
struct codes {
    _Alignas(32) uint8_t w[8][64];    /* unsigned codes, or magnitudes of signed ones */
    _Alignas(32) uint8_t sign[8][64]; /* U8: the signed codes */
};

INLINE __m256i load32(const uint8_t *p) { return _mm256_load_si256((const __m256i *)p); }

INLINE void store32(uint8_t *p, __m256i v) { _mm256_store_si256((__m256i *)p, v); }

/* 32 bits to 32 bytes of 0 or 16. */
INLINE __m256i spread_bits(uint32_t bits)
{
    const __m256i pick =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i mask = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), pick);
    v = _mm256_cmpeq_epi8(_mm256_and_si256(v, mask), mask);
    return _mm256_and_si256(v, _mm256_set1_epi8(16));
}

INLINE void add_high_bits(enum mat_code code, const uint8_t *c, struct codes *o)
{
    const __m256i two = _mm256_set1_epi8(48);

    UNROLL for (int g = 0; g < 8; g++) UNROLL for (int h = 0; h < 64; h += 32)
    {
        __m256i v;
        if (code == CODE_U5) {
            uint32_t bits;
            memcpy(&bits, c + 256 + 8 * g + h / 8, 4);
            v = spread_bits(bits);
        } else {
            v = load32(c + 256 + g / 4 * 64 + h);
            v = g % 4 == 3 ? _mm256_srli_epi16(v, 2)
                           : _mm256_slli_epi16(v, 4 - g % 4 * 2);
            v = _mm256_and_si256(v, two);
        }
        store32(o->w[g] + h, _mm256_or_si256(load32(o->w[g] + h), v));
    }
}

INLINE void unpack(enum mat_code code, const uint8_t *c, struct codes *o)
{
    const __m256i low = _mm256_set1_epi8(15), flip = _mm256_set1_epi8(-128);

    if (code == CODE_U8) {
        for (int i = 0; i < 512; i += 32) {
            __m256i v = _mm256_xor_si256(load32(c + i), flip);
            store32(o->sign[0] + i, v);
            store32(o->w[0] + i, _mm256_abs_epi8(v));
        }
        return;
    }
    for (int i = 0; i < 256; i += 32) {
        __m256i v = load32(c + i);
        store32(o->w[0] + i, _mm256_and_si256(v, low));
        store32(o->w[4] + i, _mm256_and_si256(_mm256_srli_epi16(v, 4), low));
    }
    if (code != CODE_U4)
        add_high_bits(code, c, o);
}

struct scales {
    __m256 d, d_hi, m; /* of 8 weight rows */
};

INLINE __m256 half8(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256 byte8(const uint8_t *p, int is_signed)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)p);
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(b)
                                        : _mm256_cvtepu8_epi32(b));
}

INLINE struct scales get_scales(enum mat_scale kind, const uint8_t *sc,
                                const uint8_t *block, int h)
{
    struct scales s;

    s.d = half8((kind == SCALE_K || kind == SCALE_K6 ? block : sc) + 16 * h);
    s.d_hi = s.m = _mm256_setzero_ps();
    if (kind == SCALE_DM)
        s.m = half8(sc + 32 + 16 * h);
    if (kind == SCALE_K) {
        s.d = _mm256_mul_ps(s.d, byte8(sc + 8 * h, 0));
        s.m =
            _mm256_fnmadd_ps(half8(block + 32 + 16 * h), byte8(sc + 16 + 8 * h, 0), s.m);
    }
    if (kind == SCALE_K6) {
        s.d_hi = _mm256_mul_ps(s.d, byte8(sc + 16 + 8 * h, 1));
        s.d = _mm256_mul_ps(s.d, byte8(sc + 8 * h, 1));
    }
    return s;
}

/* ---- tiles ---- */
enum { AHEAD = 8192 };

/* The n bytes of a chunk, AHEAD of where they are read, into L2. */
INLINE void fetch_ahead(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        _mm_prefetch((const char *)p + AHEAD + i, _MM_HINT_T1);
}

/* Sums of groups from..to-1 for 8 weight rows (half h of the panel). */
INLINE __m256i dot_groups(enum mat_code code, const struct codes *o, const uint8_t *x,
                          int h, int from, int to)
{
    int batch = code == CODE_U4 ? 8 : code == CODE_U5 ? 4 : code == CODE_U6 ? 2 : 1;
    __m256i sum = _mm256_setzero_si256(), pairs = sum;

    UNROLL for (int g = from; g < to; g++)
    {
        int32_t four;
        memcpy(&four, x + 4 * g, 4);
        __m256i v = _mm256_set1_epi32(four), w = load32(o->w[g] + 32 * h);
        if (code == CODE_U8)
            v = _mm256_sign_epi8(v, load32(o->sign[g] + 32 * h));
        v = _mm256_maddubs_epi16(w, v);
        pairs = g % batch ? _mm256_add_epi16(pairs, v) : v;
        if (g % batch == batch - 1 || g == to - 1)
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum;
}

/* Minus zero times the sum of x; signed codes have none. */
INLINE __m256i from_zero(enum mat_code code, __m256i sum, const float *neg, int zero)
{
    int32_t n;

    if (!zero || code == CODE_U8)
        return sum;
    memcpy(&n, neg, 4);
    return _mm256_add_epi32(sum, _mm256_set1_epi32(n * (1 << zero)));
}

INLINE void quant_row(enum mat_code code, enum mat_scale kind, int zero, int w, int h,
                      const struct codes *o, const struct scales *s, const uint8_t *x,
                      const float *meta, float *out)
{
    __m256 acc = _mm256_loadu_ps(out), d = _mm256_set1_ps(meta[META_D * w]);
    int split = kind == SCALE_K6 ? 4 : 8;

    __m256i sum = dot_groups(code, o, x, h, 0, split);
    sum = from_zero(code, sum, meta + (split == 4 ? META_LO : META_N) * w, zero);
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(s->d, d), acc);
    if (kind == SCALE_K6) {
        sum = dot_groups(code, o, x, h, 4, 8);
        sum = from_zero(code, sum, meta + META_HI * w, zero);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(s->d_hi, d), acc);
    } else if (kind != SCALE_D) {
        acc = _mm256_fmadd_ps(s->m, _mm256_set1_ps(meta[META_S * w]), acc);
    }
    _mm256_storeu_ps(out, acc);
}

INLINE void quant_tile(enum mat_code code, enum mat_scale kind, int zero, int width,
                       const struct cpu_mat *m, const uint8_t *panel, const uint8_t *x,
                       const float *meta, float *acc)
{
    size_t step = m->chunk_bytes + m->scale_bytes;
    struct codes o;

    memset(acc, 0, (size_t)width * MAT_PANEL * sizeof(*acc));
    for (int c = 0; c < m->n_chunks; c++) {
        const uint8_t *sc = panel + m->scale_off + (size_t)c * m->scale_bytes;
        const uint8_t *block = panel + (size_t)(c / 8) * m->block_bytes;
        fetch_ahead(panel + (size_t)c * step, step);
        unpack(code, panel + m->code_off + (size_t)c * m->chunk_bytes, &o);
        for (int h = 0; h < 2; h++) {
            struct scales s = get_scales(kind, sc, block, h);
            for (int r = 0; r < width; r++)
                quant_row(code, kind, zero, width, h, &o, &s, x + r * MAT_ROW_BYTES,
                          meta + r, acc + r * MAT_PANEL + 8 * h);
        }
        x += width * MAT_ROW_BYTES;
        meta += META_COUNT * width;
    }
}

/* Weights of 8 rows in group g of a chunk; BF16: its even and its odd elements. */
INLINE void weights8(enum mat_code code, const uint8_t *chunk, int g, int h, __m256 w[2])
{
    if (code == CODE_F32) {
        w[0] = _mm256_load_ps((const float *)chunk + g * MAT_PANEL + 8 * h);
    } else if (code == CODE_F16) {
        w[0] = half8(chunk + (g * MAT_PANEL + 8 * h) * 2);
    } else {
        __m256i pairs = load32(chunk + g * 64 + 32 * h);
        w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
        w[1] = _mm256_castsi256_ps(
            _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
    }
}

/* The same of one row of x, in all lanes. */
INLINE void act8(enum mat_code code, const uint8_t *x, int g, __m256 v[2])
{
    v[0] = _mm256_broadcast_ss((const float *)x + g);
    if (code == CODE_BF16) {
        __m256i pair = _mm256_castps_si256(v[0]);
        v[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
        v[1] = _mm256_castsi256_ps(
            _mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000)));
    }
}

/* n rows of a tile, from the first of x. */
INLINE void float_rows(enum mat_code code, int width, int n, const struct cpu_mat *m,
                       const uint8_t *panel, const uint8_t *x, float *acc)
{
    __m256 s[4][2], w[2][2], v[2];

    UNROLL for (int r = 0; r < n; r++) s[r][0] = s[r][1] = _mm256_setzero_ps();
    for (int c = 0; c < m->n_chunks; c++) {
        fetch_ahead(panel, m->chunk_bytes);
        UNROLL for (int g = 0; g < MAT_GROUPS; g++)
        {
            weights8(code, panel, g, 0, w[0]);
            weights8(code, panel, g, 1, w[1]);
            UNROLL for (int r = 0; r < n; r++)
            {
                act8(code, x + r * MAT_ROW_BYTES, g, v);
                s[r][0] = _mm256_fmadd_ps(w[0][0], v[0], s[r][0]);
                s[r][1] = _mm256_fmadd_ps(w[1][0], v[0], s[r][1]);
                if (code == CODE_BF16) {
                    s[r][0] = _mm256_fmadd_ps(w[0][1], v[1], s[r][0]);
                    s[r][1] = _mm256_fmadd_ps(w[1][1], v[1], s[r][1]);
                }
            }
        }
        panel += m->chunk_bytes;
        x += width * MAT_ROW_BYTES;
    }
    UNROLL for (int r = 0; r < n; r++)
    {
        _mm256_storeu_ps(acc + r * MAT_PANEL, s[r][0]);
        _mm256_storeu_ps(acc + r * MAT_PANEL + 8, s[r][1]);
    }
}

/* As many rows at a time as have their sums in registers. */
INLINE void float_tile(enum mat_code code, int width, const struct cpu_mat *m,
                       const uint8_t *panel, const uint8_t *x, float *acc)
{
    int n = width % 4 == 0 ? 4 : width % 3 == 0 ? 3 : width;

    for (int r = 0; r < width; r += n)
        float_rows(code, width, n, m, panel, x + r * MAT_ROW_BYTES, acc + r * MAT_PANEL);
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
static void put8(const struct mat_out *o, int r, int h, __m256 v)
{
    float *y = o->y + (size_t)r * (size_t)o->ld + 8 * h;
    int n = o->n - 8 * h;
    float part[8];

    if (n >= 8) {
        _mm256_storeu_ps(y, v);
        return;
    }
    _mm256_storeu_ps(part, v);
    for (int i = 0; i < n; i++)
        y[i] = part[i];
}

static __m256 get8(const float *p, int n)
{
    float part[8] = {0};

    if (n >= 8)
        return _mm256_loadu_ps(p);
    for (int i = 0; i < n; i++)
        part[i] = p[i];
    return _mm256_loadu_ps(part);
}

static void finish(const struct mat_out *o, const float *acc)
{
    for (int r = 0; r < o->n_rows; r++)
        for (int h = 0; h < 2 && 8 * h < o->n; h++) {
            __m256 v = _mm256_loadu_ps(acc + r * MAT_PANEL + 8 * h);
            if (o->bias)
                v = _mm256_add_ps(v, get8(o->bias + 8 * h, o->n - 8 * h));
            if (o->add)
                v = _mm256_add_ps(
                    get8(o->y + (size_t)r * (size_t)o->ld + 8 * h, o->n - 8 * h), v);
            put8(o, r, h, v);
        }
}

/* exp(x) to about 1 ulp for |x| <= 87, where 2^n is a normal number; clamped beyond. */
INLINE __m256 exp8(__m256 x)
{
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-87.0f)), _mm256_set1_ps(87.0f));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), 8);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
    __m256 p = _mm256_set1_ps(1.0f / 720);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i e = _mm256_slli_epi32(
        _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(e));
}

static void finish_glu(const struct mat_out *o, const float *gate, const float *up)
{
    const __m256 one = _mm256_set1_ps(1.0f);

    for (int r = 0; r < o->n_rows; r++)
        for (int h = 0; h < 2 && 8 * h < o->n; h++) {
            __m256 g = _mm256_loadu_ps(gate + r * MAT_PANEL + 8 * h);
            __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), g));
            __m256 v = _mm256_div_ps(g, _mm256_add_ps(one, e));
            v = _mm256_mul_ps(v, _mm256_loadu_ps(up + r * MAT_PANEL + 8 * h));
            put8(o, r, h, v);
        }
}

const struct mat_isa mat_isa_avx2 = {TILES, put_row, finish, finish_glu};

/* kernels/dtype.c - the block formats, written out.
 *
 * Every quantised format is read in chunks of 32 elements: the small blocks (Q4_0 ..
 * Q8_0) are one chunk, a K-quant block of 256 is eight. dtype_chunk_get takes the stored
 * bits apart and does no arithmetic; dtype_to_f32 and the repacking of cpu_mat both build
 * on it, so a format is spelled out once.
 *
 * The products d * sc * code are exact in f32 (11 + 7 + 6 bits at most), so an order of
 * multiplication or a fused multiply-add cannot change a value. */
#include "kernels/dtype.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const struct dtype_row {
    const char *name;
    int elems, bytes;
    uint32_t gguf;
} ROWS[] = {
#define X(id, name, elems, bytes, gguf) {name, elems, bytes, gguf},
    DTYPE_MAP(X)
#undef X
};

const char *dtype_name(enum dtype t) { return ROWS[t].name; }

int dtype_block(enum dtype t) { return ROWS[t].elems; }

int dtype_block_bytes(enum dtype t) { return ROWS[t].bytes; }

int dtype_from_gguf(uint32_t gguf_type)
{
    for (int i = 0; i < DT_COUNT; i++)
        if (ROWS[i].gguf == gguf_type)
            return i;
    return -1;
}

int64_t dtype_row_bytes(enum dtype t, int64_t n)
{
    if (n < 0 || n % ROWS[t].elems != 0 || n / ROWS[t].elems > INT64_MAX / ROWS[t].bytes)
        return -1;
    return n / ROWS[t].elems * ROWS[t].bytes;
}

/* ---- half precision ---- */
static float bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t mag = h & 0x7fff;

    if (mag >= 0x7c00) /* inf, NaN */
        return bits_f32(sign | 0x7f800000 | (mag & 0x3ff) << 13);
    if (mag >= 0x0400)
        return bits_f32(sign | ((mag << 13) + (112u << 23)));
    float v = (float)mag * 0x1p-24f; /* subnormal: exact */
    return bits_f32(sign | f32_bits(v));
}

uint16_t f32_to_f16(float f)
{
    uint32_t u = f32_bits(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    uint32_t mag = u & 0x7fffffff;

    if (mag > 0x7f800000) /* NaN: keep its top bits, make it quiet */
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000) /* rounds to 65536 or more */
        return sign | 0x7c00;
    if (mag < 0x38800000) { /* subnormal: adding 0.5 rounds at 2^-24 */
        float r = bits_f32(mag) + 0.5f;
        return (uint16_t)(sign | (f32_bits(r) - f32_bits(0.5f)));
    }
    mag += 0xfff + (mag >> 13 & 1);
    return (uint16_t)(sign | (mag - (112u << 23)) >> 13);
}

uint8_t f32_to_f8_e4m3(float v)
{
    uint32_t bits, code;
    uint8_t sign;

    memcpy(&bits, &v, sizeof(bits));
    sign = (uint8_t)(bits >> 24 & 0x80);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return sign | 0x7f;
    if (bits < 0x3c800000) /* below 2^-6: steps of 2^-9 */
        return (uint8_t)(sign | (uint8_t)lrintf(fabsf(v) * 512.0f));
    bits += 0x7ffff + (bits >> 20 & 1);
    code = (bits >> 20) - ((127 - 7) << 3);
    return (uint8_t)(sign | (code > 0x7e ? 0x7e : code));
}

float f8_e4m3_to_f32(uint8_t v)
{
    int exp = v >> 3 & 15, man = v & 7;
    float f = exp ? ldexpf((float)(8 + man), exp - 10) : ldexpf((float)man, -9);

    if ((v & 0x7f) == 0x7f)
        f = NAN;
    return v & 0x80 ? -f : f;
}

float bf16_to_f32(uint16_t h) { return bits_f32((uint32_t)h << 16); }

uint16_t f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- chunks ---- */
static uint16_t load_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static uint32_t load_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Low nibbles are elements 0..15, high ones 16..31. */
static void split_nibbles(const uint8_t *qs, uint8_t *code)
{
    for (int k = 0; k < 16; k++) {
        code[k] = qs[k] & 15;
        code[k + 16] = qs[k] >> 4;
    }
}

static void add_fifth_bits(uint32_t qh, uint8_t *code)
{
    for (int k = 0; k < 32; k++)
        code[k] |= (uint8_t)((qh >> k & 1) << 4);
}

static void get_small(enum dtype t, const uint8_t *b, struct dtype_chunk *c)
{
    int has_m = t == DT_Q4_1 || t == DT_Q5_1;

    c->d = load_u16(b);
    c->m = has_m ? load_u16(b + 2) : 0;
    b += has_m ? 4 : 2;
    if (t == DT_Q8_0) {
        for (int k = 0; k < 32; k++)
            c->code[k] = b[k] ^ 0x80;
        return;
    }
    if (t == DT_Q4_0 || t == DT_Q4_1) {
        split_nibbles(b, c->code);
        return;
    }
    split_nibbles(b + 4, c->code);
    add_fifth_bits(load_u32(b), c->code);
}

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes: the low six bits of bytes 0..3
 * and 4..7 are the first four of each; bytes 8..11 hold the low nibbles of the rest,
 * whose top two bits are the top bits of bytes 0..7. */
static void get_k_scale(const uint8_t *s, int j, struct dtype_chunk *c)
{
    if (j < 4) {
        c->sc[0] = s[j] & 63;
        c->mn = s[j + 4] & 63;
    } else {
        c->sc[0] = (int8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        c->mn = (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
    c->sc[1] = c->sc[0];
}

static void get_k45(enum dtype t, const uint8_t *b, int j, struct dtype_chunk *c)
{
    const uint8_t *qh = b + 16;
    const uint8_t *qs = t == DT_Q5_K ? b + 48 : b + 16;
    int shift = 4 * (j & 1);

    c->d = load_u16(b);
    c->m = load_u16(b + 2);
    get_k_scale(b + 4, j, c);
    qs += j / 2 * 32;
    for (int k = 0; k < 32; k++)
        c->code[k] = qs[k] >> shift & 15;
    if (t == DT_Q5_K)
        for (int k = 0; k < 32; k++)
            c->code[k] |= (uint8_t)((qh[k] >> j & 1) << 4);
}

static void get_k6(const uint8_t *b, int j, struct dtype_chunk *c)
{
    const uint8_t *ql = b + j / 4 * 64 + j % 2 * 32;
    const uint8_t *qh = b + 128 + j / 4 * 32;
    int low = j % 4 / 2 * 4, high = j % 4 * 2;

    for (int k = 0; k < 32; k++)
        c->code[k] = (uint8_t)((ql[k] >> low & 15) | (qh[k] >> high & 3) << 4);
    memcpy(c->sc, b + 192 + 2 * j, 2);
    c->d = load_u16(b + 208);
    c->m = 0;
    c->mn = 0;
}

/* E2M1 codes doubled, by the nibble; the scale is a power of two alone. */
static void get_mxfp4(const uint8_t *b, struct dtype_chunk *c)
{
    static const int8_t twice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                     0, -1, -2, -3, -4, -6, -8, -12};

    memset(c, 0, sizeof(*c));
    split_nibbles(b + 1, c->code);
    for (int k = 0; k < DTYPE_CHUNK; k++)
        c->code[k] = (uint8_t)(128 + twice[c->code[k]]);
    c->sc[0] = (int8_t)(b[0] - 128); /* of 2^(E8M0 - 127) / 2 */
}

void dtype_chunk_get(enum dtype t, const void *row, int64_t chunk,
                     struct dtype_chunk *ret)
{
    const uint8_t *p = row;
    int per_block = ROWS[t].elems / DTYPE_CHUNK;
    const uint8_t *b = p + chunk / per_block * ROWS[t].bytes;
    int j = (int)(chunk % per_block);

    if (t == DT_Q6_K)
        get_k6(b, j, ret);
    else if (t == DT_MXFP4)
        get_mxfp4(b, ret);
    else if (t == DT_Q4_K || t == DT_Q5_K)
        get_k45(t, b, j, ret);
    else
        get_small(t, b, ret);
}

int dtype_zero(enum dtype t)
{
    switch (t) {
    case DT_Q4_0:
        return 8;
    case DT_Q5_0:
        return 16;
    case DT_Q6_K:
        return 32;
    case DT_Q8_0:
    case DT_MXFP4:
        return 128;
    default:
        return 0;
    }
}

/* ---- values ---- */
void dtype_chunk_to_f32(enum dtype t, const struct dtype_chunk *c, float *out)
{
    float d = f16_to_f32(c->d), m = f16_to_f32(c->m);
    int zero = dtype_zero(t);

    if (t == DT_MXFP4)
        d = ldexpf(1, c->sc[0]);
    if (dtype_block(t) == DTYPE_CHUNK) {
        for (int k = 0; k < DTYPE_CHUNK; k++)
            out[k] = d * (float)(c->code[k] - zero) + m;
        return;
    }
    float low = m * (float)c->mn;
    for (int k = 0; k < DTYPE_CHUNK; k++)
        out[k] = d * (float)c->sc[k / 16] * (float)(c->code[k] - zero) - low;
}

void dtype_to_f32(enum dtype t, const void *row, float *out, int64_t n)
{
    const uint8_t *p = row;

    assert(n % dtype_block(t) == 0);
    if (t == DT_F32) {
        memcpy(out, row, (size_t)n * sizeof(*out));
    } else if (t == DT_F16 || t == DT_BF16) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t h = load_u16(p + 2 * i);
            out[i] = t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
        }
    } else {
        struct dtype_chunk c;
        for (int64_t i = 0; i < n / DTYPE_CHUNK; i++) {
            dtype_chunk_get(t, row, i, &c);
            dtype_chunk_to_f32(t, &c, out + i * DTYPE_CHUNK);
        }
    }
}

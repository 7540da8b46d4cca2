/* kernels/cpu_mat_ref.c - products in portable C: the definition of each kind.
 *
 * Activations of quantised kinds become int8 by block of 32: scale = max|x| / 127, code =
 * x / scale to the nearest integer, ties to even. Sums of a chunk are exact integers; the
 * chunks add up in f32 in the order of K. BF16 rounds activations to bf16; F16 and F32
 * use them as they are. The other instruction sets do the same with fused multiply-adds,
 * so they agree with this file to rounding, not to the bit. */
#include "kernels/cpu_mat_impl.h"

#include <math.h>
#include <string.h>

/* ---- activations ---- */
static void quant_chunk(const float *x, int n, int8_t *q, float *meta, int w, int n_meta)
{
    float top = 0;
    int sum[2] = {0, 0};

    for (int k = 0; k < n; k++)
        top = fmaxf(top, fabsf(x[k]));
    /* below this the reciprocal would overflow */
    float inv = top > 1e-35f ? 127.0f / top : 0;
    float d = top > 1e-35f ? top * (1.0f / 127) : 0;
    memset(q, 0, MAT_ROW_BYTES);
    for (int k = 0; k < n; k++) {
        float v = rintf(x[k] * inv);
        q[k] = v >= -127 && v <= 127 ? (int8_t)v : 0; /* 0 for what is no number */
        sum[k / 16] += q[k];
    }
    int32_t neg[3] = {-(sum[0] + sum[1]), -sum[0], -sum[1]};
    meta[META_D * w] = d;
    meta[META_S * w] = d * (float)(sum[0] + sum[1]);
    for (int i = 0; i < n_meta - META_N; i++)
        memcpy(meta + (META_N + i) * w, &neg[i], 4);
}

static void put_row(enum mat_form form, const float *x, int cols, int w, int r,
                    int n_meta, uint8_t *tile, float *meta)
{
    int step = mat_form_elems(form);

    for (int c = 0; c * step < cols; c++) {
        int n = cols - c * step < step ? cols - c * step : step;
        uint8_t *out = tile + (size_t)(c * w + r) * MAT_ROW_BYTES;
        const float *in = x + c * step;
        if (form == FORM_Q8) {
            quant_chunk(in, n, (int8_t *)out, meta + (size_t)c * META_COUNT * w + r, w,
                        n_meta);
            continue;
        }
        memset(out, 0, MAT_ROW_BYTES);
        if (form == FORM_F32)
            memcpy(out, in, (size_t)n * sizeof(float));
        else
            for (int k = 0; k < n; k++)
                ((uint16_t *)out)[k] = f32_to_bf16(in[k]);
    }
}

/* ---- tiles ---- */
struct chunk_scale {
    float d[2][MAT_PANEL]; /* of the first and the last 16 elements */
    float m[MAT_PANEL];
};

static void get_scales(const struct cpu_mat *m, const uint8_t *panel, int c,
                       struct chunk_scale *s)
{
    const uint8_t *sc = panel + m->scale_off + (size_t)c * m->scale_bytes;
    const uint8_t *block = panel + (size_t)(c / 8) * m->block_bytes;
    const uint16_t *half = (const uint16_t *)(m->block_bytes ? block : sc);

    for (int i = 0; i < MAT_PANEL; i++) {
        float d = f16_to_f32(half[i]);
        s->d[0][i] = s->d[1][i] = d;
        s->m[i] = 0;
        if (m->scale == SCALE_DM)
            s->m[i] = f16_to_f32(half[MAT_PANEL + i]);
        if (m->scale == SCALE_K) {
            s->d[0][i] = s->d[1][i] = d * sc[i];
            s->m[i] = -f16_to_f32(half[MAT_PANEL + i]) * sc[MAT_PANEL + i];
        }
        if (m->scale == SCALE_K6)
            for (int h = 0; h < 2; h++)
                s->d[h][i] = d * (int8_t)sc[h * MAT_PANEL + i];
    }
}

/* Sums of codes * x over the groups of one half of a chunk. */
static void dot_half(const uint32_t w[8][16], int half, const uint8_t *x, int32_t start,
                     int32_t *sum)
{
    for (int i = 0; i < MAT_PANEL; i++)
        sum[i] = start;
    for (int g = half * 4; g < half * 4 + 4; g++) {
        const uint8_t *code = (const uint8_t *)w[g];
        const int8_t *q = (const int8_t *)x + 4 * g;
        for (int i = 0; i < MAT_PANEL; i++)
            sum[i] += code[4 * i] * q[0] + code[4 * i + 1] * q[1] +
                      code[4 * i + 2] * q[2] + code[4 * i + 3] * q[3];
    }
}

/* Minus the sum of x that the zero point multiplies: by halves where scales are, else all
 * in the first. */
static int32_t start_of(const struct cpu_mat *m, int half, const float *meta, int width)
{
    int32_t neg = 0;
    int at = m->scale == SCALE_K6 ? META_LO + half : META_N;

    if (m->scale == SCALE_K6 || (m->scale == SCALE_D && half == 0))
        memcpy(&neg, meta + at * width, 4);
    return neg;
}

static void quant_tile(const struct cpu_mat *m, const uint8_t *panel, const uint8_t *x,
                       const float *meta, float *acc, int width)
{
    int32_t zero = dtype_zero(m->type), neg, sum[2][MAT_PANEL];
    uint32_t w[8][16];
    struct chunk_scale s;

    memset(acc, 0, (size_t)width * MAT_PANEL * sizeof(*acc));
    for (int c = 0; c < m->n_chunks; c++, meta += META_COUNT * width) {
        mat_unpack_codes(m->code, panel + m->code_off + (size_t)c * m->chunk_bytes, w);
        get_scales(m, panel, c, &s);
        for (int r = 0; r < width; r++, x += MAT_ROW_BYTES) {
            for (int h = 0; h < 2; h++) {
                neg = start_of(m, h, meta + r, width);
                dot_half((const uint32_t(*)[16])w, h, x, neg * zero, sum[h]);
            }
            float d = meta[META_D * width + r], xs = meta[META_S * width + r];
            float *a = acc + r * MAT_PANEL;
            for (int i = 0; i < MAT_PANEL; i++) {
                float v =
                    m->scale == SCALE_K6
                        ? (float)sum[0][i] * s.d[0][i] + (float)sum[1][i] * s.d[1][i]
                        : (float)(sum[0][i] + sum[1][i]) * s.d[0][i];
                a[i] += v * d + s.m[i] * xs;
            }
        }
    }
}

/* The K-th element of a row of x, of a weight row. */
static float act_at(enum mat_form form, const uint8_t *x, int k)
{
    return form == FORM_BF16 ? bf16_to_f32(((const uint16_t *)x)[k])
                             : ((const float *)x)[k];
}

static void weights_at(enum mat_code code, const uint8_t *chunk, int k, float *w)
{
    const uint16_t *half = (const uint16_t *)chunk;

    for (int i = 0; i < MAT_PANEL; i++) {
        if (code == CODE_F32)
            w[i] = ((const float *)chunk)[k * MAT_PANEL + i];
        else if (code == CODE_F16)
            w[i] = f16_to_f32(half[k * MAT_PANEL + i]);
        else
            w[i] = bf16_to_f32(half[(k / 2 * MAT_PANEL + i) * 2 + k % 2]);
    }
}

static void float_tile(const struct cpu_mat *m, const uint8_t *panel, const uint8_t *x,
                       float *acc, int width)
{
    float w[MAT_PANEL];
    int step = mat_form_elems(m->form);

    memset(acc, 0, (size_t)width * MAT_PANEL * sizeof(*acc));
    for (int c = 0; c < m->n_chunks; c++, x += (size_t)width * MAT_ROW_BYTES)
        for (int k = 0; k < step; k++) {
            weights_at(m->code, panel + m->code_off + (size_t)c * m->chunk_bytes, k, w);
            for (int r = 0; r < width; r++) {
                float v = act_at(m->form, x + r * MAT_ROW_BYTES, k);
                for (int i = 0; i < MAT_PANEL; i++)
                    acc[r * MAT_PANEL + i] += v * w[i];
            }
        }
}

static void tile_any(const struct cpu_mat *m, const uint8_t *panel, const uint8_t *x,
                     const float *meta, float *acc, int width)
{
    if (m->scale == SCALE_NONE)
        float_tile(m, panel, x, acc, width);
    else
        quant_tile(m, panel, x, meta, acc, width);
}

#define TILE_FN(w, none)                                                                 \
    static void tile_##w(const struct cpu_mat *m, const uint8_t *panel,                  \
                         const uint8_t *x, const float *meta, float *acc)                \
    {                                                                                    \
        tile_any(m, panel, x, meta, acc, w);                                             \
    }
MAT_WIDTHS(TILE_FN, _)

#define TILE_ENTRY(w, none) tile_##w,
#define TILE_ROW(id, code, scale, zero) {MAT_WIDTHS(TILE_ENTRY, id)},
static const mat_tile_fn TILES[KIND_COUNT][MAT_N_WIDTHS] = {MAT_KIND_MAP(TILE_ROW)};

/* ---- results ---- */
static void finish(const struct mat_out *o, const float *acc)
{
    for (int r = 0; r < o->n_rows; r++)
        for (int i = 0; i < o->n; i++) {
            float *y = o->y + (size_t)r * (size_t)o->ld + i;
            float v = acc[r * MAT_PANEL + i];
            if (o->bias)
                v += o->bias[i];
            *y = o->add ? *y + v : v;
        }
}

static void finish_glu(const struct mat_out *o, const float *gate, const float *up)
{
    for (int r = 0; r < o->n_rows; r++)
        for (int i = 0; i < o->n; i++) {
            float g = gate[r * MAT_PANEL + i];
            o->y[(size_t)r * (size_t)o->ld + i] =
                g / (1.0f + expf(-g)) * up[r * MAT_PANEL + i];
        }
}

const struct mat_isa mat_isa_ref = {TILES, put_row, finish, finish_glu};

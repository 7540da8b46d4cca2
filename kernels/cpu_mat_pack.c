/* kernels/cpu_mat_pack.c - from a file's rows to panels, and one row back.
 *
 * Only the order of the bits changes: codes, f16 scales and 6-bit scales are kept as they
 * are, so cpu_mat_row gives the file's exact values. Rows that fill up the last panel and
 * elements that fill up the last chunk are zeros. MXFP4 alone changes its form: to Q8_0
 * or BF16, where its values are exact. Plain C: the work is moving 4-byte
 * words and is bound by memory. Pure; threads work on different panels. */
#include "kernels/cpu_mat_impl.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static uint32_t word_at(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, sizeof(w));
    return w;
}

/* ---- codes ---- */
static void pack_low_nibbles(const uint8_t *code, int row, uint32_t *dst)
{
    for (int j = 0; j < 4; j++) {
        uint32_t lo = word_at(code + 4 * j) & 0x0f0f0f0f;
        uint32_t hi = word_at(code + 16 + 4 * j) & 0x0f0f0f0f;
        dst[j * MAT_PANEL + row] = lo | hi << 4;
    }
}

static void pack_codes(enum mat_code kind, const uint8_t *code, int row, uint8_t *chunk)
{
    uint32_t *dst = (uint32_t *)chunk;

    if (kind == CODE_U8) {
        for (int g = 0; g < MAT_GROUPS; g++)
            dst[g * MAT_PANEL + row] = word_at(code + 4 * g);
        return;
    }
    pack_low_nibbles(code, row, dst);
    if (kind == CODE_U5) {
        uint64_t *bits = (uint64_t *)(chunk + 256);
        for (int g = 0; g < MAT_GROUPS; g++) {
            uint32_t w = word_at(code + 4 * g) >> 4 & 0x01010101;
            bits[g] |= (uint64_t)(w * 0x10204080u >> 28) << (4 * row);
        }
    } else if (kind == CODE_U6) {
        dst = (uint32_t *)(chunk + 256);
        for (int g = 0; g < MAT_GROUPS; g++)
            dst[g / 4 * MAT_PANEL + row] |= (word_at(code + 4 * g) >> 4 & 0x03030303)
                                            << 2 * (g % 4);
    }
}

void mat_unpack_codes(enum mat_code code, const uint8_t *chunk, uint32_t w[8][16])
{
    const uint32_t *src = (const uint32_t *)chunk;

    if (code == CODE_U8) {
        memcpy(w, chunk, 512);
        return;
    }
    for (int j = 0; j < 4; j++)
        for (int r = 0; r < MAT_PANEL; r++) {
            uint32_t v = src[j * MAT_PANEL + r];
            w[j][r] = v & 0x0f0f0f0f;
            w[j + 4][r] = v >> 4 & 0x0f0f0f0f;
        }
    if (code == CODE_U5) {
        const uint64_t *bits = (const uint64_t *)(chunk + 256);
        for (int g = 0; g < MAT_GROUPS; g++)
            for (int r = 0; r < MAT_PANEL; r++) {
                uint32_t b = bits[g] >> (4 * r) & 15;
                w[g][r] |= (b * 0x00204081u & 0x01010101) << 4;
            }
    } else if (code == CODE_U6) {
        src = (const uint32_t *)(chunk + 256);
        for (int g = 0; g < MAT_GROUPS; g++)
            for (int r = 0; r < MAT_PANEL; r++)
                w[g][r] |= (src[g / 4 * MAT_PANEL + r] >> 2 * (g % 4) & 0x03030303) << 4;
    }
}

/* ---- scales ---- */
static void pack_scales(const struct cpu_mat *m, uint8_t *panel, int chunk, int row,
                        const struct dtype_chunk *c)
{
    uint8_t *s = panel + m->scale_off + (size_t)chunk * m->scale_bytes;
    uint8_t *b = panel + (size_t)(chunk / 8) * m->block_bytes;
    uint16_t *half = (uint16_t *)(m->block_bytes ? b : s);

    half[row] = c->d;
    if (m->scale == SCALE_DM || m->scale == SCALE_K)
        half[MAT_PANEL + row] = c->m;
    if (m->scale == SCALE_K || m->scale == SCALE_K6) {
        s[row] = (uint8_t)c->sc[0];
        s[MAT_PANEL + row] = m->scale == SCALE_K ? c->mn : (uint8_t)c->sc[1];
    }
}

static void unpack_scales(const struct cpu_mat *m, const uint8_t *panel, int chunk,
                          int row, struct dtype_chunk *c)
{
    const uint8_t *s = panel + m->scale_off + (size_t)chunk * m->scale_bytes;
    const uint8_t *b = panel + (size_t)(chunk / 8) * m->block_bytes;
    const uint16_t *half = (const uint16_t *)(m->block_bytes ? b : s);

    memset(c, 0, sizeof(*c));
    c->d = half[row];
    if (m->scale == SCALE_DM || m->scale == SCALE_K)
        c->m = half[MAT_PANEL + row];
    if (m->scale == SCALE_K || m->scale == SCALE_K6) {
        c->sc[0] = (int8_t)s[row];
        c->sc[1] = m->scale == SCALE_K6 ? (int8_t)s[MAT_PANEL + row] : c->sc[0];
        c->mn = m->scale == SCALE_K ? s[MAT_PANEL + row] : 0;
    }
}

/* ---- MXFP4 ---- */
static bool mx_zero(const struct dtype_chunk *c)
{
    for (int k = 0; k < DTYPE_CHUNK; k++)
        if (c->code[k] != 128)
            return false;
    return true;
}

enum dtype mat_kept_type(enum dtype from, int rows, int cols, const void *data)
{
    const uint8_t *row = data;
    struct dtype_chunk c;

    if (from != DT_MXFP4)
        return from;
    for (int r = 0; r < rows; r++, row += dtype_row_bytes(from, cols))
        for (int i = 0; i < cols / DTYPE_CHUNK; i++) {
            dtype_chunk_get(from, row, i, &c);
            if ((c.sc[0] < -24 || c.sc[0] > 15) && !mx_zero(&c))
                return DT_BF16;
        }
    return DT_Q8_0;
}

/* The codes are those of Q8_0 already; a scale that is no f16 is of a block of zeros. */
static void mx_scale(struct dtype_chunk *c)
{
    c->d = c->sc[0] < -24 || c->sc[0] > 15 ? 0 : f32_to_f16(ldexpf(1, c->sc[0]));
}

static void pack_mx_bf16(const struct cpu_mat *m, const uint8_t *src, uint8_t *panel,
                         int row)
{
    uint16_t *half = (uint16_t *)panel;
    float v[DTYPE_CHUNK];
    struct dtype_chunk c;

    for (int i = 0; i < m->cols; i += DTYPE_CHUNK) {
        dtype_chunk_get(m->from, src, i / DTYPE_CHUNK, &c);
        dtype_chunk_to_f32(m->from, &c, v);
        for (int k = i; k < i + DTYPE_CHUNK; k++)
            half[((size_t)(k / 2) * MAT_PANEL + (size_t)row) * 2 + (size_t)(k % 2)] =
                f32_to_bf16(v[k - i]);
    }
}

/* ---- panels ---- */
static void pack_quant_row(const struct cpu_mat *m, const uint8_t *src, uint8_t *panel,
                           int row)
{
    struct dtype_chunk c;

    for (int i = 0; i < m->n_chunks; i++) {
        dtype_chunk_get(m->from, src, i, &c);
        if (m->from == DT_MXFP4)
            mx_scale(&c);
        pack_codes(m->code, c.code, row,
                   panel + m->code_off + (size_t)i * m->chunk_bytes);
        pack_scales(m, panel, i, row, &c);
    }
}

/* F32 moves words, F16 halves; BF16 moves pairs, the last of which may be half a pair. */
static void pack_float_row(const struct cpu_mat *m, const uint8_t *src, uint8_t *panel,
                           int row)
{
    int item = m->code == CODE_F16 ? 2 : 4;
    size_t n_bytes = (size_t)dtype_row_bytes(m->type, m->cols);

    for (size_t i = 0; i * (size_t)item < n_bytes; i++) {
        size_t left = n_bytes - i * (size_t)item;
        memcpy(panel + (i * MAT_PANEL + (size_t)row) * (size_t)item,
               src + i * (size_t)item, left < (size_t)item ? left : (size_t)item);
    }
}

void mat_pack_panel(const struct cpu_mat *m, const void *src, int panel)
{
    uint8_t *dst = m->data + (size_t)panel * m->panel_bytes;
    size_t row_bytes = (size_t)dtype_row_bytes(m->from, m->cols);

    memset(dst, 0, m->panel_bytes);
    for (int r = 0; r < MAT_PANEL && panel * MAT_PANEL + r < m->rows; r++) {
        const uint8_t *row = (const uint8_t *)src + (size_t)r * row_bytes;
        if (m->scale == SCALE_NONE && m->from == DT_MXFP4)
            pack_mx_bf16(m, row, dst, r);
        else if (m->scale == SCALE_NONE)
            pack_float_row(m, row, dst, r);
        else
            pack_quant_row(m, row, dst, r);
    }
}

static void float_row(const struct cpu_mat *m, const uint8_t *panel, int row, float *out)
{
    const uint16_t *half = (const uint16_t *)panel;

    for (int k = 0; k < m->cols; k++) {
        if (m->code == CODE_F32)
            memcpy(out + k, panel + 4 * ((size_t)k * MAT_PANEL + (size_t)row), 4);
        else if (m->code == CODE_F16)
            out[k] = f16_to_f32(half[(size_t)k * MAT_PANEL + (size_t)row]);
        else
            out[k] = bf16_to_f32(
                half[((size_t)(k / 2) * MAT_PANEL + (size_t)row) * 2 + k % 2]);
    }
}

void cpu_mat_row(const struct cpu_mat *m, int row, float *out)
{
    const uint8_t *panel = m->data + (size_t)(row / MAT_PANEL) * m->panel_bytes;
    uint32_t w[8][16];
    struct dtype_chunk c;

    row %= MAT_PANEL;
    if (m->scale == SCALE_NONE) {
        float_row(m, panel, row, out);
        return;
    }
    for (int i = 0; i < m->n_chunks; i++) {
        unpack_scales(m, panel, i, row, &c);
        mat_unpack_codes(m->code, panel + m->code_off + (size_t)i * m->chunk_bytes, w);
        for (int g = 0; g < MAT_GROUPS; g++)
            memcpy(c.code + 4 * g, &w[g][row], 4);
        dtype_chunk_to_f32(m->type, &c, out + (size_t)i * DTYPE_CHUNK);
    }
}

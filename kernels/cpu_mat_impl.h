/* kernels/cpu_mat_impl.h - inside of cpu_mat: panels, activation tiles, the ISA table.
 *
 * A matrix is cut into panels of 16 rows, a panel into chunks of 8 "groups": one group is
 * 4 bytes of one row's activation (4 int8, 2 bf16 or 1 f32), so a chunk spans 32, 16 or 8
 * elements of K and its unpacked weights are 8 vectors of 64 bytes, 4 bytes a row. All
 * instruction sets share this form; what differs is how they walk it.
 *
 *   panel:  [block scales] x n/8 | [chunk scales] x n_chunks | [chunk codes] x n_chunks
 *   codes of a chunk, word (g, row) = the 4 codes of group g:
 *     U8, BF16, F32   512 bytes, word g * 16 + row
 *     F16             256 bytes, half g * 16 + row
 *     U4              256 bytes, word j * 16 + row = group j | group j + 4 << 4
 *     U5              U4 and 64 bytes: bit row * 4 + k of the g-th u64 is the fifth bit
 *     U6              U4 and 128 bytes: word p * 16 + row holds the upper two bits of the
 *                     groups 4p .. 4p + 3, two bits each
 *   scales of a chunk:  D: f16 d[16] | DM: f16 d[16], m[16] | K: u8 sc[16], mn[16]
 *                       K6: i8 sc[16] of the first 16 elements, sc[16] of the rest
 *   scales of a block (8 chunks):  K: f16 d[16], m[16] | K6: f16 d[16]
 *
 * Rows of x are cut into tiles of 16; what is left over makes one tile of the next width
 * of MAT_WIDTHS, filled up with zeros. A tile of width w holds for each chunk 32 bytes a
 * row, and for int8 the w-wide arrays of enum mat_meta. A tile's width never changes what
 * is computed for a row: every width runs the same operations in the same order. */
#ifndef KERNELS_CPU_MAT_IMPL_H
#define KERNELS_CPU_MAT_IMPL_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu_mat.h"

enum { MAT_PANEL = 16, MAT_GROUPS = 8, MAT_TILE = 16, MAT_ROW_BYTES = 32 };

struct cpu_slab;

enum mat_code { CODE_U4, CODE_U5, CODE_U6, CODE_U8, CODE_BF16, CODE_F16, CODE_F32 };
enum mat_scale { SCALE_NONE, SCALE_D, SCALE_DM, SCALE_K, SCALE_K6 };
enum mat_form { FORM_Q8, FORM_BF16, FORM_F32, FORM_COUNT };

/* Per chunk of an int8 tile: the scale, scale * sum of codes, minus the sum of all 32
 * codes, of the first 16, of the last 16 (the last three are int32). */
enum mat_meta { META_D, META_S, META_N, META_LO, META_HI, META_COUNT };

/* One row per way of multiplying; each ISA has a kernel for each.
 *     id         code       scale       log2(zero) */
#define MAT_KIND_MAP(X)                                                                  \
    X(U4_D, CODE_U4, SCALE_D, 3)                                                         \
    X(U4_DM, CODE_U4, SCALE_DM, 0)                                                       \
    X(U4_K, CODE_U4, SCALE_K, 0)                                                         \
    X(U5_D, CODE_U5, SCALE_D, 4)                                                         \
    X(U5_DM, CODE_U5, SCALE_DM, 0)                                                       \
    X(U5_K, CODE_U5, SCALE_K, 0)                                                         \
    X(U6_K, CODE_U6, SCALE_K6, 5)                                                        \
    X(U8_D, CODE_U8, SCALE_D, 7)                                                         \
    X(BF16, CODE_BF16, SCALE_NONE, 0)                                                    \
    X(F16, CODE_F16, SCALE_NONE, 0)                                                      \
    X(F32, CODE_F32, SCALE_NONE, 0)

enum mat_kind {
#define X(id, code, scale, zero) KIND_##id,
    MAT_KIND_MAP(X)
#undef X
        KIND_COUNT
};

/* The widths of tiles that kernels exist for: X(width, the rest). */
#define MAT_WIDTHS(X, ...)                                                               \
    X(1, __VA_ARGS__)                                                                    \
    X(2, __VA_ARGS__)                                                                    \
    X(4, __VA_ARGS__)                                                                    \
    X(6, __VA_ARGS__)                                                                    \
    X(8, __VA_ARGS__)                                                                    \
    X(12, __VA_ARGS__)                                                                   \
    X(16, __VA_ARGS__)
enum { MAT_N_WIDTHS = 7 };

struct cpu_mat {
    enum cpu_isa isa;
    enum dtype from, type; /* of the file; as it is kept */
    enum mat_kind kind;
    enum mat_code code;
    enum mat_scale scale;
    enum mat_form form;
    int rows, cols;
    int n_panels, n_chunks;
    size_t chunk_bytes, scale_bytes,
        block_bytes; /* of codes, of chunk and block scales */
    size_t scale_off, code_off, panel_bytes;
    uint8_t *data; /* panels, in order */
    size_t bytes;
    struct cpu_slab *slab; /* owns data */
};

/* One panel times one tile: acc[r * 16 + i] for r < width. */
typedef void (*mat_tile_fn)(const struct cpu_mat *m, const uint8_t *panel,
                            const uint8_t *x, const float *meta, float *acc);

/* Where finished sums go: n <= 16 columns of rows y, ld apart. */
struct mat_out {
    float *y;
    int ld, n_rows, n;
    const float *bias; /* n values or NULL */
    int add;
};

struct mat_isa {
    const mat_tile_fn (*tile)[MAT_N_WIDTHS]; /* [KIND_COUNT] */
    /* Row r of a tile of width w from cols values; of meta the first n_meta arrays. */
    void (*put_row)(enum mat_form form, const float *x, int cols, int w, int r,
                    int n_meta, uint8_t *tile, float *meta);
    void (*finish)(const struct mat_out *o, const float *acc);
    void (*finish_glu)(const struct mat_out *o, const float *gate, const float *up);
};

extern const struct mat_isa mat_isa_ref, mat_isa_avx2, mat_isa_avx512;

static inline int mat_form_elems(enum mat_form f)
{
    return f == FORM_Q8 ? 32 : f == FORM_BF16 ? 16 : 8;
}

/* How many of the arrays of enum mat_meta a product needs. */
static inline int mat_n_meta(enum mat_scale s)
{
    if (s == SCALE_K6)
        return META_COUNT;
    return s == SCALE_D ? META_N + 1 : META_S + 1;
}

const struct mat_isa *mat_isa_table(enum cpu_isa isa);
/* n chunks of a row that only fills its tile; meta is NULL but for int8. */
void mat_zero_row(int n, int w, int r, uint8_t *tile, float *meta);

/* cpu_mat_pack.c */
/* What a file's type is kept as: itself, but for MXFP4, whose values are exact as Q8_0
 * where every scale is an f16 and as BF16 always. */
enum dtype mat_kept_type(enum dtype from, int rows, int cols, const void *data);
/* src: the panel's first row. */
void mat_pack_panel(const struct cpu_mat *m, const void *src, int panel);
/* Codes of a chunk, word (g, row), from U4 .. U8. */
void mat_unpack_codes(enum mat_code code, const uint8_t *chunk, uint32_t w[8][16]);

#endif

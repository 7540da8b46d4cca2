/* kernels/dtype.h - element types of tensors as files store them, and their exact values.
 *
 * One row per type: name, elements and bytes per block. The dequantise functions are the
 * plain definition of each format (GGUF block layouts as the file has them) and the truth
 * for every faster kernel. Pure; any thread. */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/*    id      name     elements bytes  GGUF type number */
#define DTYPE_MAP(X)                                                                     \
    X(F32, "F32", 1, 4, 0)                                                               \
    X(F16, "F16", 1, 2, 1)                                                               \
    X(BF16, "BF16", 1, 2, 30)                                                            \
    X(Q4_0, "Q4_0", 32, 18, 2)                                                           \
    X(Q4_1, "Q4_1", 32, 20, 3)                                                           \
    X(Q5_0, "Q5_0", 32, 22, 6)                                                           \
    X(Q5_1, "Q5_1", 32, 24, 7)                                                           \
    X(Q8_0, "Q8_0", 32, 34, 8)                                                           \
    X(Q4_K, "Q4_K", 256, 144, 12)                                                        \
    X(Q5_K, "Q5_K", 256, 176, 13)                                                        \
    X(Q6_K, "Q6_K", 256, 210, 14)                                                        \
    X(MXFP4, "MXFP4", 32, 17, 39)

enum dtype {
#define X(id, name, elems, bytes, gguf) DT_##id,
    DTYPE_MAP(X)
#undef X
        DT_COUNT
};

const char *dtype_name(enum dtype t);
int dtype_block(enum dtype t);       /* elements per block */
int dtype_block_bytes(enum dtype t); /* bytes per block */
/* GGUF type number -> dtype, -1 when not served. */
int dtype_from_gguf(uint32_t gguf_type);
/* Bytes of a row of n elements; -1 when n is no whole number of blocks. */
int64_t dtype_row_bytes(enum dtype t, int64_t n);

/* out[0..n) = the exact values of a row; n is a whole number of blocks. */
void dtype_to_f32(enum dtype t, const void *row, float *out, int64_t n);

/* 32 elements of a quantised row as the file states them, before any arithmetic:
 *   Q4_0 Q5_0 Q8_0   d * (code - zero)
 *   Q4_1 Q5_1        d * code + m
 *   Q4_K Q5_K        (d * sc[0]) * code - m * mn
 *   Q6_K             (d * sc[k / 16]) * (code - zero)
 *   MXFP4            2^e / 2 * (code - zero), e in sc[0]: twice the E2M1 value is whole
 * d and m are f16 bits; K-quants share them among the 8 chunks of a block. */
enum { DTYPE_CHUNK = 32 };
struct dtype_chunk {
    uint8_t code[DTYPE_CHUNK];
    uint16_t d, m;
    int8_t sc[2];
    uint8_t mn;
};
void dtype_chunk_get(enum dtype t, const void *row, int64_t chunk,
                     struct dtype_chunk *ret);
/* The values of a chunk of a quantised type. */
void dtype_chunk_to_f32(enum dtype t, const struct dtype_chunk *c, float *out);
int dtype_zero(enum dtype t); /* the code that stands for 0, 0 where m does that */

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* round to nearest even */
#define F8_E4M3_MAX 448.0f
uint8_t f32_to_f8_e4m3(float v); /* to the nearest, ties to even; the largest beyond */
float f8_e4m3_to_f32(uint8_t v); /* without infinities; all ones is NaN */
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f); /* round to nearest even, NaN kept quiet */

#endif

/* See forward_cut.h. */
#include "daemon/serve/forward_cut.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/model.h"
#include "kernels/backend.h"

enum { MX_BLOCK = 32, MX_CODES = 16 };

static void *take(const struct model_tensor *t, size_t rows, size_t row_bytes,
                  struct weight_src *src, void **ret_copy, struct err *e)
{
    void *copy = try_calloc(rows, row_bytes);

    if (!copy)
        err_set(e, ERR_NOMEM, "no memory for a part of tensor '%s'", t->name);
    src->data = *ret_copy = copy;
    return copy;
}

static int blocks_cut(const struct model_tensor *t, struct run cols, struct err *e)
{
    return err_param(e, ERR_INVALID, "layout",
                     "tensor '%s' has blocks of %d, a cut at %d of %d goes through one",
                     t->name, dtype_block(t->type), cols.from, t->cols);
}

static int cut_plain(const struct model_tensor *t, struct run rows, struct run cols,
                     struct weight_src *src, void **ret_copy, struct err *e)
{
    int64_t row = dtype_row_bytes(t->type, t->cols);
    int64_t at = dtype_row_bytes(t->type, cols.from),
            n = dtype_row_bytes(t->type, cols.n);
    const char *from = (const char *)t->data + (size_t)rows.from * (size_t)row;
    char *copy;

    src->data = from;
    if (cols.n == t->cols)
        return 0;
    if (at < 0 || n < 0)
        return blocks_cut(t, cols, e);
    copy = take(t, (size_t)rows.n, (size_t)n, src, ret_copy, e);
    for (int r = 0; copy && r < rows.n; r++)
        memcpy(copy + (size_t)r * (size_t)n, from + r * row + at, (size_t)n);
    return copy ? 0 : -1;
}

static int cut_strided(const struct model_tensor *t, struct run rows, struct run cols,
                       struct weight_src *src, void **ret_copy, struct err *e)
{
    size_t size = (size_t)dtype_block_bytes(t->type), n = (size_t)cols.n;
    const char *from = t->data;
    char *to = take(t, (size_t)rows.n, n * size, src, ret_copy, e);

    for (int r = 0; to && r < rows.n; r++)
        for (int c = 0; c < cols.n; c++, to += size)
            memcpy(to,
                   from + size * ((size_t)(rows.from + r) * t->row_step +
                                  (size_t)(cols.from + c) * t->col_step),
                   size);
    return to ? 0 : -1;
}

/* A block of a GGUF row: scale, then codes whose low halves are elements 0..15. */
static void join_mx(uint8_t *to, uint8_t scale, const uint8_t *codes)
{
    to[0] = scale;
    for (int k = 0; k < MX_CODES; k++) {
        int low = k / 2, high = MX_CODES / 2 + k / 2, shift = k % 2 * 4;
        to[1 + k] =
            (uint8_t)((codes[low] >> shift & 15) | (codes[high] >> shift & 15) << 4);
    }
}

static int cut_mx(const struct model_tensor *t, struct run rows, struct run cols,
                  struct weight_src *src, void **ret_copy, struct err *e)
{
    int n = cols.n / MX_BLOCK;
    const uint8_t *codes = t->data;
    uint8_t *to;

    if (cols.from % MX_BLOCK || cols.n % MX_BLOCK)
        return blocks_cut(t, cols, e);
    to = take(t, (size_t)rows.n, (size_t)n * (MX_CODES + 1), src, ret_copy, e);
    for (int r = 0; to && r < rows.n; r++)
        for (int b = 0; b < n; b++, to += MX_CODES + 1) {
            size_t at = (size_t)(rows.from + r) * t->row_step +
                        (size_t)(cols.from / MX_BLOCK + b);
            join_mx(to, t->scales[at], codes + at * MX_CODES);
        }
    return to ? 0 : -1;
}

/* Code times scale, rounded once, as the format's own reader does it. */
static int cut_f8(const struct model_tensor *t, struct run rows, struct run cols,
                  struct weight_src *src, void **ret_copy, struct err *e)
{
    int blocks = (t->cols + TENSOR_F8_BLOCK - 1) / TENSOR_F8_BLOCK;
    const uint8_t *codes = t->data;
    float *to = take(t, (size_t)rows.n, (size_t)cols.n * sizeof(float), src, ret_copy, e);

    for (int r = rows.from; to && r < rows.from + rows.n; r++) {
        const uint8_t *line = codes + (size_t)r * (size_t)t->cols;
        size_t first = (size_t)(r / TENSOR_F8_BLOCK) * (size_t)blocks;

        for (int c = cols.from; c < cols.from + cols.n; c++) {
            size_t at = first + (size_t)(c / TENSOR_F8_BLOCK);
            float scale;

            memcpy(&scale, t->scales + at * sizeof(scale), sizeof(scale));
            *to++ = f8_e4m3_to_f32(line[c]) * scale;
        }
    }
    return to ? 0 : -1;
}

int forward_cut(const struct model_tensor *t, struct run rows, struct run cols,
                struct weight_src *src, void **ret_copy, struct err *e)
{
    src->rows = rows.n;
    src->cols = cols.n;
    src->type = t->type;
    switch (t->form) {
    case TENSOR_STRIDED:
        return cut_strided(t, rows, cols, src, ret_copy, e);
    case TENSOR_MX:
        return cut_mx(t, rows, cols, src, ret_copy, e);
    case TENSOR_F8:
        return cut_f8(t, rows, cols, src, ret_copy, e);
    default:
        return cut_plain(t, rows, cols, src, ret_copy, e);
    }
}

int forward_cut_turned(const struct model_tensor *t, struct run rows, struct run cols,
                       struct weight_src *src, void **ret_copy, struct err *e)
{
    struct model_tensor from = *t;
    void *plain = NULL;
    float *f32 = NULL;
    int rc = forward_cut(t, rows, cols, src, &plain, e);

    if (rc == 0 && dtype_block(src->type) > 1) {
        size_t n = (size_t)rows.n * (size_t)cols.n;
        f32 = try_calloc(n, sizeof(*f32));
        if (f32)
            dtype_to_f32(src->type, src->data, f32, (int64_t)n);
        else
            rc = err_set(e, ERR_NOMEM, "no memory to turn tensor '%s'", t->name);
    }
    from.form = TENSOR_STRIDED;
    from.type = f32 ? DT_F32 : src->type;
    from.data = f32 ? f32 : src->data;
    from.rows = cols.n;
    from.cols = rows.n;
    from.row_step = 1;
    from.col_step = (size_t)cols.n;
    if (rc == 0)
        rc = forward_cut(&from, (struct run){0, cols.n}, (struct run){0, rows.n}, src,
                         ret_copy, e);
    free(f32);
    free(plain);
    return rc;
}

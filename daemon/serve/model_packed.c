/* See model_packed.h. */
#include "daemon/serve/model_packed.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "daemon/serve/blame.h"

enum { MX_BLOCK = 32, MX_BYTES = 16 };

static const struct {
    const char *base;
    int step, at;
    bool bias;
} rows[MODEL_EXPERT_ROLES] = {
    [ROLE_EXP_GATE - ROLE_EXP_GATE] = {"gate_up_proj", 2, 0, false},
    [ROLE_EXP_UP - ROLE_EXP_GATE] = {"gate_up_proj", 2, 1, false},
    [ROLE_EXP_DOWN - ROLE_EXP_GATE] = {"down_proj", 1, 0, false},
    [ROLE_EXP_GATE_BIAS - ROLE_EXP_GATE] = {"gate_up_proj", 2, 0, true},
    [ROLE_EXP_UP_BIAS - ROLE_EXP_GATE] = {"gate_up_proj", 2, 1, true},
    [ROLE_EXP_DOWN_BIAS - ROLE_EXP_GATE] = {"down_proj", 1, 0, true},
};

static int check_dims(const struct file_tensor *t, const uint64_t *dims, int n,
                      struct err *e)
{
    struct blame_name b;
    char want[128];
    size_t at = 0;

    if (t->n_dims == n && !memcmp(t->dims, dims, (size_t)n * sizeof(*dims)))
        return 0;
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(want + at, sizeof(want) - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)dims[i]);
    return blame(e, ERR_CORRUPT, t->file,
                 "tensor '%s' has another shape than this model's [%s]",
                 blame_name(&b, t->name, t->name_len), want);
}

static int check_type(const struct file_tensor *t, bool ok, const char *want,
                      struct err *e)
{
    struct blame_name b;

    if (ok)
        return 0;
    return blame(e, ERR_UNSUPPORTED, t->file, "tensor '%s' is of type %s; right is %s",
                 blame_name(&b, t->name, t->name_len), t->type, want);
}

static bool is_float(const struct file_tensor *t)
{
    return t->dtype == DT_F32 || t->dtype == DT_F16 || t->dtype == DT_BF16;
}

static bool find(const struct modelfiles *f, struct packed *p, const char *stem,
                 const char *tail, struct file_tensor *ret)
{
    snprintf(p->name, sizeof(p->name), "%s%s", stem, tail);
    return modelfiles_find(f, p->name, ret);
}

static int check_mx(struct packed *p, uint64_t n, struct err *e)
{
    uint64_t out = (uint64_t)p->rows * (uint64_t)p->step;
    uint64_t blocks = (uint64_t)p->cols / MX_BLOCK;
    const uint64_t codes[] = {n, out, blocks, MX_BYTES}, scales[] = {n, out, blocks};

    if (p->cols % MX_BLOCK)
        return blame(e, ERR_UNSUPPORTED, p->data.file,
                     "tensor '%s' has blocks of %d, and rows of %d", p->name, MX_BLOCK,
                     p->cols);
    if (check_type(&p->data, !strcmp(p->data.type, "U8"), "U8", e) < 0 ||
        check_type(&p->scales, !strcmp(p->scales.type, "U8"), "U8", e) < 0 ||
        check_dims(&p->data, codes, 4, e) < 0)
        return -1;
    return check_dims(&p->scales, scales, 3, e);
}

int model_packed_find(const struct modelfiles *f, const char *prefix,
                      const struct model_info *i, enum model_role role, int layer,
                      struct packed *ret, struct err *e)
{
    int r = (int)role - ROLE_EXP_GATE;
    bool down = rows[r].step == 1;
    struct packed p = {.rows = down ? i->n_embd : i->moe.n_ff,
                       .cols = down ? i->moe.n_ff : i->n_embd,
                       .step = rows[r].step,
                       .at = rows[r].at,
                       .bias = rows[r].bias};
    uint64_t n = (uint64_t)i->moe.n_expert, out = (uint64_t)p.rows * (uint64_t)p.step;
    const uint64_t bias[] = {n, out}, floats[] = {n, (uint64_t)p.cols, out};
    char stem[96];

    snprintf(stem, sizeof(stem), "%slayers.%d.mlp.experts.%s", prefix, layer,
             rows[r].base);
    if (!p.bias && find(f, &p, stem, "_scales", &p.scales) &&
        find(f, &p, stem, "_blocks", &p.data)) {
        if (check_mx(&p, n, e) < 0)
            return -1;
    } else {
        p.scales.data = NULL;
        if (!find(f, &p, stem, p.bias ? "_bias" : "", &p.data))
            return blame(e, ERR_CORRUPT, modelfiles_path(f), "tensor '%s%s' is missing",
                         p.name, p.bias ? "" : "' or '_blocks' with '_scales");
        if (check_type(&p.data, is_float(&p.data), "F32, F16 or BF16", e) < 0 ||
            check_dims(&p.data, p.bias ? bias : floats, p.bias ? 2 : 3, e) < 0)
            return -1;
    }
    if (p.at == 0) {
        p.n_tensors = p.scales.data ? 2 : 1;
        p.n_params = n * out * (p.bias ? 1 : (uint64_t)p.cols);
    }
    *ret = p;
    return 0;
}

void model_packed_get(const struct packed *p, int expert, struct model_tensor *ret)
{
    size_t step = (size_t)p->step, at = (size_t)p->at, x = (size_t)expert;
    size_t n_rows = (size_t)p->rows, cols = (size_t)p->cols;
    size_t blocks = cols / MX_BLOCK, row = x * n_rows * step + at;
    const char *data = p->data.data;
    struct model_tensor t = {.file = p->data.file, .rows = p->rows, .cols = p->cols};

    if (p->scales.data) {
        t.type = DT_MXFP4;
        t.form = TENSOR_MX;
        t.data = data + row * blocks * MX_BYTES;
        t.scales = (const uint8_t *)p->scales.data + row * blocks;
        t.row_step = step * blocks;
        t.bytes = n_rows * blocks * (MX_BYTES + 1);
    } else {
        size_t size = p->data.dtype == DT_F32 ? 4 : 2;
        t.type = (enum dtype)p->data.dtype;
        t.form = TENSOR_STRIDED;
        t.rows = p->bias ? 1 : p->rows;
        t.cols = p->bias ? p->rows : p->cols;
        t.row_step = step;
        t.col_step = p->bias ? step : step * n_rows;
        t.data = data + size * (p->bias ? row : x * n_rows * step * cols + at);
        t.bytes = size * (size_t)t.rows * (size_t)t.cols;
    }
    *ret = t;
}

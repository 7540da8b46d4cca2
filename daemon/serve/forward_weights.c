/* daemon/serve/forward_weights.c - from a model's tensors to matrices on the device.
 *
 * weights_roles says for each role its shape and use, weights_families which optional
 * roles a family has. Tensor by tensor: check the shape, hand it to the device, drop the
 * file's pages behind it, so that file and copy are never in memory together. */
#include "daemon/serve/forward_weights.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "kernels/backend.h"

/* ---- tables ---- */

/* Sizes that tensors are made of. */
enum dim { DIM_ONE, DIM_EMBD, DIM_Q, DIM_KV, DIM_HEAD, DIM_FF, DIM_VOCAB };

static const struct role_row {
    enum model_role role;
    bool per_layer, required;
    enum dim rows, cols;
    int use;
} weights_roles[] = {
    {ROLE_TOK_EMBD, false, true, DIM_VOCAB, DIM_EMBD, WEIGHT_LOOKUP},
    {ROLE_OUT_NORM, false, true, DIM_ONE, DIM_EMBD, WEIGHT_VECTOR},
    {ROLE_OUT_HEAD, false, false, DIM_VOCAB, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_ATTN_NORM, true, true, DIM_ONE, DIM_EMBD, WEIGHT_VECTOR},
    {ROLE_Q, true, true, DIM_Q, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_K, true, true, DIM_KV, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_V, true, true, DIM_KV, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_Q_BIAS, true, false, DIM_ONE, DIM_Q, WEIGHT_VECTOR},
    {ROLE_K_BIAS, true, false, DIM_ONE, DIM_KV, WEIGHT_VECTOR},
    {ROLE_V_BIAS, true, false, DIM_ONE, DIM_KV, WEIGHT_VECTOR},
    {ROLE_Q_NORM, true, false, DIM_ONE, DIM_HEAD, WEIGHT_VECTOR},
    {ROLE_K_NORM, true, false, DIM_ONE, DIM_HEAD, WEIGHT_VECTOR},
    {ROLE_O, true, true, DIM_EMBD, DIM_Q, WEIGHT_MATMUL},
    {ROLE_FFN_NORM, true, true, DIM_ONE, DIM_EMBD, WEIGHT_VECTOR},
    {ROLE_GATE, true, true, DIM_FF, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_UP, true, true, DIM_FF, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_DOWN, true, true, DIM_EMBD, DIM_FF, WEIGHT_MATMUL},
};
enum { N_ROLES = sizeof(weights_roles) / sizeof(weights_roles[0]) };

#define BIT(r) (1u << ROLE_##r)
#define QKV_BIAS (BIT(Q_BIAS) | BIT(K_BIAS) | BIT(V_BIAS))
#define QK_NORM (BIT(Q_NORM) | BIT(K_NORM))

/* Optional roles that a family must have, and those that it may have. */
static const struct family_row {
    unsigned must, may;
} weights_families[FAMILY_COUNT] = {
    [FAMILY_LLAMA] = {0, QKV_BIAS | BIT(OUT_HEAD)},
    [FAMILY_MISTRAL] = {0, QKV_BIAS | BIT(OUT_HEAD)},
    [FAMILY_QWEN2] = {QKV_BIAS, BIT(OUT_HEAD)},
    [FAMILY_QWEN3] = {QK_NORM, QKV_BIAS | BIT(OUT_HEAD)},
};

static const char *weights_role_name(enum model_role r)
{
    static const char *const names[] = {
#define X(id, gguf, hf, per_layer) gguf,
        MODEL_ROLE_MAP(X)
#undef X
    };
    return names[r];
}

static int weights_dim(const struct model_info *i, enum dim d)
{
    switch (d) {
    case DIM_EMBD:
        return i->n_embd;
    case DIM_Q:
        return i->n_head * i->head_dim;
    case DIM_KV:
        return i->n_kv_head * i->head_dim;
    case DIM_HEAD:
        return i->head_dim;
    case DIM_FF:
        return i->n_ff;
    case DIM_VOCAB:
        return i->n_vocab;
    default:
        return 1;
    }
}

/* ---- loading ---- */

struct loading {
    struct forward_weights *w;
    struct backend *b;
    struct model *m;
    forward_progress_fn progress;
    void *arg;
    size_t done_bytes, all_bytes;
};

/* Is this tensor one that the family has, and of the right shape? */
static int weights_check(const struct loading *l, const struct role_row *r, int layer,
                         const struct model_tensor *t, struct err *e)
{
    const struct model_info *i = &l->w->info;
    const struct family_row *fam = &weights_families[i->family];
    bool must = r->required || (fam->must & (1u << r->role));
    bool may = must || (fam->may & (1u << r->role));

    if (!t && must)
        return err_set(e, ERR_CORRUPT, "layer %d has no tensor %s", layer,
                       weights_role_name(r->role));
    if (!t)
        return 0;
    if (!may)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor '%s' is not part of its family",
                       t->file, t->name);
    int rows = weights_dim(i, r->rows), cols = weights_dim(i, r->cols);
    if (t->rows != rows || t->cols != cols)
        return err_set(
            e, ERR_CORRUPT,
            "%s: tensor '%s' is %d x %d where the model's sizes ask for %d x %d", t->file,
            t->name, t->rows, t->cols, rows, cols);
    return 0;
}

static int weights_load_one(struct loading *l, const struct role_row *r, int layer,
                            struct weight **ret, struct err *e)
{
    const struct model_tensor *t = model_tensor(l->m, r->role, layer);
    int use = r->use;

    if (weights_check(l, r, layer, t, e) < 0)
        return -1;
    if (!t)
        return 0;
    if (r->role == ROLE_TOK_EMBD && !model_tensor(l->m, ROLE_OUT_HEAD, 0))
        use |= WEIGHT_MATMUL;
    struct weight_src src = {t->name, t->type, t->rows, t->cols, t->data, use};
    if (weight_new(l->b, &src, ret, e) < 0)
        return err_wrap(e, "%s", t->file);
    model_drop_pages(l->m, t);
    l->done_bytes += t->bytes;
    if (l->progress && !l->progress(l->arg, (double)l->done_bytes / (double)l->all_bytes))
        return err_set(e, ERR_CANCELED, "loading was canceled");
    return 0;
}

static size_t weights_all_bytes(const struct model *m, int n_layer)
{
    size_t n = 1;

    for (int r = 0; r < N_ROLES; r++) {
        int layers = weights_roles[r].per_layer ? n_layer : 1;
        for (int i = 0; i < layers; i++) {
            const struct model_tensor *t = model_tensor(m, weights_roles[r].role, i);
            n += t ? t->bytes : 0;
        }
    }
    return n;
}

static int weights_load_rope(struct forward_weights *w, struct backend *b,
                             const struct model *m, struct err *e)
{
    int n = w->info.rope_dim / 2;
    float *inv = xcalloc((size_t)n + 1, sizeof(*inv));

    model_inv_freq(m, inv);
    struct weight_src src = {"rope frequencies", DT_F32, 1, n, inv, WEIGHT_VECTOR};
    int rc = weight_new(b, &src, &w->inv_freq, e);
    free(inv);
    return rc;
}

/* All roles of one layer, or (layer -1) those of the whole model. */
static int weights_load_layer(struct loading *l, int layer, struct weight **out,
                              struct err *e)
{
    for (int r = 0; r < N_ROLES; r++) {
        const struct role_row *row = &weights_roles[r];
        if (row->per_layer != (layer >= 0))
            continue;
        if (weights_load_one(l, row, layer < 0 ? 0 : layer, &out[row->role], e) < 0)
            return -1;
    }
    return 0;
}

int forward_weights_load(struct forward_weights *w, struct backend *b, struct model *m,
                         forward_progress_fn progress, void *arg, struct err *e)
{
    struct loading l = {w, b, m, progress, arg, 0, 0};

    w->info = *model_info(m);
    w->layers = xcalloc((size_t)w->info.n_layer, sizeof(*w->layers));
    l.all_bytes = weights_all_bytes(m, w->info.n_layer);
    if (weights_load_rope(w, b, m, e) < 0 || weights_load_layer(&l, -1, w->top, e) < 0)
        return -1;
    for (int i = 0; i < w->info.n_layer; i++)
        if (weights_load_layer(&l, i, w->layers[i].w, e) < 0)
            return -1;
    return 0;
}

void forward_weights_done(struct forward_weights *w)
{
    for (int i = 0; w->layers && i < w->info.n_layer; i++)
        for (int r = 0; r < ROLE_COUNT; r++)
            weight_free(w->layers[i].w[r]);
    for (int r = 0; r < ROLE_COUNT; r++)
        weight_free(w->top[r]);
    weight_free(w->inv_freq);
    free(w->layers);
    *w = (struct forward_weights){0};
}

const struct weight *forward_weights_head(const struct forward_weights *w)
{
    return w->top[ROLE_OUT_HEAD] ? w->top[ROLE_OUT_HEAD] : w->top[ROLE_TOK_EMBD];
}

/* daemon/serve/forward_weights.c - from a model's tensors to matrices on the device.
 *
 * weights_roles says for each role its shape and use, weights_families which optional
 * roles a family has. Tensor by tensor: check the shape, cut out the rank's part, hand it
 * to the device, drop the file's pages behind it, so that file and copy are never in
 * memory together. A part (forward_part.c) is cut along the sizes that the ranks share
 * (heads, KV heads, FFN width, vocabulary): rows of the file for a column-parallel
 * matrix, runs of each row for a row-parallel one. */
#include "daemon/serve/forward_weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/forward_cut.h"
#include "kernels/backend.h"
#include "kernels/comm.h"

/* ---- tables ---- */

/* Sizes that tensors are made of. */
enum dim {
    DIM_ONE,
    DIM_EMBD,
    DIM_Q,
    DIM_KV,
    DIM_QNORM,
    DIM_KNORM,
    DIM_FF,
    DIM_VOCAB,
    DIM_EXPERTS,
    DIM_FF_EXPERT,
    DIM_FF_SHARED,
    DIM_HEADS,
    DIM_O,
    DIM_Q_LORA,
    DIM_KV_LORA,
    DIM_KV_A
};

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
    {ROLE_Q, true, false, DIM_Q, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_K, true, false, DIM_KV, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_V, true, false, DIM_KV, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_Q_BIAS, true, false, DIM_ONE, DIM_Q, WEIGHT_VECTOR},
    {ROLE_K_BIAS, true, false, DIM_ONE, DIM_KV, WEIGHT_VECTOR},
    {ROLE_V_BIAS, true, false, DIM_ONE, DIM_KV, WEIGHT_VECTOR},
    {ROLE_Q_NORM, true, false, DIM_ONE, DIM_QNORM, WEIGHT_VECTOR},
    {ROLE_K_NORM, true, false, DIM_ONE, DIM_KNORM, WEIGHT_VECTOR},
    {ROLE_Q_A, true, false, DIM_Q_LORA, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_Q_A_NORM, true, false, DIM_ONE, DIM_Q_LORA, WEIGHT_VECTOR},
    {ROLE_Q_B, true, false, DIM_Q, DIM_Q_LORA, WEIGHT_MATMUL},
    {ROLE_KV_A, true, false, DIM_KV_A, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_KV_A_NORM, true, false, DIM_ONE, DIM_KV_LORA, WEIGHT_VECTOR},
    {ROLE_O, true, true, DIM_EMBD, DIM_O, WEIGHT_MATMUL},
    {ROLE_O_BIAS, true, false, DIM_ONE, DIM_EMBD, WEIGHT_VECTOR},
    {ROLE_SINKS, true, false, DIM_ONE, DIM_HEADS, WEIGHT_VECTOR},
    {ROLE_FFN_NORM, true, true, DIM_ONE, DIM_EMBD, WEIGHT_VECTOR},
    {ROLE_GATE, true, false, DIM_FF, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_UP, true, false, DIM_FF, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_DOWN, true, false, DIM_EMBD, DIM_FF, WEIGHT_MATMUL},
    {ROLE_ROUTER, true, false, DIM_EXPERTS, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_ROUTER_BIAS, true, false, DIM_ONE, DIM_EXPERTS, WEIGHT_VECTOR},
    {ROLE_CHOICE_BIAS, true, false, DIM_ONE, DIM_EXPERTS, WEIGHT_VECTOR},
    {ROLE_SH_ROUTER, true, false, DIM_ONE, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_SH_GATE, true, false, DIM_FF_SHARED, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_SH_UP, true, false, DIM_FF_SHARED, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_SH_DOWN, true, false, DIM_EMBD, DIM_FF_SHARED, WEIGHT_MATMUL},
    {ROLE_EXP_GATE, true, false, DIM_FF_EXPERT, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_EXP_UP, true, false, DIM_FF_EXPERT, DIM_EMBD, WEIGHT_MATMUL},
    {ROLE_EXP_DOWN, true, false, DIM_EMBD, DIM_FF_EXPERT, WEIGHT_MATMUL},
    {ROLE_EXP_GATE_BIAS, true, false, DIM_ONE, DIM_FF_EXPERT, WEIGHT_VECTOR},
    {ROLE_EXP_UP_BIAS, true, false, DIM_ONE, DIM_FF_EXPERT, WEIGHT_VECTOR},
    {ROLE_EXP_DOWN_BIAS, true, false, DIM_ONE, DIM_EMBD, WEIGHT_VECTOR},
};
enum { N_ROLES = sizeof(weights_roles) / sizeof(weights_roles[0]) };

#define BIT(r) (UINT64_C(1) << ROLE_##r)
#define QKV_BIAS (BIT(Q_BIAS) | BIT(K_BIAS) | BIT(V_BIAS))
#define QK_NORM (BIT(Q_NORM) | BIT(K_NORM))
#define FFN (BIT(GATE) | BIT(UP) | BIT(DOWN))
#define EXPERTS (BIT(ROUTER) | BIT(EXP_GATE) | BIT(EXP_UP) | BIT(EXP_DOWN))
#define QKV (BIT(Q) | BIT(K) | BIT(V))
#define LATENT (BIT(KV_A) | BIT(KV_A_NORM))
#define Q_ANY (BIT(Q) | BIT(Q_A) | BIT(Q_A_NORM) | BIT(Q_B))
#define BIASES                                                                           \
    (BIT(O_BIAS) | BIT(ROUTER_BIAS) | BIT(EXP_GATE_BIAS) | BIT(EXP_UP_BIAS) |            \
     BIT(EXP_DOWN_BIAS))
#define SHARED (BIT(SH_GATE) | BIT(SH_UP) | BIT(SH_DOWN))

/* Optional roles that a family must have, and those that it may have. */
static const struct family_row {
    uint64_t must, may;
} weights_families[FAMILY_COUNT] = {
    [FAMILY_LLAMA] = {QKV | FFN, QKV_BIAS | BIT(OUT_HEAD)},
    [FAMILY_MISTRAL] = {QKV | FFN, QKV_BIAS | BIT(OUT_HEAD)},
    [FAMILY_QWEN2] = {QKV | QKV_BIAS | FFN, BIT(OUT_HEAD)},
    [FAMILY_QWEN3] = {QKV | QK_NORM | FFN, QKV_BIAS | BIT(OUT_HEAD)},
    [FAMILY_MIXTRAL] = {QKV | EXPERTS, BIT(OUT_HEAD)},
    [FAMILY_QWEN2_MOE] = {QKV | QKV_BIAS | EXPERTS,
                          SHARED | BIT(SH_ROUTER) | BIT(OUT_HEAD)},
    [FAMILY_QWEN3_MOE] = {QKV | QK_NORM | EXPERTS, QKV_BIAS | BIT(OUT_HEAD)},
    [FAMILY_OLMOE] = {QKV | QK_NORM | EXPERTS, BIT(OUT_HEAD)},
    [FAMILY_GPT_OSS] = {QKV | QKV_BIAS | EXPERTS | BIASES | BIT(SINKS), BIT(OUT_HEAD)},
    [FAMILY_DEEPSEEK_V2] = {LATENT | FFN | EXPERTS,
                            Q_ANY | SHARED | BIT(CHOICE_BIAS) | BIT(OUT_HEAD)},
    [FAMILY_DEEPSEEK_V3] = {LATENT | FFN | EXPERTS,
                            Q_ANY | SHARED | BIT(CHOICE_BIAS) | BIT(OUT_HEAD)},
    [FAMILY_KIMI_K2] = {LATENT | FFN | EXPERTS,
                        Q_ANY | SHARED | BIT(CHOICE_BIAS) | BIT(OUT_HEAD)},
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

/* ---- sizes ---- */

/* The size of a dimension in the file. */
static int weights_dim(const struct model_info *i, enum dim d)
{
    switch (d) {
    case DIM_EMBD:
        return i->n_embd;
    case DIM_Q:
        return model_q_dim(i);
    case DIM_O:
        return model_o_dim(i);
    case DIM_Q_LORA:
        return i->mla.q_lora;
    case DIM_KV_LORA:
        return i->mla.kv_lora;
    case DIM_KV_A:
        return i->mla.kv_lora + i->mla.rope;
    case DIM_KV:
        return i->n_kv_head * i->head_dim;
    case DIM_QNORM:
        return i->qk_norm_full ? i->n_head * i->head_dim : i->head_dim;
    case DIM_KNORM:
        return i->qk_norm_full ? i->n_kv_head * i->head_dim : i->head_dim;
    case DIM_EXPERTS:
        return i->moe.n_expert;
    case DIM_FF_EXPERT:
        return i->moe.n_ff;
    case DIM_FF_SHARED:
        return i->moe.n_ff_shared;
    case DIM_FF:
        return i->n_ff;
    case DIM_VOCAB:
        return i->n_vocab;
    case DIM_HEADS:
        return i->n_head;
    default:
        return 1;
    }
}

/* The rank's run of a dimension. */
static struct run weights_run(const struct forward_weights *w, enum dim dim)
{
    const struct forward_dims *d = &w->d;
    int hd = w->info.head_dim;

    switch (dim) {
    case DIM_Q:
        return (struct run){d->q_dim * d->tp_at, d->q_dim};
    case DIM_O:
        return (struct run){d->o_dim * d->tp_at, d->o_dim};
    case DIM_KV:
        return (struct run){d->kv_from * hd, d->kv_dim};
    case DIM_QNORM: /* over all heads: as these are cut */
        return w->info.qk_norm_full ? (struct run){d->q_dim * d->tp_at, d->q_dim}
                                    : (struct run){0, hd};
    case DIM_KNORM:
        return w->info.qk_norm_full ? (struct run){d->kv_from * hd, d->kv_dim}
                                    : (struct run){0, hd};
    case DIM_FF:
        return (struct run){d->ff_from, d->n_ff};
    case DIM_HEADS: /* used at attention only */
        return (struct run){d->head_from + d->cp_u_at * d->n_attn_head, d->n_attn_head};
    case DIM_VOCAB:
        return (struct run){d->vocab_from, d->n_vocab};
    case DIM_FF_EXPERT:
        return (struct run){d->ff_expert_from, d->n_ff_expert};
    case DIM_FF_SHARED:
        return (struct run){d->ff_shared_from, d->n_ff_shared};
    default:
        return (struct run){0, weights_dim(&w->info, dim)};
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

/* Layers have a plain FFN or experts. */
static bool weights_in_layer(const struct model_info *i, enum model_role role, int layer)
{
    bool moe = model_moe_layer(i, layer);

    if (role == ROLE_GATE || role == ROLE_UP || role == ROLE_DOWN)
        return !moe;
    return role < ROLE_ROUTER || moe;
}

/* The bias of a product that the group sums up is added by one member alone. */
static bool weights_elsewhere(const struct forward_weights *w, enum model_role role)
{
    bool cut = w->d.n_ff_expert < w->info.moe.n_ff;

    return w->d.tp_at > 0 && (role == ROLE_O_BIAS || (role == ROLE_EXP_DOWN_BIAS && cut));
}

/* Is this tensor one that the family has, and of the right shape? */
static int weights_check(const struct loading *l, const struct role_row *r, int layer,
                         const struct model_tensor *t, struct err *e)
{
    const struct model_info *i = &l->w->info;
    const struct family_row *fam = &weights_families[i->family];
    bool must = r->required ||
                ((fam->must >> r->role & 1) && weights_in_layer(i, r->role, layer));
    bool may = must || (fam->may >> r->role & 1);

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

/* A part of a tensor to the device; turned: with rows and columns exchanged. */
static int weights_put(struct loading *l, const struct model_tensor *t, struct run rows,
                       struct run cols, bool turned, int use, struct weight **ret,
                       struct err *e)
{
    struct weight_src src = {.name = t->name, .flags = use};
    void *copy = NULL;
    int rc = turned ? forward_cut_turned(t, rows, cols, &src, &copy, e)
                    : forward_cut(t, rows, cols, &src, &copy, e);

    if (rc == 0)
        rc = weight_new(l->b, &src, ret, e);
    free(copy);
    return rc < 0 ? err_wrap(e, "%s", t->file) : 0;
}

static int weights_done_with(struct loading *l, const struct model_tensor *t,
                             struct err *e)
{
    model_drop_pages(l->m, t);
    l->done_bytes += t->bytes;
    if (l->progress && !l->progress(l->arg, (double)l->done_bytes / (double)l->all_bytes))
        return err_set(e, ERR_CANCELED, "loading was canceled");
    return 0;
}

static int weights_load_one(struct loading *l, const struct role_row *r, int layer,
                            const struct model_tensor *t, struct weight **ret,
                            struct err *e)
{
    int use = r->use;

    if (weights_check(l, r, layer, t, e) < 0)
        return -1;
    if (!t || weights_elsewhere(l->w, r->role))
        return 0;
    if (r->role == ROLE_TOK_EMBD && !model_tensor(l->m, ROLE_OUT_HEAD, 0))
        use |= WEIGHT_MATMUL;
    if (weights_put(l, t, weights_run(l->w, r->rows), weights_run(l->w, r->cols), false,
                    use, ret, e) < 0)
        return -1;
    return weights_done_with(l, t, e);
}

/* A matrix whose product is summed up: the rank's columns in pieces. */
static int weights_load_sum(struct loading *l, const struct role_row *r, int layer,
                            const struct model_tensor *t, struct forward_layer *out,
                            struct err *e)
{
    const struct run rows = weights_run(l->w, r->rows), cols = weights_run(l->w, r->cols);
    int n = l->w->d.n_piece, each = cols.n / n;

    if (weights_check(l, r, layer, t, e) < 0)
        return -1;
    if (!t)
        return 0;
    struct weight **rest = xcalloc((size_t)n, sizeof(struct weight *));
    out->pieces[r->role == ROLE_O ? SUM_O : SUM_DOWN] = rest;
    for (int p = 0; p < n; p++)
        if (weights_put(l, t, rows, (struct run){cols.from + p * each, each}, false,
                        r->use, p ? &rest[p - 1] : &out->w[r->role], e) < 0)
            return -1;
    return weights_done_with(l, t, e);
}

/* Does this stage hold a role of the whole model? */
static bool weights_in_stage(const struct loading *l, enum model_role role)
{
    const struct forward_dims *d = &l->w->d;
    bool tied = !model_tensor(l->m, ROLE_OUT_HEAD, 0);

    if (role == ROLE_TOK_EMBD)
        return d->first || (d->last && tied);
    return d->last;
}

/* Of the file, that this rank looks at: what progress is a share of. */
static size_t weights_all_bytes(const struct loading *l)
{
    const struct forward_dims *d = &l->w->d;
    size_t n = 1;

    for (int i = d->first_layer; i < d->first_layer + d->n_layer; i++)
        for (int r = ROLE_KV_B; r <= ROLE_V_B; r++) {
            const struct model_tensor *t = model_tensor(l->m, (enum model_role)r, i);
            n += t ? t->bytes : 0;
        }
    for (int r = 0; r < N_ROLES; r++) {
        const struct role_row *row = &weights_roles[r];
        int first = row->per_layer ? d->first_layer : 0;
        int count = row->per_layer ? d->n_layer : weights_in_stage(l, row->role);
        for (int i = first; i < first + count; i++) {
            const struct model_tensor *t = model_tensor(l->m, row->role, i);
            n += t ? t->bytes : 0;
            for (int x = d->expert_from; x < d->expert_from + d->n_home; x++) {
                t = model_role_is_expert(row->role) ? model_expert(l->m, row->role, i, x)
                                                    : NULL;
                n += t ? t->bytes : 0;
            }
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

/* The experts that stand here, one role of them. */
static int weights_load_experts(struct loading *l, const struct role_row *r, int layer,
                                struct forward_layer *out, struct err *e)
{
    const struct forward_dims *d = &l->w->d;
    struct weight **w;

    if (!model_moe_layer(&l->w->info, layer) ||
        !model_expert(l->m, r->role, layer, d->expert_from) ||
        weights_elsewhere(l->w, r->role))
        return 0;
    w = xcalloc((size_t)d->n_slot + 1, sizeof(struct weight *));
    out->experts[r->role - ROLE_EXP_GATE] = w;
    for (int i = 0; i < d->n_home; i++) {
        const struct model_tensor *t =
            model_expert(l->m, r->role, layer, d->expert_from + i);
        if (weights_load_one(l, r, layer, t, &w[i], e) < 0)
            return -1;
    }
    return 0;
}

/* The rank's heads of what makes K and V from the latent, as op_heads takes them: K's the
 * other way round, [kv_lora, nope], since it is q that is multiplied. */
static int weights_load_latent(struct loading *l, int layer, struct forward_layer *out,
                               struct err *e)
{
    const struct model_mla *a = &l->w->info.mla;
    const struct forward_dims *d = &l->w->d;
    const struct model_tensor *whole = model_tensor(l->m, ROLE_KV_B, layer);
    const struct model_tensor *k = model_tensor(l->m, ROLE_K_B, layer);
    const struct model_tensor *v = model_tensor(l->m, ROLE_V_B, layer);
    const struct run nope = {0, a->nope}, latent = {0, a->kv_lora};

    if (!a->kv_lora)
        return 0;
    if (!whole && (!k || !v))
        return err_set(e, ERR_CORRUPT, "layer %d has no tensor %s", layer,
                       weights_role_name(ROLE_KV_B));
    for (int p = 0; p < 2; p++)
        out->heads[p] = xcalloc((size_t)d->n_head + 1, sizeof(struct weight *));
    for (int h = 0; h < d->n_head; h++) {
        int head = d->head_from + h, from = head * (a->nope + a->v), rc;
        if (whole)
            rc = weights_put(l, whole, (struct run){from, a->nope}, latent, true,
                             WEIGHT_MATMUL, &out->heads[0][h], e);
        else
            rc = weights_put(l, k, (struct run){head * a->kv_lora, a->kv_lora}, nope,
                             false, WEIGHT_MATMUL, &out->heads[0][h], e);
        if (rc < 0 ||
            weights_put(l, whole ? whole : v,
                        (struct run){whole ? from + a->nope : head * a->v, a->v}, latent,
                        false, WEIGHT_MATMUL, &out->heads[1][h], e) < 0)
            return -1;
    }
    const struct model_tensor *parts[] = {whole, whole ? NULL : k, whole ? NULL : v};
    for (int p = 0; p < 3; p++)
        if (parts[p] && weights_done_with(l, parts[p], e) < 0)
            return -1;
    return 0;
}

/* All roles of one layer, or (layer -1) those of the whole model. */
static int weights_load_layer(struct loading *l, int layer, struct weight **out,
                              struct forward_layer *here, struct err *e)
{
    for (int r = 0; r < N_ROLES; r++) {
        const struct role_row *row = &weights_roles[r];
        if (row->per_layer != (layer >= 0) ||
            (layer < 0 && !weights_in_stage(l, row->role)))
            continue;
        int at = layer < 0 ? 0 : layer;
        const struct model_tensor *t = model_tensor(l->m, row->role, at);
        int rc = model_role_is_expert(row->role)
                     ? weights_load_experts(l, row, at, here, e)
                 : row->role == ROLE_O || row->role == ROLE_DOWN
                     ? weights_load_sum(l, row, at, t, here, e)
                     : weights_load_one(l, row, at, t, &out[row->role], e);
        if (rc < 0)
            return -1;
    }
    return 0;
}

int forward_weights_load(struct forward_weights *w, struct backend *b, struct model *m,
                         const struct forward_part *part, forward_progress_fn progress,
                         void *arg, struct err *e)
{
    struct loading l = {w, b, m, progress, arg, 0, 0};

    w->info = *model_info(m);
    if (forward_part_check(&w->info, part, e) < 0)
        return -1;
    forward_dims_of(&w->info, part, &w->d);
    w->layers = xcalloc((size_t)w->d.n_layer, sizeof(*w->layers));
    l.all_bytes = weights_all_bytes(&l);
    if (weights_load_rope(w, b, m, e) < 0 ||
        weights_load_layer(&l, -1, w->top, NULL, e) < 0)
        return -1;
    for (int i = 0; i < w->d.n_layer; i++)
        if (weights_load_layer(&l, w->d.first_layer + i, w->layers[i].w, &w->layers[i],
                               e) < 0 ||
            weights_load_latent(&l, w->d.first_layer + i, &w->layers[i], e) < 0)
            return -1;
    return 0;
}

void forward_weights_done(struct forward_weights *w)
{
    for (int i = 0; w->layers && i < w->d.n_layer; i++) {
        for (int r = 0; r < ROLE_COUNT; r++)
            weight_free(w->layers[i].w[r]);
        for (int k = 0; k < N_SUMS; k++) {
            struct weight **x = w->layers[i].pieces[k];
            for (int p = 0; x && p < w->d.n_piece - 1; p++)
                weight_free(x[p]);
            free(x);
        }
        for (int k = 0; k < 2; k++) {
            struct weight **x = w->layers[i].heads[k];
            for (int h = 0; x && h < w->d.n_head; h++)
                weight_free(x[h]);
            free(x);
        }
        for (int k = 0; k < MODEL_EXPERT_ROLES; k++) {
            struct weight **x = w->layers[i].experts[k];
            for (int s = 0; x && s < w->d.n_slot; s++)
                weight_free(x[s]);
            free(x);
        }
    }
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

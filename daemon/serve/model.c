/* See model.h. Open, in this order: map and parse the files (modelfiles), read the
 * hyper-parameters (modelinfo), find each tensor that they ask for and hold its type and
 * shape against them, then look at what is left over. Left-over tensors are counted and
 * passed over, but for biases and norms inside a layer: without them the model would
 * answer, and wrongly, so they are refused.
 *
 * Tensors stay in the map. Only where a file puts one at an address that its element type
 * cannot have (old safetensors files do) is it copied. */
#include "daemon/serve/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/blame.h"
#include "daemon/serve/map.h"
#include "daemon/serve/modelfiles.h"
#include "daemon/serve/modelinfo.h"

enum dim {
    D_ONE,
    D_EMBD,
    D_Q,
    D_KV,
    D_QNORM,
    D_KNORM,
    D_FF,
    D_VOCAB,
    D_ROPE,
    D_EXPERTS,
    D_FF_EXPERT,
    D_FF_SHARED
};
enum need {
    N_ALWAYS,
    N_HEAD,
    N_FREQS,
    N_BIAS,
    N_NORM,
    N_FFN,
    N_MOE,
    N_SHARED,
    N_SH_GATE
};

static const struct {
    const char *gguf, *hf;
    bool per_layer;
} names[ROLE_COUNT] = {
#define X(id, gguf, hf, per_layer) {gguf, hf, per_layer},
    MODEL_ROLE_MAP(X)
#undef X
};

static const struct {
    enum dim rows, cols;
    enum need need;
} shapes[ROLE_COUNT] = {
    [ROLE_TOK_EMBD] = {D_VOCAB, D_EMBD, N_ALWAYS},
    [ROLE_OUT_NORM] = {D_ONE, D_EMBD, N_ALWAYS},
    [ROLE_OUT_HEAD] = {D_VOCAB, D_EMBD, N_HEAD},
    [ROLE_ROPE_FREQS] = {D_ONE, D_ROPE, N_FREQS},
    [ROLE_ATTN_NORM] = {D_ONE, D_EMBD, N_ALWAYS},
    [ROLE_Q] = {D_Q, D_EMBD, N_ALWAYS},
    [ROLE_K] = {D_KV, D_EMBD, N_ALWAYS},
    [ROLE_V] = {D_KV, D_EMBD, N_ALWAYS},
    [ROLE_Q_BIAS] = {D_ONE, D_Q, N_BIAS},
    [ROLE_K_BIAS] = {D_ONE, D_KV, N_BIAS},
    [ROLE_V_BIAS] = {D_ONE, D_KV, N_BIAS},
    [ROLE_Q_NORM] = {D_ONE, D_QNORM, N_NORM},
    [ROLE_K_NORM] = {D_ONE, D_KNORM, N_NORM},
    [ROLE_O] = {D_EMBD, D_Q, N_ALWAYS},
    [ROLE_FFN_NORM] = {D_ONE, D_EMBD, N_ALWAYS},
    [ROLE_GATE] = {D_FF, D_EMBD, N_FFN},
    [ROLE_UP] = {D_FF, D_EMBD, N_FFN},
    [ROLE_DOWN] = {D_EMBD, D_FF, N_FFN},
    [ROLE_ROUTER] = {D_EXPERTS, D_EMBD, N_MOE},
    [ROLE_SH_ROUTER] = {D_ONE, D_EMBD, N_SH_GATE},
    [ROLE_SH_GATE] = {D_FF_SHARED, D_EMBD, N_SHARED},
    [ROLE_SH_UP] = {D_FF_SHARED, D_EMBD, N_SHARED},
    [ROLE_SH_DOWN] = {D_EMBD, D_FF_SHARED, N_SHARED},
    [ROLE_EXP_GATE] = {D_FF_EXPERT, D_EMBD, N_MOE},
    [ROLE_EXP_UP] = {D_FF_EXPERT, D_EMBD, N_MOE},
    [ROLE_EXP_DOWN] = {D_EMBD, D_FF_EXPERT, N_MOE},
};

/* Families that call a role otherwise in a folder. */
static const struct {
    enum model_family family;
    enum model_role role;
    const char *hf;
} other_names[] = {
    {FAMILY_MIXTRAL, ROLE_ROUTER, "block_sparse_moe.gate.weight"},
    {FAMILY_MIXTRAL, ROLE_EXP_GATE, "block_sparse_moe.experts.%d.w1.weight"},
    {FAMILY_MIXTRAL, ROLE_EXP_UP, "block_sparse_moe.experts.%d.w3.weight"},
    {FAMILY_MIXTRAL, ROLE_EXP_DOWN, "block_sparse_moe.experts.%d.w2.weight"},
};

/* What a family always has; others have it when the file does. */
static const struct {
    const char *name;
    bool qkv_bias, qk_norm;
} families[FAMILY_COUNT] = {
    [FAMILY_LLAMA] = {"llama", false, false},
    [FAMILY_MISTRAL] = {"mistral", false, false},
    [FAMILY_QWEN2] = {"qwen2", true, false},
    [FAMILY_QWEN3] = {"qwen3", false, true},
    [FAMILY_MIXTRAL] = {"mixtral", false, false},
    [FAMILY_QWEN2_MOE] = {"qwen2_moe", true, false},
    [FAMILY_QWEN3_MOE] = {"qwen3_moe", false, true},
    [FAMILY_OLMOE] = {"olmoe", false, true},
};

struct model {
    struct model_info info;
    struct modelfiles *files;
    struct arena *arena;          /* owns the names of tensors */
    const char *prefix;           /* of a folder's tensor names */
    struct model_tensor *tensors; /* [n_layer + 1][ROLE_COUNT]; row 0: not per layer */
    struct model_tensor *experts; /* [n_layer][gate, up, down][n_expert] */
    void **copies;
    size_t n_copies;
};

struct tensor_name {
    char s[96];
};

static const char *hf_name(const struct model *m, enum model_role role)
{
    for (size_t i = 0; i < sizeof(other_names) / sizeof(other_names[0]); i++)
        if (other_names[i].family == m->info.family && other_names[i].role == role)
            return other_names[i].hf;
    return names[role].hf;
}

/* expert: its number where a folder has a tensor for each. */
static const char *role_name(const struct model *m, enum model_role role, int layer,
                             int expert, struct tensor_name *n)
{
    bool gguf = modelfiles_gguf(m->files) != NULL;
    const char *s = gguf ? names[role].gguf : hf_name(m, role);
    const char *number = gguf ? NULL : strstr(s, "%d");
    char part[72];

    if (number) {
        snprintf(part, sizeof(part), "%.*s%d%s", (int)(number - s), s, expert,
                 number + 2);
        s = part;
    }
    if (names[role].per_layer && gguf)
        snprintf(n->s, sizeof(n->s), "blk.%d.%s", layer, s);
    else if (names[role].per_layer)
        snprintf(n->s, sizeof(n->s), "%slayers.%d.%s", m->prefix, layer, s);
    else if (!gguf && !strncmp(s, "model.", 6))
        snprintf(n->s, sizeof(n->s), "%s%s", m->prefix, s + 6);
    else
        snprintf(n->s, sizeof(n->s), "%s", s);
    return n->s;
}

static bool has_role(const struct model *m, enum model_role role, int layer)
{
    struct file_tensor t;
    struct tensor_name n;

    return modelfiles_find(m->files, role_name(m, role, layer, 0, &n), &t);
}

static int dim_of(const struct model_info *i, enum dim d)
{
    switch (d) {
    case D_EMBD:
        return i->n_embd;
    case D_Q:
        return i->n_head * i->head_dim;
    case D_KV:
        return i->n_kv_head * i->head_dim;
    case D_QNORM:
        return i->qk_norm_full ? i->n_head * i->head_dim : i->head_dim;
    case D_KNORM:
        return i->qk_norm_full ? i->n_kv_head * i->head_dim : i->head_dim;
    case D_EXPERTS:
        return i->moe.n_expert;
    case D_FF_EXPERT:
        return i->moe.n_ff;
    case D_FF_SHARED:
        return i->moe.n_ff_shared;
    case D_FF:
        return i->n_ff;
    case D_VOCAB:
        return i->n_vocab;
    case D_ROPE:
        return i->rope_dim / 2;
    default:
        return 1;
    }
}

static bool needed(const struct model *m, enum model_role role, int layer)
{
    const struct model_info *i = &m->info;
    bool moe = model_moe_layer(i, layer);

    switch (shapes[role].need) {
    case N_HEAD:
        return !i->tied_head;
    case N_FREQS:
        return i->rope_scaling == ROPE_LLAMA3 && !i->rope_orig_ctx;
    case N_BIAS:
        return i->qkv_bias;
    case N_NORM:
        return i->qk_norm;
    case N_FFN:
        return !moe;
    case N_MOE:
        return moe;
    case N_SHARED:
        return moe && i->moe.n_ff_shared;
    case N_SH_GATE:
        return moe && i->moe.shared_gate;
    default:
        return true;
    }
}

/* ---- one tensor ---- */

static int check_tensor(const struct model *m, enum model_role role,
                        const struct file_tensor *t, uint64_t planes, struct err *e)
{
    uint64_t rows = (uint64_t)dim_of(&m->info, shapes[role].rows);
    uint64_t cols = (uint64_t)dim_of(&m->info, shapes[role].cols);
    bool vector = shapes[role].rows == D_ONE;
    struct blame_name b;

    blame_name(&b, t->name, t->name_len);
    if (vector && t->dtype != DT_F32 && t->dtype != DT_F16 && t->dtype != DT_BF16)
        return blame(e, ERR_UNSUPPORTED, t->file,
                     "tensor '%s' is of type %s; a vector may be F32, F16 or BF16", b.s,
                     t->type);
    if (t->dtype < 0)
        return blame(e, ERR_UNSUPPORTED, t->file,
                     "tensor '%s' is of type %s, which is not supported; supported: "
#define X(id, name, elems, bytes, gguf) name " "
                     DTYPE_MAP(X)
#undef X
                         "(of these F32, F16 and BF16 in safetensors)",
                     b.s, t->type);
    if (t->planes != planes && planes > 1)
        return blame(e, ERR_CORRUPT, t->file,
                     "tensor '%s' is of %llu experts; this model has %llu", b.s,
                     (unsigned long long)t->planes, (unsigned long long)planes);
    if (t->rows != rows || t->cols != cols || t->planes != planes) {
        if (!t->rows || t->planes != planes)
            return blame(e, ERR_CORRUPT, t->file,
                         "tensor '%s' has more than two dimensions; right is %llu x %llu "
                         "(rows x columns)",
                         b.s, (unsigned long long)rows, (unsigned long long)cols);
        return blame(
            e, ERR_CORRUPT, t->file,
            "tensor '%s' is %llu x %llu (rows x columns); right for this model is "
            "%llu x %llu",
            b.s, (unsigned long long)t->rows, (unsigned long long)t->cols,
            (unsigned long long)rows, (unsigned long long)cols);
    }
    return 0;
}

static int aligned_copy(struct model *m, struct model_tensor *t, struct err *e)
{
    size_t need = t->type == DT_F32 ? 4 : 2;
    void **list, *p;

    if ((uintptr_t)t->data % need == 0)
        return 0;
    list = try_realloc(m->copies, (m->n_copies + 1) * sizeof(*list));
    if (list)
        m->copies = list;
    p = list ? try_malloc(t->bytes) : NULL;
    if (!p)
        return blame(e, ERR_NOMEM, t->file,
                     "no memory for %zu bytes to align tensor '%s'", t->bytes, t->name);
    m->copies[m->n_copies++] = p;
    memcpy(p, t->data, t->bytes);
    modelfiles_drop(m->files, t->data, t->bytes);
    t->data = p;
    return 0;
}

static int find_tensor(const struct model *m, enum model_role role, const char *name,
                       struct file_tensor *ret, struct err *e)
{
    if (modelfiles_find(m->files, name, ret))
        return 0;
    return blame(e, ERR_CORRUPT, modelfiles_path(m->files),
                 "tensor '%s' is missing: a %s model with %d layers needs it, with "
                 "%d x %d values (rows x columns)",
                 name, families[m->info.family].name, m->info.n_layer,
                 dim_of(&m->info, shapes[role].rows),
                 dim_of(&m->info, shapes[role].cols));
}

static struct model_tensor tensor_of(struct model *m, const char *name,
                                     const struct file_tensor *t)
{
    return (struct model_tensor){
        .name = arena_strndup(m->arena, name, strlen(name)),
        .file = t->file,
        .type = (enum dtype)t->dtype,
        .rows = (int)t->rows,
        .cols = (int)t->cols,
        .data = t->data,
        .bytes = t->bytes / t->planes,
    };
}

/* The tensors of all experts of a layer: planes of one, or one each. */
static int load_experts(struct model *m, enum model_role role, int layer, struct err *e)
{
    int n = m->info.moe.n_expert;
    bool merged = modelfiles_gguf(m->files) != NULL;
    struct model_tensor *out =
        m->experts + ((size_t)layer * 3 + (size_t)(role - ROLE_EXP_GATE)) * (size_t)n;
    struct tensor_name name;
    struct file_tensor t;

    for (int x = 0; x < n; x++) {
        if (!merged || x == 0) {
            role_name(m, role, layer, x, &name);
            if (find_tensor(m, role, name.s, &t, e) < 0 ||
                check_tensor(m, role, &t, merged ? (uint64_t)n : 1, e) < 0)
                return -1;
            m->info.n_tensors++;
            m->info.n_params += t.rows * t.cols * t.planes;
        }
        out[x] = tensor_of(m, name.s, &t);
        if (merged)
            out[x].data = (const char *)t.data + (size_t)x * out[x].bytes;
        if (aligned_copy(m, &out[x], e) < 0)
            return -1;
    }
    return 0;
}

static int load_role(struct model *m, enum model_role role, int layer, struct err *e)
{
    struct model_tensor *out =
        &m->tensors[(size_t)(names[role].per_layer ? layer + 1 : 0) * ROLE_COUNT + role];
    struct tensor_name n;
    struct file_tensor t;

    if (model_role_is_expert(role))
        return load_experts(m, role, layer, e);
    role_name(m, role, layer, 0, &n);
    if (find_tensor(m, role, n.s, &t, e) < 0 || check_tensor(m, role, &t, 1, e) < 0)
        return -1;
    *out = tensor_of(m, n.s, &t);
    m->info.n_tensors++;
    if (role != ROLE_ROPE_FREQS) /* a rule, not learnt */
        m->info.n_params += t.rows * t.cols;
    return aligned_copy(m, out, e);
}

static int load_tensors(struct model *m, struct err *e)
{
    size_t layers = (size_t)m->info.n_layer, experts = (size_t)m->info.moe.n_expert;

    m->tensors = try_calloc((layers + 1) * ROLE_COUNT, sizeof(*m->tensors));
    m->experts = try_calloc(layers * 3 * experts + 1, sizeof(*m->experts));
    if (!m->tensors || !m->experts)
        return blame(e, ERR_NOMEM, modelfiles_path(m->files),
                     "no memory for the tensor table of %d layers", m->info.n_layer);
    for (int role = 0; role < ROLE_COUNT; role++) {
        int n = names[role].per_layer ? m->info.n_layer : 1;

        for (int layer = 0; layer < n; layer++)
            if (needed(m, role, layer) && load_role(m, role, layer, e) < 0)
                return -1;
    }
    return 0;
}

/* ---- what is left over ---- */

/* The part of a tensor's name after "blk.N." or "model.layers.N.", and N; or NULL. */
static const char *layer_part(const struct model *m, const char *name, int *ret_layer)
{
    const char *head = "blk.";
    char *end;
    long layer;

    if (!modelfiles_gguf(m->files)) {
        size_t n = strlen(m->prefix);

        if (strncmp(name, m->prefix, n) != 0)
            return NULL;
        name += n;
        head = "layers.";
    }
    if (strncmp(name, head, strlen(head)) != 0)
        return NULL;
    name += strlen(head);
    layer = strtol(name, &end, 10);
    if (end == name || *end != '.' || layer < 0 || layer >= m->info.n_layer)
        return NULL;
    *ret_layer = (int)layer;
    return end + 1;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);

    return n >= k && !strcmp(s + n - k, tail);
}

static int check_left_over(struct model *m, const struct file_tensor *t, struct err *e)
{
    bool gguf = modelfiles_gguf(m->files) != NULL;
    char name[256];
    const char *part;
    int layer;

    if (t->name_len >= sizeof(name))
        return 0;
    memcpy(name, t->name, t->name_len);
    name[t->name_len] = '\0';
    part = layer_part(m, name, &layer);
    if (!part || !(ends_with(part, ".bias") || ends_with(part, "norm.weight")))
        return 0;
    for (int role = 0; role < ROLE_COUNT; role++)
        if (names[role].per_layer && needed(m, role, layer) &&
            !strcmp(gguf ? names[role].gguf : hf_name(m, role), part))
            return 0;
    return blame(e, ERR_UNSUPPORTED, t->file,
                 "tensor '%s' is no part of a %s model as it is served: without it the "
                 "answers would be wrong",
                 blame_name(&(struct blame_name){{0}}, name, t->name_len),
                 families[m->info.family].name);
}

static int check_rest(struct model *m, struct err *e)
{
    size_t n = modelfiles_count(m->files);
    struct file_tensor t;

    for (size_t i = 0; i < n; i++) {
        modelfiles_at(m->files, i, &t);
        if (check_left_over(m, &t, e) < 0)
            return -1;
    }
    m->info.n_ignored = (int)n - m->info.n_tensors;
    return 0;
}

/* ---- facts ---- */

static void set_main_type(struct model *m)
{
    size_t bytes[DT_COUNT] = {0}, n = (size_t)(m->info.n_layer + 1) * ROLE_COUNT;
    int best = 0;

    for (size_t i = 0; i < n; i++)
        if (m->tensors[i].data && m->tensors[i].rows > 1)
            bytes[m->tensors[i].type] += m->tensors[i].bytes;
    n = (size_t)m->info.n_layer * 3 * (size_t)m->info.moe.n_expert;
    for (size_t i = 0; i < n; i++)
        if (m->experts[i].data)
            bytes[m->experts[i].type] += m->experts[i].bytes;
    for (int t = 1; t < DT_COUNT; t++)
        if (bytes[t] > bytes[best])
            best = t;
    snprintf(m->info.main_type, sizeof(m->info.main_type), "%s",
             dtype_name((enum dtype)best));
}

static int check_freqs(const struct model *m, struct err *e)
{
    const struct model_tensor *t = model_tensor(m, ROLE_ROPE_FREQS, 0);
    float f[1024 / 2];

    if (!t)
        return 0;
    dtype_to_f32(t->type, t->data, f, t->cols);
    for (int j = 0; j < t->cols; j++)
        if (!(f[j] >= 1e-6f && f[j] <= 1e6f))
            return blame(e, ERR_CORRUPT, t->file,
                         "value %d of tensor '%s' is %g; right are 1e-6 to 1e6", j,
                         t->name, (double)f[j]);
    return 0;
}

static int read_info(struct model *m, struct err *e)
{
    const struct gguf *g = modelfiles_gguf(m->files);
    const struct map *config = modelfiles_config(m->files);
    const char *path = modelfiles_path(m->files), *base = strrchr(path, '/');
    struct model_info *i = &m->info;

    if (g ? modelinfo_from_gguf(g, path, i, e) < 0
          : modelinfo_from_config(map_path(config), map_data(config), map_bytes(config),
                                  i, e) < 0)
        return -1;
    if (!i->name[0])
        snprintf(i->name, sizeof(i->name), "%s", base ? base + 1 : path);
    i->file_bytes = modelfiles_bytes(m->files);
    m->prefix = "model.";
    if (!g && !has_role(m, ROLE_TOK_EMBD, 0))
        m->prefix = "";
    if (g && has_role(m, ROLE_ROPE_FREQS, 0)) {
        if (i->rope_scaling != ROPE_NONE)
            return blame(
                e, ERR_UNSUPPORTED, path,
                "tensor 'rope_freqs.weight' together with linear RoPE scaling is "
                "not supported; supported: one of them");
        i->rope_scaling = ROPE_LLAMA3;
    }
    if (g)
        i->tied_head = !has_role(m, ROLE_OUT_HEAD, 0);
    i->qkv_bias = families[i->family].qkv_bias || has_role(m, ROLE_Q_BIAS, 0);
    i->qk_norm = families[i->family].qk_norm || has_role(m, ROLE_Q_NORM, 0);
    return 0;
}

/* ---- the interface ---- */

int model_open(const char *path, struct model **ret, struct err *e)
{
    struct model *m = xcalloc(1, sizeof(*m));
    int rc;

    m->arena = arena_new(1 << 14);
    if (modelfiles_open(path, &m->files, e) < 0) {
        model_free(m);
        return -1;
    }
    rc = read_info(m, e) < 0 || load_tensors(m, e) < 0 || check_rest(m, e) < 0 ||
                 check_freqs(m, e) < 0
             ? -1
             : 0;
    if (model_check(m, e) < 0) /* then it is the reason of whatever else went wrong */
        rc = -1;
    if (rc < 0) {
        model_free(m);
        return -1;
    }
    set_main_type(m);
    *ret = m;
    return 0;
}

int model_check(const struct model *m, struct err *e)
{
    return modelfiles_check(m->files, e);
}

void model_free(struct model *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_copies; i++)
        free(m->copies[i]);
    free(m->copies);
    free(m->tensors);
    free(m->experts);
    arena_free(m->arena);
    modelfiles_close(m->files);
    free(m);
}

const struct model_info *model_info(const struct model *m) { return &m->info; }

const struct model_tensor *model_tensor(const struct model *m, enum model_role role,
                                        int layer)
{
    size_t row = names[role].per_layer ? (size_t)layer + 1 : 0;
    const struct model_tensor *t;

    if (row > (size_t)m->info.n_layer)
        return NULL;
    t = &m->tensors[row * ROLE_COUNT + role];
    return t->data ? t : NULL;
}

const struct model_tensor *model_expert(const struct model *m, enum model_role role,
                                        int layer, int expert)
{
    size_t n = (size_t)m->info.moe.n_expert;
    const struct model_tensor *t;

    if (layer >= m->info.n_layer || expert >= m->info.moe.n_expert ||
        !model_moe_layer(&m->info, layer))
        return NULL;
    t = &m->experts[((size_t)layer * 3 + (size_t)(role - ROLE_EXP_GATE)) * n +
                    (size_t)expert];
    return t->data ? t : NULL;
}

void model_drop_pages(const struct model *m, const struct model_tensor *t)
{
    modelfiles_drop(m->files, t->data, t->bytes);
}

/* The published llama3 rule: long waves are stretched by factor, short ones kept, those
 * between are a smooth mixture. */
static double llama3_freq(const struct model_info *i, double inv)
{
    double wave = 2 * M_PI / inv, orig = i->rope_orig_ctx;
    double low = (double)i->rope_low_freq, high = (double)i->rope_high_freq;
    double factor = (double)i->rope_factor, smooth;

    if (wave < orig / high)
        return inv;
    if (wave > orig / low)
        return inv / factor;
    smooth = (orig / wave - low) / (high - low);
    return (1 - smooth) * inv / factor + smooth * inv;
}

void model_inv_freq(const struct model *m, float *out)
{
    const struct model_tensor *freqs = model_tensor(m, ROLE_ROPE_FREQS, 0);
    const struct model_info *i = &m->info;
    float divisor[1024 / 2];

    if (freqs)
        dtype_to_f32(freqs->type, freqs->data, divisor, freqs->cols);
    for (int j = 0; j < i->rope_dim / 2; j++) {
        double inv = pow((double)i->rope_theta, -2.0 * j / i->rope_dim);

        if (freqs)
            inv /= (double)divisor[j];
        else if (i->rope_scaling == ROPE_LINEAR)
            inv /= (double)i->rope_factor;
        else if (i->rope_scaling == ROPE_LLAMA3)
            inv = llama3_freq(i, inv);
        out[j] = (float)inv;
    }
}

const struct gguf *model_gguf(const struct model *m) { return modelfiles_gguf(m->files); }

const char *model_dir(const struct model *m) { return modelfiles_dir(m->files); }

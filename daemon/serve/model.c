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
#include "daemon/serve/model_packed.h"
#include "daemon/serve/model_roles.h"
#include "daemon/serve/modelfiles.h"
#include "daemon/serve/modelinfo.h"

struct model {
    struct model_info info;
    struct modelfiles *files;
    struct arena *arena;          /* owns the names of tensors */
    const char *prefix;           /* of a folder's tensor names */
    struct model_tensor *tensors; /* [n_layer + 1][ROLE_COUNT]; row 0: not per layer */
    struct model_tensor *experts; /* [n_layer][MODEL_EXPERT_ROLES][n_expert] */
    void **copies;
    size_t n_copies;
};

static struct role_file role_file(const struct model *m)
{
    return (struct role_file){modelfiles_gguf(m->files) != NULL, m->prefix};
}

/* expert: its number where a folder has a tensor for each. */
static const char *role_name(const struct model *m, enum model_role role, int layer,
                             int expert, struct role_name *n)
{
    struct role_file f = role_file(m);

    return model_role_name(&m->info, &f, role, layer, expert, n);
}

static bool has_role(const struct model *m, enum model_role role, int layer)
{
    struct file_tensor t;
    struct role_name n;

    return modelfiles_find(m->files, role_name(m, role, layer, 0, &n), &t);
}

/* ---- one tensor ---- */

static int check_tensor(const struct model *m, enum model_role role,
                        const struct file_tensor *t, uint64_t planes, struct err *e)
{
    uint64_t rows = (uint64_t)model_role_rows(&m->info, role);
    uint64_t cols = (uint64_t)model_role_cols(&m->info, role);
    bool vector = model_role_is_vector(role);
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
                     "tensor '%s' is of %llu matrices; right for this model is %llu", b.s,
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

    if (t->form != TENSOR_PLAIN || (uintptr_t)t->data % need == 0)
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
                 name, model_family_name(m->info.family), m->info.n_layer,
                 model_role_rows(&m->info, role), model_role_cols(&m->info, role));
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

/* A matrix of E4M3 codes: its scales; *t is then as what it stands for. */
static int find_f8_scales(struct model *m, const char *name, struct file_tensor *t,
                          const uint8_t **ret, struct err *e)
{
    uint64_t rows = (t->rows + TENSOR_F8_BLOCK - 1) / TENSOR_F8_BLOCK;
    uint64_t cols = (t->cols + TENSOR_F8_BLOCK - 1) / TENSOR_F8_BLOCK;
    char full[sizeof(struct role_name) + 16];
    struct file_tensor s;

    snprintf(full, sizeof(full), "%s_scale_inv", name);
    if (!modelfiles_find(m->files, full, &s))
        return blame(e, ERR_CORRUPT, t->file,
                     "tensor '%s' is of F8_E4M3 and '%s' is missing", name, full);
    if (s.dtype != DT_F32 || s.rows != rows || s.cols != cols || s.planes != 1)
        return blame(e, ERR_CORRUPT, s.file,
                     "tensor '%s' is %s, %llu x %llu; right is F32, %llu x %llu", full,
                     s.type, (unsigned long long)s.rows, (unsigned long long)s.cols,
                     (unsigned long long)rows, (unsigned long long)cols);
    t->dtype = DT_F32;
    m->info.n_tensors++;
    *ret = s.data;
    return 0;
}

/* A tensor that stands alone, of `planes` matrices one below the other. */
static int load_alone(struct model *m, enum model_role role, const char *name,
                      uint64_t planes, struct model_tensor *out, struct err *e)
{
    const uint8_t *scales = NULL;
    struct file_tensor t;

    if (find_tensor(m, role, name, &t, e) < 0)
        return -1;
    if (!strcmp(t.type, "F8_E4M3") && !model_role_is_vector(role) &&
        find_f8_scales(m, name, &t, &scales, e) < 0)
        return -1;
    if (check_tensor(m, role, &t, planes, e) < 0)
        return -1;
    t.rows *= planes;
    t.planes = 1;
    *out = tensor_of(m, name, &t);
    out->scales = scales;
    out->form = scales ? TENSOR_F8 : TENSOR_PLAIN;
    m->info.n_tensors++;
    if (role != ROLE_ROPE_FREQS) /* a rule, not learnt */
        m->info.n_params += t.rows * t.cols;
    return aligned_copy(m, out, e);
}

static size_t expert_row(int layer, enum model_role role)
{
    return (size_t)layer * MODEL_EXPERT_ROLES + (size_t)(role - ROLE_EXP_GATE);
}

/* Experts of a layer that one tensor holds: planes, or (biases) rows of it. */
static int load_merged(struct model *m, enum model_role role, int layer,
                       struct model_tensor *out, struct err *e)
{
    uint64_t n = (uint64_t)m->info.moe.n_expert;
    struct role_name name;
    struct file_tensor t;

    role_name(m, role, layer, 0, &name);
    if (find_tensor(m, role, name.s, &t, e) < 0)
        return -1;
    if (model_role_is_vector(role) && t.planes == 1 && t.rows == n) {
        t.planes = n;
        t.rows = 1;
    }
    if (check_tensor(m, role, &t, n, e) < 0)
        return -1;
    m->info.n_tensors++;
    m->info.n_params += t.rows * t.cols * n;
    for (uint64_t x = 0; x < n; x++) {
        out[x] = tensor_of(m, name.s, &t);
        out[x].data = (const char *)t.data + x * out[x].bytes;
        if (aligned_copy(m, &out[x], e) < 0)
            return -1;
    }
    return 0;
}

/* gpt-oss: gate and up of all experts in one. */
static int load_packed(struct model *m, enum model_role role, int layer,
                       struct model_tensor *out, struct err *e)
{
    struct packed p;

    if (model_packed_find(m->files, m->prefix, &m->info, role, layer, &p, e) < 0)
        return -1;
    m->info.n_tensors += p.n_tensors;
    m->info.n_params += p.n_params;
    for (int x = 0; x < m->info.moe.n_expert; x++) {
        model_packed_get(&p, x, &out[x]);
        out[x].name = arena_strndup(m->arena, p.name, strlen(p.name));
    }
    return 0;
}

/* The tensors of all experts of a layer: parts of one, or one each. */
static int load_experts(struct model *m, enum model_role role, int layer, struct err *e)
{
    int n = m->info.moe.n_expert;
    struct model_tensor *out = m->experts + expert_row(layer, role) * (size_t)n;
    struct role_name name;

    if (modelfiles_gguf(m->files))
        return load_merged(m, role, layer, out, e);
    if (m->info.family == FAMILY_GPT_OSS)
        return load_packed(m, role, layer, out, e);
    for (int x = 0; x < n; x++) {
        role_name(m, role, layer, x, &name);
        if (load_alone(m, role, name.s, 1, &out[x], e) < 0)
            return -1;
    }
    return 0;
}

static int load_role(struct model *m, enum model_role role, int layer, struct err *e)
{
    struct model_tensor *out =
        &m->tensors[(size_t)(model_role_per_layer(role) ? layer + 1 : 0) * ROLE_COUNT +
                    role];
    uint64_t planes = (uint64_t)model_role_planes(&m->info, role);
    struct role_name n;

    if (model_role_is_expert(role))
        return load_experts(m, role, layer, e);
    role_name(m, role, layer, 0, &n);
    return load_alone(m, role, n.s, planes, out, e);
}

static int load_tensors(struct model *m, struct err *e)
{
    size_t layers = (size_t)m->info.n_layer, experts = (size_t)m->info.moe.n_expert;

    m->tensors = try_calloc((layers + 1) * ROLE_COUNT, sizeof(*m->tensors));
    m->experts =
        try_calloc(layers * MODEL_EXPERT_ROLES * experts + 1, sizeof(*m->experts));
    if (!m->tensors || !m->experts)
        return blame(e, ERR_NOMEM, modelfiles_path(m->files),
                     "no memory for the tensor table of %d layers", m->info.n_layer);
    for (int role = 0; role < ROLE_COUNT; role++) {
        int n = model_role_per_layer(role) ? m->info.n_layer : 1;

        for (int layer = 0; layer < n; layer++)
            if (model_role_needed(&m->info, role, layer) &&
                load_role(m, role, layer, e) < 0)
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
    const char *part, *has;
    int layer;

    if (t->name_len >= sizeof(name))
        return 0;
    memcpy(name, t->name, t->name_len);
    name[t->name_len] = '\0';
    part = layer_part(m, name, &layer);
    if (!part || !(ends_with(part, ".bias") || ends_with(part, "norm.weight")))
        return 0;
    for (int role = 0; role < ROLE_COUNT; role++)
        if ((has = model_role_part(&m->info, gguf, role)) &&
            model_role_needed(&m->info, role, layer) && !strcmp(has, part))
            return 0;
    return blame(e, ERR_UNSUPPORTED, t->file,
                 "tensor '%s' is no part of a %s model as it is served: without it the "
                 "answers would be wrong",
                 blame_name(&(struct blame_name){{0}}, name, t->name_len),
                 model_family_name(m->info.family));
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
    size_t bytes[DT_COUNT] = {0}, f8 = 0, n = (size_t)(m->info.n_layer + 1) * ROLE_COUNT;
    int best = 0;

    for (size_t i = 0; i < n; i++)
        if (m->tensors[i].data && m->tensors[i].rows > 1)
            *(m->tensors[i].form == TENSOR_F8 ? &f8 : &bytes[m->tensors[i].type]) +=
                m->tensors[i].bytes;
    n = (size_t)m->info.n_layer * MODEL_EXPERT_ROLES * (size_t)m->info.moe.n_expert;
    for (size_t i = 0; i < n; i++)
        if (m->experts[i].data)
            *(m->experts[i].form == TENSOR_F8 ? &f8 : &bytes[m->experts[i].type]) +=
                m->experts[i].bytes;
    for (int t = 1; t < DT_COUNT; t++)
        if (bytes[t] > bytes[best])
            best = t;
    snprintf(m->info.main_type, sizeof(m->info.main_type), "%s",
             f8 > bytes[best] ? "F8_E4M3" : dtype_name((enum dtype)best));
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
    i->qkv_bias = model_family_has_bias(i->family) || has_role(m, ROLE_Q_BIAS, 0);
    i->mla.split = g && i->mla.kv_lora && !has_role(m, ROLE_KV_B, 0);
    if (g && i->moe.n_dense < i->n_layer)
        i->moe.choice_bias = has_role(m, ROLE_CHOICE_BIAS, i->moe.n_dense);
    i->o_bias = i->family == FAMILY_GPT_OSS;
    i->qk_norm = model_family_has_qk_norm(i->family) || has_role(m, ROLE_Q_NORM, 0);
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
    size_t row = model_role_per_layer(role) ? (size_t)layer + 1 : 0;
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
    t = &m->experts[expert_row(layer, role) * n + (size_t)expert];
    return t->data ? t : NULL;
}

size_t model_tensor_held(const struct model_tensor *t)
{
    int64_t row = t->type == DT_MXFP4 ? dtype_row_bytes(DT_Q8_0, t->cols)
                                      : dtype_row_bytes(t->type, t->cols);

    return (size_t)t->rows * (size_t)row;
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

/* The number of the pair that turns n times in the original context. */
static double yarn_pair(const struct model_info *i, double n)
{
    return i->rope_dim * log(i->rope_orig_ctx / (n * 2 * M_PI)) /
           (2 * log((double)i->rope_theta));
}

static double yarn_freq(const struct model_info *i, int j, double inv)
{
    double low = yarn_pair(i, (double)i->yarn.beta_fast);
    double high = yarn_pair(i, (double)i->yarn.beta_slow), kept;

    if (i->yarn.truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, i->rope_dim - 1);
    if (low == high)
        high += 0.001;
    kept = 1 - fmin(fmax((j - low) / (high - low), 0), 1);
    return inv * kept + inv / (double)i->rope_factor * (1 - kept);
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
        else if (i->rope_scaling == ROPE_YARN)
            inv = yarn_freq(i, j, inv);
        out[j] = (float)inv;
    }
}

const struct gguf *model_gguf(const struct model *m) { return modelfiles_gguf(m->files); }

const char *model_dir(const struct model *m) { return modelfiles_dir(m->files); }

/* topo/shapes_config.c - the text of a config.json into shapes.
 *
 * Families spell the same fact differently (num_experts, num_local_experts,
 * n_routed_experts); every spelling that the published models use is read, a number out
 * of range is refused with its name, and what contradicts itself (heads that do not
 * divide, more experts a token than experts) too. Multimodal configs carry the language
 * model in text_config. Which attention a layer has comes, in this order, from
 * linear_attn_config, kv_lora_rank, layer_types, sliding_window. */
#include "topo/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

enum { CONFIG_BYTES_MAX = 1 << 20, CONFIG_DEPTH_MAX = 16, NUMBER_MAX = 1 << 26 };

/* The first of up to three spellings that is there. */
static int get(const json_t *o, const char *a, const char *b, const char *c, int *ret,
               struct err *e)
{
    const char *names[] = {a, b, c};

    for (int i = 0; i < 3 && names[i]; i++) {
        int64_t v = 0;
        int rc = js_get_int(o, names[i], 0, NUMBER_MAX, &v, e);
        if (rc < 0)
            return -1;
        if (rc > 0) {
            *ret = (int)v;
            return 0;
        }
    }
    return 0;
}

static int need(const json_t *o, const char *name, int *ret, struct err *e)
{
    if (get(o, name, NULL, NULL, ret, e) < 0)
        return -1;
    if (*ret < 1)
        return err_param(e, ERR_INVALID, name, "%s is missing or 0", name);
    return 0;
}

static int read_basics(const json_t *o, struct shapes *s, struct err *e)
{
    const char *type = "";

    if (need(o, "num_hidden_layers", &s->n_layer, e) < 0 ||
        need(o, "hidden_size", &s->hidden, e) < 0 ||
        need(o, "num_attention_heads", &s->n_head, e) < 0 ||
        need(o, "vocab_size", &s->vocab, e) < 0 ||
        get(o, "num_key_value_heads", NULL, NULL, &s->n_kv, e) < 0 ||
        get(o, "head_dim", NULL, NULL, &s->head_dim, e) < 0 ||
        get(o, "intermediate_size", NULL, NULL, &s->inter, e) < 0 ||
        get(o, "max_position_embeddings", "model_max_length", NULL, &s->ctx, e) < 0 ||
        get(o, "sliding_window", NULL, NULL, &s->window, e) < 0 ||
        get(o, "num_nextn_predict_layers", NULL, NULL, &s->n_nextn, e) < 0 ||
        get(o, "attn_res_block_size", NULL, NULL, &s->attn_res_block, e) < 0 ||
        js_get_bool(o, "tie_word_embeddings", &s->tied, e) < 0 ||
        js_get_bool(o, "attention_bias", &s->attn_bias, e) < 0 ||
        js_get_bool(o, "mla_use_output_gate", &s->attn_gate, e) < 0 ||
        js_get_str(o, "model_type", &type, NULL, e) < 0)
        return -1;
    if (s->n_layer > SHAPES_LAYERS_MAX)
        return err_param(e, ERR_TOOBIG, "num_hidden_layers",
                         "%d layers are more than the %d that planning takes", s->n_layer,
                         SHAPES_LAYERS_MAX);
    snprintf(s->type, sizeof(s->type), "%s", type);
    s->n_kv = s->n_kv ? s->n_kv : s->n_head;
    s->head_dim = s->head_dim ? s->head_dim : s->hidden / s->n_head;
    s->qk_norm = !strncmp(type, "qwen3", 5);
    s->expert_bias = !strcmp(type, "gpt_oss");
    if (s->head_dim < 1 || s->n_head % s->n_kv)
        return err_param(e, ERR_INVALID, "num_key_value_heads",
                         "%d attention heads of %d do not group over %d KV heads",
                         s->n_head, s->head_dim, s->n_kv);
    return 0;
}

static int read_latent(const json_t *o, struct shapes *s, struct err *e)
{
    if (get(o, "kv_lora_rank", NULL, NULL, &s->kv_lora, e) < 0 ||
        get(o, "q_lora_rank", NULL, NULL, &s->q_lora, e) < 0 ||
        get(o, "index_n_heads", NULL, NULL, &s->index_heads, e) < 0 ||
        get(o, "index_head_dim", NULL, NULL, &s->index_dim, e) < 0 ||
        get(o, "index_topk", NULL, NULL, &s->index_topk, e) < 0)
        return -1;
    if (!s->kv_lora)
        return 0;
    if (need(o, "qk_nope_head_dim", &s->nope_dim, e) < 0 ||
        need(o, "qk_rope_head_dim", &s->rope_dim, e) < 0 ||
        need(o, "v_head_dim", &s->v_dim, e) < 0)
        return -1;
    return 0;
}

static int read_experts(const json_t *o, struct shapes *s, struct err *e)
{
    int shared = 0;

    if (get(o, "num_experts", "num_local_experts", "n_routed_experts", &s->n_expert, e) <
            0 ||
        get(o, "num_experts_per_tok", "num_experts_per_token", "moe_topk", &s->topk, e) <
            0 ||
        get(o, "moe_intermediate_size", NULL, NULL, &s->moe_inter, e) < 0 ||
        get(o, "n_shared_experts", "num_shared_experts", NULL, &shared, e) < 0 ||
        get(o, "routed_expert_hidden_size", NULL, NULL, &s->expert_hidden, e) < 0)
        return -1;
    if (!s->n_expert) {
        s->topk = s->moe_inter = 0;
        return s->inter ? 0
                        : err_param(e, ERR_INVALID, "intermediate_size",
                                    "intermediate_size is missing or 0");
    }
    s->moe_inter = s->moe_inter ? s->moe_inter : s->inter;
    s->expert_hidden = s->expert_hidden ? s->expert_hidden : s->hidden;
    if ((int64_t)shared * s->moe_inter > NUMBER_MAX)
        return err_param(e, ERR_RANGE, "n_shared_experts",
                         "%d shared experts are too many", shared);
    s->shared_inter = shared * s->moe_inter;
    if (s->topk < 1 || s->topk > s->n_expert || !s->moe_inter)
        return err_param(e, ERR_INVALID, "num_experts_per_tok",
                         "%d of %d experts a token, each %d wide, is no mixture", s->topk,
                         s->n_expert, s->moe_inter);
    return 0;
}

/* Which layers have experts. */
static int place_experts(const json_t *o, struct shapes *s, struct err *e)
{
    const json_t *dense = json_object_get(o, "mlp_only_layers"), *v;
    int first = 0, step = 1, freq = 1;
    size_t i;

    if (get(o, "first_k_dense_replace", NULL, NULL, &first, e) < 0 ||
        get(o, "decoder_sparse_step", NULL, NULL, &step, e) < 0 ||
        get(o, "moe_layer_freq", NULL, NULL, &freq, e) < 0)
        return -1;
    for (int l = 0; l < s->n_layer; l++)
        s->layer[l].sparse = s->n_expert && l >= first && step > 0 && freq > 0 &&
                             (l + 1) % step == 0 && l % freq == 0;
    json_array_foreach(dense, i, v)
    {
        json_int_t l = json_integer_value(v);
        if (l >= 0 && l < s->n_layer)
            s->layer[l].sparse = false;
    }
    for (int l = 0; l < s->n_layer; l++)
        if (!s->layer[l].sparse && !s->inter)
            return err_param(e, ERR_INVALID, "intermediate_size",
                             "layer %d is dense but intermediate_size is missing", l);
    return 0;
}

static int place_linear(const json_t *lin, struct shapes *s, struct err *e)
{
    const json_t *kda = json_object_get(lin, "kda_layers"), *v;
    size_t i;

    if (need(lin, "num_heads", &s->kda_heads, e) < 0 ||
        need(lin, "head_dim", &s->kda_dim, e) < 0 ||
        need(lin, "short_conv_kernel_size", &s->kda_conv, e) < 0)
        return -1;
    json_array_foreach(kda, i, v)
    {
        json_int_t l = json_integer_value(v); /* counted from 1 */
        if (l < 1 || l > s->n_layer)
            return err_param(e, ERR_RANGE, "kda_layers",
                             "kda_layers names layer %lld of %d", (long long)l,
                             s->n_layer);
        s->layer[l - 1].attn = ATTN_STATE;
    }
    return 0;
}

static int place_attention(const json_t *o, struct shapes *s, struct err *e)
{
    const json_t *types = json_object_get(o, "layer_types"), *v;
    const json_t *lin = json_object_get(o, "linear_attn_config");
    bool use_window = true;
    size_t i;

    if (js_get_bool(o, "use_sliding_window", &use_window, e) < 0)
        return -1;
    if (!use_window)
        s->window = 0;
    for (int l = 0; l < s->n_layer; l++)
        s->layer[l].attn = s->kv_lora            ? ATTN_LATENT
                           : s->window && !types ? ATTN_WINDOW
                                                 : ATTN_FULL;
    json_array_foreach(types, i, v)
    {
        const char *t = json_string_value(v);
        if (i < (size_t)s->n_layer && t && !strcmp(t, "sliding_attention") && s->window)
            s->layer[i].attn = ATTN_WINDOW;
    }
    return json_is_object(lin) ? place_linear(lin, s, e) : 0;
}

/* A part stays in bf16 where the list of untouched modules names it. */
static bool is_ignored(const json_t *quant, const char *what)
{
    static const char *const lists[] = {"ignore", "modules_to_not_convert",
                                        "exclude_modules"};
    const json_t *v;
    size_t i;

    for (int l = 0; l < 3; l++)
        json_array_foreach(json_object_get(quant, lists[l]), i, v)
        {
            const char *t = json_string_value(v);
            if (t && strstr(t, what))
                return true;
        }
    return false;
}

static int quant_format(const json_t *q, enum weight_format *ret, struct err *e)
{
    const char *method = "", *format = "";
    const json_t *w;

    if (js_get_str(q, "quant_method", &method, NULL, e) < 0 ||
        js_get_str(q, "format", &format, NULL, e) < 0)
        return -1;
    w = json_object_get(json_object_get(json_object_get(q, "config_groups"), "group_0"),
                        "weights");
    if (!strcmp(method, "fp8"))
        *ret = json_object_get(q, "weight_block_size") ? FORMAT_FP8_BLOCK : FORMAT_FP8;
    else if (!strcmp(method, "mxfp4") || strstr(format, "mxfp4"))
        *ret = FORMAT_MXFP4;
    else if (!strcmp(method, "modelopt") || strstr(format, "nvfp4"))
        *ret = FORMAT_NVFP4;
    else if (!strcmp(method, "compressed-tensors") &&
             json_integer_value(json_object_get(w, "num_bits")) == 4)
        *ret = FORMAT_INT4;
    else if (!strcmp(method, "compressed-tensors") &&
             json_integer_value(json_object_get(w, "num_bits")) == 8)
        *ret = FORMAT_FP8;
    else
        return err_param(e, ERR_UNSUPPORTED, "quantization_config",
                         "quantization '%s' is not known to planning", method);
    return 0;
}

static int read_formats(const json_t *q, struct shapes *s, struct err *e)
{
    enum weight_format f = FORMAT_BF16;

    for (int p = 0; p < PART_COUNT; p++)
        s->format[p] = FORMAT_BF16;
    if (!json_is_object(q))
        return 0;
    if (quant_format(q, &f, e) < 0)
        return -1;
    if (!is_ignored(q, "self_attn"))
        s->format[PART_ATTN] = f;
    if (!is_ignored(q, "mlp.gate_proj") && !is_ignored(q, "mlp.(gate"))
        s->format[PART_MLP] = f;
    if (!is_ignored(q, "shared_experts"))
        s->format[PART_SHARED] = f;
    if (!is_ignored(q, "routed_expert_"))
        s->format[PART_LATENT] = f;
    s->format[PART_EXPERTS] = f;
    return 0;
}

static int read_object(const json_t *root, struct shapes *s, struct err *e)
{
    const json_t *text = json_object_get(root, "text_config");
    const json_t *o = json_is_object(text) ? text : root;
    const json_t *quant = json_object_get(o, "quantization_config");
    const char *name = NULL;

    if (!json_is_object(root))
        return err_set(e, ERR_SYNTAX, "a config is a JSON object");
    if (js_get_str(root, "_name_or_path", &name, NULL, e) < 0)
        return -1;
    if (name && *name)
        snprintf(s->name, sizeof(s->name), "%s", name);
    if (read_basics(o, s, e) < 0 || read_latent(o, s, e) < 0 || read_experts(o, s, e) < 0)
        return -1;
    if (place_experts(o, s, e) < 0 || place_attention(o, s, e) < 0)
        return -1;
    return read_formats(quant ? quant : json_object_get(root, "quantization_config"), s,
                        e);
}

int shapes_from_config(const char *name, const char *text, size_t n, struct shapes *ret,
                       struct err *e)
{
    static const struct js_limits limits = {CONFIG_BYTES_MAX, CONFIG_DEPTH_MAX};
    struct shapes *s;
    json_t *root = NULL;
    int rc;

    if (js_parse(text, n, &limits, &root, e) < 0)
        return err_wrap(e, "config of '%s'", name);
    s = xcalloc(1, sizeof(*s));
    snprintf(s->name, sizeof(s->name), "%s", name);
    rc = read_object(root, s, e);
    if (rc == 0)
        *ret = *s;
    else
        err_wrap(e, "config of '%s'", name);
    json_decref(root);
    free(s);
    return rc;
}

int shapes_open(const char *path, struct shapes *ret, struct err *e)
{
    char file[4096], *text;
    struct stat st;
    size_t n;
    FILE *f;
    int rc;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        snprintf(file, sizeof(file), "%s/config.json", path);
    else
        snprintf(file, sizeof(file), "%s", path);
    f = fopen(file, "re");
    if (!f)
        return err_errno(e, ERR_NOTFOUND, "open model config '%s'", file);
    text = xmalloc(CONFIG_BYTES_MAX + 1);
    n = fread(text, 1, CONFIG_BYTES_MAX + 1, f);
    rc = ferror(f) ? err_errno(e, ERR_IO, "read model config '%s'", file)
                   : shapes_from_config(path, text, n, ret, e);
    free(text);
    fclose(f);
    return rc;
}

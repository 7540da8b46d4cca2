/* Hyper-parameters from a Hugging Face config.json: half of modelinfo.h.
 *
 * Absent members have the defaults that the families' published classes have. The same
 * fact has had several spellings over the years (rope_scaling with "type" or "rope_type",
 * rope_parameters); all of them are read. What would change the result but is not served
 * is refused rather than passed over. */
#include "daemon/serve/modelinfo.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "daemon/serve/blame.h"
#include "daemon/serve/model.h"

enum { MAX_CONFIG = 1 << 20, MAX_DEPTH = 16 };

static int get_int(const json_t *o, const char *key, bool needed, int *ret, struct err *e)
{
    int64_t v = 0;
    int rc = js_get_int(o, key, 0, INT32_MAX, &v, e);

    if (rc == 0 && needed)
        return err_param(e, ERR_CORRUPT, key, "%s is missing", key);
    if (rc > 0)
        *ret = (int)v;
    return rc < 0 ? -1 : 0;
}

static int get_real(const json_t *o, const char *key, float *ret, struct err *e)
{
    double v = 0;
    int rc = js_get_num(o, key, -1e30, 1e30, &v, e);

    if (rc > 0)
        *ret = (float)v;
    return rc < 0 ? -1 : 0;
}

static int get_family(const json_t *o, const char *path, struct model_info *i,
                      struct err *e)
{
    static const char *const names[] = {
#define X(id, hf, gguf) hf,
        MODEL_FAMILY_MAP(X)
#undef X
    };
    const char *type = NULL;

    if (js_get_str(o, "model_type", &type, NULL, e) < 0)
        return err_wrap(e, "%s", path);
    if (!type)
        return blame(e, ERR_CORRUPT, path, "model_type is missing; supported: %s",
                     model_families());
    for (int f = 0; f < FAMILY_COUNT; f++) {
        if (!strcmp(names[f], type)) {
            i->family = (enum model_family)f;
            return 0;
        }
    }
    return modelinfo_refuse_family(path, type, strlen(type), e);
}

/* E4M3 in blocks that have a scale each. */
static int check_fp8(const json_t *quant, struct err *e)
{
    const json_t *size = json_object_get(quant, "weight_block_size");
    const char *fmt = "e4m3";

    if (js_get_str(quant, "fmt", &fmt, NULL, e) < 0)
        return -1;
    if (strcmp(fmt, "e4m3") != 0 || json_array_size(size) != 2 ||
        json_integer_value(json_array_get(size, 0)) != TENSOR_F8_BLOCK ||
        json_integer_value(json_array_get(size, 1)) != TENSOR_F8_BLOCK)
        return err_param(e, ERR_UNSUPPORTED, "quantization_config",
                         "FP8 is supported as e4m3 with a weight_block_size of [%d, %d]",
                         TENSOR_F8_BLOCK, TENSOR_F8_BLOCK);
    return 0;
}

/* MXFP4 is served where experts are packed as gpt-oss does it. */
static int refuse_quant(const json_t *quant, const struct model_info *i, struct err *e)
{
    const char *method = NULL;
    struct blame_name b;

    if (js_get_str(quant, "quant_method", &method, NULL, e) < 0)
        return -1;
    method = method ? method : "?";
    if (!strcmp(method, "mxfp4") && i->family == FAMILY_GPT_OSS)
        return 0;
    if (!strcmp(method, "fp8"))
        return check_fp8(quant, e);
    return err_param(e, ERR_UNSUPPORTED, "quantization_config",
                     "a folder quantised by '%s' is not supported; supported types: F32, "
                     "F16, BF16, gpt-oss' MXFP4, FP8 in blocks, or a GGUF file",
                     blame_name(&b, method, strlen(method)));
}

static int refuse_unserved(const json_t *o, const struct model_info *i, struct err *e)
{
    const char *act = "silu";
    const json_t *quant = json_object_get(o, "quantization_config");
    double rotary = 1;
    struct blame_name b;

    if (quant && !json_is_null(quant) && refuse_quant(quant, i, e) < 0)
        return -1;
    if (js_get_str(o, "hidden_act", &act, NULL, e) < 0 ||
        js_get_num(o, "partial_rotary_factor", 0, 1, &rotary, e) < 0)
        return -1;
    if (strcmp(act, "silu") != 0)
        return err_param(e, ERR_UNSUPPORTED, "hidden_act",
                         "hidden_act '%s' is not supported; supported: silu",
                         blame_name(&b, act, strlen(act)));
    if (rotary != 1)
        return err_param(e, ERR_UNSUPPORTED, "partial_rotary_factor",
                         "partial_rotary_factor %g is not supported; supported: 1",
                         rotary);
    return 0;
}

/* Latent attention: heads of two parts, and one KV head that is the latent. */
static int get_mla(const json_t *o, struct model_info *i, struct err *e)
{
    struct model_mla *m = &i->mla;
    bool interleaved = true;

    if (get_int(o, "q_lora_rank", false, &m->q_lora, e) < 0 ||
        get_int(o, "kv_lora_rank", true, &m->kv_lora, e) < 0 ||
        get_int(o, "qk_nope_head_dim", true, &m->nope, e) < 0 ||
        get_int(o, "qk_rope_head_dim", true, &m->rope, e) < 0 ||
        get_int(o, "v_head_dim", true, &m->v, e) < 0 ||
        js_get_bool(o, "rope_interleave", &interleaved, e) < 0)
        return -1;
    i->rope_neox = !interleaved;
    return modelinfo_set_mla(i, e);
}

static int get_heads(const json_t *o, struct model_info *i, struct err *e)
{
    if (get_int(o, "num_attention_heads", true, &i->n_head, e) < 0)
        return -1;
    if (i->n_head < 1)
        return err_param(e, ERR_CORRUPT, "num_attention_heads",
                         "num_attention_heads is 0; right is 1 or more");
    i->n_kv_head = i->n_head;
    i->head_dim = i->family == FAMILY_QWEN3 || i->family == FAMILY_QWEN3_MOE
                      ? 128
                      : i->n_embd / i->n_head;
    if (get_int(o, "num_key_value_heads", false, &i->n_kv_head, e) < 0 ||
        get_int(o, "head_dim", false, &i->head_dim, e) < 0)
        return -1;
    i->rope_dim = i->head_dim;
    return modelinfo_has_mla(i->family) ? get_mla(o, i, e) : 0;
}

static float yarn_mscale(float factor, float m)
{
    return factor > 1 ? 0.1f * m * logf(factor) + 1 : 1;
}

static int get_yarn(const json_t *o, const char *where, struct model_info *i,
                    struct err *e)
{
    struct rope_yarn *y = &i->yarn;
    float m = 0, m_all = 0;

    y->beta_fast = 32;
    y->beta_slow = 1;
    y->truncate = true;
    i->rope_orig_ctx = i->n_ctx;
    if (get_real(o, "beta_fast", &y->beta_fast, e) < 0 ||
        get_real(o, "beta_slow", &y->beta_slow, e) < 0 ||
        get_real(o, "mscale", &m, e) < 0 ||
        get_real(o, "mscale_all_dim", &m_all, e) < 0 ||
        js_get_bool(o, "truncate", &y->truncate, e) < 0 ||
        get_int(o, "original_max_position_embeddings", false, &i->rope_orig_ctx, e) < 0)
        return -1;
    y->attn_scale = m > 0 && m_all > 0 ? yarn_mscale(i->rope_factor, m) /
                                             yarn_mscale(i->rope_factor, m_all)
                                       : yarn_mscale(i->rope_factor, 1);
    if (get_real(o, "attention_factor", &y->attn_scale, e) < 0)
        return -1;
    if (m_all > 0 && i->mla.kv_lora)
        i->mla.scale = powf(yarn_mscale(i->rope_factor, m_all), 2);
    if (!i->rope_orig_ctx)
        return err_param(e, ERR_CORRUPT, where,
                         "original_max_position_embeddings is 0; right is 1 or more");
    i->rope_scaling = ROPE_YARN;
    return 0;
}

static int get_scaling(const json_t *o, const char *where, struct model_info *i,
                       struct err *e)
{
    const char *kind = NULL;
    struct blame_name b;

    if (js_get_str(o, "rope_type", &kind, NULL, e) < 0 ||
        (!kind && js_get_str(o, "type", &kind, NULL, e) < 0))
        return -1;
    kind = kind ? kind : "default";
    if (!strcmp(kind, "default"))
        return 0;
    if (get_real(o, "factor", &i->rope_factor, e) < 0)
        return -1;
    if (!strcmp(kind, "linear")) {
        i->rope_scaling = ROPE_LINEAR;
        return 0;
    }
    if (!strcmp(kind, "yarn"))
        return get_yarn(o, where, i, e);
    if (strcmp(kind, "llama3") != 0)
        return err_param(e, ERR_UNSUPPORTED, where,
                         "%s of type '%s' is not supported; supported: default, linear, "
                         "llama3, yarn",
                         where, blame_name(&b, kind, strlen(kind)));
    i->rope_scaling = ROPE_LLAMA3;
    i->rope_low_freq = 1;
    i->rope_high_freq = 4;
    if (get_real(o, "low_freq_factor", &i->rope_low_freq, e) < 0 ||
        get_real(o, "high_freq_factor", &i->rope_high_freq, e) < 0 ||
        get_int(o, "original_max_position_embeddings", true, &i->rope_orig_ctx, e) < 0)
        return -1;
    if (!i->rope_orig_ctx)
        return err_param(e, ERR_CORRUPT, where,
                         "original_max_position_embeddings is 0; right is 1 or more");
    return 0;
}

static int get_rope(const json_t *o, struct model_info *i, struct err *e)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};

    i->rope_theta = 10000;
    if (!i->mla.kv_lora)
        i->rope_neox = true;
    if (get_real(o, "rope_theta", &i->rope_theta, e) < 0)
        return -1;
    for (int k = 0; k < 2; k++) {
        const json_t *v = json_object_get(o, keys[k]);

        if (!v || json_is_null(v))
            continue;
        if (!json_is_object(v))
            return err_param(e, ERR_CORRUPT, keys[k], "%s must be an object", keys[k]);
        if (get_scaling(v, keys[k], i, e) < 0 ||
            get_real(v, "rope_theta", &i->rope_theta, e) < 0)
            return -1;
    }
    return 0;
}

/* The window of every second layer, from the first on (gpt-oss). */
static int get_layer_types(const json_t *o, struct model_info *i, struct err *e)
{
    const json_t *types = json_object_get(o, "layer_types");

    i->window_every = 2;
    for (size_t l = 0; l < json_array_size(types); l++) {
        const char *t = json_string_value(json_array_get(types, l));

        if (!t || strcmp(t, l % 2 ? "full_attention" : "sliding_attention") != 0)
            return err_param(e, ERR_UNSUPPORTED, "layer_types",
                             "layer %zu is no %s one; supported: sliding_attention and "
                             "full_attention in turn",
                             l, l % 2 ? "full_attention" : "sliding_attention");
    }
    return get_int(o, "sliding_window", false, &i->sliding_window, e);
}

/* The window of Mistral and Mixtral holds for every layer. Qwen's only where it is
 * switched on, from max_window_layers upwards: that mixture is not served. Llama has
 * none. */
static int get_window(const json_t *o, struct model_info *i, struct err *e)
{
    bool all = i->family == FAMILY_MISTRAL || i->family == FAMILY_MIXTRAL, on = all;
    int first = 0;

    if (i->family == FAMILY_LLAMA || i->family == FAMILY_OLMOE ||
        modelinfo_has_mla(i->family))
        return 0;
    if (i->family == FAMILY_GPT_OSS)
        return get_layer_types(o, i, e);
    if (js_get_bool(o, "use_sliding_window", &on, e) < 0 ||
        get_int(o, "max_window_layers", false, &first, e) < 0)
        return -1;
    if (!on || (!all && first >= i->n_layer))
        return 0;
    if (get_int(o, "sliding_window", false, &i->sliding_window, e) < 0)
        return -1;
    if (i->sliding_window >= i->n_ctx)
        i->sliding_window = 0; /* it never cuts anything off */
    if (i->sliding_window && !all && first > 0)
        return err_param(e, ERR_UNSUPPORTED, "max_window_layers",
                         "a sliding window from layer %d upwards is not supported; "
                         "supported: on every layer or none",
                         first);
    return 0;
}

/* Mixtures of experts: the spellings of the families, and what each means by them. */
static const struct moe_row {
    enum model_family family;
    const char *experts, *ff; /* names of the number of experts, of an expert's width */
    bool normalise;           /* unless norm_topk_prob says otherwise */
    bool shared_gate;
} moe_rows[] = {
    {FAMILY_MIXTRAL, "num_local_experts", "intermediate_size", true, false},
    {FAMILY_QWEN2_MOE, "num_experts", "moe_intermediate_size", false, true},
    {FAMILY_QWEN3_MOE, "num_experts", "moe_intermediate_size", false, false},
    {FAMILY_OLMOE, "num_experts", "intermediate_size", false, false},
    {FAMILY_GPT_OSS, "num_local_experts", "intermediate_size", false, false},
    {FAMILY_DEEPSEEK_V2, "n_routed_experts", "moe_intermediate_size", false, false},
    {FAMILY_DEEPSEEK_V3, "n_routed_experts", "moe_intermediate_size", true, false},
    {FAMILY_KIMI_K2, "n_routed_experts", "moe_intermediate_size", true, false},
};

static int refuse_moe(const json_t *o, const struct model_info *i, struct err *e)
{
    const json_t *dense = json_object_get(o, "mlp_only_layers");
    int step = 1;

    if (get_int(o, "decoder_sparse_step", false, &step, e) < 0)
        return -1;
    if (step != 1 || (json_is_array(dense) && json_array_size(dense)))
        return err_param(e, ERR_UNSUPPORTED, "decoder_sparse_step",
                         "layers without experts between those with are not supported");
    if (i->moe.top_k < 1 || i->moe.top_k > i->moe.n_expert)
        return err_param(e, ERR_CORRUPT, "num_experts_per_tok",
                         "num_experts_per_tok is %d; right is 1 to %d", i->moe.top_k,
                         i->moe.n_expert);
    return 0;
}

/* DeepSeek: sigmoid scores with a correction bias, or (V2) softmax; groups of experts. */
static int get_deepseek(const json_t *o, struct model_info *i, struct err *e)
{
    bool v2 = i->family == FAMILY_DEEPSEEK_V2;
    const char *score = v2 ? "softmax" : "sigmoid", *method = v2 ? "greedy" : "noaux_tc";
    struct model_moe *m = &i->moe;
    int shared = 0, every = 1;

    if (js_get_str(o, "scoring_func", &score, NULL, e) < 0 ||
        js_get_str(o, "topk_method", &method, NULL, e) < 0 ||
        get_int(o, "n_shared_experts", false, &shared, e) < 0 ||
        get_int(o, "first_k_dense_replace", false, &m->n_dense, e) < 0 ||
        get_int(o, "moe_layer_freq", false, &every, e) < 0 ||
        get_int(o, "n_group", false, &m->n_group, e) < 0 ||
        get_int(o, "topk_group", false, &m->top_group, e) < 0 ||
        get_real(o, "routed_scaling_factor", &m->scale, e) < 0)
        return -1;
    if (every != 1)
        return err_param(e, ERR_UNSUPPORTED, "moe_layer_freq",
                         "experts in every %d-th layer are not supported; supported: 1",
                         every);
    if (strcmp(score, v2 ? "softmax" : "sigmoid") != 0)
        return err_param(e, ERR_UNSUPPORTED, "scoring_func",
                         "a router other than by %s is not supported in this family",
                         v2 ? "softmax" : "sigmoid");
    m->score = v2 ? MOE_SOFTMAX : MOE_SIGMOID;
    m->choice_bias = !v2;
    if (!strcmp(method, "greedy"))
        m->n_group = m->top_group = 0;
    if (shared > 64)
        return err_param(e, ERR_CORRUPT, "n_shared_experts",
                         "n_shared_experts is %d; served are up to 64", shared);
    if (m->n_ff > 0 && m->n_ff <= 1 << 20)
        m->n_ff_shared = shared * m->n_ff;
    return 0;
}

static int get_gpt_oss(const json_t *o, struct model_info *i, struct err *e)
{
    i->moe.score = MOE_CHOSEN;
    i->moe.bias = i->sinks = true;
    i->moe.limit = 7;
    return get_real(o, "swiglu_limit", &i->moe.limit, e);
}

static int get_moe(const json_t *o, struct model_info *i, struct err *e)
{
    const struct moe_row *row = NULL;
    struct model_moe *m = &i->moe;

    for (size_t r = 0; r < sizeof(moe_rows) / sizeof(moe_rows[0]); r++)
        if (moe_rows[r].family == i->family)
            row = &moe_rows[r];
    if (!row)
        return 0;
    m->score = MOE_SOFTMAX;
    m->scale = 1;
    m->normalise = row->normalise;
    if (get_int(o, row->experts, true, &m->n_expert, e) < 0 ||
        get_int(o, "num_experts_per_tok", true, &m->top_k, e) < 0 ||
        get_int(o, row->ff, true, &m->n_ff, e) < 0 ||
        js_get_bool(o, "norm_topk_prob", &m->normalise, e) < 0 ||
        get_int(o, "shared_expert_intermediate_size", false, &m->n_ff_shared, e) < 0)
        return -1;
    m->shared_gate = row->shared_gate && m->n_ff_shared;
    i->qk_norm_full = i->family == FAMILY_OLMOE;
    if ((i->family == FAMILY_GPT_OSS && get_gpt_oss(o, i, e) < 0) ||
        (modelinfo_has_mla(i->family) && get_deepseek(o, i, e) < 0))
        return -1;
    return refuse_moe(o, i, e);
}

static int get_all(const json_t *o, struct model_info *i, struct err *e)
{
    if (refuse_unserved(o, i, e) < 0 ||
        get_int(o, "num_hidden_layers", true, &i->n_layer, e) < 0 ||
        get_int(o, "hidden_size", true, &i->n_embd, e) < 0 ||
        get_int(o, "intermediate_size", true, &i->n_ff, e) < 0 ||
        get_int(o, "vocab_size", true, &i->n_vocab, e) < 0 ||
        get_int(o, "max_position_embeddings", true, &i->n_ctx, e) < 0)
        return -1;
    i->norm_eps = 1e-6f;
    if (get_real(o, "rms_norm_eps", &i->norm_eps, e) < 0 ||
        js_get_bool(o, "tie_word_embeddings", &i->tied_head, e) < 0 ||
        get_heads(o, i, e) < 0 || get_rope(o, i, e) < 0 || get_moe(o, i, e) < 0)
        return -1;
    return get_window(o, i, e);
}

int modelinfo_from_config(const char *path, const char *text, size_t n,
                          struct model_info *ret, struct err *e)
{
    struct js_limits lim = {.max_bytes = MAX_CONFIG, .max_depth = MAX_DEPTH};
    struct model_info i = {.format = "safetensors"};
    struct err why = {0};
    json_t *root;
    int rc = -1;

    if (js_parse(text, n, &lim, &root, &why) < 0)
        return blame(e, ERR_CORRUPT, path, "%s", why.msg);
    if (!json_is_object(root))
        blame(e, ERR_CORRUPT, path, "not a JSON object");
    else if (get_family(root, path, &i, e) == 0) {
        rc = get_all(root, &i, &why);
        if (rc < 0)
            blame(e, why.code == ERR_UNSUPPORTED ? why.code : ERR_CORRUPT, path, "%s",
                  why.msg);
        else
            rc = modelinfo_check(&i, path, e);
    }
    json_decref(root);
    if (rc == 0)
        *ret = i;
    return rc;
}

/* See model_roles.h. Three tables: the names that most families share (MODEL_ROLE_MAP),
 * those that some call otherwise, and shape and need of each role. */
#include "daemon/serve/model_roles.h"

#include <stdio.h>
#include <string.h>

enum dim {
    D_ONE,
    D_EMBD,
    D_Q,
    D_KV,
    D_QNORM,
    D_KNORM,
    D_HEADS,
    D_O,
    D_Q_LORA,
    D_KV_LORA,
    D_KV_A,
    D_KV_B,
    D_NOPE,
    D_V_HEAD,
    D_FF,
    D_VOCAB,
    D_ROPE,
    D_EXPERTS,
    D_FF_EXPERT,
    D_FF_SHARED
};
enum need {
    N_ALWAYS,
    N_Q,
    N_KV,
    N_Q_LORA,
    N_LATENT,
    N_LATENT_WHOLE,
    N_LATENT_SPLIT,
    N_HEAD,
    N_FREQS,
    N_BIAS,
    N_O_BIAS,
    N_NORM,
    N_SINKS,
    N_FFN,
    N_MOE,
    N_MOE_BIAS,
    N_CHOICE_BIAS,
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
    [ROLE_Q] = {D_Q, D_EMBD, N_Q},
    [ROLE_K] = {D_KV, D_EMBD, N_KV},
    [ROLE_V] = {D_KV, D_EMBD, N_KV},
    [ROLE_Q_BIAS] = {D_ONE, D_Q, N_BIAS},
    [ROLE_K_BIAS] = {D_ONE, D_KV, N_BIAS},
    [ROLE_V_BIAS] = {D_ONE, D_KV, N_BIAS},
    [ROLE_Q_NORM] = {D_ONE, D_QNORM, N_NORM},
    [ROLE_K_NORM] = {D_ONE, D_KNORM, N_NORM},
    [ROLE_Q_A] = {D_Q_LORA, D_EMBD, N_Q_LORA},
    [ROLE_Q_A_NORM] = {D_ONE, D_Q_LORA, N_Q_LORA},
    [ROLE_Q_B] = {D_Q, D_Q_LORA, N_Q_LORA},
    [ROLE_KV_A] = {D_KV_A, D_EMBD, N_LATENT},
    [ROLE_KV_A_NORM] = {D_ONE, D_KV_LORA, N_LATENT},
    [ROLE_KV_B] = {D_KV_B, D_KV_LORA, N_LATENT_WHOLE},
    [ROLE_K_B] = {D_KV_LORA, D_NOPE, N_LATENT_SPLIT},
    [ROLE_V_B] = {D_V_HEAD, D_KV_LORA, N_LATENT_SPLIT},
    [ROLE_O] = {D_EMBD, D_O, N_ALWAYS},
    [ROLE_O_BIAS] = {D_ONE, D_EMBD, N_O_BIAS},
    [ROLE_SINKS] = {D_ONE, D_HEADS, N_SINKS},
    [ROLE_FFN_NORM] = {D_ONE, D_EMBD, N_ALWAYS},
    [ROLE_GATE] = {D_FF, D_EMBD, N_FFN},
    [ROLE_UP] = {D_FF, D_EMBD, N_FFN},
    [ROLE_DOWN] = {D_EMBD, D_FF, N_FFN},
    [ROLE_ROUTER] = {D_EXPERTS, D_EMBD, N_MOE},
    [ROLE_ROUTER_BIAS] = {D_ONE, D_EXPERTS, N_MOE_BIAS},
    [ROLE_CHOICE_BIAS] = {D_ONE, D_EXPERTS, N_CHOICE_BIAS},
    [ROLE_SH_ROUTER] = {D_ONE, D_EMBD, N_SH_GATE},
    [ROLE_SH_GATE] = {D_FF_SHARED, D_EMBD, N_SHARED},
    [ROLE_SH_UP] = {D_FF_SHARED, D_EMBD, N_SHARED},
    [ROLE_SH_DOWN] = {D_EMBD, D_FF_SHARED, N_SHARED},
    [ROLE_EXP_GATE] = {D_FF_EXPERT, D_EMBD, N_MOE},
    [ROLE_EXP_UP] = {D_FF_EXPERT, D_EMBD, N_MOE},
    [ROLE_EXP_DOWN] = {D_EMBD, D_FF_EXPERT, N_MOE},
    [ROLE_EXP_GATE_BIAS] = {D_ONE, D_FF_EXPERT, N_MOE_BIAS},
    [ROLE_EXP_UP_BIAS] = {D_ONE, D_FF_EXPERT, N_MOE_BIAS},
    [ROLE_EXP_DOWN_BIAS] = {D_ONE, D_EMBD, N_MOE_BIAS},
};

/* Families that call a role otherwise; NULL = as the others. */
static const struct {
    enum model_family family;
    enum model_role role;
    const char *gguf, *hf;
} other_names[] = {
    {FAMILY_MIXTRAL, ROLE_ROUTER, NULL, "block_sparse_moe.gate.weight"},
    {FAMILY_MIXTRAL, ROLE_EXP_GATE, NULL, "block_sparse_moe.experts.%d.w1.weight"},
    {FAMILY_MIXTRAL, ROLE_EXP_UP, NULL, "block_sparse_moe.experts.%d.w3.weight"},
    {FAMILY_MIXTRAL, ROLE_EXP_DOWN, NULL, "block_sparse_moe.experts.%d.w2.weight"},
    {FAMILY_GPT_OSS, ROLE_FFN_NORM, "post_attention_norm.weight", NULL},
    {FAMILY_GPT_OSS, ROLE_ROUTER, NULL, "mlp.router.weight"},
    {FAMILY_GPT_OSS, ROLE_ROUTER_BIAS, NULL, "mlp.router.bias"},
#define X(family)                                                                        \
    {family, ROLE_SH_GATE, NULL, "mlp.shared_experts.gate_proj.weight"},                 \
        {family, ROLE_SH_UP, NULL, "mlp.shared_experts.up_proj.weight"},                 \
        {family, ROLE_SH_DOWN, NULL, "mlp.shared_experts.down_proj.weight"},
    X(FAMILY_DEEPSEEK_V2) X(FAMILY_DEEPSEEK_V3) X(FAMILY_KIMI_K2)
#undef X
};

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
    [FAMILY_GPT_OSS] = {"gpt_oss", true, false},
    [FAMILY_DEEPSEEK_V2] = {"deepseek_v2", false, false},
    [FAMILY_DEEPSEEK_V3] = {"deepseek_v3", false, false},
    [FAMILY_KIMI_K2] = {"kimi_k2", false, false},
};

bool model_family_has_bias(enum model_family f) { return families[f].qkv_bias; }

bool model_family_has_qk_norm(enum model_family f) { return families[f].qk_norm; }

const char *model_family_name(enum model_family f) { return families[f].name; }

bool model_role_per_layer(enum model_role role) { return names[role].per_layer; }

static const char *name_of(const struct model_info *i, bool gguf, enum model_role role)
{
    for (size_t n = 0; n < sizeof(other_names) / sizeof(other_names[0]); n++) {
        const char *s = gguf ? other_names[n].gguf : other_names[n].hf;
        if (other_names[n].family == i->family && other_names[n].role == role && s)
            return s;
    }
    return gguf ? names[role].gguf : names[role].hf;
}

const char *model_role_part(const struct model_info *i, bool gguf, enum model_role role)
{
    return names[role].per_layer ? name_of(i, gguf, role) : NULL;
}

const char *model_role_name(const struct model_info *i, const struct role_file *f,
                            enum model_role role, int layer, int expert,
                            struct role_name *n)
{
    const char *s = name_of(i, f->gguf, role);
    const char *number = f->gguf ? NULL : strstr(s, "%d");
    char part[72];

    if (number) {
        snprintf(part, sizeof(part), "%.*s%d%s", (int)(number - s), s, expert,
                 number + 2);
        s = part;
    }
    if (names[role].per_layer && f->gguf)
        snprintf(n->s, sizeof(n->s), "blk.%d.%s", layer, s);
    else if (names[role].per_layer)
        snprintf(n->s, sizeof(n->s), "%slayers.%d.%s", f->prefix, layer, s);
    else if (!f->gguf && !strncmp(s, "model.", 6))
        snprintf(n->s, sizeof(n->s), "%s%s", f->prefix, s + 6);
    else
        snprintf(n->s, sizeof(n->s), "%s", s);
    return n->s;
}

static int dim_of(const struct model_info *i, enum dim d)
{
    switch (d) {
    case D_EMBD:
        return i->n_embd;
    case D_Q:
        return model_q_dim(i);
    case D_O:
        return model_o_dim(i);
    case D_Q_LORA:
        return i->mla.q_lora;
    case D_KV_LORA:
        return i->mla.kv_lora;
    case D_KV_A:
        return i->mla.kv_lora + i->mla.rope;
    case D_KV_B:
        return i->n_head * (i->mla.nope + i->mla.v);
    case D_NOPE:
        return i->mla.nope;
    case D_V_HEAD:
        return i->mla.v;
    case D_KV:
        return i->n_kv_head * i->head_dim;
    case D_QNORM:
        return i->qk_norm_full ? i->n_head * i->head_dim : i->head_dim;
    case D_KNORM:
        return i->qk_norm_full ? i->n_kv_head * i->head_dim : i->head_dim;
    case D_HEADS:
        return i->n_head;
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

int model_role_rows(const struct model_info *i, enum model_role role)
{
    return dim_of(i, shapes[role].rows);
}

int model_role_planes(const struct model_info *i, enum model_role role)
{
    return role == ROLE_K_B || role == ROLE_V_B ? i->n_head : 1;
}

int model_role_cols(const struct model_info *i, enum model_role role)
{
    return dim_of(i, shapes[role].cols);
}

bool model_role_is_vector(enum model_role role) { return shapes[role].rows == D_ONE; }

bool model_role_needed(const struct model_info *i, enum model_role role, int layer)
{
    bool moe = model_moe_layer(i, layer), latent = i->mla.kv_lora > 0;

    switch (shapes[role].need) {
    case N_Q:
        return !i->mla.q_lora;
    case N_KV:
        return !latent;
    case N_Q_LORA:
        return latent && i->mla.q_lora;
    case N_LATENT:
        return latent;
    case N_LATENT_WHOLE:
        return latent && !i->mla.split;
    case N_LATENT_SPLIT:
        return latent && i->mla.split;
    case N_CHOICE_BIAS:
        return moe && i->moe.choice_bias;
    case N_HEAD:
        return !i->tied_head;
    case N_FREQS:
        return i->rope_scaling == ROPE_LLAMA3 && !i->rope_orig_ctx;
    case N_BIAS:
        return i->qkv_bias;
    case N_O_BIAS:
        return i->o_bias;
    case N_NORM:
        return i->qk_norm;
    case N_SINKS:
        return i->sinks;
    case N_FFN:
        return !moe;
    case N_MOE:
        return moe;
    case N_MOE_BIAS:
        return moe && i->moe.bias;
    case N_SHARED:
        return moe && i->moe.n_ff_shared;
    case N_SH_GATE:
        return moe && i->moe.shared_gate;
    default:
        return true;
    }
}

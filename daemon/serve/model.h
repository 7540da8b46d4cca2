/* daemon/serve/model.h - a model's files: mapped, parsed, checked; and its facts.
 *
 * GGUF v3 or a Hugging Face folder becomes one struct model: hyper-parameters under one
 * set of names and a table of tensors by role. Every length, offset, count and dimension
 * of a file is checked before use; a fault gives one sentence naming file, tensor, fault.
 * Mapped pages are read-only; a file cut short after mapping raises SIGBUS on access,
 * which map.[ch] turns into an end of the engine with the file named, and into an error
 * in the daemon.
 * Immutable after open; any thread may read. */
#ifndef SERVE_MODEL_H
#define SERVE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

struct err;
struct model;

/* Families are rows: id, name in config.json `model_type`, name in GGUF
 * `general.architecture`. */
#define MODEL_FAMILY_MAP(X)                                                              \
    X(LLAMA, "llama", "llama")                                                           \
    X(MISTRAL, "mistral", "llama")                                                       \
    X(QWEN2, "qwen2", "qwen2")                                                           \
    X(QWEN3, "qwen3", "qwen3")                                                           \
    X(MIXTRAL, "mixtral", "llama")                                                       \
    X(QWEN2_MOE, "qwen2_moe", "qwen2moe")                                                \
    X(QWEN3_MOE, "qwen3_moe", "qwen3moe")                                                \
    X(OLMOE, "olmoe", "olmoe")                                                           \
    X(GPT_OSS, "gpt_oss", "gpt-oss")                                                     \
    X(DEEPSEEK_V2, "deepseek_v2", "deepseek2")                                           \
    X(DEEPSEEK_V3, "deepseek_v3", "deepseek2")                                           \
    X(KIMI_K2, "kimi_k2", "deepseek2")

enum model_family {
#define X(id, hf, gguf) FAMILY_##id,
    MODEL_FAMILY_MAP(X)
#undef X
        FAMILY_COUNT
};

enum rope_scaling { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

/* How a router turns its logits into k experts and their weights. */
enum moe_score {
    MOE_SOFTMAX, /* softmax over all, then the k largest */
    MOE_SIGMOID, /* sigmoid of each, chosen with a correction bias */
    MOE_CHOSEN   /* the k largest, then softmax over these */
};
struct model_moe {
    int n_expert, top_k; /* n_expert 0 = a dense model */
    int n_ff;            /* of one routed expert */
    int n_dense;         /* first layers that have a plain FFN of model_info.n_ff */
    int n_ff_shared;     /* of the experts that every token has, 0 = none */
    bool shared_gate;    /* their sum is weighed by a sigmoid */
    enum moe_score score;
    bool normalise; /* the k weights sum to 1, then scale */
    float scale;
    float limit;            /* of the gated unit, 0 = plain SiLU (op_experts) */
    bool bias;              /* router and experts have biases */
    bool choice_bias;       /* experts are chosen with one more bias (MOE_SIGMOID) */
    int n_group, top_group; /* experts stand in groups of which some count; 0, 1 = no */
};

/* Latent attention: what is kept of a position is one vector that all heads share, of
 * kv_lora values and, after these, rope ones that rotate. Heads have nope values made
 * from the latent, then rope ones; model_info.head_dim is kv_lora + rope, n_kv_head 1. */
struct model_mla {
    int q_lora,
        kv_lora;       /* q_lora 0: q comes from the input directly. kv_lora 0: no MLA */
    int nope, rope, v; /* of a head */
    bool split;        /* a file has the parts of kv_b for K and V apart */
    float scale;       /* the softmax scale is this / sqrt(nope + rope) */
};

/* YaRN: pairs that turn more than beta_fast times in orig_ctx positions are kept, those
 * that turn less than beta_slow times are stretched by rope_factor, those between are a
 * mixture along their number. cos and sin are multiplied by attn_scale. */
struct rope_yarn {
    float beta_fast, beta_slow, attn_scale;
    bool truncate; /* the border pairs are whole numbers */
};

struct model_info {
    enum model_family family;
    char name[128]; /* general.name or the folder's name */
    int n_layer, n_embd, n_head, n_kv_head, head_dim, n_ff, n_vocab, n_ctx;
    float norm_eps, rope_theta;
    bool rope_neox; /* pair (j, j + d/2); GGUF llama files hold permuted q, k: false */
    int rope_dim;
    enum rope_scaling rope_scaling;
    float rope_factor, rope_low_freq, rope_high_freq; /* of ROPE_LINEAR, _LLAMA3, _YARN */
    int rope_orig_ctx; /* 0: ROPE_LLAMA3's factors are a tensor, ROLE_ROPE_FREQS */
    struct rope_yarn yarn;
    bool qk_norm, qkv_bias, tied_head;
    bool o_bias, sinks; /* a bias of Wo; one logit a head in the softmax's sum */
    bool qk_norm_full;  /* the norm is over all heads together (OLMoE) */
    struct model_moe moe;
    struct model_mla mla;
    int sliding_window;       /* 0 = none */
    int window_every;         /* 0 = in all layers; 2 = in layers 0, 2, 4, .. */
    int n_tensors, n_ignored; /* of the files: used, and passed over as unknown */
    uint64_t n_params;
    size_t file_bytes;
    char format[16];   /* "gguf" | "safetensors" */
    char main_type[8]; /* most frequent matrix type by bytes, e.g. "Q4_1" */
};

/* Roles of tensors; per layer unless said. Those of experts are one tensor for all in
 * GGUF and one each in a folder (%d). */
#define MODEL_ROLE_MAP(X)                                                                \
    X(TOK_EMBD, "token_embd.weight", "model.embed_tokens.weight", 0)                     \
    X(OUT_NORM, "output_norm.weight", "model.norm.weight", 0)                            \
    X(OUT_HEAD, "output.weight", "lm_head.weight", 0)                                    \
    X(ROPE_FREQS, "rope_freqs.weight", "", 0)                                            \
    X(ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", 1)                        \
    X(Q, "attn_q.weight", "self_attn.q_proj.weight", 1)                                  \
    X(K, "attn_k.weight", "self_attn.k_proj.weight", 1)                                  \
    X(V, "attn_v.weight", "self_attn.v_proj.weight", 1)                                  \
    X(Q_BIAS, "attn_q.bias", "self_attn.q_proj.bias", 1)                                 \
    X(K_BIAS, "attn_k.bias", "self_attn.k_proj.bias", 1)                                 \
    X(V_BIAS, "attn_v.bias", "self_attn.v_proj.bias", 1)                                 \
    X(Q_NORM, "attn_q_norm.weight", "self_attn.q_norm.weight", 1)                        \
    X(K_NORM, "attn_k_norm.weight", "self_attn.k_norm.weight", 1)                        \
    X(Q_A, "attn_q_a.weight", "self_attn.q_a_proj.weight", 1)                            \
    X(Q_A_NORM, "attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", 1)             \
    X(Q_B, "attn_q_b.weight", "self_attn.q_b_proj.weight", 1)                            \
    X(KV_A, "attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", 1)            \
    X(KV_A_NORM, "attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", 1)          \
    X(KV_B, "attn_kv_b.weight", "self_attn.kv_b_proj.weight", 1)                         \
    X(K_B, "attn_k_b.weight", "", 1)                                                     \
    X(V_B, "attn_v_b.weight", "", 1)                                                     \
    X(O, "attn_output.weight", "self_attn.o_proj.weight", 1)                             \
    X(O_BIAS, "attn_output.bias", "self_attn.o_proj.bias", 1)                            \
    X(SINKS, "attn_sinks.weight", "self_attn.sinks", 1)                                  \
    X(FFN_NORM, "ffn_norm.weight", "post_attention_layernorm.weight", 1)                 \
    X(GATE, "ffn_gate.weight", "mlp.gate_proj.weight", 1)                                \
    X(UP, "ffn_up.weight", "mlp.up_proj.weight", 1)                                      \
    X(DOWN, "ffn_down.weight", "mlp.down_proj.weight", 1)                                \
    X(ROUTER, "ffn_gate_inp.weight", "mlp.gate.weight", 1)                               \
    X(ROUTER_BIAS, "ffn_gate_inp.bias", "mlp.gate.bias", 1)                              \
    X(CHOICE_BIAS, "exp_probs_b.bias", "mlp.gate.e_score_correction_bias", 1)            \
    X(SH_ROUTER, "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", 1)        \
    X(SH_GATE, "ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", 1)         \
    X(SH_UP, "ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", 1)               \
    X(SH_DOWN, "ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", 1)         \
    X(EXP_GATE, "ffn_gate_exps.weight", "mlp.experts.%d.gate_proj.weight", 1)            \
    X(EXP_UP, "ffn_up_exps.weight", "mlp.experts.%d.up_proj.weight", 1)                  \
    X(EXP_DOWN, "ffn_down_exps.weight", "mlp.experts.%d.down_proj.weight", 1)            \
    X(EXP_GATE_BIAS, "ffn_gate_exps.bias", "mlp.experts.%d.gate_proj.bias", 1)           \
    X(EXP_UP_BIAS, "ffn_up_exps.bias", "mlp.experts.%d.up_proj.bias", 1)                 \
    X(EXP_DOWN_BIAS, "ffn_down_exps.bias", "mlp.experts.%d.down_proj.bias", 1)

enum model_role {
#define X(id, gguf, hf, per_layer) ROLE_##id,
    MODEL_ROLE_MAP(X)
#undef X
        ROLE_COUNT
};

/* How the bytes of a tensor stand in its file. */
enum tensor_form {
    TENSOR_PLAIN,   /* rows one after the other */
    TENSOR_STRIDED, /* of a float type: elements row_step and col_step apart */
    TENSOR_MX,      /* MXFP4 in two: 16 bytes of codes a block (the low half is the even
                       element), rows row_step blocks apart; and a scale each */
    TENSOR_F8       /* E4M3 bytes, row by row, and an F32 scale for each block of
                       TENSOR_F8_BLOCK x TENSOR_F8_BLOCK (the last ones may be less) */
};
enum { TENSOR_F8_BLOCK = 128 };
struct model_tensor {
    const char *name; /* as in the file */
    const char *file;
    enum dtype type; /* TENSOR_F8: F32, what code times scale is rounded to */
    int rows, cols;  /* a vector is rows = 1 */
    const void *data;
    size_t bytes; /* of data (strided: of what the tensor stands in) */
    enum tensor_form form;
    size_t row_step, col_step;
    const uint8_t *scales;
};

/* path: a .gguf file or a folder. */
int model_open(const char *path, struct model **ret, struct err *e);
void model_free(struct model *m);
/* After reading from the maps, where the process lives on when a file is cut short
 * (map_sigbus_survive): -1 when one was, then what was read means nothing. */
int model_check(const struct model *m, struct err *e);
const struct model_info *model_info(const struct model *m);
/* NULL when the model has no such tensor (a bias, a tied head). */
const struct model_tensor *model_tensor(const struct model *m, enum model_role role,
                                        int layer);
/* The part of one expert: ROLE_EXP_*; NULL in a dense layer, and where there is no bias.
 */
const struct model_tensor *model_expert(const struct model *m, enum model_role role,
                                        int layer, int expert);
static inline bool model_role_is_expert(enum model_role r)
{
    return r >= ROLE_EXP_GATE && r <= ROLE_EXP_DOWN_BIAS;
}
enum { MODEL_EXPERT_ROLES = ROLE_EXP_DOWN_BIAS - ROLE_EXP_GATE + 1 };
/* Has this layer experts? */
static inline bool model_moe_layer(const struct model_info *i, int layer)
{
    return i->moe.n_expert > 0 && layer >= i->moe.n_dense;
}
/* Widths of all heads of q, and of what Wo takes. */
static inline int model_q_dim(const struct model_info *i)
{
    return i->n_head * (i->mla.kv_lora ? i->mla.nope + i->mla.rope : i->head_dim);
}
static inline int model_o_dim(const struct model_info *i)
{
    return i->n_head * (i->mla.kv_lora ? i->mla.v : i->head_dim);
}
/* Positions that this layer looks back, 0 = all. */
static inline int model_window(const struct model_info *i, int layer)
{
    return i->window_every && layer % i->window_every ? 0 : i->sliding_window;
}
/* Bytes of it as matrices are kept on a CPU: E4M3 as F32, MXFP4 as Q8_0. */
size_t model_tensor_held(const struct model_tensor *t);
/* The pages of a tensor are not needed any more (it was repacked). */
void model_drop_pages(const struct model *m, const struct model_tensor *t);
/* RoPE inverse frequencies with the model's scaling: out[rope_dim / 2]. */
void model_inv_freq(const struct model *m, float *out);

/* Where the vocabulary is: GGUF metadata or tokenizer.json. Read by tokenizer_open. */
struct gguf;
const struct gguf *model_gguf(const struct model *m); /* NULL for a folder */
const char *model_dir(const struct model *m);         /* NULL for GGUF */
/* "llama, mistral, qwen2, .." */
const char *model_families(void);

#endif

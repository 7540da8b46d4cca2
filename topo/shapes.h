/* topo/shapes.h - what planning must know of a model: shapes, formats, KV kinds.
 *
 * Read from the text of a published config.json (no weights needed); etc/models/ carries
 * some. Everything is a count of parameters or bytes, whole and on one rank of a TP
 * group. Weights that a forward pass for one token does not need (vision towers, the
 * draft layers of num_nextn_predict_layers) are not counted. Plain data; pure but for
 * shapes_open. Any thread. */
#ifndef TOPO_SHAPES_H
#define TOPO_SHAPES_H

#include <stdbool.h>
#include <stddef.h>

struct err;

/* id, name, bits of an element, elements that share a scale (0 none), bits of a scale */
#define WEIGHT_FORMAT_MAP(X)                                                             \
    X(F32, "f32", 32, 0, 0)                                                              \
    X(BF16, "bf16", 16, 0, 0)                                                            \
    X(FP8, "fp8", 8, 0, 0)                                                               \
    X(FP8_BLOCK, "fp8-block", 8, 16384, 32) /* 128 x 128, f32 */                         \
    X(INT8, "int8", 8, 32, 16)              /* Q8_0 */                                   \
    X(MXFP4, "mxfp4", 4, 32, 8)                                                          \
    X(NVFP4, "nvfp4", 4, 16, 8)                                                          \
    X(INT4, "int4", 4, 32, 16) /* Q4_0 */                                                \
    X(Q4_1, "q4_1", 4, 32, 32)                                                           \
    X(Q5_0, "q5_0", 5, 32, 16)                                                           \
    X(Q5_1, "q5_1", 5, 32, 32)                                                           \
    X(Q4_K, "q4_k", 4, 256, 128)                                                         \
    X(Q5_K, "q5_k", 5, 256, 128)                                                         \
    X(Q6_K, "q6_k", 6, 256, 144)
enum weight_format {
#define X(id, name, bits, group, scale) FORMAT_##id,
    WEIGHT_FORMAT_MAP(X)
#undef X
        FORMAT_COUNT
};

#define SHAPE_PART_MAP(X)                                                                \
    X(EMBED, "embedding")                                                                \
    X(HEAD, "head")                                                                      \
    X(ATTN, "attention")                                                                 \
    X(MLP, "dense mlp")                                                                  \
    X(SHARED, "shared experts")                                                          \
    X(EXPERTS, "routed experts")                                                         \
    X(ROUTER, "router")                                                                  \
    X(LATENT, "expert projections") /* into and out of a narrower expert space */        \
    X(NORM, "norms")
enum shape_part {
#define X(id, name) PART_##id,
    SHAPE_PART_MAP(X)
#undef X
        PART_COUNT
};

#define ATTN_KIND_MAP(X)                                                                 \
    X(FULL, "full")                                                                      \
    X(WINDOW, "window")                                                                  \
    X(LATENT, "latent")                                                                  \
    X(STATE, "fixed state")
enum attn_kind {
#define X(id, name) ATTN_##id,
    ATTN_KIND_MAP(X)
#undef X
        ATTN_COUNT
};

enum { SHAPES_LAYERS_MAX = 512 };

struct layer_shape {
    enum attn_kind attn;
    bool sparse; /* routed experts in place of the dense MLP */
};

struct shapes {
    char name[96], type[48];
    int n_layer, hidden, n_head, n_kv, head_dim, inter, vocab, ctx;
    int window, n_nextn, attn_res_block;
    bool tied, attn_bias, qk_norm, expert_bias;
    int q_lora, kv_lora, nope_dim, rope_dim, v_dim; /* latent attention; 0 none */
    bool attn_gate;                              /* an output gate as wide as o's input */
    int index_heads, index_dim, index_topk;      /* sparse attention's indexer; 0 none */
    int kda_heads, kda_dim, kda_conv;            /* layers with a fixed state; 0 none */
    int n_expert, topk, moe_inter, shared_inter; /* 0 dense */
    int expert_hidden;                           /* width that experts see */
    enum weight_format format[PART_COUNT];
    struct layer_shape layer[SHAPES_LAYERS_MAX];
};

/* name is for sentences and display where the text has none. *ret untouched on failure.
 */
int shapes_from_config(const char *name, const char *text, size_t n, struct shapes *ret,
                       struct err *e);
/* A config.json or a folder with one. */
int shapes_open(const char *path, struct shapes *ret, struct err *e);
/* Other formats than the published ones: "bf16", "fp8" (matrices but embedding, head,
 * router), "fp4" (NVFP4 in experts and MLPs, FP8 attention), "mxfp4", "int4" (routed
 * experts alone, or all matrices of a dense model). */
int shapes_set_precision(struct shapes *s, const char *precision, struct err *e);

const char *weight_format_name(enum weight_format f);
double weight_format_bits(enum weight_format f); /* of an element, its scale included */
int weight_format_group(enum weight_format f);   /* along a row; 0 none */
const char *shape_part_name(enum shape_part p);
const char *attn_kind_name(enum attn_kind k);

/* KV heads that one of tp ranks holds: never less than one. */
int shapes_kv_heads(const struct shapes *s, int tp);
/* Parameters of a part: one layer on one rank (EMBED and HEAD: layer is ignored); routed
 * experts divide by etp only, which leaves all of them, each a slice. */
double shapes_rank_params(const struct shapes *s, int layer, enum shape_part part, int tp,
                          int etp);
double shapes_params(const struct shapes *s,
                     enum shape_part part); /* all layers, whole */
double shapes_total(const struct shapes *s);
double shapes_active(const struct shapes *s); /* that act on one token */
double shapes_bytes(const struct shapes *s, enum shape_part part);

/* KV of one token in a layer on one rank; 0 in a layer with a fixed state. */
double shapes_kv_token(const struct shapes *s, int layer, enum weight_format kv, int tp);
/* Fixed state of one sequence in a layer on one rank: f32 state, and the short
 * convolution's last inputs in bf16 apart. */
double shapes_state(const struct shapes *s, int layer, int tp);
double shapes_conv_state(const struct shapes *s, int layer, int tp);

#endif

/* topo/shapes.c - parameters and KV bytes from a model's shapes.
 *
 * shapes_config.c reads the text; here is the arithmetic. What a TP rank holds follows
 * the usual cut: heads of attention and columns of MLPs divide, the down-projections of
 * latent attention, its indexer, the router and the norms are whole on each rank, and
 * KV heads never go below one a rank. */
#include "topo/shapes.h"

#include <string.h>

#include "base/err.h"

static const struct {
    const char *name;
    int bits, group, scale;
} formats[FORMAT_COUNT] = {
#define X(id, name, bits, group, scale) {name, bits, group, scale},
    WEIGHT_FORMAT_MAP(X)
#undef X
};

const char *weight_format_name(enum weight_format f) { return formats[f].name; }

double weight_format_bits(enum weight_format f)
{
    return formats[f].bits +
           (formats[f].group ? 1.0 * formats[f].scale / formats[f].group : 0);
}

int weight_format_group(enum weight_format f)
{
    return f == FORMAT_FP8_BLOCK ? 128 : formats[f].group;
}

const char *shape_part_name(enum shape_part p)
{
    static const char *const names[] = {
#define X(id, name) name,
        SHAPE_PART_MAP(X)
#undef X
    };

    return names[p];
}

const char *attn_kind_name(enum attn_kind k)
{
    static const char *const names[] = {
#define X(id, name) name,
        ATTN_KIND_MAP(X)
#undef X
    };

    return names[k];
}

int shapes_kv_heads(const struct shapes *s, int tp)
{
    return s->n_kv > tp ? (s->n_kv + tp - 1) / tp : 1;
}

static double heads_params(const struct shapes *s, int tp)
{
    double h = s->hidden, q = 1.0 * s->n_head * s->head_dim / tp;
    double kv = 1.0 * shapes_kv_heads(s, tp) * s->head_dim;
    double n = 2 * h * q + 2 * h * kv;

    return s->attn_bias ? n + q + 2 * kv + h : n;
}

static double latent_params(const struct shapes *s, int tp)
{
    double h = s->hidden, heads = 1.0 * s->n_head / tp, qk = s->nope_dim + s->rope_dim;
    double q = s->q_lora ? s->q_lora * h + s->q_lora * heads * qk : h * heads * qk;
    double kv =
        h * (s->kv_lora + s->rope_dim) + heads * s->kv_lora * (s->nope_dim + s->v_dim);
    double o = heads * s->v_dim * h;
    double index = s->index_heads ? 1.0 * s->q_lora * s->index_heads * s->index_dim +
                                        h * s->index_dim + h * s->index_heads
                                  : 0;

    return q + kv + o * (s->attn_gate ? 2 : 1) + index;
}

/* q, k, v, gate and output as wide as the heads; a low-rank decay, one beta a head. */
static double state_params(const struct shapes *s, int tp)
{
    double h = s->hidden, wide = 1.0 * s->kda_heads * s->kda_dim / tp;
    double decay = h * s->kda_dim + s->kda_dim * wide;

    return 5 * h * wide + decay + h * s->kda_heads / tp + 3 * wide * s->kda_conv;
}

static double attn_params(const struct shapes *s, enum attn_kind kind, int tp)
{
    if (kind == ATTN_STATE)
        return state_params(s, tp);
    return kind == ATTN_LATENT ? latent_params(s, tp) : heads_params(s, tp);
}

static double expert_params(const struct shapes *s, int etp)
{
    double n = 3.0 * s->expert_hidden * s->moe_inter / etp;

    if (s->expert_bias)
        n += 2.0 * s->moe_inter / etp + s->expert_hidden;
    return n * s->n_expert;
}

static double norm_params(const struct shapes *s, int layer)
{
    double n = 2.0 * s->hidden;

    if (s->qk_norm)
        n += 2.0 * s->head_dim;
    if (s->layer[layer].attn == ATTN_LATENT)
        n += s->q_lora + s->kv_lora;
    if (s->attn_res_block)
        n += 4.0 * s->hidden;
    return n;
}

double shapes_rank_params(const struct shapes *s, int layer, enum shape_part part, int tp,
                          int etp)
{
    bool sparse = s->layer[layer].sparse;
    double h = s->hidden;

    switch (part) {
    case PART_EMBED:
    case PART_HEAD:
        return h * s->vocab / tp;
    case PART_ATTN:
        return attn_params(s, s->layer[layer].attn, tp);
    case PART_MLP:
        return sparse ? 0 : 3 * h * s->inter / tp;
    case PART_SHARED:
        return sparse ? 3 * h * s->shared_inter / tp : 0;
    case PART_EXPERTS:
        return sparse ? expert_params(s, etp) : 0;
    case PART_ROUTER:
        return sparse ? h * s->n_expert : 0;
    case PART_LATENT:
        return sparse && s->expert_hidden != s->hidden ? 2 * h * s->expert_hidden / tp
                                                       : 0;
    case PART_NORM:
        return norm_params(s, layer);
    default:
        return 0;
    }
}

double shapes_params(const struct shapes *s, enum shape_part part)
{
    double n = 0;

    if (part == PART_EMBED)
        return shapes_rank_params(s, 0, part, 1, 1);
    if (part == PART_HEAD)
        return s->tied ? 0 : shapes_rank_params(s, 0, part, 1, 1);
    for (int i = 0; i < s->n_layer; i++)
        n += shapes_rank_params(s, i, part, 1, 1);
    return part == PART_NORM ? n + s->hidden : n;
}

double shapes_total(const struct shapes *s)
{
    double n = 0;

    for (int p = 0; p < PART_COUNT; p++)
        n += shapes_params(s, (enum shape_part)p);
    return n;
}

double shapes_active(const struct shapes *s)
{
    double experts = shapes_params(s, PART_EXPERTS);

    return shapes_total(s) -
           (s->n_expert ? experts * (1 - 1.0 * s->topk / s->n_expert) : 0);
}

double shapes_bytes(const struct shapes *s, enum shape_part part)
{
    return shapes_params(s, part) * weight_format_bits(s->format[part]) / 8;
}

double shapes_kv_token(const struct shapes *s, int layer, enum weight_format kv, int tp)
{
    double bytes = weight_format_bits(kv) / 8;

    switch (s->layer[layer].attn) {
    case ATTN_FULL:
    case ATTN_WINDOW:
        return 2.0 * shapes_kv_heads(s, tp) * s->head_dim * bytes;
    case ATTN_LATENT:
        return (s->kv_lora + s->rope_dim + (s->index_heads ? s->index_dim : 0)) * bytes;
    default:
        return 0;
    }
}

double shapes_state(const struct shapes *s, int layer, int tp)
{
    if (s->layer[layer].attn != ATTN_STATE)
        return 0;
    return 4.0 * s->kda_heads / tp * s->kda_dim * s->kda_dim;
}

double shapes_conv_state(const struct shapes *s, int layer, int tp)
{
    if (s->layer[layer].attn != ATTN_STATE)
        return 0;
    return 2.0 * 3 * s->kda_heads / tp * s->kda_dim * (s->kda_conv - 1);
}

static void set_parts(struct shapes *s, enum weight_format attn, enum weight_format mlp,
                      enum weight_format experts)
{
    s->format[PART_ATTN] = attn;
    s->format[PART_MLP] = s->format[PART_SHARED] = s->format[PART_LATENT] = mlp;
    s->format[PART_EXPERTS] = experts;
}

int shapes_set_precision(struct shapes *s, const char *precision, struct err *e)
{
    enum weight_format f;

    if (!strcmp(precision, "bf16")) {
        set_parts(s, FORMAT_BF16, FORMAT_BF16, FORMAT_BF16);
    } else if (!strcmp(precision, "fp8")) {
        set_parts(s, FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK);
    } else if (!strcmp(precision, "fp4")) {
        set_parts(s, FORMAT_FP8, FORMAT_NVFP4, FORMAT_NVFP4);
    } else if (!strcmp(precision, "mxfp4") || !strcmp(precision, "int4")) {
        f = *precision == 'm' ? FORMAT_MXFP4 : FORMAT_INT4;
        if (s->n_expert)
            s->format[PART_EXPERTS] = f;
        else
            set_parts(s, f, f, f);
    } else {
        return err_param(e, ERR_INVALID, "precision",
                         "precision '%s' is not one of bf16, fp8, fp4, mxfp4, int4",
                         precision);
    }
    return 0;
}

/* Hyper-parameters from the keys of a GGUF file: half of modelinfo.h.
 *
 * Keys are named after the architecture ("llama.block_count"). Absent ones have the
 * defaults of the format; what would change the result but is not served (other RoPE
 * scalings, files in parts) is refused rather than passed over. */
#include "daemon/serve/modelinfo.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "daemon/serve/blame.h"
#include "daemon/serve/gguf.h"
#include "daemon/serve/model.h"

struct source {
    const struct gguf *g;
    const char *path;
    char arch[16];
    char key[96]; /* of the last look-up */
};

static const char *key(struct source *s, const char *name)
{
    snprintf(s->key, sizeof(s->key), "%s.%s", s->arch, name);
    return s->key;
}

/* An integer; *ret keeps its value when the key is absent and not needed. */
static int get_int(struct source *s, const char *name, bool needed, int *ret,
                   struct err *e)
{
    uint64_t v = 0;
    int rc = gguf_u64(s->g, key(s, name), &v, e);

    if (rc > 0 && needed)
        return blame(e, ERR_CORRUPT, s->path, "key '%s' is missing", s->key);
    if (rc == 0 && v > INT32_MAX)
        return blame(e, ERR_CORRUPT, s->path, "key '%s' is %llu; served are up to %d",
                     s->key, (unsigned long long)v, INT32_MAX);
    if (rc == 0)
        *ret = (int)v;
    return rc < 0 ? -1 : 0;
}

static int get_real(struct source *s, const char *name, bool needed, float *ret,
                    struct err *e)
{
    double v;
    int rc = gguf_f64(s->g, key(s, name), &v, e);

    if (rc > 0 && needed)
        return blame(e, ERR_CORRUPT, s->path, "key '%s' is missing", s->key);
    if (rc == 0)
        *ret = (float)v;
    return rc < 0 ? -1 : 0;
}

static int get_family(struct source *s, struct model_info *i, struct err *e)
{
    static const char *const names[] = {
#define X(id, hf, gguf) gguf,
        MODEL_FAMILY_MAP(X)
#undef X
    };
    struct gguf_str v;
    int rc = gguf_string(s->g, "general.architecture", &v, e);

    if (rc < 0)
        return -1;
    if (rc > 0)
        return blame(e, ERR_CORRUPT, s->path, "key 'general.architecture' is missing");
    for (int f = 0; f < FAMILY_COUNT; f++) {
        if (strlen(names[f]) == v.n && !memcmp(names[f], v.p, v.n)) {
            i->family = (enum model_family)f;
            snprintf(s->arch, sizeof(s->arch), "%s", names[f]);
            return 0;
        }
    }
    return modelinfo_refuse_family(s->path, v.p, v.n, e);
}

static int refuse_unserved(struct source *s, struct err *e)
{
    uint64_t parts = 1;

    if (gguf_u64(s->g, "split.count", &parts, e) < 0)
        return -1;
    if (parts > 1)
        return blame(e, ERR_UNSUPPORTED, s->path,
                     "the file is one of %llu parts; GGUF is served as one file: join "
                     "the parts first",
                     (unsigned long long)parts);
    return 0;
}

/* Files of gpt-oss have the experts' width alone. */
static int get_ff(struct source *s, struct model_info *i, struct err *e)
{
    bool experts = i->family == FAMILY_GPT_OSS;

    if (experts && get_int(s, "expert_feed_forward_length", false, &i->n_ff, e) < 0)
        return -1;
    return get_int(s, "feed_forward_length", !i->n_ff, &i->n_ff, e);
}

/* Newer files give the sizes of a head by keys of their own; in older ones key_length and
 * value_length are these. */
static int get_mla(struct source *s, struct model_info *i, struct err *e)
{
    struct model_mla *m = &i->mla;
    int key = 0;

    if (get_int(s, "attention.q_lora_rank", false, &m->q_lora, e) < 0 ||
        get_int(s, "attention.kv_lora_rank", true, &m->kv_lora, e) < 0 ||
        get_int(s, "rope.dimension_count", true, &m->rope, e) < 0 ||
        get_int(s, "attention.key_length", true, &key, e) < 0 ||
        get_int(s, "attention.value_length", true, &m->v, e) < 0 ||
        get_int(s, "attention.key_length_mla", false, &key, e) < 0 ||
        get_int(s, "attention.value_length_mla", false, &m->v, e) < 0)
        return -1;
    m->nope = key - m->rope;
    if (modelinfo_set_mla(i, &(struct err){0}) < 0)
        return blame(
            e, ERR_CORRUPT, s->path,
            "latent attention of ranks %d and %d, heads of %d with %d that rotate "
            "and values of %d; served are up to 1024",
            m->q_lora, m->kv_lora, key, m->rope, m->v);
    return 0;
}

static int get_heads(struct source *s, struct model_info *i, struct err *e)
{
    int value_len;

    if (get_int(s, "attention.head_count", true, &i->n_head, e) < 0)
        return -1;
    i->n_kv_head = i->n_head;
    if (get_int(s, "attention.head_count_kv", false, &i->n_kv_head, e) < 0)
        return -1;
    if (i->n_head < 1)
        return blame(e, ERR_CORRUPT, s->path,
                     "attention.head_count is %d; right is 1 or more", i->n_head);
    if (modelinfo_has_mla(i->family))
        return get_mla(s, i, e);
    i->head_dim = i->n_embd / i->n_head;
    if (!gguf_has(s->g, key(s, "attention.key_length")) && i->n_embd % i->n_head)
        return blame(e, ERR_CORRUPT, s->path,
                     "embeddings of %d cannot be split into %d heads, and "
                     "attention.key_length is missing",
                     i->n_embd, i->n_head);
    if (get_int(s, "attention.key_length", false, &i->head_dim, e) < 0)
        return -1;
    value_len = i->head_dim;
    if (get_int(s, "attention.value_length", false, &value_len, e) < 0)
        return -1;
    if (value_len != i->head_dim)
        return blame(e, ERR_UNSUPPORTED, s->path,
                     "keys of %d and values of %d a head; served: both alike",
                     i->head_dim, value_len);
    return 0;
}

static int get_yarn(struct source *s, struct model_info *i, struct err *e)
{
    struct rope_yarn *y = &i->yarn;
    float times = 1;

    y->beta_fast = 32;
    y->beta_slow = 1;
    y->truncate = i->family != FAMILY_GPT_OSS; /* no key says so */
    i->rope_orig_ctx = i->n_ctx;
    i->rope_scaling = ROPE_YARN;
    if (get_real(s, "rope.scaling.yarn_beta_fast", false, &y->beta_fast, e) < 0 ||
        get_real(s, "rope.scaling.yarn_beta_slow", false, &y->beta_slow, e) < 0 ||
        get_real(s, "rope.scaling.attn_factor", false, &times, e) < 0 ||
        get_int(s, "rope.scaling.original_context_length", false, &i->rope_orig_ctx, e) <
            0)
        return -1;
    if (i->mla.kv_lora) { /* there the scale is in the softmax */
        float mul = 0;
        if (get_real(s, "rope.scaling.yarn_log_multiplier", false, &mul, e) < 0)
            return -1;
        y->attn_scale = 1;
        if (i->rope_factor > 1)
            i->mla.scale = powf(times * (1 + mul * logf(i->rope_factor)), 2);
        return 0;
    }
    y->attn_scale = times * (i->rope_factor > 1 ? 0.1f * logf(i->rope_factor) + 1 : 1);
    return 0;
}

static int get_rope(struct source *s, struct model_info *i, struct err *e)
{
    struct gguf_str kind = {"none", 4};
    struct blame_name b;
    float old_scale = 0;

    i->rope_dim = i->mla.kv_lora ? i->mla.rope : i->head_dim;
    i->rope_theta = 10000;
    i->rope_neox = strcmp(s->arch, "llama") != 0 && !i->mla.kv_lora;
    if (get_int(s, "rope.dimension_count", false, &i->rope_dim, e) < 0 ||
        get_real(s, "rope.freq_base", false, &i->rope_theta, e) < 0 ||
        get_real(s, "rope.scaling.factor", false, &i->rope_factor, e) < 0 ||
        get_real(s, "rope.scale_linear", false, &old_scale, e) < 0 ||
        gguf_string(s->g, key(s, "rope.scaling.type"), &kind, e) < 0)
        return -1;
    if (kind.n == 6 && !memcmp(kind.p, "linear", 6)) {
        i->rope_scaling = ROPE_LINEAR;
    } else if (kind.n == 4 && !memcmp(kind.p, "yarn", 4)) {
        return get_yarn(s, i, e);
    } else if (kind.n != 4 || memcmp(kind.p, "none", 4) != 0) {
        return blame(
            e, ERR_UNSUPPORTED, s->path,
            "RoPE scaling '%s' is not supported; supported: none, linear, llama3, "
            "yarn",
            blame_name(&b, kind.p, kind.n));
    } else if (old_scale != 0 && old_scale != 1) {
        i->rope_scaling = ROPE_LINEAR;
        i->rope_factor = old_scale;
    }
    if (i->rope_scaling == ROPE_NONE)
        i->rope_factor = 0;
    return 0;
}

static int get_deepseek(struct source *s, struct model_info *i, struct err *e)
{
    struct model_moe *m = &i->moe;
    int gating = 1, shared = 0;

    if (get_int(s, "expert_gating_func", false, &gating, e) < 0 ||
        get_int(s, "expert_shared_count", false, &shared, e) < 0 ||
        get_int(s, "leading_dense_block_count", false, &m->n_dense, e) < 0 ||
        get_int(s, "expert_group_count", false, &m->n_group, e) < 0 ||
        get_int(s, "expert_group_used_count", false, &m->top_group, e) < 0 ||
        get_real(s, "expert_weights_scale", false, &m->scale, e) < 0 ||
        gguf_bool(s->g, key(s, "expert_weights_norm"), &m->normalise, e) < 0)
        return -1;
    if (gating != 1 && gating != 2)
        return blame(e, ERR_UNSUPPORTED, s->path,
                     "expert_gating_func is %d; served are 1 (softmax) and 2 (sigmoid)",
                     gating);
    if (shared > 64)
        return blame(e, ERR_CORRUPT, s->path,
                     "expert_shared_count is %d; served are up to 64", shared);
    m->score = gating == 2 ? MOE_SIGMOID : MOE_SOFTMAX;
    if (m->n_ff > 0 && m->n_ff <= 1 << 20)
        m->n_ff_shared = shared * m->n_ff;
    return 0;
}

/* A file of architecture llama with experts is Mixtral. What only the weights' use tells
 * (is the choice normalised?) belongs to the family. */
static int get_moe(struct source *s, struct model_info *i, struct err *e)
{
    struct model_moe *m = &i->moe;

    if (get_int(s, "expert_count", false, &m->n_expert, e) < 0)
        return -1;
    if (!m->n_expert && i->family < FAMILY_MIXTRAL)
        return 0;
    if (i->family == FAMILY_LLAMA)
        i->family = FAMILY_MIXTRAL;
    if (i->family < FAMILY_MIXTRAL)
        return blame(e, ERR_UNSUPPORTED, s->path,
                     "a %s model of %d experts is not supported", s->arch, m->n_expert);
    m->n_ff = i->n_ff;
    m->scale = 1;
    m->score = MOE_SOFTMAX;
    m->normalise = i->family == FAMILY_MIXTRAL || i->family == FAMILY_QWEN3_MOE;
    i->qk_norm_full = i->family == FAMILY_OLMOE;
    if (get_int(s, "expert_used_count", true, &m->top_k, e) < 0 ||
        get_int(s, "expert_feed_forward_length", false, &m->n_ff, e) < 0 ||
        get_int(s, "expert_shared_feed_forward_length", false, &m->n_ff_shared, e) < 0)
        return -1;
    if (modelinfo_has_mla(i->family) && get_deepseek(s, i, e) < 0)
        return -1;
    if (i->family == FAMILY_GPT_OSS) {
        m->score = MOE_CHOSEN;
        m->bias = i->sinks = true;
        m->limit = 7;
        i->window_every = 2;
    }
    m->shared_gate = i->family == FAMILY_QWEN2_MOE && m->n_ff_shared;
    return 0;
}

static int get_vocab(struct source *s, struct model_info *i, struct err *e)
{
    const struct gguf_tensor *t = gguf_find(s->g, "token_embd.weight");
    size_t n = 0;

    if (!t || t->n_dims > 2 || t->dims[1] > INT32_MAX)
        return blame(e, ERR_CORRUPT, s->path,
                     "tensor 'token_embd.weight' is missing or has no two dimensions");
    i->n_vocab = (int)t->dims[1];
    if (gguf_arr_len(s->g, "tokenizer.ggml.tokens", &n, e) < 0)
        return -1;
    if (n > (size_t)i->n_vocab)
        return blame(e, ERR_CORRUPT, s->path,
                     "the vocabulary has %zu tokens but 'token_embd.weight' only %d rows",
                     n, i->n_vocab);
    return 0;
}

int modelinfo_from_gguf(const struct gguf *g, const char *path, struct model_info *ret,
                        struct err *e)
{
    struct source s = {.g = g, .path = path};
    struct model_info i = {.format = "gguf"};
    struct gguf_str name = {"", 0};
    struct blame_name b;

    if (get_family(&s, &i, e) < 0 || refuse_unserved(&s, e) < 0 ||
        get_int(&s, "block_count", true, &i.n_layer, e) < 0 ||
        get_int(&s, "embedding_length", true, &i.n_embd, e) < 0 ||
        get_ff(&s, &i, e) < 0 || get_int(&s, "context_length", true, &i.n_ctx, e) < 0 ||
        get_int(&s, "attention.sliding_window", false, &i.sliding_window, e) < 0 ||
        get_real(&s, "attention.layer_norm_rms_epsilon", true, &i.norm_eps, e) < 0 ||
        get_heads(&s, &i, e) < 0 || get_rope(&s, &i, e) < 0 || get_moe(&s, &i, e) < 0 ||
        get_vocab(&s, &i, e) < 0 || gguf_string(g, "general.name", &name, e) < 0)
        return -1;
    if (i.sliding_window >= i.n_ctx)
        i.sliding_window = 0; /* it never cuts anything off */
    snprintf(i.name, sizeof(i.name), "%s", blame_name(&b, name.p, name.n));
    if (modelinfo_check(&i, path, e) < 0)
        return -1;
    *ret = i;
    return 0;
}

/* See modelinfo.h. The limits are far over any model of these families and far under what
 * could overflow an int in a product of two (n_head x head_dim, rows x 4 bytes). */
#include "daemon/serve/modelinfo.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "daemon/serve/blame.h"
#include "daemon/serve/model.h"

/*    field    least most */
#define LIMIT_MAP(X)                                                                     \
    X(n_layer, 1, 1024)                                                                  \
    X(n_embd, 1, 65536)                                                                  \
    X(n_head, 1, 1024)                                                                   \
    X(n_kv_head, 1, 1024)                                                                \
    X(head_dim, 2, 1024)                                                                 \
    X(rope_dim, 2, 1024)                                                                 \
    X(n_ff, 1, 1 << 20)                                                                  \
    X(n_vocab, 1, 1 << 21)                                                               \
    X(n_ctx, 1, 1 << 28)                                                                 \
    X(sliding_window, 0, 1 << 28)                                                        \
    X(rope_orig_ctx, 0, 1 << 28)

/*    field    over   up to */
#define REAL_LIMIT_MAP(X)                                                                \
    X(norm_eps, 0, 0.1)                                                                  \
    X(rope_theta, 1, 1e12)

const char *model_families(void)
{
    static const char list[] = ""
#define X(id, hf, gguf) ", " hf
        MODEL_FAMILY_MAP(X)
#undef X
        ;

    return &list[2];
}

bool modelinfo_has_mla(enum model_family f)
{
    return f == FAMILY_DEEPSEEK_V2 || f == FAMILY_DEEPSEEK_V3 || f == FAMILY_KIMI_K2;
}

int modelinfo_set_mla(struct model_info *i, struct err *e)
{
    struct model_mla *m = &i->mla;

    if (m->kv_lora < 2 || m->kv_lora > 1024 || m->rope < 2 || m->rope > 1024 ||
        m->nope < 1 || m->nope > 1024 || m->v < 1 || m->v > 1024 || m->q_lora < 0 ||
        m->q_lora > 65536)
        return err_set(
            e, ERR_CORRUPT,
            "latent attention of q_lora_rank %d, kv_lora_rank %d, heads of %d + "
            "%d and values of %d; served are ranks and heads up to 1024",
            m->q_lora, m->kv_lora, m->nope, m->rope, m->v);
    m->scale = 1;
    i->n_kv_head = 1;
    i->head_dim = m->kv_lora + m->rope;
    i->rope_dim = m->rope;
    return 0;
}

/* Families that are known and whose time has not come. */
static const struct {
    const char *name, *why;
} later[] = {
    {"kimi_k3", "Kimi K3 (KDA layers and latent experts) is not served yet"},
    {"kimi_linear", "Kimi Linear (KDA layers) is not served yet"},
    {"deepseek_v32", "DeepSeek-V3.2 (sparse attention) is not served yet"},
    {"deepseek_v4", "DeepSeek-V4 (compressed attention and hyper-connections) is not "
                    "served yet"},
};

int modelinfo_refuse_family(const char *path, const char *name, size_t n, struct err *e)
{
    struct blame_name b;

    for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++)
        if (strlen(later[i].name) == n && !memcmp(later[i].name, name, n))
            return blame(e, ERR_UNSUPPORTED, path, "%s; supported: %s", later[i].why,
                         model_families());
    return blame(e, ERR_UNSUPPORTED, path,
                 "models of family '%s' are not supported; supported: %s",
                 blame_name(&b, name, n), model_families());
}

static int check_rope(const struct model_info *i, const char *path, struct err *e)
{
    if (i->rope_dim % 2 || i->rope_dim > i->head_dim)
        return blame(e, ERR_CORRUPT, path,
                     "rope_dim is %d; right is an even number up to head_dim, %d",
                     i->rope_dim, i->head_dim);
    if (i->rope_scaling == ROPE_LINEAR &&
        !(i->rope_factor >= 1e-3f && i->rope_factor <= 1e6f))
        return blame(e, ERR_CORRUPT, path,
                     "the RoPE scaling factor is %g; right is 0.001 to 1e6",
                     (double)i->rope_factor);
    if (i->rope_scaling == ROPE_YARN &&
        !(i->rope_factor >= 1 && i->rope_factor <= 1e6f && i->rope_orig_ctx > 0 &&
          i->yarn.beta_slow > 0 && i->yarn.beta_fast >= i->yarn.beta_slow &&
          i->yarn.beta_fast <= 1e6f && i->yarn.attn_scale > 0 &&
          i->yarn.attn_scale <= 100))
        return blame(e, ERR_CORRUPT, path,
                     "RoPE scaling yarn has factor %g, beta_fast %g, beta_slow %g and "
                     "scale %g; right are a factor from 1 to 1e6, beta_fast from "
                     "beta_slow up, and a scale over 0, up to 100",
                     (double)i->rope_factor, (double)i->yarn.beta_fast,
                     (double)i->yarn.beta_slow, (double)i->yarn.attn_scale);
    if (i->rope_scaling == ROPE_LLAMA3 && i->rope_orig_ctx &&
        !(i->rope_factor >= 1e-3f && i->rope_factor <= 1e6f && i->rope_low_freq > 0 &&
          i->rope_high_freq > i->rope_low_freq && i->rope_high_freq <= 1e6f))
        return blame(e, ERR_CORRUPT, path,
                     "RoPE scaling llama3 has factor %g, low_freq_factor %g and "
                     "high_freq_factor %g; right are factors from 0.001 to 1e6, the low "
                     "one under the high one",
                     (double)i->rope_factor, (double)i->rope_low_freq,
                     (double)i->rope_high_freq);
    return 0;
}

int modelinfo_check(const struct model_info *i, const char *path, struct err *e)
{
#define X(field, least, most)                                                            \
    if (i->field < (least) || i->field > (most))                                         \
        return blame(e, ERR_CORRUPT, path, "%s is %d; served are %d to %d", #field,      \
                     i->field, (least), (most));
    LIMIT_MAP(X)
#undef X
#define X(field, over, most)                                                             \
    if (!((double)i->field > (over) && (double)i->field <= (most)))                      \
        return blame(e, ERR_CORRUPT, path, "%s is %g; right is over %g, up to %g",       \
                     #field, (double)i->field, (double)(over), (double)(most));
    REAL_LIMIT_MAP(X)
#undef X
    if (i->n_head % i->n_kv_head)
        return blame(e, ERR_CORRUPT, path,
                     "%d attention heads cannot share %d key-value heads evenly",
                     i->n_head, i->n_kv_head);
    if (i->moe.n_expert &&
        (i->moe.n_expert > 4096 || i->moe.top_k < 1 || i->moe.top_k > 64 ||
         i->moe.top_k > i->moe.n_expert || i->moe.n_ff < 1 || i->moe.n_ff > 1 << 20 ||
         i->moe.n_ff_shared < 0 || i->moe.n_ff_shared > 1 << 20))
        return blame(e, ERR_CORRUPT, path,
                     "%d experts, %d a token, of width %d (shared %d); served are up to "
                     "4096, 64 a token, widths up to %d",
                     i->moe.n_expert, i->moe.top_k, i->moe.n_ff, i->moe.n_ff_shared,
                     1 << 20);
    if (i->moe.n_dense < 0 || i->moe.n_dense > i->n_layer ||
        (i->moe.n_group > 1 &&
         (i->moe.n_expert % i->moe.n_group || i->moe.top_group < 1 ||
          i->moe.top_group > i->moe.n_group ||
          i->moe.top_k > i->moe.n_expert / i->moe.n_group * i->moe.top_group)))
        return blame(e, ERR_CORRUPT, path,
                     "%d experts in %d groups, %d a token of %d groups, after %d dense "
                     "layers of %d, do not fit together",
                     i->moe.n_expert, i->moe.n_group, i->moe.top_k, i->moe.top_group,
                     i->moe.n_dense, i->n_layer);
    if (!(i->moe.scale >= 0 && i->moe.scale <= 1e6f))
        return blame(e, ERR_CORRUPT, path, "the experts' scale is %g; right is 0 to 1e6",
                     (double)i->moe.scale);
    if (!(i->moe.limit >= 0 && i->moe.limit <= 1e6f))
        return blame(e, ERR_CORRUPT, path, "swiglu_limit is %g; right is 0 to 1e6",
                     (double)i->moe.limit);
    if (i->head_dim % 2)
        return blame(e, ERR_CORRUPT, path, "head_dim is %d; right is an even number",
                     i->head_dim);
    return check_rope(i, path, e);
}

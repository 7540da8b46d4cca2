/* daemon/serve/forward_latent.c - latent attention (MLA) of one layer.
 *
 * A position keeps one vector for all heads: a normed latent c and a rotated part. K of a
 * head would be Wk c beside the rotated part, V would be Wv c. Neither is made: since
 * q . (Wk c) = (q Wk) . c, q takes Wk in (absorbed), all heads attend over the kept
 * vectors as over one KV head, and Wv is applied to what comes out. Prefill and decode go
 * the same way, so a row has the same bits in both.
 *
 *   q = h Wq, or norm(h Wqa) Wqb;  k = h Wkva, its first kv_lora values normed
 *   lat_q = per head (q Wk, q's rotating part);  lat_y = attention;  att = lat_y Wv
 *
 * tp: heads are shared, the latent is on every rank. */
#include <math.h>

#include "daemon/serve/forward_impl.h"

/* f->q and f->k from f->h. */
static int run_q_and_latent(struct forward *f, const struct forward_layer *l, int rows,
                            struct err *e)
{
    const struct model_mla *a = &f->w.info.mla;
    bool direct = !a->q_lora;
    struct view q = view_of(f->q, rows, f->w.d.q_dim);
    struct view k = view_of(f->k, rows, f->w.info.head_dim), latent = k;
    struct view qa = direct ? q : view_of(f->v, rows, a->q_lora);
    const struct op_matmul first = {
        .x = view_of(f->h, rows, f->w.info.n_embd),
        .n_out = 2,
        .w = {l->w[direct ? ROLE_Q : ROLE_Q_A], l->w[ROLE_KV_A]},
        .y = {qa, k},
    };

    latent.cols = a->kv_lora;
    if (op_matmul(f->s, &first, e) < 0 ||
        run_norm(f, latent, latent, l->w[ROLE_KV_A_NORM], e) < 0)
        return -1;
    if (direct)
        return 0;
    if (run_norm(f, qa, qa, l->w[ROLE_Q_A_NORM], e) < 0)
        return -1;
    return product(f, q, f->v, l->w[ROLE_Q_B], false, e);
}

int forward_latent_run(struct forward *f, const struct forward_layer *l, int layer,
                       const struct op_span *span, struct err *e)
{
    const struct model_info *i = &f->w.info;
    const struct model_mla *a = &i->mla;
    int rows = span->n_rows, n = f->w.d.n_head;
    const struct op_heads absorb = {
        .x = view_of(f->q, rows, f->w.d.q_dim),
        .y = view_of(f->lat_q, rows, n * i->head_dim),
        .n_head = n,
        .x_step = a->nope + a->rope,
        .y_step = i->head_dim,
        .tail = a->rope,
        .w = l->heads[0],
    };
    const struct op_rope_store rope = {
        .span = *span,
        .q = absorb.y,
        .k = view_of(f->k, rows, i->head_dim),
        .n_head = n,
        .n_kv_head = 1,
        .head_dim = i->head_dim,
        .rot_from = a->kv_lora,
        .rot_dim = a->rope,
        .neox = i->rope_neox,
        .inv_freq = f->w.inv_freq,
        .attn_scale = i->rope_scaling == ROPE_YARN ? i->yarn.attn_scale : 1,
        .kv = f->kv,
        .layer = layer,
    };
    const struct op_attn attn = {
        .span = *span,
        .y = view_of(f->lat_y, rows, n * a->kv_lora),
        .q = rope.q,
        .n_head = n,
        .n_kv_head = 1,
        .head_dim = i->head_dim,
        .scale = a->scale / sqrtf((float)(a->nope + a->rope)),
        .kv = f->kv,
        .layer = layer,
    };
    const struct op_heads values = {
        .x = attn.y,
        .y = view_of(f->att, rows, f->w.d.o_dim),
        .n_head = n,
        .x_step = a->kv_lora,
        .y_step = a->v,
        .w = l->heads[1],
    };

    if (run_q_and_latent(f, l, rows, e) < 0 || op_heads(f->s, &absorb, e) < 0 ||
        op_rope_store(f->s, &rope, e) < 0 || op_attn(f->s, &attn, e) < 0)
        return -1;
    return op_heads(f->s, &values, e);
}

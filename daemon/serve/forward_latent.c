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
 * tp: heads are shared, the latent is on every rank. cp (forward_cp.c): what travels to
 * the heads' ranks is q before Wk is in it, and the latent; what attends over other
 * ranks' positions is lat_q, and lat_y's parts are merged before Wv. */
#include "daemon/serve/forward_impl.h"

int forward_latent_kv(struct forward *f, const struct forward_layer *l, int rows,
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

int forward_latent_q(struct forward *f, const struct forward_layer *l, struct view y,
                     struct view x, int first, struct err *e)
{
    const struct model_mla *a = &f->w.info.mla;
    const struct op_heads absorb = {
        .x = x,
        .y = y,
        .n_head = x.cols / (a->nope + a->rope),
        .x_step = a->nope + a->rope,
        .y_step = f->w.info.head_dim,
        .tail = a->rope,
        .w = l->heads[0] + first,
    };

    return x.rows ? op_heads(f->s, &absorb, e) : 0;
}

int forward_latent_out(struct forward *f, const struct forward_layer *l, struct view y,
                       struct view x, int first, struct err *e)
{
    const struct model_mla *a = &f->w.info.mla;
    const struct op_heads values = {
        .x = x,
        .y = y,
        .n_head = x.cols / a->kv_lora,
        .x_step = a->kv_lora,
        .y_step = a->v,
        .w = l->heads[1] + first,
    };

    return x.rows ? op_heads(f->s, &values, e) : 0;
}

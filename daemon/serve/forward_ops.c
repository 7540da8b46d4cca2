/* daemon/serve/forward_ops.c - the ops of one micro-batch, and where ranks meet.
 *
 * Tensor parallel: q, k, v, gate and up hold the rank's rows, Wo and down its columns, so
 * the sum over the group completes each pair (forward_sum.c), then it is added to the
 * residual.
 *
 * Sequence parallel: x holds the rank's rows only. They are normed, gathered for the
 * column-parallel matrices, and the products of the row-parallel ones are reduced back
 * onto them: together 4 (p-1)/p S a layer, as two all-reduces.
 *
 * The vocabulary is shared too: the token table gives zeros for ids of other members, and
 * the head's logits are gathered, part after part, and unpacked on the host. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "daemon/serve/forward_cp.h"
#include "daemon/serve/forward_impl.h"
#include "kernels/comm.h"

/* ---- pieces of a layer ---- */

int run_norm(struct forward *f, struct view y, struct view x, const struct weight *w,
             struct err *e)
{
    const struct op_norm o = {.y = y, .x = x, .w = w, .eps = f->w.info.norm_eps};

    return x.rows ? op_norm(f->s, &o, e) : 0;
}

/* h := norm(x), on all rows. sp: the micro-batch, when x has the member's own rows. */
int norm_all(struct forward *f, struct dbuf *x, int rows, const struct weight *w,
             const struct shape *sp, struct err *e)
{
    int cols = f->w.info.n_embd, from = 0, n = rows;

    if (!sp)
        return run_norm(f, view_of(f->h, rows, cols), view_of(x, rows, cols), w, e);
    own_rows(f, rows, &from, &n);
    if (run_norm(f, view_from(f->h, from, n, cols), view_of(x, n, cols), w, e) < 0)
        return -1;
    return comm_all_gather(f->cfg.part.tp_comm, f->s, at_row(f->h, from, cols),
                           (struct comm_at){f->h, 0}, sp->row_bytes, e);
}

/* y (+)= x * w^T */
int product(struct forward *f, struct view y, struct dbuf *x, const struct weight *w,
            bool add, struct err *e)
{
    const struct op_matmul o = {
        .x = view_of(x, y.rows, weight_cols(w)),
        .n_out = 1,
        .w = {w},
        .y = {y},
        .add = add,
    };
    return op_matmul(f->s, &o, e);
}

static int run_qkv(struct forward *f, const struct forward_layer *l, int rows,
                   struct err *e)
{
    const struct forward_dims *d = &f->w.d;
    const struct op_matmul o = {
        .x = view_of(f->h, rows, f->w.info.n_embd),
        .n_out = 3,
        .w = {l->w[ROLE_Q], l->w[ROLE_K], l->w[ROLE_V]},
        .bias = {l->w[ROLE_Q_BIAS], l->w[ROLE_K_BIAS], l->w[ROLE_V_BIAS]},
        .y = {view_of(f->q, rows, d->q_dim), view_of(f->k, rows, d->kv_dim),
              view_of(f->v, rows, d->kv_dim)},
    };
    return op_matmul(f->s, &o, e);
}

struct op_rope_store forward_rope_of(const struct forward *f,
                                     const struct forward_layer *l, int layer)
{
    const struct model_info *i = &f->w.info;

    return (struct op_rope_store){
        .n_head = f->w.d.n_attn_head,
        .n_kv_head = f->w.d.n_attn_kv,
        .head_dim = i->head_dim,
        .rot_from = i->mla.kv_lora,
        .rot_dim = i->rope_dim,
        .neox = i->rope_neox,
        .inv_freq = f->w.inv_freq,
        .attn_scale = i->rope_scaling == ROPE_YARN ? i->yarn.attn_scale : 1,
        .q_norm = i->qk_norm_full ? NULL : l->w[ROLE_Q_NORM],
        .k_norm = i->qk_norm_full ? NULL : l->w[ROLE_K_NORM],
        .eps = i->norm_eps,
        .kv = f->kv,
        .layer = layer,
    };
}

struct op_attn forward_attn_of(const struct forward *f, const struct forward_layer *l,
                               int layer)
{
    const struct model_info *i = &f->w.info;
    const struct model_mla *a = &i->mla;

    return (struct op_attn){
        .n_head = f->w.d.n_attn_head,
        .n_kv_head = f->w.d.n_attn_kv,
        .head_dim = i->head_dim,
        .scale = a->kv_lora ? a->scale / sqrtf((float)(a->nope + a->rope))
                            : 1 / sqrtf((float)i->head_dim),
        .window = model_window(i, f->w.d.first_layer + layer),
        .sinks = l->w[ROLE_SINKS],
        .kv = f->kv,
        .layer = layer,
    };
}

static int run_attention(struct forward *f, const struct forward_layer *l, int layer,
                         const struct op_span *span, struct err *e)
{
    const struct forward_dims *d = &f->w.d;
    struct op_rope_store rope = forward_rope_of(f, l, layer);
    struct op_attn attn = forward_attn_of(f, l, layer);
    bool latent = f->w.info.mla.kv_lora > 0;
    int rows = span->n_rows;
    const struct view q = view_of(f->q, rows, d->q_dim),
                      out = view_of(f->att, rows, d->o_dim);

    rope.span = attn.span = *span;
    rope.q = attn.q = latent ? view_of(f->lat_q, rows, d->n_head * rope.head_dim) : q;
    rope.k = view_of(f->k, rows, d->kv_dim);
    rope.v = view_of(f->v, rows, d->kv_dim);
    attn.y = latent ? view_of(f->lat_y, rows, d->n_head * f->w.info.mla.kv_lora) : out;
    if ((latent ? forward_latent_q(f, l, rope.q, q, 0, e) : norm_heads(f, l, rows, e)) <
            0 ||
        op_rope_store(f->s, &rope, e) < 0 || op_attn(f->s, &attn, e) < 0)
        return -1;
    return latent ? forward_latent_out(f, l, out, attn.y, 0, e) : 0;
}

/* What follows attention: x += att * Wo, then the FFN. */
static int run_ffn(struct forward *f, const struct forward_layer *l, struct dbuf *x,
                   struct dbuf *att, int rows, const struct forward_mark *of,
                   const struct shape *sp, const int64_t *row_bytes, struct err *e)
{
    const struct op_glu glu = {
        .y = view_of(f->act, rows, f->w.d.n_ff),
        .x = view_of(f->h, rows, f->w.info.n_embd),
        .gate = l->w[ROLE_GATE],
        .up = l->w[ROLE_UP],
    };

    if (rows && close_pair(f, x, att, rows, l, SUM_O, sp, e) < 0)
        return -1;
    if (!rows &&
        !(forward_shares(f) && l->experts[0])) /* experts here may have rows of others */
        return 0;
    if (l->experts[0])
        return forward_moe_run(f, l, x, rows, of, sp, row_bytes, e);
    if (norm_all(f, x, rows, l->w[ROLE_FFN_NORM], sp, e) < 0 || op_glu(f->s, &glu, e) < 0)
        return -1;
    return close_pair(f, x, f->act, rows, l, SUM_DOWN, sp, e);
}

/* ---- between stages ---- */

static int64_t x_bytes(const struct forward *f, int rows)
{
    int from, n;

    own_rows(f, rows, &from, &n);
    return (int64_t)n * f->w.info.n_embd * (int64_t)sizeof(float);
}

static int from_before(struct forward *f, int rows, struct err *e)
{
    if (!rows)
        return 0;
    return comm_recv(f->cfg.part.pp_comm, f->s, (struct comm_at){f->x, 0},
                     x_bytes(f, rows), f->w.d.pp_at - 1, e);
}

static int to_next(struct forward *f, int rows, struct err *e)
{
    if (!rows)
        return 0;
    return comm_send(f->cfg.part.pp_comm, f->s, (struct comm_at){f->x, 0},
                     x_bytes(f, rows), f->w.d.pp_at + 1, e);
}

/* ---- begin, layers, head ---- */

int forward_copies(struct forward *f, const struct shape *s, struct err *e)
{
    const struct op_kv_copy copy = {
        .kv = f->kv,
        .src = iview_of(f, s->at.src, s->n_copies),
        .dst = iview_of(f, s->at.dst, s->n_copies),
    };

    return s->n_copies ? op_kv_copy(f->s, &copy, e) : 0;
}

static int embed(struct forward *f, const struct shape *s, struct err *e)
{
    const struct forward_dims *d = &f->w.d;
    struct dbuf *to = f->cfg.part.sp ? f->sum : f->x;
    const struct op_embed o = {
        .y = view_of(to, s->n_rows, f->w.info.n_embd),
        .w = f->w.top[ROLE_TOK_EMBD],
        .ids = iview_of(f, s->at.ids, s->n_rows),
        .first = d->vocab_from,
        .part = d->tp > 1,
    };

    if (!s->n_rows) /* of others only: cp, adp */
        return 0;
    if (op_embed(f->s, &o, e) < 0)
        return -1;
    if (f->cfg.part.sp)
        return scatter_sum(f, f->x, s, false, e);
    if (d->tp == 1)
        return 0;
    return comm_all_reduce(f->cfg.part.tp_comm, f->s, (struct comm_at){f->x, 0},
                           (int64_t)s->n_rows * f->w.info.n_embd, e);
}

int forward_layers(struct forward *f, const struct shape *s, struct err *e)
{
    const struct op_span span = {
        .n_items = s->n_items,
        .n_rows = s->n_rows,
        .max_blocks = s->max_blocks,
        .max_ctx = s->max_ctx,
        .row = iview_of(f, s->at.row, s->n_items + 1),
        .pos = iview_of(f, s->at.pos, s->n_items),
        .table = iview_of(f, s->at.table, s->n_items * s->max_blocks),
    };
    const struct forward_dims *d = &f->w.d;
    const struct shape *sp = f->cfg.part.sp ? s : NULL;

    if (s->group_rows)
        memcpy(f->now_rows, s->group_rows, (size_t)f->cfg.part.adp * sizeof(int));
    if ((d->first ? embed(f, s, e) : from_before(f, s->n_rows, e)) < 0)
        return -1;
    for (int i = 0; i < d->n_layer; i++) {
        const struct forward_layer *l = &f->w.layers[i];
        bool whole = !d->last || i < d->n_layer - 1;

        if (s->n_rows && (norm_all(f, f->x, s->n_rows, l->w[ROLE_ATTN_NORM], sp, e) < 0 ||
                          (f->w.info.mla.kv_lora ? forward_latent_kv
                                                 : run_qkv)(f, l, s->n_rows, e) < 0))
            return -1;
        if ((f->cp       ? forward_cp_attention(f, l, i, s, e)
             : s->n_rows ? run_attention(f, l, i, &span, e)
                         : 0) < 0)
            return -1;
        if (whole &&
            run_ffn(f, l, f->x, f->att, s->n_rows, &s->rows, sp, s->row_bytes, e) < 0)
            return -1;
    }
    return d->last ? 0 : to_next(f, s->n_rows, e);
}

int forward_gather(struct forward *f, struct dbuf *y, struct dbuf *x, int cols,
                   const struct shape *s, int first, int n, struct err *e)
{
    const struct op_gather o = {
        .y = view_of(y, n, cols),
        .x = view_of(x, s->n_rows, cols),
        .idx = iview_of(f, s->at.outs + first, n),
    };
    return n ? op_gather(f->s, &o, e) : 0;
}

/* The rows of x that outputs come from; sp: of all members. */
int forward_gather_x(struct forward *f, struct dbuf *y, const struct shape *s, int first,
                     int n, struct err *e)
{
    int cols = f->w.info.n_embd;

    if (!f->cfg.part.sp)
        return forward_gather(f, y, f->x, cols, s, first, n, e);
    if (s->n_rows && comm_all_gather(f->cfg.part.tp_comm, f->s, (struct comm_at){f->x, 0},
                                     (struct comm_at){f->sum, 0}, s->row_bytes, e) < 0)
        return -1;
    return forward_gather(f, y, f->sum, cols, s, first, n, e);
}

/* Logits to the host: of this rank alone, or the parts of all members. */
static int fetch(struct forward *f, int n, struct err *e)
{
    size_t bytes = (size_t)n * (size_t)f->w.info.n_vocab * sizeof(float);
    int64_t *list = f->lists + (size_t)(2 * f->cfg.part.micro * f->w.d.tp);

    if (f->w.d.tp == 1)
        return stream_download(f->s, f->host_logits, f->logits, 0, bytes, e);
    for (int m = 0; m < f->w.d.tp; m++) {
        int64_t from, to;
        comm_shard(f->w.info.n_vocab, f->w.d.tp, m, &from, &to);
        list[m] = (to - from) * n * (int64_t)sizeof(float);
    }
    if (comm_all_gather(f->cfg.part.tp_comm, f->s, (struct comm_at){f->logits, 0},
                        (struct comm_at){f->gathered, 0}, list, e) < 0)
        return -1;
    return stream_download(f->s, f->host_parts, f->gathered, 0, bytes, e);
}

/* What each tp member has of n output rows; valid until the sync that follows. */
static const int64_t *head_rows(struct forward *f, int n)
{
    int64_t *list = f->lists + (size_t)((2 * f->cfg.part.micro + 1) * f->w.d.tp);

    for (int m = 0; m < f->w.d.tp; m++) {
        int64_t from, to;
        comm_shard(n, f->w.d.tp, m, &from, &to);
        list[m] = (to - from) * f->w.info.n_embd * (int64_t)sizeof(float);
    }
    return list;
}

/* q is free by now and holds the gathered attention rows. */
int forward_head(struct forward *f, const struct shape *s, int first, int n,
                 struct err *e)
{
    const struct forward_layer *l = &f->w.layers[f->w.d.n_layer - 1];
    const struct forward_mark of = {s->outs.at + first, s->outs.all, s->outs.later};
    const struct op_matmul head = {
        .x = view_of(f->h, n, f->w.info.n_embd),
        .n_out = 1,
        .w = {forward_weights_head(&f->w)},
        .y = {view_of(f->logits, n, f->w.d.n_vocab)},
    };

    if (f->cp ? forward_cp_outs(f, s, first, n, e) < 0
              : forward_gather_x(f, f->out_x, s, first, n, e) < 0 ||
                    forward_gather(f, f->q, f->att, f->w.d.o_dim, s, first, n, e) < 0)
        return -1;
    if (!forward_leads(f) || !n)
        return run_ffn(f, l, f->out_x, f->q, 0, &of, NULL, head_rows(f, 0), e);
    if (run_ffn(f, l, f->out_x, f->q, n, &of, NULL, head_rows(f, n), e) < 0 ||
        norm_all(f, f->out_x, n, f->w.top[ROLE_OUT_NORM], NULL, e) < 0 ||
        op_matmul(f->s, &head, e) < 0)
        return -1;
    return fetch(f, n, e);
}

void forward_unpack(struct forward *f, int n)
{
    size_t vocab = (size_t)f->w.info.n_vocab;
    const float *part = f->host_parts;

    for (int m = 0; f->w.d.tp > 1 && m < f->w.d.tp; m++) {
        int64_t from, to;

        comm_shard(f->w.info.n_vocab, f->w.d.tp, m, &from, &to);
        for (int r = 0; r < n; r++, part += to - from)
            memcpy(f->host_logits + (size_t)r * vocab + from, part,
                   (size_t)(to - from) * sizeof(float));
    }
}

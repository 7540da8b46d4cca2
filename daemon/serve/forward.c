/* daemon/serve/forward.c - the layers of a decoder as a list of device ops.
 *
 * One step is: upload one block of int32 (token ids, where items begin, positions, output
 * rows, block tables, copies), then embed, layers, head. Activations live in buffers that
 * forward_new makes once; the residual stream x is f32.
 *
 *   x = embed(ids)
 *   per layer:  h = norm(x); q,k,v = h*W; rope, store k,v; a = attention; x += a*Wo
 *               h = norm(x); g = glu(h);  x += g*Wdown
 *   head:       logits = norm(x) * Wout
 *
 * After the last layer's attention only rows that need an output go on: they are gathered
 * and taken through the rest of that layer and the head, max_outs of them at a time.
 * Since ops are row-invariant this changes no bit, and a step that only fills KV skips it
 * all. Since a row's result does not depend on the rows beside it, a step may also be cut
 * into micro-batches, which the stages of a pipeline work on in turn.
 *
 * Lifecycle: forward_new loads, forward_run any number of times, forward_free. */
#include "daemon/serve/forward.h"

#include <assert.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/forward_cp.h"
#include "daemon/serve/forward_impl.h"
#include "daemon/serve/step.h"
#include "kernels/comm.h"

/* ---- sizes ---- */

void forward_caps(const struct model_info *i, const struct forward_cfg *cfg,
                  struct backend_caps *ret)
{
    struct forward_dims d;

    forward_dims_of(i, &cfg->part, &d);
    *ret = (struct backend_caps){
        .max_rows = cfg->max_rows,
        .max_cols = max_int(
            max_int(d.n_ff, max_int(d.n_ff_expert, d.n_ff_shared)),
            max_int(max_int(i->n_embd, d.q_dim), max_int(d.o_dim, i->mla.q_lora))),
        .max_items = cfg->max_items,
        .max_context = cfg->max_ctx,
        .max_heads = d.n_head,
        .max_head_dim = i->head_dim,
    };
}

static struct kv_layout layout_of(const struct model_info *i,
                                  const struct forward_dims *d, enum dtype kv_type)
{
    return (struct kv_layout){.n_layer = d->n_layer,
                              .n_kv_head = d->n_attn_kv,
                              .head_dim = i->head_dim,
                              .v_dim = i->mla.kv_lora,
                              .block_tok = KV_BLOCK_TOK,
                              .type = kv_type};
}

int forward_block_tok(const struct forward_part *p)
{
    return KV_BLOCK_TOK * max_int(p->cp, 1);
}

size_t forward_kv_block_bytes(const struct model_info *i, enum dtype kv_type)
{
    const struct forward_part all = {0};
    struct forward_dims d;

    forward_dims_of(i, &all, &d);
    struct kv_layout l = layout_of(i, &d, kv_type);
    return kv_layout_fill(&l, NULL) < 0 ? 0 : l.block_bytes;
}

/* ---- life ---- */

static int new_buf(struct forward *f, int rows, int cols, struct dbuf **ret,
                   struct err *e)
{
    size_t n;

    if (rows == 0 || cols == 0)
        return 0;
    if (size_mul((size_t)rows, (size_t)cols, &n) < 0 ||
        size_mul(n, sizeof(float), &n) < 0)
        return err_set(e, ERR_TOOBIG, "a buffer of %d x %d is too large", rows, cols);
    return dbuf_new(f->b, n, ret, e);
}

static int new_staging(struct forward *f, struct err *e)
{
    size_t n = forward_stage_size(&f->cfg), all;

    if (!n || size_mul(n, (size_t)f->cfg.part.micro, &all) < 0)
        return err_set(e, ERR_TOOBIG, "%d sequences of %d positions are too many",
                       f->cfg.max_items, f->cfg.max_ctx);
    f->stage_cap = n;
    f->stage = try_calloc(all, sizeof(int32_t));
    if (!f->stage)
        return err_set(e, ERR_NOMEM, "no memory for %zu block ids", all);
    return dbuf_new(f->b, all * sizeof(int32_t), &f->idx, e);
}

static int new_host(struct forward *f, struct err *e)
{
    size_t n = (size_t)f->cfg.max_outs * (size_t)f->w.info.n_vocab;

    if (f->cfg.part.adp > 1) {
        size_t adp = (size_t)f->cfg.part.adp;
        f->groups = xcalloc((2 * (size_t)f->cfg.part.micro + 1) * adp, sizeof(int));
        f->now_rows = f->groups + 2 * (size_t)f->cfg.part.micro * adp;
    }
    f->lists = xcalloc((2 * (size_t)f->cfg.part.micro + 2) * (size_t)f->w.d.tp,
                       sizeof(*f->lists));
    if (!f->w.d.last)
        return 0;
    f->host_logits = try_calloc(n, sizeof(float));
    if (f->w.d.tp > 1)
        f->host_parts = try_calloc(n, sizeof(float));
    if (!f->host_logits || (f->w.d.tp > 1 && !f->host_parts))
        return err_set(e, ERR_NOMEM, "no memory for %zu logits", n);
    return 0;
}

static int new_buffers(struct forward *f, struct err *e)
{
    const struct model_info *i = &f->w.info;
    const struct forward_dims *d = &f->w.d;
    int outs = d->last ? f->cfg.max_outs : 0;
    int rows = max_int((f->cfg.max_rows + d->cp_u - 1) / d->cp_u, outs);
    bool tp = d->tp > 1, moe = i->moe.n_expert > 0, latent = i->mla.kv_lora > 0;
    bool sums = d->tp * d->n_piece > 1;
    int levels = forward_levels(d);
    int ff = moe && !i->moe.n_dense ? 1 : d->n_ff;
    const struct {
        struct dbuf **at;
        int rows, cols;
    } bufs[] = {
        {&f->x, rows, i->n_embd},
        {&f->h, rows, i->n_embd},
        {&f->q, rows, max_int(d->q_dim, d->o_dim)},
        {&f->k, rows, d->kv_dim},
        {&f->v, rows, latent ? i->mla.q_lora : d->kv_dim},
        {&f->lat_q, latent ? rows : 0, d->n_head * i->head_dim},
        {&f->lat_y, latent ? rows : 0, d->n_head * i->mla.kv_lora},
        {&f->att, rows, d->o_dim},
        {&f->act, rows, max_int(ff, d->n_ff_shared)},
        {&f->sum, sums || moe ? levels * rows : 0, i->n_embd},
        {&f->squares, sums && i->qk_norm_full ? levels * f->cfg.max_rows : 0, 2},
        {&f->out_x, outs, i->n_embd},
        {&f->logits, outs, d->n_vocab},
        {&f->gathered, tp ? outs : 0, i->n_vocab},
    };

    f->sum_rows = rows;
    for (size_t r = 0; r < sizeof(bufs) / sizeof(bufs[0]); r++)
        if (new_buf(f, bufs[r].rows, bufs[r].cols, bufs[r].at, e) < 0)
            return -1;
    if (new_host(f, e) < 0 || forward_moe_new(f, e) < 0 || forward_cp_new(f, e) < 0)
        return -1;
    return new_staging(f, e);
}

static void settle_part(struct forward_part *p)
{
    p->tp = max_int(p->tp, 1);
    p->pp = max_int(p->pp, 1);
    p->ep = max_int(p->ep, 1);
    p->cp = max_int(p->cp, 1);
    p->cp_u = max_int(p->cp_u, 1);
    p->adp = max_int(p->adp, 1);
    p->as_cp = max_int(p->as_cp, 1);
    p->micro = min_int(p->micro ? p->micro : p->pp, FORWARD_MICRO_MAX);
    p->sp = p->sp && p->tp > 1;
    assert(p->tp == 1 || p->tp_comm);
    assert(p->pp == 1 || p->pp_comm);
    assert(p->ep == 1 || p->ep_comm);
    assert(p->cp == 1 || p->cp_comm);
    assert(p->cp_u == 1 || p->cp_u_comm);
}

int forward_new(struct backend *b, struct model *m, const struct forward_cfg *cfg,
                forward_progress_fn progress, void *arg, struct forward **ret,
                struct err *e)
{
    struct forward *f = xcalloc(1, sizeof(*f));

    assert(cfg->max_rows > 0 && cfg->max_items > 0 && cfg->max_outs > 0 &&
           cfg->max_ctx > 0 && cfg->max_copies >= 0);
    f->b = b;
    f->cfg = *cfg;
    f->cfg.max_outs = min_int(cfg->max_outs, cfg->max_rows);
    settle_part(&f->cfg.part);
    int own_blocks = cfg->n_blocks / f->cfg.part.adp;
    assert(own_blocks * f->cfg.part.adp == cfg->n_blocks);
    if (stream_new(b, &f->s, e) < 0 ||
        forward_weights_load(&f->w, b, m, &f->cfg.part, progress, arg, e) < 0)
        goto fail;
    f->kv_layout = layout_of(&f->w.info, &f->w.d, cfg->kv_type);
    if (kv_layout_fill(&f->kv_layout, e) < 0 || new_buffers(f, e) < 0 ||
        kv_arena_new(b, &f->kv_layout, own_blocks, &f->kv, e) < 0 ||
        forward_tier_new(f, e) < 0)
        goto fail;
    *ret = f;
    return 0;

fail:
    forward_free(f);
    return -1;
}

void forward_free(struct forward *f)
{
    if (!f)
        return;
    struct dbuf *bufs[] = {f->x,     f->h,      f->q,        f->k,     f->v,
                           f->att,   f->act,    f->lat_q,    f->lat_y, f->sum,
                           f->out_x, f->logits, f->gathered, f->idx,   f->squares};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        dbuf_free(bufs[i]);
    forward_moe_free(f);
    forward_cp_free(f);
    forward_tier_free(f);
    forward_weights_done(&f->w);
    kv_arena_free(f->kv);
    stream_free(f->s);
    free(f->stage);
    free(f->host_logits);
    free(f->host_parts);
    free(f->lists);
    free(f->groups);
    free(f);
}

struct backend *forward_backend(struct forward *f) { return f->b; }

struct kv_arena *forward_kv(struct forward *f) { return f->kv; }

void forward_kv_part(const struct forward *f, struct forward_kv *ret)
{
    const struct forward_part *p = &f->cfg.part;

    *ret = (struct forward_kv){.layout = &f->kv_layout,
                               .fd = kv_arena_fd(f->kv),
                               .n_blocks = f->cfg.n_blocks / p->adp,
                               .first_layer = f->w.d.first_layer,
                               .all_layers = f->w.info.n_layer,
                               .head_from = f->w.d.kv_from + f->w.d.attn_kv_from,
                               .all_heads = f->w.info.n_kv_head,
                               .cp = f->w.d.cp,
                               .cp_at = f->w.d.cp_at,
                               .adp_at = p->adp_at,
                               .striped = p->cp_method == CP_STRIPED};
}

const struct kv_layout *forward_kv_layout(const struct forward *f)
{
    return &f->kv_layout;
}

/* ---- a step ---- */

/* The outputs of one micro-batch; *at counts those of the step. */
static int run_head(struct forward *f, const struct shape *s, int *at,
                    forward_sink_fn sink, void *arg, struct err *e)
{
    int adp = f->cfg.part.adp, most = s->n_outs;

    for (int g = 0; s->group_outs && g < adp; g++)
        most = max_int(most, s->group_outs[g]);
    for (int first = 0; first < most; first += f->cfg.max_outs) {
        int n = max_int(min_int(f->cfg.max_outs, s->n_outs - first), 0);
        for (int g = 0; s->group_outs && g < adp; g++)
            f->now_rows[g] =
                max_int(min_int(f->cfg.max_outs, s->group_outs[g] - first), 0);
        if (forward_head(f, s, n ? first : 0, n, e) < 0 || stream_sync(f->s, e) < 0)
            return -1;
        if (forward_leads(f) && n) {
            forward_unpack(f, n);
            sink(arg, *at, n, f->host_logits);
        }
        *at += n;
    }
    return 0;
}

/* Has anybody rows of this micro-batch? */
static bool has_rows(const struct forward *f, const struct shape *s)
{
    for (int g = 0; s->group_rows && g < f->cfg.part.adp; g++)
        if (s->group_rows[g])
            return true;
    return s->n_items > 0;
}

int forward_run(struct forward *f, const struct step *st, forward_sink_fn sink, void *arg,
                struct err *e)
{
    struct shape s[FORWARD_MICRO_MAX];
    int n, outs = 0;

    if (forward_moe_begin(f, st, e) < 0 || forward_stage_step(f, st, s, &n, e) < 0 ||
        forward_moves(f, st, e) < 0 || forward_copies(f, &s[0], e) < 0)
        return -1;
    for (int i = 0; i < n; i++) {
        if (has_rows(f, &s[i]) && forward_layers(f, &s[i], e) < 0)
            return -1;
        if (f->w.d.last && run_head(f, &s[i], &outs, sink, arg, e) < 0)
            return -1;
    }
    return f->w.d.last && s[n - 1].n_outs ? 0 : stream_sync(f->s, e);
}

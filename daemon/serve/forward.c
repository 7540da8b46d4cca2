/* daemon/serve/forward.c - the layers of a dense decoder as a list of device ops.
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
 * all.
 *
 * Lifecycle: forward_new loads, forward_run any number of times, forward_free. */
#include "daemon/serve/forward.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/forward_weights.h"
#include "daemon/serve/step.h"
#include "kernels/backend.h"

/* Where the parts of the staging block begin, in int32 from its start. */
struct staging {
    int ids, row, pos, outs, table, src, dst, len;
};

/* One step as the counts that ops take. */
struct shape {
    int n_items, n_rows, n_outs, n_copies, max_blocks, max_ctx;
    struct staging at;
};

struct forward {
    struct backend *b; /* borrowed */
    struct stream *s;
    struct forward_cfg cfg;
    struct forward_weights w;
    int q_dim, kv_dim;
    struct kv_layout kv_layout;
    struct kv_arena *kv;
    struct dbuf *x, *h, *q, *k, *v, *att, *act; /* [max_rows, ..] */
    struct dbuf *out_x, *logits;                /* [max_outs, ..] */
    struct dbuf *idx;                           /* staging on the device */
    int32_t *stage;                             /* and on the host */
    size_t stage_cap;
    float *host_logits; /* [max_outs, n_vocab] */
};

/* ---- sizes ---- */

static int max_int(int a, int b) { return a > b ? a : b; }

static int min_int(int a, int b) { return a < b ? a : b; }

void forward_caps(const struct model_info *i, const struct forward_cfg *cfg,
                  struct backend_caps *ret)
{
    *ret = (struct backend_caps){
        .max_rows = cfg->max_rows,
        .max_cols = max_int(i->n_ff, max_int(i->n_embd, i->n_head * i->head_dim)),
        .max_items = cfg->max_items,
        .max_context = cfg->max_ctx,
        .max_heads = i->n_head,
        .max_head_dim = i->head_dim,
    };
}

static struct kv_layout forward_layout(const struct model_info *i, enum dtype kv_type)
{
    return (struct kv_layout){.n_layer = i->n_layer,
                              .n_kv_head = i->n_kv_head,
                              .head_dim = i->head_dim,
                              .block_tok = KV_BLOCK_TOK,
                              .type = kv_type};
}

size_t forward_kv_block_bytes(const struct model_info *i, enum dtype kv_type)
{
    struct kv_layout l = forward_layout(i, kv_type);

    return kv_layout_fill(&l, NULL) < 0 ? 0 : l.block_bytes;
}

/* ---- life ---- */

static int forward_buf(struct forward *f, int rows, int cols, struct dbuf **ret,
                       struct err *e)
{
    size_t n;

    if (size_mul((size_t)rows, (size_t)cols, &n) < 0 ||
        size_mul(n, sizeof(float), &n) < 0)
        return err_set(e, ERR_TOOBIG, "a buffer of %d x %d is too large", rows, cols);
    return dbuf_new(f->b, n, ret, e);
}

static int forward_new_staging(struct forward *f, struct err *e)
{
    const struct forward_cfg *c = &f->cfg;
    size_t blocks = ((size_t)c->max_ctx + KV_BLOCK_TOK - 1) / KV_BLOCK_TOK, n;

    if (size_mul(blocks, (size_t)c->max_items, &n) < 0 || n > INT32_MAX / 8)
        return err_set(e, ERR_TOOBIG, "%d sequences of %d positions are too many",
                       c->max_items, c->max_ctx);
    /* ids, output rows, item rows, positions, both sides of copies, 7 gaps of alignment
     */
    n += 2 * (size_t)c->max_rows + 2 * (size_t)(c->max_items + 1) +
         2 * (size_t)c->max_copies + 7 * 16;
    f->stage_cap = n;
    f->stage = try_calloc(n, sizeof(int32_t));
    if (!f->stage)
        return err_set(e, ERR_NOMEM, "no memory for %zu block ids", n);
    return dbuf_new(f->b, n * sizeof(int32_t), &f->idx, e);
}

static int forward_new_buffers(struct forward *f, struct err *e)
{
    const struct model_info *i = &f->w.info;
    int rows = f->cfg.max_rows, outs = f->cfg.max_outs;
    const struct {
        struct dbuf **at;
        int rows, cols;
    } bufs[] = {
        {&f->x, rows, i->n_embd},       {&f->h, rows, i->n_embd},
        {&f->q, rows, f->q_dim},        {&f->k, rows, f->kv_dim},
        {&f->v, rows, f->kv_dim},       {&f->att, rows, f->q_dim},
        {&f->act, rows, i->n_ff},       {&f->out_x, outs, i->n_embd},
        {&f->logits, outs, i->n_vocab},
    };

    for (size_t r = 0; r < sizeof(bufs) / sizeof(bufs[0]); r++)
        if (forward_buf(f, bufs[r].rows, bufs[r].cols, bufs[r].at, e) < 0)
            return -1;
    size_t n = (size_t)outs * (size_t)i->n_vocab;
    f->host_logits = try_calloc(n, sizeof(float));
    if (!f->host_logits)
        return err_set(e, ERR_NOMEM, "no memory for %zu logits", n);
    return forward_new_staging(f, e);
}

int forward_new(struct backend *b, struct model *m, const struct forward_cfg *cfg,
                forward_progress_fn progress, void *arg, struct forward **ret,
                struct err *e)
{
    const struct model_info *i = model_info(m);
    struct forward *f = xcalloc(1, sizeof(*f));

    assert(cfg->max_rows > 0 && cfg->max_items > 0 && cfg->max_outs > 0 &&
           cfg->max_ctx > 0 && cfg->max_copies >= 0);
    f->b = b;
    f->cfg = *cfg;
    f->cfg.max_outs = min_int(cfg->max_outs, cfg->max_rows);
    f->q_dim = i->n_head * i->head_dim;
    f->kv_dim = i->n_kv_head * i->head_dim;
    f->kv_layout = forward_layout(i, cfg->kv_type);
    if (stream_new(b, &f->s, e) < 0 || kv_layout_fill(&f->kv_layout, e) < 0)
        goto fail;
    if (forward_weights_load(&f->w, b, m, progress, arg, e) < 0)
        goto fail;
    if (forward_new_buffers(f, e) < 0)
        goto fail;
    if (kv_arena_new(b, &f->kv_layout, cfg->n_blocks, &f->kv, e) < 0)
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
    struct dbuf *bufs[] = {f->x,   f->h,   f->q,     f->k,      f->v,
                           f->att, f->act, f->out_x, f->logits, f->idx};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        dbuf_free(bufs[i]);
    forward_weights_done(&f->w);
    kv_arena_free(f->kv);
    stream_free(f->s);
    free(f->stage);
    free(f->host_logits);
    free(f);
}

struct kv_arena *forward_kv(struct forward *f) { return f->kv; }

const struct kv_layout *forward_kv_layout(const struct forward *f)
{
    return &f->kv_layout;
}

/* ---- a step: counts and checks ---- */

static int forward_check_item(const struct forward *f, const struct step_item *it,
                              struct err *e)
{
    int64_t end = (int64_t)it->first_pos + it->n_tok;

    if (it->n_tok < 1 || it->first_pos < 0 || end > f->cfg.max_ctx ||
        (int64_t)it->n_block * KV_BLOCK_TOK < end || it->out_from < 0 ||
        it->out_from > it->n_tok)
        return err_set(
            e, ERR_INTERNAL, "step item of sequence %llu: %d tokens at %d with %d blocks",
            (unsigned long long)it->seq, it->n_tok, it->first_pos, it->n_block);
    if (it->parent_off >= 0)
        return err_set(e, ERR_UNSUPPORTED, "a tree of tokens in one item");
    return 0;
}

/* Count what the step holds; its capacities first, so that staging cannot overflow. */
static int forward_shape(const struct forward *f, const struct step *st,
                         struct shape *ret, struct err *e)
{
    const struct step_item *items = step_items(st);
    struct shape s = {.n_items = st->n_items, .n_copies = st->n_copies};

    if (st->n_items < 0 || st->n_items > f->cfg.max_items || st->n_copies < 0 ||
        st->n_copies > f->cfg.max_copies)
        return err_set(e, ERR_INTERNAL, "a step of %d items and %d copies", st->n_items,
                       st->n_copies);
    for (int i = 0; i < st->n_items; i++) {
        const struct step_item *it = &items[i];
        if (forward_check_item(f, it, e) < 0)
            return -1;
        if (it->n_tok > f->cfg.max_rows - s.n_rows)
            return err_set(e, ERR_INTERNAL, "a step of more than %d tokens",
                           f->cfg.max_rows);
        s.n_rows += it->n_tok;
        s.n_outs += it->n_tok - it->out_from;
        int end = it->first_pos + it->n_tok;
        s.max_ctx = max_int(s.max_ctx, end);
    }
    s.max_blocks = (s.max_ctx + KV_BLOCK_TOK - 1) / KV_BLOCK_TOK;
    *ret = s;
    return 0;
}

/* ---- a step: staging ---- */

/* The next n int32 of the block, from a multiple of 64 bytes. */
static int stage_take(struct staging *a, int n)
{
    int at = (a->len + 15) & ~15;

    a->len = at + n;
    return at;
}

static void forward_lay_out(struct shape *s)
{
    struct staging *a = &s->at;

    a->ids = stage_take(a, s->n_rows);
    a->row = stage_take(a, s->n_items + 1);
    a->pos = stage_take(a, s->n_items);
    a->outs = stage_take(a, s->n_outs);
    a->src = stage_take(a, s->n_copies);
    a->dst = stage_take(a, s->n_copies);
    a->table = stage_take(a, s->n_items * s->max_blocks);
}

static int forward_stage_item(struct forward *f, const struct step *st,
                              const struct shape *s, int i, struct err *e)
{
    const struct step_item *it = &step_items(st)[i];
    const int32_t *toks = step_toks(st) + it->tok_off;
    const int32_t *blocks = step_blocks(st) + it->block_off;
    int row = f->stage[s->at.row + i];
    int32_t *table = f->stage + s->at.table + (size_t)i * (size_t)s->max_blocks;
    int n_block = min_int(it->n_block, s->max_blocks);

    f->stage[s->at.row + i + 1] = row + it->n_tok;
    f->stage[s->at.pos + i] = it->first_pos;
    for (int t = 0; t < it->n_tok; t++) {
        if (toks[t] < 0 || toks[t] >= f->w.info.n_vocab)
            return err_set(e, ERR_INTERNAL, "token id %d of sequence %llu", toks[t],
                           (unsigned long long)it->seq);
        f->stage[s->at.ids + row + t] = toks[t];
    }
    /* -1 stands for a block that the window has left behind */
    int read_from = f->w.info.sliding_window
                        ? max_int(it->first_pos - f->w.info.sliding_window + 1, 0)
                        : 0;
    for (int j = 0; j < n_block; j++) {
        bool needed = (j + 1) * KV_BLOCK_TOK > read_from;
        if (blocks[j] < (needed ? 0 : -1) || blocks[j] >= f->cfg.n_blocks)
            return err_set(e, ERR_INTERNAL, "KV block %d of sequence %llu", blocks[j],
                           (unsigned long long)it->seq);
        table[j] = max_int(blocks[j], 0);
    }
    /* beyond the item's context: never read */
    for (int j = n_block; j < s->max_blocks; j++)
        table[j] = 0;
    return 0;
}

static int forward_stage_copies(struct forward *f, const struct step *st,
                                const struct shape *s, struct err *e)
{
    const struct step_copy *c = step_copies(st);

    for (int i = 0; i < s->n_copies; i++) {
        if (c[i].src < 0 || c[i].src >= f->cfg.n_blocks || c[i].dst < 0 ||
            c[i].dst >= f->cfg.n_blocks)
            return err_set(e, ERR_INTERNAL, "copy of KV block %d to %d", c[i].src,
                           c[i].dst);
        f->stage[s->at.src + i] = c[i].src;
        f->stage[s->at.dst + i] = c[i].dst;
    }
    return 0;
}

static int forward_stage(struct forward *f, const struct step *st, struct shape *s,
                         struct err *e)
{
    const struct step_item *items = step_items(st);
    int out = 0;

    forward_lay_out(s);
    assert((size_t)s->at.len <= f->stage_cap);
    f->stage[s->at.row] = 0;
    for (int i = 0; i < s->n_items; i++) {
        if (forward_stage_item(f, st, s, i, e) < 0)
            return -1;
        int row = f->stage[s->at.row + i];
        for (int j = items[i].out_from; j < items[i].n_tok; j++)
            f->stage[s->at.outs + out++] = row + j;
    }
    if (forward_stage_copies(f, st, s, e) < 0)
        return -1;
    return stream_upload(f->s, f->idx, 0, f->stage, (size_t)s->at.len * sizeof(int32_t),
                         e);
}

/* ---- a step: ops ---- */

static struct view forward_view(struct dbuf *b, int rows, int cols)
{
    return (struct view){b, 0, rows, cols, cols};
}

static struct iview forward_iview(const struct forward *f, int at, int n)
{
    return (struct iview){f->idx, (size_t)at * sizeof(int32_t), n};
}

static int forward_norm(struct forward *f, struct dbuf *y, struct dbuf *x, int rows,
                        const struct weight *w, struct err *e)
{
    const struct op_norm o = {
        .y = forward_view(y, rows, f->w.info.n_embd),
        .x = forward_view(x, rows, f->w.info.n_embd),
        .w = w,
        .eps = f->w.info.norm_eps,
    };
    return op_norm(f->s, &o, e);
}

static int forward_qkv(struct forward *f, const struct forward_layer *l, int rows,
                       struct err *e)
{
    const struct op_matmul o = {
        .x = forward_view(f->h, rows, f->w.info.n_embd),
        .n_out = 3,
        .w = {l->w[ROLE_Q], l->w[ROLE_K], l->w[ROLE_V]},
        .bias = {l->w[ROLE_Q_BIAS], l->w[ROLE_K_BIAS], l->w[ROLE_V_BIAS]},
        .y = {forward_view(f->q, rows, f->q_dim), forward_view(f->k, rows, f->kv_dim),
              forward_view(f->v, rows, f->kv_dim)},
    };
    return op_matmul(f->s, &o, e);
}

static int forward_attention(struct forward *f, const struct forward_layer *l, int layer,
                             const struct op_span *span, struct err *e)
{
    const struct model_info *i = &f->w.info;
    const struct op_rope_store rope = {
        .span = *span,
        .q = forward_view(f->q, span->n_rows, f->q_dim),
        .k = forward_view(f->k, span->n_rows, f->kv_dim),
        .v = forward_view(f->v, span->n_rows, f->kv_dim),
        .n_head = i->n_head,
        .n_kv_head = i->n_kv_head,
        .head_dim = i->head_dim,
        .rot_dim = i->rope_dim,
        .neox = i->rope_neox,
        .inv_freq = f->w.inv_freq,
        .attn_scale = 1,
        .q_norm = l->w[ROLE_Q_NORM],
        .k_norm = l->w[ROLE_K_NORM],
        .eps = i->norm_eps,
        .kv = f->kv,
        .layer = layer,
    };
    const struct op_attn attn = {
        .span = *span,
        .y = forward_view(f->att, span->n_rows, f->q_dim),
        .q = rope.q,
        .n_head = i->n_head,
        .n_kv_head = i->n_kv_head,
        .head_dim = i->head_dim,
        .scale = 1 / sqrtf((float)i->head_dim),
        .window = i->sliding_window,
        .kv = f->kv,
        .layer = layer,
    };

    if (op_rope_store(f->s, &rope, e) < 0)
        return -1;
    return op_attn(f->s, &attn, e);
}

/* y += x * w^T */
static int forward_add(struct forward *f, struct dbuf *y, struct dbuf *x, int rows,
                       const struct weight *w, struct err *e)
{
    const struct op_matmul o = {
        .x = forward_view(x, rows, weight_cols(w)),
        .n_out = 1,
        .w = {w},
        .y = {forward_view(y, rows, weight_rows(w))},
        .add = true,
    };
    return op_matmul(f->s, &o, e);
}

/* What follows attention: x += att * Wo, then the FFN. */
static int forward_ffn(struct forward *f, const struct forward_layer *l, struct dbuf *x,
                       struct dbuf *att, int rows, struct err *e)
{
    const struct op_glu glu = {
        .y = forward_view(f->act, rows, f->w.info.n_ff),
        .x = forward_view(f->h, rows, f->w.info.n_embd),
        .gate = l->w[ROLE_GATE],
        .up = l->w[ROLE_UP],
    };

    if (forward_add(f, x, att, rows, l->w[ROLE_O], e) < 0 ||
        forward_norm(f, f->h, x, rows, l->w[ROLE_FFN_NORM], e) < 0 ||
        op_glu(f->s, &glu, e) < 0)
        return -1;
    return forward_add(f, x, f->act, rows, l->w[ROLE_DOWN], e);
}

/* All layers, the last one up to its attention. */
static int forward_layers(struct forward *f, const struct shape *s, struct err *e)
{
    const struct op_span span = {
        .n_items = s->n_items,
        .n_rows = s->n_rows,
        .max_blocks = s->max_blocks,
        .max_ctx = s->max_ctx,
        .row = forward_iview(f, s->at.row, s->n_items + 1),
        .pos = forward_iview(f, s->at.pos, s->n_items),
        .table = forward_iview(f, s->at.table, s->n_items * s->max_blocks),
    };
    int n = f->w.info.n_layer;

    for (int i = 0; i < n; i++) {
        const struct forward_layer *l = &f->w.layers[i];
        if (forward_norm(f, f->h, f->x, s->n_rows, l->w[ROLE_ATTN_NORM], e) < 0 ||
            forward_qkv(f, l, s->n_rows, e) < 0 ||
            forward_attention(f, l, i, &span, e) < 0)
            return -1;
        if (i < n - 1 && forward_ffn(f, l, f->x, f->att, s->n_rows, e) < 0)
            return -1;
    }
    return 0;
}

static int forward_gather(struct forward *f, struct dbuf *y, struct dbuf *x, int cols,
                          const struct shape *s, int first, int n, struct err *e)
{
    const struct op_gather o = {
        .y = forward_view(y, n, cols),
        .x = forward_view(x, s->n_rows, cols),
        .idx = forward_iview(f, s->at.outs + first, n),
    };
    return op_gather(f->s, &o, e);
}

/* Outputs first..first+n-1: the rest of the last layer, the head, logits to the host.
 * q is free by now and holds the gathered attention rows. */
static int forward_head(struct forward *f, const struct shape *s, int first, int n,
                        struct err *e)
{
    const struct forward_layer *l = &f->w.layers[f->w.info.n_layer - 1];
    const struct op_matmul head = {
        .x = forward_view(f->h, n, f->w.info.n_embd),
        .n_out = 1,
        .w = {forward_weights_head(&f->w)},
        .y = {forward_view(f->logits, n, f->w.info.n_vocab)},
    };
    size_t bytes = (size_t)n * (size_t)f->w.info.n_vocab * sizeof(float);

    if (forward_gather(f, f->out_x, f->x, f->w.info.n_embd, s, first, n, e) < 0 ||
        forward_gather(f, f->q, f->att, f->q_dim, s, first, n, e) < 0 ||
        forward_ffn(f, l, f->out_x, f->q, n, e) < 0 ||
        forward_norm(f, f->h, f->out_x, n, f->w.top[ROLE_OUT_NORM], e) < 0 ||
        op_matmul(f->s, &head, e) < 0)
        return -1;
    return stream_download(f->s, f->host_logits, f->logits, 0, bytes, e);
}

static int forward_begin(struct forward *f, const struct shape *s, struct err *e)
{
    const struct op_kv_copy copy = {
        .kv = f->kv,
        .src = forward_iview(f, s->at.src, s->n_copies),
        .dst = forward_iview(f, s->at.dst, s->n_copies),
    };
    const struct op_embed embed = {
        .y = forward_view(f->x, s->n_rows, f->w.info.n_embd),
        .w = f->w.top[ROLE_TOK_EMBD],
        .ids = forward_iview(f, s->at.ids, s->n_rows),
    };

    if (s->n_copies && op_kv_copy(f->s, &copy, e) < 0)
        return -1;
    if (!s->n_items)
        return 0;
    return op_embed(f->s, &embed, e);
}

int forward_run(struct forward *f, const struct step *st, forward_sink_fn sink, void *arg,
                struct err *e)
{
    struct shape s = {0};

    if (forward_shape(f, st, &s, e) < 0 || forward_stage(f, st, &s, e) < 0 ||
        forward_begin(f, &s, e) < 0)
        return -1;
    if (s.n_items && forward_layers(f, &s, e) < 0)
        return -1;
    for (int first = 0; first < s.n_outs; first += f->cfg.max_outs) {
        int n = min_int(f->cfg.max_outs, s.n_outs - first);
        if (forward_head(f, &s, first, n, e) < 0 || stream_sync(f->s, e) < 0)
            return -1;
        sink(arg, first, n, f->host_logits);
    }
    return s.n_outs ? 0 : stream_sync(f->s, e);
}

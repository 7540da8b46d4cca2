/* daemon/serve/forward_cp.c - attention of ranks that share rows: what travels, and how
 * it is put together. See forward_cp.h. */
#include "daemon/serve/forward_cp.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

/* ---- sizes ---- */

static bool latent(const struct forward *f) { return f->w.info.mla.kv_lora > 0; }

/* Columns of my heads at attention: q on its way to them, q as it attends, K (or V), what
 * attention gives, and that on its way home. A latent is one KV head, which has no V. */
static int way_dim(const struct forward *f)
{
    return f->w.d.q_dim / f->w.d.n_head * f->w.d.n_attn_head;
}

static int heads_dim(const struct forward *f)
{
    return f->w.d.n_attn_head * f->w.info.head_dim;
}

static int kv_dim(const struct forward *f)
{
    return f->w.d.n_attn_kv * f->w.info.head_dim;
}

static int value_dim(const struct forward *f) /* of one head */
{
    return latent(f) ? f->w.info.mla.kv_lora : f->w.info.head_dim;
}

static int home_dim(const struct forward *f)
{
    return f->w.d.o_dim / f->w.d.n_head * f->w.d.n_attn_head;
}

/* A row on its way to a rank's heads: q, k, v of these. */
static int row_dim(const struct forward *f)
{
    return way_dim(f) + (latent(f) ? 1 : 2) * kv_dim(f);
}

/* A row's part: values, maxima, sums. */
static int part_dim(const struct forward *f)
{
    return f->w.d.n_attn_head * (value_dim(f) + 2);
}

/* ---- life ---- */

static int new_floats(struct forward *f, struct dbuf **ret, size_t rows, size_t cols,
                      struct err *e)
{
    size_t n;

    if (!rows)
        return 0;
    if (size_mul(rows, cols, &n) < 0 || size_mul(n, sizeof(float), &n) < 0)
        return err_set(e, ERR_TOOBIG, "a buffer of %zu x %zu is too large", rows, cols);
    return dbuf_new(f->b, n, ret, e);
}

static int new_buffers(struct forward *f, struct err *e)
{
    struct forward_cp *cp = f->cp;
    size_t rows = (size_t)f->cfg.max_rows, u = cp->u > 1 ? (size_t)cp->u : 0;
    size_t r = cp->r > 1 ? (size_t)cp->r : 0, all = u ? rows : 0, ring = r ? rows : 0;
    size_t share = u * (size_t)cp->share_max, heads = (size_t)heads_dim(f);
    size_t outs = f->w.d.last ? (size_t)f->cfg.max_outs : 0;
    size_t wide = (size_t)max_int(f->w.info.n_embd, f->w.d.o_dim);
    size_t home = (size_t)home_dim(f);
    size_t pack = r ? cp->max_pack : 0, block = f->kv_layout.layer_bytes / sizeof(float);
    const struct {
        struct dbuf **at;
        size_t rows, cols;
    } bufs[] = {
        {&cp->to_heads, share, (size_t)row_dim(f)},
        {&cp->heads, all, (size_t)row_dim(f)},
        {&cp->att, all, home},
        {&cp->to_rows, share, home},
        {&cp->parts, cp->n_part > 1 ? (size_t)cp->n_part * rows : 0, (size_t)part_dim(f)},
        {&cp->few_part, ring, (size_t)part_dim(f)},
        {&cp->few_q, ring, heads},
        {&cp->all_q, ring, heads},
        {&cp->kv[0], pack, block},
        {&cp->kv[1], cp->gather ? r * pack : pack, block},
        {&cp->out[0], outs, wide},
        {&cp->out[1], outs, wide},
        {&cp->iota, rows, 1},
    };

    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        if (new_floats(f, bufs[i].at, bufs[i].rows, bufs[i].cols, e) < 0)
            return -1;
    for (size_t i = 0; i < rows; i++)
        cp->iota_host[i] = (int32_t)i;
    if (stream_upload(f->s, cp->iota, 0, cp->iota_host, rows * sizeof(int32_t), e) < 0)
        return -1;
    return stream_sync(f->s, e);
}

int forward_cp_new(struct forward *f, struct err *e)
{
    const struct forward_cfg *c = &f->cfg;
    size_t rows = (size_t)c->max_rows, blocks;
    struct forward_cp *cp;

    if (f->w.d.cp * f->w.d.cp_u * max_int(c->part.as_cp, 1) == 1)
        return 0;
    cp = f->cp = xcalloc(1, sizeof(*cp));
    cp->r = f->w.d.cp;
    cp->u = f->w.d.cp_u;
    cp->n_part = cp->r > 1 ? cp->r : max_int(c->part.as_cp, 1);
    cp->share_max = (c->max_rows + cp->u - 1) / cp->u;
    cp->striped = c->part.cp_method == CP_STRIPED;
    cp->gather = c->part.cp_method == CP_GATHER;
    blocks = (size_t)c->max_items * (size_t)(c->max_ctx / (cp->r * KV_BLOCK_TOK) + 1);
    cp->max_pack = blocks < (size_t)c->n_blocks ? blocks : (size_t)c->n_blocks;
    cp->rank_of = xcalloc(rows, sizeof(*cp->rank_of));
    cp->row_of = xcalloc(rows, sizeof(*cp->row_of));
    cp->iota_host = xcalloc(rows, sizeof(*cp->iota_host));
    cp->owners = xcalloc(rows * (size_t)c->part.micro, sizeof(*cp->owners));
    cp->few = xcalloc((size_t)c->max_items, sizeof(*cp->few));
    return new_buffers(f, e);
}

void forward_cp_free(struct forward *f)
{
    struct forward_cp *cp = f->cp;

    if (!cp)
        return;
    struct dbuf *bufs[] = {cp->to_heads, cp->heads,  cp->att,   cp->to_rows, cp->parts,
                           cp->few_part, cp->few_q,  cp->all_q, cp->kv[0],   cp->kv[1],
                           cp->out[0],   cp->out[1], cp->iota};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        dbuf_free(bufs[i]);
    free(cp->rank_of);
    free(cp->row_of);
    free(cp->iota_host);
    free(cp->owners);
    free(cp->few);
    free(cp);
}

/* ---- pieces ---- */

static struct comm_at ints_at(const struct forward *f, int at)
{
    return (struct comm_at){f->idx, (size_t)at * sizeof(int32_t)};
}

/* cols columns of a matrix of ld, from column `from` of row `row`. */
static struct view columns(struct dbuf *b, size_t row, int rows, size_t from, int cols,
                           int ld)
{
    return (struct view){b, (row * (size_t)ld + from) * sizeof(float), rows, cols, ld};
}

/* y := x, of the same shape */
static int move(struct forward *f, struct view y, struct view x, struct err *e)
{
    const struct op_gather o = {y, x, {f->cp->iota, 0, x.rows}};

    return x.rows ? op_gather(f->s, &o, e) : 0;
}

/* ---- U ranks: from rows to heads and back ---- */

/* What all-to-alls of n rows of `cols` floats are. */
static int swap(struct forward *f, const struct cp_batch *c, struct dbuf *x,
                struct dbuf *y, int at_send, int cols, int max_recv, struct err *e)
{
    const struct comm_a2a a = {
        .x = {x, 0},
        .y = {y, 0},
        .send = ints_at(f, at_send),
        .recv = ints_at(f, c->at_recv),
        .row_bytes = (int64_t)cols * (int64_t)sizeof(float),
        .max_recv = max_recv,
    };
    return comm_all_to_all(f->cfg.part.cp_u_comm, f->s, &a, e);
}

static int to_heads(struct forward *f, const struct cp_batch *c, struct err *e)
{
    struct forward_cp *cp = f->cp;
    const struct forward_dims *d = &f->w.d;
    int q = way_dim(f), kv = kv_dim(f), ld = row_dim(f), n = c->n;

    for (int u = 0; n && u < cp->u; u++) {
        size_t row = (size_t)u * (size_t)n, kv_head = (size_t)(d->n_kv_head * u / cp->u);
        size_t kv_from = kv_head * (size_t)f->w.info.head_dim;
        if (move(f, columns(cp->to_heads, row, n, 0, q, ld),
                 columns(f->q, 0, n, (size_t)(u * q), q, d->q_dim), e) < 0 ||
            move(f, columns(cp->to_heads, row, n, (size_t)q, kv, ld),
                 columns(f->k, 0, n, kv_from, kv, d->kv_dim), e) < 0 ||
            (!latent(f) &&
             move(f, columns(cp->to_heads, row, n, (size_t)(q + kv), kv, ld),
                  columns(f->v, 0, n, kv_from, kv, d->kv_dim), e) < 0))
            return -1;
    }
    return swap(f, c, cp->to_heads, cp->heads, c->at_heads_send, ld, c->n_ours, e);
}

static int to_rows(struct forward *f, const struct cp_batch *c, struct err *e)
{
    struct forward_cp *cp = f->cp;
    int y = home_dim(f), n = c->n;

    if (swap(f, c, cp->att, cp->to_rows, c->at_rows_send, y, n * cp->u, e) < 0)
        return -1;
    for (int u = 0; n && u < cp->u; u++)
        if (move(f, columns(f->att, 0, n, (size_t)(u * y), y, f->w.d.o_dim),
                 columns(cp->to_rows, (size_t)(u * n), n, 0, y, y), e) < 0)
            return -1;
    return 0;
}

/* ---- R ranks: parts ---- */

/* One layer of our rows at attention: q [n_ours, heads of mine], k, v, what comes out; op
 * says the rest. */
struct attend {
    struct view q, k, v, y;
    struct op_attn op;
};

static struct op_attn_part part_of(const struct forward *f, const struct cp_batch *c,
                                   const struct attend *a, int from_rank)
{
    return (struct op_attn_part){
        .n_head = a->op.n_head,
        .n_kv_head = a->op.n_kv_head,
        .head_dim = a->op.head_dim,
        .scale = a->op.scale,
        .window = a->op.window,
        .share = {f->cp->n_part, from_rank, f->cp->striped},
        .kv = f->kv,
        .layer = a->op.layer,
        .n_seq = c->n_seq,
        .max_blocks = c->max_blocks,
        .table = iview_of(f, c->at_table, c->n_seq * c->max_blocks),
    };
}

static int merge(struct forward *f, const struct attend *a, struct view y, struct err *e)
{
    const struct op_attn_merge o = {
        .y = y,
        .x = view_of(f->cp->parts, y.rows * f->cp->n_part, part_dim(f)),
        .n_part = f->cp->n_part,
        .n_head = f->w.d.n_attn_head,
        .head_dim = value_dim(f),
        .sinks = a->op.sinks,
    };
    return y.rows ? op_attn_merge(f->s, &o, e) : 0;
}

/* Some rows of a matrix. */
static struct view rows_of(struct view v, int from, int n)
{
    v.off += (size_t)from * (size_t)v.ld * sizeof(float);
    v.rows = n;
    return v;
}

/* Part `from_rank` of the rows whose KV comes, over blocks that came. */
static int part_come(struct forward *f, const struct cp_batch *c, const struct attend *a,
                     int from_rank, struct dbuf *blocks, size_t off, struct err *e)
{
    int n = c->n_ours - c->n_few;
    struct op_attn_part o = part_of(f, c, a, from_rank);

    o.q = rows_of(a->q, c->n_few, n);
    o.y = view_from(f->cp->parts, from_rank * n, n, part_dim(f));
    o.pos = iview_of(f, c->at_our_pos + c->n_few, n);
    o.seq = iview_of(f, c->at_our_seq + c->n_few, n);
    o.blocks = blocks;
    o.first = iview_of(f, c->at_first + from_rank * c->n_seq, c->n_seq);
    o.off = off;
    o.n_blocks = c->blocks[from_rank];
    return n ? op_attn_part(f->s, &o, e) : 0;
}

static int come_gathered(struct forward *f, const struct cp_batch *c,
                         const struct attend *a, struct err *e)
{
    struct forward_cp *cp = f->cp;
    size_t off = 0;

    if (comm_all_gather(f->cfg.part.cp_comm, f->s, (struct comm_at){cp->kv[0], 0},
                        (struct comm_at){cp->kv[1], 0}, c->kv_bytes, e) < 0)
        return -1;
    for (int r = 0; r < cp->r; r++) {
        if (part_come(f, c, a, r, cp->kv[1], off, e) < 0)
            return -1;
        off += (size_t)c->kv_bytes[r];
    }
    return 0;
}

static int pass_on(struct forward *f, const struct cp_batch *c, int at, int have,
                   bool send, struct err *e)
{
    struct forward_cp *cp = f->cp;
    struct comm *comm = f->cfg.part.cp_comm;
    int me = f->w.d.cp_at, to = (me + 1) % cp->r, from = (me + cp->r - 1) % cp->r;
    int get = (have + cp->r - 1) % cp->r;

    if (send)
        return c->kv_bytes[have] ? comm_send(comm, f->s, (struct comm_at){cp->kv[at], 0},
                                             c->kv_bytes[have], to, e)
                                 : 0;
    return c->kv_bytes[get] ? comm_recv(comm, f->s, (struct comm_at){cp->kv[1 - at], 0},
                                        c->kv_bytes[get], from, e)
                            : 0;
}

/* Packets go to the next rank R - 1 times. Even ranks send before they receive, odd ones
 * after, so that no size makes them wait for each other in a circle. */
static int come_round(struct forward *f, const struct cp_batch *c, const struct attend *a,
                      struct err *e)
{
    struct forward_cp *cp = f->cp;
    int me = f->w.d.cp_at;

    for (int hop = 0; hop < cp->r; hop++) {
        int have = (me + cp->r - hop) % cp->r, at = hop % 2;
        if (hop + 1 < cp->r && (pass_on(f, c, at, have, me % 2 == 0, e) < 0 ||
                                pass_on(f, c, at, have, me % 2 != 0, e) < 0))
            return -1;
        if (part_come(f, c, a, have, cp->kv[at], 0, e) < 0)
            return -1;
    }
    return 0;
}

/* Rows of prompts: KV comes to them. */
static int kv_comes(struct forward *f, const struct cp_batch *c, const struct attend *a,
                    struct err *e)
{
    struct forward_cp *cp = f->cp;
    int mine = c->blocks[f->w.d.cp_at];
    const struct op_kv_pack pack = {f->kv, a->op.layer, iview_of(f, c->at_pack, mine),
                                    cp->kv[0], 0};

    if (mine && op_kv_pack(f->s, &pack, e) < 0)
        return -1;
    if ((cp->gather ? come_gathered : come_round)(f, c, a, e) < 0)
        return -1;
    return merge(f, a, rows_of(a->y, c->n_few, c->n_ours - c->n_few), e);
}

/* Rows of sequences with few: they go to the KV, the parts come home. */
static int q_goes(struct forward *f, const struct cp_batch *c, const struct attend *a,
                  struct err *e)
{
    struct forward_cp *cp = f->cp;
    struct op_attn_part o = part_of(f, c, a, f->w.d.cp_at);
    const struct comm_a2a home = {
        .x = {cp->few_part, 0},
        .y = {cp->parts, 0},
        .send = ints_at(f, c->at_few_send),
        .recv = ints_at(f, c->at_recv),
        .row_bytes = (int64_t)part_dim(f) * (int64_t)sizeof(float),
        .max_recv = (int64_t)c->n_few * cp->r,
    };

    o.q = view_of(cp->all_q, c->n_few_all, heads_dim(f));
    o.y = view_of(cp->few_part, c->n_few_all, part_dim(f));
    o.pos = iview_of(f, c->at_few_pos, c->n_few_all);
    o.seq = iview_of(f, c->at_few_seq, c->n_few_all);
    if (move(f, view_of(cp->few_q, c->n_few, heads_dim(f)), rows_of(a->q, 0, c->n_few),
             e) < 0 ||
        comm_all_gather(f->cfg.part.cp_comm, f->s, (struct comm_at){cp->few_q, 0},
                        (struct comm_at){cp->all_q, 0}, c->few_bytes, e) < 0 ||
        op_attn_part(f->s, &o, e) < 0 ||
        comm_all_to_all(f->cfg.part.cp_comm, f->s, &home, e) < 0)
        return -1;
    return merge(f, a, rows_of(a->y, 0, c->n_few), e);
}

/* ---- a layer ---- */

/* All our positions are here: plain attention over my heads. */
static int attend_here(struct forward *f, const struct attend *a,
                       const struct op_span *span, struct err *e)
{
    struct op_attn o = a->op;

    o.span = *span;
    o.q = a->q;
    o.y = a->y;
    return op_attn(f->s, &o, e);
}

/* The same in the parts that ranks which share the positions would have. */
static int attend_in_parts(struct forward *f, const struct cp_batch *c,
                           const struct attend *a, struct err *e)
{
    int n = c->n_ours;

    for (int p = 0; n && p < f->cp->n_part; p++) {
        struct op_attn_part o = part_of(f, c, a, p);
        o.q = a->q;
        o.y = view_from(f->cp->parts, p * n, n, part_dim(f));
        o.pos = iview_of(f, c->at_our_pos, n);
        o.seq = iview_of(f, c->at_our_seq, n);
        o.whole = true;
        if (op_attn_part(f->s, &o, e) < 0)
            return -1;
    }
    return merge(f, a, a->y, e);
}

static struct op_span span_of(const struct forward *f, const struct cp_batch *c)
{
    return (struct op_span){
        .n_items = c->n_seq,
        .n_rows = c->n_ours,
        .max_blocks = c->max_blocks,
        .max_ctx = c->max_ctx,
        .row = iview_of(f, c->at_row, c->n_seq + 1),
        .pos = iview_of(f, c->at_pos, c->n_seq),
        .table = iview_of(f, c->at_table, c->n_seq * c->max_blocks),
    };
}

static int rope_store(struct forward *f, const struct forward_layer *l,
                      const struct cp_batch *c, const struct attend *a,
                      const struct op_span *span, struct err *e)
{
    struct op_rope_store o = forward_rope_of(f, l, a->op.layer);

    o.span = *span;
    o.q = a->q;
    o.k = a->k;
    o.v = a->v;
    if (f->cp->r > 1) {
        o.row_pos = iview_of(f, c->at_our_pos, c->n_ours);
        o.row_slot = iview_of(f, c->at_our_slot, c->n_ours);
    }
    return c->n_ours ? op_rope_store(f->s, &o, e) : 0;
}

/* a->q, k, v at the ranks of their heads to a->y. */
static int attend(struct forward *f, const struct forward_layer *l,
                  const struct cp_batch *c, const struct attend *a, struct err *e)
{
    const struct op_span span = span_of(f, c);

    if (rope_store(f, l, c, a, &span, e) < 0)
        return -1;
    if (f->cp->r == 1)
        return f->cp->n_part > 1 ? attend_in_parts(f, c, a, e)
                                 : attend_here(f, a, &span, e);
    if (c->packs && kv_comes(f, c, a, e) < 0)
        return -1;
    return c->n_few_all ? q_goes(f, c, a, e) : 0;
}

/* The same of a latent: heads take their part in before, and give their values after. */
static int attend_latent(struct forward *f, const struct forward_layer *l,
                         const struct cp_batch *c, const struct attend *a, struct err *e)
{
    int n = c->n_ours, first = f->w.d.cp_u_at * f->w.d.n_attn_head;
    struct attend in = *a;

    in.q = view_of(f->lat_q, n, heads_dim(f));
    in.y = view_of(f->lat_y, n, f->w.d.n_attn_head * value_dim(f));
    if (forward_latent_q(f, l, in.q, a->q, first, e) < 0 || attend(f, l, c, &in, e) < 0)
        return -1;
    return forward_latent_out(f, l, a->y, in.y, first, e);
}

int forward_cp_attention(struct forward *f, const struct forward_layer *l, int layer,
                         const struct shape *s, struct err *e)
{
    struct forward_cp *cp = f->cp;
    const struct cp_batch *c = s->cp;
    int n = c->n_ours, q = way_dim(f), kv = kv_dim(f), ld = row_dim(f);
    struct attend a = {view_of(f->q, n, q), view_of(f->k, n, kv), view_of(f->v, n, kv),
                       view_of(f->att, n, home_dim(f)), forward_attn_of(f, l, layer)};

    if (!c->n_all) /* of other groups only */
        return 0;
    if (norm_heads(f, l, c->n, e) < 0)
        return -1;
    if (cp->u > 1) {
        a.q = columns(cp->heads, 0, n, 0, q, ld);
        a.k = columns(cp->heads, 0, n, (size_t)q, kv, ld);
        if (!latent(f))
            a.v = columns(cp->heads, 0, n, (size_t)(q + kv), kv, ld);
        a.y = view_of(cp->att, n, home_dim(f));
        if (to_heads(f, c, e) < 0)
            return -1;
    }
    if ((latent(f) ? attend_latent : attend)(f, l, c, &a, e) < 0)
        return -1;
    return cp->u > 1 ? to_rows(f, c, e) : 0;
}

/* ---- outputs ---- */

/* Bytes of `cols` floats that each rank has of outputs first..first+n-1: of our U ranks,
 * of the R groups. */
static void list_outs(const struct forward *f, const struct cp_batch *c, int first, int n,
                      int cols, int64_t *of_u, int64_t *of_r)
{
    int u = f->cp->u;

    for (int m = 0; m < FORWARD_CP_MAX; m++)
        of_u[m] = of_r[m] = 0;
    for (int o = first; o < first + n; o++) {
        int64_t bytes = (int64_t)cols * (int64_t)sizeof(float);
        of_r[c->owner[o] / u] += bytes;
        if (c->owner[o] / u == f->w.d.cp_at)
            of_u[c->owner[o] % u] += bytes;
    }
}

/* My rows of outputs, in cp->out[0], to all ranks, then in their order to y. */
static int gather_outs(struct forward *f, const struct shape *s, struct view y, int first,
                       int64_t *of_u, int64_t *of_r, struct err *e)
{
    struct forward_cp *cp = f->cp;
    struct comm_at at[2] = {{cp->out[0], 0}, {cp->out[1], 0}};
    int in = 0;

    list_outs(f, s->cp, first, y.rows, y.cols, of_u, of_r);
    if (cp->u > 1) {
        if (comm_all_gather(f->cfg.part.cp_u_comm, f->s, at[0], at[1], of_u, e) < 0)
            return -1;
        in = 1;
    }
    if (cp->r > 1) {
        if (comm_all_gather(f->cfg.part.cp_comm, f->s, at[in], at[1 - in], of_r, e) < 0)
            return -1;
        in = 1 - in;
    }
    const struct op_gather o = {y, view_of(cp->out[in], y.rows, y.cols),
                                iview_of(f, s->cp->at_perm + first, y.rows)};
    return op_gather(f->s, &o, e);
}

int forward_cp_outs(struct forward *f, const struct shape *s, int first, int n,
                    struct err *e)
{
    struct forward_cp *cp = f->cp;
    int me = f->w.d.cp_at * cp->u + f->w.d.cp_u_at, before = 0, own = 0;

    if (!n) /* outputs of other groups only */
        return 0;
    for (int o = 0; o < first + n; o++)
        *(o < first ? &before : &own) += s->cp->owner[o] == me;
    if (forward_gather_x(f, cp->out[0], s, before, own, e) < 0 ||
        gather_outs(f, s, view_of(f->out_x, n, f->w.info.n_embd), first, cp->lists[0],
                    cp->lists[1], e) < 0 ||
        forward_gather(f, cp->out[0], f->att, f->w.d.o_dim, s, before, own, e) < 0)
        return -1;
    return gather_outs(f, s, view_of(f->q, n, f->w.d.o_dim), first, cp->lists[2],
                       cp->lists[3], e);
}

/* kernels/backend_check.c - what the host can check of an op before it is launched.
 *
 * Nothing here reads device memory. A failure is a fault of the caller, named by op and
 * part; it costs some tens of nanoseconds a launch. */
#include "kernels/backend_impl.h"

#include "base/err.h"
#include "kernels/kv_block.h"

struct ck {
    const struct backend *b;
    const char *op;
    struct err *e;
};

static int ck_view(const struct ck *c, const char *name, const struct view *v)
{
    size_t need;

    if (!v->buf || v->buf->b != c->b)
        return err_set(c->e, ERR_INTERNAL, "%s: %s has no buffer of this backend", c->op,
                       name);
    if (v->rows < 0 || v->cols < 1 || v->ld < v->cols || v->off % 4)
        return err_set(c->e, ERR_INTERNAL, "%s: %s is %d x %d, ld %d, at byte %zu", c->op,
                       name, v->rows, v->cols, v->ld, v->off);
    if (!v->rows)
        return 0;
    need = ((size_t)(v->rows - 1) * (size_t)v->ld + (size_t)v->cols) * 4;
    if (v->off > v->buf->bytes || need > v->buf->bytes - v->off)
        return err_set(c->e, ERR_INTERNAL,
                       "%s: %s is %d x %d, ld %d, at byte %zu of a buffer of %zu", c->op,
                       name, v->rows, v->cols, v->ld, v->off, v->buf->bytes);
    return 0;
}

static int ck_iview(const struct ck *c, const char *name, const struct iview *v, size_t n)
{
    if (!v->buf || v->buf->b != c->b || v->n < 0 || v->off % 4)
        return err_set(c->e, ERR_INTERNAL, "%s: %s is no array of this backend", c->op,
                       name);
    if ((size_t)v->n < n)
        return err_set(c->e, ERR_INTERNAL, "%s: %s has %d elements and needs %zu", c->op,
                       name, v->n, n);
    if (v->off > v->buf->bytes || (size_t)v->n * 4 > v->buf->bytes - v->off)
        return err_set(c->e, ERR_INTERNAL,
                       "%s: %s is %d elements at byte %zu of a buffer of %zu", c->op,
                       name, v->n, v->off, v->buf->bytes);
    return 0;
}

static int ck_int(const struct ck *c, const char *name, int have, int want)
{
    if (have != want)
        return err_set(c->e, ERR_INTERNAL, "%s: %s is %d and should be %d", c->op, name,
                       have, want);
    return 0;
}

static int ck_max(const struct ck *c, const char *name, int have, int max)
{
    if (have < 0 || have > max)
        return err_set(c->e, ERR_INTERNAL, "%s: %s is %d, outside 0..%d", c->op, name,
                       have, max);
    return 0;
}

static int ck_weight(const struct ck *c, const char *name, const struct weight *w,
                     int use, int cols)
{
    if (!w || w->b != c->b || !(w->flags & use))
        return err_set(c->e, ERR_INTERNAL, "%s: %s is no weight for this use", c->op,
                       name);
    return ck_int(c, name, w->cols, cols);
}

static int ck_span(const struct ck *c, const struct op_span *s)
{
    const struct backend_caps *caps = &c->b->caps;

    if (ck_max(c, "items", s->n_items, caps->max_items) < 0 ||
        ck_max(c, "rows", s->n_rows, caps->max_rows) < 0 ||
        ck_max(c, "context", s->max_ctx, caps->max_context) < 0 ||
        ck_max(c, "blocks", s->max_blocks, caps->max_context / KV_BLOCK_TOK + 1) < 0)
        return -1;
    if (ck_iview(c, "row", &s->row, (size_t)s->n_items + 1) < 0 ||
        ck_iview(c, "pos", &s->pos, (size_t)s->n_items) < 0)
        return -1;
    return ck_iview(c, "table", &s->table, (size_t)s->n_items * (size_t)s->max_blocks);
}

static int ck_lview(const struct ck *c, const char *name, const struct lview *v, int n)
{
    if (!v->buf)
        return 0;
    if (v->buf->b != c->b || v->off % 8 || v->n < n || v->off > v->buf->bytes ||
        (size_t)v->n > (v->buf->bytes - v->off) / 8)
        return err_set(c->e, ERR_INTERNAL, "%s: %s is no array of %d numbers", c->op,
                       name, n);
    return 0;
}

static int ck_kv(const struct ck *c, const struct kv_arena *a, int layer, int n_kv_head,
                 int head_dim)
{
    if (!a || a->b != c->b)
        return err_set(c->e, ERR_INTERNAL, "%s: no KV arena of this backend", c->op);
    if (layer < 0 || layer >= a->layout.n_layer)
        return err_set(c->e, ERR_INTERNAL, "%s: layer %d of %d", c->op, layer,
                       a->layout.n_layer);
    if (ck_int(c, "KV heads", n_kv_head, a->layout.n_kv_head) < 0)
        return -1;
    return ck_int(c, "head size", head_dim, a->layout.head_dim);
}

static int ck_heads(const struct ck *c, int n_head, int n_kv_head)
{
    if (n_kv_head < 1 || n_head < n_kv_head || n_head % n_kv_head)
        return err_set(c->e, ERR_INTERNAL, "%s: %d heads over %d KV heads", c->op, n_head,
                       n_kv_head);
    return ck_max(c, "heads", n_head, c->b->caps.max_heads);
}

/* A matrix of rows x cols. */
static int ck_shape(const struct ck *c, const char *name, const struct view *v, int rows,
                    int cols)
{
    if (ck_view(c, name, v) < 0 || ck_int(c, name, v->rows, rows) < 0)
        return -1;
    return ck_int(c, name, v->cols, cols);
}

int check_embed(const struct backend *b, const struct op_embed *o, struct err *e)
{
    struct ck c = {b, "embed", e};

    if (ck_view(&c, "y", &o->y) < 0)
        return -1;
    if (ck_weight(&c, "w", o->w, WEIGHT_LOOKUP, o->y.cols) < 0)
        return -1;
    return ck_iview(&c, "ids", &o->ids, (size_t)o->y.rows);
}

int check_norm(const struct backend *b, const struct op_norm *o, struct err *e)
{
    struct ck c = {b, "norm", e};

    if (ck_view(&c, "x", &o->x) < 0 || ck_shape(&c, "y", &o->y, o->x.rows, o->x.cols) < 0)
        return -1;
    return ck_weight(&c, "w", o->w, WEIGHT_VECTOR, o->x.cols);
}

int check_squares(const struct backend *b, const struct op_squares *o, struct err *e)
{
    struct ck c = {b, "squares", e};

    return ck_view(&c, "x", &o->x) < 0 ? -1 : ck_shape(&c, "y", &o->y, o->x.rows, 1);
}

int check_norm_by(const struct backend *b, const struct op_norm_by *o, struct err *e)
{
    struct ck c = {b, "norm_by", e};

    if (ck_view(&c, "x", &o->x) < 0 ||
        ck_shape(&c, "y", &o->y, o->x.rows, o->x.cols) < 0 ||
        ck_shape(&c, "sums", &o->sums, o->x.rows, 1) < 0)
        return -1;
    if (o->n < o->x.cols)
        return err_set(e, ERR_INTERNAL, "norm_by: sums of %d columns for %d", o->n,
                       o->x.cols);
    return ck_weight(&c, "w", o->w, WEIGHT_VECTOR, o->x.cols);
}

int check_gather(const struct backend *b, const struct op_gather *o, struct err *e)
{
    struct ck c = {b, "gather", e};

    if (ck_view(&c, "x", &o->x) < 0 || ck_shape(&c, "y", &o->y, o->y.rows, o->x.cols) < 0)
        return -1;
    return ck_iview(&c, "idx", &o->idx, (size_t)o->y.rows);
}

static int ck_input(const struct ck *c, const struct view *x)
{
    if (ck_view(c, "x", x) < 0 || ck_max(c, "rows", x->rows, c->b->caps.max_rows) < 0)
        return -1;
    return ck_max(c, "cols", x->cols, c->b->caps.max_cols);
}

int check_matmul(const struct backend *b, const struct op_matmul *o, struct err *e)
{
    struct ck c = {b, "matmul", e};

    if (ck_input(&c, &o->x) < 0)
        return -1;
    if (o->n_out < 1 || o->n_out > 3)
        return err_set(e, ERR_INTERNAL, "matmul: %d outputs, outside 1..3", o->n_out);
    for (int j = 0; j < o->n_out; j++) {
        if (ck_weight(&c, "w", o->w[j], WEIGHT_MATMUL, o->x.cols) < 0 ||
            ck_shape(&c, "y", &o->y[j], o->x.rows, o->w[j]->rows) < 0)
            return -1;
        if (o->bias[j] &&
            ck_weight(&c, "bias", o->bias[j], WEIGHT_VECTOR, o->w[j]->rows) < 0)
            return -1;
    }
    return 0;
}

int check_glu(const struct backend *b, const struct op_glu *o, struct err *e)
{
    struct ck c = {b, "glu", e};

    if (ck_input(&c, &o->x) < 0 ||
        ck_weight(&c, "gate", o->gate, WEIGHT_MATMUL, o->x.cols) < 0 ||
        ck_weight(&c, "up", o->up, WEIGHT_MATMUL, o->x.cols) < 0 ||
        ck_int(&c, "rows of up", o->up->rows, o->gate->rows) < 0)
        return -1;
    return ck_shape(&c, "y", &o->y, o->x.rows, o->gate->rows);
}

int check_heads(const struct backend *b, const struct op_heads *o, struct err *e)
{
    struct ck c = {b, "heads", e};
    int in, out;

    if (ck_view(&c, "x", &o->x) < 0 || ck_view(&c, "y", &o->y) < 0 ||
        ck_int(&c, "rows of y", o->y.rows, o->x.rows) < 0 ||
        ck_max(&c, "rows", o->x.rows, b->caps.max_rows) < 0 ||
        ck_max(&c, "heads", o->n_head, b->caps.max_heads) < 0 || o->n_head < 1)
        return -1;
    in = o->w[0] ? o->w[0]->cols : 0;
    out = o->w[0] ? o->w[0]->rows : 0;
    if (o->tail < 0 || o->x_step < in + o->tail || o->y_step < out + o->tail ||
        ck_int(&c, "columns of x", o->x.cols, o->n_head * o->x_step) < 0 ||
        ck_int(&c, "columns of y", o->y.cols, o->n_head * o->y_step) < 0 ||
        ck_max(&c, "columns of a head", in, b->caps.max_cols) < 0)
        return -1;
    for (int h = 0; h < o->n_head; h++)
        if (ck_weight(&c, "w", o->w[h], WEIGHT_MATMUL, in) < 0 ||
            ck_int(&c, "rows of w", o->w[h]->rows, out) < 0)
            return -1;
    return 0;
}

int check_rope_store(const struct backend *b, const struct op_rope_store *o,
                     struct err *e)
{
    struct ck c = {b, "rope_store", e};
    int rows = o->span.n_rows;

    if ((o->row_pos.buf ? ck_max(&c, "rows", rows, b->caps.max_rows)
                        : ck_span(&c, &o->span)) < 0 ||
        ck_heads(&c, o->n_head, o->n_kv_head) < 0 ||
        ck_kv(&c, o->kv, o->layer, o->n_kv_head, o->head_dim) < 0)
        return -1;
    if (ck_shape(&c, "q", &o->q, rows, o->n_head * o->head_dim) < 0 ||
        ck_shape(&c, "k", &o->k, rows, o->n_kv_head * o->head_dim) < 0 ||
        (!o->kv->layout.v_dim &&
         ck_shape(&c, "v", &o->v, rows, o->n_kv_head * o->head_dim) < 0))
        return -1;
    if (o->rot_dim < 2 || o->rot_dim % 2 || o->rot_from < 0 ||
        o->rot_dim > o->head_dim - o->rot_from)
        return err_set(e, ERR_INTERNAL, "rope_store: %d of %d dimensions rotate, from %d",
                       o->rot_dim, o->head_dim, o->rot_from);
    if (ck_weight(&c, "inv_freq", o->inv_freq, WEIGHT_VECTOR, o->rot_dim / 2) < 0)
        return -1;
    if (o->row_pos.buf && (ck_iview(&c, "row_pos", &o->row_pos, (size_t)rows) < 0 ||
                           ck_iview(&c, "row_slot", &o->row_slot, (size_t)rows) < 0))
        return -1;
    if (o->q_norm && ck_weight(&c, "q_norm", o->q_norm, WEIGHT_VECTOR, o->head_dim) < 0)
        return -1;
    return o->k_norm ? ck_weight(&c, "k_norm", o->k_norm, WEIGHT_VECTOR, o->head_dim) : 0;
}

int check_attn(const struct backend *b, const struct op_attn *o, struct err *e)
{
    struct ck c = {b, "attn", e};
    int rows = o->span.n_rows;

    if (ck_span(&c, &o->span) < 0 || ck_heads(&c, o->n_head, o->n_kv_head) < 0 ||
        ck_kv(&c, o->kv, o->layer, o->n_kv_head, o->head_dim) < 0)
        return -1;
    if (o->window < 0)
        return err_set(e, ERR_INTERNAL, "attn: a window of %d", o->window);
    if (o->sinks && ck_weight(&c, "sinks", o->sinks, WEIGHT_VECTOR, o->n_head) < 0)
        return -1;
    if (ck_shape(&c, "q", &o->q, rows, o->n_head * o->head_dim) < 0)
        return -1;
    int dv = o->kv->layout.v_dim ? o->kv->layout.v_dim : o->head_dim;
    return ck_shape(&c, "y", &o->y, rows, o->n_head * dv);
}

/* Room for n layer blocks from off. */
static int ck_packed(const struct ck *c, const struct dbuf *d, size_t off, int n,
                     const struct kv_arena *kv)
{
    if (!d || d->b != c->b || n < 0 || off % 4 || off > d->bytes ||
        (size_t)n > (d->bytes - off) / kv->layout.layer_bytes)
        return err_set(c->e, ERR_INTERNAL, "%s: no room for %d blocks at byte %zu", c->op,
                       n, off);
    return 0;
}

int check_attn_part(const struct backend *b, const struct op_attn_part *o, struct err *e)
{
    struct ck c = {b, "attn_part", e};
    size_t rows = (size_t)o->q.rows;
    int dv = o->kv && o->kv->layout.v_dim ? o->kv->layout.v_dim : o->head_dim;

    if (ck_heads(&c, o->n_head, o->n_kv_head) < 0 ||
        ck_kv(&c, o->kv, o->layer, o->n_kv_head, o->head_dim) < 0 ||
        ck_shape(&c, "q", &o->q, o->q.rows, o->n_head * o->head_dim) < 0 ||
        ck_shape(&c, "y", &o->y, o->q.rows, o->n_head * (dv + 2)) < 0 ||
        ck_iview(&c, "pos", &o->pos, rows) < 0 || ck_iview(&c, "seq", &o->seq, rows) < 0)
        return -1;
    if (o->window < 0 || o->share.n < 1 || o->share.at < 0 || o->share.at >= o->share.n ||
        (o->whole && (o->share.striped || o->blocks)) || o->n_seq < 0 ||
        o->max_blocks < 0)
        return err_set(e, ERR_INTERNAL, "attn_part: window %d, part %d of %d, %d x %d%s",
                       o->window, o->share.at, o->share.n, o->n_seq, o->max_blocks,
                       o->whole ? " whole blocks" : " blocks");
    if (!o->blocks)
        return ck_iview(&c, "table", &o->table, (size_t)o->n_seq * (size_t)o->max_blocks);
    if (ck_packed(&c, o->blocks, o->off, o->n_blocks, o->kv) < 0)
        return -1;
    return ck_iview(&c, "first", &o->first, (size_t)o->n_seq);
}

int check_attn_merge(const struct backend *b, const struct op_attn_merge *o,
                     struct err *e)
{
    struct ck c = {b, "attn_merge", e};

    if (o->n_part < 1 || o->head_dim > KV_MAX_HEAD_DIM ||
        ck_shape(&c, "y", &o->y, o->y.rows, o->n_head * o->head_dim) < 0)
        return err_set(e, ERR_INTERNAL, "attn_merge: %d parts of heads of %d", o->n_part,
                       o->head_dim);
    if (o->sinks && ck_weight(&c, "sinks", o->sinks, WEIGHT_VECTOR, o->n_head) < 0)
        return -1;
    return ck_shape(&c, "x", &o->x, o->y.rows * o->n_part, o->n_head * (o->head_dim + 2));
}

int check_kv_pack(const struct backend *b, const struct op_kv_pack *o, struct err *e)
{
    struct ck c = {b, "kv_pack", e};

    if (!o->kv || o->kv->b != b || o->layer < 0 || o->layer >= o->kv->layout.n_layer)
        return err_set(e, ERR_INTERNAL, "kv_pack: no layer %d of a KV arena", o->layer);
    if (ck_iview(&c, "idx", &o->idx, 0) < 0)
        return -1;
    return ck_packed(&c, o->to, o->off, o->idx.n, o->kv);
}

int check_kv_copy(const struct backend *b, const struct op_kv_copy *o, struct err *e)
{
    struct ck c = {b, "kv_copy", e};

    if (!o->kv || o->kv->b != b)
        return err_set(e, ERR_INTERNAL, "kv_copy: no KV arena of this backend");
    if (ck_iview(&c, "src", &o->src, 0) < 0)
        return -1;
    return ck_iview(&c, "dst", &o->dst, (size_t)o->src.n);
}

int check_kv_move(const struct backend *b, const struct op_kv_move *o, struct err *e)
{
    if (!o->kv || o->kv->b != b)
        return err_set(e, ERR_INTERNAL, "kv_move: no KV arena of this backend");
    for (int i = 0; i < o->n; i++)
        if (o->at[i].block < 0 || o->at[i].block >= o->kv->n_blocks ||
            o->at[i].slot < 0 || o->at[i].slot >= o->n_slots)
            return err_set(e, ERR_INTERNAL,
                           "kv_move: block %d and slot %d, there are %d and %d",
                           o->at[i].block, o->at[i].slot, o->kv->n_blocks, o->n_slots);
    return 0;
}

int check_add(const struct backend *b, const struct op_add *o, struct err *e)
{
    struct ck c = {b, "add", e};

    if (ck_view(&c, "x", &o->x) < 0)
        return -1;
    return ck_shape(&c, "y", &o->y, o->x.rows, o->x.cols);
}

int check_route(const struct backend *b, const struct op_route *o, struct err *e)
{
    struct ck c = {b, "route", e};
    int rows = o->logits.rows, n = o->logits.cols;

    if (ck_view(&c, "logits", &o->logits) < 0 ||
        ck_shape(&c, "weights", &o->weights, rows, o->top_k) < 0 ||
        ck_iview(&c, "ids", &o->ids, (size_t)rows * (size_t)o->top_k) < 0)
        return -1;
    if (o->top_k < 1 || o->top_k > n || n > OP_GROUP_MAX_SLOTS)
        return err_set(e, ERR_INTERNAL, "route: %d of %d experts", o->top_k, n);
    if (o->n_group > 1 && (n % o->n_group || o->top_group < 1 ||
                           o->top_group > o->n_group || o->score == ROUTE_CHOSEN))
        return err_set(e, ERR_INTERNAL, "route: %d of %d groups of %d experts",
                       o->top_group, o->n_group, n);
    return o->bias ? ck_weight(&c, "bias", o->bias, WEIGHT_VECTOR, n) : 0;
}

/* Of so many rows. */
static int ck_rows(const struct ck *c, const struct op_rows *r, int n)
{
    if (!r->mark.buf)
        return 0;
    if (r->first < 0 || r->n < 0 || r->first > n - r->n)
        return err_set(c->e, ERR_INTERNAL, "%s: rows %d..%d of %d are marked", c->op,
                       r->first, r->first + r->n - 1, n);
    if (r->item.buf && ck_iview(c, "items", &r->item, 1) < 0)
        return -1;
    return ck_iview(c, "mark", &r->mark, (size_t)n);
}

static int ck_lviews(const struct ck *c, const char *name, const struct lview *v, int n)
{
    for (int p = 0; p < OP_PHASES; p++)
        if (ck_lview(c, name, &v[p], n) < 0)
            return -1;
    return 0;
}

int check_capacity(const struct backend *b, const struct op_capacity *o, struct err *e)
{
    struct ck c = {b, "capacity", e};
    size_t pairs = (size_t)o->route.logits.rows * (size_t)o->route.top_k;

    if (check_route(b, &o->route, e) < 0 ||
        ck_iview(&c, "count", &o->count, (size_t)o->route.logits.cols) < 0 ||
        ck_rows(&c, &o->who, o->route.logits.rows) < 0 ||
        ck_lviews(&c, "lost", o->lost, 2) < 0 ||
        ck_int(&c, "capacity over 0", o->cap > 0, 1) < 0)
        return -1;
    return ck_iview(&c, "pos", &o->pos, pairs);
}

static int ck_rows8(const struct ck *c, const struct view *x, const struct dbuf *d,
                    size_t off, const struct iview *count)
{
    if (ck_view(c, "rows", x) < 0 || ck_iview(c, "count", count, 1) < 0)
        return -1;
    if (!d || d->b != c->b || off % 4 || off > d->bytes ||
        (size_t)x->rows > (d->bytes - off) / op_pack8_bytes(x->cols))
        return err_set(c->e, ERR_INTERNAL, "%s: no room for %d packed rows of %d", c->op,
                       x->rows, x->cols);
    return 0;
}

int check_pack8(const struct backend *b, const struct op_pack8 *o, struct err *e)
{
    struct ck c = {b, "pack8", e};

    return ck_rows8(&c, &o->x, o->to, o->off, &o->count);
}

int check_unpack8(const struct backend *b, const struct op_unpack8 *o, struct err *e)
{
    struct ck c = {b, "unpack8", e};

    return ck_rows8(&c, &o->y, o->from, o->off, &o->count);
}

int check_spread(const struct backend *b, const struct op_spread *o, struct err *e)
{
    struct ck c = {b, "spread", e};
    size_t pairs = (size_t)o->rows * (size_t)o->top_k, n = (size_t)o->rank.n;

    if (o->rows < 0 || o->top_k < 1 || o->n_rank < 1 || o->n_src > o->n_rank ||
        o->src >= o->n_rank || o->first.n < 2 || o->policy >= SPREAD_COUNT || o->cap < 0)
        return err_set(e, ERR_INTERNAL, "spread: %d rows of %d over %d ranks", o->rows,
                       o->top_k, o->n_rank);
    if (ck_iview(&c, "ids", &o->ids, pairs) < 0 ||
        ck_iview(&c, "first", &o->first, (size_t)o->first.n) < 0 ||
        ck_iview(&c, "rank", &o->rank, 1) < 0 || ck_iview(&c, "slot", &o->slot, n) < 0 ||
        ck_iview(&c, "upto", &o->upto, n) < 0 ||
        ck_iview(&c, "host", &o->host, (size_t)o->n_rank) < 0 ||
        ck_iview(&c, "to", &o->to, pairs) < 0 ||
        ck_iview(&c, "to_slot", &o->to_slot, pairs) < 0 ||
        ck_rows(&c, &o->who, o->rows) < 0 || ck_lviews(&c, "moved", o->moved, 1) < 0)
        return -1;
    return ck_iview(&c, "scratch", &o->scratch,
                    (size_t)op_spread_scratch(o->first.n - 1, o->n_rank, o->rank.n));
}

int check_dispatch(const struct backend *b, const struct op_dispatch *o, struct err *e)
{
    struct ck c = {b, "dispatch", e};
    int pairs = o->x.rows * o->top_k;

    if (o->top_k < 1 || o->n_rank < 1 || ck_view(&c, "x", &o->x) < 0 ||
        ck_shape(&c, "out", &o->out, pairs, o->x.cols) < 0 ||
        ck_iview(&c, "to", &o->to, (size_t)pairs) < 0 ||
        ck_iview(&c, "to_slot", &o->to_slot, (size_t)pairs) < 0 ||
        ck_iview(&c, "slot", &o->slot, (size_t)pairs) < 0 ||
        ck_iview(&c, "pos", &o->pos, (size_t)pairs) < 0 ||
        ck_rows(&c, &o->who, o->x.rows) < 0 ||
        (o->from.buf && ck_iview(&c, "from", &o->from, (size_t)pairs) < 0))
        return -1;
    return ck_iview(&c, "send", &o->send, (size_t)o->n_rank);
}

int check_group(const struct backend *b, const struct op_group *o, struct err *e)
{
    struct ck c = {b, "group", e};
    int groups = o->n_slot * (o->second ? 2 : 1);

    if (o->n_slot < 1 || o->n_slot > OP_GROUP_MAX_SLOTS || o->n_pair > o->slot.n ||
        o->cap < 0)
        return err_set(e, ERR_INTERNAL, "group: %d pairs over %d slots", o->n_pair,
                       o->n_slot);
    if (ck_iview(&c, "slot", &o->slot, 0) < 0 ||
        (o->n_pair < 0 && ck_iview(&c, "count", &o->count, 1) < 0) ||
        ck_iview(&c, "order", &o->order, (size_t)o->slot.n) < 0 ||
        (o->later.buf && ck_iview(&c, "later", &o->later, (size_t)groups) < 0) ||
        (o->mark.buf && (o->per_row < 1 || o->n_pair < 0 ||
                         ck_iview(&c, "mark", &o->mark,
                                  ((size_t)o->n_pair + (size_t)o->per_row - 1) /
                                      (size_t)o->per_row) < 0)) ||
        ck_lviews(&c, "tally", o->tally, o->n_slot * OP_TALLY) < 0)
        return -1;
    return ck_iview(&c, "start", &o->start, (size_t)groups + 1);
}

static int ck_expert_biases(const struct ck *c, const struct op_experts *o, int slot)
{
    const int n[3] = {o->act.cols, o->act.cols, o->y.cols};

    for (int k = 0; k < 3; k++)
        if (o->bias[k] && ck_weight(c, "bias", o->bias[k][slot], WEIGHT_VECTOR, n[k]) < 0)
            return -1;
    return 0;
}

int check_experts(const struct backend *b, const struct op_experts *o, struct err *e)
{
    struct ck c = {b, "experts", e};
    int ff = o->act.cols, tile = o->act.rows, groups = o->n_slot * (o->second ? 2 : 1);

    if (ck_view(&c, "y", &o->y) < 0 || ck_view(&c, "x", &o->x) < 0 ||
        ck_int(&c, "columns", o->x.cols, o->y.cols) < 0 ||
        ck_iview(&c, "order", &o->order, 0) < 0 ||
        ck_iview(&c, "start", &o->start, (size_t)groups + 1) < 0 ||
        (o->tally[0].buf && ck_iview(&c, "later", &o->later, (size_t)groups) < 0) ||
        ck_lviews(&c, "tally", o->tally, o->n_slot * OP_TALLY) < 0 ||
        ck_shape(&c, "act", &o->act, tile, ff) < 0)
        return -1;
    if (o->per_row < 1 || tile < 1 || tile > b->caps.max_rows)
        return err_set(e, ERR_INTERNAL, "experts: %d pairs a row, tiles of %d",
                       o->per_row, tile);
    for (int i = 0; i < o->n_slot; i++)
        if (o->gate[i] &&
            (ck_weight(&c, "gate", o->gate[i], WEIGHT_MATMUL, o->x.cols) < 0 ||
             ck_weight(&c, "up", o->up[i], WEIGHT_MATMUL, o->x.cols) < 0 ||
             ck_weight(&c, "down", o->down[i], WEIGHT_MATMUL, ff) < 0 ||
             ck_expert_biases(&c, o, i) < 0))
            return -1;
    return 0;
}

int check_combine(const struct backend *b, const struct op_combine *o, struct err *e)
{
    struct ck c = {b, "combine", e};
    size_t pairs = (size_t)o->y.rows * (size_t)o->top_k;

    if (ck_view(&c, "y", &o->y) < 0 || ck_view(&c, "x", &o->x) < 0 ||
        ck_int(&c, "columns", o->x.cols, o->y.cols) < 0 ||
        ck_shape(&c, "weights", &o->weights, o->y.rows, o->top_k) < 0)
        return -1;
    if (o->from.buf)
        return ck_iview(&c, "from", &o->from, pairs);
    return ck_int(&c, "rows of x", (size_t)o->x.rows >= pairs, 1);
}

int check_scale_rows(const struct backend *b, const struct op_scale_rows *o,
                     struct err *e)
{
    struct ck c = {b, "scale_rows", e};

    if (ck_view(&c, "y", &o->y) < 0)
        return -1;
    return ck_shape(&c, "gate", &o->gate, o->y.rows, 1);
}

int check_host(const struct backend *b, const struct op_host *o, struct err *e)
{
    if (!o->fn || o->n_buf < 0 || o->n_buf > OP_HOST_BUFS)
        return err_set(e, ERR_INTERNAL, "host: no function, or %d buffers", o->n_buf);
    for (int i = 0; i < o->n_buf; i++) {
        const struct dbuf *d = o->buf[i];

        if (!d || d->b != b)
            return err_set(e, ERR_INTERNAL, "host: buffer %d is none of this backend", i);
        if (o->off[i] > d->bytes || o->bytes[i] > d->bytes - o->off[i])
            return err_set(e, ERR_INTERNAL, "host: %zu bytes at %zu of a buffer of %zu",
                           o->bytes[i], o->off[i], d->bytes);
    }
    return 0;
}

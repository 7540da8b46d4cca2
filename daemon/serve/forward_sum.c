/* daemon/serve/forward_sum.c - sums over the tp ranks, and sums made as tp ranks make
 * them.
 *
 * A sum over a group is made in halves (kernels/comm.h), and added to the residual when
 * it is whole. So a rank that makes n_piece = as_tp / tp pieces, those that as many
 * members would make, and adds them in halves too, has the bits of a group of as_tp:
 * engines of different tp answer alike. What is cut by columns is what the pieces are cut
 * of: Wo, down, and the squares of norms over all heads. Experts that are cut by tp are
 * not: they have one piece each.
 *
 * f->sum and f->squares have a level for each time that pieces can be halved. */
#include "base/err.h"
#include "daemon/serve/forward_cut.h"
#include "daemon/serve/forward_impl.h"

int forward_levels(const struct forward_dims *d)
{
    int levels = 1;

    for (int n = d->n_piece; n > 1; n = (n + 1) / 2)
        levels++;
    return levels;
}

/* Piece `at` into y. */
typedef int (*piece_fn)(struct forward *f, const void *arg, int at, struct view y,
                        struct err *e);

/* y := pieces first..first+n-1; the next level stands `step` bytes behind. */
static int in_halves(struct forward *f, struct view y, size_t step, int first, int n,
                     piece_fn fn, const void *arg, struct err *e)
{
    struct op_add both = {y, y};

    both.x.off += step;
    if (n == 1)
        return fn(f, arg, first, y, e);
    if (in_halves(f, y, step, first, n / 2, fn, arg, e) < 0 ||
        in_halves(f, both.x, step, first + n / 2, n - n / 2, fn, arg, e) < 0)
        return -1;
    return op_add(f->s, &both, e);
}

/* ---- products ---- */

struct product {
    struct dbuf *x;
    const struct weight *first, *bias;
    struct weight *const *rest;
};

static int product_piece(struct forward *f, const void *arg, int at, struct view y,
                         struct err *e)
{
    const struct product *p = arg;
    const struct weight *w = at ? p->rest[at - 1] : p->first;
    int cols = weight_cols(w);
    const struct op_matmul o = {
        .x = {p->x, (size_t)at * (size_t)cols * sizeof(float), y.rows, cols,
              cols * f->w.d.n_piece},
        .n_out = 1,
        .w = {w},
        .bias = {at ? NULL : p->bias},
        .y = {y},
    };

    return op_matmul(f->s, &o, e);
}

int scatter_sum(struct forward *f, struct dbuf *x, const struct shape *s, bool add,
                struct err *e)
{
    int cols = f->w.info.n_embd, from, n;

    own_rows(f, s->n_rows, &from, &n);
    const struct op_add o = {view_of(x, n, cols), view_from(f->sum, from, n, cols)};
    if (comm_reduce_scatter(f->cfg.part.tp_comm, f->s, (struct comm_at){f->sum, 0},
                            add ? at_row(f->sum, from, cols) : (struct comm_at){x, 0},
                            s->row_elems, e) < 0)
        return -1;
    return add && n ? op_add(f->s, &o, e) : 0;
}

int add_sum(struct forward *f, struct dbuf *x, int rows, const struct shape *sp,
            struct err *e)
{
    int cols = f->w.info.n_embd;
    const struct op_add o = {view_of(x, rows, cols), view_of(f->sum, rows, cols)};

    if (sp)
        return scatter_sum(f, x, sp, true, e);
    if (f->w.d.tp > 1 &&
        comm_all_reduce(f->cfg.part.tp_comm, f->s, (struct comm_at){f->sum, 0},
                        (int64_t)rows * cols, e) < 0)
        return -1;
    return rows ? op_add(f->s, &o, e) : 0;
}

int close_pair(struct forward *f, struct dbuf *x, struct dbuf *y, int rows,
               const struct forward_layer *l, int sum, const struct shape *sp,
               struct err *e)
{
    static const enum model_role role[N_SUMS] = {ROLE_O, ROLE_DOWN};
    int cols = f->w.info.n_embd, n = f->w.d.n_piece;
    const struct product p = {y, l->w[role[sum]], sum == SUM_O ? l->w[ROLE_O_BIAS] : NULL,
                              l->pieces[sum]};
    const struct op_matmul alone = {
        .x = view_of(y, rows, weight_cols(p.first)),
        .n_out = 1,
        .w = {p.first},
        .bias = {p.bias},
        .y = {view_of(x, rows, cols)},
        .add = true,
    };
    size_t step = (size_t)f->sum_rows * (size_t)cols * sizeof(float);

    if (f->w.d.tp * n == 1)
        return op_matmul(f->s, &alone, e);
    if (in_halves(f, view_of(f->sum, rows, cols), step, 0, n, product_piece, &p, e) < 0)
        return -1;
    return add_sum(f, x, rows, sp, e);
}

/* ---- norms of q and k over the heads of all tp members ---- */

struct heads {
    struct view x[2];
    int all[2];
};

/* A KV head that stands on several members counts by its share on each. */
static int squares_piece(struct forward *f, const void *arg, int at, struct view y,
                         struct err *e)
{
    const struct heads *h = arg;
    const struct forward_dims *d = &f->w.d;
    int as = d->tp * d->n_piece, n_kv = max_int(f->w.info.n_kv_head / as, 1);
    int kv = (int)((int64_t)f->w.info.n_kv_head * (d->tp_at * d->n_piece + at) / as);
    const struct run part[2] = {
        {d->q_dim / d->n_piece * at, d->q_dim / d->n_piece},
        {(kv - d->kv_from) * f->w.info.head_dim, n_kv * f->w.info.head_dim}};

    for (int j = 0; j < 2; j++) {
        struct op_squares o = {
            .y = {y.buf, y.off + (size_t)j * sizeof(float), y.rows, 1, 2},
            .x = h->x[j],
            .weigh = (float)h->all[j] / (float)(part[j].n * as)};
        o.x.off += (size_t)part[j].from * sizeof(float);
        o.x.cols = part[j].n;
        if (op_squares(f->s, &o, e) < 0)
            return -1;
    }
    return 0;
}

int norm_heads(struct forward *f, const struct forward_layer *l, int rows, struct err *e)
{
    const struct model_info *i = &f->w.info;
    const struct forward_dims *d = &f->w.d;
    const struct weight *w[2] = {l->w[ROLE_Q_NORM], l->w[ROLE_K_NORM]};
    const struct heads h = {
        {view_of(f->q, rows, d->q_dim), view_of(f->k, rows, d->kv_dim)},
        {i->n_head * i->head_dim, i->n_kv_head * i->head_dim}};
    size_t step = (size_t)f->cfg.max_rows * 2 * sizeof(float);

    if (!i->qk_norm_full || !rows)
        return 0;
    if (d->tp * d->n_piece == 1)
        return run_norm(f, h.x[0], h.x[0], w[0], e) < 0
                   ? -1
                   : run_norm(f, h.x[1], h.x[1], w[1], e);
    if (in_halves(f, view_of(f->squares, rows, 2), step, 0, d->n_piece, squares_piece, &h,
                  e) < 0 ||
        (d->tp > 1 &&
         comm_all_reduce(f->cfg.part.tp_comm, f->s, (struct comm_at){f->squares, 0},
                         (int64_t)rows * 2, e) < 0))
        return -1;
    for (int j = 0; j < 2; j++) {
        const struct op_norm_by o = {
            .y = h.x[j],
            .x = h.x[j],
            .sums = {f->squares, (size_t)j * sizeof(float), rows, 1, 2},
            .w = w[j],
            .n = h.all[j],
            .eps = i->norm_eps};
        if (op_norm_by(f->s, &o, e) < 0)
            return -1;
    }
    return 0;
}

/* daemon/serve/forward_moe.c - a layer of experts: route, go to the experts, combine.
 *
 * Experts here (ep 1): the pairs (row, choice) are grouped by expert, each expert's rows
 * go through its FFN, and the k results of a row are summed in order of its choices. With
 * tp every rank has a part of each expert's width and the sum is completed over the
 * group, as in a plain FFN.
 *
 * Experts apart (ep = tp x cp x adp): each rank has its own rows (all ranks know all rows
 * when sp is off, so each takes its share). Pairs travel to the rank that their expert
 * stands on and their results come back in the same order, unreduced: they are summed at
 * home in order of the choices. So a row's result is the same to the bit wherever its
 * experts stand and whatever else is in the batch. Rows may go in chunks: while the
 * experts work on one, the next is on its way to them and the last on its way home. Where
 * the copies of an expert stand says a table on the device, one a layer, and which of
 * them a pair goes to op_spread. Where all ranks have all rows and the ranks' loads
 * decide, every rank routes all of them and comes to the answer that the others come to;
 * else each decides for its own. Shared experts run at home on the rank's own rows.
 *
 * Apart and cut (ep = cp x adp, tp > 1): as above, among the ranks with the same part of
 * every expert's width, and a sum over tp at home. */
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/forward_moe.h"
#include "daemon/serve/step.h"
#include "topo/formula.h"

/* Rows of a rank that make a chunk worth its while. */
enum { CHUNK_ROWS = 4 };

/* ---- life ---- */

static int take(struct moe_ints *a, int n)
{
    int at = (a->len + 15) & ~15;

    a->len = at + n;
    return at;
}

static void lay_out(struct forward_moe *m, const struct forward *f)
{
    const struct model_moe *x = &f->w.info.moe;
    int ep = f->cfg.part.ep, known = m->max_known * x->top_k;
    struct moe_ints *a = &m->at;

    a->ids = take(a, known);
    a->to = take(a, known);
    a->to_slot = take(a, known);
    a->slot = take(a, m->max_pairs);
    a->pos = take(a, max_int(m->max_pairs, known));
    a->from = take(a, m->max_pairs);
    a->got = take(a, m->max_here);
    a->order = take(a, m->max_here);
    a->start = take(a, 2 * max_int(f->w.d.n_slot, x->n_expert) + 1);
    a->send = take(a, ep * FORWARD_CHUNKS_MAX);
    a->recv = take(a, ep * FORWARD_CHUNKS_MAX);
    a->back = take(a, ep * FORWARD_CHUNKS_MAX);
    a->host = take(a, ep);
    a->spread = take(a, op_spread_scratch(x->n_expert, ep, m->n_copies));
    a->table = take(a, m->table_len * m->n_layer);
}

static int new_floats(struct forward *f, struct dbuf **ret, int rows, int cols,
                      struct err *e)
{
    size_t n;

    if (size_mul((size_t)rows, (size_t)cols, &n) < 0 ||
        size_mul(n, sizeof(float), &n) < 0)
        return err_set(e, ERR_TOOBIG, "a buffer of %d x %d is too large", rows, cols);
    return n ? dbuf_new(f->b, n, ret, e) : 0;
}

static int new_buffers(struct forward *f, struct forward_moe *m, struct err *e)
{
    const struct model_moe *x = &f->w.info.moe;
    int embd = f->w.info.n_embd;
    bool ep = f->cfg.part.ep > 1;
    const struct {
        struct dbuf **at;
        int rows, cols;
    } bufs[] = {
        {&m->logits, m->max_known, x->n_expert},
        {&m->weights, m->max_known, x->top_k},
        {&m->out, ep ? m->max_pairs : 0, embd},
        {&m->in, ep ? m->max_here : 0, embd},
        {&m->done, m->max_here, embd},
        {&m->back, ep ? m->max_pairs : 0, embd},
        {&m->act, f->cfg.max_rows, f->w.d.n_ff_expert},
        {&m->gate, x->shared_gate ? m->max_home : 0, 1},
        {&m->extra, x->shared_gate ? m->max_home : 0, embd},
    };

    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        if (new_floats(f, bufs[i].at, bufs[i].rows, bufs[i].cols, e) < 0)
            return -1;
    return dbuf_new(f->b, (size_t)m->at.len * sizeof(int32_t), &m->ints, e);
}

static int new_wire(struct forward *f, struct forward_moe *m, struct err *e)
{
    size_t row = op_pack8_bytes(f->w.info.n_embd);
    const int rows[4] = {m->max_pairs, m->max_here, m->max_here, m->max_pairs};

    if (f->cfg.part.ep == 1 || f->cfg.part.experts.transfer == TRANSFER_F32)
        return 0;
    for (int i = 0; i < 4; i++)
        if (dbuf_new(f->b, row * (size_t)rows[i], &m->wire[i], e) < 0)
            return -1;
    return 0;
}

static void settle_sizes(struct forward *f, struct forward_moe *m)
{
    const struct model_moe *x = &f->w.info.moe;
    int ep = f->cfg.part.ep, rows = f->cfg.max_rows;
    bool all =
        f->cfg.part.experts.routing == SPREAD_LEAST_LOADED && forward_rows_known(f);

    /* with cp_u a group's rows are shared; all outputs may be one rank's */
    int home = max_int((rows + f->w.d.cp_u - 1) / f->w.d.cp_u, f->cfg.max_outs);

    m->max_home = f->w.d.etp > 1 ? home : (home + f->w.d.tp - 1) / f->w.d.tp;
    m->max_known = all ? rows : m->max_home;
    m->max_pairs = m->max_home * x->top_k;
    m->per_row = ep > 1 ? min_int(x->top_k, f->w.d.n_slot) : x->top_k;
    m->max_here = rows * m->per_row; /* the worst skew: all that slots are for */
    m->first_layer = moe_before(&f->w.info, f->w.d.first_layer);
    m->n_layer =
        moe_before(&f->w.info, f->w.d.first_layer + f->w.d.n_layer) - m->first_layer;
    m->n_copies = ep * f->w.d.n_slot;
    m->table_len = x->n_expert + 1 + 3 * m->n_copies;
}

int forward_moe_new(struct forward *f, struct err *e)
{
    const struct model_moe *x = &f->w.info.moe;
    struct forward_moe *m;

    if (!x->n_expert)
        return 0;
    m = f->moe = xcalloc(1, sizeof(*m));
    if ((int64_t)f->cfg.max_rows * x->top_k > INT32_MAX / 4)
        return err_set(e, ERR_TOOBIG, "%d rows of %d experts each", f->cfg.max_rows,
                       x->top_k);
    settle_sizes(f, m);
    if ((int64_t)m->table_len * m->n_layer > INT32_MAX / 16)
        return err_set(e, ERR_TOOBIG, "tables of %d slots for %d layers", m->n_copies,
                       m->n_layer);
    lay_out(m, f);
    m->table = xcalloc((size_t)m->table_len, sizeof(int32_t));
    if (new_buffers(f, m, e) < 0 || new_wire(f, m, e) < 0 || forward_tally_new(f, e) < 0)
        return -1;
    return forward_routes_new(f, e);
}

void forward_moe_begin(struct forward *f, const struct step *st)
{
    if (!f->moe)
        return;
    f->moe->phase = (uint32_t)st->number * 0x9e3779b9u;
    forward_tally_begin(f, st);
}

void forward_moe_free(struct forward *f)
{
    struct forward_moe *m = f->moe;

    if (!m)
        return;
    struct dbuf *bufs[] = {m->ints,    m->logits,  m->weights, m->out,    m->in,
                           m->done,    m->back,    m->act,     m->gate,   m->extra,
                           m->wire[0], m->wire[1], m->wire[2], m->wire[3]};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        dbuf_free(bufs[i]);
    forward_tally_free(f);
    free(m->table);
    free(m);
}

/* ---- pieces ---- */

static int watched(const struct op_host *o, void *const *mem, struct err *e)
{
    const struct forward *f = (const struct forward *)(uintptr_t)o->arg[0];
    const struct model_moe *x = &f->w.info.moe;
    const struct forward_choice c = {.layer = (int)o->arg[1],
                                     .n_row = (int)o->arg[2],
                                     .n_embd = f->w.info.n_embd,
                                     .n_expert = x->n_expert,
                                     .top_k = x->top_k,
                                     .x = mem[0],
                                     .logits = mem[1],
                                     .ids = mem[2],
                                     .weights = mem[3]};

    (void)e;
    f->cfg.watch(f->cfg.watch_arg, &c);
    return 0;
}

/* Show the rows' choices to who watches. */
static int watch(struct forward *f, const struct forward_layer *l, struct view h,
                 const struct op_route *r, struct err *e)
{
    const size_t rows = (size_t)h.rows, pairs = rows * (size_t)r->top_k * 4;
    int layer = (int)(l - f->w.layers) + f->w.d.first_layer;
    const struct op_host o = {.fn = watched,
                              .arg = {(uintptr_t)f, (uint64_t)layer, (uint64_t)h.rows},
                              .n_buf = 4,
                              .buf = {h.buf, r->logits.buf, r->ids.buf, r->weights.buf},
                              .off = {h.off, r->logits.off, r->ids.off, r->weights.off},
                              .bytes = {rows * (size_t)h.cols * 4,
                                        rows * (size_t)r->logits.cols * 4, pairs, pairs}};

    return f->cfg.watch && h.rows ? op_host(f->s, &o, e) : 0;
}

/* The choices of rows first.. of h. */
static int route(struct forward *f, const struct forward_layer *l, struct view h,
                 struct err *e)
{
    const struct model_moe *x = &f->w.info.moe;
    static const enum route_score scores[] = {[MOE_SOFTMAX] = ROUTE_SOFTMAX,
                                              [MOE_SIGMOID] = ROUTE_SIGMOID,
                                              [MOE_CHOSEN] = ROUTE_CHOSEN};
    struct forward_moe *m = f->moe;
    const struct op_matmul score = {.x = h,
                                    .n_out = 1,
                                    .w = {l->w[ROLE_ROUTER]},
                                    .bias = {l->w[ROLE_ROUTER_BIAS]},
                                    .y = {view_of(m->logits, h.rows, x->n_expert)}};
    const struct op_route o = {.logits = score.y[0],
                               .score = scores[x->score],
                               .normalise = x->normalise,
                               .scale = x->scale,
                               .top_k = x->top_k,
                               .n_group = x->n_group,
                               .top_group = x->top_group,
                               .bias = l->w[ROLE_CHOICE_BIAS],
                               .ids = moe_ints_of(f, m->at.ids, h.rows * x->top_k),
                               .weights = view_of(m->weights, h.rows, x->top_k)};

    const struct lview lost = forward_tally_lost(f, l);
    const struct op_capacity less = {.route = o,
                                     .cap = m->cap_known,
                                     .drop =
                                         f->cfg.part.experts.overflow == OVERFLOW_DROP,
                                     .count = moe_ints_of(f, m->at.spread, x->n_expert),
                                     .pos = moe_ints_of(f, m->at.pos, h.rows * x->top_k),
                                     .lost = {lost.buf, lost.off + 8, 2}};

    if (op_matmul(f->s, &score, e) < 0 || op_route(f->s, &o, e) < 0)
        return -1;
    if (moe_takes_away(f) && h.rows && op_capacity(f->s, &less, e) < 0)
        return -1;
    return watch(f, l, h, &o, e);
}

static bool second_pass(const struct forward *f)
{
    return f->moe->cap && f->cfg.part.experts.overflow == OVERFLOW_SECOND_PASS;
}

/* Pairs that an expert takes among n rows. */
static int capacity_of(const struct forward *f, int n)
{
    const struct model_moe *x = &f->w.info.moe;
    double c = f->cfg.part.experts.capacity;
    int64_t cap = c > 0 ? formula_capacity(c, n, x->top_k, x->n_expert) : 0;

    return cap > INT32_MAX ? INT32_MAX : (int)(c > 0 && cap < 1 ? 1 : cap);
}

/* done[base + p] := expert(x[p / per_row]) for pairs in groups. */
static int experts(struct forward *f, const struct forward_layer *l, struct view x,
                   int base, int pairs, int per_row, int n_slot, struct err *e)
{
    struct forward_moe *m = f->moe;
    int embd = f->w.info.n_embd;
    const struct op_experts o = {
        .y = view_from(m->done, base, pairs, embd),
        .x = x,
        .per_row = per_row,
        .n_slot = n_slot,
        .second = second_pass(f),
        .order = moe_ints_of(f, m->at.order, pairs),
        .start = moe_ints_of(f, m->at.start, 2 * n_slot + 1),
        .tally = forward_tally_slots(f, l),
        .gate = l->experts[0],
        .up = l->experts[1],
        .down = l->experts[2],
        .bias = {l->experts[3], l->experts[4], l->experts[5]},
        .limit = f->w.info.moe.limit,
        .act = view_of(m->act, f->cfg.max_rows, f->w.d.n_ff_expert),
    };

    return op_experts(f->s, &o, e);
}

/* y (+)= the shared experts of rows h. */
static int shared(struct forward *f, const struct forward_layer *l, struct view y,
                  struct view h, struct err *e)
{
    const struct model_moe *x = &f->w.info.moe;
    struct forward_moe *m = f->moe;
    const struct op_glu glu = {.y = view_of(f->act, h.rows, f->w.d.n_ff_shared),
                               .x = h,
                               .gate = l->w[ROLE_SH_GATE],
                               .up = l->w[ROLE_SH_UP]};

    if (!x->n_ff_shared || !h.rows)
        return 0;
    if (op_glu(f->s, &glu, e) < 0)
        return -1;
    if (!x->shared_gate)
        return product(f, y, f->act, l->w[ROLE_SH_DOWN], true, e);
    struct view extra = view_of(m->extra, h.rows, y.cols);
    const struct op_matmul score = {.x = h,
                                    .n_out = 1,
                                    .w = {l->w[ROLE_SH_ROUTER]},
                                    .y = {view_of(m->gate, h.rows, 1)}};
    const struct op_scale_rows scale = {extra, score.y[0]};
    const struct op_add add = {y, extra};
    if (product(f, extra, f->act, l->w[ROLE_SH_DOWN], false, e) < 0 ||
        op_matmul(f->s, &score, e) < 0 || op_scale_rows(f->s, &scale, e) < 0)
        return -1;
    return op_add(f->s, &add, e);
}

/* y (+)= the results of pairs first.. of x, in order or, if they were sent, as they came.
 */
static int combine(struct forward *f, struct view y, struct view x, int first, bool sent,
                   bool add, struct err *e)
{
    int k = f->w.info.moe.top_k;
    struct forward_moe *m = f->moe;
    struct op_combine o = {.y = y,
                           .x = x,
                           .weights =
                               view_from(m->weights, m->own + first / k, y.rows, k),
                           .top_k = k,
                           .add = add};

    if (sent || moe_takes_away(f))
        o.from = moe_ints_of(f, m->at.pos + first, x.rows);
    return op_combine(f->s, &o, e);
}

/* The tp ranks' sums in x, to which member 0 added them, or (sp) in f->sum. */
static int close_sum(struct forward *f, struct dbuf *x, int rows, const struct shape *sp,
                     struct err *e)
{
    if (sp)
        return scatter_sum(f, x, sp, true, e);
    if (f->w.d.tp == 1)
        return 0;
    return comm_all_reduce(f->cfg.part.tp_comm, f->s, (struct comm_at){x, 0},
                           (int64_t)rows * f->w.info.n_embd, e);
}

/* ---- experts here ---- */

static int run_here(struct forward *f, const struct forward_layer *l, struct dbuf *x,
                    int rows, const struct shape *sp, struct err *e)
{
    int cols = f->w.info.n_embd, n = f->w.info.moe.n_expert;
    int pairs = rows * f->w.info.moe.top_k;
    struct forward_moe *m = f->moe;
    struct view h = view_of(f->h, rows, cols), y = view_of(sp ? f->sum : x, rows, cols);
    m->cap = m->cap_known = capacity_of(f, rows);
    const struct op_group group = {.n_slot = n,
                                   .n_pair = pairs,
                                   .slot = moe_ints_of(f, m->at.ids, pairs),
                                   .order = moe_ints_of(f, m->at.order, pairs),
                                   .cap = m->cap,
                                   .second = second_pass(f),
                                   .start = moe_ints_of(f, m->at.start, 2 * n + 1),
                                   .tally = forward_tally_slots(f, l)};

    if (norm_all(f, x, rows, l->w[ROLE_FFN_NORM], sp, e) < 0 || route(f, l, h, e) < 0 ||
        op_group(f->s, &group, e) < 0 ||
        experts(f, l, h, 0, pairs, f->w.info.moe.top_k, n, e) < 0 ||
        combine(f, y, view_of(m->done, pairs, cols), 0, false, !sp && f->w.d.tp_at == 0,
                e) < 0 ||
        shared(f, l, y, h, e) < 0)
        return -1;
    return close_sum(f, x, rows, sp, e);
}

/* ---- experts apart ---- */

/* A group's rows that a tp rank sends to experts: its share, or all of them where every
 * expert is cut by tp and stands on as many ranks. */
static int home_rows(const struct forward *f, int rows, int tp_at, int *ret_from)
{
    int64_t from = 0, to = rows;

    if (f->w.d.etp == 1)
        comm_shard(rows, f->w.d.tp, tp_at, &from, &to);
    *ret_from = (int)from;
    return (int)(to - from);
}

/* A chunk: pairs first..first+n of mine; those of all ranks begin at base of what may
 * arrive, at most `most`. */
struct chunk {
    int at, first, n, base, most;
};

/* The first and the last are half as long: nothing covers the way of the one to the
 * experts and of the other home. */
static int chunk_row(int rows, int n_chunks, int at)
{
    if (at == 0 || at == n_chunks)
        return at ? rows : 0;
    return (int)((int64_t)rows * (2 * at - 1) / (2 * n_chunks - 2));
}

static int count_chunks(const struct forward *f, int rows)
{
    int n = min_int(max_int(f->cfg.part.chunks, 1), FORWARD_CHUNKS_MAX);
    int all = f->now_rows ? 0 : rows;

    if (f->cp || second_pass(f)) /* others may have any number of rows; one first pass */
        return 1;
    for (int g = 0; f->now_rows && g < f->cfg.part.adp; g++)
        all += f->now_rows[g];
    return all / f->cfg.part.ep < n * CHUNK_ROWS ? 1 : n;
}

static struct chunk chunk_of(const struct forward *f, int rows, int n_chunks, int at)
{
    int k = f->w.info.moe.top_k, ep = f->cfg.part.ep;
    struct chunk c = {.at = at};

    int per_group = f->w.d.tp / f->w.d.etp, from;

    if (f->cp) {
        c.n = home_rows(f, rows, f->w.d.tp_at, &from) * k;
        c.most = f->moe->max_here;
        return c;
    }
    for (int r = 0; r < ep; r++) {
        int all = f->now_rows ? f->now_rows[r / per_group] : rows;
        int n = home_rows(f, all, r % per_group, &from);
        int first = chunk_row(n, n_chunks, at);
        int len = chunk_row(n, n_chunks, at + 1) - first;
        c.base += first * f->moe->per_row;
        c.most += len * f->moe->per_row;
        if (r == f->cfg.part.ep_at) {
            c.first = first * k;
            c.n = len * k;
        }
    }
    return c;
}

static struct comm_at wire_row(const struct forward *f, int i, int row)
{
    return (struct comm_at){f->moe->wire[i],
                            (size_t)row * op_pack8_bytes(f->w.info.n_embd)};
}

static struct comm_a2a way_out(const struct forward *f, const struct chunk *c)
{
    struct forward_moe *m = f->moe;
    int cols = f->w.info.n_embd, ep = f->cfg.part.ep;
    bool w = m->wire[0];

    return (struct comm_a2a){
        .x = w ? wire_row(f, 0, c->first) : at_row(m->out, c->first, cols),
        .y = w ? wire_row(f, 1, c->base) : at_row(m->in, c->base, cols),
        .send = moe_ints_at(f, m->at.send + c->at * ep),
        .recv = moe_ints_at(f, m->at.recv + c->at * ep),
        .row_bytes = (int64_t)(w ? op_pack8_bytes(cols) : (size_t)cols * sizeof(float)),
        .max_recv = c->most,
        .tag = moe_ints_at(f, m->at.slot + c->first),
        .tag_y = moe_ints_at(f, m->at.got + c->base),
        .same = moe_ints_at(f, m->at.from + c->first),
    };
}

static struct comm_a2a way_home(const struct forward *f, const struct chunk *c)
{
    struct forward_moe *m = f->moe;
    int cols = f->w.info.n_embd, ep = f->cfg.part.ep;
    bool w = m->wire[0];

    return (struct comm_a2a){
        .x = w ? wire_row(f, 2, c->base) : at_row(m->done, c->base, cols),
        .y = w ? wire_row(f, 3, c->first) : at_row(m->back, c->first, cols),
        .send = moe_ints_at(f, m->at.recv + c->at * ep),
        .recv = moe_ints_at(f, m->at.back + c->at * ep),
        .row_bytes = (int64_t)(w ? op_pack8_bytes(cols) : (size_t)cols * sizeof(float)),
        .max_recv = c->n,
    };
}

/* Where rows travel packed: n rows at most from row `at` of x into wire i, or out of it;
 * count: the members' numbers of them. */
static int pack(struct forward *f, struct dbuf *x, int i, int at, int n, int count,
                struct err *e)
{
    const struct comm_at to = wire_row(f, i, at);
    const struct op_pack8 o = {view_from(x, at, n, f->w.info.n_embd), to.buf, to.off,
                               moe_ints_of(f, count, f->cfg.part.ep)};

    return f->moe->wire[0] && n ? op_pack8(f->s, &o, e) : 0;
}

static int unpack(struct forward *f, struct dbuf *y, int i, int at, int n, int count,
                  struct err *e)
{
    const struct comm_at from = wire_row(f, i, at);
    const struct op_unpack8 o = {view_from(y, at, n, f->w.info.n_embd), from.buf,
                                 from.off, moe_ints_of(f, count, f->cfg.part.ep)};

    return f->moe->wire[0] && n ? op_unpack8(f->s, &o, e) : 0;
}

static int send_out(struct forward *f, const struct forward_layer *l, struct view h,
                    const struct chunk *c, struct err *e)
{
    struct forward_moe *m = f->moe;
    int ep = f->cfg.part.ep, k = f->w.info.moe.top_k, cols = h.cols;
    const struct op_dispatch dispatch = {
        .x = view_from(h.buf, m->own + c->first / k, c->n / k, cols),
        .out = view_from(m->out, c->first, c->n, cols),
        .top_k = k,
        .n_rank = ep,
        .to = moe_ints_of(f, m->at.to + m->own * k + c->first, c->n),
        .to_slot = moe_ints_of(f, m->at.to_slot + m->own * k + c->first, c->n),
        .slot = moe_ints_of(f, m->at.slot + c->first, c->n),
        .pos = moe_ints_of(f, m->at.pos + c->first, c->n),
        .send = moe_ints_of(f, m->at.send + c->at * ep, ep),
        .from = moe_ints_of(f, m->at.from + c->first, c->n),
    };
    const struct comm_a2a a = way_out(f, c);

    if (op_dispatch(f->s, &dispatch, e) < 0 ||
        pack(f, m->out, 0, c->first, c->n, m->at.send + c->at * ep, e) < 0 ||
        comm_all_to_all_start(f->cfg.part.ep_comm, f->s, &a, e) < 0)
        return -1;
    return forward_tally_mark(f, l, false, e);
}

/* What came of a chunk through my experts, and off again. */
static int work(struct forward *f, const struct forward_layer *l, const struct chunk *c,
                struct err *e)
{
    struct forward_moe *m = f->moe;
    struct comm *comm = f->cfg.part.ep_comm;
    const struct comm_a2a out = way_out(f, c), home = way_home(f, c);
    int n_slot = f->w.d.n_slot, ep = f->cfg.part.ep;
    const struct op_group group = {
        .n_slot = n_slot,
        .n_pair = -1,
        .cap = m->cap,
        .second = second_pass(f),
        .slot = moe_ints_of(f, m->at.got + c->base, c->most),
        .count = moe_ints_of(f, m->at.recv + c->at * f->cfg.part.ep, f->cfg.part.ep),
        .order = moe_ints_of(f, m->at.order, c->most),
        .start = moe_ints_of(f, m->at.start, 2 * n_slot + 1),
        .tally = forward_tally_slots(f, l)};

    if (comm_all_to_all_finish(comm, f->s, &out, e) < 0 ||
        forward_tally_mark(f, l, false, e) < 0 ||
        unpack(f, m->in, 1, c->base, c->most, m->at.recv + c->at * ep, e) < 0 ||
        op_group(f->s, &group, e) < 0 ||
        experts(f, l, view_from(m->in, c->base, c->most, f->w.info.n_embd), c->base,
                c->most, 1, n_slot, e) < 0 ||
        pack(f, m->done, 2, c->base, c->most, m->at.recv + c->at * ep, e) < 0)
        return -1;
    return comm_all_to_all_start(comm, f->s, &home, e) < 0
               ? -1
               : forward_tally_mark(f, l, true, e);
}

/* y (+)= what the experts made of my rows h. */
static int travel(struct forward *f, const struct forward_layer *l, struct view y,
                  struct view h, int rows, bool add, struct err *e)
{
    int n = count_chunks(f, rows), k = f->w.info.moe.top_k;
    struct chunk c[FORWARD_CHUNKS_MAX];

    for (int i = 0; i < n; i++)
        c[i] = chunk_of(f, rows, n, i);
    for (int i = 0; i < n && i < 2; i++)
        if (send_out(f, l, h, &c[i], e) < 0)
            return -1;
    for (int i = 0; i <= n; i++) {
        if (i < n && work(f, l, &c[i], e) < 0)
            return -1;
        if (i > 0) {
            const struct chunk *last = &c[i - 1];
            const struct comm_a2a home = way_home(f, last);
            struct view to = y;

            to.off += (size_t)(last->first / k * y.cols) * sizeof(float);
            to.rows = last->n / k;
            if (comm_all_to_all_finish(f->cfg.part.ep_comm, f->s, &home, e) < 0 ||
                forward_tally_mark(f, l, true, e) < 0 ||
                unpack(f, f->moe->back, 3, last->first, last->n,
                       f->moe->at.back + last->at * f->cfg.part.ep, e) < 0 ||
                combine(f, to, view_from(f->moe->back, last->first, last->n, y.cols),
                        last->first, true, add, e) < 0)
                return -1;
        }
        if (i + 2 < n && send_out(f, l, h, &c[i + 2], e) < 0)
            return -1;
    }
    return 0;
}

/* x += what f->sum holds: my rows of it, or, when x has all rows, those of all members.
 */
static int bring_home(struct forward *f, struct dbuf *x, int rows, int from, int n,
                      const struct shape *sp, const int64_t *row_bytes, struct err *e)
{
    int cols = f->w.info.n_embd;
    const struct op_add own = {view_of(x, n, cols), view_from(f->sum, from, n, cols)};
    const struct op_add all = {view_of(x, rows, cols), view_of(f->sum, rows, cols)};

    if (sp || f->w.d.tp == 1)
        return n ? op_add(f->s, &own, e) : 0;
    if (!rows) /* of other cp ranks or groups only */
        return 0;
    if (comm_all_gather(f->cfg.part.tp_comm, f->s, at_row(f->sum, from, cols),
                        (struct comm_at){f->sum, 0}, row_bytes, e) < 0)
        return -1;
    return op_add(f->s, &all, e);
}

/* Rows of all ranks in a run; where nobody knows, as many of each as here. */
static int all_rows(const struct forward *f, int rows)
{
    int n = f->now_rows ? 0 : rows * (f->cp ? f->cfg.part.cp * f->cfg.part.cp_u : 1);

    for (int g = 0; f->now_rows && g < f->cfg.part.adp; g++)
        n += f->now_rows[g];
    return n;
}

/* For a run of so many rows of mine, of which so many are routed here. */
static void set_capacity(struct forward *f, int rows, int known)
{
    f->moe->cap = capacity_of(f, all_rows(f, rows));
    f->moe->cap_known = capacity_of(f, known);
}

static int run_apart(struct forward *f, const struct forward_layer *l, struct dbuf *x,
                     int rows, const struct shape *sp, const int64_t *row_bytes,
                     struct err *e)
{
    int cols = f->w.info.n_embd, from, n = home_rows(f, rows, f->w.d.tp_at, &from);
    bool all = moe_routes_all(f->moe);
    int known = all ? rows : n; /* rows that are routed here */
    struct view h = view_of(f->h, known, cols), y = view_from(f->sum, from, n, cols);
    struct view mine = sp || all ? view_of(x, known, cols) : view_from(x, from, n, cols);

    f->moe->own = all ? from : 0;
    set_capacity(f, rows, known);
    if (run_norm(f, h, mine, l->w[ROLE_FFN_NORM], e) < 0 || route(f, l, h, e) < 0 ||
        forward_spread(f, l, known, e) < 0 || travel(f, l, y, h, rows, false, e) < 0 ||
        shared(f, l, y, view_from(f->h, f->moe->own, n, cols), e) < 0)
        return -1;
    return bring_home(f, x, rows, from, n, sp, row_bytes, e);
}

/* Experts apart over the groups and cut by tp in each: all tp ranks of a group send all
 * of its rows, each to its own part of the experts, and sum up what comes home. */
static int run_cut(struct forward *f, const struct forward_layer *l, struct dbuf *x,
                   int rows, const struct shape *sp, struct err *e)
{
    int cols = f->w.info.n_embd;
    struct view h = view_of(f->h, rows, cols), y = view_of(sp ? f->sum : x, rows, cols);

    f->moe->own = 0;
    set_capacity(f, rows, rows);
    if ((rows && norm_all(f, x, rows, l->w[ROLE_FFN_NORM], sp, e) < 0) ||
        route(f, l, h, e) < 0 || forward_spread(f, l, rows, e) < 0 ||
        travel(f, l, y, h, rows, !sp && f->w.d.tp_at == 0, e) < 0 ||
        shared(f, l, y, h, e) < 0)
        return -1;
    return rows ? close_sum(f, x, rows, sp, e) : 0;
}

int forward_moe_run(struct forward *f, const struct forward_layer *l, struct dbuf *x,
                    int rows, const struct shape *sp, const int64_t *row_bytes,
                    struct err *e)
{
    if (f->cfg.part.ep == 1)
        return run_here(f, l, x, rows, sp, e);
    return f->w.d.etp > 1 ? run_cut(f, l, x, rows, sp, e)
                          : run_apart(f, l, x, rows, sp, row_bytes, e);
}

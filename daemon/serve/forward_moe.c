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
 * home in order of the choices (forward_travel.c). So a row's result is the same to the
 * bit wherever its experts stand and whatever else is in the batch. Where the copies of
 * an expert stand says a table on the device, one a layer, and which of them a pair goes
 * to op_spread. Where all ranks have all rows and the ranks' loads decide, every rank
 * routes all of them and comes to the answer that the others come to; else each decides
 * for its own. Shared experts run at home on the rank's own rows.
 *
 * Apart and cut (ep = cp x adp, tp > 1): as above, among the ranks with the same part of
 * every expert's width, and a sum over tp at home. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/forward_moe.h"
#include "daemon/serve/step.h"
#include "topo/formula.h"

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
    a->later = take(a, 2 * max_int(f->w.d.n_slot, x->n_expert));
    a->noted = take(a, f->cfg.max_items);
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
    m->noted = xcalloc((size_t)f->cfg.max_items, sizeof(*m->noted));
    if (new_buffers(f, m, e) < 0 || new_wire(f, m, e) < 0 || forward_tally_new(f, e) < 0)
        return -1;
    return forward_routes_new(f, e);
}

int forward_moe_begin(struct forward *f, const struct step *st, struct err *e)
{
    struct forward_moe *m = f->moe;
    size_t bytes = (size_t)f->cfg.max_items * sizeof(*m->noted);

    if (!m)
        return 0;
    m->phase = (uint32_t)st->number * 0x9e3779b9u;
    forward_tally_begin(f, st);
    if (!moe_alters(f))
        return 0;
    memset(m->noted, 0, bytes);
    return stream_upload(f->s, m->ints, (size_t)m->at.noted * 4, m->noted, bytes, e);
}

int forward_altered(struct forward *f, const int32_t **ret, struct err *e)
{
    struct forward_moe *m = f->moe;
    size_t bytes = (size_t)f->cfg.max_items * sizeof(*m->noted);

    *ret = NULL;
    if (!m || !moe_alters(f))
        return 0;
    if (stream_download(f->s, m->noted, m->ints, (size_t)m->at.noted * 4, bytes, e) < 0 ||
        stream_sync(f->s, e) < 0)
        return -1;
    *ret = m->noted;
    return 0;
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
    free(m->noted);
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

    const struct lview lost[] = {forward_tally_lost(f, l, 0),
                                 forward_tally_lost(f, l, 1)};
    const struct op_capacity less = {
        .route = o,
        .cap = m->cap_known,
        .drop = f->cfg.part.experts.overflow == OVERFLOW_DROP,
        .count = moe_ints_of(f, m->at.spread, x->n_expert),
        .pos = moe_ints_of(f, m->at.pos, h.rows * x->top_k),
        .who = moe_who(f, 0, h.rows),
        .note = {STEP_ALTERED_NEXT, STEP_ALTERED_DROP},
        .lost = {{lost[0].buf, lost[0].off + 8, 2}, {lost[1].buf, lost[1].off + 8, 2}}};

    if (op_matmul(f->s, &score, e) < 0 || op_route(f->s, &o, e) < 0)
        return -1;
    if (moe_takes_away(f) && h.rows && op_capacity(f->s, &less, e) < 0)
        return -1;
    if (forward_tally_pairs(f, l, &o, e) < 0)
        return -1;
    return watch(f, l, h, &o, e);
}

/* Pairs that an expert takes among n rows. */
static int capacity_of(const struct forward *f, int n)
{
    const struct model_moe *x = &f->w.info.moe;
    double c = f->cfg.part.experts.capacity;
    int64_t cap = c > 0 ? formula_capacity(c, n, x->top_k, x->n_expert) : 0;

    return cap > INT32_MAX ? INT32_MAX : (int)(c > 0 && cap < 1 ? 1 : cap);
}

int moe_experts(struct forward *f, const struct forward_layer *l, struct view x, int base,
                int pairs, int per_row, int n_slot, struct err *e)
{
    struct forward_moe *m = f->moe;
    int embd = f->w.info.n_embd;
    const struct op_experts o = {
        .y = view_from(m->done, base, pairs, embd),
        .x = x,
        .per_row = per_row,
        .n_slot = n_slot,
        .second = moe_second_pass(f),
        .order = moe_ints_of(f, m->at.order, pairs),
        .start = moe_ints_of(f, m->at.start, 2 * n_slot + 1),
        .later = moe_ints_of(f, m->at.later, 2 * n_slot),
        .tally = {forward_tally_slots(f, l, 0), forward_tally_slots(f, l, 1)},
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

int moe_combine(struct forward *f, struct view y, struct view x, int first, bool sent,
                struct err *e)
{
    int k = f->w.info.moe.top_k;
    struct forward_moe *m = f->moe;
    struct op_combine o = {.y = y,
                           .x = x,
                           .weights =
                               view_from(m->weights, m->own + first / k, y.rows, k),
                           .top_k = k};

    if (sent || moe_takes_away(f))
        o.from = moe_ints_of(f, m->at.pos + first, x.rows);
    return op_combine(f->s, &o, e);
}

/* ---- experts here ---- */

static int run_here(struct forward *f, const struct forward_layer *l, struct dbuf *x,
                    int rows, const struct shape *sp, struct err *e)
{
    int cols = f->w.info.n_embd, n = f->w.info.moe.n_expert;
    int pairs = rows * f->w.info.moe.top_k;
    struct forward_moe *m = f->moe;
    struct view h = view_of(f->h, rows, cols), y = view_of(f->sum, rows, cols);
    m->own = 0;
    m->n_own = rows;
    m->cap = m->cap_known = capacity_of(f, rows);
    const struct op_group group = {
        .n_slot = n,
        .n_pair = pairs,
        .slot = moe_ints_of(f, m->at.ids, pairs),
        .order = moe_ints_of(f, m->at.order, pairs),
        .cap = m->cap,
        .second = moe_second_pass(f),
        .start = moe_ints_of(f, m->at.start, 2 * n + 1),
        .later = moe_ints_of(f, m->at.later, 2 * n),
        .mark = iview_of(f, m->of.at, rows),
        .per_row = f->w.info.moe.top_k,
        .tally = {forward_tally_slots(f, l, 0), forward_tally_slots(f, l, 1)}};

    if (norm_all(f, x, rows, l->w[ROLE_FFN_NORM], sp, e) < 0 || route(f, l, h, e) < 0 ||
        forward_tally_here(f, l, false, e) < 0 || op_group(f->s, &group, e) < 0 ||
        moe_experts(f, l, h, 0, pairs, f->w.info.moe.top_k, n, e) < 0 ||
        forward_tally_here(f, l, true, e) < 0 ||
        moe_combine(f, y, view_of(m->done, pairs, cols), 0, false, e) < 0 ||
        shared(f, l, y, h, e) < 0)
        return -1;
    return add_sum(f, x, rows, sp, e);
}

/* ---- experts apart ---- */

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
    int cols = f->w.info.n_embd, from, n = moe_home_rows(f, rows, f->w.d.tp_at, &from);
    bool all = moe_routes_all(f->moe);
    int known = all ? rows : n; /* rows that are routed here */
    struct view h = view_of(f->h, known, cols), y = view_from(f->sum, from, n, cols);
    struct view mine = sp || all ? view_of(x, known, cols) : view_from(x, from, n, cols);

    f->moe->own = all ? from : 0;
    f->moe->n_own = n;
    f->moe->of.at += all ? 0 : from;
    set_capacity(f, rows, known);
    if (run_norm(f, h, mine, l->w[ROLE_FFN_NORM], e) < 0 || route(f, l, h, e) < 0 ||
        forward_spread(f, l, known, e) < 0 || forward_travel(f, l, y, h, rows, e) < 0 ||
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
    struct view h = view_of(f->h, rows, cols), y = view_of(f->sum, rows, cols);

    f->moe->own = 0;
    f->moe->n_own = rows;
    set_capacity(f, rows, rows);
    if ((rows && norm_all(f, x, rows, l->w[ROLE_FFN_NORM], sp, e) < 0) ||
        route(f, l, h, e) < 0 || forward_spread(f, l, rows, e) < 0 ||
        forward_travel(f, l, y, h, rows, e) < 0 || shared(f, l, y, h, e) < 0)
        return -1;
    return rows ? add_sum(f, x, rows, sp, e) : 0;
}

int forward_moe_run(struct forward *f, const struct forward_layer *l, struct dbuf *x,
                    int rows, const struct forward_mark *of, const struct shape *sp,
                    const int64_t *row_bytes, struct err *e)
{
    f->moe->of = *of;
    if (f->cfg.part.ep == 1)
        return run_here(f, l, x, rows, sp, e);
    return f->w.d.etp > 1 ? run_cut(f, l, x, rows, sp, e)
                          : run_apart(f, l, x, rows, sp, row_bytes, e);
}

/* daemon/serve/forward_travel.c - rows go to experts that stand on other ranks, and home.
 *
 * The pairs of a run go in chunks. A chunk's pairs are put in order of the ranks that
 * they go to, sent, grouped by slot there, computed and sent back the same way; while the
 * experts work on one, the next is on its way to them and the last on its way home. Where
 * rows travel packed (FP8) they do so both ways, also those that stay on their rank. */
#include "base/err.h"
#include "daemon/serve/forward_moe.h"
#include "daemon/serve/step.h"

/* Rows of a rank that make a chunk worth its while. */
enum { CHUNK_ROWS = 4 };

int moe_home_rows(const struct forward *f, int rows, int tp_at, int *ret_from)
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

    if (forward_cut_rows(f) ||
        moe_second_pass(f)) /* others may have any number of rows; one first pass */
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

    if (forward_cut_rows(f)) {
        c.n = moe_home_rows(f, rows, f->w.d.tp_at, &from) * k;
        c.most = f->moe->max_here;
        return c;
    }
    for (int r = 0; r < ep; r++) {
        int all = f->now_rows ? f->now_rows[r / per_group] : rows;
        int n = moe_home_rows(f, all, r % per_group, &from);
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
        .who = moe_who(f, m->own + c->first / k, c->n / k),
        .note = m->wire[0] ? STEP_ALTERED_F8 : 0,
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
        .second = moe_second_pass(f),
        .slot = moe_ints_of(f, m->at.got + c->base, c->most),
        .count = moe_ints_of(f, m->at.recv + c->at * f->cfg.part.ep, f->cfg.part.ep),
        .order = moe_ints_of(f, m->at.order, c->most),
        .start = moe_ints_of(f, m->at.start, 2 * n_slot + 1),
        .later = moe_ints_of(f, m->at.later, 2 * n_slot),
        .tally = {forward_tally_slots(f, l, 0), forward_tally_slots(f, l, 1)}};

    if (comm_all_to_all_finish(comm, f->s, &out, e) < 0 ||
        forward_tally_mark(f, l, false, e) < 0 ||
        unpack(f, m->in, 1, c->base, c->most, m->at.recv + c->at * ep, e) < 0 ||
        op_group(f->s, &group, e) < 0 ||
        moe_experts(f, l, view_from(m->in, c->base, c->most, f->w.info.n_embd), c->base,
                    c->most, 1, n_slot, e) < 0 ||
        pack(f, m->done, 2, c->base, c->most, m->at.recv + c->at * ep, e) < 0)
        return -1;
    return comm_all_to_all_start(comm, f->s, &home, e) < 0
               ? -1
               : forward_tally_mark(f, l, true, e);
}

int forward_travel(struct forward *f, const struct forward_layer *l, struct view y,
                   struct view h, int rows, struct err *e)
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
                moe_combine(f, to, view_from(f->moe->back, last->first, last->n, y.cols),
                            last->first, true, e) < 0)
                return -1;
        }
        if (i + 2 < n && send_out(f, l, h, &c[i + 2], e) < 0)
            return -1;
    }
    return 0;
}

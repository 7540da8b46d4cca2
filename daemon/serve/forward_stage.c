/* daemon/serve/forward_stage.c - a step cut into micro-batches, its integers staged.
 *
 * A micro-batch is a run of the step's rows: whole items, and a part of one where a
 * border falls inside it (its later rows find the KV of the earlier ones, since
 * micro-batches run in order). Each has a staging block of its own, so that all are
 * uploaded at once.
 *
 * With adp the rows that are cut are those of the rank's group, into as many
 * micro-batches as the other groups have theirs: k of one meets k of another at the
 * experts. */
#include <assert.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/forward_cp.h"
#include "daemon/serve/forward_impl.h"
#include "daemon/serve/step.h"
#include "kernels/comm.h"

size_t forward_stage_size(const struct forward_cfg *c)
{
    size_t tok = (size_t)forward_block_tok(&c->part);
    size_t blocks = ((size_t)c->max_ctx + tok - 1) / tok, n, plan = 0;

    if (size_mul(blocks, (size_t)c->max_items, &n) < 0 || n > INT32_MAX / 8)
        return 0;
    if (c->part.cp > 1 || c->part.cp_u > 1 || c->part.as_cp > 1)
        plan = forward_cp_stage_size(c, n);
    /* ids, output rows, marks of both, item rows, positions, both sides of copies, 10
     * gaps of alignment */
    n += 4 * (size_t)c->max_rows + 2 * (size_t)(c->max_items + 1) +
         2 * (size_t)c->max_copies + 10 * 16 + plan;
    return n;
}

/* ---- checks ---- */

static int check_item(const struct forward *f, const struct step *st,
                      const struct step_item *it, struct err *e)
{
    int64_t end = (int64_t)it->first_pos + it->n_tok;

    if (it->n_tok < 1 || it->first_pos < 0 || end > f->cfg.max_ctx ||
        (int64_t)it->n_block * forward_block_tok(&f->cfg.part) < end ||
        it->out_from < 0 || it->out_from > it->n_tok)
        return err_set(
            e, ERR_INTERNAL, "step item of sequence %llu: %d tokens at %d with %d blocks",
            (unsigned long long)it->seq, it->n_tok, it->first_pos, it->n_block);
    if (it->parent_off >= 0)
        return err_set(e, ERR_UNSUPPORTED, "a tree of tokens in one item");
    int32_t last = step_blocks(st)[it->block_off + it->n_block - 1];
    if (last < 0 || last >= f->cfg.n_blocks)
        return err_set(e, ERR_INTERNAL, "KV block %d of sequence %llu", last,
                       (unsigned long long)it->seq);
    return 0;
}

/* Its capacities first, so that staging cannot overflow. */
static int check_step(const struct forward *f, const struct step *st, struct err *e)
{
    const struct step_item *items = step_items(st);
    int rows = 0;

    if (st->n_items < 0 || st->n_items > f->cfg.max_items || st->n_copies < 0 ||
        st->n_copies > f->cfg.max_copies)
        return err_set(e, ERR_INTERNAL, "a step of %d items and %d copies", st->n_items,
                       st->n_copies);
    for (int i = 0; i < st->n_items; i++) {
        if (check_item(f, st, &items[i], e) < 0)
            return -1;
        if (items[i].n_tok > f->cfg.max_rows - rows)
            return err_set(e, ERR_INTERNAL, "a step of more than %d tokens",
                           f->cfg.max_rows);
        rows += items[i].n_tok;
    }
    return 0;
}

/* ---- groups ---- */

static int own_blocks(const struct forward *f)
{
    return f->cfg.n_blocks / f->cfg.part.adp;
}

/* Rows of the step that an item has for a group: all of its own or none. */
static int rows_of(const struct forward *f, const struct step *st,
                   const struct step_item *it, int group)
{
    if (f->cfg.part.adp > 1 && step_shard(st, it, own_blocks(f)) != group)
        return 0;
    return it->n_tok;
}

static int group_rows(const struct forward *f, const struct step *st, int group)
{
    int rows = 0;

    for (int i = 0; i < st->n_items; i++)
        rows += rows_of(f, st, &step_items(st)[i], group);
    return rows;
}

/* ---- micro-batches ---- */

/* What an item has within rows [s->from, s->from + s->n_rows) of the group's, of which
 * its own, n_tok, begin at `row`: its tokens from..from+n-1; n 0 = none. */
struct piece {
    int from, n;
};

static struct piece piece_of(const struct shape *s, int n_tok, int row)
{
    int from = max_int(s->from - row, 0);
    int to = min_int(s->from + s->n_rows - row, n_tok);

    return (struct piece){from, max_int(to - from, 0)};
}

/* Items, outputs and context of a group's micro-batch. */
static void count(const struct forward *f, struct shape *s, const struct step *st,
                  int group)
{
    int tok = forward_block_tok(&f->cfg.part);
    const struct step_item *items = step_items(st);

    for (int i = 0, row = 0, n; i < st->n_items; row += n, i++) {
        n = rows_of(f, st, &items[i], group);
        struct piece p = piece_of(s, n, row);
        int end = items[i].first_pos + p.from + p.n;

        if (!p.n)
            continue;
        s->n_items++;
        int outs =
            p.from + p.n - min_int(max_int(items[i].out_from, p.from), p.from + p.n);
        s->n_outs += outs;
        s->rows.all += p.n;
        s->outs.all += outs;
        s->rows.later += items[i].decode ? p.n : 0;
        s->outs.later += items[i].decode ? outs : 0;
        s->max_ctx = max_int(s->max_ctx, end);
    }
    s->max_blocks = (s->max_ctx + tok - 1) / tok;
}

/* The next n int32 of the block, from a multiple of 64 bytes. */
static int take(struct staging *a, int n)
{
    int at = (a->len + 15) & ~15;

    a->len = at + n;
    return at;
}

static void lay_out(struct shape *s, size_t base)
{
    struct staging *a = &s->at;

    a->len = (int)base;
    a->ids = take(a, s->n_rows);
    a->row = take(a, s->n_items + 1);
    a->pos = take(a, s->n_items);
    a->outs = take(a, s->n_outs);
    s->rows.at = take(a, s->n_rows);
    s->outs.at = take(a, s->n_outs);
    a->src = take(a, s->n_copies);
    a->dst = take(a, s->n_copies);
    a->table = take(a, s->n_items * s->max_blocks);
}

static int stage_blocks(struct forward *f, const struct shape *s,
                        const struct step_item *it, const int32_t *blocks, int first_pos,
                        int32_t *table, struct err *e)
{
    int n_block = min_int(it->n_block, s->max_blocks);
    int first = own_blocks(f) * f->cfg.part.adp_at;
    /* -1 stands for a block that the window of all layers has left behind */
    int window = f->w.info.window_every ? 0 : f->w.info.sliding_window;
    int read_from = window ? max_int(first_pos - window + 1, 0) : 0;

    for (int j = 0; j < n_block; j++) {
        bool needed = (j + 1) * forward_block_tok(&f->cfg.part) > read_from;
        if (blocks[j] < (needed ? first : -1) || blocks[j] >= first + own_blocks(f))
            return err_set(e, ERR_INTERNAL, "KV block %d of sequence %llu", blocks[j],
                           (unsigned long long)it->seq);
        table[j] = max_int(blocks[j] - first, 0);
    }
    /* beyond the item's context: never read */
    for (int j = n_block; j < s->max_blocks; j++)
        table[j] = 0;
    return 0;
}

/* The i-th piece of a micro-batch. */
static int stage_piece(struct forward *f, const struct step *st, const struct shape *s,
                       int i, const struct step_item *it, struct piece p, int *outs,
                       struct err *e)
{
    const int32_t *toks = step_toks(st) + it->tok_off + p.from;
    int row = f->stage[s->at.row + i], first_pos = it->first_pos + p.from;
    int mark = op_mark((int)(it - step_items(st)), it->decode);

    f->stage[s->at.row + i + 1] = row + p.n;
    f->stage[s->at.pos + i] = first_pos;
    for (int t = 0; t < p.n; t++) {
        if (toks[t] < 0 || toks[t] >= f->w.info.n_vocab)
            return err_set(e, ERR_INTERNAL, "token id %d of sequence %llu", toks[t],
                           (unsigned long long)it->seq);
        f->stage[s->at.ids + row + t] = toks[t];
        f->stage[s->rows.at + row + t] = mark;
    }
    for (int t = max_int(it->out_from, p.from); t < p.from + p.n; t++) {
        f->stage[s->outs.at + *outs] = mark;
        f->stage[s->at.outs + (*outs)++] = row + t - p.from;
    }
    return stage_blocks(f, s, it, step_blocks(st) + it->block_off, first_pos,
                        f->stage + s->at.table + (size_t)i * (size_t)s->max_blocks, e);
}

static int stage_copies(struct forward *f, const struct step *st, const struct shape *s,
                        int k, struct err *e)
{
    const struct step_copy *c = step_copies(st);
    int each = own_blocks(f), at = 0;

    for (int i = 0; k == 0 && i < st->n_copies; i++) {
        if (c[i].src < 0 || c[i].src >= f->cfg.n_blocks || c[i].dst < 0 ||
            c[i].dst >= f->cfg.n_blocks || c[i].src / each != c[i].dst / each)
            return err_set(e, ERR_INTERNAL, "copy of KV block %d to %d", c[i].src,
                           c[i].dst);
        if (c[i].src / each != f->cfg.part.adp_at)
            continue;
        f->stage[s->at.src + at] = c[i].src % each;
        f->stage[s->at.dst + at++] = c[i].dst % each;
    }
    return 0;
}

static int own_copies(const struct forward *f, const struct step *st)
{
    int n = 0;

    for (int i = 0; i < st->n_copies; i++)
        n += step_copies(st)[i].src / own_blocks(f) == f->cfg.part.adp_at;
    return n;
}

static int stage_one(struct forward *f, const struct step *st, struct shape *s, int k,
                     struct err *e)
{
    size_t base = f->stage_cap * (size_t)k;
    const struct step_item *items = step_items(st);
    int outs = 0, n = 0;

    count(f, s, st, f->cfg.part.adp_at);
    lay_out(s, base);
    assert((size_t)s->at.len - base <= f->stage_cap);
    f->stage[s->at.row] = 0;
    for (int i = 0, row = 0, rows; i < st->n_items; row += rows, i++) {
        rows = rows_of(f, st, &items[i], f->cfg.part.adp_at);
        struct piece p = piece_of(s, rows, row);
        if (p.n && stage_piece(f, st, s, n++, &items[i], p, &outs, e) < 0)
            return -1;
    }
    if (stage_copies(f, st, s, k, e) < 0)
        return -1;
    if (f->cp)
        forward_cp_stage(f, s, k);
    assert((size_t)s->at.len - base <= f->stage_cap);
    return stream_upload(f->s, f->idx, base * sizeof(int32_t), f->stage + base,
                         ((size_t)s->at.len - base) * sizeof(int32_t), e);
}

/* What each member has of x's rows, for the collectives of micro-batch k. */
static void list_rows(struct forward *f, struct shape *s, int k)
{
    int tp = f->w.d.tp;
    int64_t *elems = f->lists + (size_t)(2 * k * tp), *bytes = elems + tp;

    for (int m = 0; m < tp; m++) {
        int64_t from, to;

        comm_shard(s->n_rows, tp, m, &from, &to);
        elems[m] = (to - from) * f->w.info.n_embd;
        bytes[m] = elems[m] * (int64_t)sizeof(float);
    }
    s->row_elems = elems;
    s->row_bytes = bytes;
}

/* Micro-batch k of n of so many rows. */
static struct shape cut(int rows, int k, int n)
{
    int from = (int)((int64_t)rows * k / n), to = (int)((int64_t)rows * (k + 1) / n);

    return (struct shape){.from = from, .n_rows = to - from};
}

/* What each group has of micro-batch k of n. */
static void list_groups(struct forward *f, const struct step *st, struct shape *s, int k,
                        int n)
{
    int adp = f->cfg.part.adp, *rows = f->groups + (size_t)(2 * k * adp);

    if (adp == 1)
        return;
    s->rows.all = s->rows.later = s->outs.all = s->outs.later = 0;
    for (int g = 0; g < adp; g++) {
        struct shape of = cut(group_rows(f, st, g), k, n);

        count(f, &of, st, g);
        rows[g] = of.n_rows;
        rows[adp + g] = of.n_outs;
        s->rows.all += of.rows.all;
        s->rows.later += of.rows.later;
        s->outs.all += of.outs.all;
        s->outs.later += of.outs.later;
    }
    s->group_rows = rows;
    s->group_outs = rows + adp;
}

int forward_stage_step(struct forward *f, const struct step *st,
                       struct shape shapes[FORWARD_MICRO_MAX], int *ret_n, struct err *e)
{
    int most = 0, n;

    if (check_step(f, st, e) < 0)
        return -1;
    for (int g = 0; g < f->cfg.part.adp; g++)
        most = max_int(most, group_rows(f, st, g));
    n = max_int(1, min_int(f->cfg.part.micro, most));
    for (int k = 0; k < n; k++) {
        struct shape s = cut(group_rows(f, st, f->cfg.part.adp_at), k, n);

        s.n_copies = k == 0 ? own_copies(f, st) : 0;
        if (stage_one(f, st, &s, k, e) < 0)
            return -1;
        list_rows(f, &s, k);
        list_groups(f, st, &s, k, n);
        shapes[k] = s;
    }
    *ret_n = n;
    return 0;
}

/* daemon/serve/forward_cp_plan.c - which rank has which rows of a micro-batch, and what
 * each sends to whom. Pure host work over the staged integers; every rank comes to the
 * same counts. */
#include "daemon/serve/forward_cp.h"

#include <string.h>

#include "kernels/comm.h"

size_t forward_cp_stage_size(const struct forward_cfg *c, size_t blocks)
{
    size_t r = (size_t)max_int(c->part.cp, 1);

    /* ids, marks, places of rows, outputs both ways; blocks to pack; where sequences
     * begin in each packet; counts; gaps of alignment */
    return 10 * (size_t)c->max_rows + blocks + r * (size_t)c->max_items +
           4 * FORWARD_CP_MAX + 21 * 16;
}

/* ---- who has what ---- */

static int owner_of(const struct forward_cp *cp, int pos)
{
    return (cp->striped ? pos : pos / KV_BLOCK_TOK) % cp->r;
}

/* Blocks of rank r that hold any of the positions 0..end-1. */
static int blocks_of(const struct forward_cp *cp, int r, int end)
{
    int tok = cp->r * KV_BLOCK_TOK, from = cp->striped ? r : r * KV_BLOCK_TOK;

    return end > from ? (end - from + tok - 1) / tok : 0;
}

static int slot_of(const struct forward_cp *cp, const int32_t *table, int pos)
{
    int tok = cp->r * KV_BLOCK_TOK, in = pos % tok;

    return table[pos / tok] * KV_BLOCK_TOK +
           (cp->striped ? in / cp->r : in % KV_BLOCK_TOK);
}

/* The rows of one sequence in the micro-batch. */
struct piece {
    int row, n, pos;
    bool few;
};

static struct piece piece_of(const struct forward *f, const struct cp_batch *c, int i)
{
    const int32_t *row = f->stage + c->at_row + i;

    return (struct piece){.row = row[0],
                          .n = row[1] - row[0],
                          .pos = f->stage[c->at_pos + i],
                          .few = f->cp->r > 1 && row[1] - row[0] <= FORWARD_CP_FEW};
}

/* Room in a packet for one more sequence's context? On all ranks alike. */
static bool room(const struct forward *f, const struct piece *p, size_t *used)
{
    size_t more = (size_t)((p->pos + p->n - 1) / (f->cp->r * KV_BLOCK_TOK) + 1);

    if (more > f->cp->max_pack - *used)
        return false;
    *used += more;
    return true;
}

/* The next n int32 of the block, from a multiple of 64 bytes. */
static int take(struct shape *s, int n)
{
    int at = (s->at.len + 15) & ~15;

    s->at.len = at + n;
    return at;
}

/* ---- the rows ---- */

/* Give each row its rank and its place among that rank's: those that send q first. */
static void share_rows(struct forward *f, struct cp_batch *c, const bool *few, int *total)
{
    struct forward_cp *cp = f->cp;

    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < c->n_seq; i++) {
            struct piece p = piece_of(f, c, i);
            for (int t = 0; few[i] == (pass == 0) && t < p.n; t++) {
                int r = owner_of(cp, p.pos + t);
                cp->rank_of[p.row + t] = r;
                cp->row_of[p.row + t] = total[r]++;
            }
        }
        for (int r = 0; pass == 0 && r < cp->r; r++) {
            c->few[r] = total[r];
            c->n_few_all += total[r];
        }
    }
}

/* Positions, sequences and slots of our rows, and of all rows that send q. */
static void place_rows(struct forward *f, struct cp_batch *c)
{
    struct forward_cp *cp = f->cp;
    int32_t *st = f->stage, base[FORWARD_CP_MAX] = {0};

    for (int r = 1; r < cp->r; r++)
        base[r] = base[r - 1] + c->few[r - 1];
    for (int i = 0; i < c->n_seq; i++) {
        struct piece p = piece_of(f, c, i);
        const int32_t *table = st + c->at_table + (size_t)i * (size_t)c->max_blocks;
        for (int t = 0; t < p.n; t++) {
            int r = cp->rank_of[p.row + t], at = cp->row_of[p.row + t];
            if (at < c->few[r]) {
                st[c->at_few_pos + base[r] + at] = p.pos + t;
                st[c->at_few_seq + base[r] + at] = i;
            }
            if (r != f->w.d.cp_at)
                continue;
            st[c->at_our_pos + at] = p.pos + t;
            st[c->at_our_seq + at] = i;
            st[c->at_our_slot + at] = slot_of(cp, table, p.pos + t);
        }
    }
}

/* Blocks of the contexts that travel: from where the window begins. */
static void plan_packets(struct forward *f, struct cp_batch *c, const bool *few,
                         struct shape *s)
{
    struct forward_cp *cp = f->cp;
    int window = f->w.info.window_every ? 0 : f->w.info.sliding_window;
    int tok = cp->r * KV_BLOCK_TOK, mine = 0;

    c->at_first = take(s, cp->r * c->n_seq);
    c->at_pack = (s->at.len + 15) & ~15;
    for (int i = 0; i < c->n_seq; i++) {
        struct piece p = piece_of(f, c, i);
        int from = window ? max_int(p.pos - window + 1, 0) / tok : 0;
        const int32_t *table = f->stage + c->at_table + (size_t)i * (size_t)c->max_blocks;
        for (int r = 0; r < cp->r; r++) {
            int n = few[i] ? 0 : max_int(blocks_of(cp, r, p.pos + p.n) - from, 0);
            f->stage[c->at_first + r * c->n_seq + i] = c->blocks[r] - from;
            c->blocks[r] += n;
            for (int b = 0; r == f->w.d.cp_at && b < n; b++)
                f->stage[c->at_pack + mine++] = table[from + b];
        }
        c->packs |= !few[i];
    }
    s->at.len = c->at_pack + mine;
    for (int r = 0; r < cp->r; r++) {
        c->kv_bytes[r] = (int64_t)c->blocks[r] * (int64_t)f->kv_layout.layer_bytes;
        c->few_bytes[r] = (int64_t)c->few[r] * f->w.d.n_attn_head * f->w.info.head_dim *
                          (int64_t)sizeof(float);
    }
}

/* What all-to-alls send: rows to the heads' ranks, back to the rows', parts home. */
static void plan_counts(struct forward *f, struct cp_batch *c, struct shape *s)
{
    struct forward_cp *cp = f->cp;

    c->at_heads_send = take(s, cp->u);
    c->at_rows_send = take(s, cp->u);
    c->at_few_send = take(s, cp->r);
    c->at_recv = take(s, FORWARD_CP_MAX);
    for (int u = 0; u < cp->u; u++) {
        int64_t from, to;

        comm_shard(c->n_ours, cp->u, u, &from, &to);
        f->stage[c->at_heads_send + u] = c->n;
        f->stage[c->at_rows_send + u] = (int32_t)(to - from);
    }
    for (int r = 0; r < cp->r; r++)
        f->stage[c->at_few_send + r] = c->few[r];
    memset(f->stage + c->at_recv, 0, FORWARD_CP_MAX * sizeof(int32_t));
}

/* ---- outputs ---- */

static int share_at(int n, int u, int row)
{
    for (int m = 0; m < u; m++) {
        int64_t from, to;

        comm_shard(n, u, m, &from, &to);
        if (row < to)
            return m;
    }
    return u - 1;
}

/* Where outputs a..b-1, which are gathered together, come to stand: by rank. */
static void order_outs(struct forward *f, struct cp_batch *c, int a, int b)
{
    int at[FORWARD_CP_MAX + 1] = {0};

    for (int o = a; o < b; o++)
        at[c->owner[o] + 1]++;
    for (int m = 1; m < FORWARD_CP_MAX; m++)
        at[m] += at[m - 1];
    for (int o = a; o < b; o++)
        f->stage[c->at_perm + o] = at[c->owner[o]]++;
}

static void plan_outs(struct forward *f, struct cp_batch *c, struct shape *s,
                      const int *total)
{
    struct forward_cp *cp = f->cp;
    int me = f->w.d.cp_at * cp->u + f->w.d.cp_u_at, mine = 0;
    const int32_t *outs = f->stage + s->at.outs;

    c->at_perm = take(s, s->n_outs);
    int own = take(s, s->n_outs);
    for (int o = 0; o < s->n_outs; o++) {
        int r = cp->rank_of[outs[o]], row = cp->row_of[outs[o]];
        c->owner[o] = r * cp->u + share_at(total[r], cp->u, row);
        if (c->owner[o] == me)
            f->stage[own + mine++] = row - c->from;
    }
    for (int a = 0; a < s->n_outs; a += f->cfg.max_outs)
        order_outs(f, c, a, min_int(a + f->cfg.max_outs, s->n_outs));
    s->at.outs = own;
}

/* ---- all of it ---- */

void forward_cp_stage(struct forward *f, struct shape *s, int k)
{
    struct forward_cp *cp = f->cp;
    struct cp_batch *c = &cp->batch[k];
    int total[FORWARD_CP_MAX] = {0}, all_ids = s->at.ids, all_marks = s->rows.at;
    bool *few = cp->few;
    size_t packed = 0;
    int64_t from, to;

    *c = (struct cp_batch){.n_seq = s->n_items,
                           .n_all = s->n_rows,
                           .max_blocks = s->max_blocks,
                           .max_ctx = s->max_ctx,
                           .at_row = s->at.row,
                           .at_pos = s->at.pos,
                           .at_table = s->at.table,
                           .owner = cp->owners + (size_t)k * (size_t)f->cfg.max_rows};
    for (int i = 0; i < c->n_seq; i++) {
        struct piece p = piece_of(f, c, i);
        few[i] = p.few || (cp->r > 1 && !room(f, &p, &packed));
    }
    share_rows(f, c, few, total);
    c->n_ours = total[f->w.d.cp_at];
    c->n_few = c->few[f->w.d.cp_at];
    comm_shard(c->n_ours, cp->u, f->w.d.cp_u_at, &from, &to);
    c->from = (int)from;
    c->n = (int)(to - from);
    c->at_our_pos = take(s, c->n_ours);
    c->at_our_seq = take(s, c->n_ours);
    c->at_our_slot = take(s, c->n_ours);
    c->at_few_pos = take(s, c->n_few_all);
    c->at_few_seq = take(s, c->n_few_all);
    place_rows(f, c);
    if (cp->r > 1)
        plan_packets(f, c, few, s);
    plan_counts(f, c, s);
    plan_outs(f, c, s, total);
    s->at.ids = take(s, c->n);
    s->rows.at = take(s, c->n);
    for (int row = 0; row < c->n_all; row++) {
        int at = cp->row_of[row] - c->from;
        if (cp->rank_of[row] != f->w.d.cp_at || at < 0 || at >= c->n)
            continue;
        f->stage[s->at.ids + at] = f->stage[all_ids + row];
        f->stage[s->rows.at + at] = f->stage[all_marks + row];
    }
    s->n_rows = c->n;
    s->cp = c;
}

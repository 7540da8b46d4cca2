/* daemon/serve/forward_moe.h - inside the layers of experts of the forward module only.
 *
 * forward_moe.c runs a layer, forward_travel.c takes its rows to other ranks' experts,
 * forward_routes.c has the tables of where experts stand, forward_tally.c what was
 * counted. One owner thread (the rank's). */
#ifndef SERVE_FORWARD_MOE_H
#define SERVE_FORWARD_MOE_H

#include "daemon/serve/forward_impl.h"

struct forward_tally;
struct route_layer;

enum { FORWARD_CHUNKS_MAX = 16 };

/* Device integers of a layer's run, one after the other in `ints`. */
struct moe_ints {
    int ids, to, to_slot, slot, pos, from, order, start, got, spread, host, len;
    int later;            /* [groups of slots] */
    int noted;            /* [max_items]: STEP_ALTERED_* */
    int send, recv, back; /* [chunk][ep] */
    int table;            /* [layer][table_len] */
};

struct forward_moe {
    int max_home, max_pairs,
        max_here;             /* rows at home; their pairs; pairs at my experts */
    int per_row;              /* pairs of a row that may come to my experts */
    int max_known;            /* rows that are routed here: those at home, or all */
    int first_layer, n_layer; /* of experts, in this stage; counted over the model's */
    int n_copies, table_len;  /* slots of all ranks; ints of a table */
    /* In this run: row of those routed here where mine begin, and how many; what they are
     * of */
    int own, n_own;
    struct forward_mark of;
    uint32_t phase; /* of this step */
    struct moe_ints at;
    struct dbuf *ints;
    struct dbuf *logits, *weights;       /* [max_known, n_expert], [max_known, k] */
    struct dbuf *out, *in, *done, *back; /* pairs x n_embd: ep */
    struct dbuf *act, *gate, *extra;
    struct dbuf *wire[4]; /* rows packed: to experts, arrived, back, home; or NULL */
    int cap;              /* pairs that an expert takes in this run; 0 = any number */
    int cap_known;        /* the same of the rows that are routed here */
    int32_t *table;       /* host copy of one table until it was uploaded */
    int32_t *noted;       /* [max_items] on the host: of the last step; then zeros */
    struct forward_tally *tally;
};

static inline struct iview moe_ints_of(const struct forward *f, int at, int n)
{
    return (struct iview){f->moe->ints, (size_t)at * sizeof(int32_t), n};
}

static inline struct comm_at moe_ints_at(const struct forward *f, int at)
{
    return (struct comm_at){f->moe->ints, (size_t)at * sizeof(int32_t)};
}

/* Layers of experts before layer n: those behind the first, dense ones. */
static inline int moe_before(const struct model_info *i, int n)
{
    return max_int(n - i->moe.n_dense, 0);
}

/* Of a layer of this stage: which of the stage's layers of experts it is. */
static inline int moe_index(const struct forward *f, const struct forward_layer *l)
{
    return moe_before(&f->w.info, f->w.d.first_layer + (int)(l - f->w.layers)) -
           f->moe->first_layer;
}

/* Does it take rows away from experts that they chose? */
static inline bool moe_takes_away(const struct forward *f)
{
    const struct forward_experts *x = &f->cfg.part.experts;

    return x->capacity > 0 && x->overflow >= OVERFLOW_NEXT_BEST;
}

/* Is anything done to rows that changes what the model answers? */
static inline bool moe_alters(const struct forward *f)
{
    return moe_takes_away(f) || f->moe->wire[0];
}

/* n rows from `row` of those that are routed here, of which mine are counted. */
static inline struct op_rows moe_who(const struct forward *f, int row, int n)
{
    const struct forward_moe *m = f->moe;
    struct op_rows w = {.mark = iview_of(f, m->of.at + row, n),
                        .first = max_int(m->own - row, 0)};

    if (moe_alters(f))
        w.item = moe_ints_of(f, m->at.noted, f->cfg.max_items);
    w.n = max_int(min_int(m->own + m->n_own - row, n) - w.first, 0);
    return w;
}

/* Have pairs over the capacity a turn of their own in this run? */
static inline bool moe_second_pass(const struct forward *f)
{
    return f->moe->cap && f->cfg.part.experts.overflow == OVERFLOW_SECOND_PASS;
}

/* Are all rows of a run routed on every rank? */
static inline bool moe_routes_all(const struct forward_moe *m)
{
    return m->max_known > m->max_home;
}

/* Do all ranks of the expert group have every row of a run? */
bool forward_rows_known(const struct forward *f);
/* The tables as loaded. */
int forward_routes_new(struct forward *f, struct err *e);
/* Which copies the pairs of n rows that were routed here go to. */
int forward_spread(struct forward *f, const struct forward_layer *l, int n,
                   struct err *e);

/* A group's rows that a tp rank sends to experts: its share, or all of them where every
 * expert is cut by tp and stands on as many ranks. */
int moe_home_rows(const struct forward *f, int rows, int tp_at, int *ret_from);
/* done[base + p] := expert(x[p / per_row]) for pairs in groups. */
int moe_experts(struct forward *f, const struct forward_layer *l, struct view x, int base,
                int pairs, int per_row, int n_slot, struct err *e);
/* y := the results of pairs first.. of x, in order or, if they were sent, as they came.
 */
int moe_combine(struct forward *f, struct view y, struct view x, int first, bool sent,
                struct err *e);
/* forward_travel.c: y := what the experts made of my rows h, out of `rows`. */
int forward_travel(struct forward *f, const struct forward_layer *l, struct view y,
                   struct view h, int rows, struct err *e);

/* forward_tally.c. Life; a step begins; the table of one of the stage's layers of
 * experts, of which this rank's slots are from..; where ops count of a layer's slots, and
 * pairs that were moved, sent to the next expert or dropped; what was done by all-to-alls
 * since the last mark was the way home, or out. */
int forward_tally_new(struct forward *f, struct err *e);
void forward_tally_free(struct forward *f);
void forward_tally_begin(struct forward *f, const struct step *st);
int forward_tally_route(struct forward *f, int layer, const struct route_layer *l,
                        int from, struct err *e);
struct lview forward_tally_slots(const struct forward *f, const struct forward_layer *l,
                                 int phase);
struct lview forward_tally_lost(const struct forward *f, const struct forward_layer *l,
                                int phase);
/* Count the pairs of experts that rows chose, where that is asked for. */
int forward_tally_pairs(struct forward *f, const struct forward_layer *l,
                        const struct op_route *r, struct err *e);
int forward_tally_mark(struct forward *f, const struct forward_layer *l, bool home,
                       struct err *e);
/* Where experts all stand here: they begin, they have ended. Nothing while no trace is
 * on.
 */
int forward_tally_here(struct forward *f, const struct forward_layer *l, bool ended,
                       struct err *e);

#endif

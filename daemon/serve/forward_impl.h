/* daemon/serve/forward_impl.h - inside the forward module only: its state and its parts.
 *
 * forward.c has the life and the run of a step, forward_stage.c cuts a step into
 * micro-batches and stages their integers, forward_ops.c launches the ops of one;
 * forward_moe.c has layers of experts, forward_cp*.c rows that ranks share;
 * forward_part.c says which part of the model is a rank's, forward_weights.c loads it. */
#ifndef SERVE_FORWARD_IMPL_H
#define SERVE_FORWARD_IMPL_H

#include "daemon/serve/forward.h"
#include "daemon/serve/forward_weights.h"
#include "kernels/backend.h"
#include "kernels/comm.h"

enum { FORWARD_MICRO_MAX = 16 };

/* Where the parts of a staging block begin, in int32 from the start of the buffer. */
struct staging {
    int ids, row, pos, outs, table, src, dst, len;
};

/* What rows are of: op_mark of each of this rank's (of its group's, before cp shares
 * them) from int `at` of f->idx on; rows of all ranks together, and of them of items that
 * decode. */
struct forward_mark {
    int at, all, later;
};

struct cp_batch;
struct forward_cp;
struct forward_moe;

/* One micro-batch as the counts that ops take: rows from..from+n_rows of the step. */
struct shape {
    int n_items, n_rows, n_outs, n_copies, max_blocks, max_ctx;
    struct forward_mark rows, outs; /* of all ranks, but for `at` */
    int from;
    struct staging at;
    const struct cp_batch *cp;            /* with cp: then the counts are of my rows */
    const int *group_rows, *group_outs;   /* with adp: of each group; else NULL */
    const int64_t *row_elems, *row_bytes; /* of each tp member's share of the rows */
};

struct forward {
    struct backend *b; /* borrowed */
    struct stream *s;
    struct forward_cfg cfg;
    struct forward_weights w;
    struct kv_layout kv_layout;
    struct kv_arena *kv;
    void *host; /* the host tier's slots of this rank; NULL = none */
    int n_host;
    struct kv_moved *moved;                     /* of the step that runs */
    struct dbuf *x, *h, *q, *k, *v, *att, *act; /* [max_rows, ..] */
    struct dbuf *lat_q, *lat_y; /* latent attention: of all heads, [max_rows, ..] */
    struct dbuf *sum; /* tp, experts: [n_level, sum_rows, n_embd], see forward_sum.c */
    int sum_rows;
    struct dbuf *squares; /* norms over heads of all tp members: [n_level, max_rows, 2] */
    struct forward_moe *moe;     /* NULL for a dense model */
    struct forward_cp *cp;       /* NULL where no rows are shared, as if or in truth */
    struct dbuf *out_x, *logits; /* [max_outs, ..] */
    struct dbuf *gathered;       /* tp: logits of all members */
    struct dbuf *idx;            /* staging on the device */
    int32_t *stage;              /* and on the host */
    size_t stage_cap;            /* of one micro-batch */
    float *host_logits, *host_parts; /* [max_outs, n_vocab]; as gathered */
    int64_t *lists; /* counts for collectives: 2 x tp a micro-batch, then 2 x tp */
    int *groups;    /* adp: rows and outputs of groups, 2 x adp a micro-batch, then .. */
    int *now_rows;  /* .. rows of each in what runs now; NULL without adp */
};

static inline int max_int(int a, int b) { return a > b ? a : b; }
static inline int min_int(int a, int b) { return a < b ? a : b; }

static inline struct view view_of(struct dbuf *b, int rows, int cols)
{
    return (struct view){b, 0, rows, cols, cols};
}

static inline struct view view_from(struct dbuf *b, int row, int rows, int cols)
{
    return (struct view){b, (size_t)row * (size_t)cols * sizeof(float), rows, cols, cols};
}

static inline struct comm_at at_row(struct dbuf *b, int row, int cols)
{
    return (struct comm_at){b, (size_t)row * (size_t)cols * sizeof(float)};
}

static inline struct iview iview_of(const struct forward *f, int at, int n)
{
    return (struct iview){f->idx, (size_t)at * sizeof(int32_t), n};
}

/* My rows of n where x is shared by rows (sp), else all of them. */
static inline void own_rows(const struct forward *f, int n, int *ret_from, int *ret_n)
{
    int64_t from = 0, to = n;

    if (f->cfg.part.sp)
        comm_shard(n, f->w.d.tp, f->w.d.tp_at, &from, &to);
    *ret_from = (int)from;
    *ret_n = (int)(to - from);
}

/* Does it give out logits where it is in the last stage? One cp rank does. */
static inline bool forward_leads(const struct forward *f)
{
    return f->w.d.cp_at == 0 && f->w.d.cp_u_at == 0;
}

/* Do cp ranks share the rows? */
static inline bool forward_cut_rows(const struct forward *f)
{
    return f->w.d.cp * f->w.d.cp_u > 1;
}

/* May rows of others come to my experts in a run in which I have none? */
static inline bool forward_shares(const struct forward *f)
{
    return forward_cut_rows(f) || f->now_rows;
}

/* Cut the step into *ret_n micro-batches and upload what ops read of them. */
int forward_stage_step(struct forward *f, const struct step *st,
                       struct shape shapes[FORWARD_MICRO_MAX], int *ret_n, struct err *e);
size_t forward_stage_size(const struct forward_cfg *c);

/* The layers of this stage for one micro-batch: from ids or the stage before, to the
 * stage after or, in the last stage, up to the attention of its last layer. */
int forward_layers(struct forward *f, const struct shape *s, struct err *e);
/* Last stage: outputs first..first+n-1 of the micro-batch, logits to host_logits after
 * the next sync and forward_unpack. */
int forward_head(struct forward *f, const struct shape *s, int first, int n,
                 struct err *e);
void forward_unpack(struct forward *f, int n);
/* y := norm(x); f->q, f->k := normed where the family norms all heads together;
 * h := norm(x) on all rows, where sp (the micro-batch when x has the
 * member's own rows, else NULL) from the members' own; y (+)= x * w^T.
 */
int run_norm(struct forward *f, struct view y, struct view x, const struct weight *w,
             struct err *e);
int norm_heads(struct forward *f, const struct forward_layer *l, int rows, struct err *e);
int norm_all(struct forward *f, struct dbuf *x, int rows, const struct weight *w,
             const struct shape *sp, struct err *e);
int product(struct forward *f, struct view y, struct dbuf *x, const struct weight *w,
            bool add, struct err *e);
/* forward_sum.c: partial sums of all rows in f->sum come together on their owners' rows
 * (sp): in x itself, or added to it. x += the tp ranks' sums in f->sum. x += y * w^T +
 * bias over the group, w the layer's matrix of SUM_.. cut by columns; one member has the
 * bias. Levels of f->sum. */
int scatter_sum(struct forward *f, struct dbuf *x, const struct shape *s, bool add,
                struct err *e);
int add_sum(struct forward *f, struct dbuf *x, int rows, const struct shape *sp,
            struct err *e);
int close_pair(struct forward *f, struct dbuf *x, struct dbuf *y, int rows,
               const struct forward_layer *l, int sum, const struct shape *sp,
               struct err *e);
int forward_levels(const struct forward_dims *d);
/* The ops of a layer's attention without rows and views: over the heads that are mine at
 * attention. */
struct op_rope_store forward_rope_of(const struct forward *f,
                                     const struct forward_layer *l, int layer);
struct op_attn forward_attn_of(const struct forward *f, const struct forward_layer *l,
                               int layer);
/* forward_latent.c: latent attention: f->q, f->k from f->h; q as it attends, y, from x,
 * the q of as many heads of the rank's from `first` on; and what attention gave, x, to
 * their outputs y. */
int forward_latent_kv(struct forward *f, const struct forward_layer *l, int rows,
                      struct err *e);
int forward_latent_q(struct forward *f, const struct forward_layer *l, struct view y,
                     struct view x, int first, struct err *e);
int forward_latent_out(struct forward *f, const struct forward_layer *l, struct view y,
                       struct view x, int first, struct err *e);
/* forward_moe.c: x += experts(norm(x)) of one layer. row_bytes: of each tp member's share
 * of the rows. */
int forward_moe_new(struct forward *f, struct err *e);
/* A step begins. */
int forward_moe_begin(struct forward *f, const struct step *st, struct err *e);
void forward_moe_free(struct forward *f);
int forward_moe_run(struct forward *f, const struct forward_layer *l, struct dbuf *x,
                    int rows, const struct forward_mark *of, const struct shape *sp,
                    const int64_t *row_bytes, struct err *e);
/* y := rows of x (f->x, of all tp members where sp) that outputs first.. come from. */
int forward_gather(struct forward *f, struct dbuf *y, struct dbuf *x, int cols,
                   const struct shape *s, int first, int n, struct err *e);
int forward_gather_x(struct forward *f, struct dbuf *y, const struct shape *s, int first,
                     int n, struct err *e);
/* forward_tier.c: host memory, and what a step moves to and from it. */
int forward_tier_new(struct forward *f, struct err *e);
void forward_tier_free(struct forward *f);
int forward_moves(struct forward *f, const struct step *st, struct err *e);
/* The copies of blocks that a step begins with. */
int forward_copies(struct forward *f, const struct shape *s, struct err *e);

#endif

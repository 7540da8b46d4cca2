/* daemon/serve/forward_impl.h - inside the forward module only: its state and its parts.
 *
 * forward.c has the life and the run of a step, forward_stage.c cuts a step into
 * micro-batches and stages their integers, forward_ops.c launches the ops of one. */
#ifndef SERVE_FORWARD_IMPL_H
#define SERVE_FORWARD_IMPL_H

#include "daemon/serve/forward.h"
#include "daemon/serve/forward_weights.h"
#include "kernels/backend.h"

enum { FORWARD_MICRO_MAX = 16 };

/* Where the parts of a staging block begin, in int32 from the start of the buffer. */
struct staging {
    int ids, row, pos, outs, table, src, dst, len;
};

/* One micro-batch as the counts that ops take: rows from..from+n_rows of the step. */
struct shape {
    int n_items, n_rows, n_outs, n_copies, max_blocks, max_ctx;
    int from;
    struct staging at;
    const int64_t *row_elems, *row_bytes; /* sp: of x's rows on each member */
};

struct forward {
    struct backend *b; /* borrowed */
    struct stream *s;
    struct forward_cfg cfg;
    struct forward_weights w;
    struct kv_layout kv_layout;
    struct kv_arena *kv;
    struct dbuf *x, *h, *q, *k, *v, *att, *act; /* [max_rows, ..] */
    struct dbuf *sum;                           /* sp: [max_rows, n_embd] */
    struct dbuf *out_x, *logits;                /* [max_outs, ..] */
    struct dbuf *gathered;                      /* tp: logits of all members */
    struct dbuf *idx;                           /* staging on the device */
    int32_t *stage;                             /* and on the host */
    size_t stage_cap;                           /* of one micro-batch */
    float *host_logits, *host_parts;            /* [max_outs, n_vocab]; as gathered */
    int64_t *lists; /* counts for collectives: 2 x tp a micro-batch, then tp */
};

static inline int max_int(int a, int b) { return a > b ? a : b; }
static inline int min_int(int a, int b) { return a < b ? a : b; }

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
/* The copies of blocks that a step begins with. */
int forward_copies(struct forward *f, const struct shape *s, struct err *e);

#endif

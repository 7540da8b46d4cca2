/* daemon/serve/forward_expert.c - one row through an expert that is not yet in use. See
 * forward_expert.h.
 *
 * Buffers are made for the one run: it happens once a move, and the rank's own are laid
 * out for steps. */
#include "daemon/serve/forward_expert.h"

#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/forward_impl.h"

/* Ints of the run: order {0}, start {0, 1}, 64 bytes apart. */
enum { START_AT = 16, INTS = 32 };

struct warm {
    struct dbuf *x, *y, *act, *ints;
    float *row;
    int32_t index[INTS];
};

static int make(struct forward *f, struct warm *m, struct err *e)
{
    size_t embd = (size_t)f->w.info.n_embd * sizeof(float);
    size_t ff = (size_t)f->w.d.n_ff_expert * sizeof(float);

    m->row = xmalloc(embd);
    for (int i = 0; i < f->w.info.n_embd; i++)
        m->row[i] = (float)(i % 7 - 3) * 0.125f;
    m->index[START_AT + 1] = 1;
    return dbuf_new(f->b, embd, &m->x, e) < 0 || dbuf_new(f->b, embd, &m->y, e) < 0 ||
                   dbuf_new(f->b, ff, &m->act, e) < 0 ||
                   dbuf_new(f->b, sizeof(m->index), &m->ints, e) < 0
               ? -1
               : 0;
}

static int run(struct forward *f, struct warm *m, struct weight **w, struct err *e)
{
    int embd = f->w.info.n_embd;
    size_t bytes = (size_t)embd * sizeof(float);
    struct op_experts o = {
        .y = view_of(m->y, 1, embd),
        .x = view_of(m->x, 1, embd),
        .per_row = 1,
        .n_slot = 1,
        .order = {m->ints, 0, 1},
        .start = {m->ints, START_AT * sizeof(int32_t), 2},
        .gate = &w[0],
        .up = &w[1],
        .down = &w[2],
        .limit = f->w.info.moe.limit,
        .act = view_of(m->act, 1, f->w.d.n_ff_expert),
    };

    for (int k = 0; k < 3; k++)
        o.bias[k] = w[3 + k] ? &w[3 + k] : NULL;
    if (stream_upload(f->s, m->x, 0, m->row, bytes, e) < 0 ||
        stream_upload(f->s, m->ints, 0, m->index, sizeof(m->index), e) < 0 ||
        stream_sync(f->s, e) < 0 || op_experts(f->s, &o, e) < 0 ||
        stream_download(f->s, m->row, m->y, 0, bytes, e) < 0 || stream_sync(f->s, e) < 0)
        return -1;
    for (int i = 0; i < embd; i++)
        if (!isfinite(m->row[i]))
            return err_set(e, ERR_CORRUPT, "the expert gives no numbers");
    return 0;
}

int forward_expert_warm(struct forward *f, struct weight **w, struct err *e)
{
    struct warm m = {0};
    int rc;

    for (int k = 0; k < MODEL_EXPERT_ROLES; k++)
        weight_join(w[k]);
    if (!w[0] || !w[1] || !w[2])
        return err_set(e, ERR_INTERNAL, "the expert lacks a matrix");
    rc = make(f, &m, e) < 0 ? -1 : run(f, &m, w, e);
    dbuf_free(m.x);
    dbuf_free(m.y);
    dbuf_free(m.act);
    dbuf_free(m.ints);
    free(m.row);
    return rc;
}

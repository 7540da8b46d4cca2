/* daemon/serve/forward.h - one step of a model family over a backend.
 *
 * Weights go to the device once; forward_run launches the ops of a step on a stream. It
 * never allocates, reads or branches on a device value. Families are rows of a table that
 * say which optional parts a layer has. One owner thread (the rank's). */
#ifndef SERVE_FORWARD_H
#define SERVE_FORWARD_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

struct backend;
struct err;
struct forward;
struct kv_arena;
struct model;
struct step;
struct stream;

struct forward_cfg {
    int max_rows, max_items, max_ctx,
        max_outs; /* rows, items, context, logit rows a step */
    enum dtype kv_type;
    int n_blocks; /* of the KV arena */
};

/* Borrows m only during the call (pages are dropped as tensors are repacked). progress
 * (may be NULL) is called with 0..1. */
int forward_new(struct backend *b, struct model *m, const struct forward_cfg *cfg,
                void (*progress)(void *arg, double done), void *arg, struct forward **ret,
                struct err *e);
void forward_free(struct forward *f);

/* Run the items of a step whose tokens are all concrete. outs: logits rows in item order,
 * f32 [n_outs, n_vocab] in host memory owned by f, valid until the next call. Waits for
 * the stream. */
int forward_run(struct forward *f, const struct step *st, const float **ret_logits,
                int *ret_n_outs, struct err *e);
/* KV arena (for tests and hand-off). */
struct kv_arena *forward_kv(struct forward *f);
/* Bytes of one KV block with this model and type. */
size_t forward_kv_block_bytes(const struct model *m, enum dtype kv_type);

#endif

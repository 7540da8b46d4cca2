/* daemon/serve/forward.h - one step of a model family over a backend.
 *
 * Weights go to the device once; forward_run launches the ops of a step on a stream. It
 * never allocates, reads or branches on a device value. Families are rows of a table that
 * say which optional parts a layer has. One owner thread (the rank's). */
#ifndef SERVE_FORWARD_H
#define SERVE_FORWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

struct backend;
struct backend_caps;
struct err;
struct forward;
struct kv_arena;
struct kv_layout;
struct model;
struct model_info;
struct step;

/* What buffers are made for. max_outs: logits rows held at once; a step with more of them
 * hands them over in several parts. */
struct forward_cfg {
    int max_rows, max_items, max_ctx, max_outs, max_copies;
    enum dtype kv_type;
    int n_blocks; /* of the KV arena */
};

/* Sizes to open the backend with. */
void forward_caps(const struct model_info *i, const struct forward_cfg *cfg,
                  struct backend_caps *ret);

/* Loading goes on while it returns true (done: 0..1); false ends it with ERR_CANCELED. */
typedef bool (*forward_progress_fn)(void *arg, double done);

/* Borrows m only during the call (pages are dropped as tensors are repacked). progress
 * may be NULL. */
int forward_new(struct backend *b, struct model *m, const struct forward_cfg *cfg,
                forward_progress_fn progress, void *arg, struct forward **ret,
                struct err *e);
void forward_free(struct forward *f);

/* Takes logits of the step's outputs first..first+n-1, counted in item order: f32
 * [n, n_vocab] in host memory of f, valid during the call. */
typedef void (*forward_sink_fn)(void *arg, int first, int n, const float *logits);

/* Run the items of a step whose tokens are all concrete; waits for the stream. Ids,
 * positions and blocks are checked. Outputs are rows out_from.. of each item; sink is not
 * called when there are none. A step without items makes its copies. */
int forward_run(struct forward *f, const struct step *st, forward_sink_fn sink, void *arg,
                struct err *e);
/* KV arena and its layout (for tests and hand-off). */
struct kv_arena *forward_kv(struct forward *f);
const struct kv_layout *forward_kv_layout(const struct forward *f);
/* Bytes of one KV block with this model and type; 0 when it has no such layout. */
size_t forward_kv_block_bytes(const struct model_info *i, enum dtype kv_type);

#endif

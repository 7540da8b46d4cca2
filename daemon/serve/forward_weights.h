/* daemon/serve/forward_weights.h - a model's tensors on a device, by role.
 *
 * Inside the forward module only. Plain struct: load fills it, done frees it, also half
 * loaded. One owner thread (the rank's). */
#ifndef SERVE_FORWARD_WEIGHTS_H
#define SERVE_FORWARD_WEIGHTS_H

#include "daemon/serve/forward.h"
#include "daemon/serve/model.h"

struct weight;

struct forward_layer {
    struct weight *w[ROLE_COUNT]; /* NULL where the model has none */
};

struct forward_weights {
    struct model_info info;
    struct weight *top[ROLE_COUNT]; /* of the whole model */
    struct weight *inv_freq;
    struct forward_layer *layers;
};

int forward_weights_load(struct forward_weights *w, struct backend *b, struct model *m,
                         forward_progress_fn progress, void *arg, struct err *e);
void forward_weights_done(struct forward_weights *w);
/* The matrix of the head: its own, or the token table when they are tied. */
const struct weight *forward_weights_head(const struct forward_weights *w);

#endif

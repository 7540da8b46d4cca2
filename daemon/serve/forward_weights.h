/* daemon/serve/forward_weights.h - a model's tensors on a device, by role: the part of
 * them that a rank holds.
 *
 * Inside the forward module only. Plain struct: load fills it, done frees it, also half
 * loaded. One owner thread (the rank's). */
#ifndef SERVE_FORWARD_WEIGHTS_H
#define SERVE_FORWARD_WEIGHTS_H

#include "daemon/serve/forward.h"
#include "daemon/serve/model.h"

struct weight;

/* Products that are summed up over the tp ranks. */
enum { SUM_O, SUM_DOWN, N_SUMS };

struct forward_layer {
    struct weight *w[ROLE_COUNT]; /* NULL where the model has none */
    /* Of those that are summed up: the pieces after the first, [d.n_piece - 1]. */
    struct weight **pieces[N_SUMS];
    /* By role from ROLE_EXP_GATE on: [d.n_slot], of which the first d.n_home are loaded
     * and the others are NULL until experts move there; NULL where the layer has none. */
    struct weight **experts[MODEL_EXPERT_ROLES];
    /* Latent attention: what makes K, V of a head: [d.n_head] each. */
    struct weight **heads[2];
};

/* Sizes of the rank's part; from..: where it begins in the whole. */
struct forward_dims {
    int tp, tp_at, pp, pp_at;
    int first_layer, n_layer;
    int n_head, head_from, n_kv_head, kv_from;
    int cp, cp_at, cp_u, cp_u_at;
    int n_attn_head, n_attn_kv, attn_kv_from; /* of them, at attention: shared by cp_u */
    int q_dim, o_dim, kv_dim, n_ff, ff_from, n_vocab, vocab_from;
    int n_piece;             /* of a sum over tp, that are made here: as_tp / tp */
    int n_home, expert_from; /* experts that stand here as loaded */
    int n_slot;              /* places for them: as many on every rank */
    int etp;                 /* ranks that share every expert's width: 1 or tp */
    int n_ff_expert, ff_expert_from, n_ff_shared, ff_shared_from;
    bool first, last; /* stage */
};
void forward_dims_of(const struct model_info *i, const struct forward_part *p,
                     struct forward_dims *ret);

struct forward_weights {
    struct model_info info; /* of the whole model */
    struct forward_dims d;
    struct weight *top[ROLE_COUNT]; /* of the whole model */
    struct weight *inv_freq;
    struct forward_layer *layers; /* [d.n_layer] */
};

int forward_weights_load(struct forward_weights *w, struct backend *b, struct model *m,
                         const struct forward_part *part, forward_progress_fn progress,
                         void *arg, struct err *e);
void forward_weights_done(struct forward_weights *w);
/* The matrix of the head: its own, or the token table when they are tied. */
const struct weight *forward_weights_head(const struct forward_weights *w);

#endif

/* daemon/serve/wire_experts.h - what daemon and engine say to each other of experts that
 * move.
 *
 * READY says what there is (wire_experts_facts of wire_ready: zeros where experts do not
 * move). EXPERTS orders moves, one after the other, and shares of copies; MOVED says for
 * each move where it is, at every state, and at last DONE or ABORTED. The daemon numbers
 * the moves. A new engine has its experts as loaded. */
#ifndef SERVE_WIRE_EXPERTS_H
#define SERVE_WIRE_EXPERTS_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/moves.h"

struct err;
struct wire_conn;

enum { WIRE_EXPERT_LAYERS = 1024, WIRE_EXPERT_SLOTS = 4096 };

/* After it: struct move[n_moves], then for each of n_layers its number, then for each of
 * these the shares of its n_slots (all ranks'). cancel: give up what can be, first. From
 * now on a step may have step_bytes copied beside it, and copying take copy_share of a
 * CPU; 0 = as before. */
struct wire_experts {
    int32_t n_moves, n_layers, n_slots, cancel;
    int64_t step_bytes;
    double copy_share;
};
struct wire_moved {
    uint64_t id;
    int32_t layer, state; /* enum move_state */
    int64_t bytes, load_us, work_us, all_us;
    int64_t before_mean_us, before_max_us, during_mean_us, during_max_us;
    int32_t n_steps, pad;
    char why[256];
};

/* Whole messages, checked; arrays are borrowed from the payload. */
struct wire_expert_orders {
    struct wire_experts h;
    const struct move *moves;
    const int32_t *layers;
    const float *shares; /* [n_layers * n_slots] */
};
int wire_send_experts(struct wire_conn *c, const struct wire_expert_orders *o,
                      struct err *e);
int wire_parse_experts(const void *p, size_t n, struct wire_expert_orders *ret,
                       struct err *e);
int wire_send_moved(struct wire_conn *c, const struct moves_news *n, struct err *e);
int wire_check_moved(const struct wire_moved *m, struct err *e);

#endif

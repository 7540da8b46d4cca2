/* daemon/serve/engine_experts.h - moves of experts inside an engine: from an order to the
 * loader, to the ranks, to the news.
 *
 * moves.h says what is next; here it is done: the loader reads, the ranks join, vote and
 * flip (ranks.h), tables are made (routes.h). On the scheduler thread, which polls the
 * two descriptors, tells of steps, and calls engine_experts_poll after either and at the
 * deadline. Where experts do not stand apart there is none of this. */
#ifndef SERVE_ENGINE_EXPERTS_H
#define SERVE_ENGINE_EXPERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/moves.h"

struct engine_experts;
struct err;
struct executor;
struct model;
struct model_info;
struct routes;

struct engine_experts_cfg {
    struct executor *x;  /* ranks; borrowed */
    struct model *model; /* taken when _new succeeds */
    size_t slice_bytes;  /* of the loader; 0 = as documented */
    double share;
    int64_t state_us; /* of each state of a move; 0 = as documented */
    /* News of a move. broken: end the engine. */
    void (*tell)(void *arg, const struct moves_news *n);
    void (*broken)(void *arg, const struct err *why);
    void *arg;
};

/* What the daemon must know to plan; zeros where experts do not move. */
struct engine_experts_facts {
    int n_layer, n_expert, n_rank, n_slot;
    uint64_t expert_bytes; /* of one expert of one layer, in the files */
};
void engine_experts_facts(const struct executor *x, const struct model *m,
                          struct engine_experts_facts *ret);

int engine_experts_new(const struct engine_experts_cfg *cfg, struct engine_experts **ret,
                       struct err *e);
/* Before the executor is freed, with no step in flight or the end near. NULL allowed. */
void engine_experts_free(struct engine_experts *g);

/* A move that cannot be made is told as ABORTED. */
void engine_experts_order(struct engine_experts *g, int64_t now, const struct move *v);
/* Shares of a layer's slots (n = n_rank * n_slot), in force with the next flip, which
 * this asks for. -1: not of this table. */
int engine_experts_shares(struct engine_experts *g, int64_t now, int layer,
                          const float *share, int n, struct err *e);
/* How fast experts are copied: see wire_experts; 0 = as before. */
void engine_experts_pace(struct engine_experts *g, int64_t step_bytes, double share);
void engine_experts_cancel(struct engine_experts *g, int64_t now, const char *why);

void engine_experts_submitted(struct engine_experts *g, uint64_t ticket);
void engine_experts_step(struct engine_experts *g, int64_t now, uint64_t ticket,
                         int64_t step_us);
void engine_experts_poll(struct engine_experts *g, int64_t now);
int64_t engine_experts_deadline(const struct engine_experts *g);  /* -1 = none */
int engine_experts_fd(const struct engine_experts *g, int which); /* 0, 1 */

/* As in force. */
const struct routes *engine_experts_routes(const struct engine_experts *g);
int engine_experts_waiting(const struct engine_experts *g);

#endif

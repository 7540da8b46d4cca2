/* daemon/serve/exec_slot.h - one step in flight: its copy and room for its results.
 *
 * Inside the executors only. The scheduler thread fills the step, the executor the
 * results; whoever has the slot's pointer out of a queue owns it. */
#ifndef SERVE_EXEC_SLOT_H
#define SERVE_EXEC_SLOT_H

#include "base/err.h"
#include "daemon/serve/step.h"

struct exec_slot {
    struct step *st;
    struct step_done done;
    struct step_result *results; /* [caps.items] */
    struct step_token *toks;     /* [caps.outs] */
    struct err why;
};

int exec_slot_init(struct exec_slot *s, const struct step_caps *caps, struct err *e);
void exec_slot_done(struct exec_slot *s);
/* Takes a copy of st as `ticket`, with no results yet. */
void exec_slot_fill(struct exec_slot *s, const struct step *st, uint64_t ticket);
/* Lays out one result an item: where its tokens stand, n_scored and n_accepted. */
void exec_slot_lay_out(struct exec_slot *s);
/* The step failed with s->why: no results. */
void exec_slot_fail(struct exec_slot *s);

#endif

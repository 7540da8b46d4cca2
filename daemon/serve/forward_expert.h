/* daemon/serve/forward_expert.h - an expert that was loaded apart joins a rank.
 *
 * On the rank's thread, between two steps. */
#ifndef SERVE_FORWARD_EXPERT_H
#define SERVE_FORWARD_EXPERT_H

struct err;
struct forward;
struct weight;

/* Hands w (by role from ROLE_EXP_GATE on) over to the rank's backend and runs the
 * expert's op once on a row of its own, which no step sees. -1: it does not work, or
 * gives no numbers. */
int forward_expert_warm(struct forward *f, struct weight **w, struct err *e);

#endif

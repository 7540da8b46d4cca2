/* daemon/ctrl/pdadvise_sim.h - one rate in a world of queues. Internal to pdadvise*.c.
 *
 * First come, first served, no limit of KV. Chunked: each step takes a token of every
 * sequence, the rest of the budget goes to the prompts in their order. Colocated: whole
 * prompts while some wait, at most prefill_run such steps in a row beside sequences that
 * decode. Split: a colocated world without decode, and one without prompts behind it. */
#ifndef CTRL_PDADVISE_SIM_H
#define CTRL_PDADVISE_SIM_H

#include "daemon/ctrl/pdadvise.h"

struct pd_sim {
    struct load_point at; /* what its runs say together */
    double step_over_decode;
};
/* As many runs as it takes to be sure, LOAD_TRIES at most. */
void pd_simulate(const struct pd_world *w, const struct pd_work *k, enum pd_mode m,
                 int prefill_devices, double rate, struct pd_sim *ret);

#endif

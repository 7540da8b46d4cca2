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
    bool pass;
    double attainment, ttft_share, tpot_share;
    double ttft_p95, tpot_p95, step_over_decode;
};
void pd_simulate(const struct pd_world *w, const struct pd_work *k, enum pd_mode m,
                 int prefill_devices, double rate, struct pd_sim *ret);

#endif

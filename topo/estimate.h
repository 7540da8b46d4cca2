/* topo/estimate.h - TTFT, TPOT and throughput of one instance under a steady load.
 *
 * A closed loop: `concurrency` requests in the instance, each of isl prompt and osl
 * output tokens, the next one entering when one ends. Colocated: prompts are taken in
 * between decode steps, so that every token also pays its share of them. Split: a pool
 * either prefills or decodes. Pure. Any thread. */
#ifndef TOPO_ESTIMATE_H
#define TOPO_ESTIMATE_H

#include "topo/cost.h"

struct estimate_load {
    double isl, osl, concurrency;
    double skew; /* of routing, busiest rank over the mean */
    enum weight_format kv;
};

struct estimate {
    double ttft_ms, tpot_ms;
    double tokens_s;   /* output tokens of the instance */
    double requests_s; /* of the instance */
    double tokens_s_gpu;
    enum cost_part prefill_bottleneck, decode_bottleneck;
};

struct estimate_on {
    const struct cost_device *d;
    const struct shapes *s;
    const struct layout *l;
    const struct cost_links *k;
};

void estimate_colocated(const struct estimate_on *o, const struct estimate_load *w,
                        struct estimate *ret);
/* A pool that only prefills (tpot_ms 0; requests_s is what it can take in) or only
 * decodes (ttft_ms 0, concurrency resident). */
void estimate_prefill(const struct estimate_on *o, const struct estimate_load *w,
                      struct estimate *ret);
void estimate_decode(const struct estimate_on *o, const struct estimate_load *w,
                     struct estimate *ret);

#endif

/* ctl/load_plan.h - what `llmctl load` was asked to do, from its words and what the
 * daemon says of the instance; and the contract that follows from both.
 *
 * load_plan_read reads the trace that is named, nothing else. One owner thread. */
#ifndef CTL_LOAD_PLAN_H
#define CTL_LOAD_PLAN_H

#include <stdint.h>

#include "base/json.h"
#include "base/load_search.h"
#include "base/load_stat.h"
#include "ctl/load_trace.h"
#include "ctl/load_work.h"

struct args;
struct err;

enum { LOAD_SAMPLE = 64 }; /* requests that means are taken of */

struct load_plan {
    struct load_work work;
    struct load_trace trace; /* that work points to; n 0 = none */
    struct load_slo slo;
    double rate; /* only this one; 0 = search */
    struct load_span span;
    int cut; /* rows of the trace that are longer than the context */
    double temperature;
    double price; /* of a device for an hour; 0 not known */
    int max_seqs, devices;
    int step_tok;                    /* of who computes prompts */
    int prefill_parts, decode_parts; /* devices or threads of who computes prompts and of
                                        who answers; 0 not known */
    const char *quality, *png;       /* borrowed from the arguments; NULL none */
    char model[128], instance[64];
};

/* offer: the answer of GET loads/contract. ret is not moved afterwards. */
int load_plan_read(const struct args *a, const json_t *offer, struct load_plan *ret,
                   struct err *e);
void load_plan_done(struct load_plan *p);
/* How many requests a run at this rate has. */
int load_plan_count(const struct load_plan *p, double rate);
/* The contract, of which `served` is the daemon's part; takes quality. A new object. */
json_t *load_plan_contract(const struct load_plan *p, const json_t *served,
                           json_t *quality);

#endif

/* daemon/serve/outs.h - what becomes of the logits of a step: scores and sampled tokens.
 *
 * Inside the ranks executor only; the threads of the ranks that give out logits. Of
 * several groups (adp) each gives out those of its own items: they are taken in turn. */
#ifndef SERVE_OUTS_H
#define SERVE_OUTS_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct exec_slot;
struct outs;

struct outs_cfg {
    const struct exec_slot *slots; /* the executor's, borrowed: ticket % n_slots */
    int n_slots, n_vocab, max_items, max_rows;
    int n_groups, group_blocks; /* groups of ranks, KV blocks of each; 0 = one group */
};
/* One thread samples, until there are others. */
int outs_new(const struct outs_cfg *cfg, struct outs **ret, struct err *e);
void outs_free(struct outs *o);
/* Between two steps: other threads that sample. On failure those that it had go on. */
int outs_set_threads(struct outs *o, int n, const int *cpus, struct err *e);

/* Before the step runs: resolves its references, keeps only items whose tokens are all
 * known (those that wait for a token that was never accepted get an empty result) and
 * lists the outputs of the rest. */
void outs_plan(struct outs *o, struct exec_slot *s);
/* A forward_sink_fn with an outs_from as its arg; any thread. */
struct outs_from {
    struct outs *outs;
    int group; /* whose logits they are */
};
void outs_sink(void *arg, int first, int n, const float *logits);
/* What a rank did to rows of each item of the plan (STEP_ALTERED_*; NULL: nothing), into
 * the results; one rank after the other, when all are done. */
void outs_altered(struct outs *o, const int32_t *how);
/* Some row of the last plan had no usable logits. */
bool outs_failed(const struct outs *o);

#endif

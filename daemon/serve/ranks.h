/* daemon/serve/ranks.h - the real executor: one thread a rank, forward, then sampling.
 *
 * The scheduler thread submits; the leader's thread (the rank that gives out logits)
 * takes a step, lets the other ranks run it too, samples and pushes the completion. Each
 * rank owns its backend, its part of the model and its KV. Results of the last steps are
 * kept so that a step may refer to a token of the one before it (depth 2). A rank that
 * fails, is stuck or late ends the step on all of them with its name; the executor then
 * fails every further step with the same sentence. */
#ifndef SERVE_RANKS_H
#define SERVE_RANKS_H

#include <stdint.h>

#include "daemon/serve/forward.h"
#include "daemon/serve/mesh.h"
#include "daemon/serve/step.h"
#include "kernels/backend.h"
#include "kernels/comm.h"

struct err;
struct executor;
struct model;
struct rank_links;

struct ranks_cfg {
    struct backend_cfg backend; /* threads and cpus are shared out over the ranks; caps
                                   are filled in */
    struct forward_cfg forward; /* kv_type DT_COUNT = what the backend likes best; part is
                                   filled in */
    struct step_caps caps;      /* of the steps submitted; forward fits them */
    int depth;
    struct layout layout;    /* zeroed = one rank */
    int64_t comm_timeout_us; /* 0 = 30 s */
    /* A rack whose links are emulated between the ranks, and whose hosts they stand on
     * (topo/rack.h); NULL or "" = none, all on one host */
    const char *emulate;
    const struct rank_links *links; /* such a table itself (links.h), copied; or NULL */
};

/* Loads the weights in the rank threads and returns when all are ready; the model may be
 * freed afterwards. progress as in forward_new (called on the leader's thread). */
int ranks_new(struct model *m, const struct ranks_cfg *cfg, forward_progress_fn progress,
              void *arg, struct executor **ret, struct err *e);
const char *ranks_isa(const struct executor *x);
enum dtype ranks_kv_type(const struct executor *x);
/* Sum over the ranks, valid after ranks_new. */
void ranks_mem(const struct executor *x, struct backend_mem *ret);

/* One rank, for show and metrics; any thread. */
struct rank_status {
    struct mesh_rank at;
    struct backend_mem mem;
    int64_t busy_us, wait_us; /* in steps; of it waiting in collectives */
    struct comm_count counts[MESH_DIM_COUNT][COMM_CALL_COUNT];
};
int ranks_count(const struct executor *x);
void ranks_status(const struct executor *x, int rank, struct rank_status *ret);
/* The KV of one rank, valid after ranks_new; any thread. */
void ranks_kv(const struct executor *x, int rank, struct forward_kv *ret);

/* An executor that answers at once with token ids in a cycle, for measuring the rest. */
int nullexec_new(const struct step_caps *caps, int n_vocab, struct executor **ret,
                 struct err *e);

#endif

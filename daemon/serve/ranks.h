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

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/serve/forward.h"
#include "daemon/serve/mesh.h"
#include "daemon/serve/model.h"
#include "daemon/serve/moves.h"
#include "daemon/serve/step.h"
#include "kernels/backend.h"
#include "kernels/comm.h"

struct cpuplan;
struct executor;
struct expertpage;
struct model;
struct rank_links;
struct rankpage;
struct routes;
struct routes_dims;
struct tracepage;

struct ranks_cfg {
    struct backend_cfg backend; /* n_threads are shared out over the ranks; caps are
                                   filled in */
    const struct cpuplan *cpus; /* copied; where they run, and how many in place of those
                                   of backend; NULL = anywhere */
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
    struct expertpage *experts;     /* borrowed; told after each step; NULL = nobody is */
    struct tracepage *trace;        /* borrowed; NULL */
    struct rankpage *pairs;         /* what ranks read of each other; borrowed; NULL */
};

/* Loads the weights in the rank threads and returns when all are ready; the model may be
 * freed afterwards. progress as in forward_new (called on the leader's thread). */
int ranks_new(struct model *m, const struct ranks_cfg *cfg, forward_progress_fn progress,
              void *arg, struct executor **ret, struct err *e);
/* Other threads, from the next step on; copied. A rank that cannot have them goes on with
 * those that it had. Scheduler thread. */
void ranks_set_cpus(struct executor *x, const struct cpuplan *p);
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

/* ---- experts that move ---- */

/* What all ranks do between two steps, in the order in which steps and changes were
 * handed over: WARM joins weights that were loaded apart to their ranks and tries them,
 * VOTE asks every rank whether it can take the new table, FLIP puts the weights in their
 * slots, what stood there in their place, and brings the table in force; FREE frees the
 * weights that are in put. Done by all ranks before the next step begins, so a step sees
 * one table on all. A rank that cannot flip ends the executor, as in a step. */
enum ranks_change_kind { RANKS_WARM, RANKS_VOTE, RANKS_FLIP, RANKS_FREE };
struct ranks_change {
    enum ranks_change_kind kind;
    int layer;                   /* among those with experts */
    const struct routes *routes; /* as they are to be; borrowed */
    int n;
    struct {
        int rank, slot; /* of the expert group */
        struct weight *w[MODEL_EXPERT_ROLES];
    } put[MOVE_PUTS];
    bool failed; /* the answer; then why */
    struct err why;
    int64_t us; /* that the next step waited */
};
/* One at a time, on the scheduler thread; c is the executor's until ranks_changed gives
 * it back. */
void ranks_change(struct executor *x, struct ranks_change *c);
struct ranks_change *ranks_changed(struct executor *x); /* NULL: not yet */
struct ranks_change *ranks_changed_wait(struct executor *x, int64_t timeout_us);
int ranks_changed_fd(const struct executor *x);
/* Slots of the expert groups; false where experts do not stand apart, each on one rank
 * whole. */
bool ranks_routes(const struct executor *x, struct routes_dims *ret);
/* The device of a rank of the expert group that has this layer of experts. */
struct backend *ranks_backend(const struct executor *x, int layer, int rank);
/* The parts of a slot of the host tier, in the order of the ranks that have one: their
 * count, at most max. Stable as long as x. */
struct iovec;
int ranks_host(const struct executor *x, int slot, struct iovec *ret, int max);

/* An executor that answers at once with token ids in a cycle, for measuring the rest. */
int nullexec_new(const struct step_caps *caps, int n_vocab, struct executor **ret,
                 struct err *e);

#endif

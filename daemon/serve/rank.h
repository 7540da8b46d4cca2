/* daemon/serve/rank.h - one rank: its backend, its part of the model, its groups.
 *
 * Inside the ranks executor only. Opened, run and closed on the rank's own thread;
 * rank_status_of from any once it is open. */
#ifndef SERVE_RANK_H
#define SERVE_RANK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/gate.h"
#include "daemon/serve/ranks.h"

struct ranks;

struct rank {
    struct ranks *all;
    int index;
    const struct mesh *mesh;
    const struct rank_links *links; /* emulated; NULL = none */
    struct comm_fabric *fabric;     /* NULL with one rank */
    struct ranks_cfg cfg;           /* its own share of threads and cpus */

    struct backend *b;
    struct forward *f;
    struct comm *comm[MESH_DIM_COUNT]; /* NULL where it is alone */
    enum dtype kv_type;
    struct backend_mem mem;
    _Atomic int64_t busy_us;
    unsigned cpus_turn;     /* of the executor's, that it has followed */
    uint64_t epoch;         /* of the page of the experts that the counts run since */
    const int32_t *altered; /* STEP_ALTERED_* of the last step's items; NULL: none */
    struct err why;         /* of a load or a step that failed */
    bool failed;
    uint64_t *generation; /* of the table of each layer of experts, as in force here */
    bool refused;         /* of the last change, with `no` */
    struct err no;
    pthread_t thread;
    bool started;
    struct gate done; /* turns ended; 1 = loaded, or not */
    struct gate gone; /* 1 = the thread is at its end */
};

int rank_open(struct rank *r, struct model *m, forward_progress_fn progress, void *arg);
/* -1 with r->why; the fabric is ended then. */
int rank_run(struct rank *r, const struct step *st, forward_sink_fn sink, void *arg);
/* Its part of a change: -1 and r->refused, or for a flip r->failed. */
int rank_change(struct rank *r, struct ranks_change *c);
/* Is this rank the one of the expert group of that layer? */
bool rank_has_expert_slot(const struct rank *r, int layer, int rank);
/* Its share of CPUs that have changed. */
void rank_follow(struct rank *r);
void rank_close(struct rank *r);
void rank_status_of(const struct rank *r, struct rank_status *ret);

#endif

/* daemon/serve/ranks_impl.h - the ranks of one engine. For daemon/serve/ranks*.c only. */
#ifndef SERVE_RANKS_IMPL_H
#define SERVE_RANKS_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/err.h"
#include "base/gate.h"
#include "daemon/serve/cpuplan.h"
#include "daemon/serve/exec_slot.h"
#include "daemon/serve/executor.h"
#include "daemon/serve/links.h"
#include "daemon/serve/ranks.h"

struct queue;
struct rank;

struct ranks {
    struct executor x;
    struct ranks_cfg cfg;
    pthread_mutex_t cpus_lock;
    struct cpuplan cpus;   /* by cpus_lock */
    atomic_uint cpus_turn; /* how often it has changed */
    int n_vocab;
    struct queue *todo, *done;
    struct exec_slot *slots;
    int n_slots, in_flight; /* in_flight: scheduler thread */
    uint64_t tickets;
    struct exec_slot end;            /* its address on todo ends the leader */
    struct exec_slot turn_of_change; /* its address there: the next of changes */
    struct queue *changes, *changed;

    struct mesh mesh;
    struct rank_links links;    /* path NULL: not emulated */
    struct comm_fabric *fabric; /* NULL with one rank */
    struct rank *rank;          /* [mesh.n] */
    int leader;
    struct gate go;      /* step that the others may run; 1 = load */
    atomic_uint over;    /* they end */
    atomic_uint settled; /* turn whose step was given back */
    uint32_t turn;       /* the leader's: value of go */

    /* during ranks_new */
    struct model *m;
    forward_progress_fn progress;
    void *arg;
    struct err load_err;
    bool loaded;

    /* the leader's */
    struct outs *outs;
    unsigned outs_turn;          /* of cpus_turn, that they have followed */
    struct exec_slot *now;       /* being run; the others read its step */
    struct ranks_change *change; /* being made, in place of a step; else NULL */
};

/* ranks.c, the leader's thread: the others begin a turn; until each has ended it, at most
 * wait_us: 0, or -1 with the first failure; how long that may be. */
void ranks_go(struct ranks *r);
int ranks_done(struct ranks *r, int64_t wait_us, struct err *e);
int64_t ranks_timeout(const struct ranks *r);
/* A turn's step is given back once, by the leader or by a rank that waited for it in
 * vain: true for who is first. */
bool ranks_settle(struct ranks *r, uint32_t turn);

/* ranks_cpus.c: the calling thread onto the CPUs of rank i; how many threads it is to
 * have there, and the list to pin them to, or NULL: malloc'd. */
int ranks_stand(struct ranks *r, int i, int **ret_cpus);
/* The leader, between two steps: have those that sample follow. */
void ranks_follow(struct ranks *r);

/* ranks_change.c: a turn without a step. */
void ranks_run_change(struct ranks *r, struct ranks_change *c);

#endif

/* daemon/ctrl/child.h - the daemon's side of one engine process.
 *
 * Starts the program with a socketpair, the metric page and the page of the ranks, speaks
 * wire over it, reaps it. News comes by the callbacks below, on the control thread.
 * `gone` comes exactly once, last, when the process is reaped; the engine may be freed in
 * it, in no other. */
#ifndef CTRL_CHILD_H
#define CTRL_CHILD_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/wire.h"

struct err;
struct child;
struct loop;
struct step_token;
struct wire_add;
struct wire_arena;
struct wire_expert_orders;
struct wire_finish;
struct wire_moved;
struct wire_ready;

struct child_cfg {
    const char *program;
    char *const *args; /* the instance's options */
    int n_args;
    /* borrowed: the metric page and those of the ranks, of the experts and of traces */
    int page_fd, ranks_fd, experts_fd, trace_fd;
    const cpu_set_t *cpus; /* that it may use; NULL = as we */
    const char *rank_cpus; /* and its ranks: serve/cpuplan.h */
    uint8_t secret[16];
    const char *log_level;
    const char *kv_file;  /* where its disk tier may be; NULL = nowhere */
    const char *instance; /* whose its lines are in the log; copied, NULL allowed */
};

struct child_news {
    void (*hello)(void *arg);
    void (*loading)(void *arg, double done);
    void (*ready)(void *arg, const struct wire_ready *r);
    void (*tokens)(void *arg, uint64_t id, const struct step_token *toks, int n,
                   bool scored);
    void (*finish)(void *arg, const struct wire_finish *f);
    /* A region that the other pool may read; fd is the callee's. */
    void (*arena)(void *arg, const struct wire_arena *a, int fd);
    /* RESERVED EXPORT PULLED LOST, checked, n bytes at p. */
    void (*kv)(void *arg, enum wire_kind kind, const void *p, size_t n);
    void (*moved)(void *arg, const struct wire_moved *m);
    void (*note)(void *arg, const struct wire_note *n); /* for the journal */
    void (*pong)(void *arg);                            /* the answer to child_ping */
    void (*writable)(void *arg);                        /* after child_full was true */
    /* asked: it was told to stop. why: its own sentence, or how the process ended. */
    void (*gone)(void *arg, bool asked, const struct err *why);
};

int child_start(struct loop *l, const struct child_cfg *cfg,
                const struct child_news *news, void *arg, struct child **ret,
                struct err *e);
/* Kills and reaps what still runs, without news. */
void child_free(struct child *g);
int child_pid(const struct child *g);
/* The last lines of its stderr, joined by newlines. */
void child_lines(const struct child *g, char *out, size_t cap);

/* A connection that fails is not reported here: `gone` follows. */
void child_add(struct child *g, const struct wire_add *a);
void child_cancel(struct child *g, uint64_t id);
/* May its threads spin? For one that is ready. */
void child_spin(struct child *g, bool on);
/* The CPUs of its ranks from now on, as text: cpuplan.h. For one that is ready. */
void child_cpus(struct child *g, const char *text);
/* Another order of prompts, for one that is ready. */
void child_policy(struct child *g, const struct wire_policy *p);
/* Forget what is in the tiers below its KV. */
void child_wipe(struct child *g);
/* Give back what waits. */
void child_yield(struct child *g);
/* Is it alive? `pong` follows, where it is. */
void child_ping(struct child *g);
/* A region of an engine of the other pool; fd stays the caller's. */
void child_peer(struct child *g, const struct wire_arena *a, int fd);
/* A message of the other pool's, or PEER_GONE, as it is. */
void child_relay(struct child *g, enum wire_kind kind, const void *p, size_t n);
/* Go on by itself after n ids of the answer. */
void child_recompute(struct child *g, uint64_t id, const int32_t *ids, int n);
/* Experts that are to move; false when the connection is over. */
bool child_experts(struct child *g, const struct wire_expert_orders *o);
void child_stop(struct child *g);
/* SIGKILL; why becomes the reason in `gone`. */
void child_kill(struct child *g, const struct err *why);
/* Output waits: hand over nothing more until `writable`. */
bool child_full(const struct child *g);

#endif

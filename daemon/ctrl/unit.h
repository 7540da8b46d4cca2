/* daemon/ctrl/unit.h - one generation of one instance: its options, its place in the
 * router, its supervisor, and how it leaves.
 *
 *   RUNS -> DRAINS (no new requests, until none is left or the time is over) -> ENDS
 *   (its engine is stopped) -> GONE
 *
 * What decides when is the fleet's; here is how. Control thread only. */
#ifndef CTRL_UNIT_H
#define CTRL_UNIT_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/loader.h"
#include "daemon/ctrl/rankview.h"
#include "topo/layout.h"

struct conf;
struct conf_instance;
struct domain;
struct experts;
struct loop;
struct metric_page;
struct store;
struct supervisor;
struct supervisor_cfg;
struct target;
struct wire_moved;
struct wire_ready;

enum { UNIT_ARGS = 64, UNIT_LINES = 220 };

/* What all units share. */
struct unit_env {
    struct loop *loop;
    struct router *router;
    struct store *store;
    struct metric_page *page;
    struct experts *experts; /* told of engines whose experts can move; NULL */
    struct domain *domain;   /* whose devices the ranks are; NULL: none */
    const char *program;
    loader_open_fn open;
    int64_t backoff_us, stop_us; /* 0 = as documented */
    void (*news)(void *arg);     /* something changed: look again, soon */
    void (*ready)(void *arg, const char *instance);
    void (*trouble)(void *arg, const char *instance, enum alarm_engine kind,
                    const char *why);
    void *arg;
};

/* What makes an engine the one that it is: another list, another engine. */
struct unit_spec {
    const struct conf *conf; /* a reference */
    const struct conf_instance *inst;
    const char *model_path;
    char *args[UNIT_ARGS];
    int n_args;
    struct layout layout;
    char said[160]; /* of a layout that the planner chose: why; else "" */
};
/* layout: the planner's choice; NULL = that of the words. */
void unit_spec_init(struct unit_spec *s, const struct conf *c,
                    const struct conf_instance *i, const struct layout *layout);
void unit_spec_done(struct unit_spec *s);
/* Does it take another engine? why: the first difference, "mode chunked -> colocated". */
bool unit_spec_differs(const struct unit_spec *a, const struct unit_spec *b,
                       char why[160]);

enum unit_phase { UNIT_RUNS, UNIT_DRAINS, UNIT_ENDS, UNIT_GONE };

struct unit {
    struct list link; /* the fleet's */
    const struct unit_env *env;
    struct unit_spec spec;            /* it was made from */
    const struct conf *conf;          /* with its present values; a reference */
    const struct conf_instance *inst; /* of conf */
    int generation, page_fd, ranks_fd, experts_fd, trace_fd;
    uint64_t need;           /* bytes by estimate, 0 not known */
    struct rank_seat *seats; /* where its ranks are; NULL: no rack */
    int n_seats;
    cpu_set_t cpus; /* where it runs: unit_set_cpus */
    struct target *target;
    struct supervisor *sup;
    char *options; /* as JSON, for the inventory */
    enum unit_phase phase;
    int64_t drain_s, drain_until_us;
    bool halted; /* by an operator: GONE, and kept to be shown */
    char reason[256];
    bool was_ready; /* once */
    bool failed;    /* its first start did, see why */
    struct err why; /* of the failure, with the engine's last lines */
    struct err end; /* what requests are told that outlast the drain */
};

/* Takes spec when it succeeds. Nothing runs before unit_start. */
int unit_new(const struct unit_env *env, struct unit_spec *spec, int generation,
             struct unit **ret, struct err *e);
/* Where its ranks are, taken (malloc'd); before unit_start. */
void unit_seat(struct unit *u, struct rank_seat *seats, int n);
void unit_start(struct unit *u);
/* Not started at all, shown as stopped: by an operator who gave this reason. */
void unit_halt(struct unit *u, const char *reason);
/* The values of an instance whose engine does not differ. Takes a reference. */
void unit_hot(struct unit *u, const struct conf *c, const struct conf_instance *i);
/* Would unit_hot change anything? */
bool unit_hot_differs(const struct unit *u, const struct conf_instance *to,
                      char why[160]);
/* Begin to leave; why is for requests that are still there after drain_s; reason: see
 * unit_halt, NULL = none. One that is not ready ends at once. */
void unit_leave(struct unit *u, int64_t drain_s, const struct err *why,
                const char *reason);
/* At once, without a drain: the daemon stops. */
void unit_end(struct unit *u, const struct err *why);
/* Go on leaving; returns when to call again (monotonic us, -1 = on news). */
int64_t unit_step(struct unit *u, int64_t now_us);
void unit_drain(struct unit *u, bool on);
/* Forget what is in the tiers below its KV. */
void unit_wipe(struct unit *u);
/* Where it runs from now on: one set a rank, or n 1, which the ranks share out. */
void unit_set_cpus(struct unit *u, const cpu_set_t *v, int n);
/* How many threads it has on u->cpus; 0 = it is gone. */
int unit_threads(const struct unit *u);
/* May its threads spin? */
void unit_spin(struct unit *u, bool on);
int unit_live(const struct unit *u);
bool unit_ready(const struct unit *u);
/* Kills what runs; its requests get an error. */
void unit_free(struct unit *u);

/* ---- unit_hot.c: the values that its target and its supervisor begin with ---- */
void unit_hot_first(struct unit *u, struct supervisor_cfg *c);

/* ---- unit_experts.c: what a supervisor says of the engine's experts ---- */
/* It is ready; r NULL: it is gone. */
void unit_experts_ready(void *unit, const struct wire_ready *r);
void unit_experts_moved(void *unit, const struct wire_moved *m);

#endif

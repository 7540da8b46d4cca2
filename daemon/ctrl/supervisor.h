/* daemon/ctrl/supervisor.h - keeps one engine running: open, start, warm, watch, restart.
 *
 * STARTING (vocabulary, process) -> LOADING -> READY; a failure leads to BACKOFF (it had
 * been ready) or FAILED (it never was), and from both back to STARTING after a time that
 * doubles. Ready is said after one tiny generation that warms it and that no counter
 * shows. Writes journal and inventory, publishes through its target. Control thread only.
 */
#ifndef CTRL_SUPERVISOR_H
#define CTRL_SUPERVISOR_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/loader.h"

struct err;
struct loop;
struct metric_page;
struct store;
struct supervisor;
struct target;
struct wire_expert_orders;
struct wire_policy;
struct wire_moved;
struct wire_ready;

/* Borrowed pointers live as long as the supervisor. */
struct supervisor_cfg {
    struct loop *loop;
    struct target *target;
    struct store *store;      /* NULL in tests: no journal */
    struct metric_page *page; /* the daemon's */
    int engine_page_fd;       /* of the target's page */
    int engine_ranks_fd;      /* and of its ranks */
    int engine_experts_fd;    /* and of its experts */
    int engine_trace_fd;      /* and of what it does while somebody asks */

    const char *instance, *model_path, *model_name; /* name "" = from the file */
    const char *layout_why;     /* of one that the planner chose; NULL */
    const char *mode, *options; /* for the inventory; options is JSON */
    const char *kv_file;        /* of its disk tier; NULL, copied */
    const char *program, *log_level;
    char *const *args; /* of the engine program */
    int n_args;
    loader_open_fn open;

    int64_t backoff_us, backoff_max_us; /* first and longest wait */
    int64_t stable_us;                  /* ready so long: the first wait again */
    int64_t hello_us;                   /* from start to the first word */
    int64_t load_us;                    /* loading without progress */
    int64_t stuck_us;                   /* work pending and no step ends; 0 = never */
    int64_t answer_us; /* no sign of life: it is shown so and passed by; 0 = not asked */
    int64_t silent_us; /* no sign of life: killed; 0 = never */
    int64_t stop_us;   /* from STOP to SIGKILL */

    /* Each may be NULL; the supervisor may not be freed in them. */
    void (*ready)(void *arg, const struct served *m); /* each time */
    void (*failed)(void *arg, const struct err *why); /* before it was ready */
    void (*stopped)(void *arg);                       /* after supervisor_stop */
    /* What the engine said when it was ready (NULL: it is gone), and of moves. */
    void (*facts)(void *arg, const struct wire_ready *r);
    void (*moved)(void *arg, const struct wire_moved *m);
    /* Of one that runs: SILENT, KV_DISK; why NULL: it is well again, or gone. Said again
     * now and then while it lasts. */
    void (*trouble)(void *arg, enum alarm_engine kind, const char *why);
    void *arg;
};

/* The times as documented: 0.5 s to 30 s, 60 s, 10 s, 120 s, 60 s, 5 s, 60 s, 5 s. */
void supervisor_cfg_times(struct supervisor_cfg *cfg);

int supervisor_new(const struct supervisor_cfg *cfg, struct supervisor **ret,
                   struct err *e);
void supervisor_start(struct supervisor *s);
/* On: no new requests; those that run go on. Off: as before. */
void supervisor_drain(struct supervisor *s, bool on);
/* Forget what is in the tiers below its KV; for one that is not ready: nothing is said.
 */
void supervisor_wipe(struct supervisor *s);
/* End the engine; requests that still run get `why` (NULL: the server is stopping). Ask
 * supervisor_stopped after. note: an operator's reason, shown as the last error; NULL. */
void supervisor_stop(struct supervisor *s, const struct err *why, const char *note);
bool supervisor_stopped(const struct supervisor *s);
/* May the engine's threads spin (at first yes)? Told when it is ready, and then at once.
 */
void supervisor_set_spin(struct supervisor *s, bool on);
/* The CPUs that the engine may use, those of its ranks as text (serve/cpuplan.h), and how
 * many threads it has there: for the next start, and for one that is ready at once. */
void supervisor_set_cpus(struct supervisor *s, const cpu_set_t *all, const char *by_rank,
                         int n_threads);
/* Another order of prompts than its options say: told at once, and to each engine that
 * becomes ready after. */
void supervisor_set_policy(struct supervisor *s, const struct wire_policy *p);
/* Orders for its experts; false when there is no engine that hears them. */
bool supervisor_experts(struct supervisor *s, const struct wire_expert_orders *o);
/* Changed limits, as in supervisor_cfg. */
void supervisor_set_limits(struct supervisor *s, int64_t stuck_us, int64_t answer_us,
                           int64_t silent_us);
const struct instance_status *supervisor_status(const struct supervisor *s);
/* Of the model that was opened last, borrowed; NULL: planning does not know it. */
const struct shapes *supervisor_shapes(const struct supervisor *s);
/* The last lines of the engine that ended last, "" none. */
const char *supervisor_lines(const struct supervisor *s);
/* Kills what still runs; its requests must have ended (see target_fail_all). */
void supervisor_free(struct supervisor *s);

#endif

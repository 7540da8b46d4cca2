/* daemon/ctrl/supervisor.h - keeps one instance running: open, start, watch, restart.
 *
 * STARTING (vocabulary, process) -> LOADING -> READY; a failure leads to BACKOFF (it had
 * been ready) or FAILED (it never was), and from both back to STARTING after a time that
 * doubles. Writes journal and inventory, publishes through the router. Control thread
 * only. */
#ifndef CTRL_SUPERVISOR_H
#define CTRL_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ctrl/loader.h"

struct err;
struct loop;
struct metric_page;
struct router;
struct store;
struct supervisor;

/* Borrowed pointers live as long as the supervisor. */
struct supervisor_cfg {
    struct loop *loop;
    struct router *router;
    struct store *store;                    /* NULL in tests: no journal */
    struct metric_page *page, *engine_page; /* the daemon's; the engine's */
    int engine_page_fd;

    const char *instance, *model_path, *model_name; /* name "" = from the file */
    const char *mode, *options; /* for the inventory; options is JSON */
    const char *program, *log_level;
    char *const *args; /* of the engine program */
    int n_args;
    loader_open_fn open;

    int64_t backoff_us, backoff_max_us; /* first and longest wait */
    int64_t stable_us;                  /* ready so long: the first wait again */
    int64_t hello_us;                   /* from start to the first word */
    int64_t load_us;                    /* loading without progress */
    int64_t stuck_us;                   /* work pending and no step ends; 0 = never */
    int64_t stop_us;                    /* from STOP to SIGKILL */

    void (*ready)(void *arg, const struct served *m); /* each time; may be NULL */
    void *arg;
};

/* The times as documented: 0.5 s to 30 s, 60 s, 10 s, 120 s, 60 s, 5 s. */
void supervisor_cfg_times(struct supervisor_cfg *cfg);

int supervisor_new(const struct supervisor_cfg *cfg, struct supervisor **ret,
                   struct err *e);
void supervisor_start(struct supervisor *s);
/* No new requests; those that run go on. */
void supervisor_drain(struct supervisor *s);
/* End the engine; requests that still run get an error. Ask supervisor_stopped after. */
void supervisor_stop(struct supervisor *s);
bool supervisor_stopped(const struct supervisor *s);
/* Kills what still runs. */
void supervisor_free(struct supervisor *s);

#endif

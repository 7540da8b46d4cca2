/* ctl/run.h - one session and what its verbs do: a row of verb.def, its call, its answer.
 *
 * run_line finds the verb, reads its arguments, asks if it must, and calls the row's
 * function. Only the files that include this print. One owner thread. */
#ifndef CTL_RUN_H
#define CTL_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"
#include "ctl/option.h"
#include "ctl/table.h"

struct args;
struct err;
struct verb;
struct wire;
struct wire_request;

struct session {
    struct wire *wire;
    FILE *out;          /* what verbs print goes there */
    const char *at;     /* the daemon's socket or address */
    struct options opt; /* of the command line, and of the line that runs */
    bool slow;          /* the call may take minutes */
    bool shell, leave;  /* lines are typed; exit was said */
};

/* Runs one line; -1 and a sentence. */
int run_line(struct session *s, const char *line, struct err *e);

struct answer {
    struct buf raw;
    json_t *root; /* NULL when the body is no JSON */
    int status;
};
/* The call, its answer parsed. answer_done also after a failure. */
int run_call(struct session *s, const struct wire_request *r, struct answer *ret,
             struct err *e);
/* GET of a path under /api/v1/. */
int run_get(struct session *s, const char *path, struct answer *ret, struct err *e);
void answer_done(struct answer *a);
/* Prints an answer by a view ({ARGS} in it are filled in) or as JSON. */
void run_show(struct session *s, const struct answer *a, const char *view,
              const struct args *args);
struct show_style run_style(void);
/* The call that v's row describes, with body instead of the row's when not NULL; follows
 * a 202 and shows the rest. */
int run_row(struct session *s, const struct verb *v, const struct args *a,
            const char *body, struct err *e);
/* Yes or no of the operator; DENIED without a terminal. */
int run_ask(struct session *s, const char *question, struct err *e);

/* Waits until at_us (monotonic), or less when Ctrl-C comes. */
void run_pause(int64_t at_us);

/* Follows an operation to its end (or says its id, with --no-wait). A failed one is an
 * error with its sentence. */
int op_follow(struct session *s, const char *id, struct err *e);

/* ---- what rows name: run_<run> ---- */
typedef int (*run_fn)(struct session *s, const struct verb *v, const struct args *a,
                      struct err *e);
int run_rest(struct session *, const struct verb *, const struct args *, struct err *);
int run_slow(struct session *, const struct verb *, const struct args *, struct err *);
int run_version(struct session *, const struct verb *, const struct args *, struct err *);
int run_help(struct session *, const struct verb *, const struct args *, struct err *);
int run_exit(struct session *, const struct verb *, const struct args *, struct err *);
int run_chat(struct session *, const struct verb *, const struct args *, struct err *);
int run_explain(struct session *, const struct verb *, const struct args *, struct err *);
int run_plan(struct session *, const struct verb *, const struct args *, struct err *);
int run_plan_show(struct session *, const struct verb *, const struct args *,
                  struct err *);
int run_slo_history(struct session *, const struct verb *, const struct args *,
                    struct err *);
int run_fetch_file(struct session *, const struct verb *, const struct args *,
                   struct err *);
int run_send_file(struct session *, const struct verb *, const struct args *,
                  struct err *);
int run_key_create(struct session *, const struct verb *, const struct args *,
                   struct err *);
int run_completion(struct session *, const struct verb *, const struct args *,
                   struct err *);
int run_config_show(struct session *, const struct verb *, const struct args *,
                    struct err *);
int run_config_diff(struct session *, const struct verb *, const struct args *,
                    struct err *);
int run_config_edit(struct session *, const struct verb *, const struct args *,
                    struct err *);
int run_config_draft(struct session *, const struct verb *, const struct args *,
                     struct err *);
int run_config_load(struct session *, const struct verb *, const struct args *,
                    struct err *);
int run_config_save(struct session *, const struct verb *, const struct args *,
                    struct err *);
int run_config_check(struct session *, const struct verb *, const struct args *,
                     struct err *);
int run_config_commit(struct session *, const struct verb *, const struct args *,
                      struct err *);
int run_wait(struct session *, const struct verb *, const struct args *, struct err *);
int run_events(struct session *, const struct verb *, const struct args *, struct err *);
int run_log(struct session *, const struct verb *, const struct args *, struct err *);
int run_log_level(struct session *, const struct verb *, const struct args *,
                  struct err *);
int run_bundle(struct session *, const struct verb *, const struct args *, struct err *);
int run_load(struct session *, const struct verb *, const struct args *, struct err *);
int run_load_compare(struct session *, const struct verb *, const struct args *,
                     struct err *);
int run_trace(struct session *, const struct verb *, const struct args *, struct err *);
int run_quality_run(struct session *, const struct verb *, const struct args *,
                    struct err *);
int run_load_show(struct session *, const struct verb *, const struct args *,
                  struct err *);
int run_experts_show(struct session *, const struct verb *, const struct args *,
                     struct err *);
int run_monitor(struct session *, const struct verb *, const struct args *, struct err *);
int run_watch(struct session *, const struct verb *, const struct args *, struct err *);

#endif

/* daemon/serve/expertload.h - experts from the model's files to the device, beside the
 * ranks.
 *
 * One thread of its own. It works in slices of a few rows and rests after each, so that
 * it takes a small share of one CPU, copies no more beside each step than is left to it,
 * and no step waits for it: first the load, then, asked again, the check, which reads
 * every value back from the device's form and compares it and its checksum with the
 * files. Jobs are the caller's: while one is asked for only expertload_stop may touch it.
 * Owner: the scheduler thread. */
#ifndef SERVE_EXPERTLOAD_H
#define SERVE_EXPERTLOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/serve/model.h"
#include "daemon/serve/moves.h"

struct backend;
struct expertload;
struct weight;

struct expertload_cfg {
    struct model *model; /* borrowed; outlives the loader */
    size_t slice_bytes;  /* 0 = 64 KiB of the file's */
    double share;        /* of the thread's time; 0 = 0.06 */
    /* However little a step leaves, a job is not held up for longer; 0 = 10 s. */
    int64_t longest_us;
};

enum expertload_kind { EXPERTLOAD_LOAD, EXPERTLOAD_CHECK };

/* The experts of one move. */
struct expertload_job {
    uint64_t id;
    int layer; /* of the model */
    int n;
    struct {
        struct backend *b; /* of the rank that it is for */
        int expert;        /* -1 = nothing to load */
        /* by role from ROLE_EXP_GATE on; NULL where the model has none. Made apart (see
         * weight_new) */
        struct weight *w[MODEL_EXPERT_ROLES];
    } put[MOVE_PUTS];
    size_t bytes;     /* of the files, loaded */
    size_t all_bytes; /* to be loaded */
    int64_t work_us;  /* of loading and check, rests left out */
    uint64_t sum;     /* of the values, after the check */
    bool failed;      /* why says it */
    struct err why;
    enum expertload_kind kind;
    atomic_uint stop;
};

int expertload_new(const struct expertload_cfg *cfg, struct expertload **ret,
                   struct err *e);
/* Waits for the thread, at most 5 s: one that hangs is left behind with what it uses
 * (false). NULL allowed: true. */
bool expertload_free(struct expertload *l);
int expertload_fd(const struct expertload *l); /* readable when expertload_poll has one */

/* One at a time. */
void expertload_ask(struct expertload *l, struct expertload_job *j,
                    enum expertload_kind kind);
/* A job that is done, or NULL. */
struct expertload_job *expertload_poll(struct expertload *l);
/* Most bytes of the files beside a step, and the share of the thread's time; 0 = as
 * before, of the bytes at first: any. Then how long a step took. */
void expertload_pace(struct expertload *l, int64_t step_bytes, double share);
void expertload_step(struct expertload *l, int64_t step_us);
/* It comes back soon, failed with ERR_CANCELED. Any thread. */
static inline void expertload_stop(struct expertload_job *j)
{
    atomic_store(&j->stop, 1);
}
/* Frees what it still holds of weights. */
void expertload_job_done(struct expertload_job *j);

#endif

/* state/runs.h - runs that were measured, at rest: what was compared (the contract), what
 * came out, and of a quality run of an exact instance what its model said, for later ones
 * to be held against.
 *
 * All are JSON that llmctl made (base/contract.h, ctl/quality.h); nothing here looks
 * inside. The last 1000 load runs are kept, and of an instance's model (its hash) the
 * last 100 quality runs. Control thread. */
#ifndef STATE_RUNS_H
#define STATE_RUNS_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct store;

enum run_kind { RUN_LOAD, RUN_QUALITY, RUN_KINDS };
const char *run_kind_name(enum run_kind k); /* "load run" */

enum { RUN_JSON_MAX = 1 << 20 };

struct stored_run {
    int64_t id, at_ms;
    char instance[64], model[128], actor[64];
    /* of quality runs alone */
    char model_hash[20];
    bool exact; /* of an instance whose settings do not change output */
    /* malloc'd; reference NULL: none, or not asked for */
    char *contract, *result, *reference;
};
/* Fills id; borrows the strings. */
int runs_put(struct store *s, enum run_kind k, struct stored_run *r, struct err *e);
int runs_get(struct store *s, enum run_kind k, int64_t id, struct stored_run *ret,
             struct err *e);
/* Newest first, before id `before` (0 = from the newest), without what models said; those
 * of an instance alone where it is not "". Returns the count. */
int runs_list(struct store *s, enum run_kind k, const char *instance, int64_t before,
              struct stored_run *ret, int max, struct err *e);
void run_done(struct stored_run *r);

#endif

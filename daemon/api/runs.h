/* daemon/api/runs.h - runs that were measured (load, quality), kept, listed and shown:
 * what both kinds share. Their routes are in runs.c, but for what a sender needs
 * beforehand and what must still hold when its run is kept: loads.c, quality.c. Control
 * thread. */
#ifndef API_RUNS_H
#define API_RUNS_H

#include "base/json.h"

#include "state/runs.h"

struct conn;

/* Does what the run says of us still hold? May fill what its kind alone has. */
typedef int (*run_still_fn)(struct conn *c, const json_t *contract, struct stored_run *r,
                            struct err *e);
/* The body is {"contract": .., "result": ..} and what else `members` names; answered. */
void runs_keep(struct conn *c, enum run_kind k, const char *members, const char *action,
               run_still_fn still);
const char *run_text(const json_t *o, const char *key); /* "" where there is none */

#endif

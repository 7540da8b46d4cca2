/* state/loads.h - load runs at rest: what was compared (the contract) and what came out.
 *
 * Both are JSON that llmctl load made (base/contract.h); nothing here looks inside.
 * The last 1000 are kept. Control thread. */
#ifndef STATE_LOADS_H
#define STATE_LOADS_H

#include <stdint.h>

struct err;
struct store;

enum { LOAD_JSON_MAX = 1 << 20 };

struct stored_load {
    int64_t id, at_ms;
    char instance[64], model[128], actor[64];
    char *contract, *result; /* malloc'd */
};
/* Fills id; borrows the strings. */
int loads_put(struct store *s, struct stored_load *r, struct err *e);
int loads_get(struct store *s, int64_t id, struct stored_load *ret, struct err *e);
/* Newest first, before id `before` (0 = from the newest); those of an instance alone
 * where it is not "". Returns the count. */
int loads_list(struct store *s, const char *instance, int64_t before,
               struct stored_load *ret, int max, struct err *e);
void loads_row_done(struct stored_load *r);

#endif

/* state/quality.h - quality runs at rest: what was compared (the contract), what came
 * out, and of a run of an exact instance what its model said, for later ones to be held
 * against.
 *
 * All three are JSON (ctl/quality.h); nothing here looks inside. Of an instance's model
 * (its hash) the last 100 are kept. Control thread. */
#ifndef STATE_QUALITY_H
#define STATE_QUALITY_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct store;

enum { QUALITY_JSON_MAX = 1 << 20 };

struct stored_quality {
    int64_t id, at_ms;
    char instance[64], model[128], actor[64], model_hash[20];
    bool exact; /* of an instance whose settings do not change output */
    /* malloc'd; reference NULL: none, or not asked for */
    char *contract, *result, *reference;
};
/* Fills id; borrows the strings. */
int quality_put(struct store *s, struct stored_quality *q, struct err *e);
int quality_get(struct store *s, int64_t id, struct stored_quality *ret, struct err *e);
/* Newest first, before id `before` (0 = from the newest), without what models said; those
 * of an instance alone where it is not "". Returns the count. */
int quality_list(struct store *s, const char *instance, int64_t before,
                 struct stored_quality *ret, int max, struct err *e);
void quality_row_done(struct stored_quality *q);

#endif

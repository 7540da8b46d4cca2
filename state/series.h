/* state/series.h - SLO accounting at rest: one row a minute, instance and class.
 *
 * json is what daemon/ctrl/slo writes and reads; nothing here looks inside. Rows may be
 * lost with the power (they are history, not promises), never torn. Control thread. */
#ifndef STATE_SERIES_H
#define STATE_SERIES_H

#include <stdint.h>

struct err;
struct store;

struct series_row {
    int64_t minute; /* Unix time / 60 s */
    char instance[64], slo_class[64];
    int64_t revision;
    char *json; /* borrowed */
};
/* All rows of one minute in one transaction; replaces. */
int series_put(struct store *s, const struct series_row *rows, int n, struct err *e);
/* fn for each row with from <= minute < to, oldest first; 0 stops. fn keeps no pointer
 * and does not call the store. */
typedef int (*series_fn)(void *arg, const struct series_row *r);
int series_read(struct store *s, int64_t from, int64_t to, series_fn fn, void *arg,
                struct err *e);
int series_prune(struct store *s, int64_t before_minute, struct err *e);

#endif

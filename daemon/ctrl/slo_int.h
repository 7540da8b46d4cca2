/* daemon/ctrl/slo_int.h - a look at one series, for slo_report.c; minutes into the store.
 */
#ifndef CTRL_SLO_INT_H
#define CTRL_SLO_INT_H

#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/slo.h"
#include "daemon/ctrl/slo_cell.h"

struct series_row;

struct slo_view {
    char instance[64], slo_class[SLO_CLASS];
    struct conf_slo target;
    double span_s;       /* that sum covers */
    struct slo_cell sum; /* of the window; since the start when window_s is 0 */
};

/* The i-th series; false past the last. */
bool slo_look(struct slo *s, int i, int64_t now_us, int64_t window_s,
              struct slo_view *ret);

/* Rows of minutes into the store, each joined with one that a former run of the daemon
 * left for the same minute, so that a restart loses nothing that was counted. */
int slo_put(struct store *st, const struct series_row *rows, int n, struct err *e);
/* Figures of two parts of one minute (members of slo_cell_json), malloc'd; one that is no
 * such object is left out. Counts and rates add up; of percentiles the greater one
 * stands, for that of both together lies between them. Targets are those of `newer`. */
char *slo_join(const char *older, const char *newer);

#endif

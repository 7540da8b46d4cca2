/* ctl/plot.h - attainment over arrival rate as a PNG. The only file that sees cairo.
 *
 * Pure: the same points give the same picture. One owner thread. */
#ifndef CTL_PLOT_H
#define CTL_PLOT_H

#include <stdbool.h>

struct buf;
struct err;

struct plot_point {
    double rate, share, low, high; /* of all targets, with its interval */
    double ttft_share, tpot_share; /* of each target alone */
    bool saturated;
};
struct plot {
    const char *title;
    const char *const *small; /* lines of small print below */
    int n_small;
    const struct plot_point *v; /* by rising rate */
    int n;
    double target;           /* wanted share */
    double chosen;           /* goodput; 0 = none */
    bool has_ttft, has_tpot; /* is there such a target? */
};
/* Appends the bytes of the file to out. */
int plot_png(const struct plot *p, struct buf *out, struct err *e);

#endif

/* daemon/ctrl/slo_int.h - a look at one series, for slo_report.c. */
#ifndef CTRL_SLO_INT_H
#define CTRL_SLO_INT_H

#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/slo.h"
#include "daemon/ctrl/slo_cell.h"

struct slo_view {
    char instance[64], slo_class[SLO_CLASS];
    struct conf_slo target;
    double span_s;       /* that sum covers */
    struct slo_cell sum; /* of the window; since the start when window_s is 0 */
};

/* The i-th series; false past the last. */
bool slo_look(struct slo *s, int i, int64_t now_us, int64_t window_s,
              struct slo_view *ret);

#endif

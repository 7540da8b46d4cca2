/* daemon/ctrl/guard.h - did a revision make the service worse? Pure.
 *
 * Compares two windows of finished requests by attainment, error rate and readiness. A
 * share is worse only when the Newcombe interval of the difference of the two proportions
 * (from Wilson's score intervals) excludes zero; readiness is worse when it was lost. */
#ifndef CTRL_GUARD_H
#define CTRL_GUARD_H

#include <stdbool.h>
#include <stdint.h>

struct guard_window {
    int64_t n;      /* finished requests that count: with refused ones, without cancels */
    int64_t met;    /* that met their SLO */
    int64_t errors; /* refused, or ended by the server's fault */
    bool ready;     /* every instance is ready at its end */
};
enum guard_verdict { GUARD_GOOD, GUARD_WORSE, GUARD_INSUFFICIENT };
/* sentence: which number broke, from what to what; or how much is missing. */
enum guard_verdict guard_judge(const struct guard_window *before,
                               const struct guard_window *now, int64_t min_n,
                               double confidence, char sentence[256]);

#endif

/* ctl/monitor.h - the live screen: what it shows is made of what the daemon last said.
 *
 * monitor_take and monitor_frame are pure, so that the screen can be tested without one.
 */
#ifndef CTL_MONITOR_H
#define CTL_MONITOR_H

#include <stdint.h>

#include "base/json.h"

struct buf;
struct show_style;

enum { MONITOR_HISTORY = 120 };

struct monitor {
    json_t *status, *slo, *devices, *alarms; /* owned; NULL = not known */
    double in_per_s, out_per_s;              /* tokens, between the last two looks */
    double history[MONITOR_HISTORY];         /* out_per_s, newest last */
    int n_history;
    double last_in, last_out;
    int64_t last_us; /* of the last look, 0 none */
};
void monitor_done(struct monitor *m);
/* A new status (taken) at now_us: rates from the one before. */
void monitor_take(struct monitor *m, json_t *status, int64_t now_us);
/* The screen, of at most st->width columns. clock: "14:03:11". why: what went wrong with
 * the last look, "" nothing. */
void monitor_frame(const struct monitor *m, const struct show_style *st,
                   const char *clock, const char *why, struct buf *out);

#endif

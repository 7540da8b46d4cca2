/* daemon/ctrl/traceview.h - traces of an instance's engines: begun, and read as copies.
 *
 * What engines did comes from the pages that they write; taken under the router's lock,
 * so that no engine is waited for. Any thread. */
#ifndef CTRL_TRACEVIEW_H
#define CTRL_TRACEVIEW_H

#include <stdint.h>

#include "daemon/serve/tracepage.h"

struct err;
struct router;

/* Begins one on all engines of an instance ("" = all there are) until until_us
 * (monotonic), of one request or (0) of all. What an earlier one left is gone. Returns
 * how many engines; NOTFOUND. */
int traceview_begin(struct router *r, const char *instance, int64_t now_us,
                    int64_t until_us, uint64_t request, struct err *e);

struct trace_view {
    char instance[64], model[128];
    int generation, n_ranks, n;
    int64_t lost;              /* events that had no room */
    struct trace_event *event; /* [n], owned */
};
/* Ends them. malloc'd, one an engine; returns the count. */
int traceview_take(struct router *r, const char *instance, struct trace_view **ret);
void traceview_free(struct trace_view *v, int n);

#endif

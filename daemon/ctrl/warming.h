/* daemon/ctrl/warming.h - the one tiny generation before an engine is ready.
 *
 * It goes past the router: its id is none that the router gives, and once it has ended,
 * with the engine idle, the counters of the engine's page are set back to what they were.
 * Control thread. */
#ifndef CTRL_WARMING_H
#define CTRL_WARMING_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/serve/metrics.h"

struct child;
struct err;
struct expertpage;
struct metric_page;

#define WARMING_ID ((uint64_t)1 << 62)

struct warming {
    struct metric_page *before; /* the counters before it */
    bool on;
};
int warming_init(struct warming *w, struct err *e);
void warming_done(struct warming *w); /* also of one that is zero */

/* page: the engine's. */
void warming_start(struct warming *w, struct child *c, struct metric_page *page);
/* It has ended, or its engine has; nothing when none is on. experts: likewise, or NULL.
 */
void warming_end(struct warming *w, struct metric_page *page, struct expertpage *experts);

#endif

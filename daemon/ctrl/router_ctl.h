/* daemon/ctrl/router_ctl.h - the control thread's side of the router as a whole.
 *
 * What belongs to one engine is in target.h. Called by the control thread only. */
#ifndef CTRL_ROUTER_CTL_H
#define CTRL_ROUTER_CTL_H

#include "daemon/ctrl/router.h"

/* page: the daemon's, borrowed. */
int router_new(struct metric_page *page, struct router **ret, struct err *e);
/* Every target must have been freed. */
void router_free(struct router *r);
/* From now on requests are refused; does not end those that run. */
void router_drain(struct router *r);
/* Requests without a finish, of all targets. */
int router_live(struct router *r);

#endif

/* daemon/api/control.h - pieces of control.c that others have too. Any thread. */
#ifndef API_CONTROL_H
#define API_CONTROL_H

struct conn;
struct http;
struct jw;
struct router;

void control_put_status(struct conn *c, struct jw *w); /* an object */
/* The member "degraded": what of the configuration does not answer, a sentence each. */
void control_put_degraded(struct router *r, struct jw *w);
void control_put_metrics(struct http *h, struct jw *w); /* a list */

#endif

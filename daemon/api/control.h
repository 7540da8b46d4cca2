/* daemon/api/control.h - pieces of control.c that the support bundle has too. Any thread.
 */
#ifndef API_CONTROL_H
#define API_CONTROL_H

struct conn;
struct http;
struct jw;

void control_put_status(struct conn *c, struct jw *w);  /* an object */
void control_put_metrics(struct http *h, struct jw *w); /* a list */

#endif

/* daemon/api/ctlqueue.h - requests that the control thread answers.
 *
 * The store, the fleet and the revisions belong to the control thread; the HTTP threads
 * leave such requests in a bounded queue that its loop empties, a few a pass, so that a
 * crowd of them does not hold up tokens. The queue holds a reference to the request until
 * its handler returned; a handler that answers later takes its own. */
#ifndef API_CTLQUEUE_H
#define API_CTLQUEUE_H

struct conn;
struct ctlqueue;
struct err;
struct loop;

typedef void (*ctlqueue_fn)(struct conn *c);

/* Control thread. */
int ctlqueue_new(struct loop *l, int capacity, struct ctlqueue **ret, struct err *e);
void ctlqueue_free(struct ctlqueue *q); /* what still waits is let go; NULL allowed */
/* UNAVAIL when it is full. Any thread. q NULL: a server without a control thread. */
int ctlqueue_push(struct ctlqueue *q, struct conn *c, ctlqueue_fn fn, struct err *e);

#endif

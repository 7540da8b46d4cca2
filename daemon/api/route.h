/* daemon/api/route.h - method and path to a handler, from the rows of route.def. Pure. */
#ifndef API_ROUTE_H
#define API_ROUTE_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/api/access.h"

struct conn;
struct err;

/* Where a handler runs: on the HTTP thread, for what is made from snapshots; on a worker
 * thread, for what takes a while; on the control thread, for what needs the store, the
 * fleet or the revisions. It may answer later in any case. */
enum route_run { ROUTE_INLINE, ROUTE_WORKER, ROUTE_CONTROL };

enum { ROUTE_ARGS = 2, ROUTE_ALLOW = 48 };

struct route {
    const char *method, *path, *name; /* name: of the handler, unique */
    enum access_scope access;
    enum route_run run;
    bool inference; /* refused while draining */
    void (*handler)(struct conn *c);
    const char *query, *request, *reply, *codes, *summary; /* as in route.def */
};

/* What a request path matched: the {names} of the row in their order, malloc'd. */
struct route_match {
    const struct route *route;
    char *arg[ROUTE_ARGS];
    char allow[ROUTE_ALLOW]; /* with METHOD: what the path takes, "GET, HEAD, PUT" */
};

/* Fill *m for a request; HEAD finds GET. -1 with NOTFOUND, or METHOD and m->allow. One
 * slash at the end is ignored. */
int route_find(const char *method, const char *path, struct route_match *m,
               struct err *e);
void route_match_done(struct route_match *m);
/* The i-th row, NULL past the last. */
const struct route *route_row(int i);

/* The handlers that the rows name. */
#define ROUTE(method, path, access, run, inference, handler, query, request, reply,      \
              codes, summary)                                                            \
    void handler(struct conn *c);
#include "daemon/api/route.def"
#undef ROUTE

#endif

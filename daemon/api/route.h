/* daemon/api/route.h - method and path to a handler, from the rows of route.def. Pure. */
#ifndef API_ROUTE_H
#define API_ROUTE_H

#include <stdbool.h>
#include <stddef.h>

struct conn;
struct err;

enum route_where { ROUTE_BOTH, ROUTE_LOCAL };  /* LOCAL: the UNIX socket only */
enum route_run { ROUTE_INLINE, ROUTE_WORKER }; /* on the HTTP thread, or off it */

struct route {
    const char *method, *path; /* a path ending in * takes a tail */
    enum route_where where;
    enum route_run run;
    bool inference; /* refused while draining */
    void (*handler)(struct conn *c);
};

/* The row for a request; HEAD finds GET. *ret_tail (into path) is what * matched. NULL
 * with NOTFOUND, or METHOD and then *ret_allow names what the path takes. One slash at
 * the end is ignored. */
const struct route *route_find(const char *method, const char *path, bool local,
                               const char **ret_tail, const char **ret_allow,
                               struct err *e);

/* The handlers that the rows name. */
#define ROUTE(method, path, where, run, inference, handler) void handler(struct conn *c);
#include "daemon/api/route.def"
#undef ROUTE

#endif

/* daemon/api/route.c - method and path to a handler. */
#include "daemon/api/route.h"

#include <string.h>

#include "base/err.h"

static const struct route routes[] = {
#define ROUTE(method, path, where, run, inference, handler)                              \
    {method, path, where, run, inference, handler},
#include "daemon/api/route.def"
#undef ROUTE
};
enum { N_ROUTES = sizeof(routes) / sizeof(routes[0]) };

static bool match(const struct route *r, const char *path, size_t n, const char **tail)
{
    size_t len = strlen(r->path);

    if (r->path[len - 1] == '*') {
        *tail = path + len - 1;
        return n > len - 1 && !strncmp(r->path, path, len - 1);
    }
    return n == len && !strncmp(r->path, path, n);
}

const struct route *route_find(const char *method, const char *path, bool local,
                               const char **ret_tail, const char **ret_allow,
                               struct err *e)
{
    const char *want = strcmp(method, "HEAD") ? method : "GET";
    const char *tail = NULL;
    size_t n = strlen(path);
    bool other = false;

    if (n > 1 && path[n - 1] == '/')
        n--;
    for (int i = 0; i < N_ROUTES; i++) {
        const struct route *r = &routes[i];

        if ((r->where == ROUTE_LOCAL && !local) || !match(r, path, n, &tail))
            continue;
        if (!strcmp(r->method, want)) {
            *ret_tail = tail;
            return r;
        }
        other = true;
        *ret_allow = strcmp(r->method, "GET") ? r->method : "GET, HEAD";
    }
    if (other)
        err_set(e, ERR_METHOD, "this path takes %s only", *ret_allow);
    else
        err_set(e, ERR_NOTFOUND, "there is nothing at this path");
    return NULL;
}

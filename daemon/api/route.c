/* daemon/api/route.c - method and path to a handler. */
#include "daemon/api/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

static const struct route routes[] = {
#define ROUTE(method, path, access, run, inference, handler, query, request, reply,      \
              codes, summary)                                                            \
    {method,  path,  #handler, ACCESS_##access, ROUTE_##run, inference,                  \
     handler, query, request,  reply,           codes,       summary},
#include "daemon/api/route.def"
#undef ROUTE
};
enum { N_ROUTES = sizeof(routes) / sizeof(routes[0]) };

const struct route *route_row(int i)
{
    return i >= 0 && i < N_ROUTES ? &routes[i] : NULL;
}

/* A piece of the path that a {name} matched. */
struct piece {
    const char *p;
    size_t n;
};

/* Does path[0..n) match the row? *ret: the pieces, in order. */
static bool match(const char *row, const char *path, size_t n, struct piece *ret)
{
    const char *end = path + n, *close;

    while (*row) {
        if (*row != '{') {
            if (path == end || *path++ != *row++)
                return false;
            continue;
        }
        close = strchr(row, '}');
        ret->p = path;
        if (close[-1] == '*')
            path = end;
        else
            while (path < end && *path != '/')
                path++;
        ret->n = (size_t)(path - ret->p);
        if (ret->n == 0)
            return false;
        ret++;
        row = close + 1;
    }
    return path == end;
}

static void allow_add(char allow[ROUTE_ALLOW], const char *method)
{
    size_t n = strlen(allow);

    snprintf(allow + n, ROUTE_ALLOW - n, "%s%s", n ? ", " : "",
             strcmp(method, "GET") ? method : "GET, HEAD");
}

int route_find(const char *method, const char *path, struct route_match *m, struct err *e)
{
    const char *want = strcmp(method, "HEAD") ? method : "GET";
    size_t n = strlen(path);

    *m = (struct route_match){0};
    if (n > 1 && path[n - 1] == '/')
        n--;
    for (int i = 0; i < N_ROUTES; i++) {
        struct piece got[ROUTE_ARGS] = {0};

        if (!match(routes[i].path, path, n, got))
            continue;
        if (strcmp(routes[i].method, want)) {
            allow_add(m->allow, routes[i].method);
            continue;
        }
        m->route = &routes[i];
        m->allow[0] = '\0';
        for (int k = 0; k < ROUTE_ARGS && got[k].p; k++)
            m->arg[k] = xasprintf("%.*s", (int)got[k].n, got[k].p);
        return 0;
    }
    if (m->allow[0])
        return err_set(e, ERR_METHOD, "this path takes %s only", m->allow);
    return err_set(e, ERR_NOTFOUND, "there is nothing at this path");
}

void route_match_done(struct route_match *m)
{
    for (int k = 0; k < ROUTE_ARGS; k++)
        free(m->arg[k]);
    *m = (struct route_match){0};
}

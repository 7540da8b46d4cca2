/* daemon/serve/links.c - paths of a rack's graph as a table for comm. */
#include "daemon/serve/links.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/rack.h"

static int fill(const struct graph *g, const struct paths *p, const int *dev,
                struct rank_links *l, struct err *e)
{
    int hosts[COMM_MAX_RANKS], n_hosts = 0;

    for (int a = 0; a < l->n; a++) {
        int host = graph_node(g, dev[a])->host, at = 0;

        while (at < n_hosts && hosts[at] != host)
            at++;
        if (at == n_hosts)
            hosts[n_hosts++] = host;
        l->host[a] = (uint8_t)at;
        for (int b = 0; b < l->n; b++) {
            const struct path *way = paths_get(p, dev[a], dev[b]);

            if (a == b)
                continue;
            if (!way || way->cls == PATH_DIS || way->bps <= 0)
                return err_set(e, ERR_INVALID,
                               "no path from device %d to %d of rack '%s'", a, b,
                               graph_source(g));
            l->path[a * l->n + b] = (struct comm_link){way->latency_us / 1e6, way->bps};
        }
    }
    return 0;
}

int rank_links_of(const struct graph *g, int n, struct rank_links *ret, struct err *e)
{
    struct rank_links l = {.n = n};
    const int *dev;
    struct paths *p;
    int have = graph_devices(g, &dev), rc;

    if (n < 1 || n > COMM_MAX_RANKS || n > have)
        return err_set(e, ERR_RANGE, "rack '%s' has %d devices for %d ranks",
                       graph_source(g), have, n);
    if (paths_new(g, &p, e) < 0)
        return -1;
    l.path = xcalloc((size_t)n * (size_t)n, sizeof(*l.path));
    rc = fill(g, p, dev, &l, e);
    paths_free(p);
    if (rc == 0)
        *ret = l;
    else
        rank_links_done(&l);
    return rc;
}

int rank_links_named(const char *rack, int n, struct rank_links *ret, struct err *e)
{
    struct graph *g;
    int rc;

    if (rack_build(rack, 0, &g, e) < 0)
        return -1;
    rc = rank_links_of(g, n, ret, e);
    graph_free(g);
    return rc;
}

void rank_links_done(struct rank_links *l)
{
    free(l->path);
    l->path = NULL;
}

/* daemon/ctrl/linkload.c - a pair's bytes, spread over its path. */
#include "daemon/ctrl/linkload.h"

#include "topo/path.h"

static void add(struct link_load *to, const struct path_link *l, double path_bps,
                const struct rank_read n[COMM_CALL_COUNT])
{
    for (int k = 0; k < COMM_CALL_COUNT; k++) {
        double bytes = (double)n[k].bytes * l->share;
        double taken =
            n[k].link_us > 0 ? (double)n[k].link_us / 1e6 * l->share * path_bps : bytes;

        to->bytes[l->back] += bytes;
        to->by_call[k] += bytes;
        if (l->bps > 0)
            to->taken_s[l->back] += taken / l->bps;
    }
}

void linkload_add(struct link_load *load, const struct paths *p, int a, int b,
                  const struct rank_read n[COMM_CALL_COUNT])
{
    struct path_link l[PATH_LINKS_MAX];
    int n_links = paths_links(p, a, b, l, PATH_LINKS_MAX);
    const struct path *way = paths_get(p, a, b);

    for (int i = 0; i < n_links; i++)
        add(&load[l[i].link], &l[i], way->bps, n);
}

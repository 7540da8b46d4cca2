/* daemon/serve/links.h - what stands between the ranks of an instance, from a rack.
 *
 * Rank r on the r-th device of the rack's stable order: alpha and bandwidth of the path
 * between each two, and the host of each. Plain data; any thread. */
#ifndef SERVE_LINKS_H
#define SERVE_LINKS_H

#include <stdint.h>

#include "kernels/comm.h"

struct err;
struct graph;

struct rank_links {
    int n;
    uint8_t host[COMM_MAX_RANKS];
    struct comm_link *path; /* [from * n + to] */
};

/* ERR_RANGE where the rack has fewer devices than ranks. Free with rank_links_done. */
int rank_links_of(const struct graph *g, int n, struct rank_links *ret, struct err *e);
/* Of a rack that is known by name, e.g. cpu:2x4. */
int rank_links_named(const char *rack, int n, struct rank_links *ret, struct err *e);
void rank_links_done(struct rank_links *l);

#endif

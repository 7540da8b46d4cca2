/* daemon/ctrl/pairview.h - what ranks have read of each other, of all engines, as copies.
 *
 * From the pages that the engines write; where ranks are is told by the control thread
 * (rankview.h). Pairs without traffic are left out. Taken under the router's lock, so
 * that no engine is waited for. */
#ifndef CTRL_PAIRVIEW_H
#define CTRL_PAIRVIEW_H

#include <stdint.h>

#include "daemon/serve/rankpage.h"

struct router;

struct pair_read {
    int rank, from; /* the reader, and whose memory it read */
    struct rank_read n[COMM_CALL_COUNT];
};
/* One engine. */
struct pair_view {
    char instance[64];
    char emulate[64]; /* rack whose links it emulates, "" none */
    int generation, n_ranks, n;
    char (*device)[64];     /* [n_ranks], their ids, "" not known; owned */
    struct pair_read *pair; /* [n], by rank, then by from; owned */
};

/* malloc'd; returns the count. Any thread. */
int pairview_get(struct router *r, struct pair_view **ret);
void pairview_free(struct pair_view *v, int n); /* NULL allowed */

#endif

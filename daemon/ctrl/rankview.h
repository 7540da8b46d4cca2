/* daemon/ctrl/rankview.h - the ranks of all engines as one table of copies.
 *
 * What a rank holds and has done comes from the page that its engine writes; where it is
 * and what the ledger counts for it is told by the control thread (target_set_seats).
 * Taken under the router's lock, so that no engine is waited for. */
#ifndef CTRL_RANKVIEW_H
#define CTRL_RANKVIEW_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/serve/ranks.h"

struct router;
struct target;

/* The place of one rank, and its bytes by the ledger. */
struct rank_seat {
    char device[64]; /* its id; "" not known */
    cpu_set_t near;  /* CPUs at its device; none: not known, or emulated */
    bool counted;    /* the three below are known */
    double weights, kv, scratch;
};

struct rank_view {
    char instance[64], model[128];
    int generation, rank;
    int64_t span_us; /* that busy and the counts are over */
    struct rank_seat seat;
    struct rank_status s;
};

/* malloc'd, in the order of the instances; returns the count. Any thread. */
int rankview_get(struct router *r, struct rank_view **ret);

/* Of rank 0, 1 ..: copied; n 0 forgets them. Control thread. */
void target_set_seats(struct target *t, const struct rank_seat *v, int n);

#endif

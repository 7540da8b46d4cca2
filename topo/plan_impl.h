/* topo/plan_impl.h - what plan.c, plan_split.c and plan_show.c share. */
#ifndef TOPO_PLAN_IMPL_H
#define TOPO_PLAN_IMPL_H

#include <stdint.h>

#include "topo/plan.h"

/* The rack in the few figures that a search needs. */
struct plan_rack {
    int n;                        /* usable devices */
    struct cost_cut cut;          /* those that share the fast links, and the figures */
    int *avoid, n_avoid, n_apart; /* devices left out; those that no path leads to */
    double memory;
    bool is_cpu, unknown_links; /* some count as PCIe 3 x16 */
    int64_t measured_ms; /* of the oldest measured figure used; 0 none, or undated */
    struct cost_device d;
};

enum { PLAN_REASONS = LAYOUT_FAULT_COUNT + LEDGER_FIXED + 4 };

struct plan {
    struct plan_ask ask;
    struct plan_rack rack;
    struct plan_row row[PLAN_ROWS];
    int n_rows, tried;
    struct plan_reason reason[PLAN_REASONS];
};

/* What becomes of one layout at its best concurrency. */
struct plan_try {
    struct layout l;
    struct ledger ledger;
    struct estimate est; /* of one instance */
    double concurrency;
};

int plan_rack_of(const struct plan_ask *a, struct plan_rack *ret, struct err *e);
void plan_rack_done(struct plan_rack *r);
/* True where the layout fits and meets the SLO in this role. Why not is noted for
 * PLAN_BOTH, so that each layout is counted once. */
bool plan_try_layout(struct plan *p, const struct layout *l, enum plan_role role,
                     struct plan_try *t);
void plan_note(struct plan *p, int reason, const char *why, const struct layout *l,
               const char *say);
void plan_offer(struct plan *p, const struct plan_row *r);
void plan_split(struct plan *p);
/* What prefill and decode pools with these estimates of one worker give together; the
 * layouts and replicas of r are set. bps: a handoff pair's. */
void plan_split_sum(const struct plan *p, const struct estimate *prefill,
                    const struct estimate *decode, double bps, struct plan_row *r);
void plan_estimate(const struct plan *p, const struct layout *l,
                   const struct cost_links *k, enum plan_role role, double concurrency,
                   struct estimate *ret);
void plan_ledger_ask(const struct plan_ask *a, const struct plan_rack *r, int seqs,
                     struct ledger_ask *ret);

#endif

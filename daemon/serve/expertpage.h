/* daemon/serve/expertpage.h - what each layer of experts holds and has done, in a shared
 * page.
 *
 * A sparse region of atomic cells in a memfd, of the same size whatever the model: ranks
 * write their slots after each step, the daemon reads without asking. Counts run since
 * the engine began, or since the daemon last asked to begin again (after the warming
 * generation); prefill and decode apart, by row: a row is of decode when it is the token
 * that its sequence generated last, else of prefill. What rows of both take together is
 * divided by how many there are of each: service and queue time by the pairs of a slot in
 * a run, bytes and time of all-to-alls by the rows of the run. A step counts as decode
 * where it has no row of prefill. Cells are single values; what is read while it is
 * written has some that are a step newer than others. Writers: each rank's thread its own
 * rows; readers: any. */
#ifndef SERVE_EXPERTPAGE_H
#define SERVE_EXPERTPAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/serve/routes.h"

struct err;
struct expertpage;

enum expert_phase { EXPERT_PREFILL, EXPERT_DECODE, EXPERT_PHASES };
enum { EXPERTPAGE_LAYERS = 128, EXPERTPAGE_PAIRED = 256 /* experts */ };

/* Of a slot. rows: pairs (row, choice) that ran there; over: of them beyond the capacity;
 * service: time in its products; queue: summed over its pairs, from when they were there
 * until its first product began. */
struct expert_count {
    int64_t rows, over, service_ns, queue_ns;
};
/* Of an expert, whatever slots it was in; replica: the rows of them that ran elsewhere
 * than where the expert was loaded. */
struct expert_left {
    struct expert_count n;
    int64_t replica;
};
/* Of a rank in a layer. bytes: read from other ranks; us: inside the all-to-alls, waiting
 * included. moved: pairs over a copy's capacity that another copy took; next, dropped: to
 * the next best expert, to none. */
struct expert_traffic {
    int64_t dispatch_bytes, dispatch_us, combine_bytes, combine_us;
    int64_t moved, next, dropped;
};
struct expert_slot {
    int expert; /* -1 = empty */
    float share;
    struct expert_count n[EXPERT_PHASES];
};

/* What a rank says after a step; phase: that of the step, EXPERT_PHASES = it had no rows.
 * Its layers [n_layer] (first: over the
 * model's layers of experts) of n_slot slots each, layer by layer. Borrowed. */
struct expert_report {
    int rank, phase, first, n_layer, n_slot;
    const struct route_layer *routes; /* [n_layer], of this rank's slots only */
    /* By phase; of a layer: expert_count [n_slot], expert_traffic. NULL: as last told */
    const int64_t *cells[EXPERT_PHASES];
    /* What slots counted of experts that have left them since the last report, [phase]
     * [n_layer, n_expert]; NULL = none has. */
    const struct expert_left *left;
    int n_expert;
};
enum { EXPERT_COUNT_CELLS = 4, EXPERT_LEFT_CELLS = 5, EXPERT_TRAFFIC_CELLS = 7 };
static inline int expert_report_stride(int n_slot)
{
    return n_slot * EXPERT_COUNT_CELLS + EXPERT_TRAFFIC_CELLS;
}

/* A page in a new memfd that *ret_fd owns; one that was made elsewhere (fd is borrowed,
 * its size is checked). */
int expertpage_new(int *ret_fd, struct expertpage **ret, struct err *e);
int expertpage_map(int fd, struct expertpage **ret, struct err *e);
void expertpage_free(struct expertpage *p); /* NULL allowed */

/* The engine: what there is, everything from zero, before the first report. ERR_RANGE:
 * more than the page has room for. */
int expertpage_open(struct expertpage *p, const struct routes_dims *d, int n_layer,
                    struct err *e);
/* How often two experts of a layer were chosen for one row, counted from now on: cells of
 * [n_layer][EXPERTPAGE_PAIRED][EXPERTPAGE_PAIRED], the lower expert first, to which ranks
 * add. After expertpage_open, by one rank; nothing where experts are too many. */
void expertpage_pairs_begin(struct expertpage *p);
_Atomic uint32_t *expertpage_pairs(struct expertpage *p);
void expertpage_put(struct expertpage *p, const struct expert_report *r);
void expertpage_step(struct expertpage *p, int phase); /* by one rank, after a step */
/* A rank whose count is behind this begins again from zero before its next step. */
uint64_t expertpage_epoch(const struct expertpage *p);

/* The daemon: begin again; no engine any more. */
void expertpage_restart(struct expertpage *p);
void expertpage_clear(struct expertpage *p);
/* Pairs of a layer, both ways round, into ret [n_expert * n_expert]; false when they are
 * not counted. */
bool expertpage_pairs_of(const struct expertpage *p, int layer, int n_expert,
                         double *ret);
/* False without an engine, or of a dense model. Steps of a phase. What the engine wrote
 * is bounded here. */
bool expertpage_dims(const struct expertpage *p, struct routes_dims *ret,
                     int *ret_n_layer);
int64_t expertpage_steps(const struct expertpage *p, int phase);
/* Of the table of a layer that all ranks have told of; 0 = not yet. */
uint64_t expertpage_generation(const struct expertpage *p, int layer);
void expertpage_slot(const struct expertpage *p, int layer, int rank, int slot,
                     struct expert_slot *ret);
/* Of each expert of a layer, [n_expert]: its slots, and what it counted in those that it
 * has left. */
void expertpage_experts(const struct expertpage *p, int layer, int phase, int n_expert,
                        struct expert_left *ret);
void expertpage_traffic(const struct expertpage *p, int layer, int rank, int phase,
                        struct expert_traffic *ret);

#endif

/* daemon/serve/rankpage.h - what each rank holds and has done, and what it has read of
 * each other rank, in a shared page.
 *
 * One flat region of atomic cells in a memfd, of the same size whatever the layout: the
 * engine's scheduler thread writes a rank's row after each step, the daemon reads without
 * asking. Cells are single values; a row that is read while it is written has some that
 * are a step newer than others. A new engine begins again from zero. */
#ifndef SERVE_RANKPAGE_H
#define SERVE_RANKPAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/comm.h"

struct err;
struct rank_status;
struct rankpage;

/* A page in a new memfd that *ret_fd owns. */
int rankpage_new(int *ret_fd, struct rankpage **ret, struct err *e);
/* One that was made elsewhere; fd is borrowed. Checks the size. */
int rankpage_map(int fd, struct rankpage **ret, struct err *e);
void rankpage_free(struct rankpage *p); /* NULL allowed */

/* The writer: row of rank, at most COMM_MAX_RANKS of them; then how many rows there are,
 * since when (monotonic) they count, and when they were written. */
void rankpage_set(struct rankpage *p, int rank, const struct rank_status *s);
void rankpage_tell(struct rankpage *p, int n_ranks, int64_t since_us, int64_t now_us);
/* What rank has read of each: to be given to its collectives (comm_cfg.pairs), which add
 * to it as they read. Begins again from zero. 16 KiB of the page for each rank that asks.
 */
struct comm_pair (*rankpage_pairs(struct rankpage *p, int rank))[COMM_CALL_COUNT];
/* No ranks: the engine is gone. */
void rankpage_clear(struct rankpage *p);

/* Readers, any thread. 0 without an engine. */
int rankpage_count(const struct rankpage *p);
int64_t rankpage_span_us(const struct rankpage *p); /* that the rows count over */
void rankpage_get(const struct rankpage *p, int rank, struct rank_status *ret);
/* What rank has read of another, by call; false: nothing at all. */
struct rank_read {
    uint64_t bytes;
    int64_t link_us; /* that the emulated link was taken, 0 = none is emulated */
};
bool rankpage_read_of(const struct rankpage *p, int rank, int from,
                      struct rank_read ret[COMM_CALL_COUNT]);

#endif

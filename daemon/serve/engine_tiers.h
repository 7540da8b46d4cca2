/* daemon/serve/engine_tiers.h - an engine's disk tier: between the scheduler's jobs
 * (kvtier.h), the ranks' host memory and the file (kvdisk.h).
 *
 * The host tier needs none of it. What is odd about the file is told to the daemon as a
 * NOTE, for the journal. Where another engine has the file (one that drains), or the disk
 * is full, fails or the file was removed, it is tried again, and requests go on. Inside
 * the engine only; its scheduler thread. */
#ifndef SERVE_ENGINE_TIERS_H
#define SERVE_ENGINE_TIERS_H

#include <stdint.h>

#include "daemon/serve/engine_load.h"

struct engine_tiers;
struct loop;

/* What the sizes come to, for the scheduler and the ranks: slots of both tiers, copies of
 * a step. block_bytes: over all ranks. ERR_NOFIT where the memory has no room. */
int engine_tiers_fit(const struct engine_cfg *cfg, size_t block_bytes, uint64_t ram_bytes,
                     struct sched_cfg *ret, struct err *e);
/* *ret NULL without a disk tier. `settle` is called after a job. */
int engine_tiers_new(const struct engine_cfg *cfg, const struct engine_loaded *l,
                     struct wire_conn *conn, struct sched *s, struct loop *loop,
                     void (*settle)(void *arg), void *arg, struct engine_tiers **ret,
                     struct err *e);
void engine_tiers_free(struct engine_tiers *t); /* before the loop and the ranks */
/* Give out the jobs that there are. */
void engine_tiers_settle(struct engine_tiers *t);
/* At the end of an engine: what is in host memory goes to disk, the hottest first, for
 * two seconds at most. Waits. NULL allowed. */
void engine_tiers_flush(struct engine_tiers *t);
/* Both tiers are emptied, and the file. */
void engine_tiers_wipe(struct engine_tiers *t, struct sched *s);

#endif

/* daemon/serve/kvtier.h - KV blocks that left the device: in host memory, and on disk.
 * Ids only, no memory. Pure.
 *
 * A tier is a pool of slots (kvpool.h) that are found by the same chain hash as the
 * device's blocks. A cold block that the device pool gives up moves down to a host slot
 * by a copy that the next step begins with; a prefix that is wanted again moves up the
 * same way. Copies of a step are made in their order, so a slot or block that changes
 * hands in between is no harm. The tiers do not mirror each other: what moved up goes
 * first when its slot is wanted, and costs nothing to move down while it is there.
 *
 * Disk slots are written from host slots and read into them beside the steps: kvtier_job
 * says what is to be done, kvtier_job_done what came of it. What is about to fall out of
 * the host tier is written first; what falls out without that is gone. With two recorded
 * traces (make bench-tiers) that finds 1.27 and 1.16 times what a disk that mirrors host
 * memory found, for 0.79 and 0.87 of the blocks written. In return a crash loses what
 * host memory held; kvtier_flush saves it when an engine ends in order.
 * One owner thread (the scheduler's). */
#ifndef SERVE_KVTIER_H
#define SERVE_KVTIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/kvhash.h"

struct err;
struct kvtier;

struct kvtier_cfg {
    int n_host, n_disk; /* slots of all shards; n_disk 0: no disk */
    int block_tok, shards;
    int max_moves; /* copies that one step can begin with */
};

/* A block by what it holds: depth is its number in its chain. */
struct kv_key {
    struct kvhash hash, before;
    int32_t depth;
    const int32_t *toks; /* block_tok of them */
};

struct kv_move {
    int32_t block, slot; /* of the device, of the host tier */
    bool up;             /* to the device */
};

struct kv_job {
    uint64_t id;
    bool write; /* host to disk; else disk to host */
    int32_t host, disk;
    struct kv_key key; /* toks borrowed until the job is done */
};

struct kvtier_stats {
    int n_host, host_used, n_disk, disk_used;
    uint64_t host_hit_tok, disk_hit_tok; /* brought up; read from disk ahead of it */
    uint64_t down, up, written, read;    /* blocks */
    uint64_t lost;                       /* left the last tier, or found no room */
    uint64_t failed;                     /* jobs */
};

struct kvtier *kvtier_new(const struct kvtier_cfg *cfg);
void kvtier_free(struct kvtier *t); /* NULL allowed */

/* The device gives up this block: it moves down, unless it is there already or this
 * step's copies are all taken. */
void kvtier_down(struct kvtier *t, int shard, int32_t block, const struct kv_key *k);
/* Is it in the host tier? Then it moves up into block. False: it is not, or this step's
 * copies are all taken. */
bool kvtier_up(struct kvtier *t, const struct kv_key *k, int32_t block);

/* What the next step begins with, at most max_moves: taken for step `number`. */
int kvtier_moves(struct kvtier *t, uint64_t number, struct kv_move *ret);
/* Steps up to number are done. */
void kvtier_step_done(struct kvtier *t, uint64_t number);

/* Are there copies that no step has begun with, or whose step is not done? */
bool kvtier_moving(const struct kvtier *t);

enum kvtier_where { KVTIER_NOWHERE, KVTIER_HOST, KVTIER_DISK, KVTIER_COMING };
/* COMING: being read. */
enum kvtier_where kvtier_find(const struct kvtier *t, const struct kv_key *k);
/* Used now: it stays longer in the host tier. */
void kvtier_touch(struct kvtier *t, const struct kv_key *k);
/* Read it from disk into the host tier ahead of its use. Wants are numbered and served in
 * order: kvtier_served says up to which; 0 = there is nothing to read. */
uint64_t kvtier_want(struct kvtier *t, int shard, const struct kv_key *k);
uint64_t kvtier_served(const struct kvtier *t);

/* The next job for the disk; false: none now. At most KVTIER_JOBS are out. */
enum { KVTIER_JOBS = 16 };
bool kvtier_job(struct kvtier *t, struct kv_job *ret);
/* An id that is not out is normal: the tiers were wiped meanwhile. */
void kvtier_job_done(struct kvtier *t, uint64_t id, bool ok);
/* While the disk takes none, no writes are given out. */
void kvtier_hold_writes(struct kvtier *t, bool hold);
/* Found on disk when the engine started; false: the slot is taken, or it is there. */
bool kvtier_adopt(struct kvtier *t, int32_t disk, const struct kv_key *k);
/* What was on disk is there no more, and no job is out. */
void kvtier_forget_disk(struct kvtier *t);
/* The engine ends: from now on jobs are writes of what is in the host tier alone, the
 * hottest first, as far as the disk has room or holds what is colder. */
void kvtier_flush(struct kvtier *t);
/* Forget all that is in both tiers; copies that steps have begun with go on. */
void kvtier_wipe(struct kvtier *t);

void kvtier_stats(const struct kvtier *t, struct kvtier_stats *ret);
/* For tests: every slot free, found, or held by a job. Sentence in e. */
int kvtier_check(const struct kvtier *t, struct err *e);

#endif

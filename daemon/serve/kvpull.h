/* daemon/serve/kvpull.h - copies KV from another engine's regions into our own blocks.
 *
 * A pull takes positions from .. upto-1 of one sequence out of the blocks that an EXPORT
 * named and puts them where this engine's layout has them: layers, heads and positions
 * may be cut in another way on the other side. After the copy it looks whether the blocks
 * are still what they were, and in self-test mode whether the sums agree. A thread of its
 * own copies, so that steps go on; the owner submits and polls, and may neither reuse the
 * destination nor free a map before the pull is back.
 *
 * kvpull_ops is what another kind of memory implements: a piece is one head of one layer
 * and up to KV_BLOCK_TOK positions. */
#ifndef SERVE_KVPULL_H
#define SERVE_KVPULL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/serve/kvmap.h"

struct kvpull;

/* n positions; whole: all KV_BLOCK_TOK places in order. */
struct kvpull_piece {
    const struct kv_layout *layout; /* of a head's block; the same on both sides */
    const uint8_t *src;
    uint8_t *dst;
    int n;
    bool whole;
    uint8_t src_tok[KV_BLOCK_TOK], dst_tok[KV_BLOCK_TOK];
};
struct kvpull_ops {
    /* Bytes copied, or -1. May return before it is done: finish waits. */
    int64_t (*copy)(const struct kvpull_piece *p, struct err *e);
    int (*finish)(struct err *e);
};
extern const struct kvpull_ops kvpull_host;

struct kvpull_job {
    uint64_t number; /* the owner's */
    const struct kvmap *src, *dst;
    uint64_t incarnation;
    struct wire_block *blocks; /* n of them, from block `first` of the sequence on */
    int first, n;
    int32_t *table; /* ours, from block 0 on */
    int n_table;
    int from, upto;
    bool sums; /* compare those of whole blocks, in all ranks of ours that have them */
    /* filled in */
    int rc;
    struct err why; /* ERR_CONFLICT: the blocks are not there any more */
    uint64_t bytes;
    int64_t us;
};
/* Takes blocks and table (n and n_table values, copied). */
struct kvpull_job *kvpull_job_new(const struct kvpull_job *from);
void kvpull_job_free(struct kvpull_job *j);
/* What the thread does; any thread. Fills in the result. */
void kvpull_run(struct kvpull_job *j, const struct kvpull_ops *ops);

int kvpull_new(const struct kvpull_ops *ops, struct kvpull **ret, struct err *e);
void kvpull_free(struct kvpull *k);    /* after the pulls submitted, which it frees */
int kvpull_fd(const struct kvpull *k); /* readable when poll has something */
/* Borrows the job until poll gives it back, in order. -1: too many wait. */
int kvpull_submit(struct kvpull *k, struct kvpull_job *j);
struct kvpull_job *kvpull_poll(struct kvpull *k); /* or NULL */

#endif

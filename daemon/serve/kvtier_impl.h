/* daemon/serve/kvtier_impl.h - what kvtier.c and kvtier_disk.c share. Not for others. */
#ifndef SERVE_KVTIER_IMPL_H
#define SERVE_KVTIER_IMPL_H

#include <string.h>

#include "daemon/serve/kvpool.h"
#include "daemon/serve/kvtier.h"

enum { KVTIER_WANTS = 4096 }; /* reads wanted */

struct kvtier_want {
    int shard;
    struct kv_key key; /* toks: a copy of its own */
};

struct kvtier_job {
    struct kv_job j;
    bool out, wiped; /* wiped: what it brings is of no use any more */
    bool used;       /* its host slot, meanwhile */
    int32_t *toks;
};

struct kvtier {
    bool hold_writes, flushing;
    struct kvtier_cfg cfg;
    struct kv_pool host, disk;
    uint64_t *step;       /* of each host slot */
    bool *above;          /* likewise: what it holds moved up, and did not come back */
    int32_t *disk_of;     /* the slot where it is on disk too, -1 = none */
    int32_t *host_of;     /* of each disk slot: the other way round */
    uint64_t done, moved; /* steps; moved: the last one with copies */
    struct kv_move *moves;
    int n_moves;
    struct kvtier_want *want;
    int want_head, n_want;
    struct kvtier_job job[KVTIER_JOBS];
    uint64_t jobs, wanted, served;
    struct kvtier_stats st;
};

static inline int32_t kvtier_at(const struct kv_pool *p, const struct kv_key *k)
{
    return p->n_blocks ? kvpool_find(p, k->hash, k->before, k->toks) : -1;
}

/* Used now: to the end of its list. */
static inline void kvtier_to_end(struct kv_pool *p, int32_t slot)
{
    kvpool_ref(p, slot);
    kvpool_unref(p, slot);
}

static inline bool kvtier_settled(const struct kvtier *t, int32_t slot)
{
    return t->step[slot] <= t->done;
}

/* Can it be given up? Without a disk, or while that takes none, that is no question. */
static inline bool kvtier_no_loss(const struct kvtier *t, int32_t slot)
{
    return t->above[slot] || t->disk_of[slot] >= 0;
}

/* ---- who holds what (kvtier.c) ---- */

/* The same block is in both. */
void kvtier_link(struct kvtier *t, int32_t host, int32_t disk);
void kvtier_unlink(struct kvtier *t, int32_t host); /* if it is */
/* On disk it is a copy that the room is worth more than. */
void kvtier_spare_disk(struct kvtier *t, int32_t disk);
/* Whoever asks next finds it here, not above: the hottest of the tier. */
void kvtier_use(struct kvtier *t, int32_t slot);
/* A host slot for a read, that no step is using; -1: later. While writes are possible
 * what is on its way to disk is not given up for it. */
int32_t kvtier_take_quiet(struct kvtier *t, int shard);
/* What a slot that was taken holds from now on. */
void kvtier_fill(struct kv_pool *p, int32_t slot, const struct kv_key *k);
void kvtier_fill_host(struct kvtier *t, int32_t slot, const struct kv_key *k);
void kvtier_forget_all(struct kv_pool *p);

/* ---- jobs (kvtier_disk.c) ---- */

/* Is it being read, or wanted? */
bool kvtier_coming(const struct kvtier *t, const struct kv_key *k);

#endif

/* kernels/comm_impl.h - the shared memory of a fabric, for comm.c and comm_local.c only.
 *
 *   head | rank states | groups: { head, members, pair gates, stages, pair stages } ..
 *
 * Offsets, not pointers: each process maps it where it likes. A collective is a row of
 * rounds numbered 1, 2, ..: in each, a member puts a piece into half (round & 1) of its
 * stage and raises `arrived`; the others read and raise `left`. A half is used again when
 * all have left the round before last. Sends do the same for each ordered pair. */
#ifndef KERNELS_COMM_IMPL_H
#define KERNELS_COMM_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/err.h"
#include "base/gate.h"
#include "kernels/comm.h"

enum { COMM_REASONS = 16 };

/* Why it ended; each who wants to end it writes one of its own, the first is published.
 */
struct comm_reason {
    int32_t code;
    char why[512];
};

struct comm_rank_state {
    _Alignas(64) _Atomic uint64_t step, call;
    _Atomic int group, kind, inside;
    _Atomic int64_t at_us;
};

struct comm_head {
    uint32_t magic;
    int32_t n_groups, n_ranks;
    uint64_t bytes, chunk, pair_chunk;
    atomic_uint state;   /* 0 = alive, else 1 + index of the reason */
    atomic_uint reasons; /* taken */
    struct comm_reason reason[COMM_REASONS];
    uint64_t ranks_off, group_off[COMM_MAX_GROUPS];
};

struct comm_member_state {
    struct gate arrived, left;
    _Atomic int64_t arrived_us[2]; /* by half */
};

struct comm_pair_state {
    struct gate sent, got;
    _Atomic int64_t sent_us[2];
};

struct comm_group_head {
    struct comm_group g;
    uint64_t members_off, pairs_off, stage_off, pair_stage_off;
};

struct comm_fabric {
    int fd;
    char *mem;
    struct comm_head *head;
};

struct comm {
    struct comm_fabric *f;
    struct comm_group_head *g;
    struct comm_member_state *members;
    struct comm_pair_state *pairs; /* [from * p + to] */
    int group, p, me;
    struct comm_cfg cfg;
    struct comm_link *links;
    uint32_t round;
    uint32_t sent[COMM_MAX_RANKS], got[COMM_MAX_RANKS]; /* pieces, by partner */
    uint64_t step, call;
    enum comm_call kind; /* of the call that runs */
    int64_t busy_us;     /* until when the emulated link into this rank is taken */
    int64_t wait_us;     /* of the call that runs */
    uint64_t read_bytes;
    struct {
        _Atomic uint64_t calls, bytes;
        _Atomic int64_t us, wait_us;
    } count[COMM_CALL_COUNT];
};

static inline char *comm_stage(const struct comm *c, int member, uint32_t round)
{
    uint64_t half = c->f->head->chunk;
    return c->f->mem + c->g->stage_off + ((uint64_t)member * 2 + (round & 1)) * half;
}
static inline char *comm_pair_stage(const struct comm *c, int from, int to, uint32_t n)
{
    uint64_t half = c->f->head->pair_chunk;
    return c->f->mem + c->g->pair_stage_off +
           ((uint64_t)(from * c->p + to) * 2 + (n & 1)) * half;
}

/* Wait for a member's gate within the deadline; a time-out names it and ends the fabric.
 */
int comm_wait(struct comm *c, struct gate *g, uint32_t value, int member, struct err *e);
/* Read n bytes of `member` that were there at at_us: counts and emulates. */
void comm_read(struct comm *c, int member, void *to, const void *from, size_t n,
               int64_t at_us);
/* The same without the copy, for what is summed in place. */
void comm_count_read(struct comm *c, int member, size_t n, int64_t at_us);
/* Until the emulated link has delivered what was read. */
int comm_settle(struct comm *c, struct err *e);
void comm_enter(struct comm *c, enum comm_call kind, int64_t *ret_began_us);
void comm_exit(struct comm *c, int64_t began_us);

#endif

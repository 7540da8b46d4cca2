/* kernels/comm_impl.h - the shared memory of a fabric, for comm.c and comm_local.c only.
 *
 *   head | rank states | groups: { head, members, pair gates, stages, pair stages } ..
 *
 * Offsets, not pointers: each process maps it where it likes. A collective is a row of
 * rounds numbered 1, 2, ..: in each, a member puts a piece into half (round & 1) of its
 * stage and raises `arrived`; the others read and raise `left`. A half is used again when
 * all have left the round before last. Sends do the same for each ordered pair. Rounds
 * run in lanes, each with gates and stages of its own: lane 0 for calls that end before
 * the next begins, the others in turn for those that are in flight. */
#ifndef KERNELS_COMM_IMPL_H
#define KERNELS_COMM_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/err.h"
#include "base/gate.h"
#include "kernels/comm.h"

enum { COMM_REASONS = 16, COMM_LANES = 1 + COMM_IN_FLIGHT };

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
    uint64_t members_off, pairs_off, stage_off, pair_stage_off; /* [lane][member] .. */
};

struct comm_fabric {
    int fd;
    char *mem;
    struct comm_head *head;
};

struct comm_lane {
    struct comm_member_state *members;
    char *stage;
    uint32_t round;
};

struct comm {
    struct comm_fabric *f;
    struct comm_group_head *g;
    struct comm_lane lanes[COMM_LANES], *lane; /* that of the call that runs */
    struct comm_pair_state *pairs;             /* [from * p + to] */
    int group, p, me;
    struct comm_cfg cfg;
    struct comm_link *links;
    unsigned started, finished; /* halves of all-to-alls, as they were enqueued */
    int16_t *via;               /* two levels: comm_a2a.c */
    void *scratch;              /* of an all-to-all */
    size_t scratch_bytes;
    uint32_t sent[COMM_MAX_RANKS], got[COMM_MAX_RANKS]; /* pieces, by partner */
    uint64_t step, call;
    enum comm_call kind; /* of the call that runs */
    int64_t busy_us;     /* until when the emulated link into this rank is taken */
    int64_t wait_us;     /* of the call that runs */
    int64_t link_us;
    uint64_t read_bytes, cut_bytes;
    struct {
        _Atomic uint64_t calls, bytes, cut_bytes;
        _Atomic int64_t us, wait_us, link_us;
    } count[COMM_CALL_COUNT];
};

static inline char *comm_stage(const struct comm *c, int member, uint32_t round)
{
    return c->lane->stage + ((uint64_t)member * 2 + (round & 1)) * c->f->head->chunk;
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
/* ended: counts as a call (the first half of one does not). */
void comm_exit(struct comm *c, int64_t began_us, bool ended);

/* A round of the lane: my half, free to be written; it is there for the others; member
 * m's half, once it is there; I have read what I want. */
int comm_round_open(struct comm *c, char **ret, struct err *e);
void comm_round_arrive(struct comm *c);
int comm_round_peer(struct comm *c, int m, const char **ret, int64_t *ret_at_us,
                    struct err *e);
int comm_round_close(struct comm *c, struct err *e);

/* comm_a2a.c */
enum comm_half { COMM_WHOLE, COMM_START, COMM_FINISH };
struct op_host;
int comm_a2a_run(struct comm *c, const struct op_host *o, void *const *mem,
                 struct err *e);
enum { COMM_ARG, COMM_ARG_KIND, COMM_ARG_N, COMM_ARG_WHO, COMM_ARG_LIST, COMM_ARG_MAX };
bool comm_a2a_ends(const struct op_host *o); /* or is it a first half */
int comm_host_call(const struct op_host *o, void *const *mem, struct err *e);
/* Where rows from member s to member d, on another host, change; [first][s][d], first: of
 * those that cross first. NULL on one level. */
int16_t *comm_via_new(const struct comm_group *g);

#endif

/* kernels/comm_local.c - the calls, between threads and processes of one host.
 *
 * Every collective is a row of rounds (comm_impl.h): put a piece into the stage, raise
 * `arrived`, read what is wanted of the others' stages in member order, raise `left`.
 * Pieces are cut so that each element is summed by one member; the size of a piece
 * changes nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/backend.h"
#include "kernels/comm_impl.h"

enum { SUM_TILE = 512 }; /* floats: a tile of each half of a sum stays in the L1 cache */

/* ---- a round ---- */

/* My half for the next round, free to be written. */
int comm_round_open(struct comm *c, char **ret, struct err *e)
{
    c->lane->round++;
    for (int m = 0; m < c->p; m++)
        if (m != c->me &&
            comm_wait(c, &c->lane->members[m].left, c->lane->round - 2, m, e) < 0)
            return -1;
    *ret = comm_stage(c, c->me, c->lane->round);
    return 0;
}

void comm_round_arrive(struct comm *c)
{
    struct comm_member_state *m = &c->lane->members[c->me];

    atomic_store(&m->arrived_us[c->lane->round & 1], clock_now_us(clock_real()));
    gate_raise(&m->arrived, c->lane->round);
}

/* Member m's half of this round, once it is there. */
int comm_round_peer(struct comm *c, int m, const char **ret, int64_t *ret_at_us,
                    struct err *e)
{
    if (m != c->me &&
        comm_wait(c, &c->lane->members[m].arrived, c->lane->round, m, e) < 0)
        return -1;
    *ret_at_us = atomic_load(&c->lane->members[m].arrived_us[c->lane->round & 1]);
    *ret = comm_stage(c, m, c->lane->round);
    return 0;
}

int comm_round_close(struct comm *c, struct err *e)
{
    if (comm_settle(c, e) < 0)
        return -1;
    gate_raise(&c->lane->members[c->me].left, c->lane->round);
    return 0;
}

/* y[0..n) := the sum of x[0..p) from `at` on, in halves; n <= SUM_TILE. */
static void halves(float *y, const float *const *x, int p, size_t at, size_t n)
{
    float late[SUM_TILE];

    if (p == 1) {
        memcpy(y, x[0] + at, n * sizeof(float));
        return;
    }
    halves(y, x, p / 2, at, n);
    halves(late, x + p / 2, p - p / 2, at, n);
    for (size_t i = 0; i < n; i++)
        y[i] += late[i];
}

/* acc[0..n) := sum over members of floats at `at` of their stages, in halves. */
static int round_sum(struct comm *c, float *acc, size_t at, size_t n, struct err *e)
{
    const float *from[COMM_MAX_RANKS];

    for (int m = 0; m < c->p; m++) {
        const char *stage;
        int64_t at_us;

        if (comm_round_peer(c, m, &stage, &at_us, e) < 0)
            return -1;
        from[m] = (const float *)stage + at;
        comm_count_read(c, m, n * sizeof(float), at_us);
    }
    for (size_t i = 0; i < n; i += SUM_TILE)
        halves(acc + i, from, c->p, i, n - i < SUM_TILE ? n - i : SUM_TILE);
    return 0;
}

/* ---- the calls, on host addresses ---- */

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

static int all_reduce_piece(struct comm *c, float *x, int64_t n, struct err *e)
{
    int64_t from, to;
    char *stage;

    comm_shard(n, c->p, c->me, &from, &to);
    if (comm_round_open(c, &stage, e) < 0)
        return -1;
    memcpy(stage, x, (size_t)n * sizeof(float));
    comm_round_arrive(c);
    if (round_sum(c, x + from, (size_t)from, (size_t)(to - from), e) < 0 ||
        comm_round_close(c, e) < 0 || comm_round_open(c, &stage, e) < 0)
        return -1;
    memcpy(stage, x + from, (size_t)(to - from) * sizeof(float));
    comm_round_arrive(c);
    for (int m = 0; m < c->p; m++) {
        const char *peer;
        int64_t at_us;

        if (m == c->me)
            continue;
        if (comm_round_peer(c, m, &peer, &at_us, e) < 0)
            return -1;
        comm_shard(n, c->p, m, &from, &to);
        comm_read(c, m, x + from, peer, (size_t)(to - from) * sizeof(float), at_us);
    }
    return comm_round_close(c, e);
}

static int run_all_reduce(struct comm *c, float *x, int64_t n, struct err *e)
{
    int64_t piece = (int64_t)(c->f->head->chunk / sizeof(float));

    for (int64_t at = 0; at < n; at += piece)
        if (all_reduce_piece(c, x + at, min_i64(piece, n - at), e) < 0)
            return -1;
    return 0;
}

/* How much of member m's part [0, n) lies in piece [at, at + step). */
static int64_t part(int64_t n, int64_t at, int64_t step)
{
    int64_t left = n - at;

    return left < 0 ? 0 : min_i64(left, step);
}

static int64_t most(const int64_t *v, int n)
{
    int64_t max = 0;

    for (int i = 0; i < n; i++)
        max = v[i] > max ? v[i] : max;
    return max;
}

static int run_reduce_scatter(struct comm *c, const float *x, float *y,
                              const int64_t *counts, struct err *e)
{
    int64_t step = (int64_t)(c->f->head->chunk / sizeof(float)) / c->p;
    int64_t max = most(counts, c->p);

    for (int64_t at = 0; at < max; at += step) {
        const float *from = x;
        char *stage;

        if (comm_round_open(c, &stage, e) < 0)
            return -1;
        for (int m = 0; m < c->p; from += counts[m++]) {
            size_t n = (size_t)part(counts[m], at, step);
            if (n)
                memcpy((float *)stage + m * step, from + at, n * sizeof(float));
        }
        comm_round_arrive(c);
        if (round_sum(c, y + at, (size_t)(c->me * step),
                      (size_t)part(counts[c->me], at, step), e) < 0 ||
            comm_round_close(c, e) < 0)
            return -1;
    }
    return 0;
}

static int run_all_gather(struct comm *c, const char *x, char *y, const int64_t *bytes,
                          struct err *e)
{
    int64_t step = (int64_t)c->f->head->chunk, max = most(bytes, c->p);

    for (int64_t at = 0; at < max; at += step) {
        size_t mine = (size_t)part(bytes[c->me], at, step);
        char *stage, *to = y;

        if (comm_round_open(c, &stage, e) < 0)
            return -1;
        if (mine)
            memcpy(stage, x + at, mine);
        comm_round_arrive(c);
        for (int m = 0; m < c->p; to += bytes[m++]) {
            size_t n = (size_t)part(bytes[m], at, step);
            const char *peer;
            int64_t at_us;

            if (!n || (m == c->me && to == x))
                continue;
            if (comm_round_peer(c, m, &peer, &at_us, e) < 0)
                return -1;
            comm_read(c, m, to + at, peer, n, at_us);
        }
        if (comm_round_close(c, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- pairs, broadcast, barrier ---- */

static int run_send(struct comm *c, const char *x, int64_t bytes, int to, struct err *e)
{
    struct comm_pair_state *p = &c->pairs[c->me * c->p + to];
    int64_t step = (int64_t)c->f->head->pair_chunk;

    for (int64_t at = 0; at < bytes; at += step) {
        uint32_t n = ++c->sent[to];

        if (comm_wait(c, &p->got, n - 2, to, e) < 0)
            return -1;
        memcpy(comm_pair_stage(c, c->me, to, n), x + at,
               (size_t)min_i64(step, bytes - at));
        atomic_store(&p->sent_us[n & 1], clock_now_us(clock_real()));
        gate_raise(&p->sent, n);
    }
    return 0;
}

static int run_recv(struct comm *c, char *y, int64_t bytes, int from, struct err *e)
{
    struct comm_pair_state *p = &c->pairs[from * c->p + c->me];
    int64_t step = (int64_t)c->f->head->pair_chunk;

    for (int64_t at = 0; at < bytes; at += step) {
        uint32_t n = ++c->got[from];

        if (comm_wait(c, &p->sent, n, from, e) < 0)
            return -1;
        comm_read(c, from, y + at, comm_pair_stage(c, from, c->me, n),
                  (size_t)min_i64(step, bytes - at), atomic_load(&p->sent_us[n & 1]));
        if (comm_settle(c, e) < 0)
            return -1;
        gate_raise(&p->got, n);
    }
    return 0;
}

static int run_broadcast(struct comm *c, char *x, int64_t bytes, int root, struct err *e)
{
    int64_t step = (int64_t)c->f->head->chunk;

    for (int64_t at = 0; at < bytes; at += step) {
        size_t n = (size_t)min_i64(step, bytes - at);
        const char *peer;
        char *stage;
        int64_t at_us;

        if (comm_round_open(c, &stage, e) < 0)
            return -1;
        if (c->me == root) {
            memcpy(stage, x + at, n);
            comm_round_arrive(c);
        } else {
            if (comm_round_peer(c, root, &peer, &at_us, e) < 0)
                return -1;
            comm_read(c, root, x + at, peer, n, at_us);
        }
        if (comm_round_close(c, e) < 0)
            return -1;
    }
    return 0;
}

static int run_barrier(struct comm *c, struct err *e)
{
    const char *peer;
    char *stage;
    int64_t at_us;

    if (comm_round_open(c, &stage, e) < 0)
        return -1;
    comm_round_arrive(c);
    for (int m = 0; m < c->p; m++)
        if (comm_round_peer(c, m, &peer, &at_us, e) < 0)
            return -1;
    return comm_round_close(c, e);
}

/* ---- in stream order ---- */

static int run_call(struct comm *c, const struct op_host *o, void *const *mem,
                    struct err *e)
{
    const int64_t *list = (const int64_t *)(uintptr_t)o->arg[COMM_ARG_LIST];
    int64_t n = (int64_t)o->arg[COMM_ARG_N];
    int who = (int)o->arg[COMM_ARG_WHO];

    switch (c->kind) {
    case COMM_ALL_REDUCE:
        return run_all_reduce(c, mem[0], n, e);
    case COMM_REDUCE_SCATTER:
        return run_reduce_scatter(c, mem[0], mem[1], list, e);
    case COMM_ALL_GATHER:
        return run_all_gather(c, mem[0], mem[1], list, e);
    case COMM_ALL_TO_ALL:
        return comm_a2a_run(c, o, mem, e);
    case COMM_SEND:
        return run_send(c, mem[0], n, who, e);
    case COMM_RECV:
        return run_recv(c, mem[0], n, who, e);
    case COMM_BROADCAST:
        return run_broadcast(c, mem[0], n, who, e);
    default:
        return run_barrier(c, e);
    }
}

int comm_host_call(const struct op_host *o, void *const *mem, struct err *e)
{
    struct comm *c = (struct comm *)(uintptr_t)o->arg[COMM_ARG];
    int64_t began;
    int rc;

    c->lane = c->lanes;
    comm_enter(c, (enum comm_call)o->arg[COMM_ARG_KIND], &began);
    rc = comm_fabric_error(c->f, e) < 0 ? -1 : run_call(c, o, mem, e);
    comm_exit(c, began, c->kind != COMM_ALL_TO_ALL || comm_a2a_ends(o));
    return rc;
}

static struct op_host call_of(struct comm *c, enum comm_call kind, int64_t n, int who)
{
    return (struct op_host){
        .fn = comm_host_call,
        .arg = {[COMM_ARG] = (uint64_t)(uintptr_t)c,
                [COMM_ARG_KIND] = kind,
                [COMM_ARG_N] = (uint64_t)n,
                [COMM_ARG_WHO] = (uint64_t)who},
    };
}

static void add_buf(struct op_host *o, struct comm_at at, int64_t bytes)
{
    o->buf[o->n_buf] = at.buf;
    o->off[o->n_buf] = at.off;
    o->bytes[o->n_buf++] = (size_t)bytes;
}

static int64_t sum_of(const int64_t *v, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += v[i];
    return sum;
}

int comm_all_reduce(struct comm *c, struct stream *s, struct comm_at x, int64_t n,
                    struct err *e)
{
    struct op_host o = call_of(c, COMM_ALL_REDUCE, n, 0);

    add_buf(&o, x, n * (int64_t)sizeof(float));
    return op_host(s, &o, e);
}

int comm_reduce_scatter(struct comm *c, struct stream *s, struct comm_at x,
                        struct comm_at y, const int64_t *counts, struct err *e)
{
    struct op_host o = call_of(c, COMM_REDUCE_SCATTER, 0, 0);

    o.arg[COMM_ARG_LIST] = (uint64_t)(uintptr_t)counts;
    add_buf(&o, x, sum_of(counts, c->p) * (int64_t)sizeof(float));
    add_buf(&o, y, counts[c->me] * (int64_t)sizeof(float));
    return op_host(s, &o, e);
}

int comm_all_gather(struct comm *c, struct stream *s, struct comm_at x, struct comm_at y,
                    const int64_t *bytes, struct err *e)
{
    struct op_host o = call_of(c, COMM_ALL_GATHER, 0, 0);

    o.arg[COMM_ARG_LIST] = (uint64_t)(uintptr_t)bytes;
    add_buf(&o, x, bytes[c->me]);
    add_buf(&o, y, sum_of(bytes, c->p));
    return op_host(s, &o, e);
}

/* A member that is not me. */
static int check_partner(const struct comm *c, int who, struct err *e)
{
    if (who < 0 || who >= c->p || who == c->me)
        return err_set(e, ERR_INVALID,
                       "group '%s': member %d cannot send to or receive from member %d",
                       c->g->g.name, c->me, who);
    return 0;
}

int comm_send(struct comm *c, struct stream *s, struct comm_at x, int64_t bytes, int to,
              struct err *e)
{
    struct op_host o = call_of(c, COMM_SEND, bytes, to);

    if (check_partner(c, to, e) < 0)
        return -1;
    add_buf(&o, x, bytes);
    return op_host(s, &o, e);
}

int comm_recv(struct comm *c, struct stream *s, struct comm_at y, int64_t bytes, int from,
              struct err *e)
{
    struct op_host o = call_of(c, COMM_RECV, bytes, from);

    if (check_partner(c, from, e) < 0)
        return -1;
    add_buf(&o, y, bytes);
    return op_host(s, &o, e);
}

int comm_broadcast(struct comm *c, struct stream *s, struct comm_at x, int64_t bytes,
                   int root, struct err *e)
{
    struct op_host o = call_of(c, COMM_BROADCAST, bytes, root);

    if (root < 0 || root >= c->p)
        return err_set(e, ERR_INVALID, "group '%s' has no member %d", c->g->g.name, root);
    add_buf(&o, x, bytes);
    return op_host(s, &o, e);
}

int comm_barrier(struct comm *c, struct stream *s, struct err *e)
{
    struct op_host o = call_of(c, COMM_BARRIER, 0, 0);

    return op_host(s, &o, e);
}

/* kernels/comm.h - the collectives of a group of ranks.
 *
 * A fabric is the memory that the ranks of an engine share: a few groups, each with its
 * members, all in one region that processes of one host can map (comm_local.c; later NCCL
 * behind the same calls). A rank joins the groups that it is in; calls enqueue on its
 * stream and every member makes the same calls in the same order.
 *
 *  - Sums are made in f32 in halves, whatever the sizes: that of members 0..p/2-1 and
 *    that of the others, each so made, are added. So p members that each add up n / p
 *    pieces in this way give the bits of n members, p a power of two. An all-reduce is
 *    a direct reduce-scatter and an all-gather, 2 (p-1)/p S bytes read by each rank, as
 *    a ring. Where p does not divide the elements, the first n % p shards have one more.
 *  - Bytes are counted where a rank reads another rank's memory, by group and call, with
 *    the time inside and the part of it that was waiting.
 *  - An all-to-all may be cut in two halves, start and finish, so that rows travel while
 *    the rank computes; and, where members stand on several hosts, it may go in two hops
 *    (comm_group.two_level), of which one crosses. Neither changes what arrives.
 *  - Each rank publishes (step, group, call, entered or left). A wait that passes the
 *    group's deadline ends the fabric: every rank leaves with an error that names the
 * rank that is missing and the call. That is terminal: a new fabric is made for the next
 *    try.
 *  - Links can be emulated: what is read from a member is not there before alpha +
 * bytes/B of its path, one transfer after another into a rank.
 *
 * A comm belongs to its rank's thread; comm_abort and comm_fabric_error to any. */
#ifndef KERNELS_COMM_H
#define KERNELS_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;
struct comm_fabric;
struct dbuf;
struct err;
struct stream;

#define COMM_CALL_MAP(X)                                                                 \
    X(ALL_REDUCE, "all-reduce")                                                          \
    X(REDUCE_SCATTER, "reduce-scatter")                                                  \
    X(ALL_GATHER, "all-gather")                                                          \
    X(ALL_TO_ALL, "all-to-all")                                                          \
    X(SEND, "send")                                                                      \
    X(RECV, "recv")                                                                      \
    X(BROADCAST, "broadcast")                                                            \
    X(BARRIER, "barrier")
enum comm_call {
#define X(id, name) COMM_##id,
    COMM_CALL_MAP(X)
#undef X
        COMM_CALL_COUNT
};
const char *comm_call_name(enum comm_call c);

enum { COMM_MAX_RANKS = 128, COMM_MAX_GROUPS = 256, COMM_NAME = 16 };

/* A group: its name ("tp0") and the ranks that are its members, in order; the host of
 * each (any numbers; zeroed = all on one), and whether an all-to-all goes through members
 * of the other host or straight to each. */
struct comm_group {
    char name[COMM_NAME];
    int n;
    int ranks[COMM_MAX_RANKS];
    uint8_t host[COMM_MAX_RANKS];
    bool two_level;
};

/* chunk_bytes: staging of a member, in two halves (0 = 1 MiB each); larger messages go in
 * pieces, which changes no sum. */
int comm_fabric_new(const struct comm_group *groups, int n_groups, int n_ranks,
                    size_t chunk_bytes, struct comm_fabric **ret, struct err *e);
/* The same fabric in another process, from the descriptor of the first (borrowed). */
int comm_fabric_map(int fd, struct comm_fabric **ret, struct err *e);
int comm_fabric_fd(const struct comm_fabric *f);
/* Every comm must have been left. */
void comm_fabric_free(struct comm_fabric *f);
/* Why the fabric ended; 0 while it is alive. Any thread. */
int comm_fabric_error(const struct comm_fabric *f, struct err *e);

/* What a rank has read of another by calls of one kind; the reader's thread adds, any
 * thread reads. link_us: that the emulated link was taken. */
struct comm_pair {
    _Atomic uint64_t bytes;
    _Atomic int64_t link_us;
};
/* A path between two members, for emulation. */
struct comm_link {
    double alpha_s, bytes_per_s; /* bytes_per_s 0 = not emulated */
};
struct comm_cfg {
    int rank;                      /* of the fabric, for sentences and the watchdog */
    int64_t timeout_us;            /* of one wait; 0 = 30 s */
    bool spin;                     /* a core for each rank */
    const struct comm_link *links; /* [n members] from each to me, copied; NULL = none */
    /* [ranks of the fabric], by whom I read from; borrowed, several groups may add to the
     * same; NULL = nobody asks */
    struct comm_pair (*pairs)[COMM_CALL_COUNT];
};
/* Join group `group` of the fabric. */
int comm_join(struct comm_fabric *f, int group, const struct comm_cfg *cfg,
              struct comm **ret, struct err *e);
void comm_leave(struct comm *c); /* NULL allowed */
int comm_size(const struct comm *c);
int comm_member(const struct comm *c); /* mine */
int comm_host(const struct comm *c, int member);

/* The step that the next calls belong to, for the watchdog. */
void comm_step(struct comm *c, uint64_t step);
/* End the fabric with this sentence, unless it has ended already. Any thread. */
void comm_abort(struct comm_fabric *f, const struct err *why);

/* Where [from, to) of n elements stand when p members share them. */
void comm_shard(int64_t n, int p, int member, int64_t *ret_from, int64_t *ret_to);

/* A place in device memory, in bytes from the start of a buffer. */
struct comm_at {
    struct dbuf *buf;
    size_t off;
};

/* x[0..n) := sum over members, on all of them. f32. */
int comm_all_reduce(struct comm *c, struct stream *s, struct comm_at x, int64_t n,
                    struct err *e);
/* y := my part of the sum of x. counts[p] elements of each member, in order; x holds
 * their sum. f32. x and y may be the same place when mine is first. */
int comm_reduce_scatter(struct comm *c, struct stream *s, struct comm_at x,
                        struct comm_at y, const int64_t *counts, struct err *e);
/* y := the parts of all members one after the other; bytes[p] of each. x, my part, may
 * stand in its place in y. */
int comm_all_gather(struct comm *c, struct stream *s, struct comm_at x, struct comm_at y,
                    const int64_t *bytes, struct err *e);
/* Rows of row_bytes. x holds, one after the other, the rows for member 0, 1, ..:
 * send[p] (device int32) of each. y gets those from member 0, 1, ..; recv[p] (device
 * int32) says how many of each. More than max_recv rows in all is a fault.
 * tag, tag_y (both or none): a device int32 that travels with each row. same (or none): a
 * device int32 of each row of x, below the number of rows; rows to one host with the same
 * number are equal, and in two levels only the first of them crosses. With `same` rows
 * cross first and are handed out on the other side; without it they are collected on this
 * side and cross last. */
struct comm_a2a {
    struct comm_at x, y, send, recv;
    int64_t row_bytes, max_recv;
    struct comm_at tag, tag_y, same;
};
int comm_all_to_all(struct comm *c, struct stream *s, const struct comm_a2a *a,
                    struct err *e);
/* The same in two halves: between them x must stay and y may not be read. At most
 * COMM_IN_FLIGHT are started and not finished; they are finished in order of their start,
 * with the same a. Other calls may come between. */
enum { COMM_IN_FLIGHT = 3 };
int comm_all_to_all_start(struct comm *c, struct stream *s, const struct comm_a2a *a,
                          struct err *e);
int comm_all_to_all_finish(struct comm *c, struct stream *s, const struct comm_a2a *a,
                           struct err *e);
/* To or from a member; both sides must name the same size. Sends are buffered up to two
 * pieces, so that neighbours may both send and then receive. */
int comm_send(struct comm *c, struct stream *s, struct comm_at x, int64_t bytes, int to,
              struct err *e);
int comm_recv(struct comm *c, struct stream *s, struct comm_at y, int64_t bytes, int from,
              struct err *e);
int comm_broadcast(struct comm *c, struct stream *s, struct comm_at x, int64_t bytes,
                   int root, struct err *e);
int comm_barrier(struct comm *c, struct stream *s, struct err *e);

/* Counters of this comm since it was joined, by call. Any thread. */
struct comm_count {
    uint64_t calls, bytes; /* bytes read from other members */
    uint64_t cut_bytes;    /* of them, from another host */
    int64_t us, wait_us;
    int64_t link_us; /* that the emulated link was taken */
};
void comm_counts(const struct comm *c, struct comm_count ret[COMM_CALL_COUNT]);

/* What a rank said last. Any thread. */
struct comm_seen {
    uint64_t step, call; /* of its group; 0 = none yet */
    int group;
    enum comm_call kind;
    bool inside;
    int64_t at_us;
};
void comm_look(const struct comm_fabric *f, int rank, struct comm_seen *ret);

#endif

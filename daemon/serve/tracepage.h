/* daemon/serve/tracepage.h - what an engine did and when, for as long as somebody asks.
 *
 * A sparse region of cells in a memfd. It is off until the daemon begins a trace; then
 * the engine's threads claim one event after the other until the trace's time is over or
 * the room is full, and what had no room is counted. Off, a writer pays one relaxed load.
 * No text of requests and no token is in it: numbers, times and lengths. Writers: the
 * engine's scheduler thread and each rank's; begin, end and reading: the daemon. */
#ifndef SERVE_TRACEPAGE_H
#define SERVE_TRACEPAGE_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct step;
struct tracepage;

/* Spans, but for ITEM and LOAD. rank: -1 = the scheduler's. ref: of STEP, ITEM, LOAD and
 * RANK the step's number. */
enum trace_kind {
    TRACE_NONE,
    TRACE_STEP,     /* a: items, b: tokens */
    TRACE_ITEM,     /* a request's part of a step; a: first position, b: tokens */
    TRACE_QUEUE,    /* of a request that has ended: waiting .. */
    TRACE_PREFILL,  /* .. its prompt; b: tokens .. */
    TRACE_DECODE,   /* .. its answer; b: tokens. a, of all three: enum finish_reason */
    TRACE_LOAD,     /* a: requests that run, b: that wait, from start_us on */
    TRACE_RANK,     /* a rank's part of a step */
    TRACE_DISPATCH, /* rows to experts of other ranks; a: layer of experts */
    TRACE_EXPERT,   /* products of experts, also where they all stand here; a: likewise */
    TRACE_COMBINE,  /* and back; a: likewise */
    TRACE_KINDS
};
struct trace_event {
    enum trace_kind kind;
    int rank;
    int64_t start_us, us; /* monotonic */
    uint64_t request, ref;
    int32_t a, b;
};
/* What a page has room for: 12 MiB where a trace fills it, nothing before the first. A
 * second of a tiny model on many ranks may be more. */
enum { TRACE_EVENTS = 1 << 18 };

/* A page in a new memfd that *ret_fd owns; one that was made elsewhere (fd is borrowed,
 * its size is checked). */
int tracepage_new(int *ret_fd, struct tracepage **ret, struct err *e);
int tracepage_map(int fd, struct tracepage **ret, struct err *e);
void tracepage_free(struct tracepage *p); /* NULL allowed */

/* ---- the daemon ---- */
/* Forgets what there was. request 0 = of all. Events after until_us are not kept. */
void tracepage_begin(struct tracepage *p, int64_t now_us, int64_t until_us,
                     uint64_t request);
void tracepage_end(struct tracepage *p);
/* Events that there are now, those without room too. */
int64_t tracepage_count(const struct tracepage *p);
/* In the order of their writing, at most max; returns the count, *ret_lost of those that
 * had no room. What the engine wrote is bounded here. */
int tracepage_read(const struct tracepage *p, struct trace_event *ret, int max,
                   int64_t *ret_lost);

/* ---- the engine ---- */
bool tracepage_on(const struct tracepage *p); /* p may be NULL */
/* Is it on, and about this step or request? */
bool tracepage_wants(const struct tracepage *p, const struct step *st);
bool tracepage_wants_request(const struct tracepage *p, uint64_t request);
void tracepage_put(struct tracepage *p, const struct trace_event *v);

#endif

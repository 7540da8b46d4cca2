/* daemon/serve/handoff.h - the transfer of a request's KV between two engines, as states.
 *
 * Pure: events and a clock in, actions out. An engine has one; it knows what this engine
 * exports (blocks pinned for a reader) and what it imports (offers, pulls). Messages are
 * those of wire_kv.h; who pins, copies and sends is the caller.
 *
 *   export   OPEN ------> SENT ------> gone          the reader said PULLED(final), or
 * went computes     lease \--> QUARANTINE     its lease is over; a PULLED(final),
 *                                        \-> gone    time, or too many blocks end it
 *   import   QUEUED -> WAIT <-> PULL -> gone         all is here
 *            no blocks   \        \-> LOST -> gone   late or failed: told, a RECOMPUTE
 * comes
 *                         \----> LOST
 *
 * An import that is let go of while a pull copies stays, CLOSING, until that is back, and
 * only then tells PULLED(final): the exporter's blocks outlive every copy. One that does
 * not come back holds its blocks for as long as an exporter's quarantine; then the engine
 * must end (STUCK), as nothing else frees them. Deadlines are
 * kept by handoff_tick, which a timer calls, whatever else happens or not. One owner
 * thread. */
#ifndef SERVE_HANDOFF_H
#define SERVE_HANDOFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/serve/wire_kv.h"

struct handoff;

struct handoff_cfg {
    int64_t lease_us;      /* export, from its end on: without news of the reader */
    int64_t quarantine_us; /* then, until the blocks are taken back; and CLOSING */
    int quarantine_blocks; /* in all; the oldest are taken back first */
    int64_t first_us;      /* import: until the first offer, which may queue */
    int64_t next_us;       /* import: until the next one */
    int64_t pull_us;       /* a copy */
    int tries;             /* copies of one piece */
};
extern const struct handoff_cfg handoff_defaults;

/* What is to be done, in order; borrowed until the next handoff_acts call. */
enum handoff_kind {
    HANDOFF_UNPIN,  /* blocks[0..n): nobody reads them any more */
    HANDOFF_PULL,   /* begin pull `pull` */
    HANDOFF_PULLED, /* send it */
    HANDOFF_LOST,   /* send it */
    HANDOFF_DONE,   /* an import is whole: for the metrics */
    HANDOFF_STUCK,  /* a copy does not come back: what it may write into is nobody's */
};
struct handoff_act {
    enum handoff_kind kind;
    uint64_t id, peer;
    /* UNPIN, PULL: of the chain from its block `first` on */
    int32_t *ids;
    struct wire_block *blocks;
    int first, n;
    bool forced; /* UNPIN: taken back, it may still be read */
    /* PULL: positions that are there with them */
    uint64_t pull;
    int upto;
    struct wire_pulled pulled; /* without its reader, who is the caller */
    struct err why;
    /* DONE: bytes of all pulls, their time; from the last offer to now */
    uint64_t bytes;
    int64_t copy_us, wait_us;
};

struct handoff_stats {
    int exports, export_blocks;            /* now: pinned for a reader */
    int open;                              /* now, of them: not all is computed */
    int quarantined, quarantined_blocks;   /* now, of them */
    int queued, waiting, pulling, closing; /* imports now */
    int losing;                            /* now, of those that wait: told LOST */
    int copies;                            /* now: that are not back */
    uint64_t done, lost, recomputed, retries, bytes;
    uint64_t late;        /* news of what is unknown or over: normal */
    uint64_t quarantines; /* leases that ended */
    uint64_t taken_back;  /* blocks that a reader never gave back */
};

struct handoff *handoff_new(const struct handoff_cfg *cfg);
void handoff_free(struct handoff *h);

/* ---- the exporter's events ---- */
/* Blocks were pinned for request id, to be read by engine `reader`; the next of a chain.
 */
void handoff_export(struct handoff *h, int64_t now, uint64_t id, uint64_t reader,
                    const int32_t *blocks, int n);
/* The request is over here, however it ended; nothing where it exported nothing. */
void handoff_export_end(struct handoff *h, int64_t now, uint64_t id);
void handoff_acked(struct handoff *h, int64_t now, const struct wire_pulled *p);

/* ---- the importer's events ---- */
void handoff_import(struct handoff *h, int64_t now, uint64_t id, uint64_t peer);
/* It has its blocks, and the first `have` of n_tok positions. */
void handoff_reserved(struct handoff *h, int64_t now, uint64_t id, int have, int n_tok);
/* What came. An offer that does not fit what was offered before: LOST. */
void handoff_offer(struct handoff *h, int64_t now, const struct wire_offer *o);
/* A pull is back; why NULL: with success. */
void handoff_pull_end(struct handoff *h, int64_t now, uint64_t pull,
                      const struct err *why, uint64_t bytes, int64_t us);
/* The ids generated elsewhere, when this pull, which is not ended yet, is the last of an
 * import that still wants it; borrowed until then. */
const int32_t *handoff_gen(const struct handoff *h, uint64_t pull, int *ret_n);
/* It is computed here; or it is over, whoever ended it. */
void handoff_recompute(struct handoff *h, int64_t now, uint64_t id);
void handoff_import_end(struct handoff *h, int64_t now, uint64_t id);
/* It cannot begin, or a pull could not be made. */
void handoff_fail(struct handoff *h, int64_t now, uint64_t id, const struct err *why);

/* ---- both ---- */
void handoff_peer_gone(struct handoff *h, int64_t now, uint64_t incarnation);
void handoff_tick(struct handoff *h, int64_t now);
int64_t handoff_deadline(const struct handoff *h); /* of the next tick; -1 none */
/* Does anything of that incarnation still read or wait? (its map may be dropped) */
bool handoff_reads(const struct handoff *h, uint64_t incarnation);
size_t handoff_acts(struct handoff *h, const struct handoff_act **ret);
void handoff_stats(const struct handoff *h, struct handoff_stats *ret);
/* For tests. */
int handoff_check(const struct handoff *h, struct err *e);

#endif

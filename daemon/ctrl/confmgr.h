/* daemon/ctrl/confmgr.h - revisions applied: check, commit, confirm, roll back, guard.
 *
 *   candidate -> checked -> applying -> pending -> confirmed -> superseded
 *                               |          |  deadline, abort, guard, another boot
 *                               v          v
 *                            failed    rolled back       (rescue when even that fails)
 *
 * Each arrow is stored before its side effect (state/revision.h); confmgr_start finishes
 * what a crash cut off. The candidate is the draft; it gets its number when it passed the
 * check. What touches engines goes through confmgr_ops, so that the machine runs in tests
 * on virtual time against a fake fleet. Control thread only. */
#ifndef CTRL_CONFMGR_H
#define CTRL_CONFMGR_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ctrl/conf.h"
#include "state/revision.h"

struct buf;
struct clock;
struct confmgr;
struct err;
struct guard_window;
struct store;

#ifdef LLMRACK_FAULTS
enum { CONFMGR_CONFIRM_S = 600, CONFMGR_GRACE_S = 1 }; /* a crash test does not wait */
#else
enum { CONFMGR_CONFIRM_S = 600, CONFMGR_GRACE_S = 30 };
#endif

struct confmgr_ops {
    /* Make it run; done(arg2, why) once, later. At -1 nothing was changed. */
    int (*apply)(void *arg, const struct conf *to,
                 void (*done)(void *arg2, const struct err *why), void *arg2,
                 struct err *e);
    /* From now on this is what runs, as revision id (0: rescue): for values that change
     * in place. Before engines change for a roll-back and at the start, after that for a
     * commit. NULL: nothing. */
    void (*runs)(void *arg, const struct conf *c, int64_t id);
    /* SLO figures since from_us (monotonic), without warm-up and drain. NULL: no guard.
     */
    void (*window)(void *arg, int64_t from_us, struct guard_window *ret);
    /* The same as a JSON value, kept with the revision. NULL: none. */
    void (*figures)(void *arg, int64_t from_us, struct buf *json);
    /* What check reports beside the diff, as JSON members without braces: actions,
     * requests. -1 when it cannot be applied at all. NULL: nothing. */
    int (*describe)(void *arg, const struct conf *to, struct buf *json, struct err *e);
    void (*alarm)(void *arg, const char *id, bool on, const char *text); /* critical */
    void *arg;
};

struct confmgr_cfg {
    struct store *store;
    const struct clock *clock;
    const char *boot_id;              /* of this boot */
    const struct conf_override *over; /* of this run, borrowed */
    int n_over;
    const char *seed; /* text of revision 1 when the store is empty */
    struct confmgr_ops ops;
};

/* Seeds an empty store and reads what will run: confmgr_conf is valid from here. Refuses
 * a seed with faults, and values of the command line that have any. */
int confmgr_new(const struct confmgr_cfg *cfg, struct confmgr **ret, struct err *e);
void confmgr_free(struct confmgr *m);
/* Settle what the last run left (a pending one of this boot goes on, after the first
 * restart with at least CONFMGR_GRACE_S; of another boot it is rolled back; a
 * half-applied one is rolled back), then apply what is good. Engines of the good one that
 * do not become ready here are left to their supervisors; rescue is for what cannot be
 * read or applied, and for a roll-back that fails. */
int confmgr_start(struct confmgr *m, struct err *e);
/* Deadlines and guard; returns when to call again (monotonic us, -1 = not). */
int64_t confmgr_tick(struct confmgr *m, int64_t now_us);

/* Who asks, for the journal. */
struct confmgr_who {
    const char *actor, *origin;
};

struct confmgr_commit {
    struct confmgr_who who;
    bool confirm;      /* wait for a confirmation */
    int64_t confirm_s; /* 0 = CONFMGR_CONFIRM_S */
    enum rev_guard guard;
    bool rebase;
    const char *comment, *hypothesis; /* "" none */
    int64_t if_base; /* refuse unless this revision runs; 0 = the draft's base */
};
/* The draft; text NULL drops it. base 0 = what runs. Stored also when it has faults. */
int confmgr_draft(struct confmgr *m, const struct confmgr_who *who, const char *text,
                  int64_t base, struct err *e);
/* Faults, diff by path with class, actions, fits: as JSON. text NULL = the draft. 0 when
 * it could be committed, else -1 (the JSON is written all the same). */
int confmgr_check(struct confmgr *m, const char *text, struct buf *json, struct err *e);
/* The draft becomes a revision and is applied; *ret_id at once, the outcome by
 * confmgr_status and the journal. CONFLICT: another is pending or the base is stale (the
 * sentence has the difference that was missed). */
int confmgr_commit(struct confmgr *m, const struct confmgr_commit *c, int64_t *ret_id,
                   struct err *e);
/* The same for a new revision equal to number id (0 = the one before the running one). */
int confmgr_rollback(struct confmgr *m, int64_t id, const struct confmgr_commit *c,
                     int64_t *ret_id, struct err *e);
/* 0; 1 when it is confirmed already, and *e says since when. */
int confmgr_confirm(struct confmgr *m, const struct confmgr_who *who, int64_t *ret_id,
                    struct err *e);
int confmgr_abort(struct confmgr *m, const struct confmgr_who *who, const char *why,
                  int64_t *ret_id, struct err *e);

struct confmgr_status {
    struct rev_point point;
    int64_t left_us; /* until the deadline; -1 = nothing pending */
    bool applying, reverting, rescue;
    char verdict[256]; /* of the guard: "insufficient data (12 of 50 requests)" */
    char last[256];    /* outcome of the last commit, "" none */
};
void confmgr_status(const struct confmgr *m, struct confmgr_status *ret);
/* Is what was begun with revision id over, and how did it end? PENDING counts as an end.
 * For who waits for a commit, a roll-back or an abort. */
bool confmgr_settled(struct confmgr *m, int64_t id, enum rev_state *ret,
                     char message[512]);
/* The running configuration, a new reference. */
struct conf *confmgr_conf(struct confmgr *m);

/* ---- texts by number, or one of these ---- */
enum { CONFMGR_RUNNING = 0, CONFMGR_DRAFT = -1 };
/* malloc'd; *ret_id the number (0 of the draft). NOTFOUND also when it was pruned. */
int confmgr_text(struct confmgr *m, int64_t ref, char **ret, int64_t *ret_id,
                 struct err *e);
/* {from, to, text, changes: [{path, from, to, class}]}. */
int confmgr_diff(struct confmgr *m, int64_t from, int64_t to, struct buf *json,
                 struct err *e);

/* ---- fault points ---- */
/* Names of the steps, for `make crash-test`: the environment's LLMRACK_CRASH_AT=name
 * kills the process there. Compiled in with -DLLMRACK_FAULTS only. */
#define CONFMGR_STEP_MAP(X)                                                              \
    X(COMMIT_STORED)                                                                     \
    X(INTENT_STORED)                                                                     \
    X(APPLIED)                                                                           \
    X(PENDING_STORED)                                                                    \
    X(CONFIRM_BEFORE)                                                                    \
    X(CONFIRM_STORED)                                                                    \
    X(REVERT_STORED)                                                                     \
    X(REVERT_APPLIED)                                                                    \
    X(REVERT_DONE)                                                                       \
    X(RESTORE_COPIED)                                                                    \
    X(RESTORE_STAGED)                                                                    \
    X(RESTORE_MOVED)                                                                     \
    X(RESTORE_SWAPPED)

#endif

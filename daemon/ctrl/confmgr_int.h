/* daemon/ctrl/confmgr_int.h - what the files of confmgr share: confmgr.c (store, start),
 * confmgr_run.c (the fleet: apply, roll back, rescue), confmgr_window.c (the window:
 * confirm, abort, deadline, guard), confmgr_edit.c (drafts, checks, what becomes a
 * commit). Not for others. */
#ifndef CTRL_CONFMGR_INT_H
#define CTRL_CONFMGR_INT_H

#include "base/err.h"
#include "base/fault.h"
#include "daemon/ctrl/confmgr.h"
#include "daemon/ctrl/guard.h"

enum {
    CONFMGR_SECOND_US = 1000000,
    CONFMGR_FIGURES_MAX = 256 << 10,
    CONFMGR_TEXTS = 500 /* of ended revisions that are kept */
};

enum confmgr_step {
#define X(id) CONFMGR_STEP_##id,
    CONFMGR_STEP_MAP(X)
#undef X
};
/* A step that is not in the table does not compile. */
#define STEP(id) ((void)CONFMGR_STEP_##id, fault_point(#id))

/* Why the fleet is busy. */
enum work {
    WORK_NONE,
    WORK_START,  /* the good one, at the start of the daemon */
    WORK_RESUME, /* a pending one, at the start */
    WORK_COMMIT,
    WORK_REVERT,
    WORK_RESCUE
};

struct confmgr {
    struct confmgr_cfg cfg;
    char *boot_id, *seed;
    struct rev_point point; /* as stored */
    struct conf *conf;      /* what runs, or is meant to */
    int64_t since_us;       /* it runs since */
    enum work work;
    struct conf *target; /* of WORK_COMMIT */
    bool rescue;
    char rescue_why[512];
    bool unreadable; /* the pending one, at the start */

    /* the commit in progress, until it is confirmed or rolled back */
    int64_t id;
    bool confirm;
    int64_t confirm_s;
    enum rev_guard guard;
    char actor[64], origin[64];
    char restart[160]; /* directives that wait for the next start, "" none */
    char draft_hash[REV_HASH_CHARS + 1]; /* of the draft that it came from, "" none */
    bool live;                           /* it is pending and runs in this process */
    bool want_revert;                    /* as soon as the fleet is free */
    char why[512];                       /* of the revert */
    enum rev_state side;                 /* FAILED or ROLLED_BACK */
    struct guard_window before;
    int64_t look_us, look_n; /* the guard looks again then, with so many requests */

    bool unsaved; /* the revert is done and could not be stored: tried again */
    char verdict[256];
    char last[512]; /* what became of last_id */
    int64_t last_id;
};

/* ---- confmgr.c ---- */
extern const struct confmgr_who confmgr_daemon, confmgr_guard;
int64_t confmgr_now(const struct confmgr *m);
int64_t confmgr_current(const struct confmgr *m);
/* Every transition: the point, n states and one journal row, in one transaction. */
int confmgr_point(struct confmgr *m, const struct rev_point *p,
                  const struct rev_change *c, int n, const struct confmgr_who *who,
                  const char *what, int64_t id, const char *result, const char *detail,
                  struct err *e);
/* A journal row that is no transition. Logs when it cannot be stored. */
void confmgr_note(struct confmgr *m, const struct confmgr_who *who, const char *what,
                  int64_t id, const char *result, const char *detail);
/* -1; the refusal goes into the journal. */
int confmgr_refused(struct confmgr *m, const struct confmgr_who *who, const char *what,
                    int64_t id, const struct err *e);
/* INVALID with the first fault's place and sentence, and how many more there are. */
int confmgr_fault_err(const struct conf_faults *f, struct err *e);
/* *ret_own (NULL allowed): the fault is that of a value from the command line. */
int confmgr_load(struct confmgr *m, int64_t id, struct conf **ret, bool *ret_own,
                 struct err *e);
struct conf *confmgr_rescue_conf(struct confmgr *m);
/* Takes c, which is revision id; 0: rescue. */
void confmgr_set_conf(struct confmgr *m, struct conf *c, int64_t id);
/* Old texts go, the rows stay. */
void confmgr_prune(struct confmgr *m);
/* What became of a revision (0: of the start): log, status, whoever waits. */
void confmgr_tell(struct confmgr *m, int64_t id, const char *message);

/* ---- confmgr_run.c ---- */
/* CONFLICT when something is pending or in progress. */
int confmgr_free_to_commit(const struct confmgr *m, struct err *e);
/* The machine takes over: revision id is stored, conf (taken) is its text. */
int confmgr_apply(struct confmgr *m, int64_t id, struct conf *conf,
                  const struct confmgr_commit *c, const char *what, const char *comment,
                  struct err *e);
int confmgr_work(struct confmgr *m, enum work work, const struct conf *to, struct err *e);
/* Back to the good one: store why, then act. */
void confmgr_revert(struct confmgr *m, enum rev_state side, const struct confmgr_who *who,
                    const char *why);
void confmgr_revert_apply(struct confmgr *m);
int confmgr_store_reverted(struct confmgr *m, struct err *e);
/* The good one cannot be applied: nothing runs, the admin API stays up. */
void confmgr_rescue(struct confmgr *m, const char *why);
int confmgr_store_confirmed(struct confmgr *m, const struct confmgr_who *who,
                            const char *detail, struct err *e);

/* ---- confmgr_window.c ---- */
/* Figures since from_us, kept with revision id (0: not) as its before or after. */
void confmgr_figures(struct confmgr *m, int64_t id, bool after, int64_t from_us,
                     struct guard_window *ret);
/* The window before, from the store: the commit was made by a daemon before this one. */
void confmgr_read_before(struct confmgr *m, const char *json);
void confmgr_look_from(struct confmgr *m);

#endif

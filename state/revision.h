/* state/revision.h - configuration revisions and the one row that says which of them
 * runs.
 *
 * A revision is a whole text plus its SHA-256; its text never changes once it is put.
 * What runs, what is good, what is pending and until when is one row (struct rev_point),
 * read and written whole: each rev_point_set is one transaction with the change of a
 * revision's state and its journal row, so a crash leaves the old or the new, never
 * between. Control thread. */
#ifndef STATE_REVISION_H
#define STATE_REVISION_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct store;

#define REV_STATE_MAP(X)                                                                 \
    X(CANDIDATE, "candidate")                                                            \
    X(CHECKED, "checked")                                                                \
    X(APPLYING, "applying")                                                              \
    X(PENDING, "pending")                                                                \
    X(CONFIRMED, "confirmed")                                                            \
    X(SUPERSEDED, "superseded")                                                          \
    X(FAILED, "failed")                                                                  \
    X(ROLLED_BACK, "rolled back")                                                        \
    X(DISCARDED, "discarded")
enum rev_state {
#define X(id, text) REV_##id,
    REV_STATE_MAP(X)
#undef X
        REV_STATE_COUNT
};
const char *rev_state_name(enum rev_state s);

enum { REV_TEXT_MAX = 1 << 20, REV_HASH_CHARS = 64 };

struct revision {
    int64_t id;   /* 1, 2, ..; 0 = not stored yet */
    int64_t base; /* the revision that its author started from, 0 none */
    char *text;   /* malloc'd; NULL in lists */
    char hash[REV_HASH_CHARS + 1];
    char author[64], comment[256], hypothesis[256];
    int64_t at_ms, applied_ms, ended_ms; /* Unix ms; 0 = not yet */
    enum rev_state state;
    char why[512]; /* of a side exit */
    char journal_head[REV_HASH_CHARS + 1];
    char *before, *after; /* metrics as JSON, malloc'd, "" = none; NULL in lists */
};
void revision_done(struct revision *r);

/* What runs and what waits; all ids 0 in an empty store. */
enum rev_phase { REV_IDLE, REV_PHASE_APPLYING, REV_PHASE_PENDING, REV_PHASE_REVERTING };
const char *rev_phase_name(enum rev_phase p); /* "idle", "applying", .. */
enum rev_guard { REV_GUARD_OFF, REV_GUARD_ON, REV_GUARD_AUTO };
struct rev_point {
    int64_t running, good, pending;
    enum rev_phase phase;
    char boot_id[40];
    int64_t deadline_us; /* monotonic, of that boot; 0 = without confirmation */
    int64_t deadline_ms; /* wall clock, for display */
    enum rev_guard guard;
};

/* A new revision: id, hash and journal_head are filled in. */
int revision_put(struct store *s, struct revision *r, struct err *e);
/* NOTFOUND names what is there, also when the text was pruned; CORRUPT when the text does
 * not fit its hash. */
int revision_get(struct store *s, int64_t id, struct revision *ret, struct err *e);
/* Newest first, id < before (0 = all), without texts; returns the count or -1. */
int revision_list(struct store *s, int64_t before, struct revision *ret, int max,
                  struct err *e);
int revision_set_metrics(struct store *s, int64_t id, const char *before,
                         const char *after, struct err *e); /* NULL = leave */
/* Drop the texts of ended revisions older than the newest keep; never those that run, are
 * good or pending, nor what they or the draft began from. */
int revision_prune(struct store *s, int keep, struct err *e);

int rev_point_get(struct store *s, struct rev_point *ret, struct err *e);
/* One transaction: the row, the states of n revisions, and one journal row. The draft
 * stays as it is. A full disk gives up the reserve for it. */
struct rev_change {
    int64_t id;
    enum rev_state state;
    const char *why; /* "" none */
};
struct journal_note;
int rev_point_set(struct store *s, const struct rev_point *p, const struct rev_change *c,
                  int n, const struct journal_note *note, struct err *e);

/* The draft that operators edit; base = the revision it began from. text NULL drops it.
 */
int rev_draft_set(struct store *s, const char *text, int64_t base, const char *author,
                  struct err *e);
/* 1 and malloc'd text, 0 none, -1. */
int rev_draft_get(struct store *s, char **ret_text, int64_t *ret_base, char author[64],
                  struct err *e);

/* SHA-256 of text as hex. */
void rev_hash(const char *text, char ret[REV_HASH_CHARS + 1]);

#endif

/* state/journal.h - who did what, when, from where, with what result: append only.
 *
 * Rows form a hash chain: each holds the SHA-256 over all of its fields and the hash
 * before it. The head also stands in each revision and, through journal_listen, in the
 * system journal, so that changed, removed and cut rows show. Fields are cut to the sizes
 * below at a whole character. A full disk gives up the store's reserve for a row. Control
 * thread. */
#ifndef STATE_JOURNAL_H
#define STATE_JOURNAL_H

#include <stdint.h>

struct err;
struct store;

enum { JOURNAL_HASH_CHARS = 64 };

struct journal_row {
    int64_t id, at_ms; /* 1, 2, .. without a gap; Unix ms */
    char actor[64];    /* "daemon", "uid 0", "key ab12.." */
    char origin[64];   /* "", "unix", an address */
    char what[64];     /* "engine.start", "config.commit" */
    char subject[128]; /* instance or model name, revision number */
    char result[32];   /* "ok", "failed", "refused" */
    char detail[512];
    int64_t revision;                  /* that ran then, 0 none */
    char hash[JOURNAL_HASH_CHARS + 1]; /* lower-case hex */
};
int journal_add(struct store *s, const char *actor, const char *what, const char *subject,
                const char *result, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));
/* The same with its origin, as one value (also part of rev_point_set). */
struct journal_note {
    const char *actor, *origin, *what, *subject, *result, *detail; /* NULL = "" */
};
int journal_note(struct store *s, const struct journal_note *n, struct err *e);
/* Newest first, id < before_id (0 = all), at most max; returns the count or -1. */
int journal_list(struct store *s, int64_t before_id, struct journal_row *ret, int max,
                 struct err *e);
/* The hash of the last row, "" in an empty journal. */
int journal_head(struct store *s, char ret[JOURNAL_HASH_CHARS + 1], struct err *e);
/* Walks the chain. 0 whole; -1 with CORRUPT and the first row that does not fit: changed,
 * removed, or cut off below a head that a revision remembers. *ret_rows = rows that fit.
 */
int journal_verify(struct store *s, int64_t *ret_rows, struct err *e);
/* Called after each row is stored (events, system journal). */
typedef void (*journal_fn)(void *arg, const struct journal_row *r);
void journal_listen(struct store *s, journal_fn fn, void *arg);

#endif

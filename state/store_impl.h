/* state/store_impl.h - inside state/: typed statements over the database, no SQLite
 * types.
 *
 * A statement is opened with its arguments, stepped, read by column and closed within one
 * call, so that none pins the log. store_write wraps changes in one transaction. Errors
 * name the state folder and what the database said. Control thread. */
#ifndef STATE_STORE_IMPL_H
#define STATE_STORE_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "state/journal.h"

struct buf;
struct err;
struct stmt;
struct store;

enum { STORE_APPLICATION_ID = 0x6c6c6d72 };

/* ---- statements ---- */
/* One argument a letter: t text (NULL = SQL's null), i int64, r double, b bytes (pointer,
 * int). They are borrowed until the statement is closed. NULL and a sentence. */
struct stmt *stmt_open(struct store *s, struct err *e, const char *sql, const char *types,
                       ...);
/* 1 = a row, 0 = done, -1; a NULL statement (stmt_open failed) gives -1. */
int stmt_step(struct store *s, struct stmt *st, struct err *e);
void stmt_close(struct stmt *st); /* NULL allowed */
/* The end of a list of n rows whose last step gave rc: closes; n or -1. */
int stmt_end(struct store *s, struct stmt *st, int rc, int n, struct err *e);
/* Open, run, close a statement without rows: how many rows it changed, or -1. */
int stmt_run(struct store *s, struct err *e, const char *sql, const char *types, ...);
/* First column of the first row as a number. */
int stmt_number(struct store *s, const char *sql, int64_t *ret, struct err *e);
/* The same as text, "" without a row. */
int stmt_word(struct store *s, const char *sql, char *out, size_t cap, struct err *e);

bool stmt_null(struct stmt *st, int col);
int64_t stmt_int(struct stmt *st, int col);
double stmt_real(struct stmt *st, int col);
/* The bytes of a text or blob, valid until the next step; never NULL. */
const char *stmt_bytes(struct stmt *st, int col, size_t *ret_len);
void stmt_text(struct stmt *st, int col, char *out, size_t cap); /* cut to cap */
char *stmt_dup(struct stmt *st, int col);                        /* malloc'd */
#define STMT_COPY(st, col, field) stmt_text(st, col, field, sizeof(field))

/* Several statements without arguments. */
int store_script(struct store *s, const char *sql, struct err *e);

/* ---- transactions ---- */
/* body in one transaction: all of it, or -1 and nothing. With must, a full disk gives up
 * the reserve first (rollback and audit still fit); body may then run twice. */
typedef int (*store_body_fn)(struct store *s, void *arg, struct err *e);
int store_write(struct store *s, bool must, store_body_fn body, void *arg, struct err *e);
int64_t store_last_id(struct store *s); /* of the last INSERT */

/* ---- whole database files ---- */
const char *store_dir(const struct store *s);
const char *store_name(const struct store *s); /* the file, for sentences */
/* A database file beside the store: no lock, nothing checked nor migrated; store_close
 * ends it. */
int store_attach(const char *path, struct store **ret, struct err *e);
/* Ours by its application id, or (empty = true allowed) without any table. */
int store_check_ours(struct store *s, bool *ret_empty, struct err *e);
/* Every page and index. */
int store_check_whole(struct store *s, struct err *e);
/* Into the existing file `to`, consistent, without a log beside it. */
int store_copy_to(struct store *s, const char *to, struct err *e);

/* ---- migrate.c ---- */
int migrate_newest(void);
/* 0..newest; UNSUPPORTED for a newer one. */
int migrate_version(struct store *s, int *ret, struct err *e);
int migrate_to(struct store *s, int from, int to, struct err *e);
/* CORRUPT unless the tables are exactly those of that version. */
int migrate_check_tables(struct store *s, int version, struct err *e);

/* ---- backup.c ---- */
/* At open, under the lock: finish a restore or recovery that was staged. */
int backup_adopt(const char *dir, struct err *e);
/* After open: put into the journal what was staged with a restore. */
int backup_tell(struct store *s, struct err *e);
/* A copy in dir/backups, named by time and schema. */
int backup_here(struct store *s, int version, struct err *e);
/* CORRUPT when there was a store in dir and now there is no file (s NULL), or s, which
 * has no table. */
int backup_check_lost(const char *dir, struct store *s, struct err *e);
/* "; 'llmrackd --recover' .." for a store that cannot be used. */
void backup_way_out(const char *dir, struct err *e);

/* ---- what journal.c keeps in a store ---- */
struct store_journal {
    journal_fn fn;
    void *arg;
};
struct store_journal *store_journal(struct store *s);
/* Within a transaction: append; *ret is the row as stored, for journal_tell after the
 * commit. */
int journal_append(struct store *s, const struct journal_note *n, struct journal_row *ret,
                   struct err *e);
void journal_tell(struct store *s, const struct journal_row *r);
/* Migration 3: chain the rows that are there. */
int journal_seal(struct store *s, struct err *e);

#endif

/* state/store.h - the state database: open, migrate, back up, restore, recover.
 *
 * WAL, synchronous=FULL: what a call acknowledged survives kill -9 and power loss. One
 * daemon a state directory (a lock file; the second is refused with a sentence). Schema
 * by numbered migrations (schema.sql, embedded); a newer schema is refused. What stands
 * in the tables has a header each: journal, inventory (both included here), revision,
 * apikey, series, racknotes. All calls from the control thread.
 *
 *   dir/state.db          the database (with state.db-wal and state.db-shm)
 *   dir/state.db.restore  checked and to be swapped in by the next open
 *   dir/state.db.old      what ran before a restore; .broken-N what --recover replaced
 *   dir/backups/          copies made here; --recover takes the newest good one
 *   dir/reserve           room that is given up when the disk is full */
#ifndef STATE_STORE_H
#define STATE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "state/inventory.h"
#include "state/journal.h"

struct err;
struct store;

/* A damaged store is refused with the way out in the sentence. */
int store_open(const char *dir, struct store **ret, struct err *e);
/* To look at only, for a daemon that does not answer: no lock, nothing is made, brought
 * up or repaired, so a table may be missing. */
int store_open_read(const char *dir, struct store **ret, struct err *e);
void store_close(struct store *s);
int store_schema_version(const struct store *s);
/* The absolute path of a file in the state folder (malloc'd). */
char *store_file(const struct store *s, const char *name);
/* 16 random bytes made once per store: the secret of the prefix hash. */
void store_secret(const struct store *s, uint8_t ret[16]);

/* Now and then: makes the reserve again where there is room; false while there is none,
 * that is, the disk is full or nearly so. */
bool store_tend(struct store *s);

/* The state as it is at its first reading, by a connection of its own that another thread
 * may use: for journal_verify, store_backup and store_restore, which take a while. Close
 * it soon: while it is open the log of changes grows. Any thread, while `of` is open. */
int store_view(const struct store *of, struct store **ret, struct err *e);

/* A consistent, integrity-checked copy into a new file of mode 0600. */
int store_backup(struct store *s, const char *path, struct err *e);
/* The same into dir/backups, named by time; of those the newest keep stay. */
int store_backup_keep(struct store *s, int keep, struct err *e);
/* The same when the newest one there is older than age_ms by its name (or there is none):
 * 1 made, 0 not due, -1. */
int store_backup_due(struct store *s, int64_t wall_ms, int64_t age_ms, int keep,
                     struct err *e);
/* When the newest one there was made, by its name (Unix ms); 0 = there is none. */
int64_t store_backup_newest(const struct store *s);
/* Checks that file (ours, whole, its tables those of a schema that is known, its journal
 * a chain) beside the store, then stages it: the next store_open puts it in place, what
 * ran stays as state.db.old. Until then this store goes on as it is. */
int store_restore(struct store *s, const char *path, struct err *e);
/* dir's store cannot be opened since it is damaged or gone: put the newest good backup of
 * dir/backups in its place, or, with none, an empty one; the damaged one is kept as
 * state.db.broken-N. *ret_what says what was done (malloc'd). CONFLICT when the store is
 * whole or in use. */
int store_recover(const char *dir, char **ret_what, struct err *e);

#endif

/* state/store.h - the only file that knows SQLite: open, migrate, read, write.
 *
 * WAL, synchronous=FULL: what a call acknowledged survives kill -9 and power loss. One
 * daemon a state directory (a lock file; the second is refused with a sentence). Schema
 * by numbered migrations (schema.sql, embedded); a newer schema is refused. All calls
 * from the control thread unless said. */
#ifndef STATE_STORE_H
#define STATE_STORE_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct store;

int store_open(const char *dir, struct store **ret, struct err *e);
void store_close(struct store *s);
int store_schema_version(const struct store *s);
/* 16 random bytes made once per store: the secret of the prefix hash. */
void store_secret(const struct store *s, uint8_t ret[16]);

/* ---- journal: append only, a hash chain ---- */
struct journal_row {
    int64_t id, at_ms; /* Unix ms */
    char actor[64];    /* "daemon", "uid 0", "key ab12.." */
    char origin[64];   /* "", "unix", an address */
    char what[64];     /* "engine.start", "config.commit" */
    char subject[128]; /* instance or model name, revision number */
    char result[32];   /* "ok", "failed", "refused" */
    char detail[512];
    int64_t revision; /* that ran then, 0 none */
    char hash[65];    /* SHA-256 over this row and the hash before, hex */
};
int journal_add(struct store *s, const char *actor, const char *what, const char *subject,
                const char *result, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));
/* The same with its origin, as one value (also part of rev_point_set). */
struct journal_note {
    const char *actor, *origin, *what, *subject, *result, *detail;
};
int journal_note(struct store *s, const struct journal_note *n, struct err *e);
/* Newest first, id < before_id (0 = all), at most max; returns the count or -1. */
int journal_list(struct store *s, int64_t before_id, struct journal_row *ret, int max,
                 struct err *e);
/* The hash of the last row. */
int journal_head(struct store *s, char ret[65], struct err *e);
/* Walks the chain. 0 whole; -1 with CORRUPT and the first row that does not fit: changed,
 * removed, or cut off below a head that a revision remembers. *ret_rows = rows seen. */
int journal_verify(struct store *s, int64_t *ret_rows, struct err *e);
/* Called after each row is stored, on the control thread (events, system journal). */
typedef void (*journal_fn)(void *arg, const struct journal_row *r);
void journal_listen(struct store *s, journal_fn fn, void *arg);

/* ---- backup ---- */
/* A consistent, integrity-checked copy into a new file of mode 0600. */
int store_backup(struct store *s, const char *path, struct err *e);
/* Checks that file (ours, whole, schema known) beside the store, then makes it the one
 * that the next store_open finds; the old one stays as state.db.old. */
int store_restore(struct store *s, const char *path, struct err *e);
/* dir's store cannot be opened: put the newest good backup of dir/backups in its place,
 * or, with none, an empty one; the broken one is kept as state.db.broken-N. *ret_what
 * says what was done (malloc'd). The lock must be free. */
int store_recover(const char *dir, char **ret_what, struct err *e);

/* ---- models and instances as last applied ---- */
struct model_row {
    char name[128], path[4096], family[16], main_type[8], format[16];
    uint64_t n_params, file_bytes;
    int64_t added_ms;
};
int inventory_put_model(struct store *s, const struct model_row *m, struct err *e);
int inventory_models(struct store *s, struct model_row *ret, int max, struct err *e);

struct instance_row {
    char name[64], model[128], mode[16], options[1024]; /* options: JSON as applied */
    int64_t applied_ms;
};
int inventory_put_instance(struct store *s, const struct instance_row *i, struct err *e);
int inventory_instances(struct store *s, struct instance_row *ret, int max,
                        struct err *e);

/* What an operator said of an instance; outlives restarts. state "" = as configured. */
struct admin_row {
    char instance[64], state[16], reason[256], actor[64]; /* "stopped", "draining" */
    int64_t at_ms;
};
int admin_put(struct store *s, const struct admin_row *a, struct err *e);
int admin_list(struct store *s, struct admin_row *ret, int max, struct err *e);

/* ---- the rack as last recorded ---- */
/* name: what was asked for (auto, a built-in, a file); json: the graph. Replaces. */
int inventory_put_rack(struct store *s, const char *name, const char *json,
                       struct err *e);
/* 1 and malloc'd strings, 0 when none was recorded, -1. */
int inventory_rack(struct store *s, char **ret_name, char **ret_json, struct err *e);

#endif

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

/* ---- journal: append only ---- */
struct journal_row {
    int64_t id, at_ms; /* Unix ms */
    char actor[64];    /* "daemon", "uid 0" */
    char what[64];     /* "engine.start", "daemon.stop" */
    char subject[128]; /* instance or model name */
    char result[32];   /* "ok", "failed" */
    char detail[512];
};
int journal_add(struct store *s, const char *actor, const char *what, const char *subject,
                const char *result, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));
/* Newest first, at most max; returns the count or -1. */
int journal_list(struct store *s, int64_t before_id, struct journal_row *ret, int max,
                 struct err *e);

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

/* ---- the rack as last recorded ---- */
/* name: what was asked for (auto, a built-in, a file); json: the graph. Replaces. */
int inventory_put_rack(struct store *s, const char *name, const char *json,
                       struct err *e);
/* 1 and malloc'd strings, 0 when none was recorded, -1. */
int inventory_rack(struct store *s, char **ret_name, char **ret_json, struct err *e);

#endif

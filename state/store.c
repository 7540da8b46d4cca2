/* state/store.c - the state database: one SQLite file, the only code that knows SQLite.
 *
 * <dir>/llmrackd.lock is held with flock() for the life of the store, so that a second
 * daemon on the folder is refused before it touches anything; it names the process.
 * <dir>/state.db runs in WAL mode with synchronous=FULL, checked at open: a call that
 * returned 0 is on the disk. Each call is one statement or one transaction and leaves no
 * statement open, so that no forgotten read pins the WAL.
 *
 * Migrations stand in schema.sql between lines "-- migration N". The database carries our
 * application id, so that another program's file is not taken for ours. */
#include "state/store.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

enum { APPLICATION_ID = 0x6c6c6d72, BUSY_MS = 2000, SECRET_BYTES = 16 };

static const char schema[] =
#include "schema.h"
    ;

struct store {
    char *dir;
    int lock_fd;
    sqlite3 *db;
    int version;
    uint8_t secret[SECRET_BYTES];
};

/* ---- statements ---- */

static int fail(struct store *s, struct err *e)
{
    enum err_code code = ERR_IO;

    switch (sqlite3_errcode(s->db) & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        code = ERR_CORRUPT;
        break;
    case SQLITE_NOMEM:
        code = ERR_NOMEM;
        break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        code = ERR_CONFLICT;
        break;
    }
    return err_set(e, code, "state database in '%s': %s", s->dir, sqlite3_errmsg(s->db));
}

static int exec(struct store *s, const char *sql, struct err *e)
{
    if (sqlite3_exec(s->db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return fail(s, e);
    return 0;
}

/* One argument a letter: t text, i int64, b bytes (pointer, int). Copied by SQLite only
 * where the statement outlives the call, which none does. */
static int bind_all(sqlite3_stmt *st, const char *types, va_list ap)
{
    int rc = SQLITE_OK;

    for (int i = 1; *types && rc == SQLITE_OK; types++, i++) {
        if (*types == 't') {
            rc = sqlite3_bind_text(st, i, va_arg(ap, const char *), -1, SQLITE_STATIC);
        } else if (*types == 'i') {
            rc = sqlite3_bind_int64(st, i, va_arg(ap, int64_t));
        } else {
            const void *p = va_arg(ap, const void *);
            rc = sqlite3_bind_blob(st, i, p, va_arg(ap, int), SQLITE_STATIC);
        }
    }
    return rc;
}

/* A prepared statement with its arguments; the caller finalizes. NULL and a sentence. */
static sqlite3_stmt *query(struct store *s, struct err *e, const char *sql,
                           const char *types, ...)
{
    sqlite3_stmt *st = NULL;
    va_list ap;
    int rc;

    if (sqlite3_prepare_v2(s->db, sql, -1, &st, NULL) != SQLITE_OK) {
        fail(s, e);
        return NULL;
    }
    va_start(ap, types);
    rc = bind_all(st, types, ap);
    va_end(ap);
    if (rc == SQLITE_OK)
        return st;
    fail(s, e);
    sqlite3_finalize(st);
    return NULL;
}

/* 1 = a row, 0 = done, -1 = fault */
static int step(struct store *s, sqlite3_stmt *st, struct err *e)
{
    int rc = sqlite3_step(st);

    if (rc == SQLITE_ROW)
        return 1;
    return rc == SQLITE_DONE ? 0 : fail(s, e);
}

/* Run a statement that yields no rows; takes it, NULL allowed. */
static int finish(struct store *s, sqlite3_stmt *st, struct err *e)
{
    int rc;

    if (!st)
        return -1;
    rc = step(s, st, e);
    sqlite3_finalize(st);
    return rc < 0 ? -1 : 0;
}

/* First column of the first row as a number. */
static int get_int(struct store *s, const char *sql, int64_t *ret, struct err *e)
{
    sqlite3_stmt *st = query(s, e, sql, "");
    int rc;

    if (!st)
        return -1;
    rc = step(s, st, e);
    if (rc == 1)
        *ret = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    if (rc == 0)
        return err_set(e, ERR_CORRUPT, "state database in '%s': no answer to '%s'",
                       s->dir, sql);
    return rc < 0 ? -1 : 0;
}

static void copy_text(sqlite3_stmt *st, int col, char *out, size_t cap)
{
    const unsigned char *t = sqlite3_column_text(st, col);
    snprintf(out, cap, "%s", t ? (const char *)t : "");
}

#define COPY(st, col, field) copy_text(st, col, field, sizeof(field))

/* The end of a list of n rows whose last step gave rc: takes the statement. */
static int rows_done(struct store *s, sqlite3_stmt *st, int rc, int n, struct err *e)
{
    /* a column that could not be converted reads as NULL and shows only here */
    if (rc >= 0 && sqlite3_errcode(s->db) == SQLITE_NOMEM)
        rc = fail(s, e);
    sqlite3_finalize(st);
    return rc < 0 ? -1 : n;
}

/* ---- open ---- */

static int take_lock(struct store *s, struct err *e)
{
    char path[4096], pid[32] = "";
    ssize_t n;

    if (snprintf(path, sizeof(path), "%s/llmrackd.lock", s->dir) >= (int)sizeof(path))
        return err_set(e, ERR_INVALID, "the state folder's name is too long");
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0)
        return err_errno(e, ERR_IO, "lock file '%s'", path);
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return err_errno(e, ERR_IO, "lock file '%s'", path);
        n = read(s->lock_fd, pid, sizeof(pid) - 1);
        pid[n > 0 ? n : 0] = '\0';
        return err_set(e, ERR_CONFLICT,
                       "the state folder '%s' is in use by another llmrackd (process "
                       "%.*s); stop it or choose another --state-dir",
                       s->dir, (int)strcspn(pid, "\n"), pid);
    }
    snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    if (ftruncate(s->lock_fd, 0) < 0 ||
        pwrite(s->lock_fd, pid, strlen(pid), 0) != (ssize_t)strlen(pid))
        return err_errno(e, ERR_IO, "lock file '%s'", path);
    return 0;
}

static int open_db(struct store *s, struct err *e)
{
    char path[4096];
    int fd;

    if (snprintf(path, sizeof(path), "%s/state.db", s->dir) >= (int)sizeof(path))
        return err_set(e, ERR_INVALID, "the state folder's name is too long");
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600); /* SQLite would make it 0644 */
    if (fd < 0)
        return err_errno(e, ERR_IO, "state database '%s'", path);
    close(fd);
    if (sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK) {
        if (!s->db)
            return err_set(e, ERR_NOMEM, "no memory for the state database");
        return fail(s, e);
    }
    sqlite3_extended_result_codes(s->db, 1);
    sqlite3_busy_timeout(s->db, BUSY_MS);
    return 0;
}

/* Ours or empty, and as durable as we promise. */
static int check_db(struct store *s, struct err *e)
{
    int64_t id, tables, sync;
    sqlite3_stmt *st;
    bool wal;
    int rc;

    if (get_int(s, "PRAGMA application_id", &id, e) < 0 ||
        get_int(s, "SELECT count(*) FROM sqlite_schema", &tables, e) < 0)
        return -1;
    if (id != APPLICATION_ID && (id || tables))
        return err_set(e, ERR_CORRUPT, "'%s/state.db' is the database of another program",
                       s->dir);
    st = query(s, e, "PRAGMA journal_mode=WAL", "");
    if (!st)
        return -1;
    rc = step(s, st, e);
    wal = rc == 1 && sqlite3_column_bytes(st, 0) == 3 &&
          !memcmp(sqlite3_column_blob(st, 0), "wal", 3);
    sqlite3_finalize(st);
    if (rc < 0)
        return -1;
    if (!wal)
        return err_set(e, ERR_IO,
                       "the file system of '%s' cannot keep the state database's log; "
                       "use a local one",
                       s->dir);
    if (exec(s,
             "PRAGMA synchronous=FULL; PRAGMA trusted_schema=OFF;"
             "PRAGMA journal_size_limit=16777216", /* a WAL that grew once shrinks */
             e) < 0 ||
        get_int(s, "PRAGMA synchronous", &sync, e) < 0)
        return -1;
    if (sync != 2)
        return err_set(e, ERR_IO, "SQLite refuses synchronous=FULL");
    return 0;
}

/* Where the text of migration n begins, *ret_len its length; NULL past the last. */
static const char *migration(int n, size_t *ret_len)
{
    char mark[40];
    const char *from, *to;

    snprintf(mark, sizeof(mark), "\n-- migration %d\n", n);
    from = strstr(schema, mark);
    if (!from)
        return NULL;
    from += strlen(mark);
    to = strstr(from, "\n-- migration ");
    *ret_len = to ? (size_t)(to - from) : strlen(from);
    return from;
}

static int migrate_one(struct store *s, int n, const char *text, size_t len,
                       struct err *e)
{
    char *sql = xasprintf("BEGIN IMMEDIATE;\n%.*s\nPRAGMA application_id=%d;\n"
                          "PRAGMA user_version=%d;\nCOMMIT;",
                          (int)len, text, APPLICATION_ID, n);
    int rc = exec(s, sql, e);

    free(sql);
    if (rc < 0) {
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
        return err_wrap(e, "migration %d", n);
    }
    s->version = n;
    return 0;
}

static int migrate(struct store *s, struct err *e)
{
    int64_t version, last = 0;
    size_t len;

    if (get_int(s, "PRAGMA user_version", &version, e) < 0)
        return -1;
    while (migration((int)last + 1, &len))
        last++;
    if (version > last)
        return err_set(e, ERR_UNSUPPORTED,
                       "the state in '%s' has schema %lld, newer than the %lld that this "
                       "build knows; run the newer llmrackd",
                       s->dir, (long long)version, (long long)last);
    s->version = (int)version;
    while (s->version < last) {
        const char *text = migration(s->version + 1, &len);
        if (migrate_one(s, s->version + 1, text, len, e) < 0)
            return -1;
    }
    return 0;
}

static int load_secret(struct store *s, struct err *e)
{
    uint8_t fresh[SECRET_BYTES];
    sqlite3_stmt *st;
    int rc;

    if (getrandom(fresh, sizeof(fresh), 0) != sizeof(fresh))
        return err_errno(e, ERR_IO, "no random numbers");
    st = query(s, e, "INSERT OR IGNORE INTO meta(key, value) VALUES('secret', ?)", "b",
               (const void *)fresh, (int)sizeof(fresh));
    if (finish(s, st, e) < 0)
        return -1;
    st = query(s, e, "SELECT value FROM meta WHERE key = 'secret'", "");
    if (!st)
        return -1;
    rc = step(s, st, e);
    if (rc == 1 && sqlite3_column_bytes(st, 0) == SECRET_BYTES)
        memcpy(s->secret, sqlite3_column_blob(st, 0), SECRET_BYTES);
    else if (rc >= 0)
        rc = err_set(e, ERR_CORRUPT, "the secret in '%s/state.db' is damaged", s->dir);
    sqlite3_finalize(st);
    return rc < 0 ? -1 : 0;
}

int store_open(const char *dir, struct store **ret, struct err *e)
{
    struct store *s = xcalloc(1, sizeof(*s));

    s->lock_fd = -1;
    s->dir = xstrdup(dir);
    if (mkdir(dir, 0700) < 0 && errno != EEXIST) {
        err_errno(e, ERR_IO, "cannot make the state folder '%s'", dir);
        goto out;
    }
    if (take_lock(s, e) < 0 || open_db(s, e) < 0 || check_db(s, e) < 0 ||
        migrate(s, e) < 0 || load_secret(s, e) < 0)
        goto out;
    *ret = s;
    return 0;
out:
    store_close(s);
    return -1;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    sqlite3_close(s->db);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s->dir);
    free(s);
}

int store_schema_version(const struct store *s) { return s->version; }

void store_secret(const struct store *s, uint8_t ret[16])
{
    memcpy(ret, s->secret, SECRET_BYTES);
}

/* ---- journal ---- */

int journal_add(struct store *s, const char *actor, const char *what, const char *subject,
                const char *result, struct err *e, const char *fmt, ...)
{
    char detail[sizeof(((struct journal_row *)0)->detail)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(detail, sizeof(detail), fmt, ap);
    va_end(ap);
    return finish(s,
                  query(s, e,
                        "INSERT INTO journal(at_ms, actor, what, subject, result, detail)"
                        " VALUES(?, ?, ?, ?, ?, ?)",
                        "ittttt", clock_wall_ms(), actor, what, subject, result, detail),
                  e);
}

int journal_list(struct store *s, int64_t before_id, struct journal_row *ret, int max,
                 struct err *e)
{
    sqlite3_stmt *st = query(s, e,
                             "SELECT id, at_ms, actor, what, subject, result, detail "
                             "FROM journal WHERE id < ? ORDER BY id DESC LIMIT ?",
                             "ii", before_id > 0 ? before_id : INT64_MAX, (int64_t)max);
    int n = 0, rc = -1;

    while (st && n < max && (rc = step(s, st, e)) == 1) {
        struct journal_row *r = &ret[n++];
        r->id = sqlite3_column_int64(st, 0);
        r->at_ms = sqlite3_column_int64(st, 1);
        COPY(st, 2, r->actor);
        COPY(st, 3, r->what);
        COPY(st, 4, r->subject);
        COPY(st, 5, r->result);
        COPY(st, 6, r->detail);
    }
    return rows_done(s, st, rc, n, e);
}

/* ---- inventory ---- */

int inventory_put_model(struct store *s, const struct model_row *m, struct err *e)
{
    return finish(
        s,
        query(s, e,
              "INSERT INTO model(name, path, family, main_type, format, n_params,"
              " file_bytes, added_ms) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
              " ON CONFLICT(name) DO UPDATE SET path = excluded.path,"
              " family = excluded.family, main_type = excluded.main_type,"
              " format = excluded.format, n_params = excluded.n_params,"
              " file_bytes = excluded.file_bytes",
              "tttttiii", m->name, m->path, m->family, m->main_type, m->format,
              (int64_t)m->n_params, (int64_t)m->file_bytes, m->added_ms),
        e);
}

int inventory_models(struct store *s, struct model_row *ret, int max, struct err *e)
{
    sqlite3_stmt *st = query(s, e,
                             "SELECT name, path, family, main_type, format, n_params, "
                             "file_bytes, added_ms FROM model ORDER BY name LIMIT ?",
                             "i", (int64_t)max);
    int n = 0, rc = -1;

    while (st && n < max && (rc = step(s, st, e)) == 1) {
        struct model_row *r = &ret[n++];
        COPY(st, 0, r->name);
        COPY(st, 1, r->path);
        COPY(st, 2, r->family);
        COPY(st, 3, r->main_type);
        COPY(st, 4, r->format);
        r->n_params = (uint64_t)sqlite3_column_int64(st, 5);
        r->file_bytes = (uint64_t)sqlite3_column_int64(st, 6);
        r->added_ms = sqlite3_column_int64(st, 7);
    }
    return rows_done(s, st, rc, n, e);
}

int inventory_put_instance(struct store *s, const struct instance_row *i, struct err *e)
{
    return finish(s,
                  query(s, e,
                        "INSERT INTO instance(name, model, mode, options, applied_ms)"
                        " VALUES(?, ?, ?, ?, ?)"
                        " ON CONFLICT(name) DO UPDATE SET model = excluded.model,"
                        " mode = excluded.mode, options = excluded.options,"
                        " applied_ms = excluded.applied_ms",
                        "tttti", i->name, i->model, i->mode, i->options, i->applied_ms),
                  e);
}

int inventory_instances(struct store *s, struct instance_row *ret, int max, struct err *e)
{
    sqlite3_stmt *st = query(s, e,
                             "SELECT name, model, mode, options, applied_ms "
                             "FROM instance ORDER BY name LIMIT ?",
                             "i", (int64_t)max);
    int n = 0, rc = -1;

    while (st && n < max && (rc = step(s, st, e)) == 1) {
        struct instance_row *r = &ret[n++];
        COPY(st, 0, r->name);
        COPY(st, 1, r->model);
        COPY(st, 2, r->mode);
        COPY(st, 3, r->options);
        r->applied_ms = sqlite3_column_int64(st, 4);
    }
    return rows_done(s, st, rc, n, e);
}

int inventory_put_rack(struct store *s, const char *name, const char *json, struct err *e)
{
    return finish(s,
                  query(s, e,
                        "INSERT INTO rack(one, name, json, at_ms) VALUES(1, ?, ?, ?)"
                        " ON CONFLICT(one) DO UPDATE SET name = excluded.name,"
                        " json = excluded.json, at_ms = excluded.at_ms",
                        "tti", name, json, clock_wall_ms()),
                  e);
}

int inventory_rack(struct store *s, char **ret_name, char **ret_json, struct err *e)
{
    sqlite3_stmt *st = query(s, e, "SELECT name, json FROM rack", "");
    int n = 0, rc = -1;

    if (st && (rc = step(s, st, e)) == 1) {
        const char *name = (const char *)sqlite3_column_text(st, 0);
        const char *json = (const char *)sqlite3_column_text(st, 1);

        if (name && json) { /* NULL is out of memory, which rows_done reports */
            *ret_name = xstrdup(name);
            *ret_json = xstrdup(json);
            n = 1;
        }
    }
    return rows_done(s, st, rc, n, e);
}

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

#include "base/err.h"
#include "base/mem.h"
#include "state/store_impl.h"

enum { APPLICATION_ID = 0x6c6c6d72, BUSY_MS = 2000, SECRET_BYTES = 16 };

static const char schema[] =
#include "schema.h"
    ;

struct store {
    char *dir;
    int lock_fd;
    sqlite3 *db;
    int version;
    bool full; /* the last write met a full disk */
    struct store_journal journal;
    uint8_t secret[SECRET_BYTES];
};

/* ---- statements ---- */

/* A struct stmt is SQLite's statement under another name, so that only this file sees
 * what it is. */
#define RAW(st) ((sqlite3_stmt *)(st))

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
    case SQLITE_FULL:
        s->full = true;
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

static int bind_all(sqlite3_stmt *st, const char *types, va_list ap)
{
    int rc = SQLITE_OK;

    for (int i = 1; *types && rc == SQLITE_OK; types++, i++) {
        if (*types == 't') { /* a NULL pointer binds SQL's null */
            rc = sqlite3_bind_text(st, i, va_arg(ap, const char *), -1, SQLITE_STATIC);
        } else if (*types == 'i') {
            rc = sqlite3_bind_int64(st, i, va_arg(ap, int64_t));
        } else if (*types == 'r') {
            rc = sqlite3_bind_double(st, i, va_arg(ap, double));
        } else {
            const void *p = va_arg(ap, const void *);
            rc = sqlite3_bind_blob(st, i, p, va_arg(ap, int), SQLITE_STATIC);
        }
    }
    return rc;
}

static struct stmt *open_va(struct store *s, struct err *e, const char *sql,
                            const char *types, va_list ap)
{
    sqlite3_stmt *st = NULL;

    if (sqlite3_prepare_v2(s->db, sql, -1, &st, NULL) == SQLITE_OK &&
        bind_all(st, types, ap) == SQLITE_OK)
        return (struct stmt *)st;
    fail(s, e);
    sqlite3_finalize(st);
    return NULL;
}

struct stmt *stmt_open(struct store *s, struct err *e, const char *sql, const char *types,
                       ...)
{
    struct stmt *st;
    va_list ap;

    va_start(ap, types);
    st = open_va(s, e, sql, types, ap);
    va_end(ap);
    return st;
}

int stmt_step(struct store *s, struct stmt *st, struct err *e)
{
    int rc;

    if (!st)
        return -1;
    rc = sqlite3_step(RAW(st));
    if (rc == SQLITE_ROW)
        return 1;
    return rc == SQLITE_DONE ? 0 : fail(s, e);
}

void stmt_close(struct stmt *st) { sqlite3_finalize(RAW(st)); }

int stmt_end(struct store *s, struct stmt *st, int rc, int n, struct err *e)
{
    /* a column that could not be converted reads as NULL and shows only here */
    if (st && rc >= 0 && sqlite3_errcode(s->db) == SQLITE_NOMEM)
        rc = fail(s, e);
    stmt_close(st);
    return rc < 0 ? -1 : n;
}

int stmt_run(struct store *s, struct err *e, const char *sql, const char *types, ...)
{
    struct stmt *st;
    va_list ap;
    int rc;

    va_start(ap, types);
    st = open_va(s, e, sql, types, ap);
    va_end(ap);
    rc = stmt_step(s, st, e);
    stmt_close(st);
    return rc < 0 ? -1 : sqlite3_changes(s->db);
}

int stmt_number(struct store *s, const char *sql, int64_t *ret, struct err *e)
{
    struct stmt *st = stmt_open(s, e, sql, "");
    int rc = stmt_step(s, st, e);

    if (rc == 1)
        *ret = stmt_int(st, 0);
    stmt_close(st);
    if (rc == 0)
        return err_set(e, ERR_CORRUPT, "state database in '%s': no answer to '%s'",
                       s->dir, sql);
    return rc < 0 ? -1 : 0;
}

int stmt_word(struct store *s, const char *sql, char *out, size_t cap, struct err *e)
{
    struct stmt *st = stmt_open(s, e, sql, "");
    int rc = stmt_step(s, st, e);

    out[0] = '\0';
    if (rc == 1)
        stmt_text(st, 0, out, cap);
    return stmt_end(s, st, rc, 0, e);
}

bool stmt_null(struct stmt *st, int col)
{
    return sqlite3_column_type(RAW(st), col) == SQLITE_NULL;
}

int64_t stmt_int(struct stmt *st, int col) { return sqlite3_column_int64(RAW(st), col); }

double stmt_real(struct stmt *st, int col) { return sqlite3_column_double(RAW(st), col); }

const char *stmt_bytes(struct stmt *st, int col, size_t *ret_len)
{
    const char *p = sqlite3_column_blob(RAW(st), col);

    *ret_len = p ? (size_t)sqlite3_column_bytes(RAW(st), col) : 0;
    return p ? p : "";
}

void stmt_text(struct stmt *st, int col, char *out, size_t cap)
{
    size_t n;
    const char *p = stmt_bytes(st, col, &n);

    snprintf(out, cap, "%.*s", (int)n, p);
}

char *stmt_dup(struct stmt *st, int col)
{
    size_t n;
    const char *p = stmt_bytes(st, col, &n);

    return xstrndup(p, n);
}

/* ---- transactions ---- */

static int write_once(struct store *s, store_body_fn body, void *arg, struct err *e)
{
    s->full = false;
    if (exec(s, "BEGIN IMMEDIATE", e) < 0)
        return -1;
    if (body(s, arg, e) == 0 && exec(s, "COMMIT", e) == 0)
        return 0;
    if (!sqlite3_get_autocommit(
            s->db)) /* some faults end the transaction by themselves */
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return -1;
}

int store_write(struct store *s, bool must, store_body_fn body, void *arg, struct err *e)
{
    (void)must;
    return write_once(s, body, arg, e);
}

int64_t store_last_id(struct store *s) { return sqlite3_last_insert_rowid(s->db); }

struct store_journal *store_journal(struct store *s) { return &s->journal; }

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
    char mode[8] = "";

    if (stmt_number(s, "PRAGMA application_id", &id, e) < 0 ||
        stmt_number(s, "SELECT count(*) FROM sqlite_schema", &tables, e) < 0)
        return -1;
    if (id != APPLICATION_ID && (id || tables))
        return err_set(e, ERR_CORRUPT, "'%s/state.db' is the database of another program",
                       s->dir);
    if (stmt_word(s, "PRAGMA journal_mode=WAL", mode, sizeof(mode), e) < 0)
        return -1;
    if (strcmp(mode, "wal"))
        return err_set(e, ERR_IO,
                       "the file system of '%s' cannot keep the state database's log; "
                       "use a local one",
                       s->dir);
    if (exec(s,
             "PRAGMA synchronous=FULL; PRAGMA trusted_schema=OFF;"
             "PRAGMA journal_size_limit=16777216", /* a WAL that grew once shrinks */
             e) < 0 ||
        stmt_number(s, "PRAGMA synchronous", &sync, e) < 0)
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

struct step {
    int n;
    const char *text;
    size_t len;
};

static int migrate_body(struct store *s, void *arg, struct err *e)
{
    const struct step *m = arg;
    char *sql = xasprintf("%.*s\nPRAGMA application_id=%d;\nPRAGMA user_version=%d;",
                          (int)m->len, m->text, APPLICATION_ID, m->n);
    int rc = exec(s, sql, e);

    free(sql);
    if (rc == 0 && m->n == 3)
        rc = journal_seal(s, e);
    return rc;
}

static int migrate(struct store *s, struct err *e)
{
    int64_t version, last = 0;
    size_t len;

    if (stmt_number(s, "PRAGMA user_version", &version, e) < 0)
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
        struct step m = {.n = s->version + 1};

        m.text = migration(m.n, &m.len);
        if (store_write(s, false, migrate_body, &m, e) < 0)
            return err_wrap(e, "migration %d", m.n);
        s->version = m.n;
    }
    return 0;
}

static int load_secret(struct store *s, struct err *e)
{
    uint8_t fresh[SECRET_BYTES];
    struct stmt *st;
    const char *p = "";
    size_t n = 0;
    int rc;

    if (getrandom(fresh, sizeof(fresh), 0) != sizeof(fresh))
        return err_errno(e, ERR_IO, "no random numbers");
    if (stmt_run(s, e, "INSERT OR IGNORE INTO meta(key, value) VALUES('secret', ?)", "b",
                 (const void *)fresh, (int)sizeof(fresh)) < 0)
        return -1;
    st = stmt_open(s, e, "SELECT value FROM meta WHERE key = 'secret'", "");
    rc = stmt_step(s, st, e);
    if (rc == 1)
        p = stmt_bytes(st, 0, &n);
    if (rc >= 0 && n == SECRET_BYTES)
        memcpy(s->secret, p, SECRET_BYTES);
    else if (rc >= 0)
        rc = err_set(e, ERR_CORRUPT, "the secret in '%s/state.db' is damaged", s->dir);
    return stmt_end(s, st, rc, 0, e);
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

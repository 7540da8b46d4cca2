/* state/store.c - the state database: one SQLite file, the only code that knows SQLite.
 *
 * <dir>/llmrackd.lock is held with flock() for the life of the store, so that a second
 * daemon on the folder is refused before it touches anything; it names the process.
 * <dir>/state.db runs in WAL mode with synchronous=FULL, checked at open: a call that
 * returned 0 is on the disk. Each call is one statement or one transaction and leaves no
 * statement open, so that no forgotten read pins the WAL.
 *
 * The database carries our application id, so that another program's file is not taken
 * for ours. The other files of state/ work through store_impl.h: migrate.c holds the
 * schema, folder.c the files around the database, backup.c copies of it. */
#include "state/store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "state/folder.h"
#include "state/store_impl.h"

enum { BUSY_MS = 2000, SECRET_BYTES = 16 };

struct store {
    char *dir;  /* NULL: attached, without a folder of its own */
    char *file; /* of the database */
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
        code = ERR_UNAVAIL;
        break;
    case SQLITE_READONLY:
        code = ERR_UNAVAIL;
        break;
    }
    return err_set(e, code, "state database '%s': %s", s->file, sqlite3_errmsg(s->db));
}

int store_script(struct store *s, const char *sql, struct err *e)
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
        return err_set(e, ERR_CORRUPT, "state database '%s': no answer to '%s'", s->file,
                       sql);
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
    if (store_script(s, "BEGIN IMMEDIATE", e) < 0)
        return -1;
    if (body(s, arg, e) == 0 && store_script(s, "COMMIT", e) == 0)
        return 0;
    if (!sqlite3_get_autocommit(
            s->db)) /* some faults end the transaction by themselves */
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return -1;
}

int store_write(struct store *s, bool must, store_body_fn body, void *arg, struct err *e)
{
    if (write_once(s, body, arg, e) == 0)
        return 0;
    if (!must || !s->full || !s->dir || !folder_reserve_give(s->dir))
        return -1;
    return write_once(s, body, arg, e);
}

int64_t store_last_id(struct store *s) { return sqlite3_last_insert_rowid(s->db); }

struct store_journal *store_journal(struct store *s) { return &s->journal; }

/* ---- whole files ---- */

const char *store_dir(const struct store *s) { return s->dir; }
const char *store_name(const struct store *s) { return s->file; }

static int connect_file(struct store *s, int flags, struct err *e)
{
    if (sqlite3_open_v2(s->file, &s->db, flags, NULL) != SQLITE_OK) {
        if (!s->db)
            return err_set(e, ERR_NOMEM, "no memory for the state database");
        return fail(s, e);
    }
    sqlite3_extended_result_codes(s->db, 1);
    sqlite3_busy_timeout(s->db, BUSY_MS);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    return store_script(s,
                        "PRAGMA synchronous=FULL; PRAGMA trusted_schema=OFF;"
                        "PRAGMA cell_size_check=ON;"
                        "PRAGMA journal_size_limit=16777216", /* a grown WAL shrinks */
                        e);
}

static int open_file(struct store *s, struct err *e)
{
    int fd;

    if (strcmp(s->file, ":memory:")) { /* SQLite would make it 0644 */
        fd = open(s->file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return err_errno(e, ERR_IO, "state database '%s'", s->file);
        close(fd);
    }
    return connect_file(s, SQLITE_OPEN_READWRITE, e);
}

/* Not by open_file: to close a descriptor of a file ends all locks that this process has
 * on it, the store's own too. */
int store_view(const struct store *of, struct store **ret, struct err *e)
{
    struct store *s = xcalloc(1, sizeof(*s));

    s->lock_fd = -1;
    s->dir = xstrdup(of->dir);
    s->file = xstrdup(of->file);
    s->version = of->version;
    if (connect_file(s, SQLITE_OPEN_READWRITE, e) < 0 ||
        store_script(s, "PRAGMA query_only=ON; BEGIN", e) < 0) {
        store_close(s);
        return -1;
    }
    *ret = s;
    return 0;
}

int store_open_read(const char *dir, struct store **ret, struct err *e)
{
    struct store *s = xcalloc(1, sizeof(*s));
    char path[FOLDER_PATH_MAX];
    bool empty = false;
    int rc = folder_path(dir, "state.db", path, e);

    s->lock_fd = -1;
    s->dir = xstrdup(dir);
    s->file = xstrdup(rc == 0 ? path : dir);
    if (rc == 0 && folder_size(path) < 0)
        rc = err_set(e, ERR_NOTFOUND, "there is no state database '%s'", path);
    if (rc == 0)
        rc = connect_file(s, SQLITE_OPEN_READONLY, e);
    if (rc == 0)
        rc = store_check_ours(s, &empty, e);
    if (rc == 0 && empty)
        rc = err_set(e, ERR_CORRUPT, "state database '%s' is empty", path);
    if (rc < 0) {
        store_close(s);
        return -1;
    }
    *ret = s;
    return 0;
}

int store_attach(const char *path, struct store **ret, struct err *e)
{
    struct store *s = xcalloc(1, sizeof(*s));

    s->lock_fd = -1;
    s->file = xstrdup(path);
    if (open_file(s, e) < 0) {
        store_close(s);
        return -1;
    }
    *ret = s;
    return 0;
}

int store_check_ours(struct store *s, bool *ret_empty, struct err *e)
{
    int64_t id, tables;

    if (stmt_number(s, "PRAGMA application_id", &id, e) < 0 ||
        stmt_number(s, "SELECT count(*) FROM sqlite_schema", &tables, e) < 0)
        return -1;
    if (id != STORE_APPLICATION_ID && (id || tables))
        return err_set(e, ERR_CORRUPT, "'%s' is the database of another program",
                       s->file);
    *ret_empty = !tables;
    return 0;
}

/* A check's answer is one row "ok", or what is wrong. */
static int check_by(struct store *s, const char *pragma, struct err *e)
{
    char word[200];

    if (stmt_word(s, pragma, word, sizeof(word), e) < 0)
        return -1;
    if (strcmp(word, "ok"))
        return err_set(e, ERR_CORRUPT, "state database '%s' is damaged: %s", s->file,
                       word);
    return 0;
}

int store_check_whole(struct store *s, struct err *e)
{
    return check_by(s, "PRAGMA integrity_check(1)", e);
}

int store_copy_to(struct store *s, const char *to, struct err *e)
{
    struct store *copy;
    sqlite3_backup *b;
    int rc = -1;

    if (store_attach(to, &copy, e) < 0)
        return -1;
    b = sqlite3_backup_init(copy->db, "main", s->db, "main");
    if (b && sqlite3_backup_step(b, -1) == SQLITE_DONE)
        rc = 0;
    if (b && sqlite3_backup_finish(b) != SQLITE_OK)
        rc = -1;
    if (rc < 0)
        fail(copy, e);
    if (rc == 0)
        rc = store_script(copy, "PRAGMA journal_mode=DELETE", e);
    if (rc == 0)
        rc = store_check_whole(copy, e);
    store_close(copy);
    return rc;
}

/* ---- open ---- */

static int open_log(struct store *s, struct err *e)
{
    char mode[8] = "";
    int64_t sync;

    if (stmt_word(s, "PRAGMA journal_mode=WAL", mode, sizeof(mode), e) < 0 ||
        stmt_number(s, "PRAGMA synchronous", &sync, e) < 0)
        return -1;
    if (strcmp(mode, "wal"))
        return err_set(e, ERR_IO,
                       "the file system of '%s' cannot keep the state database's log; "
                       "use a local one",
                       s->dir);
    if (sync != 2)
        return err_set(e, ERR_IO, "SQLite refuses synchronous=FULL");
    return 0;
}

/* Each table by itself; the long history of minutes is left out, since reading all of it
 * would delay the start. */
static int check_tables(struct store *s, struct err *e)
{
    struct stmt *st = stmt_open(s, e,
                                "SELECT name FROM sqlite_schema WHERE type = 'table'"
                                " AND name <> 'slo_minute'",
                                "");
    char name[64], sql[128];
    int rc;

    while ((rc = stmt_step(s, st, e)) == 1) {
        STMT_COPY(st, 0, name);
        snprintf(sql, sizeof(sql), "PRAGMA quick_check('%s')", name);
        rc = strchr(name, '\'') ? err_set(e, ERR_CORRUPT, "a strange table") : 0;
        if (rc < 0 || (rc = check_by(s, sql, e)) < 0)
            break;
    }
    return stmt_end(s, st, rc, 0, e);
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
        rc = err_set(e, ERR_CORRUPT, "the secret in '%s' is damaged", s->file);
    return stmt_end(s, st, rc, 0, e);
}

/* From the file to a store of the newest schema. An older one is copied first. */
static int bring_up(struct store *s, struct err *e)
{
    int version, newest = migrate_newest();
    bool empty;

    if (open_file(s, e) < 0 || store_check_ours(s, &empty, e) < 0 ||
        migrate_version(s, &version, e) < 0 || open_log(s, e) < 0 ||
        check_tables(s, e) < 0)
        return -1;
    if (empty && backup_check_lost(s->dir, s, e) < 0)
        return -1;
    if (version > 0 && version < newest && backup_here(s, version, e) < 0)
        return err_wrap(e, "copy before the schema is brought from %d to %d", version,
                        newest);
    if (migrate_to(s, version, newest, e) < 0)
        return -1;
    /* into the file itself: one without its log is then never taken for a new one */
    if (version < newest && store_script(s, "PRAGMA wal_checkpoint(TRUNCATE)", e) < 0)
        return -1;
    s->version = newest;
    return load_secret(s, e) < 0 || backup_tell(s, e) < 0 ? -1 : 0;
}

int store_open(const char *dir, struct store **ret, struct err *e)
{
    struct store *s = xcalloc(1, sizeof(*s));
    char path[FOLDER_PATH_MAX];
    struct err why;
    int rc;

    s->lock_fd = -1;
    s->dir = xstrdup(dir);
    rc = folder_path(dir, "state.db", path, e);
    if (rc == 0)
        rc = folder_lock(dir, &s->lock_fd, e);
    if (rc == 0)
        rc = backup_adopt(dir, e);
    if (rc == 0) {
        s->file = xstrdup(path);
        err_clear(&why);
        if (backup_check_lost(dir, NULL, &why) < 0 || bring_up(s, &why) < 0) {
            if (why.code == ERR_CORRUPT)
                backup_way_out(dir, &why);
            rc = err_set(e, why.code, "%s", why.msg);
        }
    }
    if (rc < 0) {
        store_close(s);
        return -1;
    }
    folder_reserve_keep(dir); /* a disk that is full already must not stop the start */
    *ret = s;
    return 0;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    sqlite3_close(s->db);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s->file);
    free(s->dir);
    free(s);
}

bool store_tend(struct store *s) { return folder_reserve_keep(s->dir); }

int store_schema_version(const struct store *s) { return s->version; }

char *store_file(const struct store *s, const char *name)
{
    char *dir = realpath(store_dir(s), NULL);
    char *path = xasprintf("%s/%s", dir ? dir : store_dir(s), name);

    free(dir);
    return path;
}

void store_secret(const struct store *s, uint8_t ret[16])
{
    memcpy(ret, s->secret, SECRET_BYTES);
}

/* state/backup.c - copies of the store, and putting one in its place.
 *
 * A file that shall take the store's place is first copied to state.db.check and looked
 * at there: ours, whole, its tables those of a schema that we know, its journal a chain.
 * Then it is renamed to what the next open adopts: state.db.restore (what ran becomes
 * state.db.old) or state.db.recover (state.db.broken-N). The adoption is three renames,
 * of which each can be repeated after a crash; state.db is absent only while a checked
 * copy waits beside it.
 *
 *   copy -> check -> [rename] staged -> what ran is moved away -> staged becomes state.db
 *
 * What was done is written into the copy (meta 'restored') and goes into its journal at
 * that next open. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "state/folder.h"
#include "state/store.h"
#include "state/store_impl.h"

#define CHECK "state.db.check"
#define RESTORE "state.db.restore"
#define RECOVER "state.db.recover"
#define OLD "state.db.old"
#define PREFIX "state-"
#define SUFFIX ".db"
enum { BROKEN_MAX = 1000 };

/* ---- out ---- */

int store_backup(struct store *s, const char *path, struct err *e)
{
    char part[FOLDER_PATH_MAX], folder[FOLDER_PATH_MAX];
    char *slash;
    int rc;

    if (snprintf(part, sizeof(part), "%s.part", path) >= (int)sizeof(part) - 8)
        return err_set(e, ERR_INVALID, "the backup's name is too long");
    if (folder_size(path) >= 0)
        return err_set(e, ERR_CONFLICT, "'%s' exists; a backup goes into a new file",
                       path);
    snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder ? 1 : 0] = '\0';
    folder_remove_db(part);
    rc = store_copy_to(s, part, e);
    if (rc == 0)
        rc = folder_sync_file(part, e);
    if (rc == 0)
        rc = folder_link(part, path, e); /* unlike rename, never over another file */
    folder_remove_db(part);
    if (rc == 0)
        rc = folder_sync(slash ? folder : ".", e);
    return rc;
}

/* The name of a backup made now. */
static void name_at(int64_t ms, int version, char *ret, size_t cap)
{
    time_t t = (time_t)(ms / 1000);
    struct tm tm;
    size_t n;

    gmtime_r(&t, &tm);
    n = strftime(ret, cap, PREFIX "%Y%m%dT%H%M%S", &tm);
    snprintf(ret + n, cap - n, ".%03dZ-v%d" SUFFIX, (int)(ms % 1000), version);
}

int backup_here(struct store *s, int version, struct err *e)
{
    char folder[FOLDER_PATH_MAX], name[80], path[FOLDER_PATH_MAX];
    int64_t ms = clock_wall_ms();

    if (folder_path(store_dir(s), "backups", folder, e) < 0)
        return -1;
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return err_errno(e, ERR_IO, "cannot make '%s'", folder);
    do { /* two in one millisecond: the later one is named after the next */
        name_at(ms++, version, name, sizeof(name));
        if (folder_path(folder, name, path, e) < 0)
            return -1;
    } while (access(path, F_OK) == 0);
    return store_backup(s, path, e);
}

/* When a backup was made, by its name; 0 where that says nothing. */
static int64_t made_ms(const char *name)
{
    struct tm tm = {0};

    if (sscanf(name, PREFIX "%4d%2d%2dT%2d%2d%2d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
               &tm.tm_hour, &tm.tm_min, &tm.tm_sec) != 6)
        return 0;
    tm.tm_year -= 1900;
    tm.tm_mon--;
    return (int64_t)timegm(&tm) * 1000;
}

int64_t store_backup_newest(const struct store *s)
{
    char folder[FOLDER_PATH_MAX];
    struct err e;
    char **names;
    int64_t newest;
    int n;

    if (folder_path(store_dir(s), "backups", folder, &e) < 0)
        return 0;
    n = folder_list(folder, PREFIX, SUFFIX, &names);
    newest = n ? made_ms(names[0]) : 0;
    folder_list_free(names, n);
    return newest;
}

int store_backup_due(struct store *s, int64_t wall_ms, int64_t age_ms, int keep,
                     struct err *e)
{
    if (wall_ms - store_backup_newest(s) < age_ms)
        return 0;
    return store_backup_keep(s, keep, e) < 0 ? -1 : 1;
}

int store_backup_keep(struct store *s, int keep, struct err *e)
{
    char folder[FOLDER_PATH_MAX], path[FOLDER_PATH_MAX];
    char **names;
    int n;

    if (backup_here(s, store_schema_version(s), e) < 0 ||
        folder_path(store_dir(s), "backups", folder, e) < 0)
        return -1;
    n = folder_list(folder, PREFIX, SUFFIX, &names);
    for (int i = keep; i < n; i++)
        if (folder_path(folder, names[i], path, NULL) == 0)
            folder_remove_db(path);
    folder_list_free(names, n);
    return 0;
}

/* ---- the check ---- */

static int note_body(struct store *s, void *arg, struct err *e)
{
    return stmt_run(s, e, "INSERT OR REPLACE INTO meta(key, value) VALUES('restored', ?)",
                    "b", arg, (int)strlen(arg)) < 0
               ? -1
               : 0;
}

static int check_copy(struct store *c, const char *note, struct err *e)
{
    int64_t rows;
    int version;
    bool empty;

    if (store_check_ours(c, &empty, e) < 0 || migrate_version(c, &version, e) < 0)
        return -1;
    if (empty || version < 1)
        return err_set(e, ERR_CORRUPT, "'%s' is no state of a llmrackd", store_name(c));
    if (store_script(c, "PRAGMA journal_mode=DELETE", e) < 0 ||
        store_check_whole(c, e) < 0 || migrate_check_tables(c, version, e) < 0 ||
        (version >= 3 && journal_verify(c, &rows, e) < 0))
        return -1;
    return store_write(c, false, note_body, (void *)note, e);
}

/* path, copied to dir/state.db.check and found good; else there is no such file. The
 * sentence speaks of path. */
static int take_copy(const char *dir, const char *path, const char *note, struct err *e)
{
    char check[FOLDER_PATH_MAX];
    struct store *c;
    int rc;

    if (folder_path(dir, CHECK, check, e) < 0)
        return -1;
    folder_remove_db(check);
    if (folder_copy(path, check, e) < 0)
        return -1;
    rc = store_attach(check, &c, e);
    if (rc == 0) {
        rc = check_copy(c, note, e);
        store_close(c);
    }
    if (rc == 0)
        rc = folder_sync_file(check, e);
    if (rc < 0) {
        folder_remove_db(check);
        return err_wrap(e, "'%s' cannot take the place of the state", path);
    }
    return 0;
}

static int stage(const char *dir, const char *as, struct err *e)
{
    char check[FOLDER_PATH_MAX], staged[FOLDER_PATH_MAX];

    if (folder_path(dir, CHECK, check, e) < 0 || folder_path(dir, as, staged, e) < 0)
        return -1;
    fault_point("RESTORE_COPIED");
    if (folder_rename(check, staged, e) < 0 || folder_sync(dir, e) < 0) {
        folder_remove_db(check);
        folder_remove_db(staged);
        return -1;
    }
    fault_point("RESTORE_STAGED");
    return 0;
}

int store_restore(struct store *s, const char *path, struct err *e)
{
    char head[JOURNAL_HASH_CHARS + 1], note[256];
    struct journal_row last = {0};

    if (journal_head(s, head, e) < 0 || journal_list(s, 0, &last, 1, e) < 0)
        return -1;
    snprintf(
        note, sizeof(note),
        "what ran before is %s; its journal had row %lld with hash %.16s.. when this "
        "was asked for",
        OLD, (long long)last.id, head);
    if (take_copy(store_dir(s), path, note, e) < 0)
        return -1;
    return stage(store_dir(s), RESTORE, e);
}

/* ---- in ---- */

/* Bring the log of what is moved away into its file, where that still can be done. */
static void settle(const char *db)
{
    struct store *s;

    if (folder_size(db) <= 0 || store_attach(db, &s, NULL) < 0)
        return;
    store_script(s, "PRAGMA wal_checkpoint(TRUNCATE)", NULL);
    store_close(s);
}

/* dir/staged becomes dir/state.db, what is there becomes dir/away. */
static int adopt(const char *dir, const char *staged_name, const char *away_name,
                 struct err *e)
{
    char staged[FOLDER_PATH_MAX], away[FOLDER_PATH_MAX], db[FOLDER_PATH_MAX];

    if (folder_path(dir, staged_name, staged, e) < 0 ||
        folder_path(dir, away_name, away, e) < 0 ||
        folder_path(dir, "state.db", db, e) < 0)
        return -1;
    if (folder_size(db) >= 0) { /* else a move that was cut off is gone on with */
        settle(db);
        folder_remove_db(away);
    }
    if (folder_move_db(db, away, e) < 0 || folder_sync(dir, e) < 0)
        return -1;
    fault_point("RESTORE_MOVED");
    if (folder_rename(staged, db, e) < 0 || folder_sync(dir, e) < 0)
        return -1;
    fault_point("RESTORE_SWAPPED");
    return 0;
}

/* The first free name, or the one of a move that was cut off. */
static int broken_name(const char *dir, char *out, size_t cap, struct err *e)
{
    char path[FOLDER_PATH_MAX];

    for (int i = 1; i <= BROKEN_MAX; i++) {
        snprintf(out, cap, "state.db.broken-%d", i);
        if (folder_path(dir, out, path, e) < 0)
            return -1;
        if (folder_size(path) < 0)
            return 0;
    }
    return err_set(e, ERR_CONFLICT, "there are %d damaged states in '%s'; remove some",
                   BROKEN_MAX, dir);
}

int backup_adopt(const char *dir, struct err *e)
{
    char restore[FOLDER_PATH_MAX], recover[FOLDER_PATH_MAX], away[64];

    if (folder_path(dir, RESTORE, restore, e) < 0 ||
        folder_path(dir, RECOVER, recover, e) < 0)
        return -1;
    if (folder_size(recover) >= 0 &&
        (broken_name(dir, away, sizeof(away), e) < 0 || adopt(dir, RECOVER, away, e) < 0))
        return -1;
    if (folder_size(restore) >= 0 && adopt(dir, RESTORE, OLD, e) < 0)
        return -1;
    return 0;
}

static int tell_body(struct store *s, void *arg, struct err *e)
{
    struct journal_row row;

    return stmt_run(s, e, "DELETE FROM meta WHERE key = 'restored'", "") < 0 ||
                   journal_append(s, arg, &row, e) < 0
               ? -1
               : 0;
}

int backup_tell(struct store *s, struct err *e)
{
    char detail[512] = "";
    struct journal_note n = {
        .actor = "daemon", .what = "store.restored", .result = "ok", .detail = detail};

    if (stmt_word(s, "SELECT value FROM meta WHERE key = 'restored'", detail,
                  sizeof(detail), e) < 0)
        return -1;
    return detail[0] ? store_write(s, true, tell_body, &n, e) : 0;
}

/* ---- recovery ---- */

static int newest_backup(const char *dir, char ret[FOLDER_PATH_MAX])
{
    char folder[FOLDER_PATH_MAX];
    char **names;
    int n;

    if (folder_path(dir, "backups", folder, NULL) < 0)
        return 0;
    n = folder_list(folder, PREFIX, SUFFIX, &names);
    if (n && folder_path(folder, names[0], ret, NULL) < 0)
        n = 0;
    folder_list_free(names, n);
    return n;
}

int backup_check_lost(const char *dir, struct store *s, struct err *e)
{
    char db[FOLDER_PATH_MAX], wal[FOLDER_PATH_MAX], old[FOLDER_PATH_MAX],
        any[FOLDER_PATH_MAX];

    if (folder_path(dir, "state.db", db, e) < 0 ||
        folder_path(dir, "state.db-wal", wal, e) < 0 || folder_path(dir, OLD, old, e) < 0)
        return -1;
    if (!s && folder_size(db) > 0)
        return 0;
    if ((!s && folder_size(wal) > 0) || folder_size(old) >= 0 || newest_backup(dir, any))
        return err_set(e, ERR_CORRUPT, "'%s' is %s, though there was a state here", db,
                       folder_size(db) < 0 ? "gone" : "empty");
    return 0;
}

void backup_way_out(const char *dir, struct err *e)
{
    char newest[FOLDER_PATH_MAX], was[sizeof(e->msg)];

    snprintf(was, sizeof(was), "%s", e->msg);
    if (newest_backup(dir, newest))
        err_set(e, e->code,
                "%.240s; 'llmrackd --recover' puts the newest good backup in its place "
                "(latest: '%s')",
                was, newest);
    else
        err_set(e, e->code,
                "%.240s; 'llmrackd --recover' sets it aside and begins an empty one, "
                "since there is no backup in '%s/backups'",
                was, dir);
}

/* An empty store of the newest schema, staged. */
static int take_empty(const char *dir, const char *note, struct err *e)
{
    char check[FOLDER_PATH_MAX];
    struct store *c;
    int rc;

    if (folder_path(dir, CHECK, check, e) < 0)
        return -1;
    folder_remove_db(check);
    if (store_attach(check, &c, e) < 0)
        return -1;
    rc = migrate_to(c, 0, migrate_newest(), e);
    if (rc == 0)
        rc = store_write(c, false, note_body, (void *)note, e);
    store_close(c);
    return rc < 0 ? -1 : folder_sync_file(check, e);
}

/* A backup that cannot be used is passed over; one that could not be read, for want of
 * room or memory, ends the search: it may be good. */
static bool is_bad(const struct err *why)
{
    return why->code == ERR_CORRUPT || why->code == ERR_UNSUPPORTED;
}

/* 1: the newest good backup is dir/state.db.check, 0: there is none, -1. */
static int take_backup(const char *dir, char **ret_what, struct err *e)
{
    char folder[FOLDER_PATH_MAX], path[FOLDER_PATH_MAX], note[256];
    struct err why = {0};
    char **names;
    int n, bad = 0, rc = -1;

    if (folder_path(dir, "backups", folder, e) < 0)
        return -1;
    n = folder_list(folder, PREFIX, SUFFIX, &names);
    for (; bad < n; bad++) {
        snprintf(note, sizeof(note), "recovered from backups/%s", names[bad]);
        rc = folder_path(folder, names[bad], path, &why);
        if (rc == 0)
            rc = take_copy(dir, path, note, &why);
        if (rc == 0 || !is_bad(&why))
            break;
    }
    if (rc == 0)
        *ret_what = xasprintf("backups/%s is in place%s", names[bad],
                              bad ? "; newer ones are damaged too" : "");
    folder_list_free(names, n);
    if (bad == n)
        return 0;
    return rc == 0 ? 1 : err_set(e, why.code, "%s", why.msg);
}

static int take_best(const char *dir, char **ret_what, struct err *e)
{
    int rc = take_backup(dir, ret_what, e);

    if (rc != 0)
        return rc < 0 ? -1 : 0;
    if (take_empty(dir, "recovered to an empty state: there was no good backup", e) < 0)
        return -1;
    *ret_what = xstrdup("an empty state is in place, since there is no good backup");
    return 0;
}

static int recover_locked(const char *dir, char **ret_what, struct err *e)
{
    char broken[64], *what = NULL;

    if (broken_name(dir, broken, sizeof(broken), e) < 0 || take_best(dir, &what, e) < 0)
        return -1;
    if (stage(dir, RECOVER, e) < 0 || backup_adopt(dir, e) < 0) {
        free(what);
        return -1;
    }
    *ret_what = xasprintf("%s; what was damaged is kept as %s", what, broken);
    free(what);
    return 0;
}

int store_recover(const char *dir, char **ret_what, struct err *e)
{
    struct store *s;
    struct err why;
    int fd, rc;

    err_clear(&why);
    if (store_open(dir, &s, &why) == 0) {
        store_close(s);
        return err_set(e, ERR_CONFLICT,
                       "the state in '%s' is whole; there is nothing to recover", dir);
    }
    if (why.code != ERR_CORRUPT)
        return err_set(e, why.code, "%s", why.msg);
    if (folder_lock(dir, &fd, e) < 0)
        return -1;
    rc = recover_locked(dir, ret_what, e);
    close(fd);
    return rc;
}

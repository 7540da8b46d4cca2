/* tests/unit/test_backup.c - copies are whole; a restore is checked beside the store and
 * swapped at the next open; after a kill at each of its steps the store is the old or the
 * new one; a damaged store is never silently emptied.
 *
 * backup.c is compiled in here with its fault points, which count and kill. */
#define LLMRACK_FAULTS
#include "state/backup.c"

#include "tests/store_help.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

static int point, kill_at;

void fault_point(const char *name)
{
    (void)name;
    if (++point == kill_at)
        raise(SIGKILL);
}

static void add(const char *detail)
{
    ok(journal_add(st, "t", "w", "s", "ok", &e, "%s", detail));
}

static const char *last_row(void)
{
    static struct journal_row r[4];

    r[0].detail[0] = '\0';
    ok(journal_list(st, 0, r, 4, &e));
    if (!strcmp(r[0].what, "store.restored"))
        return r[1].detail;
    return r[0].detail;
}

static bool there(const char *name) { return folder_size(in_dir(name)) >= 0; }

static void put_bytes(const char *name, long at, const void *p, size_t n)
{
    FILE *f = fopen(in_dir(name), at < 0 ? "w" : "r+");

    assert_non_null(f);
    if (at >= 0)
        fseek(f, at, SEEK_SET);
    fwrite(p, 1, n, f);
    fclose(f);
}

/* Rubbish over every page after the first. */
static void ruin(const char *name)
{
    char rubbish[4096];
    long size = (long)folder_size(in_dir(name));

    memset(rubbish, 0xA5, sizeof(rubbish));
    assert_true(size > 8192);
    for (long at = 4096; at < size; at += 4096)
        put_bytes(name, at, rubbish, sizeof(rubbish));
}

/* ---- backup ---- */

static void a_backup_is_a_whole_file(void **state)
{
    unsigned char head[20];
    struct stat sb;
    struct store *c;
    int64_t n;
    FILE *f;

    (void)state;
    add("one");
    ok(store_backup(st, in_dir("b.db"), &e));
    add("two");
    assert_int_equal(stat(in_dir("b.db"), &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    f = fopen(in_dir("b.db"), "r");
    assert_int_equal(fread(head, 1, sizeof(head), f), sizeof(head));
    fclose(f);
    assert_int_equal(head[18], 1); /* no WAL: the file stands alone */
    assert_false(there("b.db.part") || there("b.db-wal") || there("b.db.part-wal"));
    ok(store_attach(in_dir("b.db"), &c, &e));
    ok(journal_verify(c, &n, &e));
    assert_int_equal(n, 1);
    store_close(c);
    refused(store_backup(st, in_dir("b.db"), &e), ERR_CONFLICT, "exists");
    refused(store_backup(st, in_dir("none/b.db"), &e), ERR_IO, "none/b.db");
    add("three"); /* the store goes on */
}

static void the_newest_backups_stay(void **state)
{
    char **names;
    char folder[FOLDER_PATH_MAX];
    int n;

    (void)state;
    for (int i = 0; i < 5; i++) {
        add("x");
        ok(store_backup_keep(st, 3, &e)); /* also two in one millisecond */
    }
    snprintf(folder, sizeof(folder), "%s", in_dir("backups"));
    n = folder_list(folder, "", ".db", &names);
    assert_int_equal(n, 3);
    for (int i = 0; i < n; i++) {
        char path[FOLDER_PATH_MAX];
        struct store *c;
        int64_t rows;

        ok(folder_path(folder, names[i], path, &e));
        ok(store_attach(path, &c, &e));
        ok(journal_verify(c, &rows, &e));
        assert_int_equal(rows, 5 - i);
        store_close(c);
    }
    folder_list_free(names, n);
}

static void a_backup_is_made_when_it_is_due(void **state)
{
    const int64_t day = 24 * 3600 * 1000;
    int64_t now = clock_wall_ms();
    char **names;
    int n;

    (void)state;
    assert_int_equal(store_backup_newest(st), 0);
    assert_int_equal(store_backup_due(st, now, day, 3, &e), 1); /* there was none */
    assert_in_range(store_backup_newest(st), now - 1000, now + 60000);
    now = clock_wall_ms();
    assert_int_equal(store_backup_due(st, now, day, 3, &e), 0);
    assert_int_equal(store_backup_due(st, now + day - 5000, day, 3, &e), 0);
    assert_int_equal(store_backup_due(st, now + day + 1, day, 3, &e), 1);
    n = folder_list(in_dir("backups"), "state-2", ".db", &names);
    folder_list_free(names, n);
    assert_int_equal(n, 2);
}

/* ---- restore ---- */

static void a_restore_is_swapped_in_at_open(void **state)
{
    struct journal_row r[4];
    struct store *old;
    int64_t n;

    (void)state;
    add("kept");
    ok(store_backup(st, in_dir("b.db"), &e));
    add("after");
    ok(store_restore(st, in_dir("b.db"), &e));
    add("until the end"); /* what runs goes on */
    assert_string_equal(last_row(), "until the end");
    reopen();
    assert_int_equal(journal_list(st, 0, r, 4, &e), 2);
    assert_string_equal(r[0].what, "store.restored");
    assert_non_null(strstr(r[0].detail, "row 2"));
    assert_string_equal(r[1].detail, "kept");
    ok(journal_verify(st, &n, &e));
    assert_false(there("state.db.check") || there("state.db.restore"));
    reopen();
    assert_int_equal(journal_list(st, 0, r, 4, &e), 2); /* told once */
    ok(store_attach(in_dir("state.db.old"), &old, &e));
    assert_int_equal(journal_list(old, 0, r, 4, &e), 3);
    assert_string_equal(r[0].detail, "until the end");
    store_close(old);
}

static void copy(const char *from, const char *to)
{
    unlink(in_dir(to));
    ok(folder_copy(in_dir(from), in_dir(to), &e));
}

static void wrong_files_are_not_restored(void **state)
{
    static const struct {
        const char *sql;
        enum err_code code;
        const char *word;
    } hands[] = {
        {"PRAGMA application_id = 7", ERR_CORRUPT, "another program"},
        {"PRAGMA user_version = 4000", ERR_UNSUPPORTED, "newer"},
        {"PRAGMA user_version = 0", ERR_CORRUPT, "no state"},
        {"PRAGMA user_version = 2", ERR_CORRUPT, "schema 2"},
        {"CREATE TABLE more (a)", ERR_CORRUPT, "llmrackd's schema"},
        {"CREATE TRIGGER t AFTER INSERT ON journal BEGIN DELETE FROM journal; END",
         ERR_CORRUPT, "llmrackd's schema"},
        {"DROP TABLE cordon", ERR_CORRUPT, "llmrackd's schema"},
        {"UPDATE journal SET detail = 'other'", ERR_CORRUPT, "row 1"},
        {"DELETE FROM journal WHERE id = 1", ERR_CORRUPT, "row 1 was removed"},
    };

    (void)state;
    add("kept");
    add("also");
    ok(store_backup(st, in_dir("b.db"), &e));
    for (size_t i = 0; i < sizeof(hands) / sizeof(hands[0]); i++) {
        copy("b.db", "c.db");
        sql_on(in_dir("c.db"), hands[i].sql);
        refused(store_restore(st, in_dir("c.db"), &e), hands[i].code, hands[i].word);
        assert_non_null(strstr(e.msg, "c.db"));
    }
    copy("b.db", "c.db");
    ruin("c.db");
    refused(store_restore(st, in_dir("c.db"), &e), ERR_CORRUPT, "c.db");
    copy("b.db", "c.db");
    assert_int_equal(truncate(in_dir("c.db"), 8192), 0);
    refused(store_restore(st, in_dir("c.db"), &e), ERR_CORRUPT, "c.db");
    put_bytes("c.db", -1, "not a database at all, is it", 28);
    refused(store_restore(st, in_dir("c.db"), &e), ERR_CORRUPT, "c.db");
    put_bytes("c.db", -1, "", 0);
    refused(store_restore(st, in_dir("c.db"), &e), ERR_CORRUPT, "no state");
    refused(store_restore(st, in_dir("none"), &e), ERR_NOTFOUND, "none");
    refused(store_restore(st, dir, &e), ERR_INVALID, "regular");
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    refused(store_restore(st, in_dir("pipe"), &e), ERR_INVALID, "regular");
    assert_false(there("state.db.check") || there("state.db.restore"));
    add("goes on");
    reopen();
    assert_string_equal(last_row(), "goes on");
}

static void an_older_schema_is_restored_and_raised(void **state)
{
    int newest = store_schema_version(st);
    int64_t n;

    (void)state;
    for (int v = 1; v <= 2; v++) {
        add("x");
        unlink(in_dir("old.db"));
        old_schema(in_dir("old.db"), v);
        ok(store_restore(st, in_dir("old.db"), &e));
        reopen();
        ok(journal_verify(st, &n, &e));
        assert_int_equal(n, 3); /* its two and what was said of the restore */
        assert_int_equal(store_schema_version(st), newest);
    }
}

/* Child: back up, write more, restore, open again; dies at the n-th point. */
static void restore_until(int n)
{
    ok(store_backup(st, in_dir("b.db"), &e));
    add("new");
    point = 0;
    kill_at = n;
    if (store_restore(st, in_dir("b.db"), &e) < 0)
        _exit(1);
    store_close(st);
    if (store_open(dir, &st, &e) < 0)
        _exit(1);
    _exit(0);
}

static void killed_at_each_step_it_is_old_or_new(void **state)
{
    int n, status = 0;
    int64_t rows;

    (void)state;
    add("old");
    for (n = 1; n < 16; n++) {
        pid_t pid;

        store_close(st); /* the child has its own */
        st = NULL;
        unlink(in_dir("b.db"));
        pid = fork();
        if (pid == 0) {
            reopen();
            restore_until(n);
        }
        waitpid(pid, &status, 0);
        reopen();
        if (WIFEXITED(status))
            break;
        assert_int_equal(WTERMSIG(status), SIGKILL);
        assert_string_equal(last_row(), n == 1 ? "new" : "old");
        ok(journal_verify(st, &rows, &e));
        assert_false(there("state.db.restore"));
        add("old");
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(n, 5); /* four points: copied, staged, moved, swapped */
}

/* ---- recover ---- */

static void damaged_is_refused_with_the_way_out(void **state)
{
    struct store *t = NULL;
    char **names;
    int n;

    (void)state;
    add("x");
    store_close(st);
    st = NULL;
    ruin("state.db");
    refused(store_open(dir, &t, &e), ERR_CORRUPT, "--recover");
    assert_non_null(strstr(e.msg, "no backup"));
    assert_null(t);
    assert_true(folder_size(in_dir("state.db")) > 8192); /* still there */
    assert_int_equal(mkdir(in_dir("backups"), 0700), 0);
    put_bytes("backups/state-20200101T000000.000Z-v3.db", -1, "x", 1);
    refused(store_open(dir, &t, &e), ERR_CORRUPT, "state-20200101T000000.000Z-v3.db");
    n = folder_list(dir, "state.db.", "", &names);
    folder_list_free(names, n);
    assert_int_equal(n, 0);
}

static void gone_is_not_begun_anew(void **state)
{
    struct store *t;
    char *what = NULL;

    (void)state;
    add("x");
    ok(store_backup_keep(st, 3, &e));
    store_close(st);
    st = NULL;
    assert_int_equal(unlink(in_dir("state.db")), 0);
    refused(store_open(dir, &t, &e), ERR_CORRUPT, "gone");
    put_bytes("state.db", -1, "", 0);
    refused(store_open(dir, &t, &e), ERR_CORRUPT, "empty");
    sql_on(in_dir("state.db"), "CREATE TABLE x (a); DROP TABLE x"); /* a file, no table */
    assert_true(folder_size(in_dir("state.db")) > 0);
    refused(store_open(dir, &t, &e), ERR_CORRUPT, "empty");
    unlink(in_dir("state.db"));
    ok(store_recover(dir, &what, &e));
    free(what);
    reopen();
    assert_string_equal(last_row(), "x");
}

/* Its log taken away: what was in there is lost, but not the store. */
static void a_new_store_stands_without_its_log(void **state)
{
    struct journal_row r;

    (void)state;
    sqlite3 *hold; /* keeps the close from emptying the log */
    assert_int_equal(sqlite3_open(in_dir("state.db"), &hold), SQLITE_OK);
    sqlite3_exec(hold, "SELECT count(*) FROM journal", NULL, NULL, NULL);
    add("in the log only");
    copy("state.db", "elsewhere");
    store_close(st);
    st = NULL;
    sqlite3_close(hold);
    folder_remove_db(in_dir("state.db"));
    copy("elsewhere", "state.db");
    reopen();
    assert_int_equal(journal_list(st, 0, &r, 1, &e), 0);
}

static void recovery_takes_the_newest_good_one(void **state)
{
    struct journal_row r;
    char **names, newest[300];
    char *what = NULL;
    int n;

    (void)state;
    refused(store_recover(dir, &what, &e), ERR_CONFLICT, "in use");
    add("one");
    ok(store_backup_keep(st, 9, &e));
    add("two");
    while (store_backup_keep(st, 9, &e) < 0)
        assert_int_equal(e.code, ERR_CONFLICT);
    store_close(st);
    st = NULL;
    refused(store_recover(dir, &what, &e), ERR_CONFLICT, "whole");
    ruin("state.db");
    ok(store_recover(dir, &what, &e));
    assert_non_null(strstr(what, "state.db.broken-1"));
    free(what);
    reopen();
    assert_string_equal(last_row(), "two");
    ok(journal_list(st, 0, &r, 1, &e));
    assert_string_equal(r.what, "store.restored");
    assert_non_null(strstr(r.detail, "backups/state-"));
    store_close(st);
    st = NULL;
    ruin("state.db");
    n = folder_list(in_dir("backups"), "", ".db", &names);
    snprintf(newest, sizeof(newest), "backups/%s", names[0]);
    folder_list_free(names, n);
    assert_int_equal(n, 2);
    ruin(newest);
    ok(store_recover(dir, &what, &e));
    assert_non_null(strstr(what, "newer ones are damaged"));
    assert_non_null(strstr(what, "state.db.broken-2"));
    free(what);
    reopen();
    assert_string_equal(last_row(), "one");
    assert_true(there("state.db.broken-1") && there("state.db.broken-2"));
}

static void recovery_without_a_backup_says_so(void **state)
{
    struct journal_row r;
    char *what = NULL;

    (void)state;
    add("x");
    store_close(st);
    st = NULL;
    put_bytes("state.db", -1, "rubbish from the first byte on", 30);
    ok(store_recover(dir, &what, &e));
    assert_non_null(strstr(what, "empty"));
    assert_non_null(strstr(what, "state.db.broken-1"));
    free(what);
    assert_int_equal(folder_size(in_dir("state.db.broken-1")), 30);
    reopen();
    assert_int_equal(journal_list(st, 0, &r, 1, &e), 1);
    assert_non_null(strstr(r.detail, "empty"));
    store_close(st);
    st = NULL;
    ok(store_open(dir, &st, &e));
    store_close(st);
    st = NULL;
    sql_on(in_dir("state.db"), "PRAGMA user_version = 4000");
    refused(store_recover(dir, &what, &e), ERR_UNSUPPORTED, "newer"); /* not damaged */
    sql_on(in_dir("state.db"), "PRAGMA user_version = 3");
}

static void the_reserve_is_kept(void **state)
{
    (void)state;
    assert_int_equal(folder_size(in_dir("reserve")), 8 << 20);
    assert_true(folder_reserve_give(dir));
    assert_false(folder_reserve_give(dir));
    assert_false(there("reserve"));
    assert_true(store_tend(st));
    assert_int_equal(folder_size(in_dir("reserve")), 8 << 20);
}

/* A view is one moment: what is written meanwhile is not in it, and its work changes
 * nothing of the store. */
static void a_view_is_one_moment(void **state)
{
    struct store *v;
    int64_t rows = 0;

    (void)state;
    for (int i = 0; i < 5; i++)
        ok(journal_add(st, "a", "w", "s", "ok", &e, "row %d", i));
    ok(store_view(st, &v, &e));
    ok(journal_verify(v, &rows, &e));
    assert_int_equal(rows, 5);
    ok(journal_add(st, "a", "w", "s", "ok", &e, "later"));
    ok(journal_verify(v, &rows, &e));
    assert_int_equal(rows, 5);
    refused(journal_add(v, "a", "w", "s", "ok", &e, "through a view"), ERR_UNAVAIL,
            "read");
    ok(store_backup(v, in_dir("copy.db"), &e));
    ok(store_restore(v, in_dir("copy.db"), &e));
    store_close(v);
    ok(journal_add(st, "a", "w", "s", "ok", &e, "after it"));
    ok(journal_verify(st, &rows, &e));
    assert_int_equal(rows, 7);
    reopen(); /* takes the restored one: the five rows and the one that tells it */
    ok(journal_verify(st, &rows, &e));
    assert_int_equal(rows, 6);
}

static const struct CMUnitTest tests[] = {
    WITH_STORE(a_backup_is_a_whole_file),
    WITH_STORE(the_newest_backups_stay),
    WITH_STORE(a_backup_is_made_when_it_is_due),
    WITH_STORE(a_restore_is_swapped_in_at_open),
    WITH_STORE(wrong_files_are_not_restored),
    WITH_STORE(an_older_schema_is_restored_and_raised),
    WITH_STORE(killed_at_each_step_it_is_old_or_new),
    WITH_STORE(damaged_is_refused_with_the_way_out),
    WITH_STORE(gone_is_not_begun_anew),
    WITH_STORE(a_new_store_stands_without_its_log),
    WITH_STORE(recovery_takes_the_newest_good_one),
    WITH_STORE(recovery_without_a_backup_says_so),
    WITH_STORE(the_reserve_is_kept),
    WITH_STORE(a_view_is_one_moment),
};

TEST_MAIN("backup", tests)

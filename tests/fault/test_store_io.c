/* tests/fault/test_store_io.c - the n-th write, sync, cut or rename fails, once or from
 * then on, for each n over the whole of each change that matters: a sentence, the old or
 * the new state, whole, and the store is usable again on the same handle and after
 * another open. Then a real full disk and a real read-only one, where this machine lets a
 * test mount its own.
 *
 * folder.c is compiled in here with its system calls counted among SQLite's. */
#include "tests/fault/sqlite_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

static ssize_t faulty_write(int fd, const void *p, size_t n)
{
    if (!must_fail_io())
        return write(fd, p, n);
    errno = io.sticky ? ENOSPC : EIO;
    return -1;
}

static int faulty_fsync(int fd)
{
    if (!must_fail_io())
        return fsync(fd);
    errno = EIO;
    return -1;
}

static int faulty_rename(const char *a, const char *b)
{
    if (!must_fail_io())
        return rename(a, b);
    errno = EIO;
    return -1;
}

static int faulty_link(const char *a, const char *b)
{
    if (!must_fail_io())
        return link(a, b);
    errno = EIO;
    return -1;
}

#define write faulty_write
#define fsync faulty_fsync
#define rename faulty_rename
#define link faulty_link
#include "state/folder.c"
#undef write
#undef fsync
#undef rename
#undef link

#include "state/revision.h"
#include "tests/store_help.h"

/* ---- changes, and how to tell old from new ---- */

static struct revision rev(const char *text)
{
    struct revision r = {.text = (char *)text, .author = "uid 0"};
    return r;
}

static int note(const char *detail)
{
    const struct journal_note n = {"t", "", "w", "s", "ok", detail};
    return journal_note(st, &n, &e);
}

static int do_put(void)
{
    static char text[40000]; /* several pages */
    struct revision r = rev(text);

    memset(text, 'x', sizeof(text) - 1);
    return revision_put(st, &r, &e);
}

static bool is_put(void)
{
    struct revision r;

    if (revision_get(st, 2, &r, &e) < 0) {
        assert_int_equal(e.code, ERR_NOTFOUND);
        return false;
    }
    assert_int_equal(strlen(r.text), 39999);
    revision_done(&r);
    return true;
}

static int do_point(void)
{
    struct rev_point p = {.running = 1, .good = 1, .boot_id = "b"};
    const struct rev_change c = {1, REV_CONFIRMED, ""};
    const struct journal_note n = {"t", "", "config.confirm", "1", "ok", ""};

    return rev_point_set(st, &p, &c, 1, &n, &e);
}

static bool is_point(void)
{
    struct journal_row row;
    struct rev_point p;
    struct revision r;
    bool in;

    ok(rev_point_get(st, &p, &e));
    in = p.running == 1;
    ok(revision_get(st, 1, &r, &e));
    assert_int_equal(r.state == REV_CONFIRMED, in); /* all three or none */
    revision_done(&r);
    ok(journal_list(st, 0, &row, 1, &e));
    assert_int_equal(!strcmp(row.what, "config.confirm"), in);
    return in;
}

static int do_note(void) { return note("second"); }

static bool is_note(void)
{
    struct journal_row row;

    ok(journal_list(st, 0, &row, 1, &e));
    if (!strcmp(row.detail, "second"))
        return true;
    assert_string_equal(row.detail, "first");
    return false;
}

static int do_backup(void) { return store_backup(st, in_dir("b.db"), &e); }

static bool is_backup(void)
{
    struct store *keep = st;
    struct revision r;

    assert_true(folder_size(in_dir("b.db.part")) < 0);
    if (folder_size(in_dir("b.db")) < 0)
        return false;
    char other[80];
    snprintf(other, sizeof(other), "%s/other", dir);
    if (mkdir(other, 0700) == 0) {
        char to[96];
        snprintf(to, sizeof(to), "%s/state.db", other);
        ok(folder_copy(in_dir("b.db"), to, &e));
    }
    ok(store_open(other, &st, &e)); /* it is a whole store by itself */
    ok(revision_get(st, 1, &r, &e));
    revision_done(&r);
    store_close(st);
    st = keep;
    return true;
}

/* A copy that has no second row; done = the next open has it. */
static int do_restore(void)
{
    if (store_restore(st, in_dir("r.db"), &e) < 0)
        return -1;
    store_close(st);
    st = NULL;
    return store_open(dir, &st, &e);
}

static bool is_restored(void)
{
    struct journal_row row[3];
    int n = journal_list(st, 0, row, 3, &e);

    ok(n);
    if (!strcmp(row[0].what, "store.restored")) {
        assert_int_equal(n, 2);
        return true;
    }
    assert_int_equal(n, 2);
    assert_string_equal(row[0].detail, "not in the copy");
    return false;
}

static void prepare(void)
{
    struct revision r = rev("a: 1\n");

    ok(note("first"));
    ok(revision_put(st, &r, &e));
}

static void prepare_restore(void)
{
    prepare();
    ok(store_backup(st, in_dir("r.db"), &e));
    ok(note("not in the copy"));
}

static const struct change {
    const char *name;
    void (*prepare)(void);
    int (*act)(void);
    bool (*done)(void);
} changes[] = {
    {"revision put", prepare, do_put, is_put},
    {"point set", prepare, do_point, is_point},
    {"journal", prepare, do_note, is_note},
    {"backup", prepare, do_backup, is_backup},
    {"restore", prepare_restore, do_restore, is_restored},
};

static void usable(void)
{
    struct journal_row row;
    int64_t rows;

    ok(note("usable"));
    ok(journal_list(st, 0, &row, 1, &e));
    assert_string_equal(row.detail, "usable");
    ok(journal_verify(st, &rows, &e));
    assert_int_equal(rows, row.id);
}

/* Returns true when the change met no fault any more. */
static bool one_round(const struct change *c, long n, bool sticky)
{
    bool first, good;

    assert_int_equal(set_up(NULL), 0);
    c->prepare();
    folder_reserve_give(dir); /* no way out by the reserve here */
    err_clear(&e);
    arm(0, n, sticky);
    good = c->act() == 0;
    if (!good) {
        assert_int_not_equal(e.code, ERR_OK);
        assert_true(strlen(e.msg) > 10);
    }
    good = good && io.count < n;
    arm(0, 0, false);
    if (!st)
        ok(store_open(dir, &st, &e));
    first = c->done();
    if (!first)
        usable();
    reopen();
    if (first)
        assert_true(c->done()); /* what was new stays so */
    usable();
    assert_int_equal(tear_down(NULL), 0);
    return good;
}

static void every_step(const char *name)
{
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        if (strcmp(changes[i].name, name))
            continue;
        for (int sticky = 0; sticky < 2; sticky++) {
            long n = 1;
            while (!one_round(&changes[i], n, sticky))
                n++;
            print_message("%s, %s: %ld steps\n", name, sticky ? "full" : "one fault",
                          n - 1);
            assert_true(n > 2);
        }
        return;
    }
    fail();
}

static void revision_put_fails(void **state) { (void)state, every_step("revision put"); }
static void point_set_fails(void **state) { (void)state, every_step("point set"); }
static void journal_fails(void **state) { (void)state, every_step("journal"); }
static void backup_fails(void **state) { (void)state, every_step("backup"); }
static void restore_fails(void **state) { (void)state, every_step("restore"); }

/* Raising an old schema: the same, from an old file. */
static void raising_a_schema_fails(void **state)
{
    bool good = false;

    (void)state;
    for (long n = 1; !good; n++) {
        struct journal_row row[3];
        int64_t rows;

        assert_int_equal(dir_make(NULL), 0);
        old_schema(in_dir("state.db"), 2);
        arm(0, n, n & 1);
        good = store_open(dir, &st, &e) == 0;
        if (!good) {
            assert_null(st);
            assert_true(strlen(e.msg) > 10);
        }
        good = good && io.count < n;
        arm(0, 0, false);
        if (st)
            reopen();
        else
            ok(store_open(dir, &st, &e));
        assert_int_equal(journal_list(st, 0, row, 3, &e), 2);
        ok(journal_verify(st, &rows, &e));
        assert_int_equal(tear_down(NULL), 0);
    }
}

/* The disk is full while the reserve stands: what must be written takes it, the rest is
 * refused. */
static void the_reserve_is_for_what_must_fit(void **state)
{
    char reserve[160];

    (void)state;
    prepare();
    snprintf(reserve, sizeof(reserve), "%s", in_dir("reserve"));
    arm(0, 1, true);
    io.until = reserve;
    refused(do_put(), ERR_UNAVAIL, "full");
    assert_int_equal(access(reserve, F_OK), 0);
    ok(note("must fit"));
    assert_true(access(reserve, F_OK) < 0);
    io.until = NULL;
    assert_false(store_tend(st)); /* no room for it yet */
    arm(0, 0, false);
    assert_true(store_tend(st));
    arm(0, 1, true);
    io.until = reserve;
    ok(do_point());
    assert_true(is_point());
    arm(0, 0, false);
    io.until = NULL;
    assert_true(store_tend(st));
    usable();
}

/* ---- real disks, in a mount namespace of a child ---- */

static void fill(const char *path)
{
    static char block[1 << 16];
    int fd = open(path, O_WRONLY | O_CREAT, 0600);

    for (size_t n = sizeof(block); n; n /= 2)
        while (write(fd, block, n) > 0)
            ;
    close(fd);
}

/* Exit codes: 0 good, 1 a wrong answer (said on stderr), 77 not allowed here. */
#define must(x)                                                                          \
    do {                                                                                 \
        if (!(x)) {                                                                      \
            fprintf(stderr, "%s: %s\n", #x, e.msg);                                      \
            _exit(1);                                                                    \
        }                                                                                \
    } while (0)

static int own_mounts(void)
{
    char map[64];
    unsigned uid = geteuid();
    int fd, n;

    if (uid == 0 && unshare(CLONE_NEWNS) == 0)
        return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return -1;
    n = snprintf(map, sizeof(map), "0 %u 1\n", uid);
    fd = open("/proc/self/uid_map", O_WRONLY);
    if (fd < 0 || write(fd, map, (size_t)n) != n)
        return -1;
    return close(fd);
}

static void on_a_small_disk(void)
{
    struct rev_point p;

    if (own_mounts() < 0 || mount("none", dir, "tmpfs", 0, "size=12m") < 0)
        _exit(77);
    must(store_open(dir, &st, &e) == 0);
    prepare();
    fill(in_dir("filler"));
    must(do_put() < 0 && strstr(e.msg, "full"));
    for (int i = 0; i < 50; i++)
        must(note("audit on a full disk") == 0);
    fill(in_dir("filler2")); /* the reserve is gone too */
    must(rev_point_get(st, &p, &e) == 0);
    unlink(in_dir("filler"));
    must(do_put() == 0 && is_put());
    store_close(st);
    st = NULL;
    unlink(in_dir("filler2"));
    must(mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
    must(store_open(dir, &st, &e) < 0 && strstr(e.msg, "Read-only"));
    must(mount(NULL, dir, NULL, MS_REMOUNT, "size=12m") == 0);
    must(store_open(dir, &st, &e) == 0 && is_put());
    _exit(0);
}

static void a_small_disk_and_a_read_only_one(void **state)
{
    int status;
    pid_t pid;

    (void)state;
    pid = fork();
    if (pid == 0)
        on_a_small_disk();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(revision_put_fails),
    cmocka_unit_test(point_set_fails),
    cmocka_unit_test(journal_fails),
    cmocka_unit_test(backup_fails),
    cmocka_unit_test(restore_fails),
    cmocka_unit_test(raising_a_schema_fails),
    WITH_STORE(the_reserve_is_for_what_must_fit),
    cmocka_unit_test_setup_teardown(a_small_disk_and_a_read_only_one, dir_make, dir_drop),
};

int main(int argc, char **argv)
{
    if (set_up_all() < 0)
        return 1;
    return test_main(argc, argv, "store io faults", tests,
                     sizeof(tests) / sizeof(tests[0]));
}

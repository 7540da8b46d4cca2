/* tests/fault/test_store.c - the n-th allocation of SQLite, or the n-th write or sync of
 * a file, fails, for each n: a sentence, no leak, no crash, and afterwards the store
 * holds either the state before the call or after it, whole.
 *
 * SQLite is given a counting allocator and a default VFS that wraps the system's. */
#include "tests/test.h"

#include <ftw.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdbool.h>

#include "base/err.h"
#include "state/store.h"

static struct {
    long count, fail_at, live;
    bool sticky; /* all later ones fail too: a full disk */
} mem, io;

static bool must_fail_mem(void) { return ++mem.count == mem.fail_at; }

static bool must_fail_io(void)
{
    io.count++;
    return io.fail_at && (io.sticky ? io.count >= io.fail_at : io.count == io.fail_at);
}

/* ---- allocator: the default one, counted ---- */
static sqlite3_mem_methods real;

static void *counted_malloc(int n)
{
    void *p = must_fail_mem() ? NULL : real.xMalloc(n);
    mem.live += p != NULL;
    return p;
}

static void *counted_realloc(void *p, int n)
{
    return must_fail_mem() ? NULL : real.xRealloc(p, n);
}

static void counted_free(void *p)
{
    mem.live -= p != NULL;
    real.xFree(p);
}

/* ---- VFS: the system's, with writes and syncs that may fail ---- */
struct file {
    sqlite3_file base;
    sqlite3_file *inner;
};
static sqlite3_vfs *under, wrap;

#define INNER(f) (((struct file *)(f))->inner)
#define PASS(name, decl, args)                                                           \
    static int f_##name decl { return INNER(f)->pMethods->name args; }
PASS(xRead, (sqlite3_file * f, void *p, int n, sqlite3_int64 o), (INNER(f), p, n, o))
PASS(xTruncate, (sqlite3_file * f, sqlite3_int64 n), (INNER(f), n))
PASS(xFileSize, (sqlite3_file * f, sqlite3_int64 *n), (INNER(f), n))
PASS(xLock, (sqlite3_file * f, int l), (INNER(f), l))
PASS(xUnlock, (sqlite3_file * f, int l), (INNER(f), l))
PASS(xCheckReservedLock, (sqlite3_file * f, int *r), (INNER(f), r))
PASS(xFileControl, (sqlite3_file * f, int op, void *a), (INNER(f), op, a))
PASS(xSectorSize, (sqlite3_file * f), (INNER(f)))
PASS(xDeviceCharacteristics, (sqlite3_file * f), (INNER(f)))
PASS(xShmMap, (sqlite3_file * f, int p, int n, int x, void volatile **r),
     (INNER(f), p, n, x, r))
PASS(xShmLock, (sqlite3_file * f, int o, int n, int l), (INNER(f), o, n, l))
PASS(xShmUnmap, (sqlite3_file * f, int d), (INNER(f), d))

static void f_xShmBarrier(sqlite3_file *f) { INNER(f)->pMethods->xShmBarrier(INNER(f)); }

static int f_xWrite(sqlite3_file *f, const void *p, int n, sqlite3_int64 o)
{
    if (must_fail_io())
        return io.sticky ? SQLITE_FULL : SQLITE_IOERR_WRITE;
    return INNER(f)->pMethods->xWrite(INNER(f), p, n, o);
}

static int f_xSync(sqlite3_file *f, int flags)
{
    if (must_fail_io())
        return SQLITE_IOERR_FSYNC;
    return INNER(f)->pMethods->xSync(INNER(f), flags);
}

static int f_xClose(sqlite3_file *f)
{
    int rc = INNER(f)->pMethods->xClose(INNER(f));
    free(INNER(f));
    return rc;
}

static const sqlite3_io_methods f_methods = {
    .iVersion = 2,
    .xClose = f_xClose,
    .xRead = f_xRead,
    .xWrite = f_xWrite,
    .xTruncate = f_xTruncate,
    .xSync = f_xSync,
    .xFileSize = f_xFileSize,
    .xLock = f_xLock,
    .xUnlock = f_xUnlock,
    .xCheckReservedLock = f_xCheckReservedLock,
    .xFileControl = f_xFileControl,
    .xSectorSize = f_xSectorSize,
    .xDeviceCharacteristics = f_xDeviceCharacteristics,
    .xShmMap = f_xShmMap,
    .xShmLock = f_xShmLock,
    .xShmBarrier = f_xShmBarrier,
    .xShmUnmap = f_xShmUnmap,
};

static int v_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
    struct file *mine = (struct file *)f;
    int rc;

    (void)v;
    mine->inner = calloc(1, (size_t)under->szOsFile);
    rc = under->xOpen(under, name, mine->inner, flags, out);
    f->pMethods = rc == SQLITE_OK ? &f_methods : NULL;
    if (rc != SQLITE_OK)
        free(mine->inner);
    return rc;
}

static int set_up_all(void)
{
    sqlite3_mem_methods counted;

    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real);
    counted = real;
    counted.xMalloc = counted_malloc;
    counted.xRealloc = counted_realloc;
    counted.xFree = counted_free;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &counted);
    sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0);
    if (sqlite3_initialize() != SQLITE_OK)
        return -1;
    under = sqlite3_vfs_find(NULL);
    wrap = *under;
    wrap.zName = "faulty";
    wrap.szOsFile = sizeof(struct file);
    wrap.xOpen = v_open;
    return sqlite3_vfs_register(&wrap, 1) == SQLITE_OK ? 0 : -1;
}

/* ---- the tests ---- */
static char dir[64];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st, (void)type, (void)f;
    return remove(path);
}

static void fresh_dir(void)
{
    snprintf(dir, sizeof(dir), "/tmp/llmrack-fault-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static void drop_dir(void) { nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

static void arm(long at_mem, long at_io, bool sticky)
{
    mem.count = io.count = 0;
    mem.fail_at = at_mem;
    io.fail_at = at_io;
    io.sticky = sticky;
}

static int use(struct store *s, struct err *e)
{
    struct journal_row r[8];
    struct model_row m = {.name = "m", .path = "p"};

    if (journal_add(s, "a", "b", "c", "ok", e, "second") < 0 ||
        inventory_put_model(s, &m, e) < 0)
        return -1;
    return journal_list(s, 0, r, 8, e);
}

/* Without faults: the first row is there, and the second one whole or not at all. */
static void check_after(void)
{
    struct journal_row r[8];
    struct store *s;
    struct err e;
    int n;

    arm(0, 0, false);
    assert_int_equal(store_open(dir, &s, &e), 0);
    n = journal_list(s, 0, r, 8, &e);
    assert_in_range(n, 1, 2);
    assert_string_equal(r[n - 1].detail, "first");
    assert_string_equal(r[0].detail, n == 2 ? "second" : "first");
    assert_int_equal(use(s, &e), n + 1);
    store_close(s);
}

/* Returns true when the run had no fault left to meet. */
static bool one_round(long at_mem, long at_io, bool sticky, bool fault_in_open)
{
    struct store *s = NULL;
    struct err e;
    long live;
    bool good;

    fresh_dir();
    arm(0, 0, false);
    assert_int_equal(store_open(dir, &s, &e), 0);
    assert_int_equal(journal_add(s, "a", "b", "c", "ok", &e, "first"), 0);
    if (fault_in_open) {
        store_close(s);
        s = NULL;
    }
    live = mem.live;
    err_clear(&e);
    arm(at_mem, at_io, sticky);
    good = (s || store_open(dir, &s, &e) == 0) && use(s, &e) >= 0;
    if (!good) {
        assert_int_not_equal(e.code, ERR_OK);
        assert_true(e.msg[0]);
    }
    good = good && mem.count < (at_mem ? at_mem : LONG_MAX) &&
           io.count < (at_io ? at_io : LONG_MAX);
    store_close(s);
    if (fault_in_open)
        assert_true(mem.live <= live);
    check_after();
    drop_dir();
    return good;
}

static void every_allocation(void **state)
{
    long n = 1;

    (void)state;
    while (!one_round(n, 0, false, false))
        n++;
    assert_true(n > 20);
    for (n = 1; !one_round(n, 0, false, true);)
        n += 1 + n / 16; /* opening allocates some hundred times: a sample */
}

static void every_write(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        long n = 1;
        while (!one_round(0, n, k & 1, k & 2))
            n++;
        assert_true(n > 4);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_allocation),
    cmocka_unit_test(every_write),
};

int main(int argc, char **argv)
{
    if (set_up_all() < 0)
        return 1;
    return test_main(argc, argv, "store faults", tests, 2);
}

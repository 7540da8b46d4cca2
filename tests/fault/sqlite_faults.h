/* tests/fault/sqlite_faults.h - the n-th allocation of SQLite, or the n-th write, sync or
 * cut of a file, fails. SQLite is given a counting allocator and a default VFS that wraps
 * the system's. */
#ifndef TESTS_SQLITE_FAULTS_H
#define TESTS_SQLITE_FAULTS_H

#include "tests/test.h"

#include <sqlite3.h>
#include <stdbool.h>

static struct {
    long count, fail_at, live;
    bool sticky;       /* all later ones fail too: a full disk */
    const char *until; /* but only while this file is there, NULL = for ever */
} mem, io;

static bool must_fail_mem(void) { return ++mem.count == mem.fail_at; }

static bool must_fail_io(void)
{
    io.count++;
    if (!io.fail_at || (io.until && access(io.until, F_OK) < 0))
        return false;
    return io.sticky ? io.count >= io.fail_at : io.count == io.fail_at;
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

static int f_xTruncate(sqlite3_file *f, sqlite3_int64 n)
{
    if (must_fail_io())
        return SQLITE_IOERR_TRUNCATE;
    return INNER(f)->pMethods->xTruncate(INNER(f), n);
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

static inline int set_up_all(void)
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

static inline void arm(long at_mem, long at_io, bool sticky)
{
    mem.count = io.count = 0;
    mem.fail_at = at_mem;
    io.fail_at = at_io;
    io.sticky = sticky;
}

#endif

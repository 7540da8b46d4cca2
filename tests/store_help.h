/* tests/store_help.h - for tests of state/: a folder for each test, the open store, and a
 * hand that changes the database behind the store's back. */
#ifndef TESTS_STORE_HELP_H
#define TESTS_STORE_HELP_H

#include "tests/test.h"

#include <ftw.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include "base/err.h"
#include "state/store.h"

static char dir[64];
static struct store *st __attribute__((unused));
static struct err e;

static inline int rm_one(const char *path, const struct stat *sb, int type, struct FTW *f)
{
    (void)sb, (void)type, (void)f;
    return remove(path);
}

static inline int dir_make(void **state)
{
    const char *in = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";

    (void)state; /* in memory where that is to be had: hundreds of syncs */
    snprintf(dir, sizeof(dir), "%s/llmrack-store-XXXXXX", in);
    return mkdtemp(dir) ? 0 : -1;
}

static inline int dir_drop(void **state)
{
    (void)state;
    return nftw(dir, rm_one, 8, FTW_DEPTH | FTW_PHYS);
}

static inline int set_up(void **state)
{
    return dir_make(state) < 0 || store_open(dir, &st, &e) < 0 ? -1 : 0;
}

static inline int tear_down(void **state)
{
    store_close(st);
    st = NULL;
    return dir_drop(state);
}

static inline void reopen(void)
{
    store_close(st);
    st = NULL;
    if (store_open(dir, &st, &e) < 0)
        fail_msg("%s", e.msg);
}

/* SQL on a database file beside the store's own connection. */
static inline void sql_on(const char *path, const char *sql)
{
    sqlite3 *db;
    char *msg = NULL;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &msg) != SQLITE_OK)
        fail_msg("%s: %s", sql, msg);
    sqlite3_close(db);
}

static inline const char *in_dir(const char *name)
{
    static char path[2][160];
    static int turn;

    turn ^= 1;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", dir, name);
    return path[turn];
}

/* A database as the first n migrations make it, with one journal row and one model. */
static inline void old_schema(const char *path, int n)
{
    static const char schema[] =
#include "schema.h"
        ;
    const char *from = strstr(schema, "\n-- migration 1\n");
    char mark[40], *sql, tail[300];
    const char *to;

    snprintf(mark, sizeof(mark), "\n-- migration %d\n", n + 1);
    to = strstr(from, mark);
    snprintf(
        tail, sizeof(tail),
        "PRAGMA application_id=%d; PRAGMA user_version=%d;"
        "INSERT INTO journal(at_ms, actor, what, subject, result, detail)"
        " VALUES(1, 'daemon', 'old', 's', 'ok', 'first'), (2, 'd', 'o', 's', 'ok', '');"
        "INSERT INTO model VALUES('m', '/p', 'llama', 'q4', 'gguf', 1, 2, 3);",
        0x6c6c6d72, n);
    sql = malloc((size_t)(to - from) + sizeof(tail));
    sprintf(sql, "%.*s%s", (int)(to - from), from, tail);
    sql_on(path, sql);
    free(sql);
}

static inline void behind(const char *sql) { sql_on(in_dir("state.db"), sql); }

#define ok(x)                                                                            \
    do {                                                                                 \
        if ((x) < 0)                                                                     \
            fail_msg(#x ": %s", e.msg);                                                  \
    } while (0)
#define refused(x, c, word)                                                              \
    do {                                                                                 \
        assert_true((x) < 0);                                                            \
        assert_int_equal(e.code, c);                                                     \
        if (!strstr(e.msg, word))                                                        \
            fail_msg("'%s' is not in '%s'", word, e.msg);                                \
    } while (0)

#define WITH_STORE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

#endif

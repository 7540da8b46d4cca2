/* tests/fault/test_store.c - the n-th allocation of SQLite, or the n-th write or sync of
 * a file, fails, for each n: a sentence, no leak, no crash, and afterwards the store
 * holds either the state before the call or after it, whole. */
#include "tests/fault/sqlite_faults.h"

#include <ftw.h>
#include <limits.h>

#include "base/err.h"
#include "state/store.h"

/* ---- the tests ---- */
static char dir[64];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st, (void)type, (void)f;
    return remove(path);
}

static void fresh_dir(void)
{
    snprintf(dir, sizeof(dir), "%s/llmrack-fault-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(dir));
}

static void drop_dir(void) { nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

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

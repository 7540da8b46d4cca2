/* tests/unit/test_store.c - what is written is read, also after a kill; one daemon a
 * folder; schema and file checks. */
#include "tests/store_help.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>

#include "base/mem.h"
#include "state/runs.h"
#include "state/store_impl.h"

static void journal_keeps_order(void **state)
{
    struct journal_row r[4];
    struct store *s;

    (void)state;
    assert_int_equal(store_open(dir, &s, &e), 0);
    assert_int_equal(journal_list(s, 0, r, 4, &e), 0);
    for (int i = 0; i < 6; i++)
        assert_int_equal(
            journal_add(s, "daemon", "engine.start", "m", "ok", &e, "n%d '%s'", i, "x"),
            0);
    store_close(s);
    assert_int_equal(store_open(dir, &s, &e), 0);
    assert_int_equal(journal_list(s, 0, r, 4, &e), 4);
    assert_string_equal(r[0].detail, "n5 'x'");
    assert_string_equal(r[3].detail, "n2 'x'");
    assert_string_equal(r[0].what, "engine.start");
    assert_true(r[0].at_ms > 1500000000000);
    assert_int_equal(journal_list(s, r[3].id, r, 4, &e), 2);
    assert_string_equal(r[0].detail, "n1 'x'");
    store_close(s);
}

static void inventory_replaces(void **state)
{
    struct model_row m = {.name = "a", .path = "/p", .family = "llama", .added_ms = 5};
    struct model_row got[3];
    struct instance_row i = {.name = "a-0", .model = "a", .mode = "chunked"}, ig[3];
    struct store *s;

    (void)state;
    assert_int_equal(store_open(dir, &s, &e), 0);
    m.n_params = 134515008;
    assert_int_equal(inventory_put_model(s, &m, &e), 0);
    snprintf(m.path, sizeof(m.path), "/other");
    m.added_ms = 9; /* the first time stays */
    assert_int_equal(inventory_put_model(s, &m, &e), 0);
    snprintf(i.options, sizeof(i.options), "{\"x\":1}");
    assert_int_equal(inventory_put_instance(s, &i, &e), 0);
    i.applied_ms = 7;
    assert_int_equal(inventory_put_instance(s, &i, &e), 0);
    store_close(s);
    assert_int_equal(store_open(dir, &s, &e), 0);
    assert_int_equal(inventory_models(s, got, 3, &e), 1);
    assert_string_equal(got[0].path, "/other");
    assert_int_equal(got[0].added_ms, 5);
    assert_int_equal(got[0].n_params, 134515008);
    assert_int_equal(inventory_instances(s, ig, 3, &e), 1);
    assert_int_equal(ig[0].applied_ms, 7);
    assert_string_equal(ig[0].options, "{\"x\":1}");
    store_close(s);
}

static void secret_stays(void **state)
{
    uint8_t a[16], b[16], zero[16] = {0};
    struct store *s;

    (void)state;
    assert_int_equal(store_open(dir, &s, &e), 0);
    store_secret(s, a);
    assert_int_equal(store_schema_version(s), 6);
    store_close(s);
    assert_int_equal(store_open(dir, &s, &e), 0);
    store_secret(s, b);
    store_close(s);
    assert_memory_equal(a, b, 16);
    assert_memory_not_equal(a, zero, 16);
    store_close(NULL);
}

static void second_is_refused(void **state)
{
    char pid[32];
    struct store *s, *t = NULL;

    (void)state;
    assert_int_equal(store_open(dir, &s, &e), 0);
    assert_int_equal(store_open(dir, &t, &e), -1);
    assert_null(t);
    assert_int_equal(e.code, ERR_CONFLICT);
    snprintf(pid, sizeof(pid), "process %d)", getpid());
    assert_non_null(strstr(e.msg, pid));
    assert_non_null(strstr(e.msg, dir));
    store_close(s);
    assert_int_equal(store_open(dir, &t, &e), 0);
    store_close(t);
}

static void write_file(const char *name, const void *p, size_t n, long at)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, at >= 0 ? "r+" : "w");
    assert_non_null(f);
    if (at >= 0)
        fseek(f, at, SEEK_SET);
    fwrite(p, 1, n, f);
    fclose(f);
}

static void refuses_strange_files(void **state)
{
    const unsigned char newer[4] = {0, 0, 3, 0}, other_id[4] = {1, 2, 3, 4};
    struct store *s = NULL;

    (void)state;
    write_file("state.db", "this is no database, whatever its name says", 43, -1);
    assert_int_equal(store_open(dir, &s, &e), -1);
    assert_int_equal(e.code, ERR_CORRUPT);
    write_file("state.db", "", 0, -1);
    assert_int_equal(store_open(dir, &s, &e), 0);
    store_close(s);
    s = NULL;
    write_file("state.db", newer, 4, 60); /* user_version in the header */
    assert_int_equal(store_open(dir, &s, &e), -1);
    assert_int_equal(e.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "newer"));
    write_file("state.db", other_id, 4, 68); /* application_id */
    assert_int_equal(store_open(dir, &s, &e), -1);
    assert_non_null(strstr(e.msg, "another program"));
    assert_int_equal(store_open("/nonexistent/a/b", &s, &e), -1);
    assert_null(s);
}

/* Load runs: newest first, by instance, and the last 1000 stay. */
static void loads_are_kept(void **state)
{
    struct stored_run r = {.at_ms = 5,
                           .instance = "a",
                           .model = "m",
                           .actor = "root",
                           .contract = "{\"x\":1}",
                           .result = "{\"y\":2}"},
                      got, list[4];
    char *big = xcalloc(1, RUN_JSON_MAX + 2);
    struct store *s;

    (void)state;
    ok(store_open(dir, &s, &e));
    for (int i = 0; i < 1003; i++) {
        snprintf(r.instance, sizeof(r.instance), "%s", i % 2 ? "a" : "b");
        ok(runs_put(s, RUN_LOAD, &r, &e));
    }
    assert_int_equal(r.id, 1003);
    ok(runs_get(s, RUN_LOAD, 1002, &got, &e));
    assert_string_equal(got.instance, "a");
    assert_string_equal(got.contract, "{\"x\":1}");
    assert_string_equal(got.result, "{\"y\":2}");
    run_done(&got);
    refused(runs_get(s, RUN_LOAD, 3, &got, &e), ERR_NOTFOUND, "load run 3");
    assert_int_equal(runs_list(s, RUN_LOAD, "a", 1000, list, 4, &e), 4);
    assert_int_equal(list[0].id, 998);
    assert_int_equal(list[3].id, 992);
    for (int i = 0; i < 4; i++)
        run_done(&list[i]);
    memset(big, 'x', RUN_JSON_MAX + 1);
    r.result = big;
    refused(runs_put(s, RUN_LOAD, &r, &e), ERR_TOOBIG, "load run");
    free(big);
    store_close(s);
}

/* Databases as the builds of versions 1 and 2 made them. */
static void an_older_schema_is_raised(void **state)
{
    struct journal_row r[4];
    struct model_row m[2];
    struct store *s;
    char mark[16];
    int64_t n;

    (void)state;
    for (int v = 1; v < 3; v++) {
        old_schema(in_dir("state.db"), v);
        ok(store_open(dir, &s, &e));
        assert_int_equal(store_schema_version(s), 6);
        ok(migrate_check_tables(s, 6, &e));
        assert_int_equal(journal_list(s, 0, r, 4, &e), 2);
        assert_string_equal(r[1].detail, "first");
        assert_int_equal(inventory_models(s, m, 2, &e), 1);
        assert_string_equal(m[0].path, "/p");
        ok(journal_verify(s, &n, &e)); /* the rows that were there are in the chain */
        assert_int_equal(n, 2);
        behind("UPDATE journal SET detail = 'x' WHERE id = 1");
        refused(journal_verify(s, &n, &e), ERR_CORRUPT, "row 1");
        store_close(s);
        snprintf(mark, sizeof(mark), "-v%d.db", v); /* a copy from before */
        DIR *d = opendir(in_dir("backups"));
        struct dirent *x;
        assert_non_null(d);
        do
            assert_non_null(x = readdir(d));
        while (!strstr(x->d_name, mark));
        closedir(d);
        assert_int_equal(unlink(in_dir("state.db")), 0);
    }
}

static void a_migration_that_fails_leaves_the_old(void **state)
{
    struct store *s = NULL;
    struct journal_row r[4];

    (void)state;
    old_schema(in_dir("state.db"), 2);
    behind("CREATE TABLE cordon (a)"); /* in migration 3's way */
    refused(store_open(dir, &s, &e), ERR_IO, "migration 3");
    assert_null(s);
    behind("DROP TABLE cordon");
    ok(store_open(dir, &s, &e));
    assert_int_equal(journal_list(s, 0, r, 4, &e), 2);
    store_close(s);
}

/* Child: acknowledge each journal row over the pipe until it is killed. */
static void write_until_killed(int fd)
{
    struct store *s;

    if (store_open(dir, &s, &e) < 0)
        _exit(1);
    for (int i = 0;; i++)
        if (journal_add(s, "t", "w", "s", "ok", &e, "%d", i) < 0 ||
            write(fd, &i, sizeof(i)) != sizeof(i))
            _exit(1);
}

static void acknowledged_survives_kill(void **state)
{
    struct journal_row r;
    struct store *s;
    int fd[2], acked = -1;

    (void)state;
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    if (pid == 0)
        write_until_killed(fd[1]);
    close(fd[1]);
    while (acked < 20)
        assert_int_equal(read(fd[0], &acked, sizeof(acked)), sizeof(acked));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    for (int v; read(fd[0], &v, sizeof(v)) == sizeof(v);)
        acked = v;
    close(fd[0]);
    assert_int_equal(store_open(dir, &s, &e), 0);
    assert_int_equal(journal_list(s, 0, &r, 1, &e), 1);
    assert_true(atoi(r.detail) >= acked);
    assert_int_equal(r.id, atoi(r.detail) + 1); /* none is missing */
    store_close(s);
}

#define T(f) cmocka_unit_test_setup_teardown(f, dir_make, dir_drop)
static const struct CMUnitTest tests[] = {
    T(journal_keeps_order),
    T(inventory_replaces),
    T(secret_stays),
    T(second_is_refused),
    T(refuses_strange_files),
    T(acknowledged_survives_kill),
    T(loads_are_kept),
    T(an_older_schema_is_raised),
    T(a_migration_that_fails_leaves_the_old),
};

TEST_MAIN("store", tests)

/* tests/unit/test_cpus.c - CPUs as text and in shares, who of several engines has which,
 * and where an engine's threads stand on them. */
#include "tests/test.h"

#include "base/cpuset.h"
#include "base/err.h"
#include "daemon/ctrl/cpushare.h"
#include "daemon/serve/cpuplan.h"

static cpu_set_t set(const char *text)
{
    cpu_set_t s;
    struct err e;

    if (cpuset_parse(text, strlen(text), &s, &e) < 0)
        fail_msg("%s", e.msg);
    return s;
}

static const char *text(const cpu_set_t *s)
{
    static char out[CPUSET_TEXT_MAX];

    cpuset_print(s, out, sizeof(out));
    return out;
}

static void lists_as_text(void **state)
{
    static const char *const bad[] = {"",   ",",  "1,",  "3-1", "a",
                                      "0-", "-1", "0;1", "0 1"};
    char small[8];
    cpu_set_t s = set("8,0-3,2,1023");
    struct err e;

    (void)state;
    assert_string_equal(text(&s), "0-3,8,1023");
    cpuset_print(&s, small, sizeof(small));
    assert_string_equal(small, "0-3,8..");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(cpuset_parse(bad[i], strlen(bad[i]), &s, &e), -1);
        assert_int_equal(e.code, ERR_SYNTAX);
    }
    assert_int_equal(cpuset_parse("0-1024", 6, &s, &e), -1);
    assert_int_equal(e.code, ERR_RANGE);
    assert_string_equal(e.msg, "CPUs '0-1024': there are CPUs 0 to 1023 at most");
    assert_int_equal(cpuset_parse("99999999999999999999", 20, &s, &e), -1);
    assert_string_equal(text(&s), "0-3,8,1023"); /* as it was */
}

static void shares_cover_all(void **state)
{
    cpu_set_t all = set("0-2,5,9-11"), share, sum, both;

    (void)state;
    for (int n = 1; n <= 15; n++) {
        CPU_ZERO(&sum);
        for (int i = 0; i < n; i++) {
            cpuset_share(&all, i, n, &share);
            assert_true(CPU_COUNT(&share) >= 1);
            CPU_AND(&both, &sum, &share);
            if (n <= 7)
                assert_int_equal(CPU_COUNT(&both), 0);
            CPU_OR(&sum, &sum, &share);
        }
        assert_true(CPU_EQUAL(&sum, &all));
    }
}

/* ---- engines ---- */

#define ROW(g, eng, near_cpus)                                                           \
    {                                                                                    \
        .group = (g), .engine = (eng), .near = (near_cpus)                               \
    }

static void engines_share_what_is_near(void **state)
{
    const cpu_set_t all = set("0-15"), left = set("0-7"), right = set("8-15");
    cpu_set_t none;

    (void)state;
    CPU_ZERO(&none);
    /* one engine of two ranks at two sockets, and one with a rank at the second */
    struct cpushare_rank a[] = {ROW(0, 0, left), ROW(0, 0, right), ROW(1, 1, right)};
    cpushare(&all, a, 3);
    assert_string_equal(text(&a[0].ret), "0-7");
    assert_string_equal(text(&a[1].ret), "8-11");
    assert_string_equal(text(&a[2].ret), "12-15");
    /* both ranks at one socket divide the engine's half; the process may not use all */
    const cpu_set_t may = set("2-9");
    struct cpushare_rank b[] = {ROW(5, 0, left), ROW(5, 0, left), ROW(2, 1, left)};
    cpushare(&may, b, 3);
    assert_string_equal(text(&b[2].ret), "2-4");
    assert_string_equal(text(&b[0].ret), "5");
    assert_string_equal(text(&b[1].ret), "6-7");
    /* generations of one instance stand on the same; nothing near means all */
    struct cpushare_rank c[] = {ROW(0, 0, none), ROW(1, 1, none), ROW(0, 2, none)};
    cpushare(&all, c, 3);
    assert_string_equal(text(&c[0].ret), "0-7");
    assert_true(CPU_EQUAL(&c[0].ret, &c[2].ret));
    assert_string_equal(text(&c[1].ret), "8-15");
    /* CPUs that the process may not use at all are as if they were not near */
    struct cpushare_rank d[] = {ROW(0, 0, right)};
    cpushare(&left, d, 1);
    assert_string_equal(text(&d[0].ret), "0-7");
}

/* ---- one engine ---- */

static void plan(const char *cpus, int threads, int ranks, struct cpuplan *ret)
{
    struct err e;

    if (cpuplan_make(cpus, threads, ranks, ret, &e) < 0)
        fail_msg("%s", e.msg);
}

static void ranks_have_threads(void **state)
{
    struct cpuplan p, copy;
    struct err e;

    (void)state;
    plan("0-3", 0, 2, &p); /* one on each */
    assert_int_equal(p.n_threads, 4);
    assert_true(p.fits && p.rank[0].pin && p.rank[1].pin);
    assert_string_equal(text(&p.rank[1].may), "2-3");
    cpuplan_copy(&p, &copy);
    cpuplan_done(&p);
    assert_int_equal(copy.rank[1].n_threads, 2);
    cpuplan_done(&copy);
    plan("0-3", 2, 1, &p); /* fewer stay free to move */
    assert_true(p.fits && !p.rank[0].pin);
    assert_int_equal(p.rank[0].n_threads, 2);
    assert_string_equal(text(&p.rank[0].may), "0-3");
    cpuplan_done(&p);
    plan("0", 0, 3, &p); /* a thread for each rank at least */
    assert_int_equal(p.n_threads, 3);
    assert_true(!p.fits && !p.rank[2].pin);
    cpuplan_done(&p);
    plan("0-1;4-7", 0, 2, &p);
    assert_int_equal(p.n_threads, 6);
    assert_int_equal(p.rank[0].n_threads, 2);
    assert_true(p.fits && p.rank[0].pin && p.rank[1].pin);
    assert_string_equal(text(&p.rank[1].may), "4-7");
    cpuplan_done(&p);
    plan("0-1;0-1", 0, 2, &p); /* shared: nobody is tied to one */
    assert_true(!p.fits && !p.rank[0].pin && !p.rank[1].pin);
    cpuplan_done(&p);
    assert_int_equal(cpuplan_make("0;1", 0, 3, &p, &e), -1);
    assert_string_equal(e.msg, "CPUs '0;1': a list for each of 3 ranks would be right");
    assert_int_equal(cpuplan_make("0;1;2", 0, 2, &p, &e), -1);
    assert_int_equal(cpuplan_make("0;x", 0, 2, &p, &e), -1);
    assert_int_equal(e.code, ERR_SYNTAX);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(lists_as_text),
    cmocka_unit_test(shares_cover_all),
    cmocka_unit_test(engines_share_what_is_near),
    cmocka_unit_test(ranks_have_threads),
};

TEST_MAIN("cpus", tests)

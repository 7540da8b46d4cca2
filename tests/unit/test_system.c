/* tests/unit/test_system.c - descriptor limits.
 */
#include "tests/test.h"

#include <sys/resource.h>

#include "base/err.h"
#include "daemon/ctrl/system.h"

static void raises_the_soft_limit(void **state)
{
    struct rlimit had, r;
    struct err e;

    (void)state;
    getrlimit(RLIMIT_NOFILE, &had);
    r = had;
    r.rlim_cur = 32;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
    assert_int_equal(system_descriptors(64, &e), 64);
    getrlimit(RLIMIT_NOFILE, &r);
    assert_int_equal(r.rlim_cur, 64);
    assert_int_equal(system_descriptors(48, &e), 48); /* never lowered */
    getrlimit(RLIMIT_NOFILE, &r);
    assert_int_equal(r.rlim_cur, 64);
    if (had.rlim_max != RLIM_INFINITY)
        assert_int_equal(system_descriptors((long)had.rlim_max + 5, &e), had.rlim_max);
    setrlimit(RLIMIT_NOFILE, &had);
}

static void boot_id(void **state)
{
    char a[40], b[40];

    (void)state;
    system_boot_id(a);
    system_boot_id(b);
    assert_true(strlen(a) >= 8);
    if (access("/proc/sys/kernel/random/boot_id", R_OK) == 0)
        assert_string_equal(a, b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(boot_id),
    cmocka_unit_test(raises_the_soft_limit),
};

TEST_MAIN("system", tests)

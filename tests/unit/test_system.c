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

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(raises_the_soft_limit),
};

TEST_MAIN("system", tests)

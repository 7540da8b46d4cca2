/* tests/unit/test_system.c - the device of this machine as JSON, and descriptor limits.
 */
#include "tests/test.h"

#include <sys/resource.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/ctrl/system.h"

static void describes_the_cpu(void **state)
{
    const struct js_limits lim = {65536, 8};
    struct buf b;
    json_t *v, *d;
    struct err e;

    (void)state;
    buf_init(&b, 0);
    system_json(&b);
    assert_int_equal(js_parse(b.p, b.len, &lim, &v, &e), 0);
    assert_true(json_is_false(json_object_get(v, "emulated")));
    d = json_array_get(json_object_get(v, "devices"), 0);
    assert_string_equal(json_string_value(json_object_get(d, "id")), "cpu0");
    assert_int_equal(json_integer_value(json_object_get(d, "cores")), system_cpus());
    assert_true(json_integer_value(json_object_get(d, "memory_bytes")) > 1 << 20);
    assert_true(json_string_length(json_object_get(d, "model")) > 0);
    assert_true(json_is_string(json_object_get(d, "isa")));
    json_decref(v);
    buf_done(&b);
}

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
    cmocka_unit_test(describes_the_cpu),
    cmocka_unit_test(raises_the_soft_limit),
};

TEST_MAIN("system", tests)

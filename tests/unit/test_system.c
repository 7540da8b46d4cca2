/* tests/unit/test_system.c - the device of this machine, and descriptor limits.
 */
#include "tests/test.h"

#include <sys/resource.h>

#include "base/err.h"
#include "daemon/ctrl/system.h"
#include "topo/graph.h"

static void describes_the_cpu(void **state)
{
    const struct node *d;
    struct graph *g;
    const int *dev;
    struct err e;

    (void)state;
    assert_int_equal(system_graph(&g, &e), 0);
    assert_false(graph_emulated(g));
    assert_int_equal(graph_devices(g, &dev), 1);
    d = graph_node(g, dev[0]);
    assert_string_equal(d->name, "cpu0");
    assert_true(d->is_cpu && d->model[0] && d->cpus[0]);
    assert_true(d->memory_bytes.v > 1 << 20);
    graph_free(g);
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

/* tests/unit/test_path_links.c - the links of a path lead from one end to the other, are
 * as many as the path has hops, and the narrowest is the path's figure: on every rack
 * that has a name, and between all pairs of its ends. */
#include "tests/topo_help.h"

#include "topo/rack.h"

/* Between a host and its NUMA nodes there is no link. */
static bool within(const struct graph *g, int host, int numa)
{
    return graph_node(g, host)->kind == NODE_HOST && graph_node(g, numa)->host == host &&
           graph_node(g, numa)->kind == NODE_NUMA;
}

/* Follows the links from a; those of switches side by side come in pairs, all between the
 * same two ends. */
static void follow(const struct graph *g, const struct path_link *l, int n, int a, int b)
{
    bool split = l[0].share < 1;
    double sum = 0;
    int at = a, from;

    for (int i = 0; i < n; i++) {
        const struct link *x = graph_link(g, l[i].link);

        if (split && i % 2 == 0)
            at = a;
        from = l[i].back ? x->b : x->a;
        if (from != at && !within(g, from, at) && !within(g, at, from))
            fail_msg("%s: %s to %s: link %d of %d is from %s, not %s", graph_source(g),
                     graph_node(g, a)->name, graph_node(g, b)->name, i, n,
                     graph_node(g, from)->name, graph_node(g, at)->name);
        at = l[i].back ? x->a : x->b;
        assert_int_equal(l[i].share < 1, split);
        sum += split && i % 2 == 0 ? l[i].share : 0;
        if (split && i % 2)
            assert_int_equal(at, b);
    }
    assert_int_equal(at, b);
    if (split)
        assert_float_equal(sum, 1, 1e-9);
}

static double narrowest(const struct path_link *l, int n)
{
    double least = 0;

    for (int i = 0; i < n; i++)
        if (l[i].bps > 0 && (!least || l[i].bps / l[i].share < least))
            least = l[i].bps / l[i].share;
    return least;
}

/* Of all pairs; returns how many have a way. */
static int check_all(const struct graph *g)
{
    struct path_link l[PATH_LINKS_MAX];
    struct paths *p;
    struct err e = {0};
    int ways = 0;

    assert_int_equal(paths_new(g, &p, &e), 0);
    for (int a = 0; a < graph_n_nodes(g); a++)
        for (int b = 0; b < graph_n_nodes(g); b++) {
            const struct path *way = paths_get(p, a, b);
            int n = paths_links(p, a, b, l, PATH_LINKS_MAX);

            if (!way || a == b || way->cls == PATH_DIS) {
                assert_int_equal(n, 0);
                continue;
            }
            if (!n)
                fail_msg("%s: %s to %s has no links", graph_source(g),
                         graph_node(g, a)->name, graph_node(g, b)->name);
            ways++;
            follow(g, l, n, a, b);
            assert_int_equal(l[0].share < 1 ? 2 : n, way->hops);
            assert_float_equal(narrowest(l, n), way->bps, way->bps * 1e-9);
        }
    paths_free(p);
    return ways;
}

static void test_every_rack(void **state)
{
    static const char *const more[] = {"cpu:1", "cpu:8", "cpu:2x4", "cpu:3x2"};
    struct graph *g;
    struct err e = {0};
    const char *about;

    (void)state;
    for (int i = 0; rack_name(i, &about); i++) {
        if (strchr(rack_name(i, &about), ':'))
            continue;
        assert_int_equal(rack_build(rack_name(i, &about), 0, &g, &e), 0);
        assert_true(check_all(g) > 0);
        graph_free(g);
    }
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        assert_int_equal(rack_build(more[i], 0, &g, &e), 0);
        assert_true(i == 0 || check_all(g) > 0);
        graph_free(g);
    }
}

static void test_room(void **state)
{
    struct path_link l[4];
    struct graph *g;
    struct paths *p;
    struct err e = {0};
    const int *dev;

    (void)state;
    assert_int_equal(rack_build("cpu:2x2", 0, &g, &e), 0);
    assert_int_equal(paths_new(g, &p, &e), 0);
    assert_int_equal(graph_devices(g, &dev), 4);
    assert_int_equal(paths_links(p, dev[0], dev[3], l, 3), 0);
    assert_int_equal(paths_links(p, dev[0], dev[3], l, 4), 4);
    assert_true(l[0].bps > l[1].bps); /* the cut between hosts is the narrow one */
    paths_free(p);
    graph_free(g);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_every_rack),
    cmocka_unit_test(test_room),
};
TEST_MAIN("path_links", tests)

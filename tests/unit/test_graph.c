/* tests/unit/test_graph.c - building, checking, finding and comparing rack graphs. */
#include "tests/topo_help.h"

static struct node node(enum node_kind k, int parent, int host, const char *name)
{
    struct node n = {
        .kind = k, .parent = parent, .host = host, .numa = -1, .index = -1, .clique = -1};
    snprintf(n.name, sizeof(n.name), "%s", name);
    return n;
}

static int add(struct graph_builder *b, enum node_kind k, int parent, int host,
               const char *name)
{
    struct node n = node(k, parent, host, name);
    struct err e = {0};
    int id = graph_add_node(b, &n, &e);
    if (id < 0)
        fail_msg("%s", e.msg);
    return id;
}

static int join(struct graph_builder *b, int x, int y, enum link_kind k, int width,
                double bps)
{
    struct link l = {.a = x,
                     .b = y,
                     .kind = k,
                     .width = width,
                     .nominal = {bps, FROM_FILE, CONF_ASSUMED}};
    struct err e = {0};
    return graph_add_link(b, &l, &e);
}

/* One host, one NUMA node, GPUs at the given buses. */
static struct graph *small(const char *const *names, int n, int skip)
{
    struct graph_builder *b = graph_builder_new();
    struct graph *g;
    struct err e = {0};
    int h = add(b, NODE_HOST, -1, -1, "host0");
    int numa = add(b, NODE_NUMA, h, h, "numa0");
    for (int i = 0; i < n; i++) {
        if (i == skip)
            continue;
        struct node d = node(NODE_DEVICE, numa, h, names[i]);
        d.index = i;
        snprintf(d.model, sizeof(d.model), "NVIDIA H200");
        int id = graph_add_node(b, &d, &e);
        assert_true(id >= 0);
        assert_int_equal(join(b, numa, id, LINK_PCI, 16, 48e9), 0);
    }
    if (graph_build(b, "test", false, &g, &e) < 0)
        fail_msg("%s", e.msg);
    return g;
}

/* By number of the address, not by spelling or order of adding; cpu2 before cpu10. */
static void test_device_order(void **state)
{
    static const char *const pci[] = {"0000:9b:00.0", "10000:01:00.0", "0000:1b:00.0",
                                      "0000:1b:00.1"};
    static const char *const cpu[] = {"cpu10", "cpu2", "cpu1"};
    const int *dev;
    (void)state;

    struct graph *g = small(pci, 4, -1);
    assert_int_equal(graph_devices(g, &dev), 4);
    assert_string_equal(graph_node(g, dev[0])->name, "0000:1b:00.0");
    assert_string_equal(graph_node(g, dev[1])->name, "0000:1b:00.1");
    assert_string_equal(graph_node(g, dev[3])->name, "10000:01:00.0");
    graph_free(g);
    g = small(cpu, 3, -1);
    assert_int_equal(graph_devices(g, &dev), 3);
    assert_string_equal(graph_node(g, dev[0])->name, "cpu1");
    assert_string_equal(graph_node(g, dev[2])->name, "cpu10");
    assert_int_equal(graph_find(g, 0, "cpu2"), find_node(g, "cpu2"));
    assert_int_equal(graph_find(g, 0, "cpu3"), -1);
    graph_free(g);
}

static void test_refused_nodes(void **state)
{
    struct graph_builder *b = graph_builder_new();
    struct err e = {0};
    (void)state;

    int h = add(b, NODE_HOST, -1, -1, "host0");
    int numa = add(b, NODE_NUMA, h, h, "numa0");
    int dev = add(b, NODE_DEVICE, numa, h, "d0");
    struct node bad[] = {
        node(NODE_DEVICE, 7, h, "x"),    /* a parent that is not there yet: no cycles */
        node(NODE_DEVICE, -1, h, "x"),   /* none */
        node(NODE_NUMA, dev, h, "x"),    /* under a device */
        node(NODE_DEVICE, numa, 5, "x"), /* another host than its parent */
        node(NODE_HOST, h, h, "x"),      /* a host in a host */
        node(NODE_DEVICE, numa, h, ""),   node(NODE_DEVICE, numa, h, "a\nb"),
        node(NODE_KIND_COUNT, h, h, "x"),
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        e.msg[0] = '\0';
        if (graph_add_node(b, &bad[i], &e) != -1)
            fail_msg("node %zu was taken", i);
        assert_true(e.msg[0]);
    }
    struct node inf = node(NODE_DEVICE, numa, h, "x");
    inf.memory_bytes.v = 1.0 / 0.0;
    assert_int_equal(graph_add_node(b, &inf, &e), -1);
    inf = node(NODE_DEVICE, numa, h, "x");
    inf.index = -80;
    assert_int_equal(graph_add_node(b, &inf, &e), -1);
    memset(inf.model, 'x', sizeof(inf.model));
    assert_int_equal(graph_add_node(b, &inf, &e), -1);
    graph_builder_free(b);
}

static void test_refused_links(void **state)
{
    struct graph_builder *b = graph_builder_new();
    (void)state;

    int h = add(b, NODE_HOST, -1, -1, "host0");
    int numa = add(b, NODE_NUMA, h, h, "numa0");
    int d0 = add(b, NODE_DEVICE, numa, h, "d0"), d1 = add(b, NODE_DEVICE, numa, h, "d1");
    assert_int_equal(join(b, d0, d1, LINK_NVLINK, 4, 1e9), 0);
    assert_int_equal(join(b, d0, d0, LINK_NVLINK, 4, 1e9), -1);
    assert_int_equal(join(b, d0, 9, LINK_NVLINK, 4, 1e9), -1);
    assert_int_equal(join(b, -1, d0, LINK_NVLINK, 4, 1e9), -1);
    assert_int_equal(join(b, d0, numa, LINK_NVLINK, 4, 1e9), -1);
    assert_int_equal(join(b, d0, d1, LINK_PCI, 4, 1e9), -1);
    assert_int_equal(join(b, d0, h, LINK_PCI, 4, 1e9), -1); /* not its parent */
    assert_int_equal(join(b, d0, d1, LINK_NVLINK, -1, 1e9), -1);
    assert_int_equal(join(b, d0, d1, LINK_NVLINK, 4, -1), -1);
    assert_int_equal(join(b, d0, d1, LINK_NVLINK, 4, 0.0 / 0.0), -1);
    assert_int_equal(join(b, d0, d1, LINK_KIND_COUNT, 4, 1), -1);
    graph_builder_free(b);
}

static void test_names_unique(void **state)
{
    struct graph *g = NULL;
    struct err e = {0};
    (void)state;

    struct graph_builder *b = graph_builder_new();
    int h = add(b, NODE_HOST, -1, -1, "host0");
    add(b, NODE_NUMA, h, h, "numa0");
    add(b, NODE_NUMA, h, h, "numa0");
    assert_int_equal(graph_build(b, "t", false, &g, &e), -1);
    assert_null(g);
    assert_non_null(strstr(e.msg, "numa0"));

    b = graph_builder_new();
    add(b, NODE_HOST, -1, -1, "host0");
    add(b, NODE_HOST, -1, -1, "host0");
    assert_int_equal(graph_build(b, "t", false, &g, &e), -1);

    b = graph_builder_new();
    assert_int_equal(graph_build(b, "t", false, &g, &e), -1); /* no host */
}

/* Both ends report one link: the smaller figure counts, and it is told. */
static void test_ends_disagree(void **state)
{
    struct graph_builder *b = graph_builder_new();
    struct graph *g;
    struct err e = {0};
    const int *at;
    (void)state;

    int h = add(b, NODE_HOST, -1, -1, "host0"), numa = add(b, NODE_NUMA, h, h, "numa0");
    int d[3];
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof(name), "d%d", i);
        d[i] = add(b, NODE_DEVICE, numa, h, name);
    }
    join(b, d[0], d[1], LINK_NVLINK, 4, 100e9);
    join(b, d[1], d[0], LINK_NVLINK, 3, 75e9);
    join(b, d[1], d[2], LINK_NVLINK, 4, 100e9);
    join(b, d[2], d[1], LINK_NVLINK, 4, 100e9);
    assert_int_equal(graph_build(b, "t", false, &g, &e), 0);
    assert_int_equal(graph_n_links(g), 2);
    const struct link *l = graph_link_between(g, d[1], d[0], LINK_NVLINK);
    assert_int_equal(l->width, 3);
    assert_float_equal(l->nominal.v, 75e9, 1);
    assert_int_equal(graph_n_warnings(g), 1);
    assert_true(has_warning(g, "the smaller counts"));
    assert_int_equal(graph_links_at(g, d[1], &at), 2);
    assert_int_equal(graph_links_at(g, h, &at), 0);
    graph_free(g);
}

struct seen {
    int added, lost, changed;
    char last[512];
};

static void note(void *arg, enum graph_change c, const char *what)
{
    struct seen *s = arg;
    *(c == GRAPH_ADDED ? &s->added : c == GRAPH_LOST ? &s->lost : &s->changed) += 1;
    snprintf(s->last, sizeof(s->last), "%s", what);
}

/* A lost device is one line: its links go without saying, and no other one changes. */
static void test_diff(void **state)
{
    static const char *const names[] = {"0000:1b:00.0", "0000:2b:00.0", "0000:3b:00.0"};
    struct graph *full = small(names, 3, -1), *less = small(names, 3, 1);
    struct seen s = {0};
    (void)state;

    assert_int_equal(graph_diff(full, full, note, &s), 0);
    assert_int_equal(graph_diff(full, less, note, &s), 1);
    assert_int_equal(s.lost, 1);
    assert_string_equal(s.last, "lost device 0000:2b:00.0 (GPU 1, NVIDIA H200)");
    assert_int_equal(graph_diff(less, full, note, &s), 1);
    assert_int_equal(s.added, 1);
    assert_int_equal(graph_diff(less, full, NULL, NULL), 1);
    graph_free(full);
    graph_free(less);
}

/* Ten thousand faults do not make ten thousand lines. */
static void test_warnings_bounded(void **state)
{
    struct graph_builder *b = graph_builder_new();
    struct graph *g;
    struct err e = {0};
    (void)state;

    add(b, NODE_HOST, -1, -1, "host0");
    for (int i = 0; i < 10000; i++)
        graph_warn(b, "fault %d", i);
    assert_int_equal(graph_build(b, "t", false, &g, &e), 0);
    assert_int_equal(graph_n_warnings(g), 201);
    assert_string_equal(graph_warning(g, 200),
                        "9800 more warnings of this kind are left out");
    graph_free(g);
}

static void test_pci_parse(void **state)
{
    static const char *const bad[] = {"",
                                      "0000:1b:00",
                                      "1b:00.0",
                                      "0000:1b:00.0x",
                                      " 000:1b:00.0",
                                      "0000:1b:00.g",
                                      "-0:1b:00.0",
                                      "123456789:1b:00.0"};
    uint64_t a, b;
    (void)state;

    assert_true(pci_parse("00000000:1B:00.0", &a));
    assert_true(pci_parse("0000:1b:00.0", &b));
    assert_true(a == b);
    assert_true(pci_parse("10000:01:00.0", &b));
    assert_true(a != b);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (pci_parse(bad[i], &a))
            fail_msg("'%s' was taken", bad[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_order),     cmocka_unit_test(test_refused_nodes),
        cmocka_unit_test(test_refused_links),    cmocka_unit_test(test_names_unique),
        cmocka_unit_test(test_ends_disagree),    cmocka_unit_test(test_diff),
        cmocka_unit_test(test_warnings_bounded), cmocka_unit_test(test_pci_parse),
    };
    return test_main(argc, argv, "graph", tests, sizeof(tests) / sizeof(tests[0]));
}

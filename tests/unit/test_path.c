/* tests/unit/test_path.c - every path class, bottlenecks, groups, on small racks in JSON.
 */
#include "tests/topo_help.h"

/* Nodes in short form; links follow. */
#define RACK(nodes, links)                                                               \
    "{\"format\":\"llmrack-rack\",\"version\":1,\"nodes\":[" nodes "],\"links\":[" links \
    "]}"
#define N(kind, name, parent)                                                            \
    "{\"kind\":\"" kind "\",\"name\":\"" name "\",\"parent\":" parent "}"
#define TOP(kind, name) "{\"kind\":\"" kind "\",\"name\":\"" name "\"}"
#define L(kind, a, b, gbps)                                                              \
    "{\"kind\":\"" kind "\",\"a\":" a ",\"b\":" b ",\"nominal\":{\"v\":" gbps            \
    "e9,\"from\":\"file\",\"conf\":\"assumed\"}}"
#define M(kind, a, b, gbps)                                                              \
    "{\"kind\":\"" kind "\",\"a\":" a ",\"b\":" b                                        \
    ",\"nominal\":{\"v\":1e12},\"measured\":"                                            \
    "{\"v\":" gbps "e9,\"from\":\"probe\",\"conf\":\"measured\"}}"

static struct paths *paths_of(const struct graph *g)
{
    struct paths *p;
    struct err e = {0};
    if (paths_new(g, &p, &e) < 0)
        fail_msg("%s", e.msg);
    return p;
}

static void expect(const struct graph *g, const struct paths *p, const char *a,
                   const char *b, enum path_class c, double gbps, int hops)
{
    const struct path *x = paths_get(p, find_node(g, a), find_node(g, b));
    const struct path *y = paths_get(p, find_node(g, b), find_node(g, a));
    if (x->cls != c || x->bps / 1e9 < gbps - 0.01 || x->bps / 1e9 > gbps + 0.01 ||
        x->hops != hops)
        fail_msg("%s to %s: %s %.2f GB/s in %d hops, expected %s %.2f in %d", a, b,
                 path_class_name(x->cls), x->bps / 1e9, x->hops, path_class_name(c), gbps,
                 hops);
    assert_int_equal(x->cls, y->cls);
    assert_float_equal(x->bps, y->bps, 1);
}

/*  host: numa A (bridge: switch1(d0, d1, switch2(d2)), d3), (bridge: d4); numa B (d5) */
static void test_pci_classes(void **state)
{
    struct graph *g = load_text(RACK(
        TOP("host", "h") "," N("numa", "A", "0") "," N("numa", "B", "0") "," N("bridge", "b1", "1") "," N(
            "bridge", "b2",
            "1") "," N("switch", "s1",
                       "3") "," N("switch", "s2",
                                  "5") "," N("device", "d0",
                                             "5") "," N("device", "d1",
                                                        "5") "," N("device", "d2",
                                                                   "6") "," N("device",
                                                                              "d3",
                                                                              "3") "," N("device",
                                                                                         "d4",
                                                                                         "4") "," N("device",
                                                                                                    "d5",
                                                                                                    "2"),
        L("pci", "3", "5", "24") "," L("pci", "5", "6", "12") "," L(
            "pci", "5", "7",
            "48") "," L("pci", "5", "8",
                        "48") "," L("pci", "6", "9",
                                    "48") "," L("pci", "3", "10",
                                                "36") "," L("pci", "4", "11",
                                                            "6") "," L("pci", "2", "12",
                                                                       "48") "," L("socke"
                                                                                   "t",
                                                                                   "1",
                                                                                   "2",
                                                                                   "1"
                                                                                   "0")));
    struct paths *p = paths_of(g);
    (void)state;

    expect(g, p, "d0", "d0", PATH_LOC, 0, 0);
    expect(g, p, "d0", "d1", PATH_PIX, 48, 2);
    expect(g, p, "d0", "d2", PATH_PXB, 12, 3);
    expect(g, p, "d0", "d3", PATH_PHB, 24, 3);
    expect(g, p, "d0", "d4", PATH_NODE, 6, 3);
    expect(g, p, "d0", "d5", PATH_SYS, 10, 4);
    assert_null(paths_get(p, 0, find_node(g, "d0"))); /* a host is no end */
    assert_null(paths_get(p, -1, 99));

    int dev[3] = {find_node(g, "d0"), find_node(g, "d1"), find_node(g, "d4")};
    struct path x;
    paths_ring(p, dev, 2, &x);
    assert_int_equal(x.cls, PATH_PIX);
    paths_all(p, dev, 3, &x);
    assert_int_equal(x.cls, PATH_NODE);
    assert_float_equal(x.bps, 6e9, 1);
    paths_ring(p, dev, 1, &x);
    assert_int_equal(x.cls, PATH_LOC);
    paths_free(p);
    graph_free(g);
}

/* Ring order matters, all-to-all does not: d0-d1-d2-d3 linked in a ring, not across. */
static void test_nvlink_ring(void **state)
{
    struct graph *g = load_text(RACK(
        TOP("host", "h") "," N("numa", "A", "0") "," N("device", "d0", "1") "," N(
            "device", "d1", "1") "," N("device", "d2", "1") "," N("device", "d3",
                                                                  "1") "," N("device",
                                                                             "d4", "1"),
        L("nvlink", "2", "3", "50") "," L("nvlink", "3", "4", "40") "," L(
            "nvlink", "4", "5",
            "50") "," L("nvlink", "2", "5",
                        "30") "," L("pci", "1", "6", "12") "," L("pci", "1", "2", "12")));
    struct paths *p = paths_of(g);
    int ring[4] = {2, 3, 4, 5}, cross[4] = {2, 4, 3, 5};
    struct path x;
    (void)state;

    expect(g, p, "d0", "d1", PATH_NVL, 50, 1);
    expect(g, p, "d0", "d2", PATH_NVB, 40, 2); /* by d1; by d3 it would be 30 */
    expect(g, p, "d0", "d4", PATH_PHB, 12, 2);
    paths_ring(p, ring, 4, &x);
    assert_int_equal(x.cls, PATH_NVL);
    assert_float_equal(x.bps, 30e9, 1);
    paths_ring(p, cross, 4, &x);
    assert_int_equal(x.cls, PATH_NVB);
    paths_all(p, ring, 4, &x);
    assert_int_equal(x.cls, PATH_NVB);
    paths_free(p);
    graph_free(g);
}

/* Several switches add up; a lost link to one of them narrows its pairs only. */
static void test_switches_add_up(void **state)
{
    struct graph *g = load_text(
        RACK(TOP("host", "h") "," N("numa", "A", "0") "," N("nvswitch", "w0", "0") "," N(
                 "nvswitch", "w1", "0") "," N("device", "d0",
                                              "1") "," N("device", "d1",
                                                         "1") "," N("device", "d2", "1"),
             L("nvlink", "2", "4", "100") "," L("nvlink", "3", "4", "100") "," L(
                 "nvlink", "2", "5", "100") "," L("nvlink", "3", "5",
                                                  "100") "," L("nvlink", "2", "6",
                                                               "100") "," L("nvlink", "3",
                                                                            "6", "75")));
    struct paths *p = paths_of(g);
    (void)state;

    expect(g, p, "d0", "d1", PATH_NVL, 200, 2);
    expect(g, p, "d0", "d2", PATH_NVL, 175, 2);
    paths_free(p);
    graph_free(g);
}

static void test_c2c(void **state)
{
    struct graph *g = load_text(RACK(
        TOP("host", "h") "," N("numa", "A", "0") "," N("numa", "B", "0") "," N(
            "switch", "s",
            "1") "," N("device", "d0",
                       "3") "," N("device", "d1",
                                  "1") "," N("nic", "n0", "1") "," N("device", "d2", "2"),
        L("pci", "1", "3", "1.5") "," L("pci", "3", "4", "96") "," L(
            "c2c", "1", "4", "220") "," L("c2c", "1", "5",
                                          "200") "," L("pci", "1", "6",
                                                       "48") "," L("c2c", "2", "7",
                                                                   "220") "," L("socket",
                                                                                "1", "2",
                                                                                "60")));
    struct paths *p = paths_of(g);
    (void)state;

    expect(g, p, "d0", "d1", PATH_C2C, 200, 2);
    expect(g, p, "d0", "n0", PATH_PHB, 48, 2); /* not by the 1.5 GB/s port */
    expect(g, p, "d0", "d2", PATH_SYS, 60, 3);
    paths_free(p);
    graph_free(g);
}

/* Two hosts: by the nearest NIC; ports of one card add up to what its slot lets through.
 */
static void test_network(void **state)
{
    static const char text[] = RACK(
        TOP("network", "net") "," TOP("host", "h0") "," TOP("host", "h1") "," N("numa", "A", "1") "," N(
            "numa", "A",
            "2") "," N("switch", "s",
                       "3") "," N("device", "d0",
                                  "5") ","
                                       "{\"kind\":\"nic\",\"name\":\"near\",\"parent\":5,"
                                       "\"pci\":\"0000:01:00.0\","
                                       "\"port_guid\":\"0x1\"},"
                                       "{\"kind\":\"nic\",\"name\":\"near2\",\"parent\":"
                                       "5,\"pci\":\"0000:01:00.0\","
                                       "\"port_guid\":\"0x1\"}," N("nic", "far", "3") "," N(
                                           "device", "d1",
                                           "4") "," N("nic", "peer",
                                                      "4") "," TOP("host",
                                                                   "h2") "," N("numa",
                                                                               "A",
                                                                               "12") "," N("device",
                                                                                           "d2",
                                                                                           "13"),
        L("pci", "5", "6", "48") "," L("pci", "5", "7", "48") "," L("pci", "5", "8", "48") "," L(
            "pci", "3",
            "5",
            "48") "," L("pci", "3", "9",
                        "48") "," L("pci", "4", "10",
                                    "96") "," L("pci", "4", "11",
                                                "96") "," L("net", "0", "7",
                                                            "22.5") "," L("net", "0", "8",
                                                                          "22.5") "," L("net",
                                                                                        "0",
                                                                                        "9",
                                                                                        "90") "," L("net",
                                                                                                    "0",
                                                                                                    "11",
                                                                                                    "90"));
    struct graph *g = load_text(text);
    struct paths *p = paths_of(g);
    (void)state;

    expect(g, p, "d0", "d1", PATH_NET, 45, 6);
    expect(g, p, "d0", "d2", PATH_DIS, 0, 0);
    expect(g, p, "near", "peer", PATH_NET, 45, 2);
    expect(g, p, "d1", "far", PATH_NET, 90, 4);
    paths_free(p);
    graph_free(g);
}

static void test_measured_wins(void **state)
{
    struct graph *g = load_text(
        RACK(TOP("host", "h") "," N("numa", "A", "0") "," N("device", "d0", "1") "," N(
                 "device", "d1", "1") "," N("device", "d2", "1"),
             M("memory", "1", "2", "7") "," M("memory", "1", "3",
                                              "5") "," L("memory", "1", "4", "9")));
    struct paths *p = paths_of(g);
    (void)state;

    expect(g, p, "d0", "d1", PATH_PHB, 5, 2);
    assert_true(paths_get(p, 2, 3)->measured);
    expect(g, p, "d0", "d2", PATH_PHB, 7, 2);
    assert_false(paths_get(p, 2, 4)->measured);
    paths_free(p);
    graph_free(g);
}

/* Slices have no peer-to-peer path, not even within their GPU. */
static void test_mig(void **state)
{
    struct graph *g = load_text(
        RACK(TOP("host", "h") "," N("numa", "A", "0") "," N(
                 "device", "g0",
                 "1") ","
                      "{\"kind\":\"device\",\"name\":\"m0\",\"parent\":2,\"mig\":true},"
                      "{\"kind\":\"device\",\"name\":\"m1\",\"parent\":2,\"mig\":true}",
             L("pci", "1", "2", "48")));
    struct paths *p = paths_of(g);
    const int *dev;
    (void)state;

    assert_int_equal(graph_devices(g, &dev), 2);
    assert_int_equal(paths_get(p, 3, 4)->cls, PATH_PHB);
    assert_int_equal(paths_get(p, 3, 3)->cls, PATH_LOC);
    assert_null(paths_get(p, 2, 3));
    paths_free(p);
    graph_free(g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pci_classes),
        cmocka_unit_test(test_nvlink_ring),
        cmocka_unit_test(test_switches_add_up),
        cmocka_unit_test(test_c2c),
        cmocka_unit_test(test_network),
        cmocka_unit_test(test_measured_wins),
        cmocka_unit_test(test_mig),
    };
    return test_main(argc, argv, "path", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/unit/test_hwloc.c - a machine as hwloc 2 records it: places, switches, speeds. */
#include "tests/topo_help.h"

#define HEAD                                                                             \
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"                                       \
    "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n"
#define MACHINE(body)                                                                    \
    HEAD "<object type='Machine' os_index='0' cpuset='0x000000ff' nodeset='0x00000003'>" \
         "<info name='HostName' value='rack-7'/><info name='Architecture' "              \
         "value='x86_64'/>" body "</object></topology>"
#define CPU_INFO                                                                         \
    "<info name='CPUVendor' value='GenuineIntel'/><info name='CPUFamilyNumber' "         \
    "value='6'/>"                                                                        \
    "<info name='CPUModelNumber' value='207'/>"
#define NUMA(n, set, node)                                                               \
    "<object type='NUMANode' os_index='" n "' cpuset='" set "' nodeset='" node           \
    "' local_memory='1000000000'><page_type size='4096' count='1'/></object>"
#define SOCKET(n, set, node, body)                                                       \
    "<object type='Package' os_index='" n "' cpuset='" set "' nodeset='" node            \
    "'>" CPU_INFO                                                                        \
    NUMA(n, set, node) body "</object>"
#define HOSTBRIDGE(body)                                                                 \
    "<object type='Bridge' bridge_type='0-1' depth='0' bridge_pci='0000:[00-ff]'>" body  \
    "</object>"
#define PORT(bus, speed, body)                                                           \
    "<object type='Bridge' bridge_type='1-1' pci_busid='" bus                            \
    "' pci_type='0604 [8086:352a] [0000:0000] 04' pci_link_speed='" speed "'>" body      \
    "</object>"
#define DEV(bus, type, speed, body)                                                      \
    "<object type='PCIDev' pci_busid='" bus "' pci_type='" type                          \
    " [0000:0000] a1' pci_link_speed='" speed "'>" body "</object>"
#define OS(name, type) "<object type='OSDev' name='" name "' osdev_type='" type "'/>"

/* Socket 0: root port - switch (upstream; downstream to GPU, downstream to NIC);
 * socket 1: root port - GPU at idle speed. */
static const char two_sockets[] = MACHINE(
    SOCKET("0", "0x0000000f", "0x00000001",
           HOSTBRIDGE(PORT("0000:10:01.0", "63.0",
                           PORT("0000:11:00.0", "63.0",
                                PORT("0000:12:00.0", "63.0",
                                     DEV("0000:13:00.0", "0302 [10de:2335]", "63.0", ""))
                                    PORT("0000:12:01.0", "63.0",
                                         DEV("0000:14:00.0", "0207 [15b3:1021]", "63.0",
                                             OS("ib0", "2") OS("mlx5_0", "3")))))))
        SOCKET("1", "0x000000f0", "0x00000002",
               HOSTBRIDGE(PORT("0000:80:01.0", "3.9",
                               DEV("0000:81:00.0", "0302 [10de:2335]", "3.9", ""))
                              DEV("0000:80:02.0", "0300 [1a03:2000]", "0.0", "")
                                  DEV("0000:82:00.0", "0680 [10de:22a3]", "0.0", ""))));

static void test_machine(void **state)
{
    struct graph *g = load_text(two_sockets);
    struct paths *p;
    struct err e = {0};
    const int *dev;
    (void)state;

    tell_warnings(g);
    assert_int_equal(graph_devices(g, &dev), 2);
    assert_int_equal(graph_count(g, NODE_SWITCH), 1); /* ports are none */
    assert_int_equal(graph_count(g, NODE_NIC), 1);
    assert_int_equal(graph_count(g, NODE_NUMA), 2);
    assert_int_equal(graph_count(g, NODE_NVSWITCH), 1);
    assert_string_equal(graph_node(g, 0)->name, "rack-7");
    const struct node *d = graph_node(g, dev[0]);
    assert_string_equal(d->model, "NVIDIA H200");
    assert_int_equal(d->numa, 0);
    assert_int_equal(graph_node(g, dev[1])->numa, 1);
    const struct node *numa = graph_node(g, find_node(g, "numa1"));
    assert_string_equal(numa->cpus, "4-7");
    assert_string_equal(numa->model, "x86_64 GenuineIntel 6 207");
    assert_float_equal(numa->memory_bytes.v, 1e9, 1);
    assert_int_equal(paths_new(g, &p, &e), 0);
    assert_int_equal(paths_get(p, dev[0], find_node(g, "mlx5_0"))->cls, PATH_PIX);
    assert_int_equal(paths_get(p, dev[0], dev[1])->cls, PATH_SYS);
    assert_float_equal(paths_get(p, dev[0], dev[1])->bps / 1e9, 40, 0.1);
    /* recorded at idle: the table's speed, and it is told */
    const struct link *l =
        graph_link_between(g, dev[1], graph_node(g, dev[1])->parent, LINK_PCI);
    assert_float_equal(l->nominal.v / 1e9, 48, 0.1);
    assert_true(has_warning(g, "idle when recorded"));
    assert_true(has_warning(g, "no NVLinks"));
    paths_free(p);
    graph_free(g);
}

static void test_completed(void **state)
{
    struct graph *g = NULL;
    struct paths *p;
    struct err e = {0};
    const int *dev;
    (void)state;

    assert_int_equal(topo_load(two_sockets, strlen(two_sockets), "t", "H200", &g, &e), 0);
    assert_int_equal(graph_devices(g, &dev), 2);
    assert_int_equal(paths_new(g, &p, &e), 0);
    assert_int_equal(paths_get(p, dev[0], dev[1])->cls, PATH_NVL);
    assert_true(has_warning(g, "are assumed for all 2 GPUs"));
    paths_free(p);
    graph_free(g);
}

/* Above several NUMA nodes nothing says which: unknown, not 0. */
static void test_place_unknown(void **state)
{
    struct graph *g = load_text(
        MACHINE(SOCKET("0", "0x0000000f", "0x00000001", "")
                    SOCKET("1", "0x000000f0", "0x00000002", "")
                        HOSTBRIDGE(DEV("0000:81:00.0", "0302 [10de:2335]", "0.0", ""))));
    const int *dev;
    (void)state;
    assert_int_equal(graph_devices(g, &dev), 1);
    assert_int_equal(graph_node(g, dev[0])->numa, -1);
    graph_free(g);
}

static void test_clear_errors(void **state)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"<topology version='1.0'/>", "hwloc XML of version '1.0', only 2"},
        {MACHINE(""), "no NVIDIA GPU in this hwloc XML"},
        {MACHINE(HOSTBRIDGE(DEV("x", "0302 [10de:2335]", "0", ""))),
         "is not a PCI address"},
        {MACHINE(HOSTBRIDGE(DEV("0000:81:00.0", "zz", "0", ""))), "is not CLASS"},
        {MACHINE(NUMA("0", "0xf", "0x1") NUMA("0", "0xf", "0x1")
                     HOSTBRIDGE(DEV("0000:81:00.0", "0302 [10de:2335]", "0", ""))),
         "called 'numa0'"},
        {MACHINE(NUMA("-1", "0xf", "0x1")), "not within 0"},
        {"<!DOCTYPE topology [<!ENTITY a 'b'>]><topology version='2.0'>&a;</topology>",
         "is refused"},
        {"<!DOCTYPE other SYSTEM 'x'><topology version='2.0'/>", "is refused"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refuse_text(bad[i].text, bad[i].part);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_completed),
        cmocka_unit_test(test_place_unknown),
        cmocka_unit_test(test_clear_errors),
    };
    return test_main(argc, argv, "hwloc", tests, sizeof(tests) / sizeof(tests[0]));
}

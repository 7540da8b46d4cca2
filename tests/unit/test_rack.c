/* tests/unit/test_rack.c - the built-in racks, their facts and their paths. */
#include "tests/test.h"

#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "topo/facts.h"
#include "topo/file.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/rack.h"

static void load(const char *name, struct graph **g, struct paths **p)
{
    struct err e = {0};

    if (rack_build(name, 0, g, &e) < 0)
        fail_msg("%s: %s", name, e.msg);
    assert_int_equal(paths_new(*g, p, &e), 0);
    assert_true(graph_emulated(*g));
    assert_string_equal(graph_source(*g), name);
    assert_int_equal(graph_n_warnings(*g), 0);
}

struct want {
    const char *name;
    int hosts, gpus, nvs, nics, switches;
    enum path_class near, far; /* device 0 to 1, device 0 to the last */
    double near_gbps, far_gbps;
    enum path_class nic; /* device 0 to the first NIC */
};

static void test_each(void **state)
{
    static const struct want w[] = {
        {"dgx-a100", 1, 8, 6, 8, 4, PATH_NVL, PATH_NVL, 300, 300, PATH_PIX},
        {"dgx-h100", 1, 8, 4, 8, 8, PATH_NVL, PATH_NVL, 450, 450, PATH_PIX},
        {"hgx-h200", 1, 8, 4, 8, 8, PATH_NVL, PATH_NVL, 450, 450, PATH_PIX},
        {"hgx-b200", 1, 8, 2, 8, 4, PATH_NVL, PATH_NVL, 900, 900, PATH_PIX},
        {"gb200-nvl72", 18, 72, 18, 72, 0, PATH_NVL, PATH_NVL, 900, 900, PATH_PHB},
        {"gb300-nvl72", 18, 72, 18, 72, 72, PATH_NVL, PATH_NVL, 900, 900, PATH_PIX},
        {"2x-hgx-h200-ib", 2, 16, 8, 16, 16, PATH_NVL, PATH_NET, 450, 48, PATH_PIX},
        {"2x-hgx-h200-eth", 2, 16, 8, 4, 16, PATH_NVL, PATH_NET, 450, 12.5, PATH_PHB},
        {"cpu:4", 1, 4, 0, 0, 0, PATH_NODE, PATH_NODE, 10, 10, PATH_DIS},
        {"cpu:2x3", 2, 6, 0, 0, 0, PATH_NODE, PATH_NET, 10, 1.25, PATH_DIS},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(w) / sizeof(w[0]); i++) {
        struct graph *g;
        struct paths *p;
        const int *dev;
        load(w[i].name, &g, &p);
        int n = graph_devices(g, &dev);
        print_message("%s: %d devices\n", w[i].name, n);
        assert_int_equal(n, w[i].gpus);
        assert_int_equal(graph_count(g, NODE_HOST), w[i].hosts);
        assert_int_equal(graph_count(g, NODE_NVSWITCH), w[i].nvs);
        assert_int_equal(graph_count(g, NODE_NIC), w[i].nics);
        assert_int_equal(graph_count(g, NODE_SWITCH), w[i].switches);
        const struct path *a = paths_get(p, dev[0], dev[1]);
        const struct path *z = paths_get(p, dev[0], dev[n - 1]);
        assert_int_equal(a->cls, w[i].near);
        assert_int_equal(z->cls, w[i].far);
        assert_float_equal(a->bps / 1e9, w[i].near_gbps, 0.01);
        assert_float_equal(z->bps / 1e9, w[i].far_gbps, 0.01);
        for (int k = 0; k < graph_n_nodes(g) && w[i].nics; k++)
            if (graph_node(g, k)->kind == NODE_NIC) {
                assert_int_equal(paths_get(p, dev[0], k)->cls, w[i].nic);
                break;
            }
        paths_free(p);
        graph_free(g);
    }
}

/* The NVL72 racks: bounded work; the time is only told. */
static void test_72_gpus(void **state)
{
    struct graph *g;
    struct paths *p;
    struct timespec a, b;
    struct err e = {0};
    (void)state;

    assert_int_equal(rack_build("gb300-nvl72", 0, &g, &e), 0);
    clock_gettime(CLOCK_MONOTONIC, &a);
    assert_int_equal(paths_new(g, &p, &e), 0);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double ms = (b.tv_sec - a.tv_sec) * 1e3 + (b.tv_nsec - a.tv_nsec) / 1e6;
    print_message("72 GPUs, 72 NICs, 18 NVSwitches: %.2f ms, %llu steps\n", ms,
                  (unsigned long long)paths_work(p));
    /* 144 ends: pairs x (18 links twice + a few levels) */
    assert_true(paths_work(p) < 144ull * 145 / 2 * 60);

    const int *dev;
    int n = graph_devices(g, &dev);
    struct path ring, all;
    paths_ring(p, dev, n, &ring);
    paths_all(p, dev, n, &all);
    assert_int_equal(ring.cls, PATH_NVL);
    assert_int_equal(all.cls, PATH_NVL);
    assert_float_equal(all.bps, 900e9, 1);
    paths_free(p);
    graph_free(g);
}

static void test_memory_of_cpu_devices(void **state)
{
    struct graph *g;
    struct err e = {0};
    const int *dev;
    (void)state;

    assert_int_equal(rack_build("cpu:2x2", 8e9, &g, &e), 0);
    assert_int_equal(graph_devices(g, &dev), 4);
    assert_float_equal(graph_node(g, dev[3])->memory_bytes.v, 2e9, 1);
    assert_string_equal(graph_node(g, dev[3])->name, "cpu3");
    graph_free(g);
}

static void test_refused(void **state)
{
    static const char *const bad[] = {"cpu:0", "cpu:-1", "cpu:2x",    "cpu:x2",
                                      "cpu:",  "cpu:4k", "cpu:99999", "cpu:33x33",
                                      "dgx",   ""};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct graph *g = NULL;
        struct err e = {0};
        assert_int_equal(rack_build(bad[i], 0, &g, &e), -1);
        assert_null(g);
        assert_true(e.msg[0]);
    }
}

static void test_names(void **state)
{
    const char *about;
    int n = 0;
    (void)state;

    for (; rack_name(n, &about); n++) {
        assert_true(rack_is_builtin(rack_name(n, NULL)));
        assert_true(about[0]);
    }
    assert_int_equal(n, 8);
    assert_true(rack_is_builtin("cpu:3"));
    assert_false(rack_is_builtin("rack.json"));
}

static void test_facts(void **state)
{
    (void)state;
    assert_string_equal(facts_gpu("NVIDIA H200")->name, "H200");
    assert_string_equal(facts_gpu("NVIDIA GB200")->name, "GB200");
    assert_string_equal(facts_gpu("nvidia h100 80gb hbm3")->name, "H100");
    assert_string_equal(facts_gpu("NVIDIA H100 PCIe")->name, "H100 PCIe");
    assert_string_equal(facts_gpu("Tesla V100-SXM2-32GB")->name, "V100-SXM2-32GB");
    assert_string_equal(facts_gpu("NVIDIA A100-SXM4-80GB")->name, "A100-SXM4-80GB");
    assert_null(facts_gpu("Voodoo 3"));
    assert_null(facts_gpu(""));
    assert_string_equal(facts_gpu_by_pci(0x2335)->name, "H200");
    assert_null(facts_gpu_by_pci(0));
    for (int i = 0; facts_gpu_at(i); i++)
        assert_ptr_equal(facts_gpu(facts_gpu_at(i)->name), facts_gpu_at(i));
    /* NCCL's arithmetic: Gen3 x16 12, Gen5 x16 48, Gen4 x1 1.5 GB/s */
    assert_float_equal(facts_pcie_bps(3, 16), 12e9, 1);
    assert_float_equal(facts_pcie_bps(5, 16), 48e9, 1);
    assert_float_equal(facts_pcie_bps(4, 1), 1.5e9, 1);
    assert_int_equal(facts_pcie_gen(32), 5);
    assert_int_equal(facts_pcie_gen(31), 0);
}

static void tell(void *arg, enum graph_change c, const char *what)
{
    (void)arg;
    (void)c;
    print_message("# %s\n", what);
}

/* The sample file is the built-in rack, recorded: `llmctl topology record`, one node or
 * link a line. */
static void test_sample(void **state)
{
    struct graph *file, *built;
    struct err e = {0};
    struct buf b;
    FILE *f = fopen("etc/rack-8gpu.json", "r");
    char part[4096];
    size_t n;

    (void)state;
    assert_non_null(f);
    buf_init(&b, 0);
    while ((n = fread(part, 1, sizeof(part), f)) > 0)
        buf_add(&b, part, n);
    fclose(f);
    if (topo_load(b.p, b.len, "rack-8gpu.json", NULL, &file, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(rack_build("hgx-h200", 0, &built, &e), 0);
    assert_int_equal(graph_diff(built, file, tell, NULL), 0);
    assert_int_equal(graph_n_nodes(built), graph_n_nodes(file));
    assert_int_equal(graph_n_links(built), graph_n_links(file));
    assert_true(graph_emulated(file));
    graph_free(file);
    graph_free(built);
    buf_done(&b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each),
        cmocka_unit_test(test_72_gpus),
        cmocka_unit_test(test_memory_of_cpu_devices),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_sample),
    };
    return test_main(argc, argv, "rack", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/unit/test_topo_files.c - every recorded rack loads and gives what its README
 * states, or is refused as stated; and goes round through JSON, and XML where it can. */
#include "tests/topo_help.h"

#include "base/mem.h"
#include "topo/rack.h"

struct want {
    const char *file;
    int nvlinks; /* widths of all NVLink edges together */
    int hosts, devices, nvswitches, nics, switches, numas;
    enum path_class a01, last; /* device 0 to 1; to the last */
    enum path_class nic;       /* device 0 to the nearest NIC, DIS = no NIC */
    double gbps;               /* device 0 to 1, 0 = not asked */
    const char *warns;
    bool xml;
};

#define NVL PATH_NVL
#define NVB PATH_NVB
#define PIX PATH_PIX
#define PXB PATH_PXB
#define PHB PATH_PHB
#define NOD PATH_NODE
#define SYS PATH_SYS
#define DIS PATH_DIS

static const struct want wants[] = {
    {"nccl-hgx-h200-8gpu-4nvs.xml", 144, 1, 8, 4, 1, 8, 2, NVL, NVL, SYS, 450,
     "stands under 2 CPUs", true},
    {"nccl-hgx-b200-8gpu-hidden-nvs.xml", 144, 1, 8, 1, 1, 4, 2, NVL, NVL, SYS, 900,
     "stands under 2 CPUs", true},
    {"nccl-a100x4-nv4-mesh-4nic.xml", 24, 1, 4, 0, 4, 0, 4, NVL, NVL, PHB, 100, NULL,
     true},
    {"nccl-gb300-nvl72-1tray-4gpu.xml", 72, 1, 4, 1, 1, 8, 2, NVL, NVL, SYS, 900, NULL,
     true},
    {"nccl-gb300-nvl72-2tray-8gpu.xml", 144, 2, 8, 1, 2, 16, 4, NVL, NVL, SYS, 900,
     "one NVLink domain is assumed", true},
    {"nccl-oci-bm-h100-8gpu-16port.xml", 144, 1, 8, 4, 16, 8, 2, NVL, NVL, PIX, 450,
     "upstream port of switch", true},
    {"inject-oci-a100-b4-4numa.xml", 0, 1, 8, 0, 8, 4, 4, PIX, SYS, PIX, 24,
     "no <gpu> in the file", true},
    {"inject-azure-ndv5-h100.xml", 0, 1, 8, 0, 8, 8, 2, PHB, SYS, PIX, 48,
     "no <gpu> in the file", true},
    {"inject-azure-ndv2-v100.xml", 0, 1, 8, 0, 1, 0, 2, PHB, SYS, PHB, 24,
     "no <gpu> in the file", true},
    {"inject-aws-p4d-a100.xml", 0, 1, 8, 0, 4, 4, 2, PIX, SYS, PIX, 12,
     "no <gpu> in the file", true},
    {"smi-hgx-h200-8gpu-8nic.txt", 144, 1, 8, 1, 8, 8, 2, NVL, NVL, PIX, 450,
     "no PCI addresses", false},
    {"smi-a100x4-nv4-mesh.txt", 24, 1, 4, 0, 0, 0, 4, NVL, NVL, DIS, 100, NULL, false},
    {"topo-m-gb200-4gpu-6nic-ansi.txt", 72, 1, 4, 1, 6, 0, 3, NVL, NVL, SYS, 0,
     "NIC0 reads NODE to GPUs of different NUMA", false},
    {"topo-m-dgx-a100-8gpu-10nic.txt", 96, 1, 8, 1, 10, 21, 5, NVL, NVL, PXB, 0, NULL,
     false},
    {"topo-m-v100-cube-mesh-8gpu-2nic.txt", 24, 1, 8, 0, 2, 2, 2, NVL, NVL, NOD, 0, NULL,
     false},
    {"topo-m-p40-8gpu-pix-pxb-soc.txt", 0, 1, 8, 0, 1, 3, 2, PIX, PXB, SYS, 12, NULL,
     false},
    {"topo-m-pcie-6gpu-pix-node-sys-ansi.txt", 0, 1, 6, 0, 0, 3, 2, PIX, SYS, DIS, 12,
     NULL, false},
    {"topo-m-h100x4-nv6-cpulists.txt", 36, 1, 4, 0, 4, 4, 4, NVL, NVL, PIX, 0, NULL,
     false},
    {"topo-m-3gpu-one-unbridged.txt", 4, 1, 3, 0, 2, 1, 1, NVL, NOD, NOD, 0, NULL, false},
    {"topo-m-4gpu-pxb-pix-asym-nolegend.txt", 0, 1, 4, 0, 0, 4, 2, PXB, SYS, DIS, 12,
     NULL, false},
    {"topo-m-rtx6000ada-4gpu-4nic-pcie.txt", 0, 1, 4, 0, 4, 2, 2, NOD, SYS, NOD, 12, NULL,
     false},
    {"topo-m-2gpu-nv3-numa-na.txt", 3, 1, 2, 0, 0, 0, 2, NVL, NVL, DIS, 60,
     "model unknown", false},
    {"topo-m-kvm-1gpu-1nic.txt", 0, 1, 1, 0, 1, 0, 1, DIS, PATH_LOC, PHB, 0, NULL, false},
    {"derived-topo-m-h200-gpu3-lost.txt", 126, 1, 7, 1, 8, 7, 2, NVL, NVL, PIX, 0,
     "which shifts when one is lost", false},
    {"nvlink-s-inactive-links.txt", 0, 1, 2, 0, 0, 0, 0, SYS, SYS, DIS, 0,
     "GPU 3 (Tesla V100-SXM2-32GB) has 4 of 6 NVLinks active", false},
    {"smi-L-mig-2gpu.txt", 0, 1, 4, 0, 0, 0, 0, PHB, SYS, DIS, 0, "device list only",
     false},
};
enum { WANTS = sizeof(wants) / sizeof(wants[0]) };

static enum path_class nearest_nic(const struct graph *g, const struct paths *p, int dev)
{
    enum path_class best = PATH_DIS;
    for (int i = 0; i < graph_n_nodes(g); i++)
        if (graph_node(g, i)->kind == NODE_NIC && paths_get(p, dev, i)->cls < best)
            best = paths_get(p, dev, i)->cls;
    return best;
}

static void check_json(const struct graph *g)
{
    struct buf a, b;
    struct graph *back = NULL;
    struct err e = {0};

    buf_init(&a, 0);
    buf_init(&b, 0);
    topo_to_json(g, NULL, &a);
    if (topo_load(a.p, a.len, "again", NULL, &back, &e) < 0)
        fail_msg("%s", e.msg);
    topo_to_json(back, NULL, &b);
    assert_string_equal(a.p, b.p);
    assert_int_equal(graph_diff(g, back, tell_diff, NULL), 0);
    graph_free(back);
    buf_done(&a);
    buf_done(&b);
}

static void check_xml(const struct graph *g, bool can)
{
    struct buf a, b;
    struct graph *back = NULL;
    struct err e = {0};

    buf_init(&a, 0);
    buf_init(&b, 0);
    if (!can) {
        assert_int_equal(topo_to_nccl(g, &a, &e), -1);
        assert_true(e.msg[0]);
        buf_done(&a);
        return;
    }
    if (topo_to_nccl(g, &a, &e) < 0)
        fail_msg("%s", e.msg);
    if (topo_load(a.p, a.len, "again", NULL, &back, &e) < 0)
        fail_msg("%s\n%s", e.msg, a.p);
    assert_int_equal(graph_diff(g, back, tell_diff, NULL), 0);
    assert_int_equal(topo_to_nccl(back, &b, &e), 0);
    assert_string_equal(a.p, b.p);
    graph_free(back);
    buf_done(&a);
    buf_done(&b);
}

static void check_one(const struct want *w)
{
    struct graph *g = load_shared(w->file);
    struct paths *p;
    struct err e = {0};
    const int *dev;
    int n = graph_devices(g, &dev);

    print_message("%s: %d devices\n", w->file, n);
    tell_warnings(g);
    int nvlinks = 0;
    for (int i = 0; i < graph_n_links(g); i++)
        nvlinks += graph_link(g, i)->kind == LINK_NVLINK ? graph_link(g, i)->width : 0;
    assert_int_equal(nvlinks, w->nvlinks);
    assert_int_equal(n, w->devices);
    assert_int_equal(graph_count(g, NODE_HOST), w->hosts);
    assert_int_equal(graph_count(g, NODE_NVSWITCH), w->nvswitches);
    assert_int_equal(graph_count(g, NODE_NIC), w->nics);
    assert_int_equal(graph_count(g, NODE_SWITCH), w->switches);
    assert_int_equal(graph_count(g, NODE_NUMA), w->numas);
    assert_int_equal(paths_new(g, &p, &e), 0);
    if (n > 1) {
        assert_string_equal(path_class_name(paths_get(p, dev[0], dev[1])->cls),
                            path_class_name(w->a01));
        assert_string_equal(path_class_name(paths_get(p, dev[0], dev[n - 1])->cls),
                            path_class_name(w->last));
        if (w->gbps > 0)
            assert_float_equal(paths_get(p, dev[0], dev[1])->bps / 1e9, w->gbps, 0.01);
    }
    assert_string_equal(path_class_name(nearest_nic(g, p, dev[0])),
                        path_class_name(w->nic));
    if (w->warns)
        assert_true(has_warning(g, w->warns));
    check_json(g);
    check_xml(g, w->xml);
    paths_free(p);
    graph_free(g);
}

static void test_each_loads(void **state)
{
    (void)state;
    for (int i = 0; i < WANTS; i++)
        check_one(&wants[i]);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *file, *part;
    } bad[] = {
        {"foreign-rccl-mi300x-8gpu-xgmi.xml", "version '2', only 1 is NCCL's"},
        {"inject-aws-g5-partial.xml", "has no class: an injection file"},
        {"fabric-state-samples.txt", "neither JSON, XML, a matrix"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t n;
        char *p = read_shared(bad[i].file, &n);
        refuse_bytes(p, n, bad[i].part);
        free(p);
    }
}

/* No file of the folder is left out above: its README counts them. */
static void test_none_left_out(void **state)
{
    (void)state;
    assert_int_equal(WANTS + 3, 29);
    test_shared("topologies/README.md");
}

/* A stated model completes an injection file. */
static void test_completed(void **state)
{
    struct graph *g = load_shared_as("inject-azure-ndv5-h100.xml", "H100");
    struct paths *p;
    struct err e = {0};
    const int *dev;
    (void)state;

    assert_int_equal(graph_devices(g, &dev), 8);
    assert_true(has_warning(g, "those of H100 are assumed"));
    assert_int_equal(graph_node(g, dev[0])->sm, 90);
    assert_int_equal(paths_new(g, &p, &e), 0);
    assert_int_equal(paths_get(p, dev[0], dev[7])->cls, NVL);
    assert_float_equal(paths_get(p, dev[0], dev[7])->bps, 450e9, 1);
    check_json(g);
    /* the export numbers the GPUs, which the injection file did not */
    struct buf b;
    struct graph *back = NULL;
    buf_init(&b, 0);
    assert_int_equal(topo_to_nccl(g, &b, &e), 0);
    assert_int_equal(topo_load(b.p, b.len, "again", NULL, &back, &e), 0);
    assert_int_equal(graph_count(back, NODE_NIC), 8);
    assert_int_equal(graph_count(back, NODE_NVSWITCH), 1);
    assert_int_equal(graph_devices(back, &dev), 8);
    assert_int_equal(graph_node(back, dev[7])->index, 7);
    graph_free(back);
    buf_done(&b);
    paths_free(p);
    graph_free(g);
}

/* Every cell of a matrix comes back as class: what NVLink hides counts as NVL or NVB. */
static void test_matrix_comes_back(void **state)
{
    static const char *const files[] = {
        "smi-hgx-h200-8gpu-8nic.txt",
        "topo-m-dgx-a100-8gpu-10nic.txt",
        "topo-m-p40-8gpu-pix-pxb-soc.txt",
        "topo-m-pcie-6gpu-pix-node-sys-ansi.txt",
        "topo-m-h100x4-nv6-cpulists.txt",
        "topo-m-3gpu-one-unbridged.txt",
        "topo-m-4gpu-pxb-pix-asym-nolegend.txt",
        "topo-m-rtx6000ada-4gpu-4nic-pcie.txt",
        "topo-m-kvm-1gpu-1nic.txt",
        "derived-topo-m-h200-gpu3-lost.txt",
        "topo-m-v100-cube-mesh-8gpu-2nic.txt",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct graph *g = load_shared(files[i]);
        assert_int_equal(has_warning(g, " reads "), 0);
        graph_free(g);
    }
}

static void test_two_trays(void **state)
{
    struct graph *g = load_shared("nccl-gb300-nvl72-2tray-8gpu.xml");
    struct paths *p;
    struct err e = {0};
    const int *dev;
    (void)state;

    /* the same address on two hosts is two devices */
    assert_int_equal(graph_devices(g, &dev), 8);
    assert_string_equal(graph_node(g, dev[0])->name, graph_node(g, dev[4])->name);
    assert_int_not_equal(graph_node(g, dev[0])->host, graph_node(g, dev[4])->host);
    assert_int_equal(paths_new(g, &p, &e), 0);
    assert_int_equal(paths_get(p, dev[0], dev[4])->cls, NVL);
    /* C2C of the tray: 44712 MB/s x 5 */
    const struct link *l = NULL;
    for (int i = 0; i < graph_n_links(g); i++)
        if (graph_link(g, i)->kind == LINK_C2C)
            l = graph_link(g, i);
    assert_non_null(l);
    assert_float_equal(l->nominal.v / 1e9, 223.56, 0.01);
    paths_free(p);
    graph_free(g);
}

#define HEAD "{\"format\":\"llmrack-rack\",\"version\":1,"
#define NODES(n) HEAD "\"links\":[],\"nodes\":[{\"kind\":\"host\",\"name\":\"h\"}," n "]}"

/* Measured pairs go along, and paths say them again. */
static void test_measured_pairs(void **state)
{
    const int *dev;
    const struct path *x;
    struct graph *g, *back = NULL;
    struct paths *p, *q;
    struct err e = {0};
    struct buf a, b;

    (void)state;
    assert_int_equal(rack_build("cpu:4", 64e9, &g, &e), 0);
    assert_int_equal(paths_new(g, &p, &e), 0);
    assert_int_equal(graph_devices(g, &dev), 4);
    struct graph_pair m = {dev[0], dev[3], 5e9, 0.25, 1.5, 1700000000000};
    assert_int_equal(paths_measure(p, &m, 1), 1);
    buf_init(&a, 0);
    topo_to_json(g, p, &a);
    if (topo_load(a.p, a.len, "again", NULL, &back, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(paths_new(back, &q, &e), 0);
    assert_int_equal(paths_measured(q), 1);
    assert_int_equal(graph_devices(back, &dev), 4);
    x = paths_get(q, dev[3], dev[0]);
    assert_true(x->measured && x->bps == 5e9 && x->spread == 0.25 &&
                x->latency_us == 1.5);
    assert_int_equal(x->measured_ms, 1700000000000);
    assert_false(paths_get(q, dev[0], dev[1])->measured);
    buf_init(&b, 0);
    topo_to_json(back, NULL, &b);
    assert_non_null(strstr(b.p, "\"pairs\":[{"));
    char *at = strstr(a.p, "\"at_ms\":"); /* one that cannot be is named */
    memcpy(at, "\"at_ms\":-", 9);
    graph_free(back);
    back = NULL;
    assert_int_equal(topo_load(a.p, a.len, "again", NULL, &back, &e), -1);
    assert_non_null(strstr(e.msg, "pair 0"));
    paths_free(q);
    paths_free(p);
    graph_free(g);
    buf_done(&a);
    buf_done(&b);
}

static void test_json_refused(void **state)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"{}", "format '', not 'llmrack-rack'"},
        {"{", "rack 'text'"},
        {"{\"format\":\"llmrack-rack\"}", "version must be given"},
        {HEAD "\"nodes\":[]}", "'links' must be a list"},
        {HEAD "\"nodes\":[],\"links\":[]}", "no host"},
        {HEAD "\"nodes\":[],\"links\":[],\"linkz\":1}", "'linkz' is not known"},
        {NODES("{\"kind\":\"gpu\",\"name\":\"x\"}"), "node 1: kind 'gpu' does not exist"},
        {NODES("{\"kind\":\"numa\",\"name\":\"x\",\"parent\":2},"
               "{\"kind\":\"numa\",\"name\":\"y\",\"parent\":1}"),
         "node 1: parent 2 must come before it (so that there are no cycles)"},
        {NODES("{\"kind\":\"numa\",\"name\":\"x\",\"parent\":1}"), "parent 1 must come"},
        {NODES("{\"kind\":\"numa\",\"name\":\"x\",\"parent\":0,\"sm\":-1}"), "sm"},
        {NODES("{\"kind\":\"numa\",\"name\":\"x\",\"parent\":0,\"Sm\":1}"),
         "'Sm' is not"},
        {NODES("{\"kind\":\"numa\",\"name\":\"h\",\"parent\":0}"), "called 'h'"},
        {NODES("{\"kind\":\"numa\",\"name\":\"x\",\"parent\":0,\"speed\":{\"v\":-1}}"),
         "node 1"},
        {HEAD "\"nodes\":[{\"kind\":\"host\",\"name\":\"h\"}],\"links\":[{\"a\":0,"
              "\"b\":0,\"kind\":\"pci\"}]}",
         "link 0: 'h' has a pci link to itself"},
        {HEAD "\"nodes\":[{\"kind\":\"host\",\"name\":\"h\"}],\"links\":[{\"a\":0,"
              "\"b\":7,\"kind\":\"pci\"}]}",
         "link 0: a pci link between nodes 0 and 7, of 1 nodes"},
        {HEAD "\"nodes\":[[[[[[[[[[[[]]]]]]]]]]]]}", "rack 'text'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refuse_text(bad[i].text, bad[i].part);
}

/* A file that names more nodes than a rack can have. */
static void test_json_too_large(void **state)
{
    struct buf b;
    (void)state;

    buf_init(&b, 0);
    buf_puts(&b, HEAD "\"links\":[],\"nodes\":[0");
    for (int i = 0; i < 20000; i++)
        buf_puts(&b, ",0");
    buf_puts(&b, "]}");
    refuse_bytes(b.p, b.len, "20001 nodes, at most 16384");
    buf_done(&b);
}

/* Each allocation that an input drives fails in turn: an error, no leak, no graph. */
static void test_no_memory(void **state)
{
    static const char *const files[] = {"nccl-a100x4-nv4-mesh-4nic.xml",
                                        "smi-hgx-h200-8gpu-8nic.txt",
                                        "smi-L-mig-2gpu.txt"};
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        size_t n;
        char *text = read_shared(files[i], &n);
        int rc = -1, failed = 0;
        for (int k = 1; rc < 0 && k < 100; k++) {
            struct graph *g = NULL;
            struct paths *p = NULL;
            struct err e = {0};
            mem_fail_at(k);
            rc = topo_load(text, n, files[i], NULL, &g, &e);
            if (rc == 0)
                rc = paths_new(g, &p, &e);
            mem_fail_at(0);
            failed += rc < 0;
            if (rc < 0)
                assert_int_equal(e.code, ERR_NOMEM);
            paths_free(p);
            graph_free(g);
        }
        assert_int_equal(rc, 0);
        assert_true(failed >= 4);
        free(text);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured_pairs),    cmocka_unit_test(test_each_loads),
        cmocka_unit_test(test_refusals),          cmocka_unit_test(test_none_left_out),
        cmocka_unit_test(test_completed),         cmocka_unit_test(test_two_trays),
        cmocka_unit_test(test_matrix_comes_back), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_json_refused),      cmocka_unit_test(test_json_too_large),
    };
    return test_main(argc, argv, "topo_files", tests, sizeof(tests) / sizeof(tests[0]));
}

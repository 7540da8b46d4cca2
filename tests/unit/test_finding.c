/* tests/unit/test_finding.c - what is odd about a rack, in sentences; tree and matrix. */
#include "tests/topo_help.h"

#include "topo/finding.h"
#include "topo/rack.h"
#include "topo/show.h"

static int has_finding(const struct findings *f, enum severity s, const char *part)
{
    int n = 0;
    for (int i = 0; i < findings_count(f); i++)
        n += findings_get(f, i)->severity == s && strstr(findings_get(f, i)->text, part);
    return n;
}

static void expect(const struct findings *f, enum severity s, const char *part)
{
    if (has_finding(f, s, part) == 1)
        return;
    for (int i = 0; i < findings_count(f); i++)
        print_message("%s: %s\n", severity_name(findings_get(f, i)->severity),
                      findings_get(f, i)->text);
    fail_msg("not once: %s '%s'", severity_name(s), part);
}

/* The text of a file with every `from` made into `to`, `times` at most. */
static struct graph *load_changed(const char *name, const char *from, const char *to,
                                  int times)
{
    size_t n;
    char *text = read_shared(name, &n), *at = text, *hit;
    struct graph *g = NULL;
    struct err e = {0};
    struct buf b;

    text[n] = '\0';
    buf_init(&b, 0);
    while (times-- > 0 && (hit = strstr(at, from))) {
        buf_add(&b, at, (size_t)(hit - at));
        buf_puts(&b, to);
        at = hit + strlen(from);
    }
    buf_puts(&b, at);
    if (topo_load(b.p, b.len, name, NULL, &g, &e) < 0)
        fail_msg("%s", e.msg);
    free(text);
    buf_done(&b);
    return g;
}

static void test_built_in_racks_are_sound(void **state)
{
    const char *name;
    (void)state;
    for (int i = 0; (name = rack_name(i, NULL)); i++) {
        struct graph *g;
        struct err e = {0};
        assert_int_equal(rack_build(name, 0, &g, &e), 0);
        struct findings *f = findings_new(g, g, NULL);
        if (findings_count(f))
            fail_msg("%s: %s", name, findings_get(f, 0)->text);
        findings_free(f);
        graph_free(g);
    }
}

static void test_links_missing(void **state)
{
    struct graph *g = load_changed("nccl-hgx-h200-8gpu-4nvs.xml",
                                   "<nvlink target=\"0000:c5:00.0\" count=\"5\"",
                                   "<nvlink target=\"0000:c5:00.0\" count=\"4\"", 1);
    struct findings *f = findings_new(g, NULL, NULL);
    (void)state;
    expect(f, SEVERITY_WARN, "GPU 0 (0000:83:00.0) has 17 of 18 NVLinks");
    findings_free(f);
    graph_free(g);

    /* all of one GPU's rows gone, as an unreadable link state does it */
    g = load_changed(
        "nccl-hgx-b200-8gpu-hidden-nvs.xml",
        "<nvlink target=\"fffffff:ff:ff.0\" count=\"18\" tclass=\"0x068000\"/>", "", 1);
    f = findings_new(g, NULL, NULL);
    expect(f, SEVERITY_BAD, "has no NVLink, 7 others of its model have up to 18");
    assert_int_equal(findings_get(f, 0)->severity, SEVERITY_BAD); /* the worst first */
    assert_int_equal(findings_get(f, 0)->kind, FINDING_LINKS);
    assert_true(findings_get(f, 0)->node >= 0);
    findings_free(f);
    graph_free(g);

    /* a mesh has fewer links than the model could have behind switches: no finding */
    g = load_shared("nccl-a100x4-nv4-mesh-4nic.xml");
    f = findings_new(g, NULL, NULL);
    assert_int_equal(has_finding(f, SEVERITY_BAD, "NVLink"), 0);
    assert_int_equal(has_finding(f, SEVERITY_WARN, "NVLink"), 0);
    findings_free(f);
    graph_free(g);
}

/* A device with a bad finding is suggested, once, until it is cordoned. */
static void test_cordons(void **state)
{
    (void)state;
    struct graph *g = load_changed(
        "nccl-hgx-b200-8gpu-hidden-nvs.xml",
        "<nvlink target=\"fffffff:ff:ff.0\" count=\"18\" tclass=\"0x068000\"/>", "", 1);
    struct findings *f = findings_new(g, NULL, NULL);
    int bad = findings_get(f, 0)->node;

    assert_int_equal(findings_get(f, 0)->severity, SEVERITY_BAD);
    findings_note_cordons(f, g, NULL, 0);
    expect(f, SEVERITY_WARN, "should be cordoned (links-missing is bad)");
    assert_int_equal(findings_get(f, 0)->severity, SEVERITY_BAD); /* still sorted */
    findings_free(f);

    f = findings_new(g, NULL, NULL);
    findings_note_cordons(f, g, &bad, 1);
    expect(f, SEVERITY_INFO, "is cordoned");
    assert_int_equal(has_finding(f, SEVERITY_WARN, "should be cordoned"), 0);
    findings_free(f);
    graph_free(g);
}

static void test_missing_device(void **state)
{
    struct graph *full, *less = load_shared("nccl-hgx-h200-8gpu-4nvs.xml");
    struct findings *f;
    (void)state;

    full = load_shared("nccl-hgx-h200-8gpu-4nvs.xml");
    f = findings_new(less, full, NULL);
    assert_int_equal(has_finding(f, SEVERITY_BAD, ""), 0);
    findings_free(f);
    graph_free(less);

    less = load_shared("derived-topo-m-h200-gpu3-lost.txt");
    graph_free(full);
    full = load_shared("smi-hgx-h200-8gpu-8nic.txt");
    f = findings_new(less, full, NULL);
    /* this format numbers anew: the last number is the one that is missed */
    expect(f, SEVERITY_BAD, "device gpu7 (GPU 7, NVIDIA H200) is missing against the");
    findings_free(f);
    graph_free(less);
    graph_free(full);
}

static void test_pci_and_sockets(void **state)
{
    struct graph *g = load_changed("nccl-hgx-h200-8gpu-4nvs.xml",
                                   "link_width=\"16\">\n        <gpu dev=\"0\"",
                                   "link_width=\"8\">\n        <gpu dev=\"0\"", 1);
    struct findings *f = findings_new(g, NULL, NULL);
    (void)state;
    expect(f, SEVERITY_WARN,
           "PCI link of device GPU 0 (0000:83:00.0) is x8 with 24.0 GB/s, that of its "
           "siblings x16 with 48.0");
    expect(f, SEVERITY_WARN,
           "the NUMA node of 1 of 9 devices and NICs is unknown, first eth0");
    findings_free(f);
    graph_free(g);

    g = load_shared("inject-azure-ndv2-v100.xml");
    f = findings_new(g, NULL, NULL);
    expect(f, SEVERITY_WARN, "sits on the other socket from 4 GPUs");
    findings_free(f);
    graph_free(g);

    g = load_shared("nccl-gb300-nvl72-1tray-4gpu.xml");
    f = findings_new(g, NULL, NULL);
    expect(
        f, SEVERITY_WARN,
        "NIC mlx5_bond_0 sits on the other socket from GPUs 0-1 (NUMA node 1, they are "
        "on 0)");
    expect(f, SEVERITY_INFO, "4 of 72 devices are on this host");
    assert_int_equal(has_finding(f, SEVERITY_INFO, "PCI link of switch"),
                     4); /* C2C is there */
    findings_free(f);
    graph_free(g);
}

static struct findings *of_json(const char *text, struct graph **g)
{
    *g = load_text(text);
    return findings_new(*g, NULL, "h");
}

static void test_cliques(void **state)
{
    struct graph *g;
    struct findings *f = of_json(
        "{\"format\":\"llmrack-rack\",\"version\":1,\"links\":[],\"nodes\":["
        "{\"kind\":\"host\",\"name\":\"h\"},{\"kind\":\"numa\",\"name\":\"n\",\"parent\":"
        "0,"
        "\"numa\":0},"
        "{\"kind\":\"device\",\"name\":\"d0\",\"parent\":1,\"numa\":0,\"clique\":1,"
        "\"fabric_uuid\":\"u\"},"
        "{\"kind\":\"device\",\"name\":\"d1\",\"parent\":1,\"numa\":0,\"clique\":1,"
        "\"fabric_uuid\":\"u\"},"
        "{\"kind\":\"device\",\"name\":\"d2\",\"parent\":1,\"numa\":0,\"clique\":2,"
        "\"fabric_uuid\":\"u\",\"health\":\"bad\"}]}",
        &g);
    (void)state;
    expect(f, SEVERITY_BAD,
           "clique ids differ: 2 of 3 devices in clique 1, d2 in clique 2");
    expect(f, SEVERITY_BAD, "d2 is not usable");
    findings_free(f);
    graph_free(g);
}

static void test_mig_and_partial(void **state)
{
    struct graph *g = load_shared("smi-L-mig-2gpu.txt");
    struct findings *f = findings_new(g, NULL, NULL);
    struct err e = {0};
    (void)state;
    expect(f, SEVERITY_WARN, "MIG is on: GPU 0 (gpu0) is cut into 2 instances");
    findings_free(f);
    graph_free(g);

    assert_int_equal(rack_build("gb200-nvl72", 0, &g, &e), 0);
    f = findings_new(g, NULL, "host3");
    expect(f, SEVERITY_INFO, "4 of 72 devices are on this host");
    findings_free(f);
    graph_free(g);
}

/* Every file: findings and text come, and stay within reason. */
static void test_every_file_shows(void **state)
{
    static const char *const files[] = {
        "nccl-oci-bm-h100-8gpu-16port.xml", "nccl-gb300-nvl72-2tray-8gpu.xml",
        "topo-m-p40-8gpu-pix-pxb-soc.txt",  "topo-m-v100-cube-mesh-8gpu-2nic.txt",
        "nvlink-s-inactive-links.txt",      "topo-m-kvm-1gpu-1nic.txt",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct graph *g = load_shared(files[i]);
        struct findings *f = findings_new(g, NULL, NULL);
        struct paths *p;
        struct err e = {0};
        struct buf b;
        buf_init(&b, 0);
        assert_int_equal(paths_new(g, &p, &e), 0);
        topo_show_tree(g, &b);
        topo_show_matrix(g, p, &b);
        topo_show_findings(f, &b);
        assert_non_null(strstr(b.p, "(emulated)"));
        assert_non_null(strstr(b.p, "Legend:"));
        buf_done(&b);
        findings_free(f);
        paths_free(p);
        graph_free(g);
    }
}

static void test_tree_and_matrix(void **state)
{
    struct graph *g = load_shared("nccl-hgx-h200-8gpu-4nvs.xml");
    struct paths *p;
    struct err e = {0};
    struct buf b;
    (void)state;

    buf_init(&b, 0);
    assert_int_equal(paths_new(g, &p, &e), 0);
    topo_show_tree(g, &b);
    assert_non_null(strstr(b.p, "8 devices, 4 NVSwitches, 1 NIC, 1 host\n"));
    assert_non_null(strstr(b.p, "\n      GPU 0  0000:83:00.0  NVIDIA H200, 140.4 GiB, 18 "
                                "NVLinks 450 GB/s, PCI x16 48.0 GB/s\n"));
    assert_non_null(strstr(b.p, "\n  numa1  x86_64 GenuineIntel 6 207, CPUs 96-191\n"));
    buf_clear(&b);
    topo_show_matrix(g, p, &b);
    assert_int_equal(strncmp(b.p, "\tGPU0\tGPU1\t", 11), 0);
    assert_non_null(strstr(b.p, "\nGPU1\tNV18\t X \tNV18\t"));
    assert_non_null(strstr(b.p, "\t96-191\t1\n"));
    assert_non_null(strstr(b.p, "\n  NIC0: eth0\n"));
    buf_done(&b);
    paths_free(p);
    graph_free(g);
}

/* What we print as a matrix, our own reader takes. */
static void test_matrix_reads_back(void **state)
{
    static const char *const racks[] = {"dgx-a100", "hgx-b200", "hgx-h200"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct graph *g, *back;
        struct paths *p;
        struct err e = {0};
        struct buf b;
        buf_init(&b, 0);
        assert_int_equal(rack_build(racks[i], 0, &g, &e), 0);
        assert_int_equal(paths_new(g, &p, &e), 0);
        topo_show_matrix(g, p, &b);
        back = load_text(b.p);
        assert_int_equal(graph_count(back, NODE_DEVICE), 8);
        assert_int_equal(graph_count(back, NODE_NIC), 8);
        assert_int_equal(has_warning(back, " reads "), 0);
        graph_free(back);
        paths_free(p);
        graph_free(g);
        buf_done(&b);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_built_in_racks_are_sound),
        cmocka_unit_test(test_links_missing),
        cmocka_unit_test(test_cordons),
        cmocka_unit_test(test_missing_device),
        cmocka_unit_test(test_pci_and_sockets),
        cmocka_unit_test(test_cliques),
        cmocka_unit_test(test_mig_and_partial),
        cmocka_unit_test(test_every_file_shows),
        cmocka_unit_test(test_tree_and_matrix),
        cmocka_unit_test(test_matrix_reads_back),
    };
    return test_main(argc, argv, "finding", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/unit/test_smi.c - text of nvidia-smi: colours, wraps, missing columns, lies. */
#include "tests/topo_help.h"

/* The cells of the file itself, read once more and by other means, against the paths. */
static enum path_class class_of(const char *w)
{
    static const struct {
        const char *w;
        enum path_class c;
    } map[] = {{"PIX", PATH_PIX},   {"PXB", PATH_PXB}, {"PHB", PATH_PHB},
               {"NODE", PATH_NODE}, {"SYS", PATH_SYS}, {"SOC", PATH_SYS}};
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
        if (!strcmp(map[i].w, w))
            return map[i].c;
    return strncmp(w, "NV", 2) ? PATH_DIS : PATH_NVL;
}

/* Node that column i of the matrix is: GPUs first, then NICs, as added. */
static int column_node(const struct graph *g, int i)
{
    for (int k = 0; k < graph_n_nodes(g); k++) {
        enum node_kind kind = graph_node(g, k)->kind;
        if ((kind == NODE_DEVICE || kind == NODE_NIC) && i-- == 0)
            return k;
    }
    return -1;
}

static int check_cells(const struct graph *g, const struct paths *p, char *text)
{
    int ends = graph_count(g, NODE_DEVICE) + graph_count(g, NODE_NIC), row = 0, cells = 0;
    char *save, *save2;

    for (char *line = strtok_r(text, "\n", &save); line && row < ends;
         line = strtok_r(NULL, "\n", &save)) {
        char *w = strtok_r(line, " \t", &save2);
        if (!w || (strncmp(w, "GPU", 3) && strncmp(w, "NIC", 3) && strncmp(w, "mlx", 3)))
            continue;
        char *first = strtok_r(NULL, " \t", &save2);
        if (!first || (class_of(first) == PATH_DIS && strcmp(first, "X")))
            continue; /* the header */
        for (int k = 0; k < ends; k++, first = strtok_r(NULL, " \t", &save2), cells++) {
            int a = column_node(g, row), b = column_node(g, k);
            enum path_class is = paths_get(p, a, b)->cls;
            if (strcmp(first, "X") && is != class_of(first) && is != PATH_NVB)
                fail_msg("row %d column %d reads %s, is %s", row, k, first,
                         path_class_name(is));
        }
        row++;
    }
    assert_int_equal(row, ends);
    return cells;
}

static void test_cells_come_back(void **state)
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
        "topo-m-2gpu-nv3-numa-na.txt",
        "derived-topo-m-h200-gpu3-lost.txt",
        "topo-m-v100-cube-mesh-8gpu-2nic.txt",
        "smi-a100x4-nv4-mesh.txt",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct graph *g = load_shared(files[i]);
        struct paths *p;
        struct err e = {0};
        size_t n;
        char *text = read_shared(files[i], &n);
        text[n] = '\0';
        assert_int_equal(paths_new(g, &p, &e), 0);
        int cells = check_cells(g, p, text);
        print_message("%s: %d cells\n", files[i], cells);
        free(text);
        paths_free(p);
        graph_free(g);
    }
}

static void test_facts_of_files(void **state)
{
    struct graph *g = load_shared("smi-hgx-h200-8gpu-8nic.txt");
    (void)state;
    const struct node *d = graph_node(g, find_node(g, "gpu5"));
    assert_string_equal(d->model, "NVIDIA H200");
    assert_string_equal(d->cpus, "96-191");
    assert_int_equal(d->numa, 1);
    assert_int_equal(d->sm, 90);
    assert_true(d->uuid[0]);
    assert_int_equal(graph_node(g, find_node(g, "mlx5_7"))->numa, 1);
    graph_free(g);

    g = load_shared("topo-m-gb200-4gpu-6nic-ansi.txt");
    assert_string_equal(graph_node(g, find_node(g, "gpu0"))->cpus, "0-35");
    assert_string_equal(graph_node(g, find_node(g, "gpu2"))->cpus,
                        ""); /* cut by a cgroup */
    assert_int_equal(graph_node(g, find_node(g, "gpu2"))->numa, 1);
    graph_free(g);

    g = load_shared("topo-m-h100x4-nv6-cpulists.txt");
    assert_string_equal(graph_node(g, find_node(g, "gpu2"))->cpus, "7,15,23,31");
    assert_int_equal(graph_node(g, find_node(g, "gpu2"))->numa, 7);
    graph_free(g);

    g = load_shared("topo-m-2gpu-nv3-numa-na.txt");
    assert_int_equal(graph_node(g, find_node(g, "gpu0"))->numa, -1);
    graph_free(g);

    g = load_shared("smi-L-mig-2gpu.txt");
    d = graph_node(g, find_node(g, "gpu1/mig1"));
    assert_true(d->mig);
    assert_float_equal(d->memory_bytes.v, 10.0 * (1 << 30), 1);
    assert_string_equal(d->uuid, "MIG-00000000-0000-0000-0000-000000000201");
    assert_int_equal(graph_count(g, NODE_DEVICE), 6);
    graph_free(g);
}

/* One matrix, in the shapes that terminals and reports give it. */
static void test_shapes(void **state)
{
    static const char *const shapes[] = {
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tPIX\tSYS\t0-3\t0\nGPU1\tPIX\t X \tSYS\t0-3\t0\nNIC0\tSYS\tSYS\t X "
        "\t\t\n",
        /* blanks, no tail, no final newline, Windows line ends */
        "     GPU0  GPU1  NIC0\r\nGPU0  X  PIX SYS\r\nGPU1 PIX X   SYS\r\nNIC0 SYS SYS  "
        "X",
        /* colours in and around the header */
        "\t\033[4mGPU0\tGPU1\tNIC0\tCPU Affinity\033[0m\n"
        "GPU0\t X \tPIX\tSYS\t0-3\nGPU1\tPIX\t X \tSYS\t0-3\nNIC0\tSYS\tSYS\t X\n",
        /* wrapped: header and rows go on in the next line */
        "  GPU0 GPU1\n  NIC0 CPU Affinity\nGPU0 X PIX\n SYS 0-3\nGPU1 PIX X\nSYS 0-3\n"
        "NIC0 SYS\nSYS X\n",
        /* a prompt before, a legend behind */
        "$ nvidia-smi topo -m\n GPU0 GPU1 NIC0 NUMA Affinity\nGPU0 X PIX SYS 0\n"
        "GPU1 PIX X SYS 0\nNIC0 SYS SYS X\n\nLegend:\n\n  X = Self\n\nNIC Legend:\n\n"
        "  NIC0: mlx5_3\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct graph *g = load_text(shapes[i]);
        struct paths *p;
        struct err e = {0};
        assert_int_equal(paths_new(g, &p, &e), 0);
        int g0 = find_node(g, "gpu0"), g1 = find_node(g, "gpu1");
        int nic = find_node(g, i == 4 ? "mlx5_3" : "NIC0");
        assert_int_equal(paths_get(p, g0, g1)->cls, PATH_PIX);
        assert_int_equal(paths_get(p, g0, nic)->cls, PATH_SYS);
        assert_int_equal(graph_count(g, NODE_DEVICE), 2);
        paths_free(p);
        graph_free(g);
    }
}

static void test_clear_errors(void **state)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"hello", "neither JSON, XML, a matrix"},
        {" GPU0 GPU1\nGPU0 X\nGPU1 SYS X\n", "row 'GPU0' has 1 cells, the header has 2"},
        {" GPU0 GPU1\nGPU0 X SYS\nGPU1 PIX X\n", "not symmetric"},
        {" GPU0 GPU1\nGPU0 X SYS\n", "column 'GPU1' has no row"},
        {" GPU0 GPU1\nGPU0 SYS X\nGPU1 X SYS\n", "'SYS' in column 'GPU0'"},
        {" GPU0 GPU1\nGPU0 X FOO\nGPU1 FOO X\n", "'FOO' in cell 2 of 2"},
        {" GPU0 GPU1\nGPU0 X SYS\nGPU0 X SYS\nGPU1 SYS X\n", "a second row 'GPU0'"},
        {" GPU0 GPU0\nGPU0 X SYS\n", "stands there twice"},
        {" GPU0 GPU1\nGPU0 X NV0\nGPU1 NV0 X\n", "'NV0'"},
        {" GPU0 GPU1\nGPU0 X NV999\nGPU1 NV999 X\n", "'NV999'"},
        {" GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n",
         "a second topo -m matrix"},
        {" GPU0 NIC0 NIC1\nGPU0 X PIX PIX\nNIC0 PIX X PIX\nNIC1 PIX PIX X\n\n"
         "NIC0: mlx5_0\nNIC1: mlx5_0\n",
         "two nodes of one host are called 'mlx5_0'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refuse_text(bad[i].text, bad[i].part);
}

/* Cells that fit no tree: loaded, and each contradiction told. */
static void test_contradictions_told(void **state)
{
    struct graph *g = load_text(" GPU0 GPU1 GPU2\nGPU0 X PIX PIX\nGPU1 PIX X SYS\n"
                                "GPU2 PIX SYS X\n");
    (void)state;
    assert_true(has_warning(g, "GPU1 to GPU2 reads SYS, the other cells make it PIX"));
    graph_free(g);
}

static void test_p2p_and_links(void **state)
{
    struct graph *g = load_text(
        "--- nvidia-smi topo -m ---\n\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV4\t0-3\n"
        "GPU1\tNV4\tX\t0-3\n--- nvidia-smi topo -p2p n ---\n \tGPU0\tGPU1\t\n"
        " GPU0\tX\tNS\t\n GPU1\tOK\tX\t\n--- nvidia-smi nvlink -s ---\n"
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\n\t Link 0: 25 GB/s\n"
        "\t Link 1: <inactive>\n");
    (void)state;
    assert_int_equal(has_warning(g, "peer-to-peer status NS"), 1);
    assert_int_equal(has_warning(g, "has 1 of 12 NVLinks active"), 1);
    assert_int_equal(graph_node(g, find_node(g, "gpu0"))->health, HEALTH_DEGRADED);
    graph_free(g);
}

/* Found by the fuzzer: a number below zero where an instance has its own. */
static void test_negative_instance(void **state)
{
    struct graph *g = load_text("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\n"
                                "  MIG 1g.10gb     Device -8: (UUID: MIG-1)\n"
                                "  MIG 1g.10gb     Device 1: (UUID: MIG-2)\n");
    (void)state;
    assert_int_equal(graph_count(g, NODE_DEVICE), 2);
    graph_free(g);
}

static void test_hostile_sizes(void **state)
{
    struct buf b;
    (void)state;

    buf_init(&b, 0);
    for (int i = 0; i < 300; i++)
        buf_printf(&b, " GPU%d", i);
    refuse_bytes(b.p, b.len, "more than 256 columns");
    buf_clear(&b);
    for (int i = 0; i < 30000; i++)
        buf_puts(&b, "x\n");
    refuse_bytes(b.p, b.len, "more than 20000 lines");
    buf_clear(&b);
    for (int i = 0; i < 300; i++)
        buf_printf(&b, "GPU %d: NVIDIA H200 (UUID: GPU-%d)\n", i, i);
    refuse_bytes(b.p, b.len, "more than 256 GPUs");
    buf_done(&b);
}

/* The largest matrix that is taken, all of it one level, all of it NVLink. */
static void test_largest(void **state)
{
    static const char *const cells[] = {"SYS", "PIX", "NV1"};
    (void)state;
    for (int c = 0; c < 3; c++) {
        struct buf b;
        struct graph *g = NULL;
        struct err e = {0};
        buf_init(&b, 0);
        for (int i = 0; i < 256; i++)
            buf_printf(&b, " GPU%d", i);
        for (int i = 0; i < 256; i++) {
            buf_printf(&b, "\nGPU%d", i);
            for (int k = 0; k < 256; k++)
                buf_printf(&b, " %s", i == k ? "X" : cells[c]);
        }
        if (topo_load(b.p, b.len, "large", NULL, &g, &e) < 0)
            fail_msg("%s", e.msg);
        assert_int_equal(graph_count(g, NODE_DEVICE), 256);
        graph_free(g);
        buf_done(&b);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells_come_back),
        cmocka_unit_test(test_facts_of_files),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_clear_errors),
        cmocka_unit_test(test_contradictions_told),
        cmocka_unit_test(test_p2p_and_links),
        cmocka_unit_test(test_negative_instance),
        cmocka_unit_test(test_hostile_sizes),
        cmocka_unit_test(test_largest),
    };
    return test_main(argc, argv, "smi", tests, sizeof(tests) / sizeof(tests[0]));
}

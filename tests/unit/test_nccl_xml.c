/* tests/unit/test_nccl_xml.c - NCCL topology XML: masks, oddities, hostile documents. */
#include "tests/topo_help.h"

#include "topo/file_nccl.h"
#include "topo/rack.h"
#include "topo/xml.h"

#define CPU                                                                              \
    "<cpu numaid='0' arch='x86_64' vendor='GenuineIntel' familyid='6' modelid='143'>"
#define SPEED " link_speed='32.0 GT/s PCIe' link_width='16'"
#define GPU(bus, dev, more)                                                              \
    "<pci busid='" bus "' class='0x030200' vendor='0x10de' device='0x2330'" SPEED        \
    "><gpu dev='" dev "' sm='90' rank='" dev "' gdr='1'>" more "</gpu></pci>"
#define DOC(body) "<system version='1'>" body "</system>"
#define NV(to, n, class) "<nvlink target='" to "' count='" n "' tclass='" class "'/>"

static void test_masks(void **state)
{
    static const char *const good[][2] = {
        {"0000000f", "0-3"},
        {"00000001,00000000", "32"},
        {"fff0000,00000000,80000000", "31,80-91"}, /* a short word, as seen */
        {"0000,00000000,000000ff,ffffffff,ffffffff", "0-71"},
        {"0", ""},
    };
    static const char *const bad[] = {"", "xyz", "0x1", "123456789", "1 2"};
    char cpus[256], mask[256], again[256];
    (void)state;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(cpus_from_mask(good[i][0], cpus, sizeof(cpus)));
        assert_string_equal(cpus, good[i][1]);
        assert_true(cpus_to_mask(cpus, mask, sizeof(mask)));
        assert_true(cpus_from_mask(mask, again, sizeof(again)));
        assert_string_equal(cpus, again);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(cpus_from_mask(bad[i], cpus, sizeof(cpus)));
    assert_false(cpus_to_mask("5-3", mask, sizeof(mask)));
    assert_false(cpus_to_mask("99999", mask, sizeof(mask)));
    assert_false(cpus_to_mask("1,x", mask, sizeof(mask)));
    assert_false(cpus_from_mask("55555555,55555555,55555555", cpus, 20)); /* no room */
}

/* The reader takes more than NCCL's own: prolog, tabs, comments, unknown elements. */
static void test_superset(void **state)
{
    struct graph *g = load_text("\n \t<?xml version='1.0'?>\n<!-- c -->" DOC(
        CPU
        "<!-- x --><what a='1'><pci/></what>\t" GPU("0000:1B:00.0", "0", "") "</cpu>"));
    (void)state;
    assert_int_equal(graph_count(g, NODE_DEVICE), 1);
    assert_int_equal(find_node(g, "0000:1b:00.0"), 2);
    graph_free(g);
}

static void test_mesh_disagrees(void **state)
{
    struct graph *g = load_text(DOC(
        CPU GPU("0000:01:00.0", "0", NV("0000:02:00.0", "4", "0x030200"))
            GPU("0000:02:00.0", "1",
                NV("0000:01:00.0", "3", "0x030200") NV("0000:03:00.0", "4", "0x030200"))
                GPU("0000:03:00.0", "2", NV("0000:99:00.0", "4", "0x030200")) "</cpu>"));
    const struct link *l = graph_link_between(g, find_node(g, "0000:01:00.0"),
                                              find_node(g, "0000:02:00.0"), LINK_NVLINK);
    (void)state;
    assert_int_equal(l->width, 3);
    assert_true(has_warning(g, "the smaller counts"));
    assert_true(has_warning(g, "does not name it in return"));
    assert_true(has_warning(g, "which is not in the file"));
    graph_free(g);
}

static void test_speeds(void **state)
{
    static const struct {
        const char *attrs;
        double gbps;
        int width;
        const char *warns;
    } w[] = {
        {"link_speed='32.0 GT/s' link_width='16'", 48, 16, NULL}, /* no PCIe behind it */
        {"link_speed='64 GT/s' link_width='8'", 48, 8, NULL},
        {"link_speed='16 GT/s' link_width=''", 24, 16, NULL},
        {"link_speed='Unknown' link_width='16'", 12, 16, "link speed 'Unknown'"},
        {"link_speed='8 GT/s' link_width='255'", 12, 16, "link width '255'"},
        {"", 12, 16, "link speed '(absent)'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(w) / sizeof(w[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text),
                 DOC(CPU "<pci busid='0000:01:00.0' class='0x030200' %s>"
                         "<gpu dev='0' sm='90'/></pci></cpu>"),
                 w[i].attrs);
        struct graph *g = load_text(text);
        int id = find_node(g, "0000:01:00.0");
        const struct link *l =
            graph_link_between(g, id, graph_node(g, id)->parent, LINK_PCI);
        assert_float_equal(l->nominal.v / 1e9, w[i].gbps, 0.01);
        assert_int_equal(l->width, w[i].width);
        if (w[i].warns)
            assert_int_equal(has_warning(g, w[i].warns), 1);
        else
            assert_int_equal(has_warning(g, "link "), 0);
        graph_free(g);
    }
}

static void test_clear_errors(void **state)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"", "nothing in it"},
        {"<system version='1'>", "line 1: XML: no element found"},
        {"<system version='1'></systen>", "mismatched tag"},
        {"<system version='3'/>", "version '3'"},
        {"<system/>", "version ''"},
        {"<topology/>", "hwloc XML of version '', only 2"},
        {"<html/>", "root <html>"},
        {DOC(""), "no GPU"},
        {DOC("<cpu/>"), "no numaid"},
        {DOC("<cpu numaid='x'/>"), "<cpu numaid=\"x\"> is not a number"},
        {DOC("<cpu numaid='-2'/>"), "not within -1 to"},
        {DOC(CPU "<pci/></cpu>"), "not a PCI address"},
        {DOC(CPU "<pci busid='0000:01:00.0'/></cpu>"), "has no class"},
        {DOC(CPU GPU("0000:01:00.0", "0", "") GPU("0000:01:00.0", "1", "") "</cpu>"),
         "two nodes of one host"},
        {DOC(CPU GPU("0000:01:00.0", "0", "") "</cpu>" CPU "</cpu>"),
         "two nodes of one host are called 'numa0'"},
        {DOC(CPU GPU("0000:01:00.0", "0", NV("0000:01:00.0", "4", "0x030200")) "</cpu>"),
         "link to itself"},
        {DOC(CPU GPU("0000:01:00.0", "0",
                     NV("0000:c1:00.0", "4", "0x068000")
                         NV("0000:c1:00.0", "5", "0x068000")) "</cpu>"),
         "is listed twice"},
        {DOC(CPU GPU("0000:01:00.0", "0", NV("0000:c1:00.0", "-4", "0x068000")) "</cpu>"),
         "not within 1 to"},
        {DOC(CPU GPU("0000:01:00.0", "0", NV("zz", "4", "0x068000")) "</cpu>"),
         "<nvlink target=\"zz\">"},
        {DOC(CPU GPU("0000:01:00.0", "0",
                     "<nvlink target='0000:c1:00.0' "
                     "tclass='0x068000'/>") "</cpu>"),
         "no count"},
        {DOC(CPU "<pci busid='0000:01:00.0' class='0x030200'><gpu dev='0'>" NV(
             "0000:c1:00.0", "4", "0x068000") "</gpu></pci></cpu>"),
         "no sm"},
        {DOC(CPU "<pci busid='0000:01:00.0' class='0x030200' vendor='0x10de' "
                 "device='0x2330'><gpu dev='0' sm='70'/></pci></cpu>"),
         "compute capability 90"},
        {"<!DOCTYPE system SYSTEM 'file:///etc/passwd'><system version='1'/>", "DOCTYPE"},
        {"<!DOCTYPE s [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]><system "
         "version='1'>&b;</system>",
         "is refused"},
        {DOC("&bomb;"), "undefined entity"},
        {"<system version='1' version='1'/>", "duplicate attribute"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refuse_text(bad[i].text, bad[i].part);
}

static void test_hostile_sizes(void **state)
{
    struct buf b;
    (void)state;

    buf_init(&b, 0);
    for (int i = 0; i < 10 << 20; i++)
        buf_putc(&b, i ? 'x' : '<');
    refuse_bytes(b.p, b.len, "bytes; a rack has at most");
    buf_clear(&b);
    buf_puts(&b, "<system version='1'>");
    for (int i = 0; i < 100000; i++)
        buf_puts(&b, "<cpu>");
    refuse_bytes(b.p, b.len, "nested deeper than 32");
    buf_clear(&b);
    buf_puts(&b, "<system version='1'>");
    for (int i = 0; i < 100000; i++)
        buf_puts(&b, "<x/>");
    refuse_bytes(b.p, b.len, "more than 20000 elements");
    buf_clear(&b);
    buf_puts(&b, "<system version='1'");
    for (int i = 0; i < 40; i++)
        buf_printf(&b, " a%d='1'", i);
    buf_puts(&b, "/>");
    refuse_bytes(b.p, b.len, "41 attributes, at most 32");
    buf_clear(&b);
    buf_puts(&b, "<system version='");
    for (int i = 0; i < 5000; i++)
        buf_putc(&b, '1');
    buf_puts(&b, "'/>");
    refuse_bytes(b.p, b.len, "5000 bytes long, at most 1024");
    buf_clear(&b);
    buf_puts(&b, "<system version='1'><cpu numaid='0'><nic>");
    for (int i = 0; i < 300; i++)
        buf_printf(&b, "<net name='n%d' dev='%d'/>", i, i);
    buf_puts(&b, "</nic></cpu></system>");
    refuse_bytes(b.p, b.len, "more than 256 NICs without a PCI function");
    refuse_bytes("<system\0 version='1'/>", 22, "a zero byte");
    buf_done(&b);
}

/* A switch in a switch in a switch: the depth of the document bounds that of the rack. */
static void test_deep_switches(void **state)
{
    struct buf b;
    (void)state;

    buf_init(&b, 0);
    buf_puts(&b, "<system version='1'>" CPU);
    for (int i = 0; i < 27; i++)
        buf_printf(&b, "<pci busid='0000:%02x:00.0' class='0x060400'>", i + 1);
    buf_puts(&b, "<pci busid='0000:f0:00.0' class='0x030200'/>");
    for (int i = 0; i < 27; i++)
        buf_puts(&b, "</pci>");
    buf_puts(&b, "</cpu></system>");
    refuse_bytes(b.p, b.len, "levels deep");
    buf_done(&b);
}

/* Built-in racks export and come back with the same paths. */
static void test_racks_export(void **state)
{
    const char *name;
    (void)state;

    for (int i = 0; (name = rack_name(i, NULL)); i++) {
        struct graph *g, *back = NULL;
        struct paths *p, *q;
        struct err e = {0};
        struct buf b;
        const int *x, *y;
        buf_init(&b, 0);
        assert_int_equal(rack_build(name, 0, &g, &e), 0);
        if (topo_to_nccl(g, &b, &e) < 0)
            fail_msg("%s", e.msg);
        if (topo_load(b.p, b.len, name, NULL, &back, &e) < 0)
            fail_msg("%s", e.msg);
        assert_null(strstr(b.p, "\t"));
        int n = graph_devices(g, &x);
        assert_int_equal(graph_devices(back, &y), n);
        assert_int_equal(paths_new(g, &p, &e), 0);
        assert_int_equal(paths_new(back, &q, &e), 0);
        for (int k = 0; k < n; k++) {
            const struct path *u = paths_get(p, x[0], x[k]),
                              *v = paths_get(q, y[0], y[k]);
            assert_int_equal(u->cls, v->cls);
            assert_float_equal(u->bps, v->bps, 1e6);
        }
        paths_free(p);
        paths_free(q);
        graph_free(g);
        graph_free(back);
        buf_done(&b);
    }
}

static void test_export_refused(void **state)
{
    struct graph *g;
    struct err e = {0};
    struct buf b;
    (void)state;

    buf_init(&b, 0);
    assert_int_equal(rack_build("cpu:2", 0, &g, &e), 0);
    assert_int_equal(topo_to_nccl(g, &b, &e), -1);
    assert_non_null(strstr(e.msg, "CPU device"));
    graph_free(g);
    g = load_text(DOC(
        "<cpu numaid='0' host_hash='&lt;a&gt;'>" GPU("0000:01:00.0", "0", "") "</cpu>"));
    assert_int_equal(topo_to_nccl(g, &b, &e), -1);
    assert_non_null(strstr(e.msg, "no escapes"));
    graph_free(g);
    buf_done(&b);
}

static void test_unknown_model_stated(void **state)
{
    static const char text[] =
        DOC(CPU "<pci busid='0000:01:00.0' class='0x030200'/></cpu>");
    struct graph *g = NULL;
    struct err e = {0};
    (void)state;
    assert_int_equal(topo_load(text, sizeof(text) - 1, "t", "Voodoo", &g, &e), -1);
    assert_non_null(strstr(e.msg, "not in the table"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_superset),
        cmocka_unit_test(test_mesh_disagrees),
        cmocka_unit_test(test_speeds),
        cmocka_unit_test(test_clear_errors),
        cmocka_unit_test(test_hostile_sizes),
        cmocka_unit_test(test_deep_switches),
        cmocka_unit_test(test_racks_export),
        cmocka_unit_test(test_export_refused),
        cmocka_unit_test(test_unknown_model_stated),
    };
    return test_main(argc, argv, "nccl_xml", tests, sizeof(tests) / sizeof(tests[0]));
}

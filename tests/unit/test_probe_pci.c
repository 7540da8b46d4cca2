/* topo/probe_pci: this machine, a recorded one, and what sysfs leaves out. */
#include "tests/test.h"

#include "tests/unit/probe_machine.h"

#include "base/err.h"
#include "topo/probe_pci.h"
#include "topo/sysfs.h"

static const char *said(const struct pci_report *r, const char *what)
{
    for (int i = 0; i < r->n_warnings; i++)
        if (strstr(r->warnings[i], what))
            return r->warnings[i];
    return NULL;
}

/* Whatever machine the test runs on: it can be read, and its cores are counted. */
static void test_this_machine(void **state)
{
    struct pci_report *r;
    struct err e = {0};

    (void)state;
    if (probe_pci_read(NULL, "/sys", &r, &e) < 0)
        fail_msg("%s", e.msg);
    assert_true(r->n_numas >= 1);
    assert_true(r->cores >= 1);
    assert_true(r->arch[0]);
    assert_true(r->numas[0].memory_bytes > 0);
    for (int i = 0; i < r->n_items; i++)
        assert_true(r->items[i].parent < i);
    pci_report_free(r);
}

static struct pci_report *read_machine(const char *dir, bool sysfs)
{
    char xml[128], sys[128];
    struct pci_report *r;
    struct err e = {0};

    files_write(dir, "box.xml", machine_xml, strlen(machine_xml));
    snprintf(xml, sizeof(xml), "%s/box.xml", dir);
    snprintf(sys, sizeof(sys), "%s/sys", dir);
    if (probe_pci_read(xml, sysfs ? sys : NULL, &r, &e) < 0)
        fail_msg("%s", e.msg);
    return r;
}

static const struct pci_item *item(const struct pci_report *r, const char *addr)
{
    int i = pci_find(r, addr);

    if (i < 0)
        fail_msg("no item %s", addr);
    return &r->items[i];
}

static void test_recorded(void **state)
{
    char dir[64], sys[128];

    (void)state;
    files_temp(dir);
    snprintf(sys, sizeof(sys), "%s/sys", dir);
    machine_sysfs(sys);
    struct pci_report *r = read_machine(dir, true);
    assert_string_equal(r->host, "box");
    assert_string_equal(r->vendor, "GenuineIntel");
    assert_int_equal(r->model, 143);
    assert_int_equal(r->n_numas, 2);
    assert_string_equal(r->numas[1].cpus, "2-3");
    assert_int_equal(r->cores, 3);
    /* two roots, one switch (root ports and downstream ports are none), 3 GPUs, 2 NICs */
    assert_int_equal(r->n_items, 8);
    const struct pci_item *gpu = item(r, "00000000:04:00.0");
    const struct pci_item *sw = &r->items[gpu->parent];
    assert_string_equal(sw->addr, "0000:02:00.0");
    assert_int_equal(sw->kind, PCI_SWITCH);
    assert_string_equal(r->items[sw->parent].addr, "pci0000:00");
    assert_int_equal(gpu->numa, 0);
    assert_int_equal(gpu->vendor, 0x10de);
    assert_int_equal(gpu->width, 16);
    assert_true(gpu->gt == 32);
    /* the port above is slower and narrower */
    assert_true(item(r, "0000:05:00.0")->gt == 16);
    assert_int_equal(item(r, "0000:05:00.0")->width, 8);
    assert_int_equal(item(r, "0000:81:00.0")->numa, 1);
    assert_int_equal(r->items[item(r, "0000:81:00.0")->parent].kind, PCI_ROOT);
    assert_int_equal(item(r, "0000:82:00.0")->kind, PCI_NET);
    /* the made-up machine has no config space to say how peer traffic goes */
    assert_int_equal(r->n_warnings, 1);
    assert_non_null(said(r, "unknown for 3 devices"));
    pci_report_free(r);
    files_remove(dir);
}

/* Config space with the capability second in the list; control is what it is told. */
static void port_config(const char *sysfs, const char *port, unsigned control, size_t n)
{
    uint8_t c[4096] = {0};
    char rel[128];

    c[0x100] = 1; /* error reporting, then ours at 0x148 */
    c[0x102] = 1;
    c[0x103] = 0x14;
    c[0x102] |= 0x80;
    c[0x148] = 0x0d;
    c[0x14a] = 1;
    c[0x14e] = (uint8_t)control;
    machine_file(sysfs, "", "bus/pci/devices/%s/config", port);
    snprintf(rel, sizeof(rel), "bus/pci/devices/%s/config", port);
    files_write(sysfs, rel, c, n);
}

static void test_access_control(void **state)
{
    char dir[64], sys[128];

    (void)state;
    files_temp(dir);
    snprintf(sys, sizeof(sys), "%s/sys", dir);
    machine_sysfs(sys);
    port_config(sys, "0000:03:00.0", 0x1d, 4096);
    port_config(sys, "0000:03:01.0", 0x01,
                4096); /* source validation alone is harmless */
    port_config(sys, "0000:03:02.0", 0x1d, 64);
    struct pci_report *r = read_machine(dir, true);
    assert_non_null(said(r, "peer traffic of 1 devices below switches"));
    assert_non_null(said(r, "first 0000:04:00.0"));
    assert_non_null(said(r, "unknown for 1 devices"));
    pci_report_free(r);
    files_remove(dir);
}

static void test_unknown_speed(void **state)
{
    static const char *const bad[][2] = {{"Unknown", "16"},
                                         {"32.0 GT/s PCIe", "0"},
                                         {"32.0 GT/s PCIe", "255"},
                                         {"", "16"}};
    char dir[64], sys[128];

    (void)state;
    files_temp(dir);
    snprintf(sys, sizeof(sys), "%s/sys", dir);
    machine_sysfs(sys);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        machine_pci(sys, "0000:04:00.0", NULL, NULL, NULL, bad[i][0], bad[i][1]);
        struct pci_report *r = read_machine(dir, true);
        assert_true(item(r, "0000:04:00.0")->gt == 0);
        assert_non_null(said(r, "link of 0000:04:00.0 is unknown"));
        pci_report_free(r);
    }
    files_remove(dir);
}

/* No sysfs, a device that hwloc leaves out, a domain of 5 digits. */
static void test_gaps(void **state)
{
    char dir[64], sys[128];

    (void)state;
    files_temp(dir);
    snprintf(sys, sizeof(sys), "%s/sys", dir);
    struct pci_report *r = read_machine(dir, true);
    assert_non_null(said(r, "no list of PCI devices"));
    assert_int_equal(r->n_items, 8);
    pci_report_free(r);
    machine_sysfs(sys);
    machine_pci(sys, "10000:01:00.0", "0x10de", "0x2335", "0x030200", "32.0 GT/s PCIe",
                "16");
    r = read_machine(dir, true);
    assert_int_equal(r->n_items, 9);
    assert_int_equal(item(r, "00010000:01:00.0")->parent, -1);
    assert_int_equal(item(r, "10000:01:00.0")->numa, -1);
    assert_non_null(said(r, "NUMA node of 10000:01:00.0 is unknown"));
    pci_report_free(r);
    files_remove(dir);
}

static void test_bad_xml(void **state)
{
    char dir[64], xml[128];
    struct pci_report *r = NULL;
    struct err e = {0};

    (void)state;
    files_temp(dir);
    snprintf(xml, sizeof(xml), "%s/none.xml", dir);
    assert_int_equal(probe_pci_read(xml, NULL, &r, &e), -1);
    files_write(dir, "none.xml", machine_xml, 700);
    assert_int_equal(probe_pci_read(xml, NULL, &r, &e), -1);
    assert_int_equal(e.code, ERR_SYNTAX);
    assert_null(r);
    files_remove(dir);
}

static void test_names(void **state)
{
    char name[24];

    (void)state;
    assert_true(sysfs_pci_name("00000000:1B:00.0", name, sizeof(name)));
    assert_string_equal(name, "0000:1b:00.0");
    assert_true(sysfs_pci_name("00010000:1B:00.0", name, sizeof(name)));
    assert_string_equal(name, "10000:1b:00.0");
    assert_false(sysfs_pci_name("virtio2", name, sizeof(name)));
    assert_false(sysfs_pci_name("", name, sizeof(name)));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_this_machine),   cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_unknown_speed),  cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_access_control), cmocka_unit_test(test_bad_xml),
        cmocka_unit_test(test_names),
    };

    return test_main(argc, argv, "probe_pci", tests, sizeof(tests) / sizeof(tests[0]));
}

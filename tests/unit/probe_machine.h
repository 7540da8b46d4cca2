/* tests/unit/probe_machine.h - a made-up machine as hwloc XML and as a sysfs tree.
 *
 * Two NUMA nodes. On the first a switch with two GPUs and a NIC, on the second a GPU on a
 * root port of its own and a NIC:
 *
 *   numa0 pci0000:00  01.0 root port -> 02:00.0 switch -> 03:00.0 -> 04:00.0 GPU
 *                                                         03:01.0 -> 05:00.0 GPU
 *                                                         03:02.0 -> 06:00.0 NIC
 *   numa1 pci0000:80  80:01.0 root port -> 81:00.0 GPU
 *                     80:02.0 root port -> 82:00.0 NIC */
#ifndef TESTS_UNIT_PROBE_MACHINE_H
#define TESTS_UNIT_PROBE_MACHINE_H

#include <sys/stat.h>

#include "tests/files.h"

#define MACHINE_PORT(busid, range, rest)                                                 \
    "<object type=\"Bridge\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[" range  \
    "]\" pci_busid=\"" busid "\" pci_type=\"0604 [1000:c030] [0000:0000] 00\" "          \
    "pci_link_speed=\"0.000000\">" rest "</object>"
#define MACHINE_DEV(busid, type)                                                         \
    "<object type=\"PCIDev\" pci_busid=\"" busid "\" pci_type=\"" type                   \
    " [0000:0000] a1\" pci_link_speed=\"0.000000\"/>"

static const char machine_xml[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<topology version=\"2.0\">"
    "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x0000000f\" "
    "complete_cpuset=\"0x0000000f\" allowed_cpuset=\"0x0000000f\" nodeset=\"0x00000003\" "
    "complete_nodeset=\"0x00000003\" allowed_nodeset=\"0x00000003\" gp_index=\"1\">"
    "<info name=\"HostName\" value=\"box\"/><info name=\"Architecture\" "
    "value=\"x86_64\"/>"
    "<object type=\"Package\" os_index=\"0\" cpuset=\"0x00000003\" "
    "complete_cpuset=\"0x00000003\" nodeset=\"0x00000001\" "
    "complete_nodeset=\"0x00000001\" gp_index=\"2\">"
    "<info name=\"CPUVendor\" value=\"GenuineIntel\"/>"
    "<info name=\"CPUFamilyNumber\" value=\"6\"/>"
    "<info name=\"CPUModelNumber\" value=\"143\"/>"
    "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x00000003\" "
    "complete_cpuset=\"0x00000003\" nodeset=\"0x00000001\" "
    "complete_nodeset=\"0x00000001\" gp_index=\"3\" local_memory=\"68719476736\"/>"
    "<object type=\"Core\" os_index=\"0\" cpuset=\"0x00000001\" "
    "complete_cpuset=\"0x00000001\" nodeset=\"0x00000001\" "
    "complete_nodeset=\"0x00000001\" gp_index=\"4\"><object type=\"PU\" os_index=\"0\" "
    "cpuset=\"0x00000001\" complete_cpuset=\"0x00000001\" nodeset=\"0x00000001\" "
    "complete_nodeset=\"0x00000001\" gp_index=\"5\"/></object>"
    "<object type=\"Core\" os_index=\"1\" cpuset=\"0x00000002\" "
    "complete_cpuset=\"0x00000002\" nodeset=\"0x00000001\" "
    "complete_nodeset=\"0x00000001\" gp_index=\"6\"><object type=\"PU\" os_index=\"1\" "
    "cpuset=\"0x00000002\" complete_cpuset=\"0x00000002\" nodeset=\"0x00000001\" "
    "complete_nodeset=\"0x00000001\" gp_index=\"7\"/></object>"
    "<object type=\"Bridge\" bridge_type=\"0-1\" depth=\"0\" gp_index=\"20\" "
    "bridge_pci=\"0000:[00-06]\">" MACHINE_PORT(
        "0000:00:01.0", "01-06",
        MACHINE_PORT(
            "0000:02:00.0", "03-06",
            MACHINE_PORT("0000:03:00.0", "04-04",
                         MACHINE_DEV("0000:04:00.0", "0302 [10de:2335]"))
                MACHINE_PORT("0000:03:01.0", "05-05",
                             MACHINE_DEV("0000:05:00.0", "0302 [10de:2335]"))
                    MACHINE_PORT("0000:03:02.0", "06-06",
                                 MACHINE_DEV("0000:06:00.0", "0207 [15b3:1021]")))) //
    "</object></object>"
    "<object type=\"Package\" os_index=\"1\" cpuset=\"0x0000000c\" "
    "complete_cpuset=\"0x0000000c\" nodeset=\"0x00000002\" "
    "complete_nodeset=\"0x00000002\" gp_index=\"8\">"
    "<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0x0000000c\" "
    "complete_cpuset=\"0x0000000c\" nodeset=\"0x00000002\" "
    "complete_nodeset=\"0x00000002\" gp_index=\"9\" local_memory=\"68719476736\"/>"
    "<object type=\"Core\" os_index=\"2\" cpuset=\"0x0000000c\" "
    "complete_cpuset=\"0x0000000c\" nodeset=\"0x00000002\" "
    "complete_nodeset=\"0x00000002\" gp_index=\"10\"><object type=\"PU\" os_index=\"2\" "
    "cpuset=\"0x00000004\" complete_cpuset=\"0x00000004\" nodeset=\"0x00000002\" "
    "complete_nodeset=\"0x00000002\" gp_index=\"11\"/><object type=\"PU\" "
    "os_index=\"3\" cpuset=\"0x00000008\" complete_cpuset=\"0x00000008\" "
    "nodeset=\"0x00000002\" complete_nodeset=\"0x00000002\" gp_index=\"12\"/></object>"
    "<object type=\"Bridge\" bridge_type=\"0-1\" depth=\"0\" gp_index=\"21\" "
    "bridge_pci=\"0000:[80-82]\">" MACHINE_PORT(
        "0000:80:01.0", "81-81", MACHINE_DEV("0000:81:00.0", "0302 [10de:2335]"))
        MACHINE_PORT("0000:80:02.0", "82-82",
                     MACHINE_DEV("0000:82:00.0", "0200 [15b3:1021]")) //
    "</object></object></object></topology>\n";

static inline void machine_file(const char *dir, const char *text, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes text to dir/fmt..., making the folders on the way. */
static inline void machine_file(const char *dir, const char *text, const char *fmt, ...)
{
    char path[512];
    va_list ap;
    int k = snprintf(path, sizeof(path), "%s/", dir);

    va_start(ap, fmt);
    vsnprintf(path + k, sizeof(path) - (size_t)k, fmt, ap);
    va_end(ap);
    for (char *s = path + 1; (s = strchr(s, '/')); s++) {
        *s = '\0';
        mkdir(path, 0700);
        *s = '/';
    }
    files_write(dir, path + k, text, strlen(text));
}

static inline void machine_pci(const char *sysfs, const char *addr, const char *vendor,
                               const char *device, const char *cls, const char *speed,
                               const char *width)
{
    const struct {
        const char *name, *text;
    } f[] = {{"vendor", vendor},  {"device", device},        {"class", cls},
             {"numa_node", "-1"}, {"max_link_speed", speed}, {"max_link_width", width}};

    for (size_t i = 0; i < sizeof(f) / sizeof(f[0]); i++)
        if (f[i].text)
            machine_file(sysfs, f[i].text, "bus/pci/devices/%s/%s", addr, f[i].name);
}

/* The same machine's sysfs; every link 32 GT/s x16 but the port above 05:00.0. */
static inline void machine_sysfs(const char *sysfs)
{
    static const char *const bridges[] = {"0000:00:01.0", "0000:02:00.0", "0000:03:00.0",
                                          "0000:03:02.0", "0000:80:01.0", "0000:80:02.0"};
    static const char *const gpus[] = {"0000:04:00.0", "0000:05:00.0", "0000:81:00.0"};
    static const char *const nics[] = {"0000:06:00.0", "0000:82:00.0"};

    for (size_t i = 0; i < sizeof(bridges) / sizeof(bridges[0]); i++)
        machine_pci(sysfs, bridges[i], "0x1000", "0xc030", "0x060400", "32.0 GT/s PCIe",
                    "16");
    machine_pci(sysfs, "0000:03:01.0", "0x1000", "0xc030", "0x060400", "16.0 GT/s PCIe",
                "8");
    for (size_t i = 0; i < sizeof(gpus) / sizeof(gpus[0]); i++)
        machine_pci(sysfs, gpus[i], "0x10de", "0x2335", "0x030200", "32.0 GT/s PCIe",
                    "16");
    for (size_t i = 0; i < sizeof(nics) / sizeof(nics[0]); i++)
        machine_pci(sysfs, nics[i], "0x15b3", "0x1021", "0x020700", "32.0 GT/s PCIe",
                    "16");
}

#endif

/* libFuzzer: what the NVML helper writes, read and merged into a graph with a PCI tree.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "topo/graph.h"
#include "topo/nvml_report.h"
#include "topo/path.h"
#include "topo/probe.h"
#include "topo/probe_pci.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pci_numa numas[2] = {{0, 1e9, "0-1"}, {1, 1e9, "2-3"}};
    struct pci_item items[3] = {
        {.kind = PCI_ROOT, .parent = -1, .addr = "pci0000:00"},
        {.kind = PCI_GPU, .addr = "0000:04:00.0", .vendor = 0x10de, .device = 0x2335},
        {.kind = PCI_GPU, .parent = -1, .numa = -1, .addr = "0000:81:00.0"}};
    struct pci_report pci = {.host = "box",
                             .arch = "x86_64",
                             .numas = numas,
                             .n_numas = 2,
                             .items = items,
                             .n_items = 3};
    struct nvml_report *r;
    struct graph *g;
    struct paths *p;
    struct err e = {0};

    if (nvml_report_read((const char *)data, size, &r, &e) < 0)
        return 0;
    if (probe_merge(&pci, r, "", NULL, 0, &g, &e) == 0) {
        if (paths_new(g, &p, &e) == 0)
            paths_free(p);
        graph_free(g);
    }
    nvml_report_free(r);
    return 0;
}

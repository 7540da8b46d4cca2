/* topo/probe_pci.h - NUMA nodes, cores and the PCI tree of this machine, or of a recorded
 * one (hwloc XML).
 *
 * Plain data for probe.c, which makes graph nodes of it. A PCI switch is one item, named
 * by its upstream port; a root port is none. Only what matters to the rack is listed:
 * display and accelerator functions, network functions, NVSwitches, and what is above
 * them. Any thread; one call at a time. */
#ifndef TOPO_PROBE_PCI_H
#define TOPO_PROBE_PCI_H

#include <stdbool.h>

struct err;

struct pci_numa {
    int number;
    double memory_bytes; /* 0 unknown */
    char cpus[256];
};

enum pci_kind { PCI_ROOT, PCI_SWITCH, PCI_GPU, PCI_NET, PCI_NVSWITCH };

struct pci_item {
    enum pci_kind kind;
    int parent;    /* an earlier item, -1 = the machine */
    int numa;      /* its NUMA node's number, -1 unknown */
    char addr[24]; /* "0000:1b:00.0"; a root "pci0000:00" */
    unsigned vendor, device, cls;
    double gt; /* GT/s that device and port both can do; 0 unknown */
    int width;
};

struct pci_report {
    char host[64], arch[16], vendor[32], cpu[64]; /* cpu: its name as sold */
    int family, model, cores;
    struct pci_numa *numas;
    int n_numas;
    struct pci_item *items;
    int n_items;
    char **warnings;
    int n_warnings;
};

/* xml: a recorded machine, or NULL for this one. sysfs: where link speeds are read, NULL
 * = nowhere. What is missing becomes a sentence in warnings; only a machine that cannot
 * be read at all is an error. Free with pci_report_free. */
int probe_pci_read(const char *xml, const char *sysfs, struct pci_report **ret,
                   struct err *e);
void pci_report_free(struct pci_report *r);
int pci_find(const struct pci_report *r, const char *addr); /* item, -1 none */

#endif

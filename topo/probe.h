/* topo/probe.h - this machine as a graph: PCI and NUMA, NVML, NICs, merged.
 *
 * Each probe says what it could not see; those sentences are warnings of the graph. A
 * machine without GPUs has one CPU device for each NUMA node. The helper process that
 * speaks to NVML ends after each reading (its handles would hold the driver); that one is
 * stuck is remembered, and said at the next.
 * probe_read waits for it, at most its deadline; who must not wait uses probe_child and
 * probe_merge. One owner thread. */
#ifndef TOPO_PROBE_H
#define TOPO_PROBE_H

#include <stdint.h>

struct err;
struct graph;
struct net_report;
struct nvml_report;
struct pci_report;
struct probe;

struct probe_cfg {
    const char *program;   /* of the helper: "/proc/self/exe"; NULL = do without NVML */
    const char *sysfs;     /* "/sys" */
    const char *dev;       /* "/dev", for the IMEX channels; NULL = not looked at */
    const char *hwloc_xml; /* a recorded machine's PCI tree; NULL = this one's */
    int64_t deadline_us;   /* PROBE_DEADLINE_US */
};

/* cfg's strings are borrowed. */
int probe_new(const struct probe_cfg *cfg, struct probe **ret, struct err *e);
void probe_free(struct probe *p);
int probe_read(struct probe *p, struct graph **ret, struct err *e);
/* What NVLinks had carried at the last reading, with rates where the one before it told
 * too. *ret borrowed until the next reading; returns the count. *ret_us: between the two,
 * 0 = there was one only. */
struct nvlink_count;
int probe_nvlinks(const struct probe *p, const struct nvlink_count **ret,
                  int64_t *ret_us);

/* Pure: one graph of three reports. nvml NULL: there is none, why_not says why. imex: of
 * the host (enum imex_is); it counts only where a GPU is in a domain of several hosts. */
int probe_merge(const struct pci_report *pci, const struct nvml_report *nvml,
                const char *why_not, const struct net_report *net, int imex,
                struct graph **ret, struct err *e);

#endif

/* topo/nvlinks.h - what NVLinks have carried, as the driver counts it, and at what rate.
 *
 * Counters run since the driver was loaded; of two readings with the time between them
 * comes a rate. Where a counter went back (a GPU was reset, the counter was full) or was
 * not told, there is none. Pure, any thread. */
#ifndef TOPO_NVLINKS_H
#define TOPO_NVLINKS_H

#include <stdint.h>

struct nvml_report;

struct nvlink_count {
    char device[24], to[24]; /* PCI addresses; to: "" = hidden or not known */
    int link;
    double bps;             /* payload of the link one way; 0 not known */
    int64_t tx_kib, rx_kib; /* by the GPU, to it; -1 not told */
    double tx_bps, rx_bps;  /* bytes/s; -1 not known */
};

/* Active links whose counters the driver tells, by GPU, then by number; no rates yet.
 * malloc'd, NULL for none; returns the count. r NULL allowed. */
int nvlinks_of(const struct nvml_report *r, struct nvlink_count **ret);
/* Rates of now [n] against an earlier reading that is us older; both as nvlinks_of gave
 * them. */
void nvlinks_rate(struct nvlink_count *now, int n, const struct nvlink_count *was,
                  int n_was, int64_t us);

#endif

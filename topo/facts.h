/* topo/facts.h - the one table of hardware facts: GPU models, PCI and socket speeds.
 *
 * What datasheets and drivers say, for what a file or a probe leaves out. Every use is
 * marked FROM_TABLE and CONF_ASSUMED by the caller; measured figures replace it. Where
 * each constant comes from stands beside it in facts.c. Pure, any thread. */
#ifndef TOPO_FACTS_H
#define TOPO_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "topo/graph.h"

struct gpu_facts {
    const char *name; /* "H200": stands in the driver's name of the device */
    int sm;           /* 10 * major + minor */
    uint16_t pci[4];  /* NVIDIA device ids, 0 = end */
    double memory_bytes;
    int nvlinks;       /* 0: none, or an optional bridge */
    double nvlink_bps; /* payload of one link, one way */
    bool switched;     /* sold behind NVSwitches (else a mesh, a bridge or nothing) */
    int domain;        /* GPUs of one NVLink domain over several hosts, 0 = one host */
    int pcie_gen;
    double c2c_bps; /* to its CPU, one way; 0 none */
    double hbm_bps;
    /* dense FLOP/s; 0 = the format has no unit */
    double bf16_flops, fp8_flops, fp4_flops;
};

/* By a driver's name, a marketing name or a row's own name; NULL unknown. */
const struct gpu_facts *facts_gpu(const char *name);
const struct gpu_facts *facts_gpu_by_pci(unsigned device_id);
/* Row i, or NULL past the end. */
const struct gpu_facts *facts_gpu_at(int i);
/* Payload of one NVLink of this compute capability, bytes/s one way; 0 unknown. */
double facts_nvlink_bps(int sm);
/* What fits through a PCI link of this generation (1..7) and width, bytes/s one way. */
double facts_pcie_bps(int gen, int width);
/* The generation that signals at gt GT/s (2.5 ..), 0 = none does. */
int facts_pcie_gen(double gt);
double facts_pcie_gt(int gen);
/* NUMA node to NUMA node. arch "x86_64", vendor "GenuineIntel", as NCCL names them. */
double facts_socket_bps(const char *arch, const char *vendor, int family, int model);
/* Latency of one hop over a link kind, microseconds. */
double facts_latency_us(enum link_kind kind);
/* {v, FROM_TABLE, CONF_ASSUMED} */
struct fact fact_assumed(double v);
struct fact fact_from(enum fact_source source, double v, enum confidence conf);

#endif

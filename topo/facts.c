/* topo/facts.c - see facts.h. All constants of the rack stand here, with their source. */
#include "topo/facts.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

#define MIB 1048576.0
#define TF 1e12

/* Order matters: a name is looked for in the given text from the top down, so "GB200"
 * stands before "B200" and the boards with less before the family name.
 *
 * memory  MiB as the driver reports in all (nvidia-smi memory.total of that board);
 *         GB200 and GB300: usable MiB that planners of the maker use
 * nvlinks, nvlink_bps  datasheets: A100 600 GB/s both ways = 12 links of 25 GB/s one way,
 *         H100/H200 900 = 18 x 25, B200 and later 1800 = 18 x 50, V100 300 = 6 x 25;
 *         payload, not signalling (26.562 and 53.125 are what the driver prints)
 * c2c     GB300 as its driver reports: 44712 MB/s x 5 links; GB200 the same part
 * hbm, flops  datasheets, dense (the sparse figure halved); 0 = no such unit
 * pci ids as seen in recorded machines */
static const struct gpu_facts gpus[] = {
    {.name = "GB300",
     .sm = 103,
     .pci = {0x31c2},
     .memory_bytes = 284208 * MIB,
     .nvlinks = 18,
     .nvlink_bps = 50e9,
     .switched = true,
     .domain = 72,
     .pcie_gen = 6,
     .c2c_bps = 223.56e9,
     .hbm_bps = 8e12,
     .bf16_flops = 2500 * TF,
     .fp8_flops = 5000 * TF,
     .fp4_flops = 15000 * TF},
    {.name = "GB200",
     .sm = 100,
     .pci = {0x2941},
     .memory_bytes = 189471 * MIB,
     .nvlinks = 18,
     .nvlink_bps = 50e9,
     .switched = true,
     .domain = 72,
     .pcie_gen = 5,
     .c2c_bps = 223.56e9,
     .hbm_bps = 8e12,
     .bf16_flops = 2500 * TF,
     .fp8_flops = 5000 * TF,
     .fp4_flops = 10000 * TF},
    {.name = "B300",
     .sm = 103,
     .pci = {0x3182},
     .memory_bytes = 275040 * MIB,
     .nvlinks = 18,
     .nvlink_bps = 50e9,
     .switched = true,
     .pcie_gen = 6,
     .hbm_bps = 8e12,
     .bf16_flops = 2250 * TF,
     .fp8_flops = 4500 * TF,
     .fp4_flops = 13500 * TF},
    {.name = "B200",
     .sm = 100,
     .pci = {0x2901},
     .memory_bytes = 183359 * MIB,
     .nvlinks = 18,
     .nvlink_bps = 50e9,
     .switched = true,
     .pcie_gen = 5,
     .hbm_bps = 8e12,
     .bf16_flops = 2250 * TF,
     .fp8_flops = 4500 * TF,
     .fp4_flops = 9000 * TF},
    {.name = "H200",
     .sm = 90,
     .pci = {0x2335},
     .memory_bytes = 143771 * MIB,
     .nvlinks = 18,
     .nvlink_bps = 25e9,
     .switched = true,
     .pcie_gen = 5,
     .hbm_bps = 4.8e12,
     .bf16_flops = 989 * TF,
     .fp8_flops = 1979 * TF},
    {.name = "H100 PCIe",
     .sm = 90,
     .pci = {0x2331},
     .memory_bytes = 81559 * MIB,
     .nvlink_bps = 25e9,
     .pcie_gen = 5,
     .hbm_bps = 2.0e12,
     .bf16_flops = 756 * TF,
     .fp8_flops = 1513 * TF},
    {.name = "H100",
     .sm = 90,
     .pci = {0x2330},
     .memory_bytes = 81559 * MIB,
     .nvlinks = 18,
     .nvlink_bps = 25e9,
     .switched = true,
     .pcie_gen = 5,
     .hbm_bps = 3.35e12,
     .bf16_flops = 989 * TF,
     .fp8_flops = 1979 * TF},
    {.name = "A100-SXM4-40GB",
     .sm = 80,
     .pci = {0x20b0},
     .memory_bytes = 40960 * MIB,
     .nvlinks = 12,
     .nvlink_bps = 25e9,
     .switched = true,
     .pcie_gen = 4,
     .hbm_bps = 1.555e12,
     .bf16_flops = 312 * TF},
    {.name = "A100-SXM4-80GB",
     .sm = 80,
     .pci = {0x20b2},
     .memory_bytes = 81920 * MIB,
     .nvlinks = 12,
     .nvlink_bps = 25e9,
     .switched = true,
     .pcie_gen = 4,
     .hbm_bps = 2.039e12,
     .bf16_flops = 312 * TF},
    {.name = "A100-PCIE-40GB",
     .sm = 80,
     .pci = {0x20f1},
     .memory_bytes = 40960 * MIB,
     .nvlink_bps = 25e9,
     .pcie_gen = 4,
     .hbm_bps = 1.555e12,
     .bf16_flops = 312 * TF},
    {.name = "A100 80GB PCIe",
     .sm = 80,
     .pci = {0x20b5},
     .memory_bytes = 81920 * MIB,
     .nvlink_bps = 25e9,
     .pcie_gen = 4,
     .hbm_bps = 1.935e12,
     .bf16_flops = 312 * TF},
    {.name = "V100-SXM2-32GB",
     .sm = 70,
     .pci = {0x1db5},
     .memory_bytes = 32768 * MIB,
     .nvlinks = 6,
     .nvlink_bps = 25e9,
     .pcie_gen = 3,
     .hbm_bps = 0.9e12},
    {.name = "A10G",
     .sm = 86,
     .pci = {0x2237},
     .memory_bytes = 23028 * MIB,
     .pcie_gen = 4,
     .hbm_bps = 0.6e12,
     .bf16_flops = 70 * TF},
    {.name = "RTX 6000 Ada",
     .sm = 89,
     .pci = {0x26b1},
     .memory_bytes = 49140 * MIB,
     .pcie_gen = 4,
     .hbm_bps = 0.96e12,
     .bf16_flops = 182 * TF,
     .fp8_flops = 364 * TF},
    {.name = "P40",
     .sm = 61,
     .pci = {0x1b38},
     .memory_bytes = 24576 * MIB,
     .pcie_gen = 3,
     .hbm_bps = 0.346e12},
};
enum { GPUS = sizeof(gpus) / sizeof(gpus[0]) };

/* Next letter or digit in lower case: spaces and dashes differ between drivers. */
static int next_char(const char **s)
{
    while (**s && !isalnum((unsigned char)**s))
        (*s)++;
    return **s ? tolower((unsigned char)*(*s)++) : 0;
}

static bool starts(const char *text, const char *name)
{
    int c;

    while ((c = next_char(&name)))
        if (next_char(&text) != c)
            return false;
    return true;
}

const struct gpu_facts *facts_gpu(const char *name)
{
    for (int i = 0; i < GPUS; i++)
        for (const char *s = name; *s; s++) {
            bool word = s == name || !isalnum((unsigned char)s[-1]);
            if (word && isalnum((unsigned char)*s) && starts(s, gpus[i].name))
                return &gpus[i];
        }
    return NULL;
}

const struct gpu_facts *facts_gpu_by_pci(unsigned device_id)
{
    for (int i = 0; i < GPUS; i++)
        for (int k = 0; k < 4 && gpus[i].pci[k]; k++)
            if (gpus[i].pci[k] == device_id)
                return &gpus[i];
    return NULL;
}

const struct gpu_facts *facts_gpu_at(int i) { return i < GPUS ? &gpus[i] : NULL; }

double facts_nvlink_bps(int sm)
{
    if (sm >= 100)
        return 50e9;
    if (sm == 86)
        return 14e9; /* 112.5 GB/s both ways over 4 links, datasheet of the bridge */
    if (sm >= 70)
        return 25e9;
    return sm >= 60 ? 20e9 : 0;
}

/* Achievable payload of one lane, 12 GB/s for Gen3 x16 and doubling: what NCCL counts
 * with (100 Mb/s units: 15 30 60 120 240 480 per lane, over 80). */
double facts_pcie_bps(int gen, int width)
{
    static const double lane_gbps[] = {0, 15, 30, 60, 120, 240, 480, 960};

    if (gen < 1 || gen > 7 || width < 1)
        return 0;
    return width * lane_gbps[gen] / 80 * 1e9;
}

static const double pcie_gt[] = {0, 2.5, 5, 8, 16, 32, 64, 128};

int facts_pcie_gen(double gt)
{
    for (int i = 1; i < 8; i++)
        if (gt == pcie_gt[i])
            return i;
    return 0;
}

double facts_pcie_gt(int gen) { return gen >= 1 && gen <= 7 ? pcie_gt[gen] : 0; }

/* NCCL's figures for one direction between sockets, GB/s: AMD 16; Intel by model
 * (Broadwell 6, Skylake 10, Sapphire Rapids 22, Emerald Rapids and later 40); Zhaoxin 6,
 * Yongfeng 9; ARM 6; POWER9 32. */
double facts_socket_bps(const char *arch, const char *vendor, int family, int model)
{
    if (!strcmp(arch, "arm64"))
        return 6e9;
    if (!strcmp(arch, "ppc64"))
        return 32e9;
    if (!strcmp(vendor, "AuthenticAMD"))
        return 16e9;
    if (!strcmp(vendor, "CentaurHauls") || strstr(vendor, "Shanghai"))
        return family > 6 ? 9e9 : 6e9;
    if (model >= 0xcf)
        return 40e9;
    if (model >= 0x8f)
        return 22e9;
    return model >= 0x55 || model == 0 ? 10e9 : 6e9;
}

/* Planning figures for one hop until a probe has measured: NVLink from the alpha of
 * small all-reduces inside a node, PCI and socket from round trips of common servers, net
 * from RDMA small messages. */
double facts_latency_us(enum link_kind kind)
{
    static const double us[LINK_KIND_COUNT] = {
        [LINK_PCI] = 0.5,    [LINK_NVLINK] = 0.7, [LINK_C2C] = 0.5,
        [LINK_SOCKET] = 0.5, [LINK_MEMORY] = 0.1, [LINK_NET] = 1.5,
    };
    return us[kind];
}

struct fact fact_from(enum fact_source source, double v, enum confidence conf)
{
    return (struct fact){.v = v, .source = source, .conf = conf};
}

struct fact fact_assumed(double v) { return fact_from(FROM_TABLE, v, CONF_ASSUMED); }

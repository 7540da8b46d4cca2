/* topo/rack.c - see rack.h.
 *
 * A row says how many of what; the figures of each part come from facts.c. PCI addresses
 * are made up but stable: host and device keep their names over versions, because plans
 * and baselines refer to them. */
#include "topo/rack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/facts.h"
#include "topo/graph.h"

enum { CPU_DEVICES_MAX = 1024, NUMA_MAX = 4 };

struct rack_row {
    const char *name, *about, *gpu;
    int hosts, gpus; /* per host */
    int numas;       /* per host, those that have devices */
    int numa_numbers[NUMA_MAX];
    int gpus_per_switch; /* PCI; 0 = each GPU on the NUMA node by itself */
    int nvswitches;      /* per host, or of the rack where it is one domain */
    bool one_domain;     /* NVSwitches serve all hosts */
    int nics;            /* per host */
    double nic_bps;      /* one way */
    bool nic_gdr, nic_on_switch;
    const char *nic, *cpu;
    int cpus; /* per NUMA node */
};

/* NIC speeds: 400 Gb/s = 50 GB/s (ConnectX-7), 800 = 100 (ConnectX-8), 200 = 25 (CX-6),
 * 100 = 12.5. NVSwitch chips: DGX A100 6, H100/H200 base boards 4, HGX B200 2, NVL72 18
 * (9 trays of 2). DGX A100 runs NPS4: its GPUs sit on NUMA nodes 3, 1, 7 and 5. */
static const struct rack_row rows[] = {
    {.name = "dgx-a100",
     .about = "8 x A100 80 GB, 6 NVSwitches, 8 x 200 Gb/s",
     .gpu = "A100-SXM4-80GB",
     .hosts = 1,
     .gpus = 8,
     .numas = 4,
     .numa_numbers = {3, 1, 7, 5},
     .gpus_per_switch = 2,
     .nvswitches = 6,
     .nics = 8,
     .nic_bps = 25e9,
     .nic_gdr = true,
     .nic_on_switch = true,
     .nic = "mlx5_",
     .cpu = "x86_64 AuthenticAMD 23 49",
     .cpus = 16},
    {.name = "dgx-h100",
     .about = "8 x H100, 4 NVSwitches, 8 x 400 Gb/s",
     .gpu = "H100",
     .hosts = 1,
     .gpus = 8,
     .numas = 2,
     .numa_numbers = {0, 1},
     .gpus_per_switch = 1,
     .nvswitches = 4,
     .nics = 8,
     .nic_bps = 50e9,
     .nic_gdr = true,
     .nic_on_switch = true,
     .nic = "mlx5_",
     .cpu = "x86_64 GenuineIntel 6 143",
     .cpus = 56},
    {.name = "hgx-h200",
     .about = "8 x H200, 4 NVSwitches, 8 x 400 Gb/s",
     .gpu = "H200",
     .hosts = 1,
     .gpus = 8,
     .numas = 2,
     .numa_numbers = {0, 1},
     .gpus_per_switch = 1,
     .nvswitches = 4,
     .nics = 8,
     .nic_bps = 50e9,
     .nic_gdr = true,
     .nic_on_switch = true,
     .nic = "mlx5_",
     .cpu = "x86_64 GenuineIntel 6 207",
     .cpus = 96},
    {.name = "hgx-b200",
     .about = "8 x B200, 2 NVSwitches, 8 x 400 Gb/s",
     .gpu = "B200",
     .hosts = 1,
     .gpus = 8,
     .numas = 2,
     .numa_numbers = {0, 1},
     .gpus_per_switch = 2,
     .nvswitches = 2,
     .nics = 8,
     .nic_bps = 50e9,
     .nic_gdr = true,
     .nic_on_switch = true,
     .nic = "mlx5_",
     .cpu = "x86_64 GenuineIntel 6 207",
     .cpus = 96},
    {.name = "gb200-nvl72",
     .about = "18 trays of 4 x GB200 in one NVLink domain, 4 x 400 Gb/s a tray",
     .gpu = "GB200",
     .hosts = 18,
     .gpus = 4,
     .numas = 2,
     .numa_numbers = {0, 1},
     .nvswitches = 18,
     .one_domain = true,
     .nics = 4,
     .nic_bps = 50e9,
     .nic_gdr = true,
     .nic = "mlx5_",
     .cpu = "arm64",
     .cpus = 72},
    {.name = "gb300-nvl72",
     .about = "18 trays of 4 x GB300 in one NVLink domain, 4 x 800 Gb/s a tray",
     .gpu = "GB300",
     .hosts = 18,
     .gpus = 4,
     .numas = 2,
     .numa_numbers = {0, 1},
     .gpus_per_switch = 1,
     .nvswitches = 18,
     .one_domain = true,
     .nics = 4,
     .nic_bps = 100e9,
     .nic_gdr = true,
     .nic_on_switch = true,
     .nic = "mlx5_",
     .cpu = "arm64",
     .cpus = 72},
    {.name = "2x-hgx-h200-ib",
     .about = "2 hosts of 8 x H200, 8 x 400 Gb/s InfiniBand each",
     .gpu = "H200",
     .hosts = 2,
     .gpus = 8,
     .numas = 2,
     .numa_numbers = {0, 1},
     .gpus_per_switch = 1,
     .nvswitches = 4,
     .nics = 8,
     .nic_bps = 50e9,
     .nic_gdr = true,
     .nic_on_switch = true,
     .nic = "mlx5_",
     .cpu = "x86_64 GenuineIntel 6 207",
     .cpus = 96},
    {.name = "2x-hgx-h200-eth",
     .about = "2 hosts of 8 x H200, 2 x 100 Gb/s Ethernet each",
     .gpu = "H200",
     .hosts = 2,
     .gpus = 8,
     .numas = 2,
     .numa_numbers = {0, 1},
     .gpus_per_switch = 1,
     .nvswitches = 4,
     .nics = 2,
     .nic_bps = 12.5e9,
     .nic = "eth",
     .cpu = "x86_64 GenuineIntel 6 207",
     .cpus = 96},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

/* One host under construction. */
struct site {
    struct graph_builder *b;
    const struct rack_row *r;
    const struct gpu_facts *gpu;
    int host, number, network;
    int numa[NUMA_MAX];
    int nvswitch[32];
};

static struct node blank(enum node_kind kind, int parent, int host)
{
    return (struct node){.kind = kind,
                         .parent = parent,
                         .host = host,
                         .numa = -1,
                         .index = -1,
                         .clique = -1,
                         .health = HEALTH_OK};
}

static int join(struct site *s, int a, int b, enum link_kind kind, int width, double bps,
                struct err *e)
{
    struct link l = {.a = a,
                     .b = b,
                     .kind = kind,
                     .width = width,
                     .nominal = fact_assumed(bps),
                     .latency_us = fact_assumed(facts_latency_us(kind)),
                     .health = HEALTH_OK};

    if (kind == LINK_NVLINK)
        l.expected = s->gpu->nvlinks;
    return graph_add_link(s->b, &l, e);
}

static double socket_bps(const char *cpu)
{
    char arch[16] = "", vendor[32] = "";
    int family = 0, model = 0;

    sscanf(cpu, "%15s %31s %d %d", arch, vendor, &family, &model);
    return facts_socket_bps(arch, vendor, family, model);
}

static int add_numas(struct site *s, struct err *e)
{
    for (int i = 0; i < s->r->numas; i++) {
        struct node n = blank(NODE_NUMA, s->host, s->host);
        int number = s->r->numa_numbers[i];
        n.numa = number;
        snprintf(n.name, sizeof(n.name), "numa%d", number);
        snprintf(n.model, sizeof(n.model), "%s", s->r->cpu);
        snprintf(n.cpus, sizeof(n.cpus), "%d-%d", number * s->r->cpus,
                 (number + 1) * s->r->cpus - 1);
        if ((s->numa[i] = graph_add_node(s->b, &n, e)) < 0)
            return -1;
        for (int k = 0; k < i; k++)
            if (join(s, s->numa[k], s->numa[i], LINK_SOCKET, 1, socket_bps(s->r->cpu),
                     e) < 0)
                return -1;
    }
    return 0;
}

static int add_switch(struct site *s, int numa, int number, struct err *e)
{
    struct node n = blank(NODE_SWITCH, s->numa[numa], s->host);

    n.numa = s->r->numa_numbers[numa];
    snprintf(n.pci, sizeof(n.pci), "0000:%02x:00.0", 0x10 * (number + 1));
    snprintf(n.name, sizeof(n.name), "%s", n.pci);
    int id = graph_add_node(s->b, &n, e);
    double bps = facts_pcie_bps(s->gpu->pcie_gen, 16);
    if (id < 0 || join(s, s->numa[numa], id, LINK_PCI, 16, bps, e) < 0)
        return -1;
    return id;
}

static int add_gpu(struct site *s, int parent, int numa, int i, struct err *e)
{
    struct node n = blank(NODE_DEVICE, parent, s->host);
    int bus = s->r->gpus_per_switch
                  ? 0x10 * (i / s->r->gpus_per_switch + 1) + 1 + i % s->r->gpus_per_switch
                  : 0x10 * (i + 1) + 1;

    n.numa = s->r->numa_numbers[numa];
    n.index = i;
    n.sm = s->gpu->sm;
    n.gdr = true;
    n.memory_bytes = fact_assumed(s->gpu->memory_bytes);
    snprintf(n.pci, sizeof(n.pci), "0000:%02x:00.0", bus);
    snprintf(n.name, sizeof(n.name), "%s", n.pci);
    snprintf(n.model, sizeof(n.model), "NVIDIA %s", s->gpu->name);
    if (s->r->one_domain) {
        snprintf(n.fabric_uuid, sizeof(n.fabric_uuid), "emulated-%s", s->r->name);
        n.clique = 1;
    }
    int id = graph_add_node(s->b, &n, e);
    if (id < 0 ||
        join(s, parent, id, LINK_PCI, 16, facts_pcie_bps(s->gpu->pcie_gen, 16), e) < 0)
        return -1;
    if (s->gpu->c2c_bps > 0 &&
        join(s, s->numa[numa], id, LINK_C2C, 5, s->gpu->c2c_bps, e) < 0)
        return -1;
    /* links spread as evenly as they divide: 18 over 4 switches is 5 5 4 4 */
    int k = s->r->nvswitches, links = s->gpu->nvlinks;
    for (int w = 0; w < k; w++) {
        int width = links / k + (w < links % k);
        if (join(s, s->nvswitch[w], id, LINK_NVLINK, width, width * s->gpu->nvlink_bps,
                 e) < 0)
            return -1;
    }
    return 0;
}

static int add_nic(struct site *s, int parent, int numa, int i, struct err *e)
{
    struct node n = blank(NODE_NIC, parent, s->host);

    n.numa = s->r->numa_numbers[numa];
    n.index = i;
    n.gdr = s->r->nic_gdr;
    n.speed = fact_assumed(s->r->nic_bps);
    snprintf(n.name, sizeof(n.name), "%s%d", s->r->nic, i);
    snprintf(n.pci, sizeof(n.pci), "0000:%02x:01.0", 0x10 * (i + 1) + 4);
    snprintf(n.port_guid, sizeof(n.port_guid), "0x%04x%04x", s->number + 1, i + 1);
    int id = graph_add_node(s->b, &n, e);
    if (id < 0 ||
        join(s, parent, id, LINK_PCI, 16, facts_pcie_bps(s->gpu->pcie_gen, 16), e) < 0)
        return -1;
    return join(s, id, s->network, LINK_NET, 1, s->r->nic_bps, e);
}

static int add_nvswitches(struct site *s, int host, struct err *e)
{
    for (int i = 0; i < s->r->nvswitches; i++) {
        struct node n = blank(NODE_NVSWITCH, host, host);
        snprintf(n.name, sizeof(n.name), "nvswitch%d", i);
        if (host >= 0)
            snprintf(n.pci, sizeof(n.pci), "0000:%02x:00.0", 0xe0 + i);
        if ((s->nvswitch[i] = graph_add_node(s->b, &n, e)) < 0)
            return -1;
    }
    return 0;
}

static int add_devices(struct site *s, struct err *e)
{
    const struct rack_row *r = s->r;
    int per_switch = r->gpus_per_switch;
    int groups = per_switch ? r->gpus / per_switch : r->gpus;

    for (int i = 0, sw = -1, gpu = 0, nic = 0; i < groups; i++) {
        int numa = i * r->numas / groups;
        if (per_switch && (sw = add_switch(s, numa, i, e)) < 0)
            return -1;
        int under = per_switch ? sw : s->numa[numa];
        for (int k = 0; k < (per_switch ? per_switch : 1); k++)
            if (add_gpu(s, under, numa, gpu++, e) < 0)
                return -1;
        for (; nic < (i + 1) * r->nics / groups; nic++)
            if (add_nic(s, r->nic_on_switch ? under : s->numa[numa], numa, nic, e) < 0)
                return -1;
    }
    return 0;
}

static int add_host(struct site *s, int i, struct err *e)
{
    struct node n = blank(NODE_HOST, -1, -1);

    s->number = i;
    snprintf(n.name, sizeof(n.name), "host%d", i);
    if ((s->host = graph_add_node(s->b, &n, e)) < 0 || add_numas(s, e) < 0)
        return -1;
    if (!s->r->one_domain && add_nvswitches(s, s->host, e) < 0)
        return -1;
    return add_devices(s, e);
}

static int build_row(const struct rack_row *r, struct graph **ret, struct err *e)
{
    struct site s = {.b = graph_builder_new(), .r = r, .gpu = facts_gpu(r->gpu)};
    struct node net = blank(NODE_NETWORK, -1, -1);

    snprintf(net.name, sizeof(net.name), "network");
    if ((s.network = graph_add_node(s.b, &net, e)) < 0)
        goto fail;
    if (r->one_domain && add_nvswitches(&s, -1, e) < 0)
        goto fail;
    for (int i = 0; i < r->hosts; i++)
        if (add_host(&s, i, e) < 0)
            goto fail;
    return graph_build(s.b, r->name, true, ret, e);

fail:
    graph_builder_free(s.b);
    return -1;
}

/* ---- CPU devices ---- */

/* Emulated figures: copies through one socket's memory, 10 Gb/s between hosts. */
#define CPU_MEMORY_BPS 10e9
#define CPU_CUT_BPS 1.25e9

static int add_cpu_host(struct site *s, int i, int devices, double device_bytes,
                        bool joined, struct err *e)
{
    struct node host = blank(NODE_HOST, -1, -1);
    struct node numa = blank(NODE_NUMA, -1, -1);

    snprintf(host.name, sizeof(host.name), "host%d", i);
    if ((s->host = graph_add_node(s->b, &host, e)) < 0)
        return -1;
    if (joined && join(s, s->host, s->network, LINK_NET, 1, CPU_CUT_BPS, e) < 0)
        return -1;
    numa.parent = numa.host = s->host;
    numa.numa = 0;
    snprintf(numa.name, sizeof(numa.name), "numa0");
    if ((s->numa[0] = graph_add_node(s->b, &numa, e)) < 0)
        return -1;
    for (int k = 0; k < devices; k++) {
        struct node d = blank(NODE_DEVICE, s->numa[0], s->host);
        /* numbered over the whole rack: cpu3 is one device wherever it is named */
        d.index = i * devices + k;
        d.numa = 0;
        d.is_cpu = true;
        if (device_bytes > 0)
            d.memory_bytes = fact_assumed(device_bytes);
        snprintf(d.name, sizeof(d.name), "cpu%d", d.index);
        snprintf(d.model, sizeof(d.model), "CPU");
        int id = graph_add_node(s->b, &d, e);
        if (id < 0 || join(s, s->numa[0], id, LINK_MEMORY, 1, CPU_MEMORY_BPS, e) < 0)
            return -1;
    }
    return 0;
}

static bool parse_cpu(const char *name, int *ret_hosts, int *ret_devices)
{
    int h, n, used = 0;

    if (sscanf(name, "cpu:%4dx%4d%n", &h, &n, &used) == 2 && !name[used]) {
        *ret_hosts = h;
        *ret_devices = n;
        return true;
    }
    used = 0;
    if (sscanf(name, "cpu:%4d%n", &n, &used) == 1 && !name[used]) {
        *ret_hosts = 1;
        *ret_devices = n;
        return true;
    }
    return false;
}

static int build_cpu(const char *name, double ram_bytes, struct graph **ret,
                     struct err *e)
{
    struct site s = {0};
    int hosts, devices;

    if (!parse_cpu(name, &hosts, &devices) || hosts < 1 || devices < 1 ||
        hosts * devices > CPU_DEVICES_MAX)
        return err_set(e, ERR_INVALID,
                       "rack '%.40s': cpu:N or cpu:HxN, 1 to %d devices in all", name,
                       CPU_DEVICES_MAX);
    s.b = graph_builder_new();
    if (hosts > 1) {
        struct node net = blank(NODE_NETWORK, -1, -1);
        snprintf(net.name, sizeof(net.name), "network");
        if ((s.network = graph_add_node(s.b, &net, e)) < 0)
            goto fail;
    }
    for (int i = 0; i < hosts; i++)
        if (add_cpu_host(&s, i, devices, ram_bytes / hosts / devices, hosts > 1, e) < 0)
            goto fail;
    return graph_build(s.b, name, true, ret, e);

fail:
    graph_builder_free(s.b);
    return -1;
}

bool rack_is_builtin(const char *name)
{
    if (!strncmp(name, "cpu:", 4))
        return true;
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(rows[i].name, name))
            return true;
    return false;
}

const char *rack_name(int i, const char **ret_about)
{
    if (i < 0 || i >= ROWS)
        return NULL;
    if (ret_about)
        *ret_about = rows[i].about;
    return rows[i].name;
}

int rack_build(const char *name, double ram_bytes, struct graph **ret, struct err *e)
{
    if (!strncmp(name, "cpu:", 4))
        return build_cpu(name, ram_bytes, ret, e);
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(rows[i].name, name))
            return build_row(&rows[i], ret, e);
    return err_set(e, ERR_NOTFOUND,
                   "no rack is called '%.60s': cpu:N, cpu:HxN, dgx-a100, dgx-h100, "
                   "hgx-h200, hgx-b200, gb200-nvl72, gb300-nvl72, 2x-hgx-h200-ib or "
                   "2x-hgx-h200-eth",
                   name);
}

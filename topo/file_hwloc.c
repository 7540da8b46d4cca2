/* topo/file_hwloc.c - reads a machine recorded by hwloc 2 (`lstopo file.xml`).
 *
 * It holds NUMA nodes, CPUs and the PCI tree with vendor ids, and nothing of NVLink or
 * NIC speed. Two passes: NUMA nodes first, as devices are placed by the node set of the
 * object that they hang on. Below a host bridge the ports alternate: root port, upstream
 * port of a switch, downstream ports, upstream port of the next; only upstream ports
 * become switches. A link speed is what the link runs at, which a GPU lowers when it
 * idles: the table's figure is taken where the recorded one is lower, with a warning. */
#include "topo/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/facts.h"
#include "topo/file_nccl.h"
#include "topo/graph.h"
#include "topo/xml.h"

/* hwloc counts the line rate of a Gen3 x16 link as 15.754 GB/s, facts.c what fits: 12. */
#define LINE_TO_PAYLOAD (12 / 15.754)

enum { GPUS_MAX = 1024, SET_MAX = 1024 };

struct hwloc_reader {
    struct graph_builder *b;
    struct err *e;
    const struct gpu_facts *stated;
    int host, numas[NUMAS_MAX], numbers[NUMAS_MAX], n_numas;
    int gpus[GPUS_MAX], n_gpus, bridges, no_speed, idle;
    char cpu[64]; /* "x86_64 GenuineIntel 6 207" */
    double socket_bps;
};

struct hwloc_place {
    int under, numa;  /* node; number of the NUMA node, -1 unknown */
    int bridge_level; /* PCI bridges since the host bridge */
};

static const char *attr(const struct xml_node *x, const char *name)
{
    const char *v = xml_attr(x, name);
    return v ? v : "";
}

static const char *info(const struct xml_node *x, const char *name)
{
    for (const struct xml_node *k = x->child; k; k = k->next)
        if (!strcmp(k->name, "info") && !strcmp(attr(k, "name"), name))
            return attr(k, "value");
    return NULL;
}

/* The first info of this name in the document, depth first. */
static const char *info_anywhere(const struct xml_node *x, const char *name)
{
    const char *v = info(x, name);

    for (const struct xml_node *k = x->child; !v && k; k = k->next)
        if (!strcmp(k->name, "object"))
            v = info_anywhere(k, name);
    return v;
}

/* "0x0000000f,0x1" -> "0-3,.." as a list. */
static bool list_of_set(const char *set, char *ret, size_t n)
{
    char bare[SET_MAX];
    size_t used = 0;

    for (const char *s = set; *s; s++) {
        if (s[0] == '0' && s[1] == 'x')
            s++;
        else if (used + 1 < sizeof(bare))
            bare[used++] = *s;
        else
            return false;
    }
    bare[used] = '\0';
    return cpus_from_mask(bare, ret, n);
}

/* The one NUMA node of an object's node set, -1 where it spans several or has none. */
static int numa_of_set(const char *set)
{
    char list[256], *end;

    if (!list_of_set(set, list, sizeof(list)) || !list[0])
        return -1;
    long v = strtol(list, &end, 10);
    return *end ? -1 : (int)v;
}

/* ---- NUMA nodes ---- */

static int add_numa(struct hwloc_reader *r, const struct xml_node *x)
{
    struct node n = nccl_blank(NODE_NUMA, r->host, r->host);
    int64_t number = 0, bytes = 0;

    if (r->n_numas == NUMAS_MAX)
        return err_set(r->e, ERR_TOOBIG, "line %d: more than %d NUMA nodes", x->line,
                       NUMAS_MAX);
    if (xml_int(x, "os_index", 0, 65535, &number, r->e) < 0 ||
        xml_int(x, "local_memory", 0, INT64_MAX, &bytes, r->e) < 0)
        return -1;
    n.numa = (int)number;
    n.memory_bytes =
        bytes ? fact_from(FROM_FILE, (double)bytes, CONF_MEASURED) : (struct fact){0};
    snprintf(n.name, sizeof(n.name), "numa%d", n.numa);
    snprintf(n.model, sizeof(n.model), "%s", r->cpu);
    if (!list_of_set(attr(x, "cpuset"), n.cpus, sizeof(n.cpus)))
        n.cpus[0] = '\0';
    int id = graph_add_node(r->b, &n, r->e);
    if (id < 0)
        return -1;
    for (int i = 0; i < r->n_numas; i++) {
        struct link l = {.a = r->numas[i],
                         .b = id,
                         .kind = LINK_SOCKET,
                         .width = 1,
                         .nominal = fact_assumed(r->socket_bps),
                         .latency_us = fact_assumed(facts_latency_us(LINK_SOCKET))};
        if (graph_add_link(r->b, &l, r->e) < 0)
            return -1;
    }
    r->numbers[r->n_numas] = n.numa;
    r->numas[r->n_numas++] = id;
    return 0;
}

static int walk_numas(struct hwloc_reader *r, const struct xml_node *x)
{
    for (const struct xml_node *k = x->child; k; k = k->next) {
        if (strcmp(k->name, "object"))
            continue;
        if (!strcmp(attr(k, "type"), "NUMANode") && add_numa(r, k) < 0)
            return -1;
        if (walk_numas(r, k) < 0)
            return -1;
    }
    return 0;
}

/* ---- the PCI tree ---- */

static int link_up(struct hwloc_reader *r, int node, int parent, const struct xml_node *x,
                   const struct gpu_facts *f)
{
    double line = strtod(attr(x, "pci_link_speed"), NULL);
    double bps = line > 0 && line < 1e5 ? line * 1e9 * LINE_TO_PAYLOAD : 0;
    struct link l = {.a = parent,
                     .b = node,
                     .kind = LINK_PCI,
                     .nominal = fact_from(FROM_FILE, bps, CONF_ASSUMED),
                     .latency_us = fact_assumed(facts_latency_us(LINK_PCI))};
    double can = f ? facts_pcie_bps(f->pcie_gen, 16) : 0;

    if (can > bps * 1.05) {
        r->idle += bps > 0;
        l.nominal = fact_assumed(can);
    } else if (bps <= 0) {
        r->no_speed++;
        l.nominal = fact_assumed(facts_pcie_bps(3, 16));
    }
    return graph_add_link(r->b, &l, r->e);
}

static int add_gpu(struct hwloc_reader *r, const struct hwloc_place *at,
                   const struct xml_node *x, struct node *n, unsigned device)
{
    const struct gpu_facts *f = facts_gpu_by_pci(device);

    f = f ? f : r->stated;
    if (r->n_gpus == GPUS_MAX)
        return err_set(r->e, ERR_TOOBIG, "line %d: more than %d GPUs", x->line, GPUS_MAX);
    n->kind = NODE_DEVICE;
    if (f) {
        n->sm = f->sm;
        n->memory_bytes = fact_assumed(f->memory_bytes);
        snprintf(n->model, sizeof(n->model), "NVIDIA %s", f->name);
    } else {
        graph_warn(
            r->b,
            "line %d: GPU %s: device id 0x%04x is not in the table and no model was "
            "stated: memory unknown",
            x->line, n->name, device);
    }
    int id = graph_add_node(r->b, n, r->e);
    if (id < 0)
        return -1;
    r->gpus[r->n_gpus++] = id;
    return link_up(r, id, at->under, x, f);
}

/* The RDMA device's name before the network interface's, before the address. */
static void name_nic(const struct xml_node *x, struct node *n)
{
    for (const struct xml_node *k = x->child; k; k = k->next) {
        const char *type = attr(k, "osdev_type"), *name = attr(k, "name");
        bool rdma = !strcmp(type, "3") || !strcmp(type, "OpenFabrics");
        bool net = !strcmp(type, "2") || !strcmp(type, "Network");
        if ((rdma || net) && name[0] && strlen(name) < sizeof(n->name))
            snprintf(n->name, sizeof(n->name), "%s", name);
        if (rdma)
            return;
    }
}

static int add_pci(struct hwloc_reader *r, const struct hwloc_place *at,
                   const struct xml_node *x)
{
    struct node n = nccl_blank(NODE_NIC, at->under, r->host);
    unsigned class, vendor, device;
    uint64_t pci;

    if (!pci_parse(attr(x, "pci_busid"), &pci))
        return err_param(r->e, ERR_INVALID, "pci_busid",
                         "line %d: pci_busid \"%.30s\" is not a PCI address", x->line,
                         attr(x, "pci_busid"));
    if (sscanf(attr(x, "pci_type"), "%4x [%4x:%4x]", &class, &vendor, &device) != 3)
        return err_param(r->e, ERR_INVALID, "pci_type",
                         "line %d: pci_type \"%.40s\" is not CLASS [VENDOR:DEVICE] ..",
                         x->line, attr(x, "pci_type"));
    nccl_pci_text(pci, n.pci, sizeof(n.pci));
    snprintf(n.name, sizeof(n.name), "%s", n.pci);
    n.numa = at->numa;
    if (class >> 8 == 0x03 && vendor == 0x10de)
        return add_gpu(r, at, x, &n, device);
    if (class == 0x0680 && vendor == 0x10de) {
        n.kind = NODE_NVSWITCH;
        n.parent = r->host;
        return graph_add_node(r->b, &n, r->e) < 0 ? -1 : 0;
    }
    if (class >> 8 != 0x02)
        return 0;
    name_nic(x, &n);
    int id = graph_add_node(r->b, &n, r->e);
    return id < 0 ? -1 : link_up(r, id, at->under, x, NULL);
}

/* Enters a bridge: *at becomes the place below it. */
static int add_bridge(struct hwloc_reader *r, struct hwloc_place *at,
                      const struct xml_node *x)
{
    struct node n = nccl_blank(NODE_BRIDGE, at->under, r->host);
    uint64_t pci;

    n.numa = at->numa;
    if (!strncmp(attr(x, "bridge_type"), "0-", 2)) {
        snprintf(n.name, sizeof(n.name), "bridge%d", r->bridges++);
        at->bridge_level = 0;
    } else {
        if (++at->bridge_level % 2)
            return 0; /* a root port or a downstream port */
        if (!pci_parse(attr(x, "pci_busid"), &pci))
            return err_param(r->e, ERR_INVALID, "pci_busid",
                             "line %d: pci_busid \"%.30s\" is not a PCI address", x->line,
                             attr(x, "pci_busid"));
        n.kind = NODE_SWITCH;
        nccl_pci_text(pci, n.pci, sizeof(n.pci));
        snprintf(n.name, sizeof(n.name), "%s", n.pci);
    }
    int id = graph_add_node(r->b, &n, r->e);
    if (id < 0 || (n.kind == NODE_SWITCH && link_up(r, id, at->under, x, NULL) < 0))
        return -1;
    at->under = id;
    return 0;
}

static int walk_pci(struct hwloc_reader *r, struct hwloc_place at,
                    const struct xml_node *x)
{
    for (const struct xml_node *k = x->child; k; k = k->next) {
        struct hwloc_place below = at;
        const char *type = attr(k, "type"), *set = xml_attr(k, "nodeset");
        if (strcmp(k->name, "object"))
            continue;
        if (set && r->n_numas > 1) { /* an object of CPUs: places what hangs on it */
            below.numa = numa_of_set(set);
            below.under = r->host;
            for (int i = 0; i < r->n_numas; i++)
                if (r->numbers[i] == below.numa)
                    below.under = r->numas[i];
            below.numa = below.under == r->host ? -1 : below.numa;
        }
        if (!strcmp(type, "Bridge") && add_bridge(r, &below, k) < 0)
            return -1;
        if (!strcmp(type, "PCIDev") && add_pci(r, &at, k) < 0)
            return -1;
        if (walk_pci(r, below, k) < 0)
            return -1;
    }
    return 0;
}

/* ---- the document ---- */

static int add_host(struct hwloc_reader *r, const struct xml_node *root)
{
    struct node n = nccl_blank(NODE_HOST, -1, -1);
    const char *host = info_anywhere(root, "HostName");
    const char *arch = info_anywhere(root, "Architecture");
    const char *vendor = info_anywhere(root, "CPUVendor");
    const char *family = info_anywhere(root, "CPUFamilyNumber");
    const char *model = info_anywhere(root, "CPUModelNumber");
    int f = family ? atoi(family) : 0, m = model ? atoi(model) : 0;

    arch = arch && !strcmp(arch, "aarch64") ? "arm64" : arch ? arch : "x86_64";
    vendor = vendor ? vendor : "";
    if (vendor[0])
        snprintf(r->cpu, sizeof(r->cpu), "%.15s %.25s %d %d", arch, vendor, f, m);
    else
        snprintf(r->cpu, sizeof(r->cpu), "%.15s", arch);
    r->socket_bps = facts_socket_bps(arch, vendor, f, m);
    if (host && nccl_set_text(n.name, sizeof(n.name), host, root, r->e) < 0)
        return -1;
    if (!n.name[0])
        snprintf(n.name, sizeof(n.name), "host0");
    return r->host = graph_add_node(r->b, &n, r->e);
}

static void tell_missing(struct hwloc_reader *r)
{
    if (r->idle)
        graph_warn(r->b,
                   "%d GPU links ran below what the model can: idle when recorded, the "
                   "table's speed is assumed",
                   r->idle);
    if (r->no_speed)
        graph_warn(r->b, "%d PCI links have no speed in the file, Gen3 x16 assumed",
                   r->no_speed);
    graph_warn(r->b, "hwloc XML has no NVLinks and NIC speeds%s",
               r->stated ? "" : "; state the GPU model to complete it");
}

/* With a stated model: the NVLinks that it has behind switches. */
static int complete(struct hwloc_reader *r)
{
    struct node hub = nccl_blank(NODE_NVSWITCH, r->host, r->host);

    tell_missing(r);
    if (!r->stated || !r->stated->switched)
        return 0;
    snprintf(hub.name, sizeof(hub.name), "nvswitch-hidden");
    int id = graph_add_node(r->b, &hub, r->e);
    for (int i = 0; id >= 0 && i < r->n_gpus; i++) {
        struct link l = {.a = r->gpus[i],
                         .b = id,
                         .kind = LINK_NVLINK,
                         .width = r->stated->nvlinks,
                         .expected = r->stated->nvlinks,
                         .nominal =
                             fact_assumed(r->stated->nvlinks * r->stated->nvlink_bps),
                         .latency_us = fact_assumed(facts_latency_us(LINK_NVLINK))};
        if (graph_add_link(r->b, &l, r->e) < 0)
            return -1;
    }
    graph_warn(r->b, "the NVLinks of %s are assumed for all %d GPUs", r->stated->name,
               r->n_gpus);
    return id < 0 ? -1 : 0;
}

static int read_document(struct hwloc_reader *r, const struct xml_node *root)
{
    struct hwloc_place at = {.numa = -1};
    const char *version = attr(root, "version");

    if (strncmp(version, "2.", 2))
        return err_param(r->e, ERR_UNSUPPORTED, "version",
                         "line %d: hwloc XML of version '%.20s', only 2 is read",
                         root->line, version);
    if (add_host(r, root) < 0 || walk_numas(r, root) < 0)
        return -1;
    at.under = r->host;
    if (r->n_numas == 1) { /* no choice */
        at.under = r->numas[0];
        at.numa = r->numbers[0];
    }
    if (walk_pci(r, at, root) < 0)
        return -1;
    if (r->n_gpus == 0)
        return err_set(r->e, ERR_INVALID,
                       "no NVIDIA GPU in this hwloc XML; for CPU devices use cpu:N");
    return complete(r);
}

int topo_from_hwloc(const char *bytes, size_t n, const char *name, const char *gpu,
                    struct graph **ret, struct err *e)
{
    struct hwloc_reader r = {.e = e};
    struct xml *xml;
    char source[128];
    int rc;

    if (gpu && !(r.stated = facts_gpu(gpu)))
        return err_param(e, ERR_NOTFOUND, "gpu", "GPU model '%.40s' is not in the table",
                         gpu);
    if (xml_parse(bytes, n, &xml, e) < 0)
        return -1;
    r.b = graph_builder_new();
    rc = read_document(&r, xml_root(xml));
    snprintf(source, sizeof(source), "hwloc xml %.100s", name);
    if (rc == 0)
        rc = graph_build(r.b, source, true, ret, e);
    else
        graph_builder_free(r.b);
    xml_free(xml);
    return rc;
}

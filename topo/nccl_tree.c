/* topo/nccl_tree.c - the PCI tree of NCCL topology XML: switches, GPUs, NICs.
 *
 * See file_nccl.c for what is done about which oddity. The recursion is as deep as the
 * document, which xml.c limits. */
#include "topo/file_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/facts.h"
#include "topo/xml.h"

/* NICs without a PCI function: more than any machine has */
enum { VIRTUAL_NICS_MAX = 256 };

struct node nccl_blank(enum node_kind kind, int parent, int host)
{
    return (struct node){.kind = kind,
                         .parent = parent,
                         .host = host,
                         .numa = -1,
                         .index = -1,
                         .clique = -1};
}

int nccl_set_text(char *dst, size_t n, const char *src, const struct xml_node *x,
                  struct err *e)
{
    if (strlen(src) >= n)
        return err_set(e, ERR_TOOBIG,
                       "line %d: '%.40s..' in <%s> is longer than %zu bytes", x->line,
                       src, x->name, n - 1);
    memcpy(dst, src, strlen(src) + 1);
    return 0;
}

void nccl_pci_text(uint64_t v, char *ret, size_t n)
{
    snprintf(ret, n, "%04x:%02x:%02x.%x", (unsigned)(v >> 20), (unsigned)(v >> 12 & 0xff),
             (unsigned)(v >> 4 & 0xff), (unsigned)(v & 0xf));
}

void nccl_add_part(struct nccl *c, const struct part *p)
{
    if (c->n_parts == c->cap_parts) {
        c->cap_parts = c->cap_parts ? 2 * c->cap_parts : 64;
        c->parts = xrealloc(c->parts, c->cap_parts * sizeof(*c->parts));
    }
    c->parts[c->n_parts++] = *p;
}

/* ---- PCI links ---- */

static double pcie_bps_of(struct nccl *c, const struct xml_node *x, int *ret_width)
{
    const char *speed = xml_attr(x, "link_speed"), *width = xml_attr(x, "link_width");
    const char *bus = xml_attr(x, "busid");
    int gen = speed ? facts_pcie_gen(strtod(speed, NULL)) : 0;
    int w = width ? atoi(width) : 0;

    if (!gen) {
        graph_warn(c->b, "line %d: %s: link speed '%.30s' is unknown, Gen3 assumed",
                   x->line, bus, speed ? speed : "(absent)");
        gen = 3;
    }
    if (w <= 0 || w > 32) {
        if (w)
            graph_warn(c->b, "line %d: %s: link width '%.20s' is unknown, x16 assumed",
                       x->line, bus, width);
        w = 16;
    }
    *ret_width = w;
    return facts_pcie_bps(gen, w);
}

static int link_up(struct nccl *c, int node, int parent, int width, double bps)
{
    struct link l = {.a = parent,
                     .b = node,
                     .kind = LINK_PCI,
                     .width = width,
                     .nominal = fact_from(FROM_FILE, bps, CONF_ASSUMED),
                     .latency_us = fact_assumed(facts_latency_us(LINK_PCI))};
    return graph_add_link(c->b, &l, c->e);
}

static long hex_attr(const struct xml_node *x, const char *name)
{
    const char *s = xml_attr(x, name);
    return s ? strtol(s, NULL, 16) : -1;
}

/* Is x the lower half of the Broadcom switch whose upper half stands above it? */
static bool broadcom_lower(const struct xml_node *x)
{
    const struct xml_node *up = x->parent;
    long dev = hex_attr(x, "device"), sub = hex_attr(x, "subsystem_device");

    if (strcmp(up->name, "pci") || hex_attr(x, "vendor") != 0x1000 ||
        hex_attr(up, "vendor") != 0x1000 || hex_attr(up, "device") != dev ||
        hex_attr(x, "subsystem_vendor") != 0x1000)
        return false;
    long up_sub = hex_attr(up, "subsystem_device");
    if (dev == 0xc010)
        return (sub & 0xff00) == 0xa000 && (up_sub & 0xff00) == 0xa000;
    return dev == 0xc030 && (sub & 0xff00) == 0x1000 && (up_sub & 0xff00) == 0;
}

/* The upper port of such a pair is an internal one whose reported speed is fiction. */
static double broadcom_speed(struct nccl *c, const struct xml_node *x, double bps)
{
    double best = bps;
    int w;

    for (const struct xml_node *k = x->child; k; k = k->next)
        if (!strcmp(k->name, "pci") && broadcom_lower(k)) {
            double below = pcie_bps_of(c, k, &w);
            best = below > best ? below : best;
        }
    if (best > bps)
        graph_warn(c->b,
                   "line %d: upstream port of switch %s says %.1f GB/s, its lower half "
                   "%.1f; the latter is assumed",
                   x->line, xml_attr(x, "busid"), bps / 1e9, best / 1e9);
    return best;
}

/* ---- nodes ---- */

static int add_gpu(struct nccl *c, const struct place *at, const struct xml_node *x,
                   uint64_t pci, const struct xml_node *gpu, int ordinal)
{
    struct node n = nccl_blank(NODE_DEVICE, at->under, c->hosts[at->host].node);
    long id = hex_attr(x, "device");
    const struct gpu_facts *f =
        hex_attr(x, "vendor") == 0x10de && id > 0 ? facts_gpu_by_pci((unsigned)id) : NULL;
    int64_t v = -1, sm = 0, gdr = 0;
    int width;

    f = f ? f : c->stated;
    if (gpu && (xml_int(gpu, "dev", 0, 100000, &v, c->e) < 0 ||
                xml_int(gpu, "sm", 0, 10000, &sm, c->e) < 0 ||
                xml_int(gpu, "gdr", 0, 1, &gdr, c->e) < 0))
        return -1;
    if (f && sm && f->sm != sm)
        return err_set(c->e, ERR_CONFLICT,
                       "line %d: sm %lld, but %s %s has compute capability %d", gpu->line,
                       (long long)sm, f == c->stated ? "the stated" : "device id of",
                       f->name, f->sm);
    nccl_pci_text(pci, n.pci, sizeof(n.pci));
    snprintf(n.name, sizeof(n.name), ordinal ? "%s/%d" : "%s", n.pci, ordinal);
    n.numa = at->numa;
    n.index = (int)v;
    n.gdr = gdr == 1;
    n.sm = sm ? (int)sm : f ? f->sm : 0;
    if (f) {
        snprintf(n.model, sizeof(n.model), "NVIDIA %s", f->name);
        n.memory_bytes = fact_assumed(f->memory_bytes);
    } else if (gpu) {
        graph_warn(c->b,
                   "line %d: GPU %s: device id %.12s is not in the table and no model "
                   "was stated: memory unknown",
                   x->line, n.pci,
                   xml_attr(x, "device") ? xml_attr(x, "device") : "(none)");
    }
    int node = graph_add_node(c->b, &n, c->e);
    if (node < 0)
        return -1;
    double bps = pcie_bps_of(c, x, &width);
    if (link_up(c, node, at->under, width, bps) < 0)
        return -1;
    struct part p = {.host = at->host,
                     .node = node,
                     .numa_node = at->numa_node,
                     .pci = pci,
                     .gpu = gpu,
                     .nvlinks = f ? f->nvlinks : 0,
                     .nvlink_bps =
                         f && f->nvlink_bps > 0 ? f->nvlink_bps : facts_nvlink_bps(n.sm)};
    nccl_add_part(c, &p);
    return 0;
}

static int to_network(struct nccl *c, int nic, double bps, double latency_us)
{
    struct link l = {.a = nic,
                     .kind = LINK_NET,
                     .width = 1,
                     .nominal = fact_from(FROM_FILE, bps, CONF_ASSUMED),
                     .latency_us = fact_assumed(facts_latency_us(LINK_NET))};

    if (c->network < 0) {
        struct node n = nccl_blank(NODE_NETWORK, -1, -1);
        snprintf(n.name, sizeof(n.name), "network");
        if ((c->network = graph_add_node(c->b, &n, c->e)) < 0)
            return -1;
    }
    if (latency_us > 0 && latency_us < 1e6)
        l.latency_us = fact_from(FROM_FILE, latency_us, CONF_ASSUMED);
    l.b = c->network;
    return graph_add_link(c->b, &l, c->e);
}

/* pci: the <pci> that holds it, NULL for a virtual one. */
static int add_net(struct nccl *c, const struct place *at, const struct xml_node *net,
                   const struct xml_node *pci)
{
    struct node n = nccl_blank(NODE_NIC, at->under, c->hosts[at->host].node);
    const char *name = xml_attr(net, "name"), *guid = xml_attr(net, "guid");
    const char *latency = xml_attr(net, "latency");
    int64_t dev = -1, speed = 0, gdr = 0;
    uint64_t bus;

    if (xml_int(net, "dev", 0, 100000, &dev, c->e) < 0 ||
        xml_int(net, "speed", INT32_MIN, INT32_MAX, &speed, c->e) < 0 ||
        xml_int(net, "gdr", 0, 1, &gdr, c->e) < 0)
        return -1;
    if (dev < 0) {
        graph_warn(c->b, "line %d: <net> without dev is ignored", net->line);
        return 0;
    }
    if (speed <= 0) {
        graph_warn(c->b, "line %d: NIC %.40s has no speed, 10 Gb/s assumed", net->line,
                   name ? name : "");
        speed = 10000;
    }
    snprintf(n.name, sizeof(n.name), "net%d", (int)dev);
    if ((name && *name && nccl_set_text(n.name, sizeof(n.name), name, net, c->e) < 0) ||
        (guid && strtoull(guid, NULL, 16) &&
         nccl_set_text(n.port_guid, sizeof(n.port_guid), guid, net, c->e) < 0))
        return -1;
    if (pci && pci_parse(xml_attr(pci, "busid"), &bus))
        nccl_pci_text(bus, n.pci, sizeof(n.pci));
    n.numa = at->numa;
    n.index = (int)dev;
    n.gdr = gdr == 1;
    n.speed = fact_from(FROM_FILE, speed * 1e6 / 8, CONF_ASSUMED);
    int node = graph_add_node(c->b, &n, c->e);
    if (node < 0 ||
        to_network(c, node, n.speed.v, latency ? strtod(latency, NULL) : 0) < 0)
        return -1;
    if (!pci)
        return 0;
    int width;
    double bps = pcie_bps_of(c, pci, &width);
    return link_up(c, node, at->under, width, bps);
}

/* An injected NIC: an address and nothing else. */
static int add_bare_nic(struct nccl *c, const struct place *at, const struct xml_node *x,
                        uint64_t pci)
{
    struct node n = nccl_blank(NODE_NIC, at->under, c->hosts[at->host].node);
    int width;

    nccl_pci_text(pci, n.pci, sizeof(n.pci));
    snprintf(n.name, sizeof(n.name), "%s", n.pci);
    n.numa = at->numa;
    int node = graph_add_node(c->b, &n, c->e);
    if (node < 0)
        return -1;
    double bps = pcie_bps_of(c, x, &width);
    return link_up(c, node, at->under, width, bps);
}

static const struct xml_node *child_of(const struct xml_node *x, const char *name)
{
    for (const struct xml_node *k = x->child; k; k = k->next)
        if (!strcmp(k->name, name))
            return k;
    return NULL;
}

static int walk_switch(struct nccl *c, struct place at, const struct xml_node *x,
                       uint64_t pci)
{
    struct node n = nccl_blank(NODE_SWITCH, at.under, c->hosts[at.host].node);
    int width;

    if (broadcom_lower(x))
        return nccl_walk(c, at, x);
    nccl_pci_text(pci, n.pci, sizeof(n.pci));
    snprintf(n.name, sizeof(n.name), "%s", n.pci);
    n.numa = at.numa;
    int node = graph_add_node(c->b, &n, c->e);
    if (node < 0)
        return -1;
    double bps = pcie_bps_of(c, x, &width);
    if (link_up(c, node, at.under, width, broadcom_speed(c, x, bps)) < 0)
        return -1;
    at.under = node;
    return nccl_walk(c, at, x);
}

static int walk_gpus(struct nccl *c, const struct place *at, const struct xml_node *x,
                     uint64_t pci)
{
    int n = 0;

    for (const struct xml_node *k = x->child; k; k = k->next) {
        int64_t part = 0;
        if (strcmp(k->name, "gpu"))
            continue;
        c->n_gpu_elements++;
        if (xml_int(k, "mlopart", 0, 1, &part, c->e) < 0)
            return -1;
        if (n && !part)
            return err_set(c->e, ERR_CONFLICT, "line %d: a second <gpu> under one <pci>",
                           k->line);
        if (add_gpu(c, at, x, pci, k, n++) < 0)
            return -1;
    }
    return n ? 0 : add_gpu(c, at, x, pci, NULL, 0);
}

static int walk_pci(struct nccl *c, struct place at, const struct xml_node *x)
{
    const char *bus = xml_attr(x, "busid"), *class = xml_attr(x, "class");
    uint64_t pci;

    if (!bus || !pci_parse(bus, &pci))
        return err_param(c->e, ERR_INVALID, "busid",
                         "line %d: <pci busid=\"%.30s\"> is not a PCI address", x->line,
                         bus ? bus : "");
    if (!class)
        return err_param(
            c->e, ERR_UNSUPPORTED, "class",
            "line %d: <pci busid=\"%s\"> has no class: an injection file that "
            "only its own machine can complete; it cannot be loaded alone",
            x->line, bus);
    class += !strncmp(class, "0x", 2) ? 2 : 0;
    if (child_of(x, "gpu") || !strncmp(class, "03", 2))
        return walk_gpus(c, &at, x, pci);
    if (child_of(x, "nic"))
        return nccl_walk(c, at, x);
    if (!strncmp(class, "02", 2))
        return add_bare_nic(c, &at, x, pci);
    if (!strncmp(class, "0604", 4) || x->child)
        return walk_switch(c, at, x, pci);
    graph_warn(c->b, "line %d: PCI function %s of class %.12s is left out", x->line, bus,
               class);
    return 0;
}

/* A socket plugin writes its one NIC under every <cpu>. 1: it is here already. */
static int known_virtual(struct nccl *c, struct place *at, const struct xml_node *net)
{
    const char *name = xml_attr(net, "name");
    const struct host_at *h = &c->hosts[at->host];
    int n = 0;

    name = name ? name : "";
    for (int i = 0; i < c->n_virtual; i++)
        if (c->virtual_nics[i].host == at->host && !strcmp(c->virtual_nics[i].name, name))
            return 1;
    for (const struct xml_node *cpu = c->root->child; cpu; cpu = cpu->next) {
        const char *hash = xml_attr(cpu, "host_hash");
        if (strcmp(cpu->name, "cpu") || strcmp(hash ? hash : "", h->hash))
            continue;
        for (const struct xml_node *k = cpu->child; k; k = k->next)
            for (const struct xml_node *m = strcmp(k->name, "nic") ? NULL : k->child; m;
                 m = m->next)
                n += !strcmp(xml_attr(m, "name") ? xml_attr(m, "name") : "", name);
    }
    if (c->n_virtual >= VIRTUAL_NICS_MAX)
        return err_set(c->e, ERR_TOOBIG,
                       "line %d: more than %d NICs without a PCI function", net->line,
                       VIRTUAL_NICS_MAX);
    c->virtual_nics =
        xrealloc(c->virtual_nics, (c->n_virtual + 1) * sizeof(*c->virtual_nics));
    c->virtual_nics[c->n_virtual++] = (struct nic_at){at->host, name};
    if (n > 1) {
        graph_warn(c->b, "NIC %.40s stands under %d CPUs: one NIC, NUMA node unknown",
                   name, n);
        at->under = h->node;
        at->numa = -1;
    }
    return 0;
}

static int walk_nic(struct nccl *c, struct place at, const struct xml_node *x,
                    const struct xml_node *pci)
{
    for (const struct xml_node *k = x->child; k; k = k->next) {
        struct place here = at;
        int known = 0;
        if (strcmp(k->name, "net"))
            continue;
        if (!pci && (known = known_virtual(c, &here, k)) < 0)
            return -1;
        if (!known && add_net(c, &here, k, pci) < 0)
            return -1;
    }
    return 0;
}

/* The children of a <cpu> or <pci>. */
int nccl_walk(struct nccl *c, struct place at, const struct xml_node *x)
{
    bool pci = !strcmp(x->name, "pci");

    for (const struct xml_node *k = x->child; k; k = k->next) {
        int rc = 0;
        if (!strcmp(k->name, "pci"))
            rc = walk_pci(c, at, k);
        else if (!strcmp(k->name, "nic"))
            rc = walk_nic(c, at, k, pci ? x : NULL);
        if (rc < 0)
            return -1;
    }
    return 0;
}

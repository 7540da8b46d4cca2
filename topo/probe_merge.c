/* topo/probe_merge.c - one graph of what the probes saw.
 *
 * The PCI tree is the skeleton; NVML's GPUs are found in it by address and never by
 * index. What one source has and the other lacks is said: a GPU on the bus that the
 * driver does not list is bad (it fell off, or its driver did), a GPU of the driver that
 * the bus does not show hangs on its NUMA node or the host.
 *
 * NVLinks are counted, not believed: with a fabric that is not up, with MIG, and for a
 * pair that may not read each other's memory, they are left out with a sentence, because
 * traffic over them would fail. */
#include "topo/probe.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/facts.h"
#include "topo/graph.h"
#include "topo/nvml_report.h"
#include "topo/probe_merge.h"
#include "topo/probe_net.h"
#include "topo/probe_pci.h"

struct node merge_blank(const struct merge *m, enum node_kind kind, int parent)
{
    return (struct node){.kind = kind,
                         .parent = parent,
                         .host = m->host,
                         .numa = -1,
                         .index = -1,
                         .clique = -1};
}

int merge_join(struct merge *m, int a, int b, enum link_kind kind, int width,
               struct fact nominal, struct err *e)
{
    struct link l = {.a = a,
                     .b = b,
                     .kind = kind,
                     .width = width,
                     .nominal = nominal,
                     .latency_us = fact_assumed(facts_latency_us(kind)),
                     .health = HEALTH_OK};

    return graph_add_link(m->b, &l, e);
}

int merge_numa(const struct merge *m, int number)
{
    for (int i = 0; i < m->pci->n_numas; i++)
        if (m->numa[i] >= 0 && m->pci->numas[i].number == number)
            return m->numa[i];
    return -1;
}

/* The node that stands for an item's place: its switch, bridge, NUMA node or the host. */
static int place_of(const struct merge *m, const struct pci_item *it)
{
    if (it->parent >= 0 && m->node[it->parent] >= 0)
        return m->node[it->parent];
    int numa = merge_numa(m, it->numa);
    return numa >= 0 ? numa : m->host;
}

/* ---- host, NUMA nodes, PCI ---- */

/* Is a GPU of this host in a domain that spans hosts? */
static bool spans_hosts(const struct nvml_report *r)
{
    for (int i = 0; r && i < r->n_gpus; i++)
        if (r->gpus[i].fabric_uuid[0])
            return true;
    return false;
}

static int add_host(struct merge *m, int imex, struct err *e)
{
    struct node n = {.kind = NODE_HOST,
                     .parent = -1,
                     .host = -1,
                     .numa = -1,
                     .index = -1,
                     .clique = -1,
                     .health = HEALTH_OK};

    if (spans_hosts(m->nvml))
        n.imex = imex;
    snprintf(n.name, sizeof(n.name), "%s", m->pci->host[0] ? m->pci->host : "localhost");
    m->host = graph_add_node(m->b, &n, e);
    return m->host < 0 ? -1 : 0;
}

static int add_numas(struct merge *m, struct err *e)
{
    const struct pci_report *p = m->pci;
    double bps = facts_socket_bps(p->arch, p->vendor, p->family, p->model);

    m->numa = xcalloc((size_t)p->n_numas + 1, sizeof(int));
    for (int i = 0; i < p->n_numas; i++) {
        struct node n = merge_blank(m, NODE_NUMA, m->host);
        m->numa[i] = -1;
        if (!p->numas[i].cpus[0])
            continue; /* memory only: a GPU's own, or CXL; no place to run */
        n.numa = p->numas[i].number;
        n.health = HEALTH_OK;
        if (p->numas[i].memory_bytes > 0)
            n.memory_bytes =
                fact_from(FROM_SYSFS, p->numas[i].memory_bytes, CONF_MEASURED);
        snprintf(n.name, sizeof(n.name), "numa%d", n.numa);
        if (p->vendor[0])
            snprintf(n.model, sizeof(n.model), "%s %s %d %d", p->arch, p->vendor,
                     p->family, p->model);
        else
            snprintf(n.model, sizeof(n.model), "%s", p->arch);
        snprintf(n.cpus, sizeof(n.cpus), "%s", p->numas[i].cpus);
        if ((m->numa[i] = graph_add_node(m->b, &n, e)) < 0)
            return -1;
        for (int k = 0; k < i; k++)
            if (m->numa[k] >= 0 && merge_join(m, m->numa[k], m->numa[i], LINK_SOCKET, 1,
                                              fact_assumed(bps), e) < 0)
                return -1;
    }
    return 0;
}

int merge_pci_link(struct merge *m, int node, int parent, const struct pci_item *it,
                   struct err *e)
{
    int gen = it ? facts_pcie_gen(it->gt) : 0;

    if (gen && it->width > 0)
        return merge_join(
            m, node, parent, LINK_PCI, it->width,
            fact_from(FROM_SYSFS, facts_pcie_bps(gen, it->width), CONF_MEASURED), e);
    return merge_join(m, node, parent, LINK_PCI, 16, fact_assumed(facts_pcie_bps(3, 16)),
                      e);
}

static int add_bridges(struct merge *m, struct err *e)
{
    const struct pci_report *p = m->pci;

    m->node = xcalloc((size_t)p->n_items + 1, sizeof(int));
    for (int i = 0; i < p->n_items; i++) {
        const struct pci_item *it = &p->items[i];
        m->node[i] = -1;
        if (it->kind != PCI_ROOT && it->kind != PCI_SWITCH)
            continue;
        struct node n = merge_blank(m, it->kind == PCI_ROOT ? NODE_BRIDGE : NODE_SWITCH,
                                    place_of(m, it));
        n.numa = it->numa;
        n.health = HEALTH_OK;
        snprintf(n.name, sizeof(n.name), "%s", it->addr);
        if (it->kind == PCI_SWITCH)
            snprintf(n.pci, sizeof(n.pci), "%s", it->addr);
        if ((m->node[i] = graph_add_node(m->b, &n, e)) < 0)
            return -1;
        /* a host bridge is as fast as its socket: no link of its own */
        if (it->kind == PCI_SWITCH && merge_pci_link(m, m->node[i], n.parent, it, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- NICs ---- */

static int add_nic(struct merge *m, const struct net_port *p, struct err *e)
{
    int at = p->pci[0] ? pci_find(m->pci, p->pci) : -1;
    const struct pci_item *it = at >= 0 ? &m->pci->items[at] : NULL;
    int numa = it && it->numa >= 0 ? it->numa : p->numa;
    int parent = it ? place_of(m, it) : merge_numa(m, numa);
    struct node n = merge_blank(m, NODE_NIC, parent >= 0 ? parent : m->host);

    n.numa = numa;
    n.index = p->ifindex > 0 ? p->ifindex : -1;
    n.gdr = p->rdma;
    n.health = p->state == NET_UP     ? HEALTH_OK
               : p->state == NET_DOWN ? HEALTH_BAD
               : p->state == NET_INIT ? HEALTH_DEGRADED
                                      : HEALTH_UNKNOWN;
    if (p->speed_bps > 0)
        n.speed =
            fact_from(p->rdma ? FROM_SYSFS : FROM_NETLINK, p->speed_bps, CONF_MEASURED);
    snprintf(n.name, sizeof(n.name), "%s", p->name);
    snprintf(n.model, sizeof(n.model), "%s%s", p->rdma ? "RDMA " : "", p->layer);
    snprintf(n.pci, sizeof(n.pci), "%s", p->pci);
    snprintf(n.port_guid, sizeof(n.port_guid), "%s", p->guid);
    int id = graph_add_node(m->b, &n, e);
    if (id < 0 || (it && merge_pci_link(m, id, n.parent, it, e) < 0))
        return -1;
    if (p->state != NET_UP)
        return 0; /* it reaches nothing */
    return merge_join(m, id, m->network, LINK_NET, 1, n.speed, e);
}

static int add_nics(struct merge *m, const struct net_report *net, struct err *e)
{
    struct node n = merge_blank(m, NODE_NETWORK, -1);

    for (int i = 0; net && i < net->n_warnings; i++)
        graph_warn(m->b, "%s", net->warnings[i]);
    if (!net || !net->n_ports)
        return 0;
    n.host = -1;
    snprintf(n.name, sizeof(n.name), "network");
    if ((m->network = graph_add_node(m->b, &n, e)) < 0)
        return -1;
    for (int i = 0; i < net->n_ports; i++)
        if (add_nic(m, &net->ports[i], e) < 0)
            return -1;
    return 0;
}

/* ---- no GPU: the CPUs are the devices ---- */

static int add_cpus(struct merge *m, struct err *e)
{
    const struct pci_report *p = m->pci;
    int index = 0;

    for (int i = 0; i < p->n_numas; i++) {
        if (m->numa[i] < 0)
            continue;
        struct node n = merge_blank(m, NODE_DEVICE, m->numa[i]);
        n.index = index++;
        n.numa = p->numas[i].number;
        n.is_cpu = true;
        n.health = HEALTH_OK;
        if (p->numas[i].memory_bytes > 0)
            n.memory_bytes =
                fact_from(FROM_SYSFS, p->numas[i].memory_bytes, CONF_MEASURED);
        snprintf(n.name, sizeof(n.name), "cpu%d", n.index);
        snprintf(n.model, sizeof(n.model), "%s", p->cpu[0] ? p->cpu : "CPU");
        snprintf(n.cpus, sizeof(n.cpus), "%s", p->numas[i].cpus);
        int id = graph_add_node(m->b, &n, e);
        /* how fast its memory is nobody says before it is measured */
        if (id < 0 ||
            merge_join(m, m->numa[i], id, LINK_MEMORY, 1, (struct fact){0}, e) < 0)
            return -1;
    }
    return 0;
}

int probe_merge(const struct pci_report *pci, const struct nvml_report *nvml,
                const char *why_not, const struct net_report *net, int imex,
                struct graph **ret, struct err *e)
{
    struct merge m = {
        .b = graph_builder_new(), .pci = pci, .nvml = nvml, .fabric = -1, .network = -1};
    int rc = -1;

    for (int i = 0; i < pci->n_warnings; i++)
        graph_warn(m.b, "%s", pci->warnings[i]);
    if (!nvml || nvml->error[0])
        graph_warn(m.b, "%s", nvml ? nvml->error : why_not);
    if (add_host(&m, imex, e) < 0 || add_numas(&m, e) < 0 || add_bridges(&m, e) < 0 ||
        merge_gpus(&m, e) < 0 || add_nics(&m, net, e) < 0)
        goto out;
    if (!m.n_gpus && add_cpus(&m, e) < 0)
        goto out;
    rc = graph_build(m.b, "live", false, ret, e);
    m.b = NULL;
out:
    graph_builder_free(m.b);
    free(m.numa);
    free(m.node);
    free(m.gpu);
    return rc;
}

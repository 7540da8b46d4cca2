/* topo/probe_gpu.c - GPUs and MIG instances of the live machine: place, figures, health.
 *
 * Health is what the driver says now. Anything worse than good comes with a sentence that
 * names the GPU and the reason. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/facts.h"
#include "topo/nvml_report.h"
#include "topo/probe_merge.h"
#include "topo/probe_pci.h"

/* ---- health ---- */

static void say(struct merge *m, const struct nvml_gpu *g, enum health to,
                enum health *health, const char *what)
{
    graph_warn(m->b, "GPU %d (%s) %s", g->index, g->pci, what);
    if (to > *health)
        *health = to;
}

/* Two bits of the mask: 1 = true. */
static bool mask_true(int64_t mask, int bit) { return (mask >> bit & 3) == 1; }

static int fabric_of(const struct nvml_gpu *g)
{
    switch (g->fabric_state) {
    case FABRIC_NONE:
        return FABRIC_IS_NONE;
    case FABRIC_NOT_STARTED:
        return FABRIC_IS_NOT_STARTED;
    case FABRIC_IN_PROGRESS:
        return FABRIC_IS_IN_PROGRESS;
    case FABRIC_COMPLETED:
        return g->fabric_status ? FABRIC_IS_REFUSED : FABRIC_IS_JOINED;
    default:
        return FABRIC_IS_UNKNOWN;
    }
}

static void fabric_health(struct merge *m, const struct nvml_gpu *g, enum health *h)
{
    const struct gpu_facts *f = facts_gpu(g->name);
    char text[160];

    switch (g->fabric_state) {
    case FABRIC_NONE:
        if (f && f->switched && f->c2c_bps > 0)
            say(m, g, HEALTH_DEGRADED, h,
                "has no fabric: the fabric or IMEX side is down, no traffic to other "
                "GPUs");
        return;
    case FABRIC_NOT_STARTED:
    case FABRIC_IN_PROGRESS:
        say(m, g, HEALTH_DEGRADED, h,
            g->fabric_state == FABRIC_NOT_STARTED
                ? "is not in the fabric yet: registration has not started (is the fabric "
                  "manager running?)"
                : "is not in the fabric yet: registration is in progress");
        return;
    case FABRIC_COMPLETED:
        break;
    default:
        return;
    }
    if (g->fabric_status) {
        snprintf(text, sizeof(text), "was refused by the fabric: %s",
                 g->fabric_status_text[0] ? g->fabric_status_text : "unknown status");
        say(m, g, HEALTH_BAD, h, text);
    }
    if (mask_true(g->fabric_health, 0))
        say(m, g, HEALTH_DEGRADED, h, "has degraded bandwidth in the fabric");
    if (mask_true(g->fabric_health, 4))
        say(m, g, HEALTH_DEGRADED, h, "has an unhealthy route in the fabric");
    if (mask_true(g->fabric_health, 6))
        say(m, g, HEALTH_DEGRADED, h, "recovers from a time-out in the fabric");
    if ((g->fabric_health >> 8 & 15) > 1)
        say(m, g, HEALTH_DEGRADED, h, "has a wrong fabric configuration");
    if (g->fabric_summary == 2 && *h < HEALTH_DEGRADED)
        say(m, g, HEALTH_DEGRADED, h, "is unhealthy in the fabric's own words");
}

static enum health health_of(struct merge *m, const struct nvml_gpu *g)
{
    static const char *const recovery[] = {"",
                                           "wants a reset",
                                           "wants a reboot of the host",
                                           "wants its peer traffic drained",
                                           "wants a drain and a reset",
                                           "wants its IMEX domain recovered"};
    enum health h = HEALTH_OK;
    char text[96];

    fabric_health(m, g, &h);
    if (g->recovery > 0)
        say(m, g, HEALTH_BAD, &h,
            g->recovery < 6 ? recovery[g->recovery] : "wants a recovery of unknown kind");
    if (g->remap_failed)
        say(m, g, HEALTH_BAD, &h, "has memory that can no longer be repaired");
    if (g->remap_pending)
        say(m, g, HEALTH_DEGRADED, &h, "has memory to repair at its next reset");
    if (g->ecc_uncorrected > 0) {
        snprintf(text, sizeof(text), "had %.0f uncorrected memory errors",
                 g->ecc_uncorrected);
        say(m, g, HEALTH_DEGRADED, &h, text);
    }
    if (g->xid) {
        snprintf(text, sizeof(text), "reported Xid %d", g->xid);
        say(m, g, HEALTH_DEGRADED, &h, text);
    }
    if (g->mig_pending != g->mig_current)
        say(m, g, HEALTH_BAD, &h, "changes its MIG mode at the next reset: not ready");
    return h;
}

/* ---- nodes ---- */

static int add_migs(struct merge *m, const struct nvml_gpu *g, int gpu,
                    const struct node *like, struct err *e)
{
    if (g->mig_current && !g->n_migs)
        graph_warn(m->b, "GPU %d (%s) is in MIG mode and has no instance", g->index,
                   like->name);
    for (int i = 0; i < g->n_migs; i++) {
        const struct nvml_mig *k = &g->migs[i];
        struct node n = merge_blank(m, NODE_DEVICE, gpu);

        n.numa = like->numa;
        n.index = i;
        n.sm = like->sm;
        n.mig = true;
        n.health = like->health;
        if (k->memory > 0)
            n.memory_bytes = fact_from(FROM_NVML, k->memory, CONF_MEASURED);
        snprintf(n.name, sizeof(n.name), "%.23s/%d.%d.%d", like->name, k->gi, k->ci, i);
        snprintf(n.model, sizeof(n.model), "%s", k->name[0] ? k->name : like->model);
        snprintf(n.uuid, sizeof(n.uuid), "%s", k->uuid);
        if (graph_add_node(m->b, &n, e) < 0)
            return -1;
    }
    return 0;
}

/* The item of the bus that this GPU is; without one, a link speed from NVML. */
static int place(struct merge *m, const struct nvml_gpu *g, struct node *n,
                 struct pci_item *ret_link)
{
    int at = pci_find(m->pci, g->pci);

    *ret_link = (struct pci_item){.gt = facts_pcie_gt(g->pcie_gen),
                                  .width = g->pcie_width < 255 ? g->pcie_width : 0};
    n->numa = at >= 0 && m->pci->items[at].numa >= 0 ? m->pci->items[at].numa : g->numa;
    int numa = merge_numa(m, n->numa);
    n->parent = numa >= 0 ? numa : m->host;
    if (at < 0) {
        graph_warn(m->b,
                   "GPU %d (%s) is not on the PCI list of this machine: its place "
                   "among switches is unknown",
                   g->index, g->pci);
        return -1;
    }
    const struct pci_item *it = &m->pci->items[at];
    if (it->parent >= 0 && m->node[it->parent] >= 0)
        n->parent = m->node[it->parent];
    if (it->gt > 0)
        *ret_link = *it;
    return at;
}

static int add_gpu(struct merge *m, int i, struct err *e)
{
    const struct nvml_gpu *g = &m->nvml->gpus[i];
    const struct gpu_facts *f = facts_gpu(g->name);
    struct node n = merge_blank(m, NODE_DEVICE, m->host);
    struct pci_item link;
    int at = place(m, g, &n, &link);

    n.index = g->index;
    n.sm = g->sm ? g->sm : f ? f->sm : 0;
    n.gdr = true;
    if (g->memory > 0)
        n.memory_bytes = fact_from(FROM_NVML, g->memory, CONF_MEASURED);
    else if (f)
        n.memory_bytes = fact_assumed(f->memory_bytes);
    if (g->memory <= 0)
        graph_warn(m->b, "the memory of GPU %d is unknown%s", g->index,
                   f ? ": the table's figure is taken" : "");
    snprintf(n.name, sizeof(n.name), "%s", g->pci);
    snprintf(n.pci, sizeof(n.pci), "%s", g->pci);
    snprintf(n.model, sizeof(n.model), "%s", g->name);
    snprintf(n.uuid, sizeof(n.uuid), "%s", g->uuid);
    snprintf(n.fabric_uuid, sizeof(n.fabric_uuid), "%s", g->fabric_uuid);
    if (g->fabric_state == FABRIC_COMPLETED && g->fabric_uuid[0])
        n.clique = g->fabric_clique;
    n.fabric = fabric_of(g);
    n.health = health_of(m, g);
    int id = graph_add_node(m->b, &n, e);
    if (id < 0)
        return -1;
    m->gpu[i] = id;
    m->n_gpus++;
    if (at >= 0)
        m->node[at] = id;
    if (n.parent != m->host && merge_pci_link(m, id, n.parent, &link, e) < 0)
        return -1;
    if (add_migs(m, g, id, &n, e) < 0)
        return -1;
    int numa = merge_numa(m, n.numa);
    if (g->c2c_active <= 0 || numa < 0)
        return 0;
    if (g->c2c_active < g->c2c_count)
        graph_warn(m->b, "GPU %d has %d of %d links to its CPU", g->index, g->c2c_active,
                   g->c2c_count);
    return merge_join(m, id, numa, LINK_C2C, g->c2c_active,
                      fact_from(FROM_NVML, g->c2c_mbps * 1e6, CONF_MEASURED), e);
}

/* GPUs of the bus that the driver does not list. */
static int add_unlisted(struct merge *m, struct err *e)
{
    bool driver = m->nvml && !m->nvml->error[0];

    for (int i = 0; i < m->pci->n_items; i++) {
        const struct pci_item *it = &m->pci->items[i];
        const struct gpu_facts *f = facts_gpu_by_pci(it->device);

        if (it->kind != PCI_GPU || m->node[i] >= 0)
            continue;
        int numa = merge_numa(m, it->numa);
        struct node n = merge_blank(m, NODE_DEVICE, numa >= 0 ? numa : m->host);
        if (it->parent >= 0 && m->node[it->parent] >= 0)
            n.parent = m->node[it->parent];
        n.numa = it->numa;
        n.health = driver ? HEALTH_BAD : HEALTH_UNKNOWN;
        if (f) {
            n.sm = f->sm;
            n.memory_bytes = fact_assumed(f->memory_bytes);
            snprintf(n.model, sizeof(n.model), "NVIDIA %s", f->name);
        }
        snprintf(n.name, sizeof(n.name), "%s", it->addr);
        snprintf(n.pci, sizeof(n.pci), "%s", it->addr);
        graph_warn(m->b,
                   driver
                       ? "GPU %s is on the PCI bus but not in the driver's list: it "
                         "fell off the bus or is bound elsewhere"
                       : "GPU %s is on the PCI bus; without NVML its memory, links and "
                         "health are unknown",
                   it->addr);
        m->node[i] = graph_add_node(m->b, &n, e);
        if (m->node[i] < 0)
            return -1;
        m->n_gpus++;
        if (n.parent != m->host && merge_pci_link(m, m->node[i], n.parent, it, e) < 0)
            return -1;
    }
    return 0;
}

/* The driver's GPU i is the first with its address. */
static bool is_first(const struct merge *m, int i)
{
    for (int k = 0; k < i; k++)
        if (m->gpu[k] >= 0 && !strcmp(m->nvml->gpus[k].pci, m->nvml->gpus[i].pci))
            return false;
    return true;
}

int merge_gpus(struct merge *m, struct err *e)
{
    int n = m->nvml ? m->nvml->n_gpus : 0;

    m->gpu = xcalloc((size_t)n + 1, sizeof(int));
    if (n && m->nvml->n_missing)
        graph_warn(m->b,
                   "the driver's library lacks %d of the calls that are used (%s ...): "
                   "what they would say is unknown",
                   m->nvml->n_missing, m->nvml->missing);
    for (int i = 0; i < n; i++) {
        const struct nvml_gpu *g = &m->nvml->gpus[i];
        m->gpu[i] = -1;
        if (g->error[0])
            graph_warn(m->b, "GPU %d of the driver does not answer: %s", g->index,
                       g->error);
        else if (!g->pci[0])
            graph_warn(m->b,
                       "GPU %d of the driver (%s) is left out: its PCI address, which "
                       "tells GPUs apart, is unknown",
                       g->index, g->uuid[0] ? g->uuid : "no UUID");
        else if (!is_first(m, i))
            graph_warn(m->b,
                       "GPU %d of the driver is left out: another has its PCI "
                       "address %s",
                       g->index, g->pci);
        else if (add_gpu(m, i, e) < 0)
            return -1;
    }
    if (add_unlisted(m, e) < 0)
        return -1;
    return n ? merge_nvlinks(m, e) : 0;
}

/* topo/probe_nvlink.c - NVLinks of the live machine, counted by their other end.
 *
 * NVSwitches whose PCI address the driver shows are nodes of their own; those that it
 * hides (VMs, B200, NVL72) are one node, which belongs to no host where the fabric has a
 * cluster UUID. A GPU none of whose links is up and that is not sold behind switches is
 * an ordinary PCIe GPU: nothing is said. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/facts.h"
#include "topo/nvml_report.h"
#include "topo/probe_merge.h"
#include "topo/probe_pci.h"

struct bundle {
    int to, width;
};

static int add_switch(struct merge *m, const char *pci, bool shared, struct err *e)
{
    struct node n = merge_blank(m, NODE_NVSWITCH, shared ? -1 : m->host);

    if (shared)
        n.host = -1;
    n.health = HEALTH_UNKNOWN;
    if (pci[0])
        snprintf(n.name, sizeof(n.name), "nvswitch%d", m->n_switches);
    else
        snprintf(n.name, sizeof(n.name), "%s", shared ? "nvlink-domain" : "nvswitch");
    snprintf(n.pci, sizeof(n.pci), "%s", pci);
    return graph_add_node(m->b, &n, e);
}

static int switch_at(struct merge *m, const char *pci, struct err *e)
{
    for (int i = 0; i < m->n_switches; i++)
        if (!strcmp(m->switches[i].pci, pci))
            return m->switches[i].node;
    if (m->n_switches == MERGE_SWITCHES_MAX)
        return err_set(e, ERR_TOOBIG, "more than %d NVSwitches", MERGE_SWITCHES_MAX);
    int id = add_switch(m, pci, false, e);
    if (id < 0)
        return -1;
    snprintf(m->switches[m->n_switches].pci, sizeof(m->switches[0].pci), "%s", pci);
    m->switches[m->n_switches++].node = id;
    return id;
}

static int hidden_switch(struct merge *m, const struct nvml_gpu *g, struct err *e)
{
    if (m->fabric < 0)
        m->fabric = add_switch(m, "", g->fabric_uuid[0] != '\0', e);
    return m->fabric;
}

static int gpu_at(const struct merge *m, const char *pci)
{
    for (int i = 0; i < m->nvml->n_gpus; i++)
        if (m->gpu[i] >= 0 && !strcmp(m->nvml->gpus[i].pci, pci))
            return i;
    return -1;
}

static bool p2p_bad(const struct merge *m, int a, int b)
{
    for (int i = 0; i < m->nvml->n_p2p_bad; i++)
        if ((m->nvml->p2p_bad[i][0] == a && m->nvml->p2p_bad[i][1] == b) ||
            (m->nvml->p2p_bad[i][0] == b && m->nvml->p2p_bad[i][1] == a))
            return true;
    return false;
}

/* The node that a link leads to: -1 none that counts, -2 error. */
static int far_end(struct merge *m, int i, const struct nvml_nvlink *l, struct err *e)
{
    const struct nvml_gpu *g = &m->nvml->gpus[i];
    const struct gpu_facts *f = facts_gpu(g->name);
    int at = l->pci[0] ? gpu_at(m, l->pci) : -1, id;

    if (at == i)
        return -1;
    if (at >= 0)
        return p2p_bad(m, i, at) ? -1 : m->gpu[at];
    if (l->remote == REMOTE_GPU && l->pci[0]) {
        graph_warn(m->b, "an NVLink of GPU %d leads to %s, which is no GPU that answers",
                   g->index, l->pci);
        return -1;
    }
    if (l->remote != REMOTE_SWITCH && !(f && f->switched)) {
        graph_warn(m->b, "the other end of an NVLink of GPU %d is unknown", g->index);
        return -1;
    }
    id = l->pci[0] ? switch_at(m, l->pci, e) : hidden_switch(m, g, e);
    return id < 0 ? -2 : id;
}

static int add_bundles(struct merge *m, int i, const struct bundle *b, int n,
                       int expected, struct err *e)
{
    const struct nvml_gpu *g = &m->nvml->gpus[i];
    double bps = facts_nvlink_bps(g->sm);

    for (int k = 0; k < n; k++) {
        struct link l = {.a = m->gpu[i],
                         .b = b[k].to,
                         .kind = LINK_NVLINK,
                         .width = b[k].width,
                         .expected = expected,
                         .latency_us = fact_assumed(facts_latency_us(LINK_NVLINK)),
                         .health = HEALTH_OK}; /* what is missing shows in the width */
        if (bps > 0)
            l.nominal = fact_assumed(b[k].width * bps);
        if (graph_add_link(m->b, &l, e) < 0)
            return -1;
    }
    return 0;
}

/* Why a GPU's links may not be used although they are up; NULL = they may. */
static const char *unusable(const struct nvml_gpu *g)
{
    if (g->mig_current || g->mig_pending)
        return "its MIG mode is on";
    if (g->fabric_state == FABRIC_NOT_STARTED || g->fabric_state == FABRIC_IN_PROGRESS)
        return "it is not in the fabric yet";
    if (g->fabric_state == FABRIC_COMPLETED && g->fabric_status)
        return "the fabric refused it";
    return NULL;
}

static void say_counts(struct merge *m, const struct nvml_gpu *g, int active, int unknown,
                       bool switched)
{
    if (unknown)
        graph_warn(m->b,
                   "the state of %d NVLinks of GPU %d is unknown: they do not count",
                   unknown, g->index);
    if (!active && switched)
        graph_warn(m->b,
                   "none of the %d NVLinks of GPU %d is active: it has no NVLink "
                   "domain",
                   g->n_links, g->index);
}

static int add_links(struct merge *m, int i, struct err *e)
{
    const struct nvml_gpu *g = &m->nvml->gpus[i];
    const struct gpu_facts *f = facts_gpu(g->name);
    struct bundle b[NVML_NVLINKS_MAX];
    int n = 0, active = 0, unknown = 0, k;

    for (int j = 0; j < g->n_links; j++) {
        active += g->links[j].active;
        unknown += !g->links[j].known;
    }
    say_counts(m, g, active, unknown, f && f->switched);
    const char *why = active ? unusable(g) : NULL;
    if (why)
        graph_warn(m->b, "the %d active NVLinks of GPU %d are left out: %s", active,
                   g->index, why);
    if (!active || why)
        return 0;
    for (int j = 0; j < g->n_links; j++) {
        if (!g->links[j].active)
            continue;
        int to = far_end(m, i, &g->links[j], e);
        if (to == -2)
            return -1;
        if (to < 0)
            continue;
        for (k = 0; k < n && b[k].to != to; k++)
            continue;
        if (k == n)
            b[n++] = (struct bundle){.to = to};
        b[k].width++;
    }
    return add_bundles(m, i, b, n, f && f->nvlinks ? f->nvlinks : g->n_links, e);
}

/* Pairs that NVLink joins and that may not read each other's memory all the same. */
static void say_pairs(struct merge *m)
{
    const struct nvml_report *r = m->nvml;
    int n = 0, a = 0, b = 0;

    for (int i = 0; i < r->n_p2p_bad; i++) {
        const struct nvml_gpu *x = &r->gpus[r->p2p_bad[i][0]];
        const struct nvml_gpu *y = &r->gpus[r->p2p_bad[i][1]];
        if (!x->n_links || !y->n_links || (unusable(x) || unusable(y)))
            continue;
        if (!n++) {
            a = x->index;
            b = y->index;
        }
    }
    if (n)
        graph_warn(m->b,
                   "%d directions between GPUs with NVLink are not open to peer access "
                   "(GPU %d to GPU %d first): the driver says so, whatever the links say",
                   n, a, b);
}

int merge_nvlinks(struct merge *m, struct err *e)
{
    for (int i = 0; i < m->nvml->n_gpus; i++)
        if (m->gpu[i] >= 0 && add_links(m, i, e) < 0)
            return -1;
    say_pairs(m);
    return 0;
}

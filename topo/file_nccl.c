/* topo/file_nccl.c - reads NCCL topology XML, as dumped by NCCL or injected by a cloud.
 *
 * Two passes over system > cpu > (pci | nic): the first makes hosts, NUMA nodes,
 * switches, devices and NICs; the second, with every device known, their NVLinks and C2C
 * links. Behaviour at what real files do:
 *   - several hosts fused into one file are told apart by host_hash alone
 *   - an nvlink target that is all f is the hidden fabric: one NVSwitch node of the host,
 *     or of the rack where the file holds several hosts (only multi-node NVLink is fused)
 *   - two-level Broadcom switches become one node, or GPU and NIC would read PXB
 *   - the same virtual NIC under two <cpu> is one NIC of unknown NUMA node
 *   - a speed that says nothing is Gen3 x16 with a warning; <pci> without a class cannot
 *     be placed and is refused: only the live machine could complete it
 *   - no <gpu> at all: an injection file, structure without state; a stated GPU model
 *     completes it from the table, else the warnings say what is missing */
#include "topo/file_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/facts.h"
#include "topo/file.h"
#include "topo/graph.h"
#include "topo/xml.h"

enum { LINKS_OF_GPU_MAX = 512 };

/* ---- hosts and CPUs ---- */

static int host_of(struct nccl *c, const struct xml_node *cpu)
{
    const char *hash = xml_attr(cpu, "host_hash");
    struct node n = nccl_blank(NODE_HOST, -1, -1);

    hash = hash ? hash : "";
    for (int i = 0; i < c->n_hosts; i++)
        if (!strcmp(c->hosts[i].hash, hash))
            return i;
    if (c->n_hosts == HOSTS_MAX)
        return err_set(c->e, ERR_TOOBIG, "line %d: more than %d hosts", cpu->line,
                       HOSTS_MAX);
    struct host_at h = {.hidden = -1};
    if (nccl_set_text(h.hash, sizeof(h.hash), hash, cpu, c->e) < 0)
        return -1;
    snprintf(n.name, sizeof(n.name), "host%d", c->n_hosts);
    snprintf(n.uuid, sizeof(n.uuid), "%s", h.hash);
    if ((h.node = graph_add_node(c->b, &n, c->e)) < 0)
        return -1;
    c->hosts = xrealloc(c->hosts, (c->n_hosts + 1) * sizeof(*c->hosts));
    c->hosts[c->n_hosts] = h;
    return c->n_hosts++;
}

static int cpu_model(struct nccl *c, const struct xml_node *cpu, struct node *n,
                     double *ret_socket_bps)
{
    const char *arch = xml_attr(cpu, "arch"), *vendor = xml_attr(cpu, "vendor");
    int64_t family = 0, model = 0;

    if (xml_int(cpu, "familyid", 0, 100000, &family, c->e) < 0 ||
        xml_int(cpu, "modelid", 0, 100000, &model, c->e) < 0)
        return -1;
    if (!arch) {
        graph_warn(c->b, "line %d: <cpu> has no arch, x86_64 assumed", cpu->line);
        arch = "x86_64";
    }
    if (vendor)
        snprintf(n->model, sizeof(n->model), "%.15s %.25s %d %d", arch, vendor,
                 (int)family, (int)model);
    else
        snprintf(n->model, sizeof(n->model), "%.15s", arch);
    *ret_socket_bps =
        facts_socket_bps(arch, vendor ? vendor : "", (int)family, (int)model);
    return 0;
}

static int add_cpu(struct nccl *c, const struct xml_node *cpu)
{
    int64_t numa = 0;
    double socket_bps;
    int host = host_of(c, cpu), have;

    if (host < 0 || (have = xml_int(cpu, "numaid", -1, 65535, &numa, c->e)) < 0)
        return -1;
    if (!have)
        return err_param(c->e, ERR_INVALID, "numaid", "line %d: <cpu> has no numaid",
                         cpu->line);
    struct host_at *h = &c->hosts[host];
    if (h->n_numas == NUMAS_MAX)
        return err_set(c->e, ERR_TOOBIG, "line %d: more than %d <cpu> in one host",
                       cpu->line, NUMAS_MAX);
    struct node n = nccl_blank(NODE_NUMA, h->node, h->node);
    const char *mask = xml_attr(cpu, "affinity");
    n.numa = (int)numa;
    snprintf(n.name, sizeof(n.name), "numa%d", (int)numa);
    if (cpu_model(c, cpu, &n, &socket_bps) < 0)
        return -1;
    if (mask && !cpus_from_mask(mask, n.cpus, sizeof(n.cpus))) {
        graph_warn(c->b, "line %d: affinity '%.40s' is not a mask, CPUs unknown",
                   cpu->line, mask);
        n.cpus[0] = '\0';
    }
    if (numa < 0)
        graph_warn(c->b, "line %d: <cpu numaid=\"-1\">: NUMA node unknown", cpu->line);
    int node = graph_add_node(c->b, &n, c->e);
    if (node < 0)
        return -1;
    for (int i = 0; i < h->n_numas; i++) {
        struct link l = {.a = h->numas[i],
                         .b = node,
                         .kind = LINK_SOCKET,
                         .width = 1,
                         .nominal = fact_assumed(socket_bps),
                         .latency_us = fact_assumed(facts_latency_us(LINK_SOCKET))};
        if (graph_add_link(c->b, &l, c->e) < 0)
            return -1;
    }
    h->numas[h->n_numas++] = node;
    return nccl_walk(c, (struct place){host, node, (int)numa, node}, cpu);
}

/* ---- NVLink and C2C ---- */

static bool all_f(const char *target)
{
    int digits = 0;

    for (const char *s = target; *s && *s != '.'; s++) {
        if (*s == ':')
            continue;
        if (*s != 'f' && *s != 'F')
            return false;
        digits++;
    }
    return digits >= 8;
}

/* The switch that all links of this host go to where no switch can be seen. */
static int hidden_switch(struct nccl *c, int host)
{
    struct host_at *h = &c->hosts[host];
    bool many = c->n_hosts > 1;
    struct node n = nccl_blank(NODE_NVSWITCH, many ? -1 : h->node, many ? -1 : h->node);

    if (many && c->rack_fabric >= 0)
        return c->rack_fabric;
    if (!many && h->hidden >= 0)
        return h->hidden;
    snprintf(n.name, sizeof(n.name), "nvswitch-hidden");
    int node = graph_add_node(c->b, &n, c->e);
    if (many) {
        c->rack_fabric = node;
        graph_warn(c->b,
                   "%d hosts in one file: one NVLink domain is assumed, as only such "
                   "domains are dumped together; clique ids are not in the file",
                   c->n_hosts);
    } else {
        h->hidden = node;
    }
    return node;
}

static struct part *part_at(struct nccl *c, int host, uint64_t pci)
{
    for (int i = 0; i < c->n_parts; i++)
        if (c->parts[i].host == host && c->parts[i].pci == pci)
            return &c->parts[i];
    return NULL;
}

static int seen_switch(struct nccl *c, int host, uint64_t pci)
{
    struct part *p = part_at(c, host, pci);
    struct node n = nccl_blank(NODE_NVSWITCH, c->hosts[host].node, c->hosts[host].node);

    if (p && !p->nvswitch)
        return err_set(c->e, ERR_CONFLICT, "an NVSwitch has the address of a GPU");
    if (p)
        return p->node;
    nccl_pci_text(pci, n.pci, sizeof(n.pci));
    snprintf(n.name, sizeof(n.name), "%s", n.pci);
    int node = graph_add_node(c->b, &n, c->e);
    if (node >= 0) {
        nccl_add_part(c, &(struct part){.host = host, .node = node, .pci = pci});
        c->parts[c->n_parts - 1].nvswitch = true;
    }
    return node;
}

static const struct xml_node *link_to(const struct xml_node *gpu, uint64_t pci)
{
    for (const struct xml_node *k = gpu ? gpu->child : NULL; k; k = k->next) {
        const char *target = xml_attr(k, "target");
        uint64_t to;
        if (!strcmp(k->name, "nvlink") && target && pci_parse(target, &to) && to == pci)
            return k;
    }
    return NULL;
}

/* The node at the other end, -1 with an error, or -2: told in a warning, no link. */
static int nvlink_end(struct nccl *c, const struct part *p, const struct xml_node *x)
{
    const char *target = xml_attr(x, "target"), *class = xml_attr(x, "tclass");
    uint64_t pci;

    if (target && all_f(target))
        return hidden_switch(c, p->host);
    if (!target || !pci_parse(target, &pci))
        return err_param(c->e, ERR_INVALID, "target",
                         "line %d: <nvlink target=\"%.30s\"> is not a PCI address",
                         x->line, target ? target : "");
    class = class ? class : "";
    class += !strncmp(class, "0x", 2) ? 2 : 0;
    if (!strncmp(class, "068000", 6))
        return seen_switch(c, p->host, pci);
    if (strncmp(class, "03", 2)) {
        graph_warn(c->b, "line %d: NVLink to a device of class '%.12s' is left out",
                   x->line, class);
        return -2;
    }
    struct part *to = part_at(c, p->host, pci);
    if (!to || to->nvswitch) {
        graph_warn(c->b, "line %d: NVLink to %s, which is not in the file, is left out",
                   x->line, target);
        return -2;
    }
    if (to->gpu && !link_to(to->gpu, p->pci))
        graph_warn(c->b, "line %d: NVLink to %s, which does not name it in return",
                   x->line, target);
    return to->node;
}

static int add_nvlink(struct nccl *c, const struct part *p, const struct xml_node *x,
                      int end)
{
    int64_t count = 0;
    int rc = xml_int(x, "count", 1, 1000, &count, c->e);

    if (rc == 0)
        return err_param(c->e, ERR_INVALID, "count", "line %d: <nvlink> has no count",
                         x->line);
    if (rc < 0)
        return -1;
    struct link l = {.a = p->node,
                     .b = end,
                     .kind = LINK_NVLINK,
                     .width = (int)count,
                     .expected = p->nvlinks,
                     .nominal = fact_assumed((double)count * p->nvlink_bps),
                     .latency_us = fact_assumed(facts_latency_us(LINK_NVLINK))};
    return graph_add_link(c->b, &l, c->e);
}

static int add_c2c(struct nccl *c, const struct part *p, const struct xml_node *x)
{
    int64_t mbps = 0, count = 0;

    if (xml_int(x, "bw", 0, 100000000, &mbps, c->e) < 0 ||
        xml_int(x, "count", 0, 1000, &count, c->e) < 0)
        return -1;
    struct link l = {
        .a = p->numa_node,
        .b = p->node,
        .kind = LINK_C2C,
        .width = (int)count,
        .nominal = fact_from(FROM_FILE, (double)mbps * (double)count * 1e6, CONF_ASSUMED),
        .latency_us = fact_assumed(facts_latency_us(LINK_C2C))};
    return graph_add_link(c->b, &l, c->e);
}

/* A target listed twice within one GPU contradicts itself: which count is it? */
static int check_twice(struct nccl *c, const struct xml_node *x)
{
    const char *a = xml_attr(x, "target");

    for (const struct xml_node *k = x->next; k; k = k->next) {
        const char *b = xml_attr(k, "target");
        if (!strcmp(k->name, "nvlink") && a && b && !strcmp(a, b))
            return err_set(c->e, ERR_CONFLICT,
                           "line %d: NVLink target %.30s is listed twice, see line %d",
                           k->line, b, x->line);
    }
    return 0;
}

static int links_of_gpu(struct nccl *c, int i)
{
    const struct xml_node *gpu = c->parts[i].gpu;
    int children = 0;

    for (const struct xml_node *k = gpu->child; k; k = k->next)
        if (++children > LINKS_OF_GPU_MAX)
            return err_set(c->e, ERR_TOOBIG, "line %d: <gpu> has more than %d links",
                           gpu->line, LINKS_OF_GPU_MAX);
    for (const struct xml_node *k = gpu->child; k; k = k->next) {
        struct part p = c->parts[i]; /* a copy: switches are added to the list */
        int end, rc = 0;
        if (!strcmp(k->name, "c2c"))
            rc = add_c2c(c, &p, k);
        if (!strcmp(k->name, "xgmi"))
            rc = err_set(c->e, ERR_UNSUPPORTED, "line %d: <xgmi>: not an NVIDIA rack",
                         k->line);
        if (rc == 0 && !strcmp(k->name, "nvlink")) {
            if (p.nvlink_bps <= 0)
                return err_param(
                    c->e, ERR_INVALID, "sm",
                    "line %d: <gpu> has NVLinks and no sm to tell their speed",
                    gpu->line);
            if (check_twice(c, k) < 0 || (end = nvlink_end(c, &p, k)) == -1)
                return -1;
            rc = end < 0 ? 0 : add_nvlink(c, &p, k, end);
        }
        if (rc < 0)
            return -1;
    }
    return 0;
}

/* An injected file with a stated model: what that model has, said to be assumed. */
static int complete(struct nccl *c)
{
    int n = c->n_parts;

    if (!c->stated) {
        graph_warn(
            c->b,
            "no <gpu> in the file: an injection file has structure only, no "
            "memory, NVLinks, compute capability or NIC speeds; state the GPU model to "
            "complete it");
        return 0;
    }
    if (!c->stated->switched)
        return 0;
    for (int i = 0; i < n; i++) {
        struct link l = {.a = c->parts[i].node,
                         .kind = LINK_NVLINK,
                         .width = c->stated->nvlinks,
                         .expected = c->stated->nvlinks,
                         .nominal =
                             fact_assumed(c->stated->nvlinks * c->stated->nvlink_bps),
                         .latency_us = fact_assumed(facts_latency_us(LINK_NVLINK))};
        if ((l.b = hidden_switch(c, c->parts[i].host)) < 0 ||
            graph_add_link(c->b, &l, c->e) < 0)
            return -1;
    }
    graph_warn(c->b,
               "NVLinks are not in the file; those of %s are assumed for all %d GPUs",
               c->stated->name, n);
    return 0;
}

/* ---- the document ---- */

static int check_root(const struct xml_node *root, struct err *e)
{
    const char *version = xml_attr(root, "version");

    if (strcmp(root->name, "system"))
        return err_set(e, ERR_SYNTAX,
                       "line %d: root <%.40s> where NCCL's topology has <system>",
                       root->line, root->name);
    if (!version || strcmp(version, "1"))
        return err_param(e, ERR_UNSUPPORTED, "version",
                         "line %d: topology version '%.20s', only 1 is NCCL's (RCCL for "
                         "AMD devices writes 2)",
                         root->line, version ? version : "");
    return 0;
}

static int read_document(struct nccl *c)
{
    if (check_root(c->root, c->e) < 0)
        return -1;
    for (const struct xml_node *k = c->root->child; k; k = k->next)
        if (!strcmp(k->name, "cpu") && add_cpu(c, k) < 0)
            return -1;
    int n = c->n_parts; /* NVSwitches come after the GPUs */
    if (n == 0)
        return err_set(c->e, ERR_INVALID, "no GPU in the file");
    for (int i = 0; i < n; i++)
        if (c->parts[i].gpu && links_of_gpu(c, i) < 0)
            return -1;
    return c->n_gpu_elements ? 0 : complete(c);
}

int topo_from_nccl(const char *bytes, size_t n, const char *name, const char *gpu,
                   struct graph **ret, struct err *e)
{
    struct nccl c = {.e = e, .network = -1, .rack_fabric = -1};
    struct xml *xml;
    char source[128];
    int rc;

    if (gpu && !(c.stated = facts_gpu(gpu)))
        return err_param(e, ERR_NOTFOUND, "gpu", "GPU model '%.40s' is not in the table",
                         gpu);
    if (xml_parse(bytes, n, &xml, e) < 0)
        return -1;
    c.root = xml_root(xml);
    c.b = graph_builder_new();
    rc = read_document(&c);
    snprintf(source, sizeof(source), "nccl xml %.100s", name);
    if (rc == 0)
        rc = graph_build(c.b, source, true, ret, e);
    else
        graph_builder_free(c.b);
    free(c.hosts);
    free(c.parts);
    free(c.virtual_nics);
    xml_free(xml);
    return rc;
}

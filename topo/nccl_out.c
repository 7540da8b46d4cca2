/* topo/nccl_out.c - writes a rack as XML that NCCL accepts through NCCL_TOPO_FILE.
 *
 * Its reader is simple: double quotes, one blank between attributes, no entities, no
 * prolog, values of up to 255 bytes. Names that would need escaping are therefore
 * refused. NVSwitches without an address are written as the hidden fabric, as NCCL itself
 * does. */
#include "topo/file_nccl.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "topo/facts.h"
#include "topo/file.h"

#define HIDDEN "fffffff:ff:ff.0"

enum { VALUE_MAX = 255 };

/* ---- masks ---- */

bool cpus_from_mask(const char *mask, char *ret, size_t n)
{
    size_t words = 1, used = 0;
    long from = -1;
    unsigned word = 0;

    if (n == 0 || !*mask)
        return false;
    for (const char *s = mask; *s; s++) {
        if (*s != ',' && !isxdigit((unsigned char)*s))
            return false;
        words += *s == ',';
    }
    ret[0] = '\0';
    for (long bit = 0; bit <= (long)words * 32; bit++) {
        if (bit % 32 == 0 && bit < (long)words * 32) {
            const char *s = mask;
            for (size_t skip = words - 1 - (size_t)bit / 32; skip; s++)
                skip -= *s == ',';
            if (strcspn(s, ",") > 8)
                return false;
            word = (unsigned)strtoul(s, NULL, 16);
        }
        bool set = bit < (long)words * 32 && (word >> bit % 32 & 1);
        if (set && from < 0)
            from = bit;
        if (set || from < 0)
            continue;
        int k = from == bit - 1
                    ? snprintf(ret + used, n - used, "%s%ld", used ? "," : "", from)
                    : snprintf(ret + used, n - used, "%s%ld-%ld", used ? "," : "", from,
                               bit - 1);
        if (k < 0 || (size_t)k >= n - used)
            return false;
        used += (size_t)k;
        from = -1;
    }
    return true;
}

bool cpus_to_mask(const char *cpus, char *ret, size_t n)
{
    enum { BITS = 4096 };
    unsigned words[BITS / 32] = {0};
    int last = 0;
    size_t used = 0;

    while (*cpus) {
        char *end;
        long a = strtol(cpus, &end, 10), b = a;
        if (end == cpus)
            return false;
        if (*end == '-')
            b = strtol(end + 1, &end, 10);
        if (a < 0 || b < a || b >= BITS || (*end && *end != ','))
            return false;
        for (long i = a; i <= b; i++)
            words[i / 32] |= 1u << i % 32;
        last = b / 32 > last ? (int)(b / 32) : last;
        cpus = *end ? end + 1 : end;
    }
    for (int i = last; i >= 0; i--) {
        int k = snprintf(ret + used, n - used, "%s%08x", i < last ? "," : "", words[i]);
        if (k < 0 || (size_t)k >= n - used)
            return false;
        used += (size_t)k;
    }
    return true;
}

/* ---- writing ---- */

struct out {
    const struct graph *g;
    struct buf *b;
    struct err *e;
    int *child, *next; /* first child and next sibling of each node, -1 */
    int rank, hosts;
};

static void indent(struct out *o, int depth) { buf_printf(o->b, "%*s", 2 * depth, ""); }

static int check_value(struct out *o, const char *s)
{
    if (s[strcspn(s, "<>&\"'")])
        return err_set(o->e, ERR_UNSUPPORTED,
                       "'%.40s' cannot be written: NCCL's reader has "
                       "no escapes",
                       s);
    return 0;
}

/* Opening <pci> of a function, with its link to the node above. */
static int open_pci(struct out *o, const struct node *n, const char *class, int depth)
{
    const struct link *l = graph_link_between(o->g, n->id, n->parent, LINK_PCI);
    const struct gpu_facts *f = n->kind == NODE_DEVICE ? facts_gpu(n->model) : NULL;
    uint64_t pci;
    int gen = 3, width = l && l->width ? l->width : 16;

    if (!pci_parse(n->pci, &pci))
        return err_set(o->e, ERR_UNSUPPORTED,
                       "%s '%s' has no PCI address, which NCCL's format needs",
                       node_kind_name(n->kind), n->name);
    for (int i = 1; l && i <= 7; i++)
        if (fabs(facts_pcie_bps(i, width) - l->nominal.v) < 1e6)
            gen = i;
    indent(o, depth);
    buf_printf(o->b, "<pci busid=\"%s\" class=\"%s\"", n->pci, class);
    if (n->kind == NODE_DEVICE)
        buf_puts(o->b, " vendor=\"0x10de\"");
    if (f)
        buf_printf(o->b, " device=\"0x%04x\"", f->pci[0]);
    buf_printf(o->b, " link_speed=\"%.1f GT/s PCIe\" link_width=\"%d\"",
               facts_pcie_gt(gen), width);
    return 0;
}

static void put_nvlinks(struct out *o, const struct node *n, int depth)
{
    const int *at;
    int k = graph_links_at(o->g, n->id, &at), hidden = 0;

    for (int i = 0; i < k; i++) {
        const struct link *l = graph_link(o->g, at[i]);
        const struct node *to = graph_node(o->g, l->a == n->id ? l->b : l->a);
        bool sw = to->kind == NODE_NVSWITCH;
        if (l->kind != LINK_NVLINK || l->width == 0)
            continue;
        if (!to->pci[0]) {
            hidden += l->width;
            continue;
        }
        indent(o, depth);
        buf_printf(o->b, "<nvlink target=\"%s\" count=\"%d\" tclass=\"%s\"/>\n", to->pci,
                   l->width, sw ? "0x068000" : "0x030200");
    }
    if (hidden) {
        indent(o, depth);
        buf_printf(o->b,
                   "<nvlink target=\"" HIDDEN "\" count=\"%d\" tclass=\"0x068000\"/>\n",
                   hidden);
    }
    for (int i = 0; i < k; i++) {
        const struct link *l = graph_link(o->g, at[i]);
        if (l->kind != LINK_C2C || l->width == 0)
            continue;
        indent(o, depth);
        buf_printf(o->b, "<c2c bw=\"%.0f\" count=\"%d\"/>\n",
                   l->nominal.v / l->width / 1e6, l->width);
    }
}

static int put_gpu(struct out *o, const struct node *n, int part, int depth)
{
    if (n->sm <= 0)
        return err_set(
            o->e, ERR_UNSUPPORTED,
            "GPU %s: its compute capability is unknown, NCCL's format needs it", n->name);
    indent(o, depth);
    buf_printf(o->b, "<gpu dev=\"%d\" sm=\"%d\" rank=\"%d\" gdr=\"%d\"%s>\n",
               n->index < 0 ? o->rank : n->index, n->sm, o->rank, n->gdr,
               part ? " mlopart=\"1\"" : "");
    o->rank++;
    put_nvlinks(o, n, depth + 1);
    indent(o, depth);
    buf_puts(o->b, "</gpu>\n");
    return 0;
}

static int put_net(struct out *o, const struct node *n, int port, int depth)
{
    const int *at;
    int k = graph_links_at(o->g, n->id, &at);
    double latency = 0;

    if (check_value(o, n->name) < 0 || check_value(o, n->port_guid) < 0)
        return -1;
    for (int i = 0; i < k; i++) {
        const struct link *l = graph_link(o->g, at[i]);
        if (l->kind == LINK_NET && l->latency_us.source == FROM_FILE)
            latency = l->latency_us.v;
    }
    indent(o, depth);
    buf_printf(o->b,
               "<net name=\"%s\" dev=\"%d\" latency=\"%g\" speed=\"%.0f\" port=\"%d\" "
               "guid=\"%s\" maxconn=\"131072\" gdr=\"%d\"/>\n",
               n->name, n->index < 0 ? 0 : n->index, latency, n->speed.v * 8 / 1e6, port,
               n->port_guid[0] ? n->port_guid : "0x0", n->gdr);
    return 0;
}

/* Structure without state: written as it came, the live host completes it. */
static bool injected(const struct out *o, const struct node *n)
{
    const int *at;
    int k = graph_links_at(o->g, n->id, &at);

    if (n->kind == NODE_NIC)
        return n->speed.v == 0;
    for (int i = 0; i < k; i++)
        if (graph_link(o->g, at[i])->kind == LINK_NVLINK)
            return false;
    return n->index < 0;
}

/* All devices or NICs of one PCI function, whose first is n. */
static int put_function(struct out *o, const struct node *n, int depth)
{
    bool nic = n->kind == NODE_NIC;
    int part = 0;

    if (open_pci(o, n, nic ? "0x020000" : "0x030200", depth) < 0)
        return -1;
    if (injected(o, n)) {
        buf_puts(o->b, "/>\n");
        return 0;
    }
    buf_puts(o->b, ">\n");
    if (nic) {
        indent(o, ++depth);
        buf_puts(o->b, "<nic>\n");
    }
    for (int i = n->id; i >= 0; i = o->next[i]) {
        const struct node *k = graph_node(o->g, i);
        if (k->kind != n->kind || strcmp(k->pci, n->pci))
            continue;
        int rc =
            nic ? put_net(o, k, ++part, depth + 1) : put_gpu(o, k, part++, depth + 1);
        if (rc < 0)
            return -1;
    }
    if (nic) {
        indent(o, depth--);
        buf_puts(o->b, "</nic>\n");
    }
    indent(o, depth);
    buf_puts(o->b, "</pci>\n");
    return 0;
}

/* Was the function of this device or NIC written with an earlier sibling? */
static bool written(struct out *o, const struct node *n)
{
    for (int i = o->child[n->parent]; i != n->id; i = o->next[i]) {
        const struct node *k = graph_node(o->g, i);
        if (k->kind == n->kind && n->pci[0] && !strcmp(k->pci, n->pci))
            return true;
    }
    return false;
}

static int put_virtual(struct out *o, const struct node *n, int depth)
{
    indent(o, depth);
    buf_puts(o->b, "<nic>\n");
    if (put_net(o, n, 0, depth + 1) < 0)
        return -1;
    indent(o, depth);
    buf_puts(o->b, "</nic>\n");
    return 0;
}

static int put_children(struct out *o, int parent, int depth)
{
    for (int i = o->child[parent]; i >= 0; i = o->next[i]) {
        const struct node *n = graph_node(o->g, i);
        int rc = 0;
        if (n->kind == NODE_BRIDGE) {
            rc = put_children(o, i, depth);
        } else if (n->kind == NODE_SWITCH) {
            if ((rc = open_pci(o, n, "0x060400", depth)) == 0) {
                buf_puts(o->b, ">\n");
                rc = put_children(o, i, depth + 1);
                indent(o, depth);
                buf_puts(o->b, "</pci>\n");
            }
        } else if (n->kind == NODE_DEVICE && n->is_cpu) {
            rc = err_set(o->e, ERR_UNSUPPORTED,
                         "%s is a CPU device: NCCL's format knows GPUs only", n->name);
        } else if (n->kind == NODE_NIC && !n->pci[0] &&
                   !graph_link_between(o->g, i, parent, LINK_PCI)) {
            rc = put_virtual(o, n, depth);
        } else if ((n->kind == NODE_DEVICE || n->kind == NODE_NIC) && !written(o, n)) {
            rc = put_function(o, n, depth);
        }
        if (rc < 0)
            return -1;
    }
    return 0;
}

static int open_cpu(struct out *o, const struct node *host, const struct node *numa)
{
    char arch[16] = "x86_64", vendor[32] = "", mask[VALUE_MAX + 1];
    int family = 0, model = 0;

    if (check_value(o, host->uuid) < 0 || (numa && check_value(o, numa->model) < 0))
        return -1;
    if (numa)
        sscanf(numa->model, "%15s %31s %d %d", arch, vendor, &family, &model);
    buf_puts(o->b, "  <cpu");
    if (host->uuid[0])
        buf_printf(o->b, " host_hash=\"%s\"", host->uuid);
    else if (o->hosts > 1)
        buf_printf(o->b, " host_hash=\"0x%x\"", host->id + 1);
    buf_printf(o->b, " numaid=\"%d\"", numa ? numa->numa : -1);
    if (numa && numa->cpus[0] && cpus_to_mask(numa->cpus, mask, sizeof(mask)))
        buf_printf(o->b, " affinity=\"%s\"", mask);
    buf_printf(o->b, " arch=\"%s\"", arch);
    if (vendor[0])
        buf_printf(o->b, " vendor=\"%s\" familyid=\"%d\" modelid=\"%d\"", vendor, family,
                   model);
    buf_puts(o->b, ">\n");
    return 0;
}

/* What hangs on the host itself: NICs of unknown place go under every CPU, as a socket
 * plugin's do; PCI devices under a CPU of NUMA node -1. */
static int put_unplaced(struct out *o, const struct node *host, bool virtual)
{
    for (int i = o->child[host->id]; i >= 0; i = o->next[i]) {
        const struct node *n = graph_node(o->g, i);
        bool is = n->kind == NODE_NIC && !n->pci[0];
        if (n->kind == NODE_NIC && virtual && is && put_virtual(o, n, 2) < 0)
            return -1;
        if (!virtual && !is && (n->kind == NODE_DEVICE || n->kind == NODE_NIC) &&
            !written(o, n) && put_function(o, n, 2) < 0)
            return -1;
    }
    return 0;
}

static int put_host(struct out *o, const struct node *host)
{
    bool unplaced = false;

    for (int i = o->child[host->id]; i >= 0; i = o->next[i]) {
        const struct node *n = graph_node(o->g, i);
        unplaced |= n->kind == NODE_DEVICE || (n->kind == NODE_NIC && n->pci[0]);
        if (n->kind != NODE_NUMA)
            continue;
        if (open_cpu(o, host, n) < 0 || put_children(o, i, 2) < 0 ||
            put_unplaced(o, host, true) < 0)
            return -1;
        buf_puts(o->b, "  </cpu>\n");
    }
    if (!unplaced)
        return 0;
    if (open_cpu(o, host, NULL) < 0 || put_unplaced(o, host, false) < 0)
        return -1;
    buf_puts(o->b, "  </cpu>\n");
    return 0;
}

int topo_to_nccl(const struct graph *g, struct buf *b, struct err *e)
{
    int n = graph_n_nodes(g), rc = 0;
    struct out o = {.g = g, .b = b, .e = e, .hosts = graph_count(g, NODE_HOST)};

    o.child = xmalloc((n + 1) * sizeof(int));
    o.next = xmalloc((n + 1) * sizeof(int));
    memset(o.child, 0xff, (n + 1) * sizeof(int));
    for (int i = n - 1; i >= 0; i--) {
        int up = graph_node(g, i)->parent;
        o.next[i] = -1;
        if (up < 0)
            continue;
        o.next[i] = o.child[up];
        o.child[up] = i;
    }
    buf_puts(b, "<system version=\"1\">\n");
    for (int i = 0; rc == 0 && i < n; i++)
        if (graph_node(g, i)->kind == NODE_HOST)
            rc = put_host(&o, graph_node(g, i));
    buf_puts(b, "</system>\n");
    free(o.child);
    free(o.next);
    if (rc < 0)
        return err_wrap(e, "no NCCL topology of rack '%.60s'", graph_source(g));
    return b->over ? err_set(e, ERR_TOOBIG, "the XML does not fit") : 0;
}

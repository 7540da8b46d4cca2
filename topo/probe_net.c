/* topo/probe_net.c - see probe_net.h.
 *
 * Merging goes by what is surest: RDMA ports first (netlink, or sysfs where the kernel
 * has no such list), each takes its network device by index or by PCI function; then the
 * network devices that are left. A bond is reported, not added: its ports stay apart with
 * one sentence, since it is one fault domain and needs several queue pairs. */
#include "topo/probe_net.h"

#include <dirent.h>
#include <limits.h>
#include <net/if_arp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/sysfs.h"
#include "topo/warnings.h"

enum { PORTS_MAX = 1024 };

static void warn(struct net_report *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void warn(struct net_report *r, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    warnings_vadd(&r->warnings, &r->n_warnings, fmt, ap);
    va_end(ap);
}

void net_report_free(struct net_report *r)
{
    if (!r)
        return;
    warnings_free(r->warnings, r->n_warnings);
    free(r->ports);
    free(r);
}

const struct net_port *net_report_port(const struct net_report *r, const char *name)
{
    for (int i = 0; i < r->n_ports; i++)
        if (!strcmp(r->ports[i].name, name))
            return &r->ports[i];
    return NULL;
}

static struct net_port *add_port(struct net_report *r)
{
    if (r->n_ports == PORTS_MAX)
        return NULL;
    if (r->n_ports % 32 == 0)
        r->ports = xrealloc(r->ports, (size_t)(r->n_ports + 32) * sizeof(*r->ports));
    struct net_port *p = &r->ports[r->n_ports++];
    memset(p, 0, sizeof(*p));
    p->numa = -1;
    return p;
}

double net_rate_bps(const char *text)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || !(v > 0 && v < 1e6) || strncmp(end, " Gb/sec", 7))
        return 0;
    return v * 1e9 / 8;
}

/* ---- network devices ---- */

static void set_place(struct net_port *p, const char *sysfs, const char *class_dir,
                      const char *dev)
{
    long numa;

    if (!p->pci[0])
        sysfs_pci(sysfs, p->pci, sizeof(p->pci), "class/%s/%s/device", class_dir, dev);
    if (sysfs_long(sysfs, &numa, "class/%s/%s/device/numa_node", class_dir, dev) &&
        numa >= 0 && numa < INT_MAX)
        p->numa = (int)numa;
}

static double link_speed(const struct net_table *t, int ifindex)
{
    for (int i = 0; i < t->n_speeds; i++)
        if (t->speeds[i].ifindex == ifindex && t->speeds[i].mbps > 0)
            return (double)t->speeds[i].mbps * 1e6 / 8;
    return 0;
}

static const char *down_reason(const struct net_table *t, const struct net_link *l)
{
    const char *why = NULL;

    if (!l->admin_up)
        return "it is not switched on";
    for (int i = 0; i < t->n_downs; i++)
        if (t->downs[i].ifindex == l->ifindex)
            why = net_down_reason(t->downs[i].why);
    return why ? why : "no carrier";
}

/* What a network device says of the port that it stands for. */
static void set_link(struct net_report *r, struct net_port *p, const char *sysfs,
                     const struct net_table *t, const struct net_link *l)
{
    const struct net_link *master = l->master ? net_table_link(t, l->master) : NULL;

    snprintf(p->netdev, sizeof(p->netdev), "%s", l->name);
    p->ifindex = l->ifindex;
    p->mtu = l->mtu;
    if (master && (!strcmp(master->kind, "bond") || !strcmp(master->kind, "team")))
        snprintf(p->bond, sizeof(p->bond), "%s", master->name);
    if (!strcmp(l->parent_bus, "pci"))
        sysfs_pci_name(l->parent, p->pci, sizeof(p->pci));
    set_place(p, sysfs, "net", l->name);
    double speed = link_speed(t, l->ifindex);
    if (speed > 0)
        p->speed_bps = speed;
    if (p->rdma)
        return; /* the port's own state counts */
    p->state = l->running ? NET_UP : NET_DOWN;
    if (!l->running)
        warn(r, "NIC %s is down: %s", p->name, down_reason(t, l));
}

static bool is_port(const char *sysfs, const struct net_link *l)
{
    char pci[24];

    if (l->loopback || (l->arp != ARPHRD_ETHER && l->arp != ARPHRD_INFINIBAND))
        return false;
    if (l->parent[0] ||
        sysfs_pci(sysfs, pci, sizeof(pci), "class/net/%s/device", l->name))
        return true;
    return !strcmp(l->kind, "veth");
}

static void add_links(struct net_report *r, const char *sysfs, const struct net_table *t)
{
    for (int i = 0; i < t->n_links; i++) {
        const struct net_link *l = &t->links[i];
        bool taken = false;

        for (int k = 0; k < r->n_ports; k++)
            taken |= r->ports[k].ifindex == l->ifindex;
        if (taken || !is_port(sysfs, l))
            continue;
        struct net_port *p = add_port(r);
        if (!p)
            return;
        snprintf(p->name, sizeof(p->name), "%s", l->name);
        snprintf(p->layer, sizeof(p->layer), "%s",
                 l->arp == ARPHRD_INFINIBAND ? "InfiniBand" : "Ethernet");
        set_link(r, p, sysfs, t, l);
    }
}

/* ---- RDMA ---- */

static enum net_state port_state(int ib)
{
    return ib == 4              ? NET_UP
           : ib == 2 || ib == 3 ? NET_INIT
           : ib == 1            ? NET_DOWN
                                : NET_UNKNOWN;
}

static void say_state(struct net_report *r, const struct net_port *p)
{
    if (p->state == NET_INIT)
        warn(r, "NIC %s has a link but is not active: no subnet manager has set it up",
             p->name);
    if (p->state == NET_DOWN)
        warn(r, "NIC %s is down", p->name);
    if (p->state == NET_UNKNOWN)
        warn(r, "the state of NIC %s is unknown", p->name);
}

static const struct net_link *netdev_of(const struct net_table *t, const char *sysfs,
                                        const struct net_port *p, int ifindex, int ports)
{
    char pci[24];

    if (ifindex > 0)
        return net_table_link(t, ifindex);
    /* one function with one port: what hangs on the same function is the same port */
    for (int i = 0; i < t->n_links && p->pci[0] && ports == 1; i++) {
        const struct net_link *l = &t->links[i];
        if (sysfs_pci(sysfs, pci, sizeof(pci), "class/net/%s/device", l->name) &&
            !strcmp(pci, p->pci))
            return l;
    }
    return NULL;
}

static void add_rdma(struct net_report *r, const char *sysfs, const struct net_table *t,
                     const struct rdma_dev *d, const struct rdma_port *q)
{
    struct net_port *p = add_port(r);
    char text[64];
    long state;

    if (!p)
        return;
    p->rdma = true;
    if (q->port > 1)
        snprintf(p->name, sizeof(p->name), "%.50s/%d", d->name, q->port);
    else
        snprintf(p->name, sizeof(p->name), "%.63s", d->name);
    if (d->image_guid)
        snprintf(p->guid, sizeof(p->guid), "0x%016llx",
                 (unsigned long long)d->image_guid);
    set_place(p, sysfs, "infiniband", d->name);
    p->state = port_state(q->state);
    if (p->state == NET_UNKNOWN &&
        sysfs_line(sysfs, text, sizeof(text), "class/infiniband/%s/ports/%d/state",
                   d->name, q->port) &&
        (state = strtol(text, NULL, 10)) > 0)
        p->state = port_state((int)state);
    const struct net_link *l = netdev_of(t, sysfs, p, q->ifindex, d->ports);
    if (l)
        set_link(r, p, sysfs, t, l);
    if (!sysfs_line(sysfs, p->layer, sizeof(p->layer),
                    "class/infiniband/%s/ports/%d/link_layer", d->name, q->port))
        snprintf(p->layer, sizeof(p->layer), "%s", l ? "Ethernet" : "");
    /* the rate of a bond is one port's, and so is this row */
    if (sysfs_line(sysfs, text, sizeof(text), "class/infiniband/%s/ports/%d/rate",
                   d->name, q->port) &&
        net_rate_bps(text) > 0)
        p->speed_bps = net_rate_bps(text);
    say_state(r, p);
}

static void add_rdma_list(struct net_report *r, const char *sysfs,
                          const struct net_table *t)
{
    for (int i = 0; i < t->n_devs; i++)
        for (int k = 0; k < t->n_ports; k++)
            if (t->ports[k].dev == t->devs[i].index)
                add_rdma(r, sysfs, t, &t->devs[i], &t->ports[k]);
}

static int not_hidden(const struct dirent *d) { return d->d_name[0] != '.'; }

static int by_text(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int list_folder(const char *sysfs, struct dirent ***ret, const char *rel)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%.2000s/%.2000s", sysfs, rel);
    return scandir(path, ret, not_hidden, by_text);
}

static void add_sysfs_device(struct net_report *r, const char *sysfs,
                             const struct net_table *t, const char *name)
{
    struct rdma_dev d = {0};
    struct dirent **ports = NULL;
    char rel[512];

    snprintf(d.name, sizeof(d.name), "%.63s", name);
    snprintf(rel, sizeof(rel), "class/infiniband/%.63s/ports", name);
    d.ports = list_folder(sysfs, &ports, rel);
    for (int i = 0; i < d.ports; i++) {
        struct rdma_port q = {.port = atoi(ports[i]->d_name)};
        add_rdma(r, sysfs, t, &d, &q);
        free(ports[i]);
    }
    free(ports);
}

/* A container may see devices here that its kernel interface does not list. */
static void add_rdma_sysfs(struct net_report *r, const char *sysfs,
                           const struct net_table *t)
{
    struct dirent **list = NULL;
    int n = list_folder(sysfs, &list, "class/infiniband");

    for (int i = 0; i < n; i++) {
        add_sysfs_device(r, sysfs, t, list[i]->d_name);
        free(list[i]);
    }
    free(list);
    if (n > 0)
        warn(r, "RDMA devices were found in sysfs only; their state may be stale");
}

/* ---- the whole ---- */

static void say_bonds(struct net_report *r)
{
    for (int i = 0; i < r->n_ports; i++) {
        const struct net_port *p = &r->ports[i];
        bool first = p->bond[0];
        double sum = 0;
        int n = 0;

        for (int k = 0; k < r->n_ports && first; k++) {
            if (strcmp(r->ports[k].bond, p->bond))
                continue;
            first = k >= i;
            n++;
            if (r->ports[k].state == NET_UP)
                sum += r->ports[k].speed_bps;
        }
        if (first)
            warn(r,
                 "%s joins %d ports (%.0f Gb/s of them up): one fault domain, and one "
                 "connection gets one port's speed",
                 p->bond, n, sum * 8 / 1e9);
    }
}

static void say_speeds(struct net_report *r)
{
    for (int i = 0; i < r->n_ports; i++)
        if (r->ports[i].state == NET_UP && r->ports[i].speed_bps <= 0)
            warn(r, "the speed of NIC %s is unknown", r->ports[i].name);
}

void probe_net_merge(const char *sysfs, const struct net_table *t,
                     struct net_report **ret)
{
    struct net_report *r = xcalloc(1, sizeof(*r));

    if (t->n_devs)
        add_rdma_list(r, sysfs, t);
    else
        add_rdma_sysfs(r, sysfs, t);
    add_links(r, sysfs, t);
    say_bonds(r);
    say_speeds(r);
    if (r->n_ports == PORTS_MAX)
        warn(r, "more than %d network ports: the rest is left out", PORTS_MAX);
    *ret = r;
}

void probe_net_read(const char *sysfs, struct net_report **ret)
{
    struct net_table t = {0};
    struct err links = {0}, speeds = {0}, rdma = {0};

    net_dump_links(&t, &links);
    net_dump_speeds(&t, &speeds);
    net_dump_rdma(&t, &rdma);
    probe_net_merge(sysfs, &t, ret);
    net_table_done(&t);
    if (links.code)
        warn(*ret, "%s", links.msg);
    if (speeds.code)
        warn(*ret, "%s", speeds.msg);
    if (rdma.code)
        warn(*ret, "%s", rdma.msg);
}

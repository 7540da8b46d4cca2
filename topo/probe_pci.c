/* topo/probe_pci.c - see probe_pci.h; the one file that sees hwloc.
 *
 * hwloc reads sysfs (and nothing of any GPU driver: the components that would open one
 * are refused by name) and says where a bridge hangs; speeds are read from sysfs here,
 * because hwloc gives the present speed and an idle link runs slowly.
 *
 * A device's way up alternates: downstream port, upstream port (= the switch), downstream
 * port, ..., root port, host bridge. Every second bridge is a switch. What hwloc leaves
 * out (32-bit domains, in the usual build) is found by the list in sysfs and stands
 * directly under the machine. */
#include "topo/probe_pci.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hwloc.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/sysfs.h"
#include "topo/warnings.h"

enum { ITEMS_MAX = 4096, UP_MAX = 32, NVIDIA = 0x10de };

static void warn(struct pci_report *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void warn(struct pci_report *r, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    warnings_vadd(&r->warnings, &r->n_warnings, fmt, ap);
    va_end(ap);
}

void pci_report_free(struct pci_report *r)
{
    if (!r)
        return;
    warnings_free(r->warnings, r->n_warnings);
    free(r->numas);
    free(r->items);
    free(r);
}

int pci_find(const struct pci_report *r, const char *addr)
{
    char name[24];

    if (!sysfs_pci_name(addr, name, sizeof(name)))
        snprintf(name, sizeof(name), "%s", addr);
    for (int i = 0; i < r->n_items; i++)
        if (!strcmp(r->items[i].addr, name))
            return i;
    return -1;
}

/* What a function is to us by vendor and class (class << 8 | interface): -1 nothing. */
static int kind_of(unsigned vendor, unsigned cls)
{
    if (cls >> 8 == 0x0680 && vendor == NVIDIA)
        return PCI_NVSWITCH;
    if (cls >> 16 == 0x02)
        return PCI_NET;
    if (vendor == NVIDIA && (cls >> 16 == 0x03 || cls >> 16 == 0x12))
        return PCI_GPU;
    return -1;
}

static int add_item(struct pci_report *r, const struct pci_item *it)
{
    if (r->n_items == ITEMS_MAX)
        return -1;
    if (r->n_items % 64 == 0)
        r->items = xrealloc(r->items, (size_t)(r->n_items + 64) * sizeof(*r->items));
    r->items[r->n_items] = *it;
    return r->n_items++;
}

/* ---- hwloc ---- */

static int open_hwloc(const char *xml, hwloc_topology_t *ret, struct err *e)
{
    static const char *const refused[] = {"cuda", "nvml",      "rsmi", "opencl",
                                          "gl",   "levelzero", "pci"};
    hwloc_topology_t t;

    if (hwloc_topology_init(&t) < 0)
        return err_set(e, ERR_INTERNAL, "hwloc cannot start");
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                      refused[i]);
    if (xml && hwloc_topology_set_xml(t, xml) < 0) {
        err_set(e, ERR_SYNTAX, "'%s' is no hwloc XML file that can be read", xml);
        hwloc_topology_destroy(t);
        return -1;
    }
    hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_flags(t, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    if (hwloc_topology_load(t) < 0) {
        err_set(e, xml ? ERR_SYNTAX : ERR_IO, "hwloc cannot read %s",
                xml ? xml : "this machine's sysfs");
        hwloc_topology_destroy(t);
        return -1;
    }
    *ret = t;
    return 0;
}

static const char *info(hwloc_topology_t t, const char *key)
{
    const char *v = hwloc_obj_get_info_by_name(hwloc_get_root_obj(t), key);
    hwloc_obj_t pkg = hwloc_get_obj_by_type(t, HWLOC_OBJ_PACKAGE, 0);

    if (!v && pkg)
        v = hwloc_obj_get_info_by_name(pkg, key);
    return v ? v : "";
}

static void read_cpus(hwloc_topology_t t, struct pci_report *r)
{
    const char *arch = info(t, "Architecture");
    int n = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_NUMANODE);

    snprintf(r->host, sizeof(r->host), "%.63s", info(t, "HostName"));
    snprintf(r->arch, sizeof(r->arch), "%.15s", strcmp(arch, "aarch64") ? arch : "arm64");
    snprintf(r->vendor, sizeof(r->vendor), "%.31s", info(t, "CPUVendor"));
    snprintf(r->cpu, sizeof(r->cpu), "%.63s", info(t, "CPUModel"));
    r->family = atoi(info(t, "CPUFamilyNumber"));
    r->model = atoi(info(t, "CPUModelNumber"));
    r->cores = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE);
    r->numas = xcalloc((size_t)(n > 0 ? n : 1), sizeof(*r->numas));
    for (int i = 0; i < n; i++) {
        hwloc_obj_t o = hwloc_get_obj_by_type(t, HWLOC_OBJ_NUMANODE, (unsigned)i);
        struct pci_numa *m = &r->numas[r->n_numas++];

        m->number = (int)o->os_index;
        m->memory_bytes = (double)o->attr->numanode.local_memory;
        if (hwloc_bitmap_iszero(o->cpuset))
            continue; /* memory without cores: a GPU's own, or CXL */
        if (hwloc_bitmap_list_snprintf(m->cpus, sizeof(m->cpus), o->cpuset) >=
            (int)sizeof(m->cpus)) {
            m->cpus[0] = '\0';
            warn(r, "NUMA node %d has a list of CPUs too long to keep", m->number);
        }
    }
}

/* The one NUMA node that an object belongs to, or -1 when it is not one. */
static int numa_of(hwloc_topology_t t, hwloc_obj_t o)
{
    hwloc_obj_t up = hwloc_get_non_io_ancestor_obj(t, o);

    if (!up || !up->nodeset || hwloc_bitmap_weight(up->nodeset) != 1)
        return -1;
    return hwloc_bitmap_first(up->nodeset);
}

static void addr_of(hwloc_obj_t o, char ret[24])
{
    const struct hwloc_pcidev_attr_s *p =
        o->type == HWLOC_OBJ_BRIDGE ? &o->attr->bridge.upstream.pci : &o->attr->pcidev;

    snprintf(ret, 24, "%04x:%02x:%02x.%x", p->domain, p->bus, p->dev, p->func);
}

static bool is_root(hwloc_obj_t o)
{
    return o->type == HWLOC_OBJ_BRIDGE &&
           o->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST;
}

/* The slower of the function and the port above it. */
static void read_link(struct pci_report *r, const char *sysfs, hwloc_obj_t o,
                      struct pci_item *it)
{
    double gt;
    int width;
    char up[24];

    if (!sysfs)
        return;
    if (!sysfs_pci_link(sysfs, it->addr, &it->gt, &it->width)) {
        it->gt = it->width = 0;
        warn(r,
             "the PCI link of %s is unknown: %s/bus/pci/devices/%s/max_link_speed or "
             "max_link_width says nothing; 16 lanes of generation 3 are assumed",
             it->addr, sysfs, it->addr);
        return;
    }
    if (!o->parent || o->parent->type != HWLOC_OBJ_BRIDGE || is_root(o->parent))
        return;
    addr_of(o->parent, up);
    if (!sysfs_pci_link(sysfs, up, &gt, &width))
        return;
    it->gt = gt < it->gt ? gt : it->gt;
    it->width = width < it->width ? width : it->width;
}

static int add_function(hwloc_topology_t t, struct pci_report *r, const char *sysfs,
                        hwloc_obj_t o, enum pci_kind kind, int parent)
{
    const struct hwloc_pcidev_attr_s *p =
        o->type == HWLOC_OBJ_BRIDGE ? &o->attr->bridge.upstream.pci : &o->attr->pcidev;
    struct pci_item it = {.kind = kind, .parent = parent, .numa = numa_of(t, o)};

    addr_of(o, it.addr);
    int at = pci_find(r, it.addr);
    if (at >= 0)
        return at;
    it.vendor = p->vendor_id;
    it.device = p->device_id;
    it.cls = (unsigned)p->class_id << 8;
    /* a virtual or integrated function has no link of its own to be slow */
    if (kind != PCI_NET || p->vendor_id != 0x1af4)
        read_link(r, sysfs, o, &it);
    return add_item(r, &it);
}

static int add_root(hwloc_topology_t t, struct pci_report *r, hwloc_obj_t o)
{
    struct pci_item it = {.kind = PCI_ROOT, .parent = -1, .numa = numa_of(t, o)};
    const struct hwloc_bridge_attr_s *b = &o->attr->bridge;

    snprintf(it.addr, sizeof(it.addr), "pci%04x:%02x", b->downstream.pci.domain,
             b->downstream.pci.secondary_bus);
    int at = pci_find(r, it.addr);
    return at >= 0 ? at : add_item(r, &it);
}

/* Adds what is above o, from the top down; returns the item that o hangs on. */
static int add_above(hwloc_topology_t t, struct pci_report *r, const char *sysfs,
                     hwloc_obj_t o)
{
    hwloc_obj_t up[UP_MAX];
    int n = 0, at = -1;

    for (hwloc_obj_t p = o->parent; p && p->type == HWLOC_OBJ_BRIDGE && n < UP_MAX;
         p = p->parent)
        up[n++] = p;
    if (n && is_root(up[n - 1]))
        at = add_root(t, r, up[--n]);
    /* up[0] is the port that o is plugged into, up[1] the switch, and so on */
    for (int i = n - 1; i >= 1; i--)
        if (i % 2 == 1)
            at = add_function(t, r, sysfs, up[i], PCI_SWITCH, at);
    return at;
}

/* What was found of access control in the ports right above devices. */
struct acs {
    int on, unknown;
    char first[24];
};

/* Only below a switch can peer traffic take a shorter way than through the host. */
static void read_acs(const struct pci_report *r, const char *sysfs, hwloc_obj_t o,
                     int item, struct acs *a)
{
    char port[24], dev[24];

    if (!sysfs || item < 0 || r->items[item].kind != PCI_SWITCH ||
        o->parent->type != HWLOC_OBJ_BRIDGE)
        return;
    addr_of(o->parent, port);
    addr_of(o, dev);
    int rc = sysfs_pci_redirects(sysfs, port);
    if (rc > 0 && !a->on++)
        snprintf(a->first, sizeof(a->first), "%s", dev);
    a->unknown += rc < 0;
}

static void say_acs(struct pci_report *r, const struct acs *a)
{
    if (a->on)
        warn(r,
             "PCI access control sends the peer traffic of %d devices below switches "
             "through "
             "the host (first %s): copies between them are slow or hang; the firmware's "
             "ACS or IOMMU setting turns it off",
             a->on, a->first);
    if (a->unknown)
        warn(
            r,
            "whether PCI access control redirects peer traffic is unknown for %d devices "
            "below switches (their ports' config space needs privilege)",
            a->unknown);
}

static void read_devices(hwloc_topology_t t, struct pci_report *r, const char *sysfs)
{
    struct acs acs = {0};

    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_pcidev(t, o));) {
        int kind =
            kind_of(o->attr->pcidev.vendor_id, (unsigned)o->attr->pcidev.class_id << 8);
        if (kind < 0)
            continue;
        int parent = add_above(t, r, sysfs, o);
        add_function(t, r, sysfs, o, (enum pci_kind)kind, parent);
        read_acs(r, sysfs, o, parent, &acs);
    }
    say_acs(r, &acs);
}

/* ---- what hwloc did not see ---- */

static void add_unseen(struct pci_report *r, const char *sysfs, const char *addr)
{
    struct pci_item it = {.parent = -1, .numa = -1};
    long cls, vendor = 0, device = 0, numa = -1;

    if (!sysfs_long(sysfs, &cls, "bus/pci/devices/%s/class", addr) ||
        !sysfs_long(sysfs, &vendor, "bus/pci/devices/%s/vendor", addr))
        return;
    int kind = kind_of((unsigned)vendor, (unsigned)cls);
    if (kind < 0 || !sysfs_pci_name(addr, it.addr, sizeof(it.addr)) ||
        pci_find(r, it.addr) >= 0)
        return;
    sysfs_long(sysfs, &device, "bus/pci/devices/%s/device", addr);
    sysfs_long(sysfs, &numa, "bus/pci/devices/%s/numa_node", addr);
    it.kind = (enum pci_kind)kind;
    it.vendor = (unsigned)vendor;
    it.device = (unsigned)device;
    it.cls = (unsigned)cls;
    it.numa = (int)numa;
    sysfs_pci_link(sysfs, addr, &it.gt, &it.width);
    warn(r, "%s is on the PCI bus, but its place in the tree is unknown", it.addr);
    add_item(r, &it);
}

static int by_text(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void read_unseen(struct pci_report *r, const char *sysfs)
{
    struct dirent **list = NULL;
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%.4000s/bus/pci/devices", sysfs);
    int n = scandir(path, &list, NULL, by_text);
    if (n < 0) {
        warn(r, "no list of PCI devices: %s: %s", path, strerror(errno));
        return;
    }
    for (int i = 0; i < n; i++) {
        add_unseen(r, sysfs, list[i]->d_name);
        free(list[i]);
    }
    free(list);
}

/* Firmware often says nothing; with one NUMA node there is nothing to say. */
static void fill_numa(struct pci_report *r)
{
    for (int i = 0; i < r->n_items; i++) {
        struct pci_item *it = &r->items[i];
        if (it->numa < 0 && it->parent >= 0)
            it->numa = r->items[it->parent].numa;
        if (it->numa < 0 && r->n_numas == 1)
            it->numa = r->numas[0].number;
        if (it->numa < 0 && it->kind >= PCI_GPU)
            warn(r, "the NUMA node of %s is unknown (the firmware does not say)",
                 it->addr);
    }
}

int probe_pci_read(const char *xml, const char *sysfs, struct pci_report **ret,
                   struct err *e)
{
    hwloc_topology_t t = NULL;

    if (open_hwloc(xml, &t, e) < 0)
        return -1;
    struct pci_report *r = xcalloc(1, sizeof(*r));
    read_cpus(t, r);
    read_devices(t, r, sysfs);
    hwloc_topology_destroy(t);
    if (sysfs)
        read_unseen(r, sysfs);
    fill_numa(r);
    if (r->n_items == ITEMS_MAX)
        warn(r, "more than %d PCI functions: the rest is left out", ITEMS_MAX);
    *ret = r;
    return 0;
}

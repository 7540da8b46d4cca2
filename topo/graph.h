/* topo/graph.h - the rack as a graph: what there is, how it is linked, how well we know
 * it.
 *
 * Nodes (hosts, NUMA nodes, PCI switches, devices, NVSwitches, NICs) and links with type,
 * width, nominal and measured bandwidth. Each fact that planning uses carries where it
 * came from and how sure it is. Immutable once built: a builder collects, graph_build
 * checks (ids unique, parents exist, both ends of a link agree: the smaller side wins
 * with a warning) and freezes. Identity of a device is (host, PCI address) or "cpuN",
 * never an index. Any thread may read. Facts on formats and pitfalls: see file_*.c. */
#ifndef TOPO_GRAPH_H
#define TOPO_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct graph;
struct graph_builder;

#define NODE_KIND_MAP(X)                                                                 \
    X(HOST, "host")                                                                      \
    X(NETWORK, "network") /* what NICs of several hosts reach; no host, no parent */     \
    X(NUMA, "numa")                                                                      \
    X(BRIDGE, "bridge")     /* PCI host bridge, where the source tells them apart */     \
    X(SWITCH, "switch")     /* PCI */                                                    \
    X(DEVICE, "device")     /* GPU, MIG instance, CPU device */                          \
    X(NVSWITCH, "nvswitch") /* host and parent -1: serves several hosts */               \
    X(NIC, "nic")
enum node_kind {
#define X(id, name) NODE_##id,
    NODE_KIND_MAP(X)
#undef X
        NODE_KIND_COUNT
};

#define LINK_KIND_MAP(X)                                                                 \
    X(PCI, "pci")       /* child to its parent switch or NUMA node */                    \
    X(NVLINK, "nvlink") /* device to device or to an NVSwitch */                         \
    X(C2C, "c2c")       /* device to its NUMA node */                                    \
    X(SOCKET, "socket") /* NUMA node to NUMA node of one host */                         \
    X(MEMORY, "memory") /* CPU device to its NUMA node */                                \
    X(NET, "net")       /* NIC, or a host of CPU devices, to its network */
enum link_kind {
#define X(id, name) LINK_##id,
    LINK_KIND_MAP(X)
#undef X
        LINK_KIND_COUNT
};

enum fact_source {
    FROM_NONE,
    FROM_SYSFS,
    FROM_NVML,
    FROM_NETLINK,
    FROM_FILE,
    FROM_TABLE,
    FROM_PROBE
};
enum confidence { CONF_UNKNOWN, CONF_ASSUMED, CONF_MEASURED };
/* A GPU's registration in its NVSwitch fabric, as the driver says. */
enum fabric_is {
    FABRIC_IS_UNKNOWN,
    FABRIC_IS_NONE,
    FABRIC_IS_NOT_STARTED,
    FABRIC_IS_IN_PROGRESS,
    FABRIC_IS_JOINED,
    FABRIC_IS_REFUSED
};
/* Of a host: can it export memory to others of its NVLink domain? */
enum imex_is { IMEX_IS_UNKNOWN, IMEX_IS_ABSENT, IMEX_IS_READY };
/* One number with its pedigree. */
struct fact {
    double v;
    enum fact_source source;
    enum confidence conf;
};

enum health { HEALTH_UNKNOWN, HEALTH_OK, HEALTH_DEGRADED, HEALTH_BAD };

struct node {
    int id; /* index in the graph */
    enum node_kind kind;
    int parent;    /* node above: device -> switch -> NUMA -> host; -1 for a host */
    char name[64]; /* unique within its host: "0000:1b:00.0", "numa0", "mlx5_4", "cpu3" */
    char model[64]; /* "NVIDIA H200", "" unknown */
    char uuid[48];  /* GPU, MIG, host hash; cluster UUID lives in fabric */
    char pci[24];   /* "0000:1b:00.0", "" none or unknown */
    int host;       /* id of its host node (itself for a host) */
    int numa;       /* OS number of its NUMA node; -1 unknown */
    int index;      /* as the source numbered it (NVML index, net dev); -1 none */
    int sm;         /* compute capability 10*major+minor, 0 none or unknown */
    bool mig, is_cpu, gdr;
    enum health health;
    struct fact memory_bytes, speed; /* NIC speed in bytes/s */
    char fabric_uuid[48];            /* NVL72: cluster UUID, "" none or all zero */
    int64_t clique;                  /* -1 unknown */
    int fabric;                      /* enum fabric_is, of a GPU */
    int imex;                        /* enum imex_is, of a host */
    char cpus[256];                  /* CPU list of a NUMA node or device, "" unknown */
    char port_guid[48];              /* ports of one card share it */
};

struct link {
    int a, b; /* node ids, a < b */
    enum link_kind kind;
    int width;    /* lanes or links */
    int expected; /* links that this device model has, 0 unknown */
    struct fact nominal,
        measured; /* bytes/s one way; measured.conf UNKNOWN = not probed */
    struct fact latency_us;
    enum health health;
};

/* What copies between two devices really reach, as once measured (Unix ms). */
struct graph_pair {
    int a, b;                       /* node ids */
    double bps, spread, latency_us; /* bytes/s one way; (max - min) / median */
    int64_t at_ms;
};

struct graph_builder *graph_builder_new(void);
void graph_builder_free(struct graph_builder *b);
/* Copies *n; returns its id. name/kind/parent/host must be set; id is ignored. */
int graph_add_node(struct graph_builder *b, const struct node *n,
                   struct err *e); /* or -1 */
int graph_add_link(struct graph_builder *b, const struct link *l, struct err *e);
int graph_add_pair(struct graph_builder *b, const struct graph_pair *p, struct err *e);
/* A sentence to be shown as a finding (a fallback taken, an attribute missing). */
void graph_warn(struct graph_builder *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* source: "nccl xml FILE", "live", a built-in name. Takes b, also on failure. */
int graph_build(struct graph_builder *b, const char *source, bool emulated,
                struct graph **ret, struct err *e);
void graph_free(struct graph *g);

const char *graph_source(const struct graph *g);
bool graph_emulated(const struct graph *g);
int graph_n_nodes(const struct graph *g);
const struct node *graph_node(const struct graph *g, int id);
int graph_n_links(const struct graph *g);
const struct link *graph_link(const struct graph *g, int i);
int graph_pairs(const struct graph *g, const struct graph_pair **ret); /* count */
/* Links at a node: returns the count, *ret borrowed array of link indices. */
int graph_links_at(const struct graph *g, int node, const int **ret);
/* Devices in stable order (host, then PCI address or number): ids, count. A GPU that is
 * cut into MIG instances is not among them, its instances are. */
int graph_devices(const struct graph *g, const int **ret);
int graph_count(const struct graph *g, enum node_kind kind);
int graph_find(const struct graph *g, int host, const char *name); /* -1 none */
/* The link of this kind between two nodes, or NULL. */
const struct link *graph_link_between(const struct graph *g, int a, int b,
                                      enum link_kind kind);
const char *node_kind_name(enum node_kind k);
const char *fabric_is_name(enum fabric_is f); /* "in progress" */
const char *imex_is_name(enum imex_is i);
const char *link_kind_name(enum link_kind k);
/* "GPU 3 (0000:1b:00.0)", "mlx5_4", "cpu2"; with the host's name where there are several.
 */
const char *graph_label(const struct graph *g, int node, char *ret, size_t n);
/* "0000:1b:00.0" with up to 8 digits of domain: true, and the number in *ret. */
bool pci_parse(const char *s, uint64_t *ret);
int graph_n_warnings(const struct graph *g);
const char *graph_warning(const struct graph *g, int i);

/* What differs, as lines "lost device 0000:1b:00.0 (GPU 3, NVIDIA H200)"; count of them.
 */
enum graph_change { GRAPH_ADDED, GRAPH_LOST, GRAPH_CHANGED };
typedef void (*graph_diff_fn)(void *arg, enum graph_change c, const char *what);
int graph_diff(const struct graph *before, const struct graph *after, graph_diff_fn fn,
               void *arg);

#endif

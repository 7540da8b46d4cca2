/* topo/probe_net.h - the NICs of this machine: ports, state, speed, place.
 *
 * One row per port: an RDMA port (with its network device where it has one), or a network
 * device with hardware under it, or the near end of a virtual pair (all that a container
 * has). Bridges, bonds, tunnels and the loopback are no ports. State and names come from
 * netlink; rate, NUMA node and PCI place from sysfs, whose root is a parameter. */
#ifndef TOPO_PROBE_NET_H
#define TOPO_PROBE_NET_H

#include <stdbool.h>

#include "topo/net_dump.h"

struct err;

enum net_state { NET_UNKNOWN, NET_DOWN, NET_INIT, NET_UP };

struct net_port {
    char name[64];   /* "mlx5_4", "mlx5_4/2" (second port), "eth0" */
    char netdev[32]; /* "" none */
    char bond[32];   /* "" none */
    char pci[24], guid[32], layer[16];
    int ifindex, mtu, numa; /* numa -1 unknown */
    bool rdma;
    enum net_state state;
    double speed_bps; /* bytes/s, 0 unknown */
};

struct net_report {
    struct net_port *ports;
    int n_ports;
    char **warnings;
    int n_warnings;
};

/* Reads all; what is missing becomes a sentence. Free with net_report_free. */
void probe_net_read(const char *sysfs, struct net_report **ret);
/* The same from lists that were read (or recorded) before. */
void probe_net_merge(const char *sysfs, const struct net_table *t,
                     struct net_report **ret);
void net_report_free(struct net_report *r);
const struct net_port *net_report_port(const struct net_report *r, const char *name);
/* "400 Gb/sec (4X NDR)" in bytes/s, 0 when it says nothing. */
double net_rate_bps(const char *text);

#endif

/* topo/net_dump.h - ask the kernel for all links, their speeds, the RDMA devices.
 *
 * Each call opens a socket, reads one whole list and closes it; a list that changed while
 * it was read is read again. Answers are immediate: the kernel builds them in the call.
 * Any thread. */
#ifndef TOPO_NET_DUMP_H
#define TOPO_NET_DUMP_H

#include "topo/net_msg.h"

struct err;

/* Growing lists of what was read; zeroed by the caller, freed by net_table_done. */
struct net_table {
    struct net_link *links;
    struct net_speed *speeds;
    struct net_down *downs;
    struct rdma_dev *devs;
    struct rdma_port *ports;
    int n_links, n_speeds, n_downs, n_devs, n_ports;
};

/* Each replaces its lists; on failure they are empty and e says why. */
int net_dump_links(struct net_table *t, struct err *e);
int net_dump_speeds(struct net_table *t, struct err *e); /* speeds and downs */
int net_dump_rdma(struct net_table *t, struct err *e);   /* devs and ports */
void net_table_done(struct net_table *t);
const struct net_link *net_table_link(const struct net_table *t, int ifindex);

#endif

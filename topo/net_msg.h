/* topo/net_msg.h - what netlink messages say of links, speeds and RDMA ports.
 *
 * Pure: one message in, plain data out; every attribute is checked for its length before
 * it is read, so recorded and broken messages go the same way as those of the kernel.
 * Any thread. */
#ifndef TOPO_NET_MSG_H
#define TOPO_NET_MSG_H

#include <stdbool.h>
#include <stdint.h>

struct nlmsghdr;

struct net_link {
    int ifindex, master, mtu;
    char name[32], kind[16];         /* kind "bond", "veth", ...; "" a plain device */
    char parent[32], parent_bus[16]; /* "0000:1b:00.0" on "pci" */
    unsigned arp;                    /* ARPHRD_ */
    bool loopback, admin_up, running;
};

struct net_speed {
    int ifindex;
    int64_t mbps; /* -1 unknown */
};

struct net_down {
    int ifindex;
    bool link;
    int why; /* ETHTOOL_LINK_EXT_STATE_, -1 not said */
};

struct rdma_dev {
    uint32_t index;
    int ports;
    char name[64];
    uint64_t image_guid; /* ports of one card share it; 0 unknown */
};

struct rdma_port {
    uint32_t dev;
    int port, state; /* state: 0 unknown, 1 down, 2 init, 3 armed, 4 active */
    int ifindex;     /* its network device, 0 none */
};

/* 0, or -1 when the message is not of that kind or is damaged; then *ret is untouched. */
int net_msg_link(struct nlmsghdr *h, struct net_link *ret); /* RTM_NEWLINK, RTM_DELLINK */
int net_msg_speed(struct nlmsghdr *h, struct net_speed *ret);
int net_msg_down(struct nlmsghdr *h, struct net_down *ret);
int net_msg_rdma_dev(struct nlmsghdr *h, struct rdma_dev *ret);
int net_msg_rdma_port(struct nlmsghdr *h, struct rdma_port *ret);
/* "no cable", NULL for a reason that is not known. */
const char *net_down_reason(int why);

#endif

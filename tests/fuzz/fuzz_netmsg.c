/* libFuzzer: netlink messages. The input is what follows the length of one message; the
 * kernel's word for the length is right, everything else may be wrong. */
#include <linux/netlink.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "topo/net_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct net_link link;
    struct net_speed speed;
    struct net_down down;
    struct rdma_dev dev;
    struct rdma_port port;
    size_t n = sizeof(uint32_t) + size;

    if (n < sizeof(struct nlmsghdr) || n > 1 << 16)
        return 0;
    struct nlmsghdr *h = malloc(n);
    memcpy((char *)h + sizeof(uint32_t), data, size);
    h->nlmsg_len = (uint32_t)n;
    net_msg_link(h, &link);
    net_msg_speed(h, &speed);
    net_msg_down(h, &down);
    net_msg_rdma_dev(h, &dev);
    net_msg_rdma_port(h, &port);
    free(h);
    return 0;
}

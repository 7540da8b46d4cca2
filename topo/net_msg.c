/* topo/net_msg.c - see net_msg.h. */
#include "topo/net_msg.h"

#include <linux/ethtool.h>
#include <linux/ethtool_netlink.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <string.h>

#include <netlink/attr.h>
#include <netlink/genl/genl.h>
#include <netlink/msg.h>
#include <rdma/rdma_netlink.h>

static struct nla_policy link_policy[IFLA_MAX + 1] = {
    [IFLA_IFNAME] = {.type = NLA_STRING, .maxlen = IFNAMSIZ},
    [IFLA_MASTER] = {.type = NLA_U32},
    [IFLA_MTU] = {.type = NLA_U32},
    [IFLA_LINKINFO] = {.type = NLA_NESTED},
    [IFLA_CARRIER] = {.type = NLA_U8},
    [IFLA_PARENT_DEV_NAME] = {.type = NLA_STRING},
    [IFLA_PARENT_DEV_BUS_NAME] = {.type = NLA_STRING},
};

static void text(char *ret, size_t n, struct nlattr *a)
{
    ret[0] = '\0';
    if (!a)
        return;
    size_t len = strnlen(nla_data(a), (size_t)nla_len(a));
    if (len >= n)
        len = n - 1;
    memcpy(ret, nla_data(a), len);
    ret[len] = '\0';
}

static void kind_of(struct nlattr *a, char *ret, size_t n)
{
    static struct nla_policy policy[IFLA_INFO_MAX + 1] = {
        [IFLA_INFO_KIND] = {.type = NLA_STRING},
    };
    struct nlattr *tb[IFLA_INFO_MAX + 1];

    ret[0] = '\0';
    if (a && nla_parse_nested(tb, IFLA_INFO_MAX, a, policy) == 0)
        text(ret, n, tb[IFLA_INFO_KIND]);
}

int net_msg_link(struct nlmsghdr *h, struct net_link *ret)
{
    struct nlattr *tb[IFLA_MAX + 1];
    struct net_link l = {0};

    if ((h->nlmsg_type != RTM_NEWLINK && h->nlmsg_type != RTM_DELLINK) ||
        nlmsg_parse(h, sizeof(struct ifinfomsg), tb, IFLA_MAX, link_policy) < 0 ||
        !tb[IFLA_IFNAME])
        return -1;
    const struct ifinfomsg *m = nlmsg_data(h);
    if (m->ifi_family != AF_UNSPEC) /* a bridge's view of its port */
        return -1;
    l.ifindex = m->ifi_index;
    l.arp = m->ifi_type;
    l.loopback = m->ifi_flags & IFF_LOOPBACK;
    l.admin_up = m->ifi_flags & IFF_UP;
    l.running = l.admin_up && (tb[IFLA_CARRIER] ? nla_get_u8(tb[IFLA_CARRIER]) != 0
                                                : (m->ifi_flags & IFF_RUNNING) != 0);
    if (tb[IFLA_MASTER])
        l.master = (int)nla_get_u32(tb[IFLA_MASTER]);
    if (tb[IFLA_MTU])
        l.mtu = (int)nla_get_u32(tb[IFLA_MTU]);
    text(l.name, sizeof(l.name), tb[IFLA_IFNAME]);
    text(l.parent, sizeof(l.parent), tb[IFLA_PARENT_DEV_NAME]);
    text(l.parent_bus, sizeof(l.parent_bus), tb[IFLA_PARENT_DEV_BUS_NAME]);
    kind_of(tb[IFLA_LINKINFO], l.kind, sizeof(l.kind));
    *ret = l;
    return 0;
}

/* Ethtool answers: the attributes, and the device from the header among them (the header
 * is attribute 1 of every kind). */
static int ethtool_parse(struct nlmsghdr *h, int cmd, struct nlattr **tb, int max,
                         struct nla_policy *policy, int *ret_ifindex)
{
    static struct nla_policy header[ETHTOOL_A_HEADER_MAX + 1] = {
        [ETHTOOL_A_HEADER_DEV_INDEX] = {.type = NLA_U32},
    };
    struct nlattr *dev[ETHTOOL_A_HEADER_MAX + 1];

    /* control messages of netlink itself have types below every family's */
    if (h->nlmsg_type < NLMSG_MIN_TYPE || !genlmsg_valid_hdr(h, 0) ||
        genlmsg_hdr(h)->cmd != cmd || genlmsg_parse(h, 0, tb, max, policy) < 0 ||
        !tb[1] || nla_parse_nested(dev, ETHTOOL_A_HEADER_MAX, tb[1], header) < 0 ||
        !dev[ETHTOOL_A_HEADER_DEV_INDEX])
        return -1;
    *ret_ifindex = (int)nla_get_u32(dev[ETHTOOL_A_HEADER_DEV_INDEX]);
    return 0;
}

int net_msg_speed(struct nlmsghdr *h, struct net_speed *ret)
{
    static struct nla_policy policy[ETHTOOL_A_LINKMODES_MAX + 1] = {
        [ETHTOOL_A_LINKMODES_HEADER] = {.type = NLA_NESTED},
        [ETHTOOL_A_LINKMODES_SPEED] = {.type = NLA_U32},
    };
    struct nlattr *tb[ETHTOOL_A_LINKMODES_MAX + 1];
    struct net_speed s = {.mbps = -1};

    if (ethtool_parse(h, ETHTOOL_MSG_LINKMODES_GET_REPLY, tb, ETHTOOL_A_LINKMODES_MAX,
                      policy, &s.ifindex) < 0)
        return -1;
    if (tb[ETHTOOL_A_LINKMODES_SPEED]) {
        uint32_t v = nla_get_u32(tb[ETHTOOL_A_LINKMODES_SPEED]);
        if (v != 0 && v != (uint32_t)SPEED_UNKNOWN)
            s.mbps = v;
    }
    *ret = s;
    return 0;
}

int net_msg_down(struct nlmsghdr *h, struct net_down *ret)
{
    static struct nla_policy policy[ETHTOOL_A_LINKSTATE_MAX + 1] = {
        [ETHTOOL_A_LINKSTATE_HEADER] = {.type = NLA_NESTED},
        [ETHTOOL_A_LINKSTATE_LINK] = {.type = NLA_U8},
        [ETHTOOL_A_LINKSTATE_EXT_STATE] = {.type = NLA_U8},
    };
    struct nlattr *tb[ETHTOOL_A_LINKSTATE_MAX + 1];
    struct net_down d = {.why = -1};

    if (ethtool_parse(h, ETHTOOL_MSG_LINKSTATE_GET_REPLY, tb, ETHTOOL_A_LINKSTATE_MAX,
                      policy, &d.ifindex) < 0)
        return -1;
    if (tb[ETHTOOL_A_LINKSTATE_LINK])
        d.link = nla_get_u8(tb[ETHTOOL_A_LINKSTATE_LINK]);
    if (tb[ETHTOOL_A_LINKSTATE_EXT_STATE])
        d.why = nla_get_u8(tb[ETHTOOL_A_LINKSTATE_EXT_STATE]);
    *ret = d;
    return 0;
}

const char *net_down_reason(int why)
{
    static const char *const reasons[] = {
        [ETHTOOL_LINK_EXT_STATE_AUTONEG] = "the two ends do not agree on a speed",
        [ETHTOOL_LINK_EXT_STATE_LINK_TRAINING_FAILURE] = "link training failed",
        [ETHTOOL_LINK_EXT_STATE_LINK_LOGICAL_MISMATCH] =
            "the two ends encode differently",
        [ETHTOOL_LINK_EXT_STATE_BAD_SIGNAL_INTEGRITY] = "the signal is bad",
        [ETHTOOL_LINK_EXT_STATE_NO_CABLE] = "no cable",
        [ETHTOOL_LINK_EXT_STATE_CABLE_ISSUE] = "a cable fault",
        [ETHTOOL_LINK_EXT_STATE_EEPROM_ISSUE] = "the module's EEPROM cannot be read",
        [ETHTOOL_LINK_EXT_STATE_CALIBRATION_FAILURE] = "calibration failed",
        [ETHTOOL_LINK_EXT_STATE_POWER_BUDGET_EXCEEDED] =
            "the module wants too much power",
        [ETHTOOL_LINK_EXT_STATE_OVERHEAT] = "the module is too hot",
    };

    return why >= 0 && why < (int)(sizeof(reasons) / sizeof(reasons[0])) ? reasons[why]
                                                                         : NULL;
}

static struct nla_policy rdma_policy[RDMA_NLDEV_ATTR_MAX] = {
    [RDMA_NLDEV_ATTR_DEV_INDEX] = {.type = NLA_U32},
    [RDMA_NLDEV_ATTR_DEV_NAME] = {.type = NLA_STRING},
    [RDMA_NLDEV_ATTR_PORT_INDEX] = {.type = NLA_U32},
    [RDMA_NLDEV_ATTR_SYS_IMAGE_GUID] = {.type = NLA_U64},
    [RDMA_NLDEV_ATTR_PORT_STATE] = {.type = NLA_U8},
    [RDMA_NLDEV_ATTR_NDEV_INDEX] = {.type = NLA_U32},
};

static int rdma_parse(struct nlmsghdr *h, int cmd, struct nlattr **tb)
{
    if (h->nlmsg_type != RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, cmd) ||
        nlmsg_parse(h, 0, tb, RDMA_NLDEV_ATTR_MAX - 1, rdma_policy) < 0 ||
        !tb[RDMA_NLDEV_ATTR_DEV_INDEX] || !tb[RDMA_NLDEV_ATTR_PORT_INDEX])
        return -1;
    return 0;
}

int net_msg_rdma_dev(struct nlmsghdr *h, struct rdma_dev *ret)
{
    struct nlattr *tb[RDMA_NLDEV_ATTR_MAX];
    struct rdma_dev d = {0};

    if (rdma_parse(h, RDMA_NLDEV_CMD_GET, tb) < 0 || !tb[RDMA_NLDEV_ATTR_DEV_NAME])
        return -1;
    d.index = nla_get_u32(tb[RDMA_NLDEV_ATTR_DEV_INDEX]);
    d.ports = (int)nla_get_u32(tb[RDMA_NLDEV_ATTR_PORT_INDEX]);
    text(d.name, sizeof(d.name), tb[RDMA_NLDEV_ATTR_DEV_NAME]);
    if (tb[RDMA_NLDEV_ATTR_SYS_IMAGE_GUID])
        d.image_guid = nla_get_u64(tb[RDMA_NLDEV_ATTR_SYS_IMAGE_GUID]);
    *ret = d;
    return 0;
}

int net_msg_rdma_port(struct nlmsghdr *h, struct rdma_port *ret)
{
    struct nlattr *tb[RDMA_NLDEV_ATTR_MAX];
    struct rdma_port p = {0};

    if (rdma_parse(h, RDMA_NLDEV_CMD_PORT_GET, tb) < 0)
        return -1;
    p.dev = nla_get_u32(tb[RDMA_NLDEV_ATTR_DEV_INDEX]);
    p.port = (int)nla_get_u32(tb[RDMA_NLDEV_ATTR_PORT_INDEX]);
    if (tb[RDMA_NLDEV_ATTR_PORT_STATE])
        p.state = nla_get_u8(tb[RDMA_NLDEV_ATTR_PORT_STATE]);
    if (tb[RDMA_NLDEV_ATTR_NDEV_INDEX])
        p.ifindex = (int)nla_get_u32(tb[RDMA_NLDEV_ATTR_NDEV_INDEX]);
    *ret = p;
    return 0;
}

/* topo/net_dump.c - see net_dump.h. */
#include "topo/net_dump.h"

#include <linux/ethtool_netlink.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>

#include <netlink/genl/ctrl.h>
#include <netlink/genl/genl.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/route/rtnl.h>
#include <rdma/rdma_netlink.h>

#include "base/err.h"
#include "base/mem.h"

enum { ROWS_MAX = 4096, TRIES = 5 };

typedef int (*take_fn)(struct net_table *t, struct nlmsghdr *h);

/* One more row of a list, or NULL when it is full. */
static void *more(void **rows, int n, size_t size)
{
    if (n == ROWS_MAX)
        return NULL;
    if (n % 32 == 0)
        *rows = xrealloc(*rows, (size_t)(n + 32) * size);
    return (char *)*rows + (size_t)n * size;
}

#define TAKE(name, type, rows, count, parse)                                             \
    static int name(struct net_table *t, struct nlmsghdr *h)                             \
    {                                                                                    \
        type row;                                                                        \
        if (parse(h, &row) < 0)                                                          \
            return 0;                                                                    \
        type *at = more((void **)&t->rows, t->count, sizeof(row));                       \
        if (!at)                                                                         \
            return -1;                                                                   \
        *at = row;                                                                       \
        t->count++;                                                                      \
        return 0;                                                                        \
    }
TAKE(take_link, struct net_link, links, n_links, net_msg_link)
TAKE(take_speed, struct net_speed, speeds, n_speeds, net_msg_speed)
TAKE(take_down, struct net_down, downs, n_downs, net_msg_down)
TAKE(take_dev, struct rdma_dev, devs, n_devs, net_msg_rdma_dev)
TAKE(take_port, struct rdma_port, ports, n_ports, net_msg_rdma_port)

struct pass {
    struct net_table *t;
    take_fn take;
    bool full;
};

static int on_msg(struct nl_msg *msg, void *arg)
{
    struct pass *p = arg;

    if (p->take(p->t, nlmsg_hdr(msg)) < 0)
        p->full = true;
    return NL_OK;
}

static struct nl_sock *open_socket(int protocol, int *ret_rc)
{
    struct nl_sock *s = nl_socket_alloc();

    if (!s) {
        *ret_rc = -NLE_NOMEM;
        return NULL;
    }
    nl_socket_disable_seq_check(s);
    *ret_rc = nl_connect(s, protocol);
    if (*ret_rc < 0) {
        nl_socket_free(s);
        return NULL;
    }
    return s;
}

/* Everything up to the end of the list. */
static int receive(struct nl_sock *s, struct net_table *t, take_fn take)
{
    struct pass p = {.t = t, .take = take};

    nl_socket_modify_cb(s, NL_CB_VALID, NL_CB_CUSTOM, on_msg, &p);
    int rc = nl_recvmsgs_default(s);
    return rc < 0 ? rc : p.full ? -NLE_RANGE : 0;
}

static int said(int rc, const char *what, struct err *e)
{
    if (rc == -NLE_RANGE)
        return err_set(e, ERR_TOOBIG, "%s: more than %d", what, ROWS_MAX);
    return err_set(e, ERR_IO, "%s: %s", what, nl_geterror(rc));
}

int net_dump_links(struct net_table *t, struct err *e)
{
    int rc = -NLE_DUMP_INTR;

    for (int i = 0; i < TRIES && rc == -NLE_DUMP_INTR; i++) {
        struct nl_sock *s = open_socket(NETLINK_ROUTE, &rc);
        t->n_links = 0;
        if (!s)
            break;
        rc = nl_rtgen_request(s, RTM_GETLINK, AF_UNSPEC, NLM_F_DUMP);
        if (rc >= 0)
            rc = receive(s, t, take_link);
        nl_socket_free(s);
    }
    if (rc == 0)
        return 0;
    t->n_links = 0;
    return said(rc, "the kernel does not list its network links", e);
}

/* One list of the ethtool family; its requests all have an empty header attribute 1. */
static int ethtool_dump(struct net_table *t, int cmd, take_fn take)
{
    int rc;
    struct nl_sock *s = open_socket(NETLINK_GENERIC, &rc);
    struct nl_msg *m = NULL;

    if (!s)
        return rc;
    rc = genl_ctrl_resolve(s, ETHTOOL_GENL_NAME);
    if (rc < 0)
        goto out;
    m = nlmsg_alloc();
    if (!m ||
        !genlmsg_put(m, NL_AUTO_PORT, NL_AUTO_SEQ, rc, 0, NLM_F_DUMP, (uint8_t)cmd,
                     ETHTOOL_GENL_VERSION) ||
        nla_put(m, 1 | NLA_F_NESTED, 0, NULL) < 0) {
        rc = -NLE_NOMEM;
        goto out;
    }
    rc = nl_send_auto(s, m);
    if (rc >= 0)
        rc = receive(s, t, take);
out:
    nlmsg_free(m);
    nl_socket_free(s);
    return rc;
}

int net_dump_speeds(struct net_table *t, struct err *e)
{
    int rc = -NLE_DUMP_INTR, rc2 = 0;

    for (int i = 0; i < TRIES && (rc == -NLE_DUMP_INTR || rc2 == -NLE_DUMP_INTR); i++) {
        t->n_speeds = t->n_downs = 0;
        rc = ethtool_dump(t, ETHTOOL_MSG_LINKMODES_GET, take_speed);
        rc2 = rc < 0 ? 0 : ethtool_dump(t, ETHTOOL_MSG_LINKSTATE_GET, take_down);
    }
    if (rc == 0 && rc2 == 0)
        return 0;
    t->n_speeds = t->n_downs = 0;
    return said(rc < 0 ? rc : rc2, "the kernel does not say how fast links are (ethtool)",
                e);
}

static int rdma_dump(struct net_table *t, int cmd, const uint32_t *dev, take_fn take)
{
    int rc;
    struct nl_sock *s = open_socket(NETLINK_RDMA, &rc);
    struct nl_msg *m = NULL;

    if (!s)
        return rc;
    m = nlmsg_alloc_simple(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, cmd),
                           NLM_F_REQUEST | NLM_F_DUMP);
    if (!m || (dev && nla_put_u32(m, RDMA_NLDEV_ATTR_DEV_INDEX, *dev) < 0))
        rc = -NLE_NOMEM;
    else
        rc = nl_send_auto(s, m);
    if (rc >= 0)
        rc = receive(s, t, take);
    nlmsg_free(m);
    nl_socket_free(s);
    return rc;
}

static int rdma_once(struct net_table *t)
{
    t->n_devs = t->n_ports = 0;
    int rc = rdma_dump(t, RDMA_NLDEV_CMD_GET, NULL, take_dev);
    for (int i = 0; i < t->n_devs && rc == 0; i++)
        rc = rdma_dump(t, RDMA_NLDEV_CMD_PORT_GET, &t->devs[i].index, take_port);
    return rc;
}

int net_dump_rdma(struct net_table *t, struct err *e)
{
    int rc = -NLE_DUMP_INTR;

    for (int i = 0; i < TRIES && rc == -NLE_DUMP_INTR; i++)
        rc = rdma_once(t);
    if (rc == 0)
        return 0;
    t->n_devs = t->n_ports = 0;
    if (rc == -NLE_PROTO_MISMATCH || rc == -NLE_AF_NOSUPPORT)
        return err_set(e, ERR_UNSUPPORTED, "this kernel has no RDMA");
    return said(rc, "the kernel does not list RDMA devices", e);
}

void net_table_done(struct net_table *t)
{
    free(t->links);
    free(t->speeds);
    free(t->downs);
    free(t->devs);
    free(t->ports);
    memset(t, 0, sizeof(*t));
}

const struct net_link *net_table_link(const struct net_table *t, int ifindex)
{
    for (int i = 0; i < t->n_links; i++)
        if (t->links[i].ifindex == ifindex)
            return &t->links[i];
    return NULL;
}

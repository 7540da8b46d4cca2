/* topo/net_watch.c - see net_watch.h.
 *
 * The table of links is the state that was last reported; a message or a full list is
 * compared with it and the difference becomes news. So a message that arrives twice, or
 * both in the first list and on the socket, says nothing. */
#include "topo/net_watch.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <netlink/msg.h>
#include <netlink/netlink.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/mem.h"
#include "topo/net_dump.h"

/* The header here may be older than the kernel: RDMA_NL_GROUP_NOTIFY of 6.13. */
enum { RDMA_POLL_US = 500000, RCVBUF = 1 << 20, RDMA_GROUP_NOTIFY = 4 };

struct net_watch {
    struct loop *loop;
    struct nl_sock *sock;
    struct loop_fd *watch;
    struct nl_sock *rdma; /* reports of RDMA devices, NULL where the kernel has none */
    struct loop_fd *rdma_watch;
    struct loop_timer *poll;
    enum net_rdma how;
    net_change_fn fn;
    void *arg;
    struct net_table t; /* links, devs and ports as last reported */
    bool lost;
};

static void tell(struct net_watch *w, enum net_change c, const char *name,
                 const char *before, int mtu)
{
    char text[200] = "";

    switch (c) {
    case NET_CAME:
        snprintf(text, sizeof(text), "NIC %s is new", name);
        break;
    case NET_LEFT:
        snprintf(text, sizeof(text), "NIC %s is gone", name);
        break;
    case NET_WENT_UP:
        snprintf(text, sizeof(text), "NIC %s is up", name);
        break;
    case NET_WENT_DOWN:
        snprintf(text, sizeof(text), "NIC %s is down", name);
        break;
    case NET_RENAMED:
        snprintf(text, sizeof(text), "NIC %s is now called %s", before, name);
        break;
    case NET_MTU:
        snprintf(text, sizeof(text), "NIC %s has an MTU of %d now", name, mtu);
        break;
    }
    w->fn(w->arg, c, name, text);
}

/* ---- links ---- */

static int find(const struct net_watch *w, int ifindex)
{
    for (int i = 0; i < w->t.n_links; i++)
        if (w->t.links[i].ifindex == ifindex)
            return i;
    return -1;
}

static void link_now(struct net_watch *w, const struct net_link *l)
{
    int i = find(w, l->ifindex);

    if (i < 0) {
        w->t.links = xrealloc(w->t.links, (size_t)(w->t.n_links + 32) / 32 * 32 *
                                              sizeof(*w->t.links));
        w->t.links[w->t.n_links++] = *l;
        tell(w, NET_CAME, l->name, "", 0);
        return;
    }
    struct net_link before = w->t.links[i];
    w->t.links[i] = *l;
    if (strcmp(before.name, l->name))
        tell(w, NET_RENAMED, l->name, before.name, 0);
    if (before.running != l->running)
        tell(w, l->running ? NET_WENT_UP : NET_WENT_DOWN, l->name, "", 0);
    if (before.mtu != l->mtu)
        tell(w, NET_MTU, l->name, "", l->mtu);
}

static void link_gone(struct net_watch *w, int ifindex)
{
    int i = find(w, ifindex);

    if (i < 0)
        return;
    struct net_link l = w->t.links[i];
    w->t.links[i] = w->t.links[--w->t.n_links];
    tell(w, NET_LEFT, l.name, "", 0);
}

static int on_msg(struct nl_msg *msg, void *arg)
{
    struct net_watch *w = arg;
    struct nlmsghdr *h = nlmsg_hdr(msg);
    struct net_link l;

    if (net_msg_link(h, &l) < 0)
        return NL_OK;
    if (h->nlmsg_type == RTM_DELLINK)
        link_gone(w, l.ifindex);
    else
        link_now(w, &l);
    return NL_OK;
}

/* Reports were lost: the list itself, against what was last said. */
static void resync(struct net_watch *w)
{
    struct net_table now = {0};

    if (net_dump_links(&now, NULL) < 0)
        return; /* stays lost; the next report tries again */
    w->lost = false;
    for (int i = w->t.n_links - 1; i >= 0; i--)
        if (!net_table_link(&now, w->t.links[i].ifindex))
            link_gone(w, w->t.links[i].ifindex);
    for (int i = 0; i < now.n_links; i++)
        link_now(w, &now.links[i]);
    net_table_done(&now);
}

static void on_readable(void *arg, int fd, uint32_t events)
{
    struct net_watch *w = arg;
    int rc;

    (void)fd;
    (void)events;
    while ((rc = nl_recvmsgs_default(w->sock)) >= 0)
        continue;
    /* -NLE_AGAIN: all read. libnl's word for ENOBUFS is -NLE_NOMEM */
    if (rc != -NLE_AGAIN)
        w->lost = true;
    if (w->lost)
        resync(w);
}

/* ---- RDMA ports ---- */

static void port_name(const struct net_table *t, const struct rdma_port *p, char *ret,
                      size_t n)
{
    for (int i = 0; i < t->n_devs; i++)
        if (t->devs[i].index == p->dev) {
            snprintf(ret, n, p->port > 1 ? "%s/%d" : "%s", t->devs[i].name, p->port);
            return;
        }
    snprintf(ret, n, "RDMA device %u", p->dev);
}

static const struct rdma_port *port_of(const struct net_table *t,
                                       const struct rdma_port *p)
{
    for (int i = 0; i < t->n_ports; i++)
        if (t->ports[i].dev == p->dev && t->ports[i].port == p->port)
            return &t->ports[i];
    return NULL;
}

static void compare_ports(struct net_watch *w, const struct net_table *now)
{
    char name[80];

    for (int i = 0; i < w->t.n_ports; i++)
        if (!port_of(now, &w->t.ports[i])) {
            port_name(&w->t, &w->t.ports[i], name, sizeof(name));
            tell(w, NET_LEFT, name, "", 0);
        }
    for (int i = 0; i < now->n_ports; i++) {
        const struct rdma_port *p = &now->ports[i], *before = port_of(&w->t, p);
        port_name(now, p, name, sizeof(name));
        if (!before)
            tell(w, NET_CAME, name, "", 0);
        else if ((before->state == 4) != (p->state == 4))
            tell(w, p->state == 4 ? NET_WENT_UP : NET_WENT_DOWN, name, "", 0);
    }
}

static void look_at_ports(struct net_watch *w)
{
    struct net_table now = {0};

    if (net_dump_rdma(&now, NULL) == 0) {
        compare_ports(w, &now);
        free(w->t.devs);
        free(w->t.ports);
        w->t.devs = now.devs;
        w->t.ports = now.ports;
        w->t.n_devs = now.n_devs;
        w->t.n_ports = now.n_ports;
    } else {
        net_table_done(&now);
    }
    /* without ports only reports can bring some */
    if (w->t.n_ports || w->how == NET_RDMA_POLLED)
        loop_timer_set(w->poll, clock_now_us(clock_real()) + RDMA_POLL_US);
}

static void on_poll(void *arg) { look_at_ports(arg); }

static int on_rdma_msg(struct nl_msg *msg, void *arg)
{
    (void)msg; /* what came or went is seen in the lists */
    (void)arg;
    return NL_OK;
}

static void on_rdma(void *arg, int fd, uint32_t events)
{
    struct net_watch *w = arg;
    int rc;

    (void)fd;
    (void)events;
    while ((rc = nl_recvmsgs_default(w->rdma)) >= 0)
        continue;
    look_at_ports(w);
}

/* ---- life ---- */

static int open_socket(struct net_watch *w, struct err *e)
{
    int rc;

    w->sock = nl_socket_alloc();
    if (!w->sock)
        return err_set(e, ERR_NOMEM, "no memory for a netlink socket");
    nl_socket_disable_seq_check(w->sock);
    nl_socket_modify_cb(w->sock, NL_CB_VALID, NL_CB_CUSTOM, on_msg, w);
    if ((rc = nl_connect(w->sock, NETLINK_ROUTE)) < 0 ||
        (rc = nl_socket_set_nonblocking(w->sock)) < 0 ||
        (rc = nl_socket_add_membership(w->sock, RTNLGRP_LINK)) < 0)
        return err_set(e, ERR_IO, "cannot listen for changes of network links: %s",
                       nl_geterror(rc));
    nl_socket_set_buffer_size(w->sock, RCVBUF, 0); /* a smaller one works as well */
    return 0;
}

/* Joins the group of RDMA reports. Without RDMA, or in an older kernel, there is none. */
static void open_rdma(struct net_watch *w)
{
    w->rdma = nl_socket_alloc();
    if (w->rdma) {
        nl_socket_disable_seq_check(w->rdma);
        nl_socket_modify_cb(w->rdma, NL_CB_VALID, NL_CB_CUSTOM, on_rdma_msg, w);
    }
    if (w->rdma && nl_connect(w->rdma, NETLINK_RDMA) >= 0 &&
        nl_socket_set_nonblocking(w->rdma) >= 0 &&
        nl_socket_add_membership(w->rdma, RDMA_GROUP_NOTIFY) >= 0 &&
        loop_fd_add(w->loop, nl_socket_get_fd(w->rdma), EPOLLIN, on_rdma, w,
                    &w->rdma_watch, NULL) == 0)
        return;
    nl_socket_free(w->rdma);
    w->rdma = NULL;
}

static void watch_rdma(struct net_watch *w)
{
    open_rdma(w); /* listening first */
    if (net_dump_rdma(&w->t, NULL) < 0) {
        loop_fd_del(w->rdma_watch);
        w->rdma_watch = NULL;
        nl_socket_free(w->rdma);
        w->rdma = NULL;
        return;
    }
    w->how = w->rdma ? NET_RDMA_REPORTED : NET_RDMA_POLLED;
    w->poll = loop_timer_new(w->loop, on_poll, w);
    look_at_ports(w);
}

enum net_rdma net_watch_rdma(const struct net_watch *w) { return w->how; }

int net_watch_new(struct loop *l, net_change_fn fn, void *arg, struct net_watch **ret,
                  struct err *e)
{
    struct net_watch *w = xcalloc(1, sizeof(*w));

    w->loop = l;
    w->fn = fn;
    w->arg = arg;
    /* listening first: a change between the two steps is seen twice, not never */
    if (open_socket(w, e) < 0 || net_dump_links(&w->t, e) < 0 ||
        loop_fd_add(l, nl_socket_get_fd(w->sock), EPOLLIN, on_readable, w, &w->watch, e) <
            0) {
        net_watch_free(w);
        return -1;
    }
    watch_rdma(w);
    *ret = w;
    return 0;
}

void net_watch_free(struct net_watch *w)
{
    if (!w)
        return;
    loop_fd_del(w->watch);
    loop_fd_del(w->rdma_watch);
    if (w->poll)
        loop_timer_free(w->poll);
    nl_socket_free(w->rdma);
    nl_socket_free(w->sock);
    net_table_done(&w->t);
    free(w);
}

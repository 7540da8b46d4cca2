/* topo/probe_net, net_msg, net_watch: against real network namespaces (veth, bridge), and
 * messages made by hand for what the kernel of a test machine lacks: RDMA, real speeds.
 *
 * Each test of the first kind makes its own namespace; where that is not allowed, or `ip`
 * is missing, it is skipped. */
#include "tests/test.h"

#include <linux/ethtool.h>
#include <linux/ethtool_netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <sys/mount.h>

#include <netlink/genl/genl.h>
#include <netlink/msg.h>
#include <rdma/rdma_netlink.h>

#include "tests/unit/probe_machine.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "topo/probe_net.h"
#include "topo/sysfs.h"
/* the comparison of RDMA ports is tested without a kernel that has some */
#include "topo/net_watch.c"

/* ---- messages made by hand ---- */

static struct nl_msg *link_msg(int type, int ifindex, const char *name, unsigned flags,
                               int carrier, int master, const char *kind)
{
    struct nl_msg *m = nlmsg_alloc_simple(type, 0);
    struct ifinfomsg i = {
        .ifi_index = ifindex, .ifi_type = ARPHRD_ETHER, .ifi_flags = flags};

    assert_int_equal(nlmsg_append(m, &i, sizeof(i), NLMSG_ALIGNTO), 0);
    assert_int_equal(nla_put_string(m, IFLA_IFNAME, name), 0);
    nla_put_u32(m, IFLA_MTU, 9000);
    nla_put_u8(m, IFLA_CARRIER, (uint8_t)carrier);
    if (master)
        nla_put_u32(m, IFLA_MASTER, (uint32_t)master);
    if (kind) {
        struct nlattr *n = nla_nest_start(m, IFLA_LINKINFO);
        nla_put_string(m, IFLA_INFO_KIND, kind);
        nla_nest_end(m, n);
    } else {
        nla_put_string(m, IFLA_PARENT_DEV_NAME, "0000:82:00.0");
        nla_put_string(m, IFLA_PARENT_DEV_BUS_NAME, "pci");
    }
    return m;
}

static struct nl_msg *ethtool_msg(int cmd, int ifindex, int attr, uint32_t v, bool byte)
{
    struct nl_msg *m = nlmsg_alloc();

    assert_non_null(genlmsg_put(m, 0, 0, 0x20, 0, 0, (uint8_t)cmd, 1));
    struct nlattr *n = nla_nest_start(m, 1);
    nla_put_u32(m, ETHTOOL_A_HEADER_DEV_INDEX, (uint32_t)ifindex);
    nla_nest_end(m, n);
    if (byte)
        nla_put_u8(m, attr, (uint8_t)v);
    else
        nla_put_u32(m, attr, v);
    return m;
}

static struct nl_msg *rdma_msg(int cmd, unsigned dev, const char *name, unsigned port,
                               int state, int ifindex)
{
    struct nl_msg *m = nlmsg_alloc_simple(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, cmd), 0);

    nla_put_u32(m, RDMA_NLDEV_ATTR_DEV_INDEX, dev);
    nla_put_u32(m, RDMA_NLDEV_ATTR_PORT_INDEX, port);
    if (name) {
        nla_put_string(m, RDMA_NLDEV_ATTR_DEV_NAME, name);
        nla_put_u64(m, RDMA_NLDEV_ATTR_SYS_IMAGE_GUID, 0x1070fd0300a1b2c0ull);
    }
    if (state)
        nla_put_u8(m, RDMA_NLDEV_ATTR_PORT_STATE, (uint8_t)state);
    if (ifindex)
        nla_put_u32(m, RDMA_NLDEV_ATTR_NDEV_INDEX, (uint32_t)ifindex);
    return m;
}

static void test_link_message(void **state)
{
    struct nl_msg *m = link_msg(RTM_NEWLINK, 7, "eth7", IFF_UP, 1, 3, "veth");
    struct net_link l;

    (void)state;
    assert_int_equal(net_msg_link(nlmsg_hdr(m), &l), 0);
    assert_int_equal(l.ifindex, 7);
    assert_string_equal(l.name, "eth7");
    assert_string_equal(l.kind, "veth");
    assert_int_equal(l.mtu, 9000);
    assert_int_equal(l.master, 3);
    assert_true(l.admin_up && l.running);
    nlmsg_free(m);
    m = link_msg(RTM_NEWLINK, 7, "eth7", 0, 1, 0, NULL);
    assert_int_equal(net_msg_link(nlmsg_hdr(m), &l), 0);
    assert_false(l.running);
    assert_string_equal(l.parent, "0000:82:00.0");
    /* the same, cut short at every length: never a crash */
    for (unsigned n = nlmsg_hdr(m)->nlmsg_len; n >= sizeof(struct nlmsghdr); n--) {
        struct nlmsghdr *h = malloc(n);
        memcpy(h, nlmsg_hdr(m), n);
        h->nlmsg_len = n;
        net_msg_link(h, &l);
        free(h);
    }
    nlmsg_free(m);
}

static void test_speed_messages(void **state)
{
    static const struct {
        uint32_t v;
        int64_t mbps;
    } rows[] = {{400000, 400000}, {0xffffffff, -1}, {0, -1}};
    struct net_speed s;
    struct net_down d;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct nl_msg *m = ethtool_msg(ETHTOOL_MSG_LINKMODES_GET_REPLY, 4,
                                       ETHTOOL_A_LINKMODES_SPEED, rows[i].v, false);
        assert_int_equal(net_msg_speed(nlmsg_hdr(m), &s), 0);
        assert_int_equal(s.ifindex, 4);
        assert_int_equal(s.mbps, rows[i].mbps);
        assert_int_equal(net_msg_down(nlmsg_hdr(m), &d), -1);
        nlmsg_free(m);
    }
    struct nl_msg *m =
        ethtool_msg(ETHTOOL_MSG_LINKSTATE_GET_REPLY, 4, ETHTOOL_A_LINKSTATE_EXT_STATE,
                    ETHTOOL_LINK_EXT_STATE_NO_CABLE, true);
    assert_int_equal(net_msg_down(nlmsg_hdr(m), &d), 0);
    assert_string_equal(net_down_reason(d.why), "no cable");
    assert_null(net_down_reason(-1));
    assert_null(net_down_reason(1000));
    nlmsg_free(m);
}

static void test_rates(void **state)
{
    (void)state;
    assert_true(net_rate_bps("400 Gb/sec (4X NDR)") == 50e9);
    assert_true(net_rate_bps("2.5 Gb/sec (1X SDR)") == 2.5e9 / 8);
    assert_true(net_rate_bps("") == 0);
    assert_true(net_rate_bps("Unknown") == 0);
    assert_true(net_rate_bps("-1 Gb/sec") == 0);
    assert_true(net_rate_bps("nan Gb/sec") == 0);
}

/* Two ports of one card in a bond, an InfiniBand port that waits for its subnet manager,
 * one that is down, and one network device without RDMA. */
static void hand_made(struct net_table *t)
{
    static struct net_link links[5];
    static struct net_speed speeds[2];
    static struct rdma_dev devs[4];
    static struct rdma_port ports[4];
    struct nl_msg *m;
    int i = 0;

    const struct {
        const char *name, *kind;
        int master, carrier;
    } l[] = {{"eth0", NULL, 5, 1},
             {"eth1", NULL, 5, 1},
             {"bond0", "bond", 0, 1},
             {"br0", "bridge", 0, 1},
             {"eth9", NULL, 0, 0}};
    const int index[] = {3, 4, 5, 6, 9};
    for (; i < 5; i++) {
        m = link_msg(RTM_NEWLINK, index[i], l[i].name, IFF_UP, l[i].carrier, l[i].master,
                     l[i].kind);
        assert_int_equal(net_msg_link(nlmsg_hdr(m), &links[i]), 0);
        nlmsg_free(m);
    }
    for (i = 0; i < 2; i++) {
        m = ethtool_msg(ETHTOOL_MSG_LINKMODES_GET_REPLY, 3 + i, ETHTOOL_A_LINKMODES_SPEED,
                        200000, false);
        assert_int_equal(net_msg_speed(nlmsg_hdr(m), &speeds[i]), 0);
        nlmsg_free(m);
    }
    const struct {
        const char *name;
        int state, ifindex;
    } d[] = {{"mlx5_0", 4, 3}, {"mlx5_1", 4, 4}, {"mlx5_2", 2, 0}, {"mlx5_3", 1, 0}};
    for (i = 0; i < 4; i++) {
        m = rdma_msg(RDMA_NLDEV_CMD_GET, (unsigned)i, d[i].name, 1, 0, 0);
        assert_int_equal(net_msg_rdma_dev(nlmsg_hdr(m), &devs[i]), 0);
        assert_int_equal(net_msg_rdma_port(nlmsg_hdr(m), &ports[i]), -1);
        nlmsg_free(m);
        m = rdma_msg(RDMA_NLDEV_CMD_PORT_GET, (unsigned)i, NULL, 1, d[i].state,
                     d[i].ifindex);
        assert_int_equal(net_msg_rdma_port(nlmsg_hdr(m), &ports[i]), 0);
        nlmsg_free(m);
    }
    *t = (struct net_table){links, speeds, NULL, devs, ports, 5, 2, 0, 4, 4};
}

static bool said(const struct net_report *r, const char *what)
{
    for (int i = 0; i < r->n_warnings; i++)
        if (strstr(r->warnings[i], what))
            return true;
    return false;
}

static void test_merge(void **state)
{
    struct net_table t;
    struct net_report *r;
    char dir[64];

    (void)state;
    files_temp(dir);
    machine_file(dir, "400 Gb/sec (4X NDR)\n", "class/infiniband/mlx5_2/ports/1/rate");
    machine_file(dir, "InfiniBand\n", "class/infiniband/mlx5_2/ports/1/link_layer");
    machine_file(dir, "1\n", "class/infiniband/mlx5_2/device/numa_node");
    hand_made(&t);
    probe_net_merge(dir, &t, &r);
    /* four RDMA ports, eth9; no bond, no bridge, and no network device twice */
    assert_int_equal(r->n_ports, 5);
    const struct net_port *p = net_report_port(r, "mlx5_0");
    assert_string_equal(p->netdev, "eth0");
    assert_string_equal(p->bond, "bond0");
    assert_string_equal(p->pci, "0000:82:00.0");
    assert_string_equal(p->guid, "0x1070fd0300a1b2c0");
    assert_int_equal(p->state, NET_UP);
    assert_true(p->speed_bps == 25e9);
    assert_int_equal(p->mtu, 9000);
    p = net_report_port(r, "mlx5_2");
    assert_int_equal(p->state, NET_INIT);
    assert_int_equal(p->numa, 1);
    assert_true(p->speed_bps == 50e9);
    assert_string_equal(p->layer, "InfiniBand");
    assert_int_equal(net_report_port(r, "mlx5_3")->state, NET_DOWN);
    assert_int_equal(net_report_port(r, "eth9")->state, NET_DOWN);
    assert_true(said(r, "bond0 joins 2 ports (400 Gb/s of them up)"));
    assert_true(said(r, "no subnet manager"));
    assert_true(said(r, "NIC eth9 is down: no carrier"));
    net_report_free(r);
    files_remove(dir);
}

/* RDMA devices that only sysfs shows (a container). */
static void test_sysfs_only(void **state)
{
    struct net_table t = {0};
    struct net_report *r;
    char dir[64];

    (void)state;
    files_temp(dir);
    for (int i = 1; i <= 2; i++) {
        machine_file(dir, "100 Gb/sec (4X EDR)\n",
                     "class/infiniband/mlx5_0/ports/%d/rate", i);
        machine_file(dir, i == 1 ? "4: ACTIVE\n" : "1: DOWN\n",
                     "class/infiniband/mlx5_0/ports/%d/state", i);
    }
    probe_net_merge(dir, &t, &r);
    assert_int_equal(r->n_ports, 2);
    assert_int_equal(net_report_port(r, "mlx5_0")->state, NET_UP);
    assert_int_equal(net_report_port(r, "mlx5_0/2")->state, NET_DOWN);
    assert_true(net_report_port(r, "mlx5_0")->speed_bps == 12.5e9);
    assert_int_equal(net_report_port(r, "mlx5_0")->numa, -1);
    assert_true(said(r, "in sysfs only"));
    net_report_free(r);
    files_remove(dir);
}

/* ---- real namespaces ---- */

static void skip_for(const char *kind)
{
    printf("# skipped: %s\n", kind);
    fflush(stdout);
    skip();
}

static void own_namespace(void)
{
    if (unshare(CLONE_NEWNET) < 0)
        skip_for("no network namespace may be made here");
    if (system("ip link set lo up >/dev/null 2>&1") != 0)
        skip_for("no `ip` program");
    if (system("ip link add a0 type veth peer name a1 >/dev/null 2>&1") != 0)
        skip_for("the kernel has no veth links");
}

static void ip(const char *args)
{
    char cmd[256];

    snprintf(cmd, sizeof(cmd), "ip %s", args);
    if (system(cmd) != 0)
        fail_msg("%s", cmd);
}

static void test_namespace(void **state)
{
    struct net_report *r;

    (void)state;
    own_namespace();
    ip("link add br0 type bridge");
    ip("link set a0 up");
    ip("link set a0 master br0");
    probe_net_read("/sys", &r);
    assert_int_equal(r->n_ports, 2); /* neither lo nor the bridge */
    assert_int_equal(net_report_port(r, "a0")->state, NET_DOWN);
    assert_true(said(r, "NIC a0 is down: no carrier"));
    assert_true(said(r, "NIC a1 is down: it is not switched on"));
    assert_string_equal(net_report_port(r, "a0")->bond, "");
    net_report_free(r);
    ip("link set a1 up");
    probe_net_read("/sys", &r);
    assert_int_equal(net_report_port(r, "a0")->state, NET_UP);
    assert_int_equal(net_report_port(r, "a1")->state, NET_UP);
    assert_true(net_report_port(r, "a0")->speed_bps > 0); /* by ethtool */
    net_report_free(r);
}

/* A namespace with a sysfs of its own: what a container sees. */
static void test_own_sysfs(void **state)
{
    struct net_report *r;
    char at[64];
    long mtu;

    (void)state;
    own_namespace();
    files_temp(at);
    if (unshare(CLONE_NEWNS) < 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("sysfs", at, "sysfs", 0, NULL) < 0) {
        rmdir(at);
        skip_for("no sysfs may be mounted here");
    }
    assert_true(sysfs_long(at, &mtu, "class/net/a0/mtu"));
    probe_net_read(at, &r);
    assert_int_equal(r->n_ports, 2); /* and none of the machine's own */
    assert_non_null(net_report_port(r, "a0"));
    assert_int_equal(net_report_port(r, "a0")->mtu, mtu);
    assert_int_equal(net_report_port(r, "a0")->numa, -1);
    assert_string_equal(net_report_port(r, "a0")->pci, "");
    net_report_free(r);
    umount(at);
    rmdir(at);
}

struct news {
    int n[NET_MTU + 1];
    char last[NET_MTU + 1][200];
};

static void on_change(void *arg, enum net_change c, const char *name, const char *what)
{
    struct news *n = arg;

    (void)name;
    n->n[c]++;
    snprintf(n->last[c], sizeof(n->last[c]), "%s", what);
}

/* Turns the loop until the news came; the limit only ends a test that fails. */
static void expect(struct loop *l, struct news *n, enum net_change c, const char *what)
{
    int64_t until = clock_now_us(clock_real()) + 10000000;
    struct err e;

    while (strcmp(n->last[c], what) && clock_now_us(clock_real()) < until)
        assert_int_equal(loop_once(l, until, &e), 0);
    assert_string_equal(n->last[c], what);
}

static void test_watch(void **state)
{
    struct news n = {0};
    struct net_watch *w;
    struct loop *l;
    struct err e;

    (void)state;
    own_namespace();
    ip("link set a0 up");
    ip("link set a1 up");
    assert_int_equal(loop_new(&l, &e), 0);
    assert_int_equal(net_watch_new(l, on_change, &n, &w, &e), 0);
    struct net_table rdma = {0};
    assert_int_equal(net_dump_rdma(&rdma, &e) == 0, net_watch_rdma(w) != NET_RDMA_NONE);
    net_table_done(&rdma);
    ip("link set a1 down"); /* the far end: a0 loses its carrier */
    expect(l, &n, NET_WENT_DOWN, "NIC a0 is down");
    ip("link set a1 up");
    expect(l, &n, NET_WENT_UP, "NIC a0 is up");
    ip("link set a0 mtu 9000");
    expect(l, &n, NET_MTU, "NIC a0 has an MTU of 9000 now");
    ip("link set a1 down");
    ip("link set a1 name far");
    expect(l, &n, NET_RENAMED, "NIC a1 is now called far");
    ip("link add b0 type veth peer name b1");
    expect(l, &n, NET_CAME, "NIC b0 is new");
    ip("link del a0"); /* both ends go */
    expect(l, &n, NET_LEFT, "NIC far is gone");
    assert_int_equal(n.n[NET_LEFT], 2);
    net_watch_free(w);
    loop_free(l);
}

/* More reports than the socket holds: the list is read again and the end state is right.
 */
static void test_burst(void **state)
{
    struct news n = {0};
    struct net_watch *w;
    struct loop *l;
    struct err e;
    char cmd[512];

    (void)state;
    own_namespace();
    assert_int_equal(loop_new(&l, &e), 0);
    assert_int_equal(net_watch_new(l, on_change, &n, &w, &e), 0);
    snprintf(cmd, sizeof(cmd),
             "for i in $(seq 1 4000); do echo link set a0 mtu $((1000 + i %% 2)); done | "
             "ip -batch - && ip link set a0 mtu 2000");
    assert_int_equal(system(cmd), 0);
    expect(l, &n, NET_MTU, "NIC a0 has an MTU of 2000 now");
    net_watch_free(w);
    loop_free(l);
}

/* States of RDMA ports are compared, the kernel reports none. */
static void test_rdma_changes(void **state)
{
    struct rdma_dev devs[] = {{.index = 0, .ports = 2, .name = "mlx5_0"},
                              {.index = 1, .ports = 1, .name = "mlx5_1"}};
    struct rdma_port before[] = {{0, 1, 4, 0}, {0, 2, 2, 0}, {1, 1, 4, 0}};
    struct rdma_port after[] = {{0, 1, 1, 0}, {0, 2, 4, 0}};
    struct net_table now = {.devs = devs, .ports = after, .n_devs = 1, .n_ports = 2};
    struct news n = {0};
    struct net_watch w = {.fn = on_change, .arg = &n};

    (void)state;
    w.t = (struct net_table){.devs = devs, .ports = before, .n_devs = 2, .n_ports = 3};
    compare_ports(&w, &now);
    assert_string_equal(n.last[NET_WENT_DOWN], "NIC mlx5_0 is down");
    assert_string_equal(n.last[NET_WENT_UP], "NIC mlx5_0/2 is up");
    assert_string_equal(n.last[NET_LEFT], "NIC mlx5_1 is gone");
    assert_int_equal(n.n[NET_CAME], 0);
    compare_ports(&w, &w.t);
    assert_int_equal(n.n[NET_WENT_DOWN] + n.n[NET_WENT_UP] + n.n[NET_LEFT], 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_message), cmocka_unit_test(test_speed_messages),
        cmocka_unit_test(test_rates),        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_sysfs_only),   cmocka_unit_test(test_namespace),
        cmocka_unit_test(test_watch),        cmocka_unit_test(test_burst),
        cmocka_unit_test(test_own_sysfs),    cmocka_unit_test(test_rdma_changes),
    };

    return test_main(argc, argv, "probe_net", tests, sizeof(tests) / sizeof(tests[0]));
}

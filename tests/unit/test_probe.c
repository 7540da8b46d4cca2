/* topo/probe*, nvml_report, probe_child: the NVML helper against a fake library in every
 * state that a driver has been seen in, and the graph that comes of it.
 *
 * The test is its own helper: started with `--probe nvml` it loads the library that
 * FAKE_LIB names. No machine with a GPU is needed, or has been used. */
#include "tests/test.h"

#include <signal.h>
#include <sys/wait.h>

#include "tests/topo_help.h"
#include "tests/unit/fake_graph.h"
#include "tests/unit/probe_machine.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/loop.h"
#include "topo/finding.h"
#include "topo/graph.h"
#include "topo/nvlinks.h"
#include "topo/nvml_abi.h"
#include "topo/nvml_report.h"
#include "topo/path.h"
#include "topo/probe.h"
#include "topo/probe_child.h"
#include "topo/probe_nvml.h"
#include "topo/rack.h"

static char lib_dir[64], dir[64], sysfs[128], devs[128], xml[128], conf[128];

/* A fake library; flags take functions out. */
static void build_lib(const char *name, const char *flags)
{
    char cmd[1024];

    snprintf(cmd, sizeof(cmd),
             "cc -std=gnu11 -D_GNU_SOURCE -w -shared -fPIC -I. %s -o %s/%s "
             "tests/tools/fake_nvml.c",
             flags, lib_dir, name);
    if (system(cmd) != 0)
        fail_msg("%s", cmd);
}

static void use_lib(const char *name)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", lib_dir, name);
    setenv("FAKE_LIB", path, 1);
}

static const char *const addrs[] = {"00000000:04:00.0", "00000000:05:00.0",
                                    "00000000:81:00.0"};
static const char *const switches[] = {"s00000000:C1:00.0", "s00000000:C2:00.0",
                                       "s00000000:C3:00.0", "s00000000:C4:00.0"};

/* Three H200 behind four visible switches; `more` comes first and so wins. */
static void machine(const char *more)
{
    struct buf b;

    buf_init(&b, 0);
    buf_puts(&b, more);
    buf_puts(&b, "\ndriver=570.1\ncount=3\n");
    for (int i = 0; i < 3; i++) {
        buf_printf(&b,
                   "gpu%d.uuid=GPU-%d\ngpu%d.pci=%s\ngpu%d.name=NVIDIA H200\n"
                   "gpu%d.sm=90\ngpu%d.memory=150754820096\ngpu%d.numa=%d\n"
                   "gpu%d.nvlinks=18\ngpu%d.fabric=3 0 0 170 1 0\ngpu%d.mig.current=0\n",
                   i, i, i, addrs[i], i, i, i, i, i / 2, i, i, i);
        for (int k = 0; k < 18; k++)
            buf_printf(&b, "gpu%d.nvlink%d.to=%s\n", i, k, switches[k % 4]);
    }
    files_write(dir, "conf", b.p, b.len);
    buf_done(&b);
}

static int set_up(void **state)
{
    (void)state;
    files_temp(lib_dir);
    files_temp(dir);
    snprintf(sysfs, sizeof(sysfs), "%s/sys", dir);
    snprintf(devs, sizeof(devs), "%s/dev", dir);
    snprintf(xml, sizeof(xml), "%s/box.xml", dir);
    snprintf(conf, sizeof(conf), "%s/conf", dir);
    setenv("FAKE_NVML", conf, 1);
    machine_sysfs(sysfs);
    files_write(dir, "box.xml", machine_xml, strlen(machine_xml));
    build_lib("all.so", "");
    use_lib("all.so");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    files_remove(dir);
    files_remove(lib_dir);
    return 0;
}

static struct graph *read_graph(void)
{
    struct probe_cfg c = {.program = "/proc/self/exe",
                          .sysfs = sysfs,
                          .dev = devs,
                          .hwloc_xml = xml,
                          .deadline_us = 20000000};
    struct probe *p;
    struct graph *g;
    struct err e = {0};

    assert_int_equal(probe_new(&c, &p, &e), 0);
    if (probe_read(p, &g, &e) < 0)
        fail_msg("%s", e.msg);
    probe_free(p);
    return g;
}

static const char *said(const struct graph *g, const char *what)
{
    for (int i = 0; i < graph_n_warnings(g); i++)
        if (strstr(graph_warning(g, i), what))
            return graph_warning(g, i);
    return NULL;
}

static void must_say(const struct graph *g, const char *what)
{
    if (said(g, what))
        return;
    for (int i = 0; i < graph_n_warnings(g); i++)
        printf("# said: %s\n", graph_warning(g, i));
    fail_msg("nothing said of '%s'", what);
}

static int host_of(const struct graph *g)
{
    for (int i = 0; i < graph_n_nodes(g); i++)
        if (graph_node(g, i)->kind == NODE_HOST)
            return i;
    return -1;
}

static const struct node *gpu(const struct graph *g, const char *addr)
{
    int id = graph_find(g, host_of(g), addr);

    if (id < 0)
        fail_msg("no node %s", addr);
    return graph_node(g, id);
}

static int nvlinks(const struct graph *g, const char *addr)
{
    const int *at;
    int n = graph_links_at(g, gpu(g, addr)->id, &at), sum = 0;

    for (int i = 0; i < n; i++)
        if (graph_link(g, at[i])->kind == LINK_NVLINK)
            sum += graph_link(g, at[i])->width;
    return sum;
}

static void test_normal(void **state)
{
    struct paths *p;
    struct err e = {0};
    const int *dev;

    (void)state;
    machine("");
    struct graph *g = read_graph();
    assert_false(graph_emulated(g));
    assert_string_equal(graph_source(g), "live");
    assert_int_equal(graph_devices(g, &dev), 3);
    assert_int_equal(graph_count(g, NODE_NVSWITCH), 4);
    assert_int_equal(graph_count(g, NODE_NUMA), 2);
    assert_int_equal(graph_count(g, NODE_SWITCH), 1);
    const struct node *a = gpu(g, "0000:04:00.0");
    assert_string_equal(a->uuid, "GPU-0");
    assert_int_equal(a->numa, 0);
    assert_int_equal(a->health, HEALTH_OK);
    assert_true(a->memory_bytes.v == 150754820096.0);
    assert_int_equal(a->memory_bytes.source, FROM_NVML);
    assert_int_equal(a->clique, -1); /* a zero UUID joins nothing */
    assert_int_equal(nvlinks(g, "0000:04:00.0"), 18);
    const struct link *l = graph_link_between(g, a->id, a->parent, LINK_PCI);
    assert_non_null(l);
    assert_int_equal(l->nominal.source, FROM_SYSFS);
    assert_int_equal(paths_new(g, &p, &e), 0);
    const struct path *q = paths_get(p, dev[0], dev[2]);
    assert_int_equal(q->cls, PATH_NVL);
    assert_true(q->bps == 18 * 25e9);
    paths_free(p);
    graph_free(g);
}

static void test_lost(void **state)
{
    (void)state;
    machine("gpu1.rc.nvmlDeviceGetHandleByIndex_v2=15\n"
            "gpu2.rc.nvmlDeviceGetHandleByIndex_v2=4");
    struct graph *g = read_graph();
    must_say(g, "GPU 1 of the driver does not answer: GPU is lost");
    must_say(g, "GPU 2 of the driver does not answer: no permission");
    must_say(g, "GPU 0000:05:00.0 is on the PCI bus but not in the driver's list");
    assert_int_equal(gpu(g, "0000:05:00.0")->health, HEALTH_BAD);
    assert_int_equal(gpu(g, "0000:04:00.0")->health, HEALTH_OK);
    graph_free(g);
    /* gone from the driver's count altogether */
    machine("count=2");
    g = read_graph();
    assert_int_equal(gpu(g, "0000:81:00.0")->health, HEALTH_BAD);
    assert_int_equal(nvlinks(g, "0000:81:00.0"), 0);
    graph_free(g);
}

static void test_links(void **state)
{
    (void)state;
    machine("gpu0.nvlink3=down\ngpu1.nvlink7=fail");
    struct graph *g = read_graph();
    assert_int_equal(nvlinks(g, "0000:04:00.0"), 17);
    assert_int_equal(nvlinks(g, "0000:05:00.0"), 17);
    must_say(g, "the state of 1 NVLinks of GPU 1 is unknown");
    graph_free(g);
    struct buf b;
    buf_init(&b, 0);
    for (int i = 0; i < 18; i++)
        buf_printf(&b, "gpu0.nvlink%d=down\n", i);
    machine(b.p);
    buf_done(&b);
    g = read_graph();
    must_say(g, "none of the 18 NVLinks of GPU 0 is active");
    graph_free(g);
    /* a switch that nobody can see, and a fabric of several hosts */
    machine("gpu0.nvlink.to=hidden");
    g = read_graph();
    assert_int_equal(nvlinks(g, "0000:04:00.0"), 18);
    graph_free(g);
}

static void test_mesh(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 18; k++)
            buf_printf(&b, "gpu%d.nvlink%d.to=%s\n", i, k, addrs[(i + 1 + k % 2) % 3]);
    machine(b.p);
    struct graph *g = read_graph();
    assert_int_equal(graph_count(g, NODE_NVSWITCH), 0);
    const struct link *l = graph_link_between(g, gpu(g, "0000:04:00.0")->id,
                                              gpu(g, "0000:05:00.0")->id, LINK_NVLINK);
    assert_non_null(l);
    assert_int_equal(l->width, 9);
    graph_free(g);
    buf_puts(&b, "gpu0.p2p_bad1=1\n");
    machine(b.p);
    g = read_graph();
    assert_null(graph_link_between(g, gpu(g, "0000:04:00.0")->id,
                                   gpu(g, "0000:05:00.0")->id, LINK_NVLINK));
    must_say(g, "not open to peer access (GPU 0 to GPU 1 first)");
    buf_done(&b);
    graph_free(g);
}

static void test_mig(void **state)
{
    const int *dev;

    (void)state;
    machine("gpu0.mig.current=1\ngpu0.mig0.uuid=MIG-a\ngpu0.mig0.memory=1000\n"
            "gpu0.mig0.gi=1\ngpu0.mig0.ci=0\ngpu0.mig3.uuid=MIG-b\ngpu0.mig3.gi=5\n"
            "gpu0.mig3.ci=0\ngpu1.mig.current=0\ngpu1.mig.pending=1");
    struct graph *g = read_graph();
    assert_int_equal(graph_devices(g, &dev), 4); /* two slices and two GPUs */
    const struct node *m = graph_node(g, dev[0]);
    assert_true(m->mig);
    assert_string_equal(m->uuid, "MIG-a");
    assert_true(m->memory_bytes.v == 1000);
    assert_int_equal(nvlinks(g, "0000:04:00.0"), 0);
    must_say(g, "18 active NVLinks of GPU 0 are left out: its MIG mode is on");
    assert_int_equal(gpu(g, "0000:05:00.0")->health, HEALTH_BAD);
    must_say(g, "changes its MIG mode at the next reset");
    graph_free(g);
}

static void test_fabric(void **state)
{
    static const struct {
        const char *fabric, *says;
        enum health health;
        int links;
        enum fabric_is is;
    } rows[] = {
        {"3 0 0 170 1 0", NULL, HEALTH_OK, 18, FABRIC_IS_JOINED},
        {"0 0 0 0 0 0", NULL, HEALTH_OK, 18, FABRIC_IS_NONE}, /* passed through: normal */
        {"1 0 0 0 0 0", "registration has not started", HEALTH_DEGRADED, 0,
         FABRIC_IS_NOT_STARTED},
        {"2 0 0 0 0 0", "registration is in progress", HEALTH_DEGRADED, 0,
         FABRIC_IS_IN_PROGRESS},
        {"3 23 0 0 0 0", "refused by the fabric: insufficient resources", HEALTH_BAD, 0,
         FABRIC_IS_REFUSED},
        {"3 999 0 0 0 0", "refused by the fabric: unknown error", HEALTH_BAD, 0,
         FABRIC_IS_REFUSED},
        {"3 0 0 169 1 0", "degraded bandwidth", HEALTH_DEGRADED, 18, FABRIC_IS_JOINED},
        {"3 0 0 154 1 0", "unhealthy route", HEALTH_DEGRADED, 18, FABRIC_IS_JOINED},
        {"3 0 0 682 1 0", "wrong fabric configuration", HEALTH_DEGRADED, 18,
         FABRIC_IS_JOINED},
        {"3 0 0 170 2 0", "unhealthy in the fabric's own words", HEALTH_DEGRADED, 18,
         FABRIC_IS_JOINED},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int version = 1; version <= 3; version++) {
            char more[128];
            snprintf(more, sizeof(more), "fabric.version=%d\ngpu0.fabric=%s", version,
                     rows[i].fabric);
            if ((version < 3 && strstr(rows[i].fabric, " 2 0")) ||
                (version < 2 && i >= 6))
                continue; /* older calls do not carry it */
            machine(more);
            struct graph *g = read_graph();
            assert_int_equal(gpu(g, "0000:04:00.0")->health, rows[i].health);
            assert_int_equal(nvlinks(g, "0000:04:00.0"), rows[i].links);
            assert_int_equal(gpu(g, "0000:04:00.0")->fabric, rows[i].is);
            assert_int_equal(graph_node(g, host_of(g))->imex, IMEX_IS_UNKNOWN);
            if (rows[i].says)
                must_say(g, rows[i].says);
            graph_free(g);
        }
    /* NVL72: the domain has a name, and no host */
    machine("gpu0.fabric=3 0 7 170 1 17\ngpu0.name=NVIDIA GB200\ngpu0.nvlink.to=hidden\n"
            "gpu1.name=NVIDIA GB200\ngpu1.fabric=0 0 0 0 0 0");
    struct graph *g = read_graph();
    assert_int_equal(gpu(g, "0000:04:00.0")->clique, 7);
    assert_string_equal(gpu(g, "0000:04:00.0")->fabric_uuid,
                        "11111111-1111-1111-1111-111111111111");
    must_say(g, "GPU 1 (0000:05:00.0) has no fabric");
    graph_free(g);
}

/* ---- recorded racks ---- */

/* A machine without PCI functions: one NUMA node with one core. */
static const char bare_xml[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<topology version=\"2.0\">"
    "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" "
    "allowed_cpuset=\"0x1\" nodeset=\"0x1\" complete_nodeset=\"0x1\" "
    "allowed_nodeset=\"0x1\" gp_index=\"1\"><info name=\"HostName\" value=\"box\"/>"
    "<info name=\"Architecture\" value=\"x86_64\"/>"
    "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" "
    "nodeset=\"0x1\" complete_nodeset=\"0x1\" gp_index=\"2\" "
    "local_memory=\"68719476736\"/>"
    "<object type=\"Core\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" "
    "nodeset=\"0x1\" complete_nodeset=\"0x1\" gp_index=\"3\"><object type=\"PU\" "
    "os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x1\" "
    "complete_nodeset=\"0x1\" gp_index=\"4\"/></object></object></topology>\n";

/* NVLinks between two nodes, over switches too: the narrower side of each. */
static int width_between(const struct graph *g, int a, int b)
{
    const struct link *l = graph_link_between(g, a, b, LINK_NVLINK);
    const int *at;
    int n = graph_links_at(g, a, &at), sum = l ? l->width : 0;

    for (int i = 0; i < n && !l; i++) {
        const struct link *x = graph_link(g, at[i]);
        const struct link *y =
            x->kind == LINK_NVLINK
                ? graph_link_between(g, b, x->a == a ? x->b : x->a, LINK_NVLINK)
                : NULL;
        if (y)
            sum += x->width < y->width ? x->width : y->width;
    }
    return sum;
}

/* What the driver of one host of a recorded rack says gives that host back. */
static void replay(const struct graph *was, int host)
{
    struct buf b;
    const int *dev[2];
    int n = graph_devices(was, &dev[0]), k, first = 0;
    struct graph *is;

    buf_init(&b, 0);
    k = fake_from_graph(was, host, &b);
    files_write(dir, "conf", b.p, b.len);
    buf_done(&b);
    is = read_graph();
    assert_int_equal(graph_devices(is, &dev[1]), k);
    while (first < n && graph_node(was, dev[0][first])->host != host)
        first++;
    for (int i = 0; i < k; i++) {
        const struct node *x = graph_node(was, dev[0][first + i]);
        const struct node *y = gpu(is, x->pci[0] ? x->pci : x->name);
        assert_string_equal(x->model, y->model);
        assert_int_equal(x->sm, y->sm);
        assert_true(x->memory_bytes.v == y->memory_bytes.v);
        assert_true(y->health == HEALTH_OK);
        assert_int_equal(!!x->fabric_uuid[0], !!y->fabric_uuid[0]);
        for (int j = 0; j < i; j++) {
            const struct node *u = graph_node(was, dev[0][first + j]);
            assert_int_equal(
                width_between(was, x->id, u->id),
                width_between(is, y->id, gpu(is, u->pci[0] ? u->pci : u->name)->id));
        }
    }
    graph_free(is);
}

static int replay_hosts(const struct graph *g, int most)
{
    char machine_path[128], machine_sys[128];
    int done = 0;

    snprintf(machine_path, sizeof(machine_path), "%s", xml);
    snprintf(machine_sys, sizeof(machine_sys), "%s", sysfs);
    snprintf(sysfs, sizeof(sysfs), "%s/nosys", dir);
    files_write(dir, "bare.xml", bare_xml, strlen(bare_xml));
    snprintf(xml, sizeof(xml), "%s/bare.xml", dir);
    for (int i = 0; i < graph_n_nodes(g) && done < most; i++)
        if (graph_node(g, i)->kind == NODE_HOST) {
            replay(g, i);
            done++;
        }
    snprintf(xml, sizeof(xml), "%s", machine_path);
    snprintf(sysfs, sizeof(sysfs), "%s", machine_sys);
    return done;
}

static void test_built_in(void **state)
{
    static const char *const racks[] = {"dgx-a100", "hgx-h200", "hgx-b200", "gb200-nvl72",
                                        "2x-hgx-h200-ib"};
    int hosts = 0;

    (void)state;
    for (size_t r = 0; r < sizeof(racks) / sizeof(racks[0]); r++) {
        struct graph *g;
        struct err e = {0};
        assert_int_equal(rack_build(racks[r], 0, &g, &e), 0);
        hosts += replay_hosts(g, 2);
        graph_free(g);
    }
    assert_int_equal(hosts, 7);
}

static void test_recorded(void **state)
{
    static const char *const files[] = {
        "nccl-hgx-h200-8gpu-4nvs.xml", "nccl-hgx-b200-8gpu-hidden-nvs.xml",
        "nccl-a100x4-nv4-mesh-4nic.xml", "nccl-oci-bm-h100-8gpu-16port.xml",
        "nccl-gb300-nvl72-2tray-8gpu.xml"};
    int hosts = 0;

    (void)state;
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        struct graph *g = load_shared(files[f]);
        hosts += replay_hosts(g, 9);
        graph_free(g);
    }
    assert_int_equal(hosts, 6);
}

/* ---- fabric ---- */

/* "State : In Progress" or "| State | In Progress |": the value in *ret. */
static bool sample_value(const char *line, const char *key, char *ret, size_t n)
{
    const char *at = line + strspn(line, " |");
    size_t k = strlen(key);

    if (strncmp(at, key, k) || !strchr(" :|", at[k]))
        return false;
    at += k;
    at += strspn(at, " :|");
    snprintf(ret, n, "%s", at);
    for (k = strlen(ret); k && strchr(" |\n\r", ret[k - 1]); k--)
        ret[k - 1] = '\0';
    return true;
}

static void check_sample(const char *state, const char *status, bool named, int *ret)
{
    static const struct {
        const char *state, *status;
        int nvml[2];
        enum fabric_is is;
    } rows[] = {
        {"In Progress", "N/A", {2, 0}, FABRIC_IS_IN_PROGRESS},
        {"Completed", "Success", {3, 0}, FABRIC_IS_JOINED},
        {"Completed", "Insufficient Resources", {3, 23}, FABRIC_IS_REFUSED},
        {"N/A", "N/A", {0, 0}, FABRIC_IS_NONE},
        {"Not Supported", "Success", {0, 0}, FABRIC_IS_NONE},
    };
    char more[96];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(rows[i].state, state) || strcmp(rows[i].status, status))
            continue;
        snprintf(more, sizeof(more), "gpu0.fabric=%d %d 0 0 0 %d", rows[i].nvml[0],
                 rows[i].nvml[1], named ? 17 : 0);
        machine(more);
        struct graph *g = read_graph();
        assert_int_equal(gpu(g, "0000:04:00.0")->fabric, rows[i].is);
        assert_int_equal(nvlinks(g, "0000:04:00.0") > 0,
                         rows[i].is == FABRIC_IS_JOINED || rows[i].is == FABRIC_IS_NONE);
        graph_free(g);
        ++*ret;
        return;
    }
    fail_msg("no row for state '%s' and status '%s'", state, status);
}

/* Every state that the recorded texts show, through the driver that would say so. */
static void test_fabric_samples(void **state)
{
    char is[64] = "", status[64], uuid[64] = "", *text, *save = NULL;
    int done = 0;
    size_t n;

    (void)state;
    text = read_shared("fabric-state-samples.txt", &n);
    text[n] = '\0';
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        if (line[0] == '#')
            is[0] = uuid[0] = '\0';
        sample_value(line, "ClusterUUID", uuid, sizeof(uuid));
        if (sample_value(line, "State", is, sizeof(is)) || !is[0] ||
            !sample_value(line, "Status", status, sizeof(status)))
            continue;
        check_sample(is, status, uuid[0] == '1', &done);
    }
    free(text);
    assert_int_equal(done, 5); /* the others are JSON, or say no state */
}

static int n_found(const struct graph *g, enum finding_kind kind)
{
    struct findings *f = findings_new(g, NULL, "box");
    int n = 0;

    for (int i = 0; i < findings_count(f); i++)
        n += findings_get(f, i)->kind == kind;
    findings_free(f);
    return n;
}

/* A domain of several hosts needs a channel device; others do not. */
static void test_imex(void **state)
{
    static const char nvl72[] =
        "gpu0.fabric=3 0 7 170 1 17\ngpu0.name=NVIDIA GB200\ngpu0.nvlink.to=hidden";
    struct graph *g;
    char path[192];

    (void)state;
    machine(nvl72);
    g = read_graph();
    assert_int_equal(graph_node(g, host_of(g))->imex, IMEX_IS_ABSENT);
    assert_int_equal(n_found(g, FINDING_IMEX), 1);
    graph_free(g);
    machine_file(devs, "", "nvidia-caps-imex-channels/channel0");
    g = read_graph();
    assert_int_equal(graph_node(g, host_of(g))->imex, IMEX_IS_READY);
    assert_int_equal(n_found(g, FINDING_IMEX), 0);
    graph_free(g);
    machine("gpu0.fabric=2 0 0 0 0 0");
    g = read_graph();
    assert_int_equal(graph_node(g, host_of(g))->imex, IMEX_IS_UNKNOWN);
    assert_int_equal(n_found(g, FINDING_FABRIC), 1);
    graph_free(g);
    snprintf(path, sizeof(path), "%s/nvidia-caps-imex-channels/channel0", devs);
    unlink(path);
}

static void test_health(void **state)
{
    static const char *const rows[][2] = {
        {"gpu0.field230=1", "wants a reset"},
        {"gpu0.field230=9", "recovery of unknown kind"},
        {"gpu0.remap.failed=1", "can no longer be repaired"},
        {"gpu0.remap.failed=0\ngpu0.remap.pending=1", "repair at its next reset"},
        {"gpu0.ecc.uncorrected=3", "had 3 uncorrected memory errors"},
        {"gpu0.xid=79", "reported Xid 79"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        machine(rows[i][0]);
        struct graph *g = read_graph();
        must_say(g, rows[i][1]);
        assert_true(gpu(g, "0000:04:00.0")->health >= HEALTH_DEGRADED);
        graph_free(g);
    }
}

static const char *const functions[] = {
#define X(name, args) #name,
    NVML_MAP(X)
#undef X
};
enum { FUNCTIONS = sizeof(functions) / sizeof(functions[0]) };

/* Every function in turn fails, with codes of all sorts: a graph comes of it all the
 * same, and the GPUs of the bus are in it. */
static void test_each_fails(void **state)
{
    static const int codes[] = {1, 3, 15, 999, 12345};
    const int *dev;
    char more[128];

    (void)state;
    for (int i = 0; i < FUNCTIONS; i++) {
        snprintf(more, sizeof(more), "rc.%s=%d", functions[i], codes[i % 5]);
        machine(more);
        struct graph *g = read_graph();
        assert_int_equal(graph_devices(g, &dev), 3);
        graph_free(g);
    }
}

static void test_missing_symbols(void **state)
{
    struct buf flags;
    const int *dev;

    (void)state;
    machine("");
    build_lib("old.so", "-DnvmlDeviceGetGpuFabricInfoV=gone1 "
                        "-DnvmlDeviceGetMemoryInfo_v2=gone2 "
                        "-DnvmlDeviceGetFieldValues=gone3 -DnvmlEventSetCreate=gone4");
    use_lib("old.so");
    struct graph *g = read_graph();
    must_say(g, "lacks 4 of the calls");
    assert_true(gpu(g, "0000:04:00.0")->memory_bytes.v == 150754820096.0);
    assert_int_equal(nvlinks(g, "0000:04:00.0"), 18);
    graph_free(g);
    /* a library with nothing but a start and a count */
    buf_init(&flags, 0);
    for (int i = 0; i < FUNCTIONS; i++)
        if (strcmp(functions[i], "nvmlInit_v2") &&
            strcmp(functions[i], "nvmlDeviceGetCount_v2") &&
            strcmp(functions[i], "nvmlDeviceGetHandleByIndex_v2"))
            buf_printf(&flags, "-D%s=g%d ", functions[i], i);
    char at[128];
    snprintf(at, sizeof(at), "@%s/flags", lib_dir);
    files_write(lib_dir, "flags", flags.p, flags.len);
    build_lib("bare.so", at);
    buf_done(&flags);
    use_lib("bare.so");
    g = read_graph();
    assert_int_equal(graph_devices(g, &dev), 3);
    must_say(g, "its PCI address, which tells GPUs apart, is unknown");
    graph_free(g);
    use_lib("none.so");
    g = read_graph();
    must_say(g, "no NVIDIA driver library");
    must_say(g, "without NVML its memory, links and health are unknown");
    assert_int_equal(gpu(g, "0000:04:00.0")->health, HEALTH_UNKNOWN);
    assert_int_equal(graph_devices(g, &dev), 3);
    graph_free(g);
    use_lib("all.so");
}

/* This machine, whatever it is: a graph with at least one device. */
static void test_live(void **state)
{
    struct probe_cfg c = {.sysfs = "/sys"};
    struct probe *p;
    struct graph *g;
    struct err e = {0};
    const int *dev;

    (void)state;
    assert_int_equal(probe_new(&c, &p, &e), 0);
    if (probe_read(p, &g, &e) < 0)
        fail_msg("%s", e.msg);
    assert_true(graph_devices(g, &dev) >= 1);
    must_say(g, "NVML was not asked");
    graph_free(g);
    probe_free(p);
}

/* ---- the helper as a process ---- */

struct got {
    int n;
    bool ok;
    struct err e;
    struct nvml_report *r;
};

static void on_answer(void *arg, const char *line, size_t n, const struct err *e)
{
    struct got *g = arg;
    struct err bad = {0};

    g->n++;
    g->ok = line != NULL;
    nvml_report_free(g->r);
    g->r = NULL;
    if (e)
        g->e = *e;
    else if (nvml_report_read(line, n, &g->r, &bad) < 0)
        g->e = bad;
}

static char *const self_args[] = {"--probe", "nvml", NULL};

struct rig {
    struct loop *l;
    struct probe_child *c;
    struct got g;
};

static void rig_up(struct rig *r, const char *program, char *const *args, int signo,
                   int64_t deadline_us)
{
    struct probe_child_cfg c = {.program = program,
                                .args = args,
                                .deadline_us = deadline_us,
                                .kill_signal = signo};
    struct err e;

    memset(r, 0, sizeof(*r));
    assert_int_equal(loop_new(&r->l, &e), 0);
    r->c = probe_child_new(r->l, &c, on_answer, &r->g);
}

static void rig_down(struct rig *r)
{
    probe_child_free(r->c);
    nvml_report_free(r->g.r);
    loop_free(r->l);
}

/* Asks and turns the loop until the answer. */
static void ask(struct rig *r)
{
    int before = r->g.n;
    struct err e = {0};

    err_clear(&r->g.e);
    if (probe_child_ask(r->c, &e) < 0)
        fail_msg("%s", e.msg);
    while (r->g.n == before)
        assert_int_equal(loop_once(r->l, -1, &e), 0);
}

static void until_gone(struct rig *r)
{
    struct err e;

    while (probe_child_pid(r->c))
        assert_int_equal(loop_once(r->l, -1, &e), 0);
}

static void test_kept(void **state)
{
    struct rig r;
    struct err e;

    (void)state;
    machine("");
    rig_up(&r, "/proc/self/exe", self_args, SIGKILL, 20000000);
    ask(&r);
    assert_true(r.g.ok);
    assert_int_equal(r.g.r->n_gpus, 3);
    int pid = probe_child_pid(r.c);
    machine("gpu0.nvlink3=down");
    ask(&r);
    assert_int_equal(probe_child_pid(r.c), pid); /* the same process, new figures */
    assert_false(r.g.r->gpus[0].links[3].active);
    assert_int_equal(probe_child_ask(r.c, &e), 0);
    assert_int_equal(probe_child_ask(r.c, &e), -1);
    assert_int_equal(e.code, ERR_BUSY);
    rig_down(&r);
}

/* What NVLinks carried, of a machine with this; the second reading has rates. */
static int count_links(const char *first, const char *second, struct nvlink_count ret[64],
                       int64_t *ret_us)
{
    struct probe_cfg c = {.program = "/proc/self/exe",
                          .sysfs = sysfs,
                          .dev = devs,
                          .hwloc_xml = xml,
                          .deadline_us = 20000000};
    const struct nvlink_count *at;
    const char *const rows[] = {first, second};
    struct probe *p;
    struct graph *g;
    struct err e = {0};
    int n = 0;

    assert_int_equal(probe_new(&c, &p, &e), 0);
    assert_int_equal(probe_nvlinks(p, &at, ret_us), 0);
    for (int i = 0; i < 2; i++) {
        machine(rows[i]);
        assert_int_equal(probe_read(p, &g, &e), 0);
        graph_free(g);
        n = probe_nvlinks(p, &at, ret_us);
        assert_int_equal(*ret_us > 0, i == 1);
        assert_true(n <= 64);
        for (int k = 0; k < n; k++)
            ret[k] = at[k];
    }
    probe_free(p);
    return n;
}

static void test_traffic(void **state)
{
    struct nvlink_count v[64];
    int64_t us;

    (void)state;
    /* older drivers, or GPUs without such counters: simply not there */
    assert_int_equal(count_links("", "", v, &us), 0);
    /* one that grows, one that begins again, one that is told from now on, one of which a
     * direction is not told; a link that is down has none */
    int n = count_links("gpu0.nvlink0.tx=1000\ngpu0.nvlink0.rx=5\n"
                        "gpu0.nvlink2.tx=18446744073709551\ngpu0.nvlink2.rx=7\n"
                        "gpu0.nvlink5.tx=1\ngpu0.nvlink17=down\n"
                        "gpu1.nvlink.tx=8\ngpu1.nvlink.rx=9\n",
                        "gpu0.nvlink0.tx=4096000\ngpu0.nvlink0.rx=5\n"
                        "gpu0.nvlink2.tx=3\ngpu0.nvlink2.rx=1024007\n"
                        "gpu0.nvlink5.tx=1\ngpu0.nvlink9.rx=4\n"
                        "gpu0.nvlink17=down\ngpu0.nvlink17.tx=5\n"
                        "gpu1.nvlink.tx=8\ngpu1.nvlink.rx=9\n",
                        v, &us);
    assert_int_equal(n, 4 + 18);
    assert_true(us > 0);
    assert_true(v[0].link == 0 && v[1].link == 2 && v[2].link == 5 && v[3].link == 9);
    assert_string_equal(v[0].device, "0000:04:00.0");
    assert_string_equal(v[0].to, "0000:c1:00.0");
    assert_true(v[0].bps > 20e9);
    assert_int_equal(v[0].tx_kib, 4096000);
    assert_float_equal(v[0].tx_bps, 4095000.0 * 1024e6 / (double)us, 1);
    assert_true(v[0].rx_bps == 0);
    assert_true(v[1].tx_bps < 0 && v[1].rx_bps > 0); /* it was full, or reset */
    assert_true(v[2].tx_bps == 0 && v[2].rx_bps < 0 && v[2].rx_kib == -1);
    assert_true(v[3].rx_kib == 4 && v[3].rx_bps < 0);
    for (int i = 4; i < n; i++)
        assert_true(!strcmp(v[i].device, "0000:05:00.0") && v[i].link == i - 4 &&
                    v[i].tx_bps == 0 && v[i].rx_bps == 0);
    /* a call that fails is as one that tells nothing; the rest of the reading stands */
    assert_int_equal(count_links("gpu1.nvlink.tx=8\n",
                                 "rc.nvmlDeviceGetFieldValues=999\ngpu1.nvlink.tx=9\n", v,
                                 &us),
                     0);
}

/* A driver that hangs costs the reading its deadline, and the rates their base. */
static void test_traffic_hang(void **state)
{
    struct probe_cfg c = {.program = "/proc/self/exe",
                          .sysfs = sysfs,
                          .dev = devs,
                          .hwloc_xml = xml,
                          .deadline_us = 300000};
    const struct nvlink_count *at;
    struct probe *p;
    struct graph *g;
    struct err e = {0};
    int64_t us;

    (void)state;
    assert_int_equal(probe_new(&c, &p, &e), 0);
    machine("do.nvmlDeviceGetFieldValues=hang\ngpu0.nvlink.tx=5\n");
    assert_int_equal(probe_read(p, &g, &e), 0);
    assert_int_equal(probe_nvlinks(p, &at, &us), 0);
    assert_non_null(said(g, "NVML"));
    graph_free(g);
    probe_free(p);
}

static void test_crash(void **state)
{
    struct rig r;

    (void)state;
    machine("gpu1.do.nvmlDeviceGetName=crash");
    rig_up(&r, "/proc/self/exe", self_args, SIGKILL, 20000000);
    ask(&r);
    assert_false(r.g.ok);
    assert_int_equal(r.g.e.code, ERR_DEVICE);
    assert_non_null(strstr(r.g.e.msg, "ended by signal 6"));
    machine("");
    ask(&r); /* a new one */
    assert_true(r.g.ok);
    rig_down(&r);
}

static void hang(const char *how)
{
    struct rig r;

    machine(how);
    rig_up(&r, "/proc/self/exe", self_args, SIGKILL, 300000);
    ask(&r);
    assert_false(r.g.ok);
    assert_int_equal(r.g.e.code, ERR_TIMEOUT);
    assert_non_null(strstr(r.g.e.msg, "gave no answer in 0.3 s"));
    until_gone(&r);
    rig_down(&r);
}

static void test_hang(void **state)
{
    (void)state;
    hang("gpu1.do.nvmlDeviceGetName=hang");
    hang("do.nvmlInit_v2=hang");
    hang("gpu2.do.nvmlDeviceGetNvLinkState=stop"); /* SIGSTOP: killed all the same */
}

/* A helper that does not die: the kill is a signal that ends nothing. */
static void test_stuck(void **state)
{
    struct rig r;
    struct err e = {0};

    (void)state;
    machine("gpu1.do.nvmlDeviceGetName=hang");
    rig_up(&r, "/proc/self/exe", self_args, SIGSTOP, 200000);
    ask(&r);
    assert_int_equal(r.g.e.code, ERR_TIMEOUT);
    int pid = probe_child_pid(r.c);
    assert_true(pid > 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(probe_child_ask(r.c, &e), -1);
        assert_int_equal(e.code, ERR_UNAVAIL);
        assert_non_null(strstr(e.msg, "has not ended"));
        assert_int_equal(loop_once(r.l, 0, &e), 0);
    }
    assert_int_equal(probe_child_pid(r.c), pid); /* and no other was started */
    kill(pid, SIGKILL);
    until_gone(&r);
    machine("");
    rig_down(&r);
    rig_up(&r, "/proc/self/exe", self_args, SIGKILL, 20000000);
    ask(&r);
    assert_true(r.g.ok);
    rig_down(&r);
}

/* Reading leaves no process behind, and says at the next that one is still stuck. */
static void test_reads_again(void **state)
{
    struct probe_cfg c = {.program = "/proc/self/exe",
                          .sysfs = sysfs,
                          .hwloc_xml = xml,
                          .deadline_us = 300000};
    struct probe *p;
    struct graph *g;
    struct err e = {0};

    (void)state;
    while (waitpid(-1, NULL, 0) > 0) /* those that other tests' ends left */
        continue;
    assert_int_equal(probe_new(&c, &p, &e), 0);
    machine("do.nvmlDeviceGetCount_v2=hang");
    assert_int_equal(probe_read(p, &g, &e), 0);
    must_say(g, "gave no answer in 0.3 s and was killed");
    assert_int_equal(gpu(g, "0000:04:00.0")->health, HEALTH_UNKNOWN);
    graph_free(g);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    probe_free(p);
    c.deadline_us = 20000000;
    assert_int_equal(probe_new(&c, &p, &e), 0);
    for (int i = 0; i < 2; i++) {
        machine(i ? "count=2" : "");
        assert_int_equal(probe_read(p, &g, &e), 0);
        assert_int_equal(gpu(g, "0000:81:00.0")->health, i ? HEALTH_BAD : HEALTH_OK);
        graph_free(g);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    }
    probe_free(p);
}

static void test_nonsense(void **state)
{
    static char *const rows[][3] = {
        {"-c", "printf 'a\\nb\\n'; exec sleep 60", NULL},
        {"-c", "exec tr '\\0' x < /dev/zero", NULL},
        {"-c", "exec >&-; exec sleep 60", NULL},
        {"-c", "exit 3", NULL},
        {"-c", "printf no-line", NULL},
    };
    static const enum err_code codes[] = {ERR_SYNTAX, ERR_SYNTAX, ERR_TIMEOUT, ERR_DEVICE,
                                          ERR_DEVICE};
    struct rig r;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        rig_up(&r, "/bin/sh", rows[i], SIGKILL, i == 2 ? 300000 : 20000000);
        ask(&r);
        assert_false(r.g.ok);
        assert_int_equal(r.g.e.code, codes[i]);
        until_gone(&r);
        rig_down(&r);
    }
    struct err e = {0};
    rig_up(&r, "/nonexistent", self_args, SIGKILL, 300000);
    assert_int_equal(probe_child_ask(r.c, &e), -1);
    assert_int_equal(e.code, ERR_IO);
    rig_down(&r);
}

static void test_bad_reports(void **state)
{
    static const char *const rows[] = {"",
                                       "{",
                                       "[]",
                                       "{}",
                                       "{\"gpus\":{}}",
                                       "{\"gpus\":[1]}",
                                       "{\"gpus\":[{\"sm\":-1}]}",
                                       "{\"gpus\":[{\"nvlinks\":{}}]}",
                                       "{\"gpus\":[{\"memory\":3}]}",
                                       "{\"gpus\":[],\"p2p_bad\":[[0,1]]}",
                                       "{\"gpus\":[],\"p2p_bad\":[3]}",
                                       "{\"gpus\":[{\"memory\":{\"total\":-1}}]}",
                                       "{\"gpus\":[{\"uuid\":3}]}"};
    struct nvml_report *r = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct err e = {0};
        if (nvml_report_read(rows[i], strlen(rows[i]), &r, &e) == 0)
            fail_msg("taken: %s", rows[i]);
        assert_true(e.msg[0]);
        assert_null(r);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_mig),
        cmocka_unit_test(test_fabric),
        cmocka_unit_test(test_built_in),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_fabric_samples),
        cmocka_unit_test(test_imex),
        cmocka_unit_test(test_health),
        cmocka_unit_test(test_each_fails),
        cmocka_unit_test(test_missing_symbols),
        cmocka_unit_test(test_live),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_traffic_hang),
        cmocka_unit_test(test_crash),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_reads_again),
        cmocka_unit_test(test_stuck),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_bad_reports),
    };

    if (argc == 3 && !strcmp(argv[1], "--probe"))
        return probe_nvml_run(getenv("FAKE_LIB"), 0, 1);
    signal(SIGPIPE, SIG_IGN);
    set_up(NULL);
    int rc = test_main(argc, argv, "probe", tests, sizeof(tests) / sizeof(tests[0]));
    tear_down(NULL);
    return rc;
}

/* Groups on the real links: racks by name, odd graphs, and every placement of a small
 * one. */
#include "topo/placement.c"

#include "tests/test.h"

#include "base/buf.h"
#include "topo/cost.h"
#include "topo/rack.h"

static struct graph *g;
static struct paths *paths;

static void close_rack(void)
{
    paths_free(paths);
    graph_free(g);
}

static void open_rack(const char *name)
{
    struct err e = {0};

    if (rack_build(name, 64e9, &g, &e) < 0 || paths_new(g, &paths, &e) < 0)
        fail_msg("%s: %s", name, e.msg);
}

static struct placement *place(const char *layout, const char *second, const int *avoid,
                               int n_avoid)
{
    struct layout l[2];
    struct placement_ask ask = {l, second ? 2 : 1, avoid, n_avoid};
    struct placement *p = NULL;
    struct err e = {0};

    if (layout_parse(layout, &l[0], &e) < 0 ||
        (second && layout_parse(second, &l[1], &e) < 0) ||
        placement_compute(g, paths, &ask, &p, &e) < 0)
        fail_msg("%s: %s", layout, e.msg);
    return p;
}

static void every_rank_once(const struct placement *p)
{
    const struct place_rank *r;
    int n = placement_ranks(p, &r);

    for (int i = 0; i < n; i++) {
        assert_int_equal(graph_node(g, r[i].device)->kind, NODE_DEVICE);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(r[i].device, r[j].device);
    }
}

static int worst_class(const struct placement *p, enum place_group_kind kind)
{
    int worst = PATH_LOC;

    for (int i = 0; i < p->n_groups; i++)
        for (int a = 0; a < p->group[i].n && p->group[i].kind == kind; a++)
            for (int b = 0; b < a; b++) {
                int c = (int)paths_get(paths, p->rank[p->group[i].rank[a]].device,
                                       p->rank[p->group[i].rank[b]].device)
                            ->cls;
                worst = c > worst ? c : worst;
            }
    return worst;
}

static int count(const struct placement *p, enum place_group_kind kind)
{
    int n = 0;

    for (int i = 0; i < p->n_groups; i++)
        n += p->group[i].kind == kind;
    return n;
}

/* TP and experts stay on NVLink, stages cross the network. */
static void two_hosts(void **st)
{
    struct placement *p;
    const struct place_rank *r;
    struct cost_links k;

    (void)st;
    open_rack("2x-hgx-h200-ib");
    p = place("pp2 tp2 adp4 ep8", NULL, NULL, 0);
    every_rank_once(p);
    assert_int_equal(count(p, PLACE_TP), 8);
    assert_int_equal(count(p, PLACE_EP), 2);
    assert_int_equal(count(p, PLACE_PP), 8);
    assert_int_equal(worst_class(p, PLACE_TP), PATH_NVL);
    assert_int_equal(worst_class(p, PLACE_EP), PATH_NVL);
    assert_int_equal(worst_class(p, PLACE_PP), PATH_NET);
    placement_ranks(p, &r);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(graph_node(g, r[i].device)->host,
                         graph_node(g, r[i / 8 * 8].device)->host);
        assert_true(r[i].nic >= 0);
        assert_int_equal(graph_node(g, r[i].nic)->host, graph_node(g, r[i].device)->host);
        assert_true(r[i].numa >= 0);
    }
    placement_links(p, g, paths, 0, &k);
    assert_int_equal(k.tp.n, 2);
    assert_int_equal(k.tp.fast, 2);
    assert_true(k.tp.bps > 400e9);
    assert_int_equal(k.ep.n, 8);
    assert_int_equal(k.ep.fast, 8);
    assert_true(k.pp_bps < 100e9);
    placement_free(p);

    p = place("adp16 ep16", NULL, NULL, 0); /* one expert group over both hosts */
    placement_links(p, g, paths, 0, &k);
    assert_int_equal(k.ep.n, 16);
    assert_int_equal(k.ep.fast, 8);
    assert_true(k.ep.cut_bps < 100e9);
    placement_free(p);
    close_rack();
}

/* Ranks that hand KV over lie on one host where both pools fit it. */
static void pools(void **st)
{
    struct placement *p;
    const struct place_rank *r;

    (void)st;
    open_rack("2x-hgx-h200-ib");
    p = place("tp4", "tp4", NULL, 0);
    every_rank_once(p);
    assert_int_equal(count(p, PLACE_HANDOFF), 4);
    assert_int_equal(worst_class(p, PLACE_HANDOFF), PATH_NVL);
    placement_free(p);
    p = place("tp8", "tp8", NULL, 0); /* TP comes before handoff */
    assert_int_equal(worst_class(p, PLACE_TP), PATH_NVL);
    assert_int_equal(worst_class(p, PLACE_HANDOFF), PATH_NET);
    placement_free(p);
    p = place("tp2 x2", "tp4", NULL, 0);
    assert_int_equal(placement_ranks(p, &r), 8);
    assert_int_equal(r[4].pool, 1);
    assert_int_equal(r[2].replica, 1);
    placement_free(p);
    close_rack();
}

static void cordoned(void **st)
{
    const int *dev;
    int avoid[3], n;
    struct placement *p;
    const struct place_rank *r;
    struct layout l = {1, 1, 8, 1, 1, 8, false, CP_NONE, 1, 1};
    struct placement_ask ask = {&l, 1, avoid, 1};
    struct err e = {0};

    (void)st;
    open_rack("hgx-h200");
    assert_int_equal(graph_devices(g, &dev), 8);
    avoid[0] = dev[0];
    avoid[1] = dev[3];
    avoid[2] = dev[6];
    p = place("tp4", NULL, avoid, 3);
    n = placement_ranks(p, &r);
    for (int i = 0; i < n; i++)
        for (int a = 0; a < 3; a++)
            assert_int_not_equal(r[i].device, avoid[a]);
    placement_free(p);
    p = NULL;
    assert_int_equal(placement_compute(g, paths, &ask, &p, &e), -1);
    assert_int_equal(e.code, ERR_NOFIT);
    assert_non_null(strstr(e.msg, "7 of 8"));
    assert_null(p);
    close_rack();
}

/* Full bandwidth by its figure, but not healthy: the link, or the device, is taken last.
 */
static void unhealthy(void **st)
{
    (void)st;
    for (int bad = 0; bad < 4; bad++)
        for (int device = 0; device < 2; device++) {
            struct graph_builder *b = graph_builder_new();
            struct node x = {.kind = NODE_HOST, .parent = -1, .name = "h", .numa = -1};
            struct err e = {0};
            int h = graph_add_node(b, &x, &e), sw, dev;
            x = (struct node){
                .kind = NODE_NVSWITCH, .parent = h, .host = h, .name = "sw", .numa = -1};
            sw = graph_add_node(b, &x, &e);
            for (int i = 0; i < 4; i++) {
                enum health ill = i == bad ? HEALTH_DEGRADED : HEALTH_OK;
                x = (struct node){.kind = NODE_DEVICE,
                                  .parent = h,
                                  .host = h,
                                  .numa = -1,
                                  .index = i,
                                  .clique = -1,
                                  .health = device ? ill : HEALTH_OK};
                snprintf(x.name, sizeof(x.name), "gpu%d", i);
                dev = graph_add_node(b, &x, &e);
                struct link nv = {.a = sw,
                                  .b = dev,
                                  .kind = LINK_NVLINK,
                                  .width = 18,
                                  .health = device ? HEALTH_OK : ill,
                                  .nominal = {450e9, FROM_TABLE, CONF_ASSUMED}};
                assert_true(graph_add_link(b, &nv, &e) >= 0);
            }
            if (graph_build(b, "star", true, &g, &e) < 0 || paths_new(g, &paths, &e) < 0)
                fail_msg("%s", e.msg);
            struct placement *p = place("tp3", NULL, NULL, 0);
            for (int i = 0; i < p->n_ranks; i++)
                assert_int_not_equal(graph_node(g, p->rank[i].device)->index, bad);
            placement_free(p);
            close_rack();
        }
}

/* ---- small graphs, every placement ---- */

/* n devices on one host, two NUMA nodes, NVLinks of random widths between random pairs.
 */
static void random_rack(uint64_t *seed, int n)
{
    struct graph_builder *b = graph_builder_new();
    struct node host = {
        .kind = NODE_HOST, .parent = -1, .name = "h", .numa = -1, .index = -1};
    struct node x;
    struct err e = {0};
    int h, numa[2], dev[8];

    h = graph_add_node(b, &host, &e);
    for (int i = 0; i < 2; i++) {
        x = (struct node){
            .kind = NODE_NUMA, .parent = h, .host = h, .numa = i, .index = i};
        snprintf(x.name, sizeof(x.name), "numa%d", i);
        numa[i] = graph_add_node(b, &x, &e);
    }
    for (int i = 0; i < n; i++) {
        x = (struct node){.kind = NODE_DEVICE,
                          .parent = numa[i % 2],
                          .host = h,
                          .numa = i % 2,
                          .index = i,
                          .clique = -1};
        snprintf(x.name, sizeof(x.name), "0000:%02x:00.0", i + 1);
        dev[i] = graph_add_node(b, &x, &e);
        struct link up = {.a = numa[i % 2],
                          .b = dev[i],
                          .kind = LINK_PCI,
                          .width = 16,
                          .nominal = {16e9, FROM_TABLE, CONF_ASSUMED}};
        assert_true(graph_add_link(b, &up, &e) >= 0);
    }
    struct link cross = {.a = numa[0],
                         .b = numa[1],
                         .kind = LINK_SOCKET,
                         .width = 1,
                         .nominal = {10e9, FROM_TABLE, CONF_ASSUMED}};
    assert_true(graph_add_link(b, &cross, &e) >= 0);
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) {
            int width = (int)(test_rand(seed) % 5);
            struct link nv = {.a = dev[i],
                              .b = dev[j],
                              .kind = LINK_NVLINK,
                              .width = width,
                              .nominal = {width * 25e9, FROM_TABLE, CONF_ASSUMED}};
            if (width)
                assert_true(graph_add_link(b, &nv, &e) >= 0);
        }
    if (graph_build(b, "random", true, &g, &e) < 0 || paths_new(g, &paths, &e) < 0)
        fail_msg("%s", e.msg);
}

static double best_of_all(struct placement *p, int rank, bool *used)
{
    double best = INFINITY;

    if (rank == p->n_ranks)
        return placement_score(p);
    for (int d = 0; d < p->n_dev; d++) {
        if (used[d])
            continue;
        used[d] = true;
        p->at[rank] = d;
        best = fmin(best, best_of_all(p, rank + 1, used));
        used[d] = false;
    }
    return best;
}

static int n_compared, n_off;

static void compare(const char *layout, const char *second)
{
    struct placement *p = place(layout, second, NULL, 0);
    double found = placement_score(p), best;
    bool used[64] = {false};

    best = best_of_all(p, 0, used);
    n_compared++;
    if (found > best * (1 + 1e-6)) {
        n_off++;
        printf("# %s: %.6g, the best is %.6g\n", layout, found, best);
    }
    placement_free(p);
}

static void exhaustive(void **st)
{
    static const char *const racks[] = {"cpu:2x3", "cpu:2x4", "cpu:8", "hgx-h200",
                                        "dgx-a100"};
    static const char *const layouts[] = {"tp2 pp2",  "tp2 x3", "adp2 tp2 ep2 etp2",
                                          "cp4 ring", "tp4",    "cp4 usp cp_u2",
                                          "tp3 x2",   "pp3 tp2"};
    uint64_t seed = test_seed();

    (void)st;
    for (size_t i = 0; i < sizeof(racks) / sizeof(racks[0]); i++) {
        open_rack(racks[i]);
        for (size_t j = 0; j < sizeof(layouts) / sizeof(layouts[0]); j++)
            compare(layouts[j], NULL);
        compare("tp2", "tp2");
        close_rack();
    }
    for (int i = 0; i < 20; i++) {
        random_rack(&seed, 6);
        for (size_t j = 0; j < sizeof(layouts) / sizeof(layouts[0]); j++)
            compare(layouts[j], NULL);
        compare("tp2", "tp2 x2");
        close_rack();
    }
    printf("# %d small placements compared with all others, %d not the best\n",
           n_compared, n_off);
    assert_int_equal(n_off, 0);
}

/* Once found, no exchange of two makes it better. */
static void settled(void **st)
{
    uint64_t seed = 99;

    (void)st;
    for (int round = 0; round < 5; round++) {
        random_rack(&seed, 8);
        struct placement *p = place("tp4", NULL, NULL, 0);
        double score = placement_score(p);
        every_rank_once(p);
        for (int a = 0; a < p->n_ranks; a++)
            for (int d = 0; d < p->n_dev; d++)
                assert_false(try_exchange(p, a, d));
        assert_true(score == placement_score(p));
        placement_free(p);
        close_rack();
    }
}

/* Behind one switch the device with half of its links is left out, wherever it stands. */
static void degraded(void **st)
{
    (void)st;
    for (int bad = 0; bad < 4; bad++) {
        struct graph_builder *b = graph_builder_new();
        struct node x = {.kind = NODE_HOST, .parent = -1, .name = "h", .numa = -1};
        struct err e = {0};
        int h = graph_add_node(b, &x, &e), sw, dev = -1, bad_dev = -1;
        x = (struct node){
            .kind = NODE_NVSWITCH, .parent = h, .host = h, .name = "sw", .numa = -1};
        sw = graph_add_node(b, &x, &e);
        for (int i = 0; i < 4; i++) {
            x = (struct node){.kind = NODE_DEVICE,
                              .parent = h,
                              .host = h,
                              .numa = -1,
                              .index = i,
                              .clique = -1};
            snprintf(x.name, sizeof(x.name), "0000:%02x:00.0", i + 1);
            dev = graph_add_node(b, &x, &e);
            bad_dev = i == bad ? dev : bad_dev;
            struct link nv = {
                .a = sw,
                .b = dev,
                .kind = LINK_NVLINK,
                .width = i == bad ? 9 : 18,
                .nominal = {(i == bad ? 9 : 18) * 25e9, FROM_TABLE, CONF_ASSUMED}};
            assert_true(graph_add_link(b, &nv, &e) >= 0);
        }
        if (graph_build(b, "star", true, &g, &e) < 0 || paths_new(g, &paths, &e) < 0)
            fail_msg("%s", e.msg);
        struct placement *p = place("tp3", NULL, NULL, 0);
        for (int i = 0; i < p->n_ranks; i++)
            assert_int_not_equal(p->rank[i].device, bad_dev);
        placement_free(p);
        close_rack();
    }
}

static void same_twice(void **st)
{
    const char *layouts[] = {"pp2 tp2 adp4 ep8", "tp8 x9", "adp72 ep72", "pp9 tp8"};

    (void)st;
    for (int i = 0; i < 4; i++) {
        open_rack(i ? "gb200-nvl72" : "2x-hgx-h200-eth");
        struct placement *p = place(layouts[i], NULL, NULL, 0);
        struct placement *q = place(layouts[i], NULL, NULL, 0);
        for (int r = 0; r < p->n_ranks; r++)
            assert_memory_equal(&p->rank[r], &q->rank[r], sizeof(p->rank[r]));
        every_rank_once(p);
        placement_free(p);
        placement_free(q);
        close_rack();
    }
}

static void count_line(void *arg, const char *line)
{
    assert_non_null(strstr(line, "moves from"));
    ++*(int *)arg;
}

/* Graphviz itself reads it, where it is installed. */
static void drawn(void **st)
{
    static const char *const layouts[][2] = {
        {"pp2 tp2 adp4 ep8", NULL}, {"tp2 x2", "tp4"}, {"cp4 usp cp_u2 tp2", NULL}};
    struct placement *p;
    struct buf b;
    FILE *f;

    (void)st;
    if (system("dot -V 2> /dev/null") != 0)
        skip();
    open_rack("2x-hgx-h200-ib");
    for (int i = 0; i < 3; i++) {
        p = place(layouts[i][0], layouts[i][1], NULL, 0);
        buf_init(&b, 0);
        placement_dot(p, g, &b);
        f = popen("dot -Tplain > /dev/null", "w");
        assert_non_null(f);
        assert_int_equal(fwrite(b.p, 1, b.len, f), b.len);
        assert_int_equal(pclose(f), 0);
        buf_done(&b);
        placement_free(p);
    }
    close_rack();
}

static void shown(void **st)
{
    const int *dev;
    int lines = 0;
    struct placement *p, *q;
    struct buf b;

    (void)st;
    open_rack("hgx-h200");
    graph_devices(g, &dev);
    p = place("tp2 pp2", NULL, NULL, 0);
    q = place("tp2 pp2", NULL, dev, 1);
    buf_init(&b, 0);
    placement_print(p, g, paths, &b);
    assert_non_null(strstr(b.p, "tp          0 NVL"));
    assert_non_null(strstr(b.p, "nominal"));
    assert_non_null(strstr(b.p, "rank 3: pool 0 replica 0 pp 1"));
    assert_non_null(strstr(b.p, ", NIC mlx5_0, numa0 (CPUs 0-95)"));
    buf_clear(&b);
    placement_dot(p, g, &b);
    assert_non_null(strstr(b.p, "subgraph cluster_0"));
    assert_non_null(strstr(b.p, "r0 -- r2 [label=\"pp\"]"));
    buf_done(&b);
    assert_int_equal(placement_diff(p, g, p, g, count_line, &lines), 0);
    assert_true(placement_diff(p, g, q, g, count_line, &lines) >= 1);
    assert_true(lines >= 1);
    placement_free(p);
    placement_free(q);
    close_rack();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_hosts), cmocka_unit_test(pools),
        cmocka_unit_test(cordoned),  cmocka_unit_test(exhaustive),
        cmocka_unit_test(settled),   cmocka_unit_test(degraded),
        cmocka_unit_test(unhealthy), cmocka_unit_test(same_twice),
        cmocka_unit_test(drawn),     cmocka_unit_test(shown)};
    return test_main(argc, argv, "placement", tests, sizeof(tests) / sizeof(tests[0]));
}

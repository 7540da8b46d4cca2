/* tests/unit/test_domain.c - the rack that is owned: reloads, cordons, views that are
 * held.
 */
#include "tests/test.h"

#include "tests/files.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/measure.h"
#include "state/journal.h"
#include "state/store.h"
#include "topo/finding.h"
#include "topo/graph.h"
#include "topo/path.h"

static struct loop *loop;
static struct store *store;
static char dir[64];

static int set_up(void **state)
{
    struct err e;

    (void)state;
    files_temp(dir);
    return loop_new(&loop, &e) < 0 || store_open(dir, &store, &e) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    store_close(store);
    loop_free(loop);
    files_remove(dir);
    return 0;
}

static struct domain *open_rack(const char *name)
{
    struct domain_cfg c = {.rack = name, .gpu = "", .loop = loop, .store = store};
    struct domain *d = NULL;
    struct err e = {0};

    if (domain_new(&c, &d, &e) < 0 || domain_load(d, &e) < 0)
        fail_msg("%s: %s", name, e.msg);
    return d;
}

static int n_findings(struct domain *d, enum finding_kind kind)
{
    struct domain_view *v = domain_get(d);
    int n = 0;

    for (int i = 0; i < findings_count(v->findings); i++)
        n += findings_get(v->findings, i)->kind == kind;
    domain_put(v);
    return n;
}

static void test_cordon(void **state)
{
    struct domain *d = open_rack("cpu:4");
    struct domain_view *old = domain_get(d), *v;
    struct err e = {0};

    (void)state;
    assert_int_equal(old->n_avoid, 0);
    assert_int_equal(domain_cordon(d, "cpu2", true, "fan", "uid 0", "", &e), 1);
    assert_int_equal(domain_cordon(d, "cpu2", true, "fan", "uid 0", "", &e), 0);
    assert_int_equal(old->n_avoid, 0); /* who holds a view keeps it */
    v = domain_get(d);
    assert_int_equal(v->n_avoid, 1);
    assert_string_equal(graph_node(v->graph, v->avoid[0])->name, "cpu2");
    assert_string_equal(domain_cordon_of(v, v->avoid[0])->reason, "fan");
    assert_string_equal(domain_cordon_of(v, v->avoid[0])->actor, "uid 0");
    assert_ptr_equal(v->graph, old->graph);
    domain_put(v);
    domain_put(old);
    assert_int_equal(n_findings(d, FINDING_CORDONED), 1);

    assert_int_equal(domain_load(d, &e), 0); /* it outlives a reload */
    assert_int_equal(n_findings(d, FINDING_CORDONED), 1);
    domain_free(d);
    d = open_rack("cpu:4"); /* and the daemon */
    assert_int_equal(n_findings(d, FINDING_CORDONED), 1);
    assert_int_equal(domain_cordon(d, "cpu2", false, "", "uid 0", "", &e), 1);
    assert_int_equal(domain_cordon(d, "cpu2", false, "", "uid 0", "", &e), 0);
    assert_int_equal(n_findings(d, FINDING_CORDONED), 0);
    domain_free(d);
}

static void test_names(void **state)
{
    struct domain *d = open_rack("2x-hgx-h200-ib");
    struct domain_view *v = domain_get(d);
    const int *dev;
    char id[2][160];
    struct err e = {0};

    (void)state;
    assert_int_equal(domain_cordon(d, "nosuch", true, "", "t", "", &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_int_equal(domain_cordon(d, "nosuch", false, "", "t", "", &e), -1);

    graph_devices(v->graph, &dev);
    const char *name = graph_node(v->graph, dev[0])->name; /* both hosts have it */
    assert_int_equal(domain_cordon(d, name, true, "", "t", "", &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    assert_non_null(strstr(e.msg, "host"));
    domain_device_id(v, dev[0], id[0], sizeof(id[0]));
    domain_device_id(v, dev[8], id[1], sizeof(id[1]));
    assert_string_not_equal(id[0], id[1]);
    assert_int_equal(domain_cordon(d, id[1], true, "", "t", "", &e), 1);
    domain_put(v);
    v = domain_get(d);
    assert_int_equal(v->n_avoid, 1);
    assert_int_equal(v->avoid[0], dev[8]);
    domain_put(v);
    domain_free(d);
}

/* Until *flag, or the test fails. */
static void run_until(const bool *flag)
{
    int64_t until = clock_now_us(clock_real()) + 60000000;
    struct err e;

    while (!*flag && clock_now_us(clock_real()) < until)
        assert_int_equal(loop_once(loop, until, &e), 0);
    assert_true(*flag);
}

struct figures {
    bool done;
    int pairs, rows;
    struct err why;
};

static void on_measured(void *arg, const struct domain_view *v, const struct measure *m,
                        const struct err *why)
{
    struct figures *f = arg;

    f->done = true;
    if (why)
        f->why = *why;
    if (!m)
        return;
    f->pairs = m->n_pairs;
    for (int i = 0; i < m->n_pairs; i++) {
        const struct measure_pair *p = &m->pair[i];
        assert_true(p->done && measure_bps(p) > 1e6 && p->latency_us > 0);
        assert_true(p->spread >= 0);
        assert_string_not_equal(graph_node(v->graph, p->a)->name,
                                graph_node(v->graph, p->b)->name);
    }
}

static void check_measured(struct domain *d, int pairs)
{
    struct domain_view *v = domain_get(d);
    const int *dev;
    const struct path *p;

    graph_devices(v->graph, &dev);
    assert_int_equal(v->n_measured, pairs);
    p = paths_get(v->paths, dev[0], dev[1]);
    assert_true(p->measured && p->measured_ms > 0 && p->bps > 1e6);
    assert_memory_equal(p, paths_get(v->paths, dev[1], dev[0]), sizeof(*p));
    domain_put(v);
}

/* Figures are there at once, after a reload, and after a start. */
static void test_measure(void **state)
{
    struct domain *d = open_rack("cpu:3");
    struct figures f = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(domain_measure(d, DOMAIN_MEASURE_S, "t", "", on_measured, &f, &e),
                     0);
    assert_int_equal(domain_measure(d, DOMAIN_MEASURE_S, "t", "", on_measured, &f, &e),
                     -1);
    assert_int_equal(e.code, ERR_BUSY);
    run_until(&f.done);
    assert_int_equal(f.why.code, ERR_OK);
    assert_int_equal(f.pairs, 3);
    check_measured(d, 3);
    assert_int_equal(domain_load(d, &e), 0);
    check_measured(d, 3);
    assert_int_equal(domain_cordon(d, "cpu1", true, "", "t", "", &e), 1);
    assert_int_equal(domain_cordon(d, "cpu1", false, "", "t", "", &e), 1);
    domain_free(d);
    d = open_rack("cpu:3");
    check_measured(d, 3);

    f.done = false; /* who waits is told when the daemon stops */
    assert_int_equal(domain_measure(d, DOMAIN_MEASURE_S, "t", "", on_measured, &f, &e),
                     0);
    domain_free(d);
    assert_true(f.done);
    assert_int_equal(f.why.code, ERR_CANCELED);
}

static void test_nothing_to_measure(void **state)
{
    struct domain *d = open_rack("hgx-h200");
    struct figures f = {0};
    struct err e = {0};

    (void)state;
    assert_int_equal(domain_measure(d, DOMAIN_MEASURE_S, "t", "", on_measured, &f, &e),
                     -1);
    assert_int_equal(e.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "GPU"));
    domain_free(d);
    d = open_rack("cpu:2x2"); /* hosts that are only emulated are not measured */
    assert_int_equal(domain_measure(d, DOMAIN_MEASURE_S, "t", "", on_measured, &f, &e),
                     0);
    run_until(&f.done);
    assert_int_equal(f.pairs, 2);
    domain_free(d);
}

/* ---- reading again ---- */

struct seen {
    bool news;
    int n, failed;
};

static void on_news(void *arg, const struct err *why)
{
    struct seen *s = arg;

    s->news = true;
    s->n++;
    s->failed += why != NULL;
}

static int journalled(const char *what)
{
    static struct journal_row row[200];
    struct err e;
    int n = journal_list(store, 0, row, 200, &e), k = 0;

    assert_true(n >= 0);
    for (int i = 0; i < n; i++)
        k += !strcmp(row[i].what, what);
    return k;
}

static void write_rack(const char *text)
{
    files_write(dir, "rack.txt", text, strlen(text));
}

static void test_reload(void **state)
{
    char path[128];
    struct seen s = {0};
    struct domain_cfg c = {.rack = path,
                           .gpu = "",
                           .loop = loop,
                           .store = store,
                           .news = on_news,
                           .arg = &s};
    struct domain *d = NULL;
    struct domain_view *v;
    struct err e = {0};
    const int *dev;

    (void)state;
    snprintf(path, sizeof(path), "%s/rack.txt", dir);
    write_rack("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV18\tNV18\nGPU1\tNV18\t X \tNV18\n"
               "GPU2\tNV18\tNV18\t X \n");
    c.gpu = "H200";
    assert_int_equal(domain_new(&c, &d, &e), 0);
    if (domain_load(d, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(s.n, 1);

    write_rack("nonsense");
    s.news = false;
    domain_reload(d, "test");
    domain_reload(d, "test"); /* follows the first */
    run_until(&s.news);
    assert_int_equal(s.failed, 1);
    assert_true(journalled("rack.load") >= 1);
    v = domain_get(d);
    assert_int_equal(graph_devices(v->graph, &dev), 3); /* what was known stays */
    domain_put(v);
    s.news = false;
    run_until(&s.news);
    assert_int_equal(s.failed, 2);

    write_rack("\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n");
    s.news = false;
    domain_reload(d, "test");
    run_until(&s.news);
    assert_int_equal(s.failed, 2);
    assert_true(journalled("rack.changed") >= 1);
    assert_int_equal(n_findings(d, FINDING_LOST) > 0, 1);

    int changes = journalled("rack.changed");
    s.news = false;
    domain_reload(d, "test"); /* nothing new, and still lost */
    run_until(&s.news);
    assert_int_equal(n_findings(d, FINDING_LOST) > 0, 1);
    assert_int_equal(journalled("rack.changed"), changes);
    domain_free(d);
    s.news = false;
    assert_int_equal(domain_new(&c, &d, &e), 0);
    assert_int_equal(domain_load(d, &e), 0); /* what the last run saw is the baseline */
    assert_int_equal(n_findings(d, FINDING_LOST), 0);
    domain_free(d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cordon, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_names, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_measure, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nothing_to_measure, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reload, set_up, tear_down),
    };
    return test_main(argc, argv, "domain", tests, sizeof(tests) / sizeof(tests[0]));
}

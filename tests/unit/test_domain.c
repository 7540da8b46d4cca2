/* tests/unit/test_domain.c - the rack that is owned: reloads, cordons, views that are
 * held.
 */
#include "tests/test.h"

#include "base/err.h"
#include "daemon/ctrl/domain.h"
#include "topo/finding.h"
#include "topo/graph.h"

static struct domain *open_rack(const char *name)
{
    struct domain *d = domain_new(name, "");
    struct err e = {0};

    if (domain_load(d, NULL, NULL, NULL, &e) < 0)
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
    assert_int_equal(domain_cordon(d, "cpu2", true, "fan", "uid 0", &e), 1);
    assert_int_equal(domain_cordon(d, "cpu2", true, "fan", "uid 0", &e), 0);
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

    assert_int_equal(domain_load(d, NULL, NULL, NULL, &e), 0); /* it outlives a reload */
    assert_int_equal(n_findings(d, FINDING_CORDONED), 1);
    assert_int_equal(domain_cordon(d, "cpu2", false, "", "uid 0", &e), 1);
    assert_int_equal(domain_cordon(d, "cpu2", false, "", "uid 0", &e), 0);
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
    assert_int_equal(domain_cordon(d, "nosuch", true, "", "t", &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_int_equal(domain_cordon(d, "nosuch", false, "", "t", &e), -1);

    graph_devices(v->graph, &dev);
    const char *name = graph_node(v->graph, dev[0])->name; /* both hosts have it */
    assert_int_equal(domain_cordon(d, name, true, "", "t", &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    assert_non_null(strstr(e.msg, "host"));
    domain_device_id(v, dev[0], id[0], sizeof(id[0]));
    domain_device_id(v, dev[8], id[1], sizeof(id[1]));
    assert_string_not_equal(id[0], id[1]);
    assert_int_equal(domain_cordon(d, id[1], true, "", "t", &e), 1);
    domain_put(v);
    v = domain_get(d);
    assert_int_equal(v->n_avoid, 1);
    assert_int_equal(v->avoid[0], dev[8]);
    domain_put(v);
    domain_free(d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cordon),
        cmocka_unit_test(test_names),
    };
    return test_main(argc, argv, "domain", tests, sizeof(tests) / sizeof(tests[0]));
}

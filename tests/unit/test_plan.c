/* Plans of built-in racks: every row is feasible, nothing is lost, and reasons add up. */
#include "tests/test.h"

#include <dirent.h>
#include <math.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "topo/graph.h"
#include "topo/file.h"
#include "topo/path.h"
#include "topo/placement.h"
#include "topo/plan.h"
#include "topo/rack.h"

static struct shapes s;
static struct graph *g;
static struct paths *paths;
static struct plan_ask ask;

static void open_all(const char *model, const char *precision, const char *rack)
{
    struct err e = {0};
    char path[256];

    snprintf(path, sizeof(path), "etc/models/%s.json", model);
    if (shapes_open(path, &s, &e) < 0 ||
        (precision && shapes_set_precision(&s, precision, &e) < 0) ||
        rack_build(rack, 64e9, &g, &e) < 0 || paths_new(g, &paths, &e) < 0)
        fail_msg("%s on %s: %s", model, rack, e.msg);
    plan_ask_defaults(&ask);
    ask.s = &s;
    ask.g = g;
    ask.paths = paths;
    ask.kv = FORMAT_FP8;
}

static void close_all(void)
{
    paths_free(paths);
    graph_free(g);
}

static struct plan *make(void)
{
    struct plan *p = NULL;
    struct err e = {0};

    if (plan_make(&ask, &p, &e) < 0)
        fail_msg("%s", e.msg);
    return p;
}

static void check_row(const struct plan_row *r)
{
    const int *dev;
    struct err e;
    int ranks = layout_ranks(&r->l) * r->l.replicas;

    assert_int_equal(layout_check(&r->l, &s, ask.slots, &e), LAYOUT_NONE);
    assert_int_equal(r->ledger.limit, LEDGER_FITS);
    assert_true(r->ledger.total <= r->ledger.have);
    if (r->split) {
        assert_int_equal(layout_check(&r->prefill, &s, ask.slots, &e), LAYOUT_NONE);
        ranks += layout_ranks(&r->prefill) * r->prefill.replicas;
        assert_true(r->handoff_ms > 0);
    }
    assert_int_equal(r->devices, ranks);
    assert_true(r->devices <= graph_devices(g, &dev));
    assert_true(r->est.tokens_s > 0 && isfinite(r->est.tokens_s));
    assert_true(r->est.ttft_ms > 0 && r->est.tpot_ms > 0);
    assert_non_null(r->placed);
}

/* Rows are sound and in order; each layout tried is a row or has its reason. */
static void check_plan(const struct plan *p)
{
    const struct plan_row *r;
    const struct plan_reason *why;
    int n = plan_rows(p, &r), reasons = plan_reasons(p, &why), counted = 0;

    assert_true(n > 0 && n <= PLAN_ROWS);
    for (int i = 0; i < n; i++) {
        check_row(&r[i]);
        assert_true(i == 0 || r[i].sort >= r[i - 1].sort);
        counted += !r[i].split;
    }
    for (int i = 0; i < reasons; i++) {
        counted += why[i].n;
        assert_true(!why[i].n || (*why[i].layout && why[i].why && *why[i].say));
    }
    assert_int_equal(counted, plan_tried(p));
}

static void racks_and_models(void **st)
{
    static const struct {
        const char *model, *precision, *rack;
    } rows[] = {
        {"kimi-k3", NULL, "gb300-nvl72"},
        {"deepseek-v3", NULL, "hgx-h200"},
        {"deepseek-r1", "fp4", "gb200-nvl72"},
        {"llama-3.1-405b", "fp8", "2x-hgx-h200-ib"},
        {"gpt-oss-120b", NULL, "dgx-h100"},
        {"qwen3-235b-a22b", "fp8", "hgx-b200"},
        {"glm-5", "fp8", "2x-hgx-h200-eth"},
        {"llama-3.1-8b", NULL, "dgx-a100"},
        {"smollm2-135m", NULL, "cpu:2x2"},
        {"mixtral-8x7b", NULL, "hgx-h200"},
    };

    (void)st;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        open_all(rows[i].model, rows[i].precision, rows[i].rack);
        struct plan *p = make();
        check_plan(p);
        plan_free(p);
        close_all();
    }
}

static void slo(void **st)
{
    const struct plan_row *r;
    struct plan *p;
    struct err e = {0};
    double free_tokens;

    (void)st;
    open_all("deepseek-r1", NULL, "hgx-h200");
    p = make();
    plan_rows(p, &r);
    free_tokens = r[0].est.tokens_s;
    plan_free(p);
    ask.tpot_ms = 25;
    ask.ttft_ms = 500;
    p = make();
    check_plan(p);
    for (int i = 0, n = plan_rows(p, &r); i < n; i++) {
        assert_true(r[i].est.tpot_ms <= 25 * 1.05); /* placed links are not uniform */
        assert_true(r[i].est.ttft_ms <= 500 * 1.05);
    }
    assert_true(r[0].est.tokens_s < free_tokens);
    plan_free(p);
    ask.tpot_ms = 0.001;
    p = NULL;
    assert_int_equal(plan_make(&ask, &p, &e), -1);
    assert_int_equal(e.code, ERR_NOFIT);
    assert_non_null(strstr(e.msg, "TPOT is over the SLO"));
    assert_null(p);
    close_all();
}

/* The fewest devices for a rate: never more for a lower one, and enough for it. */
static void rates(void **st)
{
    int before = 0;

    (void)st;
    open_all("llama-3.1-70b", "fp8", "gb200-nvl72");
    ask.tpot_ms = 40;
    for (ask.rate = 1; ask.rate < 600; ask.rate *= 3) {
        const struct plan_row *r;
        struct plan *p = make();
        int n = plan_rows(p, &r);
        check_plan(p);
        for (int i = 0; i < n; i++)
            assert_true(r[i].est.requests_s >= ask.rate * 0.95);
        assert_true(r[0].devices >= before);
        for (int i = 1; i < n; i++)
            assert_true(r[i].devices >= r[0].devices);
        before = r[0].devices;
        plan_free(p);
    }
    assert_true(before > 8);
    close_all();
}

static bool two_stages(void *arg, const struct layout *l)
{
    ++*(int *)arg;
    return l->pp == 2 && l->tp > 1;
}

/* So many instances as there are, colocated, of the layouts that are allowed. */
static void fixed_replicas(void **st)
{
    const struct plan_row *r;
    struct plan *p;
    struct err e = {0};
    int asked = 0, n;

    (void)st;
    open_all("qwen3-30b-a3b", "fp8", "hgx-h200");
    ask.replicas = 2;
    ask.allow = two_stages;
    ask.allow_arg = &asked;
    p = make();
    n = plan_rows(p, &r);
    for (int i = 0; i < n; i++) {
        check_row(&r[i]);
        assert_false(r[i].split);
        assert_int_equal(r[i].l.replicas, 2);
        assert_int_equal(r[i].l.pp, 2);
        assert_true(r[i].l.tp > 1 && r[i].devices <= 8);
    }
    assert_true(n > 0 && asked > plan_tried(p));
    plan_free(p);
    ask.replicas = 3; /* of four devices at least */
    assert_int_equal(plan_make(&ask, &p, &e), -1);
    assert_non_null(strstr(e.msg, "too few for the replicas"));
    close_all();
}

static void no_room(void **st)
{
    struct plan *p = NULL;
    struct err e = {0};
    const int *dev;

    (void)st;
    open_all("kimi-k3", NULL, "hgx-h200");
    assert_int_equal(plan_make(&ask, &p, &e), -1);
    assert_int_equal(e.code, ERR_NOFIT);
    assert_non_null(strstr(e.msg, "experts"));
    ask.n_avoid = graph_devices(g, &dev);
    ask.avoid = dev;
    assert_int_equal(plan_make(&ask, &p, &e), -1);
    assert_non_null(strstr(e.msg, "no usable device"));
    ask.isl = 0;
    assert_int_equal(plan_make(&ask, &p, &e), -1);
    assert_int_equal(e.code, ERR_RANGE);
    close_all();
}

static void cordoned(void **st)
{
    const struct plan_row *r;
    const struct place_rank *rank;
    const int *dev;
    struct plan *p;

    (void)st;
    open_all("llama-3.1-70b", NULL, "hgx-h200");
    graph_devices(g, &dev);
    ask.avoid = dev + 2;
    ask.n_avoid = 1;
    p = make();
    check_plan(p);
    for (int i = 0, n = plan_rows(p, &r); i < n; i++) {
        assert_true(r[i].devices <= 7);
        for (int j = 0, m = placement_ranks(r[i].placed, &rank); j < m; j++)
            assert_int_not_equal(rank[j].device, dev[2]);
    }
    plan_free(p);
    close_all();
}

/* Over a slow network TP stays inside a host. */
static void slow_cut(void **st)
{
    const struct plan_row *r;
    struct plan *p;

    (void)st;
    open_all("llama-3.1-405b", "fp8", "2x-hgx-h200-eth");
    ask.tpot_ms = 60;
    p = make();
    for (int i = 0, n = plan_rows(p, &r); i < n; i++)
        assert_true(r[i].l.tp <= 8);
    plan_free(p);
    close_all();
}

/* Devices that prefill for each that decodes in the best split row of a whole rack. */
static double prefill_per_decode(double isl, double tpot_ms)
{
    const struct plan_row *r;
    struct plan *p;
    double share = 0;

    open_all("deepseek-r1", "fp4", "gb200-nvl72");
    ask.isl = isl;
    ask.tpot_ms = tpot_ms;
    p = make();
    for (int i = plan_rows(p, &r) - 1; i >= 0; i--)
        if (r[i].split) {
            double n = 1.0 * layout_ranks(&r[i].prefill) * r[i].prefill.replicas;
            share = n / (r[i].devices - n);
        }
    plan_free(p);
    close_all();
    return share;
}

/* Long prompts want about twice as many devices on prefill, short ones half. Under a
 * tighter TPOT the pools of a whole rack of 72 only come in coarse steps: 40 and 32, as
 * in the published recipes of that size. */
static void splits(void **st)
{
    double long_in = prefill_per_decode(8192, 50),
           short_in = prefill_per_decode(1024, 50);
    double tight = prefill_per_decode(8192, 30);

    (void)st;
    printf("# prefill devices for each that decodes: 8K/1K %.2f (at 30 ms %.2f), 1K/1K "
           "%.2f\n",
           long_in, tight, short_in);
    assert_true(long_in >= 1.5 && long_in <= 2.5);
    assert_true(short_in >= 0.3 && short_in <= 0.75);
    assert_true(tight > 1 && tight <= long_in);
}

static void shown(void **st)
{
    struct plan *p, *q;
    struct buf a, b;
    struct err e;
    json_t *js = NULL;

    (void)st;
    open_all("deepseek-r1", "fp4", "gb200-nvl72");
    ask.tpot_ms = 50;
    p = make();
    q = make();
    buf_init(&a, 0);
    buf_init(&b, 0);
    plan_print(p, &a);
    assert_non_null(strstr(a.p, "routed experts"));
    assert_non_null(strstr(a.p, "discarded, of"));
    assert_non_null(strstr(a.p, "emulated"));
    buf_clear(&a);
    plan_json(p, &a);
    plan_json(q, &b);
    assert_string_equal(a.p, b.p);
    assert_int_equal(js_parse(a.p, a.len, NULL, &js, &e), 0);
    assert_int_equal(json_array_size(json_object_get(js, "rows")), PLAN_ROWS);
    json_decref(js);
    buf_done(&a);
    buf_done(&b);
    plan_free(p);
    plan_free(q);
    close_all();
}

static void why_says(const char *layout, const char *const *texts)
{
    struct layout l;
    struct buf b;
    struct err e = {0};

    buf_init(&b, 0);
    if (layout_parse(layout, &l, &e) < 0 || plan_why(&ask, &l, &b, &e) < 0)
        fail_msg("%s: %s", layout, e.msg);
    for (int i = 0; texts[i]; i++)
        if (!strstr(b.p, texts[i]))
            fail_msg("'%s' is not in:\n%s", texts[i], b.p);
    buf_done(&b);
}

static void why(void **st)
{
    struct layout l;
    struct buf b;
    struct err e = {0};

    (void)st;
    open_all("deepseek-r1", NULL, "hgx-h200");
    why_says("adp8 ep8",
             (const char *const[]){
                 "1 capacity: ", "it fits", "2 tp: one sequence's TPOT, tp1 ",
                 "3 pp: the fewest stages that fit are 1", "4 ep: ", "ep8 etp1",
                 "32.0 experts a rank", "5 cp: ", "6 dp: ", NULL});
    why_says("tp2 ep2", (const char *const[]){"it does not fit: routed experts", NULL});
    buf_init(&b, 0);
    assert_int_equal(layout_parse("tp16 ep16", &l, &e), 0);
    assert_int_equal(plan_why(&ask, &l, &b, &e), -1);
    assert_int_equal(e.code, ERR_NOFIT);
    assert_int_equal(layout_parse("tp3", &l, &e), 0);
    assert_int_equal(plan_why(&ask, &l, &b, &e), -1);
    buf_done(&b);
    close_all();
    open_all("llama-3.1-8b", NULL, "hgx-h200");
    ask.isl = 100000;
    why_says("tp2",
             (const char *const[]){"4 ep: the model has no experts", "with cp2", NULL});
    close_all();
}

/* Context parallelism is tried where it is asked for. */
static void long_context(void **st)
{
    struct plan *p;
    int without;

    (void)st;
    open_all("llama-3.1-8b", NULL, "hgx-h200");
    ask.isl = 120000;
    p = make();
    check_plan(p);
    without = plan_tried(p);
    plan_free(p);
    ask.with_cp = true;
    p = make();
    check_plan(p);
    assert_true(plan_tried(p) > without);
    plan_free(p);
    close_all();
}

static bool load_file(const char *path)
{
    static char bytes[TOPO_BYTES_MAX];
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(bytes, 1, sizeof(bytes), f) : 0;
    struct err e;

    if (f)
        fclose(f);
    if (!n || topo_load(bytes, n, path, "H200", &g, &e) < 0)
        return false;
    if (paths_new(g, &paths, &e) < 0)
        fail_msg("%s: %s", path, e.msg);
    return true;
}

/* No group of a row spans devices that no path joins. */
static void check_apart(const struct plan *p)
{
    const struct plan_row *r;
    const struct place_rank *a;

    for (int i = 0, n = plan_rows(p, &r); i < n; i++)
        for (int x = 0, m = placement_ranks(r[i].placed, &a); x < m; x++)
            for (int y = 0; y < x; y++)
                assert_int_not_equal(paths_get(paths, a[x].device, a[y].device)->cls,
                                     PATH_DIS);
}

/* Every recorded rack: a sound plan, or one sentence. */
static void recorded(void **st)
{
    char dir[4096], path[4096 + 300];
    int planned = 0, refused = 0;
    struct dirent *d;
    DIR *all;

    (void)st;
    snprintf(dir, sizeof(dir), "%s", test_shared("topologies"));
    all = opendir(dir);
    while ((d = readdir(all))) {
        struct plan *p = NULL;
        struct err e = {0};
        const int *dev;
        snprintf(path, sizeof(path), "%s/%s", dir, d->d_name);
        if (!load_file(path))
            continue;
        assert_int_equal(shapes_open("etc/models/llama-3.1-8b.json", &s, &e), 0);
        plan_ask_defaults(&ask);
        ask.s = &s;
        ask.g = g;
        ask.paths = paths;
        if (plan_make(&ask, &p, &e) == 0) {
            check_plan(p);
            check_apart(p);
            planned++;
        } else {
            assert_true(*e.msg && e.code != ERR_INTERNAL);
            printf("# %s, %d devices: %s\n", d->d_name, graph_devices(g, &dev), e.msg);
            refused++;
        }
        plan_free(p);
        close_all();
    }
    closedir(all);
    printf("# %d recorded racks planned, %d refused\n", planned, refused);
    assert_true(planned > 5);
}

/* The cube mesh of V100: only its two quads are fully linked, and TP 4 lies on one. */
static void cube_mesh(void **st)
{
    struct layout l = {1, 1, 4, 1, 1, 4, false, CP_NONE, 1, 2};
    struct placement_ask a = {&l, 1, NULL, 0};
    struct placement *p = NULL;
    const struct place_rank *r;
    struct err e = {0};

    (void)st;
    assert_true(load_file(test_shared("topologies/topo-m-v100-cube-mesh-8gpu-2nic.txt")));
    assert_int_equal(placement_compute(g, paths, &a, &p, &e), 0);
    placement_ranks(p, &r);
    for (int i = 0; i < 8; i++)
        for (int j = i / 4 * 4; j < i; j++)
            assert_int_equal(paths_get(paths, r[i].device, r[j].device)->cls, PATH_NVL);
    placement_free(p);
    close_all();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(racks_and_models),
                                       cmocka_unit_test(slo),
                                       cmocka_unit_test(rates),
                                       cmocka_unit_test(fixed_replicas),
                                       cmocka_unit_test(no_room),
                                       cmocka_unit_test(cordoned),
                                       cmocka_unit_test(slow_cut),
                                       cmocka_unit_test(splits),
                                       cmocka_unit_test(shown),
                                       cmocka_unit_test(why),
                                       cmocka_unit_test(long_context),
                                       cmocka_unit_test(recorded),
                                       cmocka_unit_test(cube_mesh)};
    return test_main(argc, argv, "plan", tests, sizeof(tests) / sizeof(tests[0]));
}

/* bench_plan FILE: time to plan, and estimates beside measured runs; one JSON object.
 *
 * Prints a table by system and model. Every key of the file has value, goal and ok. Rows
 * of systems without op tables of their own are extrapolated and counted apart. Exits 1
 * where a goal is missed. */
#include "tests/silicon.h"

#include "base/clock.h"
#include "tests/bench/rows.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/plan.h"
#include "topo/rack.h"

enum { GROUPS_MAX = 64 };

static void plan_time(struct out *o, const char *key, const char *model, const char *rack)
{
    static struct shapes s;
    struct plan_ask a;
    struct graph *g = NULL;
    struct paths *p = NULL;
    struct plan *plan = NULL;
    struct err e = {0};
    int64_t t;

    if (shapes_open(model, &s, &e) < 0 || rack_build(rack, 0, &g, &e) < 0 ||
        paths_new(g, &p, &e) < 0)
        fail_msg("%s", e.msg);
    plan_ask_defaults(&a);
    a.s = &s;
    a.g = g;
    a.paths = p;
    a.kv = FORMAT_FP8;
    t = clock_now_us(clock_real());
    if (plan_make(&a, &plan, &e) < 0)
        fail_msg("%s", e.msg);
    put(o, key, 1e-6 * (double)(clock_now_us(clock_real()) - t), 0, 2, "under 2 s");
    plan_free(plan);
    paths_free(p);
    graph_free(g);
}

/* The same of the best split row of the plan of a whole rack. */
static double rack_share(double isl)
{
    static struct shapes s;
    struct plan_ask a;
    const struct plan_row *r;
    struct graph *g = NULL;
    struct paths *p = NULL;
    struct plan *plan = NULL;
    struct err e = {0};
    double share = 0;

    if (shapes_open("etc/models/deepseek-r1.json", &s, &e) < 0 ||
        shapes_set_precision(&s, "fp4", &e) < 0 ||
        rack_build("gb200-nvl72", 0, &g, &e) < 0 || paths_new(g, &p, &e) < 0)
        fail_msg("%s", e.msg);
    plan_ask_defaults(&a);
    a.s = &s;
    a.g = g;
    a.paths = p;
    a.kv = FORMAT_FP8;
    a.isl = isl;
    a.tpot_ms = 50;
    if (plan_make(&a, &plan, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = plan_rows(plan, &r) - 1; i >= 0; i--)
        if (r[i].split) {
            double n = 1.0 * layout_ranks(&r[i].prefill) * r[i].prefill.replicas;
            share = n / (r[i].devices - n);
        }
    plan_free(plan);
    paths_free(p);
    graph_free(g);
    return share;
}

static void orders(struct out *o)
{
    put(o, "h200_r1_tp8_over_groups_c8", silicon_tp_over_groups(8), 1, 99, "over 1");
    put(o, "h200_r1_tp8_over_groups_c256", silicon_tp_over_groups(256), 0, 1, "under 1");
    put(o, "k3_tp16_gain_over_tp8", silicon_k3_tp16(), -0.05, 0.25, "little");
    put(o, "r1_decode_gb200_over_b200_ep8", silicon_gb200_over_b200(8), 0.85, 1.15,
        "about 1");
    put(o, "r1_decode_gb200_over_b200_ep32", silicon_gb200_over_b200(32), 1, 99,
        "over 1");
    put(o, "prefill_per_decode_gpu_8k_1k", silicon_prefill_share(8192), 1.5, 2.5,
        "about 2");
    put(o, "prefill_per_decode_gpu_1k_1k", silicon_prefill_share(1024), 0.3, 0.75,
        "about 0.5");
    put(o, "prefill_per_decode_rack_8k_1k", rack_share(8192), 1.5, 2.5, "about 2");
    put(o, "prefill_per_decode_rack_1k_1k", rack_share(1024), 0.3, 0.75, "about 0.5");
    put(o, "skew_ep32", silicon_skew(32), 2, 4, "2 to 4");
    put(o, "skew_ep64", silicon_skew(64), 2, 4, "2 to 4");
}

/* Rows by kind, and by system and model. */
struct table {
    struct silicon_runs kind[2];
    struct {
        char name[96];
        struct silicon_runs runs;
    } group[GROUPS_MAX];
    int n;
};

static void add_row(void *arg, char **f, const struct estimate *r, bool low)
{
    struct table *t = arg;
    char name[96];
    int i = 0;

    snprintf(name, sizeof(name), "%s %s %s", f[0], f[1], f[4]);
    while (i < t->n && strcmp(t->group[i].name, name))
        i++;
    silicon_add(&t->kind[sil.d.extrapolated], f, r, low);
    if (i == GROUPS_MAX)
        return;
    if (i == t->n)
        snprintf(t->group[t->n++].name, sizeof(name), "%s", name);
    silicon_add(&t->group[i].runs, f, r, low);
}

static void end_to_end(struct out *o, const char *path)
{
    struct table *t = calloc(1, sizeof(*t));

    silicon_rows(path, add_row, t);
    printf("%-40s %5s %10s %14s %8s\n", "system, model, precision", "rows", "TPOT err",
           "TTFT err c<=8", "rank");
    for (int i = 0; i < t->n; i++) {
        struct silicon_runs *r = &t->group[i].runs;
        printf("%-40s %5d %9.0f%% %13.0f%% %8.2f\n", t->group[i].name, r->n,
               100 * silicon_median(&r->tpot), 100 * silicon_median(&r->ttft),
               silicon_rank_correlation(r));
    }
    for (int i = 0; i < 2 && t->n; i++) {
        const char *kind = i ? "extrapolated" : "measured";
        char key[64];
        snprintf(key, sizeof(key), "tpot_error_%s", kind);
        put(o, key, silicon_median(&t->kind[i].tpot), 0, 0.25, "at most 0.25, median");
        snprintf(key, sizeof(key), "rank_correlation_%s", kind);
        put(o, key, silicon_rank_correlation(&t->kind[i]), 0.9, 1, "at least 0.9");
        snprintf(key, sizeof(key), "ttft_error_low_concurrency_%s", kind);
        put(o, key, silicon_median(&t->kind[i].ttft), 0, 1e9, "reported");
    }
    free(t);
}

int main(int argc, char **argv)
{
    const char *dir = getenv("SHARED");
    struct out o;
    char path[4096];

    if (argc != 2) {
        fprintf(stderr, "usage: bench_plan FILE\n");
        return 2;
    }
    out_begin(&o);
    plan_time(&o, "plan_seconds_k3_gb300_nvl72", "etc/models/kimi-k3.json",
              "gb300-nvl72");
    plan_time(&o, "plan_seconds_v3_hgx_h200", "etc/models/deepseek-v3.json", "hgx-h200");
    orders(&o);
    snprintf(path, sizeof(path), "%s/perfdata/silicon_e2e.csv", dir ? dir : "../shared");
    end_to_end(&o, path);
    return out_end(&o, argv[1]);
}

/* Collectives against measured tables, steps against known orders, and estimates against
 * end-to-end runs that no constant was fitted to. */
#include "tests/test.h"

#include <math.h>

#include "base/err.h"
#include "topo/estimate.h"

static struct shapes s;
static struct cost_device d;
static struct cost_links k;
static struct layout l;

static void load(const char *name, const char *precision)
{
    struct err e = {0};
    char path[256];

    snprintf(path, sizeof(path), "etc/models/%s.json", name);
    if (shapes_open(path, &s, &e) < 0 ||
        (precision && shapes_set_precision(&s, precision, &e) < 0))
        fail_msg("%s: %s", path, e.msg);
}

static double link_of(const char *gpu) { return strstr(gpu, "H") ? 450e9 : 900e9; }

static void use(const char *gpu, const char *layout)
{
    struct err e = {0};

    if (cost_device_open(gpu, &d, &e) < 0 || layout_parse(layout, &l, &e) < 0)
        fail_msg("%s on %s: %s", layout, gpu, e.msg);
    cost_links_uniform(&l, strstr(gpu, "GB") ? 72 : 8, link_of(gpu), 50e9, &k);
}

static struct estimate
estimate(const char *gpu, const char *layout, double isl, double osl, double n,
         void (*fn)(const struct estimate_on *, const struct estimate_load *,
                    struct estimate *))
{
    struct estimate_on o = {&d, &s, &l, &k};
    struct estimate_load w = {isl, osl, n, 1, FORMAT_FP8};
    struct estimate r;
    struct err e = {0};

    use(gpu, layout);
    if (layout_check(&l, &s, 0, &e) != LAYOUT_NONE)
        fail_msg("%s: %s", layout, e.msg);
    fn(&o, &w, &r);
    return r;
}

static void constants_have_sources(void **st)
{
    int n = 0;

    (void)st;
    for (; cost_const_at(n); n++) {
        assert_true(cost_const_at(n)->v > 0);
        assert_true(strlen(cost_const_at(n)->source) > 3);
    }
    assert_true(n > 30);
}

/* One-shot for small, ring for large messages; a hierarchy over islands. */
static void all_reduce(void **st)
{
    struct cost_group g = {8, 8, 450e9, 50e9, false};
    enum cost_algo a;
    struct err e;

    (void)st;
    assert_int_equal(cost_device_open("H200", &d, &e), 0);
    cost_all_reduce(&d, &g, 4096, &a);
    assert_int_equal(a, ALGO_ONE_SHOT);
    cost_all_reduce(&d, &g, 16e6, &a);
    assert_int_equal(a, ALGO_RING);
    g.n = 16;
    cost_all_reduce(&d, &g, 16e6, &a);
    assert_int_equal(a, ALGO_HIERARCHY);
    g.n = 1;
    assert_true(cost_all_reduce(&d, &g, 16e6, &a) == 0);
    assert_int_equal(a, ALGO_NONE);
    g = (struct cost_group){4, 4, 1e9, 0, true}; /* measured: 2 (p-1)/p S as it is */
    assert_true(fabs(cost_all_reduce(&d, &g, 1e9, &a) - 2 * d.reduce_us - 1.5e6) < 1);
}

/* Median of |estimate / measured - 1| over the custom all-reduce rows of 8 x H200. */
struct errs {
    double v[4096];
    int n;
};

static int by_value(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) -
           (*(const double *)a < *(const double *)b);
}

static double median(struct errs *x)
{
    qsort(x->v, (size_t)x->n, sizeof(x->v[0]), by_value);
    return x->n ? x->v[x->n / 2] : NAN;
}

static void note(struct errs *x, double got, double want)
{
    if (x->n < 4096)
        x->v[x->n++] = fabs(got / want - 1);
}

static void all_reduce_table(void **st)
{
    FILE *f = fopen(test_shared("perfdata/custom_allreduce.csv"), "re");
    static struct errs h200, gb200;
    char line[256], sys[32], frame[32], kernel[32];
    double elements, us;
    int n;
    struct err e;

    (void)st;
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%31[^,],%31[^,],%*[^,],%31[^,],%*[^,],%d,%lf,%lf", sys, frame,
                   kernel, &n, &elements, &us) != 6 ||
            !strstr(kernel, "graph"))
            continue;
        bool late = !strcmp(sys, "gb200");
        struct cost_group g = {n, n, late ? 900e9 : 450e9, 0, false};
        assert_int_equal(cost_device_open(late ? "GB200" : "H200", &d, &e), 0);
        note(late ? &gb200 : &h200, cost_all_reduce(&d, &g, 2 * elements, NULL), us);
    }
    fclose(f);
    printf(
        "# all-reduce, median error: 8 x H200 %.0f %% of %d rows, GB200 %.0f %% of %d\n",
        100 * median(&h200), h200.n, 100 * median(&gb200), gb200.n);
    assert_true(h200.n > 10 && gb200.n > 10);
    assert_true(median(&h200) < 0.25);
    assert_true(median(&gb200) < 0.25);
}

static void all_to_all_table(void **st)
{
    FILE *f = fopen(test_shared("perfdata/moe_alltoall.csv"), "re");
    static struct errs low, one;
    char line[512], sys[32], kernel[32], op[32];
    int ep, hidden, topk;
    double tokens, us;
    struct err e;

    (void)st;
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line,
                   "%31[^,],%*[^,],%*[^,],%31[^,],%31[^,],%*[^,],%d,%d,%d,%*d,%lf,%*[^,],"
                   "%lf",
                   sys, kernel, op, &ep, &hidden, &topk, &tokens, &us) != 8 ||
            hidden != 7168 || topk != 8)
            continue;
        bool h200 = !strcmp(sys, "h200_sxm"), back = !strncmp(op, "combine", 7);
        struct cost_group g = {ep, ep, h200 ? 450e9 : 900e9, 0, false};
        if ((!h200 && strcmp(kernel, "NVLinkOneSided")) ||
            (back && strcmp(op, "combine")))
            continue;
        assert_int_equal(cost_device_open(h200 ? "H200" : "GB200", &d, &e), 0);
        note(h200 ? &low : &one,
             cost_all_to_all(&d, &g, tokens, fmin(ep, topk),
                             hidden * (back   ? 2
                                       : h200 ? 1
                                              : 0.5625 /* nvfp4 */),
                             back),
             us);
    }
    fclose(f);
    printf(
        "# all-to-all, median error: 8 x H200 %.0f %% of %d rows, GB200 %.0f %% of %d\n",
        100 * median(&low), low.n, 100 * median(&one), one.n);
    assert_true(low.n > 10 && one.n > 10);
    assert_true(median(&low) < 0.25);
    assert_true(median(&one) < 0.25);
}

/* More devices never slow the arithmetic, and more sequences never shorten a step. */
static void monotone(void **st)
{
    double before = 0;

    (void)st;
    load("llama-3.1-70b", "fp8");
    for (int n = 1; n <= 256; n *= 2) {
        double t = estimate("H200", "tp4", 1024, 1024, n, estimate_decode).tpot_ms;
        assert_true(t >= before);
        before = t;
    }
    before = INFINITY;
    for (int tp = 1; tp <= 8; tp *= 2) {
        char text[16];
        snprintf(text, sizeof(text), "tp%d", tp);
        double t = estimate("H200", text, 1024, 1024, 8, estimate_decode).tpot_ms;
        assert_true(t < before);
        before = t;
    }
}

/* On H200, R1 under TP 8 wins at low concurrency, attention groups at high. */
static void tp_or_groups(void **st)
{
    (void)st;
    load("deepseek-r1", NULL);
    assert_true(estimate("H200", "tp8 ep8", 1024, 1024, 8, estimate_colocated).tokens_s >
                estimate("H200", "adp8 ep8", 1024, 1024, 8, estimate_colocated).tokens_s);
    assert_true(
        estimate("H200", "tp8 ep8", 1024, 1024, 256, estimate_colocated).tokens_s <
        estimate("H200", "adp8 ep8", 1024, 1024, 256, estimate_colocated).tokens_s);
}

/* Kimi K3 at batch 1 gains little from TP 8 to TP 16. */
static void k3_tp16(void **st)
{
    double gain;

    (void)st;
    load("kimi-k3", NULL);
    gain = estimate("GB300", "tp8 ep8", 1024, 1024, 1, estimate_decode).tpot_ms /
           estimate("GB300", "tp16 ep16", 1024, 1024, 1, estimate_decode).tpot_ms;
    printf("# K3, batch 1: TP16 is %+.0f %% over TP8\n", 100 * (gain - 1));
    assert_true(gain > 0.95 && gain < 1.25);
}

/* R1 decode over more than 8 expert ranks: one NVLink domain of 72 against islands of 8.
 */
static void wide_ep(void **st)
{
    double narrow, wide;

    (void)st;
    load("deepseek-r1", "fp4");
    narrow =
        estimate("GB200", "adp8 ep8", 1024, 1024, 2048, estimate_decode).tokens_s_gpu /
        estimate("B200", "adp8 ep8", 1024, 1024, 2048, estimate_decode).tokens_s_gpu;
    wide =
        estimate("GB200", "adp32 ep32", 1024, 1024, 8192, estimate_decode).tokens_s_gpu /
        estimate("B200", "adp32 ep32", 1024, 1024, 8192, estimate_decode).tokens_s_gpu;
    printf("# R1 decode, GB200 over B200: EP8 %.2f, EP32 %.2f\n", narrow, wide);
    assert_true(narrow < 1.15);
    assert_true(wide > 1.3);
}

/* GPUs that prefill needs for each that decodes, at their best batch under 50 ms. */
static double prefill_share(double isl)
{
    double in =
        estimate("GB200", "adp4 ep4", isl, 1024, 4, estimate_prefill).requests_s / 4;
    double best = 0;

    for (double n = 64; n <= 8192; n *= 2) {
        struct estimate r = estimate("GB200", "adp8 ep8", isl, 1024, n, estimate_decode);
        if (r.tpot_ms < 50)
            best = fmax(best, r.requests_s / 8);
    }
    return best / in;
}

static void splits(void **st)
{
    double long_in, short_in;

    (void)st;
    load("deepseek-r1", "fp4");
    long_in = prefill_share(8192);
    short_in = prefill_share(1024);
    printf("# prefill GPUs a decode GPU: 8K/1K %.2f, 1K/1K %.2f\n", long_in, short_in);
    assert_true(long_in > 1 && short_in < 1);
}

/* Skewed routing without replicas at prefill sizes. */
static void skew(void **st)
{
    struct cost_work w = {
        .prefill = 4096 * 32, .prompt = 4096, .skew = 1, .kv = FORMAT_FP8};
    struct cost_step even, odd;

    (void)st;
    load("deepseek-r1", NULL);
    for (int ep = 32; ep <= 64; ep *= 2) {
        char text[32];
        snprintf(text, sizeof(text), "adp%d ep%d", ep, ep);
        use("GB200", text);
        w.prefill = 4096.0 * ep;
        w.skew = 1;
        cost_step(&d, &s, &l, &k, &w, &even);
        w.skew = cost_power_skew(&s, ep, 0.6);
        cost_step(&d, &s, &l, &k, &w, &odd);
        printf("# EP%d, skew %.1f: experts take %.1fx\n", ep, w.skew,
               odd.us[COST_EXPERTS] / even.us[COST_EXPERTS]);
        assert_true(odd.us[COST_EXPERTS] > 2 * even.us[COST_EXPERTS]);
        assert_true(odd.us[COST_EXPERTS] < 4 * even.us[COST_EXPERTS]);
    }
    assert_true(cost_power_skew(&s, 1, 1.2) == 1);
    assert_true(fabs(cost_power_skew(&s, 8, 0) - 1) < 1e-9);
    assert_true(cost_power_skew(&s, 64, 1.2) <= 64.0 / 8 + 1);
}

static void bad_devices(void **st)
{
    struct err e = {0};

    (void)st;
    assert_int_equal(cost_device_open("Voodoo 2", &d, &e), -1);
    assert_int_equal(e.code, ERR_UNSUPPORTED);
    assert_int_equal(cost_device_open("cpu", &d, &e), 0);
    assert_true(d.extrapolated);
    assert_int_equal(cost_device_open("H200", &d, &e), 0);
    assert_false(d.extrapolated);
    assert_int_equal(cost_device_open("B200", &d, &e), 0);
    assert_true(d.extrapolated);
}

/* ---- end-to-end rows ---- */

struct row {
    double measured, estimated;
};

struct runs {
    struct row row[2048];
    int n;
    struct errs tpot, ttft;
};

static const struct {
    const char *csv, *ours;
} names[] = {{"DeepSeek-R1", "deepseek-r1"},
             {"DeepSeek-R1-NVFP4", "deepseek-r1"},
             {"Llama-3.1-70B", "llama-3.1-70b"},
             {"Llama-3.1-8B-Instruct", "llama-3.1-8b"},
             {"Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"},
             {"Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"},
             {"gpt-oss-120b", "gpt-oss-120b"},
             {"Kimi-K2.5", "kimi-k2.5"},
             {"GLM-5", "glm-5"}};
static const struct {
    const char *csv, *ours;
} systems[] = {{"h200_sxm", "H200"},
               {"h100_sxm", "H100"},
               {"b200_sxm", "B200"},
               {"gb200", "GB200"},
               {"gb300", "GB300"}};

/* The comma-separated fields of a line, in place; empty ones stay. */
static int fields(char *line, char **f, int max)
{
    int n = 0;

    line[strcspn(line, "\r\n")] = '\0';
    while (n < max && line) {
        f[n++] = line;
        line = strchr(line, ',');
        if (line)
            *line++ = '\0';
    }
    return n;
}

static bool load_row(char **f)
{
    const char *model = NULL;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(names[i].csv, f[1]))
            model = names[i].ours;
    if (!model)
        return false;
    /* these two are published in the precision that the rows name */
    bool own = !strcmp(model, "gpt-oss-120b") || !strcmp(f[4], "int4") || !*f[4];
    load(model, own ? NULL : f[4]);
    return true;
}

/* tp.pp.adp.moe_tp.moe_ep into l; false for those that our words do not have. */
static bool shape_row(const char *text, int *workers)
{
    int tp, pp, adp, mtp, mep;

    *workers = 1;
    if (sscanf(text, "%dx(%d.%d.%d.%d.%d)", workers, &tp, &pp, &adp, &mtp, &mep) != 6 &&
        sscanf(text, "%d.%d.%d.%d.%d", &tp, &pp, &adp, &mtp, &mep) != 5)
        return false;
    if (s.n_expert && mtp * mep != tp * adp)
        return false;
    l = (struct layout){pp,       1,     tp,      adp, s.n_expert ? mep : 1,
                        tp * adp, false, CP_NONE, 1,   1};
    l.etp = tp * adp / l.ep;
    return true;
}

static void take_row(char **f, struct runs *runs)
{
    bool split = !strcmp(f[5], "disagg");
    struct estimate_load w = {atof(f[6]), atof(f[7]), atof(f[8]), 1, FORMAT_FP8};
    struct estimate_on o = {&d, &s, &l, &k};
    const char *gpu = NULL;
    struct estimate r;
    struct err e;
    int workers;

    for (size_t i = 0; i < sizeof(systems) / sizeof(systems[0]); i++)
        if (!strcmp(systems[i].csv, f[0]))
            gpu = systems[i].ours;
    if (!gpu || w.concurrency < 1 || !load_row(f) ||
        !shape_row(split ? f[12] : f[10], &workers) || runs->n == 2048)
        return;
    if (!split)
        workers = (int)fmax(atof(f[13]) / layout_ranks(&l), 1);
    assert_int_equal(cost_device_open(gpu, &d, &e), 0);
    cost_links_uniform(&l, strstr(gpu, "GB") ? 72 : 8, link_of(gpu), 50e9, &k);
    runs += d.extrapolated;
    w.concurrency /= workers;
    (split ? estimate_decode : estimate_colocated)(&o, &w, &r);
    note(&runs->tpot, r.tpot_ms, atof(f[15]));
    if (!split && w.concurrency <= 8)
        note(&runs->ttft, r.ttft_ms, atof(f[14]));
    runs->row[runs->n++] = (struct row){atof(f[16]), r.tokens_s_gpu};
}

static int by_measured(const void *a, const void *b)
{
    const struct row *x = a, *y = b;

    return (x->measured > y->measured) - (x->measured < y->measured);
}

/* Spearman's, from the number of rows below each. */
static double rank_correlation(struct runs *r)
{
    double sum = 0, n = r->n;

    qsort(r->row, (size_t)r->n, sizeof(r->row[0]), by_measured);
    for (int i = 0; i < r->n; i++) {
        int below = 0;
        for (int j = 0; j < r->n; j++)
            below += r->row[j].estimated < r->row[i].estimated;
        sum += (1.0 * i - below) * (i - below);
    }
    return 1 - 6 * sum / (n * (n * n - 1));
}

static void end_to_end(void **st)
{
    static const char *const kind[] = {"measured", "extrapolated"};
    static struct runs runs[2];
    FILE *file = fopen(test_shared("perfdata/silicon_e2e.csv"), "re");
    char line[1024], *f[17];

    (void)st;
    while (fgets(line, sizeof(line), file))
        if (fields(line, f, 17) == 17 && *f[8] && *f[15])
            take_row(f, runs);
    fclose(file);
    for (int i = 0; i < 2; i++) {
        double rho = rank_correlation(&runs[i]);
        printf("# %s, %d rows: median error of TPOT %.1f %%, of TTFT at concurrency <= 8 "
               "%.0f %%; rank correlation of tokens/s/GPU %.3f\n",
               kind[i], runs[i].n, 100 * median(&runs[i].tpot),
               100 * median(&runs[i].ttft), rho);
        assert_true(runs[i].n > 300);
        assert_true(median(&runs[i].tpot) < 0.25);
        assert_true(rho > 0.9);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(constants_have_sources),
                                       cmocka_unit_test(all_reduce),
                                       cmocka_unit_test(all_reduce_table),
                                       cmocka_unit_test(all_to_all_table),
                                       cmocka_unit_test(monotone),
                                       cmocka_unit_test(tp_or_groups),
                                       cmocka_unit_test(k3_tp16),
                                       cmocka_unit_test(wide_ep),
                                       cmocka_unit_test(splits),
                                       cmocka_unit_test(skew),
                                       cmocka_unit_test(bad_devices),
                                       cmocka_unit_test(end_to_end)};
    return test_main(argc, argv, "cost", tests, sizeof(tests) / sizeof(tests[0]));
}

/* Collectives against measured tables, steps against known orders, and estimates against
 * end-to-end runs that no constant was fitted to. */
#include "tests/silicon.h"

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
    struct cost_group g = {8, 8, 450e9, 50e9, false, false};
    enum cost_algo a;
    struct err e;

    (void)st;
    assert_int_equal(cost_device_open("H200", &sil.d, &e), 0);
    cost_all_reduce(&sil.d, &g, 4096, &a);
    assert_int_equal(a, ALGO_ONE_SHOT);
    cost_all_reduce(&sil.d, &g, 16e6, &a);
    assert_int_equal(a, ALGO_RING);
    g.n = 16;
    cost_all_reduce(&sil.d, &g, 16e6, &a);
    assert_int_equal(a, ALGO_HIERARCHY);
    g.n = 1;
    assert_true(cost_all_reduce(&sil.d, &g, 16e6, &a) == 0);
    assert_int_equal(a, ALGO_NONE);
    g = (struct cost_group){4, 4,    1e9,
                            0, true, true}; /* measured: 2 (p-1)/p S as it is */
    assert_true(fabs(cost_all_reduce(&sil.d, &g, 1e9, &a) - 2 * sil.d.reduce_us - 1.5e6) <
                1);
}

static void all_reduce_table(void **st)
{
    FILE *f = fopen(test_shared("perfdata/custom_allreduce.csv"), "re");
    static struct silicon_errs h200, gb200;
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
        struct cost_group g = {n, n, late ? 900e9 : 450e9, 0, false, false};
        assert_int_equal(cost_device_open(late ? "GB200" : "H200", &sil.d, &e), 0);
        silicon_note(late ? &gb200 : &h200,
                     cost_all_reduce(&sil.d, &g, 2 * elements, NULL), us);
    }
    fclose(f);
    printf(
        "# all-reduce, median error: 8 x H200 %.0f %% of %d rows, GB200 %.0f %% of %d\n",
        100 * silicon_median(&h200), h200.n, 100 * silicon_median(&gb200), gb200.n);
    assert_true(h200.n > 10 && gb200.n > 10);
    assert_true(silicon_median(&h200) < 0.25);
    assert_true(silicon_median(&gb200) < 0.25);
}

static void all_to_all_table(void **st)
{
    FILE *f = fopen(test_shared("perfdata/moe_alltoall.csv"), "re");
    static struct silicon_errs low, one;
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
        struct cost_group g = {ep, ep, h200 ? 450e9 : 900e9, 0, false, false};
        if ((!h200 && strcmp(kernel, "NVLinkOneSided")) ||
            (back && strcmp(op, "combine")))
            continue;
        assert_int_equal(cost_device_open(h200 ? "H200" : "GB200", &sil.d, &e), 0);
        silicon_note(h200 ? &low : &one,
                     cost_all_to_all(&sil.d, &g, tokens, fmin(ep, topk),
                                     hidden * (back   ? 2
                                               : h200 ? 1
                                                      : 0.5625 /* nvfp4 */),
                                     back),
                     us);
    }
    fclose(f);
    printf(
        "# all-to-all, median error: 8 x H200 %.0f %% of %d rows, GB200 %.0f %% of %d\n",
        100 * silicon_median(&low), low.n, 100 * silicon_median(&one), one.n);
    assert_true(low.n > 10 && one.n > 10);
    assert_true(silicon_median(&low) < 0.25);
    assert_true(silicon_median(&one) < 0.25);
}

/* More devices never slow the arithmetic, and more sequences never shorten a step. */
static void monotone(void **st)
{
    double before = 0;

    (void)st;
    silicon_load("llama-3.1-70b", "fp8");
    for (int n = 1; n <= 256; n *= 2) {
        double t =
            silicon_estimate("H200", "tp4", 1024, 1024, n, estimate_decode).tpot_ms;
        assert_true(t >= before);
        before = t;
    }
    before = INFINITY;
    for (int tp = 1; tp <= 8; tp *= 2) {
        char text[16];
        snprintf(text, sizeof(text), "tp%d", tp);
        double t = silicon_estimate("H200", text, 1024, 1024, 8, estimate_decode).tpot_ms;
        assert_true(t < before);
        before = t;
    }
}

/* On H200, R1 under TP 8 wins at low concurrency, attention groups at high. */
static void tp_or_groups(void **st)
{
    (void)st;
    assert_true(silicon_tp_over_groups(8) > 1);
    assert_true(silicon_tp_over_groups(256) < 1);
}

/* Kimi K3 at batch 1 gains little from TP 8 to TP 16. */
static void k3_tp16(void **st)
{
    double gain = silicon_k3_tp16();

    (void)st;
    printf("# K3, batch 1: TP16 is %+.0f %% over TP8\n", 100 * gain);
    assert_true(gain > -0.05 && gain < 0.25);
}

static void wide_ep(void **st)
{
    double narrow = silicon_gb200_over_b200(8), wide = silicon_gb200_over_b200(32);

    (void)st;
    printf("# R1 decode, GB200 over B200: EP8 %.2f, EP32 %.2f\n", narrow, wide);
    assert_true(narrow < 1.15);
    assert_true(wide > 1.3);
}

static void splits(void **st)
{
    double long_in = silicon_prefill_share(8192), short_in = silicon_prefill_share(1024);

    (void)st;
    printf("# prefill GPUs a decode GPU: 8K/1K %.2f, 1K/1K %.2f\n", long_in, short_in);
    assert_true(long_in > 1.4 && long_in < 2.5);
    assert_true(short_in > 0.3 && short_in < 0.75);
}

/* Skewed routing without replicas at prefill sizes. */
static void skew(void **st)
{
    (void)st;
    for (int ep = 32; ep <= 64; ep *= 2) {
        double times = silicon_skew(ep);
        printf("# EP%d: skewed experts take %.1fx\n", ep, times);
        assert_true(times > 2 && times < 4);
    }
    assert_true(cost_power_skew(&sil.s, 1, 1.2) == 1);
    assert_true(fabs(cost_power_skew(&sil.s, 8, 0) - 1) < 1e-9);
    assert_true(cost_power_skew(&sil.s, 64, 1.2) <= 64.0 / 8 + 1);
}

static void bad_devices(void **st)
{
    struct err e = {0};

    (void)st;
    assert_int_equal(cost_device_open("Voodoo 2", &sil.d, &e), -1);
    assert_int_equal(e.code, ERR_UNSUPPORTED);
    assert_int_equal(cost_device_open("cpu", &sil.d, &e), 0);
    assert_true(sil.d.extrapolated);
    assert_int_equal(cost_device_open("H200", &sil.d, &e), 0);
    assert_false(sil.d.extrapolated);
    assert_int_equal(cost_device_open("B200", &sil.d, &e), 0);
    assert_true(sil.d.extrapolated);
}

static void add_row(void *arg, char **f, const struct estimate *r, bool low)
{
    silicon_add((struct silicon_runs *)arg + sil.d.extrapolated, f, r, low);
}

static void end_to_end(void **st)
{
    static const char *const kind[] = {"measured", "extrapolated"};
    static struct silicon_runs runs[2];

    (void)st;
    silicon_rows(test_shared("perfdata/silicon_e2e.csv"), add_row, runs);
    for (int i = 0; i < 2; i++) {
        double rho = silicon_rank_correlation(&runs[i]);
        printf("# %s, %d rows: median error of TPOT %.1f %%, of TTFT at concurrency <= 8 "
               "%.0f %%; rank correlation of tokens/s/GPU %.3f\n",
               kind[i], runs[i].n, 100 * silicon_median(&runs[i].tpot),
               100 * silicon_median(&runs[i].ttft), rho);
        assert_true(runs[i].n > 300);
        assert_true(silicon_median(&runs[i].tpot) < 0.25);
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

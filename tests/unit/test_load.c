/* tests/unit/test_load.c - arrivals, lengths, prompts, attainment and the search of
 * llmctl load, without a daemon. */
#include "tests/test.h"

#include <math.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/load_search.c"
#include "base/load_stat.c"
#include "ctl/load_trace.c"
#include "ctl/load_work.c"

enum { N = 20000 };

static struct load_work work(enum load_arrival a, double burst)
{
    return (struct load_work){.arrival = a,
                              .burst = burst,
                              .in = {LOAD_FIXED, 100, 0},
                              .out = {LOAD_FIXED, 10, 0},
                              .max_tok = 4096,
                              .n_vocab = 50000,
                              .seed = test_seed(),
                              .length_scale = 1};
}

/* Mean gap in s and its squared coefficient of variation. */
static void gaps(const struct load_req *r, int n, double *ret_mean, double *ret_cv2)
{
    double sum = 0, sq = 0;

    for (int i = 1; i < n; i++) {
        double g = (double)(r[i].at_us - r[i - 1].at_us) / 1e6;

        assert_true(g >= 0);
        sum += g;
        sq += g * g;
    }
    *ret_mean = sum / (n - 1);
    *ret_cv2 = sq / (n - 1) / (*ret_mean * *ret_mean) - 1;
}

static void test_arrivals(void **state)
{
    struct load_req *r = xcalloc(N, sizeof(*r));
    struct {
        enum load_arrival a;
        double burst, cv2;
    } t[] = {{LOAD_POISSON, 1, 1},
             {LOAD_BURSTY, 1, 1},
             {LOAD_BURSTY, 4, 4},
             {LOAD_BURSTY, 0.25, 0.25}};

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct load_work w = work(t[i].a, t[i].burst);
        double mean, cv2;

        load_work_make(&w, 5, N, 0, r);
        gaps(r, N, &mean, &cv2);
        assert_true(fabs(mean * 5 - 1) < 0.06);
        assert_true(fabs(cv2 / t[i].cv2 - 1) < 0.2);
    }
    free(r);
}

static void test_same_seed_same_requests(void **state)
{
    struct load_work w = work(LOAD_POISSON, 1);
    struct load_req a[50], b[50], c[50];
    int32_t x[100], y[100];

    (void)state;
    w.in = (struct load_dist){LOAD_UNIFORM, 50, 100};
    w.out = (struct load_dist){LOAD_LOGNORMAL, 20, 0.5};
    w.shared_tok = 30;
    w.groups = 3;
    load_work_make(&w, 5, 50, 1, a);
    load_work_make(&w, 5, 50, 1, b);
    load_work_make(&w, 5, 50, 2, c);
    assert_memory_equal(a, b, sizeof(a));
    assert_int_not_equal(a[0].own, c[0].own);
    for (int i = 0; i < 50; i++) {
        assert_in_range(a[i].n_in, 50, 100);
        assert_true(a[i].n_out >= 1);
        for (int k = 0; k < 50; k++) { /* of one group: 30 tokens alike, then none need */
            load_prompt(&w, &a[i], x);
            load_prompt(&w, &c[k], y);
            assert_int_equal(a[i].shared == c[k].shared, !memcmp(x, y, 30 * sizeof(*x)));
            assert_memory_not_equal(x + 30, y + 30, 20 * sizeof(*x));
        }
    }
    for (int i = 0; i < a[49].n_in; i++)
        load_prompt(&w, &a[49], x), assert_in_range(x[i], 6250, 43750);
}

static void test_lengths(void **state)
{
    static const char *const good[] = {"128", "uniform:64-256", "lognormal:200,0.8"};
    static const char *const bad[] = {
        "",           "0",          "x",   "uniform:9-3",
        "lognormal:", "128 tokens", "1e9", "uniform:1-9999999"};
    uint64_t seed = test_seed();
    struct load_dist d;
    struct err e;
    double sum = 0;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct buf b;

        assert_int_equal(load_dist_parse(good[i], &d, &e), 0);
        buf_init(&b, 0);
        load_dist_text(&d, &b);
        assert_string_equal(b.p, good[i]);
        buf_done(&b);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(load_dist_parse(bad[i], &d, &e), -1);
    load_dist_parse("uniform:64-256", &d, &e);
    for (int i = 0; i < N; i++)
        sum += draw(&d, &seed);
    assert_true(fabs(sum / N / 160 - 1) < 0.02);
    load_dist_parse("lognormal:200,0.8", &d, &e);
    sum = 0;
    for (int i = 0; i < N; i++)
        sum += log(draw(&d, &seed));
    assert_true(fabs(sum / N - log(200)) < 0.05);
}

/* What does not fit the context is cut: the answer stays, the prompt gets shorter. */
static void test_fits_the_context(void **state)
{
    struct load_work w = work(LOAD_POISSON, 1);
    struct load_req r;

    (void)state;
    w.max_tok = 64;
    w.shared_tok = 90;
    load_work_make(&w, 1, 1, 0, &r);
    assert_int_equal(r.n_out, 10);
    assert_int_equal(r.n_in, 54);
    assert_int_equal(r.n_shared, 53);
}

/* ---- traces ---- */

static const char azure[] = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                            "2023-11-16 23:59:59.9799600,4808,10\n"
                            "2023-11-17 00:00:01.4799600,3180,8\r\n"
                            "2023-11-17 00:00:01.9799600,110,27";
static const char mooncake[] =
    "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 50, \"hash_ids\": "
    "[1, 2, 3]}\n"
    "{\"timestamp\": 500, \"input_length\": 1536, \"output_length\": 5, \"hash_ids\": "
    "[1, 2, 9]}\n";

static void test_traces(void **state)
{
    static const char *const bad[] = {
        "",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "a,b,c\n1,2,3\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4808\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,5,5\n"
        "2023-11-16 18:17:02.9,5,5\n",
        "TIM", /* shorter than a header */
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2023-11-16 "
        "18:17:03.9,1,5,5\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,1,5,5\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:nan,5,5\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,99999999999,5\n",
        "{\"timestamp\": 0, \"input_length\": -1, \"output_length\": 50}\n",
        "{\"timestamp\": 0, \"output_length\": 50}\n",
        "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 5, \"hash_ids\": "
        "[\"x\"]}\n"};
    struct load_work w = work(LOAD_TRACE, 1);
    struct load_trace t;
    struct load_req r[4];
    int32_t x[200], y[200];
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t n = strlen(bad[i]);
        char *copy = malloc(n ? n : 1); /* of just this size: no end mark is looked for */
        memcpy(copy, bad[i], n);
        assert_int_equal(load_trace_parse(copy, n, &t, &e), -1);
        free(copy);
    }
    assert_int_equal(load_trace_parse(azure, sizeof(azure) - 1, &t, &e), 0);
    assert_int_equal(t.n, 3);
    assert_int_equal(t.row[1].at_us - t.row[0].at_us, 1500000);
    assert_int_equal(t.row[2].n_out, 27);
    assert_true(fabs(load_trace_rate(&t) - 1) < 1e-6); /* two gaps in 2 s */
    w.trace = &t;
    w.length_scale = 10;
    load_work_make(&w, 2, 4, 0, r); /* twice as fast; the fourth begins it again */
    assert_int_equal(r[1].at_us, 750000);
    assert_int_equal(r[3].at_us, 1500000);
    assert_int_equal(r[0].n_in, 480);
    assert_int_equal(r[0].n_out, 1);
    load_trace_done(&t);

    assert_int_equal(load_trace_parse(mooncake, sizeof(mooncake) - 1, &t, &e), 0);
    w.length_scale = 8;
    load_work_make(&w, 2, 2, 0, r);
    assert_int_equal(r[0].n_in, 137);
    assert_int_equal(r[0].block_tok, 64);
    load_prompt(&w, &r[0], x);
    load_prompt(&w, &r[1], y);
    assert_memory_equal(x, y, 128 * sizeof(*x)); /* ids 1 and 2 */
    assert_memory_not_equal(x + 128, y + 128, 9 * sizeof(*x));
    load_trace_done(&t);
}

static void test_public_traces(void **state)
{
    static const struct {
        const char *path;
        int n;
    } files[] = {{"traces/azure_llm_2023_code.csv", 8819},
                 {"traces/azure_llm_2023_conv.csv", 19366},
                 {"traces/mooncake_fast25_synthetic.jsonl", 3993}};
    struct err e;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        FILE *f = fopen(test_shared(files[i].path), "rb");
        char *text = xmalloc(2 << 20);
        size_t n = fread(text, 1, 2 << 20, f);
        struct load_trace t;

        fclose(f);
        if (load_trace_parse(text, n, &t, &e) < 0)
            fail_msg("%s: %s", files[i].path, e.msg);
        assert_int_equal(t.n, files[i].n);
        load_trace_done(&t);
        free(text);
    }
}

/* ---- attainment ---- */

static struct load_seen seen(int64_t at_ms, int64_t ttft_ms, int n, int64_t tpot_ms)
{
    struct load_seen s = {.at_us = at_ms * 1000, .n_in = 10, .n_want = n, .n_out = n};

    s.sent_us = s.at_us;
    s.first_us = s.at_us + ttft_ms * 1000;
    s.last_us = s.end_us = s.first_us + tpot_ms * 1000 * (n - 1);
    s.gap_us = n > 1 ? tpot_ms * 1000 : 0;
    s.end = LOAD_DONE;
    return s;
}

static void test_good_is_distserve(void **state)
{
    struct load_slo slo = {.ttft_ms = 200, .tpot_ms = 50, .target = 0.9};
    struct load_seen v[10];
    struct load_point p;

    (void)state;
    for (int i = 0; i < 10; i++)
        v[i] = seen(100 * i, 200, 11, 50); /* at the limits: good */
    v[1] = seen(100, 100, 1, 0);           /* one token: a tpot of 0, good */
    load_point(v, 10, 10, &slo, &p);
    assert_int_equal(p.good, 10);
    assert_true(p.pass && !p.saturated);
    assert_true(p.low < 0.9 && !p.sure); /* ten are too few to be sure */
    v[2] = seen(200, 201, 11, 50);
    load_point(v, 10, 10, &slo, &p);
    assert_true(p.good == 9 && p.pass);
    v[3] = seen(300, 100, 11, 51);
    load_point(v, 10, 10, &slo, &p);
    assert_true(p.good == 8 && !p.pass);
    assert_true(fabs(p.ttft.p50 - 200) < 1e-9 && fabs(p.ttft.p99 - 201) < 1e-9);
    assert_true(fabs(p.tpot.p95 - 51) < 1e-9);
    assert_true(fabs(p.duration_s - (0.9 + 0.2 + 0.5)) < 1e-9);
    assert_true(fabs(p.good_tok_per_s * p.duration_s - (7 * 11 + 1)) < 1e-6);
}

/* A refused, an aborted and a cut one are in the denominator. */
static void test_all_ends_count(void **state)
{
    struct load_slo slo = {.target = 0.9}; /* no targets: all that end are good */
    static const enum load_end ends[] = {LOAD_REFUSED, LOAD_ABORTED, LOAD_CUT};
    struct load_seen v[40];
    struct load_point p;

    (void)state;
    for (int i = 0; i < 40; i++)
        v[i] = seen(100 * i, 20, 5, 10);
    load_point(v, 40, 10, &slo, &p);
    assert_int_equal(p.good, 40);
    for (int i = 0; i < 3; i++)
        v[10 + i].end = ends[i];
    v[13].end = LOAD_REFUSED;
    v[13].first_us = -1;
    v[14].end = LOAD_REFUSED;
    load_point(v, 40, 10, &slo, &p);
    assert_int_equal(p.good, 35);
    assert_int_equal(p.refused, 3);
    assert_int_equal(p.aborted, 1);
    assert_int_equal(p.cut, 1);
    assert_true(fabs(p.attainment - 0.875) < 1e-9 && !p.pass);
}

static void test_interval(void **state)
{
    double lo, hi;

    (void)state;
    load_interval(90, 100, &lo, &hi); /* by Wilson's formula */
    assert_true(fabs(lo - 0.8256) < 1e-3 && fabs(hi - 0.9448) < 1e-3);
    load_interval(10, 10, &lo, &hi);
    assert_true(lo > 0.69 && lo < 0.73 && hi == 1);
    load_interval(0, 0, &lo, &hi);
    assert_true(lo == 0 && hi == 1);
}

/* One server with a queue: at 70 % it stands, at 130 % it grows without end. */
static void serve(struct load_seen *v, int n, double load, uint64_t *seed)
{
    double at = 0, idle = 0;

    for (int i = 0; i < n; i++) {
        at += exponential(seed) * 100 / load;
        idle = (idle > at ? idle : at) + 100;
        v[i] = seen((int64_t)at, (int64_t)(idle - at), 1, 0);
    }
}

static void test_saturation(void **state)
{
    struct load_seen *v = xcalloc(300, sizeof(*v));
    uint64_t seed = test_seed();
    int steady = 0, grown = 0;

    (void)state;
    for (int i = 0; i < 100; i++) {
        serve(v, 300, 0.7, &seed);
        steady += load_saturated(v, 300);
        serve(v, 300, 1.3, &seed);
        grown += load_saturated(v, 300);
    }
    assert_in_range(grown, 90, 100);
    assert_in_range(steady, 0, 3);
    free(v);
}

/* ---- the search ---- */

static double searched(double truth, double guess, int *ret_points)
{
    struct load_search s = {
        .guess = guess, .min = 0.01, .max = 1000, .width = 0.1, .points = 30, .tries = 3};
    double r;

    while ((r = load_search_rate(&s)) > 0)
        load_search_told(&s, r <= truth, true);
    *ret_points = s.n_points;
    return s.pass;
}

static void test_search_finds(void **state)
{
    static const double truth[] = {0.02, 0.5, 3, 17, 400};
    int n;

    (void)state;
    for (size_t i = 0; i < 5; i++)
        for (double guess = 0.001; guess < 1e4; guess *= 7) {
            double found = searched(truth[i], guess, &n);

            assert_true(found <= truth[i] && found >= truth[i] / 1.1 - 1e-9);
            assert_in_range(n, 2, 24);
        }
    assert_true(searched(0.001, 1, &n) == 0);   /* not even the lowest */
    assert_true(searched(5000, 1, &n) == 1000); /* all that was allowed */
}

/* A rate that is not sure is run again, but not for ever. */
static void test_search_tries_again(void **state)
{
    struct load_search s = {
        .guess = 4, .min = 0.1, .max = 100, .width = 0.1, .points = 3, .tries = 3};

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_true(load_search_rate(&s) == 4);
        load_search_told(&s, true, false);
    }
    assert_true(load_search_rate(&s) == 8);
    load_search_told(&s, false, true);
    load_search_told(&s, true, true);
    assert_true(load_search_rate(&s) == 0 && s.n_points == 3);
    assert_true(fabs(s.pass - sqrt(32)) < 1e-9);
}

/* A run is long enough for a queue that grows to show, whatever number was asked for. */
static void test_how_many_a_rate_gets(void **state)
{
    struct load_slo slo = {.ttft_ms = 400, .tpot_ms = 50};
    struct load_span s = {100, load_span_least_s(&slo, 65), 120};

    (void)state;
    assert_true(fabs(s.least_s - 3 * (0.4 + 64 * 0.05)) < 1e-9);
    assert_int_equal(load_search_count(&s, 5), 100);
    assert_int_equal(load_search_count(&s, 100), 1080); /* a second of it says nothing */
    assert_int_equal(load_search_count(&s, 0.5), 60);   /* no more than two minutes */
    assert_int_equal(load_search_count(&s, 0.01), LOAD_LEAST);
    assert_int_equal(load_search_count(&s, 1e5), LOAD_MAX_REQUESTS);
    s.point_s = 1;
    assert_int_equal(load_search_count(&s, 100), 100);
    s.least_s = 0;
    assert_int_equal(load_search_count(&s, 1000), 100);
    assert_true(load_span_least_s(&(struct load_slo){.tpot_ms = 50}, 1) == 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_arrivals),
    cmocka_unit_test(test_same_seed_same_requests),
    cmocka_unit_test(test_lengths),
    cmocka_unit_test(test_fits_the_context),
    cmocka_unit_test(test_traces),
    cmocka_unit_test(test_public_traces),
    cmocka_unit_test(test_good_is_distserve),
    cmocka_unit_test(test_all_ends_count),
    cmocka_unit_test(test_interval),
    cmocka_unit_test(test_saturation),
    cmocka_unit_test(test_how_many_a_rate_gets),
    cmocka_unit_test(test_search_finds),
    cmocka_unit_test(test_search_tries_again),
};
TEST_MAIN("load", tests)

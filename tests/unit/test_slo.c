/* tests/unit/test_slo.c - SLO accounting on a clock of the test's own. */
#include "tests/store_help.h"

#include <math.h>
#include <pthread.h>

#include "base/buf.h"
#include "base/json.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/guard.h"
#include "daemon/ctrl/slo.h"
#include "daemon/ctrl/slo_cell.h"

enum { MS = 1000, S = 1000000, T0 = 1000 * S };

static struct slo *slo;

static void conf_of(const char *text)
{
    struct conf_faults f;
    struct conf *c;

    if (conf_parse(text, strlen(text), NULL, 0, &c, &f) < 0)
        fail_msg("%d: %s: %s", f.v[0].line, f.v[0].path, f.v[0].msg);
    slo_set_conf(slo, c, 7);
    conf_unref(c);
}

static int begin(void **state)
{
    (void)state;
    slo = slo_new();
    conf_of("models:\n  m: {path: /m.gguf}\n"
            "instances:\n"
            "  a: {model: m, slo: {ttft_ms: 100, tpot_ms: 20, attainment: 0.9}}\n"
            "  b: {model: m, served_as: other}\n"
            "slo_classes:\n"
            "  batch: {ttft_ms: 5000}\n"
            "  fast: {ttft_ms: 10}\n");
    return slo_tick(slo, NULL, T0, 60000000, &e);
}

static int end(void **state)
{
    (void)state;
    slo_free(slo);
    return 0;
}

static struct slo_sample done(int64_t ttft_us, int64_t tpot_us, int n_out)
{
    return (struct slo_sample){.instance = "a",
                               .slo_class = "",
                               .end = SLO_DONE,
                               .start_us = T0,
                               .ttft_us = ttft_us,
                               .tpot_us = tpot_us,
                               .gap_us = tpot_us,
                               .n_prompt = 3,
                               .n_out = n_out};
}

static void record(struct slo_sample x, int64_t now)
{
    x.start_us = now;
    slo_record(slo, now, &x);
}

/* The series of instance and class in the figures of now; caller json_decref()s *all. */
static json_t *look(int64_t now, int64_t window_s, const char *instance,
                    const char *class, json_t **all)
{
    struct buf b;
    size_t i;
    json_t *row;

    buf_init(&b, 0);
    slo_json(slo, now, window_s, &b);
    if (js_parse(b.p, b.len, &(struct js_limits){0, 8}, all, &e) < 0)
        fail_msg("%s", e.msg);
    buf_done(&b);
    json_array_foreach(*all, i, row)
    {
        if (!strcmp(json_string_value(json_object_get(row, "instance")), instance) &&
            !strcmp(json_string_value(json_object_get(row, "class")), class))
            return row;
    }
    return NULL;
}

static double num(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static double figure(int64_t now, int64_t window_s, const char *key)
{
    json_t *all, *row = look(now, window_s, "a", "", &all);
    double v = row ? num(row, key) : -1;

    json_decref(all);
    return v;
}

static double quantile(int64_t now, const char *kind, const char *q)
{
    json_t *all, *row = look(now, 300, "a", "", &all);
    double v = json_number_value(json_object_get(json_object_get(row, kind), q));

    json_decref(all);
    return v;
}

/* ---- what meets a target ---- */

static void a_target_is_met_at_its_very_value(void **state)
{
    static const struct {
        int64_t ttft, tpot;
        int n_out, met;
    } cases[] = {
        {100 * MS, 20 * MS, 5, 1},
        {100 * MS + 1, 20 * MS, 5, 0},
        {100 * MS, 20 * MS + 1, 5, 0},
        {0, 0, 2, 1},
        {100 * MS, 90 * MS, 1, 1}, /* one token has no time per further token */
        {100 * MS, -1, 1, 1},
        {101 * MS, -1, 1, 0},
        {-1, -1, 0, 1}, /* only scored: no token at all */
    };
    int met = 0;

    (void)state;
    for (int i = 0; i < 8; i++) {
        record(done(cases[i].ttft, cases[i].tpot, cases[i].n_out), T0);
        met += cases[i].met;
        assert_true(figure(T0, 60, "met") == met);
        assert_true(figure(T0, 60, "late") == i + 1 - met);
    }
}

static void refused_and_aborted_are_missed_cancels_apart(void **state)
{
    struct slo_sample x = done(50 * MS, 10 * MS, 4);

    (void)state;
    record(x, T0);
    x.end = SLO_REFUSED;
    record(x, T0);
    x.end = SLO_ABORTED;
    record(x, T0);
    x.end = SLO_CANCELED;
    record(x, T0);
    record(x, T0);
    assert_true(figure(T0, 60, "requests") == 3);
    assert_true(figure(T0, 60, "missed") == 2);
    assert_true(figure(T0, 60, "refused") == 1);
    assert_true(figure(T0, 60, "aborted") == 1);
    assert_true(figure(T0, 60, "canceled") == 2);
    assert_true(fabs(figure(T0, 60, "attainment") - 1.0 / 3) < 1e-9);
    assert_true(figure(T0, 60, "good_tokens") == 4);
    assert_true(figure(T0, 60, "tokens") == 8); /* the aborted one's too */
}

static void classes_have_targets_of_their_own(void **state)
{
    struct slo_sample x = done(2 * S, 500 * MS, 9);
    json_t *all, *row;

    (void)state;
    x.slo_class = "batch"; /* no target per token */
    record(x, T0);
    x.slo_class = "fast";
    record(x, T0);
    x.instance = "b"; /* no target: answered is met */
    x.slo_class = "";
    record(x, T0);
    row = look(T0, 60, "a", "batch", &all);
    assert_true(num(row, "met") == 1 && num(row, "ttft_target_ms") == 5000);
    json_decref(all);
    row = look(T0, 60, "a", "fast", &all);
    assert_true(num(row, "met") == 0 && num(row, "late") == 1);
    json_decref(all);
    row = look(T0, 60, "b", "", &all);
    assert_true(num(row, "met") == 1);
    json_decref(all);
    assert_null(look(T0, 60, "a", "", &all)); /* nothing without a class */
    json_decref(all);
    ok(slo_check_class(slo, "fast", &e));
    refused(slo_check_class(slo, "slow", &e), ERR_INVALID, "batch, fast");
    assert_string_equal(e.param, "slo_class");
}

static void a_new_target_holds_from_then_on(void **state)
{
    (void)state;
    record(done(50 * MS, -1, 1), T0);
    conf_of("models:\n  m: {path: /m.gguf}\n"
            "instances:\n  a: {model: m, slo: {ttft_ms: 10}}\n");
    record(done(50 * MS, -1, 1), T0);
    assert_true(figure(T0, 60, "met") == 1);
    assert_true(figure(T0, 60, "late") == 1);
    refused(slo_check_class(slo, "fast", &e), ERR_INVALID, "names none");
}

static void refused_unread_is_of_the_only_instance(void **state)
{
    struct slo_sample x = {
        .instance = "", .slo_class = "", .end = SLO_REFUSED, .start_us = T0};
    json_t *all;

    (void)state;
    slo_record(slo, T0, &x);
    assert_true(num(look(T0, 60, "", "", &all), "refused") == 1); /* a or b? */
    json_decref(all);
    conf_of("models:\n  m: {path: /m.gguf}\ninstances:\n  a: {model: m}\n");
    slo_record(slo, T0, &x);
    assert_true(num(look(T0, 60, "a", "", &all), "refused") == 1);
    json_decref(all);
}

/* ---- windows ---- */

/* Engines of one instance are one row, with the instance's targets. */
static void engines_count_for_their_instance(void **state)
{
    static const char *const engines[] = {"a/decode", "a/prefill:2", "a", "a:3"};
    int64_t ttft, tpot, now = T0;
    json_t *all;

    (void)state;
    conf_of("models:\n  m: {path: /m.gguf}\n"
            "instances:\n"
            "  a: {model: m, mode: split, slo: {ttft_ms: 100}, decode: {engines: 2}}\n");
    for (size_t i = 0; i < 4; i++) {
        struct slo_sample x = done((i + 1) * 30 * MS, 1, 2);
        x.instance = engines[i];
        record(x, now);
        slo_targets(slo, engines[i], "", &ttft, &tpot);
        assert_true(ttft == 100 * MS && tpot == 0);
    }
    struct slo_sample refused = {.instance = "", .slo_class = "", .end = SLO_REFUSED};
    record(refused, now); /* of the only instance, whatever engines it has */
    json_t *row = look(now, 300, "a", "", &all);
    assert_non_null(row);
    assert_int_equal(json_array_size(all), 1);
    assert_true(num(row, "met") == 3 && num(row, "late") == 1 &&
                num(row, "refused") == 1);
    json_decref(all);
}

static void windows_roll(void **state)
{
    int64_t now = T0;

    (void)state;
    for (int i = 0; i < 3600; i += 5, now += 5 * S) /* one each five seconds */
        record(done(50 * MS, 10 * MS, 4), now);
    for (int w = 60; w <= 3600; w += 60) {
        double n = figure(now, w, "requests"), span = figure(now, w, "window_s");

        assert_true(span >= (w < 3600 ? w : 3600) - 1e-6);
        assert_true(span < w + 61);
        assert_true(fabs(n - span / 5) <= 2); /* what it counts is what it spans */
        assert_true(fabs(figure(now, w, "good_requests_per_s") - 0.2) < 0.03);
        assert_true(fabs(figure(now, w, "good_tokens_per_s") - 0.8) < 0.12);
    }
    now += 61 * S; /* silence */
    assert_true(figure(now, 50, "requests") == 0);
    assert_true(figure(now, 300, "requests") > 0);
    now += 300 * S;
    assert_true(figure(now, 300, "requests") == 0);
    assert_true(figure(now, 3600, "requests") > 0);
    now += 3700ll * S;
    assert_true(figure(now, 3600, "requests") == 0);
    record(done(50 * MS, 10 * MS, 4), now); /* cells are used again, empty */
    assert_true(figure(now, 3600, "requests") == 1);
}

static void a_young_window_spans_its_age(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++)
        record(done(50 * MS, 10 * MS, 4), T0 + i * S);
    assert_true(figure(T0 + 10 * S, 300, "window_s") == 10);
    assert_true(figure(T0 + 10 * S, 300, "good_requests_per_s") == 1);
}

/* ---- percentiles ---- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void percentiles_are_near_the_exact_ones(void **state)
{
    static const struct {
        const char *name;
        double q;
    } qs[] = {{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}};
    static int64_t v[5000];
    uint64_t seed = test_seed();
    int n = 5000;

    (void)state;
    for (int i = 0; i < n; i++) { /* from 0.3 ms to 100 s, evenly in the exponent */
        double x = (double)(test_rand(&seed) >> 11) / 9007199254740992.0;
        v[i] = (int64_t)(300 * pow(10, 5.5 * x));
        record(done(v[i], v[i] / 2, 3), T0);
    }
    qsort(v, (size_t)n, sizeof(v[0]), by_value);
    for (int k = 0; k < 3; k++) {
        double exact = (double)v[(int)(qs[k].q * n) - 1] / 1e3;
        double got = quantile(T0, "ttft_ms", qs[k].name);

        assert_true(fabs(got / exact - 1) < 0.09);
        got = quantile(T0, "tpot_ms", qs[k].name);
        assert_true(fabs(got / (exact / 2) - 1) < 0.09);
    }
}

static void extremes_stay_in_the_histogram(void **state)
{
    struct slo_hist h = {0};

    (void)state;
    assert_true(slo_hist_quantile(&h, 0.5) == -1);
    slo_hist_add(&h, 0);
    assert_true(slo_hist_quantile(&h, 1) <= 100);
    slo_hist_add(&h, INT64_MAX / 4);
    assert_true(slo_hist_quantile(&h, 1) > 1e9);
    for (int64_t us = 1; us < 3000000000ll; us = us * 5 / 4 + 1) {
        struct slo_hist one = {0};
        double q;

        slo_hist_add(&one, us);
        q = slo_hist_quantile(&one, 0.5);
        assert_true(us < 100 ? q <= 100 : us > 1600000000 || fabs(q / us - 1) < 0.091);
    }
}

/* ---- the guard's window ---- */

static void the_guard_sees_what_began_since(void **state)
{
    struct slo_sample x = done(50 * MS, 10 * MS, 4);
    struct guard_window w;

    (void)state;
    x.start_us = T0 + 10 * S; /* before the change, ended after it */
    x.end = SLO_ABORTED;
    slo_record(slo, T0 + 40 * S, &x);
    x.end = SLO_DONE;
    record(x, T0 + 31 * S);
    x.end = SLO_REFUSED;
    record(x, T0 + 32 * S);
    x.warmup = true;
    record(x, T0 + 33 * S);
    x.warmup = false;
    x.end = SLO_CANCELED;
    record(x, T0 + 34 * S);
    slo_window(slo, T0 + 30 * S, T0 + 60 * S, &w);
    assert_int_equal(w.n, 2);
    assert_int_equal(w.met, 1);
    assert_int_equal(w.errors, 1);
    slo_window(slo, T0, T0 + 60 * S, &w);
    assert_int_equal(w.n, 3);
    slo_window(slo, T0 + 31 * S + 1, T0 + 60 * S, &w); /* not half a second of before */
    assert_int_equal(w.n, 1);
    slo_window(slo, 0, T0 + 7300ll * S, &w); /* two hours back, no more */
    assert_int_equal(w.n, 0);
}

/* ---- bounds ---- */

static void series_are_bounded(void **state)
{
    struct slo_sample x = done(50 * MS, -1, 1);
    json_t *all;
    char name[32];

    (void)state;
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "i%d", i);
        x.instance = name;
        record(x, T0);
    }
    assert_true(num(look(T0, 60, "", "", &all), "requests") == 100 - SLO_SERIES_MAX);
    assert_int_equal(json_array_size(all), SLO_SERIES_MAX + 1);
    json_decref(all);
    /* those that no configuration names leave when their hour has passed */
    ok(slo_tick(slo, NULL, T0 + 3000ll * S, 63000000, &e));
    json_decref((look(T0 + 3000ll * S, 60, "", "", &all), all));
    ok(slo_tick(slo, NULL, T0 + 3700ll * S, 63700000, &e));
    assert_null(look(T0 + 3700ll * S, 60, "i3", "", &all));
    assert_int_equal(json_array_size(all), 0);
    json_decref(all);
}

enum { THREADS = 4, EACH = 3000 };

static void *recorder(void *arg)
{
    struct slo_sample x = done(50 * MS, 10 * MS, 4);

    x.slo_class = arg;
    for (int i = 0; i < EACH; i++)
        record(x, T0 + i * MS);
    return NULL;
}

static void many_threads_lose_nothing(void **state)
{
    pthread_t t[THREADS];
    struct guard_window w;
    json_t *all;

    (void)state;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, recorder, i & 1 ? "batch" : "");
    for (int i = 0; i < 20; i++) {
        figure(T0 + 3 * S, 3600, "requests");
        slo_window(slo, T0, T0 + 3 * S, &w);
        ok(slo_tick(slo, NULL, T0 + 3 * S, 60000000 + i, &e));
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    slo_window(slo, T0, T0 + 3 * S, &w);
    assert_int_equal(w.n, THREADS * EACH);
    assert_true(figure(T0 + 3 * S, 60, "requests") == THREADS / 2 * EACH);
    assert_true(num(look(T0 + 3 * S, 3600, "a", "batch", &all), "met") ==
                THREADS / 2 * EACH);
    json_decref(all);
}

/* ---- Prometheus ---- */

static void metrics_count_what_was_recorded(void **state)
{
    struct slo_sample x = done(50 * MS, 10 * MS, 4);
    struct buf b;

    (void)state;
    for (int i = 0; i < 3; i++)
        record(x, T0 + i * 2000ll * S); /* older than any window, still counted */
    x.end = SLO_REFUSED;
    record(x, T0 + 4000ll * S);
    buf_init(&b, 0);
    slo_metrics(slo, T0 + 4000ll * S, &b);
    assert_non_null(strstr(b.p, "# TYPE llmrack_slo_requests_total counter\n"));
    assert_non_null(strstr(b.p, "llmrack_slo_requests_total{instance=\"a\",slo_class="
                                "\"\",end=\"met\"} 3\n"));
    assert_non_null(strstr(b.p, "end=\"refused\"} 1\n"));
    assert_non_null(strstr(b.p, "llmrack_slo_tokens_total{instance=\"a\",slo_class=\"\","
                                "good=\"true\"} 12\n"));
    assert_non_null(strstr(b.p, "llmrack_slo_ttft_target_seconds{instance=\"a\","
                                "slo_class=\"\"} 0.1\n"));
    assert_non_null(strstr(b.p, "llmrack_slo_attainment{instance=\"a\",slo_class=\"\","
                                "window=\"1m\"} 0.5\n"));
    for (const char *p = b.p; (p = strstr(p, "# TYPE ")); p++) { /* once, with help */
        char name[80], mark[100];

        assert_int_equal(sscanf(p, "# TYPE %79s", name), 1);
        snprintf(mark, sizeof(mark), "# HELP %s ", name);
        assert_non_null(strstr(b.p, mark));
        assert_null(strstr(strstr(b.p, mark) + 1, mark));
    }
    buf_done(&b);
}

/* ---- minutes in the store ---- */

static json_t *history(int64_t from, int64_t to, int *ret_rc, int64_t *ret_next)
{
    json_t *all;
    struct buf b;

    buf_init(&b, 0);
    *ret_rc = slo_history(st, from, to, &b, ret_next, &e);
    ok(*ret_rc);
    ok(js_parse(b.p, b.len, &(struct js_limits){0, 8}, &all, &e));
    buf_done(&b);
    return all;
}

static int begin_store(void **state) { return set_up(state) < 0 ? -1 : begin(state); }

static int end_store(void **state)
{
    end(state);
    return tear_down(state);
}

static void minutes_are_stored_and_read(void **state)
{
    int64_t wall = 60000000, next = -1, now = T0; /* minute 1000 */
    json_t *all, *fig;
    int rc;

    (void)state;
    for (int i = 0; i < 3; i++) {
        record(done(50 * MS, 10 * MS, 4), now);
        record(done(500 * MS, 10 * MS, 4), now);
        ok(slo_tick(slo, st, now + 59 * S, wall + 59000, &e));
        now += 60 * S;
        wall += 60000;
        ok(slo_tick(slo, st, now, wall, &e));
    }
    ok(slo_tick(slo, st, now + 60 * S, wall + 60000, &e)); /* an empty minute */
    reopen();
    all = history(0, 2000, &rc, &next);
    assert_int_equal(rc, 0);
    assert_int_equal(json_array_size(all), 3);
    assert_true(num(json_array_get(all, 0), "minute") == 1000);
    assert_true(num(json_array_get(all, 2), "minute") == 1002);
    assert_true(num(json_array_get(all, 1), "revision") == 7);
    fig = json_object_get(json_array_get(all, 1), "figures");
    assert_true(num(fig, "requests") == 2 && num(fig, "met") == 1);
    assert_true(num(fig, "attainment") == 0.5 && num(fig, "ttft_target_ms") == 100);
    json_decref(all);
    all = history(1001, 1002, &rc, &next);
    assert_int_equal(json_array_size(all), 1);
    json_decref(all);
}

/* The daemon stops in the middle of a minute and another one counts on in it. */
static void a_restart_within_a_minute_adds_up(void **state)
{
    int64_t wall = 60000000, next;
    struct slo_sample miss = done(500 * MS, 10 * MS, 4);
    json_t *all, *fig;
    int rc;

    (void)state;
    record(done(50 * MS, 10 * MS, 4), T0);
    ok(slo_tick(slo, st, T0 + S, wall + 1000, &e));
    ok(slo_tick(slo, st, T0 + 2 * S, wall + 62000, &e)); /* as chores_end does */
    end(state);
    begin(state);
    record(miss, T0 + 3 * S);
    record(miss, T0 + 3 * S);
    miss.instance = "b"; /* which has no target, and no row yet */
    record(miss, T0 + 3 * S);
    ok(slo_tick(slo, st, T0 + 60 * S, wall + 60000, &e));
    all = history(0, 99999, &rc, &next);
    assert_int_equal(json_array_size(all), 2);
    fig = json_object_get(json_array_get(all, 0), "figures");
    assert_true(num(fig, "requests") == 3 && num(fig, "met") == 1);
    assert_true(num(fig, "tokens") == 12 && num(fig, "good_tokens") == 4);
    assert_true(fabs(num(fig, "attainment") - 1.0 / 3) < 1e-6);
    assert_true(fabs(num(fig, "good_requests_per_s") - 1.0 / 60) < 1e-6);
    assert_true(num(json_object_get(fig, "ttft_ms"), "p50") > 400);
    assert_true(num(fig, "ttft_target_ms") == 100);
    fig = json_object_get(json_array_get(all, 1), "figures");
    assert_true(num(fig, "requests") == 1 && num(fig, "met") == 1);
    json_decref(all);
}

static void old_minutes_go_and_lost_writes_are_made_good(void **state)
{
    int64_t wall = 60000000, next;
    json_t *all;
    int rc;

    (void)state;
    record(done(50 * MS, 10 * MS, 4), T0);
    behind("CREATE TRIGGER no BEFORE INSERT ON slo_minute BEGIN SELECT raise(FAIL, 'no');"
           " END");
    refused(slo_tick(slo, st, T0 + 60 * S, wall + 60000, &e), ERR_IO, "no");
    record(done(50 * MS, 10 * MS, 4), T0 + 60 * S);
    refused(slo_tick(slo, st, T0 + 120 * S, wall + 120000, &e), ERR_IO, "no");
    behind("DROP TRIGGER no");
    ok(slo_tick(slo, st, T0 + 121 * S, wall + 121000, &e));
    all = history(0, 99999, &rc, &next);
    assert_int_equal(json_array_size(all), 2);
    json_decref(all);
    ok(slo_tick(slo, st, T0 + 130 * S, wall + (30ll * 24 * 60 + 1) * 60000, &e));
    all = history(0, 99999, &rc, &next); /* the second one is 30 days old, not more */
    assert_int_equal(json_array_size(all), 1);
    assert_true(num(json_array_get(all, 0), "minute") == 1001);
    json_decref(all);
}

static void a_long_history_goes_on(void **state)
{
    int64_t next = 0, from = 0;
    json_t *all;
    size_t seen = 0;
    int rc;

    (void)state;
    behind("WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c LIMIT 25001)"
           " INSERT INTO slo_minute SELECT i / 2, 'i' || (i % 2), '', 1, '{}' FROM c");
    do {
        all = history(from, 1 << 20, &rc, &next);
        seen += json_array_size(all);
        json_decref(all);
        from = next;
    } while (rc == 1);
    assert_int_equal(seen, 25001);
}

#define SLO(f) cmocka_unit_test_setup_teardown(f, begin, end)
#define STORED(f) cmocka_unit_test_setup_teardown(f, begin_store, end_store)
static const struct CMUnitTest tests[] = {
    SLO(a_target_is_met_at_its_very_value),
    SLO(refused_and_aborted_are_missed_cancels_apart),
    SLO(classes_have_targets_of_their_own),
    SLO(a_new_target_holds_from_then_on),
    SLO(engines_count_for_their_instance),
    SLO(windows_roll),
    SLO(a_young_window_spans_its_age),
    SLO(percentiles_are_near_the_exact_ones),
    SLO(extremes_stay_in_the_histogram),
    SLO(the_guard_sees_what_began_since),
    SLO(series_are_bounded),
    SLO(many_threads_lose_nothing),
    SLO(refused_unread_is_of_the_only_instance),
    SLO(metrics_count_what_was_recorded),
    STORED(minutes_are_stored_and_read),
    STORED(a_restart_within_a_minute_adds_up),
    STORED(old_minutes_go_and_lost_writes_are_made_good),
    STORED(a_long_history_goes_on),
};

TEST_MAIN("slo", tests)

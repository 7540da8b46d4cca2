/* tests/unit/test_metric.c - cells, sharing over a memfd, the scrape text, quantiles. */
#include "tests/test.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/metric.h"

static const char *const colors[] = {"red", "blue", NULL};
static const double bounds[] = {0.5, 1, 2.5};
static const struct metric_def defs[] = {
    {"n:steps", METRIC_COUNTER, "Steps", NULL, NULL, NULL, 0},
    {"n:color", METRIC_GAUGE, "Colours", "color", colors, NULL, 0},
    {"n:time", METRIC_HISTOGRAM, "Times", NULL, NULL, bounds, 3},
    {"n:full", METRIC_SHARE, "Full", NULL, NULL, NULL, 0},
};
enum { STEPS, COLOR, TIME, N_SHOWN, FULL = N_SHOWN, N };

static void renders(void **state)
{
    struct metric_page *p[2];
    struct buf b;
    struct err e;

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(metric_page_new(defs, N, NULL, &p[i], &e), 0);
    metric_add(p[0], STEPS, 0, 2);
    metric_add(p[1], STEPS, 0, 0.5);
    metric_set(p[0], COLOR, 1, 7);
    metric_observe(p[0], TIME, 0.5); /* a bound belongs to its bucket */
    metric_observe(p[0], TIME, 0.6);
    metric_observe(p[1], TIME, 99);
    buf_init(&b, 0);
    metric_render(defs, N_SHOWN, &(struct metric_group){"", "m=\"x\"", p, 2}, 1, &b);
    assert_string_equal(b.p, "# HELP n:steps_total Steps\n"
                             "# TYPE n:steps_total counter\n"
                             "n:steps_total{m=\"x\"} 2.5\n"
                             "# HELP n:color Colours\n"
                             "# TYPE n:color gauge\n"
                             "n:color{m=\"x\",color=\"red\"} 0\n"
                             "n:color{m=\"x\",color=\"blue\"} 7\n"
                             "# HELP n:time Times\n"
                             "# TYPE n:time histogram\n"
                             "n:time_bucket{m=\"x\",le=\"0.5\"} 1\n"
                             "n:time_bucket{m=\"x\",le=\"1.0\"} 2\n"
                             "n:time_bucket{m=\"x\",le=\"2.5\"} 2\n"
                             "n:time_bucket{m=\"x\",le=\"+Inf\"} 3\n"
                             "n:time_sum{m=\"x\"} 100.1\n"
                             "n:time_count{m=\"x\"} 3\n");
    buf_clear(&b);
    metric_render(defs, 2,
                  (struct metric_group[]){
                      {"", "", p, 1}, {"rs", "m=\"y\"", &p[1], 1}, {"ps", "z", p, 1}},
                  3, &b);
    assert_non_null(strstr(b.p, "n:steps_total 2\nn:steps_total{z} 2\n# HELP n:color"));
    assert_non_null(strstr(b.p, "n:color{m=\"y\",color=\"red\"} 0\n"));
    assert_null(strstr(b.p, "n:steps_total{m"));
    assert_non_null(strstr(b.p, "\nn:steps_total 2\n"));
    assert_non_null(strstr(b.p, "\nn:color{color=\"red\"} 0\n"));
    buf_done(&b);
    metric_page_free(p[0]);
    metric_page_free(p[1]);
    metric_page_free(NULL);
}

static void shares(void **state)
{
    struct metric_page *a, *b = NULL;
    struct err e;
    int fd, null;

    (void)state;
    assert_int_equal(metric_page_new(defs, N, &fd, &a, &e), 0);
    assert_int_equal(metric_page_map(defs, N, fd, &b, &e), 0);
    metric_add(b, STEPS, 0, 3);
    metric_observe(b, TIME, 2);
    assert_true(metric_get(a, STEPS, 0) == 3);
    assert_true(metric_get(a, TIME, 0) == 1 && metric_sum(a, TIME) == 2);
    metric_page_free(b);
    b = NULL;
    assert_int_equal(metric_page_map(defs, N - 1, fd, &b, &e), -1);
    assert_int_equal(ftruncate(fd, 1), -1); /* sealed */
    null = open("/dev/null", O_RDWR);
    assert_int_equal(metric_page_map(defs, N, null, &b, &e), -1);
    assert_null(b);
    close(null);
    close(fd);
    metric_page_free(a);
}

/* Counts of one page become part of another's, or are set back; gauges stay. */
static void folds(void **state)
{
    struct metric_page *p[2];
    struct err e;

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(metric_page_new(defs, N, NULL, &p[i], &e), 0);
        metric_add(p[i], STEPS, 0, 2 + i);
        metric_set(p[i], COLOR, 0, 4 + i);
        metric_set(p[i], FULL, 0, 0.75 - 0.5 * i);
        metric_observe(p[i], TIME, 2);
    }
    assert_true(metric_total(p, 2, STEPS, 0) == 5);
    assert_true(metric_total(p, 2, COLOR, 0) == 9);
    assert_true(metric_total(p, 2, FULL, 0) == 0.75);
    metric_page_fold(p[0], p[1]);
    assert_true(metric_get(p[0], STEPS, 0) == 5 && metric_get(p[0], COLOR, 0) == 4);
    assert_true(metric_get(p[0], FULL, 0) == 0.75);
    assert_true(metric_get(p[0], TIME, 0) == 2 && metric_sum(p[0], TIME) == 4);
    metric_page_recall(p[0], p[1]);
    assert_true(metric_get(p[0], STEPS, 0) == 3 && metric_get(p[0], COLOR, 0) == 4);
    assert_true(metric_get(p[0], TIME, 0) == 1 && metric_sum(p[0], TIME) == 2);
    metric_page_free(p[0]);
    metric_page_free(p[1]);
}

static void *add_many(void *arg)
{
    for (int i = 0; i < 10000; i++) {
        metric_add(arg, STEPS, 0, 1);
        metric_observe(arg, TIME, 1);
    }
    return NULL;
}

static void adds_from_threads(void **state)
{
    struct metric_page *p;
    pthread_t t[4];
    struct err e;

    (void)state;
    assert_int_equal(metric_page_new(defs, N, NULL, &p, &e), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, add_many, p), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    assert_true(metric_get(p, STEPS, 0) == 40000);
    assert_true(metric_get(p, TIME, 0) == 40000);
    assert_true(metric_sum(p, TIME) == 40000);
    metric_page_free(p);
}

static void quantiles(void **state)
{
    struct metric_page *p;
    struct err e;

    (void)state;
    assert_int_equal(metric_page_new(defs, N, NULL, &p, &e), 0);
    assert_true(isnan(metric_quantile(p, TIME, 0.5)));
    for (int i = 0; i < 4; i++)
        metric_observe(p, TIME, 0.7);
    assert_true(metric_quantile(p, TIME, 0.5) == 0.75);
    assert_true(metric_quantile(p, TIME, 1) == 1);
    for (int i = 0; i < 40; i++)
        metric_observe(p, TIME, 77);
    assert_true(metric_quantile(p, TIME, 0.99) == 2.5);
    metric_page_free(p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(renders),   cmocka_unit_test(shares),
    cmocka_unit_test(folds),     cmocka_unit_test(adds_from_threads),
    cmocka_unit_test(quantiles),
};

TEST_MAIN("metric", tests)

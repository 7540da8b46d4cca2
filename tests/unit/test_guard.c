/* tests/unit/test_guard.c - the guard's verdicts and the list of alarms. */
#include "tests/test.h"

#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/guard.h"

static enum guard_verdict judge(int64_t n0, int64_t met0, int64_t err0, int64_t n1,
                                int64_t met1, int64_t err1, char *s)
{
    struct guard_window a = {n0, met0, err0, true}, b = {n1, met1, err1, true};

    return guard_judge(&a, &b, 50, 0.95, s);
}

static void same_is_good(void **state)
{
    char s[256];

    (void)state;
    assert_int_equal(judge(1000, 950, 5, 1000, 950, 5, s), GUARD_GOOD);
    assert_int_equal(judge(1000, 1000, 0, 1000, 1000, 0, s), GUARD_GOOD);
    assert_int_equal(judge(1000, 0, 1000, 1000, 0, 1000, s), GUARD_GOOD);
    assert_int_equal(judge(1000, 500, 100, 1000, 990, 0, s), GUARD_GOOD); /* better */
    assert_non_null(strstr(s, "attainment 99.00 % (before 50.00 %)"));
}

/* The published interval: 56/70 and 48/80 differ by 0.2, from 0.0524 to 0.3339
 * (Newcombe 1998, table II, contrast a, method 10). Only the lower end decides. */
static void interval_decides(void **state)
{
    struct guard_window a = {70, 56, 0, true}, b = {80, 48, 0, true};
    char s[256];

    (void)state;
    assert_int_equal(guard_judge(&a, &b, 50, 0.95, s), GUARD_WORSE);
    assert_int_equal(guard_judge(&a, &b, 50, 0.999, s), GUARD_GOOD);
    /* just inside and just outside at n = 100: 95 % before */
    assert_int_equal(judge(100, 95, 0, 100, 88, 0, s), GUARD_GOOD);
    assert_int_equal(judge(100, 95, 0, 100, 85, 0, s), GUARD_WORSE);
    /* the same shares with ten times the requests are no noise */
    assert_int_equal(judge(1000, 950, 0, 1000, 880, 0, s), GUARD_WORSE);
    assert_string_equal(s, "SLO attainment fell from 95.00 % to 88.00 % (1000 and 1000 "
                           "requests)");
}

static void errors_decide(void **state)
{
    char s[256];

    (void)state;
    assert_int_equal(judge(200, 200, 0, 200, 200, 1, s), GUARD_GOOD);
    assert_int_equal(judge(200, 200, 0, 200, 180, 20, s), GUARD_WORSE);
    assert_non_null(strstr(s, "error rate rose from 0.00 % to 10.00 %"));
}

static void few_requests(void **state)
{
    char s[256];

    (void)state;
    assert_int_equal(judge(1000, 1000, 0, 12, 0, 12, s), GUARD_INSUFFICIENT);
    assert_string_equal(s, "insufficient data (12 of 50 requests since)");
    assert_int_equal(judge(49, 49, 0, 1000, 0, 0, s), GUARD_INSUFFICIENT);
    assert_string_equal(s, "insufficient data (49 of 50 requests before)");
    assert_int_equal(judge(50, 50, 0, 50, 50, 0, s), GUARD_GOOD);
}

/* Readiness needs no requests; what was not ready before is not held against it. */
static void readiness(void **state)
{
    struct guard_window a = {0, 0, 0, true}, b = {0, 0, 0, false};
    char s[256];

    (void)state;
    assert_int_equal(guard_judge(&a, &b, 50, 0.95, s), GUARD_WORSE);
    assert_non_null(strstr(s, "readiness was lost"));
    a.ready = false;
    assert_int_equal(guard_judge(&a, &b, 50, 0.95, s), GUARD_INSUFFICIENT);
    assert_int_equal(guard_judge(&b, &b, 0, 0.95, s), GUARD_INSUFFICIENT); /* no 0/0 */
}

/* With the same service on both sides a wrong breach is rare: 2.5 % of looks at 95 %. */
static void noise_is_let_through(void **state)
{
    uint64_t seed = test_seed();
    int worse = 0;
    char s[256];

    (void)state;
    for (int run = 0; run < 4000; run++) {
        int64_t met[2] = {0, 0};

        for (int i = 0; i < 400; i++)
            met[i & 1] += test_rand(&seed) % 100 < 90;
        worse += judge(200, met[0], 0, 200, met[1], 0, s) == GUARD_WORSE;
    }
    assert_in_range(worse, 1, 200); /* 100 expected */
}

/* ---- alarms ---- */

struct seen {
    int n;
    struct alarm_status last;
};

static void on_change(void *arg, const struct alarm_status *a)
{
    struct seen *s = arg;

    s->n++;
    s->last = *a;
}

static void raise_and_clear(void **state)
{
    struct seen seen = {0};
    struct alarms *a = alarms_new(on_change, &seen);
    struct alarm_status list[8];

    (void)state;
    alarm_clear(a, "nothing");
    assert_int_equal(seen.n, 0);
    alarm_raise(a, "rack.finding gpu3", ALARM_WARNING, "a link is narrow");
    alarm_raise(a, "instance.failed main", ALARM_MAJOR, "it ended");
    alarm_raise(a, "instance.failed main", ALARM_MAJOR, "it ended twice");
    assert_int_equal(seen.n, 2); /* a new text is no news */
    alarm_raise(a, "config.rescue", ALARM_CRITICAL, "rescue");
    assert_int_equal(alarms_list(a, list, 8), 3);
    assert_string_equal(list[0].id, "config.rescue");
    assert_string_equal(list[1].text, "it ended twice");
    assert_int_equal(list[2].severity, ALARM_WARNING);
    alarm_raise(a, "rack.finding gpu3", ALARM_CRITICAL, "a link is down");
    assert_int_equal(seen.n, 4);
    alarm_clear(a, "instance.failed main");
    assert_int_equal(seen.n, 5);
    assert_true(seen.last.ended_ms > 0);
    assert_int_equal(alarms_list(a, list, 8), 3);
    assert_string_equal(list[2].id, "instance.failed main");
    assert_true(list[2].ended_ms > 0 && list[0].ended_ms == 0);
    assert_int_equal(alarms_list(a, list, 1), 1);
    alarm_engine(a, ALARM_ENGINE_SILENT, "main:2", "no sign of life");
    alarm_engine(a, ALARM_ENGINE_KV_DISK, "main:2", "the disk is full");
    assert_int_equal(alarms_list(a, list, 8), 5);
    assert_string_equal(list[2].id, "instance.silent main:2");
    assert_int_equal(list[2].severity, ALARM_MAJOR);
    assert_string_equal(list[3].id, "kv.disk main:2");
    assert_int_equal(list[3].severity, ALARM_WARNING);
    alarm_engine(a, ALARM_ENGINE_SILENT, "main:2", NULL);
    alarm_engine(a, ALARM_ENGINE_FAILED, "main:2", NULL); /* it was not */
    assert_int_equal(alarms_list(a, list, 8), 5);
    assert_string_equal(list[2].id, "kv.disk main:2");
    assert_true(list[3].ended_ms > 0);
    assert_int_equal(alarm_engine_named("kv.disk"), ALARM_ENGINE_KV_DISK);
    assert_int_equal(alarm_engine_named("kv"), ALARM_ENGINE_COUNT);
    alarms_free(a);
    alarms_free(NULL);
}

static void many(void **state)
{
    struct alarms *a = alarms_new(NULL, NULL);
    struct alarm_status *list = calloc(2048, sizeof(*list));
    char id[32];

    (void)state;
    for (int i = 0; i < 1500; i++) {
        snprintf(id, sizeof(id), "x %d", i);
        alarm_raise(a, id, ALARM_MAJOR, "");
    }
    assert_int_equal(alarms_list(a, list, 2048), 1024);
    for (int i = 0; i < 1500; i++) {
        snprintf(id, sizeof(id), "x %d", i);
        alarm_clear(a, id);
    }
    assert_int_equal(alarms_list(a, list, 2048), 64);
    assert_string_equal(list[0].id, "x 1023"); /* the last ended first */
    free(list);
    alarms_free(a);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(same_is_good),    cmocka_unit_test(interval_decides),
    cmocka_unit_test(errors_decide),   cmocka_unit_test(few_requests),
    cmocka_unit_test(readiness),       cmocka_unit_test(noise_is_let_through),
    cmocka_unit_test(raise_and_clear), cmocka_unit_test(many),
};

TEST_MAIN("guard", tests)

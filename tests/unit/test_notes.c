/* tests/unit/test_notes.c - the small tables: keys, operator's words, cordons, measured
 * links, plans, SLO minutes. */
#include "tests/store_help.h"

#include "state/apikey.h"
#include "state/racknotes.h"
#include "state/series.h"

static void keys_are_kept_and_revoked(void **state)
{
    struct apikey_row k = {.id = "ab12cd34ef56",
                           .name = "ops",
                           .scopes = "infer,read",
                           .made_ms = 5,
                           .expires_ms = 9,
                           .req_per_min = 1,
                           .tok_per_min = 2,
                           .streams = 3};
    struct apikey_row got[2];

    (void)state;
    for (int i = 0; i < 32; i++)
        k.hash[i] = (uint8_t)(i * 9);
    ok(apikey_put(st, &k, &e));
    refused(apikey_put(st, &k, &e), ERR_CONFLICT, "ab12cd34ef56");
    reopen();
    assert_int_equal(apikey_list(st, got, 2, &e), 1);
    assert_memory_equal(&got[0], &k, sizeof(k));
    ok(apikey_revoke(st, k.id, 77, &e));
    ok(apikey_revoke(st, k.id, 88, &e)); /* the first time stays */
    assert_int_equal(apikey_list(st, got, 2, &e), 1);
    assert_int_equal(got[0].revoked_ms, 77);
    refused(apikey_revoke(st, "none", 1, &e), ERR_NOTFOUND, "none");
    behind("UPDATE api_key SET hash = x'00'");
    refused(apikey_list(st, got, 2, &e), ERR_CORRUPT, "ab12cd34ef56");
}

static void keys_are_bounded(void **state)
{
    struct apikey_row *got = calloc(APIKEY_MAX + 1, sizeof(*got));
    struct apikey_row k = {.name = "n"};

    (void)state;
    behind("WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c LIMIT 1023)"
           " INSERT INTO api_key SELECT 'k' || i, zeroblob(32), '', '', i, 0, 0, 0, 0, 0"
           " FROM c");
    snprintf(k.id, sizeof(k.id), "last");
    ok(apikey_put(st, &k, &e));
    snprintf(k.id, sizeof(k.id), "more");
    refused(apikey_put(st, &k, &e), ERR_CONFLICT, "1024");
    ok(apikey_revoke(st, "k5", 2, &e));
    ok(apikey_revoke(st, "k4", 3, &e));
    ok(apikey_put(st, &k, &e)); /* the longest revoked one makes room */
    assert_int_equal(apikey_list(st, got, APIKEY_MAX + 1, &e), APIKEY_MAX);
    for (int i = 0; i < APIKEY_MAX; i++)
        assert_string_not_equal(got[i].id, "k5");
    free(got);
}

static void an_operators_word_outlives(void **state)
{
    struct admin_row a = {"main", "draining", "fan", "uid 0", 4}, got[2];

    (void)state;
    ok(admin_put(st, &a, &e));
    snprintf(a.state, sizeof(a.state), "stopped");
    ok(admin_put(st, &a, &e));
    reopen();
    assert_int_equal(admin_list(st, got, 2, &e), 1);
    assert_string_equal(got[0].state, "stopped");
    assert_string_equal(got[0].reason, "fan");
    assert_int_equal(got[0].at_ms, 4);
    a.state[0] = '\0';
    ok(admin_put(st, &a, &e));
    assert_int_equal(admin_list(st, got, 2, &e), 0);
}

static void cordons_come_and_go(void **state)
{
    struct cordon_row c = {"0000:1b:00.0", "ECC", "uid 0", 7}, got[2];

    (void)state;
    ok(cordon_put(st, &c, &e));
    snprintf(c.reason, sizeof(c.reason), "fan");
    ok(cordon_put(st, &c, &e));
    assert_int_equal(cordon_list(st, got, 2, &e), 1);
    assert_string_equal(got[0].reason, "fan");
    assert_string_equal(got[0].device, c.device);
    assert_int_equal(cordon_remove(st, c.device, &e), 1);
    assert_int_equal(cordon_remove(st, c.device, &e), 0);
    assert_int_equal(cordon_list(st, got, 2, &e), 0);
}

static void measurements_replace_pairs(void **state)
{
    struct measurement_row m[2] = {{"a", "b", 1, 1e9, 0.1, 1e-6},
                                   {"a", "c", 1, 2e9, 0.2, 2e-6}};
    struct measurement_row got[4];

    (void)state;
    ok(measurement_put(st, "rack1", m, 2, &e));
    m[1].bytes_per_s = 3e9;
    ok(measurement_put(st, "rack1", &m[1], 1, &e));
    ok(measurement_put(st, "rack2", &m[1], 1, &e));
    assert_int_equal(measurement_list(st, "rack1", got, 4, &e), 2);
    assert_true(got[0].bytes_per_s == 1e9 && got[0].latency_s == 1e-6);
    assert_true(got[1].bytes_per_s == 3e9 && got[1].spread == 0.2);
    assert_int_equal(measurement_list(st, "rack3", got, 4, &e), 0);
}

static void the_last_plans_are_kept(void **state)
{
    struct plan_row p = {.at_ms = 3, .model = "m", .rack = "r"}, got, list[300];

    (void)state;
    p.request = (char *)"{\"q\":1}";
    p.result = (char *)"{\"a\":1}";
    for (int i = 0; i < 258; i++)
        ok(plan_put(st, &p, &e));
    assert_int_equal(p.id, 258);
    assert_int_equal(plan_list(st, list, 300, &e), 256);
    assert_int_equal(list[0].id, 258);
    assert_null(list[0].result);
    ok(plan_get(st, 3, &got, &e));
    assert_string_equal(got.result, "{\"a\":1}");
    assert_string_equal(got.rack, "r");
    plan_row_done(&got);
    refused(plan_get(st, 2, &got, &e), ERR_NOTFOUND, "no plan 2");
}

static int count(void *arg, const struct series_row *r)
{
    char *seen = arg;

    snprintf(seen + strlen(seen), 200 - strlen(seen), "%lld%s%s%s;", (long long)r->minute,
             r->instance, r->slo_class, r->json);
    return strlen(seen) < 20;
}

static void minutes_are_read_in_order(void **state)
{
    struct series_row r[] = {{12, "b", "", 1, (char *)"x"},
                             {11, "a", "fast", 1, (char *)"y"},
                             {11, "a", "", 1, (char *)"z"},
                             {13, "c", "", 2, (char *)"w"}};
    char seen[200] = "";

    (void)state;
    ok(series_put(st, r, 0, &e));
    ok(series_put(st, r, 4, &e));
    r[0].json = (char *)"v";
    ok(series_put(st, r, 1, &e)); /* replaces */
    ok(series_read(st, 11, 13, count, seen, &e));
    assert_string_equal(seen, "11az;11afasty;12bv;");
    ok(series_prune(st, 12, &e));
    seen[0] = '\0';
    ok(series_read(st, 0, 99, count, seen, &e));
    assert_string_equal(seen, "12bv;13cw;");
}

static const struct CMUnitTest tests[] = {
    WITH_STORE(keys_are_kept_and_revoked),  WITH_STORE(keys_are_bounded),
    WITH_STORE(an_operators_word_outlives), WITH_STORE(cordons_come_and_go),
    WITH_STORE(measurements_replace_pairs), WITH_STORE(the_last_plans_are_kept),
    WITH_STORE(minutes_are_read_in_order),
};

TEST_MAIN("notes", tests)

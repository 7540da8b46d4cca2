/* tests/unit/test_contract.c - which load runs may be compared. */
#include "tests/test.h"

#include "base/err.h"
#include "base/contract.h"

static const char base[] =
    "{\"served\":{\"instance\":\"a\",\"model_hash\":\"11\",\"precision\":\"Q4_1\","
    "\"mode\":\"chunked\",\"layout\":\"tp1\",\"devices\":2,\"topology\":\"t\","
    "\"build\":\"1\",\"revision\":3,\"generation\":1,\"kv_type\":\"BF16\"},"
    "\"work\":{\"arrival\":\"poisson\",\"seed\":1,\"in\":\"128\",\"burst\":1.0},"
    "\"sampling\":{\"temperature\":0.0},\"slo\":{\"ttft_ms\":200,\"target\":0.9},"
    "\"quality\":null}";

static json_t *parsed(const char *text)
{
    json_t *o = NULL;
    struct err e;

    if (js_parse(text, strlen(text), &(struct js_limits){0, 8}, &o, &e) < 0)
        fail_msg("%s", e.msg);
    return o;
}

/* Sets "a.b" of the contract to a JSON value; NULL takes it away. */
static json_t *with(const char *path, const char *value)
{
    json_t *o = parsed(base), *at = o;
    char key[64];
    const char *dot = strchr(path, '.');

    if (dot) {
        snprintf(key, sizeof(key), "%.*s", (int)(dot - path), path);
        at = json_object_get(o, key);
        path = dot + 1;
    }
    if (value)
        json_object_set_new(at, path, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(at, path);
    return o;
}

static int against_base(json_t *o, size_t *ret_shown, struct err *e)
{
    json_t *a = parsed(base), *shown = NULL;
    int rc = contract_compare(a, o, &shown, e), back;
    json_t *shown2 = NULL;
    struct err e2;

    back = contract_compare(o, a, &shown2, &e2);
    assert_int_equal(rc, back); /* it does not matter which is first */
    *ret_shown = json_array_size(shown);
    json_decref(shown);
    json_decref(shown2);
    json_decref(a);
    json_decref(o);
    return rc;
}

static void test_equal(void **state)
{
    struct err e;
    size_t n;

    (void)state;
    assert_int_equal(against_base(parsed(base), &n, &e), 0);
    assert_int_equal(n, 0);
    assert_int_equal(against_base(with("work.burst", "1"), &n, &e), 0); /* 1 and 1.0 */
    assert_int_equal(against_base(with("quality", NULL), &n, &e), 0);
    assert_int_equal(n, 0);
}

static void test_refused_by_name(void **state)
{
    static const char *const fields[][2] = {
        {"served.model_hash", "\"22\""},
        {"served.precision", "\"Q8_0\""},
        {"served.kv_type", "\"F16\""},
        {"served.topology", "\"u\""},
        {"work.arrival", "\"bursty\""},
        {"work.seed", "2"},
        {"work.in", NULL},
        {"work.trace", "\"abc\""},
        {"sampling.temperature", "0.5"},
        {"slo.ttft_ms", "201"},
        {"slo.target", "0.99"},
        {"quality", "\"q7\""},
        {"served.new_thing", "1"},
    };
    struct err e;
    size_t n;

    (void)state;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        assert_int_equal(against_base(with(fields[i][0], fields[i][1]), &n, &e), -1);
        assert_int_equal(e.code, ERR_CONFLICT);
        assert_string_equal(e.param, fields[i][0]);
        assert_non_null(strstr(e.msg, fields[i][0]));
    }
}

static void test_compared_things_are_shown(void **state)
{
    static const char *const fields[][2] = {
        {"served.instance", "\"b\""}, {"served.mode", "\"split\""},
        {"served.layout", "\"tp2\""}, {"served.devices", "4"},
        {"served.build", "\"2\""},    {"served.revision", "4"},
        {"served.generation", "9"},
    };
    struct err e;
    size_t n;

    (void)state;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        assert_int_equal(against_base(with(fields[i][0], fields[i][1]), &n, &e), 0);
        assert_int_equal(n, 1);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_equal),
    cmocka_unit_test(test_refused_by_name),
    cmocka_unit_test(test_compared_things_are_shown),
};
TEST_MAIN("contract", tests)

/* tests/unit/test_json.c - what the reader refuses, and that the writer's text is what a
 * reader takes back. */
#include "tests/test.h"

#include <math.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

static const struct js_limits lim = {1000, 4};

static int parse(const char *s, json_t **ret, struct err *e)
{
    return js_parse(s, strlen(s), &lim, ret, e);
}

static void refuses(void **state)
{
    static const struct {
        const char *text;
        enum err_code code;
    } rows[] = {
        {"", ERR_SYNTAX},
        {"{\"a\":1,\"a\":2}", ERR_SYNTAX},
        {"{\"a\":1} x", ERR_SYNTAX},
        {"[1,]", ERR_SYNTAX},
        {"{'a':1}", ERR_SYNTAX},
        {"[[[[[1]]]]]", ERR_SYNTAX},
        {"[\"\\ud800\"]", ERR_SYNTAX},
        {"[\"\\udc00\"]", ERR_SYNTAX},
        {"[\"\\ud800\\u0041\"]", ERR_SYNTAX},
        {"[\"\xff\"]", ERR_SYNTAX},
        {"[\"\xed\xa0\x80\"]", ERR_SYNTAX},
        {"[1e999]", ERR_SYNTAX},
        {"[99999999999999999999]", ERR_SYNTAX},
        {"[NaN]", ERR_SYNTAX},
        {"[\"a", ERR_SYNTAX},
        {"[\"a\\", ERR_SYNTAX},
    };
    char big[1200];
    json_t *v = NULL;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(parse(rows[i].text, &v, &e), -1);
        assert_int_equal(e.code, rows[i].code);
        assert_null(v);
    }
    memset(big, ' ', sizeof(big));
    assert_int_equal(js_parse(big, sizeof(big), &lim, &v, &e), -1);
    assert_int_equal(e.code, ERR_TOOBIG);
}

static void accepts(void **state)
{
    const char *s = NULL;
    size_t n = 0;
    json_t *v;
    struct err e;

    (void)state;
    assert_int_equal(parse("{\"a\":[[[]]],\"b\":\"[[[[[\\\"[\"}", &v, &e), 0);
    json_decref(v);
    assert_int_equal(parse("7", &v, &e), 0);
    json_decref(v);
    assert_int_equal(parse("{\"s\":\"x\\u0000y\"}", &v, &e), 0);
    assert_int_equal(js_get_str(v, "s", &s, &n, &e), 1);
    assert_int_equal(n, 3);
    assert_int_equal(js_get_str(v, "s", &s, NULL, &e), -1);
    assert_string_equal(e.param, "s");
    json_decref(v);
}

static void getters(void **state)
{
    int64_t i = -1;
    double d = -1;
    bool b = true;
    const char *s = "old";
    json_t *v;
    struct err e;

    (void)state;
    assert_int_equal(
        parse("{\"i\":5,\"d\":0.5,\"b\":false,\"s\":\"t\",\"z\":null}", &v, &e), 0);
    assert_int_equal(js_get_int(v, "i", 0, 5, &i, &e), 1);
    assert_int_equal(i, 5);
    assert_int_equal(js_get_int(v, "i", 0, 4, &i, &e), -1);
    assert_int_equal(e.code, ERR_RANGE);
    assert_string_equal(e.param, "i");
    assert_int_equal(js_get_int(v, "d", 0, 4, &i, &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    assert_int_equal(js_get_int(v, "z", 0, 4, &i, &e), 0);
    assert_int_equal(js_get_int(v, "none", 0, 4, &i, &e), 0);
    assert_int_equal(i, 5);
    assert_int_equal(js_get_num(v, "d", 0, 1, &d, &e), 1);
    assert_true(d == 0.5);
    assert_int_equal(js_get_num(v, "i", 0, 10, &d, &e), 1);
    assert_true(d == 5);
    assert_int_equal(js_get_num(v, "i", 0, 1, &d, &e), -1);
    assert_int_equal(js_get_num(v, "s", 0, 1, &d, &e), -1);
    assert_int_equal(js_get_bool(v, "b", &b, &e), 1);
    assert_false(b);
    assert_int_equal(js_get_bool(v, "i", &b, &e), -1);
    assert_int_equal(js_get_str(v, "s", &s, NULL, &e), 1);
    assert_string_equal(s, "t");
    assert_int_equal(js_get_str(v, "b", &s, NULL, &e), -1);
    json_decref(v);
}

static void writes(void **state)
{
    struct buf b;
    struct jw w;

    (void)state;
    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstr(&w, "a\"", "x\n\t\\\x01\x7f");
    jw_kint(&w, "i", INT64_MIN);
    jw_knum(&w, "d", 0.1);
    jw_knum(&w, "n", NAN);
    jw_kbool(&w, "t", true);
    jw_knull(&w, "z");
    jw_key(&w, "l");
    jw_arr(&w);
    jw_obj(&w);
    jw_obj_end(&w);
    jw_arr(&w);
    jw_arr_end(&w);
    jw_num(&w, 3);
    jw_str(&w, NULL);
    jw_raw(&w, "{\"r\":1}");
    jw_arr_end(&w);
    jw_kstr(&w, "bad", "\xff\xe2\x82x\xed\xa0\x80\xf0\x9f\x98\x80");
    jw_obj_end(&w);
    assert_string_equal(
        b.p, "{\"a\\\"\":\"x\\n\\t\\\\\\u0001\\u007f\",\"i\":-9223372036854775808,"
             "\"d\":0.1,\"n\":null,\"t\":true,\"z\":null,"
             "\"l\":[{},[],3,null,{\"r\":1}],"
             "\"bad\":\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDx\xEF\xBF\xBD\xEF\xBF\xBD"
             "\xEF\xBF\xBD\xf0\x9f\x98\x80\"}");
    buf_done(&b);
}

/* Random bytes in a string always come out as JSON that a strict reader takes. */
static void writes_any_bytes(void **state)
{
    uint64_t seed = test_seed();

    (void)state;
    for (int round = 0; round < 2000; round++) {
        char raw[40];
        size_t n = test_rand(&seed) % sizeof(raw);
        double d = (double)(int64_t)test_rand(&seed) / 1e9;
        struct buf b;
        struct jw w;
        json_t *v = NULL;
        struct err e;

        for (size_t i = 0; i < n; i++)
            raw[i] = (char)test_rand(&seed);
        buf_init(&b, 0);
        jw_init(&w, &b);
        jw_arr(&w);
        jw_strn(&w, raw, n);
        jw_num(&w, d);
        jw_arr_end(&w);
        assert_int_equal(js_parse(b.p, b.len, &lim, &v, &e), 0);
        assert_true(json_number_value(json_array_get(v, 1)) == d);
        json_decref(v);
        buf_done(&b);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(refuses),          cmocka_unit_test(accepts),
    cmocka_unit_test(getters),          cmocka_unit_test(writes),
    cmocka_unit_test(writes_any_bytes),
};

TEST_MAIN("json", tests)

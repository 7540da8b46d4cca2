/* tests/unit/test_ctl.c - verbs are matched, completed and listed from one table; replies
 * become tables that fit. */
#include "tests/test.h"

#include "base/buf.h"
#include "base/err.h"
#include "ctl/show.c"
#include "ctl/verb.c"

static void test_verb_prefix(void **state)
{
    const char *rest;
    struct err e = {0};

    (void)state;
    assert_int_equal(verb_match("show status", &rest, &e)->id, VERB_SHOW_STATUS);
    assert_int_equal(verb_match("sh st", &rest, &e)->id, VERB_SHOW_STATUS);
    assert_int_equal(verb_match("  s  req ", &rest, &e)->id, VERB_SHOW_REQUESTS);
    assert_int_equal(verb_match("ch hello there", &rest, &e)->id, VERB_CHAT);
    assert_string_equal(rest, "hello there");
}

static void test_verb_refused(void **state)
{
    const char *rest;
    struct err e = {0};

    (void)state;
    assert_null(verb_match("show m", &rest, &e));
    assert_string_equal(e.msg, "'show m' may mean 'show models', 'show metrics'");
    assert_null(verb_match("frobnicate", &rest, &e));
    assert_non_null(strstr(e.msg, "frobnicate"));
    assert_null(verb_match("show status now", &rest, &e));
    assert_non_null(strstr(e.msg, "takes no argument"));
    assert_null(verb_match("show", &rest, &e));
    assert_null(verb_match("", &rest, &e));
}

static void test_verb_completion(void **state)
{
    char w[64];

    (void)state;
    assert_string_equal(verb_complete("", "sh", 0, w, sizeof(w)), "show");
    assert_null(verb_complete("", "sh", 1, w, sizeof(w)));
    assert_string_equal(verb_complete("show ", "m", 0, w, sizeof(w)), "models");
    assert_string_equal(verb_complete("sh ", "m", 1, w, sizeof(w)), "metrics");
    assert_null(verb_complete("show ", "m", 2, w, sizeof(w)));
    assert_null(verb_complete("nothing ", "", 0, w, sizeof(w)));
}

static void test_show_table(void **state)
{
    static const char reply[] =
        "{\"up\":3661,\"none\":null,\"rows\":[{\"n\":\"a\\u001b[31m\",\"b\":98362432},"
        "{\"n\":\"bb\",\"b\":null}]}";
    struct buf out;
    struct err e = {0};

    (void)state;
    buf_init(&out, 0);
    assert_int_equal(show_render(reply, strlen(reply),
                                 "{up=up:s,none=none};rows{NAME=n,SIZE=b:bytes,NO=x}", 80,
                                 &out, &e),
                     0);
    assert_string_equal(out.p, "up  1h 01m 01s\n\nNAME        SIZE\n"
                               "a?[31m  93.8 MiB\nbb             -\n");
    buf_done(&out);
}

static void test_show_fits_width(void **state)
{
    static const char reply[] =
        "{\"r\":[{\"a\":\"0123456789012345678901234567890123456789\","
        "\"b\":\"kept\"}]}";
    struct buf out;
    struct err e = {0};
    size_t longest = 0;

    (void)state;
    buf_init(&out, 0);
    assert_int_equal(show_render(reply, strlen(reply), "r{A=a,B=b}", 30, &out, &e), 0);
    for (char *p = strtok(out.p, "\n"); p; p = strtok(NULL, "\n"))
        longest = strlen(p) > longest ? strlen(p) : longest;
    assert_int_equal(longest, 30);
    buf_done(&out);
}

static void test_show_bad_reply(void **state)
{
    struct buf out;
    struct err e = {0};

    (void)state;
    buf_init(&out, 0);
    assert_int_equal(show_render("{\"a\":", 5, "{a=a}", 80, &out, &e), -1);
    assert_non_null(strstr(e.msg, "the daemon's answer"));
    buf_done(&out);
}

static void test_show_clean(void **state)
{
    char s[] = "a\x1b[1m\r\n\tb\x7f \xc2\x9b"
               "31m \xc3\xa9\xc2\xa0\xc2";

    (void)state;
    show_clean(s, "\n\t");
    assert_string_equal(s, "a?[1m?\n\tb? ??31m \xc3\xa9\xc2\xa0\xc2");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_verb_prefix),     cmocka_unit_test(test_verb_refused),
    cmocka_unit_test(test_verb_completion), cmocka_unit_test(test_show_table),
    cmocka_unit_test(test_show_fits_width), cmocka_unit_test(test_show_bad_reply),
    cmocka_unit_test(test_show_clean),
};
TEST_MAIN("ctl", tests)

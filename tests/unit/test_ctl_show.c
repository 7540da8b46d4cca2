/* tests/unit/test_ctl_show.c - replies become lines and tables that fit the terminal. */
#include "tests/test.h"

#include "base/buf.h"
#include "base/err.h"
#include "ctl/show.c"
#include "ctl/table.c"

static char *shown(const char *reply, const char *view, int width, bool colour)
{
    struct show_style st = {.width = width, .colour = colour};
    struct err e = {0};
    struct buf out;

    buf_init(&out, 0);
    if (show_render(reply, strlen(reply), view, &st, &out, &e) < 0)
        fail_msg("%s", e.msg);
    buf_puts(&out, "");
    return buf_take(&out);
}

static void shows(const char *reply, const char *view, int width, const char *want)
{
    char *text = shown(reply, view, width, false);

    assert_string_equal(text, want);
    free(text);
}

static void test_fields_and_table(void **state)
{
    (void)state;
    shows("{\"up\":3661,\"none\":null,\"rows\":[{\"n\":\"a\\u001b[31m\",\"b\":98362432},"
          "{\"n\":\"bb\",\"b\":null}]}",
          "{up=up:s,none=none};rows{NAME=n,SIZE=b:bytes,NO=x}", 80,
          "up  1h 01m 01s\n\nNAME        SIZE\n"
          "a?[31m  93.8 MiB\nbb             -\n");
}

static void test_formats(void **state)
{
    (void)state;
    shows("{\"a\":0.5,\"b\":1234567,\"c\":2.5,\"d\":90000,\"e\":true,\"f\":false,"
          "\"g\":[\"x\",\"y\"],\"h\":-1}",
          "{a=a:pct,b=b:count,c=c:ms,d=d:s,e=e:on,f=f:on,g=g,h=h:ms}", 80,
          "a  50.0 %\nb  1.2M\nc  2.50 ms\nd  1d 01h\ne  yes\ng  x, y\n");
}

static void test_sections(void **state)
{
    (void)state;
    shows("{\"r\":[],\"q\":[]}", "r?{A=a};q{A=a}", 80, "no q\n");
    shows("{\"text\":\"a\\tb\\u0007\\nc\"}", "@text", 80, "a\tb?\nc\n");
    shows("{\"revision\":7,\"state\":\"confirmed\"}", "=revision {revision} is {state}",
          80, "revision 7 is confirmed\n");
    shows("{\"a\":1,\"o\":{\"p\":{\"q\":\"x\"}},\"t\":[{\"m_n\":2}]}", "@rest", 80,
          "NAME   VALUE\na      1\no.p.q  x\n\nM N\n  2\n");
}

static int longest(char *text)
{
    int most = 0;

    for (char *p = strtok(text, "\n"); p; p = strtok(NULL, "\n"))
        most = text_columns(p) > most ? text_columns(p) : most;
    return most;
}

static void test_a_text_gives_way(void **state)
{
    static const char reply[] =
        "{\"r\":[{\"a\":\"0123456789012345678901234567890123456789\","
        "\"b\":\"kept\",\"c\":1234567890}]}";
    char *text = shown(reply, "r{A=a,B=b,C=c}", 40, false);

    (void)state;
    assert_non_null(strstr(text, "~  kept  1234567890\n"));
    assert_int_equal(longest(text), 40);
    free(text);
}

static void test_columns_are_left_out(void **state)
{
    static const char reply[] =
        "{\"r\":[{\"a\":\"name\",\"b\":1234567890,\"c\":1234567890,"
        "\"d\":1234567890}]}";

    (void)state;
    shows(
        reply, "r{A=a,B=b,C=c,D=d}", 30,
        "A              B           C\nname  1234567890  1234567890\n(no room for D)\n");
}

static void test_folding(void **state)
{
    static const char reply[] =
        "{\"r\":[{\"a\":\"x\",\"b\":\"the quick brown fox jumps over the lazy dog\"}]}";

    (void)state;
    shows(reply, "r{A=a,B=b:wrap}", 25,
          "A  B\nx  the quick brown fox\n   jumps over the lazy\n   dog\n");
}

/* No width makes a line longer than it. */
static void test_every_width(void **state)
{
    static const char reply[] = "{\"r\":[{\"a\":\"instance-one\",\"b\":\"a rather long "
                                "model name\",\"s\":\"ready\","
                                "\"n\":12,\"m\":3400000,\"w\":\"words that fold, "
                                "andonethatisverylongandhasnospaceinitatall\"},"
                                "{\"a\":\"\\u00e9\\u00e9\",\"b\":\"b\",\"s\":\"failed\","
                                "\"n\":1,\"m\":2,\"w\":\"\"}]}";

    (void)state;
    for (int width = 12; width < 140; width++) {
        char *text =
            shown(reply, "r{A=a,B=b,S=s:state,N=n,M=m:count,W=w:wrap}", width, false);

        assert_true(longest(text) <= width);
        free(text);
    }
}

static void test_colour(void **state)
{
    char *text =
        shown("{\"r\":[{\"a\":\"x\",\"s\":\"ready\"},{\"a\":\"y\",\"s\":\"failed\"}]}",
              "r{A=a,S=s:state}", 80, true);

    (void)state;
    assert_string_equal(text, "\x1b[1mA\x1b[0m  \x1b[1mS\x1b[0m\n"
                              "x  \x1b[32mready\x1b[0m\ny  \x1b[31mfailed\x1b[0m\n");
    free(text);
}

static void test_bad_reply(void **state)
{
    struct show_style st = {.width = 80};
    struct err e = {0};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_int_equal(show_render("{\"a\":", 5, "{a=a}", &st, &out, &e), -1);
    assert_non_null(strstr(e.msg, "the daemon's answer"));
    buf_done(&out);
}

static void test_clean(void **state)
{
    char s[] = "a\x1b[1m\r\n\tb\x7f \xc2\x9b"
               "31m \xc3\xa9\xc2\xa0\xc2";

    (void)state;
    show_clean(s, "\n\t");
    assert_string_equal(s, "a?[1m?\n\tb? ??31m \xc3\xa9\xc2\xa0\xc2");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_fields_and_table),
    cmocka_unit_test(test_formats),
    cmocka_unit_test(test_sections),
    cmocka_unit_test(test_a_text_gives_way),
    cmocka_unit_test(test_columns_are_left_out),
    cmocka_unit_test(test_folding),
    cmocka_unit_test(test_every_width),
    cmocka_unit_test(test_colour),
    cmocka_unit_test(test_bad_reply),
    cmocka_unit_test(test_clean),
};
TEST_MAIN("ctl_show", tests)

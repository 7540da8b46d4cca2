/* tests/unit/test_ctl_text.c - texts that llmctl makes: the live screen, and bundles
 * without secrets. */
#include "tests/test.h"

#include "base/buf.h"
#include "ctl/monitor.c"
#include "base/redact.h"

#include "ctl/show.c"
#include "ctl/table.c"

/* ---- redact ---- */

static void becomes(const char *text, const char *want)
{
    struct buf b;

    buf_init(&b, 0);
    redact(text, strlen(text), &b);
    buf_puts(&b, "");
    assert_string_equal(b.p, want);
    buf_done(&b);
}

#define HEX32 "0123456789abcdef0123456789abcdef"

static void test_secrets_are_struck_out(void **state)
{
    (void)state;
    becomes("key abcdefghij12." HEX32 HEX32 " used\n",
            "key abcdefghij12.(struck out) used\n");
    becomes("Authorization: Bearer x.y-z rest",
            "Authorization: Bearer (struck out) rest");
    becomes("{\"password\": \"a\\\"b c\", \"n\": 1}",
            "{\"password\": \"(struck out)\", \"n\": 1}");
    becomes("  secret: hunter2  # note\n", "  secret: (struck out)  # note\n");
    becomes("db_password: 12345\nsecret=7",
            "db_password: (struck out)\nsecret=(struck out)");
    becomes("secret: (struck out) x", "secret: (struck out) x"); /* again: as it was */
    becomes("api_key='x y'", "api_key='(struck out)'");
    becomes("a\n-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nb\n",
            "a\n(struck out)\nb\n");
    becomes("request r-1: answer of 12 bytes: \"dear diary\"\nnext\n",
            "request r-1: answer of 12 bytes: (struck out)\nnext\n");
}

static void test_the_rest_stays(void **state)
{
    static const char *const texts[] = {
        "tls_key: /etc/llmrack/key.pem\n",
        "{\"tokens\": {\"prompt\": 12}}\n",
        "prompt_tokens: 5, max_tokens=7\n",
        "hash " HEX32 HEX32 "\n",
        "\"token\": null",
        "model-1234567.gguf at 10.0.0.1",
        "keys: 3 secrets are kept",
        "",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        becomes(texts[i], texts[i]);
}

/* ---- the live screen ---- */

static json_t *parse(const char *text)
{
    json_t *o = json_loads(text, 0, NULL);

    assert_non_null(o);
    return o;
}

static json_t *status(int in, int out)
{
    return json_pack(
        "{s:s,s:b,s:i,s:{s:i,s:i},s:{s:i,s:i},s:[{s:s,s:s,s:i,s:i,s:i,s:i}]}", "version",
        "1", "ready", 1, "revision", 7, "requests", "running", 3, "waiting", 0, "tokens",
        "prompt", in, "generated", out, "instances", "name", "main", "state", "ready",
        "running", 3, "waiting", 0, "kv_used", 1, "kv_total", 4);
}

static void test_rates(void **state)
{
    struct monitor m = {.status = NULL};

    (void)state;
    monitor_take(&m, status(100, 50), 1000000);
    assert_int_equal(m.n_history, 0); /* one look is no rate */
    monitor_take(&m, status(100, 250), 3000000);
    assert_true(m.out_per_s == 100 && m.in_per_s == 0 && m.n_history == 1);
    monitor_take(&m, status(0, 20), 4000000); /* the daemon started again */
    assert_true(m.out_per_s == 0 && m.in_per_s == 0);
    for (int i = 1; i < 300; i++)
        monitor_take(&m, status(0, 20 + i), 4000000 + i * 1000000);
    assert_int_equal(m.n_history, MONITOR_HISTORY);
    monitor_done(&m);
}

static void test_frame_fits(void **state)
{
    struct monitor m = {.status = NULL};

    (void)state;
    for (int i = 0; i < 200; i++)
        monitor_take(&m, status(i, i * i), i * 1000000 + 1);
    m.slo =
        parse("{\"slo\":[{\"instance\":\"main\",\"class\":\"fast\",\"attainment\":0.1},"
              "{\"instance\":\"main\",\"class\":\"\",\"attainment\":0.75}]}");
    m.alarms =
        parse("{\"alarms\":[{\"severity\":\"major\",\"text\":\"now\",\"ended_ms\":null},"
              "{\"severity\":\"major\",\"text\":\"then\",\"ended_ms\":5}]}");
    for (int width = 20; width < 150; width++) {
        struct show_style st = {.width = width};
        struct buf b;

        buf_init(&b, 0);
        monitor_frame(&m, &st, "14:03:11", "it \xc3\xa9 failed", &b);
        if (width >= 80) {
            assert_non_null(strstr(b.p, "75.0 %")); /* its own, not of a class */
            assert_null(strstr(b.p, "10.0 %"));
            assert_non_null(strstr(b.p, "14:03:11"));
        }
        assert_non_null(strstr(b.p, "major  now"));
        assert_null(strstr(b.p, "then"));
        for (char *p = strtok(b.p, "\n"); p; p = strtok(NULL, "\n"))
            assert_true(text_columns(p) <= width);
        buf_done(&b);
    }
    monitor_done(&m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_secrets_are_struck_out),
    cmocka_unit_test(test_the_rest_stays),
    cmocka_unit_test(test_rates),
    cmocka_unit_test(test_frame_fits),
};
TEST_MAIN("ctl_text", tests)

/* tests/unit/test_params.c - request bodies: what is accepted, what is refused and how
 * the fault is named. */
#include "tests/test.h"

#include "base/err.h"
#include "base/mem.h"
#include "daemon/api/params.h"

#define MSG "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define PROMPT "\"prompt\":\"hi\""

static struct params *parse_ok(enum params_kind kind, const char *body)
{
    struct params *p = NULL;
    struct err e = {0};

    if (params_parse(body, strlen(body), kind, &p, &e) < 0)
        fail_msg("%s: refused: %s", body, e.msg);
    return p;
}

static void parse_bad(enum params_kind kind, const char *body, const char *param)
{
    struct params *p = NULL;
    struct err e = {0};

    if (params_parse(body, strlen(body), kind, &p, &e) == 0)
        fail_msg("%s: accepted", body);
    assert_null(p);
    assert_int_equal(err_status(e.code), 400);
    assert_string_not_equal(e.msg, "");
    if (strcmp(e.param, param))
        fail_msg("%s: blames '%s' (%s), not '%s'", body, e.param, e.msg, param);
}

static void test_defaults(void **state)
{
    struct params *p = parse_ok(PARAMS_CHAT, "{" MSG "}");

    (void)state;
    assert_int_equal(p->n, 1);
    assert_int_equal(p->max_tokens, -1);
    assert_true(p->gen.temperature == 1 && p->gen.top_p == 1);
    params_sampling(p, 0.6f, 0.9f);
    assert_true(p->gen.temperature == 0.6f && p->gen.top_p == 0.9f);
    assert_true(p->gen.min_p == 0 && p->gen.repetition == 1 && p->gen.top_k == 0);
    assert_int_equal(p->gen.n_top, -1);
    assert_false(p->stream || p->has_seed || p->gen.no_cache || p->gen.ignore_eos);
    assert_null(p->model);
    assert_int_equal(p->n_msgs, 1);
    assert_string_equal(p->msgs[0].role, "user");
    params_free(p);
    params_free(NULL);
}

static void test_every_value_arrives(void **state)
{
    struct params *p = parse_ok(
        PARAMS_TEXT,
        "{" PROMPT ",\"model\":\"m\",\"n\":8,\"max_tokens\":7,\"temperature\":0.5,"
        "\"top_p\":0.25,\"top_k\":40,\"min_p\":0.125,\"presence_penalty\":-2,"
        "\"frequency_penalty\":2,\"repetition_penalty\":1.5,\"seed\":-5,"
        "\"stop\":[\"a\",\"b\\u0000c\"],\"stop_token_ids\":[3,4],"
        "\"logit_bias\":{\"7\":-100,\"9\":1.5},\"ignore_eos\":true,\"cache_prompt\":"
        "false,"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"logprobs\":3,"
        "\"echo\":true,\"best_of\":8}");

    (void)state;
    assert_string_equal(p->model, "m");
    assert_int_equal(p->n, 8);
    assert_int_equal(p->max_tokens, 7);
    params_sampling(p, 0.6f, 0.9f);
    assert_true(p->gen.temperature == 0.5f && p->gen.top_p == 0.25f);
    assert_true(p->gen.min_p == 0.125f && p->gen.presence == -2);
    assert_true(p->gen.frequency == 2 && p->gen.repetition == 1.5f);
    assert_int_equal(p->gen.top_k, 40);
    assert_true(p->has_seed && p->gen.seed == (uint64_t)-5);
    assert_int_equal(p->n_stop, 2);
    assert_int_equal(p->stop_len[1], 3);
    assert_int_equal(p->gen.n_stop, 2);
    assert_int_equal(p->stop_ids[1], 4);
    assert_int_equal(p->gen.n_bias, 2);
    assert_true(p->gen.ignore_eos && p->gen.no_cache && p->stream && p->include_usage);
    assert_true(p->echo && p->gen.prompt_logprobs);
    assert_int_equal(p->gen.n_top, 3);
    params_free(p);
}

static void test_prompt_shapes(void **state)
{
    struct params *p = parse_ok(PARAMS_TEXT, "{\"prompt\":[1,2,3]}");

    (void)state;
    assert_int_equal(p->n_prompts, 1);
    assert_null(p->prompts[0].text);
    assert_int_equal(p->prompts[0].n, 3);
    assert_int_equal(p->prompts[0].ids[2], 3);
    params_free(p);
    p = parse_ok(PARAMS_TEXT, "{\"prompt\":[\"a\",\"\"]}");
    assert_int_equal(p->n_prompts, 2);
    assert_string_equal(p->prompts[0].text, "a");
    params_free(p);
    p = parse_ok(PARAMS_TEXT, "{\"prompt\":[[1],[2,3]]}");
    assert_int_equal(p->n_prompts, 2);
    assert_int_equal(p->prompts[1].ids[1], 3);
    params_free(p);
}

static void test_bad_prompts(void **state)
{
    (void)state;
    parse_bad(PARAMS_TEXT, "{}", "prompt");
    parse_bad(PARAMS_TEXT, "{\"prompt\":null}", "prompt");
    parse_bad(PARAMS_TEXT, "{\"prompt\":5}", "prompt");
    parse_bad(PARAMS_TEXT, "{\"prompt\":{}}", "prompt");
    parse_bad(PARAMS_TEXT, "{\"prompt\":[]}", "prompt");
    parse_bad(PARAMS_TEXT, "{\"prompt\":[1,\"a\"]}", "prompt");
    parse_bad(PARAMS_TEXT, "{\"prompt\":[-1]}", "prompt");
    parse_bad(PARAMS_TEXT, "{\"prompt\":[1.5]}", "prompt");
    parse_bad(PARAMS_TEXT, "{\"prompt\":[4294967296]}", "prompt");
    parse_bad(PARAMS_TEXT, "{\"prompt\":[\"a\",1]}", "prompt[1]");
    parse_bad(PARAMS_TEXT, "{\"prompt\":[[1],[]]}", "prompt[1]");
    parse_bad(PARAMS_TEXT, "{\"prompt\":[[1],[true]]}", "prompt[1]");
    parse_bad(PARAMS_TEXT, "[]", "");
    parse_bad(PARAMS_TEXT, "{", "");
    parse_bad(PARAMS_TEXT, "", "");
}

static void test_messages(void **state)
{
    struct params *p = parse_ok(
        PARAMS_CHAT,
        "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"a\"},{\"type\":\"text\",\"text\":\"b\\u0000\"}],\"name\":\"x\"},"
        "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]}]}");

    (void)state;
    assert_int_equal(p->n_msgs, 2);
    assert_int_equal(p->msgs[0].n, 3);
    assert_memory_equal(p->msgs[0].content, "ab\0", 3);
    assert_int_equal(p->msgs[1].n, 0);
    params_free(p);

    parse_bad(PARAMS_CHAT, "{}", "messages");
    parse_bad(PARAMS_CHAT, "{\"messages\":{}}", "messages");
    parse_bad(PARAMS_CHAT, "{\"messages\":[]}", "messages");
    parse_bad(PARAMS_CHAT, "{\"messages\":[1]}", "messages[0]");
    parse_bad(PARAMS_CHAT, "{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role");
    parse_bad(PARAMS_CHAT, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}",
              "messages[0].role");
    parse_bad(PARAMS_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content");
    parse_bad(PARAMS_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}",
              "messages[0].content");
    parse_bad(
        PARAMS_CHAT,
        "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]}]}",
        "messages[0].tool_calls");
    parse_bad(
        PARAMS_CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\"}"
        ",{\"type\":\"image_url\"}]}]}",
        "messages[0].content[1].type");
    parse_bad(PARAMS_CHAT,
              "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
              "messages[0].content[0].text");
    parse_bad(PARAMS_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[7]}]}",
              "messages[0].content[0].type");
}

static void test_ranges(void **state)
{
    static const struct {
        const char *member, *param;
    } bad[] = {
        {"\"n\":0", "n"},
        {"\"n\":9", "n"},
        {"\"n\":1.5", "n"},
        {"\"n\":\"1\"", "n"},
        {"\"model\":5", "model"},
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_tokens\":-1", "max_tokens"},
        {"\"max_completion_tokens\":0", "max_completion_tokens"},
        {"\"max_tokens\":5,\"max_completion_tokens\":6", "max_tokens"},
        {"\"temperature\":2.1", "temperature"},
        {"\"temperature\":-0.1", "temperature"},
        {"\"temperature\":\"hot\"", "temperature"},
        {"\"top_p\":0", "top_p"},
        {"\"top_p\":1.01", "top_p"},
        {"\"min_p\":-1", "min_p"},
        {"\"top_k\":-2", "top_k"},
        {"\"presence_penalty\":2.5", "presence_penalty"},
        {"\"frequency_penalty\":-2.5", "frequency_penalty"},
        {"\"repetition_penalty\":0", "repetition_penalty"},
        {"\"seed\":1.5", "seed"},
        {"\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", "stop"},
        {"\"stop\":[\"\"]", "stop"},
        {"\"stop\":\"\"", "stop"},
        {"\"stop\":7", "stop"},
        {"\"stop_token_ids\":[-1]", "stop_token_ids"},
        {"\"stop_token_ids\":\"x\"", "stop_token_ids"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias"},
        {"\"logit_bias\":{\"5\":101}", "logit_bias"},
        {"\"logit_bias\":{\"5\":\"1\"}", "logit_bias"},
        {"\"logit_bias\":[]", "logit_bias"},
        {"\"stream\":1", "stream"},
        {"\"stream_options\":{\"include_usage\":true}", "stream_options"},
        {"\"stream\":true,\"stream_options\":7", "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":3}",
         "stream_options.include_usage"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format.type"},
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format.type"},
        {"\"response_format\":{}", "response_format.type"},
        {"\"response_format\":\"text\"", "response_format.type"},
        {"\"guided_json\":{\"a\":1}", "guided_json"},
    };
    char body[512];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(body, sizeof(body), "{" MSG ",%s}", bad[i].member);
        parse_bad(PARAMS_CHAT, body, bad[i].param);
        snprintf(body, sizeof(body), "{" PROMPT ",%s}", bad[i].member);
        parse_bad(PARAMS_TEXT, body, bad[i].param);
    }
}

static void test_chat_only(void **state)
{
    static const struct {
        const char *member, *param;
    } bad[] = {
        {"\"logprobs\":3", "logprobs"},
        {"\"top_logprobs\":3", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"functions\":[{}]", "functions"},
        {"\"modalities\":[\"text\",\"audio\"]", "modalities"},
        {"\"reasoning_effort\":\"huge\"", "reasoning_effort"},
        {"\"reasoning_effort\":3", "reasoning_effort"},
        {"\"audio\":{\"voice\":\"x\"}", "audio"},
    };
    char body[512];
    struct params *p;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(body, sizeof(body), "{" MSG ",%s}", bad[i].member);
        parse_bad(PARAMS_CHAT, body, bad[i].param);
    }
    p = parse_ok(PARAMS_CHAT,
                 "{" MSG ",\"logprobs\":true,\"response_format\":{\"type\":\"text\"},"
                 "\"tools\":[],\"tool_choice\":\"auto\",\"modalities\":[\"text\"],"
                 "\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":true,"
                 "\"max_completion_tokens\":5,\"max_tokens\":5,\"temperature\":null}");
    assert_int_equal(p->gen.n_top, 0);
    assert_int_equal(p->max_tokens, 5);
    assert_int_equal(p->n_unknown, 0);
    params_free(p);
}

static void test_unknown_members_are_counted(void **state)
{
    struct params *p = parse_ok(PARAMS_TEXT, "{" PROMPT ",\"foo\":1,\"bar\":{},\"n\":1}");

    (void)state;
    assert_int_equal(p->n_unknown, 2);
    assert_string_equal(params_unknown(p, 0), "foo");
    assert_string_equal(params_unknown(p, 1), "bar");
    assert_null(params_unknown(p, 2));
    params_free(p);
}

static void test_echo_without_output(void **state)
{
    struct params *p =
        parse_ok(PARAMS_TEXT, "{" PROMPT ",\"echo\":true,\"max_tokens\":0}");

    (void)state;
    assert_int_equal(p->max_tokens, 0);
    params_free(p);
}

static void test_vocabulary(void **state)
{
    static const struct {
        const char *body, *param;
    } bad[] = {
        {"{\"prompt\":[1,100]}", "prompt"},
        {"{" PROMPT ",\"logit_bias\":{\"100\":1}}", "logit_bias"},
        {"{" PROMPT ",\"stop_token_ids\":[100]}", "stop_token_ids"},
    };
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct params *p = parse_ok(PARAMS_TEXT, bad[i].body);
        assert_int_equal(params_check_model(p, 101, &e), 0);
        assert_int_equal(params_check_model(p, 100, &e), -1);
        assert_string_equal(e.param, bad[i].param);
        params_free(p);
    }
}

/* Any single byte changed or cut off: accepted or refused with a sentence, no more. */
static void test_damaged_bodies(void **state)
{
    static const char good[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"a\"}]}],"
        "\"stop\":[\"x\"],\"logit_bias\":{\"5\":1},\"n\":2,\"seed\":7}";
    uint64_t seed = test_seed();
    char body[sizeof(good)];

    (void)state;
    for (int i = 0; i < 20000; i++) {
        size_t n = i % 4 ? sizeof(good) - 1 : test_rand(&seed) % sizeof(good);
        struct params *p = NULL;
        struct err e = {0};

        memcpy(body, good, sizeof(good));
        body[test_rand(&seed) % (sizeof(good) - 1)] = (char)test_rand(&seed);
        if (params_parse(body, n, PARAMS_CHAT, &p, &e) == 0)
            params_free(p);
        else
            assert_int_equal(err_status(e.code), 400);
    }
}

static void test_one_sampling_field_turns_the_mild_default_off(void **state)
{
    struct params *p = parse_ok(PARAMS_CHAT, "{" MSG ",\"top_k\":5}");

    (void)state;
    params_sampling(p, 0.6f, 0.9f);
    assert_true(p->gen.temperature == 1 && p->gen.top_p == 1 && p->gen.top_k == 5);
    params_free(p);
    p = parse_ok(PARAMS_CHAT, "{" MSG ",\"temperature\":null,\"top_p\":null}");
    assert_true(p->gen.temperature == 1 && p->gen.top_p == 1);
    params_sampling(p, 0.6f, 0.9f);
    assert_true(p->gen.temperature == 0.6f && p->gen.top_p == 0.9f);
    params_free(p);
}

static void test_each_allocation_fails_once(void **state)
{
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                               "\"text\",\"text\":\"a\"}]}],"
                               "\"stop_token_ids\":[1],\"logit_bias\":{\"5\":1}}";
    struct params *p = NULL;
    struct err e = {0};
    int n = 1;

    (void)state;
    for (; n < 100; n++) {
        mem_fail_at(n);
        if (params_parse(body, strlen(body), PARAMS_CHAT, &p, &e) == 0)
            break;
        assert_int_equal(e.code, ERR_NOMEM);
        assert_null(p);
    }
    mem_fail_at(0);
    assert_int_equal(n, 5); /* messages, parts, ids, biases */
    params_free(p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_one_sampling_field_turns_the_mild_default_off),
    cmocka_unit_test(test_defaults),
    cmocka_unit_test(test_every_value_arrives),
    cmocka_unit_test(test_prompt_shapes),
    cmocka_unit_test(test_bad_prompts),
    cmocka_unit_test(test_messages),
    cmocka_unit_test(test_ranges),
    cmocka_unit_test(test_chat_only),
    cmocka_unit_test(test_unknown_members_are_counted),
    cmocka_unit_test(test_echo_without_output),
    cmocka_unit_test(test_vocabulary),
    cmocka_unit_test(test_damaged_bodies),
    cmocka_unit_test(test_each_allocation_fails_once),
};
TEST_MAIN("params", tests)

/* tests/unit/test_sse.c - frames, log-probabilities and errors: always one line of valid
 * JSON with the members that typed clients need. */
#include "tests/test.h"

#include <math.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/api/answer.h"
#include "daemon/api/logprobs.h"
#include "daemon/api/sse.h"
#include "tests/unit/fake_router.h"

/* The JSON of the only frame in b, which is emptied. */
static json_t *frame(struct buf *b)
{
    json_t *root = NULL;
    struct err e;

    assert_true(b->len > 8 && !strncmp(b->p, "data: ", 6));
    assert_string_equal(b->p + b->len - 2, "\n\n");
    assert_null(memchr(b->p, '\n', b->len - 2));
    if (js_parse(b->p + 6, b->len - 8, &(struct js_limits){0, 16}, &root, &e) < 0)
        fail_msg("%s: %s", e.msg, b->p);
    buf_clear(b);
    return root;
}

static const json_t *choice(const json_t *root)
{
    return json_array_get(json_object_get(root, "choices"), 0);
}

static const char *str(const json_t *obj, const char *key)
{
    return json_string_value(json_object_get(obj, key));
}

static void sse_make(struct sse *s, bool chat, bool usage)
{
    sse_init(s, &(struct sse_cfg){.id = "x-1",
                                  .model = "m\"\n",
                                  .fingerprint = "fp",
                                  .created_s = 5,
                                  .chat = chat,
                                  .include_usage = usage});
}

static void test_chat_frames(void **state)
{
    struct sse s;
    struct buf b;
    json_t *root;

    (void)state;
    buf_init(&b, 0);
    sse_make(&s, true, true);
    sse_role(&s, 3, &b);
    root = frame(&b);
    assert_string_equal(str(root, "object"), "chat.completion.chunk");
    assert_string_equal(str(root, "model"), "m\"\n");
    assert_string_equal(str(json_object_get(choice(root), "delta"), "role"), "assistant");
    assert_true(json_is_null(json_object_get(root, "usage")));
    json_decref(root);

    sse_text(&s, 3, "a\"\n\xf0\x9f\xa6\x8a", 7, NULL, &b);
    root = frame(&b);
    assert_int_equal(json_integer_value(json_object_get(choice(root), "index")), 3);
    assert_string_equal(str(json_object_get(choice(root), "delta"), "content"),
                        "a\"\n\xf0\x9f\xa6\x8a");
    assert_true(json_is_null(json_object_get(choice(root), "finish_reason")));
    json_decref(root);

    sse_finish(&s, 3, "stop", &b);
    root = frame(&b);
    assert_string_equal(str(choice(root), "finish_reason"), "stop");
    assert_int_equal(json_object_size(json_object_get(choice(root), "delta")), 0);
    json_decref(root);

    sse_usage(&s, &(struct answer_usage){.prompt = 4, .completion = 5, .cached = 2}, &b);
    root = frame(&b);
    assert_int_equal(json_array_size(json_object_get(root, "choices")), 0);
    assert_int_equal(json_integer_value(
                         json_object_get(json_object_get(root, "usage"), "total_tokens")),
                     9);
    json_decref(root);
    sse_end(&b);
    assert_string_equal(b.p, "data: [DONE]\n\n");
    sse_done(&s);
    buf_done(&b);
}

static void test_text_frames_without_usage(void **state)
{
    struct sse s;
    struct buf b;
    json_t *root;

    (void)state;
    buf_init(&b, 0);
    sse_make(&s, false, false);
    sse_text(&s, 0, "hi", 2, NULL, &b);
    root = frame(&b);
    assert_string_equal(str(root, "object"), "text_completion");
    assert_string_equal(str(choice(root), "text"), "hi");
    assert_null(json_object_get(root, "usage"));
    json_decref(root);
    sse_done(&s);
    buf_done(&b);
}

static void test_logprobs_of_chat(void **state)
{
    struct tokenizer *tok = fake_tokenizer();
    struct step_token t = {.id = 'a',
                           .logprob = -1,
                           .n_top = 2,
                           .top_id = {'a', 0xc3},
                           .top_logprob = {-1, -INFINITY}};
    struct logprobs lp;
    struct sse s;
    struct buf b;
    json_t *root;
    const json_t *item, *alt;

    (void)state;
    buf_init(&b, 0);
    sse_make(&s, true, false);
    logprobs_init(&lp, tok, true);
    for (int i = 0; i < 2; i++) {
        logprobs_add(&lp, &t, "a", 1, 0, true);
        logprobs_add(&lp, &t, "\xc3", 1, 0, true);
        sse_text(&s, 0, "a", 1, &lp, &b);
        root = frame(&b);
        item = json_object_get(json_object_get(choice(root), "logprobs"), "content");
        assert_int_equal(json_array_size(item), 2); /* emptied by each frame */
        item = json_array_get(item, 1);
        assert_string_equal(str(item, "token"), "\xef\xbf\xbd");
        assert_int_equal(
            json_integer_value(json_array_get(json_object_get(item, "bytes"), 0)), 0xc3);
        alt = json_array_get(json_object_get(item, "top_logprobs"), 1);
        assert_true(json_is_number(json_object_get(alt, "logprob"))); /* finite */
        json_decref(root);
    }
    logprobs_done(&lp);
    sse_done(&s);
    buf_done(&b);
    tokenizer_free(tok);
}

static void test_logprobs_of_text(void **state)
{
    struct tokenizer *tok = fake_tokenizer();
    struct step_token t = {.id = 'a',
                           .logprob = -1,
                           .n_top = 2,
                           .top_id = {0xc3, 0xc4},
                           .top_logprob = {-1, -2}};
    struct logprobs lp;
    struct buf b;
    json_t *root = NULL;
    struct err e;

    (void)state;
    buf_init(&b, 0);
    logprobs_init(&lp, tok, false);
    logprobs_add(&lp, &t, "a", 1, 0, false);
    logprobs_add(&lp, &t, "\xc3", 1, 1, true);
    logprobs_write(&lp, &b);
    assert_int_equal(js_parse(b.p, b.len, &(struct js_limits){0, 8}, &root, &e), 0);
    assert_true(json_is_null(json_array_get(json_object_get(root, "token_logprobs"), 0)));
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(root, "tokens"), 1)),
        "bytes:\\xc3");
    assert_int_equal(
        json_object_size(json_array_get(json_object_get(root, "top_logprobs"), 1)),
        2); /* parts of characters keep names of their own */
    json_decref(root);
    logprobs_done(&lp);
    buf_done(&b);
    tokenizer_free(tok);
}

static void test_every_error_has_the_shape(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    for (int code = 1; code < ERR_COUNT; code++) {
        struct err e = {.code = (enum err_code)code, .msg = "a \"quoted\" sentence"};
        json_t *root, *obj;

        sse_error(&e, &b);
        root = frame(&b);
        obj = json_object_get(root, "error");
        assert_int_equal(json_object_size(obj), 4);
        assert_string_equal(str(obj, "message"), e.msg);
        assert_non_null(str(obj, "type"));
        assert_true(json_is_null(json_object_get(obj, "param")));
        assert_true(json_is_string(json_object_get(obj, "code")) ||
                    json_is_null(json_object_get(obj, "code")));
        json_decref(root);
    }
    buf_done(&b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_chat_frames),
    cmocka_unit_test(test_text_frames_without_usage),
    cmocka_unit_test(test_logprobs_of_chat),
    cmocka_unit_test(test_logprobs_of_text),
    cmocka_unit_test(test_every_error_has_the_shape),
};
TEST_MAIN("sse", tests)

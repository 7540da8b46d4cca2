/* Chat templates against Jinja (tests/golden/chat.json), detection, faults and limits. */
#include "tests/tok_help.h"

#include "base/mem.h"
#include "daemon/serve/template.h"

enum { MSGS_MAX = 16 };

static size_t load_messages(const json_t *arr, struct chat_msg *msgs)
{
    size_t n = json_array_size(arr);

    assert_true(n <= MSGS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(arr, i), *c = json_object_get(m, "content");
        msgs[i] = (struct chat_msg){json_string_value(json_object_get(m, "role")),
                                    json_string_value(c), json_string_length(c)};
    }
    return n;
}

static void check_case(const struct tokenizer *t, const char *what, const json_t *c,
                       const char *today)
{
    const char *want = json_string_value(json_object_get(c, "text"));
    struct chat_msg msgs[MSGS_MAX];
    size_t n = load_messages(json_object_get(c, "messages"), msgs);
    struct tok_ids ids = {0};
    struct err e = {0};
    struct buf text;
    int control = 0;

    if (template_render(template_detect(t), t, msgs, n,
                        &(struct template_how){.today = today}, 0, NULL, &ids, &e) < 0)
        fail_msg("%s: %s", what, e.msg);
    buf_init(&text, 0);
    buf_add(&text, "", 0);
    tokenizer_decode(t, ids.v, ids.n, true, &text);
    for (size_t i = 0; i < ids.n; i++)
        control += tokenizer_is_control(t, ids.v[i]);
    if (strcmp(text.p, want) != 0)
        fail_msg("%s:\n--- want\n%s\n--- got\n%s", what, want, text.p);
    assert_int_equal(control, json_integer_value(json_object_get(c, "control")));
    buf_done(&text);
    tok_ids_done(&ids);
}

static struct tokenizer *family_tokenizer(const json_t *f)
{
    const json_t *added = json_object_get(f, "added");
    const char *list[16] = {NULL};
    struct tokenizer *t;
    char *config;

    if (json_is_true(json_object_get(f, "demo")))
        return open_gguf(test_demo_model());
    for (size_t i = 0; i < json_array_size(added); i++)
        list[i] = json_string_value(json_array_get(added, i));
    config = json_dumps(json_object_get(f, "config"), 0);
    t = open_tiny(list, config);
    free(config);
    return t;
}

static void families_as_jinja(bool demo)
{
    struct buf text = slurp("tests/golden/chat.json");
    struct js_limits lim = {.max_bytes = 1 << 24, .max_depth = 16};
    json_t *root = NULL;
    const json_t *f, *c;
    struct err e = {0};
    size_t i, k, checked = 0;

    assert_int_equal(js_parse(text.p, text.len, &lim, &root, &e), 0);
    json_array_foreach(json_object_get(root, "families"), i, f)
    {
        const char *name = json_string_value(json_object_get(f, "family"));
        struct tokenizer *t;
        char what[128];

        if (json_is_true(json_object_get(f, "demo")) != demo)
            continue;
        t = family_tokenizer(f);
        assert_string_equal(template_name(template_detect(t)), name);
        json_array_foreach(json_object_get(f, "cases"), k, c)
        {
            snprintf(what, sizeof(what), "%s %s, case %zu", name,
                     json_string_value(json_object_get(f, "name")), k);
            check_case(t, what, c, json_string_value(json_object_get(root, "today")));
            checked++;
        }
        tokenizer_free(t);
    }
    assert_int_equal(checked, demo ? 20 : 300);
    json_decref(root);
    buf_done(&text);
}

TEST(as_jinja) { families_as_jinja(false); }
TEST(demo_as_jinja) { families_as_jinja(true); }

/* ---- detection ---- */

static const char *const im[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", NULL};
static const char *const inst[] = {"<s>", "</s>", NULL};
static const char *const inst3[] = {"<s>", "</s>", "[INST]", "[/INST]", NULL};
static const char *const l3[] = {"<|begin_of_text|>", "<|start_header_id|>",
                                 "<|end_header_id|>", "<|eot_id|>", NULL};

struct detect_case {
    const char *const *added;
    const char *config;
    enum template_family want;
};

TEST(detects)
{
    static const struct detect_case cases[] = {
        {im, NULL, TEMPLATE_CHATML},
        {im, "{\"chat_template\":\"{{ a }}<|im_start|>\"}", TEMPLATE_CHATML},
        {im, "{\"chat_template\":\"<|im_start|></think> SmolLM3\"}", TEMPLATE_NONE},
        {im, "{\"chat_template\":\"### Instruction\"}", TEMPLATE_NONE},
        {im,
         "{\"chat_template\":[{\"name\":\"tools\",\"template\":\"x\"},"
         "{\"name\":\"default\",\"template\":\"<|im_start|>\"}]}",
         TEMPLATE_CHATML},
        {inst, "{\"chat_template\":\"<|im_start|>\"}", TEMPLATE_NONE},
        {inst,
         "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\","
         "\"chat_template\":\"[INST] <<SYS>>\"}",
         TEMPLATE_LLAMA2},
        {inst,
         "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
         "\"chat_template\":\"[INST]\"}",
         TEMPLATE_MISTRAL},
        {inst,
         "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\","
         "\"chat_template\":\"[SYSTEM_PROMPT][INST]\"}",
         TEMPLATE_NONE},
        {inst, NULL, TEMPLATE_NONE},
        {l3, NULL, TEMPLATE_NONE}, /* no bos named */
        {l3, "{\"bos_token\":\"<|begin_of_text|>\"}", TEMPLATE_LLAMA3},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tokenizer *t = open_tiny(cases[i].added, cases[i].config);
        assert_int_equal(template_detect(t), cases[i].want);
        tokenizer_free(t);
    }
}

/* ---- single cases ---- */

#define MSG(role, text)                                                                  \
    {                                                                                    \
        role, text, sizeof(text) - 1                                                     \
    }

static void assert_renders(const struct tokenizer *t, const struct chat_msg *msgs,
                           size_t n, const char *want)
{
    struct tok_ids ids = {0};
    struct err e = {0};
    struct buf b;

    if (template_render(template_detect(t), t, msgs, n, NULL, 0, NULL, &ids, &e) < 0)
        fail_msg("%s", e.msg);
    buf_init(&b, 0);
    tokenizer_decode(t, ids.v, ids.n, true, &b);
    assert_string_equal(b.p, want);
    buf_done(&b);
    tok_ids_done(&ids);
}

TEST(developer_is_system)
{
    const struct chat_msg msgs[] = {MSG("developer", "d"), MSG("user", "u")};
    struct tokenizer *t = open_tiny(im, NULL);

    assert_renders(t, msgs, 2,
                   "<|im_start|>system\nd<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
                   "<|im_start|>assistant\n");
    tokenizer_free(t);
}

TEST(mistral_v3_has_control_tokens)
{
    const struct chat_msg msgs[] = {MSG("system", "s"), MSG("user", "[INST] u"),
                                    MSG("assistant", " a "), MSG("user", "v")};
    struct tokenizer *t =
        open_tiny(inst3, "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\","
                         "\"chat_template\":\"[INST]\"}");
    struct tok_ids ids = {0};
    int n = 0;

    assert_renders(t, msgs, 4, "<s>[INST]s\n\n[INST] u[/INST]a</s>[INST]v[/INST]");
    assert_int_equal(
        template_render(TEMPLATE_MISTRAL, t, msgs, 4, NULL, 0, NULL, &ids, NULL), 0);
    for (size_t i = 0; i < ids.n; i++)
        n += ids.v[i] == tokenizer_find(t, "[INST]");
    assert_int_equal(n, 2);
    tok_ids_done(&ids);
    tokenizer_free(t);
}

TEST(qwen3_thinking_only_release)
{
    const struct chat_msg msgs[] = {MSG("user", "u")};
    struct tokenizer *t =
        open_tiny(im, "{\"chat_template\":\"last_query_index </think> "
                      "{{ '<|im_start|>assistant\\\\n<think>\\\\n' }}\"}");

    assert_renders(t, msgs, 1,
                   "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n<think>\n");
    tokenizer_free(t);
}

TEST(nul_and_bad_bytes_pass)
{
    const struct chat_msg msgs[] = {{"user", "a\0b\xff", 4}};
    static const char want[] = "<|im_start|>user\na\0b\xff<|im_end|>\n"
                               "<|im_start|>assistant\n";
    struct tokenizer *t = open_tiny(im, NULL);
    struct tok_ids ids = {0};
    struct buf b;

    assert_int_equal(
        template_render(TEMPLATE_CHATML, t, msgs, 1, NULL, 0, NULL, &ids, NULL), 0);
    buf_init(&b, 0);
    tokenizer_decode(t, ids.v, ids.n, true, &b);
    assert_int_equal(b.len, sizeof(want) - 1);
    assert_memory_equal(b.p, want, b.len);
    buf_done(&b);
    tok_ids_done(&ids);
    tokenizer_free(t);
}

/* ---- faults ---- */

struct fault_case {
    enum template_family f;
    size_t n;
    struct chat_msg msgs[3];
    enum err_code code;
    const char *param;
};

TEST(faults_name_the_field)
{
    static const struct fault_case cases[] = {
        {TEMPLATE_NONE, 1, {MSG("user", "u")}, ERR_UNSUPPORTED, ""},
        {TEMPLATE_CHATML, 0, {MSG("user", "u")}, ERR_INVALID, "messages"},
        {TEMPLATE_CHATML,
         2,
         {MSG("user", "u"), MSG("tool", "x")},
         ERR_INVALID,
         "messages[1].role"},
        {TEMPLATE_CHATML, 1, {{NULL, "x", 1}}, ERR_INVALID, "messages[0].role"},
        {TEMPLATE_LLAMA2, 1, {MSG("system", "s")}, ERR_INVALID, "messages"},
        {TEMPLATE_LLAMA2,
         2,
         {MSG("user", "u"), MSG("user", "u")},
         ERR_INVALID,
         "messages[1].role"},
        {TEMPLATE_MISTRAL,
         3,
         {MSG("system", "s"), MSG("developer", "s"), MSG("user", "u")},
         ERR_INVALID,
         "messages[1].role"},
        {TEMPLATE_LLAMA3, 1, {MSG("user", "u")}, ERR_UNSUPPORTED, ""},
    };
    struct tokenizer *t = open_tiny(im, NULL);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tok_ids ids = {0};
        struct err e = {0};

        tok_ids_add(&ids, 7);
        assert_int_equal(template_render(cases[i].f, t, cases[i].msgs, cases[i].n, NULL,
                                         0, NULL, &ids, &e),
                         -1);
        assert_int_equal(e.code, cases[i].code);
        assert_string_equal(e.param, cases[i].param);
        assert_int_equal(ids.n, 1);
        tok_ids_done(&ids);
    }
    tokenizer_free(t);
}

TEST(many_messages_limits_and_cancel)
{
    enum { N = 10000 };
    struct chat_msg *msgs = xcalloc(N, sizeof(*msgs));
    struct tokenizer *t = open_tiny(im, NULL);
    struct tok_ids ids = {0};
    struct err e = {0};
    atomic_bool cancel = true;
    size_t all;

    for (int i = 0; i < N; i++)
        msgs[i] = (struct chat_msg){i % 2 ? "assistant" : "user", "hello there", 11};
    msgs[N - 1].role = "user";
    assert_int_equal(
        template_render(TEMPLATE_CHATML, t, msgs, N, NULL, 0, NULL, &ids, &e), 0);
    all = ids.n;
    ids.n = 0;
    assert_int_equal(
        template_render(TEMPLATE_CHATML, t, msgs, N, NULL, all, NULL, &ids, &e), 0);
    ids.n = 0;
    assert_int_equal(
        template_render(TEMPLATE_CHATML, t, msgs, N, NULL, all - 1, NULL, &ids, &e), -1);
    assert_int_equal(e.code, ERR_CONTEXT);
    assert_int_equal(ids.n, 0);
    assert_int_equal(
        template_render(TEMPLATE_CHATML, t, msgs, N, NULL, 0, &cancel, &ids, &e), -1);
    assert_int_equal(e.code, ERR_CANCELED);
    tok_ids_done(&ids);
    tokenizer_free(t);
    free(msgs);
}

/* ---- families whose rendering stands here, not in golden/chat.json ---- */

#define DS(name) "<\uff5c" name "\uff5c>"
static const struct said {
    const char *family, *config, *added[9];
    const char *want; /* of system "S", user "U", assistant "A", user "V" */
} said[] = {
    {"olmoe",
     "{\"bos_token\":\"<e>\",\"eos_token\":\"<e>\",\"chat_template\":\"{{ bos_token }}"
     "{{ '<|user|>\\n' + message['content'] }}\"}",
     {"<e>", NULL},
     "<e><|system|>\nS\n<|user|>\nU\n<|assistant|>\nA<e>\n<|user|>\nV\n"
     "<|assistant|>\n"},
    {"deepseek",
     "{\"bos_token\":\"<b>\",\"eos_token\":\"<e>\",\"chat_template\":\"" DS("User")
         DS("Assistant") "\"}",
     {"<b>", "<e>", DS("User"), DS("Assistant"), NULL},
     "<b>S" DS("User") "U" DS("Assistant") "A<e>" DS("User") "V" DS("Assistant")},
    {"kimi",
     "{\"chat_template\":\"<|im_middle|>\"}",
     {"<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>",
      NULL},
     "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>U<|im_end|>"
     "<|im_assistant|>assistant<|im_middle|>A<|im_end|><|im_user|>user<|im_middle|>V"
     "<|im_end|><|im_assistant|>assistant<|im_middle|>"},
    {"harmony",
     "{\"chat_template\":\"<|start|><|channel|>\"}",
     {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", NULL},
     "<|start|>system<|message|>You are ChatGPT, a large language model trained by "
     "OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: 2024-07-26\n\nReasoning: "
     "medium\n\n# Valid channels: analysis, commentary, final. Channel must be included "
     "for every message.<|end|><|start|>developer<|message|># Instructions\n\nS<|end|>"
     "<|start|>user<|message|>U<|end|><|start|>assistant<|channel|>final<|message|>A"
     "<|end|><|start|>user<|message|>V<|end|><|start|>assistant"},
};

static void renders(const struct said *f, const char *today, const struct chat_msg *msgs,
                    size_t n, const char *want)
{
    const char *list[16] = {NULL};
    struct tok_ids ids = {0};
    struct err e = {0};
    struct buf text;

    memcpy(list, f->added, sizeof(f->added));
    struct tokenizer *t = open_tiny(list, f->config);
    assert_string_equal(template_name(template_detect(t)), f->family);
    if (template_render(template_detect(t), t, msgs, n,
                        &(struct template_how){.today = today}, 0, NULL, &ids, &e) < 0)
        fail_msg("%s: %s", f->family, e.msg);
    buf_init(&text, 0);
    tokenizer_decode(t, ids.v, ids.n, true, &text);
    buf_add(&text, "", 1);
    if (strcmp(text.p, want) != 0)
        fail_msg("%s:\n--- want\n%s\n--- got\n%s", f->family, want, text.p);
    buf_done(&text);
    tok_ids_done(&ids);
    tokenizer_free(t);
}

TEST(families_of_mixtures)
{
    static const struct chat_msg msgs[] = {
        {"system", "S", 1}, {"user", "U", 1}, {"assistant", "A", 1}, {"user", "V", 1}};

    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++)
        renders(&said[i], "26 Jul 2024", msgs, 4, said[i].want);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(families_of_mixtures),
    cmocka_unit_test(as_jinja),
    cmocka_unit_test(demo_as_jinja),
    cmocka_unit_test(detects),
    cmocka_unit_test(developer_is_system),
    cmocka_unit_test(mistral_v3_has_control_tokens),
    cmocka_unit_test(qwen3_thinking_only_release),
    cmocka_unit_test(nul_and_bad_bytes_pass),
    cmocka_unit_test(faults_name_the_field),
    cmocka_unit_test(many_messages_limits_and_cancel),
};

TEST_MAIN("template", tests)

/* The harmony format against openai/harmony's own vectors (../shared/chat-vectors): all
 * 23 of them, as conversations to render or texts to read. What tools say of themselves
 * is taken from the vector; its form is ours to make. */
#include "tests/tok_help.h"

#include "daemon/serve/harmony.h"
#include "daemon/serve/tok_int.h"

static const char *const marks[] = {"<|start|>",     "<|channel|>", "<|message|>",
                                    "<|end|>",       "<|call|>",    "<|return|>",
                                    "<|constrain|>", NULL};

static char *vector(const char *name)
{
    char rel[128];

    snprintf(rel, sizeof(rel), "chat-vectors/harmony/test_%s.txt", name);
    struct buf b = slurp(test_shared(rel));
    while (b.len && b.p[b.len - 1] == '\n')
        b.len--;
    char *s = strndup(b.p, b.len);
    buf_done(&b);
    return s;
}

static struct harmony_msg said(const char *author, const char *channel, const char *text)
{
    return (struct harmony_msg){
        .author = author, .channel = channel, .text = text, .n = strlen(text)};
}

static void renders(const struct harmony_chat *c, const char *name)
{
    struct tokenizer *t = open_tiny(marks, "{}");
    struct tok_ids ids = {0};
    struct err e = {0};
    char *want = vector(name);
    struct buf got;
    int special = 0, wanted = 0;

    if (harmony_render(c, t, 0, NULL, &ids, &e) < 0)
        fail_msg("%s: %s", name, e.msg);
    buf_init(&got, 0);
    tokenizer_decode(t, ids.v, ids.n, true, &got);
    buf_add(&got, "", 1);
    if (strcmp(got.p, want) != 0)
        fail_msg("%s:\n--- want\n%s\n--- got\n%s", name, want, got.p);
    for (size_t i = 0; i < ids.n; i++)
        special += tokenizer_is_control(t, ids.v[i]);
    for (const char *p = want; (p = strstr(p, "<|")); p += 2)
        wanted++;
    assert_int_equal(special, wanted);
    buf_done(&got);
    free(want);
    tok_ids_done(&ids);
    tokenizer_free(t);
}

/* ---- plain conversations ---- */

#define LARGEST "What is the capital of the largest country in the world?"
#define ROBOT "Answer the user's questions like a robot."
#define TWO "What is 2 + 2?"

static void simple(const char *effort, bool rules, const char *name)
{
    const struct harmony_msg asks = said("user", NULL, LARGEST);
    struct harmony_chat c = {.effort = effort, .msgs = &asks, .n_msgs = 1};

    if (rules) {
        c.developer = true;
        c.rules = ROBOT;
        c.n_rules = strlen(ROBOT);
    }
    renders(&c, name);
}

TEST(efforts)
{
    simple("high", true, "simple_convo_high_effort");
    simple("high", false, "simple_convo_high_effort_no_instruction");
    simple("medium", true, "simple_convo_medium_effort");
    simple("medium", false, "simple_convo_medium_effort_no_instruction");
    simple("low", true, "simple_convo_low_effort");
    simple("low", false, "simple_convo_low_effort_no_instruction");
}

TEST(system_messages)
{
    const struct harmony_msg two = said("user", NULL, TWO);
    const struct harmony_msg candy =
        said("user", NULL, "What is the best place to eat candy in the world?");
    const struct harmony_msg pi = said("user", NULL, "What is 42 * pi?");

    renders(&(struct harmony_chat){.effort = "medium", .msgs = &two, .n_msgs = 1},
            "simple_convo");
    renders(
        &(struct harmony_chat){
            .effort = "medium", .channels = "analysis, final", .msgs = &two, .n_msgs = 1},
        "reasoning_system_message");
    renders(
        &(struct harmony_chat){
            .effort = "high", .channels = "analysis, final", .msgs = &candy, .n_msgs = 1},
        "reasoning_system_message_no_instruction");
    renders(&(struct harmony_chat){.effort = "medium",
                                   .cutoff = "2021-01",
                                   .today = "2021-01-01",
                                   .channels = "analysis, final",
                                   .msgs = &pi,
                                   .n_msgs = 1},
            "reasoning_system_message_with_dates");
    renders(&(struct harmony_chat){.effort = "medium", .today = "2025-06-28"},
            "no_tools");
}

/* ---- thoughts ---- */

TEST(thoughts_of_turns_that_are_over)
{
    struct harmony_msg m[] = {
        said("user", NULL, TWO),
        said("assistant", "analysis",
             "User asks a simple question: \"What is 2 + 2?\" The answer: 4."),
        said("assistant", "final", "2 + 2 equals 4."),
        said("user", NULL, "What about 9 / 2?")};
    struct harmony_chat c = {.no_system = true, .msgs = m, .n_msgs = 4};

    renders(&c, "dropping_cot_by_default");
    c.keep_thoughts = true;
    renders(&c, "preserve_cot");
}

TEST(thoughts_of_this_turn)
{
    struct harmony_msg tool[] = {
        said("user", NULL, "What is the weather in SF?"),
        said("assistant", "analysis",
             "User asks: “What is the weather in SF?” We need to use lookup_weather "
             "tool."),
        said("assistant", "commentary", "{\"location\": \"San Francisco\"}"),
        said("functions.lookup_weather", NULL,
             "{\"temperature\": 20, \"description\": \"sunny\"}")};
    struct harmony_msg between[] = {said("user", NULL, TWO),
                                    said("assistant", "analysis", "thinking 2+2"),
                                    said("assistant", "final", "4"),
                                    said("user", NULL, "What is 3 + 5?"),
                                    said("assistant", "analysis", "thinking 3+5"),
                                    said("assistant", "final", "8")};

    tool[2].to = "functions.lookup_weather";
    tool[2].form = "json";
    renders(&(struct harmony_chat){.no_system = true, .msgs = tool, .n_msgs = 4},
            "does_not_drop_if_ongoing_analysis");
    renders(
        &(struct harmony_chat){
            .no_system = true, .msgs = between, .n_msgs = 6, .ended = true},
        "keep_analysis_between_finals");
}

/* ---- tools ---- */

/* The comment lines before the line that begins with `line` (or all up to it), joined. */
static char *comments(const char *text, const char *from, const char *line)
{
    const char *p = strstr(text, from), *end;
    struct buf b;

    assert_non_null(p);
    p += strlen(from);
    end = strstr(p, line);
    assert_non_null(end);
    buf_init(&b, 0);
    while (p < end) {
        size_t n = strcspn(p, "\n");
        if (n && memcmp(p, "// ", 3) == 0) {
            buf_puts(&b, b.len ? "\n" : "");
            buf_add(&b, p + 3, n - 3);
        }
        p += n + 1;
    }
    buf_add(&b, "", 1);
    char *s = strdup(b.p);
    buf_done(&b);
    return s;
}

/* The browser's functions, saying what the vector says. */
static json_t *browser(const char *text)
{
    static const char *const types[] = {
        "{\"type\":\"object\",\"properties\":{\"query\":{\"type\":\"string\"},"
        "\"topn\":{\"type\":\"number\",\"default\":10},\"source\":{\"type\":\"string\"}},"
        "\"required\":[\"query\"]}",
        "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":[\"number\",\"string\"],"
        "\"default\":-1},\"cursor\":{\"type\":\"number\",\"default\":-1},"
        "\"loc\":{\"type\":\"number\",\"default\":-1},"
        "\"num_lines\":{\"type\":\"number\",\"default\":-1},"
        "\"view_source\":{\"type\":\"boolean\",\"default\":false},"
        "\"source\":{\"type\":\"string\"}}}",
        "{\"type\":\"object\",\"properties\":{\"pattern\":{\"type\":\"string\"},"
        "\"cursor\":{\"type\":\"number\",\"default\":-1}},\"required\":[\"pattern\"]}"};
    static const char *const names[] = {"search", "open", "find"};
    static const char *const from[] = {"namespace browser {", "type search", "type open"};
    json_t *list = json_array();

    for (int i = 0; i < 3; i++) {
        char head[32];
        snprintf(head, sizeof(head), "type %s", names[i]);
        char *d = comments(text, from[i], head);
        json_array_append_new(list,
                              json_pack("{s:s,s:s,s:o}", "name", names[i], "description",
                                        d, "parameters", json_loads(types[i], 0, NULL)));
        free(d);
    }
    return list;
}

static void with_browser(const char *name, const struct harmony_tools *more, int n_more,
                         const json_t *functions)
{
    char *text = vector(name), *d = comments(text, "## browser\n\n", "namespace browser");
    json_t *list = browser(text);
    struct harmony_tools tools[2] = {{"browser", d, list}};
    struct harmony_chat c = {.effort = "medium",
                             .today = "2025-06-28",
                             .tools = tools,
                             .n_tools = 1 + n_more,
                             .developer = functions != NULL,
                             .functions = functions};

    if (n_more)
        tools[1] = *more;
    renders(&c, name);
    json_decref(list);
    free(d);
    free(text);
}

TEST(tools)
{
    char *text = vector("browser_and_python_tool");
    char *said_of = strstr(text, "## python\n\n") + strlen("## python\n\n");
    json_t *weather = json_loads(
        "[{\"name\":\"lookup_weather\",\"description\":\"Use this tool to lookup the "
        "weather in a given location. Call it with the parameter 'location', can be any "
        "textual description of a location.\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"location\":{\"type\":\"string\"}},\"required\":[\"location\"]}"
        "}]",
        0, NULL);

    *strstr(said_of, "\n\n# Valid") = '\0';
    with_browser("browser_tool_only", NULL, 0, NULL);
    with_browser("browser_and_python_tool",
                 &(struct harmony_tools){"python", said_of, NULL}, 1, NULL);
    with_browser("browser_and_function_tool", NULL, 0, weather);
    json_decref(weather);
    free(text);
}

TEST(functions_with_parameters)
{
    static const char format[] =
        "\"format\":{\"type\":\"string\",\"enum\":[\"celsius\",\"fahrenheit\"],"
        "\"default\":\"celsius\"}";
    static const char sink[] =
        "{\"description\":\"params object\",\"type\":\"object\",\"properties\":{"
        "\"string\":{\"type\":\"string\",\"title\":\"STRING\",\"description\":"
        "\"A string\",\"examples\":[\"hello\",\"world\"]},"
        "\"string_nullable\":{\"type\":\"string\",\"nullable\":true,\"description\":"
        "\"A nullable string\",\"default\":\"the default\"},"
        "\"string_enum\":{\"type\":\"string\",\"enum\":[\"a\",\"b\",\"c\"]},"
        "\"oneof_string_or_number\":{\"description\":\"a oneof\",\"default\":20,"
        "\"oneOf\":[{\"type\":\"string\",\"default\":\"default_string_in_oneof\"},"
        "{\"type\":\"number\",\"description\":\"numbers can happen too\"}]}}}";
    char text[4096];
    const struct harmony_msg asks = said("user", NULL, "What is the weather like in SF?");

    snprintf(text, sizeof(text),
             "[{\"name\":\"get_location\",\"description\":\"Gets the location of the "
             "user.\"},"
             "{\"name\":\"get_current_weather\",\"description\":\"Gets the current "
             "weather in the provided location.\",\"parameters\":{\"type\":\"object\","
             "\"properties\":{\"location\":{\"type\":\"string\",\"description\":\"The "
             "city and state, e.g. San Francisco, CA\"},%s},\"required\":[\"location\"]}}"
             ",{\"name\":\"get_multiple_weathers\",\"description\":\"Gets the current "
             "weather in the provided list of locations.\",\"parameters\":{\"type\":"
             "\"object\",\"properties\":{\"locations\":{\"type\":\"array\",\"items\":{"
             "\"type\":\"string\"},\"description\":\"List of city and state, e.g. "
             "[\\\"San Francisco, CA\\\", \\\"New York, NY\\\"]\"},%s},\"required\":["
             "\"locations\"]}},{\"name\":\"kitchensink\",\"description\":\"A function "
             "with various complex schemas.\",\"parameters\":%s}]",
             format, format, sink);
    json_t *list = json_loads(text, 0, NULL);
    assert_non_null(list);
    renders(&(struct harmony_chat){.effort = "high",
                                   .today = "2025-06-28",
                                   .developer = true,
                                   .rules = "Always respond in riddles",
                                   .n_rules = 25,
                                   .functions = list,
                                   .msgs = &asks,
                                   .n_msgs = 1},
            "render_functions_with_parameters");
    json_decref(list);
}

/* A schema from outside may be anything: it is written somehow, and to an end. */
TEST(odd_schemas)
{
    struct buf b;
    char deep[4096];
    size_t n = 0;

    for (int i = 0; i < 200; i++)
        n += (size_t)snprintf(deep + n, sizeof(deep) - n, "{\"oneOf\":[");
    for (int i = 0; i < 200; i++)
        n += (size_t)snprintf(deep + n, sizeof(deep) - n, "]}");
    const char *const schemas[] = {
        "3",
        "[]",
        "{\"properties\":3}",
        "{\"properties\":{\"a\":3,\"b\":[]}}",
        "{\"properties\":{\"a\":{\"type\":7,\"enum\":{},\"default\":{\"x\":[1]}}}}",
        "{\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
        "\"properties\":{\"b\":{\"type\":\"integer\"}}}}}}"};
    for (size_t i = 0; i < sizeof(schemas) / sizeof(schemas[0]); i++) {
        json_t *list = json_pack("[{s:o},i]", "parameters",
                                 json_loads(schemas[i], JSON_DECODE_ANY, NULL), 5);
        buf_init(&b, 0);
        harmony_types(&(struct harmony_tools){"f", NULL, list}, &b);
        assert_true(b.len > 20);
        buf_done(&b);
        json_decref(list);
    }
    json_t *list = json_pack("[{s:{s:{s:o}}}]", "parameters", "properties", "a",
                             json_loads(deep, 0, NULL));
    assert_non_null(list);
    buf_init(&b, 0);
    harmony_types(&(struct harmony_tools){"f", NULL, list}, &b);
    buf_add(&b, "", 1);
    assert_non_null(strstr(b.p, "any"));
    buf_done(&b);
    json_decref(list);
}

/* ---- reading ---- */

/* What was read, a line each message: author>to channel form: text */
static char *read_all(const struct tokenizer *t, const int32_t *ids, size_t n, bool open)
{
    struct harmony_reader r;
    struct buf b;
    bool line = false;

    harmony_reader_init(&r, t, open);
    buf_init(&b, 0);
    for (size_t i = 0; i < n; i++) {
        enum harmony_at at = harmony_read(&r, ids[i]);
        if (at == HARMONY_TEXT && !line)
            buf_printf(&b, "%s>%s %s %s: ", r.author, r.to, r.of, r.form);
        if (at == HARMONY_TEXT)
            tokenizer_piece(t, ids[i], false, false, &b);
        line = at == HARMONY_TEXT || (line && at == HARMONY_HEADER && r.in_text);
        if (at == HARMONY_END)
            buf_puts(&b, "\n");
    }
    buf_add(&b, "", 1);
    char *s = strdup(b.p);
    buf_done(&b);
    return s;
}

static void reads(const char *text, bool open, const char *want)
{
    struct tokenizer *t = open_tiny(marks, "{}");
    struct tok_ids ids = encode(t, text, strlen(text), TOK_PARSE_SPECIAL);
    char *got = read_all(t, ids.v, ids.n, open);

    assert_string_equal(got, want);
    free(got);
    tok_ids_done(&ids);
    tokenizer_free(t);
}

TEST(reads_calls_and_answers)
{
    char *text = vector("streamable_parser");
    const char *first = strstr(text, "User asks"), *end = strstr(first, "<|end|>");
    char *want;

    assert_true(asprintf(&want,
                         "assistant> analysis : %.*s\n"
                         "assistant>browser.search commentary code: {\"query\": "
                         "\"current US president July 2025\", \"topn\": 10, \"source\": "
                         "\"news\"}\n"
                         "browser.search>assistant commentary : {\"result\": "
                         "\"https://openai.com/\"}\n",
                         (int)(end - first), first) > 0);
    reads(text, false, want);
    free(want);
    free(text);
    text = vector("tool_response_parsing");
    reads(text, false,
          "browser.search>assistant commentary : {\"result\": \"https://openai.com/\"} ");
    free(text);
}

TEST(reads_what_is_odd)
{
    char longest[600];

    reads("<|channel|>final<|message|>A<|return|>", false, "assistant> final : A\n");
    reads("goes on<|end|><|start|>assistant<|message|>B", true,
          "assistant> final : goes on\nassistant>  : B");
    reads("<|end|><|end|><|message|>", false, "");
    reads(" to=f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>", false,
          "assistant>f commentary json: {}\n");
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    struct tokenizer *t = open_tiny(marks, "{}");
    struct tok_ids ids = encode(t, longest, strlen(longest), 0);
    char *got = read_all(t, ids.v, ids.n, false);
    assert_non_null(strstr(got, "final"));
    free(got);
    tok_ids_done(&ids);
    tokenizer_free(t);
}

/* The vectors that are lists of ids, with as much of o200k as they take. */
static const struct {
    int id;
    const char *piece;
} o200k[] = {{35644, "analysis"},   {1844, "User"},
             {31064, " asks"},      {392, " \""},
             {4827, "What"},        {382, " is"},
             {659, " +"},           {16842, "?\""},
             {12295, " Simple"},    {81645, " arithmetic"},
             {51441, " Provide"},   {6052, " answer"},
             {173781, "assistant"}, {17196, "final"},
             {314, " ="},           {290, " the"},
             {11122, " weather"},   {306, " in"},
             {40510, " Tokyo"},     {1416, " We"},
             {1309, " need"},       {316, " to"},
             {1199, " use"},        {37342, " lookup"},
             {170154, "_weather"},  {4584, " tool"},
             {29712, "lookup"},     {3490, " code"},
             {10848, "{\""},        {7693, "location"},
             {1243, "\":"},         {173844, "Tokyo"},
             {18583, "\"}"},        {199997, "the last one"}};

static void put_piece(struct buf *b, const char *p, size_t n, int id)
{
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)(uint8_t)p[i] << 16;
        v |= i + 1 < n ? (uint32_t)(uint8_t)p[i + 1] << 8 : 0;
        v |= i + 2 < n ? (uint32_t)(uint8_t)p[i + 2] : 0;
        for (int k = 0; k < 4; k++) {
            char c = i + (size_t)k > n ? '=' : digits[v >> (18 - 6 * k) & 63];
            buf_add(b, &c, 1);
        }
    }
    buf_printf(b, " %d\n", id);
}

static struct tokenizer *part_of_o200k(void)
{
    static const char config[] =
        "{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_kimi.T\",null]},"
        "\"added_tokens_decoder\":{\"200002\":{\"content\":\"<|return|>\"},"
        "\"200005\":{\"content\":\"<|channel|>\"},\"200006\":{\"content\":\"<|start|>\"},"
        "\"200007\":{\"content\":\"<|end|>\"},\"200008\":{\"content\":\"<|message|>\"},"
        "\"200012\":{\"content\":\"<|call|>\"}}}";
    struct tokenizer *t = NULL;
    struct err e = {0};
    struct buf b;

    buf_init(&b, 0);
    for (int v = 0; v < 256; v++) { /* as in the real one, space is 220 */
        char c = (char)(v < 94    ? v + 33
                        : v < 106 ? v - 94 + 0xa1
                        : v < 188 ? v - 106 + 0xae
                        : v < 221 ? v - 188
                        : v < 255 ? v - 221 + 0x7f
                                  : 0xad);
        put_piece(&b, &c, 1, v);
    }
    for (size_t i = 0; i < sizeof(o200k) / sizeof(o200k[0]); i++)
        put_piece(&b, o200k[i].piece, strlen(o200k[i].piece), o200k[i].id);
    buf_add(&b, "", 1);
    if (tok_open_tiktoken("o200k", b.p, b.len - 1, config, strlen(config), NULL, 0, &t,
                          &e) < 0)
        fail_msg("%s", e.msg);
    buf_done(&b);
    return t;
}

static void reads_ids(const char *name, const char *want)
{
    struct tokenizer *t = part_of_o200k();
    char *text = vector(name), *save = NULL;
    struct tok_ids ids = {0};

    for (char *w = strtok_r(text, " \n", &save); w; w = strtok_r(NULL, " \n", &save))
        tok_ids_add(&ids, atoi(w));
    char *got = read_all(t, ids.v, ids.n, false);
    assert_string_equal(got, want);
    free(got);
    free(text);
    tok_ids_done(&ids);
    tokenizer_free(t);
}

TEST(reads_ids_as_published)
{
    reads_ids("simple_reasoning_response",
              "assistant> analysis : User asks: \"What is 2 + 2?\" Simple arithmetic. "
              "Provide answer.\nassistant> final : 2 + 2 = 4.");
    reads_ids("simple_tool_call",
              "assistant> analysis : User asks: \"What is the weather in Tokyo?\" We "
              "need to use lookup_weather tool.\nassistant>lookup_weather analysis code: "
              "{\"location\": \"Tokyo\"}");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(efforts),
    cmocka_unit_test(system_messages),
    cmocka_unit_test(thoughts_of_turns_that_are_over),
    cmocka_unit_test(thoughts_of_this_turn),
    cmocka_unit_test(tools),
    cmocka_unit_test(functions_with_parameters),
    cmocka_unit_test(odd_schemas),
    cmocka_unit_test(reads_calls_and_answers),
    cmocka_unit_test(reads_what_is_odd),
    cmocka_unit_test(reads_ids_as_published),
};

TEST_MAIN("harmony", tests)

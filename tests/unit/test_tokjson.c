/* Tokenizers from tokenizer.json: the same ids as from the GGUF of one vocabulary, what
 * is refused and how, and the folder of a Hugging Face model. */
#include "tests/tok_help.h"

#include "base/mem.h"
#include "daemon/serve/tok_int.h"

#define PRE_SMOLLM                                                                       \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","                    \
    "\"individual_digits\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"    \
    "\"use_regex\":true}]}"

static void json_vocab(struct jw *w, const struct gguf *g, bool pairs)
{
    size_t n = 0, m = 0;
    struct gguf_str *s;
    char *sp;

    gguf_arr_len(g, "tokenizer.ggml.tokens", &n, NULL);
    gguf_arr_len(g, "tokenizer.ggml.merges", &m, NULL);
    s = calloc(n > m ? n : m, sizeof(*s));
    gguf_arr_strings(g, "tokenizer.ggml.tokens", s, n, NULL);
    jw_key(w, "vocab");
    jw_obj(w);
    for (size_t i = 0; i < n; i++) {
        char *k = xstrndup(s[i].p, s[i].n);
        jw_kint(w, k, (int64_t)i);
        free(k);
    }
    jw_obj_end(w);
    gguf_arr_strings(g, "tokenizer.ggml.merges", s, m, NULL);
    jw_key(w, "merges");
    jw_arr(w);
    for (size_t i = 0; i < m; i++) {
        if (!pairs) {
            jw_strn(w, s[i].p, s[i].n);
            continue;
        }
        sp = memchr(s[i].p, ' ', s[i].n);
        jw_arr(w);
        jw_strn(w, s[i].p, (size_t)(sp - s[i].p));
        jw_strn(w, sp + 1, s[i].n - (size_t)(sp - s[i].p) - 1);
        jw_arr_end(w);
    }
    jw_arr_end(w);
    free(s);
}

/* The demo model's vocabulary as a Hugging Face file; its first 17 ids are special. */
static struct buf demo_json(const struct gguf *g, bool pairs)
{
    struct gguf_str s[17];
    size_t n = 0;
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_key(&w, "pre_tokenizer");
    jw_raw(&w, PRE_SMOLLM);
    jw_key(&w, "added_tokens");
    jw_arr(&w);
    gguf_arr_len(g, "tokenizer.ggml.tokens", &n, NULL);
    {
        struct gguf_str *all = calloc(n, sizeof(*all));
        gguf_arr_strings(g, "tokenizer.ggml.tokens", all, n, NULL);
        memcpy(s, all, sizeof(s));
        free(all);
    }
    for (int i = 0; i < 17; i++) {
        jw_obj(&w);
        jw_kint(&w, "id", i);
        jw_key(&w, "content");
        jw_strn(&w, s[i].p, s[i].n);
        jw_kbool(&w, "special", true);
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_key(&w, "model");
    jw_obj(&w);
    jw_kstr(&w, "type", "BPE");
    json_vocab(&w, g, pairs);
    jw_obj_end(&w);
    jw_obj_end(&w);
    return b;
}

TEST(json_as_gguf)
{
    static const char config[] = "{\"bos_token\":\"<|im_start|>\",\"eos_token\":"
                                 "{\"content\":\"<|im_end|>\"},\"add_bos_token\":false}";
    struct buf file = slurp(test_demo_model());
    struct gguf *g = NULL;
    struct err e = {0};
    struct tokenizer *a = NULL, *b[2] = {NULL};
    uint64_t seed = test_seed();

    assert_int_equal(gguf_parse("demo", file.p, file.len, &g, &e), 0);
    assert_int_equal(tokenizer_open_gguf(g, "demo", &a, &e), 0);
    for (int k = 0; k < 2; k++) {
        struct buf j = demo_json(g, k);
        if (tokenizer_open_json("demo", j.p, j.len, config, sizeof(config) - 1, &b[k],
                                &e) < 0)
            fail_msg("%s", e.msg);
        buf_done(&j);
        assert_string_equal(tokenizer_kind(b[k]), "bpe:smollm");
        assert_int_equal(tokenizer_n_vocab(b[k]), tokenizer_n_vocab(a));
        assert_int_equal(tokenizer_bos(b[k]), 1);
        assert_false(tokenizer_add_bos(b[k]));
    }
    gguf_free(g);
    buf_done(&file);
    for (int round = 0; round < 500; round++) {
        struct buf text = random_text(&seed, 30);
        int flags = round % 2 ? TOK_PARSE_SPECIAL : 0;
        struct tok_ids x, y;

        buf_puts(&text, " the end is near<|im_end|>123");
        x = encode(a, text.p, text.len, flags);
        y = encode(b[round / 2 % 2], text.p, text.len, flags);
        assert_int_equal(x.n, y.n);
        assert_memory_equal(x.v, y.v, x.n * sizeof(*x.v));
        tok_ids_done(&x);
        tok_ids_done(&y);
        buf_done(&text);
    }
    tokenizer_free(a);
    tokenizer_free(b[0]);
    tokenizer_free(b[1]);
}

TEST(json_nfc)
{
    static const char *const added[] = {NULL};
    struct buf j = tiny_json(
        added, PRE_GPT2, "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}");
    struct tokenizer *t = NULL;
    struct tok_ids ids;
    struct err e = {0};
    struct buf b;

    assert_int_equal(tokenizer_open_json("x", j.p, j.len, NULL, 0, &t, &e), 0);
    ids = encode(t, "e\u0301\xff", 4, 0);
    buf_init(&b, 0);
    tokenizer_decode(t, ids.v, ids.n, false, &b);
    assert_string_equal(b.p, "\u00e9\xff");
    buf_done(&b);
    buf_done(&j);
    tok_ids_done(&ids);
    tokenizer_free(t);
}

struct refusal {
    const char *json;
    enum err_code code;
    const char *says;
};

#define MODEL                                                                            \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":"
#define PRE "\"pre_tokenizer\":" PRE_GPT2

TEST(json_refusals)
{
    static const struct refusal cases[] = {
        {"{" PRE "," MODEL "[\"a b\"]}}", ERR_OK, ""},
        {"{" PRE "," MODEL "[[\"a\",\"b\"]]}}", ERR_OK, ""},
        {"", ERR_SYNTAX, "'x'"},
        {"[]", ERR_CORRUPT, "merges"},
        {"{" PRE "}", ERR_CORRUPT, "merges"},
        {"{" PRE "," MODEL "[\"ab\"]}}", ERR_CORRUPT, "merges[0]"},
        {"{" PRE "," MODEL "[[\"a\"]]}}", ERR_CORRUPT, "merges[0]"},
        {"{" PRE "," MODEL "[\"b a\"]}}", ERR_CORRUPT, "merge 0"},
        {"{" PRE "," MODEL "[],\"byte_fallback\":true}}", ERR_UNSUPPORTED,
         "byte_fallback"},
        {"{" PRE "," MODEL "[],\"end_of_word_suffix\":\"</w>\"}}", ERR_UNSUPPORTED,
         "suffix"},
        {"{" PRE ",\"model\":{\"type\":\"Unigram\"}}", ERR_UNSUPPORTED, "Unigram"},
        {"{" PRE ",\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", ERR_CORRUPT,
         "id -1"},
        {"{" PRE ",\"model\":{\"vocab\":{\"a\":1999999999},\"merges\":[]}}", ERR_CORRUPT,
         "id 1999999999"},
        {"{" PRE ",\"model\":{\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", ERR_CORRUPT,
         "integer"},
        {"{" PRE ",\"model\":{\"vocab\":{},\"merges\":[]}}", ERR_CORRUPT, "0 tokens"},
        {"{" MODEL "[]}}", ERR_UNSUPPORTED, "pre_tokenizer ''"},
        {"{\"pre_tokenizer\":{\"type\":\"Whitespace\"}," MODEL "[]}}", ERR_UNSUPPORTED,
         "'Whitespace'"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}," MODEL
         "[]}}",
         ERR_UNSUPPORTED, "add_prefix_space"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
         "\"Split\","
         "\"pattern\":{\"Regex\":\"\\\\w+\"},\"behavior\":\"Isolated\"},{\"type\":"
         "\"ByteLevel\",\"use_regex\":false}]}," MODEL "[]}}",
         ERR_UNSUPPORTED, "these are: gpt2, smollm"},
        {"{" PRE ",\"normalizer\":{\"type\":\"Lowercase\"}," MODEL "[]}}",
         ERR_UNSUPPORTED, "'Lowercase'"},
        {"{" PRE ",\"added_tokens\":[{\"id\":5,\"content\":\"x\",\"lstrip\":true}]," MODEL
         "[]}}",
         ERR_UNSUPPORTED, "lstrip"},
        {"{" PRE ",\"added_tokens\":[{\"content\":\"x\"}]," MODEL "[]}}", ERR_CORRUPT,
         "added_tokens[0]"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};

        if (tokenizer_open_json("x", cases[i].json, strlen(cases[i].json), NULL, 0, &t,
                                &e) == 0)
            e.code = ERR_OK;
        if (e.code != cases[i].code || !strstr(e.msg, cases[i].says))
            fail_msg("case %zu: %s", i, e.msg);
        tokenizer_free(t);
    }
}

/* bos from the post-processor when the configuration is silent. */
TEST(json_post_processor)
{
    static const char json[] =
        "{" PRE ",\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}],"
        "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":"
        "\"ByteLevel\"},"
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}"
        ","
        "{\"Sequence\":{\"id\":\"A\"}}]}]}," MODEL "[\"a b\"],\"ignore_merges\":true}}";
    static const char off[] = "{\"add_bos_token\":false}";
    struct tokenizer *t = NULL;
    struct tok_ids ids;
    struct err e = {0};

    assert_int_equal(tokenizer_open_json("x", json, sizeof(json) - 1, NULL, 0, &t, &e),
                     0);
    ids = encode(t, "ab<s>", 5, TOK_ADD_BOS);
    assert_int_equal(ids.v[0], 3);
    assert_int_equal(ids.v[1], 2);
    assert_int_equal(ids.n, 2); /* no piece has <, s or > */
    tok_ids_done(&ids);
    tokenizer_free(t);
    assert_int_equal(
        tokenizer_open_json("x", json, sizeof(json) - 1, off, sizeof(off) - 1, &t, &e),
        0);
    assert_false(tokenizer_add_bos(t));
    assert_int_equal(tokenizer_bos(t), 3);
    tokenizer_free(t);
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

TEST(folder)
{
    char dir[] = "/tmp/test_tokfile.XXXXXX", cmd[64];
    struct tokenizer *t = NULL;
    struct err e = {0};

    assert_non_null(mkdtemp(dir));
    assert_int_equal(tok_open_dir(dir, &t, &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_non_null(strstr(e.msg, "no tokenizer.json"));
    write_file(dir, "tokenizer.json", "{" PRE "," MODEL "[\"a b\"]}}");
    assert_int_equal(tok_open_dir(dir, &t, &e), 0);
    assert_string_equal(tokenizer_chat_template(t), "");
    assert_int_equal(tokenizer_bos(t), -1);
    tokenizer_free(t);
    write_file(dir, "tokenizer_config.json",
               "{\"eos_token\":\"b\",\"chat_template\":\"old\"}");
    assert_int_equal(tok_open_dir(dir, &t, &e), 0);
    assert_string_equal(tokenizer_chat_template(t), "old");
    assert_true(tokenizer_is_control(t, 1));
    tokenizer_free(t);
    write_file(dir, "chat_template.jinja", "new");
    assert_int_equal(tok_open_dir(dir, &t, &e), 0);
    assert_string_equal(tokenizer_chat_template(t), "new");
    tokenizer_free(t);
    write_file(dir, "tokenizer_config.json", "{");
    assert_int_equal(tok_open_dir(dir, &t, &e), -1);
    assert_non_null(strstr(e.msg, "tokenizer_config.json of"));
    snprintf(cmd, sizeof(cmd), "rm -r %s", dir);
    assert_int_equal(system(cmd), 0);
}

TEST(open_allocation_failures)
{
    static const char json[] = "{" PRE "," MODEL "[\"a b\"]}}";
    int rc = -1;

    for (long n = 1; rc < 0; n++) {
        struct tokenizer *t = NULL;
        struct err e = {0};

        assert_true(n < 1000);
        mem_fail_at(n);
        rc = tokenizer_open_json("x", json, sizeof(json) - 1, NULL, 0, &t, &e);
        mem_fail_at(0);
        if (rc < 0)
            assert_null(t);
        tokenizer_free(t);
    }
}

/* ---- tiktoken.model ---- */

static void put_line(struct buf *b, const char *p, size_t n, int id)
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

/* Published ids of Kimi K2, with as much of its vocabulary as they take; and neighbours
 * that join by the lowest rank whatever their cut. */
TEST(tiktoken_of_kimi)
{
    static const struct {
        const char *piece;
        int id;
    } pieces[] = {{"Hello", 19180},
                  {" world", 2695},
                  {"\u4f60\u597d", 33845},
                  {"\u4e16\u754c", 2243},
                  {"123", 6694},
                  {"456", 12972},
                  {"789", 16242},
                  {"xy", 300},
                  {"yz", 299},
                  {"xyz", 301}};
    static const struct {
        const char *text;
        int n, ids[4];
    } want[] = {{"Hello world", 2, {19180, 2695}},
                {"\u4f60\u597d\u4e16\u754c", 2, {33845, 2243}},
                {"1234567890", 4, {6694, 12972, 16242, 15}},
                {"xyzx", 2, {301, 87}},
                {"xxyz", 2, {87, 301}}};
    static const char *const chars[] = {"\u4f60", "\u597d", "\u4e16", "\u754c"};
    static const char config[] =
        "{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_kimi.TikTokenTokenizer\",null]}"
        ","
        "\"bos_token\":\"[BOS]\",\"eos_token\":\"[EOS]\",\"added_tokens_decoder\":{"
        "\"40000\":{\"content\":\"[BOS]\",\"special\":true},"
        "\"40001\":{\"content\":\"[EOS]\",\"special\":true}}}";
    struct tokenizer *t = NULL;
    struct err e = {0};
    struct buf b;
    size_t n_eog;

    buf_init(&b, 0);
    for (int v = 0; v < 256; v++) { /* '!' is 0, as in the real one */
        char c = (char)(v < 94 ? v + 33 : v < 127 ? v - 94 : v);
        put_line(&b, &c, 1, v);
    }
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        put_line(&b, pieces[i].piece, strlen(pieces[i].piece), pieces[i].id);
    for (int i = 0; i < 4; i++) { /* what the Chinese pieces are merged from */
        put_line(&b, chars[i], 2, 400 + 2 * i);
        put_line(&b, chars[i], 3, 401 + 2 * i);
    }
    put_line(&b, "the last one", 12, 39999);
    buf_add(&b, "", 1);
    if (tok_open_tiktoken("k", b.p, b.len - 1, config, strlen(config), NULL, 0, &t, &e) <
        0)
        fail_msg("%s", e.msg);
    assert_int_equal(tokenizer_n_vocab(t), 40256);
    assert_int_equal(tokenizer_bos(t), 40000);
    assert_int_equal(tokenizer_eog(t, &n_eog)[0], 40001);
    assert_string_equal(tokenizer_kind(t), "bpe:kimi");
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct tok_ids ids = encode(t, want[i].text, strlen(want[i].text), 0);
        assert_int_equal(ids.n, want[i].n);
        for (int k = 0; k < want[i].n; k++)
            assert_int_equal(ids.v[k], want[i].ids[k]);
        tok_ids_done(&ids);
    }
    tokenizer_free(t);
    buf_done(&b);
    char bad[] = "aGk= 0\naGk 0\n";
    assert_int_equal(
        tok_open_tiktoken("k", bad, strlen(bad), config, strlen(config), NULL, 0, &t, &e),
        -1);
    assert_non_null(strstr(e.msg, "line 2"));
    assert_int_equal(tok_open_tiktoken("k", bad, 0, "{}", 2, NULL, 0, &t, &e), -1);
    assert_non_null(strstr(e.msg, "tokenization_kimi"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tiktoken_of_kimi),
    cmocka_unit_test(json_as_gguf),
    cmocka_unit_test(json_nfc),
    cmocka_unit_test(json_refusals),
    cmocka_unit_test(json_post_processor),
    cmocka_unit_test(folder),
    cmocka_unit_test(open_allocation_failures),
};

TEST_MAIN("tokjson", tests)

/* Pre-tokeniser patterns against an independent engine (tests/golden/pretok.txt), and the
 * refusal and recognition of names and patterns. */
#include "tests/test.h"

#include "base/buf.h"
#include "base/err.h"
#include "daemon/serve/pretok.h"
#include "daemon/serve/unicode.h"

#define TEST(name) static void name(void **state __attribute__((unused)))
#define GOLDEN "tests/golden/pretok.txt"

enum { INP_STRINGS = 46, STRINGS_MAX = 256 };

struct strings {
    struct buf v[STRINGS_MAX];
    int n;
};

static void load_inp(struct strings *s)
{
    static const char sep[] = "\n__ggml_vocab_test__\n";
    FILE *f = fopen(test_shared("tokenizer-vectors/ggml-vocab-gpt-2.gguf.inp"), "r");
    char text[8192], *p = text, *end;

    assert_non_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    while ((end = strstr(p, sep))) {
        buf_init(&s->v[s->n], 0);
        buf_add(&s->v[s->n++], p, (size_t)(end - p));
        p = end + sizeof(sep) - 1;
    }
    assert_int_equal(s->n, INP_STRINGS);
}

static void add_hex(struct strings *s, const char *hex)
{
    struct buf *b = &s->v[s->n++];
    unsigned byte;

    assert_true(s->n < STRINGS_MAX);
    buf_init(b, 0);
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        buf_putc(b, (char)byte);
}

static void check_split(const struct pretok *p, const struct buf *text, char *want,
                        int line)
{
    struct pretok_it *it = NULL;
    size_t off = 0, len = 0, at = 0;
    struct err e = {0};
    int rc;

    assert_int_equal(pretok_it_new(p, &it, &e), 0);
    pretok_it_start(it, text->p ? text->p : "", text->len);
    while ((rc = pretok_it_next(it, &off, &len, &e)) > 0) {
        unsigned long w = strtoul(want, &want, 10);
        assert_int_equal(off, at);
        if (w != len)
            fail_msg("%s: line %d: word at %zu has %zu bytes, not %lu", pretok_name(p),
                     line, at, len, w);
        at += len;
    }
    assert_int_equal(rc, 0);
    assert_int_equal(at, text->len);
    pretok_it_free(it);
}

TEST(splits_as_published)
{
    struct strings s = {.n = 0};
    struct pretok *p = NULL;
    struct err e = {0};
    FILE *f = fopen(GOLDEN, "r");
    char line[16384];
    int no = 0, at = 0, checked = 0;

    load_inp(&s);
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        no++;
        if (!strncmp(line, "text ", 5)) {
            add_hex(&s, line + 5);
        } else if (!strncmp(line, "set ", 4)) {
            pretok_free(p);
            p = NULL;
            assert_int_equal(pretok_new(line + 4, &p, &e), 0);
            at = 0;
        } else if (!strncmp(line, "split", 5)) {
            check_split(p, &s.v[at++], line + 5, no);
            checked++;
        }
    }
    fclose(f);
    pretok_free(p);
    assert_int_equal(checked, 6 * s.n);
    for (int i = 0; i < s.n; i++)
        buf_done(&s.v[i]);
}

/* Every pattern gives back all bytes, in order, with none empty. */
TEST(covers_all_text)
{
    static const char *const names[] = {"gpt2",         "smollm",      "llama3", "qwen2",
                                        "deepseek-llm", "deepseek-v3", "o200k",  "kimi"};
    uint64_t seed = test_seed();

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct pretok *p = NULL;
        struct pretok_it *it = NULL;
        struct err e = {0};

        assert_int_equal(pretok_new(names[i], &p, &e), 0);
        assert_string_equal(pretok_name(p), names[i]);
        assert_int_equal(pretok_it_new(p, &it, &e), 0);
        for (int round = 0; round < 300; round++) {
            struct buf b;
            size_t off, len, at = 0;

            buf_init(&b, 0);
            for (uint64_t n = test_rand(&seed) % 60; n; n--) {
                static const uint32_t top[] = {0x80, 0x80, 0x80, 0x800, 0xd800, 0x110000};
                uint32_t cp = (uint32_t)test_rand(&seed) % top[test_rand(&seed) % 6];
                char c[4];
                if (cp < 0xd800 || cp > 0xdfff)
                    buf_add(&b, c, (size_t)utf8_put(cp, c));
            }
            pretok_it_start(it, b.p ? b.p : "", b.len);
            while (pretok_it_next(it, &off, &len, &e) > 0) {
                assert_int_equal(off, at);
                assert_true(len > 0);
                at += len;
            }
            assert_int_equal(at, b.len);
            buf_done(&b);
        }
        pretok_it_free(it);
        pretok_free(p);
    }
}

TEST(knows_names_and_patterns)
{
    static const char *const qwen[] = {
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"};
    static const char *const other[] = {"\\w+"};
    static const char *const digits_only[] = {"\\p{N}"};
    struct pretok *p = NULL;
    struct err e = {0};

    assert_string_equal(pretok_recognise(qwen, 1), "qwen2");
    assert_null(pretok_recognise(other, 1));
    assert_null(pretok_recognise(digits_only, 1));
    assert_null(pretok_recognise(NULL, 0));
    assert_int_equal(pretok_new("tekken", &p, &e), -1);
    assert_int_equal(e.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "'tekken'"));
    assert_non_null(strstr(e.msg, "deepseek-v3"));
    assert_int_equal(pretok_new("llama-bpe", &p, &e), 0);
    assert_string_equal(pretok_name(p), "llama3");
    pretok_free(p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(splits_as_published),
    cmocka_unit_test(covers_all_text),
    cmocka_unit_test(knows_names_and_patterns),
};

TEST_MAIN("pretok", tests)

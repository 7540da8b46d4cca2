/* Generated tokens to text: stops over token borders, held characters, records. */
#include "tests/tok_help.h"

#include "daemon/serve/textout.h"

static const char *const no_added[] = {"<|end|>", NULL};

/* Every byte is a token of its own: any grouping of bytes into pushes can be tried. */
struct run {
    struct buf text;
    bool stopped;
    int n_tokens;
    size_t n_records, raw_bytes;
};

static struct run run(const struct tokenizer *t, const char *p, size_t n,
                      const char *const *stops, int n_stops, size_t chunk)
{
    struct run r = {.stopped = false};
    struct step_token *toks = calloc(n + 1, sizeof(*toks));
    size_t lens[8], at = 0, last_off = 0;
    struct textout *o;

    for (int i = 0; i < n_stops; i++)
        lens[i] = strlen(stops[i]);
    for (size_t i = 0; i < n; i++)
        toks[i].id = (unsigned char)p[i];
    buf_init(&r.text, 0);
    buf_add(&r.text, "", 0);
    o = textout_new(t, stops, lens, n_stops, true);
    while (at < n || n == 0) {
        size_t k = n - at < chunk ? n - at : chunk;
        const struct textout_tok *rec;
        const char *raw;
        bool stopped = textout_push(o, toks + at, (int)k, &r.text);

        at += k;
        if (at == n && !stopped)
            textout_end(o, &r.text);
        for (size_t i = 0, m = textout_take(o, &rec, &raw); i < m; i++) {
            assert_int_equal(rec[i].raw_len, 1);
            assert_int_equal(raw[rec[i].raw_off], (char)rec[i].tok.id);
            assert_int_equal(rec[i].tok.id, (unsigned char)p[r.n_records]);
            assert_true(rec[i].text_off >= last_off && rec[i].text_off <= r.text.len);
            last_off = rec[i].text_off;
            r.n_records++;
        }
        assert_int_equal(utf8_span(r.text.p, r.text.len), r.text.len);
        if (stopped || at >= n)
            break;
    }
    r.stopped = textout_stopped(o);
    r.n_tokens = textout_n_tokens(o);
    textout_free(o);
    free(toks);
    return r;
}

struct stop_case {
    const char *in;
    const char *stops[4];
    const char *want;
    bool stopped;
    int n_tokens;
};

TEST(stops)
{
    static const struct stop_case cases[] = {
        {"hello", {NULL}, "hello", false, 5},
        {"hello END more", {"END"}, "hello ", true, 9},
        {"END", {"END"}, "", true, 3},
        {"hello EN", {"END"}, "hello EN", false, 8},
        {"ENENDx", {"END"}, "EN", true, 5},
        {"aabaabaaa", {"aabaaa"}, "aab", true, 9},
        {"xyabc", {"abc", "b"}, "xya", true, 4}, /* b is complete first */
        {"xyab", {"b", "ab"}, "xy", true, 4},    /* at one byte: the longest */
        {"one\n\ntwo", {"\n\n"}, "one", true, 5},
        {"caf\u00e9 \u20ac!", {"\u20ac"}, "caf\u00e9 ", true, 9},
        {"\xff\xfe!", {"!"}, "\ufffd\ufffd", true, 3},
        {"abc\xe2\x82", {"abd"}, "abc\ufffd", false, 5},
        {"a\xe2\x82STOP", {"STOP"}, "a\ufffd", true, 7},
    };
    struct tokenizer *t = open_tiny(no_added, NULL);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct stop_case *c = &cases[i];
        int n = 0;

        while (n < 4 && c->stops[n])
            n++;
        for (size_t chunk = 1; chunk < 20; chunk++) {
            struct run r = run(t, c->in, strlen(c->in), c->stops, n, chunk);
            assert_string_equal(r.text.p, c->want);
            assert_int_equal(r.stopped, c->stopped);
            assert_int_equal(r.n_tokens, c->n_tokens);
            buf_done(&r.text);
        }
    }
    tokenizer_free(t);
}

/* Against the plain definition, on texts of few letters so that stops meet often. */
TEST(stops_as_defined)
{
    struct tokenizer *t = open_tiny(no_added, NULL);
    uint64_t seed = test_seed();

    for (int round = 0; round < 3000; round++) {
        char text[33] = "", stop[3][5];
        const char *stops[3];
        size_t n = test_rand(&seed) % 32, best = SIZE_MAX, cut = n;
        int n_stops = 1 + (int)(test_rand(&seed) % 3);
        struct run a, b;

        for (size_t i = 0; i < n; i++)
            text[i] = "ab"[test_rand(&seed) % 2];
        for (int s = 0; s < n_stops; s++) {
            size_t k = 1 + test_rand(&seed) % 4;
            for (size_t i = 0; i < k; i++)
                stop[s][i] = "abc"[test_rand(&seed) % 3];
            stop[s][k] = '\0';
            stops[s] = stop[s];
        }
        for (int s = 0; s < n_stops; s++) {
            const char *at = strstr(text, stop[s]);
            size_t end = at ? (size_t)(at - text) + strlen(stop[s]) : SIZE_MAX;
            if (end < best || (end == best && at && (size_t)(at - text) < cut)) {
                best = end;
                cut = at ? (size_t)(at - text) : cut;
            }
        }
        a = run(t, text, n, stops, n_stops, 1);
        b = run(t, text, n, stops, n_stops, 1 + test_rand(&seed) % 8);
        assert_int_equal(a.stopped, best != SIZE_MAX);
        assert_int_equal(a.text.len, cut);
        assert_int_equal(a.n_tokens, best == SIZE_MAX ? n : best);
        assert_memory_equal(a.text.p, text, cut);
        assert_string_equal(a.text.p, b.text.p);
        assert_int_equal(a.n_tokens, b.n_tokens);
        assert_int_equal(a.n_records, cut);
        assert_int_equal(b.n_records, cut);
        buf_done(&a.text);
        buf_done(&b.text);
    }
    tokenizer_free(t);
}

/* Only what may still become a stop is held back. */
TEST(holds_no_more_than_needed)
{
    struct tokenizer *t = open_tiny(no_added, NULL);
    const char *stops[] = {"<end>"};
    size_t lens[] = {5};
    struct textout *o = textout_new(t, stops, lens, 1, true);
    struct step_token tok = {.id = 'x'};
    struct buf b;

    buf_init(&b, 0);
    textout_push(o, &tok, 1, &b);
    assert_string_equal(b.p, "x");
    tok.id = '<';
    textout_push(o, &tok, 1, &b);
    assert_string_equal(b.p, "x");
    tok.id = '<';
    textout_push(o, &tok, 1, &b);
    assert_string_equal(b.p, "x<");
    tok.id = 'e';
    textout_push(o, &tok, 1, &b);
    assert_string_equal(b.p, "x<");
    tok.id = '!';
    textout_push(o, &tok, 1, &b);
    assert_string_equal(b.p, "x<<e!");
    textout_end(o, &b);
    assert_string_equal(b.p, "x<<e!");
    textout_free(o);
    buf_done(&b);
    tokenizer_free(t);
}

TEST(control_tokens_have_no_text)
{
    struct tokenizer *t = open_tiny(no_added, NULL);
    struct textout *o = textout_new(t, NULL, NULL, 0, true);
    struct step_token toks[] = {{.id = 'a'}, {.id = 256}, {.id = 'b'}, {.id = 9999}};
    const struct textout_tok *rec;
    const char *raw;
    struct buf b;

    buf_init(&b, 0);
    textout_push(o, toks, 4, &b);
    assert_string_equal(b.p, "ab");
    assert_int_equal(textout_take(o, &rec, &raw), 4);
    assert_int_equal(rec[1].raw_len, 0);
    assert_int_equal(rec[2].text_off, 1);
    assert_int_equal(textout_take(o, &rec, &raw), 0);
    assert_int_equal(textout_n_tokens(o), 4);
    textout_free(o);
    textout_free(NULL);
    buf_done(&b);
    tokenizer_free(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(stops),
    cmocka_unit_test(stops_as_defined),
    cmocka_unit_test(holds_no_more_than_needed),
    cmocka_unit_test(control_tokens_have_no_text),
};

TEST_MAIN("textout", tests)

/* Tokenizer: recorded vectors, a naive reference, special tokens, hostile texts, limits.
 */
#include "tests/tok_help.h"

#include "base/mem.h"

static void assert_decodes(const struct tokenizer *t, const struct tok_ids *ids,
                           const char *p, size_t n)
{
    struct buf b;

    buf_init(&b, 0);
    tokenizer_decode(t, ids->v, ids->n, true, &b);
    assert_int_equal(b.len, n);
    assert_memory_equal(b.p ? b.p : "", p, n);
    buf_done(&b);
}

/* ---- recorded vectors ---- */

static struct buf slurp_vectors(const char *name, const char *ext)
{
    char rel[256];

    snprintf(rel, sizeof(rel), "tokenizer-vectors/ggml-vocab-%s.gguf.%s", name, ext);
    return slurp(test_shared(rel));
}

static int check_vectors(const struct tokenizer *t, const char *name)
{
    static const char sep[] = "\n__ggml_vocab_test__\n";
    struct buf inp = slurp_vectors(name, "inp"), out = slurp_vectors(name, "out");
    char *s = inp.p, *line = out.p, *end;
    int n = 0;

    while ((end = strstr(s, sep))) {
        struct tok_ids ids = encode(t, s, (size_t)(end - s), 0);
        char *eol = strchr(line, '\n');

        assert_non_null(eol);
        *eol = '\0';
        for (size_t i = 0; i < ids.n; i++)
            if (strtol(line, &line, 10) != ids.v[i])
                fail_msg("%s: string %d, token %zu is %d", name, n, i, ids.v[i]);
        if (*line)
            fail_msg("%s: string %d, '%s' is missing", name, n, line);
        assert_decodes(t, &ids, s, (size_t)(end - s));
        tok_ids_done(&ids);
        line = eol + 1;
        s = end + sizeof(sep) - 1;
        n++;
    }
    buf_done(&inp);
    buf_done(&out);
    return n;
}

static void vectors_of(const char *name)
{
    struct tokenizer *t = open_vector_vocab(name);

    assert_int_equal(check_vectors(t, name), 46);
    tokenizer_free(t);
}

TEST(vectors_gpt2) { vectors_of("gpt-2"); }
TEST(vectors_starcoder) { vectors_of("starcoder"); }
TEST(vectors_deepseek_llm) { vectors_of("deepseek-llm"); }

TEST(vectors_smollm)
{
    struct tokenizer *t = open_gguf(test_demo_model());

    assert_int_equal(check_vectors(t, "smollm"), 46);
    assert_string_equal(tokenizer_kind(t), "bpe:smollm");
    tokenizer_free(t);
}

/* ---- merging against its plain definition ---- */

struct rank {
    char pair[64];
    int rank;
};

struct naive {
    struct rank *v;
    size_t n;
};

static int by_pair(const void *a, const void *b)
{
    return strcmp(((const struct rank *)a)->pair, ((const struct rank *)b)->pair);
}

static struct naive naive_load(const char *path)
{
    struct buf file = slurp(path);
    struct gguf_str *m;
    struct naive nv = {NULL, 0};
    struct gguf *g = NULL;
    size_t n = 0;

    assert_int_equal(gguf_parse(path, file.p, file.len, &g, NULL), 0);
    assert_int_equal(gguf_arr_len(g, "tokenizer.ggml.merges", &n, NULL), 0);
    m = calloc(n, sizeof(*m));
    nv.v = calloc(n, sizeof(*nv.v));
    assert_int_equal(gguf_arr_strings(g, "tokenizer.ggml.merges", m, n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        if (m[i].n < sizeof(nv.v->pair)) {
            memcpy(nv.v[nv.n].pair, m[i].p, m[i].n);
            nv.v[nv.n++].rank = (int)i;
        }
    qsort(nv.v, nv.n, sizeof(*nv.v), by_pair);
    free(m);
    gguf_free(g);
    buf_done(&file);
    return nv;
}

static int naive_rank(const struct naive *nv, const char *l, const char *r)
{
    struct rank key;
    const struct rank *found;

    if (snprintf(key.pair, sizeof(key.pair), "%s %s", l, r) >= (int)sizeof(key.pair))
        return INT32_MAX;
    found = bsearch(&key, nv->v, nv->n, sizeof(*nv->v), by_pair);
    return found ? found->rank : INT32_MAX;
}

/* Pieces of an ASCII word, NUL-ended in out; yields their count. */
static int naive_merge(const struct naive *nv, const char *word, char (*out)[64])
{
    int n = 0;

    for (; word[n]; n++) {
        out[n][0] = word[n];
        out[n][1] = '\0';
    }
    for (;;) {
        int best = INT32_MAX, at = 0;

        for (int i = 0; i + 1 < n; i++) {
            int r = naive_rank(nv, out[i], out[i + 1]);
            if (r < best) {
                best = r;
                at = i;
            }
        }
        if (best == INT32_MAX)
            return n;
        memcpy(out[at] + strlen(out[at]), out[at + 1], strlen(out[at + 1]) + 1);
        memmove(out[at + 1], out[at + 2], (size_t)(n - at - 2) * sizeof(*out));
        n--;
    }
}

TEST(merges_as_defined)
{
    static const char *const letters[] = {"ab", "aeiou", "etaoinshrdlu",
                                          "abcdefghijklmnopqrstuvwxyz"};
    struct naive nv =
        naive_load(test_shared("tokenizer-vectors/vocab-gguf/ggml-vocab-gpt-2.gguf"));
    struct tokenizer *t = open_vector_vocab("gpt-2");
    uint64_t seed = test_seed();
    char(*out)[64] = calloc(400, sizeof(*out));

    for (int round = 0; round < 120; round++) {
        const char *from = letters[round % 4];
        size_t n = 1 + test_rand(&seed) % (round % 3 ? 40 : 250);
        char word[256];
        struct tok_ids ids;
        int k;

        for (size_t i = 0; i < n; i++)
            word[i] = from[test_rand(&seed) % strlen(from)];
        word[n] = '\0';
        k = naive_merge(&nv, word, out);
        ids = encode(t, word, n, 0);
        assert_int_equal(ids.n, k);
        for (int i = 0; i < k; i++)
            assert_int_equal(ids.v[i], tokenizer_find(t, out[i]));
        tok_ids_done(&ids);
    }
    free(out);
    free(nv.v);
    tokenizer_free(t);
}

/* ---- special tokens ---- */

static void assert_ids(const struct tokenizer *t, const char *text, int flags,
                       const int32_t *want, size_t n)
{
    struct tok_ids ids = encode(t, text, strlen(text), flags);

    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.v, want, n * sizeof(*want));
    tok_ids_done(&ids);
}

TEST(special_tokens_are_text_unless_asked)
{
    static const int32_t end[] = {2}, turn[] = {1, 2, 2};
    struct tokenizer *t = open_gguf(test_demo_model());
    static const char text[] = "<|im_end|>";
    struct tok_ids ids = encode(t, text, sizeof(text) - 1, 0);
    const int32_t *eog;
    struct buf b;
    size_t n = 0;

    for (size_t i = 0; i < ids.n; i++)
        assert_false(tokenizer_is_control(t, ids.v[i]));
    assert_decodes(t, &ids, text, sizeof(text) - 1);
    tok_ids_done(&ids);
    assert_ids(t, text, TOK_PARSE_SPECIAL, end, 1);
    assert_ids(t, "<|im_start|><|im_end|><|im_end|>", TOK_PARSE_SPECIAL | TOK_ADD_BOS,
               turn, 3); /* this model adds no bos */
    assert_int_equal(tokenizer_find(t, text), 2);
    assert_int_equal(tokenizer_find(t, "<|im_"), -1);
    assert_int_equal(tokenizer_find(t, ""), -1);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_false(tokenizer_add_bos(t));
    eog = tokenizer_eog(t, &n);
    assert_int_equal(n, 2);
    assert_int_equal(eog[0], 2); /* eos first */
    assert_int_equal(eog[1], 0); /* <|endoftext|> */
    buf_init(&b, 0);
    tokenizer_decode(t, turn, 3, false, &b);
    assert_int_equal(b.len, 0);
    tokenizer_decode(t, turn, 3, true, &b);
    assert_string_equal(b.p, "<|im_start|><|im_end|><|im_end|>");
    buf_done(&b);
    assert_int_equal(tokenizer_n_vocab(t), 49152);
    assert_non_null(strstr(tokenizer_chat_template(t), "named SmolLM"));
    tokenizer_free(t);
}

/* User-defined tokens are matched in any text, the longest first; control ones are not.
 */
TEST(added_tokens)
{
    static const char *const added[] = {"+<a>",    "+<a><b>",  "<c>",
                                        "+\u00fc", "+<a><bc>", NULL};
    static const int32_t user[] = {257, 256, '<', 'c', '>', 259, 256, '<', 'b'},
                         all[] = {258, 256};
    struct tokenizer *t =
        open_tiny(added, "{\"bos_token\":\"<c>\",\"add_bos_token\":true}");

    assert_ids(t, "<a><b><a><c>\u00fc<a><b", 0, user, 9);
    assert_ids(t, "<a>", TOK_ADD_BOS, all, 2);
    assert_ids(t, "<c><a>", TOK_PARSE_SPECIAL, all, 2);
    assert_true(tokenizer_add_bos(t));
    assert_string_equal(tokenizer_chat_template(t), "");
    tokenizer_free(t);
}

/* ---- hostile texts ---- */

TEST(any_bytes_come_back)
{
    struct tokenizer *t = open_vector_vocab("gpt-2");
    uint64_t seed = test_seed();

    for (int round = 0; round < 300; round++) {
        struct buf b = random_text(&seed, 40);
        struct tok_ids ids;

        for (int k = round % 5; k && b.len; k--)
            b.p[test_rand(&seed) % b.len] = (char)test_rand(&seed);
        ids = encode(t, b.p, b.len, 0);
        assert_decodes(t, &ids, b.p, b.len);
        tok_ids_done(&ids);
        buf_done(&b);
    }
    tokenizer_free(t);
}

/* A megabyte of each: these end at all only if nothing is quadratic. */
static void megabytes(const char *name)
{
    enum { N = 1 << 20 };
    static const char *const units[] = {"a",    " ",   "\n", "7",   "\xcc\x81",
                                        "\xff", "'",   "A",  " \t", "\xe4\xb8\xad",
                                        "!",    "ab1 "};
    struct tokenizer *t = open_vector_vocab(name);
    uint64_t seed = test_seed();
    struct buf b;
    struct tok_ids ids;

    buf_init(&b, 0);
    for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
        buf_clear(&b);
        while (b.len < N)
            buf_puts(&b, units[u]);
        buf_puts(&b, "x7");
        ids = encode(t, b.p, b.len, 0);
        /* deepseek-llm has no token for bytes that UTF-8 never uses: they are dropped */
        if (utf8_span(b.p, b.len) == b.len)
            assert_decodes(t, &ids, b.p, b.len);
        tok_ids_done(&ids);
    }
    buf_done(&b);
    b = random_text(&seed, N / 3);
    ids = encode(t, b.p, b.len, 0);
    assert_decodes(t, &ids, b.p, b.len);
    tok_ids_done(&ids);
    buf_done(&b);
    tokenizer_free(t);
}

TEST(megabytes_gpt2) { megabytes("gpt-2"); }
TEST(megabytes_deepseek_llm) { megabytes("deepseek-llm"); }

/* ---- limits and cancel ---- */

TEST(stops_at_max_ids)
{
    struct tokenizer *t = open_vector_vocab("gpt-2");
    static const char text[] = "one two three four five six";
    struct tok_ids ids = {0};
    struct err e = {0};

    tok_ids_add(&ids, 5);
    for (size_t max = 2; max < 9; max++) {
        int rc = tokenizer_encode(t, text, sizeof(text) - 1, 0, max, NULL, &ids, &e);
        assert_int_equal(rc, max < 7 ? -1 : 0);
        assert_int_equal(ids.n, max < 7 ? 1 : 7);
        assert_int_equal(ids.v[0], 5);
        if (rc < 0)
            assert_int_equal(e.code, ERR_CONTEXT);
        ids.n = 1;
    }
    tok_ids_done(&ids);
    tokenizer_free(t);
}

TEST(cancel_inside_a_word)
{
    enum { N = 200000 };
    struct tokenizer *t = open_vector_vocab("gpt-2");
    char *text = malloc(N);
    atomic_bool cancel = true;
    struct tok_ids ids = {0};
    struct err e = {0};

    memset(text, 'a', N);
    assert_int_equal(tokenizer_encode(t, text, N, 0, 0, &cancel, &ids, &e), -1);
    assert_int_equal(e.code, ERR_CANCELED);
    assert_int_equal(ids.n, 0);
    cancel = false;
    assert_int_equal(tokenizer_encode(t, text, N, 0, 0, &cancel, &ids, &e), 0);
    tok_ids_done(&ids);
    free(text);
    tokenizer_free(t);
}

TEST(allocation_failures)
{
    static const char text[] =
        "some words and a loooooooooooooooooooooooooooooooooooong one";
    struct tokenizer *t = open_vector_vocab("gpt-2");
    int rc = -1;

    for (long n = 1; rc < 0; n++) {
        struct tok_ids ids = {0};
        struct err e = {0};

        assert_true(n < 100);
        mem_fail_at(n);
        rc = tokenizer_encode(t, text, sizeof(text) - 1, 0, 0, NULL, &ids, &e);
        mem_fail_at(0);
        if (rc < 0) {
            assert_int_equal(e.code, ERR_NOMEM);
            assert_int_equal(ids.n, 0);
        }
        tok_ids_done(&ids);
    }
    tokenizer_free(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(vectors_gpt2),
    cmocka_unit_test(vectors_starcoder),
    cmocka_unit_test(vectors_deepseek_llm),
    cmocka_unit_test(vectors_smollm),
    cmocka_unit_test(merges_as_defined),
    cmocka_unit_test(special_tokens_are_text_unless_asked),
    cmocka_unit_test(added_tokens),
    cmocka_unit_test(any_bytes_come_back),
    cmocka_unit_test(megabytes_gpt2),
    cmocka_unit_test(megabytes_deepseek_llm),
    cmocka_unit_test(stops_at_max_ids),
    cmocka_unit_test(cancel_inside_a_word),
    cmocka_unit_test(allocation_failures),
};

TEST_MAIN("tokenizer", tests)

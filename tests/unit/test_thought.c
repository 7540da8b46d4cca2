/* The answer and the thoughts before it: the same however the tokens are grouped. */
#include "tests/tok_help.h"

#include "base/mem.h"
#include "daemon/api/thought.h"

static const char *const marks[] = {"<|start|>",     "<|channel|>", "<|message|>",
                                    "<|end|>",       "<|call|>",    "<|return|>",
                                    "<|constrain|>", NULL};

static void splits(const char *text, bool open, int each, const char *answer,
                   const char *thoughts)
{
    struct tokenizer *t = open_tiny(marks, "{}");
    struct tok_ids ids = encode(t, text, strlen(text), TOK_PARSE_SPECIAL);
    struct thought *h = thought_new(TEMPLATE_HARMONY, t, open);
    struct step_token *toks = xcalloc(ids.n, sizeof(*toks));
    struct buf a, b;
    int n_answer = 0;

    buf_init(&a, 0);
    buf_init(&b, 0);
    for (size_t i = 0; i < ids.n; i++)
        toks[i].id = ids.v[i];
    for (size_t i = 0; i < ids.n; i += (size_t)each) {
        int n = ids.n - i < (size_t)each ? (int)(ids.n - i) : each;
        const struct step_token *kept = thought_split(h, toks + i, &n, &b);
        n_answer += n;
        for (int k = 0; k < n; k++)
            tokenizer_piece(t, kept[k].id, false, false, &a);
    }
    thought_end(h, &b);
    assert_int_equal(n_answer + thought_n_tokens(h), ids.n);
    buf_add(&a, "", 1);
    buf_add(&b, "", 1);
    assert_string_equal(a.p, answer);
    assert_string_equal(b.p, thoughts);
    buf_done(&a);
    buf_done(&b);
    free(toks);
    thought_free(h);
    tok_ids_done(&ids);
    tokenizer_free(t);
}

TEST(answers_and_thoughts)
{
    static const struct {
        const char *text;
        bool open;
        const char *answer, *thoughts;
    } rows[] = {
        {"<|channel|>analysis<|message|>hm \u00e9\U0001f98a<|end|><|start|>assistant"
         "<|channel|>final<|message|>4 \u00e9<|return|>",
         false, "4 \u00e9", "hm \u00e9\U0001f98a"},
        {"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=f.g"
         "<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
         false, "I look.", "{}"},
        {"<|message|>plain", false, "plain", ""},
        {" goes on<|return|>", true, " goes on", ""},
        {"<|channel|>analysis<|message|>cut \xc3", false, "", "cut \ufffd"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int each = 1; each < 9; each++)
            splits(rows[i].text, rows[i].open, each, rows[i].answer, rows[i].thoughts);
}

TEST(only_where_there_are_channels)
{
    struct tokenizer *t = open_tiny(marks, "{}");

    for (int f = 0; f < TEMPLATE_COUNT; f++) {
        struct thought *h = thought_new((enum template_family)f, t, false);
        assert_int_equal(h != NULL, f == TEMPLATE_HARMONY);
        thought_free(h);
    }
    tokenizer_free(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(answers_and_thoughts),
    cmocka_unit_test(only_where_there_are_channels),
};

TEST_MAIN("thought", tests)

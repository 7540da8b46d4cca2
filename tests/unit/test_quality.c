/* tests/unit/test_quality.c - figures of a quality run, and what permits a setting that
 * changes output. */
#include "ctl/quality_stat.c"

#include <limits.h>

#include "base/mem.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/quality.h"
#include "state/runs.h"
#include "tests/store_help.h"

/* ---- figures ---- */

static json_t *said(const char *text)
{
    json_t *o = json_loads(text, 0, NULL);

    assert_non_null(o);
    return o;
}

/* Two positions: (.5 .25 rest) and (.8 rest), then three tokens of its own. */
#define EXACT                                                                            \
    "{\"texts\":[{\"tokens\":[\"x\",\"a\",\"b\"],\"logprobs\":[null,-0."                 \
    "6931471805599453,"                                                                  \
    "-0.2231435513142097],\"tops\":[null,{\"a\":-0.6931471805599453,\"c\":"              \
    "-1.3862943611198906},{\"b\":-0.2231435513142097}],\"greedy\":[\"p\",\"q\",\"r\"]}]" \
    "}"

static void test_the_same(void **state)
{
    json_t *x = said(EXACT);
    struct quality_figures f;

    (void)state;
    ok(quality_compare(x, x, &f, &e));
    assert_int_equal(f.positions, 2);
    assert_true(f.agreement == 1 && f.kl_mean == 0 && f.kl_largest == 0);
    assert_true(f.greedy_same == 1 && f.greedy_texts_same == 1);
    assert_true(fabs(f.perplexity - sqrt(1 / (.5 * .8))) < 1e-12);
    assert_true(f.perplexity == f.perplexity_exact);
    assert_true(quality_perplexity(x, NULL) == f.perplexity);
    json_decref(x);
}

static void test_known_figures(void **state)
{
    /* (a .25, c .5) and (b .4, d .1): the second lacks c's fellow, d goes into the rest
     */
    json_t *x = said(EXACT),
           *y = said("{\"texts\":[{\"tokens\":[\"x\",\"a\",\"b\"],"
                     "\"logprobs\":[null,-1.3862943611198906,"
                     "-0.9162907318741551],\"tops\":[null,{\"a\":"
                     "-1.3862943611198906,\"c\":-0.6931471805599453},"
                     "{\"b\":-0.9162907318741551,\"d\":"
                     "-2.302585092994046}],\"greedy\":[\"p\",\"z\"]}]}");
    double one = .5 * log(2) + .25 * log(.5), two = .8 * log(2) + .2 * log(.2 / .6);
    struct quality_figures f;

    (void)state;
    ok(quality_compare(x, y, &f, &e));
    assert_true(f.agreement == .5); /* a against c; b against b */
    assert_true(fabs(f.kl_mean - (one + two) / 2) < 1e-12);
    assert_true(fabs(f.kl_largest - fmax(one, two)) < 1e-12);
    assert_true(fabs(f.perplexity - sqrt(1 / (.25 * .4))) < 1e-12);
    assert_true(fabs(f.greedy_same - 1. / 3) < 1e-12 && f.greedy_texts_same == 0);
    json_decref(x);
    json_decref(y);
}

/* How many of eight are above the i-th. */
static int above(const double v[8], int i)
{
    int n = 0;

    for (int k = 0; k < 8; k++)
        n += v[k] > v[i] || (v[k] == v[i] && k < i);
    return n;
}

/* Of many random pairs of distributions, of which the likeliest are told, the divergence
 * is never above the whole one, and never below zero. */
static void test_never_more_than_the_whole(void **state)
{
    uint64_t seed = test_seed();

    (void)state;
    for (int run = 0; run < 500; run++) {
        double p[8], q[8], sp = 0, sq = 0, whole = 0, part;
        json_t *a = json_object(), *b = json_object();

        for (int i = 0; i < 8; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            sp += p[i] = (double)(seed >> 40) + 1;
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            sq += q[i] = (double)(seed >> 40) + 1;
        }
        for (int i = 0; i < 8; i++) {
            char name[2] = {(char)('a' + i), 0};

            whole += p[i] / sp * log(p[i] / sp * sq / q[i]);
            if (above(p, i) < 5)
                json_object_set_new(a, name, json_real(log(p[i] / sp)));
            if (above(q, i) < 5)
                json_object_set_new(b, name, json_real(log(q[i] / sq)));
        }
        part = kl(a, b);
        assert_true(part >= 0 && part <= whole + 1e-9);
        json_decref(a);
        json_decref(b);
    }
}

/* What the exact model holds likely and the other does not tell at all counts as that. */
static void test_other_tokens(void **state)
{
    json_t *a = said("{\"a\":-0.1053605156578263,\"b\":-3}"),              /* a .9 */
        *b = said("{\"c\":-0.6931471805599453,\"d\":-4.605170185988091}"); /* .5, .01 */

    (void)state;
    assert_true(kl(a, b) > .9 * log(.9 / .01) - 1);
    json_decref(a);
    json_decref(b);
}

static void test_what_cannot_be_compared(void **state)
{
    json_t *x = said(EXACT), *y = said(EXACT), *none = said("{\"texts\":[]}");
    struct quality_figures f;

    (void)state;
    json_array_set_new(
        json_object_get(json_array_get(json_object_get(y, "texts"), 0), "tokens"), 1,
        json_string("other"));
    refused(quality_compare(x, y, &f, &e), ERR_INVALID, "text 1 has other tokens");
    refused(quality_compare(x, none, &f, &e), ERR_INVALID, "1 texts and the other 0");
    assert_true(isnan(quality_perplexity(none, NULL)));
    json_decref(x);
    json_decref(y);
    json_decref(none);
}

/* ---- what they permit ---- */

struct world {
    char path[PATH_MAX], file[QUALITY_FILE];
};

static struct conf *conf_of(const struct world *w, const char *lines)
{
    char *text = xasprintf("models:\n  m:\n    path: %s\ninstances:\n  main:\n"
                           "    model: m\n%s",
                           w->path, lines);
    struct conf_faults f = {0};
    struct conf *c = NULL;

    conf_parse(text, strlen(text), NULL, 0, &c, &f);
    free(text);
    if (!c)
        fail_msg("%s: %s", f.v[0].path, f.v[0].msg);
    return c;
}

static void put(const char *settings, const char *build, const char *file,
                const char *result)
{
    struct stored_run q = {.at_ms = 1, .instance = "main", .model_hash = "h"};

    q.contract = xasprintf("{\"settings\":\"%s\",\"file\":\"%s\",\"served\":"
                           "{\"build\":\"%s\"}}",
                           settings, file, build);
    q.result = xstrdup(result);
    ok(runs_put(st, RUN_QUALITY, &q, &e));
    run_done(&q);
}

#define F8 "    experts:\n      transfer: f8\n      allow_output_change: "
#define GOOD "{\"agreement\":0.99,\"kl_mean\":0.001,\"perplexity_ratio\":1.001}"

static void refused_by(const struct world *w, const char *lines, const char *words)
{
    struct conf *c = conf_of(w, lines);

    refused(quality_check(st, c, "1", &e), ERR_INVALID, words);
    conf_unref(c);
}

static void passes(const struct world *w, const char *lines)
{
    struct conf *c = conf_of(w, lines);

    ok(quality_check(st, c, "1", &e));
    conf_unref(c);
}

static void test_permission(void **state)
{
    struct world w;
    struct conf *c;
    FILE *f;

    (void)state;
    snprintf(w.path, sizeof(w.path), "%s", in_dir("model.gguf"));
    f = fopen(w.path, "w");
    assert_non_null(f);
    fclose(f);
    ok(quality_file(w.path, w.file, &e));

    passes(&w, "");
    passes(&w, F8 "trial\n"); /* may be committed .. */
    c = conf_of(&w, F8 "trial\n");
    refused(quality_allows(st, c, &c->instances[0], NULL, &e), ERR_DENIED,
            "main' (transfer=f8) runs on trial"); /* .. but not answer everybody */
    conf_unref(c);

    refused_by(&w, F8 "true\n",
               "no quality run of these settings is kept; "
               "allow_output_change: trial and llmctl quality run main");
    put("capacity=1.5 overflow=drop", "1", w.file, GOOD);
    put("transfer=f8", "1", "another", GOOD);
    refused_by(&w, F8 "true\n", "this model file is kept, one of another is");
    put("transfer=f8", "0.9", w.file, GOOD);
    refused_by(&w, F8 "true\n", "this build is kept, one of another build is");
    c = conf_of(&w, F8 "true\n"); /* that ran before the daemon was another */
    ok(quality_allows(st, c, &c->instances[0], NULL, &e));
    conf_unref(c);

    put("transfer=f8", "1", w.file, GOOD);
    passes(&w, F8 "true\n");
    refused_by(
        &w, F8 "true\n    quality:\n      agreement_min: 0.995\n",
        "greedy agreement was 0.99 in quality run 4, at least 0.995 would be right "
        "(quality.agreement_min)");
    refused_by(&w, F8 "true\n    quality:\n      kl_max: 0\n", "mean KL was 0.001");
    refused_by(&w, F8 "true\n    quality:\n      perplexity_ratio_max: 1\n",
               "perplexity over the exact one's was 1.001");
    /* the newest counts, also when it is worse; a figure that is missing is none */
    put("transfer=f8", "1", w.file, "{\"agreement\":0.5,\"kl_mean\":0.001}");
    refused_by(&w, F8 "true\n", "greedy agreement was 0.5 in quality run 5");
    put("transfer=f8", "1", w.file, "{\"agreement\":1,\"kl_mean\":0.001}");
    refused_by(&w, F8 "true\n", "run 6 has no figure of perplexity");
    /* another setting needs another run */
    refused_by(&w, F8 "true\n      capacity: 1.25\n      overflow: next-best\n",
               "transfer=f8 capacity=1.25 overflow=next-best): no quality run");
}

/* Of one model the last 100 are kept; what models said comes with one run alone. */
static void test_kept(void **state)
{
    struct stored_run q = {.at_ms = 5,
                           .instance = "a",
                           .model_hash = "h",
                           .exact = true,
                           .contract = "{\"x\":1}",
                           .result = "{\"y\":2}",
                           .reference = "{\"texts\":[]}"},
                      got, list[4];

    (void)state;
    ok(runs_put(st, RUN_QUALITY, &q, &e));
    snprintf(q.model_hash, sizeof(q.model_hash), "other");
    for (int i = 0; i < 102; i++) {
        snprintf(q.instance, sizeof(q.instance), "%s", i % 2 ? "a" : "b");
        ok(runs_put(st, RUN_QUALITY, &q, &e));
    }
    ok(runs_get(st, RUN_QUALITY, 1, &got, &e)); /* of another model */
    assert_string_equal(got.reference, "{\"texts\":[]}");
    assert_true(got.exact);
    run_done(&got);
    refused(runs_get(st, RUN_QUALITY, 3, &got, &e), ERR_NOTFOUND, "quality run 3");
    ok(runs_get(st, RUN_QUALITY, 4, &got, &e));
    run_done(&got);
    assert_int_equal(runs_list(st, RUN_QUALITY, "a", 100, list, 4, &e), 4);
    assert_int_equal(list[0].id, 99);
    assert_null(list[0].reference);
    for (int i = 0; i < 4; i++)
        run_done(&list[i]);
}

#define S(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_the_same),
    cmocka_unit_test(test_known_figures),
    cmocka_unit_test(test_never_more_than_the_whole),
    cmocka_unit_test(test_other_tokens),
    cmocka_unit_test(test_what_cannot_be_compared),
    S(test_permission),
    S(test_kept),
};
TEST_MAIN("quality", tests)

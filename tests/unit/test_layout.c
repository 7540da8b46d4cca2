/* Layout words: read, print, check, list. */
#include "tests/test.h"

#include "base/err.h"
#include "topo/layout.h"
#include "topo/shapes.h"

static struct shapes s;

static void load(const char *name)
{
    struct err e = {0};
    char path[256];

    snprintf(path, sizeof(path), "etc/models/%s.json", name);
    if (shapes_open(path, &s, &e) < 0)
        fail_msg("%s: %s", path, e.msg);
}

static struct layout parse(const char *text)
{
    struct layout l;
    struct err e = {0};

    if (layout_parse(text, &l, &e) < 0)
        fail_msg("'%s': %s", text, e.msg);
    return l;
}

static void prints(const char *text, const char *want)
{
    struct layout l = parse(text);
    char out[128];

    layout_print(&l, out, sizeof(out));
    assert_string_equal(out, want);
}

static void words(void **st)
{
    (void)st;
    struct layout l = parse("tp2,adp=8 ep8 etp2");
    assert_int_equal(l.tp, 2);
    assert_int_equal(l.adp, 8);
    assert_int_equal(l.pp, 1);
    assert_int_equal(layout_ranks(&l), 16);
    prints("tp8", "tp8");
    prints("", "tp1");
    prints("pp4 tp2 adp8 ep8", "pp4 tp2 adp8 ep8 etp2");
    prints("x2, adp8 , ep8", "adp8 ep8 etp1 x2");
    prints("cp4 tp2", "cp4 tp2 ring");
    prints("cp8 usp cp_u4 sp", "cp8 cp_u4 usp sp");
    prints("replicas=3", "x3");
    prints("cp2 striped", "cp2 striped");
}

static void bad_words(void **st)
{
    static const char *const bad[] = {
        "tp",  "tp0",  "tp99999", "8",     "tp-1",
        "zp4", "tp=",  "tp4x",    "ring2", "sp2",
        "=4",  "tpp4", "tp 8",    "tp4=",  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    struct layout l = {.tp = 77};
    struct err e;

    (void)st;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (layout_parse(bad[i], &l, &e) == 0)
            fail_msg("'%s' was taken", bad[i]);
    assert_int_equal(l.tp, 77);
}

static void gives(const char *model, const char *text, enum layout_fault want)
{
    struct layout l = parse(text);
    struct err e = {0};
    enum layout_fault f;

    load(model);
    f = layout_check(&l, &s, 0, &e);
    if (f != want)
        fail_msg("%s on %s: %s (%s)", text, model, layout_fault_text(f), e.msg);
    assert_int_equal(f == LAYOUT_NONE, !*e.msg);
}

static void checks(void **st)
{
    (void)st;
    gives("llama-3.1-70b", "tp8", LAYOUT_NONE);
    gives("llama-3.1-70b", "tp8 pp3", LAYOUT_NONE);
    gives("llama-3.1-70b", "tp16", LAYOUT_NONE); /* KV heads repeat twice */
    gives("llama-3.1-70b", "tp6", LAYOUT_HEADS);
    gives("llama-3.1-70b", "pp81", LAYOUT_LAYERS);
    gives("llama-3.1-70b", "adp2", LAYOUT_DENSE);
    gives("llama-3.1-70b", "tp2 ep2", LAYOUT_DENSE);
    gives("smollm2-135m", "tp3", LAYOUT_NONE);
    gives("smollm2-135m", "tp9", LAYOUT_WIDTH);
    gives("smollm2-135m", "tp2", LAYOUT_HEADS);
    gives("deepseek-r1", "adp8 ep8", LAYOUT_NONE);
    gives("deepseek-r1", "tp8 ep8", LAYOUT_NONE);
    gives("deepseek-r1", "tp8", LAYOUT_NONE);
    gives("deepseek-r1", "adp8 ep4 etp1", LAYOUT_REGROUP);
    gives("deepseek-r1", "adp8 ep3", LAYOUT_REGROUP);
    gives("deepseek-r1", "adp12 ep12", LAYOUT_EXPERTS);
    gives("deepseek-r1", "tp32 ep1", LAYOUT_SCALES);
    gives("qwen3-235b-a22b", "tp8", LAYOUT_NONE);
    gives("kimi-k3", "tp16 ep16", LAYOUT_NONE);
    gives("kimi-k3", "tp8 cp2", LAYOUT_CONTEXT);
    gives("llama-3.1-8b", "cp4 ulysses", LAYOUT_NONE);
    gives("llama-3.1-8b", "tp8 cp8 ulysses", LAYOUT_CONTEXT);
    gives("llama-3.1-8b", "tp8 cp8 usp cp_u4", LAYOUT_NONE);
    gives("llama-3.1-8b", "cp8 usp cp_u3", LAYOUT_CONTEXT);
    gives("llama-3.1-8b", "ring", LAYOUT_CONTEXT);
}

/* The known trap: Qwen3-235B in FP8 blocks of 128 cannot be cut to experts of 192. */
static void scale_blocks(void **st)
{
    struct layout tp8 = parse("tp8"), tp4 = parse("tp4"), ep8 = parse("tp8 ep8");
    struct err e = {0};

    (void)st;
    load("qwen3-235b-a22b");
    assert_int_equal(shapes_set_precision(&s, "fp8", &e), 0);
    assert_int_equal(layout_check(&tp8, &s, 0, &e), LAYOUT_SCALES);
    assert_non_null(strstr(e.msg, "1536"));
    assert_int_equal(layout_check(&tp4, &s, 0, &e), LAYOUT_NONE);
    assert_int_equal(layout_check(&ep8, &s, 0, &e), LAYOUT_NONE);
}

static void replica_slots(void **st)
{
    struct layout l = parse("adp72 ep72");
    struct err e = {0};

    (void)st;
    load("deepseek-v3");
    assert_int_equal(layout_check(&l, &s, 0, &e), LAYOUT_EXPERTS);
    assert_int_equal(layout_check(&l, &s, 32, &e), LAYOUT_NONE); /* 288 over 72 */
}

/* Layers of the stages: all of them, once, in order, even within one. */
static void stages(void **st)
{
    (void)st;
    load("deepseek-v3");
    for (int pp = 1; pp <= s.n_layer; pp++) {
        struct layout l = {pp, 1, 1, 1, 1, 1, false, CP_NONE, 1, 1};
        int next = 0;
        for (int i = 0; i < pp; i++) {
            int first, n = layout_layers(&l, &s, i, &first);
            assert_int_equal(first, next);
            assert_true(n == s.n_layer / pp || n == s.n_layer / pp + 1);
            next += n;
        }
        assert_int_equal(next, s.n_layer);
    }
}

/* The published 64-GPU mesh, on a model of 64 experts of its shape. */
static void mesh_64(void **st)
{
    struct layout l = parse("pp4 tp2 adp8 ep8 etp2");
    struct err e = {0};

    (void)st;
    load("mixtral-8x7b");
    s.n_expert = 64;
    assert_int_equal(layout_check(&l, &s, 0, &e), LAYOUT_NONE);
    assert_int_equal(layout_ranks(&l), 64);
    assert_int_equal(s.n_expert / l.ep, 8);
    l.replicas = 2;
    assert_int_equal(layout_ranks(&l) * l.replicas, 128);
}

struct seen {
    int n, allowed, want;
    char line[4096][64];
};

static bool note(void *arg, const struct layout *l, enum layout_fault f)
{
    struct seen *w = arg;

    assert_int_equal(layout_ranks(l), w->want);
    if (s.n_expert)
        assert_int_equal(l->ep * l->etp, layout_stage(l));
    layout_print(l, w->line[w->n++], 64);
    w->allowed += f == LAYOUT_NONE;
    return w->n < 4096;
}

static bool has(const struct seen *w, const char *text)
{
    for (int i = 0; i < w->n; i++)
        if (!strcmp(w->line[i], text))
            return true;
    return false;
}

static void listing(void **st)
{
    static struct seen a;

    (void)st;
    load("deepseek-r1");
    a.want = 8;
    layout_enumerate(&s, 8, false, note, &a);
    assert_true(has(&a, "tp8"));
    assert_true(has(&a, "tp8 ep8 etp1"));
    assert_true(has(&a, "adp8 ep8 etp1"));
    assert_true(has(&a, "pp2 tp2 adp2 ep2 etp2"));
    for (int i = 0; i < a.n; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(a.line[i], a.line[j]);
    assert_true(a.allowed > 8 && a.allowed <= a.n);

    /* dense: the divisors of 8 over pp and tp, and over pp, cp and tp */
    load("llama-3.1-8b");
    memset(&a, 0, sizeof(a));
    a.want = 8;
    layout_enumerate(&s, 8, false, note, &a);
    assert_int_equal(a.n, 4);
    layout_enumerate(&s, 8, true, note, &a);
    assert_true(has(&a, "cp8 cp_u4 usp"));
    assert_true(has(&a, "cp2 tp4 ulysses"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words),         cmocka_unit_test(bad_words),
        cmocka_unit_test(checks),        cmocka_unit_test(scale_blocks),
        cmocka_unit_test(replica_slots), cmocka_unit_test(stages),
        cmocka_unit_test(mesh_64),       cmocka_unit_test(listing)};
    return test_main(argc, argv, "layout", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/unit/test_loader.c - facts and vocabulary of a model, opened on a thread. */
#include "tests/test.h"

#include <stdbool.h>

#include "base/err.h"
#include "base/loop.h"
#include "daemon/ctrl/loader.h"
#include "daemon/serve/tokenizer.h"

struct outcome {
    struct loop *l;
    struct loaded m;
    struct err why;
    int calls;
    bool failed;
};

static void on_done(void *arg, struct loaded *m, const struct err *why)
{
    struct outcome *o = arg;

    assert_true(!m == !!why);
    o->calls++;
    o->failed = why != NULL;
    if (m)
        o->m = *m;
    else
        o->why = *why;
    loop_stop(o->l);
}

static void load(struct outcome *o, loader_open_fn open, const char *path,
                 const char *name)
{
    struct loader *ld;
    struct err e;

    memset(o, 0, sizeof(*o));
    assert_int_equal(loop_new(&o->l, &e), 0);
    assert_int_equal(loader_start(o->l, open, path, name, on_done, o, &ld, &e), 0);
    assert_int_equal(loop_run(o->l, &e), 0);
    loader_free(ld);
    loop_free(o->l);
    assert_int_equal(o->calls, 1);
}

static void demo_model(void **state)
{
    const char *path = test_demo_model();
    struct outcome o;

    (void)state;
    load(&o, loader_open_model, path, "");
    assert_false(o.failed);
    assert_string_equal(o.m.facts.family, "llama");
    assert_string_equal(o.m.facts.format, "gguf");
    assert_string_equal(o.m.facts.main_type, "Q4_1");
    assert_string_equal(o.m.facts.path, path);
    assert_int_equal(o.m.facts.chat, TEMPLATE_SMOLLM2);
    assert_int_equal(o.m.facts.n_vocab, 49152);
    assert_true(o.m.facts.name[0] && o.m.facts.created_s > 0);
    assert_int_equal(tokenizer_n_vocab(o.m.tok), 49152);
    tokenizer_free(o.m.tok);
    free(o.m.shapes);
    load(&o, loader_open_model, path, "mine");
    assert_string_equal(o.m.facts.name, "mine");
    tokenizer_free(o.m.tok);
    free(o.m.shapes);
}

static void faults(void **state)
{
    struct outcome o;

    (void)state;
    load(&o, loader_open_model, "/nonexistent/x.gguf", "");
    assert_true(o.failed);
    assert_non_null(strstr(o.why.msg, "/nonexistent/x.gguf"));
    load(&o, loader_open_model, "/proc/self/exe", "");
    assert_true(o.failed);
    load(&o, loader_open_model, "/proc", "");
    assert_true(o.failed);
}

static int give_token(const char *path, const char *name, struct loaded *ret,
                      struct err *e)
{
    (void)path, (void)name, (void)e;
    memset(ret, 0, sizeof(*ret));
    return 0;
}

/* Freed before its outcome was handed over. */
static void dropped(void **state)
{
    struct outcome o = {0};
    struct loader *ld;
    struct err e;

    (void)state;
    assert_int_equal(loop_new(&o.l, &e), 0);
    assert_int_equal(loader_start(o.l, give_token, "p", "n", on_done, &o, &ld, &e), 0);
    loader_free(ld);
    loader_free(NULL);
    assert_int_equal(loop_once(o.l, 0, &e), 0);
    assert_int_equal(o.calls, 0);
    loop_free(o.l);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(demo_model),
    cmocka_unit_test(faults),
    cmocka_unit_test(dropped),
};

TEST_MAIN("loader", tests)

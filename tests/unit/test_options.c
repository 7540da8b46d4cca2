/* tests/unit/test_options.c - defaults, and what of an instance reaches the engine. */
#include "tests/test.h"

#include "base/buf.h"
#include "base/err.h"
#include "daemon/options.h"

static void defaults(void **state)
{
    char *argv[] = {"llmrackd"};
    struct daemon_opts d = {0};
    struct engine_opts g = {0};
    struct err e;
    int rest;

    (void)state;
    assert_int_equal(
        opt_parse(daemon_opt_defs, n_daemon_opt_defs, 1, argv, &d, &rest, &e), 0);
    assert_int_equal(
        opt_parse(engine_opt_defs, n_engine_opt_defs, 1, argv, &g, &rest, &e), 0);
    assert_string_equal(d.listen, "127.0.0.1:8080");
    assert_string_equal(d.state_dir, "./var");
    assert_int_equal(d.inst.step_tok, 512);
    assert_int_equal(d.max_body_mib, 8);
    assert_int_equal(d.max_connections, 4096);
    assert_true(d.inst.reuse);
    assert_null(d.inst.model);
    assert_int_equal(g.inst.max_seqs, 64);
}

/* What the daemon was given arrives in the engine unchanged. */
static void passes_on(void **state)
{
    char *argv[] = {"llmrackd",       "--model=m file.gguf", "--no-reuse",
                    "--mode",         "colocated",           "--kv-type=bf16",
                    "--step-tok=128", "--threads",           "2"};
    char *out[32] = {"llmrack-engine"};
    struct daemon_opts d = {0};
    struct engine_opts g = {0};
    struct err e;
    int rest, n;

    (void)state;
    assert_int_equal(
        opt_parse(daemon_opt_defs, n_daemon_opt_defs, 9, argv, &d, &rest, &e), 0);
    assert_int_equal(rest, 9);
    n = options_instance_argv(&d.inst, out + 1, 31);
    assert_int_equal(n, 6);
    assert_int_equal(
        opt_parse(engine_opt_defs, n_engine_opt_defs, n + 1, out, &g, &rest, &e), 0);
    assert_string_equal(g.inst.model, "m file.gguf");
    assert_int_equal(g.inst.mode, d.inst.mode);
    assert_int_equal(g.inst.kv_type, 2);
    assert_int_equal(g.inst.step_tok, 128);
    assert_int_equal(g.inst.threads, 2);
    assert_false(g.inst.reuse);
    for (int i = 1; i <= n; i++)
        free(out[i]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(defaults),
    cmocka_unit_test(passes_on),
};

TEST_MAIN("options", tests)

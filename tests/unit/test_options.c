/* tests/unit/test_options.c - options of the daemon as values over the configuration, and
 * what of an instance reaches the engine. */
#include "tests/test.h"

#include "base/buf.h"
#include "base/err.h"
#include "daemon/ctrl/conf.h"
#include "daemon/options.h"

static int parse(int argc, char **argv, struct daemon_opts *d, struct conf_override *over,
                 struct err *e)
{
    int rest;

    assert_int_equal(
        opt_parse(daemon_opt_defs, n_daemon_opt_defs, argc, argv, d, &rest, e), 0);
    assert_int_equal(rest, argc);
    return options_overrides(d, over, 64, e);
}

static void defaults(void **state)
{
    char *argv[] = {"llmrackd"};
    struct conf_override over[64];
    struct daemon_opts d = {0};
    struct engine_opts g = {0};
    struct err e;
    int rest;

    (void)state;
    assert_int_equal(parse(1, argv, &d, over, &e), 0); /* the configuration's own */
    assert_int_equal(
        opt_parse(engine_opt_defs, n_engine_opt_defs, 1, argv, &g, &rest, &e), 0);
    assert_string_equal(d.state_dir, "./var");
    assert_null(d.model);
    assert_int_equal(g.inst.max_seqs, 64);
}

/* Every option with a path is a directive that the configuration knows. */
static void paths_are_directives(void **state)
{
    static const struct {
        const char *option, *path;
    } rows[] = {
#define X(id, name, kind, arg, path, help) {name, path},
        OVERRIDE_MAP(X)
#undef X
    };
    struct conf_row_doc doc;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool found = false;

        for (int k = 0; conf_row(k, &doc) && !found; k++) {
            const char *star = strchr(doc.path, '*');
            size_t n = star ? (size_t)(star - doc.path) : 0;

            found = star ? !strncmp(rows[i].path, doc.path, n) &&
                               !strcmp(rows[i].path + n + strlen("main"), star + 1)
                         : !strcmp(rows[i].path, doc.path);
        }
        if (!found)
            fail_msg("--%s: there is no directive %s", rows[i].option, rows[i].path);
    }
}

/* What the daemon was given arrives in the engine unchanged. */
static void passes_on(void **state)
{
    char *argv[] = {"llmrackd",
                    "--model=m file.gguf",
                    "--no-reuse",
                    "--mode",
                    "colocated",
                    "--kv-type=bf16",
                    "--set",
                    "instances.main.step_tok=128",
                    "--threads",
                    "2",
                    "--set=log_level=warn"};
    char *out[32] = {"llmrack-engine"};
    struct conf_override over[64];
    struct conf_faults faults = {0};
    struct daemon_opts d = {0};
    struct engine_opts g = {0};
    struct conf *c = NULL;
    struct err e;
    int rest, n, k;

    (void)state;
    k = parse(11, argv, &d, over, &e);
    assert_int_equal(k, 8);
    if (conf_parse("", 0, over, k, &c, &faults) < 0)
        fail_msg("%s: %s", faults.v[0].path, faults.v[0].msg);
    assert_string_equal(c->log_level, "warn");
    assert_int_equal(c->n_instances, 1);
    n = conf_engine_args(c, &c->instances[0], out + 1, 31);
    assert_int_equal(n, 6);
    assert_int_equal(
        opt_parse(engine_opt_defs, n_engine_opt_defs, n + 1, out, &g, &rest, &e), 0);
    assert_int_equal(rest, n + 1);
    assert_string_equal(g.inst.model, "m file.gguf");
    assert_int_equal(g.inst.mode, 1);
    assert_int_equal(g.inst.kv_type, 2);
    assert_int_equal(g.inst.step_tok, 128);
    assert_int_equal(g.inst.threads, 2);
    assert_false(g.inst.reuse);
    for (int i = 1; i <= n; i++)
        free(out[i]);
    conf_unref(c);
    options_overrides_free(over, k);
}

/* An engine of defaults is the same engine, whichever side says them. */
static void defaults_agree(void **state)
{
    char *argv[] = {"llmrack-engine"};
    struct engine_opts g = {0};
    struct conf_faults faults = {0};
    const struct conf_instance *i;
    const struct conf_override over[] = {{"models.main.path", "m"},
                                         {"instances.main.model", "main"}};
    struct conf *c = NULL;
    int rest;

    (void)state;
    assert_int_equal(conf_parse("", 0, over, 2, &c, &faults), 0);
    assert_int_equal(
        opt_parse(engine_opt_defs, n_engine_opt_defs, 1, argv, &g, &rest, NULL), 0);
    i = &c->instances[0];
    assert_int_equal(i->mode, g.inst.mode);
    assert_int_equal(i->step_tok, g.inst.step_tok);
    assert_int_equal(i->max_seqs, g.inst.max_seqs);
    assert_int_equal(i->prefill_run, g.inst.prefill_run);
    assert_int_equal(i->order, g.inst.order);
    assert_int_equal(i->refuse_late, g.inst.refuse_late);
    assert_int_equal(i->kv.host_mib, g.inst.kv_host_mib);
    assert_int_equal(i->kv.disk_mib, g.inst.kv_disk_mib);
    assert_int_equal(i->max_waiting, g.inst.max_waiting);
    assert_int_equal(i->ctx, g.inst.ctx);
    assert_int_equal(i->threads, g.inst.threads);
    assert_int_equal(i->kv.mib, g.inst.kv_mib);
    assert_int_equal(i->kv.type, g.inst.kv_type);
    assert_int_equal(i->kv.reuse, g.inst.reuse);
    assert_int_equal(i->isa, g.inst.isa);
    assert_int_equal(i->backend, g.inst.backend);
    assert_int_equal(i->executor, g.inst.executor);
    conf_unref(c);
}

static void set_needs_a_path(void **state)
{
    char *argv[] = {"llmrackd", "--set", "nonsense"};
    struct conf_override over[64];
    struct daemon_opts d = {0};
    struct err e;

    (void)state;
    assert_int_equal(parse(3, argv, &d, over, &e), -1);
    assert_string_equal(e.msg, "--set 'nonsense': PATH=VALUE would be right");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(defaults),         cmocka_unit_test(paths_are_directives),
    cmocka_unit_test(passes_on),        cmocka_unit_test(defaults_agree),
    cmocka_unit_test(set_needs_a_path),
};

TEST_MAIN("options", tests)

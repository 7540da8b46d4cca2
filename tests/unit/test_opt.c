/* tests/unit/test_opt.c - the option parser: each kind, each fault's sentence, help. */
#include "tests/test.h"

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/opt.h"

struct target {
    const char *name;
    int64_t count;
    bool on, off;
    int color;
};

static const struct opt_def defs[] = {
    {"name", OPT_STR, offsetof(struct target, name), 0, 0, NULL, "x", "NAME", "a name"},
    {"count", OPT_INT, offsetof(struct target, count), 1, 9, NULL, "3", "N", "a count"},
    {"on", OPT_BOOL, offsetof(struct target, on), 0, 0, NULL, "yes", NULL, "a flag"},
    {"off", OPT_BOOL, offsetof(struct target, off), 0, 0, NULL, NULL, NULL, "a flag"},
    {"color", OPT_ENUM, offsetof(struct target, color), 0, 0, "red|green|blue", "green",
     NULL, "a colour"},
};
enum { N = sizeof(defs) / sizeof(defs[0]) };

static int parse(const char *line, struct target *t, int *rest, struct err *e)
{
    static char words[256];
    char *argv[16] = {"prog"}, *save;
    int argc = 1;

    snprintf(words, sizeof(words), "%s", line);
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    return opt_parse(defs, N, argc, argv, t, rest, e);
}

static void takes(void **state)
{
    struct target t = {0};
    struct err e;
    int rest;

    (void)state;
    assert_int_equal(parse("", &t, &rest, &e), 0);
    assert_string_equal(t.name, "x");
    assert_int_equal(t.count, 3);
    assert_true(t.on && !t.off);
    assert_int_equal(t.color, 1);
    assert_int_equal(
        parse("--name=a=b --count 9 --no-on --off --color blue file --name z", &t, &rest,
              &e),
        0);
    assert_string_equal(t.name, "a=b");
    assert_int_equal(t.count, 9);
    assert_true(!t.on && t.off);
    assert_int_equal(t.color, 2);
    assert_int_equal(rest, 8);
    assert_int_equal(parse("--name= -- --off", &t, &rest, &e), 0);
    assert_string_equal(t.name, "");
    assert_false(t.off);
    assert_int_equal(rest, 3);
}

static void refuses(void **state)
{
    static const struct {
        const char *line, *part;
        enum err_code code;
    } rows[] = {
        {"--nam x", "did you mean --name?", ERR_INVALID},
        {"--zzzzzzzz", "--help lists them", ERR_INVALID},
        {"-n", "begin with two dashes", ERR_INVALID},
        {"--count", "needs a value", ERR_INVALID},
        {"--count=", "needs a number", ERR_INVALID},
        {"--count=7x", "needs a number", ERR_INVALID},
        {"--count=99999999999999999999", "needs a number", ERR_INVALID},
        {"--count=10", "from 1 to 9", ERR_RANGE},
        {"--color=gre", "one of red|green|blue", ERR_INVALID},
        {"--on=yes", "takes no value", ERR_INVALID},
        {"--no-name", "there is no option", ERR_INVALID},
    };
    struct target t = {0};
    struct err e;
    int rest;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        err_clear(&e);
        assert_int_equal(parse(rows[i].line, &t, &rest, &e), -1);
        assert_int_equal(e.code, rows[i].code);
        assert_non_null(strstr(e.msg, rows[i].part));
    }
}

static void helps(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    opt_help(defs, N, &b);
    assert_non_null(strstr(b.p, "  --count N "));
    assert_non_null(strstr(b.p, "(default 3)"));
    assert_non_null(strstr(b.p, "--[no-]on"));
    assert_non_null(strstr(b.p, "--color red|green|blue"));
    buf_clear(&b);
    opt_man(defs, N, &b);
    assert_non_null(strstr(b.p, ".TP\n.B \\-\\-name NAME\na name (default x)\n"));
    buf_done(&b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(takes),
    cmocka_unit_test(refuses),
    cmocka_unit_test(helps),
};

TEST_MAIN("opt", tests)

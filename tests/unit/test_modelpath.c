/* tests/unit/test_modelpath.c - what may be opened as a model, and what may not. */
#include "tests/store_help.h"

#include <unistd.h>

#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/modelpath.h"

static const char *roots[2];
static struct conf conf = {.model_roots = roots, .n_model_roots = 2};

/* dir/in and dir/also are roots, dir/out is none. */
static int make(void **state)
{
    static char a[160], b[160];
    FILE *f;

    if (dir_make(state) < 0)
        return -1;
    snprintf(a, sizeof(a), "%s/in", dir);
    snprintf(b, sizeof(b), "%s/also", dir);
    roots[0] = a;
    roots[1] = b;
    mkdir(a, 0700);
    mkdir(b, 0700);
    mkdir(in_dir("out"), 0700);
    mkdir(in_dir("in/folder"), 0700);
    mkdir(in_dir("inside"), 0700);
    f = fopen(in_dir("in/m.gguf"), "w");
    fclose(f);
    f = fopen(in_dir("out/m.gguf"), "w");
    fclose(f);
    f = fopen(in_dir("inside/m.gguf"), "w");
    fclose(f);
    f = fopen(in_dir("in/folder/a"), "w");
    fclose(f);
    return 0;
}

static void below_roots(void **state)
{
    (void)state;
    ok(modelpath_check(&conf, in_dir("in/m.gguf"), &e));
    ok(modelpath_check(&conf, in_dir("in/folder"), &e));
    ok(modelpath_check(&conf, in_dir("also/../in/m.gguf"), &e));
    assert_int_equal(symlink("../in/m.gguf", in_dir("also/link")), 0);
    ok(modelpath_check(&conf, in_dir("also/link"), &e)); /* from a root to a root */
    refused(modelpath_check(&conf, in_dir("out/m.gguf"), &e), ERR_DENIED, "also");
    refused(modelpath_check(&conf, in_dir("in/../out/m.gguf"), &e), ERR_DENIED, "roots");
    refused(modelpath_check(&conf, in_dir("inside/m.gguf"), &e), ERR_DENIED, "roots");
    refused(modelpath_check(&conf, roots[0], &e), ERR_DENIED, "roots");
    refused(modelpath_check(&conf, in_dir("in/none"), &e), ERR_NOTFOUND, "none");
    refused(modelpath_check(&conf, "/dev/null", &e), ERR_DENIED, "roots");
}

static void no_way_out(void **state)
{
    (void)state;
    assert_int_equal(symlink("../out/m.gguf", in_dir("in/link")), 0);
    refused(modelpath_check(&conf, in_dir("in/link"), &e), ERR_DENIED, "roots");
    assert_int_equal(symlink("../out", in_dir("in/way")), 0);
    refused(modelpath_check(&conf, in_dir("in/way/m.gguf"), &e), ERR_DENIED, "roots");
    refused(modelpath_check(&conf, in_dir("in/way"), &e), ERR_DENIED, "roots");
    assert_int_equal(symlink("../../out/m.gguf", in_dir("in/folder/b")), 0);
    refused(modelpath_check(&conf, in_dir("in/folder"), &e), ERR_DENIED, "folder/b");
    assert_int_equal(mkfifo(in_dir("in/pipe"), 0600), 0);
    refused(modelpath_check(&conf, in_dir("in/pipe"), &e), ERR_DENIED, "regular");
}

static void the_command_line_may(void **state)
{
    char path[160];
    struct conf_model m = {.name = "a", .path = path};
    struct conf c = conf;
    struct conf_override over = {"models.a.path", path};

    (void)state;
    snprintf(path, sizeof(path), "%s/out/m.gguf", dir);
    c.models = &m;
    c.n_models = 1;
    refused(modelpath_check_all(&c, NULL, NULL, 0, &e), ERR_DENIED, "models.a.path");
    ok(modelpath_check_all(&c, NULL, &over, 1, &e));
    over.value = "/another";
    refused(modelpath_check_all(&c, NULL, &over, 1, &e), ERR_DENIED, "models.a.path");
    over.value = path;
    over.path = "models.b.path";
    refused(modelpath_check_all(&c, NULL, &over, 1, &e), ERR_DENIED, "models.a.path");
}

/* A file that went away under a running model stops no other change. */
static void what_runs_may_be_missing(void **state)
{
    char path[160], other[160];
    struct conf_model m = {.name = "a", .path = path}, was = m;
    struct conf c = conf, runs = conf;

    (void)state;
    snprintf(path, sizeof(path), "%s/in/gone.gguf", dir);
    snprintf(other, sizeof(other), "%s/in/gone too.gguf", dir);
    c.models = &m;
    runs.models = &was;
    c.n_models = runs.n_models = 1;
    refused(modelpath_check_all(&c, NULL, NULL, 0, &e), ERR_NOTFOUND, "models.a.path");
    ok(modelpath_check_all(&c, &runs, NULL, 0, &e));
    was.path = other;
    refused(modelpath_check_all(&c, &runs, NULL, 0, &e), ERR_NOTFOUND, "models.a.path");
    snprintf(path, sizeof(path), "%s/out/m.gguf",
             dir); /* the roots are asked all the same */
    was.path = path;
    refused(modelpath_check_all(&c, &runs, NULL, 0, &e), ERR_DENIED, "models.a.path");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(below_roots, make, dir_drop),
    cmocka_unit_test_setup_teardown(no_way_out, make, dir_drop),
    cmocka_unit_test_setup_teardown(the_command_line_may, make, dir_drop),
    cmocka_unit_test_setup_teardown(what_runs_may_be_missing, make, dir_drop),
};
TEST_MAIN("modelpath", tests)

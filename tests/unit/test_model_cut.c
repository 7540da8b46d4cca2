/* A model's file cut short between opening it and reading its vocabulary, in a process
 * that must live on: no crash wherever the cut is, and model_check knows. Needs the demo
 * model, whose vocabulary is large enough to be cut in many places. */
#include "daemon/serve/model.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/err.h"
#include "daemon/serve/map.h"
#include "daemon/serve/tokenizer.h"
#include "tests/files.h"

enum { HEAD = 1800000 };

/* The header of the demo model, then holes up to its size. */
static void copy_head(const char *from, const char *to)
{
    char *p = malloc(HEAD);
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    struct stat st;

    assert_non_null(p);
    assert_non_null(in);
    assert_non_null(out);
    assert_int_equal(fread(p, 1, HEAD, in), HEAD);
    assert_int_equal(fwrite(p, 1, HEAD, out), HEAD);
    assert_int_equal(fstat(fileno(in), &st), 0);
    fclose(in);
    fclose(out);
    assert_int_equal(truncate(to, st.st_size), 0);
    free(p);
}

/* In a child: 40 when all is as it should be. */
static void child(const char *path, off_t cut)
{
    struct tokenizer *t = NULL;
    struct model *m;
    struct err e = {0};

    signal(SIGBUS, SIG_DFL);
    map_sigbus_survive();
    if (model_open(path, &m, &e) < 0)
        _exit(1);
    if (truncate(path, cut) < 0)
        _exit(2);
    if (tokenizer_open(m, &t, &e) < 0 && !e.msg[0])
        _exit(3);
    if (model_check(m, &e) == 0 || strncmp(e.msg, path, strlen(path)) != 0)
        _exit(4);
    tokenizer_free(t);
    model_free(m);
    if (model_open(path, &m, &e) == 0)
        _exit(5);
    _exit(40);
}

static void survives_a_cut_before_the_vocabulary(void **state)
{
    const char *demo = test_demo_model();
    char dir[64], path[128];
    int status;
    pid_t pid;

    (void)state;
    files_temp(dir);
    snprintf(path, sizeof(path), "%s/m.gguf", dir);
    for (off_t cut = 0; cut < 1700000; cut += 97003) {
        copy_head(demo, path);
        fflush(stdout);
        pid = fork();
        assert_true(pid >= 0);
        if (!pid)
            child(path, cut);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 40)
            fail_msg("cut at %lld: status 0x%x", (long long)cut, (unsigned)status);
    }
    files_remove(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survives_a_cut_before_the_vocabulary),
    };

    return test_main(argc, argv, "model_cut", tests, sizeof(tests) / sizeof(tests[0]));
}

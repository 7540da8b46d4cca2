/* Maps of files: what is refused, dropped pages, and a file cut short after mapping. */
#include "daemon/serve/map.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/err.h"
#include "tests/files.h"

static char dir[64];

static int set_up(void **state)
{
    (void)state;
    files_temp(dir);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    files_remove(dir);
    return 0;
}

static const char *path_of(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static void maps_a_file(void **state)
{
    struct buf b;
    struct map *m;
    struct err e;

    (void)state;
    buf_init(&b, 0);
    for (uint32_t i = 0; i < 10000; i++)
        put_u32(&b, i);
    files_write(dir, "f", b.p, b.len);
    assert_int_equal(map_open(path_of("f"), &m, &e), 0);
    assert_int_equal(map_bytes(m), b.len);
    assert_string_equal(map_path(m), path_of("f"));
    assert_memory_equal(map_data(m), b.p, b.len);
    map_drop(m, (const char *)map_data(m) + 100, 30000); /* they come back */
    map_drop(m, map_data(m), b.len);
    map_drop(m, b.p, b.len); /* not in the map: nothing */
    map_drop(m, (const char *)map_data(m) + 4096, b.len);
    assert_memory_equal(map_data(m), b.p, b.len);
    map_close(m);
    map_close(NULL);
    buf_done(&b);
}

static void refuses_what_is_no_file(void **state)
{
    struct map *m = NULL;
    struct err e;

    (void)state;
    assert_int_equal(map_open(path_of("none"), &m, &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_int_equal(map_open(dir, &m, &e), -1);
    assert_non_null(strstr(e.msg, "not a regular file"));
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    assert_int_equal(map_open(path_of("fifo"), &m, &e), -1);
    assert_non_null(strstr(e.msg, "not a regular file"));
    files_write(dir, "empty", "", 0);
    assert_int_equal(map_open(path_of("empty"), &m, &e), -1);
    assert_non_null(strstr(e.msg, "is empty"));
    assert_null(m);
}

static void say(const char *path)
{
    ssize_t n = write(STDOUT_FILENO, path, strlen(path));

    (void)n;
}

/* Run a child that reads a byte at p; its outputs come back as text. */
static int child_reads(const volatile char *p, char *out, size_t cap)
{
    int fds[2], status;
    size_t n = 0;
    ssize_t got;
    pid_t pid;

    assert_int_equal(pipe(fds), 0);
    fflush(stdout);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        dup2(fds[1], STDOUT_FILENO);
        dup2(fds[1], STDERR_FILENO);
        signal(SIGBUS, SIG_DFL);
        map_sigbus_install(say);
        _exit(*p == 1 ? 40 : 41);
    }
    close(fds[1]);
    while ((got = read(fds[0], out + n, cap - 1 - n)) > 0)
        n += (size_t)got;
    out[n] = '\0';
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void names_a_file_that_was_cut(void **state)
{
    char out[1024], want[256];
    struct map *m, *other;
    struct buf b;
    struct err e;
    int status;

    (void)state;
    buf_init(&b, 0);
    put_zeros(&b, 100000);
    files_write(dir, "other", b.p, b.len);
    files_write(dir, "f", b.p, b.len);
    assert_int_equal(map_open(path_of("other"), &other, &e), 0);
    assert_int_equal(map_open(path_of("f"), &m, &e), 0);

    status = child_reads((const char *)map_data(m) + 90000, out, sizeof(out));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 41); /* whole: it reads */

    assert_int_equal(truncate(path_of("f"), 5000), 0);
    status = child_reads((const char *)map_data(m) + 90000, out, sizeof(out));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), err_exit(ERR_CORRUPT));
    snprintf(want, sizeof(want), "%s: the file was cut short", path_of("f"));
    assert_memory_equal(out, want, strlen(want));
    snprintf(want, sizeof(want), "\n%s", path_of("f")); /* then the last words */
    assert_non_null(strstr(out, want));
    status = child_reads((const char *)map_data(other) + 90000, out, sizeof(out));
    assert_true(WIFEXITED(status));

    map_close(m);
    map_close(other);
    buf_done(&b);
}

/* In a child: a map that is cut short reads as zeros and says so; another is whole. */
static void child_lives_on(void)
{
    struct map *m, *other;
    struct err e = {0};
    const char *p;

    signal(SIGBUS, SIG_DFL);
    map_sigbus_survive();
    if (map_open(path_of("f"), &m, &e) < 0 || map_open(path_of("other"), &other, &e) < 0)
        _exit(1);
    p = map_data(m);
    if (truncate(path_of("f"), 5000) != 0 || p[100] != 'x' || map_check(m, &e) < 0)
        _exit(2);
    if (p[90000] != 0 || p[60000] != 0 || p[100] != 'x' || map_check(m, &e) == 0)
        _exit(3);
    if (e.code != ERR_CORRUPT || !strstr(e.msg, "/f: the file was cut short"))
        _exit(4);
    p = map_data(other);
    if (p[90000] != 'x' || map_check(other, &e) < 0)
        _exit(5);
    map_drop(m, map_data(m), map_bytes(m));
    if (((const char *)map_data(m))[90000] != 0)
        _exit(6);
    map_close(m);
    map_close(other);
    _exit(40);
}

static void lives_on_where_it_must(void **state)
{
    struct buf b;
    int status;
    pid_t pid;

    (void)state;
    buf_init(&b, 0);
    for (int i = 0; i < 100000; i++)
        buf_putc(&b, 'x');
    files_write(dir, "f", b.p, b.len);
    files_write(dir, "other", b.p, b.len);
    buf_done(&b);
    fflush(stdout);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        child_lives_on();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 40);
}

static void leaves_other_faults_alone(void **state)
{
    char out[1024];
    void *p;
    int fd, status;

    (void)state;
    files_write(dir, "f", "x", 1);
    fd = open(path_of("f"), O_RDONLY);
    p = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    assert_true(p != MAP_FAILED);
    status = child_reads((const char *)p + 5000, out, sizeof(out));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    munmap(p, 8192);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(maps_a_file),
        T(refuses_what_is_no_file),
        T(names_a_file_that_was_cut),
        T(lives_on_where_it_must),
        T(leaves_other_faults_alone),
    };

    return test_main(argc, argv, "map", tests, sizeof(tests) / sizeof(tests[0]));
}

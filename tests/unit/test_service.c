/* Notices to the service manager, sockets handed over, entries of the journal: against a
 * small manager on a datagram socket of our own. */
#include "tests/test.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/systemd.h"
#include "daemon/service.c"

extern char **environ;

static char dir[64], got[1024];
static int manager = -1;

static int dgram(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
    return fd;
}

static int setup(void **st)
{
    char path[96];

    (void)st;
    strcpy(dir, "/tmp/llmrack-service-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/notify", dir);
    manager = dgram(path);
    setenv("NOTIFY_SOCKET", path, 1);
    return 0;
}

static int teardown(void **st)
{
    char path[96];

    (void)st;
    snprintf(path, sizeof(path), "%s/notify", dir);
    unlink(path);
    rmdir(dir);
    close(manager);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    return 0;
}

/* The next notice, "" when there is none; datagrams are there at once. */
static const char *notice(void)
{
    ssize_t n = recv(manager, got, sizeof(got) - 1, 0);

    got[n > 0 ? n : 0] = '\0';
    return got;
}

static int count(const char *what)
{
    int n = 0;

    while (*notice())
        n += strstr(got, what) != NULL;
    return n;
}

/* ---- the service ---- */

static bool is_alive = true, is_loading;
static const char *text = "no instance";

static bool alive(void *arg)
{
    (void)arg;
    return is_alive;
}

static bool status(void *arg, char *to, size_t cap)
{
    (void)arg;
    snprintf(to, cap, "%s", text);
    return is_loading;
}

static struct service *start(struct loop **ret)
{
    struct service_cfg c = {.alive = alive, .status = status};
    struct err e;

    assert_int_equal(loop_new(ret, &e), 0);
    c.loop = *ret;
    return service_new(&c);
}

/* So many ticks; each comes in time or the deadline of the test binary does. */
static void pass(struct service *s, struct loop *l, int ticks)
{
    struct err e;

    for (int i = 0; i < ticks; i++) {
        loop_timer_set(s->timer, clock_now_us(clock_real()));
        assert_int_equal(loop_once(l, -1, &e), 0);
    }
}

static void notices(void **st)
{
    struct loop *l;
    struct service *s = start(&l);

    (void)st;
    service_starting(60000000);
    assert_string_equal(notice(), "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=starting");
    service_ready(s);
    assert_string_equal(notice(), "READY=1");
    assert_string_equal(notice(), "STATUS=no instance");
    assert_string_equal(notice(), ""); /* nobody asked for a watchdog */
    on_tick(s);
    assert_string_equal(notice(), ""); /* the text is told once */
    is_loading = true;
    text = "main\nloads";
    on_tick(s);
    assert_string_equal(notice(), "EXTEND_TIMEOUT_USEC=30000000");
    assert_string_equal(notice(), "STATUS=main loads");
    service_reload(s, true);
    assert_non_null(strstr(notice(), "RELOADING=1\nMONOTONIC_USEC="));
    int64_t at = strtoll(strstr(got, "USEC=") + 5, NULL, 10);
    assert_in_range(clock_now_us(clock_real()) - at, 0, 60000000);
    service_reload(s, false);
    assert_string_equal(notice(), "READY=1");
    service_stopping(s, 5000000);
    assert_string_equal(notice(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=25000000");
    on_tick(s);
    assert_string_equal(notice(), ""); /* a load asks for no more time then */
    is_loading = false;
    service_free(s);
    service_free(NULL);
    loop_free(l);
}

static void watchdog(void **st)
{
    struct loop *l;
    struct service *s;

    (void)st;
    setenv("WATCHDOG_USEC", "100000", 1);
    s = start(&l);
    assert_int_equal(s->every_us, 50000);
    service_ready(s);
    assert_int_equal(count("WATCHDOG=1"), 1);
    struct err e;
    assert_int_equal(loop_once(l, -1, &e), 0); /* it comes by itself */
    assert_int_equal(count("WATCHDOG=1"), 1);
    is_alive = false; /* another loop hangs */
    pass(s, l, 3);
    assert_int_equal(count("WATCHDOG=1"), 0);
    is_alive = true; /* and goes on */
    pass(s, l, 3);
    assert_int_equal(count("WATCHDOG=1"), 3);
    /* the control loop stops: nobody else feeds it */
    int64_t until = clock_now_us(clock_real()) + 3 * s->every_us;
    while (clock_now_us(clock_real()) < until)
        sched_yield();
    assert_int_equal(count("WATCHDOG=1"), 0);
    service_free(s);
    loop_free(l);
    unsetenv("WATCHDOG_USEC");
}

static void no_manager(void **st)
{
    struct loop *l;
    struct service *s;

    (void)st;
    unsetenv("NOTIFY_SOCKET");
    assert_int_equal(systemd_watchdog_us(), 0);
    s = start(&l);
    service_starting(1);
    service_ready(s);
    service_stopping(s, 1);
    service_free(s);
    loop_free(l);
}

static void for_another(void **st)
{
    (void)st;
    setenv("WATCHDOG_USEC", "100000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    assert_int_equal(systemd_watchdog_us(), 0);
    unsetenv("WATCHDOG_PID");
    assert_int_equal(systemd_watchdog_us(), 100000);
}

static void child_env(void **st)
{
    char **env, *all = NULL;
    size_t n = 0;

    (void)st;
    setenv("LISTEN_FDS", "1", 1);
    setenv("WATCHDOG_PID", "1", 1);
    setenv("JOURNAL_STREAM", "1:2", 1);
    env = systemd_child_env();
    FILE *f = open_memstream(&all, &n);
    for (char **v = env; *v; v++)
        fprintf(f, "%s\n", *v);
    fclose(f);
    assert_null(strstr(all, "NOTIFY_SOCKET="));
    assert_null(strstr(all, "WATCHDOG_"));
    assert_null(strstr(all, "LISTEN_"));
    assert_non_null(strstr(all, "JOURNAL_STREAM=1:2"));
    assert_non_null(strstr(all, "PATH="));
    free(all);
    free(env);
    unsetenv("LISTEN_FDS");
    unsetenv("WATCHDOG_PID");
    unsetenv("JOURNAL_STREAM");
}

/* ---- sockets handed over ---- */

/* In a child, since descriptor 3 and the environment are the process's. */
static int listen_in_child(int n, int type, bool listening)
{
    int rc;
    pid_t pid = fork();

    if (pid == 0) {
        char number[16];
        int fd = -1, s = socket(AF_UNIX, type, 0);
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        struct err e = {0};

        snprintf(a.sun_path, sizeof(a.sun_path), "%s/listen", dir);
        unlink(a.sun_path);
        if (bind(s, (struct sockaddr *)&a, sizeof(a)) < 0 ||
            (listening && listen(s, 1) < 0) || dup2(s, 3) < 0 || dup2(s, 4) < 0)
            _exit(100);
        unlink(a.sun_path);
        snprintf(number, sizeof(number), "%d", (int)getpid());
        setenv("LISTEN_PID", number, 1);
        snprintf(number, sizeof(number), "%d", n);
        setenv("LISTEN_FDS", number, 1);
        rc = systemd_listen(&fd, &e);
        if (rc == 1 &&
            (fd != 3 || !(fcntl(3, F_GETFD) & FD_CLOEXEC) || getenv("LISTEN_FDS")))
            _exit(101);
        _exit(rc < 0 ? (e.msg[0] ? 50 : 102) : rc);
    }
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

static void sockets(void **st)
{
    struct err e;
    int fd = -1;

    (void)st;
    assert_int_equal(systemd_listen(&fd, &e), 0);
    assert_int_equal(listen_in_child(1, SOCK_STREAM, true), 1);
    assert_int_equal(listen_in_child(1, SOCK_STREAM, false), 50);
    assert_int_equal(listen_in_child(1, SOCK_DGRAM, false), 50);
    assert_int_equal(listen_in_child(2, SOCK_STREAM, true), 50);
}

/* ---- the journal ---- */

/* A journal of our own in a mount namespace: 0 fine, 77 not allowed here. */
static int journal_in_child(char *entry, size_t cap)
{
    int p[2], rc, keep;
    pid_t pid;

    assert_int_equal(pipe(p), 0);
    pid = fork();
    if (pid == 0) {
        char stream[64];
        struct stat s;
        int err[2], journal;

        if (unshare(CLONE_NEWNS) < 0 ||
            mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", "/run", "tmpfs", 0, NULL) < 0 || mkdir("/run/systemd", 0755) ||
            mkdir("/run/systemd/journal", 0755))
            _exit(77);
        journal = dgram("/run/systemd/journal/socket");
        if (pipe(err) < 0 || fstat(err[1], &s) < 0 || dup2(err[1], 2) < 0)
            _exit(100);
        fcntl(err[0], F_SETFL, O_NONBLOCK);
        snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)s.st_dev,
                 (unsigned long long)s.st_ino);
        setenv("JOURNAL_STREAM", stream, 1);
        log_open("llmrackd", LOG_LV_INFO);
        log_about(
            LOG_LV_WARN,
            &(struct log_about){.request = "r-1", .instance = "main", .revision = 7},
            "two\nlines");
        char child[64] = "<3>llmrack-engine: no memory";
        log_pass(&(struct log_about){.instance = "main"}, child, strlen(child));
        log_about(LOG_LV_DEBUG, &(struct log_about){.instance = "main"}, "not kept");
        log_about(LOG_LV_DEBUG, &(struct log_about){.head = "f00d"}, "a row");
        char buf[2048];
        for (int i = 0; i < 3; i++) {
            ssize_t n = recv(journal, buf, sizeof(buf), 0);
            if (n < 0 || write(p[1], buf, (size_t)n) < 0)
                _exit(101);
        }
        if (read(err[0], buf, sizeof(buf)) >= 0) /* nothing went to stderr as well */
            _exit(102);
        _exit(0);
    }
    close(p[1]);
    keep = 0;
    for (ssize_t n; (n = read(p[0], entry + keep, cap - 1 - (size_t)keep)) > 0;)
        keep += (int)n;
    entry[keep] = '\0';
    close(p[0]);
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

static void journal(void **st)
{
    static char all[4096];
    int rc = journal_in_child(all, sizeof(all));

    (void)st;
    if (rc == 77)
        skip(); /* no mount namespaces here */
    assert_int_equal(rc, 0);
    assert_string_equal(all, "MESSAGE=two lines\nPRIORITY=4\nSYSLOG_IDENTIFIER=llmrackd\n"
                             "REQUEST_ID=r-1\nINSTANCE=main\nREVISION=7\n"
                             "MESSAGE=llmrack-engine: no memory\nPRIORITY=3\n"
                             "SYSLOG_IDENTIFIER=llmrackd\nINSTANCE=main\n"
                             "MESSAGE=a row\nPRIORITY=7\nSYSLOG_IDENTIFIER=llmrackd\n"
                             "JOURNAL_HEAD=f00d\n");
}

/* JOURNAL_STREAM is inherited, but our stderr is something else. */
static void plain(void **st)
{
    int p[2], old = dup(2);
    char line[256];
    ssize_t n;

    (void)st;
    assert_int_equal(pipe(p), 0);
    setenv("JOURNAL_STREAM", "1:2", 1);
    dup2(p[1], 2);
    log_open("x", LOG_LV_INFO);
    log_about(LOG_LV_ERROR, &(struct log_about){.instance = "main"}, "hello");
    n = read(p[0], line, sizeof(line) - 1);
    line[n > 0 ? n : 0] = '\0';
    unsetenv("JOURNAL_STREAM");
    log_open("x", LOG_LV_INFO);
    log_info("hello");
    dup2(old, 2);
    assert_string_equal(line, "<3>x: hello\n");
    n = read(p[0], line, sizeof(line) - 1);
    line[n > 0 ? n : 0] = '\0';
    assert_non_null(strstr(line, " info x: hello\n"));
    assert_int_equal(line[0], '2'); /* a year */
    close(p[0]);
    close(p[1]);
    close(old);
}

#define WITH_MANAGER(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
static const struct CMUnitTest tests[] = {
    WITH_MANAGER(notices),     WITH_MANAGER(watchdog),  WITH_MANAGER(no_manager),
    WITH_MANAGER(for_another), WITH_MANAGER(child_env), WITH_MANAGER(sockets),
    cmocka_unit_test(journal), cmocka_unit_test(plain),
};

TEST_MAIN("service", tests)

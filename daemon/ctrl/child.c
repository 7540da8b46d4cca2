/* daemon/ctrl/child.c - starts, hears and reaps one engine process.
 *
 *   child_start   socketpair, posix_spawn (own process group, default signals)
 *   on_wire        frames -> news; a closed or faulty connection ends it (see below)
 *   on_exit        pidfd: reap, drain what it still said, news.gone
 *
 * The engine finds the socket at descriptor 3 and the metric page at 4. It has a process
 * group of its own, so that ^C at a terminal reaches the daemon only, which then drains.
 * When the connection ends before the process does, the process gets a second to end by
 * itself, since its exit status says more than the end of the connection; then it is
 * killed. The reason handed on is, in this order: why we killed it, what it said in FAIL,
 * how the process ended. */
#include "daemon/ctrl/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/mem.h"
#include "daemon/serve/wire.h"

enum {
    SOCKET_AT = 3,
    PAGE_AT = 4,
    HIGH_FD = 16, /* over whatever the child's actions write to */
    OUT_MAX = 2 * WIRE_MAX,
    GRACE_US = 1000000,
    LAST_WORDS = 16 /* reads of 1 MiB; a socket holds less */
};

struct child {
    struct loop *loop;
    struct child_news news;
    void *arg;
    pid_t pid; /* 0 once reaped */
    int pidfd;
    struct wire_conn *conn;
    struct loop_fd *conn_watch, *exit_watch;
    struct loop_timer *grace;
    bool hung_up, asked, was_full;
    struct err why; /* OK = not known yet */
    struct step_token *toks;
    size_t toks_cap;
};

extern char **environ;

/* ---- start ---- */

static int spawn_actions(posix_spawn_file_actions_t *fa, int sock, int page)
{
    return posix_spawn_file_actions_addopen(fa, 0, "/dev/null", O_RDONLY, 0) ||
           posix_spawn_file_actions_adddup2(fa, sock, SOCKET_AT) ||
           posix_spawn_file_actions_adddup2(fa, page, PAGE_AT);
}

static int spawn_attributes(posix_spawnattr_t *at)
{
    sigset_t none, all;

    sigemptyset(&none);
    sigfillset(&all);
    return posix_spawnattr_setflags(at, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                            POSIX_SPAWN_SETSIGDEF) ||
           posix_spawnattr_setpgroup(at, 0) || posix_spawnattr_setsigmask(at, &none) ||
           posix_spawnattr_setsigdefault(at, &all);
}

/* argv for the child: NULL-terminated, each string malloc'd except the borrowed args. */
static char **make_argv(const struct child_cfg *cfg, char *own[5])
{
    char **argv = xcalloc((size_t)cfg->n_args + 6, sizeof(*argv)), hex[33];
    int n = 0;

    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", cfg->secret[i]);
    own[0] = xasprintf("--fd=%d", SOCKET_AT);
    own[1] = xasprintf("--page-fd=%d", PAGE_AT);
    own[2] = xasprintf("--secret=%s", hex);
    own[3] = xasprintf("--log-level=%s", cfg->log_level);
    own[4] = NULL;
    argv[n++] = (char *)cfg->program;
    for (int i = 0; own[i]; i++)
        argv[n++] = own[i];
    for (int i = 0; i < cfg->n_args; i++)
        argv[n++] = cfg->args[i];
    return argv;
}

static int spawn(const struct child_cfg *cfg, int sock, int page, pid_t *ret,
                 struct err *e)
{
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    char *own[5], **argv;
    pid_t pid;
    int rc;

    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&at);
    argv = make_argv(cfg, own);
    rc = spawn_actions(&fa, sock, page) || spawn_attributes(&at) ? ENOMEM : 0;
    if (rc == 0)
        rc = posix_spawn(&pid, cfg->program, &fa, &at, argv, environ);
    for (int i = 0; own[i]; i++)
        free(own[i]);
    free(argv);
    posix_spawnattr_destroy(&at);
    posix_spawn_file_actions_destroy(&fa);
    if (rc) {
        errno = rc;
        return err_errno(e, ERR_IO, "cannot start the engine program '%s'", cfg->program);
    }
    *ret = pid;
    return 0;
}

/* sv[0] ours, sv[1] the child's; all over HIGH_FD so that dup2 overwrites none. */
static int make_sockets(int sv[2], struct err *e)
{
    int low[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, low) < 0)
        return err_errno(e, ERR_IO, "cannot make a socket for the engine");
    for (int i = 0; i < 2; i++) {
        sv[i] = fcntl(low[i], F_DUPFD_CLOEXEC, HIGH_FD);
        close(low[i]);
    }
    if (sv[0] >= 0 && sv[1] >= 0)
        return 0;
    err_errno(e, ERR_IO, "cannot make a socket for the engine");
    if (sv[0] >= 0)
        close(sv[0]);
    if (sv[1] >= 0)
        close(sv[1]);
    return -1;
}

static void on_wire(void *arg, int fd, uint32_t events);
static void on_exit_fd(void *arg, int fd, uint32_t events);
static void on_grace(void *arg);

static int watch(struct child *g, struct err *e)
{
    g->pidfd = pidfd_open(g->pid, 0);
    if (g->pidfd < 0)
        return err_errno(e, ERR_IO, "cannot watch the engine process");
    g->grace = loop_timer_new(g->loop, on_grace, g);
    if (loop_fd_add(g->loop, g->pidfd, EPOLLIN, on_exit_fd, g, &g->exit_watch, e) < 0)
        return -1;
    return loop_fd_add(g->loop, wire_conn_fd(g->conn), EPOLLIN, on_wire, g,
                       &g->conn_watch, e);
}

int child_start(struct loop *l, const struct child_cfg *cfg,
                const struct child_news *news, void *arg, struct child **ret,
                struct err *e)
{
    struct child *g = xcalloc(1, sizeof(*g));
    int sv[2] = {-1, -1}, page = fcntl(cfg->page_fd, F_DUPFD_CLOEXEC, HIGH_FD);

    g->loop = l;
    g->news = *news;
    g->arg = arg;
    g->pidfd = -1;
    if (page < 0) {
        err_errno(e, ERR_IO, "cannot pass the metric page to the engine");
        goto out;
    }
    if (make_sockets(sv, e) < 0)
        goto out;
    g->conn = wire_conn_new(sv[0], OUT_MAX);
    if (spawn(cfg, sv[1], page, &g->pid, e) < 0)
        goto out;
    if (watch(g, e) < 0)
        goto out;
    close(sv[1]);
    close(page);
    *ret = g;
    return 0;
out:
    child_free(g);
    if (sv[1] >= 0)
        close(sv[1]);
    if (page >= 0)
        close(page);
    return -1;
}

void child_free(struct child *g)
{
    if (!g)
        return;
    if (g->pid > 0) {
        kill(g->pid, SIGKILL);
        while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    loop_fd_del(g->conn_watch);
    loop_fd_del(g->exit_watch);
    loop_timer_free(g->grace);
    wire_conn_free(g->conn);
    if (g->pidfd >= 0)
        close(g->pidfd);
    free(g->toks);
    free(g);
}

int child_pid(const struct child *g) { return (int)g->pid; }

/* ---- what it says ---- */

static int on_tokens(struct child *g, const void *p, size_t n, struct err *e)
{
    struct wire_tokens t;

    if (wire_parse_tokens(p, n, &t, &g->toks, &g->toks_cap, e) < 0)
        return -1;
    g->news.tokens(g->arg, t.id, g->toks, t.n, t.scored != 0);
    return 0;
}

static int on_hello(struct child *g, const struct wire_hello *h, struct err *e)
{
    if (h->version != WIRE_VERSION)
        return err_set(e, ERR_UNSUPPORTED,
                       "the engine speaks version %u of the protocol in place of %u",
                       h->version, (unsigned)WIRE_VERSION);
    g->news.hello(g->arg);
    return 0;
}

static void on_fail(struct child *g, const struct wire_fail *f)
{
    if (g->why.code == ERR_OK)
        err_set(&g->why, (enum err_code)f->code, "%s", f->msg);
}

static int on_frame(struct child *g, enum wire_kind kind, const void *p, size_t n,
                    struct err *e)
{
    union {
        struct wire_hello hello;
        struct wire_loading loading;
        struct wire_ready ready;
        struct wire_fail fail;
        struct wire_finish finish;
    } m;

    switch (kind) {
    case WIRE_TOKENS:
        return on_tokens(g, p, n, e);
    case WIRE_HELLO:
    case WIRE_LOADING:
    case WIRE_READY:
    case WIRE_FAIL:
    case WIRE_FINISH:
        if (wire_parse(kind, p, n, &m, e) < 0)
            return -1;
        break;
    default:
        return err_set(e, ERR_SYNTAX, "the engine sent a %s message",
                       wire_kind_name(kind));
    }
    if (kind == WIRE_HELLO)
        return on_hello(g, &m.hello, e);
    if (kind == WIRE_LOADING)
        g->news.loading(g->arg, m.loading.done);
    else if (kind == WIRE_READY)
        g->news.ready(g->arg, &m.ready);
    else if (kind == WIRE_FAIL)
        on_fail(g, &m.fail);
    else
        g->news.finish(g->arg, &m.finish);
    return 0;
}

/* Read and hand on what is there: 0, 1 when the other side has closed, -1 on a fault. */
static int hear(struct child *g, struct err *e)
{
    int filled = wire_fill(g->conn, e), rc;
    enum wire_kind kind;
    const void *p;
    size_t n;

    while ((rc = wire_next(g->conn, &kind, &p, &n, e)) == 1)
        if (on_frame(g, kind, p, n, e) < 0)
            return -1;
    return rc < 0 ? -1 : filled;
}

/* The connection is over: the process has a moment to end by itself. */
static void hang_up(struct child *g)
{
    if (g->hung_up)
        return;
    g->hung_up = true;
    loop_fd_del(g->conn_watch);
    g->conn_watch = NULL;
    loop_timer_set(g->grace, clock_now_us(clock_real()) + GRACE_US);
}

/* What came is no message of ours: nothing more can be expected of this process. */
static void on_fault(struct child *g, const struct err *e)
{
    struct err why = *e;

    hang_up(g);
    if (e->code == ERR_IO)
        return;
    err_wrap(&why, "the engine's connection");
    child_kill(g, &why);
}

static void on_grace(void *arg)
{
    struct child *g = arg;

    if (g->why.code == ERR_OK)
        err_set(&g->why, ERR_UNAVAIL, "the engine closed its connection and went on");
    child_kill(g, NULL);
}

static void rewatch(struct child *g)
{
    bool full = wire_wants_write(g->conn);

    if (g->hung_up)
        return;
    if (full != g->was_full)
        loop_fd_set(g->conn_watch, EPOLLIN | (full ? EPOLLOUT : 0));
    g->was_full = full;
}

static void on_wire(void *arg, int fd, uint32_t events)
{
    struct child *g = arg;
    bool was_full = g->was_full;
    struct err e = {0};
    int rc = 0;

    (void)fd;
    if (events & EPOLLOUT)
        rc = wire_flush(g->conn, &e);
    if (rc == 0 && events & ~(uint32_t)EPOLLOUT)
        rc = hear(g, &e);
    if (rc != 0) {
        if (rc < 0)
            on_fault(g, &e);
        hang_up(g);
        return;
    }
    rewatch(g);
    if (was_full && !g->was_full)
        g->news.writable(g->arg);
}

/* ---- how it ends ---- */

static void describe_end(const siginfo_t *si, struct err *e)
{
    if (si->si_code == CLD_EXITED && si->si_status == 0)
        err_set(e, ERR_UNAVAIL, "the engine ended without being asked to");
    else if (si->si_code == CLD_EXITED)
        err_set(e, ERR_UNAVAIL, "the engine ended with exit code %d", si->si_status);
    else
        err_set(e, ERR_UNAVAIL, "the engine was ended by signal %d (%s)", si->si_status,
                strsignal(si->si_status));
}

static void on_exit_fd(void *arg, int fd, uint32_t events)
{
    struct child *g = arg;
    siginfo_t si = {0};
    struct err e = {0};

    (void)events;
    if (waitid(P_PIDFD, (id_t)fd, &si, WEXITED | WNOHANG) < 0 || si.si_pid == 0)
        return;
    g->pid = 0;
    for (int i = 0; i < LAST_WORDS && !g->hung_up && hear(g, &e) == 0; i++)
        continue;
    hang_up(g);
    loop_timer_set(g->grace, -1);
    loop_fd_del(g->exit_watch);
    g->exit_watch = NULL;
    if (g->why.code == ERR_OK)
        describe_end(&si, &g->why);
    g->news.gone(g->arg, g->asked, &g->why);
}

/* ---- what we say ---- */

static void said(struct child *g, int rc, const struct err *e)
{
    if (rc < 0)
        on_fault(g, e);
    else
        rewatch(g);
}

void child_add(struct child *g, const struct wire_add *a)
{
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send_add(g->conn, a, &e), &e);
}

void child_cancel(struct child *g, uint64_t id)
{
    struct wire_part part = {&id, sizeof(id)};
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send(g->conn, WIRE_CANCEL, &part, 1, &e), &e);
}

void child_drain(struct child *g)
{
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send(g->conn, WIRE_DRAIN, NULL, 0, &e), &e);
}

void child_stop(struct child *g)
{
    struct err e = {0};

    g->asked = true;
    if (!g->hung_up)
        said(g, wire_send(g->conn, WIRE_STOP, NULL, 0, &e), &e);
}

void child_kill(struct child *g, const struct err *why)
{
    if (why && g->pid > 0)
        g->why = *why;
    if (g->pid > 0)
        kill(g->pid, SIGKILL);
}

bool child_full(const struct child *g) { return g->hung_up || g->was_full; }

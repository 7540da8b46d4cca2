/* daemon/ctrl/child.c - starts, hears and reaps one engine process.
 *
 *   child_start   socketpair, process (spawn.h)
 *   on_wire        frames -> news; a closed or faulty connection ends it (see below)
 *   on_exit        pidfd: reap, drain what it still said, news.gone
 *
 * Its stderr is a pipe to us: whole lines go on to our own, the last ones are kept to
 * tell why it ended. It has a process group of its own, so that ^C at a terminal reaches
 * the daemon
 * only, which then drains. When the connection ends before the process does, the process
 * gets a second to end by itself, since its exit status says more than the end of the
 * connection; then it is killed. The reason handed on is, in this order: why we killed
 * it, what it said in FAIL, how the process ended. */
#include "daemon/ctrl/child.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "daemon/ctrl/lines.h"
#include "daemon/ctrl/spawn.h"
#include "daemon/serve/wire.h"
#include "daemon/serve/wire_kv.h"
#include "daemon/serve/wire_experts.h"

enum {
    OUT_MAX = 2 * WIRE_MAX,
    GRACE_US = 1000000,
    LAST_WORDS = 16, /* reads of 1 MiB; a socket holds less */
    LAST_LINES = 64  /* reads of 4 KiB; a pipe holds 64 KiB */
};

struct child {
    struct loop *loop;
    struct child_news news;
    void *arg;
    pid_t pid; /* 0 once reaped */
    int pidfd, err_fd;
    struct wire_conn *conn;
    struct loop_fd *conn_watch, *exit_watch, *err_watch;
    char instance[64];
    struct lines lines; /* of its stderr */
    struct loop_timer *grace;
    bool hung_up, asked, was_full;
    struct err why; /* OK = not known yet */
    struct step_token *toks;
    size_t toks_cap;
};

/* ---- start ---- */

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

static void on_wire(void *arg, int fd, uint32_t events);
static void on_exit_fd(void *arg, int fd, uint32_t events);
static void on_stderr(void *arg, int fd, uint32_t events);
static void on_grace(void *arg);

static int watch(struct child *g, struct err *e)
{
    g->pidfd = pidfd_open(g->pid, 0);
    if (g->pidfd < 0)
        return err_errno(e, ERR_IO, "cannot watch the engine process");
    g->grace = loop_timer_new(g->loop, on_grace, g);
    if (loop_fd_add(g->loop, g->err_fd, EPOLLIN, on_stderr, g, &g->err_watch, e) < 0 ||
        loop_fd_add(g->loop, g->pidfd, EPOLLIN, on_exit_fd, g, &g->exit_watch, e) < 0)
        return -1;
    return loop_fd_add(g->loop, wire_conn_fd(g->conn), EPOLLIN, on_wire, g,
                       &g->conn_watch, e);
}

/* One write a line, so that lines of several engines do not mix. */
static void pass_on(void *arg, const char *text)
{
    char line[LINES_BYTES + 2];
    size_t n = strlen(text);
    const struct child *g = arg;
    struct log_about about = {.instance = g->instance[0] ? g->instance : NULL};

    memcpy(line, text, n);
    log_pass(&about, line, n);
}

int child_start(struct loop *l, const struct child_cfg *cfg,
                const struct child_news *news, void *arg, struct child **ret,
                struct err *e)
{
    struct child *g = xcalloc(1, sizeof(*g));
    int sv[2] = {-1, -1}, p[2] = {-1, -1};
    int page = fcntl(cfg->page_fd, F_DUPFD_CLOEXEC, SPAWN_HIGH_FD);
    int ranks = fcntl(cfg->ranks_fd, F_DUPFD_CLOEXEC, SPAWN_HIGH_FD);
    int experts = fcntl(cfg->experts_fd, F_DUPFD_CLOEXEC, SPAWN_HIGH_FD);
    int trace = fcntl(cfg->trace_fd, F_DUPFD_CLOEXEC, SPAWN_HIGH_FD), rc = -1;

    g->loop = l;
    g->news = *news;
    g->arg = arg;
    g->pidfd = g->err_fd = -1;
    g->lines.line = pass_on;
    g->lines.arg = g;
    snprintf(g->instance, sizeof(g->instance), "%s", cfg->instance ? cfg->instance : "");
    if (page < 0 || ranks < 0 || experts < 0 || trace < 0) {
        err_errno(e, ERR_IO, "cannot pass a shared page to the engine");
        goto out;
    }
    rc = spawn_pipe(p, e);
    g->err_fd = p[0];
    if (rc < 0 || (rc = spawn_sockets(sv, e)) < 0)
        goto out;
    g->conn = wire_conn_new(sv[0], OUT_MAX);
    rc = spawn_engine(cfg, &(struct spawn_fds){sv[1], page, ranks, experts, trace, p[1]},
                      &g->pid, e);
    if (rc == 0)
        rc = watch(g, e);
out:
    close_fd(sv[1]);
    close_fd(p[1]);
    close_fd(page);
    close_fd(ranks);
    close_fd(experts);
    close_fd(trace);
    if (rc < 0)
        child_free(g);
    else
        *ret = g;
    return rc;
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
    loop_fd_del(g->err_watch);
    loop_timer_free(g->grace);
    wire_conn_free(g->conn);
    close_fd(g->err_fd);
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

/* Its last word: it may hang on its way out too, in what made it fail. */
static void on_fail(struct child *g, const struct wire_fail *f)
{
    loop_timer_set(g->grace, clock_now_us(clock_real()) + GRACE_US);
    if (g->why.code == ERR_OK)
        err_set(&g->why, (enum err_code)f->code, "%s", f->msg);
}

static int on_arena(struct child *g, const void *p, size_t n, struct err *e)
{
    struct wire_arena a;
    int fd = wire_take_fd(g->conn);

    if (wire_parse(WIRE_ARENA, p, n, &a, e) < 0) {
        close_fd(fd);
        return -1;
    }
    if (fd < 0)
        return err_set(e, ERR_SYNTAX, "an ARENA message came without its descriptor");
    g->news.arena(g->arg, &a, fd);
    return 0;
}

/* What goes on to the other pool, checked here. */
static int on_kv(struct child *g, enum wire_kind kind, const void *p, size_t n,
                 struct err *e)
{
    union {
        struct wire_reserved reserved;
        struct wire_pulled pulled;
        struct wire_lost lost;
        struct wire_offer offer;
    } m;
    int rc = kind == WIRE_EXPORT ? wire_parse_export(p, n, &m.offer, e)
                                 : wire_parse(kind, p, n, &m, e);

    if (rc == 0)
        g->news.kv(g->arg, kind, p, n);
    return rc;
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
        struct wire_moved moved;
        struct wire_note note;
    } m;

    switch (kind) {
    case WIRE_TOKENS:
        return on_tokens(g, p, n, e);
    case WIRE_ARENA:
        return on_arena(g, p, n, e);
    case WIRE_RESERVED:
    case WIRE_EXPORT:
    case WIRE_PULLED:
    case WIRE_LOST:
        return on_kv(g, kind, p, n, e);
    case WIRE_HELLO:
    case WIRE_LOADING:
    case WIRE_READY:
    case WIRE_FAIL:
    case WIRE_NOTE:
    case WIRE_FINISH:
    case WIRE_MOVED:
    case WIRE_PONG:
        if (wire_parse(kind, p, n, &m, e) < 0)
            return -1;
        break;
    default:
        return err_set(e, ERR_SYNTAX, "the engine sent a %s message",
                       wire_kind_name(kind));
    }
    if (kind == WIRE_NOTE)
        g->news.note(g->arg, &m.note);
    if (kind == WIRE_HELLO)
        return on_hello(g, &m.hello, e);
    if (kind == WIRE_LOADING)
        g->news.loading(g->arg, m.loading.done);
    else if (kind == WIRE_READY)
        g->news.ready(g->arg, &m.ready);
    else if (kind == WIRE_PONG)
        g->news.pong(g->arg);
    else if (kind == WIRE_FAIL)
        on_fail(g, &m.fail);
    else if (kind == WIRE_MOVED)
        g->news.moved(g->arg, &m.moved);
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

/* ---- its stderr ---- */

/* Read up to `reads` times; false when the other side has closed. */
static bool read_lines(struct child *g, int reads)
{
    char part[4096];
    ssize_t n = 1;

    while (reads-- > 0 && (n = read(g->err_fd, part, sizeof(part))) > 0)
        lines_put(&g->lines, part, (size_t)n);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static void on_stderr(void *arg, int fd, uint32_t events)
{
    struct child *g = arg;

    (void)fd, (void)events;
    if (read_lines(g, 4))
        return;
    loop_fd_del(g->err_watch);
    g->err_watch = NULL;
}

void child_lines(const struct child *g, char *out, size_t cap)
{
    lines_text(&g->lines, out, cap);
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
    if (g->err_watch)
        read_lines(g, LAST_LINES);
    lines_end(&g->lines);
    loop_timer_set(g->grace, -1);
    loop_fd_del(g->err_watch);
    loop_fd_del(g->exit_watch);
    g->err_watch = g->exit_watch = NULL;
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

void child_spin(struct child *g, bool on)
{
    uint32_t value = on;
    struct wire_part part = {&value, sizeof(value)};
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send(g->conn, WIRE_SPIN, &part, 1, &e), &e);
}

void child_cpus(struct child *g, const char *text)
{
    struct wire_part part = {text, strlen(text) + 1};
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send(g->conn, WIRE_CPUS, &part, 1, &e), &e);
}

void child_policy(struct child *g, const struct wire_policy *p)
{
    struct wire_part part = {p, sizeof(*p)};
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send(g->conn, WIRE_POLICY, &part, 1, &e), &e);
}

void child_wipe(struct child *g)
{
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send(g->conn, WIRE_KV_WIPE, NULL, 0, &e), &e);
}

void child_yield(struct child *g)
{
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send(g->conn, WIRE_YIELD, NULL, 0, &e), &e);
}

void child_ping(struct child *g)
{
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send(g->conn, WIRE_PING, NULL, 0, &e), &e);
}

void child_peer(struct child *g, const struct wire_arena *a, int fd)
{
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send_arena(g->conn, true, a, fd, &e), &e);
}

void child_relay(struct child *g, enum wire_kind kind, const void *p, size_t n)
{
    struct wire_part part = {p, n};
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send(g->conn, kind, &part, 1, &e), &e);
}

void child_recompute(struct child *g, uint64_t id, const int32_t *ids, int n)
{
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send_recompute(g->conn, id, ids, n, &e), &e);
}

bool child_experts(struct child *g, const struct wire_expert_orders *o)
{
    struct err e = {0};

    if (!g->hung_up)
        said(g, wire_send_experts(g->conn, o, &e), &e);
    return !g->hung_up;
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

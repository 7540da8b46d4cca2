/* topo/probe_child.c - see probe_child.h.
 *
 *   NONE --ask--> ASKED --line--> IDLE --ask--> ASKED
 *                   |  deadline, nonsense          end of the process, any state -> NONE
 *                   v
 *                 DYING --end of the process--> NONE
 *
 * The process is watched by its pidfd; it is reaped when that says so and at no other
 * time, so nothing here waits for it. */
#include "topo/probe_child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/systemd.h"
#include "topo/nvml_report.h"

enum child_state { CHILD_NONE, CHILD_ASKED, CHILD_IDLE, CHILD_DYING };
enum { HIGH_FD = 16, READ_BYTES = 65536 };

struct probe_child {
    struct loop *loop;
    struct probe_child_cfg cfg;
    probe_answer_fn fn;
    void *arg;
    enum child_state state;
    pid_t pid;
    int pidfd, in, out; /* in: what it reads; out: what it writes */
    struct loop_fd *exit_watch, *out_watch;
    struct loop_timer *deadline;
    int64_t killed_us;
    struct buf line;
};

struct probe_child *probe_child_new(struct loop *l, const struct probe_child_cfg *cfg,
                                    probe_answer_fn fn, void *arg)
{
    struct probe_child *c = xcalloc(1, sizeof(*c));

    c->loop = l;
    c->cfg = *cfg;
    c->fn = fn;
    c->arg = arg;
    c->pidfd = c->in = c->out = -1;
    buf_init(&c->line, NVML_REPORT_BYTES_MAX);
    return c;
}

int probe_child_pid(const struct probe_child *c) { return (int)c->pid; }

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_pipes(struct probe_child *c)
{
    loop_fd_del(c->out_watch);
    c->out_watch = NULL;
    close_fd(&c->in);
    close_fd(&c->out);
    buf_clear(&c->line);
}

static void answer(struct probe_child *c, const char *line, size_t n, const struct err *e)
{
    loop_timer_set(c->deadline, -1);
    c->fn(c->arg, line, n, e);
}

void probe_child_end(struct probe_child *c, bool hard)
{
    if (c->state == CHILD_NONE)
        return;
    if (c->deadline)
        loop_timer_set(c->deadline, -1);
    if (c->state != CHILD_DYING)
        c->killed_us = clock_now_us(clock_real());
    c->state = CHILD_DYING;
    close_pipes(c);
    if (hard)
        kill(c->pid, c->cfg.kill_signal);
}

static void on_deadline(void *arg)
{
    struct probe_child *c = arg;
    struct err e = {0};

    err_set(&e, ERR_TIMEOUT,
            "the NVML helper (process %d) gave no answer in %.1f s and was killed",
            (int)c->pid, (double)c->cfg.deadline_us / 1e6);
    probe_child_end(c, true);
    answer(c, NULL, 0, &e);
}

static void on_nonsense(struct probe_child *c, const char *what)
{
    struct err e = {0};
    bool asked = c->state == CHILD_ASKED;

    err_set(&e, ERR_SYNTAX, "the NVML helper (process %d) %s and was killed", (int)c->pid,
            what);
    probe_child_end(c, true);
    if (asked)
        answer(c, NULL, 0, &e);
}

/* Reads what is there: false when there is no more now, or the pipe is closed. */
static bool fill(struct probe_child *c)
{
    static const size_t step = READ_BYTES;
    char *part = xmalloc(step);
    ssize_t n = read(c->out, part, step);

    if (n > 0)
        buf_add(&c->line, part, (size_t)n);
    free(part);
    return n > 0 || (n < 0 && errno == EINTR);
}

static void on_output(void *arg, int fd, uint32_t events)
{
    struct probe_child *c = arg;
    char *end;

    (void)fd;
    (void)events;
    if (!fill(c)) {
        /* closed: the end of the process follows and says why; a helper that closes its
         * output and goes on is caught by the deadline */
        loop_fd_del(c->out_watch);
        c->out_watch = NULL;
        return;
    }
    if (c->line.over) {
        on_nonsense(c, "writes without end");
        return;
    }
    end = c->line.p ? memchr(c->line.p, '\n', c->line.len) : NULL;
    if (!end)
        return;
    if (c->state != CHILD_ASKED || end + 1 != c->line.p + c->line.len) {
        on_nonsense(c, "writes what nobody asked for");
        return;
    }
    *end = '\0';
    c->state = CHILD_IDLE;
    answer(c, c->line.p, c->line.len - 1, NULL);
    buf_clear(&c->line);
}

/* ---- its end ---- */

static void say_end(const siginfo_t *si, pid_t pid, struct err *e)
{
    if (si->si_code == CLD_EXITED)
        err_set(e, ERR_DEVICE,
                "the NVML helper (process %d) ended with exit code %d and no answer",
                (int)pid, si->si_status);
    else
        err_set(e, ERR_DEVICE, "the NVML helper (process %d) was ended by signal %d (%s)",
                (int)pid, si->si_status, strsignal(si->si_status));
}

static void on_exit_fd(void *arg, int fd, uint32_t events)
{
    struct probe_child *c = arg;
    siginfo_t si = {0};
    struct err e = {0};

    (void)events;
    if (waitid(P_PIDFD, (id_t)fd, &si, WEXITED | WNOHANG) < 0 || si.si_pid == 0)
        return;
    while (c->out_watch && c->state == CHILD_ASKED)
        on_output(c, c->out, EPOLLIN); /* its last words may be the answer */
    bool asked = c->state == CHILD_ASKED;
    say_end(&si, c->pid, &e);
    close_pipes(c);
    loop_fd_del(c->exit_watch);
    c->exit_watch = NULL;
    close_fd(&c->pidfd);
    c->pid = 0;
    c->state = CHILD_NONE;
    if (asked)
        answer(c, NULL, 0, &e);
}

/* ---- its start ---- */

/* A pipe whose two ends are above the numbers that the child gives its own. */
static int high_pipe(int ret[2], struct err *e)
{
    int low[2], bad;

    if (pipe2(low, O_CLOEXEC) < 0)
        return err_errno(e, ERR_IO, "no pipe for the NVML helper");
    for (int i = 0; i < 2; i++) {
        ret[i] = fcntl(low[i], F_DUPFD_CLOEXEC, HIGH_FD);
        close(low[i]);
    }
    bad = ret[0] < 0 || ret[1] < 0;
    if (!bad)
        return 0;
    err_errno(e, ERR_IO, "no pipe for the NVML helper");
    close_fd(&ret[0]);
    close_fd(&ret[1]);
    return -1;
}

static int spawn(struct probe_child *c, int in, int out, struct err *e)
{
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t none, all;
    char *argv[8] = {(char *)c->cfg.program}, **env = systemd_child_env();
    int rc;

    for (int i = 0; i < 6 && c->cfg.args[i]; i++)
        argv[i + 1] = c->cfg.args[i];
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&at);
    rc = posix_spawn_file_actions_adddup2(&fa, in, 0) ||
                 posix_spawn_file_actions_adddup2(&fa, out, 1) ||
                 posix_spawn_file_actions_addclosefrom_np(&fa, 3) ||
                 posix_spawnattr_setflags(&at, POSIX_SPAWN_SETPGROUP |
                                                   POSIX_SPAWN_SETSIGMASK |
                                                   POSIX_SPAWN_SETSIGDEF) ||
                 posix_spawnattr_setpgroup(&at, 0) ||
                 posix_spawnattr_setsigmask(&at, &none) ||
                 posix_spawnattr_setsigdefault(&at, &all)
             ? ENOMEM
             : 0;
    if (rc == 0)
        rc = posix_spawn(&c->pid, c->cfg.program, &fa, &at, argv, env);
    free(env);
    posix_spawnattr_destroy(&at);
    posix_spawn_file_actions_destroy(&fa);
    if (rc == 0)
        return 0;
    c->pid = 0;
    errno = rc;
    return err_errno(e, ERR_IO, "cannot start the NVML helper '%s'", c->cfg.program);
}

static int watch(struct probe_child *c, struct err *e)
{
    c->pidfd = pidfd_open(c->pid, 0);
    if (c->pidfd < 0)
        return err_errno(e, ERR_IO, "cannot watch the NVML helper");
    if (!c->deadline)
        c->deadline = loop_timer_new(c->loop, on_deadline, c);
    if (loop_fd_add(c->loop, c->pidfd, EPOLLIN, on_exit_fd, c, &c->exit_watch, e) < 0)
        return -1;
    return loop_fd_add(c->loop, c->out, EPOLLIN, on_output, c, &c->out_watch, e);
}

/* Ends a process that just started and whose watch failed: it is in no driver yet. */
static void reap(struct probe_child *c)
{
    if (c->pid > 0) {
        kill(c->pid, SIGKILL);
        while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    c->pid = 0;
    loop_fd_del(c->exit_watch);
    c->exit_watch = NULL;
    close_fd(&c->pidfd);
    close_pipes(c);
}

static int start(struct probe_child *c, struct err *e)
{
    int in[2], out[2];

    if (high_pipe(in, e) < 0)
        return -1;
    if (high_pipe(out, e) < 0) {
        close(in[0]);
        close(in[1]);
        return -1;
    }
    int rc = spawn(c, in[0], out[1], e);
    close(in[0]);
    close(out[1]);
    c->in = in[1];
    c->out = out[0];
    fcntl(c->in, F_SETFL, O_NONBLOCK);
    fcntl(c->out, F_SETFL, O_NONBLOCK);
    if (rc == 0 && watch(c, e) == 0)
        return 0;
    reap(c);
    return -1;
}

int probe_child_ask(struct probe_child *c, struct err *e)
{
    int64_t now = clock_now_us(clock_real());

    if (c->state == CHILD_DYING)
        return err_set(
            e, ERR_UNAVAIL,
            "the NVML helper (process %d) was told to end %.1f s ago and has not "
            "ended: a call is stuck in the driver; no other is started until "
            "it has",
            (int)c->pid, (double)(now - c->killed_us) / 1e6);
    if (c->state == CHILD_ASKED)
        return err_set(e, ERR_BUSY, "the NVML helper has not answered yet");
    if (c->state == CHILD_NONE && start(c, e) < 0)
        return -1;
    /* a helper that just ended is noticed by the loop and becomes the answer */
    if (c->state == CHILD_IDLE && write(c->in, "\n", 1) < 0 && errno != EPIPE)
        return err_errno(e, ERR_IO, "cannot ask the NVML helper");
    c->state = CHILD_ASKED;
    loop_timer_set(c->deadline, now + c->cfg.deadline_us);
    return 0;
}

void probe_child_free(struct probe_child *c)
{
    if (!c)
        return;
    close_pipes(c);
    if (c->pid > 0) {
        kill(c->pid, SIGKILL);
        waitpid(c->pid, NULL, WNOHANG); /* else init inherits it when we end */
    }
    loop_fd_del(c->exit_watch);
    close_fd(&c->pidfd);
    if (c->deadline)
        loop_timer_free(c->deadline);
    buf_done(&c->line);
    free(c);
}

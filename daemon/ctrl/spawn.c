/* daemon/ctrl/spawn.c - posix_spawn of an engine: own process group, default signals, its
 * CPUs, and exactly the descriptors that it is to have.
 *
 * The engine finds the socket at descriptor 3, the metric page at 4, that of the ranks
 * at 5, that of the experts at 6, that of traces at 7. It runs on the CPUs that it is
 * given because this thread takes them for the moment of the spawn: a set given later
 * would come after it has counted them. */
#include "daemon/ctrl/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/systemd.h"
#include "daemon/ctrl/child.h"

enum {
    SOCKET_AT = 3,
    PAGE_AT = 4,
    RANKS_AT = 5,
    EXPERTS_AT = 6,
    TRACE_AT = 7,
    OWN_ARGS = 9 /* beside the instance's */
};

static int spawn_actions(posix_spawn_file_actions_t *fa, const struct spawn_fds *fds)
{
    return posix_spawn_file_actions_addopen(fa, 0, "/dev/null", O_RDONLY, 0) ||
           posix_spawn_file_actions_adddup2(fa, fds->err, STDERR_FILENO) ||
           posix_spawn_file_actions_adddup2(fa, fds->sock, SOCKET_AT) ||
           posix_spawn_file_actions_adddup2(fa, fds->page, PAGE_AT) ||
           posix_spawn_file_actions_adddup2(fa, fds->ranks, RANKS_AT) ||
           posix_spawn_file_actions_adddup2(fa, fds->experts, EXPERTS_AT) ||
           posix_spawn_file_actions_adddup2(fa, fds->trace, TRACE_AT);
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
static char **make_argv(const struct child_cfg *cfg, char *own[OWN_ARGS + 1])
{
    char **argv = xcalloc((size_t)cfg->n_args + OWN_ARGS + 2, sizeof(*argv)), hex[33];
    int n = 0;

    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", cfg->secret[i]);
    own[0] = xasprintf("--fd=%d", SOCKET_AT);
    own[1] = xasprintf("--page-fd=%d", PAGE_AT);
    own[2] = xasprintf("--ranks-fd=%d", RANKS_AT);
    own[3] = xasprintf("--experts-fd=%d", EXPERTS_AT);
    own[4] = xasprintf("--trace-fd=%d", TRACE_AT);
    own[5] = xasprintf("--secret=%s", hex);
    own[6] = xasprintf("--log-level=%s", cfg->log_level);
    own[7] = xasprintf("--cpus=%s", cfg->rank_cpus ? cfg->rank_cpus : "");
    own[8] = cfg->kv_file ? xasprintf("--kv-file=%s", cfg->kv_file) : NULL;
    own[OWN_ARGS] = NULL;
    argv[n++] = (char *)cfg->program;
    for (int i = 0; own[i]; i++)
        argv[n++] = own[i];
    for (int i = 0; i < cfg->n_args; i++)
        argv[n++] = cfg->args[i];
    return argv;
}

/* posix_spawn on the CPUs of cfg: errno's value, 0 when it went well. */
static int spawn_on(const struct child_cfg *cfg, posix_spawn_file_actions_t *fa,
                    posix_spawnattr_t *at, char **argv, pid_t *ret)
{
    cpu_set_t ours;
    bool moved = cfg->cpus && sched_getaffinity(0, sizeof(ours), &ours) == 0 &&
                 sched_setaffinity(0, sizeof(*cfg->cpus), cfg->cpus) == 0;
    char **env = systemd_child_env();
    int rc = posix_spawn(ret, cfg->program, fa, at, argv, env);

    free(env);

    if (moved)
        sched_setaffinity(0, sizeof(ours), &ours);
    return rc;
}

int spawn_engine(const struct child_cfg *cfg, const struct spawn_fds *fds, pid_t *ret,
                 struct err *e)
{
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    char *own[OWN_ARGS + 1], **argv;
    int rc;

    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&at);
    argv = make_argv(cfg, own);
    rc = spawn_actions(&fa, fds) || spawn_attributes(&at) ? ENOMEM : 0;
    if (rc == 0)
        rc = spawn_on(cfg, &fa, &at, argv, ret);
    for (int i = 0; own[i]; i++)
        free(own[i]);
    free(argv);
    posix_spawnattr_destroy(&at);
    posix_spawn_file_actions_destroy(&fa);
    if (rc) {
        *ret = 0;
        errno = rc;
        return err_errno(e, ERR_IO, "cannot start the engine program '%s'", cfg->program);
    }
    return 0;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* low[0..1] lifted over SPAWN_HIGH_FD into pair, and closed. */
static int lift(const int low[2], int pair[2], const char *what, struct err *e)
{
    for (int i = 0; i < 2; i++) {
        pair[i] = fcntl(low[i], F_DUPFD_CLOEXEC, SPAWN_HIGH_FD);
        close(low[i]);
    }
    if (pair[0] >= 0 && pair[1] >= 0)
        return 0;
    err_errno(e, ERR_IO, "cannot make a %s for the engine", what);
    close_fd(pair[0]);
    close_fd(pair[1]);
    pair[0] = pair[1] = -1;
    return -1;
}

/* sv[0] ours, sv[1] the child's. */
int spawn_sockets(int sv[2], struct err *e)
{
    int low[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, low) < 0)
        return err_errno(e, ERR_IO, "cannot make a socket for the engine");
    return lift(low, sv, "socket", e);
}

/* p[0] ours and not blocking, p[1] the child's. */
int spawn_pipe(int p[2], struct err *e)
{
    int low[2];

    if (pipe2(low, O_CLOEXEC) < 0)
        return err_errno(e, ERR_IO, "cannot make a pipe for the engine");
    if (lift(low, p, "pipe", e) < 0)
        return -1;
    return fcntl(p[0], F_SETFL, O_NONBLOCK) == 0
               ? 0
               : err_errno(e, ERR_IO, "cannot make a pipe for the engine");
}

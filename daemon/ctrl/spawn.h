/* daemon/ctrl/spawn.h - starts an engine's process; the descriptors between it and us.
 *
 * Control thread: it lends its CPU set for the moment of the spawn. */
#ifndef CTRL_SPAWN_H
#define CTRL_SPAWN_H

#include <sys/types.h>

struct child_cfg;
struct err;

enum { SPAWN_HIGH_FD = 16 }; /* over whatever the child's actions write to */

struct spawn_fds {
    /* all over it, so that dup2 overwrites none */
    int sock, page, ranks, experts, trace, err;
};
int spawn_engine(const struct child_cfg *cfg, const struct spawn_fds *fds, pid_t *ret,
                 struct err *e);
/* [0] ours, [1] the child's; the pipe's first end does not block. -1: neither is open. */
int spawn_sockets(int sv[2], struct err *e);
int spawn_pipe(int p[2], struct err *e);

#endif

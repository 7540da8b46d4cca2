/* daemon/api/peer.c - the process at the other end of a UNIX socket and its groups. */
#include "daemon/api/peer.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

enum { GROUPS_MAX = 65536 }; /* as many as the kernel allows */

static gid_t group_id(const char *name)
{
    char room[16384];
    struct group g, *found = NULL;

    if (getgrnam_r(name, &g, room, sizeof(room), &found) != 0 || !found)
        return (gid_t)-1;
    return g.gr_gid;
}

void peer_groups_find(struct peer_groups *g)
{
    g->admin = group_id("llmrack-admin");
    g->reader = group_id("llmrack");
}

/* The peer's supplementary groups, malloc'd; none when the system does not tell. */
static gid_t *groups_of(int fd, size_t *ret_n)
{
    socklen_t len = 64 * sizeof(gid_t);
    gid_t *v = xmalloc(len);

    *ret_n = 0;
    while (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, v, &len) < 0) {
        free(v);
        if (errno != ERANGE || len > GROUPS_MAX * sizeof(gid_t))
            return NULL;
        v = xmalloc(len); /* the kernel said how much */
    }
    *ret_n = len / sizeof(gid_t);
    return v;
}

static bool is_member(gid_t want, gid_t own, const gid_t *v, size_t n)
{
    bool yes = own == want;

    for (size_t i = 0; i < n; i++)
        yes = yes || v[i] == want;
    return want != (gid_t)-1 && yes;
}

int peer_scope(int fd, const struct peer_groups *g, uid_t *ret_uid,
               enum access_scope *ret, struct err *e)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);
    size_t n = 0;
    gid_t *v;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return err_errno(e, ERR_IO, "the system does not say who is at the socket");
    v = groups_of(fd, &n);
    if (cred.uid == 0 || cred.uid == geteuid() || is_member(g->admin, cred.gid, v, n))
        *ret = ACCESS_ADMIN;
    else
        *ret = is_member(g->reader, cred.gid, v, n) ? ACCESS_READ : ACCESS_NONE;
    *ret_uid = cred.uid;
    free(v);
    return 0;
}

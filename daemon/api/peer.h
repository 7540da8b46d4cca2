/* daemon/api/peer.h - the process at the other end of a UNIX socket and its groups.
 *
 * Credentials and groups are the kernel's, as they were when the peer connected. Looking
 * up the name of a group may ask a directory server, so it is not done for each
 * connection. */
#ifndef API_PEER_H
#define API_PEER_H

#include <sys/types.h>

#include "daemon/api/access.h"

struct err;

/* The two groups, (gid_t)-1 where the system has none of that name. */
struct peer_groups {
    gid_t admin, reader;
};
void peer_groups_find(struct peer_groups *g);

/* What the peer of fd may do: root, our own user and members of admin everything, members
 * of reader read and infer, others nothing. IO when the system does not say who it is. */
int peer_scope(int fd, const struct peer_groups *g, uid_t *ret_uid,
               enum access_scope *ret, struct err *e);

#endif

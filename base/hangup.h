/* base/hangup.h - which of many sockets lost their peer.
 *
 * A set that any thread changes and one thread reads: its descriptor becomes readable
 * (for a loop) when a peer closed or half-closed. A socket is told of once for each
 * arming, so one that is closing on its own costs nothing. Closing a socket takes it out;
 * the caller's key tells a new socket of the same number from the old one. */
#ifndef BASE_HANGUP_H
#define BASE_HANGUP_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct hangup;

int hangup_new(struct hangup **ret, struct err *e);
void hangup_free(struct hangup *h); /* NULL allowed */
int hangup_fd(const struct hangup *h);
/* again: this socket has been armed before. False when the system refuses. Any thread. */
bool hangup_arm(struct hangup *h, int fd, uint64_t key, bool again);
void hangup_del(struct hangup *h, int fd); /* before it is closed; any thread */
/* Keys of those that lost their peer, at most max; does not wait. */
int hangup_take(struct hangup *h, uint64_t *ret_keys, int max);

#endif

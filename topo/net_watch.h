/* topo/net_watch.h - news of NICs: down, up, gone, new, renamed, other MTU.
 *
 * The kernel reports each change of a network device at once; RDMA ports without one are
 * looked at twice a second while there are any. When reports were lost (a burst), the
 * whole list is read again and compared, so nothing is missed. Owner: the thread of the
 * loop. */
#ifndef TOPO_NET_WATCH_H
#define TOPO_NET_WATCH_H

struct err;
struct loop;
struct net_watch;

enum net_change { NET_CAME, NET_LEFT, NET_WENT_UP, NET_WENT_DOWN, NET_RENAMED, NET_MTU };

/* name: the device's or port's; what: a sentence. */
typedef void (*net_change_fn)(void *arg, enum net_change c, const char *name,
                              const char *what);

/* What is there at the call is known and not reported. Free before the loop. */
int net_watch_new(struct loop *l, net_change_fn fn, void *arg, struct net_watch **ret,
                  struct err *e);
void net_watch_free(struct net_watch *w);

#endif

/* topo/net_watch.h - news of NICs: down, up, gone, new, renamed, other MTU.
 *
 * The kernel reports each change of a network device at once. From 6.13 on it also
 * reports RDMA devices that come, go or are renamed, but no kernel reports the state of
 * their ports: these are looked at twice a second while there are any, and so are the
 * devices where the kernel is older. When reports were lost (a burst), the whole list is
 * read again and compared, so nothing is missed. Owner: the thread of the loop. */
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
/* How it learns of RDMA devices: there is no RDMA, the kernel reports them, they are
 * looked for. */
enum net_rdma { NET_RDMA_NONE, NET_RDMA_REPORTED, NET_RDMA_POLLED };
enum net_rdma net_watch_rdma(const struct net_watch *w);

#endif

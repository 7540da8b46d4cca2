/* base/loop.h - the event loop of a control thread: descriptors, timers, signals.
 *
 * Level-triggered epoll. All calls from the owner thread, except loop_wake. Callbacks
 * may add and remove watches, also their own. Timers are one-shot; re-arm in the
 * callback. */
#ifndef BASE_LOOP_H
#define BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct loop;
struct loop_fd;
struct loop_timer;

typedef void (*loop_fd_fn)(void *arg, int fd, uint32_t events); /* EPOLLIN ... */
typedef void (*loop_timer_fn)(void *arg);
typedef void (*loop_signal_fn)(void *arg, int signo);

int loop_new(struct loop **ret, struct err *e);
void loop_free(struct loop *l);
int loop_fd_add(struct loop *l, int fd, uint32_t events, loop_fd_fn fn, void *arg,
                struct loop_fd **ret, struct err *e);
void loop_fd_set(struct loop_fd *w, uint32_t events);
void loop_fd_del(struct loop_fd *w); /* NULL allowed; does not close the fd */
struct loop_timer *loop_timer_new(struct loop *l, loop_timer_fn fn, void *arg);
void loop_timer_set(struct loop_timer *t, int64_t at_us); /* monotonic; -1 disarms */
void loop_timer_free(struct loop_timer *t);
/* Blocks signo for the process's later threads and delivers it here (signalfd). */
int loop_signal(struct loop *l, int signo, loop_signal_fn fn, void *arg, struct err *e);
int loop_run(struct loop *l, struct err *e); /* until loop_stop */
/* One pass that waits at most until at_us (-1 = for ever, 0 = no wait). */
int loop_once(struct loop *l, int64_t at_us, struct err *e);
void loop_stop(struct loop *l);
void loop_wake(struct loop *l); /* any thread */
/* Passes finished so far; a watchdog compares two readings. Any thread. */
uint64_t loop_passes(const struct loop *l);

#endif

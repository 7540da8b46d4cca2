/* base/systemd.h - the service manager and its journal; systemd.c alone knows libsystemd.
 *
 * Without a manager (no NOTIFY_SOCKET, no LISTEN_FDS, no WATCHDOG_USEC) every call does
 * nothing and says so. News are datagrams that nobody answers: a lost one is no fault.
 * Any thread, except systemd_listen, which is for the start. */
#ifndef BASE_SYSTEMD_H
#define BASE_SYSTEMD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct err;

/* Assignments as of sd_notify(3), one a line: "READY=1\nSTATUS=...". */
void systemd_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* READY=0 until the next READY=1: RELOADING with the present monotonic time. */
void systemd_reloading(void);
/* How often the manager wants to hear WATCHDOG=1; 0 = not at all. */
int64_t systemd_watchdog_us(void);
/* The listening UNIX stream socket that the manager opened for us: 1 and *ret_fd, 0 when
 * it opened none, -1 when what it passed is something else. Takes it out of the
 * environment. */
int systemd_listen(int *ret_fd, struct err *e);
/* Is this descriptor the stream to the journal that JOURNAL_STREAM tells of? */
bool systemd_is_journal(int fd);
/* One entry, FIELD=value each; -1 when the journal does not take it. */
int systemd_journal(const struct iovec *fields, int n);
/* The environment without what was meant for us alone (sockets, notices, watchdog), for a
 * child. The caller frees the array; the strings stay the environment's. */
char **systemd_child_env(void);

#endif

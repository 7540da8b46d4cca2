/* daemon/api/guard.h - refuse what a web page of another site sends. Pure.
 *
 * DNS rebinding gives a foreign page a name that points here, but its requests still
 * carry that name in Host and Origin. So on TCP both must be an address of ours: the
 * listener's, the one that the client reached, localhost, 127.0.0.1 or [::1], with or
 * without a port. */
#ifndef API_GUARD_H
#define API_GUARD_H

#include <stdbool.h>

struct err;

/* listen_host as configured (brackets taken off), reached = numeric address of the local
 * end (may be ""). host and origin are the header values or NULL; http11 makes Host
 * mandatory. */
int guard_check(const char *listen_host, const char *reached, const char *host,
                const char *origin, bool http11, struct err *e);

#endif

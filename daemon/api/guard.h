/* daemon/api/guard.h - refuse what a web page of another site sends. Pure.
 *
 * DNS rebinding gives a foreign page a name that points here, but its requests still
 * carry that name in Host: on TCP it must be one of ours: the listener's, the address
 * that the client reached, localhost, 127.0.0.1 or [::1], or one that the configuration
 * adds; with or without a port. A page says in Origin where it came from; only those that
 * the configuration lists may ask, and only with a content type that makes the browser
 * ask first. */
#ifndef API_GUARD_H
#define API_GUARD_H

#include <stdbool.h>

struct err;

struct guard_names {
    const char *listen_host; /* as configured, brackets taken off */
    const char *reached;     /* numeric address of the local end, may be "" */
    char *const *hosts;      /* further ones */
    int n_hosts;
    char *const *origins; /* "https://chat.example:8443" */
    int n_origins;
};

/* host and origin are the header values or NULL; http11 makes Host mandatory. */
int guard_check(const struct guard_names *n, const char *host, const char *origin,
                bool http11, struct err *e);
/* A request of a web page that changes or asks something by a body. */
int guard_content(const char *method, const char *content_type, struct err *e);

#endif

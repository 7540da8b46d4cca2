/* daemon/api/guard.c - Host and Origin against the names that are ours. */
#include "daemon/api/guard.h"

#include <string.h>
#include <strings.h>

#include "base/err.h"

/* host[:port] into the bare host; false when it is no such thing. */
static bool bare_host(const char *s, char *to, size_t cap)
{
    const char *start = s, *end, *port;

    if (*s == '[') {
        start = s + 1;
        end = strchr(start, ']');
        if (!end)
            return false;
        port = end + 1;
    } else {
        end = s + strcspn(s, ":");
        port = end;
    }
    if (*port == ':')
        port += 1 + strspn(port + 1, "0123456789");
    if (*port || end == start || (size_t)(end - start) >= cap)
        return false;
    memcpy(to, start, (size_t)(end - start));
    to[end - start] = '\0';
    return true;
}

static bool among(const char *s, char *const *v, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcasecmp(s, v[i]))
            return true;
    return false;
}

static bool ours(const struct guard_names *n, const char *value)
{
    static char *const always[] = {"localhost", "127.0.0.1", "::1"};
    char host[256];

    if (!bare_host(value, host, sizeof(host)))
        return false;
    return among(host, always, sizeof(always) / sizeof(always[0])) ||
           among(host, n->hosts, n->n_hosts) || !strcasecmp(host, n->listen_host) ||
           !strcasecmp(host, n->reached);
}

int guard_check(const struct guard_names *n, const char *host, const char *origin,
                bool http11, struct err *e)
{
    if (!host && http11)
        return err_set(e, ERR_INVALID, "the Host header is missing");
    if (host && !ours(n, host))
        return err_set(e, ERR_DENIED,
                       "the Host header names another host; access.hosts lists further "
                       "names of this one");
    if (origin && !among(origin, n->origins, n->n_origins))
        return err_set(e, ERR_DENIED,
                       "web pages of this Origin are refused; access.cors_origins lists "
                       "those that may ask");
    return 0;
}

int guard_content(const char *method, const char *content_type, struct err *e)
{
    static const char json[] = "application/json";
    const char *rest = content_type ? content_type + sizeof(json) - 1 : NULL;

    if (!strcmp(method, "GET") || !strcmp(method, "HEAD") || !strcmp(method, "DELETE"))
        return 0;
    if (content_type && !strncasecmp(content_type, json, sizeof(json) - 1) &&
        (!*rest || strchr(" \t;", *rest)))
        return 0;
    return err_param(e, ERR_UNSUPPORTED, "Content-Type",
                     "a request of a web page must be of type application/json");
}

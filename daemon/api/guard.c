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

static bool ours(const char *value, const char *listen_host, const char *reached)
{
    static const char *const always[] = {"localhost", "127.0.0.1", "::1"};
    char host[256];

    if (!bare_host(value, host, sizeof(host)))
        return false;
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        if (!strcasecmp(host, always[i]))
            return true;
    return (listen_host[0] && !strcasecmp(host, listen_host)) ||
           (reached[0] && !strcasecmp(host, reached));
}

int guard_check(const char *listen_host, const char *reached, const char *host,
                const char *origin, bool http11, struct err *e)
{
    if (!host && http11)
        return err_set(e, ERR_INVALID, "the Host header is missing");
    if (host && !ours(host, listen_host, reached))
        return err_set(e, ERR_DENIED, "the Host header names another host");
    if (!origin)
        return 0;
    if (!strncasecmp(origin, "http://", 7))
        origin += 7;
    else if (!strncasecmp(origin, "https://", 8))
        origin += 8;
    else
        return err_set(e, ERR_DENIED, "requests from this Origin are refused");
    if (!ours(origin, listen_host, reached))
        return err_set(e, ERR_DENIED, "requests from this Origin are refused");
    return 0;
}

/* daemon/api/admit.c - everything that the headers of a request decide.
 *
 * The order matters: first whether this server is meant at all (Host, Origin), then what
 * is asked for, then who asks. Health routes need no key and never see one. */
#include "daemon/api/admit.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/guard.h"
#include "daemon/api/link.h"
#include "daemon/api/route.h"
#include "daemon/api/rules.h"
#include "daemon/api/server.h"
#include "daemon/serve/metrics.h"

enum { REFUSED_BYTES = 256 << 10 }; /* of a body whose sender may not */

static const char *header(const struct conn *c, const char *name)
{
    return MHD_lookup_connection_value(c->mhd, MHD_HEADER_KIND, name);
}

int admit_too_big(const struct conn *c, struct err *e)
{
    return err_set(e, ERR_TOOBIG, "the request body is over the limit of %llu bytes",
                   (unsigned long long)conn_body_max(c));
}

static int check_names(struct conn *c, const char *method, const char *version,
                       struct err *e)
{
    const char *origin = header(c, MHD_HTTP_HEADER_ORIGIN);
    const struct guard_names n = {
        .listen_host = c->h->listen_host,
        .reached = c->link->reached,
        .hosts = c->rules->hosts,
        .n_hosts = c->rules->n_hosts,
        .origins = c->rules->cors,
        .n_origins = c->rules->n_cors,
    };

    if (guard_check(&n, header(c, MHD_HTTP_HEADER_HOST), origin,
                    !strcmp(version, MHD_HTTP_VERSION_1_1), e) < 0)
        return -1;
    if (!origin)
        return 0;
    c->origin = xstrdup(origin); /* the answer names it */
    if (!strcmp(method, "OPTIONS"))
        return 0;
    return guard_content(method, header(c, MHD_HTTP_HEADER_CONTENT_TYPE), e);
}

/* A browser asks whether it may: for a page that may, and a route that there is. */
static int preflight(struct conn *c, const char *url, struct err *e)
{
    const char *method = header(c, "Access-Control-Request-Method");

    c->preflight = true;
    return route_find(method, url, &c->match, e);
}

static int identify(struct conn *c, struct err *e)
{
    int rc;

    if (c->local) {
        *e = c->link->denied;
        return e->code == ERR_OK ? 0 : -1;
    }
    rc = access_key(c->h->cfg.access, header(c, MHD_HTTP_HEADER_AUTHORIZATION),
                    header(c, "X-Api-Key"), clock_now_us(clock_real()), &c->who,
                    &c->retry_after_s, e);
    if (rc < 0)
        http_count(c->h, M_AUTH_FAILURES, 0, 1);
    return rc;
}

static int check_rights(struct conn *c, struct err *e)
{
    struct access *a = c->h->cfg.access;
    int rc = 0;

    if (c->route->access == ACCESS_NONE)
        return 0;
    if (identify(c, e) == 0 && access_may(&c->who, c->route->access, e) == 0)
        c->account.on = c->inference;
    else
        rc = -1;
    if (rc < 0 || access_begin(a, &c->who, c->inference, clock_now_us(clock_real()),
                               &c->retry_after_s, e) < 0) {
        c->close = c->who.key == 0; /* the next try costs a connection */
        c->drain_max = REFUSED_BYTES;
        return -1;
    }
    atomic_store(&c->owes, c->inference && c->who.key);
    return 0;
}

int admit(struct conn *c, const char *method, const char *url, const char *version,
          struct err *e)
{
    const char *length = header(c, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *match = header(c, MHD_HTTP_HEADER_IF_MATCH);

    if (!c->local && check_names(c, method, version, e) < 0) {
        c->drain_max = REFUSED_BYTES;
        return -1;
    }
    if (c->origin && !strcmp(method, "OPTIONS") &&
        header(c, "Access-Control-Request-Method"))
        return preflight(c, url, e);
    if (route_find(method, url, &c->match, e) < 0)
        return -1;
    c->route = c->match.route;
    c->inference = c->route->inference;
    if (check_rights(c, e) < 0 || query_read(c->mhd, c->route, &c->query, e) < 0)
        return -1;
    c->if_match = match ? xstrdup(match) : NULL;
    if (length && strtoull(length, NULL, 10) > conn_body_max(c))
        return admit_too_big(c, e);
    return 0;
}

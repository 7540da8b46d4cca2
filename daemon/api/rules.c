/* daemon/api/rules.c - what the HTTP threads need of the configuration, as one copy. */
#include "daemon/api/rules.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/ctrl/conf.h"

struct copy {
    struct rules r; /* first */
    atomic_int refs;
    struct shared {
        char *served_as; /* "" = the name in the model's file */
        int isolate;
    } * instances;
    int n;
};

static char **copy_list(const char **v, int n)
{
    char **out = xcalloc((size_t)n + 1, sizeof(*out));

    for (int i = 0; i < n; i++)
        out[i] = xstrdup(v[i]);
    return out;
}

struct rules *rules_new(const struct conf *c)
{
    struct copy *k = xcalloc(1, sizeof(*k));

    atomic_init(&k->refs, 1);
    k->r = (struct rules){
        .max_body = (size_t)c->limits.max_body_mib << 20,
        .max_connections = (int)c->limits.max_connections,
        .header_us = c->limits.header_s * 1000000,
        .body_us = c->limits.body_s * 1000000,
        .idle_us = c->limits.idle_s * 1000000,
        .hosts = copy_list(c->access.hosts, c->access.n_hosts),
        .cors = copy_list(c->access.cors_origins, c->access.n_cors),
        .n_hosts = c->access.n_hosts,
        .n_cors = c->access.n_cors,
        .log_content = c->access.log_content,
    };
    k->n = c->n_instances;
    k->instances = xcalloc((size_t)k->n + 1, sizeof(*k->instances));
    for (int i = 0; i < k->n; i++) {
        k->instances[i].served_as = xstrdup(c->instances[i].served_as);
        k->instances[i].isolate = c->instances[i].kv.isolate;
    }
    return &k->r;
}

struct rules *rules_ref(struct rules *r)
{
    atomic_fetch_add(&((struct copy *)r)->refs, 1);
    return r;
}

void rules_unref(struct rules *r)
{
    struct copy *k = (struct copy *)r;

    if (!k || atomic_fetch_sub(&k->refs, 1) != 1)
        return;
    for (int i = 0; i < r->n_hosts; i++)
        free(r->hosts[i]);
    for (int i = 0; i < r->n_cors; i++)
        free(r->cors[i]);
    for (int i = 0; i < k->n; i++)
        free(k->instances[i].served_as);
    free(r->hosts);
    free(r->cors);
    free(k->instances);
    free(k);
}

/* Several instances may stand behind one name: one that keeps keys apart decides. */
int rules_isolate(const struct rules *r, const char *served_as)
{
    const struct copy *k = (const struct copy *)r;
    bool named = false, unnamed = false, apart = k->n == 0;

    for (int i = 0; i < k->n; i++) {
        const struct shared *s = &k->instances[i];
        bool mine = !strcmp(s->served_as, served_as);

        named = named || mine;
        unnamed = unnamed || !s->served_as[0];
        if ((mine || !s->served_as[0]) && s->isolate != CONF_ISOLATE_NONE)
            apart = true;
    }
    return apart || !(named || unnamed) ? CONF_ISOLATE_KEY : CONF_ISOLATE_NONE;
}

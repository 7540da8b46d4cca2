/* daemon/ctrl/router_ready.c - does the server answer, and with all that it should have?
 *
 * It is ready when an engine answers. One of two pools counts only once the other pool
 * has had an engine too: a split instance that starts is not ready with half of it. After
 * that, one pool alone serves, and what is missing is told as degraded. Under the lock.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/metric.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/serve/metrics.h"

/* Of "main/decode:2" the length of "main/decode", of "main:2" that of "main". */
static size_t pool_len(const char *engine) { return strcspn(engine, ":"); }

static bool same_pool(const char *a, const char *b)
{
    size_t n = pool_len(a);

    return n == pool_len(b) && !strncmp(a, b, n);
}

static bool same_instance(const char *a, const char *b)
{
    size_t n = conf_name_len(a);

    return n == conf_name_len(b) && !strncmp(a, b, n);
}

/* Somebody wants it so: no lack. */
static bool put_aside(const struct target *t)
{
    return t->draining || t->st.state == INSTANCE_STOPPED ||
           t->st.state == INSTANCE_DRAINING;
}

/* Engines of t's pool: is one ready? */
static bool pool_ready(struct router *r, const struct target *t)
{
    list_for(it, &r->targets)
    {
        const struct target *o = list_entry(it, struct target, link);
        if (same_pool(o->st.name, t->st.name) && router_not_answering(o, NULL) == 0)
            return true;
    }
    return false;
}

/* Was one, since the daemon started? Accounts are kept. */
static bool pool_was_ready(struct router *r, const struct target *t)
{
    for (int i = 0; i < r->n_accounts; i++)
        if (same_pool(r->accounts[i]->instance, t->st.name))
            return true;
    return false;
}

/* An engine of the other pool, which never had one that was ready; NULL: none is missing.
 */
static const struct target *other_half(struct router *r, const struct target *t)
{
    list_for(it, &r->targets)
    {
        const struct target *o = list_entry(it, struct target, link);
        if (o->end.role != CONF_ROLE_BOTH && o->end.role != t->end.role &&
            same_instance(o->st.name, t->st.name) && !put_aside(o) && !pool_ready(r, o) &&
            !pool_was_ready(r, o))
            return o;
    }
    return NULL;
}

/* NULL: it does; else the engine that tells best why not (NULL, *ret_any false: none). */
static const struct target *lacking(struct router *r, bool *ret_any)
{
    const struct target *best = NULL, *half = NULL;

    list_for(it, &r->targets)
    {
        const struct target *t = list_entry(it, struct target, link), *o;
        *ret_any = true;
        if (router_not_answering(t, NULL) == 0) {
            o = t->end.role == CONF_ROLE_BOTH ? NULL : other_half(r, t);
            if (!o)
                return NULL;
            half = o;
        } else if (!best || (best->draining && !t->draining)) {
            best = t; /* one that is not on its way out */
        }
    }
    return half ? half : best;
}

void router_tell_ready(struct router *r)
{
    bool any = false;
    const struct target *t = lacking(r, &any);

    metric_set(r->page, M_READY, 0, any && !t && !r->draining);
}

int router_ready(struct router *r, struct err *e)
{
    const struct target *t;
    bool any = false;
    int rc = 0;

    pthread_mutex_lock(&r->lock);
    t = lacking(r, &any);
    if (!any && r->draining)
        rc = err_set(e, ERR_UNAVAIL, "the server is stopping and takes no new requests");
    else if (!any)
        rc = err_set(e, ERR_UNAVAIL, "no instance is configured: no model is served");
    else if (t)
        rc = router_not_answering(t, e);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int router_degraded(struct router *r, struct err *ret, int max)
{
    int n = 0;

    pthread_mutex_lock(&r->lock);
    list_for(it, &r->targets)
    {
        const struct target *t = list_entry(it, struct target, link);
        bool told = put_aside(t) || pool_ready(r, t);
        struct err why;

        for (struct list *b = r->targets.next; b != it && !told; b = b->next)
            told = same_pool(list_entry(b, struct target, link)->st.name, t->st.name);
        if (told || n >= max)
            continue;
        router_not_answering(t, &why);
        err_set(&ret[n++], why.code, "%.*s: %.400s", (int)pool_len(t->st.name),
                t->st.name, why.msg);
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

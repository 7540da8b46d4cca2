/* daemon/ctrl/router_show.c - copies of what the router knows, for status and scrapes.
 *
 * Under the lock for as long as the copy takes. Pages are not copied: who renders them
 * holds them, and a page whose engine has gone is folded into `past` when nobody does, so
 * that no sum ever counts it twice or goes back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/serve/metrics.h"

enum { RETRY_MAX_S = 30 };

const char *instance_state_name(enum instance_state s)
{
    static const char *const names[] = {
#define X(id, text) text,
        INSTANCE_STATE_MAP(X)
#undef X
    };
    return (unsigned)s < INSTANCE_STATE_COUNT ? names[s] : "unknown";
}

/* The target that tells best why nothing answers: one that is not on its way out. */
static struct target *spokesman(struct router *r)
{
    struct target *best = NULL;

    list_for(it, &r->targets)
    {
        struct target *t = list_entry(it, struct target, link);
        if (router_not_answering(t, NULL) == 0)
            return t;
        if (!best || (best->draining && !t->draining))
            best = t;
    }
    return best;
}

int router_retry_after(struct router *r)
{
    const struct instance_status *st;
    struct target *t;
    int64_t left;
    int s = 1;

    pthread_mutex_lock(&r->lock);
    t = spokesman(r);
    st = t ? &t->st : NULL;
    left = st ? st->retry_at_us - clock_now_us(clock_real()) : 0;
    if (r->draining || !t || st->state == INSTANCE_STOPPED)
        s = RETRY_MAX_S;
    else if (st->state == INSTANCE_BACKOFF || st->state == INSTANCE_FAILED)
        s = left > 0 ? (int)(left / 1000000) + 2 : 2; /* and the time to load */
    else if (st->state == INSTANCE_LOADING)
        s = 2;
    pthread_mutex_unlock(&r->lock);
    return s < RETRY_MAX_S ? s : RETRY_MAX_S;
}

static void describe_target(const struct target *t, struct instance_status *ret)
{
    const struct metric_page *p = t->page->page;

    *ret = t->st;
    ret->live = t->n_live + t->end.n_help;
    ret->load = t->load + t->end.help_load;
    if ((t->draining || t->r->draining) && ret->state == INSTANCE_READY)
        ret->state = INSTANCE_DRAINING;
    if (t->silent_us &&
        (ret->state == INSTANCE_READY || ret->state == INSTANCE_DRAINING)) {
        ret->state = INSTANCE_SILENT;
        ret->since_us = t->silent_us;
        snprintf(ret->error, sizeof(ret->error), "its engine gives no sign of life");
    }
    ret->running = (int)metric_get(p, M_RUNNING, 0);
    ret->waiting = (int)metric_get(p, M_WAITING, 0);
    ret->kv_used = (int)metric_get(p, M_KV_BLOCKS_USED, 0);
    ret->kv_cached = (int)metric_get(p, M_KV_BLOCKS_CACHED, 0);
    ret->kv_queries = metric_get(p, M_PREFIX_QUERIES, 0);
    ret->kv_hits = metric_get(p, M_PREFIX_HITS, 0);
    for (int i = 0; i < 2; i++) {
        ret->kv_tier[i].blocks = (int)metric_get(p, M_KV_TIER_BLOCKS, i);
        ret->kv_tier[i].size = (int)metric_get(p, M_KV_TIER_SIZE, i);
        ret->kv_tier[i].hits = metric_get(p, M_KV_TIER_HITS, i);
    }
}

int router_instances(struct router *r, struct instance_status *ret, int max)
{
    int n = 0;

    pthread_mutex_lock(&r->lock);
    list_for(it, &r->targets)
    {
        if (n < max)
            describe_target(list_entry(it, struct target, link), &ret[n++]);
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

static void describe(const struct req *q, int64_t now, struct request_status *out)
{
    memset(out, 0, sizeof(*out));
    out->id = q->id;
    memcpy(out->label, q->label, sizeof(out->label));
    memcpy(out->model, q->model, sizeof(out->model));
    memcpy(out->instance, q->target->st.name, sizeof(out->instance));
    out->n_prompt = q->n_prompt;
    out->n_out = q->n_out;
    out->max_tokens = q->max_tokens;
    out->age_us = now - q->start_us;
    out->ttft_us = q->first_us < 0 ? -1 : q->first_us - q->start_us;
}

static int by_id(const void *a, const void *b)
{
    const struct request_status *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

int router_requests(struct router *r, struct request_status *ret, int max)
{
    int64_t now = clock_now_us(clock_real());
    int n = 0;

    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < ROUTER_BUCKETS && n < max; i++)
        list_for(it, &r->bucket[i])
        {
            if (n < max)
                describe(list_entry(it, struct req, link), now, &ret[n++]);
        }
    pthread_mutex_unlock(&r->lock);
    qsort(ret, (size_t)n, sizeof(*ret), by_id);
    return n;
}

bool router_ended(struct router *r, const char *name)
{
    char *end;
    unsigned long long id = strtoull(name, &end, 10);
    bool number = end != name && !*end, found = false;

    pthread_mutex_lock(&r->lock);
    if (number && id > 0 && id < r->next_id)
        found = !router_find(r, id);
    for (int i = 0; i < ROUTER_ENDED && !found && *name; i++)
        found = !strcmp(r->ended[i], name);
    pthread_mutex_unlock(&r->lock);
    return found;
}

/* ---- pools ---- */

static void describe_pool(const struct target *t, struct pool_status *ret)
{
    const struct metric_page *p = t->page->page;

    *ret = (struct pool_status){
        .generation = t->st.generation,
        .ready = router_not_answering(t, NULL) == 0,
        .running = (int)metric_get(p, M_RUNNING, 0),
        .waiting = (int)metric_get(p, M_WAITING, 0),
        .helping = t->end.n_help,
        .away = t->end.n_away,
        .exports = (int)metric_get(p, M_HANDOFF_EXPORTS, 0),
        .export_blocks = (int)metric_get(p, M_HANDOFF_EXPORT_BLOCKS, 0),
        .quarantined = (int)metric_get(p, M_HANDOFF_QUARANTINED, 0),
        .stalled = t->end.stalled,
        .handoffs = (int64_t)metric_get(p, M_HANDOFF_TIME, 0),
        .lost = (int64_t)metric_get(p, M_HANDOFF_LOST, 0),
        .recomputed = (int64_t)metric_get(p, M_HANDOFF_RECOMPUTED, 0),
        .retries = (int64_t)metric_get(p, M_HANDOFF_RETRIES, 0),
        .bytes = metric_get(p, M_HANDOFF_BYTES, 0),
        .p50_s = metric_quantile(p, M_HANDOFF_TIME, 0.5),
        .p95_s = metric_quantile(p, M_HANDOFF_TIME, 0.95),
        .p99_s = metric_quantile(p, M_HANDOFF_TIME, 0.99),
    };
    for (int i = 0; i < 4; i++)
        ret->imports += (int)metric_get(p, M_HANDOFF_IMPORTS, i);
    memcpy(ret->name, t->st.name, sizeof(ret->name));
    snprintf(ret->role, sizeof(ret->role), "%s",
             t->end.role == CONF_ROLE_PREFILL ? "prefill" : "decode");
}

int router_pools(struct router *r, struct pool_status *ret, int max)
{
    int n = 0;

    pthread_mutex_lock(&r->lock);
    list_for(it, &r->targets)
    {
        const struct target *t = list_entry(it, struct target, link);
        if (n < max && t->end.role != CONF_ROLE_BOTH)
            describe_pool(t, &ret[n++]);
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* The row of a target's instance, made when it is new; NULL: there are too many. */
static struct pool_window *window_of(const struct target *t, struct pool_window *v,
                                     int *n, int max)
{
    char name[64];

    snprintf(name, sizeof(name), "%.*s", (int)conf_name_len(t->st.name), t->st.name);
    for (int i = 0; i < *n; i++)
        if (!strcmp(v[i].instance, name))
            return &v[i];
    if (*n == max)
        return NULL;
    v[*n] = (struct pool_window){0};
    memcpy(v[*n].instance, name, sizeof(name));
    return &v[(*n)++];
}

int router_pool_windows(struct router *r, struct pool_window *ret, int max)
{
    int64_t now = clock_now_us(clock_real());
    int n = 0;

    pthread_mutex_lock(&r->lock);
    list_for(it, &r->targets)
    {
        const struct target *t = list_entry(it, struct target, link);
        struct pool_window *w =
            t->end.role == CONF_ROLE_DECODE ? window_of(t, ret, &n, max) : NULL;
        double sum[SPLIT_SUMS];

        if (!w)
            continue;
        split_window_sum(&t->window, now, sum);
        w->handoffs += (int64_t)sum[SPLIT_COUNT];
        w->removed_s += sum[SPLIT_REMOVED];
        w->handoff_s += sum[SPLIT_HANDOFF];
        w->scheduling_s += sum[SPLIT_SCHEDULE];
        w->queueing_s += sum[SPLIT_QUEUE];
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* ---- pages ---- */

struct account *router_account(struct router *r, const char *model, const char *instance)
{
    struct account *a;

    for (int i = 0; i < r->n_accounts; i++)
        if (!strcmp(r->accounts[i]->model, model) &&
            !strcmp(r->accounts[i]->instance, instance))
            return r->accounts[i];
    if (r->n_accounts > ROUTER_ACCOUNTS)
        return r->accounts[0];
    a = xcalloc(1, sizeof(*a));
    snprintf(a->model, sizeof(a->model), "%s", model);
    snprintf(a->instance, sizeof(a->instance), "%s", instance);
    if (metric_page_new(metrics_defs, METRICS_N, NULL, &a->page, NULL) < 0) {
        free(a);
        return r->accounts[0];
    }
    r->accounts[r->n_accounts++] = a;
    return a;
}

struct metric_page *router_model_page(struct router *r, const char *model)
{
    struct metric_page *p;

    pthread_mutex_lock(&r->lock);
    p = router_account(r, model, "")->page;
    pthread_mutex_unlock(&r->lock);
    return p;
}

int router_pages_get(struct router *r, struct metric_page **ret, int max)
{
    int n = 0;

    pthread_mutex_lock(&r->lock);
    r->n_readers++;
    if (n < max)
        ret[n++] = r->page;
    for (int i = 0; i < r->n_accounts && n < max; i++)
        ret[n++] = r->accounts[i]->page;
    list_for(it, &r->pages)
    {
        if (n < max)
            ret[n++] = list_entry(it, struct page_box, link)->page;
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* An account and the pages of the engines that will be folded into it. */
static void group_of(struct router *r, const struct account *a, struct page_group *g)
{
    *g = (struct page_group){.pages = {a->page}, .n = 1};
    memcpy(g->model, a->model, sizeof(g->model));
    memcpy(g->instance, a->instance, sizeof(g->instance));
    list_for(it, &r->pages)
    {
        const struct page_box *b = list_entry(it, struct page_box, link);

        if (b->account == a && g->n < ROUTER_GROUP_PAGES)
            g->pages[g->n++] = b->page;
    }
}

int router_groups_get(struct router *r, struct page_group *ret, int max)
{
    int n = 0;

    pthread_mutex_lock(&r->lock);
    r->n_readers++;
    if (n < max)
        ret[n++] = (struct page_group){.pages = {r->page}, .n = 1};
    for (int models = 1; models >= 0; models--)
        for (int i = 1; i < r->n_accounts && n < max; i++)
            if ((r->accounts[i]->instance[0] == 0) == (models == 1))
                group_of(r, r->accounts[i], &ret[n++]);
    pthread_mutex_unlock(&r->lock);
    return n;
}

void router_pages_put(struct router *r)
{
    pthread_mutex_lock(&r->lock);
    r->n_readers--;
    router_sweep(r);
    pthread_mutex_unlock(&r->lock);
}

void router_sweep(struct router *r)
{
    if (r->n_readers)
        return;
    list_for_safe(it, next, &r->pages)
    {
        struct page_box *b = list_entry(it, struct page_box, link);
        if (!b->dead)
            continue;
        list_del(&b->link);
        metric_page_fold(b->account ? b->account->page : r->accounts[0]->page, b->page);
        metric_page_free(b->page);
        free(b);
    }
}

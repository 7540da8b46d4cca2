/* daemon/api/running.c - instances that run, their KV caches, and ending a request. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/rows.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/router.h"

enum { MAX_INSTANCES = 64, MAX_REQUESTS = 4096 };

void control_instances(struct conn *c)
{
    struct instance_status *s = xcalloc(MAX_INSTANCES, sizeof(*s));
    int n = router_instances(c->h->router, s, MAX_INSTANCES);
    struct reply r;

    reply_open(&r);
    jw_key(&r.w, "instances");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++)
        rows_instance(&r.w, &s[i]);
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(s);
}

static void put_kv(struct jw *w, const struct instance_status *s)
{
    jw_obj(w);
    jw_kstr(w, "instance", s->name);
    jw_kint(w, "generation", s->generation);
    jw_kstr(w, "type", s->kv_type);
    jw_kint(w, "blocks", s->n_blocks);
    jw_kint(w, "used", s->kv_used);
    jw_kint(w, "cached", s->kv_cached);
    jw_kint(w, "free", s->n_blocks - s->kv_used - s->kv_cached);
    jw_kint(w, "block_tokens", s->block_tok);
    jw_kint(w, "bytes", (int64_t)s->kv_bytes);
    jw_knum(w, "queries", s->kv_queries);
    jw_knum(w, "hits", s->kv_hits);
    jw_key(w, "hit_share");
    if (s->kv_queries > 0)
        jw_num(w, s->kv_hits / s->kv_queries);
    else
        jw_null(w);
    jw_kint(w, "host_blocks", s->kv_tier[0].blocks);
    jw_kint(w, "host_size", s->kv_tier[0].size);
    jw_knum(w, "host_hits", s->kv_tier[0].hits);
    jw_kint(w, "disk_blocks", s->kv_tier[1].blocks);
    jw_kint(w, "disk_size", s->kv_tier[1].size);
    jw_knum(w, "disk_hits", s->kv_tier[1].hits);
    jw_obj_end(w);
}

void control_kv(struct conn *c)
{
    struct instance_status *s = xcalloc(MAX_INSTANCES, sizeof(*s));
    int n = router_instances(c->h->router, s, MAX_INSTANCES);
    struct reply r;

    reply_open(&r);
    jw_key(&r.w, "kv");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++)
        if (s[i].n_blocks > 0)
            put_kv(&r.w, &s[i]);
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(s);
}

static void put_pool(struct jw *w, const struct pool_status *s)
{
    jw_obj(w);
    jw_kstr(w, "engine", s->name);
    jw_kstr(w, "role", s->role);
    jw_kint(w, "generation", s->generation);
    jw_kbool(w, "ready", s->ready);
    jw_kint(w, "running", s->running);
    jw_kint(w, "waiting", s->waiting);
    jw_kint(w, "helping", s->helping);
    jw_kint(w, "away", s->away);
    jw_kbool(w, "stalled", s->stalled);
    jw_kint(w, "imports", s->imports);
    jw_kint(w, "exports", s->exports);
    jw_kint(w, "export_blocks", s->export_blocks);
    jw_kint(w, "quarantined_blocks", s->quarantined);
    jw_kint(w, "handoffs", s->handoffs);
    jw_kint(w, "lost", s->lost);
    jw_kint(w, "recomputed", s->recomputed);
    jw_kint(w, "retries", s->retries);
    jw_knum(w, "bytes", s->bytes);
    jw_key(w, "handoff_ms");
    jw_obj(w);
    jw_knum(w, "p50", s->p50_s * 1e3);
    jw_knum(w, "p95", s->p95_s * 1e3);
    jw_knum(w, "p99", s->p99_s * 1e3);
    jw_obj_end(w);
    jw_obj_end(w);
}

static void put_pool_window(struct jw *w, const struct pool_window *s)
{
    double cost = s->handoff_s + s->scheduling_s + s->queueing_s;

    jw_obj(w);
    jw_kstr(w, "instance", s->instance);
    jw_kint(w, "handoffs", s->handoffs);
    jw_knum(w, "removed_s", s->removed_s);
    jw_knum(w, "handoff_s", s->handoff_s);
    jw_knum(w, "scheduling_s", s->scheduling_s);
    jw_knum(w, "queueing_s", s->queueing_s);
    jw_kbool(w, "pays", s->removed_s > cost);
    jw_obj_end(w);
}

void control_pools(struct conn *c)
{
    struct pool_status *s = xcalloc(MAX_INSTANCES, sizeof(*s));
    struct pool_window *v = xcalloc(MAX_INSTANCES, sizeof(*v));
    int n = router_pools(c->h->router, s, MAX_INSTANCES);
    struct reply r;

    reply_open(&r);
    jw_key(&r.w, "pools");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++)
        put_pool(&r.w, &s[i]);
    jw_arr_end(&r.w);
    n = router_pool_windows(c->h->router, v, MAX_INSTANCES);
    jw_key(&r.w, "windows");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++)
        put_pool_window(&r.w, &v[i]);
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(s);
    free(v);
}

/* Ids of the requests that the word names: a number of ours, or the label of a client's
 * request, which has one id a choice. */
static int find_requests(struct conn *c, const char *word, uint64_t *ret, int max)
{
    struct request_status *s = xcalloc(MAX_REQUESTS, sizeof(*s));
    int n = router_requests(c->h->router, s, MAX_REQUESTS), found = 0;
    char number[24];

    for (int i = 0; i < n && found < max; i++) {
        snprintf(number, sizeof(number), "%llu", (unsigned long long)s[i].id);
        if (!strcmp(number, word) || !strcmp(s[i].label, word))
            ret[found++] = s[i].id;
    }
    free(s);
    return found;
}

void control_cancel(struct conn *c)
{
    const char *word = c->match.arg[0];
    uint64_t ids[64];
    struct reply r;
    struct err e;
    int n;

    if (!handler_store(c))
        return;
    n = find_requests(c, word, ids, 64);
    if (n == 0)
        err_set(&e, ERR_NOTFOUND, "no request '%.80s' is in progress", word);
    if (n == 0 || handler_note(c, "request.cancel", word, "ok", "", &e) < 0) {
        conn_answer_err(c, &e);
        return;
    }
    for (int i = 0; i < n; i++)
        router_cancel(c->h->router, ids[i]);
    reply_open(&r);
    jw_kint(&r.w, "canceled", n);
    reply_send(c, &r, 200);
}

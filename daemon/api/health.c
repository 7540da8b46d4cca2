/* daemon/api/health.c - is it alive, is it ready, what does it count; which models.
 *
 * On the HTTP threads and without waiting: everything comes from snapshots, so a scrape
 * is answered while every worker and the engine are busy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/api/conn.h"
#include "daemon/api/control.h"
#include "daemon/api/experts_scrape.h"
#include "daemon/api/linktable.h"
#include "daemon/api/ranks.h"
#include "daemon/api/route.h"
#include "daemon/api/server.h"
#include "daemon/api/upkeep.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/router.h"
#include "daemon/ctrl/slo.h"
#include "daemon/serve/metrics.h"

enum { MAX_INSTANCES = 64, MAX_MODELS = 64 };

void api_healthz(struct conn *c)
{
    struct err e;
    struct buf b;

    if (!http_alive(c->h)) {
        err_set(&e, ERR_UNAVAIL, "a thread of the server makes no progress");
        conn_answer_err(c, &e);
        return;
    }
    buf_init(&b, 0);
    buf_puts(&b, "{\"status\":\"ok\"}");
    conn_answer(c, 200, "application/json", &b);
}

void api_readyz(struct conn *c)
{
    struct err e;
    struct buf b;
    struct jw w;

    if (atomic_load(&c->h->draining)) {
        err_set(&e, ERR_UNAVAIL, "the server is stopping");
        conn_answer_err(c, &e);
        return;
    }
    if (upkeep_check(c->h, &e) < 0 || router_ready(c->h->router, &e) < 0) {
        e.code = ERR_UNAVAIL;
        conn_answer_err(c, &e);
        return;
    }
    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstr(&w, "status", "ready");
    jw_kbool(&w, "emulated", c->h->cfg.domain && domain_emulated(c->h->cfg.domain));
    control_put_degraded(c->h->router, &w);
    jw_obj_end(&w);
    conn_answer(c, 200, "application/json", &b);
}

static void put_names(struct buf *b, const char *model, const char *instance)
{
    if (!model[0])
        return;
    buf_puts(b, "model_name=\"");
    metric_label(b, model);
    buf_puts(b, "\",engine=\"0\"");
    if (instance[0])
        buf_printf(b, ",instance=\"%s\"", instance);
}

/* What does not change while an engine runs: a gauge that is always 1, its facts are
 * labels. Of an instance that is being replaced, the engine that answers. */
static void put_cache_config(struct buf *b, struct router *r)
{
    struct instance_status *s = xcalloc(MAX_INSTANCES, sizeof(*s));
    int n = router_instances(r, s, MAX_INSTANCES);

    buf_puts(b, "# HELP vllm:cache_config_info The KV cache, by its labels (D)\n"
                "# TYPE vllm:cache_config_info gauge\n");
    for (int i = 0; i < n; i++) {
        bool again = false;

        for (int k = 0; k < i; k++)
            again |= s[k].n_blocks > 0 && !strcmp(s[k].name, s[i].name);
        if (s[i].n_blocks <= 0 || again)
            continue;
        buf_printf(b,
                   "vllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"%d\","
                   "cache_dtype=\"%s\",",
                   s[i].block_tok, s[i].n_blocks, s[i].kv_type);
        put_names(b, s[i].model, s[i].name);
        buf_puts(b, "} 1\n");
    }
    free(s);
}

/* Rows by whom they tell of: an instance, a model, or the daemon. */
static void put_pages(struct buf *b, struct router *r)
{
    struct page_group *g = xcalloc(ROUTER_GROUPS, sizeof(*g));
    struct metric_group *m = xcalloc(ROUTER_GROUPS, sizeof(*m));
    struct buf *labels = xcalloc(ROUTER_GROUPS, sizeof(*labels));
    int n = router_groups_get(r, g, ROUTER_GROUPS);

    for (int i = 0; i < n; i++) {
        buf_init(&labels[i], 0);
        buf_puts(&labels[i], "");
        put_names(&labels[i], g[i].model, g[i].instance);
        m[i] = (struct metric_group){.mark = g[i].instance[0] ? "(E)"
                                             : g[i].model[0]  ? "(M)"
                                                              : "(D)",
                                     .labels = labels[i].p ? labels[i].p : "",
                                     .pages = g[i].pages,
                                     .n_pages = g[i].n};
    }
    metric_render(metrics_defs, METRICS_N, m, n, b);
    router_pages_put(r);
    for (int i = 0; i < n; i++)
        buf_done(&labels[i]);
    free(labels);
    free(m);
    free(g);
}

void api_metrics(struct conn *c)
{
    struct router *r = c->h->router;
    struct buf b;

    buf_init(&b, 0);
    put_pages(&b, r);
    put_cache_config(&b, r);
    ranks_metrics(r, &b);
    if (c->h->cfg.links)
        links_metrics(c->h->cfg.links, c->h->cfg.domain, &b);
    if (c->h->cfg.experts)
        experts_metrics(c->h->cfg.experts, &b);
    if (c->h->cfg.slo)
        slo_metrics(c->h->cfg.slo, clock_now_us(clock_real()), &b);
    conn_answer(c, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
    buf_done(&b);
}

static void put_model(struct jw *w, const struct served *m)
{
    jw_obj(w);
    jw_kstr(w, "id", m->name);
    jw_kstr(w, "object", "model");
    jw_kint(w, "created", m->created_s);
    jw_kstr(w, "owned_by", "llmrack");
    jw_kint(w, "max_model_len", m->n_ctx);
    jw_obj_end(w);
}

void api_models(struct conn *c)
{
    const struct served *models[MAX_MODELS];
    int n = router_models(c->h->router, models, MAX_MODELS);
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstr(&w, "object", "list");
    jw_key(&w, "data");
    jw_arr(&w);
    for (int i = 0; i < n; i++) {
        struct served_hot hot;

        router_hot(c->h->router, models[i], &hot);
        if (!hot.trial || access_may(&c->who, ACCESS_ADMIN, NULL) == 0)
            put_model(&w, models[i]);
        router_unref(c->h->router, models[i]);
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
}

void api_model(struct conn *c)
{
    const struct served *m;
    struct err e;
    struct buf b;
    struct jw w;

    m = router_model(c->h->router, c->match.arg[0], &e);
    if (!m) {
        conn_answer_err(c, &e);
        return;
    }
    buf_init(&b, 0);
    jw_init(&w, &b);
    put_model(&w, m);
    router_unref(c->h->router, m);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
}

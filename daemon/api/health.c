/* daemon/api/health.c - is it alive, is it ready, what does it count; which models.
 *
 * On the HTTP threads and without waiting: everything comes from snapshots, so a scrape
 * is answered while every worker and the engine are busy. */
#include <stdio.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/metric.h"
#include "daemon/api/conn.h"
#include "daemon/api/ranks.h"
#include "daemon/api/route.h"
#include "daemon/api/server.h"
#include "daemon/api/upkeep.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/router.h"
#include "daemon/ctrl/slo.h"
#include "daemon/serve/metrics.h"

enum { MAX_PAGES = 64, MAX_MODELS = 64 };

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
    buf_printf(&b, "{\"status\":\"ready\",\"emulated\":%s}",
               c->h->cfg.domain && domain_emulated(c->h->cfg.domain) ? "true" : "false");
    conn_answer(c, 200, "application/json", &b);
}

/* What does not change while an engine runs: a gauge that is always 1, its facts are
 * labels. Nothing before the first engine was ready. */
static void put_cache_config(struct buf *b, struct router *r, const char *labels)
{
    struct instance_status s;

    if (router_instances(r, &s, 1) < 1 || s.n_blocks <= 0)
        return;
    buf_puts(b, "# HELP vllm:cache_config_info The KV cache, by its labels (D)\n"
                "# TYPE vllm:cache_config_info gauge\n");
    buf_printf(b,
               "vllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"%d\","
               "cache_dtype=\"%s\",%s} 1\n",
               s.block_tok, s.n_blocks, s.kv_type, labels);
}

void api_metrics(struct conn *c)
{
    const struct served *models[MAX_MODELS];
    struct metric_page *pages[MAX_PAGES];
    struct router *r = c->h->router;
    struct buf b, labels;
    int n_models = router_models(r, models, MAX_MODELS), n_pages;

    buf_init(&b, 0);
    buf_init(&labels, 0);
    buf_puts(&labels, "model_name=\"");
    metric_label(&labels, n_models > 0 ? models[0]->name : "");
    buf_puts(&labels, "\",engine=\"0\"");
    n_pages = router_pages_get(r, pages, MAX_PAGES);
    metric_render(metrics_defs, METRICS_N, pages, n_pages, labels.p, &b);
    router_pages_put(r);
    put_cache_config(&b, r, labels.p);
    ranks_metrics(r, &b);
    if (c->h->cfg.slo)
        slo_metrics(c->h->cfg.slo, clock_now_us(clock_real()), &b);
    for (int i = 0; i < n_models; i++)
        router_unref(r, models[i]);
    conn_answer(c, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
    buf_done(&b);
    buf_done(&labels);
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

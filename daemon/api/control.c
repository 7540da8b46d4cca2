/* daemon/api/control.c - what there is: status, models, requests, metrics, version.
 *
 * One JSON object each, made from snapshots. Names here are what `llmctl -j` prints, so
 * they are kept: members are added, not renamed. Units are in the names. */
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/api/conn.h"
#include "daemon/api/control.h"
#include "daemon/api/handler.h"
#include "daemon/api/news.h"
#include "daemon/api/route.h"
#include "daemon/api/rows.h"
#include "daemon/api/rules.h"
#include "daemon/api/server.h"
#include "daemon/api/upkeep.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/tokenizer.h"
#include "state/revision.h"
#include "topo/finding.h"
#include "topo/graph.h"

enum {
    MAX_INSTANCES = 64,
    MAX_MODELS = 64,
    MAX_REQUESTS = 4096,
    MAX_PAGES = 256,
    MAX_ALARMS = 512
};

static double since_s(int64_t us)
{
    return (double)(clock_now_us(clock_real()) - us) / 1e6;
}

void control_put_degraded(struct router *r, struct jw *w)
{
    struct err *why = xcalloc(MAX_INSTANCES, sizeof(*why));
    int n = router_degraded(r, why, MAX_INSTANCES);

    jw_key(w, "degraded");
    jw_arr(w);
    for (int i = 0; i < n; i++)
        jw_str(w, why[i].msg);
    jw_arr_end(w);
    free(why);
}

static void put_ready(struct jw *w, struct http *h)
{
    struct err e;

    if (atomic_load(&h->draining))
        err_set(&e, ERR_UNAVAIL, "the server is stopping");
    else if (router_ready(h->router, &e) == 0) {
        jw_kbool(w, "ready", true);
        jw_knull(w, "reason");
        return;
    }
    jw_kbool(w, "ready", false);
    jw_kstr(w, "reason", e.msg);
}

static void put_quantiles(struct jw *w, const char *name, const struct metric_page *p,
                          int id, double scale)
{
    jw_key(w, name);
    jw_obj(w);
    jw_knum(w, "p50", metric_quantile(p, id, 0.5) * scale);
    jw_knum(w, "p95", metric_quantile(p, id, 0.95) * scale);
    jw_knum(w, "p99", metric_quantile(p, id, 0.99) * scale);
    jw_obj_end(w);
}

static void put_load(struct jw *w, struct http *h, const struct instance_status *s, int n)
{
    struct metric_page *pages[MAX_PAGES];
    int running = 0, waiting = 0, n_pages = router_pages_get(h->router, pages, MAX_PAGES);

    for (int i = 0; i < n; i++) {
        running += s[i].running;
        waiting += s[i].waiting;
    }
    jw_key(w, "requests");
    jw_obj(w);
    jw_kint(w, "running", running);
    jw_kint(w, "waiting", waiting);
    jw_kint(w, "open", atomic_load(&h->active));
    jw_obj_end(w);
    jw_key(w, "tokens");
    jw_obj(w);
    jw_knum(w, "prompt", metric_total(pages, n_pages, M_PROMPT_TOK, 0));
    jw_knum(w, "generated", metric_total(pages, n_pages, M_GEN_TOK, 0));
    jw_obj_end(w);
    router_pages_put(h->router);
    put_quantiles(w, "ttft_ms", h->page, M_TTFT, 1e3);
    put_quantiles(w, "tpot_ms", h->page, M_TPOT, 1e3);
}

static void put_rack(struct jw *w, struct http *h)
{
    struct domain_view *v = h->cfg.domain ? domain_get(h->cfg.domain) : NULL;
    int bad = 0;

    for (int i = 0; v && i < findings_count(v->findings); i++)
        bad += findings_get(v->findings, i)->severity == SEVERITY_BAD;
    jw_kstr(w, "rack", h->cfg.domain ? domain_rack(h->cfg.domain) : NULL);
    jw_kbool(w, "emulated", v && graph_emulated(v->graph));
    jw_kint(w, "findings", v ? findings_count(v->findings) : 0);
    jw_kint(w, "findings_bad", bad);
    domain_put(v);
}

static void put_operator(struct jw *w, struct http *h)
{
    struct alarm_status *a = xcalloc(MAX_ALARMS, sizeof(*a));
    int n = h->cfg.alarms ? alarms_list(h->cfg.alarms, a, MAX_ALARMS) : 0, active = 0;
    char reason[UPKEEP_REASON];
    struct rev_point p;

    for (int i = 0; i < n; i++)
        active += !a[i].ended_ms;
    free(a);
    news_point(h->news, &p);
    jw_kint(w, "revision", p.running);
    jw_kstr(w, "phase", rev_phase_name(p.phase));
    jw_key(w, "pending");
    if (p.phase == REV_PHASE_PENDING) {
        jw_obj(w);
        jw_kint(w, "revision", p.pending);
        jw_key(w, "left_s");
        if (p.deadline_us)
            jw_num(w, -since_s(p.deadline_us));
        else
            jw_null(w);
        jw_obj_end(w);
    } else {
        jw_null(w);
    }
    jw_kint(w, "alarms", active);
    jw_kbool(w, "maintenance", upkeep_on(h, reason));
    jw_kstr(w, "maintenance_reason", reason);
}

void control_put_status(struct conn *c, struct jw *w)
{
    struct instance_status *s = xcalloc(MAX_INSTANCES, sizeof(*s));
    int n = router_instances(c->h->router, s, MAX_INSTANCES);

    jw_obj(w);
    jw_kstr(w, "version", c->h->version);
    jw_kint(w, "pid", getpid());
    jw_knum(w, "uptime_s", since_s(c->h->cfg.start_us));
    put_ready(w, c->h);
    control_put_degraded(c->h->router, w);
    put_operator(w, c->h);
    put_rack(w, c->h);
    jw_kstr(w, "listen", c->h->listen);
    jw_kint(w, "port", c->h->port);
    jw_kint(w, "connections", atomic_load(&c->h->connections));
    jw_kbool(w, "log_content", c->rules->log_content);
    put_load(w, c->h, s, n);
    jw_key(w, "instances");
    jw_arr(w);
    for (int i = 0; i < n; i++)
        rows_instance(w, &s[i]);
    jw_arr_end(w);
    jw_obj_end(w);
    free(s);
}

void control_status(struct conn *c)
{
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    control_put_status(c, &w);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
}

void control_models(struct conn *c)
{
    const struct served *models[MAX_MODELS];
    int n = router_models(c->h->router, models, MAX_MODELS);
    struct reply r;

    reply_open(&r);
    jw_key(&r.w, "models");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++) {
        const struct served *m = models[i];

        jw_obj(&r.w);
        jw_kstr(&r.w, "name", m->name);
        jw_kstr(&r.w, "family", m->family);
        jw_kstr(&r.w, "type", m->main_type);
        jw_kstr(&r.w, "format", m->format);
        jw_kint(&r.w, "params", (int64_t)m->n_params);
        jw_kint(&r.w, "bytes", (int64_t)m->file_bytes);
        jw_kint(&r.w, "ctx", m->n_ctx);
        jw_kint(&r.w, "vocabulary", m->n_vocab);
        jw_kstr(&r.w, "chat", template_name(m->chat));
        jw_kstr(&r.w, "tokenizer", tokenizer_kind(m->tok));
        jw_kstr(&r.w, "path", m->path);
        jw_obj_end(&r.w);
        router_unref(c->h->router, m);
    }
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
}

void control_requests(struct conn *c)
{
    struct request_status *s = xcalloc(MAX_REQUESTS, sizeof(*s));
    int n = router_requests(c->h->router, s, MAX_REQUESTS);
    struct reply r;

    reply_open(&r);
    jw_key(&r.w, "requests");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++) {
        jw_obj(&r.w);
        jw_kint(&r.w, "id", (int64_t)s[i].id);
        jw_kstr(&r.w, "label", s[i].label);
        jw_kstr(&r.w, "model", s[i].model);
        jw_kstr(&r.w, "instance", s[i].instance);
        jw_kint(&r.w, "prompt_tokens", s[i].n_prompt);
        jw_kint(&r.w, "output_tokens", s[i].n_out);
        jw_kint(&r.w, "max_tokens", s[i].max_tokens);
        jw_knum(&r.w, "age_ms", (double)s[i].age_us / 1e3);
        if (s[i].ttft_us < 0)
            jw_knull(&r.w, "ttft_ms");
        else
            jw_knum(&r.w, "ttft_ms", (double)s[i].ttft_us / 1e3);
        jw_obj_end(&r.w);
    }
    jw_arr_end(&r.w);
    free(s);
    reply_send(c, &r, 200);
}

/* One row a sample; histograms as count, sum and three quantiles of the fullest page (a
 * histogram is written by one program only). */
static void put_metric(struct jw *w, int id, int label, struct metric_page *const *pages,
                       int n)
{
    const struct metric_def *d = &metrics_defs[id];
    struct metric_page *best = pages[0];

    jw_obj(w);
    jw_kstr(w, "name", d->name);
    jw_kstr(w, "label", d->label ? d->values[label] : NULL);
    if (d->kind != METRIC_HISTOGRAM) {
        jw_knum(w, "value", metric_total(pages, n, id, label));
        jw_obj_end(w);
        return;
    }
    for (int i = 1; i < n; i++)
        if (metric_get(pages[i], id, 0) > metric_get(best, id, 0))
            best = pages[i];
    jw_knum(w, "value", metric_get(best, id, 0)); /* how many were observed */
    jw_knum(w, "sum", metric_sum(best, id));
    jw_knum(w, "p50", metric_quantile(best, id, 0.5));
    jw_knum(w, "p95", metric_quantile(best, id, 0.95));
    jw_knum(w, "p99", metric_quantile(best, id, 0.99));
    jw_obj_end(w);
}

void control_put_metrics(struct http *h, struct jw *w)
{
    struct metric_page *pages[MAX_PAGES];
    int n = router_pages_get(h->router, pages, MAX_PAGES);

    jw_arr(w);
    for (int id = 0; id < METRICS_N && n > 0; id++) {
        const struct metric_def *d = &metrics_defs[id];

        if (!d->label)
            put_metric(w, id, 0, pages, n);
        for (int v = 0; d->label && d->values[v]; v++)
            put_metric(w, id, v, pages, n);
    }
    jw_arr_end(w);
    router_pages_put(h->router);
}

void control_metrics(struct conn *c)
{
    struct reply r;

    reply_open(&r);
    jw_key(&r.w, "metrics");
    control_put_metrics(c->h, &r.w);
    reply_send(c, &r, 200);
}

void control_version(struct conn *c)
{
    struct reply r;

    reply_open(&r);
    jw_kstr(&r.w, "program", "llmrackd");
    jw_kstr(&r.w, "version", c->h->version);
    jw_kint(&r.w, "schema", c->h->cfg.schema);
    reply_send(c, &r, 200);
}

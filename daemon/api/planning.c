/* daemon/api/planning.c - POST /api/v1/plan: which layouts a model should run with.
 *
 * {"model": NAME or "config": {...}, "rack": NAME or "rack_file": TEXT, "slo":
 * "ttft=2000,tpot=50", "workload": "isl=1024,osl=1024", "rate": "R", "why": LAYOUT,
 * "precision": "fp8", "kv": "fp8", "skew": "1.5"}; what is left out is the daemon's own
 * rack and the planner's defaults. A name is looked up among the models that are served,
 * then among the published shapes; the daemon opens no other path. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/plans.h"
#include "daemon/api/route.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/capacity.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/engine_fit.h"
#include "topo/file.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/plan.h"
#include "topo/rack.h"

enum { TEXT_MAX = 4 << 20, MODELS_MAX = 64 };

/* What one question needs; the graph and paths are its own, or the view's. */
struct question {
    json_t *root;
    struct shapes shapes;
    struct domain_view *view;
    struct graph *graph;
    struct paths *paths;
    struct plan_ask ask;
    const char *why;
};

static void question_free(struct question *q)
{
    if (!q)
        return;
    paths_free(q->paths);
    graph_free(q->graph);
    domain_put(q->view);
    json_decref(q->root);
    free(q);
}

/* A model that is served, by its name in the API: 1 its shapes, 0 there is none, -1. */
static int shapes_of_served(const struct http *h, const char *name, struct shapes *ret,
                            struct err *e)
{
    const struct served *models[MODELS_MAX];
    int n = router_models(h->router, models, MODELS_MAX), rc = 0;

    for (int i = 0; i < n; i++) {
        if (rc == 0 && !strcmp(models[i]->name, name)) {
            rc = capacity_shapes_of(models[i]->path, ret, e) < 0 ? -1 : 1;
            snprintf(ret->name, sizeof(ret->name), "%.95s", name);
        }
        router_unref(h->router, models[i]);
    }
    return rc;
}

static int shapes_by_name(const struct http *h, const char *name, struct shapes *ret,
                          struct err *e)
{
    char *path;
    int rc = shapes_of_served(h, name, ret, e);

    if (rc != 0)
        return rc < 0 ? -1 : 0;
    for (const char *p = name; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("-._", *p))
            return err_param(
                e, ERR_INVALID, "model",
                "'%.64s' is no model's name; a config.json is sent as config", name);
    path = xasprintf("%s/%s.json", h->cfg.models_dir, name);
    if (access(path, R_OK) != 0)
        rc = err_param(e, ERR_NOTFOUND, "model",
                       "'%.64s' is not served, and %s has no published shapes of it",
                       name, h->cfg.models_dir);
    else
        rc = shapes_open(path, ret, e);
    free(path);
    return rc;
}

static int read_model(const struct http *h, struct question *q, struct err *e)
{
    const json_t *config = json_object_get(q->root, "config");
    const char *name = NULL, *precision = NULL;
    char *text;
    int rc;

    if (js_get_str(q->root, "model", &name, NULL, e) < 0 ||
        js_get_str(q->root, "precision", &precision, NULL, e) < 0)
        return -1;
    if (json_is_object(config)) {
        text = json_dumps(config, JSON_COMPACT);
        rc = shapes_from_config(name ? name : "config.json", text, strlen(text),
                                &q->shapes, e);
        free(text);
    } else if (name) {
        rc = shapes_by_name(h, name, &q->shapes, e);
    } else {
        rc = err_param(e, ERR_INVALID, "model", "which model? a name or its config.json");
    }
    if (rc == 0 && precision)
        rc = shapes_set_precision(&q->shapes, precision, e);
    return rc;
}

static int read_rack(const struct http *h, struct question *q, struct err *e)
{
    const char *name = NULL, *file = NULL;
    size_t n = 0;

    if (js_get_str(q->root, "rack", &name, NULL, e) < 0 ||
        js_get_str(q->root, "rack_file", &file, &n, e) < 0)
        return -1;
    if (file) {
        if (topo_load(file, n, name ? name : "file", NULL, &q->graph, e) < 0)
            return -1;
    } else if (name) {
        if (rack_build(name, (double)engine_ram_bytes(), &q->graph, e) < 0)
            return -1;
    }
    if (q->graph) {
        if (paths_new(q->graph, &q->paths, e) < 0)
            return -1;
        q->ask.g = q->graph;
        q->ask.paths = q->paths;
        return 0;
    }
    q->view = h->cfg.domain ? domain_get(h->cfg.domain) : NULL;
    if (!q->view)
        return err_set(e, ERR_UNAVAIL, "the rack is not known yet; name one with rack");
    q->ask.g = q->view->graph;
    q->ask.paths = q->view->paths;
    q->ask.avoid = q->view->avoid;
    q->ask.n_avoid = q->view->n_avoid;
    return 0;
}

/* "ttft=2000,tpot=50" into the two numbers; a field without a value here stays. */
static int read_pair(const json_t *root, const char *field, const char *const key[2],
                     double *const ret[2], struct err *e)
{
    const char *s = NULL;

    if (js_get_str(root, field, &s, NULL, e) < 0)
        return -1;
    while (s && *s) {
        size_t k = strcspn(s, "=");
        int which = k == strlen(key[0]) && !strncmp(s, key[0], k)   ? 0
                    : k == strlen(key[1]) && !strncmp(s, key[1], k) ? 1
                                                                    : -1;
        char *end = NULL;
        double v = which >= 0 && s[k] ? strtod(s + k + 1, &end) : 0;

        if (which < 0 || end == s + k + 1 || (*end && *end != ',') ||
            !(v > 0 && v < 1e12))
            return err_param(e, ERR_INVALID, field,
                             "%s must be like %s=100,%s=10, found '%.64s'", field, key[0],
                             key[1], s);
        *ret[which] = v;
        s = *end ? end + 1 : end;
    }
    return 0;
}

static int read_number(const json_t *root, const char *field, double min, double *ret,
                       struct err *e)
{
    const char *s = NULL;
    char *end;
    double v;

    if (js_get_str(root, field, &s, NULL, e) < 0)
        return -1;
    if (!s)
        return 0;
    v = strtod(s, &end);
    if (end == s || *end || !(v >= min && v < 1e9))
        return err_param(e, ERR_RANGE, field,
                         "%s must be a number of at least %g, found '%.64s'", field, min,
                         s);
    *ret = v;
    return 0;
}

static int read_kv(const json_t *root, struct plan_ask *a, struct err *e)
{
    const char *s = NULL;

    if (js_get_str(root, "kv", &s, NULL, e) < 0)
        return -1;
    if (!s || !strcmp(s, "bf16"))
        return 0;
    if (strcmp(s, "fp8"))
        return err_param(e, ERR_INVALID, "kv", "kv must be bf16 or fp8, found '%.16s'",
                         s);
    a->kv = FORMAT_FP8;
    return 0;
}

static int read_question(struct conn *c, struct question *q, struct err *e)
{
    static const struct js_limits lim = {8 << 20, 32};
    static const char *const slo[2] = {"ttft", "tpot"}, *const work[2] = {"isl", "osl"};
    struct plan_ask *a = &q->ask;

    if (js_parse(c->body.p ? c->body.p : "", c->body.len, &lim, &q->root, e) < 0)
        return -1;
    plan_ask_defaults(a);
    if (read_model(c->h, q, e) < 0 || read_rack(c->h, q, e) < 0 ||
        read_pair(q->root, "slo", slo, (double *[]){&a->ttft_ms, &a->tpot_ms}, e) < 0 ||
        read_pair(q->root, "workload", work, (double *[]){&a->isl, &a->osl}, e) < 0 ||
        read_number(q->root, "rate", 0, &a->rate, e) < 0 ||
        read_number(q->root, "skew", 1, &a->skew, e) < 0 || read_kv(q->root, a, e) < 0 ||
        js_get_bool(q->root, "cp", &a->with_cp, e) < 0 ||
        js_get_str(q->root, "why", &q->why, NULL, e) < 0)
        return -1;
    a->s = &q->shapes;
    return 0;
}

static void send_why(struct conn *c, struct question *q)
{
    struct layout l;
    struct buf text;
    struct err e = {0};
    struct reply r;

    buf_init(&text, TEXT_MAX);
    if (layout_parse(q->why, &l, &e) < 0 || plan_why(&q->ask, &l, &text, &e) < 0) {
        conn_answer_err(c, &e);
    } else {
        reply_open(&r);
        jw_kstr(&r.w, "text", text.p);
        jw_key(&r.w, "plan");
        jw_raw(&r.w, "null");
        reply_send(c, &r, 200);
    }
    buf_done(&text);
}

static char *taken(struct buf *b)
{
    if (!b->p)
        buf_puts(b, "");
    return b->p;
}

/* A JSON list of one text a row. */
static char *texts_of(const struct plan *p, int n,
                      void (*fn)(const struct plan *p, int row, struct buf *out))
{
    struct buf b, one;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_arr(&w);
    for (int i = 0; i < n; i++) {
        buf_init(&one, TEXT_MAX);
        fn(p, i, &one);
        jw_str(&w, one.p && !one.over ? one.p : "");
        buf_done(&one);
    }
    jw_arr_end(&w);
    return b.p;
}

void control_plan(struct conn *c)
{
    struct question *q = xcalloc(1, sizeof(*q));
    struct made_plan *m;
    const struct plan_row *row;
    struct plan *p = NULL;
    struct buf text, json;
    struct err e = {0};

    if (read_question(c, q, &e) < 0 || (!q->why && plan_make(&q->ask, &p, &e) < 0)) {
        conn_answer_err(c, &e);
    } else if (q->why) {
        send_why(c, q);
    } else {
        int n = plan_rows(p, &row);
        m = xcalloc(1, sizeof(*m));
        buf_init(&text, 0);
        buf_init(&json, 0);
        plan_print(p, &text);
        plan_json(p, &json);
        m->model = xstrdup(q->shapes.name);
        m->rack = xstrdup(graph_source(q->ask.g));
        m->request = xstrdup(c->body.p);
        m->text = taken(&text);
        m->plan = taken(&json);
        m->groups = texts_of(p, n, plan_groups);
        m->dots = texts_of(p, n, plan_dot);
        plans_keep(c, m);
    }
    plan_free(p);
    question_free(q);
}

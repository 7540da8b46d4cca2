/* daemon/api/loads.c - load runs: the daemon's part of their contract, kept, shown.
 *
 * That part is not the sender's to say: which model and build, at which precision, on
 * which rack, in which mode and layout, under which revision. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "daemon/api/conn.h"
#include "daemon/api/ctlqueue.h"
#include "daemon/api/handler.h"
#include "daemon/api/news.h"
#include "daemon/api/query.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/confmgr.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/modelhash.h"
#include "state/loads.h"
#include "state/revision.h"
#include "topo/file.h"
#include "topo/graph.h"

enum { MAX_MODELS = 64, MAX_INSTANCES = 64, LIST_DEFAULT = 50, HASH_SHOWN = 16 };

/* ---- whose model ---- */

/* The model that a question about an instance is about, with the hash of its file; made
 * on a worker, carried to the control thread. */
struct subject {
    const struct served *m; /* held */
    char model_hash[SHA256_CHARS + 1];
};

/* An instance and its engines: NAME, NAME:2 .., NAME/prefill, NAME/decode:2 .. */
static bool belongs(const char *name, const char *instance)
{
    size_t n = strlen(instance);

    return !strncmp(name, instance, n) && (!name[n] || name[n] == ':' || name[n] == '/');
}

static void instance_of(const struct served *m, char ret[64])
{
    snprintf(ret, 64, "%.*s", (int)strcspn(m->instance, ":/"), m->instance);
}

static void subject_free(void *arg)
{
    struct subject *s = arg;

    router_unref(NULL, s->m);
    free(s);
}

/* The model that the instance serves, held. */
static const struct served *model_of(struct conn *c, const char *instance, struct err *e)
{
    const struct served *m[MAX_MODELS], *found = NULL;
    int n = router_models(c->h->router, m, MAX_MODELS), fit = 0;

    for (int i = 0; i < n; i++)
        if (!instance[0] || belongs(m[i]->instance, instance)) {
            fit++;
            found = found ? found : m[i];
        }
    for (int i = 0; i < n; i++)
        if (m[i] != found || fit > 1)
            router_unref(c->h->router, m[i]);
    if (fit > 1)
        return err_param(e, ERR_INVALID, "instance", "there are several: name one"), NULL;
    if (!found && instance[0])
        err_param(e, ERR_NOTFOUND, "instance", "no instance '%.63s' serves a model",
                  instance);
    else if (!found)
        err_set(e, ERR_UNAVAIL, "no instance serves a model yet");
    return found;
}

/* Reads the model's file. -1: answered already. */
static int subject_new(struct conn *c, const char *instance, struct subject **ret)
{
    struct subject *s = xcalloc(1, sizeof(*s));
    struct err e = {0};

    s->m = model_of(c, instance, &e);
    if (s->m && modelhash(s->m->path, s->model_hash, &e) == 0) {
        *ret = s;
        return 0;
    }
    conn_answer_err(c, &e);
    if (s->m)
        router_unref(c->h->router, s->m);
    free(s);
    return -1;
}

/* ---- the daemon's part of a contract ---- */

/* Of an instance with all its engines. */
struct fleet_sum {
    struct instance_status one; /* of the first that is ready */
    int replicas, ranks, threads;
    char layout[140]; /* of both pools, where there are two */
};

static int sum_up(struct conn *c, const char *instance, struct fleet_sum *ret,
                  struct err *e)
{
    struct instance_status *s = xcalloc(MAX_INSTANCES, sizeof(*s));
    int n = router_instances(c->h->router, s, MAX_INSTANCES);
    const char *pool, *pool_of = NULL;

    memset(ret, 0, sizeof(*ret));
    for (int i = 0; i < n; i++) {
        if (!belongs(s[i].name, instance) || s[i].state != INSTANCE_READY)
            continue;
        if (!ret->replicas++) {
            ret->one = s[i];
            snprintf(ret->layout, sizeof(ret->layout), "%s", s[i].layout);
        }
        ret->ranks += s[i].n_ranks > 0 ? s[i].n_ranks : 1;
        ret->threads += s[i].n_threads;
        pool = strchr(s[i].name, '/');
        if (pool && pool_of && pool[1] != pool_of[1] && !strchr(ret->layout, '|'))
            snprintf(ret->layout + strlen(ret->layout),
                     sizeof(ret->layout) - strlen(ret->layout), " | %s", s[i].layout);
        pool_of = pool_of ? pool_of : pool;
    }
    free(s);
    if (!ret->replicas)
        return err_set(e, ERR_UNAVAIL, "instance %s is not ready", instance);
    return 0;
}

static void put_rack(struct conn *c, struct jw *w)
{
    struct domain_view *v = c->h->cfg.domain ? domain_get(c->h->cfg.domain) : NULL;
    char hash[SHA256_CHARS + 1] = "";
    struct buf b;

    buf_init(&b, 0);
    if (v) {
        topo_to_json(v->graph, NULL, &b);
        sha256_hex(b.p ? b.p : "", b.len, hash);
        hash[HASH_SHOWN] = '\0';
    }
    jw_kstr(w, "rack", c->h->cfg.domain ? domain_rack(c->h->cfg.domain) : "");
    jw_kbool(w, "emulated", v && graph_emulated(v->graph));
    jw_kstr(w, "topology", hash);
    buf_done(&b);
    domain_put(v);
}

/* That of the configuration: an engine of a pool has one of its own. */
static const char *mode_of(struct conn *c, const char *instance, const char *engine)
{
    struct conf *conf = c->h->cfg.confmgr ? confmgr_conf(c->h->cfg.confmgr) : NULL;
    const struct conf_instance *i = conf ? conf_instance(conf, instance) : NULL;
    bool split = i && i->mode == CONF_SPLIT;

    conf_unref(conf);
    return split ? "split" : engine;
}

static int served_put(struct conn *c, const struct subject *s, struct jw *w,
                      struct err *e)
{
    struct fleet_sum f;
    struct rev_point p;
    char hash[HASH_SHOWN + 1], name[64];

    instance_of(s->m, name);
    if (sum_up(c, name, &f, e) < 0)
        return -1;
    snprintf(hash, sizeof(hash), "%.*s", HASH_SHOWN, s->model_hash);
    news_point(c->h->news, &p);
    jw_key(w, "served");
    jw_obj(w);
    jw_kstr(w, "instance", name);
    jw_kstr(w, "model", s->m->name);
    jw_kstr(w, "model_hash", hash);
    jw_kstr(w, "precision", s->m->main_type);
    jw_kstr(w, "kv_type", f.one.kv_type);
    jw_kint(w, "ctx", s->m->n_ctx);
    jw_kstr(w, "mode", mode_of(c, name, f.one.mode));
    jw_kstr(w, "layout", f.layout);
    jw_kint(w, "replicas", f.replicas);
    jw_kint(w, "devices", f.ranks);
    jw_kint(w, "threads", f.threads);
    put_rack(c, w);
    jw_kstr(w, "build", c->h->version);
    jw_kint(w, "revision", p.running);
    jw_kint(w, "generation", f.one.generation);
    jw_obj_end(w);
    return 0;
}

/* What the sender wants to know beside the contract. */
static void put_hints(struct conn *c, const struct subject *s, struct jw *w)
{
    struct conf *conf = c->h->cfg.confmgr ? confmgr_conf(c->h->cfg.confmgr) : NULL;
    const struct conf_instance *i;
    char name[64];

    instance_of(s->m, name);
    i = conf ? conf_instance(conf, name) : NULL;
    jw_kint(w, "vocab", s->m->n_vocab);
    jw_kint(w, "max_seqs", i ? i->max_seqs : 64);
    jw_kint(w, "step_tok", i ? i->step_tok : 512);
    jw_knum(w, "price", conf ? conf->cost.device_hour : 0);
    jw_knum(w, "ttft_ms", i ? i->slo.ttft_ms : 0);
    jw_knum(w, "tpot_ms", i ? i->slo.tpot_ms : 0);
    jw_knum(w, "attainment", i ? i->slo.attainment : 0.9);
    conf_unref(conf);
}

static void answer_contract(struct conn *c)
{
    struct err e = {0};
    struct reply r;

    reply_open(&r);
    if (served_put(c, c->carry, &r.w, &e) < 0) {
        buf_done(&r.b);
        conn_answer_err(c, &e);
        return;
    }
    put_hints(c, c->carry, &r.w);
    reply_send(c, &r, 200);
}

void control_load_contract(struct conn *c)
{
    struct subject *s;
    struct err e = {0};

    if (subject_new(c, query_text(&c->query, QUERY_instance, ""), &s) < 0)
        return;
    c->carry = s;
    c->carry_free = subject_free;
    if (ctlqueue_push(c->h->control, c, answer_contract, &e) < 0)
        conn_answer_err(c, &e);
}

/* ---- kept ---- */

/* Is what the run says of us still so? The member that is not is named. */
static int still_so(struct conn *c, const json_t *served, struct err *e)
{
    const char *instance = json_string_value(json_object_get(served, "instance"));
    struct fleet_sum f;
    struct rev_point p;
    bool same;

    if (!instance)
        return err_param(e, ERR_INVALID, "contract", "served.instance is missing");
    if (sum_up(c, instance, &f, e) < 0)
        return -1;
    news_point(c->h->news, &p);
    same =
        json_integer_value(json_object_get(served, "revision")) == p.running &&
        json_integer_value(json_object_get(served, "generation")) == f.one.generation &&
        json_integer_value(json_object_get(served, "replicas")) == f.replicas;
    if (!same)
        return err_param(e, ERR_CONFLICT, "contract",
                         "instance %s changed while it was measured: revision %lld, "
                         "engine %d, %d replicas run now",
                         instance, (long long)p.running, f.one.generation, f.replicas);
    return 0;
}

static const char *text_member(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static int keep(struct conn *c, struct store *s, const json_t *root, int64_t *ret_id,
                struct err *e)
{
    const json_t *contract = json_object_get(root, "contract"),
                 *result = json_object_get(root, "result"),
                 *served = json_object_get(contract, "served");
    struct stored_load r = {.at_ms = clock_wall_ms()};
    char id[24];
    int rc;

    if (!json_is_object(contract) || !json_is_object(result))
        return err_param(e, ERR_INVALID, "contract",
                         "contract and result must be objects");
    if (still_so(c, served, e) < 0)
        return -1;
    snprintf(r.instance, sizeof(r.instance), "%s", text_member(served, "instance"));
    snprintf(r.model, sizeof(r.model), "%s", text_member(served, "model"));
    snprintf(r.actor, sizeof(r.actor), "%s", c->who.actor);
    r.contract = json_dumps(contract, JSON_COMPACT);
    r.result = json_dumps(result, JSON_COMPACT);
    rc = r.contract && r.result ? loads_put(s, &r, e)
                                : err_set(e, ERR_INVALID, "a text is not UTF-8");
    loads_row_done(&r);
    if (rc < 0)
        return -1;
    *ret_id = r.id;
    snprintf(id, sizeof(id), "%lld", (long long)r.id);
    return handler_note(c, "load.kept", id, "ok", r.instance, e);
}

void control_load_put(struct conn *c)
{
    struct store *s = handler_store(c);
    json_t *root = NULL;
    struct err e = {0};
    struct reply r;
    int64_t id = 0;
    int rc;

    if (!s)
        return;
    rc = body_object(c, "contract result", &root, &e);
    if (rc == 0)
        rc = keep(c, s, root, &id, &e);
    json_decref(root);
    if (rc < 0) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&r);
    jw_kint(&r.w, "id", id);
    reply_send(c, &r, 201);
}

/* ---- shown ---- */

static void put_head(struct jw *w, const struct stored_load *l)
{
    jw_kint(w, "id", l->id);
    jw_kint(w, "at_ms", l->at_ms);
    jw_kstr(w, "instance", l->instance);
    jw_kstr(w, "model", l->model);
    jw_kstr(w, "actor", l->actor);
}

static void put_listed(struct jw *w, const struct stored_load *l)
{
    static const struct js_limits lim = {LOAD_JSON_MAX, 16};
    static const char *const figures[] = {"goodput", "goodput_per_device", "attainment"};
    json_t *contract = NULL, *result = NULL, *served;

    js_parse(l->contract, strlen(l->contract), &lim, &contract, NULL);
    js_parse(l->result, strlen(l->result), &lim, &result, NULL);
    served = json_object_get(contract, "served");
    jw_obj(w);
    put_head(w, l);
    jw_kstr(w, "mode", text_member(served, "mode"));
    jw_kstr(w, "layout", text_member(served, "layout"));
    jw_kint(w, "revision", json_integer_value(json_object_get(served, "revision")));
    jw_kstr(w, "arrival", text_member(json_object_get(contract, "work"), "arrival"));
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        const json_t *v = json_object_get(result, figures[i]);

        if (json_is_number(v))
            jw_knum(w, figures[i], json_number_value(v));
        else
            jw_knull(w, figures[i]);
    }
    jw_obj_end(w);
    json_decref(contract);
    json_decref(result);
}

void control_loads(struct conn *c)
{
    struct store *s = handler_store(c);
    int max = (int)query_num(&c->query, QUERY_limit, LIST_DEFAULT), n;
    struct stored_load *row;
    struct err e = {0};
    struct reply r;

    if (!s)
        return;
    row = xcalloc((size_t)max, sizeof(*row));
    n = loads_list(s, query_text(&c->query, QUERY_instance, ""),
                   query_num(&c->query, QUERY_before, 0), row, max, &e);
    if (n < 0) {
        conn_answer_err(c, &e);
        free(row);
        return;
    }
    reply_open(&r);
    jw_key(&r.w, "loads");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++) {
        put_listed(&r.w, &row[i]);
        loads_row_done(&row[i]);
    }
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(row);
}

void control_load(struct conn *c)
{
    struct store *s = handler_store(c);
    const char *text = c->match.arg[0];
    struct stored_load l;
    struct err e = {0};
    struct reply r;
    char *end;
    long long id = strtoll(text, &end, 10);
    int rc;

    if (!s)
        return;
    rc =
        *text < '0' || *text > '9' || *end || id < 1
            ? err_param(&e, ERR_INVALID, "id", "'%.40s' is no number of a load run", text)
            : loads_get(s, id, &l, &e);
    if (rc < 0) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&r);
    put_head(&r.w, &l);
    jw_key(&r.w, "contract");
    jw_raw(&r.w, l.contract);
    jw_key(&r.w, "result");
    jw_raw(&r.w, l.result);
    reply_send(c, &r, 200);
    loads_row_done(&l);
}

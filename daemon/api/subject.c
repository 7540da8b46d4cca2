/* daemon/api/subject.c - see subject.h. */
#include "daemon/api/subject.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/news.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/confmgr.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/modelhash.h"
#include "state/revision.h"
#include "topo/file.h"
#include "topo/graph.h"

enum { MAX_MODELS = 64, MAX_INSTANCES = 64 };

/* ---- whose model ---- */

bool subject_belongs(const char *name, const char *instance)
{
    size_t n = strlen(instance);

    return !strncmp(name, instance, n) && (!name[n] || name[n] == ':' || name[n] == '/');
}

void subject_instance(const struct served *m, char ret[SUBJECT_NAME])
{
    snprintf(ret, SUBJECT_NAME, "%.*s", (int)strcspn(m->instance, ":/"), m->instance);
}

void subject_free(void *arg)
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
        if (!instance[0] || subject_belongs(m[i]->instance, instance)) {
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
int subject_new(struct conn *c, const char *instance, struct subject **ret)
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
        if (!subject_belongs(s[i].name, instance) || s[i].state != INSTANCE_READY)
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
        hash[SUBJECT_HASH] = '\0';
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

int subject_put(struct conn *c, const struct subject *s, struct jw *w, struct err *e)
{
    struct fleet_sum f;
    struct rev_point p;
    char hash[SUBJECT_HASH + 1], name[64];

    subject_instance(s->m, name);
    if (sum_up(c, name, &f, e) < 0)
        return -1;
    snprintf(hash, sizeof(hash), "%.*s", SUBJECT_HASH, s->model_hash);
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

void subject_parts(struct conn *c, const char *instance, int *ret_prefill,
                   int *ret_decode)
{
    struct instance_status *s = xcalloc(MAX_INSTANCES, sizeof(*s));
    int n = router_instances(c->h->router, s, MAX_INSTANCES), engines[2] = {0},
        parts[2] = {0};

    for (int i = 0; i < n; i++) {
        const char *pool = strchr(s[i].name, '/');
        int of = s[i].n_ranks > s[i].n_threads ? s[i].n_ranks : s[i].n_threads;

        if (!subject_belongs(s[i].name, instance) || s[i].state != INSTANCE_READY)
            continue;
        for (int k = 0; k < 2; k++)
            if (!pool || pool[1] == "pd"[k]) {
                engines[k]++;
                parts[k] = of > 0 ? of : 1;
            }
    }
    free(s);
    *ret_prefill = engines[0] == 1 ? parts[0] : 0;
    *ret_decode = engines[1] == 1 ? parts[1] : 0;
}

int subject_still(struct conn *c, const json_t *served, struct err *e)
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

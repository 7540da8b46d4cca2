/* daemon/api/quality.c - quality runs: the daemon's part of their contract, kept, shown.
 *
 * As with load runs, what answered is not the sender's to say; here the settings that
 * change output belong to it, since a kept run is what permits them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/ctlqueue.h"
#include "daemon/api/handler.h"
#include "daemon/api/query.h"
#include "daemon/api/server.h"
#include "daemon/api/subject.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/confmgr.h"
#include "daemon/ctrl/quality.h"
#include "daemon/ctrl/router.h"
#include "state/quality.h"

enum { LIST_DEFAULT = 50, DIGITS = 8 };

static const char *text_member(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

/* ---- the daemon's part ---- */

/* What the running configuration says of the instance. */
static int facts(struct conn *c, const char *instance, char settings[QUALITY_SETTINGS],
                 char file[QUALITY_FILE], struct err *e)
{
    struct conf *conf = c->h->cfg.confmgr ? confmgr_conf(c->h->cfg.confmgr) : NULL;
    const struct conf_instance *i = conf ? conf_instance(conf, instance) : NULL;
    const struct conf_model *m = i ? conf_model(conf, i->model) : NULL;
    int rc = m ? quality_file(m->path, file, e)
               : err_param(e, ERR_NOTFOUND, "instance",
                           "there is no instance '%.63s' in the configuration", instance);

    if (rc == 0)
        quality_settings(i, settings);
    conf_unref(conf);
    return rc;
}

static void answer_contract(struct conn *c)
{
    char name[SUBJECT_NAME], settings[QUALITY_SETTINGS], file[QUALITY_FILE];
    const struct subject *s = c->carry;
    struct err e = {0};
    struct reply r;

    subject_instance(s->m, name);
    reply_open(&r);
    if (facts(c, name, settings, file, &e) < 0 || subject_put(c, s, &r.w, &e) < 0) {
        buf_done(&r.b);
        conn_answer_err(c, &e);
        return;
    }
    jw_kstr(&r.w, "settings", settings);
    jw_kbool(&r.w, "exact", !settings[0]);
    jw_kstr(&r.w, "file", file);
    reply_send(c, &r, 200);
}

void control_quality_contract(struct conn *c)
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

/* Does what the run says of us still hold? */
static int still(struct conn *c, const json_t *contract, struct stored_quality *q,
                 struct err *e)
{
    const json_t *served = json_object_get(contract, "served");
    char settings[QUALITY_SETTINGS], file[QUALITY_FILE];

    if (subject_still(c, served, e) < 0 ||
        facts(c, text_member(served, "instance"), settings, file, e) < 0)
        return -1;
    if (strcmp(settings, text_member(contract, "settings")) ||
        strcmp(file, text_member(contract, "file")))
        return err_param(e, ERR_CONFLICT, "contract",
                         "instance %s changed while it was measured: its settings that "
                         "change output, or its model file, are others now",
                         text_member(served, "instance"));
    q->exact = !settings[0];
    snprintf(q->instance, sizeof(q->instance), "%s", text_member(served, "instance"));
    snprintf(q->model, sizeof(q->model), "%s", text_member(served, "model"));
    snprintf(q->model_hash, sizeof(q->model_hash), "%s",
             text_member(served, "model_hash"));
    return 0;
}

static int keep(struct conn *c, struct store *s, const json_t *root, int64_t *ret_id,
                struct err *e)
{
    const json_t *contract = json_object_get(root, "contract"),
                 *result = json_object_get(root, "result"),
                 *said = json_object_get(root, "reference");
    struct stored_quality q = {.at_ms = clock_wall_ms()};
    char id[24];
    int rc;

    if (!json_is_object(contract) || !json_is_object(result))
        return err_param(e, ERR_INVALID, "contract",
                         "contract and result must be objects");
    if (still(c, contract, &q, e) < 0)
        return -1;
    snprintf(q.actor, sizeof(q.actor), "%s", c->who.actor);
    q.contract = json_dumps(contract, JSON_COMPACT);
    q.result = json_dumps(result, JSON_COMPACT);
    q.reference = q.exact && json_is_object(said)
                      ? json_dumps(said, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS))
                      : NULL;
    rc = q.contract && q.result ? quality_put(s, &q, e)
                                : err_set(e, ERR_INVALID, "a text is not UTF-8");
    quality_row_done(&q);
    if (rc < 0)
        return -1;
    *ret_id = q.id;
    snprintf(id, sizeof(id), "%lld", (long long)q.id);
    return handler_note(c, "quality.kept", id, "ok", q.instance, e);
}

void control_quality_put(struct conn *c)
{
    struct store *s = handler_store(c);
    json_t *root = NULL;
    struct err e = {0};
    struct reply r;
    int64_t id = 0;
    int rc;

    if (!s)
        return;
    rc = body_object(c, "contract result reference", &root, &e);
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

static void put_head(struct jw *w, const struct stored_quality *q)
{
    jw_kint(w, "id", q->id);
    jw_kint(w, "at_ms", q->at_ms);
    jw_kstr(w, "instance", q->instance);
    jw_kstr(w, "model", q->model);
    jw_kstr(w, "actor", q->actor);
    jw_kstr(w, "kind", q->exact ? "reference" : "candidate");
}

static void put_listed(struct jw *w, const struct stored_quality *q)
{
    static const struct js_limits lim = {QUALITY_JSON_MAX, 16};
    static const char *const figures[] = {"agreement", "kl_mean", "perplexity",
                                          "perplexity_ratio"};
    json_t *contract = NULL, *result = NULL, *served;

    js_parse(q->contract, strlen(q->contract), &lim, &contract, NULL);
    js_parse(q->result, strlen(q->result), &lim, &result, NULL);
    jw_obj(w);
    put_head(w, q);
    served = json_object_get(contract, "served");
    jw_kstr(w, "settings", text_member(contract, "settings"));
    jw_kstr(w, "model_hash", q->model_hash);
    jw_kstr(w, "set", text_member(json_object_get(contract, "set"), "hash"));
    jw_kstr(w, "build", text_member(served, "build"));
    jw_kint(w, "revision", json_integer_value(json_object_get(served, "revision")));
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

void control_qualities(struct conn *c)
{
    struct store *s = handler_store(c);
    int max = (int)query_num(&c->query, QUERY_limit, LIST_DEFAULT), n;
    struct stored_quality *row;
    struct err e = {0};
    struct reply r;

    if (!s)
        return;
    row = xcalloc((size_t)max, sizeof(*row));
    n = quality_list(s, query_text(&c->query, QUERY_instance, ""),
                     query_num(&c->query, QUERY_before, 0), row, max, &e);
    if (n < 0) {
        conn_answer_err(c, &e);
        free(row);
        return;
    }
    reply_open(&r);
    jw_key(&r.w, "runs");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++) {
        put_listed(&r.w, &row[i]);
        quality_row_done(&row[i]);
    }
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(row);
}

void control_quality(struct conn *c)
{
    struct store *s = handler_store(c);
    const char *text = c->match.arg[0];
    struct stored_quality q;
    struct err e = {0};
    struct reply r;
    char *end;
    long long id = strtoll(text, &end, 10);
    int rc;

    if (!s)
        return;
    rc = *text < '0' || *text > '9' || *end || id < 1
             ? err_param(&e, ERR_INVALID, "id", "'%.40s' is no number of a quality run",
                         text)
             : quality_get(s, id, &q, &e);
    if (rc < 0) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&r);
    put_head(&r.w, &q);
    jw_key(&r.w, "contract");
    jw_raw(&r.w, q.contract);
    jw_key(&r.w, "result");
    jw_raw(&r.w, q.result);
    jw_key(&r.w, "reference");
    jw_raw(&r.w, q.reference ? q.reference : "null");
    reply_send(c, &r, 200);
    quality_row_done(&q);
}

/* daemon/api/loads.c - load runs: what a sender needs of us, kept, shown. */
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
#include "daemon/ctrl/router.h"
#include "state/loads.h"

enum { LIST_DEFAULT = 50 };

/* What the sender wants to know beside the contract. */
static void put_hints(struct conn *c, const struct subject *s, struct jw *w)
{
    struct conf *conf = c->h->cfg.confmgr ? confmgr_conf(c->h->cfg.confmgr) : NULL;
    const struct conf_instance *i;
    char name[SUBJECT_NAME];

    subject_instance(s->m, name);
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
    if (subject_put(c, c->carry, &r.w, &e) < 0) {
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
    if (subject_still(c, served, e) < 0)
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

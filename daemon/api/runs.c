/* daemon/api/runs.c - runs kept, listed, shown. */
#include "daemon/api/runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/query.h"

enum { LIST_DEFAULT = 50, DIGITS = 8 /* of what a model said */ };

const char *run_text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

/* ---- kept ---- */

static int keep(struct conn *c, struct store *s, enum run_kind k, const char *action,
                run_still_fn still, const json_t *root, int64_t *ret_id, struct err *e)
{
    const json_t *contract = json_object_get(root, "contract"),
                 *result = json_object_get(root, "result"),
                 *said = json_object_get(root, "reference"),
                 *served = json_object_get(contract, "served");
    struct stored_run r = {.at_ms = clock_wall_ms()};
    char id[24];
    int rc;

    if (!json_is_object(contract) || !json_is_object(result))
        return err_param(e, ERR_INVALID, "contract",
                         "contract and result must be objects");
    if (still(c, contract, &r, e) < 0)
        return -1;
    snprintf(r.instance, sizeof(r.instance), "%s", run_text(served, "instance"));
    snprintf(r.model, sizeof(r.model), "%s", run_text(served, "model"));
    snprintf(r.model_hash, sizeof(r.model_hash), "%s", run_text(served, "model_hash"));
    snprintf(r.actor, sizeof(r.actor), "%s", c->who.actor);
    r.contract = json_dumps(contract, JSON_COMPACT);
    r.result = json_dumps(result, JSON_COMPACT);
    r.reference = r.exact && json_is_object(said)
                      ? json_dumps(said, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS))
                      : NULL;
    rc = r.contract && r.result ? runs_put(s, k, &r, e)
                                : err_set(e, ERR_INVALID, "a text is not UTF-8");
    run_done(&r);
    if (rc < 0)
        return -1;
    *ret_id = r.id;
    snprintf(id, sizeof(id), "%lld", (long long)r.id);
    return handler_note(c, action, id, "ok", r.instance, e);
}

void runs_keep(struct conn *c, enum run_kind k, const char *members, const char *action,
               run_still_fn still)
{
    struct store *s = handler_store(c);
    json_t *root = NULL;
    struct err e = {0};
    struct reply r;
    int64_t id = 0;
    int rc;

    if (!s)
        return;
    rc = body_object(c, members, &root, &e);
    if (rc == 0)
        rc = keep(c, s, k, action, still, root, &id, &e);
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

static void put_head(struct jw *w, enum run_kind k, const struct stored_run *r)
{
    jw_kint(w, "id", r->id);
    jw_kint(w, "at_ms", r->at_ms);
    jw_kstr(w, "instance", r->instance);
    jw_kstr(w, "model", r->model);
    jw_kstr(w, "actor", r->actor);
    if (k == RUN_QUALITY)
        jw_kstr(w, "kind", r->exact ? "reference" : "candidate");
}

enum shown_type { SHOW_TEXT, SHOW_COUNT, SHOW_FIGURE, SHOW_SWITCH };

/* Of a listed run: what stands where in its contract or, as figures, in its result. */
static const struct shown {
    enum run_kind kind;
    enum shown_type type;
    const char *part, *key; /* part NULL: at the top */
    const char *name;       /* NULL: key */
} shown[] = {
    {RUN_LOAD, SHOW_TEXT, "served", "mode", NULL},
    {RUN_LOAD, SHOW_TEXT, "served", "layout", NULL},
    {RUN_LOAD, SHOW_COUNT, "served", "revision", NULL},
    {RUN_LOAD, SHOW_TEXT, "work", "arrival", NULL},
    {RUN_LOAD, SHOW_FIGURE, NULL, "goodput", NULL},
    {RUN_LOAD, SHOW_FIGURE, NULL, "goodput_per_device", NULL},
    {RUN_LOAD, SHOW_FIGURE, NULL, "attainment", NULL},
    {RUN_LOAD, SHOW_SWITCH, NULL, "complete", NULL},
    {RUN_LOAD, SHOW_SWITCH, NULL, "searched", NULL},
    {RUN_QUALITY, SHOW_TEXT, NULL, "settings", NULL},
    {RUN_QUALITY, SHOW_TEXT, "served", "model_hash", NULL},
    {RUN_QUALITY, SHOW_TEXT, "set", "hash", "set"},
    {RUN_QUALITY, SHOW_TEXT, "served", "build", NULL},
    {RUN_QUALITY, SHOW_COUNT, "served", "revision", NULL},
    {RUN_QUALITY, SHOW_FIGURE, NULL, "agreement", NULL},
    {RUN_QUALITY, SHOW_FIGURE, NULL, "kl_mean", NULL},
    {RUN_QUALITY, SHOW_FIGURE, NULL, "perplexity", NULL},
    {RUN_QUALITY, SHOW_FIGURE, NULL, "perplexity_ratio", NULL},
};

static void put_shown(struct jw *w, const struct shown *h, const json_t *contract,
                      const json_t *result)
{
    const json_t *of = h->type >= SHOW_FIGURE ? result : contract;
    const char *name = h->name ? h->name : h->key;
    const json_t *v;

    of = h->part ? json_object_get(of, h->part) : of;
    v = json_object_get(of, h->key);
    if (h->type == SHOW_TEXT)
        jw_kstr(w, name, run_text(of, h->key));
    else if (h->type == SHOW_COUNT)
        jw_kint(w, name, json_integer_value(v));
    else if (h->type == SHOW_SWITCH)
        jw_kbool(w, name, json_is_true(v));
    else if (json_is_number(v))
        jw_knum(w, name, json_number_value(v));
    else
        jw_knull(w, name);
}

static void put_listed(struct jw *w, enum run_kind k, const struct stored_run *r)
{
    static const struct js_limits lim = {RUN_JSON_MAX, 16};
    json_t *contract = NULL, *result = NULL;

    js_parse(r->contract, strlen(r->contract), &lim, &contract, NULL);
    js_parse(r->result, strlen(r->result), &lim, &result, NULL);
    jw_obj(w);
    put_head(w, k, r);
    for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
        if (shown[i].kind == k)
            put_shown(w, &shown[i], contract, result);
    jw_obj_end(w);
    json_decref(contract);
    json_decref(result);
}

static void list(struct conn *c, enum run_kind k, const char *name)
{
    struct store *s = handler_store(c);
    int max = (int)query_num(&c->query, QUERY_limit, LIST_DEFAULT), n;
    struct stored_run *row;
    struct err e = {0};
    struct reply r;

    if (!s)
        return;
    row = xcalloc((size_t)max, sizeof(*row));
    n = runs_list(s, k, query_text(&c->query, QUERY_instance, ""),
                  query_num(&c->query, QUERY_before, 0), row, max, &e);
    if (n < 0) {
        conn_answer_err(c, &e);
        free(row);
        return;
    }
    reply_open(&r);
    jw_key(&r.w, name);
    jw_arr(&r.w);
    for (int i = 0; i < n; i++) {
        put_listed(&r.w, k, &row[i]);
        run_done(&row[i]);
    }
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(row);
}

static void show(struct conn *c, enum run_kind k)
{
    struct store *s = handler_store(c);
    const char *text = c->match.arg[0];
    struct stored_run v;
    struct err e = {0};
    struct reply r;
    char *end;
    long long id = strtoll(text, &end, 10);
    int rc;

    if (!s)
        return;
    rc = *text < '0' || *text > '9' || *end || id < 1
             ? err_param(&e, ERR_INVALID, "id", "'%.40s' is no number of a %s", text,
                         run_kind_name(k))
             : runs_get(s, k, id, &v, &e);
    if (rc < 0) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&r);
    put_head(&r.w, k, &v);
    jw_key(&r.w, "contract");
    jw_raw(&r.w, v.contract);
    jw_key(&r.w, "result");
    jw_raw(&r.w, v.result);
    if (k == RUN_QUALITY) {
        jw_key(&r.w, "reference");
        jw_raw(&r.w, v.reference ? v.reference : "null");
    }
    reply_send(c, &r, 200);
    run_done(&v);
}

void control_loads(struct conn *c) { list(c, RUN_LOAD, "loads"); }
void control_load(struct conn *c) { show(c, RUN_LOAD); }
void control_qualities(struct conn *c) { list(c, RUN_QUALITY, "runs"); }
void control_quality(struct conn *c) { show(c, RUN_QUALITY); }

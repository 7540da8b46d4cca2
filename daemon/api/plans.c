/* daemon/api/plans.c - GET /api/v1/plans and /api/v1/plans/ID: what was planned before.
 *
 * A plan is stored as it was answered, with the groups of each row as text and as
 * Graphviz: the rack may be another one by the time that it is looked at. */
#include "daemon/api/plans.h"

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
#include "state/journal.h"
#include "state/racknotes.h"

enum { LIST_MAX = 256 };

void made_plan_free(struct made_plan *m)
{
    if (!m)
        return;
    free(m->model);
    free(m->rack);
    free(m->request);
    free(m->text);
    free(m->plan);
    free(m->groups);
    free(m->dots);
    free(m);
}

static void carry_free(void *carry) { made_plan_free(carry); }

/* What the store keeps of it. */
static char *result_of(const struct made_plan *m)
{
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstr(&w, "text", m->text);
    jw_key(&w, "plan");
    jw_raw(&w, m->plan);
    jw_key(&w, "groups");
    jw_raw(&w, m->groups);
    jw_key(&w, "dots");
    jw_raw(&w, m->dots);
    jw_obj_end(&w);
    return b.p;
}

static int store_plan(struct conn *c, const struct made_plan *m, int64_t *ret_id,
                      struct err *e)
{
    struct plan_row row = {.at_ms = clock_wall_ms(), .request = m->request};
    char id[24];
    int rc;

    snprintf(row.model, sizeof(row.model), "%s", m->model);
    snprintf(row.rack, sizeof(row.rack), "%s", m->rack);
    row.result = result_of(m);
    rc = plan_put(c->h->cfg.store, &row, e);
    free(row.result);
    if (rc < 0)
        return -1;
    *ret_id = row.id;
    snprintf(id, sizeof(id), "%lld", (long long)row.id);
    return journal_note(c->h->cfg.store,
                        &(struct journal_note){c->who.actor, c->who.origin, "plan.made",
                                               id, "ok", m->model},
                        e);
}

/* Control thread: the second half of POST /api/v1/plan. */
static void keep(struct conn *c)
{
    const struct made_plan *m = c->carry;
    struct err e = {0};
    struct reply r;
    int64_t id = 0;

    if (c->h->cfg.store && store_plan(c, m, &id, &e) < 0) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&r);
    if (id)
        jw_kint(&r.w, "id", id);
    jw_kstr(&r.w, "text", m->text);
    jw_key(&r.w, "plan");
    jw_raw(&r.w, m->plan);
    reply_send(c, &r, 200);
}

void plans_keep(struct conn *c, struct made_plan *m)
{
    struct err e = {0};

    c->carry = m;
    c->carry_free = carry_free;
    if (!c->h->control)
        keep(c);
    else if (ctlqueue_push(c->h->control, c, keep, &e) < 0)
        conn_answer_err(c, &e);
}

/* ---- shown again ---- */

void control_plans(struct conn *c)
{
    struct plan_row *row = xcalloc(LIST_MAX, sizeof(*row));
    struct err e = {0};
    struct reply r;
    int n = c->h->cfg.store ? plan_list(c->h->cfg.store, row, LIST_MAX, &e) : 0;

    if (n < 0) {
        conn_answer_err(c, &e);
        free(row);
        return;
    }
    reply_open(&r);
    jw_key(&r.w, "plans");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++) {
        jw_obj(&r.w);
        jw_kint(&r.w, "id", row[i].id);
        jw_kint(&r.w, "at_ms", row[i].at_ms);
        jw_kstr(&r.w, "model", row[i].model);
        jw_kstr(&r.w, "rack", row[i].rack);
        jw_obj_end(&r.w);
        plan_row_done(&row[i]);
    }
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(row);
}

static int read_id(const char *text, int64_t *ret, struct err *e)
{
    char *end;
    long long v = strtoll(text, &end, 10);

    if (*text < '0' || *text > '9' || *end || v < 1)
        return err_param(e, ERR_INVALID, "id", "'%.40s' is no number of a plan", text);
    *ret = v;
    return 0;
}

/* One row of a stored plan: its text or drawing, and what it is. */
static int put_plan(struct conn *c, const struct plan_row *p, struct reply *r,
                    struct err *e)
{
    static const struct js_limits lim = {16 << 20, 32};
    bool dot = query_num(&c->query, QUERY_dot, 0) == 1;
    size_t at = (size_t)query_num(&c->query, QUERY_row, 1) - 1;
    json_t *root = NULL;
    const json_t *list, *rows;
    char *plan;

    if (js_parse(p->result, strlen(p->result), &lim, &root, e) < 0)
        return -1;
    list = json_object_get(root, dot ? "dots" : "groups");
    rows = json_object_get(json_object_get(root, "plan"), "rows");
    if (at >= json_array_size(list)) {
        err_param(e, ERR_NOTFOUND, "row", "plan %lld has %zu rows", (long long)p->id,
                  json_array_size(list));
        json_decref(root);
        return -1;
    }
    plan = json_dumps(json_array_get(rows, at), JSON_COMPACT);
    reply_open(r);
    jw_kint(&r->w, "id", p->id);
    jw_kint(&r->w, "at_ms", p->at_ms);
    jw_kstr(&r->w, "model", p->model);
    jw_kstr(&r->w, "rack", p->rack);
    jw_kint(&r->w, "row", (int64_t)at + 1);
    jw_kint(&r->w, "rows", (int64_t)json_array_size(list));
    jw_kstr(&r->w, "text", json_string_value(json_array_get(list, at)));
    jw_key(&r->w, "layout");
    jw_raw(&r->w, plan ? plan : "null");
    free(plan);
    json_decref(root);
    return 0;
}

/* ID, or "last" for the newest. */
void control_plan_show(struct conn *c)
{
    struct plan_row p = {0};
    struct err e = {0};
    struct reply r;
    const char *text = c->match.arg[0];
    int rc = 0;

    if (!c->h->cfg.store)
        rc = err_set(&e, ERR_UNAVAIL, "no plans are kept here");
    else if (!strcmp(text, "last"))
        rc = plan_list(c->h->cfg.store, &p, 1, &e) == 1
                 ? 0
                 : err_param(&e, ERR_NOTFOUND, "id", "no plan was made yet");
    else
        rc = read_id(text, &p.id, &e);
    if (rc == 0) {
        int64_t id = p.id;
        plan_row_done(&p);
        rc = plan_get(c->h->cfg.store, id, &p, &e);
    }
    if (rc == 0)
        rc = put_plan(c, &p, &r, &e);
    if (rc < 0)
        conn_answer_err(c, &e);
    else
        reply_send(c, &r, 200);
    plan_row_done(&p);
}

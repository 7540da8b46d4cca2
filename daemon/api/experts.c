/* daemon/api/experts.c - experts of the instances: what each takes, where its copies
 * stand, what was moved; and what operators order.
 *
 * Figures are a copy of what the control thread knows. A plan is a dry run, made here;
 * apply is answered with an operation that makes a plan and ends with it. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/news.h"
#include "daemon/api/operation.h"
#include "daemon/api/query.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/experts.h"
#include "daemon/ctrl/rankview.h"

enum { MAX_INSTANCES = 128, REASON_MAX = 160, APPLY_S = 3600 };

static const char *const policies[] = {
    [CONTROLLER_OFF] = "off", [CONTROLLER_ADVISE] = "advise", [CONTROLLER_AUTO] = "auto"};
static const char *const methods[] = {[CONTROLLER_PLANNER] = "planner",
                                      [CONTROLLER_EPLB] = "eplb",
                                      [CONTROLLER_INCREMENT] = "increment"};
static const char *const kinds[] = {
    [EXPERT_ADD] = "add", [EXPERT_MOVE] = "move", [EXPERT_RETIRE] = "retire"};

/* -1: answered already. */
static int watched(struct conn *c)
{
    struct err e;

    if (c->h->cfg.experts)
        return 0;
    err_set(&e, ERR_UNAVAIL, "this server watches no experts");
    conn_answer_err(c, &e);
    return -1;
}

/* ---- figures ---- */

/* Fewer digits than a double has: there are many of them. */
static void put_num(struct jw *w, double v)
{
    char text[32];

    if (!isfinite(v)) {
        jw_null(w);
        return;
    }
    snprintf(text, sizeof(text), "%.5g", v);
    jw_raw(w, text);
}

static void put_knum(struct jw *w, const char *key, double v)
{
    jw_key(w, key);
    put_num(w, v);
}

static void put_nums(struct jw *w, const char *key, const double *v, int n)
{
    jw_key(w, key);
    jw_arr(w);
    for (int i = 0; i < n; i++)
        put_num(w, v[i]);
    jw_arr_end(w);
}

/* Largest over mean. */
static double imbalance(const double *v, int n)
{
    double sum = 0, most = 0;

    for (int i = 0; i < n; i++) {
        sum += v[i];
        most = v[i] > most ? v[i] : most;
    }
    return sum > 0 ? most * n / sum : 1;
}

static void put_more(struct jw *w, const char *key, const struct experts_more *v, int n,
                     size_t member)
{
    jw_key(w, key);
    jw_arr(w);
    for (int i = 0; i < n; i++)
        put_num(w, *(const double *)(const void *)((const char *)&v[i] + member));
    jw_arr_end(w);
}

/* Counts as they are: they are to add up. */
static void put_counts(struct jw *w, const char *key, const double *v, int n)
{
    jw_key(w, key);
    jw_arr(w);
    for (int i = 0; i < n; i++)
        jw_int(w, (int64_t)v[i]);
    jw_arr_end(w);
}

static void put_phase(struct jw *w, const char *key, const struct experts_view *v, int l,
                      int phase)
{
    size_t at = (size_t)l * (size_t)v->n_expert;
    const struct experts_sums *s = &v->sums[phase][l];
    int n = v->n_expert;

    jw_key(w, key);
    jw_obj(w);
    put_knum(w, "imbalance", imbalance(v->tokens[phase] + at, n));
    put_counts(w, "assignments", v->tokens[phase] + at, n);
    put_nums(w, "service_us", v->service_us[phase] + at, n);
    put_more(w, "queue_us", v->more[phase] + at, n,
             offsetof(struct experts_more, queue_us));
    put_more(w, "overflow", v->more[phase] + at, n, offsetof(struct experts_more, over));
    put_more(w, "replica_hits", v->more[phase] + at, n,
             offsetof(struct experts_more, replica));
    jw_kint(w, "overflow_moved", (int64_t)s->moved);
    jw_kint(w, "overflow_next", (int64_t)s->next);
    jw_kint(w, "overflow_dropped", (int64_t)s->dropped);
    jw_kint(w, "dispatch_bytes", (int64_t)s->dispatch_bytes);
    jw_kint(w, "dispatch_us", (int64_t)s->dispatch_us);
    jw_kint(w, "combine_bytes", (int64_t)s->combine_bytes);
    jw_kint(w, "combine_us", (int64_t)s->combine_us);
    jw_obj_end(w);
}

static void put_layer(struct jw *w, const struct experts_view *v, int l)
{
    size_t x = (size_t)l * (size_t)v->n_expert;
    int slots = v->n_rank * v->n_slot, copies = 0;
    const int16_t *map = v->map + (size_t)l * (size_t)slots;

    for (int i = 0; i < slots; i++)
        copies += map[i] >= 0;
    jw_obj(w);
    jw_kint(w, "layer", l);
    put_knum(w, "imbalance", v->imbalance[l]);
    put_knum(w, "balancedness_loaded", v->unbalanced[l]);
    put_knum(w, "balancedness", v->balanced[l]);
    jw_kint(w, "copies", copies);
    put_nums(w, "load", v->load + x, v->n_expert);
    put_nums(w, "devices", v->device + (size_t)l * (size_t)v->n_rank, v->n_rank);
    jw_key(w, "map");
    jw_arr(w);
    for (int i = 0; i < slots; i++)
        jw_int(w, map[i]);
    jw_arr_end(w);
    jw_key(w, "shares");
    jw_arr(w);
    for (int i = 0; i < slots; i++)
        put_num(w, (double)v->share[(size_t)l * (size_t)slots + (size_t)i]);
    jw_arr_end(w);
    put_phase(w, "prefill", v, l, CONTROLLER_PREFILL);
    put_phase(w, "decode", v, l, CONTROLLER_DECODE);
    jw_obj_end(w);
}

/* The device of each rank of the expert group; of several stages that of the first. */
static void put_devices(struct conn *c, struct jw *w, const struct experts_view *v)
{
    struct rank_view *r;
    int n = rankview_get(c->h->router, &r);

    jw_key(w, "device_ids");
    jw_arr(w);
    for (int i = 0; i < v->n_rank; i++) {
        const char *id = NULL;
        char name[16];

        for (int k = 0; k < n && !id; k++)
            if (!strcmp(r[k].instance, v->instance) && r[k].s.at.group[MESH_EP] >= 0 &&
                r[k].s.at.at[MESH_EP] == i && r[k].seat.device[0])
                id = r[k].seat.device;
        snprintf(name, sizeof(name), "ep%d", i);
        jw_str(w, id ? id : name);
    }
    jw_arr_end(w);
    free(r);
}

static void put_moves(struct jw *w, const struct experts_view *v)
{
    jw_key(w, "moves");
    jw_arr(w);
    for (int i = 0; i < v->n_move; i++) {
        jw_obj(w);
        jw_kint(w, "move", (int64_t)v->move[i].move.id);
        jw_kint(w, "layer", v->move[i].move.layer);
        jw_kint(w, "slots", v->move[i].move.n);
        jw_kstr(w, "state", move_state_name(v->move[i].state));
        jw_kstr(w, "reason", v->move[i].why);
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

static void put_instance(struct conn *c, struct jw *w, const struct experts_view *v,
                         int64_t layer)
{
    jw_obj(w);
    jw_kstr(w, "instance", v->instance);
    jw_kint(w, "n_layers", v->n_layer);
    jw_kint(w, "n_experts", v->n_expert);
    jw_kint(w, "n_devices", v->n_rank);
    jw_kint(w, "n_slots", v->n_slot);
    jw_kint(w, "expert_bytes", v->expert_bytes);
    jw_kstr(w, "policy", policies[v->policy]);
    jw_kbool(w, "frozen", v->frozen);
    jw_kstr(w, "reason", v->why);
    put_knum(w, "prefill_steps", v->steps[CONTROLLER_PREFILL]);
    put_knum(w, "decode_steps", v->steps[CONTROLLER_DECODE]);
    jw_kint(w, "moves_done", (int64_t)v->n_done);
    jw_kint(w, "moves_aborted", (int64_t)v->n_aborted);
    jw_kint(w, "moves_stalled", (int64_t)v->n_stalled);
    jw_kint(w, "bytes_moved", (int64_t)v->bytes);
    jw_kint(w, "added_mean_us", v->added_mean_us);
    jw_kint(w, "added_max_us", v->added_max_us);
    put_knum(w, "slack_us", v->slack_us);
    jw_kint(w, "step_bytes", v->step_bytes);
    jw_kint(w, "moves_measured", (int64_t)v->n_measured);
    put_knum(w, "predicted_us", v->predicted_us);
    put_knum(w, "realised_us", v->realised_us);
    jw_kint(w, "plan", (int64_t)v->plan);
    put_moves(w, v);
    put_devices(c, w, v);
    jw_key(w, "layers");
    jw_arr(w);
    for (int l = 0; l < v->n_layer; l++)
        if (layer < 0 || l == layer)
            put_layer(w, v, l);
    jw_arr_end(w);
    jw_obj_end(w);
}

/* Is it this instance, or a pool of it? */
static bool is_of(const char *name, const char *instance)
{
    size_t n = strlen(instance);

    return !strncmp(name, instance, n) && (!name[n] || name[n] == '/');
}

/* Names of the instances, or pools of one, that are asked about; -1: answered already. */
static int asked(struct conn *c, char (*ret)[64])
{
    const char *only = query_text(&c->query, QUERY_instance, NULL);
    int n = experts_list(c->h->cfg.experts, ret, MAX_INSTANCES), k = 0;
    struct err e;

    for (int i = 0; only && i < n; i++)
        if (is_of(ret[i], only))
            memmove(ret[k++], ret[i], sizeof(*ret));
    if (!only || k)
        return only ? k : n;
    err_param(&e, ERR_NOTFOUND, "instance",
              "instance '%.63s' has no experts that can move: a mixture of experts with "
              "experts.spare and layout.ep, and ready, would be right",
              only);
    conn_answer_err(c, &e);
    return -1;
}

void control_experts(struct conn *c)
{
    int64_t layer = query_num(&c->query, QUERY_layer, -1);
    char names[MAX_INSTANCES][64];
    struct experts_view v;
    struct reply r;
    struct err e;
    int n;

    if (watched(c) < 0 || (n = asked(c, names)) < 0)
        return;
    reply_open(&r);
    jw_key(&r.w, "experts");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++) {
        if (experts_view(c->h->cfg.experts, names[i], &v, &e) < 0)
            continue; /* gone just now */
        put_instance(c, &r.w, &v, layer);
        experts_view_done(&v);
    }
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
}

/* ---- history ---- */

static void put_event(struct jw *w, const char *instance, const struct experts_event *ev)
{
    jw_obj(w);
    jw_kint(w, "at_ms", ev->at_ms);
    jw_kstr(w, "instance", instance);
    jw_kstr(w, "what", ev->what);
    if (ev->plan)
        jw_kint(w, "plan", (int64_t)ev->plan);
    else
        jw_knull(w, "plan");
    if (ev->move)
        jw_kint(w, "move", (int64_t)ev->move);
    else
        jw_knull(w, "move");
    if (ev->layer >= 0)
        jw_kint(w, "layer", ev->layer);
    else
        jw_knull(w, "layer");
    put_knum(w, "predicted_us", ev->predicted_us);
    put_knum(w, "realised_us", ev->realised_us);
    put_knum(w, "added_us", ev->added_us);
    put_knum(w, "added_max_us", ev->added_max_us);
    jw_kint(w, "bytes", ev->bytes);
    jw_kstr(w, "text", ev->text);
    jw_obj_end(w);
}

void control_experts_history(struct conn *c)
{
    int64_t most = query_num(&c->query, QUERY_limit, EXPERTS_HISTORY);
    char names[MAX_INSTANCES][64];
    struct experts_view v;
    struct reply r;
    struct err e;
    int n;

    if (watched(c) < 0 || (n = asked(c, names)) < 0)
        return;
    reply_open(&r);
    jw_key(&r.w, "history");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++) {
        if (experts_view(c->h->cfg.experts, names[i], &v, &e) < 0)
            continue;
        for (int k = 0; k < v.n_history && k < most; k++)
            put_event(&r.w, names[i], &v.history[k]);
        experts_view_done(&v);
    }
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
}

/* ---- orders ---- */

struct ask {
    json_t *root; /* borrowed by the rest */
    char instance[64];
    enum controller_method method;
    const char *reason;
};

/* The body; the only instance where none is named. -1: answered already. */
static int read_ask(struct conn *c, const char *members, struct ask *ret)
{
    char names[MAX_INSTANCES][64];
    const char *name = NULL, *method = NULL;
    struct err e;
    int n, k = 0;

    memset(ret, 0, sizeof(*ret));
    ret->method = CONTROLLER_INCREMENT;
    ret->reason = "";
    if (watched(c) < 0)
        return -1;
    if (body_object(c, members, &ret->root, &e) < 0 ||
        body_text(ret->root, "instance", sizeof(ret->instance) - 1, &name, &e) < 0 ||
        body_text(ret->root, "method", 16, &method, &e) < 0 ||
        body_text(ret->root, "reason", REASON_MAX, &ret->reason, &e) < 0)
        goto fail;
    n = experts_list(c->h->cfg.experts, names, MAX_INSTANCES);
    for (int i = 0; i < n; i++)
        if (!name || is_of(names[i], name))
            memmove(names[k++], names[i], sizeof(*names));
    if (k > 1 || (!name && !k)) {
        err_param(
            &e, k ? ERR_INVALID : ERR_NOTFOUND, "instance",
            k ? "there are %d with experts that can move: name one, such as '%s' or '%s'"
              : "no instance has experts that can move",
            k, names[0], names[1]);
        goto fail;
    }
    snprintf(ret->instance, sizeof(ret->instance), "%s", k ? names[0] : name);
    for (size_t i = 0; method && i < sizeof(methods) / sizeof(methods[0]); i++)
        if (!strcmp(methods[i], method)) {
            ret->method = (enum controller_method)i;
            return 0;
        }
    if (!method)
        return 0;
    err_param(&e, ERR_INVALID, "method",
              "there is no method '%.16s': increment, planner or eplb", method);
fail:
    conn_answer_err(c, &e);
    json_decref(ret->root);
    return -1;
}

static void put_proposal(struct jw *w, const struct ask *a,
                         const struct experts_proposal *p)
{
    double gain = 0, cost = 0;

    for (int i = 0; i < p->n_layer; i++) {
        gain += p->layer[i].gain_us;
        cost += p->layer[i].cost_us;
    }
    jw_kstr(w, "instance", a->instance);
    jw_kstr(w, "method", methods[a->method]);
    jw_kstr(w, "reason", p->why);
    jw_kint(w, "bytes", p->bytes);
    put_knum(w, "predicted_us", gain);
    put_knum(w, "cost_us", cost);
    put_knum(w, "apart_before", p->apart_before);
    put_knum(w, "apart_after", p->apart_after);
    jw_key(w, "layers");
    jw_arr(w);
    for (int i = 0; i < p->n_layer; i++) {
        const struct controller_layer *l = &p->layer[i];
        int n = 0;

        for (int k = 0; k < p->n_move; k++)
            n += p->move[k].layer == l->layer;
        jw_obj(w);
        jw_kint(w, "layer", l->layer);
        jw_kint(w, "moves", n);
        put_knum(w, "balancedness", l->before);
        put_knum(w, "balancedness_after", l->after);
        put_knum(w, "predicted_us", l->gain_us);
        put_knum(w, "cost_us", l->cost_us);
        jw_obj_end(w);
    }
    jw_arr_end(w);
    jw_key(w, "moves");
    jw_arr(w);
    for (int i = 0; i < p->n_move; i++) {
        const struct expert_move *m = &p->move[i];

        jw_obj(w);
        jw_kint(w, "layer", m->layer);
        jw_kint(w, "group", m->group);
        jw_kstr(w, "kind", kinds[m->kind]);
        jw_kint(w, "expert", m->expert);
        jw_kint(w, "device", m->device);
        jw_kint(w, "slot", m->slot);
        jw_kint(w, "was", m->was);
        jw_kint(w, "from", m->from);
        jw_kint(w, "bytes", m->bytes);
        put_knum(w, "gain_us", m->gain);
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

void control_experts_plan(struct conn *c)
{
    struct experts_proposal p;
    struct reply r;
    struct ask a;
    struct err e;

    if (read_ask(c, "instance method", &a) < 0)
        return;
    if (experts_propose(c->h->cfg.experts, a.instance, a.method, &p, &e) < 0) {
        conn_answer_err(c, &e);
    } else {
        reply_open(&r);
        put_proposal(&r.w, &a, &p);
        reply_send(c, &r, 200);
        experts_proposal_done(&p);
    }
    json_decref(a.root);
}

struct applying {
    struct experts *x;
    char instance[64];
    uint64_t order;
};

static enum operation_state poll_order(void *arg, char message[512])
{
    const struct applying *a = arg;
    struct experts_progress p;
    struct err e;

    if (experts_progress(a->x, a->instance, a->order, &p, &e) < 0) {
        snprintf(message, 512, "%.500s", e.msg);
        return OPERATION_FAILED;
    }
    if (p.plan)
        snprintf(message, 512, "plan %llu: %d of %d moves done%s%.200s",
                 (unsigned long long)p.plan, p.n_done, p.n_move, p.why[0] ? "; " : "",
                 p.why);
    else
        snprintf(message, 512, "%.200s",
                 p.why[0] ? p.why
                 : p.over ? "nothing to move"
                          : "the plan is being made");
    return !p.over ? OPERATION_RUNNING : p.whole ? OPERATION_DONE : OPERATION_FAILED;
}

void control_experts_apply(struct conn *c)
{
    struct operation_watch w = {poll_order, free, NULL, APPLY_S * (int64_t)1000000};
    const struct experts_who who = {c->who.actor, c->who.origin};
    struct applying *on;
    uint64_t order = 0;
    struct ask a;
    struct err e;

    if (read_ask(c, "instance method", &a) < 0)
        return;
    if (operation_room(news_operations(c->h->news), &e) < 0 ||
        experts_apply(c->h->cfg.experts, a.instance, a.method, &who, &order, &e) < 0) {
        conn_answer_err(c, &e);
        json_decref(a.root);
        return;
    }
    w.arg = on = xcalloc(1, sizeof(*on));
    on->x = c->h->cfg.experts;
    on->order = order;
    memcpy(on->instance, a.instance, sizeof(on->instance));
    json_decref(a.root);
    news_start(c->h->news, c, "experts.apply", on->instance, &w, "");
}

static void freeze(struct conn *c, bool on)
{
    const struct experts_who who = {c->who.actor, c->who.origin};
    struct reply r;
    struct ask a;
    struct err e;

    if (read_ask(c, "instance reason", &a) < 0)
        return;
    if (experts_freeze(c->h->cfg.experts, a.instance, on, &who, a.reason, &e) < 0) {
        conn_answer_err(c, &e);
    } else {
        reply_open(&r);
        jw_kstr(&r.w, "instance", a.instance);
        jw_kbool(&r.w, "frozen", on);
        reply_send(c, &r, 200);
    }
    json_decref(a.root);
}

void control_experts_freeze(struct conn *c) { freeze(c, true); }

void control_experts_thaw(struct conn *c) { freeze(c, false); }

/* daemon/api/advice.c - GET /api/v1/pd/advice: colocated, chunked or split?
 *
 * The newest complete search of an instance (or the run that is named) is the contract
 * that is asked about. Runs whose contracts agree with it in all but what is compared, on
 * as many devices, count as measured. Costs of a step come from the newest of these on
 * all devices, else from the newest of all, whose pools had some each; how they scale
 * from the newest run of the same model and lengths that measured them on another number,
 * whatever its targets were. Gathered on the control thread, computed on a worker. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/contract.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/pool.h"
#include "daemon/api/query.h"
#include "daemon/api/server.h"
#include "daemon/api/subject.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/confmgr.h"
#include "daemon/ctrl/pdadvise.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/metrics.h"
#include "state/runs.h"

enum {
    RUNS_MAX = 200,
    ARRIVALS_MAX = 1024, /* of each run of a rate */
    MAX_INSTANCES = 64,
};
/* Where no handoff was seen yet: a message each way, and copies within one host. */
static const double HANDOFF_MS = 5, HANDOFF_BYTES_PER_MS = 2e6;

/* What the worker needs. */
struct question {
    struct pd_world world;
    struct pd_work work;
    struct pd_arrival come[LOAD_TRIES][ARRIVALS_MAX];
    struct pd_run run[RUNS_MAX];
    int n_runs;
    int64_t against; /* the run that is the contract */
    char instance[64], handoff[120], scaling[200], costs[160];
};

/* One stored run, parsed. */
struct parsed {
    int64_t id;
    json_t *contract, *result;
};

static void parsed_done(struct parsed *p)
{
    json_decref(p->contract);
    json_decref(p->result);
    p->contract = p->result = NULL;
}

static double num(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static const json_t *served(const struct parsed *p)
{
    return json_object_get(p->contract, "served");
}

/* A search that came to its end. */
static bool whole(const struct parsed *p)
{
    return json_is_true(json_object_get(p->result, "complete")) &&
           json_is_true(json_object_get(p->result, "searched"));
}

/* What can be shared out between pools: devices, or the threads of a CPU's. */
static int parts(const struct parsed *p)
{
    double d = num(served(p), "devices"), t = num(served(p), "threads");

    return (int)fmin(fmax(fmax(d, t), 1), 1024);
}

/* ---- what was measured ---- */

static int list_runs(struct store *s, const char *instance, struct parsed *ret,
                     struct err *e)
{
    static const struct js_limits lim = {RUN_JSON_MAX, 16};
    struct stored_run *row = xcalloc(RUNS_MAX, sizeof(*row));
    int n = runs_list(s, RUN_LOAD, instance, 0, row, RUNS_MAX, e), kept = 0;

    for (int i = 0; i < n; i++) {
        struct parsed p = {.id = row[i].id};

        if (js_parse(row[i].contract, strlen(row[i].contract), &lim, &p.contract, NULL) <
                0 ||
            js_parse(row[i].result, strlen(row[i].result), &lim, &p.result, NULL) < 0)
            parsed_done(&p);
        else
            ret[kept++] = p;
        run_done(&row[i]);
    }
    free(row);
    return n < 0 ? -1 : kept;
}

/* The one that is asked about: run N, or the newest complete search. */
static const struct parsed *reference(const struct parsed *v, int n, int64_t wanted)
{
    for (int i = 0; i < n; i++)
        if (wanted ? v[i].id == wanted : whole(&v[i]))
            return &v[i];
    return NULL;
}

/* Of one contract, on however many devices. */
static bool alike(const struct parsed *a, const struct parsed *b)
{
    json_t *shown = NULL;
    bool yes = contract_compare(a->contract, b->contract, &shown, NULL) == 0;

    json_decref(shown);
    return yes;
}

static bool comparable(const struct parsed *a, const struct parsed *b)
{
    return parts(a) == parts(b) && alike(a, b);
}

static int mode_of(const struct parsed *p)
{
    const char *name = json_string_value(json_object_get(served(p), "mode"));

    for (int m = 0; name && m < PD_MODES; m++)
        if (!strcmp(name, pd_mode_name((enum pd_mode)m)))
            return m;
    return -1;
}

/* Costs of a step, and the devices that took so long; false: the run tells none. */
static bool take_cost(const struct parsed *p, struct pd_world *w)
{
    const json_t *c = json_object_get(p->result, "cost");
    bool split = mode_of(p) == PD_SPLIT;
    double prefill = num(c, "prefill_parts"), decode = num(c, "decode_parts");

    if (!json_is_object(c) || (split && (prefill < 1 || decode < 1)))
        return false;
    w->prefill_ms = num(c, "prefill_ms");
    w->prefill_tok_ms = num(c, "prefill_tok_ms");
    w->decode_ms = num(c, "decode_ms");
    w->decode_seq_ms = num(c, "decode_seq_ms");
    w->prefill_on = split ? (int)fmin(prefill, 1024) : parts(p);
    w->decode_on = split ? (int)fmin(decode, 1024) : parts(p);
    return w->prefill_ms >= 0 && w->prefill_tok_ms >= 0 && w->decode_ms >= 0 &&
           w->decode_seq_ms >= 0 && w->prefill_ms + w->prefill_tok_ms > 0 &&
           w->decode_ms + w->decode_seq_ms > 0;
}

/* The same model on the same rack, and prompts of the same lengths: a step of theirs
 * costs the same. */
static bool same_steps(const struct parsed *a, const struct parsed *b)
{
    static const char *const lengths[] = {"in", "trace", "divide", "max_tok"};
    json_t *x = json_pack("{s:O}", "served", served(a)),
           *y = json_pack("{s:O}", "served", served(b)), *shown = NULL;
    bool yes = contract_compare(x, y, &shown, NULL) == 0;

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        json_t *p = json_object_get(json_object_get(a->contract, "work"), lengths[i]),
               *q = json_object_get(json_object_get(b->contract, "work"), lengths[i]);

        yes &= p == q || (p && q && json_equal(p, q));
    }
    json_decref(shown);
    json_decref(x);
    json_decref(y);
    return yes;
}

/* The power that says how long a step takes on another number of devices; ret untouched
 * where the two were on as many. */
static void take_power(int on, double ms, int other_on, double other_ms, double *ret)
{
    bool more = other_on > on;

    if (*ret == 0 && on > 0 && other_on > 0 && on != other_on)
        *ret = pd_scale(more ? other_ms : ms, more ? ms : other_ms,
                        more ? (double)other_on / on : (double)on / other_on);
}

/* How long a step takes on fewer devices, by the newest runs that say so. */
static void take_scale(const struct parsed *v, int n, const struct parsed *ref,
                       struct question *q)
{
    struct pd_world *w = &q->world, some;
    int64_t id = 0;

    for (int i = 0; i < n; i++) {
        double before = w->prefill_scale + w->decode_scale;

        if (!served(&v[i]) || !same_steps(ref, &v[i]) || !take_cost(&v[i], &some))
            continue;
        take_power(w->prefill_on, w->prefill_tok_ms, some.prefill_on, some.prefill_tok_ms,
                   &w->prefill_scale);
        take_power(w->decode_on, w->decode_ms + w->decode_seq_ms, some.decode_on,
                   some.decode_ms + some.decode_seq_ms, &w->decode_scale);
        if (w->prefill_scale + w->decode_scale > before)
            id = v[i].id;
    }
    if (w->prefill_scale > 0 && w->decode_scale > 0)
        snprintf(
            q->scaling, sizeof(q->scaling),
            "measured, run %lld: on half of the devices a prompt takes %.2f, a decode "
            "step %.2f times as long",
            (long long)id, pow(2, w->prefill_scale), pow(2, w->decode_scale));
    else
        snprintf(q->scaling, sizeof(q->scaling),
                 "not known: a step on half of the devices may take 1.4 to 2 times as "
                 "long; a run with other threads or devices says it");
}

/* The run that costs come from, on all devices rather than those of pools; the newest. */
static const struct parsed *take_costs(const struct parsed *v, int n,
                                       const struct parsed *ref, struct pd_world *w)
{
    for (int split = 0; split < 2; split++)
        for (int i = 0; i < n; i++)
            if ((&v[i] == ref || (whole(&v[i]) && comparable(ref, &v[i]))) &&
                (mode_of(&v[i]) == PD_SPLIT) == split && take_cost(&v[i], w))
                return &v[i];
    return NULL;
}

static struct pd_steps steps_of(const struct parsed *p, const char *when)
{
    const json_t *o = json_object_get(json_object_get(p->result, "steps"), when);

    return (struct pd_steps){num(o, "answer_steps"),   num(o, "answer_seqs"),
                             1e3 * num(o, "answer_s"), num(o, "prompt_steps"),
                             num(o, "prompt_seqs"),    num(o, "prompt_tok"),
                             1e3 * num(o, "prompt_s")};
}

/* From the costs of an idle instance to those of a loaded one. */
static void take_pace(const struct parsed *p, struct question *q)
{
    struct pd_steps idle = steps_of(p, "idle"), loaded = steps_of(p, "loaded");
    struct pd_pace pace = pd_pace_of(&q->world, &idle, &loaded);

    pd_pace_set(&q->world, pace);
    snprintf(
        q->costs, sizeof(q->costs),
        "run %lld; under load steps with prompts took %.2f, of answers %.2f times as "
        "long as idle",
        (long long)p->id, pace.prefill, pace.decode);
}

static int take_runs(const struct parsed *v, int n, const struct parsed *ref,
                     struct question *q, struct err *e)
{
    const struct parsed *costs;

    for (int i = 0; i < n; i++) {
        int m = mode_of(&v[i]);

        if (m < 0 || !whole(&v[i]) || !comparable(ref, &v[i]))
            continue;
        q->run[q->n_runs++] = (struct pd_run){
            (enum pd_mode)m, v[i].id, num(v[i].result, "goodput"),
            num(v[i].result, "bound"),
            (int)fmin(fmax(num(json_object_get(v[i].result, "cost"), "step_tok"), 0),
                      1 << 20)};
    }
    costs = take_costs(v, n, ref, &q->world);
    if (!costs)
        return err_set(
            e, ERR_UNAVAIL,
            "no run with this contract says what a step costs, and on how many "
            "devices: measure the instance in mode colocated or chunked");
    take_scale(v, n, ref, q); /* idle against idle */
    take_pace(costs, q);
    return 0;
}

/* One run's requests; how many, up to the first that is none. */
static int take_arrivals(const json_t *list, struct pd_arrival *ret)
{
    int n = 0;
    size_t i;
    json_t *v;

    json_array_foreach((json_t *)list, i, v)
    {
        double at = json_number_value(json_array_get(v, 0)) / 1e3;
        int64_t in = json_integer_value(json_array_get(v, 1)),
                out = json_integer_value(json_array_get(v, 2));

        if (n == ARRIVALS_MAX || in < 1 || out < 1 || in > 1 << 20 || out > 1 << 20 ||
            !(at >= (n ? ret[n - 1].at : 0) && at < 1e9))
            break;
        ret[n++] = (struct pd_arrival){at, (int)in, (int)out};
    }
    return n;
}

static int take_work(const struct parsed *ref, struct question *q, struct err *e)
{
    const json_t *slo = json_object_get(ref->contract, "slo"),
                 *work = json_object_get(ref->contract, "work"),
                 *arrivals = json_object_get(ref->result, "arrivals");
    struct pd_work *k = &q->work;

    k->n_come = ARRIVALS_MAX;
    for (int i = 0; i < LOAD_TRIES; i++) {
        int n = take_arrivals(json_array_get(arrivals, (size_t)i), q->come[i]);

        k->come[i] = q->come[i];
        k->n_come = n < k->n_come ? n : k->n_come;
    }
    if (k->n_come < LOAD_LEAST)
        return err_set(e, ERR_UNAVAIL,
                       "run %lld does not say when its requests came and how long they "
                       "were: measure again with llmctl load",
                       (long long)ref->id);
    k->slo =
        (struct load_slo){num(slo, "ttft_ms"), num(slo, "tpot_ms"), num(slo, "target")};
    k->span = (struct load_span){(int)fmin(num(work, "requests"), 1e6),
                                 fmin(num(work, "least_s"), 1e6),
                                 (int64_t)fmin(num(work, "point_s"), 1e6)};
    return 0;
}

/* ---- what runs ---- */

/* Milliseconds that handoffs of the instance took of late; false: there were none. */
static bool seen_handoff(struct conn *c, const char *instance, double *ret_ms)
{
    struct page_group *g = xcalloc(ROUTER_GROUPS, sizeof(*g));
    int n = router_groups_get(c->h->router, g, ROUTER_GROUPS);
    double sum = 0, count = 0;

    for (int i = 0; i < n; i++)
        if (subject_belongs(g[i].instance, instance))
            for (int k = 0; k < g[i].n; k++) {
                sum += metric_sum(g[i].pages[k], M_HANDOFF_WAIT);
                count += metric_get(g[i].pages[k], M_HANDOFF_WAIT, 0);
            }
    router_pages_put(c->h->router);
    free(g);
    *ret_ms = count > 0 ? 1e3 * sum / count : 0;
    return count > 0;
}

static void take_handoff(struct conn *c, struct question *q)
{
    struct instance_status *s = xcalloc(MAX_INSTANCES, sizeof(*s));
    int n = router_instances(c->h->router, s, MAX_INSTANCES);
    double bytes = 0, ms;

    for (int i = 0; i < n; i++)
        if (subject_belongs(s[i].name, q->instance) && s[i].n_blocks > 0 &&
            s[i].block_tok > 0)
            bytes = (double)s[i].kv_bytes / ((double)s[i].n_blocks * s[i].block_tok);
    free(s);
    if (seen_handoff(c, q->instance, &ms)) {
        q->world.handoff_ms = ms;
        snprintf(q->handoff, sizeof(q->handoff), "%.2f ms, mean of those that were", ms);
        return;
    }
    q->world.handoff_ms = HANDOFF_MS;
    q->world.handoff_tok_ms = bytes / HANDOFF_BYTES_PER_MS;
    snprintf(q->handoff, sizeof(q->handoff),
             "assumed: %g ms + %.0f bytes a token at %g GB/s, for none was seen",
             HANDOFF_MS, bytes, HANDOFF_BYTES_PER_MS / 1e6);
}

static int gather(struct conn *c, struct store *s, struct question *q, struct err *e)
{
    struct parsed *v = xcalloc(RUNS_MAX, sizeof(*v));
    int64_t wanted = query_num(&c->query, QUERY_run, 0);
    const char *instance = query_text(&c->query, QUERY_instance, "");
    struct conf *conf = c->h->cfg.confmgr ? confmgr_conf(c->h->cfg.confmgr) : NULL;
    const struct conf_instance *i;
    const struct parsed *ref;
    int n = list_runs(s, instance, v, e), rc = n < 0 ? -1 : 0;

    ref = n > 0 ? reference(v, n, wanted) : NULL;
    if (rc == 0 && !ref && *instance && conf && !conf_instance(conf, instance))
        rc = err_set(e, ERR_NOTFOUND, "there is no instance '%.63s'", instance);
    else if (rc == 0 && !ref)
        rc = err_set(
            e, ERR_NOTFOUND,
            "%s%s: llmctl load measures one, then there is a workload to advise on",
            wanted ? "there is no such load run" : "no load run came to its end",
            *instance ? " of this instance" : "");
    if (rc == 0) {
        const char *name = json_string_value(json_object_get(served(ref), "instance"));

        snprintf(q->instance, sizeof(q->instance), "%s", name ? name : "");
        i = conf ? conf_instance(conf, q->instance) : NULL;
        q->against = ref->id;
        q->world = (struct pd_world){.devices = parts(ref),
                                     .step_tok = i ? (int)i->step_tok : 512,
                                     .prefill_step_tok = i ? (int)i->prefill.step_tok : 0,
                                     .max_seqs = i ? (int)i->max_seqs : 64,
                                     .prefill_run = i ? (int)i->prefill_run : 4};
        rc = take_work(ref, q, e);
    }
    if (rc == 0)
        rc = take_runs(v, n, ref, q, e);
    if (rc == 0)
        take_handoff(c, q);
    for (int k = 0; k < n; k++)
        parsed_done(&v[k]);
    free(v);
    conf_unref(conf);
    return rc;
}

/* ---- the answer ---- */

static void put_number(struct jw *w, const char *key, bool known, double v)
{
    if (known && isfinite(v))
        jw_knum(w, key, v);
    else
        jw_knull(w, key);
}

static void put_row(struct jw *w, const struct pd_row *r, double spread)
{
    char basis[64];

    if (r->measured)
        snprintf(basis, sizeof(basis), "measured, run %lld", (long long)r->run);
    else if (!r->possible)
        snprintf(basis, sizeof(basis), "not possible");
    else if (isfinite(spread))
        snprintf(basis, sizeof(basis), "predicted, error %.0f %% on the measured",
                 100 * spread);
    else
        snprintf(basis, sizeof(basis), "predicted, error not known");
    jw_obj(w);
    jw_kstr(w, "mode", pd_mode_name(r->mode));
    jw_kstr(w, "basis", basis);
    jw_kbool(w, "measured", r->measured);
    put_number(w, "run", r->measured, (double)r->run);
    put_number(w, "goodput", r->possible, r->goodput);
    put_number(w, "low", r->possible, r->low);
    put_number(w, "high", r->possible, r->high);
    put_number(w, "predicted", r->possible, r->predicted);
    put_number(w, "error", r->measured, r->error);
    put_number(w, "prefill_devices", r->mode == PD_SPLIT && r->guess.prefill_devices > 0,
               r->guess.prefill_devices);
    put_number(w, "step_over_decode", r->possible, r->guess.step_over_decode);
    jw_kstr(w, "why", r->why);
    jw_obj_end(w);
}

static void advise(struct conn *c)
{
    const struct question *q = c->carry;
    struct pd_advice a;
    struct reply r;

    pd_advise(&q->world, &q->work, q->run, q->n_runs, &a);
    reply_open(&r);
    jw_kstr(&r.w, "text", a.text);
    jw_kstr(&r.w, "instance", q->instance);
    jw_kint(&r.w, "against", q->against);
    jw_kint(&r.w, "devices", q->world.devices);
    jw_kstr(&r.w, "handoff", q->handoff);
    jw_kstr(&r.w, "scaling", q->scaling);
    jw_kstr(&r.w, "costs", q->costs);
    jw_kbool(&r.w, "sure", a.sure);
    put_number(&r.w, "spread", true, a.spread);
    put_number(&r.w, "pace", a.pace > 0, a.pace);
    if (a.next < PD_MODES)
        jw_kstr(&r.w, "next", pd_mode_name((enum pd_mode)a.next));
    else
        jw_knull(&r.w, "next");
    jw_key(&r.w, "modes");
    jw_arr(&r.w);
    for (int i = 0; i < PD_MODES; i++)
        put_row(&r.w, &a.row[i], a.spread);
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
}

void control_pd_advice(struct conn *c)
{
    struct store *s = handler_store(c);
    struct question *q;
    struct err e = {0};

    if (!s)
        return;
    q = xcalloc(1, sizeof(*q));
    c->carry = q;
    c->carry_free = free;
    if (gather(c, s, q, &e) < 0 || pool_push(c->h->pool, c, advise, &e) < 0)
        conn_answer_err(c, &e);
}

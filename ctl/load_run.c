/* ctl/load_run.c - costs of a step, then the search. */
#include "ctl/load_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/load_search.h"
#include "ctl/load_send.h"

enum { ALONE = 3, BATCH = 8, BATCH_TOK = 24, BATCH_IN = 8, DRAIN_S = 60, COST_S = 300 };

static void say(struct load_run *r, const char *text)
{
    if (r->progress)
        r->progress(r->arg, text, NULL);
}

/* ---- one run of requests ---- */

struct told {
    struct load_run *r;
    double rate;
    int try;
};

static void on_progress(void *arg, const struct load_progress *p)
{
    struct told *t = arg;
    char line[160], again[32] = "";

    if (t->try > 1)
        snprintf(again, sizeof(again), ", try %d of %d", t->try, LOAD_TRIES);
    snprintf(line, sizeof(line),
             "%.3g/s%s: %d of %d sent, %d open, %d of %d good, %.0f s", t->rate, again,
             p->come, p->n, p->open, p->good, p->ended, (double)p->elapsed_us / 1e6);
    say(t->r, line);
}

static struct load_send sender(struct load_run *r, const struct load_work *work)
{
    const struct load_plan *p = r->plan;

    return (struct load_send){.wire = r->wire,
                              .to = {.model = p->model, .temperature = p->temperature},
                              .work = work,
                              .slo = p->slo,
                              .max_us = COST_S * INT64_C(1000000),
                              .stop = r->stop};
}

/* ---- the engines' own steps ---- */

void load_steps_read(const json_t *steps, struct load_steps *ret)
{
#define X(name) ret->name = json_number_value(json_object_get(steps, #name));
    LOAD_STEPS_MAP(X)
#undef X
}

/* Those since *from, into *ret; from now on, into *from. */
static int steps_since(struct load_run *r, struct load_steps *from,
                       struct load_steps *ret, struct err *e)
{
    struct load_steps now;

    if (r->look(r->arg, &now, e) < 0)
        return -1;
#define X(name) ret->name = now.name - from->name;
    LOAD_STEPS_MAP(X)
#undef X
    *from = now;
    return 0;
}

static json_t *steps(const struct load_steps *s)
{
    json_t *o = json_object();

#define X(name) json_object_set_new(o, #name, json_real(s->name));
    LOAD_STEPS_MAP(X)
#undef X
    return o;
}

/* ---- what a step costs ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return n ? v[n / 2] : NAN;
}

/* n requests at once of these lengths: medians of ttft and tpot in ms. */
static int at_once(struct load_run *r, int n, int in, int out, uint64_t part,
                   double *ret_ttft, double *ret_tpot, struct err *e)
{
    struct load_work w = r->plan->work;
    struct load_send s = sender(r, &w);
    struct load_req req[BATCH];
    struct load_seen seen[BATCH];
    double ttft[BATCH], tpot[BATCH];
    int n_ok = 0, rc;

    w.trace = NULL;
    w.salt = ++r->salt;
    w.arrival = LOAD_POISSON;
    w.shared_tok = 0;
    w.in = (struct load_dist){.a = in};
    w.out = (struct load_dist){.a = out};
    load_work_make(&w, 1, n, part, req);
    for (int i = 0; i < n; i++)
        req[i].at_us = 0;
    rc = load_send(&s, req, n, seen, &n, e);
    for (int i = 0; rc == 0 && i < n; i++)
        if (seen[i].end == LOAD_DONE) {
            ttft[n_ok] = (double)(seen[i].first_us - seen[i].sent_us) / 1e3;
            tpot[n_ok++] = load_tpot_ms(&seen[i]);
        }
    if (rc == 0 && n_ok < n)
        return err_set(e, ERR_UNAVAIL,
                       "%d of %d requests to %s did not end well on an idle instance",
                       n - n_ok, n, r->plan->model);
    *ret_ttft = median(ttft, n_ok);
    *ret_tpot = median(tpot, n_ok);
    return rc;
}

/* Median ttft of a prompt of so many tokens, alone. */
static int alone(struct load_run *r, int in, uint64_t part, double *ret, struct err *e)
{
    double v[ALONE], tpot;

    for (int i = 0; i < ALONE; i++)
        if (at_once(r, 1, in, 1, part + (uint64_t)i, &v[i], &tpot, e) < 0)
            return -1;
    *ret = median(v, ALONE);
    return 0;
}

/* Tokens of the work: its mean prompt and answer. */
static void means(const struct load_run *r, double *ret_in, double *ret_out)
{
    *ret_in = *ret_out = 0;
    for (int i = 0; i < r->n_sample; i++) {
        *ret_in += (double)r->sample[i][0] / r->n_sample;
        *ret_out += (double)r->sample[i][1] / r->n_sample;
    }
}

/* Parts of the seed that no rate uses. */
static const uint64_t part_cost = UINT64_C(1) << 40;

/* The start of a step from two prompts that one step takes each; the cost of a token from
 * the mean prompt, so that what its later tokens cost more is in it. */
static int measure_prefill(struct load_run *r, struct err *e)
{
    const struct load_plan *p = r->plan;
    double in, out, t[3] = {0};
    int room = p->work.max_tok - BATCH_TOK - 1,
        step = p->step_tok > 0 ? p->step_tok : room, n[3], steps;

    means(r, &in, &out);
    n[2] = in < 64 ? 64 : (int)in;
    n[2] = n[2] > room ? room : n[2];
    n[1] = n[2] > step ? step : n[2];
    n[0] = n[1] / 4 > 0 ? n[1] / 4 : 1;
    if (alone(r, n[0], part_cost, &t[0], e) < 0 || /* warms it */
        alone(r, n[1], part_cost + 10, &t[1], e) < 0 ||
        alone(r, n[0], part_cost + 20, &t[0], e) < 0)
        return -1;
    t[2] = t[1];
    if (n[2] > n[1] && alone(r, n[2], part_cost + 30, &t[2], e) < 0)
        return -1;
    steps = (n[2] + step - 1) / step;
    r->cost.prefill_ms =
        fmax(0, t[0] - fmax(0, t[1] - t[0]) / fmax(1, n[1] - n[0]) * n[0]);
    r->cost.prefill_ms = fmin(r->cost.prefill_ms, t[2] / steps);
    r->cost.prefill_tok_ms = (t[2] - steps * r->cost.prefill_ms) / n[2];
    return 0;
}

static int measure_decode(struct load_run *r, struct err *e)
{
    int batch = r->plan->max_seqs < BATCH ? r->plan->max_seqs : BATCH;
    double v[ALONE], ttft, one, many;

    for (int i = 0; i < ALONE; i++)
        if (at_once(r, 1, BATCH_IN, BATCH_TOK, part_cost + 40 + (uint64_t)i, &ttft, &v[i],
                    e) < 0)
            return -1;
    one = median(v, ALONE);
    if (at_once(r, batch, BATCH_IN, BATCH_TOK, part_cost + 50, &ttft, &many, e) < 0)
        return -1;
    r->cost.decode_seq_ms = many > one && batch > 1 ? (many - one) / (batch - 1) : 0;
    r->cost.decode_ms = fmax(0, one - r->cost.decode_seq_ms);
    return 0;
}

static int measure_cost(struct load_run *r, struct err *e)
{
    say(r, "what a step costs: prompts alone, answers in batches");
    if (measure_prefill(r, e) < 0 || measure_decode(r, e) < 0)
        return err_wrap(e, "what a step costs");
    r->measured = true;
    return 0;
}

/* Requests a second when one is served after the other. */
static double first_guess(const struct load_run *r)
{
    const struct load_cost *c = &r->cost;
    double in, out, ms;

    means(r, &in, &out);
    ms = c->prefill_ms + c->prefill_tok_ms * in +
         (c->decode_ms + c->decode_seq_ms) * (out - 1);
    return ms > 0 ? 1e3 / ms : 1;
}

/* ---- rates ---- */

/* Only those that ended, in their order. */
static int ended_ones(struct load_seen *v, int n)
{
    int kept = 0;

    for (int i = 0; i < n; i++)
        if (v[i].end != LOAD_CUT && v[i].end != LOAD_PENDING)
            v[kept++] = v[i];
    return kept;
}

/* One run at this rate, added to the tries. After Ctrl-C: what had ended of it. */
static int one_run(struct load_run *r, double rate, struct load_tries *t, struct err *e)
{
    const struct load_plan *p = r->plan;
    int n = load_plan_count(p, rate), come = 0, rc;
    struct load_req *req = xcalloc((size_t)n, sizeof(*req));
    struct load_seen *seen = xcalloc((size_t)n, sizeof(*seen));
    struct load_work work = p->work;
    struct load_send s = sender(r, &work);
    struct told told = {r, rate, t->runs + 1};

    /* The gaps and lengths of a try are the same at every rate: what differs between two
     * points is the rate. */
    work.salt = ++r->salt;
    load_work_make(&work, rate, n, (uint64_t)t->runs, req);
    s.max_us = req[n - 1].at_us + DRAIN_S * INT64_C(1000000);
    s.stop_lost = true;
    s.progress = on_progress;
    s.arg = &told;
    rc = load_send(&s, req, n, seen, &come, e);
    if (rc < 0) /* what we ended is nobody's fault: it does not count */
        come = ended_ones(seen, come);
    if (come)
        load_tries_add(t, seen, come);
    free(req);
    free(seen);
    return rc;
}

/* Kept by rising rate. */
static void add_point(struct load_run *r, const struct load_point *p)
{
    int i = r->n_points++;

    for (; i > 0 && r->point[i - 1].rate > p->rate; i--)
        r->point[i] = r->point[i - 1];
    r->point[i] = *p;
}

static int search(struct load_run *r, struct load_search *s, struct err *e)
{
    struct load_tries t = {.seen = NULL};
    double rate, at = 0;
    int rc = 0;

    while (rc == 0 && r->n_points < LOAD_POINTS && (rate = load_search_rate(s)) > 0) {
        struct load_point p;

        if (rate != at) {
            load_tries_done(&t);
            at = rate;
        }
        rc = one_run(r, rate, &t, e);
        if (rc < 0 && !t.n)
            break;
        load_tries_judge(&t, rate, &r->plan->slo, &p);
        if (rc < 0) { /* stopped: shown, but no verdict */
            p.pass = p.sure = false;
            add_point(r, &p);
            break;
        }
        load_search_told(s, p.pass, p.sure);
        if (s->done || load_search_rate(s) != rate) {
            add_point(r, &p);
            if (r->progress)
                r->progress(r->arg, NULL, &p);
        }
    }
    load_tries_done(&t);
    r->goodput = s->pass;
    r->bound = s->fail;
    return rc;
}

static void take_sample(struct load_run *r)
{
    struct load_req req[LOAD_SAMPLE];

    load_work_make(&r->plan->work, 1, LOAD_SAMPLE, 0, req);
    for (int i = 0; i < LOAD_SAMPLE; i++) {
        r->sample[i][0] = req[i].n_in;
        r->sample[i][1] = req[i].n_out;
    }
    r->n_sample = LOAD_SAMPLE;
}

int load_run(struct load_run *r, struct err *e)
{
    const struct load_plan *p = r->plan;
    struct load_search s = {
        .min = 1e-3, .max = 1e5, .width = 0.1, .points = 16, .tries = LOAD_TRIES};

    struct load_steps from = {0};
    int rc;

    take_sample(r);
    if (steps_since(r, &from, &r->idle, e) < 0 || measure_cost(r, e) < 0 ||
        steps_since(r, &from, &r->idle, e) < 0)
        return -1;
    s.guess = first_guess(r);
    if (p->rate > 0) {
        s.guess = p->rate;
        s.points = 1;
    }
    rc = search(r, &s, e);
    return rc < 0 ? rc : steps_since(r, &from, &r->loaded, e);
}

/* ---- as JSON ---- */

const struct load_point *load_run_chosen(const struct load_run *r)
{
    for (int i = 0; i < r->n_points; i++)
        if (r->goodput > 0 && r->point[i].rate == r->goodput)
            return &r->point[i];
    return r->n_points ? &r->point[0] : NULL;
}

static json_t *num(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *pct(const struct load_pct *p)
{
    return json_pack("{s:o, s:o, s:o}", "p50", num(p->p50), "p95", num(p->p95), "p99",
                     num(p->p99));
}

static json_t *point(const struct load_point *p)
{
    return json_pack(
        "{s:f, s:f, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o, "
        "s:f, s:f, s:i, s:b, s:b, s:b}",
        "rate", p->rate, "duration_s", p->duration_s, "requests", p->n, "good", p->good,
        "refused", p->refused, "aborted", p->aborted, "cut", p->cut, "attainment",
        p->attainment, "low", p->low, "high", p->high, "ttft_share", p->ttft_share,
        "tpot_share", p->tpot_share, "ttft_ms", pct(&p->ttft), "tpot_ms", pct(&p->tpot),
        "gap_ms", pct(&p->gap), "good_per_s", p->good_per_s, "good_tok_per_s",
        p->good_tok_per_s, "most_open", p->most_open, "saturated", p->saturated, "pass",
        p->pass, "sure", p->sure);
}

/* What a good request costs at the goodput: device-hours, and money where the price is
 * known. */
static void put_money(const struct load_run *r, json_t *o)
{
    double hours = 0, run_s = 0;

    for (int i = 0; i < r->n_points; i++)
        run_s += r->point[i].duration_s;
    json_object_set_new(o, "device_hours", num(r->plan->devices * run_s / 3600));
    if (r->goodput > 0)
        hours = r->plan->devices / (r->goodput * 3600);
    json_object_set_new(o, "device_hours_per_good",
                        r->goodput > 0 ? num(hours) : json_null());
    json_object_set_new(o, "price", num(r->plan->price));
    json_object_set_new(o, "cost_per_good",
                        r->goodput > 0 && r->plan->price > 0 ? num(hours * r->plan->price)
                                                             : json_null());
}

static json_t *cost(const struct load_run *r)
{
    const struct load_plan *p = r->plan;

    return json_pack("{s:f, s:f, s:f, s:f, s:i, s:i, s:i}", "prefill_ms",
                     r->cost.prefill_ms, "prefill_tok_ms", r->cost.prefill_tok_ms,
                     "decode_ms", r->cost.decode_ms, "decode_seq_ms",
                     r->cost.decode_seq_ms, "step_tok", p->step_tok, "prefill_parts",
                     p->prefill_parts, "decode_parts", p->decode_parts);
}

/* What came, the same at every rate: of each run of one a list of [when, prompt, answer],
 * in thousandths of the mean gap and tokens; the first LOAD_KEPT of it. */
static json_t *arrivals(const struct load_run *r)
{
    const struct load_plan *p = r->plan;
    int n = p->span.requests;

    for (int i = 0; i < r->n_points; i++) {
        int came = load_plan_count(p, r->point[i].rate);

        n = came > n ? came : n;
    }
    n = n < LOAD_KEPT ? n : LOAD_KEPT;
    struct load_req *req = xcalloc((size_t)n, sizeof(*req));
    json_t *all = json_array();

    for (int t = 0; t < LOAD_TRIES; t++) {
        json_t *one = json_array();

        load_work_make(&p->work, 1, n, (uint64_t)t, req);
        for (int i = 0; i < n; i++)
            json_array_append_new(one, json_pack("[I, i, i]",
                                                 (json_int_t)(req[i].at_us / 1000),
                                                 req[i].n_in, req[i].n_out));
        json_array_append_new(all, one);
    }
    free(req);
    return all;
}

json_t *load_run_result(const struct load_run *r, bool complete)
{
    const struct load_point *c = load_run_chosen(r);
    json_t *o = json_pack("{s:f, s:f, s:b, s:b, s:b}", "goodput", r->goodput,
                          "goodput_per_device", r->goodput / r->plan->devices, "complete",
                          complete, "sure", c && c->sure, "searched", r->plan->rate <= 0),
           *points = json_array();

    json_object_set_new(o, "bound", r->bound > 0 ? num(r->bound) : json_null());
    if (c) {
        json_object_set_new(o, "attainment", num(c->attainment));
        json_object_set_new(o, "good_tok_per_s", num(c->good_tok_per_s));
        json_object_set_new(o, "at", point(c));
    }
    put_money(r, o);
    for (int i = 0; i < r->n_points; i++)
        json_array_append_new(points, point(&r->point[i]));
    json_object_set_new(o, "points", points);
    if (r->measured) {
        json_object_set_new(o, "cost", cost(r));
        json_object_set_new(o, "steps",
                            json_pack("{s:o, s:o}", "idle", steps(&r->idle), "loaded",
                                      steps(&r->loaded)));
    }
    json_object_set_new(o, "arrivals", arrivals(r));
    return o;
}

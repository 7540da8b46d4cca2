/* daemon/ctrl/pdadvise_sim.c - arrivals, steps, tokens on virtual time. */
#include "daemon/ctrl/pdadvise_sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { RUN_MAX = 4096 };

struct preq {
    double come_ms, first_ms, last_ms;
    double ready_ms;             /* when it may enter the pool in question */
    int n_in, n_out, left, made; /* prompt tokens still to compute, tokens made */
};

/* One engine: requests from a list by the time that they are ready. */
struct engine {
    const struct pd_world *w;
    enum pd_mode mode;
    double slow_prefill, slow_decode; /* so many times as long as on all devices */
    bool only_prefill, only_decode;
    struct preq **wait; /* in the order of ready_ms */
    int n_wait, next;   /* next: the first that has not begun */
    int step_tok;
    struct preq *run[RUN_MAX];
    int take[RUN_MAX]; /* prompt tokens of each in the step */
    int n_run, streak;
    double now_ms;
};

static void arrive(const struct pd_work *k, double rate, int try, int n, struct preq *v)
{
    for (int i = 0; i < n; i++) {
        const struct pd_arrival *a = &k->come[try][i];
        double at = a->at / rate * 1e3;

        v[i] = (struct preq){.come_ms = at,
                             .ready_ms = at,
                             .first_ms = -1,
                             .n_in = a->n_in,
                             .n_out = a->n_out > 0 ? a->n_out : 1,
                             .left = a->n_in};
    }
}

/* ---- one step ---- */

static double cost(const struct engine *e, int prompt_tok, int seqs)
{
    const struct pd_world *w = e->w;
    double decode = e->slow_decode * w->decode_ms,
           prefill = e->slow_prefill * w->prefill_ms;
    double start = !prompt_tok ? decode : !seqs ? prefill : fmax(decode, prefill);

    return start + e->slow_prefill * prompt_tok * w->prefill_tok_ms +
           e->slow_decode * seqs * w->decode_seq_ms;
}

static void token(struct preq *r, double now)
{
    r->made++;
    if (r->first_ms < 0)
        r->first_ms = now;
    r->last_ms = now;
}

/* Those that have come, up to max_seqs, in their order. */
static void admit(struct engine *e)
{
    int max = e->w->max_seqs < RUN_MAX ? e->w->max_seqs : RUN_MAX;

    while (e->next < e->n_wait && e->n_run < max &&
           e->wait[e->next]->ready_ms <= e->now_ms)
        e->run[e->n_run++] = e->wait[e->next++];
}

/* How much of the prompts this step computes, in their order; take[i] of run[i]. */
static int share_out(struct engine *e, int budget)
{
    int sum = 0;

    for (int i = 0; i < e->n_run; i++) {
        int left = e->run[i]->left;

        e->take[i] = 0;
        if (!left || budget <= 0)
            continue;
        /* colocated: whole ones; only one that is longer than a step is cut */
        if (e->mode == PD_COLOCATED && sum && left > budget)
            budget = 0;
        e->take[i] = left < budget ? left : budget;
        budget -= e->take[i];
        sum += e->take[i];
    }
    return sum;
}

static int decoding(const struct engine *e)
{
    int n = 0;

    for (int i = 0; i < e->n_run; i++)
        n += e->run[i]->left == 0;
    return n;
}

static void step(struct engine *e, double *ret_late, double *ret_pure)
{
    int seqs = decoding(e), among = seqs, prompt = 0, kept = 0;
    bool with_prompts = e->mode != PD_COLOCATED || !seqs || e->streak < e->w->prefill_run;

    prompt =
        share_out(e, with_prompts ? e->step_tok - (e->mode == PD_CHUNKED ? seqs : 0) : 0);
    if (e->mode == PD_COLOCATED && prompt)
        seqs = 0; /* who decodes waits */
    e->streak = prompt && e->mode == PD_COLOCATED ? e->streak + 1 : 0;
    e->now_ms += cost(e, prompt, seqs);
    *ret_late += among ? cost(e, prompt, seqs) : 0;
    *ret_pure += seqs ? cost(e, 0, seqs) : 0;
    for (int i = 0; i < e->n_run; i++) {
        struct preq *r = e->run[i];
        bool decodes = r->left == 0;

        r->left -= e->take[i];
        if ((decodes && seqs) || (!decodes && r->left == 0))
            token(r, e->now_ms);
        if (r->left == 0 && (r->made >= r->n_out || e->only_prefill))
            continue;
        e->run[kept++] = r;
    }
    e->n_run = kept;
}

/* Until all have gone. late over pure: how much longer a token took than by decode alone.
 */
static double run_engine(struct engine *e)
{
    double late = 0, pure = 0;

    while (e->next < e->n_wait || e->n_run) {
        admit(e);
        if (!e->n_run) {
            e->now_ms = e->wait[e->next]->ready_ms;
            continue;
        }
        step(e, &late, &pure);
    }
    return pure > 0 ? late / pure : 0;
}

/* ---- pools ---- */

static int by_ready(const void *a, const void *b)
{
    const struct preq *x = *(struct preq *const *)a, *y = *(struct preq *const *)b;

    if (x->ready_ms != y->ready_ms)
        return x->ready_ms < y->ready_ms ? -1 : 1;
    return (x > y) - (x < y);
}

/* Of n in v those that go on to the decode pool, by when they get there. */
static int hand_over(const struct engine *p, struct preq *v, int n, struct preq **list)
{
    int n_list = 0;

    for (int i = 0; i < n; i++) {
        int last = v[i].n_in % p->step_tok ? v[i].n_in % p->step_tok : p->step_tok;

        if (v[i].made >= v[i].n_out)
            continue; /* one token: nothing to hand over */
        last = last < v[i].n_in ? last : v[i].n_in;
        v[i].ready_ms = v[i].last_ms + p->w->handoff_ms + last * p->w->handoff_tok_ms;
        list[n_list++] = &v[i];
    }
    qsort(list, (size_t)n_list, sizeof(*list), by_ready);
    return n_list;
}

/* So many times as long as on the devices where it was measured. */
static double slower(int on, double devices, double scale)
{
    return pow(on / devices, scale);
}

static void set_pace(struct engine *e, int prefill_devices, int decode_devices)
{
    const struct pd_world *w = e->w;

    e->slow_prefill = slower(w->prefill_on > 0 ? w->prefill_on : w->devices,
                             prefill_devices, w->prefill_scale);
    e->slow_decode = slower(w->decode_on > 0 ? w->decode_on : w->devices, decode_devices,
                            w->decode_scale);
}

static double run_split(const struct pd_world *w, int prefill_devices, struct preq *v,
                        int n, struct engine *e, struct preq **list)
{
    struct engine *p = e, *d = e + 1;

    *p = (struct engine){.w = w,
                         .mode = PD_CHUNKED,
                         .step_tok =
                             w->prefill_step_tok > 0 ? w->prefill_step_tok : w->step_tok,
                         .only_prefill = true,
                         .wait = list,
                         .n_wait = n};
    *d = (struct engine){
        .w = w, .mode = PD_CHUNKED, .step_tok = w->step_tok, .wait = list};
    set_pace(p, prefill_devices, w->devices - prefill_devices);
    set_pace(d, prefill_devices, w->devices - prefill_devices);
    run_engine(p);
    d->n_wait = hand_over(p, v, n, list);
    return run_engine(d);
}

static double run_one(const struct pd_world *w, enum pd_mode m, int n, struct engine *e,
                      struct preq **list)
{
    *e = (struct engine){
        .w = w, .mode = m, .step_tok = w->step_tok, .wait = list, .n_wait = n};
    set_pace(e, w->devices, w->devices);
    return run_engine(e);
}

/* ---- figures ---- */

static int64_t us(double ms) { return (int64_t)(1e3 * fmin(ms, 1e15)); }

static void see(const struct preq *v, int n, struct load_seen *ret)
{
    for (int i = 0; i < n; i++)
        ret[i] = (struct load_seen){.at_us = us(v[i].come_ms),
                                    .sent_us = us(v[i].come_ms),
                                    .first_us = us(v[i].first_ms),
                                    .last_us = us(v[i].last_ms),
                                    .end_us = us(v[i].last_ms),
                                    .n_in = v[i].n_in,
                                    .n_want = v[i].n_out,
                                    .n_out = v[i].n_out,
                                    .end = LOAD_DONE};
}

void pd_simulate(const struct pd_world *w, const struct pd_work *k, enum pd_mode m,
                 int prefill_devices, double rate, struct pd_sim *ret)
{
    int n = load_search_count(&k->span, rate);
    struct load_tries t = {.seen = NULL};

    n = n < k->n_come ? n : k->n_come;
    struct preq *v = xcalloc((size_t)n, sizeof(*v));
    struct preq **list = xcalloc((size_t)n, sizeof(*list));
    struct load_seen *seen = xcalloc((size_t)n, sizeof(*seen));
    struct engine *e = xcalloc(2, sizeof(*e));

    *ret = (struct pd_sim){.at.sure = false};
    while (t.runs < LOAD_TRIES && !ret->at.sure) {
        arrive(k, rate, t.runs, n, v);
        for (int i = 0; i < n; i++)
            list[i] = &v[i];
        ret->step_over_decode += m == PD_SPLIT
                                     ? run_split(w, prefill_devices, v, n, e, list)
                                     : run_one(w, m, n, e, list);
        see(v, n, seen);
        load_tries_add(&t, seen, n);
        load_tries_judge(&t, rate, &k->slo, &ret->at);
    }
    ret->step_over_decode /= t.runs;
    load_tries_done(&t);
    free(v);
    free(list);
    free(seen);
    free(e);
}

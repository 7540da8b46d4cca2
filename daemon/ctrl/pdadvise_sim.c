/* daemon/ctrl/pdadvise_sim.c - arrivals, steps, tokens on virtual time. */
#include "daemon/ctrl/pdadvise_sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* A world: its first requests find it empty and do not count. Several worlds of other
 * arrivals count together. */
enum { REQUESTS = 400, WARM = 40, WORLDS = 3, COUNTED = WORLDS * (REQUESTS - WARM) };

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
    struct preq *run[4096];
    int n_run, streak;
    double now_ms;
};

static uint64_t next_rand(uint64_t *s)
{
    uint64_t z = *s += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static double unit(uint64_t *s) { return (double)(next_rand(s) >> 11) * 0x1p-53; }

/* A gap of mean 1: exponential, or for clumps (cv2 > 1) one of two exponentials with
 * balanced means that has this squared coefficient of variation. */
static double gap(double cv2, uint64_t *s)
{
    double e = -log(1 - unit(s)), p;

    if (cv2 <= 1.001)
        return e;
    p = (1 + sqrt((cv2 - 1) / (cv2 + 1))) / 2;
    return unit(s) < p ? e / (2 * p) : e / (2 * (1 - p));
}

static void arrive(const struct pd_work *k, double rate, int world, struct preq *v)
{
    uint64_t of = k->seed * WORLDS + (uint64_t)world, gaps = of * 2 + 1,
             lengths = of * 2 + 2;
    double at = 0;

    for (int i = 0; i < REQUESTS; i++) {
        const int *len = k->sample[next_rand(&lengths) % (uint64_t)k->n_sample];

        at += gap(k->cv2, &gaps) / rate * 1e3;
        v[i] = (struct preq){.come_ms = at,
                             .ready_ms = at,
                             .first_ms = -1,
                             .n_in = len[0],
                             .n_out = len[1] > 0 ? len[1] : 1,
                             .left = len[0]};
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
    int max = e->w->max_seqs < 4096 ? e->w->max_seqs : 4096;

    while (e->next < e->n_wait && e->n_run < max &&
           e->wait[e->next]->ready_ms <= e->now_ms)
        e->run[e->n_run++] = e->wait[e->next++];
}

/* How much of the prompts this step computes, in their order; take[i] of run[i]. */
static int share_out(const struct engine *e, int budget, int *take)
{
    int sum = 0;

    for (int i = 0; i < e->n_run; i++) {
        int left = e->run[i]->left;

        take[i] = 0;
        if (!left || budget <= 0)
            continue;
        /* colocated: whole ones; only one that is longer than a step is cut */
        if (e->mode == PD_COLOCATED && sum && left > budget)
            break;
        take[i] = left < budget ? left : budget;
        budget -= take[i];
        sum += take[i];
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
    int take[4096] = {0}, seqs = decoding(e), prompt = 0, kept = 0;
    bool with_prompts = e->mode != PD_COLOCATED || !seqs || e->streak < e->w->prefill_run;

    if (with_prompts)
        prompt = share_out(e, e->w->step_tok - (e->mode == PD_CHUNKED ? seqs : 0), take);
    if (e->mode == PD_COLOCATED && prompt)
        seqs = 0; /* who decodes waits */
    e->streak = prompt && e->mode == PD_COLOCATED ? e->streak + 1 : 0;
    e->now_ms += cost(e, prompt, seqs);
    *ret_late += decoding(e) ? cost(e, prompt, seqs) : 0;
    *ret_pure += seqs ? cost(e, 0, seqs) : 0;
    for (int i = 0; i < e->n_run; i++) {
        struct preq *r = e->run[i];
        bool decodes = r->left == 0;

        r->left -= take[i];
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

static void hand_over(const struct pd_world *w, struct preq *v, struct preq **list,
                      int *ret_n)
{
    *ret_n = 0;
    for (int i = 0; i < REQUESTS; i++) {
        int last = v[i].n_in % w->step_tok ? v[i].n_in % w->step_tok : w->step_tok;

        if (v[i].made >= v[i].n_out)
            continue; /* one token: nothing to hand over */
        last = last < v[i].n_in ? last : v[i].n_in;
        v[i].ready_ms = v[i].last_ms + w->handoff_ms + last * w->handoff_tok_ms;
        list[(*ret_n)++] = &v[i];
    }
    qsort(list, (size_t)*ret_n, sizeof(*list), by_ready);
}

/* So many times as long as on all devices. */
static double slower(const struct pd_world *w, int devices, double scale)
{
    return pow((double)w->devices / devices, scale > 0 ? scale : 1);
}

static double run_split(const struct pd_world *w, int prefill_devices, struct preq *v,
                        struct engine *e, struct preq **list)
{
    struct engine *p = e, *d = e + 1;

    *p = (struct engine){.w = w,
                         .mode = PD_CHUNKED,
                         .slow_prefill = slower(w, prefill_devices, w->prefill_scale),
                         .only_prefill = true,
                         .wait = list,
                         .n_wait = REQUESTS};
    run_engine(p);
    *d = (struct engine){.w = w,
                         .mode = PD_CHUNKED,
                         .slow_decode =
                             slower(w, w->devices - prefill_devices, w->decode_scale),
                         .wait = list};
    hand_over(w, v, list, &d->n_wait);
    return run_engine(d);
}

/* ---- figures ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double p95(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v[(int)ceil(0.95 * n) - 1];
}

struct tally {
    double ttft[COUNTED], tpot[COUNTED], late;
    int n, good, ttft_ok, tpot_ok;
};

static void count(const struct pd_work *k, const struct preq *v, struct tally *t)
{
    for (int i = WARM; i < REQUESTS; i++) {
        const struct preq *r = &v[i];
        double ttft = r->first_ms - r->come_ms,
               tpot = r->n_out > 1 ? (r->last_ms - r->first_ms) / (r->n_out - 1) : 0;
        bool a = k->ttft_ms <= 0 || ttft <= k->ttft_ms,
             b = k->tpot_ms <= 0 || tpot <= k->tpot_ms;

        t->ttft[t->n] = ttft;
        t->tpot[t->n++] = tpot;
        t->ttft_ok += a;
        t->tpot_ok += b;
        t->good += a && b;
    }
}

/* One world with arrivals of its own. */
static void run_world(const struct pd_world *w, const struct pd_work *k, enum pd_mode m,
                      int prefill_devices, double rate, int world, struct tally *t)
{
    struct preq *v = xcalloc(REQUESTS, sizeof(*v));
    struct preq **list = xcalloc(REQUESTS, sizeof(*list));
    struct engine *e = xcalloc(2, sizeof(*e));

    arrive(k, rate, world, v);
    for (int i = 0; i < REQUESTS; i++)
        list[i] = &v[i];
    if (m == PD_SPLIT) {
        t->late += run_split(w, prefill_devices, v, e, list) / WORLDS;
    } else {
        *e = (struct engine){.w = w,
                             .mode = m,
                             .slow_prefill = 1,
                             .slow_decode = 1,
                             .wait = list,
                             .n_wait = REQUESTS};
        t->late += run_engine(e) / WORLDS;
    }
    count(k, v, t);
    free(v);
    free(list);
    free(e);
}

void pd_simulate(const struct pd_world *w, const struct pd_work *k, enum pd_mode m,
                 int prefill_devices, double rate, struct pd_sim *ret)
{
    struct tally *t = xcalloc(1, sizeof(*t));

    for (int i = 0; i < WORLDS; i++)
        run_world(w, k, m, prefill_devices, rate, i, t);
    *ret = (struct pd_sim){.attainment = (double)t->good / COUNTED,
                           .ttft_share = (double)t->ttft_ok / COUNTED,
                           .tpot_share = (double)t->tpot_ok / COUNTED,
                           .ttft_p95 = p95(t->ttft, COUNTED),
                           .tpot_p95 = p95(t->tpot, COUNTED),
                           .step_over_decode = t->late};
    ret->pass = ret->attainment >= k->target - 1e-9;
    free(t);
}

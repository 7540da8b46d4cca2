/* topo/estimate.c - steps of topo/cost.h put together into what a client sees.
 *
 * A prompt's price is the time that it adds to a decode step that it rides on; one prompt
 * rides in each attention group and in each stage's micro-batch. It goes through the
 * stages whole, so that PP shortens no prompt. While a request decodes osl tokens,
 * each of the `concurrency` requests around it has one prompt taken in, so a token pays
 * concurrency / osl of that price. TTFT is the step with the prompt in it, and the wait
 * for prompts ahead as in a queue with fixed service times. */
#include "topo/estimate.h"

#include <math.h>

static void step(const struct estimate_on *o, const struct estimate_load *w,
                 double decode, double prefill, struct cost_step *ret)
{
    struct cost_work work = {.decode = decode,
                             .ctx = w->isl + w->osl / 2,
                             .prefill = prefill,
                             .prompt = w->isl,
                             .skew = w->skew < 1 ? 1 : w->skew,
                             .kv = w->kv};

    cost_step(o->d, o->s, o->l, o->k, &work, ret);
}

static void finish(const struct estimate_on *o, const struct estimate_load *w,
                   struct estimate *r)
{
    r->tokens_s = r->requests_s * w->osl;
    r->tokens_s_gpu = r->tokens_s / layout_ranks(o->l);
}

/* Waiting for prompts ahead, where rho is the share of time that goes to prompts. */
static double queue_ms(double service_ms, double rho)
{
    return rho < 0.95 ? service_ms * rho / (2 * (1 - rho)) : service_ms * 10;
}

void estimate_colocated(const struct estimate_on *o, const struct estimate_load *w,
                        struct estimate *ret)
{
    double all = o->l->adp * o->l->pp, ride = fmin(all, w->concurrency), extra, rho;
    struct cost_step dec, mixed, alone;

    *ret = (struct estimate){.ttft_ms = 0};
    step(o, w, w->concurrency, 0, &dec);
    step(o, w, w->concurrency, w->isl * all, &mixed);
    step(o, w, 0, w->isl * all, &alone);
    extra = fmax(mixed.total_us - dec.total_us, 0) / ride;
    ret->tpot_ms = (dec.total_us + extra * w->concurrency / w->osl) / 1e3;
    rho = extra * w->concurrency / w->osl / 1e3 / ret->tpot_ms;
    ret->ttft_ms = (w->concurrency > 1 ? mixed.total_us : alone.total_us) / 1e3;
    ret->ttft_ms +=
        w->concurrency > 1 ? dec.total_us / 2e3 + queue_ms(ret->ttft_ms, rho) : 0;
    ret->requests_s = w->concurrency / (ret->ttft_ms + ret->tpot_ms * (w->osl - 1)) * 1e3;
    ret->prefill_bottleneck = alone.bottleneck;
    ret->decode_bottleneck = dec.bottleneck;
    finish(o, w, ret);
}

void estimate_prefill(const struct estimate_on *o, const struct estimate_load *w,
                      struct estimate *ret)
{
    struct cost_step one;

    *ret = (struct estimate){.tpot_ms = 0};
    step(o, w, 0, w->isl * o->l->adp * o->l->pp, &one);
    ret->ttft_ms = one.total_us / 1e3;
    ret->requests_s = o->l->adp * o->l->pp / one.total_us * 1e6;
    ret->prefill_bottleneck = one.bottleneck;
    finish(o, w, ret);
}

void estimate_decode(const struct estimate_on *o, const struct estimate_load *w,
                     struct estimate *ret)
{
    struct cost_step dec;

    *ret = (struct estimate){.ttft_ms = 0};
    step(o, w, w->concurrency, 0, &dec);
    ret->tpot_ms = dec.total_us / 1e3;
    ret->requests_s = w->concurrency / ret->tpot_ms / w->osl * 1e3;
    ret->decode_bottleneck = dec.bottleneck;
    finish(o, w, ret);
}

/* ctl/load_plan.c - options of llmctl load. */
#include "ctl/load_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/load_search.h"
#include "ctl/args.h"
#include "ctl/file.h"

enum { TRACE_MAX_BYTES = 256 << 20, REQUESTS = 100, POINT_S = 120 };

/* A number of lo..hi; `missing` where the word is not there. */
static int number(const struct args *a, const char *word, double lo, double hi,
                  double missing, double *ret, struct err *e)
{
    const char *text = args_get(a, word);
    char *end;

    *ret = missing;
    if (!text)
        return 0;
    *ret = strtod(text, &end);
    if (end == text || *end || !(*ret >= lo && *ret <= hi))
        return err_param(e, ERR_INVALID, word,
                         "%s takes a number from %g to %g, not '%s'", word, lo, hi, text);
    return 0;
}

static int count(const struct args *a, const char *word, int lo, int hi, int missing,
                 int *ret, struct err *e)
{
    double v;
    int rc = number(a, word, lo, hi, missing, &v, e);

    *ret = (int)v;
    return rc;
}

static double offered(const json_t *offer, const char *key)
{
    return json_number_value(json_object_get(offer, key));
}

static int read_slo(const struct args *a, const json_t *offer, struct load_plan *p,
                    struct err *e)
{
    double percent;

    if (number(a, "ttft", 0, 3.6e6, offered(offer, "ttft_ms"), &p->slo.ttft_ms, e) < 0 ||
        number(a, "tpot", 0, 3.6e6, offered(offer, "tpot_ms"), &p->slo.tpot_ms, e) < 0 ||
        number(a, "target", 1, 100, 100 * offered(offer, "attainment"), &percent, e) < 0)
        return -1;
    p->slo.target = percent / 100;
    if (p->slo.ttft_ms <= 0 && p->slo.tpot_ms <= 0)
        return err_set(e, ERR_INVALID,
                       "no target: say ttft MS and tpot MS, or set slo of the instance");
    if (p->slo.target <= 0 || p->slo.target > 1)
        return err_set(e, ERR_INVALID, "say target PERCENT: which share must be good");
    return 0;
}

static int read_trace(const char *file, struct load_plan *p, struct err *e)
{
    struct buf b;
    int rc;

    if (file_text(file, TRACE_MAX_BYTES, &b, e) < 0)
        return -1;
    rc = load_trace_parse(b.p, b.len, &p->trace, e);
    buf_done(&b);
    if (rc < 0)
        return err_wrap(e, "'%s'", file);
    p->work.trace = &p->trace;
    return 0;
}

static int read_lengths(const struct args *a, struct load_plan *p, struct err *e)
{
    const char *in = args_get(a, "in"), *out = args_get(a, "out"),
               *file = args_get(a, "trace");

    if (file && (in || out))
        return err_set(e, ERR_INVALID, "lengths come from the trace, or from in and out");
    if (!file && args_get(a, "divide"))
        return err_set(e, ERR_INVALID,
                       "divide shortens the lengths of a trace: name one");
    if (load_dist_parse(in ? in : "128", &p->work.in, e) < 0 ||
        load_dist_parse(out ? out : "32", &p->work.out, e) < 0 ||
        number(a, "divide", 1, 1e6, 1, &p->work.length_scale, e) < 0 ||
        count(a, "shared", 0, LOAD_MAX_TOK, 0, &p->work.shared_tok, e) < 0 ||
        count(a, "prefixes", 1, 100000, 1, &p->work.groups, e) < 0)
        return -1;
    return file ? read_trace(file, p, e) : 0;
}

static int read_arrival(const struct args *a, struct load_plan *p, struct err *e)
{
    const char *kind = args_get(a, "arrival");
    double pace, seed;

    for (int i = LOAD_POISSON; i <= LOAD_TRACE; i++)
        if (kind && !strcmp(kind, load_arrival_name(i)))
            p->work.arrival = i;
    if (!kind && p->work.trace)
        p->work.arrival = LOAD_TRACE;
    if (p->work.arrival == LOAD_TRACE && !p->work.trace)
        return err_set(e, ERR_INVALID, "arrivals of a trace: name it, trace FILE");
    if (args_get(a, "burst") && p->work.arrival != LOAD_BURSTY)
        return err_set(e, ERR_INVALID, "burst belongs to arrival bursty");
    if (number(a, "burst", 0.1, 100, p->work.arrival == LOAD_BURSTY ? 4 : 1,
               &p->work.burst, e) < 0 ||
        number(a, "rate", 1e-3, 1e5, 0, &p->rate, e) < 0 ||
        number(a, "pace", 1e-6, 1e6, 0, &pace, e) < 0 ||
        number(a, "seed", 0, 9e15, 1, &seed, e) < 0)
        return -1;
    p->work.seed = (uint64_t)seed;
    if (pace > 0 && (p->rate > 0 || p->work.arrival != LOAD_TRACE))
        return err_set(
            e, ERR_INVALID,
            "pace runs a trace so many times as fast as it was recorded; it goes "
            "with trace FILE and without rate");
    if (pace > 0)
        p->rate = pace * load_trace_rate(&p->trace);
    return 0;
}

int load_plan_read(const struct args *a, const json_t *offer, struct load_plan *ret,
                   struct err *e)
{
    const json_t *served = json_object_get(offer, "served");
    const char *seconds = args_get(a, "seconds");

    memset(ret, 0, sizeof(*ret));
    ret->point_s = seconds ? strtoll(seconds, NULL, 10) : POINT_S;
    ret->quality = args_get(a, "quality");
    ret->png = args_get(a, "png");
    ret->price = offered(offer, "price");
    ret->max_seqs = (int)offered(offer, "max_seqs");
    ret->step_tok = (int)offered(offer, "prefill_step_tok");
    ret->prefill_parts = (int)offered(offer, "prefill_parts");
    ret->decode_parts = (int)offered(offer, "decode_parts");
    ret->work.n_vocab = (int)offered(offer, "vocab");
    ret->work.max_tok = (int)offered(served, "ctx");
    ret->devices = (int)offered(served, "devices");
    snprintf(ret->model, sizeof(ret->model), "%s",
             json_string_value(json_object_get(served, "model")));
    snprintf(ret->instance, sizeof(ret->instance), "%s",
             json_string_value(json_object_get(served, "instance")));
    if (ret->work.n_vocab < 16 || ret->work.max_tok < 2 || ret->devices < 1)
        return err_set(e, ERR_INTERNAL, "the daemon does not say what is served");
    if (read_slo(a, offer, ret, e) < 0 || read_lengths(a, ret, e) < 0 ||
        read_arrival(a, ret, e) < 0 ||
        count(a, "requests", LOAD_LEAST, LOAD_MAX_REQUESTS, REQUESTS, &ret->requests, e) <
            0 ||
        number(a, "temperature", 0, 2, 0, &ret->temperature, e) < 0) {
        load_plan_done(ret);
        return -1;
    }
    return 0;
}

void load_plan_done(struct load_plan *p)
{
    load_trace_done(&p->trace);
    p->work.trace = NULL;
}

int load_plan_count(const struct load_plan *p, double rate)
{
    return load_search_count(p->requests, p->point_s, rate);
}

static json_t *dist(const struct load_dist *d)
{
    struct buf b;
    json_t *s;

    buf_init(&b, 0);
    load_dist_text(d, &b);
    s = json_string(b.p);
    buf_done(&b);
    return s;
}

json_t *load_plan_contract(const struct load_plan *p, const json_t *served)
{
    const struct load_work *w = &p->work;
    json_t *work = json_pack("{s:s, s:f, s:i, s:i, s:I, s:i, s:I, s:i}", "arrival",
                             load_arrival_name(w->arrival), "burst", w->burst,
                             "shared_tok", w->shared_tok, "prefixes", w->groups, "seed",
                             (json_int_t)w->seed, "requests", p->requests, "point_s",
                             (json_int_t)p->point_s, "max_tok", w->max_tok);

    if (w->trace) {
        json_object_set_new(work, "trace", json_string(p->trace.hash));
        json_object_set_new(work, "divide", json_real(w->length_scale));
    } else {
        json_object_set_new(work, "in", dist(&w->in));
        json_object_set_new(work, "out", dist(&w->out));
    }
    return json_pack("{s:O, s:o, s:{s:f, s:b}, s:{s:f, s:f, s:f}, s:s?}", "served",
                     (json_t *)served, "work", work, "sampling", "temperature",
                     p->temperature, "ignore_eos", 1, "slo", "ttft_ms", p->slo.ttft_ms,
                     "tpot_ms", p->slo.tpot_ms, "target", p->slo.target, "quality",
                     p->quality);
}

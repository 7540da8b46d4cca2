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

/* What the words with a number take. */
static const struct figure {
    const char *word, *what;
    double lo, hi;
    bool whole;
} figures[] = {
    {"ttft", "ms (0: no target)", 0, 3.6e6, false},
    {"tpot", "ms (0: no target)", 0, 3.6e6, false},
    {"target", "percent", 1, 100, false},
    {"divide", "times", 1, 1e6, false},
    {"shared", "tokens", 0, LOAD_MAX_TOK, true},
    {"prefixes", "prefixes", 1, 100000, true},
    {"burst", "times (1: as Poisson)", 0.1, 100, false},
    {"rate", "requests/s", 1e-3, 1e5, false},
    {"pace", "times", 1e-6, 1e6, false},
    {"seed", "(a number of your choice)", 0, 9e15, true},
    {"requests", "requests", LOAD_LEAST, LOAD_MAX_REQUESTS, true},
    {"seconds", "s", 1, 86400, true},
    {"temperature", "(0: the likeliest token)", 0, 2, false},
};

/* The number behind the word; `missing` where it is not there. */
static int number(const struct args *a, const char *word, double missing, double *ret,
                  struct err *e)
{
    const char *text = args_get(a, word);
    const struct figure *f = figures;
    char *end;

    *ret = missing;
    if (!text)
        return 0;
    while (strcmp(f->word, word) != 0)
        f++;
    *ret = strtod(text, &end);
    if (end == text || *end || !(*ret >= f->lo && *ret <= f->hi) ||
        (f->whole && *ret != floor(*ret)))
        return err_param(
            e, ERR_INVALID, word, "%s takes %s from %.16g to %.16g %s, not '%s'", word,
            f->whole ? "a whole number" : "a number", f->lo, f->hi, f->what, text);
    return 0;
}

static int count(const struct args *a, const char *word, int missing, int *ret,
                 struct err *e)
{
    double v;
    int rc = number(a, word, missing, &v, e);

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

    if (number(a, "ttft", offered(offer, "ttft_ms"), &p->slo.ttft_ms, e) < 0 ||
        number(a, "tpot", offered(offer, "tpot_ms"), &p->slo.tpot_ms, e) < 0 ||
        number(a, "target", 100 * offered(offer, "attainment"), &percent, e) < 0)
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

/* Words that go with others alone. */
static int fit_together(const struct args *a, struct err *e)
{
    bool file = args_get(a, "trace") != NULL;

    if (file && (args_get(a, "in") || args_get(a, "out")))
        return err_set(e, ERR_INVALID, "lengths come from the trace, or from in and out");
    if (file && (args_get(a, "shared") || args_get(a, "prefixes")))
        return err_set(
            e, ERR_INVALID,
            "which prefixes are shared comes from the trace, or from shared and "
            "prefixes");
    if (!file && args_get(a, "divide"))
        return err_set(e, ERR_INVALID,
                       "divide shortens the lengths of a trace: name one, trace FILE");
    if (args_get(a, "prefixes") && !args_get(a, "shared"))
        return err_set(
            e, ERR_INVALID,
            "prefixes says how many there are: say shared TOKENS too, how long");
    return 0;
}

static double most(const struct load_dist *d)
{
    return d->kind == LOAD_UNIFORM ? d->b : d->a;
}

/* Of a lognormal length the median has to; what is longer is cut. */
static int fit_context(const struct load_plan *p, struct err *e)
{
    const struct load_work *w = &p->work;

    if (most(&w->in) + most(&w->out) > w->max_tok)
        return err_set(
            e, ERR_INVALID,
            "prompts of %g and answers of %g tokens are over the context of "
            "instance %s, %d tokens together: a shorter in or out would be right",
            most(&w->in), most(&w->out), p->instance, w->max_tok);
    if (w->shared_tok >= most(&w->in))
        return err_set(
            e, ERR_INVALID,
            "prompts of %g tokens share %d: a shared below that would be right",
            most(&w->in), w->shared_tok);
    return 0;
}

/* Rows of the trace that the context cuts. */
static void count_cut(struct load_plan *p)
{
    for (int i = 0; i < p->trace.n; i++)
        p->cut += (p->trace.row[i].n_in + p->trace.row[i].n_out) / p->work.length_scale >
                  p->work.max_tok;
}

static int read_lengths(const struct args *a, struct load_plan *p, struct err *e)
{
    const char *in = args_get(a, "in"), *out = args_get(a, "out"),
               *file = args_get(a, "trace");

    if (fit_together(a, e) < 0 || load_dist_parse(in ? in : "128", &p->work.in, e) < 0 ||
        load_dist_parse(out ? out : "32", &p->work.out, e) < 0 ||
        number(a, "divide", 1, &p->work.length_scale, e) < 0 ||
        count(a, "shared", 0, &p->work.shared_tok, e) < 0 ||
        count(a, "prefixes", 1, &p->work.groups, e) < 0)
        return -1;
    if (!file)
        return fit_context(p, e);
    if (read_trace(file, p, e) < 0)
        return -1;
    count_cut(p);
    return 0;
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
    if (number(a, "burst", p->work.arrival == LOAD_BURSTY ? 4 : 1, &p->work.burst, e) <
            0 ||
        number(a, "rate", 0, &p->rate, e) < 0 || number(a, "pace", 0, &pace, e) < 0 ||
        number(a, "seed", 1, &seed, e) < 0)
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

/* What the daemon says of the instance. */
static int read_offer(const json_t *offer, struct load_plan *p, struct err *e)
{
    const json_t *served = json_object_get(offer, "served");

    p->price = offered(offer, "price");
    p->max_seqs = (int)offered(offer, "max_seqs");
    p->step_tok = (int)offered(offer, "prefill_step_tok");
    p->prefill_parts = (int)offered(offer, "prefill_parts");
    p->decode_parts = (int)offered(offer, "decode_parts");
    p->work.n_vocab = (int)offered(offer, "vocab");
    p->work.max_tok = (int)offered(served, "ctx");
    p->devices = (int)offered(served, "devices");
    snprintf(p->model, sizeof(p->model), "%s",
             json_string_value(json_object_get(served, "model")));
    snprintf(p->instance, sizeof(p->instance), "%s",
             json_string_value(json_object_get(served, "instance")));
    if (p->work.n_vocab < 16 || p->work.max_tok < 2 || p->devices < 1)
        return err_set(e, ERR_INTERNAL, "the daemon does not say what is served");
    return 0;
}

/* How long a run of a rate is. */
static int read_span(const struct args *a, struct load_plan *p, struct err *e)
{
    struct load_req req[LOAD_SAMPLE];
    double out = 0, seconds;

    if (count(a, "requests", REQUESTS, &p->span.requests, e) < 0 ||
        number(a, "seconds", POINT_S, &seconds, e) < 0)
        return -1;
    load_work_make(&p->work, 1, LOAD_SAMPLE, 0, req);
    for (int i = 0; i < LOAD_SAMPLE; i++)
        out += (double)req[i].n_out / LOAD_SAMPLE;
    p->span.point_s = (int64_t)seconds;
    p->span.least_s = load_span_least_s(&p->slo, out);
    return 0;
}

int load_plan_read(const struct args *a, const json_t *offer, struct load_plan *ret,
                   struct err *e)
{
    memset(ret, 0, sizeof(*ret));
    ret->png = args_get(a, "png");
    if (read_offer(offer, ret, e) < 0)
        return -1;
    if (read_slo(a, offer, ret, e) < 0 || read_lengths(a, ret, e) < 0 ||
        read_arrival(a, ret, e) < 0 || read_span(a, ret, e) < 0 ||
        number(a, "temperature", 0, &ret->temperature, e) < 0) {
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
    return load_search_count(&p->span, rate);
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

json_t *load_plan_contract(const struct load_plan *p, const json_t *served,
                           json_t *quality)
{
    const struct load_work *w = &p->work;
    json_t *work =
        json_pack("{s:s, s:f, s:i, s:i, s:I, s:i, s:f, s:I, s:i}", "arrival",
                  load_arrival_name(w->arrival), "burst", w->burst, "shared_tok",
                  w->shared_tok, "prefixes", w->groups, "seed", (json_int_t)w->seed,
                  "requests", p->span.requests, "least_s", p->span.least_s, "point_s",
                  (json_int_t)p->span.point_s, "max_tok", w->max_tok);

    if (w->trace) {
        json_object_set_new(work, "trace", json_string(p->trace.hash));
        json_object_set_new(work, "divide", json_real(w->length_scale));
    } else {
        json_object_set_new(work, "in", dist(&w->in));
        json_object_set_new(work, "out", dist(&w->out));
    }
    return json_pack("{s:O, s:o, s:{s:f, s:b}, s:{s:f, s:f, s:f}, s:o}", "served",
                     (json_t *)served, "work", work, "sampling", "temperature",
                     p->temperature, "ignore_eos", 1, "slo", "ttft_ms", p->slo.ttft_ms,
                     "tpot_ms", p->slo.tpot_ms, "target", p->slo.target, "quality",
                     quality);
}

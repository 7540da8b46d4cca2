/* ctl/load_work.c - arrival times, lengths and prompts from a seed. */
#include "ctl/load_work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "ctl/load_trace.h"

/* ---- numbers ---- */

uint64_t load_rand(uint64_t *seed)
{
    uint64_t z = *seed += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double load_rand1(uint64_t *seed) { return (double)(load_rand(seed) >> 11) * 0x1p-53; }

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t s = a ^ (b + 0x632BE59BD9B4E019u) * 0xD6E8FEB86659FD93u;

    return load_rand(&s);
}

static double exponential(uint64_t *seed) { return -log(1 - load_rand1(seed)); }

static double normal(uint64_t *seed)
{
    double r = sqrt(2 * exponential(seed));

    return r * cos(2 * M_PI * load_rand1(seed));
}

/* Gamma of shape k and mean k (Marsaglia and Tsang; below 1 by the usual boost). */
static double gamma_of(double k, uint64_t *seed)
{
    double d, c, x, v, u;

    if (k < 1) {
        u = 1 - load_rand1(seed);
        return gamma_of(k + 1, seed) * pow(u, 1 / k);
    }
    d = k - 1.0 / 3;
    c = 1 / sqrt(9 * d);
    for (;;) {
        x = normal(seed);
        v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        u = 1 - load_rand1(seed);
        if (log(u) < 0.5 * x * x + d - d * v + d * log(v))
            return d * v;
    }
}

/* ---- lengths ---- */

static int two(const char *text, char sep, double *a, double *b)
{
    char *end;

    *a = strtod(text, &end);
    if (end == text || *end != sep)
        return -1;
    text = end + 1;
    *b = strtod(text, &end);
    return end == text || *end ? -1 : 0;
}

int load_dist_parse(const char *text, struct load_dist *ret, struct err *e)
{
    struct load_dist d = {.kind = LOAD_FIXED};
    char *end;
    int rc = 0;

    if (!strncmp(text, "uniform:", 8)) {
        d.kind = LOAD_UNIFORM;
        rc = two(text + 8, '-', &d.a, &d.b);
        rc = rc < 0 || !(d.b >= d.a && d.b <= LOAD_MAX_TOK) ? -1 : 0;
    } else if (!strncmp(text, "lognormal:", 10)) {
        d.kind = LOAD_LOGNORMAL;
        rc = two(text + 10, ',', &d.a, &d.b);
        rc = rc < 0 || !(d.b >= 0 && d.b <= 4) ? -1 : 0;
    } else {
        d.a = strtod(text, &end);
        rc = end == text || *end ? -1 : 0;
    }
    if (rc < 0 || !(d.a >= 1 && d.a <= LOAD_MAX_TOK))
        return err_set(e, ERR_INVALID,
                       "'%.60s' is no length: tokens (128), the least and the most "
                       "(uniform:64-256), or median and sigma of 0 to 4 "
                       "(lognormal:200,0.8), of 1 to %d tokens",
                       text, LOAD_MAX_TOK);
    *ret = d;
    return 0;
}

void load_dist_text(const struct load_dist *d, struct buf *out)
{
    if (d->kind == LOAD_UNIFORM)
        buf_printf(out, "uniform:%g-%g", d->a, d->b);
    else if (d->kind == LOAD_LOGNORMAL)
        buf_printf(out, "lognormal:%g,%g", d->a, d->b);
    else
        buf_printf(out, "%g", d->a);
}

static int draw(const struct load_dist *d, uint64_t *seed)
{
    double v = d->a;

    if (d->kind == LOAD_UNIFORM)
        v = d->a + floor(load_rand1(seed) * (d->b - d->a + 1));
    else if (d->kind == LOAD_LOGNORMAL)
        v = round(d->a * exp(d->b * normal(seed)));
    return v < 1 ? 1 : v > LOAD_MAX_TOK ? LOAD_MAX_TOK : (int)v;
}

const char *load_arrival_name(enum load_arrival a)
{
    static const char *const names[] = {"poisson", "bursty", "trace"};

    return names[a];
}

/* ---- requests ---- */

static double gap_of(const struct load_work *w, uint64_t *seed)
{
    if (w->arrival == LOAD_BURSTY)
        return gamma_of(1 / w->burst, seed) * w->burst;
    return exponential(seed);
}

static int scaled(int tok, double scale)
{
    double v = floor(tok / scale);

    return v < 1 ? 1 : v > LOAD_MAX_TOK ? LOAD_MAX_TOK : (int)v;
}

static void from_trace(const struct load_work *w, int i, struct load_req *r)
{
    const struct load_row *row = &w->trace->row[i % w->trace->n];

    r->n_in = scaled(row->n_in, w->length_scale);
    r->n_out = scaled(row->n_out, w->length_scale);
    if (row->n_id) {
        r->block_tok = scaled(LOAD_TRACE_BLOCK, w->length_scale);
        r->id = w->trace->id + row->first_id;
        r->n_id = row->n_id;
    }
}

/* When row i of a trace comes, in its own mean gaps; past its end it begins again. */
static double trace_at(const struct load_trace *t, int i)
{
    double span = (double)(t->row[t->n - 1].at_us - t->row[0].at_us);
    double gap = t->n > 1 && span > 0 ? span / (t->n - 1) : 1;

    if (t->n < 2 || span <= 0)
        return i;
    return (double)(t->row[i % t->n].at_us - t->row[0].at_us) / gap +
           (double)(i / t->n) * t->n;
}

static void fit(const struct load_work *w, struct load_req *r)
{
    if (r->n_out > w->max_tok - 1)
        r->n_out = w->max_tok - 1;
    if (r->n_in > w->max_tok - r->n_out)
        r->n_in = w->max_tok - r->n_out;
    if (r->n_shared >= r->n_in)
        r->n_shared = r->n_in - 1;
}

void load_work_make(const struct load_work *w, double rate, int n, uint64_t part,
                    struct load_req *ret)
{
    uint64_t gaps = mix(w->seed, 2 * part + 1), lengths = mix(w->seed, 2 * part + 2);
    double at = 0;

    for (int i = 0; i < n; i++) {
        struct load_req *r = &ret[i];

        *r = (struct load_req){.own = mix(mix(w->seed, part), (uint64_t)i)};
        if (w->arrival == LOAD_TRACE)
            at = trace_at(w->trace, i);
        else
            at += gap_of(w, &gaps);
        r->at_us = (int64_t)(at / rate * 1e6);
        if (w->trace) {
            from_trace(w, i, r);
        } else {
            r->n_in = draw(&w->in, &lengths);
            r->n_out = draw(&w->out, &lengths);
            r->n_shared = w->shared_tok;
            r->shared = mix(w->seed, ~(load_rand(&lengths) %
                                       (uint64_t)(w->groups > 0 ? w->groups : 1)));
        }
        fit(w, r);
    }
}

void load_prompt(const struct load_work *w, const struct load_req *r, int32_t *ret)
{
    /* The lowest ids are often special tokens, and so are the highest. */
    int low = w->n_vocab / 8, span = w->n_vocab * 3 / 4 > 0 ? w->n_vocab * 3 / 4 : 1;

    for (int i = 0; i < r->n_in; i++) {
        uint64_t key = r->own;

        if (r->n_id && i / r->block_tok < r->n_id)
            key = mix(w->seed ^ 1, (uint64_t)r->id[i / r->block_tok]);
        else if (i < r->n_shared)
            key = r->shared;
        ret[i] = low + (int32_t)(mix(key ^ w->salt, (uint64_t)i) % (uint64_t)span);
    }
}

/* base/load_search.c - doubling, then bisection; the runs of a rate together. */
#include "base/load_search.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

/* ---- which rate ---- */

double load_search_rate(struct load_search *s)
{
    double first = s->guess < s->min ? s->min : s->guess > s->max ? s->max : s->guess;

    if (s->rate == 0 && !s->done)
        s->rate = first;
    return s->done ? 0 : s->rate;
}

static double next_rate(const struct load_search *s)
{
    double r = s->pass && s->fail ? sqrt(s->pass * s->fail)
               : s->pass          ? 2 * s->pass
                                  : s->fail / 2;

    return r < s->min ? s->min : r > s->max ? s->max : r;
}

void load_search_told(struct load_search *s, bool pass, bool sure)
{
    if (!sure && ++s->n_tries < s->tries)
        return;
    s->n_tries = 0;
    s->n_points++;
    if (pass && s->rate > s->pass)
        s->pass = s->rate;
    if (!pass && (!s->fail || s->rate < s->fail))
        s->fail = s->rate;
    s->done = s->n_points >= s->points || (pass && s->rate >= s->max) ||
              (!pass && s->rate <= s->min) ||
              (s->pass && s->fail && s->fail <= s->pass * (1 + s->width));
    s->rate = next_rate(s);
}

/* ---- one rate ---- */

int load_search_count(const struct load_span *s, double rate)
{
    double n = fmax(s->requests, ceil(rate * s->least_s));

    n = fmin(n, ceil(rate * (double)s->point_s));
    return (int)fmin(fmax(n, LOAD_LEAST), LOAD_MAX_REQUESTS);
}

double load_span_least_s(const struct load_slo *slo, double mean_out)
{
    double ms = slo->ttft_ms + slo->tpot_ms * fmax(mean_out - 1, 0);

    return 3 * ms / 1e3;
}

void load_tries_add(struct load_tries *t, const struct load_seen *v, int n)
{
    int64_t end = 0;

    t->seen = xrealloc(t->seen, (size_t)(t->n + n + 1) * sizeof(*t->seen));
    for (int i = 0; i < n; i++) {
        struct load_seen s = v[i];

        end = s.end_us > end ? s.end_us : end;
        s.at_us += t->end_us;
        s.sent_us += t->end_us;
        s.first_us += s.first_us >= 0 ? t->end_us : 0;
        s.last_us += s.last_us >= 0 ? t->end_us : 0;
        s.end_us += t->end_us;
        t->seen[t->n++] = s;
    }
    t->end_us += end;
    t->saturated |= load_saturated(v, n);
    t->runs++;
}

void load_tries_judge(const struct load_tries *t, double rate, const struct load_slo *slo,
                      struct load_point *ret)
{
    load_point(t->seen, t->n, rate, slo, ret);
    ret->saturated = t->saturated;
    ret->pass = !load_lost(t->n - ret->good, t->n, slo->target) && !t->saturated;
    ret->sure |= t->saturated;
}

void load_tries_done(struct load_tries *t)
{
    free(t->seen);
    *t = (struct load_tries){.seen = NULL};
}

/* ctl/load_search.c - doubling, then bisection. */
#include "ctl/load_search.h"

#include <math.h>

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

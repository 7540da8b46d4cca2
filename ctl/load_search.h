/* ctl/load_search.h - which rate to try next: the highest one that passes. Pure.
 *
 * From a first guess the rate doubles until one fails (or halves until one passes), then
 * the span between the best that passed and the least that failed is halved by its
 * logarithm until it is narrow enough or the points are used up. A rate is asked for
 * again, up to `tries` times, while its result is not sure; the points of a rate count
 * together. One owner. */
#ifndef CTL_LOAD_SEARCH_H
#define CTL_LOAD_SEARCH_H

#include <stdbool.h>

struct load_search {
    double guess, min, max; /* requests/s */
    double width;           /* 0.1: done when the two ends are within 10 % */
    int points, tries;      /* at most so many rates; so many runs of one */
    /* state */
    double rate, pass, fail; /* being tried; the two ends, 0 = none yet */
    int n_points, n_tries;
    bool done;
};

/* The rate to run now; 0 = done: s->pass is the answer (0 = not even the lowest). */
double load_search_rate(struct load_search *s);
/* What all runs of this rate together said. */
void load_search_told(struct load_search *s, bool pass, bool sure);

#endif

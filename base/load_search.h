/* base/load_search.h - the rules of a search for the highest rate that passes: how many
 * requests a rate gets, what its runs say together, which rate is next. Pure.
 *
 * llmctl load searches by them, and the advice on modes, which foretells what it would
 * find.
 *
 * From a first guess the rate doubles until one fails (or halves until one passes), then
 * the span between the best that passed and the least that failed is halved by its
 * logarithm until it is narrow enough or the points are used up. A rate is asked for
 * again, up to `tries` times, while its result is not sure; the points of a rate count
 * together. One owner. */
#ifndef BASE_LOAD_SEARCH_H
#define BASE_LOAD_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/load_stat.h"

enum { LOAD_TRIES = 3, LOAD_LEAST = 20, LOAD_MAX_REQUESTS = 100000 };

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

/* How long one run of a rate is. */
struct load_span {
    int requests;    /* so many at least .. */
    double least_s;  /* .. and as many as come in so long; 0 = however few that are .. */
    int64_t point_s; /* .. but no more than come in so long; LOAD_LEAST all the same */
};
int load_search_count(const struct load_span *s, double rate);
/* least_s for these targets and a mean answer: three times what a good request may take,
 * so that a queue that grows has the time to show. */
double load_span_least_s(const struct load_slo *slo, double mean_out);

/* All runs of one rate so far, one behind the other. Zeroed is none. */
struct load_tries {
    struct load_seen *seen; /* owned */
    int n, runs;
    int64_t end_us;
    bool saturated;
};
void load_tries_add(struct load_tries *t, const struct load_seen *v, int n);
/* What they say together. */
void load_tries_judge(const struct load_tries *t, double rate, const struct load_slo *slo,
                      struct load_point *ret);
/* None again. */
void load_tries_done(struct load_tries *t);

#endif

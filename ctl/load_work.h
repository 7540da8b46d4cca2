/* ctl/load_work.h - what a load run sends: when each request comes, how long it is, and
 * which of its tokens others share. Pure: the same work and seed give the same requests.
 *
 * Arrivals are open loop: they are fixed beforehand and do not wait for answers. Poisson;
 * bursty (gamma gaps whose squared coefficient of variation is the burst factor; 1 is
 * Poisson, 4 comes in clumps); or those of a trace, its own times stretched so that the
 * mean rate is the wanted one. Lengths are fixed, uniform, lognormal, or the trace's,
 * divided by a scale. Any thread. */
#ifndef CTL_LOAD_WORK_H
#define CTL_LOAD_WORK_H

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct err;
struct load_trace;

enum { LOAD_MAX_TOK = 1 << 20 };

enum load_dist_kind { LOAD_FIXED, LOAD_UNIFORM, LOAD_LOGNORMAL };
/* A length in tokens: a | a..b | median a and sigma b of its logarithm. */
struct load_dist {
    enum load_dist_kind kind;
    double a, b;
};
/* "128", "uniform:64-256", "lognormal:200,0.8". */
int load_dist_parse(const char *text, struct load_dist *ret, struct err *e);
void load_dist_text(const struct load_dist *d, struct buf *out);

enum load_arrival { LOAD_POISSON, LOAD_BURSTY, LOAD_TRACE };
const char *load_arrival_name(enum load_arrival a);

struct load_work {
    enum load_arrival arrival;
    double burst; /* of LOAD_BURSTY, 0.1..100 */
    struct load_dist in, out;
    int shared_tok, groups; /* the first tokens of a prompt are one of so many prefixes */
    int max_tok;            /* of prompt and answer together; the prompt is cut to fit */
    int n_vocab;
    uint64_t seed;
    uint64_t salt; /* of the tokens alone: another one for each run, so that a run finds
                      no prefix that the one before left in the cache */
    const struct load_trace *trace; /* lengths come from it where it is there; borrowed */
    double length_scale;            /* a trace's lengths are divided by it */
};

struct load_req {
    int64_t at_us; /* from the start of the run */
    int n_in, n_out;
    uint64_t own;      /* makes the tokens that no other request has */
    uint64_t shared;   /* makes those of the shared prefix */
    int n_shared;      /* tokens of it */
    const int64_t *id; /* prefix blocks of a trace, borrowed from it */
    int n_id, block_tok;
};

/* n requests that come at `rate` a second; `part` tells apart the runs of one seed (their
 * gaps, lengths and own tokens differ, their shared prefixes do not). */
void load_work_make(const struct load_work *w, double rate, int n, uint64_t part,
                    struct load_req *ret);
/* The prompt of a request: n_in ids that are no special tokens of the model. */
void load_prompt(const struct load_work *w, const struct load_req *r, int32_t *ret);

/* The next number of a seed (splitmix64), and one of 0 <= x < 1. */
uint64_t load_rand(uint64_t *seed);
double load_rand1(uint64_t *seed);

#endif

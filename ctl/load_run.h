/* ctl/load_run.h - a whole load run: what a step costs, then rate after rate, then the
 * result as JSON.
 *
 * First, on an idle instance and one by one: prompts with one token of answer, of two
 * lengths that one step takes and of the mean one, and answers in batches of two sizes.
 * These are the costs of a step, which give the first rate to try and are kept for `pd
 * advise`; and so are the arrivals, to which it holds the other modes, and the steps that
 * the engines made meanwhile and under load, which tells how much longer they take then.
 * One owner thread. */
#ifndef CTL_LOAD_RUN_H
#define CTL_LOAD_RUN_H

#include <stdbool.h>

#include "base/json.h"
#include "ctl/load_plan.h"

struct err;
struct wire;

enum { LOAD_POINTS = 24, LOAD_KEPT = 1024 };

/* ms of a step: prompt + tok of a prompt alone, decode + seq of a batch alone. What goes
 * with a prompt but not with its length (the way of a request, too) is in the first. */
struct load_cost {
    double prefill_ms, prefill_tok_ms, decode_ms, decode_seq_ms;
};

/* Steps that the instance's engines made, of answers alone and with prompts; seqs: tokens
 * of answers in them. */
#define LOAD_STEPS_MAP(X)                                                                \
    X(answer_steps)                                                                      \
    X(answer_seqs) X(answer_s) X(prompt_steps) X(prompt_seqs) X(prompt_tok) X(prompt_s)
struct load_steps {
#define X(name) double name;
    LOAD_STEPS_MAP(X)
#undef X
};
/* From the daemon's "steps". */
void load_steps_read(const json_t *steps, struct load_steps *ret);

struct load_run {
    const struct load_plan *plan;
    struct wire *wire;
    const volatile int *stop;
    /* What goes on, now and then; done: a rate is over, and its figures are in *p. */
    void (*progress)(void *arg, const char *text, const struct load_point *done);
    void *arg;
    uint64_t salt; /* where those of its runs begin: one that no run before had */
    /* The steps so far. */
    int (*look)(void *arg, struct load_steps *ret, struct err *e);
    /* results */
    bool measured;                  /* cost is known */
    struct load_steps idle, loaded; /* while it was measured, and of all rates after it */
    struct load_cost cost;
    struct load_point point[LOAD_POINTS]; /* by rising rate */
    int n_points;
    double goodput, bound; /* best that passed (0 none); least that failed (0 none) */
    int sample[LOAD_SAMPLE][2]; /* tokens of prompt and answer of some requests */
    int n_sample;
};

/* Fills the results. -1 with CANCELED after Ctrl-C: what was measured until then is
 * there. */
int load_run(struct load_run *r, struct err *e);
/* The point of the goodput; where there is none, that of the lowest rate; NULL without
 * any. */
const struct load_point *load_run_chosen(const struct load_run *r);
/* As it is stored; complete: it was not stopped. A new object. */
json_t *load_run_result(const struct load_run *r, bool complete);

#endif

/* tests/unit/simsched.h - one scheduler on the simulated device, step by step: what the
 * tests of single rules share. Header only. */
#ifndef TESTS_SIMSCHED_H
#define TESTS_SIMSCHED_H

#include "tests/unit/simworld.h"

struct w {
    struct sched *s;
    struct sim_exec x;
    struct step *st; /* the last step */
    int64_t now;
    int steps;
};

static inline void w_init(struct w *w, const struct sched_cfg *c)
{
    *w = (struct w){.s = sched_new(c)};
    sim_exec_init(&w->x, c, 1);
    w->st = step_new(&w->x.caps);
}

static inline void w_done(struct w *w)
{
    sched_free(w->s);
    sim_exec_done(&w->x);
    free(w->st);
}

static inline void check(struct w *w)
{
    struct err e;

    if (sched_check(w->s, &e) < 0)
        fail_msg("%s", e.msg);
}

/* Prompt base, base + 1, .. modulo the vocabulary. */
static inline void add(struct w *w, struct gen_params p, int base)
{
    static int32_t prompt[40000];
    static const int32_t eog[] = {SIM_EOS};
    struct sched_event ev = {
        .kind = SCHED_ADD, .params = &p, .prompt = prompt, .eog = eog, .n_eog = 1};

    for (int i = 0; i < p.n_prompt && i < 40000; i++)
        prompt[i] = (base + i * (1 + base)) % SIM_VOCAB;
    sched_event(w->s, w->now, &ev);
    check(w);
}

/* A request that ends by its length only. */
static inline struct gen_params req(uint64_t id, int n_prompt, int max_tokens)
{
    struct gen_params p = sim_params(id, n_prompt, max_tokens);

    p.ignore_eos = true;
    return p;
}

static inline void cancel(struct w *w, uint64_t id)
{
    sched_event(w->s, w->now, &(struct sched_event){.kind = SCHED_CANCEL, .id = id});
    check(w);
}

static inline bool next(struct w *w)
{
    if (!sched_next(w->s, w->now, w->st))
        return false;
    sched_submitted(w->s, w->now, sim_submit(&w->x, w->st));
    w->steps++;
    check(w);
    return true;
}

static inline void back(struct w *w)
{
    struct step_done d;

    w->now += 1000;
    sim_run(&w->x, &d);
    sched_event(w->s, w->now, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
    check(w);
}

/* One step there and back; false when there is nothing to run. */
static inline bool turn(struct w *w)
{
    if (!next(w))
        return false;
    back(w);
    return true;
}

/* Item of request number num (order of arrival) in the last step, or NULL. */
static const struct step_item *item(struct w *w, uint64_t num)
{
    for (int i = 0; i < w->st->n_items; i++)
        if (step_items(w->st)[i].seq == num)
            return &step_items(w->st)[i];
    return NULL;
}

static inline int toks_of(struct w *w, uint64_t num)
{
    const struct step_item *it = item(w, num);
    return it ? it->n_tok : 0;
}

struct seen {
    int n_toks, n_scored, finishes, refused;
    struct sched_out last; /* FINISH or REFUSE */
    enum err_code code;
};

/* What came out for id since the last look; other ids are dropped. */
static inline void look(struct w *w, uint64_t id, struct seen *ret)
{
    const struct sched_out *o;
    size_t n = sched_out(w->s, &o);

    for (size_t i = 0; i < n; i++) {
        if (o[i].id != id)
            continue;
        if (o[i].kind == SCHED_OUT_TOKENS) {
            *(o[i].scored ? &ret->n_scored : &ret->n_toks) += o[i].n_toks;
            continue;
        }
        ret->finishes += o[i].kind == SCHED_OUT_FINISH;
        ret->refused += o[i].kind == SCHED_OUT_REFUSE;
        ret->last = o[i];
        ret->code = o[i].error ? o[i].error->code : ERR_OK;
    }
}

static inline int used(struct w *w)
{
    struct sched_stats v;

    sched_stats(w->s, &v);
    return v.kv.n_used;
}

static inline struct sched_stats stats(struct w *w)
{
    struct sched_stats v;

    sched_stats(w->s, &v);
    return v;
}

#endif

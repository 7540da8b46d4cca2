/* tests/unit/slackworld.h - one scheduler and requests with targets on virtual time: a
 * device whose step takes base + tok * prompt tokens + seq * decoding sequences, give or
 * take its noise. Header only; what the tests of order and of refusal share. */
#ifndef TESTS_SLACKWORLD_H
#define TESTS_SLACKWORLD_H

#include "daemon/serve/sched_impl.h"
#include "tests/unit/simworld.h"

enum { REQS = 400, PROMPT_MAX = 2000, OUT_MAX = 60, CHAIN = 512 };

struct r {
    struct gen_params p;
    int64_t at_us, first_us, last_us, retry_us, refused_us;
    int n_out, base;
    uint64_t text;
    bool refused, done;
    int32_t chain[CHAIN]; /* blocks that it exports */
    int n_chain;
    int64_t pull_us; /* it imports: its KV is there then; 0 = no more */
};

struct world {
    struct sched_cfg cfg;
    struct sched *s;
    struct sim_exec x;
    struct step *st;
    struct r r[REQS];
    int n, next, passed_most, skipped_most;
    uint64_t rng;
    int64_t now, free_us;    /* the device's */
    double base, tok, seq;   /* of its law, us */
    int noise;               /* +- % */
    int64_t worst_decode_us; /* longest step with a prompt beside answers with a target */
    int n_pulls;
    int decode_row, decode_most; /* steps of answers in a row while a prompt runs */
    int64_t pull_us;             /* that an import takes */
    bool light;                  /* tokens are made up: nobody looks at the text */
};

static inline void init(struct world *w, enum sched_order order, bool refuse,
                        uint64_t seed)
{
    memset(w, 0, sizeof(*w));
    w->cfg = sim_cfg(16, 4000);
    w->cfg.max_ctx = 4096;
    w->cfg.step_tok = 256;
    w->cfg.max_seqs = 32;
    w->cfg.max_outs = 64;
    w->cfg.order = order;
    w->cfg.refuse_late = refuse;
    w->rng = seed;
    w->pull_us = 20000;
    w->base = 2000, w->tok = 100, w->seq = 200, w->noise = 5;
}

static inline void open_world(struct world *w)
{
    w->s = sched_new(&w->cfg);
    sim_exec_init(&w->x, &w->cfg, 9);
    w->st = step_new(&w->x.caps);
}

static inline void close_world(struct world *w)
{
    assert_true(sched_idle(w->s));
    sched_free(w->s);
    sim_exec_done(&w->x);
    free(w->st);
}

static inline int rnd(struct world *w, int n)
{
    return (int)(test_rand(&w->rng) % (uint64_t)n);
}

static inline struct r *want(struct world *w, int64_t at, int n_prompt, int n_out,
                             int64_t ttft, int64_t tpot)
{
    struct r *r = &w->r[w->n++];

    assert_true(w->n <= REQS && n_prompt <= PROMPT_MAX && n_out <= OUT_MAX);
    *r = (struct r){.at_us = at, .base = w->n};
    r->p = sim_params((uint64_t)w->n, n_prompt, n_out);
    r->p.ignore_eos = true;
    r->p.ttft_us = ttft;
    r->p.tpot_us = tpot;
    return r;
}

static inline void arrive(struct world *w)
{
    static int32_t prompt[PROMPT_MAX];

    while (w->next < w->n && w->r[w->next].at_us <= w->now) {
        struct r *r = &w->r[w->next++];
        struct sched_event ev = {.kind = SCHED_ADD, .params = &r->p, .prompt = prompt};
        for (int i = 0; i < r->p.n_prompt; i++)
            prompt[i] =
                (int32_t)((sim_mix(sim_mix(1, (uint64_t)r->base), (uint64_t)i) >> 8) %
                          SIM_VOCAB);
        r->p.age_us = w->now - r->at_us; /* it came while a step ran */
        sched_event(w->s, w->now, &ev);
    }
}

static inline void hear(struct world *w)
{
    const struct sched_out *o;
    size_t n = sched_out(w->s, &o);

    for (size_t i = 0; i < n; i++) {
        struct r *r = &w->r[o[i].id - 1];
        assert_false(r->done);
        if (o[i].kind == SCHED_OUT_TOKENS) {
            for (int k = 0; k < o[i].n_toks; k++)
                r->text = sim_mix(r->text, (uint64_t)o[i].toks[k].id);
            r->first_us = r->n_out ? r->first_us : w->now;
            r->last_us = w->now;
            r->n_out += o[i].n_toks;
            continue;
        }
        if (o[i].kind == SCHED_OUT_EXPORT) {
            assert_true(o[i].first + o[i].n_blocks <= CHAIN);
            memcpy(r->chain + o[i].first, o[i].block,
                   (size_t)o[i].n_blocks * sizeof(*r->chain));
            r->n_chain = o[i].first + o[i].n_blocks;
            continue;
        }
        if (o[i].kind == SCHED_OUT_RESERVED) {
            r->pull_us = w->now + w->pull_us;
            w->n_pulls++;
            continue;
        }
        sched_unpin(w->s, r->chain, r->n_chain); /* whoever takes it has it by then */
        r->done = true;
        r->refused = o[i].kind == SCHED_OUT_REFUSE;
        r->retry_us = o[i].retry_us;
        r->refused_us = r->refused ? w->now : 0;
        assert_true(!r->refused || (o[i].error->code == ERR_BUSY && r->retry_us > 0));
    }
}

static inline void watch(struct world *w)
{
    struct err e;

    if (sched_check(w->s, &e) < 0)
        fail_msg("%s", e.msg);
    list_for(it, &w->s->waiting)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        w->passed_most = q->passed > w->passed_most ? q->passed : w->passed_most;
    }
    if (!list_empty(&w->s->running)) { /* the oldest */
        const struct sched_seq *q =
            list_entry(w->s->running.next, struct sched_seq, link);
        w->skipped_most = q->skipped > w->skipped_most ? q->skipped : w->skipped_most;
    }
}

/* What the step that is in flight gives, its tokens made up. */
static inline void light_run(struct world *w, struct step_done *d)
{
    static struct step_result results[256];
    static struct step_token toks[256];
    int n = w->st->n_items, k = 0;

    assert_true(n <= 256);
    for (int i = 0; i < n; i++) {
        const struct step_item *it = &step_items(w->st)[i];
        results[i] = (struct step_result){
            .seq = it->seq, .tok_off = k, .n_accepted = it->sample >= 0};
        if (it->sample >= 0)
            toks[k++] = (struct step_token){.id = 1};
    }
    *d = (struct step_done){.ticket = w->x.ticket,
                            .number = w->st->number,
                            .n_results = n,
                            .n_toks = k,
                            .results = results,
                            .toks = toks};
}

/* KV that came meanwhile, its first token with it. The time of the next one. */
static inline int64_t pulled(struct world *w)
{
    static const int32_t one = 1;
    int64_t next = INT64_MAX;

    for (int i = 0; i < w->next && w->n_pulls; i++) {
        struct r *r = &w->r[i];
        int n, have;

        if (!r->pull_us)
            continue;
        if (r->pull_us > w->now) {
            next = r->pull_us < next ? r->pull_us : next;
            continue;
        }
        r->pull_us = 0;
        w->n_pulls--;
        r->first_us = w->now; /* at the other engine, as good as now */
        r->n_out = 1;
        assert_non_null(sched_pull(w->s, r->p.id, r->p.id, &n, &have));
        sched_event(w->s, w->now,
                    &(struct sched_event){.kind = SCHED_PULLED,
                                          .pull = r->p.id,
                                          .upto = r->p.n_prompt,
                                          .gen = &one,
                                          .n_gen = 1});
    }
    return next;
}

static inline void watch_row(struct world *w, const struct flight *fl)
{
    bool prompt = false;

    list_for(it, &w->s->running)
    {
        prompt |= sched_rest(list_entry(it, struct sched_seq, link)) > 0;
    }
    w->decode_row = prompt && !fl->n_prompt_tok ? w->decode_row + 1 : 0;
    w->decode_most = w->decode_row > w->decode_most ? w->decode_row : w->decode_most;
}

/* Until all that came is done and, with `idle` false, time has come to `until`. */
static inline void run_until(struct world *w, int64_t until)
{
    struct step_done d;

    while (w->now < until) {
        arrive(w);
        hear(w);
        int64_t soon = pulled(w);
        hear(w);
        if (!sched_next(w->s, w->now, w->st)) {
            hear(w);
            if (w->next == w->n && !w->n_pulls)
                return;
            if (w->next < w->n && w->r[w->next].at_us < soon)
                soon = w->r[w->next].at_us;
            w->now = soon < INT64_MAX && soon > w->now ? soon : w->now + 1;
            continue;
        }
        sched_submitted(w->s, w->now,
                        w->light ? ++w->x.ticket : sim_submit(&w->x, w->st));
        if (!w->light)
            watch(w);
        const struct flight *fl = &w->s->flights[w->s->flight_head];
        double us = w->base + w->tok * fl->n_prompt_tok + w->seq * fl->n_decode;
        us *= 1 + (rnd(w, 2 * w->noise + 1) - w->noise) / 100.0;
        watch_row(w, fl);
        if (w->light)
            light_run(w, &d);
        else
            sim_run(&w->x, &d);
        d.start_us = w->now;
        w->now += (int64_t)us;
        d.end_us = w->now;
        if (fl->n_prompt_tok && fl->n_decode && w->now - d.start_us > w->worst_decode_us)
            w->worst_decode_us = w->now - d.start_us;
        sched_event(w->s, w->now, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
        hear(w);
    }
}

static inline bool met_first(const struct r *r)
{
    return !r->p.ttft_us || r->first_us - r->at_us <= r->p.ttft_us;
}

static inline bool met(const struct r *r)
{
    return r->done && !r->refused && met_first(r) &&
           (!r->p.tpot_us || r->n_out < 2 ||
            (r->last_us - r->first_us) / (r->n_out - 1) <= r->p.tpot_us);
}

static inline double attainment(const struct world *w, bool of_accepted)
{
    int n = 0, good = 0;

    for (int i = 0; i < w->n; i++) {
        n += !of_accepted || !w->r[i].refused;
        good += met(&w->r[i]);
    }
    return (double)good / n;
}

/* Chats that are short and in a hurry, documents that are long and are not, and some
 * requests of nobody who waits. gap_us: mean time between two. */
static inline void mixed(struct world *w, int n, int gap_us)
{
    int64_t at = 0;

    for (int i = 0; i < n; i++) {
        int kind = rnd(w, 10);
        at += rnd(w, 2 * gap_us);
        if (kind < 6)
            want(w, at, 30 + rnd(w, 100), 5 + rnd(w, 30), 150000, 30000);
        else if (kind < 9)
            want(w, at, 500 + rnd(w, 1400), 5 + rnd(w, 20), 1500000, 60000);
        else
            want(w, at, 100 + rnd(w, 400), 5 + rnd(w, 20), 0, 0);
    }
}

#endif

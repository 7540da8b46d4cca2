/* tests/unit/test_sched_slack.c - order by slack, early refusal and the model of step
 * times, on virtual time: a device whose step takes base + tok * prompt tokens + seq *
 * decoding sequences, give or take its noise. All seeds are written down here. */
#include "tests/test.h"

#include "daemon/serve/sched_impl.h"
#include "tests/unit/simworld.h"

enum { REQS = 400, PROMPT_MAX = 2000, OUT_MAX = 60 };

/* ---- a world ---- */

struct r {
    struct gen_params p;
    int64_t at_us, first_us, last_us, retry_us;
    int n_out, base;
    uint64_t text;
    bool refused, done;
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
};

static void init(struct world *w, enum sched_order order, bool refuse, uint64_t seed)
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
    w->base = 2000, w->tok = 100, w->seq = 200, w->noise = 5;
}

static void open_world(struct world *w)
{
    w->s = sched_new(&w->cfg);
    sim_exec_init(&w->x, &w->cfg, 9);
    w->st = step_new(&w->x.caps);
}

static void close_world(struct world *w)
{
    assert_true(sched_idle(w->s));
    sched_free(w->s);
    sim_exec_done(&w->x);
    free(w->st);
}

static int rnd(struct world *w, int n) { return (int)(test_rand(&w->rng) % (uint64_t)n); }

static struct r *want(struct world *w, int64_t at, int n_prompt, int n_out, int64_t ttft,
                      int64_t tpot)
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

static void arrive(struct world *w)
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

static void hear(struct world *w)
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
        r->done = true;
        r->refused = o[i].kind == SCHED_OUT_REFUSE;
        r->retry_us = o[i].retry_us;
        assert_true(!r->refused || (o[i].error->code == ERR_BUSY && r->retry_us > 0));
    }
}

static void watch(struct world *w)
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

/* Until all that came is done and, with `idle` false, time has come to `until`. */
static void run_until(struct world *w, int64_t until)
{
    struct step_done d;

    while (w->now < until) {
        arrive(w);
        hear(w);
        if (!sched_next(w->s, w->now, w->st)) {
            if (w->next == w->n)
                return;
            w->now = w->r[w->next].at_us > w->now ? w->r[w->next].at_us : w->now + 1;
            continue;
        }
        sched_submitted(w->s, w->now, sim_submit(&w->x, w->st));
        watch(w);
        const struct flight *fl = &w->s->flights[w->s->flight_head];
        double us = w->base + w->tok * fl->n_prompt_tok + w->seq * fl->n_decode;
        us *= 1 + (rnd(w, 2 * w->noise + 1) - w->noise) / 100.0;
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

static bool met_first(const struct r *r)
{
    return !r->p.ttft_us || r->first_us - r->at_us <= r->p.ttft_us;
}

static bool met(const struct r *r)
{
    return r->done && !r->refused && met_first(r) &&
           (!r->p.tpot_us || r->n_out < 2 ||
            (r->last_us - r->first_us) / (r->n_out - 1) <= r->p.tpot_us);
}

static double attainment(const struct world *w, bool of_accepted)
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
static void mixed(struct world *w, int n, int gap_us)
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

/* ---- the model ---- */

static void test_step_time(void **state)
{
    (void)state;
    struct steptime m = {0};
    uint64_t rng = 5;

    for (int i = 0; i < 2000; i++) {
        int tok = test_rand(&rng) % 2 ? (int)(test_rand(&rng) % 512) : 0;
        int seqs = (int)(test_rand(&rng) % 60);
        double us = 3000 + 40.0 * tok + 150.0 * seqs;
        us *= 1 + ((double)(test_rand(&rng) % 101) - 50) / 500; /* +- 10 % */
        if (i < 8) {
            assert_false(steptime_known(&m));
            assert_true(steptime_us(&m, 100, 10) == 0);
        }
        steptime_add(&m, tok, seqs, (int64_t)us);
    }
    assert_true(steptime_known(&m));
    for (int tok = 0; tok <= 512; tok += 64)
        for (int seqs = 1; seqs < 60; seqs += 7) {
            double us = 3000 + 40.0 * tok + 150.0 * seqs;
            double est = steptime_us(&m, tok, seqs);
            assert_true(est > us * 0.95 && est < us * 1.05);
            if (tok) {
                int fit = steptime_fit(&m, seqs, us);
                assert_true(fit > tok - 30 && fit < tok + 30);
            }
        }
    assert_true(steptime_fit(&m, 10, 1000) < 0);
    /* a machine that slows down is followed; decoding alone does not forget prompts */
    for (int i = 0; i < 1000; i++)
        steptime_add(&m, i % 2 ? 256 : 0, 10, i % 2 ? 2 * 14740 : 2 * 4500);
    for (int i = 0; i < 5000; i++)
        steptime_add(&m, 0, 10, 2 * 4500);
    double est = steptime_us(&m, 256, 10);
    assert_true(est > 0.95 * 2 * 14740 && est < 1.05 * 2 * 14740);
    /* and one size of step only is a model too */
    struct steptime one = {0};
    for (int i = 0; i < 100; i++)
        steptime_add(&one, 256, 0, 10000);
    assert_true(steptime_us(&one, 256, 0) > 9900 && steptime_us(&one, 256, 0) < 10100);
}

/* ---- slack ---- */

/* The same requests by age and by slack, at several loads and seeds: by slack no fewer
 * meet their targets at any, and clearly more in all; the text is the same. */
static void test_attainment(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {11, 12};
    static const int gaps[] = {60000, 50000, 40000};
    static struct world age, slack;
    double sum_age = 0, sum_slack = 0;

    for (int g = 0; g < 3; g++)
        for (int k = 0; k < 2; k++) {
            init(&age, SCHED_BY_AGE, false, seeds[k]);
            init(&slack, SCHED_BY_SLACK, false, seeds[k]);
            mixed(&age, 200, gaps[g]);
            mixed(&slack, 200, gaps[g]);
            open_world(&age);
            open_world(&slack);
            run_until(&age, INT64_MAX);
            run_until(&slack, INT64_MAX);
            for (int i = 0; i < age.n; i++) {
                assert_true(age.r[i].done && slack.r[i].done);
                assert_int_equal(age.r[i].n_out, slack.r[i].n_out);
                assert_true(age.r[i].text == slack.r[i].text);
            }
            double a = attainment(&age, false), b = attainment(&slack, false);
            printf("# gap %d ms, seed %d: met by age %.3f, by slack %.3f\n",
                   gaps[g] / 1000, (int)seeds[k], a, b);
            sum_age += a / 6;
            sum_slack += b / 6;
            assert_true(b >= a - 0.01);
            /* bounds of ranks */
            assert_true(slack.passed_most <= SCHED_AGE);
            assert_true(slack.skipped_most <= SCHED_AGE);
            close_world(&age);
            close_world(&slack);
        }
    printf("# all: by age %.3f, by slack %.3f\n", sum_age, sum_slack);
    assert_true(sum_slack > sum_age + 0.02);
}

/* One without a target, and one that is late, among a flood of those that can be met. */
static void test_no_starvation(void **state)
{
    (void)state;
    static struct world w;
    int before = 0;

    init(&w, SCHED_BY_SLACK, false, 21);
    for (int i = 0; i < 30; i++) /* to know the machine */
        want(&w, i * 100000, 100 + 10 * i, 3, 0, 0);
    w.cfg.max_seqs = 4;
    struct r *none = want(&w, 4000000, 600, 3, 0, 0);
    struct r *late = want(&w, 4000000, 600, 3, 1, 0);
    for (int i = 0; i < 350; i++)
        want(&w, 4000000 + i * 4000, 60, 3, 3600000000, 0);
    open_world(&w);
    run_until(&w, INT64_MAX);
    for (int i = 32; i < w.n; i++)
        before += w.r[i].first_us < late->first_us;
    assert_true(none->first_us < late->first_us);
    assert_true(w.passed_most == SCHED_AGE); /* the flood was one */
    /* admitted within two turns of SCHED_AGE + 1, then two prompts of 600 at a half share
     * beside those that run */
    printf("# %d of 350 before the late one\n", before);
    assert_true(before > SCHED_AGE && before <= 2 * (SCHED_AGE + 1) * 4);
    close_world(&w);
}

/* A long prompt does not hold answers up beyond what their TPOT leaves; without a target
 * it takes the whole budget. */
static void test_long_prompt_beside_answers(void **state)
{
    (void)state;
    static struct world w;

    for (int targets = 0; targets < 2; targets++) {
        init(&w, SCHED_BY_SLACK, false, 31);
        for (int i = 0; i < 30; i++)
            want(&w, i * 100000, 100 + 10 * i, 3, 0, 0);
        for (int i = 0; i < 8; i++)
            want(&w, 4000000, 20, OUT_MAX, 0, targets ? 8000 : 0);
        for (int i = 0; i < 4; i++)
            want(&w, 4010000, 2000, 2, 10000000, 0);
        open_world(&w);
        run_until(&w, INT64_MAX);
        int n_met = 0;
        for (int i = 30; i < 38; i++)
            n_met += (w.r[i].last_us - w.r[i].first_us) / (OUT_MAX - 1) <= 8000;
        printf("# targets %d: %d of 8 within 8 ms, the prompts took %.2f s\n", targets,
               n_met, (double)(w.r[41].first_us - w.r[41].at_us) / 1e6);
        assert_int_equal(n_met, targets ? 8 : 0);
        for (int i = 38; i < 42; i++)
            assert_true(met_first(&w.r[i]));
        close_world(&w);
    }
}

/* ---- refusal ---- */

static void test_refusal(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {41, 42};
    static struct world all, some, again;
    int n_refused = 0, n_again = 0, n_kept = 0;

    for (int order = 0; order < 2; order++)
        for (int k = 0; k < 2; k++) {
            init(&all, order ? SCHED_BY_SLACK : SCHED_BY_AGE, false, seeds[k]);
            init(&some, all.cfg.order, true, seeds[k]);
            mixed(&all, 200, 40000); /* more than it can serve */
            mixed(&some, 200, 40000);
            open_world(&all);
            open_world(&some);
            run_until(&all, INT64_MAX);
            run_until(&some, INT64_MAX);
            int refused = 0;
            for (int i = 0; i < some.n; i++) {
                refused += some.r[i].refused;
                assert_true(!some.r[i].refused || some.r[i].p.ttft_us);
            }
            printf("# order %d: met of all %.3f; with refusal %.3f of all, %.3f of %d "
                   "accepted\n",
                   order, attainment(&all, false), attainment(&some, false),
                   attainment(&some, true), some.n - refused);
            assert_true(refused > 0);
            assert_true(attainment(&some, true) > attainment(&all, false));
            struct sched_stats st;
            sched_stats(some.s, &st);
            assert_int_equal(st.refused_late, refused);
            /* its estimates were near what was measured */
            assert_true(st.est_steps > 100);
            assert_true((double)st.est_off_us < 0.1 * (double)st.est_us);
            close_world(&all);
            close_world(&some);
            n_refused += refused;

            /* honest: some of the refused, sent once more when they were told to */
            int left = 0;
            for (int i = 0; i < some.n; i++) {
                if (!some.r[i].refused || left++ % (refused / 4 + 1))
                    continue;
                init(&again, some.cfg.order, true, seeds[k]);
                mixed(&again, 200, 40000);
                again.n = i + 1;
                struct r *x = want(&again, some.r[i].at_us + some.r[i].retry_us,
                                   some.r[i].p.n_prompt, 3, some.r[i].p.ttft_us, 0);
                open_world(&again);
                run_until(&again, INT64_MAX);
                n_again++;
                n_kept += !x->refused && met_first(x);
                close_world(&again);
            }
        }
    printf("# %d refused; of %d sent again when told %d were met\n", n_refused, n_again,
           n_kept);
    assert_true(n_again >= 12 && n_kept >= n_again * 3 / 4);
}

/* Who is never refused. */
static void test_not_refused(void **state)
{
    (void)state;
    static struct world w;

    init(&w, SCHED_BY_AGE, true, 51);
    for (int i = 0; i < 10; i++) /* not known yet, though hopeless */
        want(&w, 0, 250, 2, 1, 0);
    for (int i = 0; i < 30; i++)
        want(&w, 1000000 + i * 200000, 100 + 10 * i, 3, 0, 0);
    for (int i = 0; i < 20; i++)
        want(&w, 10000000, 1000, 2, 0, 0); /* 2 s of work, no target */
    want(&w, 10000001, 1000, 2, 50000, 0); /* alone too long for it: 100 ms */
    want(&w, 10000001, 100, 2, 0, 0);
    struct r *gone_on = want(&w, 10000001, 100, 2, 50000, 0);
    gone_on->p.n_gen = 1;
    gone_on->p.n_prompt--;
    gone_on->p.max_tokens++;
    int late = w.n;
    struct r *first = want(&w, 10000001, 100, 2, 50000, 0);
    struct r *second = want(&w, 10000001, 100, 2, 50000, 0);
    first->p.group = second->p.group = 77;
    open_world(&w);
    run_until(&w, INT64_MAX);
    for (int i = 0; i < late; i++)
        assert_false(w.r[i].refused);
    assert_true(first->refused && second->refused); /* choices: both */
    assert_true(first->retry_us == second->retry_us);
    close_world(&w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_step_time),
    cmocka_unit_test(test_attainment),
    cmocka_unit_test(test_no_starvation),
    cmocka_unit_test(test_long_prompt_beside_answers),
    cmocka_unit_test(test_refusal),
    cmocka_unit_test(test_not_refused),
};

TEST_MAIN("sched_slack", tests)

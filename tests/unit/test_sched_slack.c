/* tests/unit/test_sched_slack.c - order by slack and the model of step times, on virtual
 * time. All seeds are written down here. */
#include "tests/test.h"

#include "tests/unit/slackworld.h"

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

/* Colocated, the same: steps of prompts come as far as the TPOT of the answers allows,
 * but after SCHED_MIN_SHARE steps of answers at the latest; by age after each one. */
static void test_colocated_answers_first(void **state)
{
    (void)state;
    static struct world w;

    for (int k = 0; k < 3; k++) { /* by age; by slack; and so that it cannot be kept */
        init(&w, k ? SCHED_BY_SLACK : SCHED_BY_AGE, false, 33);
        w.cfg.mode = SCHED_COLOCATED;
        w.cfg.prefill_run = 1;
        for (int i = 0; i < 30; i++)
            want(&w, i * 100000, 100 + 10 * i, 3, 0, 0);
        for (int i = 0; i < 8; i++)
            want(&w, 4000000, 20, OUT_MAX, 0, k < 2 ? 8000 : 4);
        for (int i = 0; i < 4; i++)
            want(&w, 4010000, 2000, 2, 10000000, 0);
        open_world(&w);
        run_until(&w, INT64_MAX);
        int n_met = 0;
        for (int i = 30; i < 38; i++)
            n_met += (w.r[i].last_us - w.r[i].first_us) / (OUT_MAX - 1) <= 8000;
        printf("# by %s: %d of 8 within 8 ms, at most %d steps of answers in a row, the "
               "prompts took %.2f s\n",
               k ? "slack" : "age", n_met, w.decode_most,
               (double)(w.r[41].first_us - w.r[41].at_us) / 1e6);
        if (k < 2)
            assert_int_equal(n_met, k ? 8 : 0);
        assert_true(k ? w.decode_most > 1 && w.decode_most <= SCHED_MIN_SHARE
                      : w.decode_most == 1);
        for (int i = 38; i < 42; i++)
            assert_true(met_first(&w.r[i]));
        close_world(&w);
    }
}

/* Blocks that one in time waits for do not go to those without a target, for which nobody
 * waits; where it has none they do. */
static void test_blocks_are_kept(void **state)
{
    (void)state;
    static struct world w;

    for (int target = 0; target < 2; target++) {
        int before = 0;

        init(&w, SCHED_BY_SLACK, false, 34);
        w.cfg.kv.group[0].n_blocks = 64;
        w.cfg.kv.reuse = false;
        for (int i = 0; i < 30; i++)
            want(&w, i * 100000, 100 + 10 * i, 3, 0, 0);
        want(&w, 4000000, 600, OUT_MAX, 0, 0); /* 38 of 64 blocks, and more */
        struct r *r = want(&w, 4100000, 700, 2, target ? 2000000 : 0, 0);
        for (int i = 0; i < 40; i++)
            want(&w, 4100001 + i * 1000, 100, OUT_MAX, 0, 0);
        open_world(&w);
        run_until(&w, INT64_MAX);
        for (int i = 32; i < w.n; i++)
            before += w.r[i].first_us < r->first_us;
        printf("# target %d: %d before it\n", target, before);
        assert_true(target ? before == 0 : before >= 2);
        close_world(&w);
    }
}

/* Answers whose TPOT cannot be kept leave prompts their part of each step all the same.
 */
static void test_prompt_beside_hopeless_answers(void **state)
{
    (void)state;
    static struct world w;

    init(&w, SCHED_BY_SLACK, false, 32);
    for (int i = 0; i < 30; i++)
        want(&w, i * 100000, 100 + 10 * i, 3, 0, 0);
    for (int i = 0; i < 4; i++)
        want(&w, 4000000, 20, OUT_MAX, 0, 1);
    struct r *prompt = want(&w, 4010000, 1000, 2, 10000000, 0);
    open_world(&w);
    run_until(&w, INT64_MAX);
    for (int i = 30; i < 34; i++) /* 252 / 8 tokens in each of 33 steps */
        assert_true(prompt->first_us < w.r[i].last_us);
    close_world(&w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_step_time),
    cmocka_unit_test(test_attainment),
    cmocka_unit_test(test_no_starvation),
    cmocka_unit_test(test_long_prompt_beside_answers),
    cmocka_unit_test(test_colocated_answers_first),
    cmocka_unit_test(test_blocks_are_kept),
    cmocka_unit_test(test_prompt_beside_hopeless_answers),
};

TEST_MAIN("sched_slack", tests)

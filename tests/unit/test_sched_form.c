/* tests/unit/test_sched_form.c - who gets how much of a step: budget, fairness, places,
 * and the two policies. */
#include "tests/test.h"

#include "tests/unit/simsched.h"

static void test_decode_first(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 200);
    struct w w;

    w_init(&w, &c);
    for (uint64_t id = 1; id <= 4; id++)
        add(&w, req(id, 10, 50), (int)id);
    assert_true(turn(&w));
    add(&w, req(5, 900, 5), 30);
    for (int i = 0; i < 10; i++) {
        assert_true(turn(&w));
        for (uint64_t id = 1; id <= 4; id++)
            assert_int_equal(toks_of(&w, id), 1);
        assert_int_equal(toks_of(&w, 5), 60); /* all that is left */
    }
    w_done(&w);
}

/* A short prompt behind one of 32k: rule 1 and both bounds. */
static void test_short_behind_long(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 3000);
    struct w w;
    int finished_at = 0;

    c.max_ctx = 33000;
    c.step_tok = 512;
    w_init(&w, &c);
    add(&w, req(1, 32768, 2), 1);
    assert_true(turn(&w));
    assert_int_equal(toks_of(&w, 1), 512); /* alone it has everything */
    add(&w, req(2, 400, 1), 2);
    add(&w, req(3, 100, 1), 3);
    for (int i = 1; i <= 3; i++) {
        assert_true(turn(&w));
        assert_true(toks_of(&w, 1) >= 256);
        struct seen s = {0};
        look(&w, 2, &s);
        finished_at = s.finishes ? i : finished_at;
    }
    assert_int_equal(finished_at, 2); /* 100 first, then 156 and 244 of 400 */
    assert_true(turn(&w));
    assert_int_equal(toks_of(&w, 1), 512);
    w_done(&w);
}

/* Short ones without end do not keep a long one from running, nor from a place. */
static void test_long_among_short(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 3000);
    struct w w;
    uint64_t id = 2;
    int started = 0, n_short = 0;

    c.max_ctx = 33000;
    c.max_seqs = 2;
    w_init(&w, &c);
    for (; id < 40; id++)
        add(&w, req(id + 1000, 8, 3), (int)id);
    add(&w, req(1, 30000, 1), 1); /* arrives 39th */
    for (int i = 0; i < 5000 && !stats(&w).waiting == 0; i++) {
        id++;
        add(&w, req(id + 1000, 8, 3), (int)id % 40);
        assert_true(turn(&w));
        n_short += !started;
        started |= toks_of(&w, 39) > 0;
        if (item(&w, 39)) /* then it gets half at least */
            assert_true(toks_of(&w, 39) >= (64 - 2) / 2 ||
                        item(&w, 39)->out_from < toks_of(&w, 39));
        if (stats(&w).prompt_tok > 30000 && !item(&w, 39))
            break;
    }
    assert_true(started);
    /* 38 before it, each admitted within SCHED_AGE = 16 admissions when it is oldest */
    assert_true(n_short < 39 * 17 * 3);
    w_done(&w);
}

/* No blocks for the oldest, which is 35 times as long: smaller ones pass, SCHED_AGE times
 * and no more. */
static void passed_over(enum sched_order order)
{
    struct sched_cfg c = sim_cfg(16, 64);
    struct w w;
    int before = 0;

    c.kv.reuse = false;
    c.order = order;
    w_init(&w, &c);
    add(&w, req(1, 600, 200), 1); /* 38 of 64 blocks, and growing */
    assert_true(turn(&w));
    add(&w, req(2, 700, 1), 2); /* does not fit beside it */
    for (uint64_t id = 3; id < 80; id++)
        add(&w, req(id, 20, 1), (int)id % 40);
    while (turn(&w) && !item(&w, 2)) {
        const struct sched_out *o;
        size_t n = sched_out(w.s, &o);
        for (size_t i = 0; i < n; i++)
            before += o[i].kind == SCHED_OUT_FINISH && o[i].id > 2;
    }
    assert_non_null(item(&w, 2));
    assert_int_equal(before, 16);
    w_done(&w);
}

static void test_passed_over(void **state)
{
    (void)state;
    passed_over(SCHED_BY_AGE);
    passed_over(SCHED_BY_SLACK);
}

/* Equal prompts run one after the other, so the second finds the first one's blocks. */
static void test_same_prompt_twice(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 200);
    struct w w;

    w_init(&w, &c);
    add(&w, req(1, 128, 3), 1);
    add(&w, req(2, 128, 3), 1);
    assert_true(turn(&w));
    assert_int_equal(toks_of(&w, 1), 64);
    assert_true(turn(&w));
    assert_int_equal(toks_of(&w, 1), 64);
    assert_true(turn(&w));
    assert_int_equal(item(&w, 2)->first_pos, 124);
    w_done(&w);
}

static void test_colocated(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 200);
    struct w w;
    int row = 0, worst = 0;

    c.mode = SCHED_COLOCATED;
    w_init(&w, &c);
    add(&w, req(1, 40, 60), 1);
    assert_true(turn(&w));
    for (uint64_t id = 2; id < 8; id++)
        add(&w, req(id, 40, 60), (int)id); /* two do not fit in one step of 64 */
    for (int i = 0; i < 20; i++) {
        assert_true(turn(&w));
        bool prefill = step_items(w.st)[0].n_tok > 1;
        for (int k = 0; k < w.st->n_items; k++) {
            const struct step_item *it = &step_items(w.st)[k];
            assert_int_equal(it->n_tok, prefill ? 40 : 1); /* whole, and not mixed */
        }
        row = prefill ? row + 1 : 0;
        worst = row > worst ? row : worst;
    }
    assert_int_equal(worst, c.prefill_run);
    add(&w, req(9, 300, 2), 9); /* longer than a step: cut */
    int most = 0;
    while (turn(&w))
        most = toks_of(&w, 8) > most ? toks_of(&w, 8) : most;
    assert_int_equal(most, 64);
    w_done(&w);
}

/* A decode step whose only member is preempted must not end in no step at all. */
static void test_colocated_goes_on(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 53);
    struct w w;
    int n_done = 0;

    c.mode = SCHED_COLOCATED;
    c.prefill_run = 1;
    c.step_tok = 16;
    c.max_ctx = 212;
    w_init(&w, &c);
    add(&w, req(1, 200, 5), 1); /* 50 blocks, 13 steps */
    add(&w, req(2, 7, 30), 2);  /* decodes beside it until the 53 are used up */
    while (turn(&w)) {
        const struct sched_out *o;
        size_t n = sched_out(w.s, &o);
        for (size_t i = 0; i < n; i++)
            n_done += o[i].kind == SCHED_OUT_FINISH;
    }
    assert_int_equal(n_done, 2);
    assert_int_equal(stats(&w).preemptions, 1);
    w_done(&w);
}

/* Histories are bounded per step; who is left out goes first in the next one. */
static void test_histories_take_turns(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 4000);
    struct w w;
    int got[6] = {0};

    c.depth = 2;
    c.max_ctx = 8192;
    c.step_tok = 4096;
    w_init(&w, &c); /* room for 8192 + 128 + 4096 tokens of history */
    for (uint64_t id = 1; id <= 6; id++) {
        struct gen_params p = req(id, 4000, 100);
        p.frequency = 0.1f;
        add(&w, p, (int)id);
    }
    for (int i = 0; i < 30; i++) {
        while (next(&w))
            ;
        back(&w);
        const struct sched_out *o;
        size_t n = sched_out(w.s, &o);
        for (size_t k = 0; k < n; k++)
            got[o[k].id - 1] += i >= 15 ? o[k].n_toks : 0;
    }
    for (int i = 0; i < 6; i++)
        assert_true(got[i] >= 3);
    w_done(&w);
}

static int shard_of(struct w *w, uint64_t num)
{
    return step_shard(w->st, item(w, num), 20);
}

/* KV in two shards: by load, by what is cached where, by room; out of blocks it is the
 * youngest of the same shard that gives way. */
static void test_shards(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 40);
    struct w w;

    c.kv.shards = 2;
    c.step_tok = 512;
    w_init(&w, &c);
    add(&w, req(1, 100, 30), 1);
    assert_true(turn(&w));
    add(&w, req(2, 20, 30), 2); /* the other one is empty */
    add(&w, req(3, 20, 30), 3); /* and has fewer tokens still */
    assert_true(turn(&w));
    assert_int_equal(shard_of(&w, 1), 0);
    assert_int_equal(shard_of(&w, 2), 1);
    assert_int_equal(shard_of(&w, 3), 1);
    add(&w, req(4, 100, 5), 1); /* the prompt of 1: 96 are cached in its shard */
    assert_true(turn(&w));
    assert_int_equal(shard_of(&w, 4), 0);
    assert_int_equal(toks_of(&w, 4), 4);
    add(&w, req(5, 330, 1), 9); /* more than a shard */
    struct seen s = {0};
    look(&w, 5, &s);
    assert_int_equal(s.refused, 1);
    add(&w, req(6, 240, 1), 7); /* room in neither, though in both together */
    assert_true(turn(&w));
    assert_null(item(&w, 5));
    for (uint64_t id = 1; id <= 4; id++)
        cancel(&w, id);
    assert_true(turn(&w));
    assert_non_null(item(&w, 5)); /* named by its arrival: 5 was refused */
    w_done(&w);

    w_init(&w, &c);
    for (uint64_t id = 1; id <= 4; id++) {
        add(&w, req(id, id < 4 ? 140 : 100, 160), (int)id);
        assert_true(turn(&w));
        assert_int_equal(shard_of(&w, id), id == 2 || id == 3);
    }
    for (int i = 0; i < 40 && !stats(&w).preemptions; i++)
        assert_true(turn(&w));
    assert_int_equal(stats(&w).preemptions, 1);
    assert_non_null(item(&w, 1));
    assert_non_null(item(&w, 2));
    assert_null(item(&w, 3)); /* not 4, which is younger */
    assert_non_null(item(&w, 4));
    w_done(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_first),
        cmocka_unit_test(test_short_behind_long),
        cmocka_unit_test(test_long_among_short),
        cmocka_unit_test(test_passed_over),
        cmocka_unit_test(test_same_prompt_twice),
        cmocka_unit_test(test_colocated),
        cmocka_unit_test(test_colocated_goes_on),
        cmocka_unit_test(test_histories_take_turns),
        cmocka_unit_test(test_shards),
    };
    return test_main(argc, argv, "sched_form", tests, sizeof(tests) / sizeof(tests[0]));
}

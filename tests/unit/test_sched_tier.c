/* Requests and the tiers below the KV, counted on virtual time: what a waiting request
 * will need comes from disk before its turn, and a disk that is slow or hangs holds up
 * nobody else, and that request for a bounded time only. */
#include "tests/unit/simsched.h"

enum { BT = 16, DEVICE = 24, HOST = 32, DISK = 64, PROMPT = 10 * BT + 4 };
enum { COLD = 1, OTHERS = 8, RUNNER = 50, AGAIN = 60, LATE = 61 };

static struct sched_cfg config(int max_seqs)
{
    struct sched_cfg c = sim_cfg(BT, DEVICE);

    c.max_seqs = max_seqs;
    c.max_ctx = 320;
    c.kv.n_host = HOST;
    c.kv.n_disk = DISK;
    c.kv.max_moves = 64;
    return c;
}

static int jobs(struct w *w)
{
    int n = 0;

    while (sim_disk(&w->x, w->s, true, true) || sim_disk(&w->x, w->s, false, true))
        n++;
    return n;
}

/* Of a request that has ended. */
static struct seen ended(struct w *w, uint64_t id)
{
    struct seen s = {0};

    for (int i = 0; i < 2000 && !s.finishes; i++) {
        turn(w);
        jobs(w);
        look(w, id, &s);
    }
    assert_int_equal(s.finishes, 1);
    assert_int_equal(s.last.reason, FINISH_LENGTH);
    return s;
}

/* The prompt of COLD is on disk alone: others came after it. */
static void cold_on_disk(struct w *w)
{
    for (int i = 0; i < OTHERS; i++) {
        add(w, req((uint64_t)(COLD + i), PROMPT, 4), COLD + i);
        ended(w, (uint64_t)(COLD + i));
    }
    assert_int_equal(stats(w).tier.up, 0);
    assert_int_equal(stats(w).tier.read, 0);
    assert_true(stats(w).tier.written >= PROMPT / BT);
}

static void run_beside(struct w *w)
{
    add(w, req(RUNNER, 8, 100), 40);
    assert_true(turn(w));
    assert_int_equal(toks_of(w, OTHERS + 1), 8);
}

/* It waits because another one runs: its blocks are read meanwhile, all of them before it
 * is scheduled, and its first step begins with them. */
static void test_ahead_of_its_turn(void **state)
{
    (void)state;
    const struct sched_cfg c = config(1);
    struct seen s = {0};
    struct w w;

    w_init(&w, &c);
    cold_on_disk(&w);
    run_beside(&w);
    add(&w, req(AGAIN, PROMPT, 4), COLD);
    assert_int_equal(stats(&w).waiting, 1);
    assert_true(jobs(&w) > 0);
    assert_int_equal(stats(&w).tier.read, PROMPT / BT);
    assert_int_equal(stats(&w).waiting, 1); /* it was not its turn */
    while (!s.finishes) {
        assert_null(item(&w, OTHERS + 2));
        turn(&w);
        jobs(&w);
        look(&w, RUNNER, &s);
    }
    while (!item(&w, OTHERS + 2))
        assert_true(turn(&w));
    assert_int_equal(w.st->n_moves > 0, 1);
    assert_int_equal(item(&w, OTHERS + 2)->first_pos, PROMPT / BT * BT);
    assert_int_equal(stats(&w).tier.up, PROMPT / BT);
    assert_int_equal(stats(&w).tier.read, PROMPT / BT);
    ended(&w, AGAIN);
    w_done(&w);
}

/* The disk hangs with the reads that one request waits for: each step of the others is
 * formed as ever, and after SCHED_TIER_WAIT_US it is computed without them. */
static void test_a_disk_that_hangs(void **state)
{
    (void)state;
    const struct sched_cfg c = config(3);
    struct seen s = {0}, late = {0}, again = {0};
    struct w w;

    w_init(&w, &c);
    cold_on_disk(&w);
    run_beside(&w);
    add(&w, req(AGAIN, PROMPT, 4), COLD);
    while (sim_disk(&w.x, w.s, true, true))
        ; /* they begin and do not end */
    assert_true(w.x.n_jobs > 0);
    add(&w, req(LATE, 8, 10), 41);
    for (int i = 0; i < 20; i++) {
        assert_true(turn(&w));
        assert_int_equal(toks_of(&w, OTHERS + 1), 1); /* one id in every step */
        assert_null(item(&w, OTHERS + 2));
        look(&w, LATE, &late);
    }
    assert_int_equal(late.finishes, 1); /* it came after, and was not held up */
    assert_int_equal(stats(&w).tier.read, 0);
    w.now += 2000000; /* the wait is over */
    for (int i = 0; i < 400 && (!again.finishes || !s.finishes); i++) {
        turn(&w);
        const struct sched_out *o;
        size_t n = sched_out(w.s, &o);
        for (size_t k = 0; k < n; k++) {
            again.finishes += o[k].id == AGAIN && o[k].kind == SCHED_OUT_FINISH;
            s.finishes += o[k].id == RUNNER && o[k].kind == SCHED_OUT_FINISH;
        }
    }
    assert_int_equal(again.finishes, 1);
    assert_int_equal(s.finishes, 1);
    assert_int_equal(stats(&w).tier.read, 0);
    while (sim_disk(&w.x, w.s, false, true))
        ; /* late: nothing is lost by it */
    check(&w);
    w_done(&w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_ahead_of_its_turn),
    cmocka_unit_test(test_a_disk_that_hangs),
};

TEST_MAIN("sched_tier", tests)

/* tests/unit/test_pulse.c - when an engine is asked for a sign of life, and when it is
 * silent. Times in ms. */
#include "tests/test.h"

#include <stdbool.h>

#include "daemon/ctrl/pulse.h"

enum { LIMIT = 4000, STEP = LIMIT / PULSE_LOOKS, BEGAN = 77000 };

struct world {
    struct pulse p;
    int64_t now;
    int asked, silent;
};

static struct world begin(void)
{
    struct world w = {.now = BEGAN};

    pulse_start(&w.p, w.now);
    return w;
}

static enum pulse_do look_at(struct world *w, int64_t later, int64_t limit)
{
    enum pulse_do d = pulse_look(&w->p, w->now += later, limit);

    w->asked += d == PULSE_ASK;
    w->silent += d == PULSE_SILENT;
    return d;
}

static enum pulse_do look(struct world *w) { return look_at(w, STEP, LIMIT); }

static void quiet_is_asked_then_silent(void **state)
{
    struct world w = begin();

    (void)state;
    assert_int_equal(look(&w), PULSE_NOTHING);
    assert_int_equal(look(&w), PULSE_ASK);
    assert_int_equal(look(&w), PULSE_NOTHING);
    assert_false(w.p.silent);
    assert_int_equal(look(&w), PULSE_SILENT);
    assert_true(w.p.silent);
    for (int i = 0; i < 100; i++) /* one question waits: another would not help */
        assert_int_equal(look(&w), PULSE_NOTHING);
    assert_int_equal(w.p.quiet_us, 104 * STEP);
    assert_true(pulse_heard(&w.p));
    assert_int_equal(w.p.quiet_us, 0);
    assert_false(w.p.silent);
    assert_false(pulse_heard(&w.p));
}

/* One that answers is asked twice within the limit at most, one that works never. */
static void alive(void **state)
{
    struct world w = begin();

    (void)state;
    for (int i = 0; i < 1000; i++)
        if (look(&w) == PULSE_ASK)
            assert_false(pulse_heard(&w.p));
    assert_int_equal(w.asked, 1000 / (PULSE_LOOKS / 2));
    assert_int_equal(w.silent, 0);
    w = begin();
    for (int i = 0; i < 1000; i++) {
        pulse_heard(&w.p);
        look(&w);
    }
    assert_int_equal(w.asked + w.silent, 0);
}

/* The one that looks was away for an hour: the engine had no time to answer. */
static void who_looks_was_stopped(void **state)
{
    struct world w = begin();

    (void)state;
    assert_int_equal(look_at(&w, 3600000, LIMIT), PULSE_NOTHING);
    assert_int_equal(look_at(&w, 3600000, LIMIT), PULSE_ASK);
    assert_int_equal(look_at(&w, 3600000, LIMIT), PULSE_NOTHING);
    pulse_heard(&w.p); /* what waited in the socket */
    for (int i = 0; i < 100; i++)
        if (look_at(&w, 3600000, LIMIT) == PULSE_ASK)
            pulse_heard(&w.p);
    assert_int_equal(w.silent, 0);
}

/* However it is looked at: never silent before the limit, never without a question and
 * time to answer it. */
static void any_times(void **state)
{
    uint64_t rng = test_seed();

    (void)state;
    for (int k = 0; k < 2000; k++) {
        struct world w = begin();
        int64_t asked_at = -1;

        while (!w.silent) {
            enum pulse_do d = look_at(&w, (int64_t)(test_rand(&rng) % (3 * STEP)), LIMIT);

            if (d == PULSE_ASK)
                asked_at = w.now;
            assert_true(d != PULSE_SILENT || w.now - BEGAN >= LIMIT);
            assert_true(d != PULSE_SILENT || (asked_at >= 0 && w.now > asked_at));
        }
        assert_int_equal(w.asked, 1);
    }
}

static void without_a_limit(void **state)
{
    struct world w = begin();

    (void)state;
    for (int i = 0; i < 100; i++)
        assert_int_equal(look_at(&w, STEP, 0), PULSE_NOTHING);
    assert_int_equal(look(&w), PULSE_NOTHING); /* a limit from now on */
    assert_int_equal(look(&w), PULSE_ASK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(quiet_is_asked_then_silent),
    cmocka_unit_test(alive),
    cmocka_unit_test(who_looks_was_stopped),
    cmocka_unit_test(any_times),
    cmocka_unit_test(without_a_limit),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, "pulse", tests, sizeof(tests) / sizeof(tests[0]));
}

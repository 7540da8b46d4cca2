/* Moves of experts' copies on virtual time: the order of what is asked for, a failure and
 * a deadline in every state, late answers, the queue, and what steps took. */
#include "daemon/serve/moves.h"

#include "base/err.h"
#include "tests/test.h"

enum { ID = 7 };
static const int64_t SEC = 1000000;

struct world {
    struct moves *m;
    int64_t now;
    char acts[256]; /* what was asked for, a letter each */
    struct moves_news last;
    int n_told[MOVE_STATE_COUNT];
};

static struct moves_limits limits(void)
{
    struct moves_limits l;

    moves_limits_init(&l);
    l.n_layer = 3;
    l.n_expert = 8;
    l.n_rank = 4;
    l.n_slot = 3;
    return l;
}

static void begin(struct world *w)
{
    struct moves_limits l = limits();

    memset(w, 0, sizeof(*w));
    w->m = moves_new(&l);
    w->now = SEC;
}

/* Takes all actions. */
static void take(struct world *w)
{
    static const char letters[] = {
        [MOVES_LOAD] = 'l', [MOVES_VERIFY] = 'c',  [MOVES_WARM] = 'w',
        [MOVES_VOTE] = 'v', [MOVES_DO_FLIP] = 'F', [MOVES_FREE] = 'f',
        [MOVES_DROP] = 'd', [MOVES_BROKEN] = 'B'};
    struct moves_act a;

    while (moves_next(w->m, w->now, &a)) {
        if (a.kind == MOVES_TELL) {
            w->last = a.news;
            w->n_told[a.news.state]++;
        } else {
            size_t n = strlen(w->acts);
            w->acts[n] = letters[a.kind];
            w->acts[n + 1] = '\0';
        }
        if (a.kind == MOVES_BROKEN)
            w->last = a.news;
    }
}

/* Expert 5 from slot 1 of a rank to slot 2 of another; -1 = none. */
static struct move move_of(uint64_t id, int from, int to)
{
    struct move v = {.id = id, .layer = 1};

    if (from >= 0)
        v.put[v.n++] = (struct move_put){(int16_t)from, 1, -1};
    if (to >= 0)
        v.put[v.n++] = (struct move_put){(int16_t)to, 2, 5};
    return v;
}

static void order(struct world *w, uint64_t id, int from, int to)
{
    const struct move v = move_of(id, from, to);
    struct err e = {0};

    if (moves_order(w->m, w->now, &v, &e) < 0)
        fail_msg("%s", e.msg);
    take(w);
}

static void event_of(struct world *w, uint64_t id, enum moves_event_kind k,
                     uint64_t ticket)
{
    const struct moves_event ev = {
        .kind = k, .id = id, .last_ticket = ticket, .step_us = 100, .bytes = 4096};

    w->now += 10;
    moves_event(w->m, w->now, &ev);
    take(w);
}

static void event(struct world *w, enum moves_event_kind k) { event_of(w, ID, k, 0); }

/* The answers of a move that goes well, in order; ticket 12 was the last before. */
static const enum moves_event_kind WELL[] = {MOVES_LOADED, MOVES_VERIFIED, MOVES_WARMED,
                                             MOVES_VOTED, MOVES_FLIPPED};

static void go_to(struct world *w, enum move_state s)
{
    for (int i = 0; i < (int)s - MOVE_LOADING && i < 5; i++)
        event_of(w, ID, WELL[i], 12);
}

static void test_all_states(void **state)
{
    (void)state;
    struct world w;

    begin(&w);
    order(&w, ID, 0, 3);
    assert_string_equal(w.acts, "l");
    go_to(&w, MOVE_DRAINING);
    assert_string_equal(w.acts, "lcwvF");
    assert_int_equal(w.last.state, MOVE_DRAINING);
    event_of(&w, 0, MOVES_STEP, 11); /* may still name the old copy */
    assert_string_equal(w.acts, "lcwvF");
    event_of(&w, 0, MOVES_STEP, 12);
    assert_string_equal(w.acts, "lcwvFf");
    event(&w, MOVES_FREED);
    assert_int_equal(w.last.state, MOVE_DONE);
    assert_int_equal(w.last.bytes, 4096);
    assert_int_equal(w.last.load_us, 20);
    assert_string_equal(w.last.why, "");
    assert_int_equal(w.last.n_steps, 2);
    for (int s = MOVE_LOADING; s <= MOVE_DONE; s++)
        assert_int_equal(w.n_told[s], 1);
    assert_int_equal(moves_waiting(w.m), 0);
    assert_int_equal(moves_deadline(w.m), -1);
    moves_free(w.m);
}

/* One copy less has nothing to load; with no step in flight nothing drains. */
static void test_add_and_retire(void **state)
{
    (void)state;
    struct world w;

    begin(&w);
    event_of(&w, 0, MOVES_STEP, 12);
    order(&w, ID, -1, 2);
    go_to(&w, MOVE_DRAINING);
    event(&w, MOVES_FREED);
    assert_string_equal(w.acts, "lcwvFf");
    assert_int_equal(w.last.state, MOVE_DONE);
    order(&w, 8, 2, -1);
    assert_string_equal(w.acts, "lcwvFfv");
    event_of(&w, 8, MOVES_VOTED, 0);
    event_of(&w, 8, MOVES_FLIPPED, 12);
    event_of(&w, 8, MOVES_FREED, 0);
    assert_string_equal(w.acts, "lcwvFfvFf");
    assert_int_equal(w.last.state, MOVE_DONE);
    moves_free(w.m);
}

/* What was asked for fails: before the flip the old map stays, after it the engine ends.
 */
static void test_failure_in_each_state(void **state)
{
    (void)state;
    for (int s = MOVE_LOADING; s <= MOVE_FREED; s++) {
        const struct moves_event bad = {
            .kind = MOVES_FAILED, .id = ID, .why = "it broke"};
        struct world w;
        char want[64];

        begin(&w);
        order(&w, ID, 0, 3);
        go_to(&w, (enum move_state)s);
        if (s == MOVE_FREED)
            event_of(&w, 0, MOVES_STEP, 12);
        assert_int_equal(w.last.state, s);
        moves_event(w.m, w.now, &bad);
        take(&w);
        snprintf(want, sizeof(want), "%s: it broke", move_state_name(s));
        assert_string_equal(w.last.why, want);
        if (s < MOVE_FLIP) {
            assert_int_equal(w.last.state, MOVE_ABORTED);
            assert_null(strchr(w.acts, 'F'));
            assert_non_null(strchr(w.acts, 'd'));
        } else {
            assert_non_null(strchr(w.acts, 'B'));
            assert_null(strchr(w.acts, 'd'));
        }
        moves_free(w.m);
    }
}

/* Nobody answers. What answers after the abort changes nothing, and the next move begins
 * only when the dropped one is gone. */
static void test_deadline_of_each_state(void **state)
{
    (void)state;
    const struct moves_limits l = limits();

    for (int s = MOVE_LOADING; s <= MOVE_FREED; s++) {
        struct world w;

        begin(&w);
        order(&w, ID, 0, 3);
        go_to(&w, (enum move_state)s);
        if (s == MOVE_FREED)
            event_of(&w, 0, MOVES_STEP, 12);
        order(&w, 8, -1, 1);
        w.now = moves_deadline(w.m) - 1;
        moves_tick(w.m, w.now);
        take(&w);
        assert_int_equal(w.last.state, s);
        assert_string_equal(w.last.why, "");
        w.now++;
        moves_tick(w.m, w.now);
        take(&w);
        assert_non_null(strstr(w.last.why, "not done within"));
        assert_true(w.last.all_us >= l.state_us[s]);
        if (s >= MOVE_FLIP) { /* no way back: said once, and it goes on */
            assert_int_equal(w.last.state, s);
            moves_tick(w.m, w.now + 1);
            take(&w);
            assert_int_equal(w.n_told[s], 2);
            assert_null(strchr(w.acts, 'd'));
        } else {
            size_t n = strlen(w.acts);

            assert_int_equal(w.last.state, MOVE_ABORTED);
            assert_int_equal(w.acts[n - 1], 'd');
            if (s < (int)MOVE_FLIP) /* the answer that comes too late */
                event_of(&w, ID, WELL[s - MOVE_LOADING], 0);
            assert_int_equal(moves_late(w.m), 1);
            assert_int_equal(strlen(w.acts), n);
            event(&w, MOVES_FREED);
            assert_string_equal(w.acts + n, "l");
            assert_int_equal(w.last.move.id, 8);
        }
        moves_free(w.m);
    }
}

static void test_cancel(void **state)
{
    (void)state;
    struct world w;

    begin(&w);
    order(&w, ID, 0, 3);
    order(&w, 8, 0, 2);
    order(&w, 9, 0, 1);
    moves_cancel(w.m, w.now, "it is frozen");
    take(&w);
    assert_int_equal(w.n_told[MOVE_ABORTED], 3);
    assert_string_equal(w.last.why, "loading: it is frozen");
    assert_int_equal(moves_waiting(w.m), 0);
    event(&w, MOVES_FREED);
    order(&w, 10, 0, 3);
    assert_string_equal(w.acts, "ldl");
    moves_free(w.m);
    /* past the flip it is not given up */
    begin(&w);
    order(&w, ID, 0, 3);
    go_to(&w, MOVE_FLIP);
    moves_cancel(w.m, w.now, "it is frozen");
    event_of(&w, ID, MOVES_FLIPPED, 0);
    event(&w, MOVES_FREED);
    assert_int_equal(w.last.state, MOVE_DONE);
    moves_free(w.m);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct move bad[] = {
        {1, 3, 1, {{0, 0, 0}}},  {1, -1, 1, {{0, 0, 0}}},
        {1, 0, 1, {{0, 0, 8}}},  {1, 0, 1, {{0, 0, -2}}},
        {1, 0, 1, {{4, 0, 0}}},  {1, 0, 1, {{-1, 0, 0}}},
        {1, 0, 1, {{0, 3, 0}}},  {1, 0, 1, {{0, -1, 0}}},
        {1, 0, -1, {{0, 0, 0}}}, {1, 0, 17, {{0, 0, 0}}},
        {0, 0, 1, {{0, 0, 0}}},  {1, 0, 2, {{0, 1, 3}, {0, 1, 4}}}};
    struct world w;
    struct err e;

    begin(&w);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(moves_order(w.m, w.now, &bad[i], &e), -1);
    order(&w, ID, 0, 3);
    assert_int_equal(moves_order(w.m, w.now, &(struct move){ID, 0, 1, {{0, 0, 0}}}, &e),
                     -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    for (int i = 0; i < MOVES_QUEUED; i++)
        order(&w, 100 + (uint64_t)i, -1, 1);
    assert_int_equal(moves_order(w.m, w.now, &(struct move){999, 0, 1, {{0, 0, 0}}}, &e),
                     -1);
    assert_int_equal(e.code, ERR_BUSY);
    /* the loader hangs: those behind it are told when their time is over */
    w.now += 3600 * SEC;
    moves_tick(w.m, w.now);
    take(&w);
    assert_int_equal(w.n_told[MOVE_ABORTED], MOVES_QUEUED + 1);
    assert_int_equal(moves_waiting(w.m), 0);
    moves_free(w.m);
}

static void test_steps(void **state)
{
    (void)state;
    struct world w;

    begin(&w);
    for (int i = 1; i <= 300; i++) /* the last 256 of them count */
        moves_event(w.m, w.now,
                    &(struct moves_event){.kind = MOVES_STEP,
                                          .last_ticket = (uint64_t)i,
                                          .step_us = i <= 44    ? 9999
                                                     : i == 100 ? 456
                                                                : 200});
    order(&w, ID, 0, 3);
    assert_int_equal(w.last.before_mean_us, 201);
    assert_int_equal(w.last.before_max_us, 456);
    event_of(&w, 0, MOVES_STEP, 301); /* 100 us */
    moves_event(
        w.m, w.now,
        &(struct moves_event){.kind = MOVES_STEP, .last_ticket = 302, .step_us = 300});
    go_to(&w, MOVE_DRAINING);
    event(&w, MOVES_FREED);
    assert_int_equal(w.last.state, MOVE_DONE);
    assert_int_equal(w.last.during_mean_us, 200);
    assert_int_equal(w.last.during_max_us, 300);
    assert_int_equal(w.last.n_steps, 2);
    const struct move shares = {.id = 91, .layer = 0}; /* these are as none */
    struct err e;
    moves_free(w.m);
    begin(&w);
    assert_int_equal(moves_order(w.m, w.now, &shares, &e), 0);
    for (int i = 0; i < 9; i++)
        moves_event(
            w.m, w.now,
            &(struct moves_event){.kind = MOVES_STEP, .last_ticket = 1, .step_us = 700});
    take(&w);
    moves_cancel(w.m, w.now, "new ones came");
    take(&w);
    event_of(&w, 91, MOVES_FREED, 0);
    order(&w, 8, 0, 3);
    take(&w);
    assert_int_equal(w.last.before_mean_us, 700);
    moves_free(w.m);
}

/* What moves copies goes before new shares that wait. */
static void test_shares_wait(void **state)
{
    struct world w;
    struct moves_news n[5];
    const struct move shares[2] = {{.id = 91, .layer = 0}, {.id = 92, .layer = 2}};
    struct moves_act a;
    struct err e;
    int k = 0;
    (void)state;

    begin(&w);
    order(&w, 1, 0, 1); /* begins at once */
    for (int i = 0; i < 2; i++)
        assert_int_equal(moves_order(w.m, w.now, &shares[i], &e), 0);
    order(&w, 2, 0, 2);
    order(&w, 3, 0, 3);
    take(&w);
    moves_cancel(w.m, w.now, "told in their order");
    while (moves_next(w.m, w.now, &a))
        if (a.kind == MOVES_TELL && a.news.state == MOVE_ABORTED && k < 5)
            n[k++] = a.news;
    assert_true(k >= 4);
    assert_true(n[0].move.id == 2 && n[1].move.id == 3);
    assert_true(n[2].move.id == 91 && n[3].move.id == 92);
    moves_free(w.m);
}

/* Any events in any order: a copy is freed only after its flip and its steps, dropped
 * only without a flip, and every move has one end. */
static void test_any_order(void **state)
{
    (void)state;
    uint64_t rng = test_seed();

    for (int run = 0; run < 300; run++) {
        struct world w;
        int ordered = 0;

        begin(&w);
        for (int i = 0; i < 200; i++) {
            uint64_t id = 1 + test_rand(&rng) % 6;
            struct err e;
            const struct moves_event ev = {
                .kind = (enum moves_event_kind)(test_rand(&rng) % (MOVES_FAILED + 1)),
                .id = id,
                .last_ticket = (uint64_t)i};

            if (test_rand(&rng) % 4 == 0)
                ordered += moves_order(w.m, w.now, &(struct move){id, 0, 1, {{0, 0, 0}}},
                                       &e) == 0;
            moves_event(w.m, w.now, &ev);
            w.now += (int64_t)(test_rand(&rng) % SEC);
            moves_tick(w.m, w.now);
            w.acts[0] = '\0';
            take(&w);
            if (strchr(w.acts, 'B')) /* the engine would end here */
                break;
            int over = w.n_told[MOVE_DONE] + w.n_told[MOVE_ABORTED];
            assert_int_equal(over + moves_waiting(w.m), ordered);
            assert_true(w.n_told[MOVE_FREED] >= w.n_told[MOVE_DONE]);
            assert_true(w.n_told[MOVE_FLIP] >= w.n_told[MOVE_DRAINING]);
        }
        moves_free(w.m);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_all_states),
    cmocka_unit_test(test_add_and_retire),
    cmocka_unit_test(test_failure_in_each_state),
    cmocka_unit_test(test_deadline_of_each_state),
    cmocka_unit_test(test_cancel),
    cmocka_unit_test(test_refused),
    cmocka_unit_test(test_steps),
    cmocka_unit_test(test_shares_wait),
    cmocka_unit_test(test_any_order),
};
TEST_MAIN("moves", tests)

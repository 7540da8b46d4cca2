/* tests/unit/test_team.c - fork-join and barrier: every member runs once a round, nobody
 * passes a barrier early, with and without spinning. */
#include "tests/test.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/spin.h"
#include "base/team.h"

enum { MEMBERS = 4, ROUNDS = 300 };

struct work {
    struct team *team;
    int hits[MEMBERS];
    int shared[MEMBERS]; /* plain on purpose: the barrier must order it */
    atomic_int faults;
};

static void count(void *arg, int member, int n)
{
    struct work *w = arg;

    (void)n;
    w->hits[member]++;
}

static void pass_on(void *arg, int member, int n)
{
    struct work *w = arg;

    for (int i = 0; i < 5; i++) {
        w->shared[member] = i;
        team_sync(w->team);
        for (int k = 0; k < n; k++)
            if (w->shared[k] != i)
                atomic_fetch_add(&w->faults, 1);
        team_sync(w->team);
    }
}

static void run_team(int n, bool spin)
{
    struct work w = {0};
    struct err e;

    assert_int_equal(team_new(n, NULL, spin, &w.team, &e), 0);
    assert_int_equal(team_size(w.team), n);
    for (int r = 0; r < ROUNDS; r++)
        team_run(w.team, count, &w);
    for (int r = 0; r < ROUNDS / 10; r++)
        team_run(w.team, pass_on, &w);
    for (int m = 0; m < n; m++)
        assert_int_equal(w.hits[m], ROUNDS);
    assert_int_equal(atomic_load(&w.faults), 0);
    team_free(w.team);
}

static void runs_all(void **state)
{
    (void)state;
    for (int n = 1; n <= MEMBERS; n++) {
        run_team(n, false);
        run_team(n, true);
        spin_allow(false);
        run_team(n, true);
        spin_allow(true);
    }
}

static void pins(void **state)
{
    struct team *t = NULL;
    struct err e;
    const int cpus[2] = {0, 0}, none[1] = {-1};
    struct work w = {0};

    (void)state;
    assert_int_equal(team_new(2, cpus, false, &t, &e), 0);
    w.team = t;
    team_run(t, pass_on, &w);
    assert_int_equal(atomic_load(&w.faults), 0);
    team_free(t);
    assert_int_equal(team_new(1, none, false, &t, &e), -1);
    assert_int_equal(e.code, ERR_RANGE);
    assert_int_equal(team_new(0, NULL, false, &t, &e), -1);
    team_free(NULL);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(runs_all),
    cmocka_unit_test(pins),
};

TEST_MAIN("team", tests)

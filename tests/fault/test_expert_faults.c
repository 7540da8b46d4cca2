/* A rank or the loader is slow, or stops longer than a move may take, at every state of a
 * move, while steps run: the tokens are those of a run without a move, the map is the old
 * one or the new one, on all ranks, and what was asked for says which. A rank that never
 * comes back ends the steps with its name. */
#define LLMRACK_FAULTS 1
#include "base/fault.c"
#include "daemon/serve/expertload.c"
#include "daemon/serve/rank.c"

#include <sys/stat.h>

#include "tests/unit/expert_rig.h"

enum { SLOW_MS = 60, STOP_MS = 900, STATE_US = 500000, STEPS_MAX = 4000 };

static char fault_path[300];
static struct step_token want[STEPS_MAX][SEQS], got[STEPS_MAX][SEQS];
static int n_want;

/* The thread `index` is held once at the point. */
static void arm(const char *point, int index, int ms)
{
    char tmp[320];

    snprintf(tmp, sizeof(tmp), "%s.new", fault_path);
    FILE *f = fopen(tmp, "w");
    assert_non_null(f);
    fprintf(f, "%s %d %d\n", point, index, ms);
    fclose(f);
    assert_int_equal(rename(tmp, fault_path), 0);
}

static bool struck(void) { return access(fault_path, F_OK) != 0; }

/* Tokens of n steps without a move. */
static void without(int n)
{
    struct rig r;

    if (n <= n_want)
        return;
    open_rig(&r, "qwen3_moe", "tp2 ep2", 0, 0);
    for (n_want = 0; n_want < n; n_want++)
        step(&r, want[n_want]);
    close_rig(&r);
}

/* One move with the fault, and steps until it is over and for a while after. */
static void run_with(const char *point, int index, int ms, struct rig *r)
{
    int n = 0;

    open_rig(r, "qwen3_moe", "tp2 ep2", 1, 0);
    for (; n < 3; n++)
        step(r, got[n]);
    arm(point, index, ms);
    /* expert 0 goes to rank 1: one copy loaded, one that leaves */
    engine_experts_order(r->g, now(),
                         &(struct move){1, 0, 2, {{1, SPARE, 0}, {0, 0, -1}}});
    while (engine_experts_waiting(r->g)) {
        assert_true(n < STEPS_MAX - 8);
        if (r->at < CTX - 16)
            step(r, got[n++]);
        else
            idle(r);
    }
    for (int i = 0; i < 3; i++)
        step(r, got[n++]);
    assert_true(struck());
    assert_false(r->broken);
    without(n);
    for (int i = 0; i < n; i++)
        for (int q = 0; q < SEQS; q++)
            assert_memory_equal(&got[i][q].logprob, &want[i][q].logprob, sizeof(float));
}

/* The map is one of two, by what was told. */
static void check_map(const struct rig *r)
{
    const struct routes *t = engine_experts_routes(r->g);
    bool moved = r->n_done == 1;

    assert_int_equal(r->n_done + r->n_aborted, 1);
    assert_int_equal(t->layer[0].generation, moved ? 2 : 1);
    assert_int_equal(routes_find(t, 0, 0, 0), moved ? -1 : 0);
    assert_int_equal(routes_find(t, 0, 0, 1), moved ? SLOTS + SPARE : -1);
    assert_int_equal(routes_copies(t, 0, 0), 1);
}

static const struct point {
    const char *name;
    bool loader, back; /* back: there is a way back from there */
} points[] = {
    {"expert_load", true, true},   {"expert_check", true, true},
    {"expert_warm", false, true},  {"expert_vote", false, true},
    {"expert_turn", false, false}, {"expert_flip", false, false},
    {"expert_free", false, false},
};
enum { N_POINTS = sizeof(points) / sizeof(points[0]) };

static void test_slow(void **state)
{
    (void)state;
    rig_state_us = 20000000;
    for (int p = 0; p < N_POINTS; p++)
        for (int who = 0; who < (points[p].loader ? 1 : 2); who++) {
            struct rig r;

            run_with(points[p].name, who, SLOW_MS, &r);
            assert_int_equal(r.n_done, 1);
            check_map(&r);
            close_rig(&r);
        }
}

/* Longer than a state may take: the old map where there is a way back. */
static void test_stopped(void **state)
{
    (void)state;
    rig_state_us = STATE_US;
    for (int p = 0; p < N_POINTS; p++)
        for (int who = 0; who < (points[p].loader ? 1 : 2); who++) {
            struct rig r;

            run_with(points[p].name, who, STOP_MS, &r);
            check_map(&r);
            assert_int_equal(r.n_aborted, points[p].back);
            assert_non_null(strstr(r.why, "not done within 0.5 s"));
            /* and the next move goes well */
            r.why[0] = '\0';
            engine_experts_order(r.g, now(), &(struct move){2, 1, 1, {{1, SPARE, 0}}});
            idle(&r);
            assert_int_equal(r.last, MOVE_DONE);
            close_rig(&r);
        }
}

/* A rank that never comes back from its part: the next step ends with its name. */
static void test_lost_rank(void **state)
{
    (void)state;
    struct rig r;
    struct step_done d;
    struct err e = {0};
    uint64_t ticket;

    rig_comm_us = 300000;
    open_rig(&r, "qwen3_moe", "tp2 ep2", 1, 0);
    step(&r, got[0]);
    arm("expert_flip", 1, 4000);
    engine_experts_order(r.g, now(), &(struct move){1, 0, 1, {{1, SPARE, 0}}});
    for (int64_t until = now() + 20000000; !r.broken;) {
        struct pollfd p[2];

        for (int i = 0; i < 2; i++)
            p[i] = (struct pollfd){engine_experts_fd(r.g, i), POLLIN, 0};
        assert_true(now() < until);
        poll(p, 2, 20);
        engine_experts_poll(r.g, now());
    }
    assert_non_null(strstr(r.why, "flip: rank 1 has not ended its step"));
    step_clear(r.st);
    add(&r, 0, 0, (const int32_t[]){5, 6}, 2);
    assert_int_equal(executor_submit(r.x, r.st, &ticket, &e), 0);
    while (!executor_poll(r.x, &d)) {
        struct pollfd p = {r.x->fd, POLLIN, 0};
        assert_true(poll(&p, 1, 20000) > 0);
    }
    assert_non_null(d.error);
    assert_non_null(strstr(d.error->msg, "rank 1"));
    rig_comm_us = 5000000; /* the process would end here; the held thread wakes later */
    engine_experts_free(r.g);
    executor_free(r.x);
    free(r.st);
    tiny_remove(r.dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_slow),
    cmocka_unit_test(test_stopped),
    cmocka_unit_test(test_lost_rank),
};

int main(int argc, char **argv)
{
    snprintf(fault_path, sizeof(fault_path), "/tmp/llmrack-fault-%d", (int)getpid());
    setenv("LLMRACK_FAULT_FILE", fault_path, 1);
    int rc =
        test_main(argc, argv, "expert_faults", tests, sizeof(tests) / sizeof(tests[0]));
    unlink(fault_path);
    return rc;
}

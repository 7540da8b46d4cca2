/* A rank or the loader is slow, stops for longer than a move may take, or fails, at every
 * state of a move, while steps run: the tokens are those of a run without a move, the map
 * is the old one or the new one, on all ranks, what was asked for says which, and no
 * memory or slot is lost. A rank that never comes back, or fails where there is no way
 * back, ends the steps with its name; an engine that is killed: tests/e2e/test_moves.py.
 */
#define LLMRACK_FAULTS 1
#include "base/fault.c"
#include "daemon/serve/expertload.c"
#include "daemon/serve/rank.c"

#include <sys/stat.h>

#include "tests/unit/expert_rig.h"

enum { STATE_US = 500000, STEPS_MAX = 4000 };

static char fault_path[300];
static struct step_token want[STEPS_MAX][SEQS], got[STEPS_MAX][SEQS];
static int n_want;

enum act { SLOW, STOPPED, FAILED };
static const char *const acts[] = {"60", "900", "fail"};
/* The least time in the state by which it is known that it struck there. */
static const int64_t felt_us[] = {55000, STATE_US - 10000, 0};

/* Where each state of a move is struck, and who it is that does the work there. */
static const struct point {
    enum move_state state;
    const char *name;
    bool loader, back; /* back: there is a way back from there */
} points[] = {
    {MOVE_LOADING, "expert_load", true, true},
    {MOVE_VERIFYING, "expert_check", true, true},
    {MOVE_WARMING, "expert_warm", false, true},
    {MOVE_READY, "expert_vote", false, true},
    {MOVE_FLIP, "expert_turn", false, false},
    {MOVE_FLIP, "expert_flip", false, false},
    {MOVE_DRAINING, "rank", false, false}, /* in the step that is waited for */
    {MOVE_FREED, "expert_free", false, false},
};
enum { N_POINTS = sizeof(points) / sizeof(points[0]) };

/* What strikes the move of a test, and when. */
static struct {
    const struct point *p;
    int who;
    enum act act;
    int64_t entered[MOVE_STATE_COUNT];
} now_on;

/* The thread `index` does so once at the point. */
static void arm(const char *point, int index, const char *action)
{
    char tmp[320];

    snprintf(tmp, sizeof(tmp), "%s.new", fault_path);
    FILE *f = fopen(tmp, "w");
    assert_non_null(f);
    fprintf(f, "%s %d %s\n", point, index, action);
    fclose(f);
    assert_int_equal(rename(tmp, fault_path), 0);
}

static bool struck(void) { return access(fault_path, F_OK) != 0; }

static void on_state(const struct moves_news *n)
{
    if (!now_on.entered[n->state])
        now_on.entered[n->state] = now();
}

/* How long the move was in the state that was struck. */
static int64_t was_in(void)
{
    int64_t from = now_on.entered[now_on.p->state], to = 0;

    for (int s = now_on.p->state + 1; s < MOVE_STATE_COUNT; s++)
        if (now_on.entered[s] && (!to || now_on.entered[s] < to))
            to = now_on.entered[s];
    assert_true(from && to);
    return to - from;
}

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

/* Weights on the devices of both ranks. */
static size_t weights(const struct rig *r)
{
    size_t sum = 0;

    for (int k = 0; k < 2; k++) {
        struct backend_mem m;
        backend_mem_used(ranks_backend(r->x, 0, k), &m);
        sum += m.weight_bytes;
    }
    return sum;
}

/* The map is one of two, by what was told, and the same on every rank. */
static void check_map(const struct rig *r)
{
    const struct routes *t = engine_experts_routes(r->g);
    bool moved = r->n_done == 1;

    assert_int_equal(r->n_done + r->n_aborted, 1);
    assert_int_equal(t->layer[0].generation, moved ? 2 : 1);
    assert_int_equal(routes_find(t, 0, 0, 0), moved ? -1 : 0);
    assert_int_equal(routes_find(t, 0, 0, 1), moved ? SLOTS + SPARE : -1);
    assert_int_equal(routes_copies(t, 0, 0), 1);
    for (int l = 0; l < t->n_layer; l++) {
        assert_int_equal(expertpage_generation(r->page, l), t->layer[l].generation);
        for (int s = 0; s < 2 * SLOTS; s++) {
            struct expert_slot is;
            expertpage_slot(r->page, l, s / SLOTS, s % SLOTS, &is);
            assert_int_equal(is.expert, t->layer[l].expert[s]);
        }
    }
}

/* One move with the fault, and steps until it is over and for a while after: not a token
 * is lost or another one, all memory is as before. */
static void run_with(const struct point *p, int who, enum act act, struct rig *r)
{
    bool armed = p->state != MOVE_DRAINING;
    int n = 0;

    memset(&now_on, 0, sizeof(now_on));
    now_on.p = p;
    now_on.who = who;
    now_on.act = act;
    rig_news = on_state;
    open_rig(r, "qwen3_moe", "tp2 ep2", 1, 0);
    for (; n < 3; n++)
        step(r, got[n]);
    size_t before = weights(r);
    if (armed)
        arm(p->name, who, acts[act]);
    /* expert 0 goes to rank 1: one copy loaded, one that leaves */
    engine_experts_order(r->g, now(),
                         &(struct move){1, 0, 2, {{1, SPARE, 0}, {0, 0, -1}}});
    while (engine_experts_waiting(r->g)) {
        assert_true(n < STEPS_MAX - 8);
        if (r->at < CTX - 16)
            step(r, got[n++]);
        else
            idle(r);
        /* nobody works at a drain but the step that it waits for: the one behind the
         * flip, which is under way now */
        if (p->state == MOVE_DRAINING && r->last == MOVE_FLIP && !armed)
            arm(p->name, who, acts[act]), armed = true;
    }
    rig_news = NULL;
    for (int i = 0; i < 3; i++)
        step(r, got[n++]);
    assert_true(struck());
    assert_false(r->broken);
    assert_int_equal(weights(r), before);
    without(n);
    for (int i = 0; i < n; i++)
        for (int q = 0; q < SEQS; q++) {
            assert_int_equal(got[i][q].id, want[i][q].id);
            assert_memory_equal(&got[i][q].logprob, &want[i][q].logprob, sizeof(float));
        }
    check_map(r);
}

/* The same, and it was in that state that it struck: a drain may be over before the step
 * that was to hold it up. */
static void strike(const struct point *p, int who, enum act act, struct rig *r)
{
    for (int tries = 0;; tries++) {
        run_with(p, who, act, r);
        if (was_in() >= felt_us[act])
            return;
        if (p->state != MOVE_DRAINING || tries == 20)
            fail_msg("%s: not held in the state '%s'", p->name,
                     move_state_name(p->state));
        close_rig(r);
    }
}

static void again(struct rig *r)
{
    r->why[0] = '\0';
    engine_experts_order(r->g, now(), &(struct move){2, 1, 1, {{1, SPARE, 0}}});
    idle(r);
    assert_int_equal(r->last, MOVE_DONE);
}

static void test_slow(void **state)
{
    (void)state;
    rig_state_us = 20000000;
    for (int p = 0; p < N_POINTS; p++)
        for (int who = 0; who < (points[p].loader ? 1 : 2); who++) {
            struct rig r;

            strike(&points[p], who, SLOW, &r);
            assert_int_equal(r.n_done, 1);
            assert_string_equal(r.why, "");
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
            char say[64];

            strike(&points[p], who, STOPPED, &r);
            assert_int_equal(r.n_aborted, points[p].back);
            snprintf(say, sizeof(say), "%s: not done within 0.5 s",
                     move_state_name(points[p].state));
            if (strcmp(r.why, say) != 0)
                fail_msg("%s, not %s", r.why, say);
            again(&r); /* and the next move goes well */
            close_rig(&r);
        }
}

/* What the loader or a rank was to do does not come about: the old map, and why. */
static void test_failed(void **state)
{
    (void)state;
    rig_state_us = 20000000;
    for (int p = 0; p < N_POINTS; p++)
        for (int who = 0; points[p].back && who < (points[p].loader ? 1 : 2); who++) {
            struct rig r;
            char say[64];

            strike(&points[p], who, FAILED, &r);
            assert_int_equal(r.n_aborted, 1);
            snprintf(say, sizeof(say), "%s: ", move_state_name(points[p].state));
            if (strncmp(r.why, say, strlen(say)) != 0 || !strstr(r.why, "a test lets it"))
                fail_msg("%s: '%s'", say, r.why);
            snprintf(say, sizeof(say), "rank %d", who);
            assert_true(points[p].loader || strstr(r.why, say));
            again(&r);
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
    arm("expert_flip", 1, "4000");
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
    cmocka_unit_test(test_failed),
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

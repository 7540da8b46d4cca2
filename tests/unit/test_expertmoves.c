/* Moves of experts on real ranks: the tokens are those of a run without moves, bit for
 * bit, through a hundred random moves while steps run; what is loaded is what the file
 * has; what fails before the flip leaves the old map. */
#include "tests/unit/expert_rig.h"

#include <unistd.h>

enum { MOVES = 100 };

/* Steps, and a move whenever none is under way, until `moves` are done; the steps that
 * were made. */
static int run_moves(struct rig *r, int moves, struct step_token (*out)[SEQS], int most)
{
    uint64_t rng = test_seed() + 17;
    int n = 0, ordered = 0;

    while (r->n_done < moves) {
        struct move v;

        assert_true(n < most);
        if (!engine_experts_waiting(r->g) &&
            random_move(engine_experts_routes(r->g), &rng, (uint64_t)ordered + 1, &v)) {
            engine_experts_order(r->g, now(), &v);
            ordered++;
        }
        if (engine_experts_waiting(r->g) || n == 0)
            step(r, out[n++]);
        if (r->n_aborted || r->broken)
            fail_msg("%s", r->why);
    }
    assert_int_equal(r->n_done, ordered);
    return n;
}

enum { STEPS = 1500 };
static struct step_token want[STEPS][SEQS], got[STEPS][SEQS];

/* Whatever slots an expert was in meanwhile: of each layer as many rows were counted as
 * there were, prefill and decode apart. Of the last layer's only those are run that give
 * an output. */
static void check_counts(const struct rig *r, int n)
{
    struct routes_dims d;
    int64_t replica = 0;
    int n_layer;

    assert_true(expertpage_dims(r->page, &d, &n_layer));
    for (int l = 0; l < n_layer; l++) {
        int64_t sum[EXPERT_PHASES] = {0};
        for (int p = 0; p < EXPERT_PHASES; p++) {
            struct expert_left c[ROUTES_MAX_EXPERTS];
            expertpage_experts(r->page, l, p, d.n_expert, c);
            for (int x = 0; x < d.n_expert; x++) {
                sum[p] += c[x].n.rows;
                replica += c[x].replica;
                assert_true(c[x].replica <= c[x].n.rows);
            }
        }
        assert_int_equal(sum[EXPERT_PREFILL],
                         (l < n_layer - 1 ? 4 : 1) * SEQS * TINY_TOP_K);
        assert_int_equal(sum[EXPERT_DECODE], (n - 1) * SEQS * TINY_TOP_K);
    }
    assert_true(replica > 0); /* some ran elsewhere than where they were loaded */
}

static void equal_through_moves(const char *family, const char *layout,
                                enum spread routing, int moves)
{
    struct rig r;
    int n;

    open_rig(&r, family, layout, 2, routing);
    n = run_moves(&r, moves, got, STEPS - 1);
    step(&r, got[n++]); /* which tells what left its slot behind the last one */
    check_counts(&r, n);
    uint64_t generation = 0;
    const struct routes *t = engine_experts_routes(r.g);
    for (int l = 0; l < t->n_layer; l++)
        generation += t->layer[l].generation - 1;
    assert_int_equal(generation, moves);
    assert_true(r.bytes > 0);
    close_rig(&r);
    open_rig(&r, family, layout, 0, routing);
    for (int i = 0; i < n; i++)
        step(&r, want[i]);
    close_rig(&r);
    for (int i = 0; i < n; i++)
        for (int q = 0; q < SEQS; q++) {
            assert_int_equal(got[i][q].id, want[i][q].id);
            assert_memory_equal(&got[i][q].logprob, &want[i][q].logprob, sizeof(float));
        }
}

static void test_equal(void **state)
{
    (void)state;
    for (int p = 0; p < SPREAD_COUNT; p++)
        equal_through_moves("qwen3_moe", "tp2 ep2", (enum spread)p, MOVES);
}

/* The text of the upcycled demo model (make var/models/..-upcycled.gguf); long. */
static void test_equal_text(void **state)
{
    static const char model[] = "var/models/SmolLM2-135M-8x-upcycled.gguf";
    (void)state;

    if (!getenv("LLMRACK_LONG") || access(model, R_OK) < 0)
        skip();
    rig_model = model;
    rig_slice = 0;
    for (int p = 0; p < SPREAD_COUNT; p++)
        equal_through_moves("", "adp2 ep2", (enum spread)p, MOVES);
    rig_model = NULL;
    rig_slice = 2048;
}

static void test_equal_layouts(void **state)
{
    (void)state;
    equal_through_moves("mixtral", "tp2 pp2 ep2", 0, 20);
    equal_through_moves("gpt_oss", "tp2 ep2", 0, 20);
    equal_through_moves("deepseek_v3", "tp2 ep2", 0, 20);
    equal_through_moves("qwen3_moe", "adp2 ep2", 0, 20);
}

/* An engine without a step to do moves at once. */
static void test_idle(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, "qwen3_moe", "tp2 ep2", 1, 0);
    engine_experts_order(r.g, now(), &(struct move){1, 0, 1, {{1, SPARE, 0}}});
    engine_experts_order(r.g, now(),
                         &(struct move){2, 1, 1, {{0, SPARE, TINY_EXPERTS - 1}}});
    engine_experts_order(r.g, now(), &(struct move){3, 0, 1, {{0, 0, -1}}});
    idle(&r);
    if (r.n_aborted)
        fail_msg("%s", r.why);
    assert_int_equal(r.n_done, 3);
    assert_int_equal(routes_find(engine_experts_routes(r.g), 0, 0, 0), -1);
    assert_int_equal(routes_find(engine_experts_routes(r.g), 0, 0, 1), SLOTS + SPARE);
    close_rig(&r);
}

/* What the rules forbid is told, and changes nothing. */
static void test_refused(void **state)
{
    (void)state;
    static const struct move bad[] = {
        {1, 0, 1, {{1, SPARE, HOME}}}, /* a second copy on that rank */
        {2, 0, 1, {{0, 0, -1}}},       /* the last one would go */
        {3, 9, 1, {{0, 0, -1}}},       /* no such layer */
        {4, 0, 1, {{1, 0, 0}}},        /* in the place of the last copy of another */
    };
    struct rig r;

    open_rig(&r, "qwen3_moe", "tp2 ep2", 1, 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        engine_experts_order(r.g, now(), &bad[i]);
        idle(&r);
        assert_int_equal(r.n_aborted, i + 1);
        assert_true(r.why[0] != '\0');
    }
    assert_int_equal(r.n_done, 0);
    assert_int_equal(engine_experts_routes(r.g)->layer[0].generation, 1);
    step(&r, got[0]);
    close_rig(&r);
}

/* The file changes between load and check: the checksum tells, the old map stays. */
static void test_checksum(void **state)
{
    (void)state;
    char path[512];
    struct rig r;
    uint8_t *bytes = NULL;
    uint64_t head;
    long n;

    open_rig(&r, "qwen3_moe", "tp2 ep2", 1, 0);
    step(&r, got[0]);
    engine_experts_order(r.g, now(), &(struct move){1, 0, 1, {{1, SPARE, 0}}});
    struct pollfd p = {engine_experts_fd(r.g, 0), POLLIN, 0};
    assert_true(poll(&p, 1, 20000) > 0); /* it is loaded, and the check not asked for */
    snprintf(path, sizeof(path), "%s/model.safetensors", r.dir);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    bytes = malloc((size_t)n);
    rewind(f);
    assert_int_equal(fread(bytes, 1, (size_t)n, f), n);
    memcpy(&head, bytes, sizeof(head));
    for (long i = (long)head + 8; i < n; i++)
        bytes[i] ^= 1;
    rewind(f);
    assert_int_equal(fwrite(bytes, 1, (size_t)n, f), n);
    fclose(f);
    free(bytes);
    idle(&r);
    assert_int_equal(r.n_aborted, 1);
    assert_non_null(strstr(r.why, "verifying: expert 0 of layer 0"));
    assert_non_null(strstr(r.why, "checksum"));
    assert_int_equal(engine_experts_routes(r.g)->layer[0].generation, 1);
    step(&r, got[1]);
    close_rig(&r);
}

/* Given up in any state, also at the end with a move under way. */
static void test_given_up(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct rig r;

        open_rig(&r, "qwen3_moe", "tp2 ep2", 1, 0);
        for (uint64_t id = 1; id < 4; id++)
            engine_experts_order(r.g, now(), &(struct move){id, 0, 1, {{1, SPARE, 0}}});
        for (int k = 0; k < i / 2; k++)
            step(&r, got[k]);
        if (i % 2) {
            engine_experts_cancel(r.g, now(), "it is frozen");
            idle(&r);
            assert_int_equal(r.n_done + r.n_aborted, 3);
            step(&r, got[9]);
        }
        close_rig(&r);
    }
}

/* Shares of copies: in force with the next flip; a sum that is not 1 is not taken. */
static void test_shares(void **state)
{
    (void)state;
    float s[2 * SLOTS], bad[2 * SLOTS];
    struct rig r;
    struct err e = {0};

    for (int i = 0; i < 2 * SLOTS; i++)
        s[i] = i == SPARE ? 0 : 1;
    s[0] = 0.25f; /* expert 0 stands in slot 0 and in the last one */
    s[2 * SLOTS - 1] = 0.75f;
    memcpy(bad, s, sizeof(s));
    bad[0] = 0.5f;
    open_rig(&r, "qwen3_moe", "tp2 ep2", 1, SPREAD_STATIC);
    engine_experts_order(r.g, now(), &(struct move){1, 0, 1, {{1, SPARE, 0}}});
    idle(&r);
    assert_int_equal(engine_experts_shares(r.g, now(), 0, s, 2 * SLOTS, &e), 0);
    idle(&r);
    const struct route_layer *l = &engine_experts_routes(r.g)->layer[0];
    assert_int_equal(l->generation, 3);
    assert_true(l->share[0] == 0.25f && l->share[2 * SLOTS - 1] == 0.75f);
    assert_int_equal(engine_experts_shares(r.g, now(), 0, bad, 2 * SLOTS, &e), 0);
    idle(&r);
    assert_true(l->share[0] == 0.25f && l->share[2 * SLOTS - 1] == 0.75f);
    assert_int_equal(engine_experts_shares(r.g, now(), 2, s, 2 * SLOTS, &e), -1);
    assert_int_equal(r.n_done, 1); /* nobody hears of those */
    step(&r, got[0]);
    close_rig(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_idle),       cmocka_unit_test(test_refused),
    cmocka_unit_test(test_checksum),   cmocka_unit_test(test_given_up),
    cmocka_unit_test(test_shares),     cmocka_unit_test(test_equal),
    cmocka_unit_test(test_equal_text), cmocka_unit_test(test_equal_layouts),
};
TEST_MAIN("expertmoves", tests)

/* tests/model/test_replay.c - types that round: BF16 and quantised models over meshes,
 * teacher-forced, with the one-rank run's routing replayed, then free. The binary is the
 * tool of test_types.py, which makes the models:
 *
 *   test_replay --check MODEL KV BOUND LAYOUT...
 *
 * prints a line for each layout and exits 1 where something is wrong: replayed, logits
 * off by more than BOUND; in either run, a row at other experts although the margin of
 * its router exceeds the measured error of the scores, or another token although its gap
 * exceeds the measured error of the logits. Such differences that are explained are
 * counted. The tests here are of the instrument: that a replayed routing is what the
 * experts do, and that a difference without an explanation is seen. */
#include "tests/model/mesh_rig.h"
#include "tests/model/routing.h"

enum { LEN = 36, SEQS = 3, ROWS = SEQS * LEN };

static int32_t toks[ROWS];

static struct mesh_job job_of(const char *model, const char *isa, enum dtype kv)
{
    return (struct mesh_job){.model = model,
                             .backend = "cpu",
                             .isa = isa,
                             .kv = kv,
                             .toks = toks,
                             .n_seq = SEQS,
                             .len = LEN,
                             .budget = 50};
}

/* A run under the eyes of the record. */
static float *watched(const char *layout, struct mesh_job job, const struct routing *of,
                      bool force, struct replay *ret, int *ret_vocab)
{
    *ret = (struct replay){.of = of, .force = force, .lock = PTHREAD_MUTEX_INITIALIZER};
    job.watch = replay_watch;
    job.watch_arg = ret;
    return mesh_logits(layout, &job, ret_vocab);
}

/* ---- the tool ---- */

/* Rows with another best token; *ret_wrong of them against what can be explained: two
 * tokens that are further apart than the largest error of the row's logits twice. */
static int other_tokens(const float *want, const float *got, int vocab, int *ret_wrong)
{
    int others = 0;

    *ret_wrong = 0;
    for (int r = 0; r < ROWS; r++, want += vocab, got += vocab) {
        float gap, unused, error = 0;
        int choice = mesh_best(want, vocab, &gap);

        if (mesh_best(got, vocab, &unused) == choice)
            continue;
        others++;
        for (int i = 0; i < vocab; i++)
            error = fmaxf(error, fabsf(want[i] - got[i]));
        *ret_wrong += gap > 2 * error;
    }
    return others;
}

/* One layout, replayed or free; false when something is wrong. */
static bool check(const char *layout, const struct mesh_job *job,
                  const struct routing *record, const float *one, bool force,
                  double bound)
{
    struct replay seen;
    int vocab, others, wrong;
    float *got = watched(layout, *job, record, force, &seen, &vocab);
    double error = mesh_error(one, got, (size_t)ROWS * (size_t)vocab);
    bool ok;

    others = other_tokens(one, got, vocab, &wrong);
    ok = !seen.unexplained && !wrong && !(force && (seen.lost || !(error <= bound)));
    printf("%-26s %-8s logits %.1e, %d of %d tokens differ (%d unexplained); scores "
           "%.1e, %d of %d choices differ (%d unexplained)%s\n",
           layout, force ? "replayed" : "free", error, others, (int)ROWS, wrong,
           seen.error, seen.differ, seen.rows, seen.unexplained, ok ? "" : "  WRONG");
    free(got);
    return ok;
}

static int check_all(const char *model, const char *kv, double bound, char **layouts)
{
    struct mesh_job job = job_of(model, "auto", !strcmp(kv, "bf16") ? DT_BF16 : DT_F16);
    struct mesh_job recorded = job;
    struct routing record;
    bool ok = true;
    float *one;

    mesh_tokens(toks, ROWS, test_seed() + 5);
    routing_begin(&record, model);
    recorded.watch = routing_record;
    recorded.watch_arg = &record;
    one = mesh_logits("tp1", &recorded, NULL);
    for (; *layouts; layouts++) {
        ok &= check(*layouts, &job, &record, one, true, bound);
        if (record.info.moe.n_expert)
            ok &= check(*layouts, &job, &record, one, false, bound);
    }
    free(one);
    routing_clear(&record);
    return ok ? 0 : 1;
}

/* ---- the instrument ---- */

struct fixture {
    char dir[256];
    struct routing record;
    float *logits;
};

static void begin(struct fixture *x)
{
    struct mesh_job job;

    mesh_tokens(toks, ROWS, test_seed() + 5);
    snprintf(x->dir, sizeof(x->dir), "%s", tiny_model("qwen3_moe", test_seed()));
    routing_begin(&x->record, x->dir);
    job = job_of(x->dir, "portable", DT_F16);
    job.watch = routing_record;
    job.watch_arg = &x->record;
    x->logits = mesh_logits("tp1", &job, NULL);
}

static void end(struct fixture *x)
{
    free(x->logits);
    routing_clear(&x->record);
    tiny_remove(x->dir);
}

/* Every row of layer 0 to the experts after those it would choose: a mesh does as it is
 * told, and so gives what one rank gives that was told the same. */
static void test_replayed(void **state)
{
    static const char *const layouts[] = {"tp2 ep2 sp", "pp2", "cp2 tp2 ep4 ring",
                                          "adp2 ep2"};
    const size_t n = (size_t)ROWS * TINY_VOCAB;
    struct replay seen;
    struct fixture x;
    float *told;

    (void)state;
    begin(&x);
    struct routing_layer *l = &x.record.layers[0];
    for (int i = 0; i < l->n * TINY_TOP_K; i++)
        l->ids[i] = (l->ids[i] + 1) % TINY_EXPERTS;
    x.record.layers[1].n = 0; /* as it likes */
    struct mesh_job job = job_of(x.dir, "portable", DT_F16);
    told = watched("tp1", job, &x.record, true, &seen, NULL);
    assert_true(seen.differ > ROWS / 2);
    assert_true(mesh_error(x.logits, told, n) > 0.1);
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        float *got = watched(layouts[i], job, &x.record, true, &seen, NULL);
        assert_true(seen.differ > ROWS / 2);
        if (!(mesh_error(told, got, n) < 1e-4))
            fail_msg("%s: not what it was told", layouts[i]);
        free(got);
    }
    free(told);
    end(&x);
}

/* A record that says that a row clearly chose others: seen, and not explained. */
static void test_unexplained(void **state)
{
    struct replay seen;
    struct fixture x;

    (void)state;
    begin(&x);
    struct mesh_job job = job_of(x.dir, "portable", DT_F16);
    free(watched("tp2 ep2", job, &x.record, false, &seen, NULL));
    assert_int_equal(seen.rows, TINY_LAYERS * ROWS);
    assert_int_equal(seen.lost + seen.unexplained, 0);
    struct routing_layer *l = &x.record.layers[1];
    int row = 0;
    while (routing_margin(&x.record, 1, l->logits + row * TINY_EXPERTS) < 0.1)
        assert_in_range(++row, 0, ROWS - 1);
    for (int i = 0; i < TINY_TOP_K; i++)
        l->ids[row * TINY_TOP_K + i] = (l->ids[row * TINY_TOP_K + i] + 1) % TINY_EXPERTS;
    free(watched("tp2 ep2", job, &x.record, false, &seen, NULL));
    assert_int_equal(seen.unexplained, 1);
    end(&x);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_replayed),
    cmocka_unit_test(test_unexplained),
};

int main(int argc, char **argv)
{
    if (argc > 5 && !strcmp(argv[1], "--check"))
        return check_all(argv[2], argv[3], atof(argv[4]), argv + 5);
    return test_main(argc, argv, "replay", tests, sizeof(tests) / sizeof(tests[0]));
}

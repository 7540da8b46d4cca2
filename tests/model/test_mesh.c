/* tests/model/test_mesh.c - a model over many ranks: backends other than the plain one,
 * steps so small that ranks have no row, experts' rows in chunks and over hosts; what a
 * layout cannot cut is refused with what does not divide; bytes on the wire are those of
 * the formulas. (Every family over every mesh: test_meshes.c.) */
#include "tests/model/mesh_rig.h"

enum { LEN = 40, SEQS = 3 };

static int32_t toks[SEQS * LEN];

static void make_tokens(void) { mesh_tokens(toks, SEQS * LEN, test_seed() + 5); }

static struct mesh_job job_of(const char *model, const char *backend, int budget)
{
    return (struct mesh_job){.model = model,
                             .backend = backend,
                             .isa = "portable",
                             .kv = DT_F16,
                             .toks = toks,
                             .n_seq = SEQS,
                             .len = LEN,
                             .budget = budget};
}

static void compare(const char *family, const char *backend, int budget,
                    const char *const *layouts, int n)
{
    char dir[256];
    float *one, *many;
    int vocab;

    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model(family, test_seed()));
    struct mesh_job job = job_of(dir, "cpu", budget);
    one = mesh_logits("tp1", &job, &vocab);
    job.backend = backend;
    for (int i = 0; i < n; i++) {
        many = mesh_logits(layouts[i], &job, NULL);
        double error = mesh_error(one, many, (size_t)(SEQS * LEN) * (size_t)vocab);
        if (!(error < 1e-4))
            fail_msg("%s: normalised error %g", layouts[i], error);
        if (mesh_others(one, many, SEQS * LEN, vocab, 1e-3f))
            fail_msg("%s: a row chooses another token", layouts[i]);
        free(many);
    }
    free(one);
    tiny_remove(dir);
}

/* One row a step: members and groups without any row of their own. */
static void test_one_row(void **state)
{
    static const char *const dense[] = {"tp4 sp", "pp2", "tp2 pp2 sp"};
    static const char *const experts[] = {"tp4 ep4", "tp4 ep4 sp", "adp2 tp2 ep4",
                                          "adp4 ep4", "adp2 cp2 ep4 ring"};

    (void)state;
    compare("llama", "cpu", 1, dense, 3);
    compare("qwen3_moe", "cpu", 1, experts, 5);
}

/* A backend whose memory the host cannot touch, and whose ops run later. */
static void test_far(void **state)
{
    static const char *const dense[] = {"tp2",      "tp2 pp2 sp",  "cp2 allgather",
                                        "cp4 ring", "cp2 striped", "cp4 usp cp_u2"};
    static const char *const experts[] = {"tp2 ep2", "adp2 ep2", "adp2 tp2 ep4",
                                          "cp2 tp2 ep4 ulysses", "adp2 cp2 ep4 ring"};

    (void)state;
    compare("llama", "far", 16, dense, 6);
    compare("qwen2_moe", "far", 16, experts, 3);
    compare("olmoe", "far", 33, experts + 2, 2);
    compare("deepseek_v3", "far", 33, experts + 2, 3);
}

/* Experts' rows in chunks, over hosts, in two levels: not a bit differs. */
static void test_ways(void **state)
{
    static const struct {
        const char *layout;
        int chunks, per_host;
        bool flat;
    } ways[] = {{"tp4 ep4", 4, 0, false},     {"adp2 tp2 ep4", 4, 0, false},
                {"adp4 ep4", 2, 2, false},    {"tp4 ep4 sp", 2, 0, false},
                {"tp4 ep4", 1, 2, true},      {"tp4 ep4", 1, 2, false},
                {"tp4 ep4 sp", 4, 2, false},  {"tp4 pp2 ep4", 3, 3, false},
                {"adp2 tp2 ep2", 4, 0, false}};
    char dir[256];
    uint64_t cut[2] = {0};

    (void)state;
    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct mesh_job job = job_of(dir, "cpu", 100);
        struct mesh_run *plain, *r;
        float *want, *got;
        int vocab;

        plain = mesh_run_ok(ways[i].layout, &job, &want, &vocab);
        job.chunks = ways[i].chunks;
        job.per_host = ways[i].per_host;
        job.flat = ways[i].flat;
        r = mesh_run_ok(ways[i].layout, &job, &got, NULL);
        if (memcmp(want, got, sizeof(float) * SEQS * LEN * (size_t)vocab))
            fail_msg("%s in %d chunks, %d a host: not the same bits", ways[i].layout,
                     ways[i].chunks, ways[i].per_host);
        assert_true(ways[i].chunks == 1 ||
                    r[0].ep[COMM_ALL_TO_ALL].calls > plain[0].ep[COMM_ALL_TO_ALL].calls);
        for (int k = 0; k < 4 && (i == 4 || i == 5); k++)
            cut[i - 4] += r[k].ep[COMM_ALL_TO_ALL].cut_bytes;
        free(want);
        free(got);
        free(plain);
        free(r);
    }
    assert_true(cut[0] > cut[1] && cut[1] > 0); /* each token crosses once a host */
    tiny_remove(dir);
}

/* ---- what does not divide ---- */

static void refused(const char *layout, const char *why)
{
    char dir[256];
    struct layout l;
    struct err e;

    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model("llama", test_seed()));
    struct mesh_job job = job_of(dir, "cpu", 64);
    struct mesh_run *head, *r = mesh_run_all(layout, &job, &head);
    rig_ok(layout_parse(layout, &l, &e), &e);
    for (int i = 0; i < layout_ranks(&l); i++) {
        assert_int_equal(r[i].rc, -1);
        if (!strstr(r[i].e.msg, why))
            fail_msg("%s: '%s' does not say '%s'", layout, r[i].e.msg, why);
    }
    free(head->logits);
    free(r);
    tiny_remove(dir);
}

static void test_refused(void **state)
{
    (void)state;
    refused("adp2 ep2", "adp 2: a dense model has no experts to share over groups");
    refused("tp2 ep2", "a dense model has no experts");
    refused("tp3", "tp 3 does not divide the model's 4 attention heads");
    refused("tp8", "tp 8 does not divide the model's 4 attention heads");
    refused("pp3", "pp 3 is more than the 2 layers");
}

/* ---- bytes ---- */

static void test_bytes(void **state)
{
    char dir[256];
    int64_t rows = SEQS * LEN, s = rows * TINY_EMBD * 4;

    (void)state;
    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model("llama", test_seed()));
    struct mesh_job job = job_of(dir, "cpu", SEQS * LEN);
    float *logits;
    struct mesh_run *r = mesh_run_ok("tp4", &job, &logits, NULL);
    /* embedding, two all-reduces a layer (the last layer's are of output rows: all) */
    for (int i = 0; i < 4; i++)
        assert_int_equal(r[i].tp[COMM_ALL_REDUCE].bytes,
                         (1 + 2 * TINY_LAYERS) * 2 * 3 * s / 4);
    free(logits);
    free(r);

    r = mesh_run_ok("tp4 sp", &job, &logits, NULL);
    /* a layer gathers and scatters twice: 4 (p-1)/p S; the last layer's second half runs
     * on gathered output rows, max_outs at a time, with plain all-reduces */
    for (int i = 0; i < 4; i++) {
        int64_t heads = (rows + 15) / 16;
        assert_int_equal(r[i].tp[COMM_REDUCE_SCATTER].bytes,
                         (1 + 2 * (TINY_LAYERS - 1)) * 3 * s / 4);
        assert_int_equal(r[i].tp[COMM_ALL_GATHER].bytes,
                         (2 * TINY_LAYERS - 1) * 3 * s / 4 + heads * 3 * s / 4 +
                             rows * TINY_VOCAB * 4 * 3 / 4);
    }
    free(logits);
    free(r);

    r = mesh_run_ok("pp2", &job, &logits, NULL);
    assert_int_equal(r[1].pp[COMM_RECV].bytes, s);
    assert_int_equal(r[1].pp[COMM_RECV].calls, 2); /* two micro-batches */
    free(logits);
    free(r);
    tiny_remove(dir);
}

/* Every rank holds its part of the weights and of the KV, and no more. */
static void test_memory(void **state)
{
    char dir[256];

    (void)state;
    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model("llama", test_seed()));
    struct mesh_job job = job_of(dir, "cpu", 64);
    float *h1, *h4;
    struct mesh_run *one = mesh_run_ok("tp1", &job, &h1, NULL);
    struct mesh_run *r = mesh_run_ok("tp2 pp2", &job, &h4, NULL);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r[i].mem.kv_bytes * 4, one[0].mem.kv_bytes);
        assert_true(r[i].mem.weight_bytes < one[0].mem.weight_bytes * 0.45);
    }
    free(h1);
    free(h4);
    free(one);
    free(r);
    tiny_remove(dir);
}

/* A group has KV for its own sequences, a rank its share of the experts. */
static void test_group_memory(void **state)
{
    char dir[256];

    (void)state;
    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    struct mesh_job job = job_of(dir, "cpu", 64);
    float *h1, *h4;
    struct mesh_run *one = mesh_run_ok("tp1", &job, &h1, NULL);
    struct mesh_run *r = mesh_run_ok("adp4 ep4", &job, &h4, NULL);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r[i].mem.kv_bytes * 4, one[0].mem.kv_bytes);
        assert_true(r[i].mem.weight_bytes < one[0].mem.weight_bytes);
        assert_true(r[i].ep[COMM_ALL_TO_ALL].calls == r[0].ep[COMM_ALL_TO_ALL].calls);
    }
    free(h1);
    free(h4);
    free(one);
    free(r);
    tiny_remove(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_one_row), cmocka_unit_test(test_far),
    cmocka_unit_test(test_ways),    cmocka_unit_test(test_refused),
    cmocka_unit_test(test_bytes),   cmocka_unit_test(test_group_memory),
    cmocka_unit_test(test_memory),
};
TEST_MAIN("mesh", tests)

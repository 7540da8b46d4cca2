/* tests/model/test_mesh.c - a model over many ranks gives what it gives on one: logits of
 * every row within 1e-4 and the same choices, in F32; what a layout cannot cut is refused
 * with what does not divide; bytes on the wire are those of the formulas. */
#include "tests/model/mesh_rig.h"

enum { LEN = 40, SEQS = 3 };

static int32_t toks[SEQS * LEN];

static void make_tokens(void)
{
    uint64_t rng = test_seed() + 5;

    for (int i = 0; i < SEQS * LEN; i++)
        toks[i] = (int32_t)(test_rand(&rng) % 256);
}

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

static void all_ok(const struct mesh_run *r, int n, const char *layout)
{
    for (int i = 0; i < n; i++)
        if (r[i].rc < 0)
            fail_msg("%s: rank %d: %s", layout, i, r[i].e.msg);
}

static int best(const float *row, int n, float *ret_gap)
{
    int at = 0;
    float second = -INFINITY;

    for (int i = 1; i < n; i++)
        if (row[i] > row[at])
            at = i;
    for (int i = 0; i < n; i++)
        if (i != at && row[i] > second)
            second = row[i];
    *ret_gap = row[at] - second;
    return at;
}

/* Normalised error over all, and the same choice wherever it is not a toss-up. */
static void same_logits(const float *a, const float *b, int n_vocab, const char *layout)
{
    double diff = 0, norm = 0;
    int n = SEQS * LEN, sure = 0;

    for (int r = 0; r < n; r++) {
        const float *x = a + (size_t)r * (size_t)n_vocab;
        const float *y = b + (size_t)r * (size_t)n_vocab;
        float gap, other;
        int choice = best(x, n_vocab, &gap);

        for (int i = 0; i < n_vocab; i++) {
            diff += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
            norm += (double)x[i] * x[i];
        }
        if (gap < 1e-3f)
            continue;
        sure++;
        if (best(y, n_vocab, &other) != choice)
            fail_msg("%s: row %d chooses another token", layout, r);
    }
    assert_true(sure > n * 3 / 4); /* the test is well posed */
    if (!(sqrt(diff / norm) < 1e-4))
        fail_msg("%s: normalised error %g", layout, sqrt(diff / norm));
}

static void compare(const char *family, const char *backend, int budget,
                    const char *const *layouts, int n)
{
    char dir[256];
    struct mesh_run *one, *head;

    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model(family, test_seed()));
    struct mesh_job job = job_of(dir, "cpu", budget);
    one = mesh_run_all("tp1", &job, NULL);
    all_ok(one, 1, "tp1");
    job.backend = backend;
    for (int i = 0; i < n; i++) {
        struct layout l;
        struct err e;

        rig_ok(layout_parse(layouts[i], &l, &e), &e);
        struct mesh_run *r = mesh_run_all(layouts[i], &job, &head);
        all_ok(r, layout_ranks(&l), layouts[i]);
        same_logits(one[0].logits, head->logits, one[0].n_vocab, layouts[i]);
        free(head->logits);
        free(r);
    }
    free(one[0].logits);
    free(one);
    tiny_remove(dir);
}

static const char *const dense[] = {"tp2",     "tp4",        "pp2",
                                    "tp2 pp2", "tp4 pp2",    "tp2 sp",
                                    "tp4 sp",  "tp2 pp2 sp", "tp4 pp2 sp"};
enum { N_DENSE = sizeof(dense) / sizeof(dense[0]) };

static void test_llama(void **state)
{
    (void)state;
    compare("llama", "cpu", 64, dense, N_DENSE);
}

static void test_qwen3(void **state)
{
    (void)state;
    compare("qwen3", "cpu", 7, dense, N_DENSE); /* decode-like: few rows a step */
}

/* Experts whole on their ranks (ep), or each cut by width (ep 1); distinct random ones,
 * so that a row at the wrong expert shows. */
static const char *const experts[] = {
    "tp2 ep2", "tp4 ep4", "tp2 ep2 sp", "tp4 ep4 sp",  "tp2",
    "tp4",     "tp2 sp",  "pp2",        "tp2 pp2 ep2", "tp4 pp2 ep4 sp"};
enum { N_EXPERTS = sizeof(experts) / sizeof(experts[0]) };

static void test_qwen3_moe(void **state)
{
    (void)state;
    compare("qwen3_moe", "cpu", 64, experts, N_EXPERTS);
}

static void test_qwen2_moe(void **state)
{
    (void)state;
    compare("qwen2_moe", "cpu", 5, experts, N_EXPERTS);
}

static void test_mixtral(void **state)
{
    static const char *const some[] = {"tp4 ep4", "tp2 pp2 ep2 sp", "tp4"};

    (void)state;
    compare("mixtral", "cpu", 33, some, 3);
}

static void test_gpt_oss(void **state)
{
    static const char *const some[] = {
        "tp2", "tp4", "tp4 ep4", "tp2 sp", "pp2", "tp2 pp2 ep2 sp", "tp4 sp", "tp2 pp2"};

    (void)state;
    compare("gpt_oss", "cpu", 33, some, sizeof(some) / sizeof(some[0]));
}

static void test_deepseek(void **state)
{
    static const char *const some[] = {
        "tp2", "tp4", "tp4 ep4", "tp2 sp", "pp2", "tp2 pp2 ep2 sp", "tp4 ep4 sp"};

    (void)state;
    compare("deepseek_v3", "cpu", 33, some, sizeof(some) / sizeof(some[0]));
}

/* Rows shared over ranks: by positions, by heads, by both; prompts in one piece and in
 * chunks, then, with a budget of few rows, decode. */
static const char *const context[] = {
    "cp2 allgather", "cp4 allgather",   "cp2 ring",          "cp3 ring",
    "cp4 ring",      "cp2 striped",     "cp4 striped",       "cp2 ulysses",
    "cp4 ulysses",   "cp4 usp cp_u2",   "cp2 tp2 ring",      "cp2 tp2 sp striped",
    "cp2 pp2 ring",  "cp2 tp2 ulysses", "cp4 usp cp_u2 pp2", "cp2 tp2 pp2 sp allgather",
};
static const char *const context_experts[] = {
    "cp2 ep2 ring",           "cp4 ep4 allgather",          "cp3 ep3 striped",
    "cp2 ep2 ulysses",        "cp4 ep4 usp cp_u2",          "cp2 tp2 ep4 ring",
    "cp2 tp2 ep4 sp striped", "cp2 tp2 pp2 ep4 sp ulysses", "cp2 pp2 ep2 ring"};
enum { N_CONTEXT_EXPERTS = sizeof(context_experts) / sizeof(context_experts[0]) };
enum { N_CONTEXT = sizeof(context) / sizeof(context[0]) };

/* Norms over the heads of all tp ranks; groups of ranks that share rows in turn. */
static const char *const full[] = {"tp2",
                                   "tp4",
                                   "tp2 sp",
                                   "tp4 ep4",
                                   "cp2 tp2 ep4 ulysses",
                                   "cp2 tp2 ep4 sp ring",
                                   "adp2 cp2 ep4 ring",
                                   "adp2 cp2 ep4 ulysses",
                                   "adp2 cp2 tp2 sp ep8 striped",
                                   "adp2 cp2 pp2 ep4 ring"};
enum { N_FULL = sizeof(full) / sizeof(full[0]) };

static void test_olmoe(void **state)
{
    (void)state;
    compare("olmoe", "cpu", 33, full, N_FULL);
    compare("olmoe", "cpu", 2, full, N_FULL);
    compare("olmoe", "far", 33, full + 3, 2);
}

static void test_latent_context(void **state)
{
    (void)state;
    compare("deepseek_v3", "cpu", SEQS * LEN, context_experts, N_CONTEXT_EXPERTS);
    compare("deepseek_v3", "cpu", 3, context_experts, N_CONTEXT_EXPERTS);
    compare("deepseek_v3", "cpu", 33, full + 6, 4);
    compare("deepseek_v3", "far", 33, full + 6, 2);
}

static void test_one_row_experts(void **state)
{
    static const char *const some[] = {"tp4 ep4", "tp4 ep4 sp"};

    (void)state;
    compare("qwen3_moe", "cpu", 1, some, 2); /* ranks without any row of their own */
}

/* Groups with sequences of their own, experts shared over all; a group may have none. */
static const char *const groups[] = {"adp2 ep2",        "adp2 tp2 ep4",
                                     "adp4 ep4",        "adp2 pp2 ep2",
                                     "adp2 tp2 sp ep4", "adp2 tp2 pp2 ep4"};

static void test_groups(void **state)
{
    (void)state;
    compare("qwen3_moe", "cpu", 64, groups, 6);
    compare("qwen3_moe", "cpu", 1, groups, 6); /* one group with a row, the others idle */
    compare("qwen2_moe", "cpu", 7, groups, 4);
    compare("qwen2_moe", "cpu", SEQS * LEN, groups, 4);
    compare("gpt_oss", "cpu", 33, groups, 4);
    compare("mixtral", "cpu", 33, groups, 4);
    compare("deepseek_v3", "cpu", 17, groups, 6); /* its first layers are dense */
    compare("qwen2_moe", "far", 16, groups, 2);
}

static void test_context(void **state)
{
    (void)state;
    compare("llama", "cpu", SEQS * LEN, context, N_CONTEXT);
    compare("qwen3", "cpu", 37, context, N_CONTEXT);
    compare("llama", "cpu", 4, context, N_CONTEXT);
    compare("qwen2_moe", "cpu", 64, context_experts, N_CONTEXT_EXPERTS);
    compare("gpt_oss", "cpu", 13, context_experts, N_CONTEXT_EXPERTS);
    compare("qwen3_moe", "cpu", 2, context_experts, N_CONTEXT_EXPERTS);
    compare("llama", "far", 16, context, 8);
}

static void test_one_row(void **state)
{
    static const char *const some[] = {"tp4 sp", "pp2", "tp2 pp2 sp"};

    (void)state;
    compare("llama", "cpu", 1, some, 3); /* members without any row of their own */
}

static void test_far(void **state)
{
    static const char *const some[] = {"tp2", "tp2 pp2 sp"};

    (void)state;
    compare("llama", "far", 16, some, 2);
    compare("qwen2_moe", "far", 16, (const char *const[]){"tp2 ep2"}, 1);
}

/* Experts' rows in chunks, over hosts, in two levels: not a bit differs. */
static void test_ways(void **state)
{
    static const struct {
        const char *layout;
        int chunks, per_host;
        bool flat;
    } ways[] = {{"tp4 ep4", 4, 0, false},    {"adp2 tp2 ep4", 4, 0, false},
                {"adp4 ep4", 2, 2, false},   {"tp4 ep4 sp", 2, 0, false},
                {"tp4 ep4", 1, 2, true},     {"tp4 ep4", 1, 2, false},
                {"tp4 ep4 sp", 4, 2, false}, {"tp4 pp2 ep4", 3, 3, false}};
    char dir[256];
    uint64_t cut[2] = {0};

    (void)state;
    make_tokens();
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct mesh_job job = job_of(dir, "cpu", 100);
        struct mesh_run *plain, *head, *r, *other;
        struct layout l;
        struct err e;

        rig_ok(layout_parse(ways[i].layout, &l, &e), &e);
        plain = mesh_run_all(ways[i].layout, &job, &head);
        all_ok(plain, layout_ranks(&l), ways[i].layout);
        job.chunks = ways[i].chunks;
        job.per_host = ways[i].per_host;
        job.flat = ways[i].flat;
        r = mesh_run_all(ways[i].layout, &job, &other);
        all_ok(r, layout_ranks(&l), ways[i].layout);
        if (memcmp(head->logits, other->logits,
                   sizeof(float) * SEQS * LEN * (size_t)head->n_vocab))
            fail_msg("%s in %d chunks, %d a host: not the same bits", ways[i].layout,
                     ways[i].chunks, ways[i].per_host);
        assert_true(ways[i].chunks == 1 ||
                    r[0].ep[COMM_ALL_TO_ALL].calls > plain[0].ep[COMM_ALL_TO_ALL].calls);
        for (int k = 0; k < 4 && (i == 4 || i == 5); k++)
            cut[i - 4] += r[k].ep[COMM_ALL_TO_ALL].cut_bytes;
        free(head->logits);
        free(other->logits);
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
    struct mesh_run *head, *r = mesh_run_all("tp4", &job, &head);
    all_ok(r, 4, "tp4");
    /* embedding, two all-reduces a layer (the last layer's are of output rows: all) */
    for (int i = 0; i < 4; i++)
        assert_int_equal(r[i].tp[COMM_ALL_REDUCE].bytes,
                         (1 + 2 * TINY_LAYERS) * 2 * 3 * s / 4);
    free(head->logits);
    free(r);

    r = mesh_run_all("tp4 sp", &job, &head);
    all_ok(r, 4, "tp4 sp");
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
    free(head->logits);
    free(r);

    r = mesh_run_all("pp2", &job, &head);
    all_ok(r, 2, "pp2");
    assert_int_equal(r[1].pp[COMM_RECV].bytes, s);
    assert_int_equal(r[1].pp[COMM_RECV].calls, 2); /* two micro-batches */
    free(head->logits);
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
    struct mesh_run *h1, *h4, *one = mesh_run_all("tp1", &job, &h1);
    struct mesh_run *r = mesh_run_all("tp2 pp2", &job, &h4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r[i].mem.kv_bytes * 4, one[0].mem.kv_bytes);
        assert_true(r[i].mem.weight_bytes < one[0].mem.weight_bytes * 0.45);
    }
    free(h1->logits);
    free(h4->logits);
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
    struct mesh_run *h1, *h4, *one = mesh_run_all("tp1", &job, &h1);
    struct mesh_run *r = mesh_run_all("adp4 ep4", &job, &h4);
    all_ok(r, 4, "adp4 ep4");
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r[i].mem.kv_bytes * 4, one[0].mem.kv_bytes);
        assert_true(r[i].mem.weight_bytes < one[0].mem.weight_bytes);
        assert_true(r[i].ep[COMM_ALL_TO_ALL].calls == r[0].ep[COMM_ALL_TO_ALL].calls);
    }
    free(h1->logits);
    free(h4->logits);
    free(one);
    free(r);
    tiny_remove(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_llama),          cmocka_unit_test(test_qwen3),
    cmocka_unit_test(test_qwen3_moe),      cmocka_unit_test(test_qwen2_moe),
    cmocka_unit_test(test_mixtral),        cmocka_unit_test(test_one_row_experts),
    cmocka_unit_test(test_groups),         cmocka_unit_test(test_context),
    cmocka_unit_test(test_gpt_oss),        cmocka_unit_test(test_deepseek),
    cmocka_unit_test(test_one_row),        cmocka_unit_test(test_far),
    cmocka_unit_test(test_refused),        cmocka_unit_test(test_bytes),
    cmocka_unit_test(test_group_memory),   cmocka_unit_test(test_memory),
    cmocka_unit_test(test_ways),           cmocka_unit_test(test_olmoe),
    cmocka_unit_test(test_latent_context),
};
TEST_MAIN("mesh", tests)

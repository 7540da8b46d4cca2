/* tests/unit/test_mesh8.c - six meshes of eight ranks run a few tokens, small enough for
 * the thread sanitizer: every kind of group, chunks and two levels among them. The best
 * token of each row is that of one rank, where it is clear. */
#include "tests/model/mesh_rig.h"

enum { LEN = 24, SEQS = 2 };

static int32_t toks[SEQS * LEN];

static struct mesh_job job_of(const char *dir)
{
    return (struct mesh_job){.model = dir,
                             .backend = "cpu",
                             .isa = "portable",
                             .kv = DT_F16,
                             .toks = toks,
                             .n_seq = SEQS,
                             .len = LEN,
                             .budget = SEQS * LEN,
                             .timeout_us = 300 * 1000000ll};
}

static void run_ok(const char *layout, const struct mesh_job *job, float **ret_logits,
                   int *ret_vocab)
{
    struct mesh_run *head, *r = mesh_run_all(layout, job, &head);
    struct layout l;
    struct err e;

    rig_ok(layout_parse(layout, &l, &e), &e);
    for (int i = 0; i < layout_ranks(&l); i++)
        if (r[i].rc < 0)
            fail_msg("%s: rank %d: %s", layout, i, r[i].e.msg);
    *ret_logits = head->logits;
    *ret_vocab = head->n_vocab;
    free(r);
}

static int best(const float *row, int n, float *ret_gap)
{
    float second = -INFINITY;
    int at = 0;

    for (int i = 1; i < n; i++)
        if (row[i] > row[at])
            at = i;
    for (int i = 0; i < n; i++)
        if (i != at && row[i] > second)
            second = row[i];
    *ret_gap = row[at] - second;
    return at;
}

static void same_choices(const float *a, const float *b, int n, const char *layout)
{
    int sure = 0;

    for (int r = 0; r < SEQS * LEN; r++, a += n, b += n) {
        float gap, other;
        int choice = best(a, n, &gap);

        if (gap < 1e-3f)
            continue;
        sure++;
        if (best(b, n, &other) != choice)
            fail_msg("%s: row %d chooses another token", layout, r);
    }
    assert_true(sure > SEQS * LEN / 2);
}

static void test_eight(void **state)
{
    static const struct {
        const char *layout;
        int chunks, per_host;
    } meshes[] = {{"tp4 pp2", 0, 0},
                  {"tp4 pp2 ep4 sp", 2, 0},
                  {"tp4 pp2 ep4", 2, 2},
                  {"cp4 pp2 ep4 ring", 0, 0},
                  {"cp2 tp2 pp2 ep4 sp ulysses", 0, 4},
                  {"cp4 pp2 ep4 usp cp_u2", 0, 0}};
    uint64_t rng = test_seed() + 9;
    char dir[256];
    float *one, *many;
    int n;

    (void)state;
    for (int i = 0; i < SEQS * LEN; i++)
        toks[i] = (int32_t)(test_rand(&rng) % 256);
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    struct mesh_job job = job_of(dir);
    run_ok("tp1", &job, &one, &n);
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++) {
        job.chunks = meshes[i].chunks;
        job.per_host = meshes[i].per_host;
        run_ok(meshes[i].layout, &job, &many, &n);
        same_choices(one, many, n, meshes[i].layout);
        free(many);
    }
    free(one);
    tiny_remove(dir);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_eight)};
TEST_MAIN("mesh8", tests)

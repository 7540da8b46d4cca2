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

static void test_eight(void **state)
{
    static const struct {
        const char *layout;
        int chunks, per_host;
    } meshes[] = {{"tp4 pp2", 0, 0},
                  {"tp4 pp2 ep4 sp", 2, 0},
                  {"tp4 pp2 ep4", 2, 2},
                  {"adp2 cp2 tp2 ep8 ring", 0, 0},
                  {"cp2 tp2 pp2 ep4 sp ulysses", 0, 4},
                  {"cp4 pp2 ep4 usp cp_u2", 0, 0}};
    char dir[256];
    float *one, *many;
    int n;

    (void)state;
    mesh_tokens(toks, SEQS * LEN, test_seed() + 9);
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    struct mesh_job job = job_of(dir);
    one = mesh_logits("tp1", &job, &n);
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++) {
        job.chunks = meshes[i].chunks;
        job.per_host = meshes[i].per_host;
        many = mesh_logits(meshes[i].layout, &job, NULL);
        if (mesh_others(one, many, SEQS * LEN, n, 1e-3f))
            fail_msg("%s: a row chooses another token", meshes[i].layout);
        free(many);
    }
    free(one);
    tiny_remove(dir);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_eight)};
TEST_MAIN("mesh8", tests)

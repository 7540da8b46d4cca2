/* tests/model/test_ledger_meshes.c - no rank of a mesh holds more than the ledger says of
 * the fullest one: weights, KV, scratch and buffers together, by families of every kind
 * of attention and experts. (How near it is, on a model whose sizes are no multiple of
 * any padding's loss: test_ledger_cpu.c.) */
#include "tests/model/mesh_rig.h"

#include "daemon/ctrl/capacity.h"
#include "topo/ledger.h"

enum { LEN = 16, OUTS = 16 };

#define ROOM 1.01 /* latents of 40 values are padded to 48 here */

static int32_t toks[LEN];

static double held_by(const struct backend_mem *m)
{
    return (double)(m->weight_bytes + m->kv_bytes + m->scratch_bytes + m->other_bytes);
}

static double counted(const struct shapes *s, const struct layout *l)
{
    struct ledger_ask a;
    struct ledger g;

    ledger_ask_defaults(&a, 8e9, true);
    a.ctx = RIG_CTX * (l->cp / layout_cp_heads(l)); /* of as many blocks */
    a.seqs = RIG_SEQS;
    a.outs = OUTS;
    a.budget = RIG_ROWS;
    ledger_count(s, l, &a, &g);
    return g.total - g.margin - g.context;
}

static void family(const char *name, const char *const *layouts)
{
    char dir[256];
    struct shapes s;
    struct err e = {0};

    tiny_size = (struct tiny_size){.layers = 4, .heads = 8, .kv_heads = 4};
    mesh_tokens(toks, LEN, test_seed());
    snprintf(dir, sizeof(dir), "%s", tiny_model(name, test_seed()));
    rig_ok(capacity_shapes_of(dir, &s, &e), &e);
    for (; *layouts; layouts++) {
        struct mesh_job job = {.model = dir,
                               .backend = "cpu",
                               .isa = "portable",
                               .kv = DT_F16,
                               .toks = toks,
                               .n_seq = 1,
                               .len = LEN,
                               .budget = LEN};
        struct layout l;
        float *logits;
        double said, most = 0;

        rig_ok(layout_parse(*layouts, &l, &e), &e);
        struct mesh_run *r = mesh_run_ok(*layouts, &job, &logits, NULL);
        said = counted(&s, &l);
        for (int k = 0; k < layout_ranks(&l); k++)
            most = fmax(most, held_by(&r[k].mem));
        printf("# %-12s %-28s %.2f of %.2f MB\n", name, *layouts, 1e-6 * most,
               1e-6 * said);
        if (!(most <= ROOM * said))
            fail_msg("%s %s: a rank holds %.2f MB, the ledger says %.2f", name, *layouts,
                     1e-6 * most, 1e-6 * said);
        free(logits);
        free(r);
    }
    tiny_remove(dir);
}

static void test_dense(void **state)
{
    static const char *const layouts[] = {
        "tp1",      "tp2",         "tp8",           "tp2 sp",        "pp2",
        "cp2 ring", "cp4 ulysses", "cp4 usp cp_u2", "cp4 allgather", "cp2 tp2 striped",
        NULL};

    (void)state;
    family("llama", layouts);
}

static void test_experts(void **state)
{
    static const char *const layouts[] = {"tp1",
                                          "tp2",
                                          "tp2 sp ep2",
                                          "tp8 ep8",
                                          "tp2 pp2 ep2",
                                          "adp4 ep4",
                                          "adp2 tp2 ep4",
                                          "adp2 tp2 ep2",
                                          "cp2 ep2 ring",
                                          "cp4 ep4 ulysses",
                                          "cp4 ep4 usp cp_u2",
                                          "adp2 cp2 ep4 ring",
                                          "adp2 cp2 tp2 sp ep4 ulysses",
                                          NULL};

    (void)state;
    family("qwen2_moe", layouts); /* with a shared expert */
    family("gpt_oss", layouts);
    family("deepseek_v3", layouts);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense),
                                          cmocka_unit_test(test_experts)};
TEST_MAIN("ledger_meshes", tests)

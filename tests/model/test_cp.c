/* tests/model/test_cp.c - rows shared over ranks: the ways of attention give the same
 * bits, as do chunks of any size, and what travels is what the formulas say. (That they
 * give what one rank gives is shown for short contexts in test_mesh.c, for long ones
 * here.) */
#include "tests/model/mesh_rig.h"
#include "topo/formula.h"

enum { LONG = 560, SEQS = 2 };

static int32_t toks[SEQS * LONG];
static char dir[256];

static const char *isa = "portable";
static enum dtype kv = DT_F16;

static struct mesh_job job_of(int n_seq, int len, int budget)
{
    return (struct mesh_job){.model = dir,
                             .backend = "cpu",
                             .isa = isa,
                             .kv = kv,
                             .toks = toks,
                             .n_seq = n_seq,
                             .len = len,
                             .budget = budget};
}

static void begin(const char *family)
{
    mesh_tokens(toks, SEQS * LONG, test_seed() + 11);
    snprintf(dir, sizeof(dir), "%s", tiny_model(family, test_seed()));
}

static float *logits_of(const char *layout, int budget)
{
    struct mesh_job job = job_of(SEQS, LONG, budget);

    return mesh_logits(layout, &job, NULL);
}

static void same_bits(const float *want, const char *layout, int budget)
{
    float *got = logits_of(layout, budget);

    if (memcmp(got, want, sizeof(float) * SEQS * LONG * TINY_VOCAB))
        fail_msg("%s, %d rows a step: other bits", layout, budget);
    free(got);
}

static void near(const float *want, const float *got, const char *layout, double most)
{
    double error = mesh_error(want, got, (size_t)SEQS * LONG * TINY_VOCAB);

    if (!(error < most))
        fail_msg("%s: normalised error %g", layout, error);
}

/* One family: one rank, all by heads, and for 2 and 4 ranks that share positions every
 * way, in chunks of several sizes. */
static void family(const char *name)
{
    static const struct {
        const char *first, *others[4];
    } sets[] = {
        {"cp4 allgather", {"cp4 ring", "cp4 pp2 ring", NULL}},
        {"cp2 ring", {"cp2 allgather", "cp4 usp cp_u2", NULL}},
        {"cp3 striped", {NULL}},
    };
    float *one, *first;

    begin(name);
    one = logits_of("tp1", RIG_ROWS);
    same_bits(one, "cp2 ulysses", RIG_ROWS);
    same_bits(one, "cp4 ulysses", 100); /* KV heads stand on two ranks each */
    for (size_t s = 0; s < sizeof(sets) / sizeof(sets[0]); s++) {
        first = logits_of(sets[s].first, RIG_ROWS);
        near(one, first, sets[s].first, 1e-4);
        same_bits(first, sets[s].first, 77);
        same_bits(first, sets[s].first, 4); /* all rows go to the KV: decode */
        for (int i = 0; sets[s].others[i]; i++)
            same_bits(first, sets[s].others[i], i ? 200 : RIG_ROWS);
        free(first);
    }
    free(one);
    tiny_remove(dir);
}

static void test_dense(void **state)
{
    (void)state;
    family("qwen3");
}

/* Sinks in the merge, windows that leave ranks without any position to see. Only its
 * attention is looked at: experts stand apart with cp. */
static void test_windows_and_sinks(void **state)
{
    float *one, *got;

    (void)state;
    begin("gpt_oss");
    one = logits_of("tp1", RIG_ROWS);
    got = logits_of("cp3 ep3 ring", RIG_ROWS);
    near(one, got, "cp3 ep3 ring", 1e-4);
    same_bits(got, "cp3 ep3 allgather", 3);
    free(got);
    got = logits_of("cp2 ep2 striped", RIG_ROWS);
    near(one, got, "cp2 ep2 striped", 1e-4);
    free(got);
    free(one);
    tiny_remove(dir);
}

/* A latent goes every way, as K and V do. */
static void test_latent(void **state)
{
    static const char *const other[] = {"cp3 ep3 allgather", "cp3 ep3 ring"};
    float *one, *got;

    (void)state;
    begin("deepseek_v3");
    one = logits_of("tp1", RIG_ROWS);
    got = logits_of("cp3 ep3 ring", RIG_ROWS);
    near(one, got, "cp3 ep3 ring", 1e-4);
    for (int i = 0; i < 2; i++)
        same_bits(got, other[i], i ? 77 : 3); /* chunks; all rows go to the KV */
    free(got);
    got = logits_of("cp2 ep2 striped", 100);
    near(one, got, "cp2 ep2 striped", 1e-4);
    free(got);
    got = logits_of("cp4 ep4 ulysses", 100);
    near(one, got, "cp4 ep4 ulysses", 1e-4);
    same_bits(got, "cp4 ep4 ulysses", 4);
    free(got);
    got = logits_of("cp4 ep4 usp cp_u2", 100);
    near(one, got, "cp4 ep4 usp cp_u2", 1e-4);
    free(got);
    free(one);
    tiny_remove(dir);
}

/* The kernels that this machine takes; in BF16 the weights of positions are rounded by
 * their parts' maxima. */
static void test_kernels(void **state)
{
    (void)state;
    begin("llama");
    isa = "auto";
    for (int bf16 = 0; bf16 < 2; bf16++) {
        kv = bf16 ? DT_BF16 : DT_F16;
        float *one = logits_of("tp1", RIG_ROWS), *got = logits_of("cp3 ring", RIG_ROWS);
        near(one, got, bf16 ? "bf16" : "f16", bf16 ? 5e-3 : 1e-3);
        same_bits(got, "cp3 allgather", 4);
        free(one);
        free(got);
    }
    isa = "portable";
    kv = DT_F16;
    tiny_remove(dir);
}

/* ---- bytes ---- */

enum { N = 256, P = 4 }; /* one prompt, P ranks */

static const double head = TINY_HEAD_DIM, q_row = TINY_HEADS * TINY_HEAD_DIM * 4;

static void sums_to(const char *layout, uint64_t got, double want)
{
    if ((double)got != want)
        fail_msg("%s: %llu bytes, and should be %g", layout, (unsigned long long)got,
                 want);
}

/* Output rows come together in the last stage: x and attention of all rows. */
static double outs(int rows)
{
    return formula_all_gather(P, rows * (TINY_EMBD * 4 + q_row));
}

/* A prompt: K and V of all other ranks' positions, (p-1)/p S a layer, by either way. */
static void test_prompt_bytes(void **state)
{
    double s = N * 2.0 * TINY_KV_HEADS * head * 2; /* K and V in f16 */
    struct mesh_job job;
    struct mesh_run *r;
    float *logits;

    (void)state;
    begin("llama");
    job = job_of(1, N, N);
    r = mesh_run_ok("cp4 allgather", &job, &logits, NULL);
    for (int i = 0; i < P; i++)
        sums_to("cp4 allgather", r[i].cp[COMM_ALL_GATHER].bytes,
                TINY_LAYERS * formula_all_gather(P, s) + outs(N));
    free(logits);
    free(r);
    for (int striped = 0; striped < 2; striped++) {
        const char *layout = striped ? "cp4 striped" : "cp4 ring";
        r = mesh_run_ok(layout, &job, &logits, NULL);
        for (int i = 0; i < P; i++) {
            sums_to(layout, r[i].cp[COMM_RECV].bytes,
                    TINY_LAYERS * formula_all_gather(P, s));
            assert_int_equal(r[i].cp[COMM_RECV].calls, TINY_LAYERS * (P - 1));
            sums_to(layout, r[i].cp[COMM_ALL_GATHER].bytes, outs(N));
        }
        free(logits);
        free(r);
    }
    tiny_remove(dir);
}

/* Heads in place of positions: q, k, v of a rank's heads come from the p-1 others' rows,
 * its rows' results from the p-1 others' heads. */
static void test_heads_bytes(void **state)
{
    enum { U = 2 };
    double row = (TINY_HEADS + 2 * TINY_KV_HEADS) / U * head * 4;
    struct mesh_job job;
    struct mesh_run *r;
    float *logits;

    (void)state;
    begin("llama");
    job = job_of(1, N, N);
    r = mesh_run_ok("cp2 ulysses", &job, &logits, NULL);
    for (int i = 0; i < U; i++)
        sums_to("cp2 ulysses", r[i].cp_u[COMM_ALL_TO_ALL].bytes,
                TINY_LAYERS * (formula_all_gather(U, N * row) +
                               formula_all_gather(U, N / U * q_row)));
    free(logits);
    free(r);
    tiny_remove(dir);
}

/* Sequence parallel within a ring: the tp ranks' gathers and scatters are those of the
 * rank's own rows, 1/c of the sequence; together 4 (p-1)/p of these a layer. */
static void test_sp_bytes(void **state)
{
    enum { C = 2, TP = 2 };
    double s = N / C * TINY_EMBD * 4.0;
    struct mesh_job job;
    struct mesh_run *r;
    float *logits;

    (void)state;
    begin("llama");
    job = job_of(1, N, N);
    r = mesh_run_ok("cp2 tp2 sp ring", &job, &logits, NULL);
    for (int i = 0; i < C * TP; i++) /* the last layer's second half is of output rows */
        sums_to("cp2 tp2 sp", r[i].tp[COMM_REDUCE_SCATTER].bytes,
                (1 + 2 * (TINY_LAYERS - 1)) * formula_all_gather(TP, s));
    free(logits);
    free(r);
    tiny_remove(dir);
}

/* A decoded token: its q goes out, a part comes back from each, whatever the context. */
static void test_decode_bytes(void **state)
{
    double part = TINY_HEADS * (head + 2) * 4, s = N * 2.0 * TINY_KV_HEADS * head * 2;
    struct mesh_job job;
    struct mesh_run *r;
    float *logits;

    (void)state;
    begin("llama");
    job = job_of(1, N + 1, N); /* position N is on rank 0 */
    r = mesh_run_ok("cp4 allgather", &job, &logits, NULL);
    for (int i = 0; i < P; i++) {
        double q = i ? TINY_LAYERS * q_row + TINY_EMBD * 4 + q_row : 0;
        sums_to("decode: q", r[i].cp[COMM_ALL_GATHER].bytes,
                TINY_LAYERS * formula_all_gather(P, s) + outs(N) + q);
        sums_to("decode: parts", r[i].cp[COMM_ALL_TO_ALL].bytes,
                i ? 0 : TINY_LAYERS * (P - 1) * part);
    }
    free(logits);
    free(r);
    tiny_remove(dir);
}

/* ---- memory, refusals ---- */

/* Of a pool for so many positions each rank holds its share. */
static void test_memory(void **state)
{
    struct mesh_job job;
    struct mesh_run *r;
    float *logits;
    size_t one;

    (void)state;
    begin("llama");
    job = job_of(1, 64, 64);
    r = mesh_run_ok("tp1", &job, &logits, NULL);
    one = r->mem.kv_bytes;
    free(logits);
    free(r);
    r = mesh_run_ok("cp2 ulysses", &job, &logits, NULL);
    assert_int_equal(r->mem.kv_bytes * 2, one);
    free(logits);
    free(r);
    r = mesh_run_ok("cp4 ring", &job, &logits, NULL);
    assert_int_equal(r->mem.kv_bytes, one); /* of blocks that stand for four times as */
    free(logits);                           /* many positions */
    free(r);
    const struct forward_part p = {.cp = 4};
    assert_int_equal(forward_block_tok(&p), 4 * KV_BLOCK_TOK);
    tiny_remove(dir);
}

static void refused(const char *layout, const char *why)
{
    struct mesh_job job = job_of(1, 16, 16);
    struct mesh_run *h, *r = mesh_run_all(layout, &job, &h);

    assert_int_equal(r->rc, -1);
    if (!strstr(r->e.msg, why))
        fail_msg("%s: '%s' does not say '%s'", layout, r->e.msg, why);
    free(h->logits);
    free(r);
}

static void test_refused(void **state)
{
    (void)state;
    begin("mixtral");
    refused("cp2", "ep 1 with tp 1, cp 2 and adp 1: the engine runs experts over all of");
    refused("cp3 ep3 ulysses",
            "over 3 cp ranks does not divide a rank's 4 attention heads");
    tiny_remove(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_dense),        cmocka_unit_test(test_windows_and_sinks),
    cmocka_unit_test(test_prompt_bytes), cmocka_unit_test(test_heads_bytes),
    cmocka_unit_test(test_sp_bytes),     cmocka_unit_test(test_decode_bytes),
    cmocka_unit_test(test_memory),       cmocka_unit_test(test_kernels),
    cmocka_unit_test(test_refused),      cmocka_unit_test(test_latent),
};
TEST_MAIN("cp", tests)

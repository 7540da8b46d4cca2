/* Row invariance of whole forward passes, bit for bit: logits and KV of a sequence alone,
 * beside seven others, in chunks, on one thread or two, on backend far; on a tiny model
 * and on the demo model. With --dump this binary is the tool of
 * tests/model/test_model.py:
 *
 *   test_forward --dump MODEL BACKEND ISA KV THREADS BUDGET  < ids  > logits
 *
 * ids: int32 count, then that many ids, again and again; logits: f32 [count, n_vocab] of
 * each. KV is auto, f16 or bf16. */
#include "tests/model/rig.h"

static const char *const isas[] = {"portable", "avx2", "avx512"};

static void random_tokens(int32_t *toks, int n, int n_vocab, uint64_t seed)
{
    uint64_t rng = seed * 1000003 + 17;

    for (int i = 0; i < n; i++)
        toks[i] = (int32_t)(test_rand(&rng) % (uint64_t)n_vocab);
}

/* What one run gave, to be compared with another's. */
struct shot {
    float *logits;
    uint16_t *kv;
    size_t n_logits, n_kv;
};

static struct shot take(const struct rig *r, int s, int n)
{
    struct shot o = {.n_logits = (size_t)n * (size_t)r->n_vocab};

    o.logits = malloc(o.n_logits * sizeof(float));
    memcpy(o.logits, r->logits[s], o.n_logits * sizeof(float));
    o.kv = rig_kv(r, s, n, &o.n_kv);
    return o;
}

static void same(const struct shot *a, const struct shot *b, const char *what)
{
    assert_int_equal(a->n_logits, b->n_logits);
    if (memcmp(a->logits, b->logits, a->n_logits * sizeof(float)))
        fail_msg("%s: logits differ in some bit", what);
    if (a->kv && b->kv && memcmp(a->kv, b->kv, a->n_kv * sizeof(uint16_t)))
        fail_msg("%s: KV differs in some bit", what);
}

static void drop(struct shot *a)
{
    free(a->logits);
    free(a->kv);
}

static void check_and_drop(const struct rig *r, int s, int n, const struct shot *want,
                           const char *what)
{
    struct shot got = take(r, s, n);

    for (size_t i = 0; i < got.n_logits; i++)
        if (!isfinite(got.logits[i]))
            fail_msg("%s: logit %zu is not finite", what, i);
    same(want, &got, what);
    drop(&got);
}

/* Seven neighbours of odd lengths, prefilled and decoding in one step with ours. */
static void run_beside_others(struct rig *r, const int32_t *toks, int n)
{
    static int32_t other[RIG_SEQS][RIG_CTX];

    for (int s = 1; s < RIG_SEQS; s++) {
        random_tokens(other[s], RIG_CTX, r->n_vocab, 100 + (uint64_t)s);
        rig_feed(r, s, other[s], 7 + 13 * s, 64);
    }
    while (r->len[0] < n) {
        int left = n - r->len[0], mine = 1 + r->len[0] % 23;
        for (int s = 4; s < RIG_SEQS; s++)
            rig_add(r, s, other[s], 1 + (s + r->len[0]) % 3);
        rig_add(r, 0, toks, left < mine ? left : mine);
        for (int s = 1; s < 4; s++)
            rig_add(r, s, other[s], 1);
        rig_run(r);
    }
}

static void invariance(const char *model, const char *isa, int n)
{
    static const int budgets[] = {16, 64, 512, 1, 37};
    static const struct {
        const char *backend;
        int threads;
    } machines[] = {{"cpu", 1}, {"cpu", 2}, {"cpu", 3}, {"far", 2}};
    int32_t toks[RIG_CTX];
    struct shot want = {0};
    struct rig r;

    for (size_t m = 0; m < 4; m++) {
        const struct rig_cfg c = {model, machines[m].backend, isa, DT_COUNT,
                                  machines[m].threads};
        char what[64];
        if (!rig_open(&r, &c))
            return;
        random_tokens(toks, n, r.n_vocab, test_seed());
        for (size_t b = 0; b < (m == 0 ? 5 : 2); b++) {
            rig_restart(&r);
            rig_feed(&r, 0, toks, n, budgets[b]);
            if (!want.logits)
                want = take(&r, 0, n);
            snprintf(what, sizeof(what), "%s %s, %d threads, chunks of %d", c.backend,
                     isa, c.threads, budgets[b]);
            check_and_drop(&r, 0, n, &want, what);
        }
        rig_restart(&r);
        run_beside_others(&r, toks, n);
        snprintf(what, sizeof(what), "%s %s, %d threads, beside others", c.backend, isa,
                 c.threads);
        check_and_drop(&r, 0, n, &want, what);
        rig_close(&r);
    }
    drop(&want);
}

static void test_invariance_tiny(void **state)
{
    (void)state;
    static const char *const families[] = {"llama", "qwen3"};

    for (size_t f = 0; f < 2; f++) {
        char dir[256];
        snprintf(dir, sizeof(dir), "%s", tiny_model(families[f], test_seed()));
        for (size_t i = 0; i < 3; i++)
            invariance(dir, isas[i], 600); /* over two splits of attention */
        tiny_remove(dir);
    }
}

static void test_invariance_demo(void **state)
{
    (void)state;

    invariance(test_demo_model(), "auto", 80);
}

/* Blocks copied by a step that has no items hold what they held. */
static void test_copies(void **state)
{
    (void)state;
    char dir[256];
    struct rig r;
    int32_t toks[64];

    snprintf(dir, sizeof(dir), "%s", tiny_model("llama", test_seed()));
    const struct rig_cfg c = {dir, "cpu", "auto", DT_F16, 1};
    assert_true(rig_open(&r, &c));
    random_tokens(toks, 64, r.n_vocab, 5);
    rig_feed(&r, 0, toks, 48, 64);
    struct shot want = take(&r, 0, 48);
    /* sequence 1 gets copies of the blocks of 0 */
    r.st->n_copies = 3;
    for (int i = 0; i < 3; i++)
        step_copies(r.st)[i] = (struct step_copy){rig_block(0, i), rig_block(1, i)};
    rig_run(&r);
    r.logits[1] = malloc(sizeof(float) * RIG_CTX * (size_t)r.n_vocab);
    memcpy(r.logits[1], r.logits[0], want.n_logits * sizeof(float));
    check_and_drop(&r, 1, 48, &want, "copied blocks");
    drop(&want);
    rig_close(&r);
    tiny_remove(dir);
}

static void refused(struct rig *r, const char *what)
{
    struct err e = {0};

    if (forward_run(r->f, r->st, rig_sink, r, &e) == 0 || !e.msg[0])
        fail_msg("%s was not refused", what);
    step_clear(r->st);
}

static void test_bad_steps(void **state)
{
    (void)state;
    char dir[256];
    struct rig r;
    int32_t toks[64] = {0};

    snprintf(dir, sizeof(dir), "%s", tiny_model("llama", test_seed()));
    const struct rig_cfg c = {dir, "far", "auto", DT_BF16, 1};
    assert_true(rig_open(&r, &c));
    rig_add(&r, 0, toks, 4);
    step_toks(r.st)[2] = r.n_vocab;
    refused(&r, "an id over the vocabulary");
    rig_add(&r, 0, toks, 4);
    step_toks(r.st)[1] = STEP_TOK_REF;
    refused(&r, "a token that is not known yet");
    rig_add(&r, 0, toks, 20);
    step_blocks(r.st)[1] = RIG_BLOCKS;
    refused(&r, "a block over the arena");
    rig_add(&r, 0, toks, 20);
    step_blocks(r.st)[0] = -1;
    refused(&r, "no block without a window");
    rig_add(&r, 0, toks, 20);
    step_items(r.st)[0].n_block = 1;
    refused(&r, "too few blocks");
    rig_add(&r, 0, toks, 2);
    step_items(r.st)[0].first_pos = RIG_CTX - 1;
    step_items(r.st)[0].n_block = RIG_CTX;
    refused(&r, "a position over the context");
    r.st->n_copies = 1;
    step_copies(r.st)[0] = (struct step_copy){0, RIG_BLOCKS};
    refused(&r, "a copy to a block over the arena");
    rig_feed(&r, 0, toks, 40, 64); /* it still works */
    rig_close(&r);
    tiny_remove(dir);
}

static bool stop_at_half(void *arg, double done)
{
    int *calls = arg;

    (*calls)++;
    return done < 0.5;
}

static void test_canceled_loading(void **state)
{
    (void)state;
    char dir[256];
    struct err e = {0};
    struct model *m;
    struct backend *b;
    struct forward *f;
    int calls = 0;
    struct forward_cfg fc = {.max_rows = 64,
                             .max_items = 4,
                             .max_ctx = 256,
                             .max_outs = 4,
                             .max_copies = 1,
                             .kv_type = DT_F16,
                             .n_blocks = 64};
    struct backend_cfg bc = {.name = "cpu", .n_threads = 1, .isa = "auto"};

    snprintf(dir, sizeof(dir), "%s", tiny_model("llama", test_seed()));
    rig_ok(model_open(dir, &m, &e), &e);
    forward_caps(model_info(m), &fc, &bc.caps);
    rig_ok(backend_open(&bc, &b, &e), &e);
    assert_int_equal(forward_new(b, m, &fc, stop_at_half, &calls, &f, &e), -1);
    assert_int_equal(e.code, ERR_CANCELED);
    assert_true(calls > 1);
    backend_close(b);
    model_free(m);
    tiny_remove(dir);
}

/* ---- the tool ---- */

static int dump(char **a)
{
    const struct rig_cfg c = {a[0], a[1], a[2],
                              !strcmp(a[3], "f16")    ? DT_F16
                              : !strcmp(a[3], "bf16") ? DT_BF16
                                                      : DT_COUNT,
                              atoi(a[4])};
    int32_t n, toks[RIG_CTX];
    struct rig r;

    if (!rig_open(&r, &c))
        return 3;
    while (fread(&n, sizeof(n), 1, stdin) == 1) {
        if (n < 1 || n > RIG_CTX ||
            fread(toks, sizeof(*toks), (size_t)n, stdin) != (size_t)n)
            return 2;
        rig_restart(&r);
        rig_feed(&r, 0, toks, n, atoi(a[5]));
        fwrite(r.logits[0], sizeof(float), (size_t)n * (size_t)r.n_vocab, stdout);
        fflush(stdout);
    }
    rig_close(&r);
    return 0;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_invariance_tiny),  cmocka_unit_test(test_invariance_demo),
    cmocka_unit_test(test_copies),           cmocka_unit_test(test_bad_steps),
    cmocka_unit_test(test_canceled_loading),
};

int main(int argc, char **argv)
{
    if (argc == 8 && !strcmp(argv[1], "--dump"))
        return dump(argv + 2);
    return test_main(argc, argv, "forward", tests, sizeof(tests) / sizeof(tests[0]));
}

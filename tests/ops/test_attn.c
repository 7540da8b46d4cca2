/* tests/ops/test_attn.c - attention and the KV arena: every instruction set against a
 * float64 evaluation of the definition, and row invariance by memcmp.
 *
 * The formulas here know nothing of blocks, splits or vectors. Bounds are normalised mean
 * squared errors, worst row: F16 and f32 arithmetic are near 1e-8; with BF16 in the cache
 * a value near a rounding border may fall to the other side (1e-7); AVX-512 rounds q and
 * the weights to BF16 too (1e-5). */
#include "tests/ops/rig.h"

#include <sys/mman.h>

static const char *const isas[] = {"portable", "avx2", "avx512"};

/* Those of them that this machine has. */
static int n_isas(void) { return (int)cpu_isa_best() + 1; }

/* ---- float64 definition of rope + attention ---- */

static void ref_rope(const struct feed *f, const float *x, int pos, const float *norm,
                     double *out)
{
    int d = f->sh.dim, half = f->sh.rot / 2;
    double ss = 0;

    for (int i = 0; i < d; i++)
        ss += (double)x[i] * (double)x[i];
    for (int i = 0; i < d; i++)
        out[i] = norm ? (double)x[i] / sqrt(ss / d + (double)1e-5f) * (double)norm[i]
                      : (double)x[i];
    for (int j = 0; j < half; j++) {
        int a = f->sh.neox ? j : 2 * j, b = f->sh.neox ? j + half : 2 * j + 1;
        double t = (double)pos * (double)feed_freq(j, f->sh.rot);
        double xa = out[a], xb = out[b];
        out[a] = xa * cos(t) - xb * sin(t);
        out[b] = xa * sin(t) + xb * cos(t);
    }
}

static double ref_round(enum dtype t, double x)
{
    if (t == DT_F32)
        return (double)(float)x;
    return t == DT_BF16 ? (double)bf16_to_f32(f32_to_bf16((float)x))
                        : (double)f16_to_f32(f32_to_f16((float)x));
}

struct ref_seq {
    float *q;
    double *k, *v; /* [pos][kv_head * dim], rounded as stored */
};

static void ref_seq_make(const struct feed *f, int seq, struct ref_seq *rs)
{
    int d = f->sh.dim, qc = f->sh.n_head * d, kc = f->sh.n_kv_head * d, len = f->len[seq];
    float *k = malloc(sizeof(float) * (size_t)kc),
          *v = malloc(sizeof(float) * (size_t)kc);
    float norm[512];

    feed_norm(f, norm, 1);
    rs->q = malloc(sizeof(float) * (size_t)(qc * len));
    rs->k = malloc(sizeof(double) * (size_t)(kc * len));
    rs->v = malloc(sizeof(double) * (size_t)(kc * len));
    for (int p = 0; p < len; p++) {
        feed_row(f, seq, p, rs->q + (size_t)(p * qc), k, v);
        for (int h = 0; h < f->sh.n_kv_head; h++)
            ref_rope(f, k + h * d, p, f->sh.norm ? norm : NULL, rs->k + p * kc + h * d);
        for (int i = 0; i < kc; i++) {
            rs->k[p * kc + i] = ref_round(f->sh.type, rs->k[p * kc + i]);
            rs->v[p * kc + i] = ref_round(f->sh.type, (double)v[i]);
        }
    }
    free(k);
    free(v);
}

static void ref_seq_done(struct ref_seq *rs)
{
    free(rs->q);
    free(rs->k);
    free(rs->v);
}

static void ref_attn(const struct feed *f, const struct ref_seq *rs, int pos, int head,
                     double *out)
{
    int d = f->sh.dim, qc = f->sh.n_head * d, kc = f->sh.n_kv_head * d;
    int kv = head / (f->sh.n_head / f->sh.n_kv_head);
    int from = f->sh.window && pos >= f->sh.window ? pos - f->sh.window + 1 : 0;
    double q[512], s[MAX_LEN], max = -INFINITY, sum = 0;
    float norm[512];

    feed_norm(f, norm, 0);
    ref_rope(f, rs->q + pos * qc + head * d, pos, f->sh.norm ? norm : NULL, q);
    for (int t = from; t <= pos; t++) {
        s[t] = 0;
        for (int i = 0; i < d; i++)
            s[t] += q[i] * rs->k[t * kc + kv * d + i];
        s[t] /= sqrt(d);
        max = fmax(max, s[t]);
    }
    memset(out, 0, sizeof(double) * (size_t)d);
    for (int t = from; t <= pos; t++) {
        double w = exp(s[t] - max);
        sum += w;
        for (int i = 0; i < d; i++)
            out[i] += w * rs->v[t * kc + kv * d + i];
    }
    for (int i = 0; i < d; i++)
        out[i] /= sum;
}

/* Error of some rows of a fed sequence, the last one included. */
static double feed_error(const struct feed *f, int seq, int step)
{
    int d = f->sh.dim, qc = f->sh.n_head * d;
    struct ref_seq rs;
    double worst = 0, out[512];

    ref_seq_make(f, seq, &rs);
    for (int p = f->len[seq] - 1; p >= 0; p -= step)
        for (int h = 0; h < f->sh.n_head; h++) {
            double err;
            ref_attn(f, &rs, p, h, out);
            err = rig_nmse(f->y[seq] + p * qc + h * d, out, (size_t)d);
            worst = err > worst ? err : worst;
        }
    ref_seq_done(&rs);
    return worst;
}

/* ---- attention and rope ---- */

static const struct shape shapes[] = {
    {9, 3, 64, 64, true, false, 0, DT_BF16},  {9, 3, 64, 64, true, false, 0, DT_F16},
    {8, 2, 128, 128, true, true, 0, DT_BF16}, {8, 1, 80, 32, false, false, 0, DT_BF16},
    {4, 4, 96, 96, false, false, 0, DT_F16},  {7, 7, 33, 20, true, false, 0, DT_BF16},
    {6, 2, 7, 6, false, true, 0, DT_F16},     {4, 2, 64, 64, true, false, 50, DT_BF16},
    {4, 2, 64, 64, true, false, 300, DT_F16}, {16, 1, 16, 16, true, false, 0, DT_BF16},
    {4, 1, 112, 112, true, false, 0, DT_F16}, {4, 2, 33, 20, true, true, 50, DT_F32},
};

/* The portable kernel is slow: on it the small shapes, and the demo model's once. */
static bool in_time(int isa, size_t c, bool once)
{
    return isa > CPU_ISA_PORTABLE || shapes[c].dim < 40 || (once && c == 0);
}

static void test_attn_formula(void **state)
{
    static const int len[] = {1, 17, 300, 529};

    (void)state;
    for (int i = 0; i < n_isas(); i++)
        for (size_t c = 0; c < sizeof(shapes) / sizeof(shapes[0]); c++) {
            bool rounds = shapes[c].type == DT_BF16 && !strcmp(isas[i], "avx512");
            double bound = rounds ? 3e-4 : shapes[c].type == DT_BF16 ? 2e-6 : 1e-7;
            struct rig r;
            struct feed f;

            if (!in_time(i, c, true))
                continue;
            rig_open(&r, "cpu", isas[i], 2, 2048);
            feed_open(&f, &r, shapes[c], test_seed() + c, 4, len);
            feed_all(&f, 101, true);
            for (int s = 0; s < 4; s++) {
                double err = feed_error(&f, s, 37);
                if (!(err < bound))
                    fail_msg("%s, shape %zu, sequence %d: error %g over %g", isas[i], c,
                             s, err, bound);
            }
            feed_close(&f);
            rig_close(&r);
        }
}

static void same_or_fail(const struct feed *a, const struct feed *b, const char *isa,
                         const char *what)
{
    size_t row = sizeof(float) * (size_t)(a->sh.n_head * a->sh.dim);

    for (int s = 0; s < a->n_seq; s++)
        for (int p = 0; p < a->len[s]; p++)
            if (memcmp((char *)a->y[s] + row * (size_t)p,
                       (char *)b->y[s] + row * (size_t)p, row))
                fail_msg("%s, %s: sequence %d differs at position %d", isa, what, s, p);
}

/* Alone and whole, against: together, in chunks, one by one, with 1 and 2 threads. */
static void test_attn_invariance(void **state)
{
    static const int len[] = {530, 64, 1, 283, 17, 256, 300, 33};
    static const size_t picked[] = {0, 1, 3, 5, 7}; /* shapes */
    static const struct {
        const char *what;
        int chunk, threads;
        bool together;
    } ways[] = {
        {"batch of 8, chunks of 70", 70, 2, true},
        {"batch of 8, chunks of 16", 16, 2, true},
        {"alone, chunks of 64", 64, 1, false},
        {"batch of 8, chunks of 7", 7, 1, true},
        {"batch of 8, one by one", 1, 2, true},
        {"alone, one by one", 1, 2, false},
        {"alone, whole, 2 threads", 600, 2, false},
    };

    (void)state;
    for (int i = 0; i < n_isas(); i++)
        for (size_t k = 0; k < sizeof(picked) / sizeof(picked[0]); k++) {
            size_t c = picked[k];
            struct rig r;
            struct feed f;

            if (!in_time(i, c, false))
                continue;
            rig_open(&r, "cpu", isas[i], 1, 2048);
            feed_open(&f, &r, shapes[c], test_seed() + c, 8, len);
            feed_all(&f, 600, false);
            for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
                struct rig r2;
                struct feed g;
                rig_open(&r2, "cpu", isas[i], ways[w].threads, 2048);
                feed_open(&g, &r2, shapes[c], test_seed() + c, 8, len);
                feed_all(&g, ways[w].chunk, ways[w].together);
                same_or_fail(&f, &g, isas[i], ways[w].what);
                feed_close(&g);
                rig_close(&r2);
            }
            feed_close(&f);
            rig_close(&r);
        }
}

/* Fill the arena with NaN through its exported descriptor. */
static void poison(const struct feed *f)
{
    struct kv_layout l = {
        2, f->sh.n_kv_head, f->sh.dim, KV_BLOCK_TOK, f->sh.type, 0, 0, 0, 0};
    uint16_t nan_bits = f->sh.type == DT_BF16 ? 0x7fc0 : 0x7e00;
    struct err e;
    char *page;

    rig_must(kv_layout_fill(&l, &e), &e);
    page = malloc(l.block_bytes);
    for (size_t h = 0; h < l.block_bytes / 2; h++)
        memcpy(page + 2 * h, &nan_bits, 2);
    for (int k = 0; k < f->n_blocks; k++)
        assert_int_equal(pwrite(kv_arena_fd(f->kv), page, l.block_bytes,
                                (off_t)((size_t)k * l.block_bytes)),
                         (ssize_t)l.block_bytes);
    free(page);
}

/* What a block holds beyond a sequence's end must not matter, not even a NaN. */
static void test_attn_stale(void **state)
{
    static const int len[] = {275};

    (void)state;
    for (int i = 0; i < n_isas(); i++)
        for (size_t c = 0; c < 9; c++) {
            struct rig r;
            struct feed f, g;

            if (!in_time(i, c, true))
                continue;
            rig_open(&r, "cpu", isas[i], 2, 2048);
            feed_open(&f, &r, shapes[c], 5, 1, len);
            feed_open(&g, &r, shapes[c], 5, 1, len);
            poison(&g);
            feed_all(&f, 600, false);
            feed_all(&g, 1 + 600 * (i == 0), false);
            same_or_fail(&f, &g, isas[i], "stale NaN");
            feed_close(&f);
            feed_close(&g);
            rig_close(&r);
        }
}

/* Copy on write: a copied block serves as the first did, and writing to it leaves the
 * first alone. */
static void test_kv_copy(void **state)
{
    static const int len[] = {40, 40};
    static const int seq1[] = {1}, n20[] = {20};
    int a[2], b[2];
    struct rig r;
    struct feed f;

    (void)state;
    rig_open(&r, "cpu", "auto", 2, 2048);
    feed_open(&f, &r, shapes[0], 9, 2, len);
    f.alias = true; /* sequence 1 has the content of sequence 0 */
    feed_step(&f, 1, (const int[]){0}, n20);
    for (int k = 0; k < 2; k++) {
        a[k] = feed_block(&f, 0, k);
        b[k] = feed_block(&f, 1, k);
    }
    struct dbuf *src = rig_put(&r, a, sizeof(a)), *dst = rig_put(&r, b, sizeof(b));
    struct op_kv_copy cp = {f.kv, {src, 0, 2}, {dst, 0, 2}};
    rig_must(op_kv_copy(r.s, &cp, &r.e), &r.e);
    f.done[1] = 20;
    feed_step(&f, 1, seq1, n20);
    feed_step(&f, 1, (const int[]){0}, n20);
    assert_memory_equal(f.y[0] + 20 * 9 * 64, f.y[1] + 20 * 9 * 64, 20 * 9 * 64 * 4);
    dbuf_free(src);
    dbuf_free(dst);
    feed_close(&f);
    rig_close(&r);
}

/* Blocks that went to host memory and came back elsewhere serve as before. */
static void kv_move_on(const char *backend)
{
    static const int len[] = {40, 40};
    static const int seq1[] = {1}, n20[] = {20};
    struct rig r;
    struct feed f;

    rig_open(&r, backend, "auto", 2, 2048);
    feed_open(&f, &r, shapes[0], 9, 2, len);
    f.alias = true; /* sequence 1 has the content of sequence 0 */
    feed_step(&f, 1, (const int[]){0}, n20);
    char *host = calloc(3, 1 << 20);
    const struct kv_moved at[] = {{feed_block(&f, 0, 0), 2, false},
                                  {feed_block(&f, 1, 0), 2, true},
                                  {feed_block(&f, 0, 1), 2, false},
                                  {feed_block(&f, 1, 1), 2, true}};
    const struct kv_moved past = {0, 3, false}, none = {-1, 0, true};
    struct op_kv_move mv = {f.kv, host, 3, at, 4};
    rig_must(op_kv_move(r.s, &mv, &r.e), &r.e);
    rig_must(stream_sync(r.s, &r.e), &r.e);
    mv.n = 1;
    mv.at = &past;
    assert_int_equal(op_kv_move(r.s, &mv, &r.e), -1);
    mv.at = &none;
    assert_int_equal(op_kv_move(r.s, &mv, &r.e), -1);
    f.done[1] = 20;
    feed_step(&f, 1, seq1, n20);
    feed_step(&f, 1, (const int[]){0}, n20);
    assert_memory_equal(f.y[0] + 20 * 9 * 64, f.y[1] + 20 * 9 * 64, 20 * 9 * 64 * 4);
    free(host);
    feed_close(&f);
    rig_close(&r);
}

static void test_kv_move(void **state)
{
    (void)state;
    kv_move_on("cpu");
    kv_move_on("far");
}

/* Two mappings of the exported arena show what the device wrote. */
static void test_arena_export(void **state)
{
    static const int len[] = {16};
    struct rig r;
    struct feed f;
    size_t bytes;
    char *m[2];
    bool any = false;

    (void)state;
    rig_open(&r, "cpu", "auto", 1, 64);
    feed_open(&f, &r, shapes[0], 9, 1, len);
    feed_all(&f, 16, false);
    bytes = 2 * 2 * 3 * 16 * 64 * 2;
    for (int k = 0; k < 2; k++) {
        m[k] =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, kv_arena_fd(f.kv), 0);
        assert_true(m[k] != MAP_FAILED);
    }
    assert_memory_equal(m[0], m[1], bytes);
    for (size_t i = 0; i < bytes; i++)
        any |= m[0][i] != 0;
    assert_true(any);
    m[0][0] = 77;
    assert_int_equal(m[1][0], 77);
    munmap(m[0], bytes);
    munmap(m[1], bytes);
    feed_close(&f);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attn_formula), cmocka_unit_test(test_attn_invariance),
        cmocka_unit_test(test_attn_stale),   cmocka_unit_test(test_kv_copy),
        cmocka_unit_test(test_kv_move),      cmocka_unit_test(test_arena_export),
    };

    return test_main(argc, argv, "attn", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/ops/test_ops.c - the small ops of every instruction set against float64 formulas,
 * one row beside many by memcmp, and what is refused. Attention: test_attn.c; products of
 * all types: test_cpu_mat. */
#include "tests/ops/rig.h"

static const char *const isas[] = {"portable", "avx2", "avx512"};

/* Those of them that this machine has. */
static int n_isas(void) { return (int)cpu_isa_best() + 1; }

/* cos and sin far out, against long double. */
static void test_rope_far_position(void **state)
{
    static const int at[] = {0, 1, 4097, 65536, 131071};

    (void)state;
    for (int i = 0; i < n_isas(); i++) {
        struct rig r;
        struct kv_layout l = {1, 1, 64, KV_BLOCK_TOK, DT_BF16, 0, 0, 0, 0};
        struct kv_arena *kv;
        struct weight *freq;
        float w[32], q[64], out[64], k[64] = {0};
        int max_blocks = 131072 / KV_BLOCK_TOK, *table = calloc(8192, sizeof(int));

        for (int j = 0; j < 32; j++)
            w[j] = feed_freq(j, 64);
        for (int j = 0; j < 64; j++)
            q[j] = j < 32 ? 1 : 0;
        rig_open(&r, "cpu", isas[i], 1, 131072);
        rig_must(kv_arena_new(r.b, &l, 1, &kv, &r.e), &r.e);
        freq = rig_weight(&r, w, 1, 32, WEIGHT_VECTOR);
        for (size_t p = 0; p < sizeof(at) / sizeof(at[0]); p++) {
            int row[2] = {0, 1}, pos[1] = {at[p]};
            struct dbuf *dq = rig_put(&r, q, sizeof(q)), *dk = rig_put(&r, k, sizeof(k));
            struct dbuf *dr = rig_put(&r, row, sizeof(row));
            struct dbuf *dp = rig_put(&r, pos, sizeof(pos));
            struct dbuf *dt = rig_put(&r, table, 8192 * sizeof(int));
            struct op_rope_store o = {
                .span = {1, 1, max_blocks, 131072, {dr, 0, 2}, {dp, 0, 1}, {dt, 0, 8192}},
                .q = {dq, 0, 1, 64, 64},
                .k = {dk, 0, 1, 64, 64},
                .v = {dk, 0, 1, 64, 64},
                .n_head = 1,
                .n_kv_head = 1,
                .head_dim = 64,
                .rot_dim = 64,
                .neox = true,
                .inv_freq = freq,
                .attn_scale = 1,
                .kv = kv,
            };
            rig_must(op_rope_store(r.s, &o, &r.e), &r.e);
            rig_get(&r, out, dq, sizeof(out));
            for (int j = 0; j < 32; j++) {
                long double t = (long double)at[p] * (long double)w[j];
                assert_true(fabsl((long double)out[j] - cosl(t)) < 6e-8L);
                assert_true(fabsl((long double)out[32 + j] - sinl(t)) < 6e-8L);
            }
            dbuf_free(dq);
            dbuf_free(dk);
            dbuf_free(dr);
            dbuf_free(dp);
            dbuf_free(dt);
        }
        free(table);
        weight_free(freq);
        kv_arena_free(kv);
        rig_close(&r);
    }
}

/* ---- norm, embed, gather, products ---- */

static void test_norm(void **state)
{
    static const int cols[] = {1, 7, 16, 33, 64, 100, 256, 511};

    (void)state;
    for (int i = 0; i < n_isas(); i++)
        for (size_t c = 0; c < sizeof(cols) / sizeof(cols[0]); c++) {
            int n = cols[c], rows = 200;
            size_t bytes = sizeof(float) * (size_t)(n * rows);
            float *x = malloc(bytes), *y = malloc(bytes), *one = malloc(bytes), w[512];
            double *ref = malloc(sizeof(double) * (size_t)n);
            struct rig r;

            rig_open(&r, "cpu", isas[i], 2, 64);
            rig_fill(x, (size_t)(n * rows), test_seed() + c);
            rig_fill(w, (size_t)n, test_seed() + 99);
            struct weight *dw = rig_weight(&r, w, 1, n, WEIGHT_VECTOR);
            struct dbuf *dx = rig_put(&r, x, bytes), *dy = rig_put(&r, NULL, bytes);
            struct op_norm o = {{dy, 0, rows, n, n}, {dx, 0, rows, n, n}, dw, 1e-5f};
            rig_must(op_norm(r.s, &o, &r.e), &r.e);
            rig_get(&r, y, dy, bytes);
            for (int k = 0; k < rows; k++) {
                double ss = 0;
                for (int j = 0; j < n; j++)
                    ss += (double)x[k * n + j] * (double)x[k * n + j];
                for (int j = 0; j < n; j++)
                    ref[j] = (double)x[k * n + j] / sqrt(ss / n + (double)1e-5f) *
                             (double)w[j];
                assert_true(rig_nmse(y + k * n, ref, (size_t)n) < 1e-12);
                /* the same row alone, in place */
                o.y = o.x = (struct view){dx, sizeof(float) * (size_t)(k * n), 1, n, n};
                rig_must(op_norm(r.s, &o, &r.e), &r.e);
            }
            rig_get(&r, one, dx, bytes);
            assert_memory_equal(one, y, bytes);
            weight_free(dw);
            dbuf_free(dx);
            dbuf_free(dy);
            free(x);
            free(y);
            free(one);
            free(ref);
            rig_close(&r);
        }
}

/* A row in two halves, as on two ranks, the first of which counts twice by a half each.
 */
static void test_norm_halves(void **state)
{
    enum { ROWS = 20, N = 33, A = 12 };
    size_t bytes = sizeof(float) * ROWS * N, one = sizeof(float) * ROWS;

    (void)state;
    for (int far = 0; far < 2; far++) {
        float x[ROWS * N], y[ROWS * N], w[N];
        const float eps = 1e-5f;
        struct rig r;

        rig_open(&r, far ? "far" : "cpu", "auto", 2, 64);
        rig_fill(x, ROWS * N, test_seed());
        rig_fill(w, N, test_seed() + 99);
        struct weight *dw[2] = {rig_weight(&r, w, 1, A, WEIGHT_VECTOR),
                                rig_weight(&r, w + A, 1, N - A, WEIGHT_VECTOR)};
        struct dbuf *dx = rig_put(&r, x, bytes), *sums = rig_put(&r, NULL, 3 * one);
        struct view half[2] = {{dx, 0, ROWS, A, N},
                               {dx, sizeof(float) * A, ROWS, N - A, N}};
        struct view sum[3] = {
            {sums, 0, ROWS, 1, 3}, {sums, 4, ROWS, 1, 3}, {sums, 8, ROWS, 1, 3}};
        for (int k = 0; k < 3; k++) {
            struct op_squares o = {sum[k], half[k / 2], k < 2 ? 0.5f : 1};
            struct op_add add = {sum[0], sum[k]};
            rig_must(op_squares(r.s, &o, &r.e), &r.e);
            if (k)
                rig_must(op_add(r.s, &add, &r.e), &r.e);
        }
        for (int k = 0; k < 2; k++) {
            struct op_norm_by o = {half[k], half[k], sum[0], dw[k], N, eps};
            rig_must(op_norm_by(r.s, &o, &r.e), &r.e);
        }
        rig_get(&r, y, dx, bytes);
        for (int k = 0; k < ROWS; k++) {
            double ss = 0, ref[N];
            for (int j = 0; j < N; j++)
                ss += (double)x[k * N + j] * (double)x[k * N + j];
            for (int j = 0; j < N; j++)
                ref[j] = (double)x[k * N + j] / sqrt(ss / N + (double)eps) * (double)w[j];
            assert_true(rig_nmse(y + k * N, ref, N) < 1e-12);
        }
        struct op_norm_by bad = {half[0], half[0], sum[0], dw[1], N, eps};
        assert_int_equal(op_norm_by(r.s, &bad, &r.e), -1);
        bad.w = dw[0];
        bad.n = A - 1;
        assert_int_equal(op_norm_by(r.s, &bad, &r.e), -1);
        weight_free(dw[0]);
        weight_free(dw[1]);
        dbuf_free(dx);
        dbuf_free(sums);
        rig_close(&r);
    }
}

static void test_embed_gather(void **state)
{
    enum { ROWS = 50, COLS = 96, N = 300 };
    static const int flags[] = {WEIGHT_LOOKUP, WEIGHT_LOOKUP | WEIGHT_MATMUL};
    static float table[ROWS * COLS], y[N * COLS], z[N * COLS];
    int ids[N], idx[N];

    (void)state;
    rig_fill(table, ROWS * COLS, 3);
    for (int k = 0; k < N; k++) {
        ids[k] = (k * 7) % ROWS;
        idx[k] = N - 1 - k;
    }
    for (int i = 0; i < n_isas(); i++)
        for (int k = 0; k < 2; k++) {
            struct rig r;
            rig_open(&r, "cpu", isas[i], 2, 64);
            struct weight *w = rig_weight(&r, table, ROWS, COLS, flags[k]);
            struct dbuf *dids = rig_put(&r, ids, sizeof(ids));
            struct dbuf *didx = rig_put(&r, idx, sizeof(idx));
            struct dbuf *dy = rig_put(&r, NULL, sizeof(y)),
                        *dz = rig_put(&r, NULL, sizeof(z));
            struct op_embed e = {
                .y = {dy, 0, N, COLS, COLS}, .w = w, .ids = {dids, 0, N}};
            struct op_gather g = {
                {dz, 0, N, COLS, COLS}, {dy, 0, N, COLS, COLS}, {didx, 0, N}};
            rig_must(op_embed(r.s, &e, &r.e), &r.e);
            rig_must(op_gather(r.s, &g, &r.e), &r.e);
            rig_get(&r, y, dy, sizeof(y));
            rig_get(&r, z, dz, sizeof(z));
            for (int j = 0; j < N; j++) {
                assert_memory_equal(y + j * COLS, table + ids[j] * COLS, COLS * 4);
                assert_memory_equal(z + j * COLS, y + (N - 1 - j) * COLS, COLS * 4);
            }
            weight_free(w);
            dbuf_free(dids);
            dbuf_free(didx);
            dbuf_free(dy);
            dbuf_free(dz);
            rig_close(&r);
        }
}

/* The way from op to product: bias, add, three outputs, strides; f32 weights. */
static void test_matmul(void **state)
{
    enum { M = 13, K = 96, LD = 100 };
    static const int rows[3] = {48, 17, 5};
    static float x[M * LD], w[3][48 * K], bias[48], y[3][M * 48], before[3][M * 48];

    (void)state;
    rig_fill(x, M * LD, 1);
    rig_fill(bias, 48, 2);
    for (int j = 0; j < 3; j++) {
        rig_fill(w[j], 48 * K, 10 + (uint64_t)j);
        rig_fill(before[j], M * 48, 20 + (uint64_t)j);
    }
    for (int i = 0; i < n_isas(); i++) {
        struct rig r;
        struct op_matmul o = {.n_out = 3, .add = true};
        struct dbuf *dy[3];
        struct weight *dw[3], *db;

        rig_open(&r, "cpu", isas[i], 2, 64);
        struct dbuf *dx = rig_put(&r, x, sizeof(x));
        db = rig_weight(&r, bias, 1, rows[0], WEIGHT_VECTOR);
        o.x = (struct view){dx, 0, M, K, LD};
        o.bias[0] = db;
        for (int j = 0; j < 3; j++) {
            dw[j] = rig_weight(&r, w[j], rows[j], K, WEIGHT_MATMUL);
            dy[j] = rig_put(&r, before[j], sizeof(before[j]));
            o.w[j] = dw[j];
            o.y[j] = (struct view){dy[j], 0, M, rows[j], rows[j]};
        }
        rig_must(op_matmul(r.s, &o, &r.e), &r.e);
        for (int j = 0; j < 3; j++) {
            static double ref[M * 48];
            for (int a = 0; a < M * rows[j]; a++) {
                ref[a] = (double)before[j][a] + (j ? 0 : (double)bias[a % rows[j]]);
                for (int k = 0; k < K; k++)
                    ref[a] += (double)x[a / rows[j] * LD + k] *
                              (double)w[j][a % rows[j] * K + k];
            }
            rig_get(&r, y[j], dy[j], sizeof(y[j]));
            assert_true(rig_nmse(y[j], ref, (size_t)(M * rows[j])) < 1e-11);
            weight_free(dw[j]);
            dbuf_free(dy[j]);
        }
        weight_free(db);
        dbuf_free(dx);
        rig_close(&r);
    }
}

static void test_glu(void **state)
{
    enum { M = 5, K = 64, N = 40 };
    static float x[M * K], g[N * K], u[N * K], y[M * N];
    static double ref[M * N];

    (void)state;
    rig_fill(x, M * K, 1);
    rig_fill(g, N * K, 2);
    rig_fill(u, N * K, 3);
    for (int a = 0; a < M * N; a++) {
        double sg = 0, su = 0;
        for (int k = 0; k < K; k++) {
            sg += (double)x[a / N * K + k] * (double)g[a % N * K + k];
            su += (double)x[a / N * K + k] * (double)u[a % N * K + k];
        }
        ref[a] = sg / (1 + exp(-sg)) * su;
    }
    for (int i = 0; i < n_isas(); i++) {
        struct rig r;
        rig_open(&r, "cpu", isas[i], 2, 64);
        struct weight *wg = rig_weight(&r, g, N, K, WEIGHT_MATMUL);
        struct weight *wu = rig_weight(&r, u, N, K, WEIGHT_MATMUL);
        struct dbuf *dx = rig_put(&r, x, sizeof(x)), *dy = rig_put(&r, NULL, sizeof(y));
        struct op_glu o = {{dy, 0, M, N, N}, {dx, 0, M, K, K}, wg, wu};
        rig_must(op_glu(r.s, &o, &r.e), &r.e);
        rig_get(&r, y, dy, sizeof(y));
        assert_true(rig_nmse(y, ref, M * N) < 1e-11);
        weight_free(wg);
        weight_free(wu);
        dbuf_free(dx);
        dbuf_free(dy);
        rig_close(&r);
    }
}

/* ---- what is refused, and where it is said ---- */

static void test_launch_faults(void **state)
{
    static float table[20 * 32];
    static const int bad_ids[4] = {1, 20, 2, -1};
    static float y[4 * 32];
    struct rig r;

    (void)state;
    rig_open(&r, "cpu", "auto", 1, 64);
    struct weight *w = rig_weight(&r, table, 20, 32, WEIGHT_LOOKUP);
    struct dbuf *d = rig_put(&r, NULL, sizeof(y)),
                *ids = rig_put(&r, bad_ids, sizeof(bad_ids));
    struct op_embed o = {.y = {d, 0, 4, 32, 32}, .w = w, .ids = {ids, 0, 4}};
    /* a device value: the launch passes, sync tells, once */
    rig_must(op_embed(r.s, &o, &r.e), &r.e);
    assert_int_equal(stream_sync(r.s, &r.e), -1);
    assert_int_equal(r.e.code, ERR_DEVICE);
    assert_non_null(strstr(r.e.msg, "20"));
    rig_sync(&r);
    /* shapes and bounds: the launch tells */
    o.y.rows = 5;
    assert_int_equal(op_embed(r.s, &o, &r.e), -1);
    o.y = (struct view){d, 4, 4, 32, 32};
    assert_int_equal(op_embed(r.s, &o, &r.e), -1);
    o.y = (struct view){d, 0, 4, 31, 31};
    assert_int_equal(op_embed(r.s, &o, &r.e), -1);
    assert_int_equal(stream_upload(r.s, d, 500, table, 13, &r.e), -1);
    assert_int_equal(stream_download(r.s, table, d, (size_t)-1, 2, &r.e), -1);
    struct op_matmul m = {
        .x = {d, 0, 4, 32, 32}, .n_out = 1, .w = {w}, .y = {{d, 0, 4, 20, 32}}};
    assert_int_equal(op_matmul(r.s, &m, &r.e), -1); /* not a matmul weight */
    weight_free(w);
    dbuf_free(d);
    dbuf_free(ids);
    rig_close(&r);
}

static void test_open_faults(void **state)
{
    struct backend_cfg cfg = {.name = "tpu", .n_threads = 1, .caps = {1, 1, 1, 1, 1, 1}};
    struct kv_layout l = {1, 1, 64, 16, DT_Q8_0, 0, 0, 0, 0};
    struct backend *b = NULL;
    struct err e;

    (void)state;
    assert_int_equal(backend_open(&cfg, &b, &e), -1);
    assert_non_null(strstr(e.msg, "tpu"));
    cfg.name = "cpu";
    cfg.isa = "mmx";
    assert_int_equal(backend_open(&cfg, &b, &e), -1);
    assert_non_null(strstr(e.msg, "mmx"));
    cfg.isa = "auto";
    cfg.caps.max_rows = 0;
    assert_int_equal(backend_open(&cfg, &b, &e), -1);
    assert_non_null(strstr(e.msg, "max_rows"));
    assert_null(b);
    assert_int_equal(kv_layout_fill(&l, &e), -1);
    assert_non_null(strstr(e.msg, "Q8_0"));
}

/* A block number or position out of range reaches no memory. */
static void test_span_faults(void **state)
{
    static const int row[2] = {0, 1};
    int pos[1] = {0}, table[1] = {7};
    static float q[64];
    struct kv_layout l = {1, 1, 64, 16, DT_BF16, 0, 0, 0, 0};
    struct kv_arena *kv;
    struct rig r;

    (void)state;
    rig_open(&r, "cpu", "auto", 1, 64);
    rig_must(kv_arena_new(r.b, &l, 2, &kv, &r.e), &r.e);
    struct dbuf *dq = rig_put(&r, q, sizeof(q)), *dr = rig_put(&r, row, sizeof(row));
    for (int k = 0; k < 2; k++) {
        struct dbuf *dp = rig_put(&r, pos, sizeof(pos)),
                    *dt = rig_put(&r, table, sizeof(table));
        struct op_attn o = {.span = {1, 1, 1, 16, {dr, 0, 2}, {dp, 0, 1}, {dt, 0, 1}},
                            .y = {dq, 0, 1, 64, 64},
                            .q = {dq, 0, 1, 64, 64},
                            .n_head = 1,
                            .n_kv_head = 1,
                            .head_dim = 64,
                            .scale = 1,
                            .kv = kv};
        rig_must(op_attn(r.s, &o, &r.e), &r.e);
        assert_int_equal(stream_sync(r.s, &r.e), -1);
        assert_int_equal(r.e.code, ERR_DEVICE);
        table[0] = 1;
        pos[0] = 16;
        dbuf_free(dp);
        dbuf_free(dt);
    }
    dbuf_free(dq);
    dbuf_free(dr);
    kv_arena_free(kv);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),          cmocka_unit_test(test_norm_halves),
        cmocka_unit_test(test_embed_gather),  cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_glu),           cmocka_unit_test(test_rope_far_position),
        cmocka_unit_test(test_launch_faults), cmocka_unit_test(test_open_faults),
        cmocka_unit_test(test_span_faults),
    };

    return test_main(argc, argv, "ops", tests, sizeof(tests) / sizeof(tests[0]));
}

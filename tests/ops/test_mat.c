/* tests/ops/test_mat.c - matrices and products of every instruction set that this machine
 * has: against a float64 dot of the dequantised weights, against the portable path, bit
 * equal for a row whatever M, member count, partition or neighbours. */
#include "kernels/cpu_mat.h"

#include <math.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/team.h"
#include "tests/test.h"

/* Errors normalised by the mean square of the result. int8 activations cost about 1e-5,
 * bf16 ones about 3e-6; f32 only rounds. Two instruction sets quantise alike. */
static const double EXACT_NMSE = 1e-11, BF16_NMSE = 2e-5, Q8_NMSE = 2e-4;

struct problem {
    enum dtype type;
    int rows, cols, n;
    uint8_t *data; /* the matrix as a file has it */
    float *w;      /* dequantised */
    float *x, *bias;
};

static uint64_t rng;

static double unit(void) /* -1 .. 1 */
{
    return (double)(test_rand(&rng) >> 11) * 0x1p-52 - 1;
}

static int below(int n) { return (int)(test_rand(&rng) >> 33) % n; }

static void put_half(uint8_t *p, float v)
{
    uint16_t h = f32_to_f16(v);
    memcpy(p, &h, 2);
}

/* Random codes with plausible scales: offsets of the f16 fields in a block. */
/* Of the scales of MXFP4: those that an f16 can hold, unless a test wants others. */
static int mx_least = 119, mx_span = 8;

static void fill_block(enum dtype t, uint8_t *b)
{
    int n = dtype_block_bytes(t), k_quant = dtype_block(t) == 256;
    float d = (float)(unit() * (t == DT_Q8_0 ? 1e-3 : k_quant ? 5e-4 : 1e-2));

    for (int i = 0; i < n; i++)
        b[i] = (uint8_t)(test_rand(&rng) >> 40);
    if (t == DT_MXFP4) {
        b[0] = (uint8_t)(mx_least + b[0] % mx_span);
        return;
    }
    put_half(b + (t == DT_Q6_K ? 208 : 0), d);
    if (t == DT_Q4_1 || t == DT_Q5_1 || t == DT_Q4_K || t == DT_Q5_K)
        put_half(b + 2,
                 (float)(fabs((double)d) * (k_quant ? 2 : -8) * (1 + 0.2 * unit())));
}

static void fill_weights(struct problem *p, size_t bytes)
{
    size_t n_blocks = bytes / (size_t)dtype_block_bytes(p->type);

    for (size_t i = 0; i < n_blocks; i++) {
        uint8_t *b = p->data + i * (size_t)dtype_block_bytes(p->type);
        float v = (float)(unit() * 0.05);
        uint16_t h = p->type == DT_F16 ? f32_to_f16(v) : f32_to_bf16(v);
        if (p->type == DT_F32)
            memcpy(b, &v, 4);
        else if (p->type == DT_F16 || p->type == DT_BF16)
            memcpy(b, &h, 2);
        else
            fill_block(p->type, b);
    }
}

static struct problem *problem_new(enum dtype type, int rows, int cols, int n)
{
    struct problem *p = xcalloc(1, sizeof(*p));
    size_t row_bytes = (size_t)dtype_row_bytes(type, cols);

    *p = (struct problem){.type = type, .rows = rows, .cols = cols, .n = n};
    p->data = xmalloc(row_bytes * (size_t)rows);
    p->w = xmalloc((size_t)rows * (size_t)cols * sizeof(float));
    p->x = xmalloc((size_t)n * (size_t)cols * sizeof(float));
    p->bias = xmalloc((size_t)rows * sizeof(float));
    fill_weights(p, row_bytes * (size_t)rows);
    for (int i = 0; i < rows; i++) {
        dtype_to_f32(type, p->data + (size_t)i * row_bytes,
                     p->w + (size_t)i * (size_t)cols, cols);
        p->bias[i] = (float)unit();
    }
    for (int i = 0; i < n * cols; i++)
        p->x[i] = (float)(unit() * unit() * 3);
    return p;
}

static void problem_free(struct problem *p)
{
    free(p->data);
    free(p->w);
    free(p->x);
    free(p->bias);
    free(p);
}

static struct team *team_of(int n)
{
    struct team *t = NULL;
    struct err e;
    assert_int_equal(team_new(n, NULL, false, &t, &e), 0);
    return t;
}

static struct cpu_mat *mat_of(enum cpu_isa isa, struct team *t, const struct problem *p)
{
    struct cpu_mat *m = NULL;
    struct err e = {0};
    if (cpu_mat_new(isa, t, NULL, p->type, p->rows, p->cols, p->data, &m, &e) < 0)
        fail_msg("%s", e.msg);
    return m;
}

/* y[n, rows] = x * m^T with everything at defaults. */
static void multiply(struct team *t, const struct cpu_mat *m, enum cpu_isa isa,
                     const struct problem *p, const float *x, int n, float *y)
{
    void *scratch = xmalloc(cpu_mat_scratch_bytes(n, p->cols));
    struct cpu_product q = {
        .isa = isa,
        .n_rows = n,
        .x = x,
        .x_ld = p->cols,
        .n_out = 1,
        .m = {m},
        .y = {y},
        .y_ld = {p->rows},
        .scratch = scratch,
    };
    cpu_product_run(t, &q);
    free(scratch);
}

static double *exact(const struct problem *p)
{
    double *y = xcalloc((size_t)p->n * (size_t)p->rows, sizeof(*y));

    for (int r = 0; r < p->n; r++)
        for (int i = 0; i < p->rows; i++)
            for (int k = 0; k < p->cols; k++)
                y[r * p->rows + i] +=
                    (double)p->x[r * p->cols + k] * (double)p->w[i * p->cols + k];
    return y;
}

static double nmse(const float *y, const double *ref, int n)
{
    double err = 0, sum = 0;

    for (int i = 0; i < n; i++) {
        double d = (double)y[i] - ref[i];
        assert_true(isfinite(y[i]));
        err += d * d;
        sum += ref[i] * ref[i];
    }
    return sum > 0 ? err / sum : err;
}

static double bound(enum dtype t)
{
    if (t == DT_F32 || t == DT_F16)
        return EXACT_NMSE;
    return t == DT_BF16 ? BF16_NMSE : Q8_NMSE;
}

/* A column count that the type allows, mostly odd. */
static int some_cols(enum dtype t, int i)
{
    static const int odd[] = {1, 7, 31, 33, 100, 257, 576, 1023};
    if (dtype_block(t) == 1)
        return odd[i % 8];
    return dtype_block(t) * (1 + (i * 5) % (dtype_block(t) == 32 ? 19 : 4));
}

static void check_shape(enum cpu_isa isa, struct team *t, enum dtype type, int i)
{
    struct problem *p =
        problem_new(type, 1 + below(70), some_cols(type, i), 1 + below(40));
    int n = p->n * p->rows;
    float *y = xmalloc((size_t)n * sizeof(float)),
          *ref = xmalloc((size_t)n * sizeof(float));
    double *truth = exact(p), *ref64 = xmalloc((size_t)n * sizeof(double));
    struct cpu_mat *m = mat_of(isa, t, p), *port = mat_of(CPU_ISA_PORTABLE, t, p);

    multiply(t, m, isa, p, p->x, p->n, y);
    multiply(t, port, CPU_ISA_PORTABLE, p, p->x, p->n, ref);
    for (int k = 0; k < n; k++)
        ref64[k] = ref[k];
    double e = nmse(y, truth, n), e_ref = nmse(y, ref64, n);
    if (e > bound(type) || e_ref > EXACT_NMSE * 100)
        fail_msg("%s %s %dx%d n %d: nmse %g to the truth, %g to the portable path",
                 cpu_isa_name(isa), dtype_name(type), p->rows, p->cols, p->n, e, e_ref);
    cpu_mat_free(m);
    cpu_mat_free(port);
    free(y);
    free(ref);
    free(truth);
    free(ref64);
    problem_free(p);
}

static void test_products_are_right(void **state)
{
    struct team *t = team_of(2);
    (void)state;

    rng = test_seed();
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++)
        for (int type = 0; type < DT_COUNT; type++)
            for (int i = 0; i < 12; i++)
                check_shape(isa, t, type, i);
    team_free(t);
}

/* ---- row invariance ---- */
static void check_invariant(enum cpu_isa isa, struct team *teams[3], enum dtype type)
{
    enum { MAX = 40 };
    struct problem *p = problem_new(type, 83, dtype_block(type) == 1 ? 150 : 512, MAX);
    size_t row = (size_t)p->rows * sizeof(float);
    float *alone = xmalloc(row * MAX), *y = xmalloc(row * MAX);
    struct cpu_mat *m = mat_of(isa, teams[1], p);

    for (int r = 0; r < MAX; r++)
        multiply(teams[0], m, isa, p, p->x + r * p->cols, 1, alone + r * p->rows);
    for (int n = 1; n <= MAX; n++)
        for (int k = 0; k < 3; k++) {
            int from = below(MAX - n + 1);
            memset(y, 0xff, row * MAX);
            multiply(teams[k], m, isa, p, p->x + from * p->cols, n, y);
            if (memcmp(y, alone + from * p->rows, row * (size_t)n) != 0)
                fail_msg("%s %s: rows differ at n %d, %d members", cpu_isa_name(isa),
                         dtype_name(type), n, team_size(teams[k]));
        }
    cpu_mat_free(m);
    free(alone);
    free(y);
    problem_free(p);
}

static void test_rows_are_invariant(void **state)
{
    struct team *teams[3] = {team_of(1), team_of(2), team_of(3)};
    (void)state;

    rng = test_seed() + 1;
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++)
        for (int type = 0; type < DT_COUNT; type++)
            check_invariant(isa, teams, type);
    for (int i = 0; i < 3; i++)
        team_free(teams[i]);
}

/* Rows enough for several groups of tiles give what few rows give. */
static void test_many_rows_are_invariant(void **state)
{
    enum { MANY = 700 };
    struct team *t = team_of(2);
    (void)state;

    rng = test_seed() + 2;
    for (int isa = CPU_ISA_AVX2; isa <= (int)cpu_isa_best(); isa++) {
        struct problem *p = problem_new(DT_Q4_1, 33, 1536, MANY);
        size_t row = (size_t)p->rows * sizeof(float);
        float *y = xmalloc(row * MANY), *part = xmalloc(row * 50);
        struct cpu_mat *m = mat_of(isa, t, p);
        multiply(t, m, isa, p, p->x, MANY, y);
        for (int r = 0; r < MANY; r += 50) {
            multiply(t, m, isa, p, p->x + r * p->cols, 50, part);
            assert_memory_equal(part, y + r * p->rows, row * 50);
        }
        cpu_mat_free(m);
        free(y);
        free(part);
        problem_free(p);
    }
    team_free(t);
}

/* ---- row extraction ---- */
static void test_rows_come_back_exactly(void **state)
{
    struct team *t = team_of(2);
    (void)state;

    rng = test_seed() + 3;
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++)
        for (int type = 0; type < DT_COUNT; type++) {
            struct problem *p = problem_new(type, 1 + below(50), some_cols(type, 5), 1);
            struct cpu_mat *m = mat_of(isa, t, p);
            float *row = xmalloc((size_t)p->cols * sizeof(float));
            for (int r = 0; r < p->rows; r++) {
                cpu_mat_row(m, r, row);
                assert_memory_equal(row, p->w + r * p->cols,
                                    (size_t)p->cols * sizeof(float));
            }
            free(row);
            cpu_mat_free(m);
            problem_free(p);
        }
    team_free(t);
}

/* Scales that no f16 holds: kept as BF16, exactly. */
static void test_mxfp4_far_scales(void **state)
{
    struct team *t = team_of(1);
    float row[96], y[3 * 40];
    (void)state;

    rng = test_seed() + 9;
    mx_least = 85;
    mx_span = 70;
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
        struct problem *p = problem_new(DT_MXFP4, 40, 96, 3);
        struct cpu_mat *m = mat_of(isa, t, p);
        double *truth = exact(p);

        for (int r = 0; r < p->rows; r++) {
            cpu_mat_row(m, r, row);
            assert_memory_equal(row, p->w + r * p->cols, sizeof(row));
        }
        multiply(t, m, isa, p, p->x, 3, y);
        assert_true(nmse(y, truth, 3 * 40) < BF16_NMSE);
        free(truth);
        cpu_mat_free(m);
        problem_free(p);
    }
    mx_least = 119;
    mx_span = 8;
    team_free(t);
}

/* ---- several outputs, bias, add, glu ---- */
static void check_joint(enum cpu_isa isa, struct team *t, int n)
{
    static const enum dtype types[] = {DT_Q4_K, DT_Q6_K, DT_BF16};
    static const int rows[] = {40, 17, 100};
    struct problem *p[3];
    struct cpu_product q = {.isa = isa, .n_rows = n, .x_ld = 256, .n_out = 3, .add = 1};
    float *single[3], *y[3];

    for (int j = 0; j < 3; j++) {
        p[j] = problem_new(types[j], rows[j], 256, n);
        q.m[j] = mat_of(isa, t, p[j]);
        q.bias[j] = j == 1 ? NULL : p[j]->bias;
        q.y_ld[j] = rows[j] + 3;
        single[j] = xmalloc((size_t)(n * rows[j]) * sizeof(float));
        q.y[j] = y[j] = xmalloc((size_t)(n * q.y_ld[j]) * sizeof(float));
        for (int i = 0; i < n * q.y_ld[j]; i++)
            y[j][i] = (float)i;
        multiply(t, q.m[j], isa, p[j], p[0]->x, n, single[j]);
    }
    q.x = p[0]->x;
    q.scratch = xmalloc(cpu_mat_scratch_bytes(n, 256));
    cpu_product_run(t, &q);
    for (int j = 0; j < 3; j++) {
        for (int i = 0; i < n * q.y_ld[j]; i++) {
            int r = i / q.y_ld[j], c = i % q.y_ld[j];
            float want = (float)i;
            if (c < rows[j])
                want += single[j][r * rows[j] + c] + (q.bias[j] ? q.bias[j][c] : 0);
            assert_float_equal(y[j][i], want, 1e-4 * (1 + fabs((double)want)));
            assert_true(c < rows[j] || y[j][i] == want);
        }
        free(single[j]);
        free(y[j]);
        cpu_mat_free((struct cpu_mat *)q.m[j]);
        problem_free(p[j]);
    }
    free(q.scratch);
}

static void test_joint_products(void **state)
{
    struct team *t = team_of(3);
    (void)state;

    rng = test_seed() + 4;
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++)
        for (int n = 1; n < 20; n += 3)
            check_joint(isa, t, n);
    team_free(t);
}

static void check_glu(enum cpu_isa isa, struct team *t, int n, float scale)
{
    enum { ROWS = 52, COLS = 96 };
    struct problem *g = problem_new(DT_Q5_1, ROWS, COLS, n);
    struct problem *u = problem_new(DT_Q5_1, ROWS, COLS, n);
    float yg[20 * ROWS], yu[20 * ROWS], y[20 * ROWS];
    struct cpu_product q = {.isa = isa, .n_rows = n, .x = g->x, .x_ld = COLS, .n_out = 2};

    for (int i = 0; i < n * COLS; i++)
        g->x[i] *= scale;
    q.m[0] = mat_of(isa, t, g);
    q.m[1] = mat_of(isa, t, u);
    q.glu = 1;
    q.y[0] = y;
    q.y_ld[0] = ROWS;
    q.scratch = xmalloc(cpu_mat_scratch_bytes(n, COLS));
    multiply(t, q.m[0], isa, g, g->x, n, yg);
    multiply(t, q.m[1], isa, u, g->x, n, yu);
    cpu_product_run(t, &q);
    for (int i = 0; i < n * ROWS; i++) {
        double want = (double)yg[i] / (1 + exp(-(double)yg[i])) * (double)yu[i];
        if (!(fabs((double)y[i] - want) <= 1e-6 * fabs(want) + 1e-30))
            fail_msg("%s glu(%g, %g) = %g, not %g", cpu_isa_name(isa), (double)yg[i],
                     (double)yu[i], (double)y[i], want);
    }
    cpu_mat_free((struct cpu_mat *)q.m[0]);
    cpu_mat_free((struct cpu_mat *)q.m[1]);
    free(q.scratch);
    problem_free(g);
    problem_free(u);
}

static void test_glu(void **state)
{
    struct team *t = team_of(2);
    (void)state;

    rng = test_seed() + 5;
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++)
        for (int n = 1; n < 20; n += 6) {
            check_glu(isa, t, n, 1);
            check_glu(isa, t, n, 30);
        }
    team_free(t);
}

/* ---- edges ---- */
static void test_zero_and_huge_inputs(void **state)
{
    static const float scales[] = {0, 1e-38f, 1e-30f, 1e30f};
    struct team *t = team_of(1);
    (void)state;

    rng = test_seed() + 6;
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++)
        for (int type = 0; type < DT_COUNT; type++)
            for (int s = 0; s < 4; s++) {
                struct problem *p = problem_new(type, 20, 256, 3);
                struct cpu_mat *m = mat_of(isa, t, p);
                float y[60];
                for (int i = 0; i < 3 * 256; i++)
                    p->x[i] *= scales[s];
                double *truth = exact(p);
                multiply(t, m, isa, p, p->x, 3, y);
                for (int i = 0; i < 60; i++)
                    assert_true(isfinite(y[i]) && (s > 0 || y[i] == 0));
                if (s >= 2)
                    assert_true(nmse(y, truth, 60) < bound(type));
                free(truth);
                cpu_mat_free(m);
                problem_free(p);
            }
    team_free(t);
}

static void test_bad_shapes_are_refused(void **state)
{
    struct cpu_mat *m = NULL;
    struct err e;
    uint8_t data[64] = {0};
    (void)state;

    assert_int_equal(cpu_mat_new(0, NULL, NULL, DT_Q4_1, 1, 33, data, &m, &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    assert_int_equal(cpu_mat_new(0, NULL, NULL, DT_F32, 0, 4, data, &m, &e), -1);
    mem_fail_at(1);
    assert_int_equal(cpu_mat_new(0, NULL, NULL, DT_F32, 1, 4, data, &m, &e), -1);
    assert_int_equal(e.code, ERR_NOMEM);
    mem_fail_at(0);
    assert_null(m);
    cpu_mat_free(NULL);
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(test_products_are_right),
    cmocka_unit_test(test_rows_are_invariant),
    cmocka_unit_test(test_many_rows_are_invariant),
    cmocka_unit_test(test_rows_come_back_exactly),
    cmocka_unit_test(test_joint_products),
    cmocka_unit_test(test_mxfp4_far_scales),
    cmocka_unit_test(test_glu),
    cmocka_unit_test(test_zero_and_huge_inputs),
    cmocka_unit_test(test_bad_shapes_are_refused),
};

TEST_MAIN("mat", TESTS)

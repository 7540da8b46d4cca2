/* tests/unit/test_rowvec.c - passes over a row against plain loops. */
#include "tests/test.h"

#include <math.h>

#include "daemon/serve/rowvec.h"

enum { N = 200 };

/* Some equal values, some NaN and infinite ones, an odd place in memory. */
static float *row(uint64_t *rng, int n)
{
    static float buf[N + 8];
    float *x = buf + test_rand(rng) % 4;

    for (int i = 0; i < n; i++) {
        uint64_t k = test_rand(rng) % 40;
        x[i] = k == 0 ? NAN : k == 1 ? -INFINITY : (float)((int)k - 20) * 0.7f;
    }
    return x;
}

static void test_searches(void **st)
{
    (void)st;
    uint64_t rng = test_seed();

    for (int round = 0; round < 5000; round++) {
        int n = (int)(test_rand(&rng) % N), from = (int)(test_rand(&rng) % (n + 1u));
        float *x = row(&rng, n), max = -INFINITY, v = (float)(round % 40 - 20) * 0.7f;
        int above = from, equal = from;
        for (int i = 0; i < n; i++)
            max = x[i] > max ? x[i] : max;
        while (above < n && !(x[above] > v))
            above++;
        while (equal < n && !(x[equal] == v))
            equal++;
        assert_true(rowvec_max(x, n) == max);
        assert_int_equal(rowvec_above(x, n, from, v), above);
        assert_int_equal(rowvec_equal(x, n, from, v), equal);
    }
}

static void test_weight(void **st)
{
    (void)st;
    double worst = 0;

    for (int i = 0; i < 86000; i++) {
        float z = -(float)i / 1000;
        double want = exp((double)z), got = (double)rowvec_weight(z, 0, 1);
        worst = fabs(got / want - 1) > worst ? fabs(got / want - 1) : worst;
    }
    assert_true(worst < 3e-7);
    assert_true(rowvec_weight(3, 3, 1) == 1);
    assert_true(rowvec_weight(-87, 0, 1) == 0);
    assert_true(rowvec_weight(-INFINITY, 0, 1) == 0);
    assert_true(rowvec_weight(NAN, 0, 1) == 0);
    assert_true(rowvec_weight(2, 3, 3e38f) == 0);
}

static void test_weights(void **st)
{
    (void)st;
    uint64_t rng = test_seed();
    float out[N];

    for (int round = 0; round < 3000; round++) {
        int n = (int)(test_rand(&rng) % N);
        float *x = row(&rng, n), scale = 0.1f + (float)(round % 10);
        float max = rowvec_max(x, n), min = round % 2 ? 0.01f : 0;
        double all = 0, kept = 0;
        if (n == 0)
            continue;
        double got_all = rowvec_weights(x, n, max, scale, min, NULL);
        double got = rowvec_weights(x, n, max, scale, min, out);
        for (int i = 0; i < n; i++) {
            float w = rowvec_weight(x[i], max, scale);
            all += (double)w;
            w = w >= min ? w : 0;
            assert_true(out[i] == w); /* the same bits, alone or in a vector */
            kept += (double)w;
        }
        assert_true(fabs(got - kept) < 1e-9 && fabs(got_all - all) < 1e-9);
    }
}

static void test_draw(void **st)
{
    (void)st;
    uint64_t rng = test_seed();
    float w[N];

    for (int round = 0; round < 5000; round++) {
        int n = (int)(test_rand(&rng) % N), want = 0;
        double sum = 0, run = 0;
        for (int i = 0; i < n; i++) {
            w[i] = test_rand(&rng) % 3 ? 0 : (float)(1 + test_rand(&rng) % 8) / 8;
            sum += (double)w[i];
        }
        if (sum == 0) {
            assert_int_equal(rowvec_draw(w, n, 0), -1);
            continue;
        }
        double t = sum * (double)(test_rand(&rng) % 1000) / 1000;
        while ((run += (double)w[want]) <= t) /* eighths: exact in any order */
            want++;
        assert_int_equal(rowvec_draw(w, n, t), want);
        for (want = n - 1; !(w[want] > 0);)
            want--;
        assert_int_equal(rowvec_draw(w, n, sum), want);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_searches),
        cmocka_unit_test(test_weight),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_draw),
    };
    return test_main(argc, argv, "rowvec", tests, sizeof(tests) / sizeof(tests[0]));
}

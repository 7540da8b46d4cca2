/* tests/unit/test_sampler.c - logits to tokens, against plain definitions. */
#include "tests/test.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "daemon/serve/sampler.h"

static struct step_sample plain(float temperature)
{
    return (struct step_sample){
        .seed = 1, .temperature = temperature, .top_p = 1, .repetition = 1};
}

static int32_t pick(struct sampler *s, const float *x, const struct step_sample *sp)
{
    struct step_token t;

    assert_int_equal(sampler_pick(s, x, sp, NULL, NULL, -1, &t), 0);
    return t.id;
}

static void random_logits(float *x, int n, uint64_t *rng, float scale)
{
    for (int i = 0; i < n; i++)
        x[i] = scale * ((float)(test_rand(rng) % 20001) / 10000 - 1);
}

static void test_uniform(void **st)
{
    (void)st;
    /* Philox 4x32-10, key 0, counter 0: 6627e8d5 e169c58d .. */
    double want = (double)((0x6627e8d5ull << 32 | 0xe169c58dull) >> 11) * 0x1p-53;
    int bin[10] = {0};

    assert_true(sampler_uniform(0, 0, 0, 0) == want);
    assert_true(sampler_uniform(5, 0, 0, 0) != sampler_uniform(5ull << 32, 0, 0, 0));
    for (int i = 0; i < 20000; i++) {
        double u = sampler_uniform(test_seed(), i % 7, i, i % 2);
        assert_true(u >= 0 && u < 1);
        bin[(int)(u * 10)]++;
    }
    double chi = 0;
    for (int i = 0; i < 10; i++)
        chi += (bin[i] - 2000.0) * (bin[i] - 2000.0) / 2000.0;
    assert_true(chi < 33.7); /* 9 degrees of freedom, one in 10,000 */
}

static void test_greedy(void **st)
{
    (void)st;
    uint64_t rng = test_seed();
    float x[1003];

    for (int n = 1; n < 1003; n += 17) {
        struct sampler *s = sampler_new(n);
        struct step_sample sp = plain(0);
        random_logits(x, n, &rng, 3);
        int best = 0;
        for (int i = 1; i < n; i++)
            best = x[i] > x[best] ? i : best;
        assert_int_equal(pick(s, x, &sp), best);
        /* ties go to the lowest id */
        x[n - 1] = x[best];
        assert_int_equal(pick(s, x, &sp), best);
        sampler_free(s);
    }
}

static void test_bad_logits(void **st)
{
    (void)st;
    struct sampler *s = sampler_new(10);
    struct step_sample sp = plain(0), warm = plain(1);
    struct step_token t = {.id = 77};
    float x[10];

    for (int i = 0; i < 10; i++)
        x[i] = NAN;
    assert_int_equal(sampler_pick(s, x, &sp, NULL, NULL, 3, &t), -1);
    assert_int_equal(sampler_score(s, x, 1, 3, &t), -1);
    assert_int_equal(t.id, 77);
    x[4] = -2;
    assert_int_equal(pick(s, x, &sp), 4);
    for (int i = 0; i < 50; i++) {
        warm.out_pos = i;
        assert_int_equal(pick(s, x, &warm), 4);
        warm.top_p = i % 2 ? 0.5f : 1;
    }
    assert_int_equal(sampler_pick(s, x, &sp, NULL, NULL, 5, &t), 0);
    assert_int_equal(t.n_top, 1);
    assert_true(t.logprob == 0 && t.top_id[0] == 4);
    x[3] = INFINITY;
    assert_int_equal(sampler_pick(s, x, &sp, NULL, NULL, -1, &t), -1);
    x[3] = -INFINITY;
    assert_int_equal(sampler_score(s, x, 3, 0, &t), 0);
    assert_true(isfinite(t.logprob) && t.logprob < -1000);
    assert_int_equal(sampler_score(s, x, 10, 0, &t), -1);
    assert_int_equal(sampler_score(s, x, -1, 0, &t), -1);
    sampler_free(s);
}

static void test_logprobs(void **st)
{
    (void)st;
    enum { N = 777 };
    uint64_t rng = test_seed();
    float x[N];
    struct step_sample sp = plain(0.3f);
    struct sampler *s = sampler_new(N);
    struct step_token t;
    double sum = 0;

    random_logits(x, N, &rng, 8);
    for (int i = 0; i < N; i++)
        sum += exp((double)x[i]);
    /* of the raw logits, whatever bias, penalty and temperature did */
    struct step_bias bias = {5, 100};
    sp.n_bias = 1;
    assert_int_equal(sampler_pick(s, x, &sp, NULL, &bias, 20, &t), 0);
    assert_int_equal(t.id, 5);
    assert_true(fabs(t.logprob - (x[5] - log(sum))) < 1e-5);
    assert_int_equal(t.n_top, 20);
    for (int i = 0; i < 20; i++) {
        int above = 0;
        for (int j = 0; j < N; j++)
            above += x[j] > x[t.top_id[i]] || (x[j] == x[t.top_id[i]] && j < t.top_id[i]);
        assert_int_equal(above, i);
        assert_true(fabs(t.top_logprob[i] - (x[t.top_id[i]] - log(sum))) < 1e-5);
    }
    assert_int_equal(sampler_score(s, x, 6, 2, &t), 0);
    assert_true(t.id == 6 && t.n_top == 2);
    assert_true(fabs(t.logprob - (x[6] - log(sum))) < 1e-5);
    sampler_free(s);
}

/* ---- draws against the distribution that the definitions give ---- */

enum { V = 12, DRAWS = 20000 };

struct ref_tok {
    double p;
    int id;
};

static int by_p(const void *a, const void *b)
{
    const struct ref_tok *x = a, *y = b;
    return x->p != y->p ? (x->p < y->p ? 1 : -1) : x->id - y->id;
}

/* Temperature, top-k, top-p, min-p over logits x, by sorting everything. */
static void reference(const float *x, const struct step_sample *sp, double *p)
{
    struct ref_tok t[V];
    double z = 0, cum = 0;
    int k = sp->top_k > 0 && sp->top_k < V ? sp->top_k : V, n = 0;

    for (int i = 0; i < V; i++)
        t[i] = (struct ref_tok){exp((double)x[i] / (double)sp->temperature), i};
    qsort(t, V, sizeof(t[0]), by_p);
    for (int i = 0; i < k; i++)
        z += t[i].p;
    while (n < k && (n == 0 || cum < (double)sp->top_p - 1e-9))
        cum += t[n++].p / z;
    while (n > 1 && t[n - 1].p < (double)sp->min_p * t[0].p)
        n--;
    z = 0;
    for (int i = 0; i < n; i++)
        z += t[i].p;
    for (int i = 0; i < V; i++)
        p[i] = 0;
    for (int i = 0; i < n; i++)
        p[t[i].id] = t[i].p / z;
}

static void chi_square(struct sampler *s, const float *x, struct step_sample sp)
{
    int count[V] = {0}, df = -1;
    double p[V], chi = 0;

    reference(x, &sp, p);
    for (int i = 0; i < DRAWS; i++) {
        sp.out_pos = i;
        count[pick(s, x, &sp)]++;
    }
    for (int i = 0; i < V; i++) {
        if (p[i] == 0)
            assert_int_equal(count[i], 0);
        if (p[i] * DRAWS < 5)
            continue;
        chi += (count[i] - p[i] * DRAWS) * (count[i] - p[i] * DRAWS) / (p[i] * DRAWS);
        df++;
    }
    /* mean df, deviation sqrt(2 df): five of them off is one in a million or so */
    assert_true(chi < df + 5 * sqrt(2.0 * (df + 1)) + 5);
}

static void test_distributions(void **st)
{
    (void)st;
    static const float temp[] = {0.3f, 1, 2.5f}, top_p[] = {1, 0.9f, 0.5f},
                       min_p[] = {0, 0.15f};
    static const int top_k[] = {0, 5, V, 100};
    struct sampler *s = sampler_new(V);
    uint64_t rng = test_seed();
    float x[V];

    for (int c = 0; c < 3 * 3 * 2 * 4; c++) {
        struct step_sample sp = plain(temp[c % 3]);
        random_logits(x, V, &rng, 2);
        sp.seed = (uint64_t)c;
        sp.top_p = top_p[c / 3 % 3];
        sp.min_p = min_p[c / 9 % 2];
        sp.top_k = top_k[c / 18];
        chi_square(s, x, sp);
    }
    sampler_free(s);
}

/* The token that takes the mass to top_p belongs to the set; a tiny top_p leaves one. */
static void test_top_p_edges(void **st)
{
    (void)st;
    struct sampler *s = sampler_new(4);
    float x[4] = {logf(0.5f), logf(0.25f), logf(0.125f), logf(0.125f)};
    struct step_sample sp = plain(1);
    int seen[4] = {0};

    sp.top_p = 1e-6f;
    for (sp.out_pos = 0; sp.out_pos < 200; sp.out_pos++)
        assert_int_equal(pick(s, x, &sp), 0);
    sp.top_p = 0.6f; /* 0.5 is short of it, 0.75 is not */
    for (sp.out_pos = 0; sp.out_pos < 500; sp.out_pos++)
        seen[pick(s, x, &sp)]++;
    assert_true(seen[0] && seen[1] && !seen[2] && !seen[3]);
    sp.top_p = 0.8f; /* of the two equal ones the lower id goes in */
    for (sp.out_pos = 0; sp.out_pos < 500; sp.out_pos++)
        seen[pick(s, x, &sp)]++;
    assert_true(seen[2] && !seen[3]);
    sp.top_k = 1;
    assert_int_equal(pick(s, x, &sp), 0);
    sampler_free(s);
}

/* Large vocabulary: the head that is gathered is the head of the sorted whole. */
static void test_large_vocabulary(void **st)
{
    (void)st;
    enum { N = 50000 };
    float *x = malloc(N * sizeof(*x));
    struct sampler *s = sampler_new(N);
    uint64_t rng = test_seed();

    for (int round = 0; round < 6; round++) {
        random_logits(x, N, &rng, round < 3 ? 0.01f : 30);
        struct step_sample sp = plain(round % 3 == 0 ? 0.05f : 1);
        sp.top_k = round % 2 ? 40 : 0;
        sp.top_p = 0.7f;
        for (sp.out_pos = 0; sp.out_pos < 20; sp.out_pos++) {
            int32_t id = pick(s, x, &sp);
            double total = 0, above = 0;
            int better = 0;
            for (int i = 0; i < N; i++) {
                bool b = x[i] > x[id] || (x[i] == x[id] && i < id);
                double w = exp((double)(x[i] - x[id]) / (double)sp.temperature);
                total += w;
                above += b ? w : 0;
                better += b;
            }
            if (sp.top_k)
                assert_true(better < 40);
            else
                assert_true(above < 0.7001 * total);
        }
    }
    free(x);
    sampler_free(s);
}

static void test_penalties(void **st)
{
    (void)st;
    struct sampler *s = sampler_new(6);
    struct step_sample sp = plain(0);
    struct step_token t;
    float x[6] = {2.0f, 1.9f, -1, -1, 0.5f, 0.4f};
    int32_t hist[] = {0, 4, 1, 1}; /* prompt 0 4, output 1 1 */

    sp.n_hist = 4;
    sp.n_prompt = 2;
    /* repetition: prompt and output, divide what is positive */
    sp.repetition = 10;
    assert_int_equal(sampler_pick(s, x, &sp, hist, NULL, -1, &t), 0);
    assert_int_equal(t.id, 5);
    /* .. and multiply what is negative */
    float neg[6] = {-1, -1.5f, -2, -3, -4, -5};
    assert_int_equal(sampler_pick(s, neg, &sp, hist, NULL, -1, &t), 0);
    assert_int_equal(t.id, 2);
    /* presence and frequency: output only; once, and for each time */
    sp.repetition = 1;
    sp.presence = 1.8f;
    assert_int_equal(sampler_pick(s, x, &sp, hist, NULL, -1, &t), 0);
    assert_int_equal(t.id, 0);
    float y[6] = {-9, 5, 3, -9, -9, -9};
    sp.presence = 0;
    sp.frequency = 0.9f; /* 5 - 2 * 0.9 = 3.2 */
    assert_int_equal(sampler_pick(s, y, &sp, hist, NULL, -1, &t), 0);
    assert_int_equal(t.id, 1);
    sp.frequency = 1.1f; /* 2.8 */
    assert_int_equal(sampler_pick(s, y, &sp, hist, NULL, -1, &t), 0);
    assert_int_equal(t.id, 2);
    /* the scratch is clean again: without history nothing is left of it */
    sp = plain(0);
    assert_int_equal(pick(s, y, &sp), 1);
    /* ids from outside the vocabulary do no harm */
    int32_t odd[] = {-1, 6, 1 << 30};
    struct step_bias bias[] = {{-5, 1}, {99, 1}, {3, 20}};
    sp.n_hist = 3, sp.n_bias = 3, sp.repetition = 2;
    assert_int_equal(sampler_pick(s, y, &sp, odd, bias, -1, &t), 0);
    assert_int_equal(t.id, 3);
    sampler_free(s);
}

/* The choice depends on seed, choice and output position, and on nothing else. */
static void test_same_seed_same_token(void **st)
{
    (void)st;
    enum { N = 300 };
    struct sampler *a = sampler_new(N), *b = sampler_new(N);
    uint64_t rng = test_seed();
    float x[N], y[N];
    int32_t first[50];
    int differ = 0;

    random_logits(x, N, &rng, 1);
    random_logits(y, N, &rng, 1);
    struct step_sample sp = plain(1);
    for (sp.out_pos = 0; sp.out_pos < 50; sp.out_pos++)
        first[sp.out_pos] = pick(a, x, &sp);
    struct step_sample other = plain(0.7f);
    for (sp.out_pos = 49; sp.out_pos >= 0; sp.out_pos--) {
        other.out_pos = sp.out_pos;
        other.top_k = 9;
        pick(b, y, &other);
        assert_int_equal(pick(b, x, &sp), first[sp.out_pos]);
        sp.choice = 1;
        differ += pick(b, x, &sp) != first[sp.out_pos];
        sp.choice = 0;
    }
    assert_true(differ > 30);
    sampler_free(a);
    sampler_free(b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_bad_logits),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_top_p_edges),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_same_seed_same_token),
    };
    return test_main(argc, argv, "sampler", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/unit/test_affinity.c - the set of prefixes against a plain list, and a trace of
 * shared prefixes over replicas: hits near one replica's, load near the mean. */
#include "daemon/ctrl/affinity.h"

#include <stdbool.h>

#include "tests/test.h"

enum { CAP = 64, KEYS = 200 };

/* The same set as a list, newest last. */
struct plain {
    uint64_t v[CAP];
    int n;
};

static bool plain_has(const struct plain *p, uint64_t h)
{
    for (int i = 0; i < p->n; i++)
        if (p->v[i] == h)
            return true;
    return false;
}

static void plain_add(struct plain *p, uint64_t h)
{
    int at = 0;

    while (at < p->n && p->v[at] != h)
        at++;
    if (at == p->n && p->n == CAP)
        at = 0; /* the oldest */
    else if (at == p->n)
        p->n++;
    memmove(p->v + at, p->v + at + 1, (size_t)(p->n - 1 - at) * sizeof(*p->v));
    p->v[p->n - 1] = h;
}

static void set_is_a_list(void **state)
{
    struct affinity *a = affinity_new(CAP);
    struct plain p = {.n = 0};
    uint64_t rng = test_seed() + 3;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint64_t h = (test_rand(&rng) % KEYS + 1) * 64; /* many meet in one place */

        affinity_add(a, &h, 1);
        plain_add(&p, h);
        for (uint64_t k = 1; k <= KEYS; k += 7)
            assert_int_equal(affinity_match(a, &(uint64_t){k * 64}, 1),
                             plain_has(&p, k * 64));
    }
    affinity_free(a);
    affinity_free(NULL);
}

static void match_is_a_prefix(void **state)
{
    int32_t x[100], y[100];
    uint64_t hx[8], hy[8];
    struct affinity *a = affinity_new(CAP);

    (void)state;
    for (int i = 0; i < 100; i++)
        x[i] = y[i] = i * 31;
    y[40] ^= 1; /* within the third block */
    assert_int_equal(affinity_hash(1, x, 100, hx), 6);
    assert_int_equal(affinity_hash(1, y, 100, hy), 6);
    assert_int_equal(affinity_match(a, hx, 6), 0);
    affinity_add(a, hx, 6);
    assert_int_equal(affinity_match(a, hx, 6), 6);
    assert_int_equal(affinity_match(a, hy, 6), 2);
    affinity_hash(2, x, 100, hy); /* another salt shares nothing */
    assert_int_equal(affinity_match(a, hy, 6), 0);
    affinity_free(a);
}

static void pick_weighs(void **state)
{
    static const struct {
        struct affinity_choice c[2];
        int64_t prompt, answer;
        int best;
    } cases[] = {
        {{{100, 0, -1}, {50, 0, -1}}, 32, 32, 1},    /* the idler one */
        {{{100, 96, -1}, {50, 0, -1}}, 100, 32, 0},  /* what it has is worth more */
        {{{1000, 96, -1}, {50, 0, -1}}, 100, 32, 1}, /* but not any queue */
        {{{50, 0, 10}, {60, 0, 1000}}, 100, 32, 1},  /* no room for its KV */
        {{{50, 0, -1}, {50, 0, -1}}, 100, 32, 0},    /* the first of equals */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(affinity_pick(cases[i].c, 2, cases[i].prompt, cases[i].answer),
                         cases[i].best);
}

/* ---- replicas in a simulated world ---- */

enum { PREFIXES = 40, PREFIX_TOK = 320, OWN_TOK = 64, ANSWER = 64, REQUESTS = 6000 };
enum { RATE = 600 /* tokens an engine works off between two arrivals, all together */ };

struct world {
    struct affinity *known[4], *cache[4]; /* the router's guess; the engine's own */
    int64_t load[4];
    double hits, asked, worst; /* tokens; largest load over the mean */
};

static void arrive(struct world *w, int n, uint64_t *rng)
{
    int32_t toks[PREFIX_TOK + OWN_TOK];
    uint64_t h[(PREFIX_TOK + OWN_TOK) / AFFINITY_BLOCK];
    struct affinity_choice c[4];
    /* a few prefixes are asked for often */
    int p = (int)(test_rand(rng) % PREFIXES * (test_rand(rng) % PREFIXES) / PREFIXES);

    for (int i = 0; i < PREFIX_TOK; i++)
        toks[i] = p * 1000 + i;
    for (int i = 0; i < OWN_TOK; i++)
        toks[PREFIX_TOK + i] = (int32_t)(test_rand(rng) % 100000);
    int blocks = affinity_hash(0, toks, PREFIX_TOK + OWN_TOK, h);
    for (int i = 0; i < n; i++)
        c[i] = (struct affinity_choice){
            w->load[i], affinity_match(w->known[i], h, blocks) * AFFINITY_BLOCK, -1};
    int at = affinity_pick(c, n, PREFIX_TOK + OWN_TOK, ANSWER);
    int64_t hit = affinity_match(w->cache[at], h, blocks) * AFFINITY_BLOCK;
    w->hits += (double)hit;
    w->asked += PREFIX_TOK + OWN_TOK;
    affinity_add(w->known[at], h, blocks);
    affinity_add(w->cache[at], h, blocks);
    w->load[at] += PREFIX_TOK + OWN_TOK - hit + ANSWER;
}

static void work(struct world *w, int n)
{
    for (int i = 0; i < n; i++) {
        int64_t done = RATE / n / 4;
        w->load[i] = w->load[i] > done ? w->load[i] - done : 0;
    }
}

static struct world simulate(int n)
{
    struct world w = {.worst = 0};
    uint64_t rng = test_seed() + 9;
    double mean = 0, most[4] = {0};

    for (int i = 0; i < n; i++) {
        w.known[i] = affinity_new(16384);
        w.cache[i] = affinity_new(16384);
    }
    for (int r = 0; r < REQUESTS; r++) {
        arrive(&w, n, &rng);
        work(&w, n);
        for (int i = 0; i < n; i++) {
            most[i] += (double)w.load[i] / REQUESTS;
            mean += (double)w.load[i] / REQUESTS / n;
        }
    }
    for (int i = 0; i < n; i++) {
        w.worst = most[i] / mean > w.worst ? most[i] / mean : w.worst;
        affinity_free(w.known[i]);
        affinity_free(w.cache[i]);
    }
    return w;
}

static void replicas(void **state)
{
    struct world one = simulate(1), four = simulate(4);
    double a = one.hits / one.asked, b = four.hits / four.asked;

    (void)state;
    print_message("hit rate of one %.3f, of four %.3f; most loaded %.3f of the mean\n", a,
                  b, four.worst);
    assert_true(a > 0.5); /* there is something to share */
    assert_true(b > a - 0.05);
    assert_true(four.worst < 1.2);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(set_is_a_list),
    cmocka_unit_test(match_is_a_prefix),
    cmocka_unit_test(pick_weighs),
    cmocka_unit_test(replicas),
};
TEST_MAIN("affinity", tests)

/* tests/unit/test_routes.c - the route table: as loaded, copies put and taken away, what
 * is refused, shares, and random changes that keep every rule. */
#include "tests/test.h"

#include "base/err.h"
#include "daemon/serve/routes.h"

static struct routes *make(int n_expert, int n_rank, int n_slot, int n_layer)
{
    const struct routes_dims d = {n_expert, n_rank, n_slot};
    struct routes *r = NULL;
    struct err e = {0};

    if (routes_new(&d, n_layer, &r, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(routes_check(r, &e), 0);
    return r;
}

static void test_as_loaded(void **st)
{
    struct routes *r = make(7, 3, 4, 2); /* 3, 2, 2 of 4 slots */
    const int16_t want[] = {0, 1, 2, -1, 3, 4, -1, -1, 5, 6, -1, -1};

    (void)st;
    assert_memory_equal(r->layer[1].expert, want, sizeof(want));
    assert_int_equal(r->layer[1].generation, 1);
    for (int x = 0; x < 7; x++)
        assert_int_equal(routes_copies(r, 0, x), 1);
    assert_int_equal(routes_find(r, 0, 4, 1), 5);
    assert_int_equal(routes_find(r, 0, 4, 0), -1);
    assert_int_equal(routes_empty(r, 0, 0), 3);
    assert_int_equal(routes_empty(r, 0, 1), 2);
    routes_free(r);
    r = make(4, 2, 2, 1);
    assert_int_equal(routes_empty(r, 0, 1), -1);
    routes_free(r);
    routes_free(NULL);
}

static void refused(int rc, const struct err *e, const char *why)
{
    assert_int_equal(rc, -1);
    if (!strstr(e->msg, why))
        fail_msg("'%s' does not say '%s'", e->msg, why);
}

static void test_refused(void **st)
{
    const struct routes_dims few = {9, 2, 4}, many = {8, 128, 33}, none = {0, 1, 1};
    const float bad[] = {1, -1}, zero[] = {0, 0};
    struct routes *r = make(6, 2, 4, 1), *other = NULL;
    struct err e = {0};

    (void)st;
    refused(routes_new(&few, 1, &other, &e), &e, "do not hold 9 experts: 5 would");
    refused(routes_new(&many, 1, &other, &e), &e, "more than 4096 slots");
    refused(routes_new(&none, 1, &other, &e), &e, "0 experts");
    assert_null(other);
    refused(routes_put(r, 0, 0, 3, 1, &e), &e, "rank 0 has a copy of expert 1");
    refused(routes_put(r, 0, 0, 1, 4, &e), &e, "last copy of expert 1");
    refused(routes_put(r, 0, 0, 1, -1, &e), &e, "last copy of expert 1");
    refused(routes_put(r, 0, 2, 1, 0, &e), &e, "2 ranks");
    refused(routes_put(r, 1, 0, 1, 0, &e), &e, "1 layers");
    refused(routes_put(r, 0, 0, 3, 6, &e), &e, "expert 6 of 6");
    assert_int_equal(r->layer[0].generation, 1); /* nothing happened */
    assert_int_equal(routes_put(r, 0, 0, 3, 5, &e), 0);
    refused(routes_share(r, 0, 5, bad, 2, &e), &e, "a share of -1");
    refused(routes_share(r, 0, 5, zero, 2, &e), &e, "sum to 0");
    refused(routes_share(r, 0, 5, zero, 1, &e), &e, "1 shares for 2 copies");
    r->layer[0].expert[3] = 0;
    refused(routes_check(r, &e), &e, "two copies of expert 0 on rank 0");
    routes_free(r);
}

static void test_shares(void **st)
{
    struct routes *r = make(6, 3, 4, 1);
    const float share[] = {1, 3};
    struct err e = {0};

    (void)st;
    assert_int_equal(routes_put(r, 0, 2, 2, 0, &e), 0);
    assert_true(r->layer[0].share[0] == 0.5f && r->layer[0].share[10] == 0.5f);
    assert_int_equal(routes_share(r, 0, 0, share, 2, &e), 0);
    assert_true(r->layer[0].share[0] == 0.25f && r->layer[0].share[10] == 0.75f);
    assert_int_equal(r->layer[0].generation, 3);
    assert_int_equal(routes_put(r, 0, 0, 0, -1, &e), 0); /* the old place is drained */
    assert_true(r->layer[0].share[0] == 0 && r->layer[0].share[10] == 1);
    assert_int_equal(routes_check(r, &e), 0);
    routes_free(r);
}

/* Whatever is put where: refused and unchanged, or done and every rule kept. */
static void test_random(void **st)
{
    struct routes *r = make(24, 5, 7, 3);
    uint64_t rng = test_seed();
    int done = 0, full = 0;
    struct err e = {0};

    (void)st;
    for (int i = 0; i < 3000; i++) {
        int layer = (int)(test_rand(&rng) % 3), rank = (int)(test_rand(&rng) % 5);
        int slot = (int)(test_rand(&rng) % 7), x = (int)(test_rand(&rng) % 25) - 1;
        uint64_t was = r->layer[layer].generation;
        int before = r->layer[layer].expert[rank * 7 + slot];
        int rc = routes_put(r, layer, rank, slot, x, &e);

        assert_int_equal(r->layer[layer].expert[rank * 7 + slot], rc < 0 ? before : x);
        assert_int_equal(r->layer[layer].generation, was + (rc == 0 && before != x));
        done += rc == 0 && before != x;
        full += rc < 0;
        if (routes_check(r, &e) < 0)
            fail_msg("after %d changes: %s", i, e.msg);
    }
    assert_true(done > 300 && full > 300);
    routes_free(r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_loaded), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_shares), cmocka_unit_test(test_random)};
    return test_main(argc, argv, "routes", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/unit/test_idmap.c - the map against a plain array, with ids that collide. */
#include "tests/test.h"

#include "daemon/serve/idmap.h"

enum { IDS = 400 };

static void test_random(void **st)
{
    (void)st;
    static char there[IDS];
    struct idmap m = {0};
    uint64_t rng = test_seed();
    size_t n = 0;

    memset(there, 0, sizeof(there));
    for (int i = 0; i < 200000; i++) {
        uint64_t k = test_rand(&rng) % IDS, id = k << (k % 3 * 20);
        void *p = &there[k];
        assert_ptr_equal(idmap_get(&m, id), there[k] ? p : NULL);
        if (there[k]) {
            idmap_del(&m, id);
            n--;
        } else if (test_rand(&rng) % 4) {
            idmap_put(&m, id, p);
            n++;
        } else {
            idmap_del(&m, id); /* of what is not there */
            continue;
        }
        there[k] = !there[k];
        assert_int_equal(m.n, n);
    }
    for (uint64_t k = 0; k < IDS; k++)
        assert_ptr_equal(idmap_get(&m, k << (k % 3 * 20)), there[k] ? &there[k] : NULL);
    assert_true(m.cap <= 1024); /* deletions leave nothing behind */
    idmap_done(&m);
    idmap_del(&m, 5);
    assert_null(idmap_get(&m, 5));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return test_main(argc, argv, "idmap", tests, sizeof(tests) / sizeof(tests[0]));
}

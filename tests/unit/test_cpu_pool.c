/* tests/unit/test_cpu_pool.c - pieces do not overlap, are aligned, may outlive the pool;
 * large and pool-less ones stand alone; no memory is reported and changes nothing. */
#include "kernels/cpu_pool.h"

#include "base/mem.h"
#include "tests/test.h"

enum { MIB = 1 << 20 };

static void test_pieces_are_apart(void **state)
{
    struct cpu_pool *p = cpu_pool_new();
    struct cpu_slab *slab[200];
    uint8_t *piece[200];
    size_t size[200];
    uint64_t rng = test_seed();
    (void)state;

    for (int i = 0; i < 200; i++) {
        size[i] = 1 + (size_t)(test_rand(&rng) % MIB);
        piece[i] = cpu_pool_alloc(p, size[i], &slab[i]);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % 64, 0);
        memset(piece[i], i, size[i]);
    }
    cpu_pool_free(p);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(piece[i][0], i);
        assert_int_equal(piece[i][size[i] - 1], i);
        cpu_slab_unref(slab[i]);
    }
}

static void test_large_and_lone_pieces(void **state)
{
    struct cpu_pool *p = cpu_pool_new();
    struct cpu_slab *small, *large, *lone, *next;
    uint8_t *a = cpu_pool_alloc(p, 100, &small);
    uint8_t *b = cpu_pool_alloc(p, 17 * (size_t)MIB, &large);
    uint8_t *c = cpu_pool_alloc(p, 100, &next);
    (void)state;

    assert_ptr_not_equal(small, large);
    assert_int_equal((uintptr_t)b % (2 * MIB), 0);
    assert_ptr_equal(small, next);
    assert_int_equal(c - a, 128);
    assert_non_null(cpu_pool_alloc(NULL, 1, &lone));
    cpu_slab_unref(lone);
    cpu_slab_unref(large);
    cpu_slab_unref(small);
    cpu_slab_unref(next);
    cpu_pool_free(p);
}

static void test_no_memory(void **state)
{
    struct cpu_pool *p = cpu_pool_new();
    struct cpu_slab *s = NULL;
    (void)state;

    mem_fail_at(1);
    assert_null(cpu_pool_alloc(p, 100, &s));
    mem_fail_at(0);
    assert_null(s);
    assert_null(cpu_pool_alloc(p, SIZE_MAX - 10, &s));
    assert_non_null(cpu_pool_alloc(p, 100, &s));
    cpu_slab_unref(s);
    cpu_pool_free(p);
    cpu_pool_free(NULL);
    cpu_slab_unref(NULL);
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(test_pieces_are_apart),
    cmocka_unit_test(test_large_and_lone_pieces),
    cmocka_unit_test(test_no_memory),
};

TEST_MAIN("cpu_pool", TESTS)

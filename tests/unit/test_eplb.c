/* EPLB: the published answer, and what it does where the published code fails. */
#include "tests/test.h"

#include "base/err.h"
#include "topo/eplb.h"
#include "topo/expertplan.h"

/* tokens of the recorded example; 2 layers of 12 experts */
static void example(double *load)
{
    FILE *f = fopen(test_shared("expert-loads/eplb_readme_example_2x12.csv"), "re");
    char line[64];
    int l, x, n = 0;
    long tokens;

    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "%d,%d,%ld", &l, &x, &tokens) == 3) {
            load[l * 12 + x] = (double)tokens;
            n++;
        }
    fclose(f);
    assert_int_equal(n, 24);
}

static void published(void **st)
{
    static const int16_t want[2][16] = {
        {5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1},
        {7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}};
    double load[24];
    int16_t got[2][16];
    struct err e = {0};
    (void)st;

    example(load);
    struct eplb_ask a = {.n_layer = 2,
                         .n_expert = 12,
                         .n_slot = 16,
                         .n_device = 8,
                         .n_node = 2,
                         .n_group = 4,
                         .load = load};
    assert_int_equal(eplb_plan(&a, got[0], &e), 0);
    assert_memory_equal(got, want, sizeof(want));
}

/* The known weak spot of its two greedy stages. */
static void known_vector(void **st)
{
    static const double load[] = {600, 560, 120, 120, 20, 10, 10, 10};
    struct eplb_ask a = {.n_layer = 1,
                         .n_expert = 8,
                         .n_slot = 16,
                         .n_device = 8,
                         .n_node = 1,
                         .n_group = 1,
                         .load = load};
    int16_t got[16];
    int copies[8] = {0};
    double high = 0;
    struct err e = {0};
    (void)st;

    assert_int_equal(eplb_plan(&a, got, &e), 0);
    for (int i = 0; i < 16; i++)
        copies[got[i]]++;
    for (int g = 0; g < 8; g++) {
        double sum = load[got[2 * g]] / copies[got[2 * g]] +
                     load[got[2 * g + 1]] / copies[got[2 * g + 1]];
        high = sum > high ? sum : high;
    }
    assert_int_equal((int)(high + 0.5), 232);
}

/* Counts of the copies of n experts on slots. */
static void counts(const int16_t *map, int slots, int n, int *ret)
{
    for (int i = 0; i < n; i++)
        ret[i] = 0;
    for (int i = 0; i < slots; i++)
        if (map[i] >= 0)
            ret[map[i]]++;
}

static void no_load(void **st)
{
    static const double load[8] = {0};
    struct eplb_ask a = {.n_layer = 2,
                         .n_expert = 4,
                         .n_slot = 8,
                         .n_device = 4,
                         .n_node = 1,
                         .n_group = 1,
                         .load = load};
    int16_t got[16];
    int c[4];
    struct err e = {0};
    (void)st;

    assert_int_equal(eplb_plan(&a, got, &e), 0);
    for (int l = 0; l < 2; l++) {
        counts(got + 8 * l, 8, 4, c);
        for (int i = 0; i < 4; i++)
            assert_int_equal(c[i], 2);
    }
}

/* 7 devices, 17 slots, groups that do not divide: each expert stands, devices 0-2 have
 * one slot more. */
static void odd_sizes(void **st)
{
    double load[12];
    int16_t got[17];
    int c[12];
    struct err e = {0};
    (void)st;

    for (int i = 0; i < 12; i++)
        load[i] = 1 + i;
    struct eplb_ask a = {.n_layer = 1,
                         .n_expert = 12,
                         .n_slot = 17,
                         .n_device = 7,
                         .n_node = 2,
                         .n_group = 5,
                         .load = load};
    for (int i = 0; i < 17; i++)
        got[i] = -7;
    assert_int_equal(eplb_plan(&a, got, &e), 0);
    counts(got, 17, 12, c);
    for (int i = 0, sum = 0; i < 12; i++) {
        assert_true(c[i] >= 1);
        sum += c[i];
        if (i == 11)
            assert_int_equal(sum, 17);
    }
    assert_int_equal(eplb_first(&a, 0), 0);
    assert_int_equal(eplb_first(&a, 3), 9);
    assert_int_equal(eplb_first(&a, 7), 17);
}

static void refuses(void **st)
{
    double load[4] = {1, 2, 3, 4};
    struct eplb_ask a = {.n_layer = 1,
                         .n_expert = 4,
                         .n_slot = 3,
                         .n_device = 3,
                         .n_node = 1,
                         .n_group = 1,
                         .load = load};
    int16_t got[8];
    struct err e = {0};
    (void)st;

    assert_int_equal(eplb_plan(&a, got, &e), -1);
    assert_int_equal(e.code, ERR_NOFIT);
    a.n_slot = 8;
    load[2] = -1;
    assert_int_equal(eplb_plan(&a, got, &e), -1);
    assert_int_equal(e.code, ERR_RANGE);
    load[2] = 0.0 / 0.0;
    assert_int_equal(eplb_plan(&a, got, &e), -1);
    load[2] = 1;
    a.n_device = 0;
    assert_int_equal(eplb_plan(&a, got, &e), -1);
}

/* As a map of ours: nothing on a device that is out, nothing twice on one. */
static void as_map(void **st)
{
    double load[6] = {100, 1, 1, 1, 1, 1};
    uint8_t out[4] = {0, 1, 0, 0};
    struct expert_ask a = {.n_layer = 1,
                           .n_expert = 6,
                           .n_device = 4,
                           .n_slot = 4,
                           .load = load,
                           .out = out};
    int16_t got[16];
    struct err e = {0};
    (void)st;

    if (eplb_map(&a, 1, got, &e) < 0)
        fail_msg("%s", e.msg);
    for (int s = 4; s < 8; s++)
        assert_int_equal(got[s], -1);
    if (expertplan_check(&a, got, &e) < 0)
        fail_msg("%s", e.msg);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(published), cmocka_unit_test(known_vector),
    cmocka_unit_test(no_load),   cmocka_unit_test(odd_sizes),
    cmocka_unit_test(refuses),   cmocka_unit_test(as_map),
};
TEST_MAIN("eplb", tests)

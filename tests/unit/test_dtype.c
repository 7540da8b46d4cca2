/* tests/unit/test_dtype.c - block formats against values of an independent reader (made
 * by tests/tools/dtype_golden.py), half precision, sizes. */
#include "kernels/dtype.h"

#include <float.h>
#include <math.h>

#include "tests/test.h"

enum { N = 256 };
static const int AT[] = {0, 1, 17, 63, 128, 255};

static const struct golden {
    enum dtype type;
    float v[6];
    uint32_t sum; /* of the bits of all 256 values */
} GOLDEN[] = {
    {DT_Q4_0,
     {0x1.81ep-6f, -0x1.81ep-5f, 0x1.014p-6f, -0x1.9e88p-4f, -0x1.77cp-7f, 0x1.958p-6f},
     0xc9b42000},
    {DT_Q4_1,
     {0x1.99dp-5f, 0x1.4d88p-4f, -0x1.43p-8f, -0x1.68ap-5f, -0x1.6b8p-6f, 0x1.aap-6f},
     0x041fb000},
    {DT_Q5_0,
     {0x1.c23p-4f, 0x1.81ep-4f, -0x1.014p-4f, -0x1.644p-4f, -0x1.f5b8p-4f, -0x1.1b5cp-3f},
     0xdd704600},
    {DT_Q5_1,
     {0x1.99dp-5f, 0x1.99dp-5f, 0x1.a804p-3f, 0x1.d8cp-4f, -0x1.3748p-4f, 0x1.b228p-4f},
     0x70f25400},
    {DT_Q8_0,
     {-0x1.d649p-1f, -0x1.79d6p-1f, -0x1.a208p-4f, 0x1.5c3ap-1f, 0x1.d2cbp+0f,
      0x1.ca48p-2f},
     0x1aa71880},
    {DT_Q4_K,
     {0x1.e078p+0f, 0x1.e078p+0f, 0x1.b936p+1f, 0x1.5ebap+1f, 0x1.6139p+1f,
      0x1.1ee0cp+1f},
     0xe86749d0},
    {DT_Q5_K,
     {0x1.b9aep+2f, 0x1.0509p+3f, 0x1.9104p+1f, 0x1.338ap+0f, 0x1.987dcp+1f,
      0x1.811dp+2f},
     0x49323bb0},
    {DT_Q6_K,
     {-0x1.49bc2p+4f, -0x1.3a088p+4f, 0x1.12c77p+5f, 0x1.ffc2p+3f, -0x1.6e90ep+4f,
      -0x1.2ff4p+3f},
     0xdd5f2130},
    {DT_MXFP4, {0x1p-1f, -0x1.8p-2f, 0, 0x1p-1f, -0x1.8p+1f, -0x1p-1f}, 0xb4800000},
};

static void fill(enum dtype t, uint8_t *raw)
{
    int size = dtype_block_bytes(t), n = N / dtype_block(t) * size;
    int has_m = t == DT_Q4_1 || t == DT_Q5_1 || t == DT_Q4_K || t == DT_Q5_K;
    uint32_t state = 12345;

    for (int i = 0; i < n; i++) {
        state = state * 1664525 + 1013904223;
        raw[i] = (uint8_t)(state >> 24);
    }
    for (int i = 0; i < n; i += size) {
        uint8_t *d = raw + i + (t == DT_Q6_K ? 208 : 0);
        if (t == DT_MXFP4) { /* scales of 2^-4 to 2^-1 */
            d[0] = 124 + d[0] % 4;
            continue;
        }
        d[1] = (d[1] & 0x83) | 0x20;
        if (has_m)
            d[3] = (d[3] & 0x83) | 0x20;
    }
}

static void test_blocks_have_their_values(void **state)
{
    uint8_t raw[N * 2];
    float v[N];
    (void)state;

    for (size_t i = 0; i < sizeof(GOLDEN) / sizeof(GOLDEN[0]); i++) {
        const struct golden *g = &GOLDEN[i];
        uint32_t sum = 0, bits;
        fill(g->type, raw);
        dtype_to_f32(g->type, raw, v, N);
        for (int k = 0; k < N; k++) {
            v[k] += 0.0f; /* no -0 */
            memcpy(&bits, &v[k], 4);
            sum += bits;
        }
        for (int k = 0; k < 6; k++)
            if (v[AT[k]] != g->v[k])
                fail_msg("%s element %d is %g, not %g", dtype_name(g->type), AT[k],
                         (double)v[AT[k]], (double)g->v[k]);
        assert_int_equal(sum, g->sum);
    }
}

static void test_half_conversions(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h), b = bf16_to_f32((uint16_t)h);
        if (!isnan(f))
            assert_int_equal(f32_to_f16(f), h);
        if (!isnan(b))
            assert_int_equal(f32_to_bf16(b), h);
        assert_int_equal(isnan(f), (h & 0x7fff) > 0x7c00);
    }
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(f32_to_f16(0x1p-25f), 0); /* a tie goes to even */
    assert_int_equal(f32_to_f16(0x1.8p-24f), 2);
    assert_int_equal(f32_to_bf16(1.00390625f), 0x3f80);
    assert_int_equal(f32_to_bf16(1.01171875f), 0x3f82);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(NAN))));
    assert_true(f8_e4m3_to_f32(0x38) == 1 && f8_e4m3_to_f32(0xbb) == -1.375f);
    assert_true(f8_e4m3_to_f32(0x7e) == 448 && f8_e4m3_to_f32(0x08) == 0x1p-6f);
    assert_true(f8_e4m3_to_f32(0x01) == 0x1p-9f && f8_e4m3_to_f32(0x80) == 0);
    assert_true(isnan(f8_e4m3_to_f32(0x7f)) && isnan(f8_e4m3_to_f32(0xff)));
}

static void test_e4m3(void **state)
{
    (void)state;
    for (int v = 0; v < 256; v++) /* every code is its own value's, NaN included */
        assert_int_equal(f32_to_f8_e4m3(f8_e4m3_to_f32((uint8_t)v)), v);
    for (int v = 0; v < 0x7e; v++) { /* between two: the nearer; halves to the even one */
        float lo = f8_e4m3_to_f32((uint8_t)v), hi = f8_e4m3_to_f32((uint8_t)(v + 1));
        float half = (lo + hi) / 2;
        int even = v & 1 ? v + 1 : v;

        assert_int_equal(f32_to_f8_e4m3(half), even);
        assert_int_equal(f32_to_f8_e4m3(-half), even | 0x80);
        assert_int_equal(f32_to_f8_e4m3(nextafterf(half, lo)), v);
        assert_int_equal(f32_to_f8_e4m3(nextafterf(half, hi)), v + 1);
    }
    static const float big[] = {449, 464, 480, 1e9f, FLT_MAX, INFINITY};
    for (size_t i = 0; i < sizeof(big) / sizeof(big[0]); i++) {
        assert_int_equal(f32_to_f8_e4m3(big[i]), 0x7e);
        assert_int_equal(f32_to_f8_e4m3(-big[i]), 0xfe);
    }
    assert_int_equal(f32_to_f8_e4m3(NAN), 0x7f);
    assert_int_equal(f32_to_f8_e4m3(FLT_MIN / 4), 0);
    assert_int_equal(f32_to_f8_e4m3(-0.0f), 0x80);
}

static void test_sizes_and_names(void **state)
{
    (void)state;
    assert_int_equal(dtype_row_bytes(DT_Q4_1, 576), 18 * 20);
    assert_int_equal(dtype_row_bytes(DT_Q4_1, 575), -1);
    assert_int_equal(dtype_row_bytes(DT_F32, INT64_MAX), -1);
    assert_int_equal(dtype_row_bytes(DT_F32, -1), -1);
    assert_int_equal(dtype_row_bytes(DT_Q6_K, 0), 0);
    for (int t = 0; t < DT_COUNT; t++) {
        assert_true(dtype_block(t) > 0 && dtype_block_bytes(t) > 0);
        assert_true(strlen(dtype_name(t)) > 0);
    }
    assert_int_equal(dtype_from_gguf(30), DT_BF16);
    assert_int_equal(dtype_from_gguf(14), DT_Q6_K);
    assert_int_equal(dtype_from_gguf(4), -1);
    assert_int_equal(dtype_from_gguf(UINT32_MAX), -1);
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(test_blocks_have_their_values),
    cmocka_unit_test(test_half_conversions),
    cmocka_unit_test(test_e4m3),
    cmocka_unit_test(test_sizes_and_names),
};

TEST_MAIN("dtype", TESTS)

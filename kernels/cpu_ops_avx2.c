/* kernels/cpu_ops_avx2.c - row kernels of the small ops for AVX2 with FMA and F16C.
 *
 * Whole vectors by intrinsics, the last few elements one by one with the same operations.
 */
#include "kernels/cpu_ops.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

static float sum8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

static void norm_row(float *y, const float *x, const float *w, int n, float eps)
{
    __m256 s[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                   _mm256_setzero_ps()};
    float sum, scale;
    int i = 0;

    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * j);
            s[j] = _mm256_fmadd_ps(v, v, s[j]);
        }
    sum = sum8(_mm256_add_ps(_mm256_add_ps(s[0], s[1]), _mm256_add_ps(s[2], s[3])));
    for (; i < n; i++)
        sum = fmaf(x[i], x[i], sum);
    scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(scale));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(w + i)));
    }
    for (; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

static void rotate_pair(float *xa, float *xb, float c, float s)
{
    float a = *xa, b = *xb;

    *xa = fmaf(a, c, -(b * s));
    *xb = fmaf(a, s, b * c);
}

static void rotate(float *x, const float *cs, int rot, bool neox)
{
    int half = rot / 2, j = 0;

    for (; neox && j + 8 <= half; j += 8) {
        __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + half + j);
        __m256 c = _mm256_loadu_ps(cs + j), s = _mm256_loadu_ps(cs + half + j);
        _mm256_storeu_ps(x + j, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + half + j, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
    }
    for (; j < half; j++)
        rotate_pair(x + (neox ? j : 2 * j), x + (neox ? j + half : 2 * j + 1), cs[j],
                    cs[half + j]);
}

/* Eight BF16 in the low halves of 32-bit lanes, to nearest even, NaN kept quiet. */
static __m256i round_bf16(__m256 v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));

    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
    return _mm256_srli_epi32(r, 16);
}

static __m128i half8(enum dtype t, __m256 v)
{
    __m256i r;

    if (t == DT_BF16) {
        r = round_bf16(v);
        return _mm_packus_epi32(_mm256_castsi256_si128(r),
                                _mm256_extracti128_si256(r, 1));
    }
    v = _mm256_min_ps(_mm256_set1_ps(65504.0f),
                      v); /* in this order a NaN comes through */
    v = _mm256_max_ps(_mm256_set1_ps(-65504.0f), v);
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static void to_half(enum dtype t, const float *x, uint16_t *out, int n)
{
    float in[8] = {0};
    uint16_t last[8];
    int i = 0;

    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(out + i), half8(t, _mm256_loadu_ps(x + i)));
    if (i == n)
        return;
    memcpy(in, x + i, (size_t)(n - i) * sizeof(float));
    _mm_storeu_si128((__m128i *)last, half8(t, _mm256_loadu_ps(in)));
    memcpy(out + i, last, (size_t)(n - i) * sizeof(*last));
}

const struct cpu_kern cpu_kern_avx2 = {norm_row, rotate, to_half};

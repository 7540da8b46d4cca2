/* kernels/cpu_ops_avx512.c - row kernels of the small ops for AVX-512 (with BF16).
 *
 * Written with fused multiply-adds where they are meant and no plain product followed by
 * a plain sum, so that the compiler has nothing to contract on its own. */
#include "kernels/cpu_ops.h"

#include <immintrin.h>
#include <math.h>

static inline __mmask16 tail(int left)
{
    return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
}

static void norm_row(float *y, const float *x, const float *w, int n, float eps)
{
    __m512 s[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                   _mm512_setzero_ps()};
    __m512 scale;
    float sum;
    int i = 0;

    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; j++) {
            __m512 v = _mm512_loadu_ps(x + i + 16 * j);
            s[j] = _mm512_fmadd_ps(v, v, s[j]);
        }
    for (; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(tail(n - i), x + i);
        s[0] = _mm512_fmadd_ps(v, v, s[0]);
    }
    s[0] = _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
    sum = _mm512_reduce_add_ps(s[0]) / (float)n;
    scale = _mm512_set1_ps(1.0f / sqrtf(sum + eps));
    for (i = 0; i < n; i += 16) {
        __mmask16 k = tail(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), scale);
        _mm512_mask_storeu_ps(y + i, k,
                              _mm512_mul_ps(v, _mm512_maskz_loadu_ps(k, w + i)));
    }
}

static void rotate_neox(float *x, const float *cs, int half)
{
    for (int j = 0; j < half; j += 16) {
        __mmask16 k = tail(half - j);
        __m512 a = _mm512_maskz_loadu_ps(k, x + j);
        __m512 b = _mm512_maskz_loadu_ps(k, x + half + j);
        __m512 c = _mm512_maskz_loadu_ps(k, cs + j);
        __m512 s = _mm512_maskz_loadu_ps(k, cs + half + j);
        __m512 ra = _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s));
        __m512 rb = _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c));
        _mm512_mask_storeu_ps(x + j, k, ra);
        _mm512_mask_storeu_ps(x + half + j, k, rb);
    }
}

/* Pairs stand side by side: spread cos and sin of 8 pairs over 16 lanes. */
static void rotate_pairs(float *x, const float *cs, int half)
{
    const __m512i spread =
        _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);

    for (int j = 0; j < half; j += 8) {
        int n = half - j < 8 ? half - j : 8;
        __mmask16 k = tail(n), k2 = tail(2 * n);
        __m512 v = _mm512_maskz_loadu_ps(k2, x + 2 * j);
        __m512 c = _mm512_permutexvar_ps(spread, _mm512_maskz_loadu_ps(k, cs + j));
        __m512 s = _mm512_permutexvar_ps(spread, _mm512_maskz_loadu_ps(k, cs + half + j));
        __m512 swapped = _mm512_permute_ps(v, 0xb1);
        v = _mm512_fmaddsub_ps(v, c, _mm512_mul_ps(swapped, s));
        _mm512_mask_storeu_ps(x + 2 * j, k2, v);
    }
}

static void rotate(float *x, const float *cs, int rot, bool neox)
{
    if (neox)
        rotate_neox(x, cs, rot / 2);
    else
        rotate_pairs(x, cs, rot / 2);
}

static void to_half(enum dtype t, const float *x, uint16_t *out, int n)
{
    const __m512 max = _mm512_set1_ps(65504.0f), min = _mm512_set1_ps(-65504.0f);

    for (int i = 0; i < n; i += 16) {
        __mmask16 k = tail(n - i);
        __m512 v = _mm512_maskz_loadu_ps(k, x + i);
        __m256i h;
        if (t == DT_BF16)
            h = (__m256i)_mm512_cvtneps_pbh(v);
        else /* this order of operands lets a NaN through */
            h = _mm512_cvtps_ph(_mm512_max_ps(min, _mm512_min_ps(max, v)),
                                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_mask_storeu_epi16(out + i, k, h);
    }
}

const struct cpu_kern cpu_kern_avx512 = {norm_row, rotate, to_half};

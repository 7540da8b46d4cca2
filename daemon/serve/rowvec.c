/* daemon/serve/rowvec.c - passes over one row of logits.
 *
 * Vectors are GCC's, 16 bytes wide, which every x86-64 and ARM64 has. exp is the usual
 * reduction x = n ln 2 + r with a polynomial in r (Cephes' coefficients) and n put into
 * the exponent; rowvec_weight is the same steps on one float, so both give equal bits. */
#include "daemon/serve/rowvec.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef int64_t vl __attribute__((vector_size(16)));
typedef double vd __attribute__((vector_size(32)));

static const float exp_min = -86.0f; /* below: 0 */
static const float log2e = 1.44269504f, ln2_hi = 0.693359375f, ln2_lo = -2.12194440e-4f;
static const float round_magic = 12582912.0f; /* 1.5 * 2^23 */
static const float c0 = 1.9875691500e-4f, c1 = 1.3981999507e-3f, c2 = 8.3334519073e-3f,
                   c3 = 4.1665795894e-2f, c4 = 1.6666665459e-1f, c5 = 5.0000001201e-1f;

static inline vf load(const float *x)
{
    vf v;

    memcpy(&v, x, sizeof(v));
    return v;
}

static inline vf splat(float f) { return (vf){f, f, f, f}; }

static inline vf pick(vi m, vf a, vf b) { return (vf)(((vi)a & m) | ((vi)b & ~m)); }

static inline int any(vi m)
{
    vl l = (vl)m;
    return (l[0] | l[1]) != 0;
}

/* exp(z), z <= 0; 0 below exp_min and for NaN */
static inline vf vexp(vf z)
{
    vi keep = z > splat(exp_min);
    vf n = (z * log2e + round_magic) - round_magic;
    vf r = z - n * ln2_hi - n * ln2_lo;
    vf p = ((((c0 * r + c1) * r + c2) * r + c3) * r + c4) * r + c5;
    p = p * (r * r) + r + 1.0f;
    vi e = __builtin_convertvector(pick(keep, n, splat(0)), vi);
    vf two_n = (vf)((e + 127) << 23);
    return pick(keep, p * two_n, splat(0));
}

float rowvec_weight(float x, float max, float scale)
{
    return vexp(splat((x - max) * scale))[0];
}

float rowvec_max(const float *x, int n)
{
    vf a = splat(-INFINITY), b = a;
    float best = -INFINITY;
    int i = 0;

    for (; i + 8 <= n; i += 8) {
        vf u = load(x + i), v = load(x + i + 4);
        a = pick(u > a, u, a);
        b = pick(v > b, v, b);
    }
    for (int j = 0; j < 4; j++) {
        best = a[j] > best ? a[j] : best;
        best = b[j] > best ? b[j] : best;
    }
    for (; i < n; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

int rowvec_above(const float *x, int n, int from, float v)
{
    int i = from;

    for (; i + 8 <= n; i += 8)
        if (any((load(x + i) > splat(v)) | (load(x + i + 4) > splat(v))))
            break;
    while (i < n && !(x[i] > v))
        i++;
    return i;
}

int rowvec_equal(const float *x, int n, int from, float v)
{
    int i = from;

    for (; i + 8 <= n; i += 8)
        if (any((load(x + i) == splat(v)) | (load(x + i + 4) == splat(v))))
            break;
    while (i < n && x[i] != v)
        i++;
    return i;
}

double rowvec_weights(const float *x, int n, float max, float scale, float min,
                      float *out)
{
    vd acc = {0, 0, 0, 0};
    int i = 0;

    for (; i + 4 <= n; i += 4) {
        vf w = vexp((load(x + i) - max) * scale);
        if (out) {
            w = pick(w >= splat(min), w, splat(0));
            memcpy(out + i, &w, sizeof(w));
        }
        acc += __builtin_convertvector(w, vd);
    }
    double sum = acc[0] + acc[1] + acc[2] + acc[3];
    for (; i < n; i++) {
        float w = rowvec_weight(x[i], max, scale);
        if (out)
            out[i] = w = w >= min ? w : 0;
        sum += (double)w;
    }
    return sum;
}

int rowvec_draw(const float *w, int n, double t)
{
    double sum = 0;
    int i = 0, last = -1;

    for (; i + 16 <= n; i += 16) {
        vd acc = __builtin_convertvector(load(w + i), vd);
        for (int j = 4; j < 16; j += 4)
            acc += __builtin_convertvector(load(w + i + j), vd);
        double block = acc[0] + acc[1] + acc[2] + acc[3];
        if (sum + block > t)
            break;
        last = block > 0 ? i : last;
        sum += block;
    }
    for (; i < n; i++) {
        sum += (double)w[i];
        if (sum > t)
            return i;
        last = w[i] > 0 ? i : last;
    }
    /* rounding left t out of reach: the last that has a weight */
    for (i = last < 0 ? n : last; i < n; i++)
        last = w[i] > 0 ? i : last;
    return last;
}

/* daemon/serve/steptime.c - a least squares fit of three terms that are not negative.
 *
 * There are seven choices of terms; each one's normal equations are solved, and of those
 * without a negative term the one with the least error counts. A term that the steps do
 * not tell from another (all chunks of one size) gets what the ridge leaves it. */
#include "daemon/serve/steptime.h"

#include <math.h>
#include <string.h>

#define FORGET 0.99 /* a step of the same kind later, what a step weighs */
#define RIDGE 1e-9  /* of the diagonal */

bool steptime_known(const struct steptime *m) { return m->n >= STEPTIME_MIN; }

/* Gauss; the matrix is symmetric and, with the ridge, positive. False: it is not. */
static bool solve(double a[STEPTIME_TERMS][STEPTIME_TERMS + 1], int n)
{
    for (int i = 0; i < n; i++) {
        if (!(a[i][i] > 0))
            return false;
        for (int k = 0; k < n; k++) {
            double f = k == i ? 0 : a[k][i] / a[i][i];
            for (int j = i; f != 0 && j <= n; j++)
                a[k][j] -= f * a[i][j];
        }
    }
    for (int i = 0; i < n; i++)
        a[i][n] /= a[i][i];
    return true;
}

/* With the terms of `mask` only. The error falls by *ret_gain against none. */
static bool fit(const struct steptime *m, int mask, double coef[STEPTIME_TERMS],
                double *ret_gain)
{
    double a[STEPTIME_TERMS][STEPTIME_TERMS + 1];
    int term[STEPTIME_TERMS], n = 0;

    for (int i = 0; i < STEPTIME_TERMS; i++)
        if (mask >> i & 1)
            term[n++] = i;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++)
            a[i][j] = m->sum[0].xx[term[i]][term[j]] + m->sum[1].xx[term[i]][term[j]];
        a[i][i] *= 1 + RIDGE;
        a[i][n] = m->sum[0].xy[term[i]] + m->sum[1].xy[term[i]];
    }
    if (!solve(a, n))
        return false;
    memset(coef, 0, STEPTIME_TERMS * sizeof(*coef));
    *ret_gain = 0;
    for (int i = 0; i < n; i++) {
        if (a[i][n] < 0)
            return false;
        coef[term[i]] = a[i][n];
        *ret_gain += a[i][n] * (m->sum[0].xy[term[i]] + m->sum[1].xy[term[i]]);
    }
    return true;
}

void steptime_add(struct steptime *m, int prompt_tok, int seqs, int64_t us)
{
    const double x[STEPTIME_TERMS] = {1, prompt_tok, seqs};
    int kind = prompt_tok > 0;
    double best = -1, coef[STEPTIME_TERMS], gain;

    if (us <= 0)
        return;
    m->n += kind && m->n < STEPTIME_MIN;
    for (int i = 0; i < STEPTIME_TERMS; i++) {
        m->sum[kind].xy[i] = m->sum[kind].xy[i] * FORGET + x[i] / (double)us;
        for (int j = 0; j < STEPTIME_TERMS; j++)
            m->sum[kind].xx[i][j] =
                m->sum[kind].xx[i][j] * FORGET + x[i] * x[j] / ((double)us * (double)us);
    }
    for (int mask = 1; mask < 1 << STEPTIME_TERMS; mask++)
        if (fit(m, mask, coef, &gain) && gain > best) {
            best = gain;
            memcpy(m->coef, coef, sizeof(coef));
        }
}

double steptime_us(const struct steptime *m, double prompt_tok, int seqs)
{
    if (!steptime_known(m))
        return 0;
    return m->coef[0] + m->coef[1] * prompt_tok + m->coef[2] * seqs;
}

int steptime_fit(const struct steptime *m, int seqs, double us)
{
    double left = us - m->coef[0] - m->coef[2] * seqs;

    if (left > 0 && left >= m->coef[1] * INT32_MAX)
        return INT32_MAX;
    if (left < 0)
        return -1;
    return m->coef[1] > 0 ? (int)floor(left / m->coef[1]) : 0;
}

/* daemon/ctrl/guard.c - the difference of two shares, with its interval.
 *
 * Wilson's score interval holds its coverage for small n and for shares near 0 and 1,
 * where services live; Newcombe (1998, method 10) joins two of them to an interval of the
 * difference. A change within the interval is noise and is not held against a revision.
 */
#include "daemon/ctrl/guard.h"

#include <math.h>
#include <stdio.h>

enum { SENTENCE = 256, BISECTIONS = 60 };

struct share {
    double p, low, high;
};

/* z so that a normal value lies within +-z with this probability. */
static double quantile(double confidence)
{
    double low = 0, high = 10;

    for (int i = 0; i < BISECTIONS; i++) {
        double z = (low + high) / 2;

        if (erf(z / sqrt(2)) < confidence)
            low = z;
        else
            high = z;
    }
    return (low + high) / 2;
}

static struct share wilson(int64_t k, int64_t n, double z)
{
    double p = (double)k / (double)n, zz = z * z / (double)n;
    double mid = (p + zz / 2) / (1 + zz);
    double half = z / (1 + zz) * sqrt(p * (1 - p) / (double)n + zz / (4 * (double)n));

    return (struct share){p, fmax(mid - half, 0), fmin(mid + half, 1)};
}

/* The lower end of high - low: above zero, the two differ. */
static double difference_low(struct share high, struct share low)
{
    return high.p - low.p - hypot(high.p - high.low, low.high - low.p);
}

enum guard_verdict guard_judge(const struct guard_window *before,
                               const struct guard_window *now, int64_t min_n,
                               double confidence, char sentence[256])
{
    struct share met[2], errors[2];
    double z;

    if (before->ready && !now->ready) {
        snprintf(sentence, SENTENCE, "readiness was lost: not every instance is ready");
        return GUARD_WORSE;
    }
    if (min_n < 1)
        min_n = 1;
    if (now->n < min_n) {
        snprintf(sentence, SENTENCE, "insufficient data (%lld of %lld requests since)",
                 (long long)now->n, (long long)min_n);
        return GUARD_INSUFFICIENT;
    }
    if (before->n < min_n) {
        snprintf(sentence, SENTENCE, "insufficient data (%lld of %lld requests before)",
                 (long long)before->n, (long long)min_n);
        return GUARD_INSUFFICIENT;
    }
    z = quantile(confidence);
    met[0] = wilson(before->met, before->n, z);
    met[1] = wilson(now->met, now->n, z);
    errors[0] = wilson(before->errors, before->n, z);
    errors[1] = wilson(now->errors, now->n, z);
    if (difference_low(errors[1], errors[0]) > 0) {
        snprintf(sentence, SENTENCE,
                 "error rate rose from %.2f %% to %.2f %% (%lld and %lld requests)",
                 errors[0].p * 100, errors[1].p * 100, (long long)before->n,
                 (long long)now->n);
        return GUARD_WORSE;
    }
    if (difference_low(met[0], met[1]) > 0) {
        snprintf(sentence, SENTENCE,
                 "SLO attainment fell from %.2f %% to %.2f %% (%lld and %lld requests)",
                 met[0].p * 100, met[1].p * 100, (long long)before->n, (long long)now->n);
        return GUARD_WORSE;
    }
    snprintf(sentence, SENTENCE,
             "no worse: attainment %.2f %% (before %.2f %%), errors %.2f %% (before %.2f "
             "%%), %lld requests",
             met[1].p * 100, met[0].p * 100, errors[1].p * 100, errors[0].p * 100,
             (long long)now->n);
    return GUARD_GOOD;
}

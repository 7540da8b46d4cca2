/* tests/bench/bench_parallel.h - what the two halves of bench_parallel share: time and
 * what to do with errors. */
#ifndef TESTS_BENCH_PARALLEL_H
#define TESTS_BENCH_PARALLEL_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "tests/bench/rows.h"

static inline void die(const struct err *e)
{
    fprintf(stderr, "bench_parallel: %s\n", e->msg);
    exit(1);
}

static inline double now_s(void) { return (double)clock_now_us(clock_real()) / 1e6; }

static inline double median(double *v, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && v[j] < v[j - 1]; j--) {
            double t = v[j];
            v[j] = v[j - 1];
            v[j - 1] = t;
        }
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

#endif

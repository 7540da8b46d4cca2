/* tests/bench/bench_parallel.h - what the two halves of bench_parallel share: rows of the
 * table and of the JSON file. */
#ifndef TESTS_BENCH_PARALLEL_H
#define TESTS_BENCH_PARALLEL_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

struct out {
    struct buf b;
    struct jw w;
    bool missed;
};

static inline void die(const struct err *e)
{
    fprintf(stderr, "bench_parallel: %s\n", e->msg);
    exit(1);
}

/* low <= value <= high; the goal is shown as it stands in the text. */
static inline void put(struct out *o, const char *key, double v, double low, double high,
                       const char *goal)
{
    bool ok = v >= low && v <= high;

    jw_key(&o->w, key);
    jw_obj(&o->w);
    jw_knum(&o->w, "value", v);
    jw_kstr(&o->w, "goal", goal);
    jw_kbool(&o->w, "ok", ok);
    jw_obj_end(&o->w);
    o->missed |= !ok;
    printf("%-36s %12.4f  %-40s %s\n", key, v, goal, ok ? "ok" : "MISSED");
    fflush(stdout);
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

/* tests/bench/rows.h - the rows of a bench: a table on stdout and one JSON object, each
 * key with value, goal and ok. A bench exits 1 where a goal is missed. */
#ifndef TESTS_BENCH_ROWS_H
#define TESTS_BENCH_ROWS_H

#include <stdbool.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"

struct out {
    struct buf b;
    struct jw w;
    bool missed;
};

static inline void out_begin(struct out *o)
{
    o->missed = false;
    buf_init(&o->b, 0);
    jw_init(&o->w, &o->b);
    jw_obj(&o->w);
}

/* A row of the file alone, for benches with a table of their own. Is it within low and
 * high? */
static inline bool row(struct out *o, const char *key, double v, double low, double high,
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
    return ok;
}

/* low <= value <= high; the goal is shown as it stands in the text. */
static inline void put(struct out *o, const char *key, double v, double low, double high,
                       const char *goal)
{
    bool ok = row(o, key, v, low, high, goal);

    printf("%-44s %12.4f  %-40s %s\n", key, v, goal, ok ? "ok" : "MISSED");
    fflush(stdout);
}

/* Writes the file; the program's exit code. */
static inline int out_end(struct out *o, const char *path)
{
    FILE *f = fopen(path, "we");

    jw_obj_end(&o->w);
    if (!f || fprintf(f, "%s\n", o->b.p) < 0 || fclose(f)) {
        perror(path);
        return 1;
    }
    buf_done(&o->b);
    return o->missed;
}

#endif

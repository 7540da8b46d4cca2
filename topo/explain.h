/* topo/explain.h - the formulas of multi-node inference as a calculator.
 *
 * A topic is a row: name, arguments with defaults and ranges, what it assumes, and the
 * function that works out its figures. explain_run reads "name=value" words, works out
 * the topic and keeps every figure by name beside the sentence that says it, so that the
 * shell, JSON and the tests see the same numbers. Pure. Any thread. */
#ifndef TOPO_EXPLAIN_H
#define TOPO_EXPLAIN_H

#include <stdbool.h>

struct buf;
struct err;
struct explain;

enum { EXPLAIN_ARGS_MAX = 8, EXPLAIN_LIST_MAX = 1024 };

/* One argument. Numbers take K M G T (decimal) or Ki Mi Gi Ti; lists take commas. */
struct explain_arg {
    const char *name;
    const char *def; /* as text */
    double min, max; /* of the number or of each list member */
    bool list, whole;
    const char *help;
};

struct explain_topic {
    const char *name, *help, *assumes;
    int (*run)(struct explain *x, struct err *e);
    struct explain_arg arg[EXPLAIN_ARGS_MAX]; /* ends at a NULL name */
};

int explain_n_topics(void);
const struct explain_topic *explain_topic_at(int i);
const struct explain_topic *explain_find(const char *name); /* NULL: none */

/* words[i] = "name=value". On success the caller owns *ret (explain_free). */
int explain_run(const char *topic, const char *const *words, int n, struct explain **ret,
                struct err *e);
void explain_free(struct explain *x);
/* A figure by name; false where the topic has none so called. */
bool explain_get(const struct explain *x, const char *figure, double *ret);
void explain_print(const struct explain *x, struct buf *out); /* sentences */
void explain_json(const struct explain *x, struct buf *out);  /* one object */

/* For the topics' own functions. */
double explain_num(const struct explain *x, const char *arg);
const double *explain_list(const struct explain *x, const char *arg, int *ret_n);
void explain_figure(struct explain *x, const char *name, double v, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void explain_say(struct explain *x, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif

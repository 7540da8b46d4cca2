/* base/metric.h - counters, gauges and histograms in a flat page of atomic cells.
 *
 * A table of rows (struct metric_def) gives the layout, so two programs built from one
 * table agree on it and a page may be a shared memfd: the engine writes, the daemon
 * reads without asking. Writers never lock. A histogram keeps its buckets, sum and count
 * in the page; metric_render sums any number of pages into one Prometheus text. */
#ifndef BASE_METRIC_H
#define BASE_METRIC_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;

/* A share is a gauge from 0 to 1: of several pages the largest counts, not the sum. */
enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM, METRIC_SHARE };

struct metric_def {
    const char *name; /* as scraped; counters without _total */
    enum metric_kind kind;
    const char *help;
    const char *label;         /* one label name or NULL */
    const char *const *values; /* its values, NULL-terminated, when label is set */
    const double *buckets;     /* ascending, for histograms */
    int n_buckets;
};

struct metric_page; /* cells; size from metric_page_bytes */

size_t metric_page_bytes(const struct metric_def *defs, int n_defs);
/* Private page (fd NULL) or one in a new memfd that *ret_fd owns. */
int metric_page_new(const struct metric_def *defs, int n_defs, int *ret_fd,
                    struct metric_page **ret, struct err *e);
/* Map a page made elsewhere. Checks the size. */
int metric_page_map(const struct metric_def *defs, int n_defs, int fd,
                    struct metric_page **ret, struct err *e);
void metric_page_free(struct metric_page *p);

/* id = row of the table, li = index of the label value (0 without a label). */
void metric_add(struct metric_page *p, int id, int li, double v);
void metric_set(struct metric_page *p, int id, int li, double v);
void metric_observe(struct metric_page *p, int id, double v);
double metric_get(const struct metric_page *p, int id, int li); /* histogram: count */
double metric_sum(const struct metric_page *p, int id);         /* histogram: sum */

/* A counter, gauge or share over several pages. */
double metric_total(struct metric_page *const *pages, int n_pages, int id, int li);
/* Counters and histograms of `from` added to those of `to`; gauges are left. */
void metric_page_fold(struct metric_page *to, const struct metric_page *from);
/* Counters and histograms of `to` become those of `from`; nobody may write to it now. */
void metric_page_recall(struct metric_page *to, const struct metric_page *from);

/* Pages that are one thing in the scrape: their cells are added up. */
struct metric_group {
    const char *mark;   /* only rows whose help ends so, e.g. "(E)"; "" all */
    const char *labels; /* on every sample, such as `model_name="m"`; "" none */
    struct metric_page *const *pages;
    int n_pages;
};
/* Prometheus text of all rows, each with the samples of every group that has it. */
void metric_render(const struct metric_def *defs, int n_defs,
                   const struct metric_group *groups, int n_groups, struct buf *out);
/* A label value with the escapes of the text format. */
void metric_label(struct buf *out, const char *value);
/* q in 0..1 by linear interpolation inside a bucket, NaN when empty. */
double metric_quantile(const struct metric_page *p, int id, double q);

#endif

/* base/metric.c - cells in a flat page, and the Prometheus text of several pages.
 *
 * Cells are doubles in 64-bit atomics, in the order of the table: a counter or gauge has
 * one for each label value, a histogram its buckets (the last is +Inf), then its sum.
 * A reader sees each cell whole, though not all cells of one instant. The head of a page
 * holds a number made from the table, so that two builds do not misread each other. */
#include "base/metric.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/region.h"

struct metric_page {
    const struct metric_def *defs;
    int n_defs;
    size_t bytes, *first; /* first cell of each row */
    _Atomic uint64_t *cells;
};

enum { HEAD_CELLS = 8 }; /* the first is the number of the table, the rest pad a line */

static int n_values(const struct metric_def *d)
{
    int n = 0;

    while (d->label && d->values[n])
        n++;
    return d->label ? n : 1;
}

static int row_cells(const struct metric_def *d)
{
    return d->kind == METRIC_HISTOGRAM ? d->n_buckets + 2 : n_values(d);
}

static uint64_t table_number(const struct metric_def *defs, int n_defs)
{
    uint64_t h = 14695981039346656037u;

    for (int i = 0; i < n_defs; i++) {
        for (const char *s = defs[i].name; *s; s++)
            h = (h ^ (unsigned char)*s) * 1099511628211u;
        h = (h ^ (uint64_t)row_cells(&defs[i])) * 1099511628211u;
    }
    return h;
}

size_t metric_page_bytes(const struct metric_def *defs, int n_defs)
{
    size_t cells = HEAD_CELLS;

    for (int i = 0; i < n_defs; i++)
        cells += (size_t)row_cells(&defs[i]);
    return cells * sizeof(uint64_t);
}

static int page_on(const struct metric_def *defs, int n_defs, int fd,
                   struct metric_page **ret, struct err *e)
{
    size_t bytes = metric_page_bytes(defs, n_defs), at = HEAD_CELLS;
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    struct metric_page *p;

    if (m == MAP_FAILED)
        return err_errno(e, ERR_NOMEM, "cannot map a metric page of %zu bytes", bytes);
    p = xcalloc(1, sizeof(*p));
    p->defs = defs;
    p->n_defs = n_defs;
    p->bytes = bytes;
    p->cells = m;
    p->first = xcalloc((size_t)n_defs, sizeof(*p->first));
    for (int i = 0; i < n_defs; i++) {
        p->first[i] = at;
        at += (size_t)row_cells(&defs[i]);
    }
    *ret = p;
    return 0;
}

int metric_page_new(const struct metric_def *defs, int n_defs, int *ret_fd,
                    struct metric_page **ret, struct err *e)
{
    struct metric_page *p;
    int fd = -1;

    if (ret_fd) {
        fd = region_file("llmrack-metrics", "a metric page",
                         metric_page_bytes(defs, n_defs), e);
        if (fd < 0)
            return -1;
    }
    if (page_on(defs, n_defs, fd, &p, e) < 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    atomic_store(&p->cells[0], table_number(defs, n_defs));
    if (ret_fd)
        *ret_fd = fd;
    *ret = p;
    return 0;
}

int metric_page_map(const struct metric_def *defs, int n_defs, int fd,
                    struct metric_page **ret, struct err *e)
{
    size_t want = metric_page_bytes(defs, n_defs);
    struct metric_page *p;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_errno(e, ERR_IO, "metric page");
    if (st.st_size != (off_t)want)
        return err_set(e, ERR_INVALID, "the metric page has %lld bytes in place of %zu",
                       (long long)st.st_size, want);
    if (page_on(defs, n_defs, fd, &p, e) < 0)
        return -1;
    if (atomic_load(&p->cells[0]) != table_number(defs, n_defs)) {
        metric_page_free(p);
        return err_set(e, ERR_INVALID, "the metric page is of another build");
    }
    *ret = p;
    return 0;
}

void metric_page_free(struct metric_page *p)
{
    if (!p)
        return;
    munmap((void *)p->cells, p->bytes);
    free(p->first);
    free(p);
}

static double as_double(uint64_t bits)
{
    double v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

static uint64_t as_bits(double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

static void cell_add(_Atomic uint64_t *c, double v)
{
    uint64_t old = atomic_load_explicit(c, memory_order_relaxed);

    while (!atomic_compare_exchange_weak_explicit(
        c, &old, as_bits(as_double(old) + v), memory_order_relaxed, memory_order_relaxed))
        continue;
}

static double cell_get(const struct metric_page *p, int id, int i)
{
    return as_double(
        atomic_load_explicit(&p->cells[p->first[id] + (size_t)i], memory_order_relaxed));
}

void metric_add(struct metric_page *p, int id, int li, double v)
{
    cell_add(&p->cells[p->first[id] + (size_t)li], v);
}

void metric_set(struct metric_page *p, int id, int li, double v)
{
    atomic_store_explicit(&p->cells[p->first[id] + (size_t)li], as_bits(v),
                          memory_order_relaxed);
}

void metric_observe(struct metric_page *p, int id, double v)
{
    const struct metric_def *d = &p->defs[id];
    int b = 0;

    while (b < d->n_buckets && v > d->buckets[b])
        b++;
    cell_add(&p->cells[p->first[id] + (size_t)b], 1);
    cell_add(&p->cells[p->first[id] + (size_t)d->n_buckets + 1], v);
}

double metric_get(const struct metric_page *p, int id, int li)
{
    const struct metric_def *d = &p->defs[id];
    double n = 0;

    if (d->kind != METRIC_HISTOGRAM)
        return cell_get(p, id, li);
    for (int b = 0; b <= d->n_buckets; b++)
        n += cell_get(p, id, b);
    return n;
}

double metric_sum(const struct metric_page *p, int id)
{
    return cell_get(p, id, p->defs[id].n_buckets + 1);
}

static bool is_gauge(const struct metric_def *d)
{
    return d->kind == METRIC_GAUGE || d->kind == METRIC_SHARE;
}

void metric_page_fold(struct metric_page *to, const struct metric_page *from)
{
    for (int id = 0; id < to->n_defs; id++)
        for (int i = 0; !is_gauge(&to->defs[id]) && i < row_cells(&to->defs[id]); i++)
            cell_add(&to->cells[to->first[id] + (size_t)i], cell_get(from, id, i));
}

void metric_page_recall(struct metric_page *to, const struct metric_page *from)
{
    for (int id = 0; id < to->n_defs; id++)
        for (int i = 0; !is_gauge(&to->defs[id]) && i < row_cells(&to->defs[id]); i++)
            metric_set(to, id, i, cell_get(from, id, i));
}

static double sum_cells(struct metric_page *const *pages, int n_pages, int id, int i)
{
    double v = 0;

    for (int k = 0; k < n_pages; k++) {
        double x = cell_get(pages[k], id, i);
        if (pages[k]->defs[id].kind != METRIC_SHARE)
            v += x;
        else if (x > v)
            v = x;
    }
    return v;
}

double metric_total(struct metric_page *const *pages, int n_pages, int id, int li)
{
    return sum_cells(pages, n_pages, id, li);
}

static void put_value(struct buf *out, double v)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    buf_puts(out, text);
    buf_putc(out, '\n');
}

/* name{labels,extra} */
static void put_name(struct buf *out, const char *name, const char *suffix,
                     const char *labels, const char *extra_name, const char *extra)
{
    buf_printf(out, "%s%s", name, suffix);
    if (labels[0] || extra_name)
        buf_printf(out, "{%s%s", labels, labels[0] && extra_name ? "," : "");
    if (extra_name)
        buf_printf(out, "%s=\"%s\"", extra_name, extra);
    buf_puts(out, labels[0] || extra_name ? "} " : " ");
}

static void put_histogram(struct buf *out, const struct metric_def *d, int id,
                          struct metric_page *const *pages, int n_pages,
                          const char *labels)
{
    double count = 0;
    char le[40];

    for (int b = 0; b <= d->n_buckets; b++) {
        if (b == d->n_buckets)
            snprintf(le, sizeof(le), "+Inf");
        else if (d->buckets[b] == floor(d->buckets[b]))
            snprintf(le, sizeof(le), "%.1f", d->buckets[b]);
        else
            snprintf(le, sizeof(le), "%.12g", d->buckets[b]);
        count += sum_cells(pages, n_pages, id, b);
        put_name(out, d->name, "_bucket", labels, "le", le);
        put_value(out, count);
    }
    put_name(out, d->name, "_sum", labels, NULL, NULL);
    put_value(out, sum_cells(pages, n_pages, id, d->n_buckets + 1));
    put_name(out, d->name, "_count", labels, NULL, NULL);
    put_value(out, count);
}

static bool has_row(const struct metric_group *g, const struct metric_def *d)
{
    size_t n = strlen(d->help), k = strlen(g->mark);

    return n >= k && !strcmp(d->help + n - k, g->mark);
}

static void put_samples(struct buf *out, const struct metric_def *d, int id,
                        const char *suffix, const struct metric_group *g)
{
    if (d->kind == METRIC_HISTOGRAM) {
        put_histogram(out, d, id, g->pages, g->n_pages, g->labels);
        return;
    }
    for (int i = 0; i < n_values(d); i++) {
        put_name(out, d->name, suffix, g->labels, d->label,
                 d->label ? d->values[i] : NULL);
        put_value(out, sum_cells(g->pages, g->n_pages, id, i));
    }
}

void metric_render(const struct metric_def *defs, int n_defs,
                   const struct metric_group *groups, int n_groups, struct buf *out)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram", "gauge"};

    for (int id = 0; id < n_defs; id++) {
        const struct metric_def *d = &defs[id];
        const char *suffix = d->kind == METRIC_COUNTER ? "_total" : "";

        buf_printf(out, "# HELP %s%s %s\n", d->name, suffix, d->help);
        buf_printf(out, "# TYPE %s%s %s\n", d->name, suffix, kinds[d->kind]);
        for (int g = 0; g < n_groups; g++)
            if (has_row(&groups[g], d))
                put_samples(out, d, id, suffix, &groups[g]);
    }
}

double metric_quantile(const struct metric_page *p, int id, double q)
{
    const struct metric_def *d = &p->defs[id];
    double total = metric_get(p, id, 0), below = 0, want = q * total;

    if (total <= 0)
        return NAN;
    for (int b = 0; b < d->n_buckets; b++) {
        double n = cell_get(p, id, b), low = b ? d->buckets[b - 1] : 0;
        if (n > 0 && below + n >= want)
            return low + (d->buckets[b] - low) * (want - below) / n;
        below += n;
    }
    return d->n_buckets ? d->buckets[d->n_buckets - 1] : NAN;
}

void metric_label(struct buf *out, const char *value)
{
    for (const char *s = value; *s; s++) {
        if (*s == '\\' || *s == '"')
            buf_putc(out, '\\');
        if (*s == '\n')
            buf_puts(out, "\\n");
        else
            buf_putc(out, *s);
    }
}

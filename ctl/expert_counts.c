/* ctl/expert_counts.c - rows of the two tables. */
#include "ctl/expert_counts.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/mem.h"
#include "ctl/show.h"

enum { MOST = 32 /* experts that are listed */ };

static const char *const phases[] = {"prefill", "decode"};

static double at(const json_t *o, const char *key, size_t i)
{
    return json_number_value(json_array_get(json_object_get(o, key), i));
}

static double sum(const json_t *o, const char *key)
{
    size_t n = json_array_size(json_object_get(o, key));
    double all = 0;

    for (size_t i = 0; i < n; i++)
        all += at(o, key, i);
    return all;
}

/* A cell in a unit of show_value. */
static void cell(struct table *t, double v, const char *unit)
{
    json_t *j = json_real(v);
    char text[32];

    show_value(j, unit, text, sizeof(text));
    table_cell(t, text);
    json_decref(j);
}

static void head(struct table *t, const char *const *titles, int n)
{
    for (int c = 0; c < n; c++)
        table_column(t, c, titles[c], c ? TABLE_RIGHT : 0);
}

static void by_phase(const json_t *layer, const struct show_style *st, struct buf *out)
{
    static const char *const titles[] = {
        "ROWS",  "ASSIGNED", "HITS",     "OVER", "MOVED",   "NEXT", "DROPPED",
        "QUEUE", "SERVICE",  "DISPATCH", "TOOK", "COMBINE", "TOOK"};
    static const struct {
        const char *key, *unit;
    } own[] = {{"overflow_moved", "count"},
               {"overflow_next", "count"},
               {"overflow_dropped", "count"}},
      sums[] = {{"queue_us", "us"}, {"service_us", "us"}},
      ways[] = {{"dispatch_bytes", "bytes"},
                {"dispatch_us", "us"},
                {"combine_bytes", "bytes"},
                {"combine_us", "us"}};
    struct table *t = table_new(13);

    head(t, titles, 13);
    for (int p = 0; p < 2; p++) {
        const json_t *o = json_object_get(layer, phases[p]);

        table_cell(t, phases[p]);
        cell(t, sum(o, "assignments"), "count");
        cell(t, sum(o, "replica_hits"), "count");
        cell(t, sum(o, "overflow"), "count");
        for (int i = 0; i < 3; i++)
            cell(t, json_number_value(json_object_get(o, own[i].key)), own[i].unit);
        for (int i = 0; i < 2; i++)
            cell(t, sum(o, sums[i].key), sums[i].unit);
        for (int i = 0; i < 4; i++)
            cell(t, json_number_value(json_object_get(o, ways[i].key)), ways[i].unit);
    }
    table_print(t, st, out);
    table_free(t);
}

static const json_t *sorted; /* the layer that by_service compares experts of */

static double both(const json_t *layer, const char *key, size_t i)
{
    return at(json_object_get(layer, phases[0]), key, i) +
           at(json_object_get(layer, phases[1]), key, i);
}

static int by_service(const void *a, const void *b)
{
    size_t i = *(const size_t *)a, k = *(const size_t *)b;
    double x = both(sorted, "service_us", i), y = both(sorted, "service_us", k);

    return x < y ? 1 : x > y ? -1 : i < k ? -1 : 1;
}

static void by_expert(const json_t *layer, const struct show_style *st, struct buf *out)
{
    static const char *const titles[] = {"EXPERT", "PREFILL", "DECODE", "HITS",
                                         "OVER",   "QUEUE",   "SERVICE"};
    size_t n = json_array_size(json_object_get(layer, "load"));
    size_t *order = xcalloc(n + 1, sizeof(*order));
    struct table *t = table_new(7);

    for (size_t i = 0; i < n; i++)
        order[i] = i;
    sorted = layer;
    qsort(order, n, sizeof(*order), by_service);
    head(t, titles, 7);
    for (size_t k = 0; k < n && k < MOST; k++) {
        char name[24];

        snprintf(name, sizeof(name), "E%zu", order[k]);
        table_cell(t, name);
        for (int p = 0; p < 2; p++)
            cell(t, at(json_object_get(layer, phases[p]), "assignments", order[k]),
                 "count");
        cell(t, both(layer, "replica_hits", order[k]), "count");
        cell(t, both(layer, "overflow", order[k]), "count");
        cell(t, both(layer, "queue_us", order[k]), "us");
        cell(t, both(layer, "service_us", order[k]), "us");
    }
    table_print(t, st, out);
    if (n > MOST)
        buf_printf(out, "and %zu more, with less time in work\n", n - MOST);
    table_free(t);
    free(order);
}

void expert_counts(const json_t *layer, const struct show_style *st, struct buf *out)
{
    buf_putc(out, '\n');
    by_phase(layer, st, out);
    buf_putc(out, '\n');
    by_expert(layer, st, out);
    buf_puts(out, "\nsince the engine began; HITS: in a copy elsewhere than where the "
                  "expert was loaded;\nOVER: over a copy's capacity\n");
}

/* daemon/api/experts_scrape.c - the series by layer: single experts are too many for a
 * scrape, /api/v1/experts has them. */
#include "daemon/api/experts_scrape.h"

#include <stdlib.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/experts.h"

enum { MAX_INSTANCES = 128 };

static double balanced(const struct experts_view *v, int l) { return v->balanced[l]; }
static double loaded(const struct experts_view *v, int l) { return v->unbalanced[l]; }
static double imbalance(const struct experts_view *v, int l) { return v->imbalance[l]; }

static double copies(const struct experts_view *v, int l)
{
    int n = v->n_rank * v->n_slot, found = 0;

    for (int i = 0; i < n; i++)
        found += v->map[l * n + i] >= 0;
    return found;
}

static const struct {
    const char *name, *help;
    double (*value)(const struct experts_view *v, int layer);
} series[] = {
    {"llmrack_expert_balancedness", "Mean over largest load of the devices, by layer",
     balanced},
    {"llmrack_expert_balancedness_loaded",
     "The same with the experts as they were loaded", loaded},
    {"llmrack_expert_imbalance", "R: largest over mean load of the experts, by layer",
     imbalance},
    {"llmrack_expert_copies", "Copies of experts, by layer", copies},
};

void experts_metrics(struct experts *x, struct buf *out)
{
    char(*names)[64] = xcalloc(MAX_INSTANCES, sizeof(*names));
    int n = experts_list(x, names, MAX_INSTANCES), known = 0;
    struct experts_view *v = xcalloc((size_t)n + 1, sizeof(*v));
    struct err e;

    for (int i = 0; i < n; i++)
        known += experts_view(x, names[i], &v[known], &e) == 0;
    for (size_t s = 0; known && s < sizeof(series) / sizeof(series[0]); s++) {
        buf_printf(out, "# HELP %s %s (D)\n# TYPE %s gauge\n", series[s].name,
                   series[s].help, series[s].name);
        for (int i = 0; i < known; i++)
            for (int l = 0; l < v[i].n_layer; l++)
                buf_printf(out, "%s{instance=\"%s\",layer=\"%d\"} %.6g\n", series[s].name,
                           v[i].instance, l, series[s].value(&v[i], l));
    }
    for (int i = 0; i < known; i++)
        experts_view_done(&v[i]);
    free(v);
    free(names);
}

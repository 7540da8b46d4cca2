/* daemon/api/experts_scrape.c - series of experts: tables of rows, by layer, by layer
 * and phase, by rank. See experts_scrape.h. */
#include "daemon/api/experts_scrape.h"

#include <stddef.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/experts.h"

enum { MAX_INSTANCES = 128 };

struct scrape {
    struct buf *b;
    struct experts_view *v;
    int n;
};

static const char *const phases[] = {
    [CONTROLLER_PREFILL] = "prefill", [CONTROLLER_DECODE] = "decode"};

static void put_head(struct buf *b, const char *name, const char *kind, const char *help)
{
    buf_printf(b, "# HELP %s %s (D)\n# TYPE %s %s\n", name, help, name, kind);
}

/* ---- by layer ---- */

static double balanced(const struct experts_view *v, int l) { return v->balanced[l]; }

static double loaded(const struct experts_view *v, int l) { return v->unbalanced[l]; }

static double imbalance(const struct experts_view *v, int l) { return v->imbalance[l]; }

static double copies(const struct experts_view *v, int l)
{
    int slots = v->n_rank * v->n_slot, n = 0;

    for (int i = 0; i < slots; i++)
        n += v->map[(size_t)l * (size_t)slots + (size_t)i] >= 0;
    return n;
}

static const struct {
    const char *name, *help;
    double (*of)(const struct experts_view *v, int layer);
} gauges[] = {
    {"llmrack_expert_balancedness",
     "Mean over largest load of the devices of a layer of experts", balanced},
    {"llmrack_expert_balancedness_loaded",
     "The same load with the experts where they were loaded", loaded},
    {"llmrack_expert_imbalance", "R of a layer: largest over mean load of its experts",
     imbalance},
    {"llmrack_expert_copies", "Copies of experts in a layer", copies},
};

static void put_gauges(const struct scrape *s)
{
    for (size_t g = 0; g < sizeof(gauges) / sizeof(gauges[0]); g++) {
        put_head(s->b, gauges[g].name, "gauge", gauges[g].help);
        for (int i = 0; i < s->n; i++)
            for (int l = 0; l < s->v[i].n_layer; l++)
                buf_printf(s->b, "%s{instance=\"%s\",layer=\"%d\"} %.9g\n",
                           gauges[g].name, s->v[i].instance, l,
                           gauges[g].of(&s->v[i], l));
    }
}

/* ---- by layer and phase ---- */

#define SUM(member) offsetof(struct experts_sums, member)
static const struct {
    const char *name, *help;
    size_t at;
    double unit;
} counters[] = {
    {"llmrack_expert_assignments_total", "Pairs of a row and an expert", SUM(rows), 1},
    {"llmrack_expert_replica_hits_total",
     "Of them, in a copy elsewhere than where the expert was loaded", SUM(replica), 1},
    {"llmrack_expert_overflow_total", "Of them, over the capacity of a copy", SUM(over),
     1},
    {"llmrack_expert_overflow_moved_total", "Of these, taken by another copy", SUM(moved),
     1},
    {"llmrack_expert_overflow_next_total", "Of these, sent to the next best expert",
     SUM(next), 1},
    {"llmrack_expert_overflow_dropped_total", "Of these, sent to none", SUM(dropped), 1},
    {"llmrack_expert_queue_seconds_total",
     "Time of pairs at their rank until their expert began", SUM(queue_us), 1e-6},
    {"llmrack_expert_service_seconds_total", "Time in the products of experts",
     SUM(service_us), 1e-6},
    {"llmrack_expert_dispatch_bytes_total", "Rows read from other ranks, to experts",
     SUM(dispatch_bytes), 1},
    {"llmrack_expert_dispatch_seconds_total", "Time of ranks in that, waiting included",
     SUM(dispatch_us), 1e-6},
    {"llmrack_expert_combine_bytes_total", "Rows read from other ranks, from experts",
     SUM(combine_bytes), 1},
    {"llmrack_expert_combine_seconds_total", "Time of ranks in that, waiting included",
     SUM(combine_us), 1e-6},
};

static void put_counters(const struct scrape *s)
{
    for (size_t c = 0; c < sizeof(counters) / sizeof(counters[0]); c++) {
        put_head(s->b, counters[c].name, "counter", counters[c].help);
        for (int i = 0; i < s->n; i++)
            for (int k = 0; k < s->v[i].n_layer * CONTROLLER_PHASES; k++) {
                int l = k / CONTROLLER_PHASES, p = k % CONTROLLER_PHASES;
                const char *sums = (const char *)&s->v[i].sums[p][l];

                buf_printf(s->b, "%s{instance=\"%s\",layer=\"%d\",phase=\"%s\"} %.17g\n",
                           counters[c].name, s->v[i].instance, l, phases[p],
                           *(const double *)(const void *)(sums + counters[c].at) *
                               counters[c].unit);
            }
    }
}

/* ---- of an instance ---- */

static double measured(const struct experts_view *v) { return (double)v->n_measured; }

static double predicted(const struct experts_view *v) { return v->predicted_us / 1e6; }

static double realised(const struct experts_view *v) { return v->realised_us / 1e6; }

static const struct {
    const char *name, *kind, *help;
    double (*of)(const struct experts_view *v);
} totals[] = {
    {"llmrack_expert_moves_measured_total", "counter",
     "Moves of which it is known what they brought", measured},
    {"llmrack_expert_gain_predicted_seconds", "gauge",
     "Of a step: what these moves together were to save", predicted},
    {"llmrack_expert_gain_realised_seconds", "gauge",
     "Of a step: what they saved, by the loads counted afterwards", realised},
};

static void put_totals(const struct scrape *s)
{
    for (size_t t = 0; t < sizeof(totals) / sizeof(totals[0]); t++) {
        put_head(s->b, totals[t].name, totals[t].kind, totals[t].help);
        for (int i = 0; i < s->n; i++)
            buf_printf(s->b, "%s{instance=\"%s\"} %.9g\n", totals[t].name,
                       s->v[i].instance, totals[t].of(&s->v[i]));
    }
}

/* ---- by rank ---- */

static void put_ranks(const struct scrape *s)
{
    static const char name[] = "llmrack_expert_rank_load_seconds";

    put_head(s->b, name, "gauge",
             "Time of a step that the experts of a rank of the group take, all layers");
    for (int i = 0; i < s->n; i++)
        for (int r = 0; r < s->v[i].n_rank; r++) {
            const struct experts_view *v = &s->v[i];
            double us = 0;

            for (int l = 0; l < v->n_layer; l++)
                us += v->device[(size_t)l * (size_t)v->n_rank + (size_t)r];
            buf_printf(s->b, "%s{instance=\"%s\",rank=\"%d\"} %.9g\n", name, v->instance,
                       r, us / 1e6);
        }
}

void experts_metrics(struct experts *x, struct buf *out)
{
    char(*names)[64] = xcalloc(MAX_INSTANCES, sizeof(*names));
    struct scrape s = {out, xcalloc(MAX_INSTANCES, sizeof(*s.v)), 0};
    int n = experts_list(x, names, MAX_INSTANCES);
    struct err e;

    for (int i = 0; i < n; i++)
        s.n += experts_view(x, names[i], &s.v[s.n], &e) == 0;
    put_gauges(&s);
    put_counters(&s);
    put_totals(&s);
    put_ranks(&s);
    for (int i = 0; i < s.n; i++)
        experts_view_done(&s.v[i]);
    free(s.v);
    free(names);
}

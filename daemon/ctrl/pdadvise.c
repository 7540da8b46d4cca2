/* daemon/ctrl/pdadvise.c - measured and predicted modes in one order, with reasons. */
#include "daemon/ctrl/pdadvise.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "daemon/ctrl/pdadvise_sim.h"

enum { BISECT = 12 };
static const double RATE_MIN = 1e-3, RATE_MAX = 1e5;
/* A prediction may be off by so much even where those of the measured modes were not. */
static const double DOUBT = 0.25;

const char *pd_mode_name(enum pd_mode m)
{
    static const char *const names[] = {"colocated", "chunked", "split"};

    return (unsigned)m < PD_MODES ? names[m] : "unknown";
}

/* ---- prediction ---- */

double pd_scale(double all, double part, double n)
{
    static const double least = 0.01; /* 0 means that nothing is known */
    double x = all > 0 && part > 0 && n > 1 ? log(part / all) / log(n) : 0;

    return x == 0 ? 0 : fmin(fmax(x, least), 1);
}

/* Requests a second when one is served after the other by all devices: where to begin. */
static double alone(const struct pd_world *w, const struct pd_work *k)
{
    double ms = 0;

    for (int i = 0; i < k->n_sample; i++)
        ms += (w->prefill_ms + w->prefill_tok_ms * k->sample[i][0] +
               (w->decode_ms + w->decode_seq_ms) * (k->sample[i][1] - 1)) /
              k->n_sample;
    return ms > 0 ? 1e3 / ms : 1;
}

/* The highest rate that passes, with these pools. */
static void highest(const struct pd_world *w, const struct pd_work *k, enum pd_mode m,
                    int prefill_devices, struct pd_guess *ret)
{
    double rate = alone(w, k), pass = 0, fail = 0;
    struct pd_sim s, at = {.pass = false}, over = {.pass = false};

    for (int i = 0; i < 3 * BISECT; i++) {
        pd_simulate(w, k, m, prefill_devices, rate, &s);
        if (s.pass) {
            pass = rate;
            at = s;
        } else {
            fail = rate;
            over = s;
        }
        if ((pass && fail && fail < pass * 1.02) || (s.pass && rate >= RATE_MAX) ||
            (!s.pass && rate <= RATE_MIN))
            break;
        rate = pass && fail ? sqrt(pass * fail) : pass ? 2 * pass : fail / 2;
        rate = rate < RATE_MIN ? RATE_MIN : rate > RATE_MAX ? RATE_MAX : rate;
    }
    at = pass ? at : over;
    *ret = (struct pd_guess){.goodput = pass,
                             .prefill_devices = prefill_devices,
                             .attainment = at.attainment,
                             .ttft_p95 = at.ttft_p95,
                             .tpot_p95 = at.tpot_p95,
                             .step_over_decode = at.step_over_decode};
    ret->limit = over.ttft_share < k->target && over.tpot_share < k->target ? "both"
                 : over.ttft_share < over.tpot_share                        ? "ttft"
                                                                            : "tpot";
}

void pd_predict(const struct pd_world *w, const struct pd_work *k, enum pd_mode m,
                struct pd_guess *ret)
{
    struct pd_guess g;

    if (m != PD_SPLIT) {
        highest(w, k, m, 0, ret);
        return;
    }
    *ret = (struct pd_guess){.goodput = 0, .limit = "tpot"};
    for (int n = 1; n < w->devices; n++) {
        highest(w, k, m, n, &g);
        if (n == 1 || g.goodput > ret->goodput)
            *ret = g;
    }
}

/* ---- advice ---- */

/* The newest run of the mode. */
static const struct pd_run *run_of(const struct pd_run *runs, int n, enum pd_mode m)
{
    const struct pd_run *best = NULL;

    for (int i = 0; i < n; i++)
        if (runs[i].mode == m && (!best || runs[i].id > best->id))
            best = &runs[i];
    return best;
}

/* Mean of the logarithms of measured / predicted, so that it corrects the others. */
static double correction(const struct pd_row *v, double *ret_spread)
{
    double sum = 0;
    int n = 0;

    *ret_spread = NAN;
    for (int i = 0; i < PD_MODES; i++)
        if (v[i].measured && isfinite(v[i].error)) {
            sum -= log1p(v[i].error);
            *ret_spread = fmax(n ? *ret_spread : 0, fabs(v[i].error));
            n++;
        }
    return n ? exp(sum / n) : 1;
}

static void say_why(const struct pd_work *k, struct pd_row *r)
{
    const struct pd_guess *g = &r->guess;
    char pools[48] = "", over[80] = "";

    if (!r->possible) {
        snprintf(r->why, sizeof(r->why), "needs two devices at least, one for each pool");
        return;
    }
    if (r->mode == PD_SPLIT)
        snprintf(pools, sizeof(pools), "%d devices prefill; ", g->prefill_devices);
    if (g->step_over_decode > 0)
        snprintf(over, sizeof(over),
                 "a token comes %.2f times as late as by decode alone; ",
                 g->step_over_decode);
    if (g->goodput <= 0)
        snprintf(r->why, sizeof(r->why), "%sno rate meets the SLO: %s fails even alone",
                 pools, g->limit);
    else
        snprintf(r->why, sizeof(r->why),
                 "%s%sttft p95 %.0f of %.0f ms, tpot p95 %.1f of %.1f "
                 "ms; above it %s fails first",
                 pools, over, g->ttft_p95, k->ttft_ms, g->tpot_p95, k->tpot_ms,
                 !strcmp(g->limit, "both") ? "both" : g->limit);
}

static void fill(const struct pd_world *w, const struct pd_work *k,
                 const struct pd_run *runs, int n_runs, struct pd_row *v)
{
    for (int m = 0; m < PD_MODES; m++) {
        struct pd_row *r = &v[m];
        const struct pd_run *run = run_of(runs, n_runs, (enum pd_mode)m);

        *r = (struct pd_row){.mode = (enum pd_mode)m, .error = NAN};
        r->possible = m != PD_SPLIT || w->devices > 1 || run;
        if (r->possible)
            pd_predict(w, k, r->mode, &r->guess);
        r->goodput = r->predicted = r->guess.goodput;
        if (!run)
            continue;
        r->measured = true;
        r->run = run->id;
        r->goodput = run->goodput;
        if (run->goodput > 0 && r->predicted > 0)
            r->error = r->predicted / run->goodput - 1;
    }
}

/* Of two that are alike what was measured goes before what was not, else the simpler. */
static bool before(const struct pd_row *a, const struct pd_row *b)
{
    bool alike = fabs(a->goodput - b->goodput) <= 0.005 * b->goodput;

    return alike ? a->measured && !b->measured : a->goodput > b->goodput;
}

/* The best first. */
static void put_in_order(struct pd_row *v)
{
    for (int i = 1; i < PD_MODES; i++)
        for (int k = i; k > 0 && before(&v[k], &v[k - 1]); k--) {
            struct pd_row t = v[k];

            v[k] = v[k - 1];
            v[k - 1] = t;
        }
}

static const char *label(const struct pd_row *r)
{
    return r->measured ? "measured" : "predicted";
}

static void say_text(struct pd_advice *a)
{
    const struct pd_row *best = &a->row[0], *next = &a->row[1];
    char doubt[160] = "";

    if (best->goodput <= 0) {
        snprintf(a->text, sizeof(a->text),
                 "No mode meets the SLO at any rate: it asks for more than these devices "
                 "do.");
        return;
    }
    if (!a->sure)
        snprintf(doubt, sizeof(doubt),
                 " Not certain: measure %s%s%s with llmctl load and the same words.",
                 best->measured ? "" : pd_mode_name(best->mode),
                 best->measured || next->measured ? "" : " and ",
                 next->measured ? "" : pd_mode_name(next->mode));
    snprintf(a->text, sizeof(a->text),
             "%s serves this SLO best: %.3g requests/s (%s), %s %.3g (%s).%s",
             pd_mode_name(best->mode), best->goodput, label(best),
             pd_mode_name(next->mode), next->goodput, label(next), doubt);
}

void pd_advise(const struct pd_world *w, const struct pd_work *k,
               const struct pd_run *runs, int n_runs, struct pd_advice *ret)
{
    const struct pd_row *best = &ret->row[0], *next = &ret->row[1];
    double fix, lead;

    memset(ret, 0, sizeof(*ret));
    fill(w, k, runs, n_runs, ret->row);
    fix = correction(ret->row, &ret->spread);
    for (int i = 0; i < PD_MODES; i++)
        if (!ret->row[i].measured)
            ret->row[i].goodput = ret->row[i].predicted * fix;
    put_in_order(ret->row);
    for (int i = 0; i < PD_MODES; i++)
        say_why(k, &ret->row[i]);
    lead = next->goodput > 0 ? best->goodput / next->goodput - 1 : INFINITY;
    ret->sure =
        best->goodput > 0 && ((best->measured && next->measured) ||
                              (isfinite(ret->spread) && lead > fmax(ret->spread, DOUBT)));
    say_text(ret);
}

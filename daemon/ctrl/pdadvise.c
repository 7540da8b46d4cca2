/* daemon/ctrl/pdadvise.c - measured and predicted modes in one order, with reasons. */
#include "daemon/ctrl/pdadvise.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "daemon/ctrl/pdadvise_sim.h"

/* The search is finer than that of a real run: there is no noise. */
static const double RATE_MIN = 1e-3, RATE_MAX = 1e5, WIDTH = 0.02;
/* A prediction may be off by so much even where those of the measured modes were not. */
static const double DOUBT = 0.25;
/* How devices scale where no run says it: half of them take 1.4 times as long to twice
 * (nothing is lost between them); the middle is taken. */
static const double SCALE_LOW = 0.5, SCALE_MID = 0.75, SCALE_HIGH = 1;
/* Steps under load over those of an idle instance, at most, and at least 1 over it. */
static const double PACE_MAX = 4;
enum { PACE_STEPS = 8, POINTS = 40, STEPS_LEAST = 4 };

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

static double within(double v) { return fmin(fmax(v, 1 / PACE_MAX), PACE_MAX); }

/* How many times as long as their costs say. */
static double over_cost(const struct pd_world *w, const struct pd_steps *s, bool prompts)
{
    double both = fmin(s->prompt_steps, s->prompt_seqs),
           start = (s->prompt_steps - both) * w->prefill_ms +
                   both * fmax(w->prefill_ms, w->decode_ms);
    double cost =
        prompts ? start + s->prompt_tok * w->prefill_tok_ms +
                      s->prompt_seqs * w->decode_seq_ms
                : s->answer_steps * w->decode_ms + s->answer_seqs * w->decode_seq_ms;

    return cost > 0 ? (prompts ? s->prompt_ms : s->answer_ms) / cost : 0;
}

struct pd_pace pd_pace_of(const struct pd_world *w, const struct pd_steps *idle,
                          const struct pd_steps *loaded)
{
    double p = over_cost(w, idle, true), d = over_cost(w, idle, false);
    bool prompts = idle->prompt_steps >= STEPS_LEAST && p > 0 &&
                   loaded->prompt_steps >= STEPS_LEAST,
         answers = idle->answer_steps >= STEPS_LEAST && d > 0 &&
                   loaded->answer_steps >= STEPS_LEAST;

    return (struct pd_pace){prompts ? within(over_cost(w, loaded, true) / p) : 1,
                            answers ? within(over_cost(w, loaded, false) / d) : 1};
}

void pd_pace_set(struct pd_world *w, struct pd_pace p)
{
    w->prefill_ms *= p.prefill;
    w->prefill_tok_ms *= p.prefill;
    w->decode_ms *= p.decode;
    w->decode_seq_ms *= p.decode;
}

/* Requests a second when one is served after the other by all devices: where to begin. */
static double alone(const struct pd_world *w, const struct pd_work *k)
{
    double ms = 0;

    for (int i = 0; i < k->n_come; i++)
        ms += (w->prefill_ms + w->prefill_tok_ms * k->come[0][i].n_in +
               (w->decode_ms + w->decode_seq_ms) * (k->come[0][i].n_out - 1)) /
              k->n_come;
    return ms > 0 ? 1e3 / ms : 1;
}

/* The highest rate that passes, with these pools. */
static void highest(const struct pd_world *w, const struct pd_work *k, enum pd_mode m,
                    int prefill_devices, struct pd_guess *ret)
{
    struct load_search search = {.guess = alone(w, k),
                                 .min = RATE_MIN,
                                 .max = RATE_MAX,
                                 .width = WIDTH,
                                 .points = POINTS,
                                 .tries = 1};
    struct pd_sim s, at = {.at.rate = 0}, over = {.at.rate = 0};
    double rate;

    while ((rate = load_search_rate(&search)) > 0) {
        pd_simulate(w, k, m, prefill_devices, rate, &s);
        load_search_told(&search, s.at.pass, true);
        if (s.at.pass && rate >= search.pass)
            at = s;
        if (!s.at.pass && rate <= search.fail)
            over = s;
    }
    at = search.pass > 0 ? at : over;
    *ret = (struct pd_guess){.goodput = search.pass,
                             .low = search.pass,
                             .high = search.pass,
                             .prefill_devices = prefill_devices,
                             .attainment = at.at.attainment,
                             .ttft_p95 = at.at.ttft.p95,
                             .tpot_p95 = at.at.tpot.p95,
                             .step_over_decode = at.step_over_decode};
    ret->limit = over.at.ttft_share < k->slo.target && over.at.tpot_share < k->slo.target
                     ? "both"
                 : over.at.ttft_share < over.at.tpot_share ? "ttft"
                                                           : "tpot";
}

/* With these scales, where they are not known. */
static void predict_at(const struct pd_world *known, const struct pd_work *k,
                       enum pd_mode m, double scale, struct pd_guess *ret)
{
    struct pd_world w = *known;
    struct pd_guess g;

    w.prefill_scale = w.prefill_scale > 0 ? w.prefill_scale : scale;
    w.decode_scale = w.decode_scale > 0 ? w.decode_scale : scale;
    if (m != PD_SPLIT) {
        highest(&w, k, m, 0, ret);
        return;
    }
    *ret = (struct pd_guess){.goodput = 0, .limit = "tpot"};
    for (int n = 1; n < w.devices; n++) {
        highest(&w, k, m, n, &g);
        if (n == 1 || g.goodput > ret->goodput)
            *ret = g;
    }
}

static bool scale_matters(const struct pd_world *w, enum pd_mode m)
{
    bool part = (w->prefill_on > 0 && w->prefill_on < w->devices) ||
                (w->decode_on > 0 && w->decode_on < w->devices);

    return w->devices > 1 && (m == PD_SPLIT || part) &&
           !(w->prefill_scale > 0 && w->decode_scale > 0);
}

void pd_predict(const struct pd_world *w, const struct pd_work *k, enum pd_mode m,
                struct pd_guess *ret)
{
    const double ends[] = {SCALE_LOW, SCALE_HIGH};
    struct pd_guess g;

    predict_at(w, k, m, SCALE_MID, ret);
    for (int i = 0; i < 2 && scale_matters(w, m); i++) {
        predict_at(w, k, m, ends[i], &g);
        ret->low = fmin(ret->low, g.goodput);
        ret->high = fmax(ret->high, g.goodput);
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

/* The world as the measured one of a row saw it. */
static struct pd_world world_of(const struct pd_world *w, const struct pd_run *run)
{
    struct pd_world own = *w;

    if (run && run->step_tok > 0 && run->mode == PD_SPLIT)
        own.prefill_step_tok = run->step_tok;
    else if (run && run->step_tok > 0)
        own.step_tok = run->step_tok;
    return own;
}

/* Mean logarithm of predicted over measured with steps so much longer; 0 without any. */
static double off_at(const struct pd_world *w, const struct pd_work *k,
                     const struct pd_run *runs, int n_runs, double pace)
{
    double sum = 0;
    int n = 0;

    for (int m = 0; m < PD_MODES; m++) {
        const struct pd_run *run = run_of(runs, n_runs, (enum pd_mode)m);
        struct pd_world own = world_of(w, run);
        struct pd_guess g;

        if (!run || run->goodput <= 0)
            continue;
        pd_pace_set(&own, (struct pd_pace){pace, pace});
        predict_at(&own, k, (enum pd_mode)m, SCALE_MID, &g);
        sum += log(fmax(g.goodput, RATE_MIN) / run->goodput);
        n++;
    }
    return n ? sum / n : 0;
}

/* How much longer steps take than on the idle instance, by what was measured. */
static double find_pace(const struct pd_world *w, const struct pd_work *k,
                        const struct pd_run *runs, int n_runs)
{
    double low = -log(PACE_MAX), high = log(PACE_MAX), first;

    first = off_at(w, k, runs, n_runs, 1);
    if (fabs(first) <= WIDTH)
        return 1;
    for (int i = 0; i < PACE_STEPS; i++) {
        double mid = i ? (low + high) / 2 : 0;

        if ((i ? off_at(w, k, runs, n_runs, exp(mid)) : first) > 0)
            low = mid;
        else
            high = mid;
    }
    return exp((low + high) / 2);
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
        snprintf(pools, sizeof(pools), "%d device%s prefill; ", g->prefill_devices,
                 g->prefill_devices == 1 ? "" : "s");
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
                 pools, over, g->ttft_p95, k->slo.ttft_ms, g->tpot_p95, k->slo.tpot_ms,
                 !strcmp(g->limit, "both") ? "both" : g->limit);
}

static void fill(const struct pd_world *w, const struct pd_work *k,
                 const struct pd_run *runs, int n_runs, struct pd_advice *a)
{
    a->spread = NAN;
    for (int m = 0; m < PD_MODES; m++) {
        struct pd_row *r = &a->row[m];
        const struct pd_run *run = run_of(runs, n_runs, (enum pd_mode)m);
        struct pd_world own = world_of(w, run);

        *r = (struct pd_row){.mode = (enum pd_mode)m, .error = NAN};
        r->possible = m != PD_SPLIT || w->devices > 1 || run;
        if (r->possible)
            pd_predict(&own, k, r->mode, &r->guess);
        r->predicted = r->guess.goodput;
        if (!run)
            continue;
        r->measured = true;
        r->run = run->id;
        r->goodput = r->low = run->goodput;
        r->high = fmax(run->bound, run->goodput);
        if (run->goodput > 0 && r->predicted > 0) {
            r->error = r->predicted / run->goodput - 1;
            a->spread = fmax(isnan(a->spread) ? 0 : a->spread, fabs(r->error));
        }
    }
}

/* What was not measured, at the pace of what was; and how far it may be off. */
static void correct(const struct pd_world *w, const struct pd_work *k,
                    struct pd_advice *a)
{
    double off = 1 + fmax(isnan(a->spread) ? 0 : a->spread, DOUBT);
    struct pd_world paced = *w;

    pd_pace_set(&paced, (struct pd_pace){a->pace, a->pace});
    for (int i = 0; i < PD_MODES; i++) {
        struct pd_row *r = &a->row[i];
        struct pd_guess g = r->guess;

        if (r->measured || !r->possible)
            continue;
        if (a->pace != 1)
            pd_predict(&paced, k, r->mode, &g);
        r->goodput = g.goodput;
        r->low = g.low / off;
        r->high = g.high * off;
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

/* The largest of the others that may be as good as the best; NULL: it leads. */
static const struct pd_row *rival(const struct pd_advice *a, bool measured)
{
    const struct pd_row *found = NULL;

    for (int i = 1; i < PD_MODES; i++) {
        const struct pd_row *r = &a->row[i];

        if (r->measured == measured && r->high >= a->row[0].low && r->high > 0 &&
            (!found || r->high > found->high))
            found = r;
    }
    return found;
}

/* What is sure, and if that is not enough, what to measure next. */
static void judge(struct pd_advice *a)
{
    const struct pd_row *best = &a->row[0], *open = rival(a, false);
    bool measured = false;

    for (int i = 0; i < PD_MODES; i++)
        measured |= a->row[i].measured;
    a->sure = best->goodput > 0 && measured && !open && !rival(a, true);
    a->next = PD_MODES;
    if (!a->sure && !best->measured)
        a->next = best->mode;
    else if (!a->sure && open)
        a->next = open->mode;
}

static void put_row(char *ret, size_t size, const struct pd_row *r)
{
    if (r->measured)
        snprintf(ret, size, "%s %.3g (measured)", pd_mode_name(r->mode), r->goodput);
    else
        snprintf(ret, size, "%s %.3g (predicted, %.3g to %.3g)", pd_mode_name(r->mode),
                 r->goodput, r->low, r->high);
}

static void say_text(struct pd_advice *a)
{
    const struct pd_row *best = &a->row[0], *next = &a->row[1];
    const struct pd_row *near = rival(a, false) ? rival(a, false) : rival(a, true);
    char x[80], y[80];

    put_row(x, sizeof(x), best);
    put_row(y, sizeof(y), a->sure || !near ? next : near);
    if (best->goodput <= 0 && best->high <= 0)
        snprintf(a->text, sizeof(a->text),
                 "No mode meets the SLO at any rate: it asks for more than these devices "
                 "do.");
    else if (a->sure)
        snprintf(a->text, sizeof(a->text),
                 "%s serves this SLO best, in requests/s: %s, then %s.",
                 pd_mode_name(best->mode), x, y);
    else if (a->next < PD_MODES)
        snprintf(a->text, sizeof(a->text),
                 "Not certain. In requests/s: %s, then %s%s. Measure %s next: its mode, "
                 "then llmctl load with the same words.",
                 x, y, near ? ", which is within the error" : "",
                 pd_mode_name((enum pd_mode)a->next));
    else
        snprintf(
            a->text, sizeof(a->text),
            "Not certain: %s and %s requests/s are closer than a search tells apart. "
            "Either will do; runs with more requests tell more.",
            x, y);
}

void pd_advise(const struct pd_world *w, const struct pd_work *k,
               const struct pd_run *runs, int n_runs, struct pd_advice *ret)
{
    memset(ret, 0, sizeof(*ret));
    fill(w, k, runs, n_runs, ret);
    ret->pace = find_pace(w, k, runs, n_runs);
    correct(w, k, ret);
    put_in_order(ret->row);
    for (int i = 0; i < PD_MODES; i++)
        say_why(k, &ret->row[i]);
    judge(ret);
    say_text(ret);
}

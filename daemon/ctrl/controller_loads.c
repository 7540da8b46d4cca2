/* daemon/ctrl/controller_loads.c - from counters to loads, and when loads change in kind.
 *
 * A load is the time of a step that an expert takes, us: its measured service time, or
 * its tokens at the mean time of a token; a token counts as 1 us where nothing was
 * timed. A regime ends where the quick mean of a layer points elsewhere (cosine) than it
 * did when the regime began. */
#include "daemon/ctrl/controller_impl.h"

#include <math.h>
#include <string.h>

#include "topo/expertplan.h"

/* QUICK: the quick mean's time is a dwell time by this, or as long as it takes to count
 * ENOUGH assignments for each expert: of fewer, chance alone makes two means point
 * elsewhere. */
enum { QUICK = 16, SLOW = 8, ENOUGH = 32 };
static const double alike = 0.9; /* cosine */

/* Of both phases: us of service and how many of their tokens were timed. */
static double us_per_token(const struct controller_series *s, size_t n)
{
    double us = 0, tokens = 0;

    for (int p = 0; p < CONTROLLER_PHASES; p++)
        for (size_t i = 0; s->tokens[p] && s->service_us[p] && i < n; i++)
            if (s->service_us[p][i] > 0 && s->tokens[p][i] > 0)
                us += s->service_us[p][i], tokens += s->tokens[p][i];
    return tokens > 0 ? us / tokens : 1;
}

/* One step's load of each expert into c->sample; false: nothing was counted. */
static bool take_sample(struct controller *c, const struct controller_series *s,
                        double prefill_share)
{
    size_t n = (size_t)c->n_layer * c->n_expert;
    double steps = s->steps[CONTROLLER_PREFILL] + s->steps[CONTROLLER_DECODE];
    double per_token = us_per_token(s, n), total = 0;

    if (!(steps > 0) || !(s->span_us > 0))
        return false;
    memset(c->sample, 0, n * sizeof(*c->sample));
    memset(c->rows, 0, (size_t)c->n_layer * sizeof(*c->rows));
    for (int p = 0; p < CONTROLLER_PHASES; p++) {
        double weight =
            2 * (p == CONTROLLER_PREFILL ? prefill_share : 1 - prefill_share) / steps;
        for (size_t at = 0; s->tokens[p] && at < n; at += (size_t)c->n_expert) {
            const double *us = s->service_us[p] ? s->service_us[p] + at : NULL;
            double timed = 0;
            for (int i = 0; us && i < c->n_expert; i++)
                timed += s->tokens[p][at + i] > 0 ? us[i] : 0;
            for (int i = 0; i < c->n_expert; i++)
                c->rows[at / (size_t)c->n_expert] += fmax(s->tokens[p][at + i], 0);
            expertplan_weights(s->tokens[p] + at, us, c->n_expert, c->scratch);
            for (int i = 0; i < c->n_expert; i++) {
                double v = weight * c->scratch[i] * (timed > 0 ? 1 : per_token);
                c->sample[at + i] += v > 0 && isfinite(v) ? v : 0;
            }
        }
    }
    for (size_t i = 0; i < n; i++)
        total += c->sample[i];
    return total > 0;
}

static double cosine(const double *x, const double *y, int n)
{
    double xy = 0, xx = 0, yy = 0;

    for (int i = 0; i < n; i++)
        xy += x[i] * y[i], xx += x[i] * x[i], yy += y[i] * y[i];
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : xx > 0 || yy > 0 ? 0 : 1;
}

/* The weight of a sample of dt in a mean that goes back age, or time at most. */
static double weight(double dt, double age, double time)
{
    double w = 1 - exp(-dt / time);

    return age > dt ? fmax(w, dt / age) : 1;
}

static void mean(double *m, const double *sample, int n, double w)
{
    for (int i = 0; i < n; i++)
        m[i] += w * (sample[i] - m[i]);
}

static void fold_layer(struct controller *c, int layer, double dt, double dwell)
{
    size_t at = (size_t)layer * c->n_expert;
    struct layer_mind *m = &c->layer[layer];
    const double *now = c->sample + at;
    int n = c->n_expert;
    double few = c->rows[layer] / ((double)ENOUGH * n);
    double quick = weight(dt, c->seen_us, dwell / QUICK);

    m->age_us += dt;
    m->rows += c->rows[layer];
    few = m->rows > c->rows[layer] ? fmax(few, c->rows[layer] / m->rows) : 1;
    mean(c->quick + at, now, n, fmin(quick, few));
    mean(c->slow + at, now, n, weight(dt, c->seen_us, dwell * SLOW));
    mean(c->regime + at, now, n, weight(dt, m->age_us, dwell));
    if (c->seen_us <= dt) { /* the first */
        memcpy(c->ref + at, c->quick + at, (size_t)n * sizeof(double));
        return;
    }
    if (cosine(c->quick + at, c->ref + at, n) >= alike)
        return;
    /* while the quick mean follows a change it ends several regimes; they count as one */
    if (m->age_us > dwell / QUICK * 4)
        c->between_us = c->between_us > 0
                            ? c->between_us + (m->age_us - c->between_us) / 4
                            : m->age_us;
    memcpy(c->ref + at, c->quick + at, (size_t)n * sizeof(double));
    memcpy(c->regime + at, c->quick + at, (size_t)n * sizeof(double));
    m->age_us = 0;
}

void controller_fold(struct controller *c, const struct controller_series *s,
                     const struct controller_limits *l)
{
    double steps = s->steps[CONTROLLER_PREFILL] + s->steps[CONTROLLER_DECODE];

    if (!take_sample(c, s, l->prefill_share))
        return;
    c->seen_us += s->span_us;
    c->step_us += weight(s->span_us, c->seen_us, (double)l->dwell_us / QUICK) *
                  (s->span_us / steps - c->step_us);
    for (int i = 0; i < c->n_layer; i++)
        fold_layer(c, i, s->span_us, (double)l->dwell_us);
}

bool controller_known(const struct controller *c, int layer,
                      const struct controller_limits *l, const double **ret)
{
    bool lasts = c->layer[layer].age_us >= (double)l->dwell_us;

    *ret = (lasts ? c->regime : c->slow) + (size_t)layer * c->n_expert;
    return c->seen_us >= (double)l->dwell_us;
}

double controller_horizon_us(const struct controller *c, int layer,
                             const struct controller_limits *l)
{
    double age = c->layer[layer].age_us, most = (double)l->horizon_us;

    if (!(c->between_us > 0))
        return most;
    if (age < (double)l->dwell_us) /* a mixture is planned for: it outlasts its parts */
        return most;
    return fmin(most, age < c->between_us ? fmax(c->between_us - age, c->between_us / 10)
                                          : age);
}

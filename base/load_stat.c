/* base/load_stat.c - attainment, percentiles, saturation. */
#include "base/load_stat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { SLOPE_MIN_N = 20 };

/* Of the requests that come, so many stay behind where the queue grows. */
static const double GROWN = 0.10, GROWN_LEAST = 4;
static const double z95 = 1.959964, z99 = 2.575829;

double load_tpot_ms(const struct load_seen *s)
{
    return s->n_out > 1 ? (double)(s->last_us - s->first_us) / 1e3 / (s->n_out - 1) : 0;
}

static double ttft_ms(const struct load_seen *s)
{
    return (double)(s->first_us - s->at_us) / 1e3;
}

static bool ttft_good(const struct load_seen *s, const struct load_slo *slo)
{
    return s->end == LOAD_DONE && s->first_us >= 0 &&
           (slo->ttft_ms <= 0 || ttft_ms(s) <= slo->ttft_ms);
}

static bool tpot_good(const struct load_seen *s, const struct load_slo *slo)
{
    return s->end == LOAD_DONE && s->first_us >= 0 &&
           (slo->tpot_ms <= 0 || load_tpot_ms(s) <= slo->tpot_ms);
}

bool load_good(const struct load_seen *s, const struct load_slo *slo)
{
    return ttft_good(s, slo) && tpot_good(s, slo);
}

void load_interval(int k, int n, double *ret_low, double *ret_high)
{
    double p, mid, half, zz = z95 * z95;

    *ret_low = 0;
    *ret_high = 1;
    if (n <= 0)
        return;
    p = (double)k / n;
    mid = (p + zz / (2 * n)) / (1 + zz / n);
    half = z95 / (1 + zz / n) * sqrt(p * (1 - p) / n + zz / (4.0 * n * n));
    *ret_low = k == 0 ? 0 : mid - half;
    *ret_high = k == n ? 1 : mid + half;
}

bool load_lost(int bad, int n_all, double target)
{
    return n_all - bad < target * n_all - 1e-9;
}

/* ---- percentiles ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Nearest rank of sorted v. */
static double rank_of(const double *v, int n, double q)
{
    int i = (int)ceil(q * n) - 1;

    return n ? v[i < 0 ? 0 : i] : NAN;
}

static struct load_pct percentiles(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return (struct load_pct){rank_of(v, n, 0.50), rank_of(v, n, 0.95),
                             rank_of(v, n, 0.99)};
}

/* ---- does the queue grow? ---- */

/* y over x by least squares: is the slope surely above 0, and the rise over all of x at
 * least so much? */
static bool rises(const double *x, const double *y, int n, double least)
{
    double mx = 0, my = 0, sxx = 0, sxy = 0, sse = 0, slope, err;

    for (int i = 0; i < n; i++) {
        mx += x[i] / n;
        my += y[i] / n;
    }
    for (int i = 0; i < n; i++) {
        sxx += (x[i] - mx) * (x[i] - mx);
        sxy += (x[i] - mx) * (y[i] - my);
    }
    if (sxx <= 0)
        return false;
    slope = sxy / sxx;
    for (int i = 0; i < n; i++) {
        double d = y[i] - my - slope * (x[i] - mx);

        sse += d * d;
    }
    err = sqrt(sse / (n - 2) / sxx);
    return slope - z99 * err > 0 && slope * (x[n - 1] - x[0]) >= least;
}

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Requests open when each of v came: come by then, without an end. Returns the most. */
static int count_open(const struct load_seen *v, int n, double *ret)
{
    int64_t *end = xcalloc((size_t)n + 1, sizeof(*end));
    int n_end = 0, gone = 0, most = 0;

    for (int i = 0; i < n; i++)
        if (v[i].end != LOAD_PENDING && v[i].end != LOAD_CUT)
            end[n_end++] = v[i].end_us;
    qsort(end, (size_t)n_end, sizeof(*end), by_time);
    for (int i = 0; i < n; i++) {
        while (gone < n_end && end[gone] <= v[i].at_us)
            gone++;
        most = i + 1 - gone > most ? i + 1 - gone : most;
        if (ret)
            ret[i] = i + 1 - gone;
    }
    free(end);
    return most;
}

bool load_saturated(const struct load_seen *v, int n)
{
    double *x, *open, *ttft, least;
    int64_t now = n ? v[n - 1].at_us : 0;
    int skip = n / 3, m = n - skip; /* the queue of a run begins empty and has to fill */
    bool yes;

    if (m < SLOPE_MIN_N)
        return false;
    least = m * GROWN > GROWN_LEAST ? m * GROWN : GROWN_LEAST;
    x = xcalloc(3 * (size_t)n, sizeof(*x));
    open = x + n;
    ttft = open + n;
    for (int i = 0; i < n; i++) {
        x[i] = (double)v[i].at_us;
        /* without a first token yet: as long as it has waited so far */
        ttft[i] =
            v[i].first_us >= 0
                ? ttft_ms(&v[i])
                : (double)((v[i].end_us > v[i].at_us ? v[i].end_us : now) - v[i].at_us) /
                      1e3;
    }
    count_open(v, n, open);
    yes = rises(x + skip, open + skip, m, least) && rises(x + skip, ttft + skip, m, 0);
    free(x);
    return yes;
}

/* ---- a point ---- */

static void count(struct load_point *p, const struct load_seen *s, bool good)
{
    p->good += good;
    p->done += s->end == LOAD_DONE;
    p->refused += s->end == LOAD_REFUSED;
    p->aborted += s->end == LOAD_ABORTED;
    p->cut += s->end == LOAD_CUT || s->end == LOAD_PENDING;
    p->tokens += s->n_out;
}

void load_point(const struct load_seen *v, int n, double rate, const struct load_slo *slo,
                struct load_point *ret)
{
    struct load_point p = {.rate = rate, .n = n};
    double *ttft = xcalloc(3 * (size_t)n + 1, sizeof(*ttft)), *tpot = ttft + n,
           *gap = tpot + n;
    int64_t good_tok = 0, end = 0;
    int n_ttft = 0, n_tpot = 0, ttft_ok = 0, tpot_ok = 0;

    for (int i = 0; i < n; i++) {
        bool good = load_good(&v[i], slo);

        count(&p, &v[i], good);
        good_tok += good ? v[i].n_out : 0;
        ttft_ok += ttft_good(&v[i], slo);
        tpot_ok += tpot_good(&v[i], slo);
        end = v[i].end_us > end ? v[i].end_us : end;
        if (v[i].first_us >= 0)
            ttft[n_ttft++] = ttft_ms(&v[i]);
        if (v[i].end == LOAD_DONE && v[i].n_out > 1) {
            tpot[n_tpot] = load_tpot_ms(&v[i]);
            gap[n_tpot++] = (double)v[i].gap_us / 1e3;
        }
    }
    p.duration_s = n ? (double)(end - v[0].at_us) / 1e6 : 0;
    p.attainment = n ? (double)p.good / n : 0;
    p.ttft_share = n ? (double)ttft_ok / n : 0;
    p.tpot_share = n ? (double)tpot_ok / n : 0;
    load_interval(p.good, n, &p.low, &p.high);
    p.ttft = percentiles(ttft, n_ttft);
    p.tpot = percentiles(tpot, n_tpot);
    p.gap = percentiles(gap, n_tpot);
    if (p.duration_s > 0) {
        p.good_per_s = p.good / p.duration_s;
        p.good_tok_per_s = (double)good_tok / p.duration_s;
    }
    p.most_open = count_open(v, n, NULL);
    p.saturated = load_saturated(v, n);
    p.pass = n > 0 && !load_lost(n - p.good, n, slo->target) && !p.saturated;
    p.sure = p.saturated || p.low >= slo->target || p.high < slo->target;
    free(ttft);
    *ret = p;
}

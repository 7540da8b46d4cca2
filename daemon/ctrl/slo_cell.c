/* daemon/ctrl/slo_cell.c - counts and histograms of one stretch of time. */
#include "daemon/ctrl/slo_cell.h"

#include <math.h>

#include "base/json.h"

enum { FIRST_US = 100 };

static const char *const kind_names[SLO_KINDS] = {"ttft_ms", "tpot_ms", "gap_ms"};

static double edge(int i)
{
    return i <= 0 ? 0 : FIRST_US * exp2((double)(i - 1) / SLO_PER_OCTAVE);
}

void slo_hist_add(struct slo_hist *h, int64_t us)
{
    int i = 0;

    if (us >= FIRST_US)
        i = 1 + (int)(SLO_PER_OCTAVE * log2((double)us / FIRST_US));
    h->v[i < SLO_BUCKETS ? i : SLO_BUCKETS - 1]++;
    h->n++;
}

double slo_hist_quantile(const struct slo_hist *h, double q)
{
    double rank = q * h->n, below = 0;

    if (!h->n)
        return -1;
    for (int i = 0; i < SLO_BUCKETS; i++) {
        if (h->v[i] && below + h->v[i] >= rank)
            return edge(i) + (edge(i + 1) - edge(i)) * (rank - below) / h->v[i];
        below += h->v[i];
    }
    return edge(SLO_BUCKETS);
}

void slo_cell_add(struct slo_cell *to, const struct slo_cell *c)
{
    to->met += c->met;
    to->late += c->late;
    to->refused += c->refused;
    to->aborted += c->aborted;
    to->canceled += c->canceled;
    to->prompt_tok += c->prompt_tok;
    to->out_tok += c->out_tok;
    to->good_tok += c->good_tok;
    for (int k = 0; k < SLO_KINDS; k++) {
        if (!c->h[k].n)
            continue;
        to->h[k].n += c->h[k].n;
        for (int i = 0; i < SLO_BUCKETS; i++)
            to->h[k].v[i] += c->h[k].v[i];
    }
}

int64_t slo_cell_requests(const struct slo_cell *c)
{
    return c->met + c->late + c->refused + c->aborted;
}

static void put_quantile(struct jw *w, const char *key, const struct slo_hist *h,
                         double q)
{
    if (h->n)
        jw_knum(w, key, slo_hist_quantile(h, q) / 1e3);
    else
        jw_knull(w, key);
}

void slo_cell_json(const struct slo_cell *c, double span_s, struct jw *w)
{
    int64_t n = slo_cell_requests(c);

    jw_kint(w, "requests", n);
    jw_kint(w, "met", c->met);
    jw_kint(w, "missed", n - c->met);
    jw_kint(w, "late", c->late);
    jw_kint(w, "refused", c->refused);
    jw_kint(w, "aborted", c->aborted);
    jw_kint(w, "canceled", c->canceled);
    jw_kint(w, "prompt_tokens", c->prompt_tok);
    jw_kint(w, "tokens", c->out_tok);
    jw_kint(w, "good_tokens", c->good_tok);
    if (n)
        jw_knum(w, "attainment", (double)c->met / (double)n);
    else
        jw_knull(w, "attainment");
    for (int k = 0; k < SLO_KINDS; k++) {
        jw_key(w, kind_names[k]);
        jw_obj(w);
        put_quantile(w, "p50", &c->h[k], 0.5);
        put_quantile(w, "p95", &c->h[k], 0.95);
        put_quantile(w, "p99", &c->h[k], 0.99);
        jw_obj_end(w);
    }
    if (span_s > 0) {
        jw_knum(w, "good_requests_per_s", (double)c->met / span_s);
        jw_knum(w, "good_tokens_per_s", (double)c->good_tok / span_s);
    }
}

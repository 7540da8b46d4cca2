/* daemon/ctrl/slo_cell.h - what the requests of one stretch of time saw: counts and three
 * histograms. Pure; one owner.
 *
 * Histograms are eight buckets an octave from 100 us to 1600 s, so that a percentile,
 * interpolated inside its bucket, is within 9 % of the exact one. */
#ifndef CTRL_SLO_CELL_H
#define CTRL_SLO_CELL_H

#include <stdint.h>

struct jw;

enum { SLO_PER_OCTAVE = 8, SLO_OCTAVES = 24 };
enum { SLO_BUCKETS = 1 + SLO_PER_OCTAVE * SLO_OCTAVES };
enum slo_kind { SLO_TTFT, SLO_TPOT, SLO_GAP, SLO_KINDS };

struct slo_hist {
    uint32_t n, v[SLO_BUCKETS];
};

struct slo_cell {
    int64_t at;                                    /* which stretch: time / its length */
    int64_t met, late, refused, aborted, canceled; /* requests */
    int64_t prompt_tok, out_tok, good_tok;         /* good: of requests that met */
    struct slo_hist h[SLO_KINDS];
};

void slo_hist_add(struct slo_hist *h, int64_t us);
/* q in 0..1, in microseconds; -1 when empty. */
double slo_hist_quantile(const struct slo_hist *h, double q);

void slo_cell_add(struct slo_cell *to, const struct slo_cell *c);
/* Requests that count for attainment: all but the cancelled ones. */
int64_t slo_cell_requests(const struct slo_cell *c);
/* Members of the open object: counts, tokens, attainment, percentiles in ms; rates when
 * span_s > 0. */
void slo_cell_json(const struct slo_cell *c, double span_s, struct jw *w);

#endif

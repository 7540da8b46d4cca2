/* daemon/ctrl/slo_report.c - SLO figures as JSON, as Prometheus text, from the store. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "daemon/ctrl/slo_int.h"
#include "state/series.h"

enum { HISTORY_ROWS = 10000 };

void slo_json(struct slo *s, int64_t now_us, int64_t window_s, struct buf *out)
{
    struct slo_view *v = xmalloc(sizeof(*v));
    struct jw w;

    if (window_s < 1)
        window_s = 1;
    if (window_s > SLO_WINDOW_MAX_S)
        window_s = SLO_WINDOW_MAX_S;
    jw_init(&w, out);
    jw_arr(&w);
    for (int i = 0; slo_look(s, i, now_us, window_s, v); i++) {
        jw_obj(&w);
        jw_kstr(&w, "instance", v->instance);
        jw_kstr(&w, "class", v->slo_class);
        jw_knum(&w, "window_s", v->span_s);
        jw_knum(&w, "target", v->target.attainment);
        jw_knum(&w, "ttft_target_ms", v->target.ttft_ms);
        jw_knum(&w, "tpot_target_ms", v->target.tpot_ms);
        slo_cell_json(&v->sum, v->span_s, &w);
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    free(v);
}

/* ---- Prometheus ---- */

static const struct {
    const char *name;
    int64_t s;
} windows[] = {{"1m", 60}, {"5m", 300}, {"1h", 3600}};
enum { N_WINDOWS = 3 };

static const struct {
    const char *name;
    double q;
} quantiles[] = {{"0.5", 0.5}, {"0.95", 0.95}, {"0.99", 0.99}};

struct metrics {
    struct slo *s;
    int64_t now_us;
    struct buf *out;
    struct slo_view *v; /* the one that a line is about */
};

static void head(const struct metrics *m, const char *name, const char *type,
                 const char *help)
{
    buf_printf(m->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Names of instances and classes are words of the configuration without quotes; what
 * follows them is ours. */
static void line(const struct metrics *m, const char *name, const char *more, double x)
{
    buf_printf(m->out, "%s{instance=\"%s\",slo_class=\"%s\"%s%s} %.9g\n", name,
               m->v->instance, m->v->slo_class, more[0] ? "," : "", more, x);
}

static void put_counters(const struct metrics *m)
{
    static const char *const ends[] = {"met", "late", "refused", "aborted", "canceled"};
    char label[64];

    head(m, "llmrack_slo_requests_total", "counter",
         "Requests by how they ended; all but canceled count for attainment (D)");
    for (int i = 0; slo_look(m->s, i, m->now_us, 0, m->v); i++) {
        const struct slo_cell *c = &m->v->sum;
        const int64_t n[] = {c->met, c->late, c->refused, c->aborted, c->canceled};

        for (int k = 0; k < 5; k++) {
            snprintf(label, sizeof(label), "end=\"%s\"", ends[k]);
            line(m, "llmrack_slo_requests_total", label, (double)n[k]);
        }
    }
    head(m, "llmrack_slo_tokens_total", "counter",
         "Tokens generated, of requests that met their SLO and of others (D)");
    for (int i = 0; slo_look(m->s, i, m->now_us, 0, m->v); i++) {
        const struct slo_cell *c = &m->v->sum;

        line(m, "llmrack_slo_tokens_total", "good=\"true\"", (double)c->good_tok);
        line(m, "llmrack_slo_tokens_total", "good=\"false\"",
             (double)(c->out_tok - c->good_tok));
    }
}

static void put_target(const struct metrics *m, const char *name, const char *help,
                       size_t off, double unit)
{
    head(m, name, "gauge", help);
    for (int i = 0; slo_look(m->s, i, m->now_us, 0, m->v); i++)
        line(m, name, "", *(const double *)((const char *)&m->v->target + off) * unit);
}

/* A gauge by window: which figure of the view it is. */
enum figure { ATTAINMENT, GOOD_REQUESTS, GOOD_TOKENS };

static void put_figure(const struct metrics *m, const char *name, const char *help,
                       enum figure f)
{
    char label[64];

    head(m, name, "gauge", help);
    for (int k = 0; k < N_WINDOWS; k++) {
        snprintf(label, sizeof(label), "window=\"%s\"", windows[k].name);
        for (int i = 0; slo_look(m->s, i, m->now_us, windows[k].s, m->v); i++) {
            const struct slo_cell *c = &m->v->sum;
            int64_t n = slo_cell_requests(c);

            if (f == ATTAINMENT && n)
                line(m, name, label, (double)c->met / (double)n);
            else if (f == GOOD_REQUESTS)
                line(m, name, label, (double)c->met / m->v->span_s);
            else if (f == GOOD_TOKENS)
                line(m, name, label, (double)c->good_tok / m->v->span_s);
        }
    }
}

static void put_latency(const struct metrics *m, const char *name, const char *help,
                        enum slo_kind kind)
{
    char label[64];

    head(m, name, "gauge", help);
    for (int k = 0; k < N_WINDOWS; k++)
        for (int i = 0; slo_look(m->s, i, m->now_us, windows[k].s, m->v); i++)
            for (size_t q = 0; q < sizeof(quantiles) / sizeof(quantiles[0]); q++) {
                if (!m->v->sum.h[kind].n)
                    continue;
                snprintf(label, sizeof(label), "window=\"%s\",quantile=\"%s\"",
                         windows[k].name, quantiles[q].name);
                line(m, name, label,
                     slo_hist_quantile(&m->v->sum.h[kind], quantiles[q].q) / 1e6);
            }
}

void slo_metrics(struct slo *s, int64_t now_us, struct buf *out)
{
    struct metrics m = {s, now_us, out, xmalloc(sizeof(*m.v))};

    put_counters(&m);
    put_target(&m, "llmrack_slo_ttft_target_seconds",
               "Wanted time to the first token, 0 none (D)",
               offsetof(struct conf_slo, ttft_ms), 1e-3);
    put_target(&m, "llmrack_slo_tpot_target_seconds",
               "Wanted time per further token, 0 none (D)",
               offsetof(struct conf_slo, tpot_ms), 1e-3);
    put_target(&m, "llmrack_slo_attainment_target",
               "Wanted share of requests, 0 to 1 (D)",
               offsetof(struct conf_slo, attainment), 1);
    put_figure(&m, "llmrack_slo_attainment",
               "Share of requests that met their SLO, 0 to 1 (D)", ATTAINMENT);
    put_figure(&m, "llmrack_slo_good_requests_per_second",
               "Requests that met their SLO, a second (D)", GOOD_REQUESTS);
    put_figure(&m, "llmrack_slo_good_tokens_per_second",
               "Tokens of requests that met their SLO, a second (D)", GOOD_TOKENS);
    put_latency(&m, "llmrack_slo_ttft_seconds", "Time to the first token (D)", SLO_TTFT);
    put_latency(&m, "llmrack_slo_tpot_seconds", "Time per further token (D)", SLO_TPOT);
    put_latency(&m, "llmrack_slo_gap_seconds",
                "Largest time between two tokens of a request (D)", SLO_GAP);
    free(m.v);
}

/* ---- history ---- */

struct history {
    struct jw w;
    int n;
    int64_t last, next; /* next -1 = all were read */
};

/* Stops between two minutes, so that a reader can go on from the next one. */
static int put_row(void *arg, const struct series_row *r)
{
    struct history *h = arg;

    if (h->n >= HISTORY_ROWS && r->minute != h->last) {
        h->next = r->minute;
        return 0;
    }
    h->last = r->minute;
    h->n++;
    jw_obj(&h->w);
    jw_kint(&h->w, "minute", r->minute);
    jw_kstr(&h->w, "instance", r->instance);
    jw_kstr(&h->w, "class", r->slo_class);
    jw_kint(&h->w, "revision", r->revision);
    jw_key(&h->w, "figures");
    jw_raw(&h->w, r->json);
    jw_obj_end(&h->w);
    return 1;
}

int slo_history(struct store *st, int64_t from_minute, int64_t to_minute, struct buf *out,
                int64_t *ret_next, struct err *e)
{
    struct history h = {.next = -1};

    jw_init(&h.w, out);
    jw_arr(&h.w);
    if (series_read(st, from_minute, to_minute, put_row, &h, e) < 0)
        return -1;
    jw_arr_end(&h.w);
    if (h.next >= 0)
        *ret_next = h.next;
    return h.next >= 0;
}

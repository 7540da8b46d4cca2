/* daemon/ctrl/slo.h - SLO accounting: what requests saw, by instance and class.
 *
 * TTFT: from the request complete at the HTTP socket to the bytes of the first token
 * handed to the socket. TPOT: (t_last - t_first) / (n - 1); one token counts as meeting
 * it. Attainment over all requests: refused ones and those that the server ended count as
 * missed, those that their client cancelled are listed apart. good_requests_per_s and
 * good_tokens_per_s are live rates, not goodput. Minute buckets in a ring; percentiles
 * from histograms. slo_record from any thread under a short lock; the rest says. */
#ifndef CTRL_SLO_H
#define CTRL_SLO_H

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct conf;
struct err;
struct guard_window;
struct slo;
struct store;

enum slo_end { SLO_DONE, SLO_REFUSED, SLO_ABORTED, SLO_CANCELED, SLO_END_COUNT };

struct slo_sample {
    const char *instance, *slo_class; /* class "" = the instance's own target */
    enum slo_end end;
    int64_t ttft_us, tpot_us, gap_us; /* -1 = none; gap: the largest between tokens */
    int32_t n_prompt, n_out;
    bool warmup; /* kept out of the guard's windows */
};

struct slo *slo_new(void);
void slo_free(struct slo *s);
/* Targets from now on; instances and classes that are no longer named are kept until
 * their minutes have passed. Control thread. */
void slo_set_conf(struct slo *s, const struct conf *c, int64_t revision);
/* Any thread; now_us monotonic. Met or not is decided here. */
void slo_record(struct slo *s, int64_t now_us, const struct slo_sample *x);
/* Closes minutes and writes them; every few seconds from the control thread. */
int slo_tick(struct slo *s, struct store *st, int64_t now_us, int64_t wall_ms,
             struct err *e);
/* Over all instances, since from_us, for the guard. Any thread. */
void slo_window(struct slo *s, int64_t from_us, int64_t now_us, struct guard_window *ret);
/* Live figures as a JSON array `slo` (window_s back from now) and as Prometheus text. */
void slo_json(struct slo *s, int64_t now_us, int64_t window_s, struct buf *out);
void slo_metrics(struct slo *s, int64_t now_us, struct buf *out);
/* History of minutes from the store as a JSON array. Control thread. */
int slo_history(struct store *st, int64_t from_minute, int64_t to_minute, struct buf *out,
                struct err *e);

#endif

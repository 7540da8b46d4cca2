/* daemon/ctrl/slo.h - SLO accounting: what requests saw, by instance and class.
 *
 * An instance has one row whatever engines it has: replicas and the engines of both pools
 * ("main:2", "main/decode") count for it, and a request once, from its arrival on.
 *
 * TTFT: from the request complete at the HTTP socket to the bytes of the first token
 * handed to the socket; of a whole answer, which hands all over at its end, to the first
 * token made. TPOT: (t_last - t_first) / (n - 1); one token counts as meeting it.
 * Attainment over all requests: refused ones and those that the server ended count as
 * missed, those that their client cancelled are listed apart. A request without a target
 * meets it by being answered. good_requests_per_s and good_tokens_per_s are live rates,
 * not goodput.
 *
 * Each pair of instance and class has ten-second cells for five minutes and minute cells
 * for an hour; a window is the cells that reach at least so far back, and says what it
 * spans. Percentiles come from histograms (slo_cell.h). slo_record from any thread under
 * a short lock; the rest says. */
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

enum { SLO_SERIES_MAX = 64, SLO_CLASS = 64, SLO_WINDOW_MAX_S = 3600 };
enum slo_end { SLO_DONE, SLO_REFUSED, SLO_ABORTED, SLO_CANCELED, SLO_END_COUNT };

struct slo_sample {
    const char *instance, *slo_class; /* class "" = the instance's own target */
    enum slo_end end;
    int64_t start_us;                 /* request complete at the socket; monotonic */
    int64_t ttft_us, tpot_us, gap_us; /* -1 = none; gap: the largest between tokens */
    int32_t n_prompt, n_out;
    bool warmup; /* kept out of the guard's windows */
};

struct slo *slo_new(void);
void slo_free(struct slo *s);
/* Targets from now on; instances and classes that are no longer named are kept until
 * their hour has passed. Control thread. */
void slo_set_conf(struct slo *s, const struct conf *c, int64_t revision);
/* Is there such a class? INVALID with those that there are. Any thread. */
int slo_check_class(struct slo *s, const char *slo_class, struct err *e);
/* Targets of that pair in us, 0 = none. Any thread. */
void slo_targets(struct slo *s, const char *instance, const char *slo_class,
                 int64_t *ret_ttft_us, int64_t *ret_tpot_us);
/* Any thread; now_us monotonic. Met or not is decided here. instance "": it is not known,
 * which means the only one where there is only one. Beyond SLO_SERIES_MAX pairs,
 * further ones are counted together under "". */
void slo_record(struct slo *s, int64_t now_us, const struct slo_sample *x);
/* Closes minutes and writes them, drops those of 30 days ago; every few seconds from the
 * control thread. What could not be written is kept for the next call, up to an hour. st
 * NULL: nothing is written. */
int slo_tick(struct slo *s, struct store *st, int64_t now_us, int64_t wall_ms,
             struct err *e);
/* Requests of all instances that began at from_us or later, for the guard: those that
 * began before a change are not held for or against it. At most two hours back. ready is
 * left true: it is not known here. Any thread. */
void slo_window(struct slo *s, int64_t from_us, int64_t now_us, struct guard_window *ret);
/* Live figures as a JSON array (window_s back from now, at most SLO_WINDOW_MAX_S) and as
 * Prometheus text. Any thread. */
void slo_json(struct slo *s, int64_t now_us, int64_t window_s, struct buf *out);
void slo_metrics(struct slo *s, int64_t now_us, struct buf *out);
/* Minutes with requests, from the store, as a JSON array, oldest first. 1 when there were
 * more than fit; *ret_next is then the minute to go on from. Control thread. */
int slo_history(struct store *st, int64_t from_minute, int64_t to_minute, struct buf *out,
                int64_t *ret_next, struct err *e);

#endif

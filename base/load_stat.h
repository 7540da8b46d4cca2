/* base/load_stat.h - what became of the requests of a run, as figures. Pure.
 *
 * A request is good when its time to the first token and its time per further token both
 * meet the target (DistServe): ttft from when it was to come, not from when it could be
 * sent; tpot = (last - first) / (n - 1), 0 with one token. All requests that were to come
 * count in the attainment: those that were refused, aborted or cut off are not good. A
 * target of 0 is met by all. Any thread. */
#ifndef BASE_LOAD_STAT_H
#define BASE_LOAD_STAT_H

#include <stdbool.h>
#include <stdint.h>

enum load_end {
    LOAD_PENDING, /* not sent, or without an end yet */
    LOAD_DONE,
    LOAD_REFUSED, /* 429 or 503 before a token */
    LOAD_ABORTED, /* ended before its last token, or with an error */
    LOAD_CUT      /* given up by us: the run ended first */
};

/* One request; times from the start of the run, -1 = did not happen. */
struct load_seen {
    int64_t at_us, sent_us, first_us, last_us, end_us, gap_us; /* gap: longest of it */
    int n_in, n_want, n_out;
    enum load_end end;
};

struct load_slo {
    double ttft_ms, tpot_ms; /* 0 = no target */
    double target;           /* wanted share, 0..1 */
};

struct load_pct {
    double p50, p95, p99; /* ms; NAN without any */
};

struct load_point {
    double rate;       /* that was asked for, requests/s */
    double duration_s; /* from the first arrival to the last end */
    int n, good, done, refused, aborted, cut;
    double attainment, low, high;  /* with its interval of 95 % (Wilson) */
    double ttft_share, tpot_share; /* of all, those that meet this target, whatever the
                                      other */
    struct load_pct ttft, tpot, gap;
    double good_per_s, good_tok_per_s; /* good ones over the duration */
    int64_t tokens;
    int most_open;  /* requests in flight at once */
    bool saturated; /* more came than was served: the queue grew to the end */
    bool pass;      /* attainment reaches the target, and not saturated */
    bool sure;      /* the interval does not hold the target */
};

double load_tpot_ms(const struct load_seen *s);
bool load_good(const struct load_seen *s, const struct load_slo *slo);
void load_point(const struct load_seen *v, int n, double rate, const struct load_slo *slo,
                struct load_point *ret);
/* Wilson's interval of k good ones of n at 95 %. */
void load_interval(int k, int n, double *ret_low, double *ret_high);
/* Does the queue grow? Over the arrivals but for the first third: open requests and time
 * to the first token rise surely (lower end of the slope's interval of 99 % above 0), and
 * of those that came 10 % stayed behind, at least four. */
bool load_saturated(const struct load_seen *v, int n);
/* Can the target still be met when so many of n_all are known not to be good? */
bool load_lost(int bad, int n_all, double target);

#endif

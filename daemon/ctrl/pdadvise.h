/* daemon/ctrl/pdadvise.h - which of colocated, chunked and split serves an SLO best.
 * Pure.
 *
 * A mode that was measured (a load run with this contract) counts with what was measured.
 * The others are predicted: requests drawn from the measured ones arrive by Poisson in a
 * small world of queues whose steps cost what llmctl load found on the idle instance
 *
 *   step = start + prompt tokens * prefill_tok + sequences * decode_seq
 *
 * where start is that of a prompt alone, of a batch alone, or the larger of both, and the
 * rate is searched as llmctl load does. Split has two such worlds, each with its share of
 * the devices (a step takes all/share times as long, or as much as was measured on
 * fewer devices: pd_scale), and a handoff of T_fixed + S / B
 * for the last chunk, the others travelling while it is computed; all shares are tried.
 * Where a mode is both measured and predicted, the quotient is the error of the others,
 * and they are corrected by it. Any thread; a few ms a mode. */
#ifndef CTRL_PDADVISE_H
#define CTRL_PDADVISE_H

#include <stdbool.h>
#include <stdint.h>

struct buf;

enum pd_mode { PD_COLOCATED, PD_CHUNKED, PD_SPLIT, PD_MODES };
const char *pd_mode_name(enum pd_mode m); /* as in the configuration */

/* Of all devices together. */
struct pd_world {
    double prefill_ms, prefill_tok_ms, decode_ms, decode_seq_ms;
    int devices; /* that can be shared out between two pools */
    int step_tok, max_seqs, prefill_run;
    double handoff_ms, handoff_tok_ms; /* T_fixed, and per token: S / B */
    /* 1 / n of the devices take n to the power of this times as long; 0 = not known: 1 */
    double prefill_scale, decode_scale;
};

struct pd_work {
    const int (*sample)[2]; /* tokens of prompt and answer */
    int n_sample;
    double ttft_ms, tpot_ms, target; /* 0 = no target; wanted share */
    double cv2;                      /* of the gaps between arrivals; 1 = Poisson */
    uint64_t seed;
};

/* The power of pd_world that says: a step of `all` ms on n times as many devices took
 * `part` ms on fewer; of 0..1, 0 where it cannot be told. */
double pd_scale(double all, double part, double n);

struct pd_guess {
    double goodput;      /* requests/s; 0: not even one in a thousand seconds */
    int prefill_devices; /* of split */
    double attainment, ttft_p95, tpot_p95; /* at the goodput; ms */
    double step_over_decode; /* mean decode interval over that of a pure decode step: what
                                prompts cost those who decode */
    const char *limit;       /* what fails first above it: "ttft", "tpot" or "both" */
};
void pd_predict(const struct pd_world *w, const struct pd_work *k, enum pd_mode m,
                struct pd_guess *ret);

struct pd_run { /* a load run with this contract */
    enum pd_mode mode;
    int64_t id;
    double goodput;
};
struct pd_row {
    enum pd_mode mode;
    bool possible, measured;
    int64_t run;      /* of a measured one */
    double goodput;   /* measured, or predicted and corrected */
    double predicted; /* before the correction */
    double error;     /* predicted / measured - 1; NAN where it is not measured */
    struct pd_guess guess;
    char why[240];
};
struct pd_advice {
    struct pd_row row[PD_MODES]; /* the best first */
    double spread; /* largest |error| of the measured ones; NAN without any */
    bool sure; /* both of the best two are measured, or it leads by more than spread, and
                  by more than a quarter */
    char text[400];
};
void pd_advise(const struct pd_world *w, const struct pd_work *k,
               const struct pd_run *runs, int n_runs, struct pd_advice *ret);

#endif

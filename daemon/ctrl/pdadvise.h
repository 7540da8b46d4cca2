/* daemon/ctrl/pdadvise.h - which of colocated, chunked and split serves an SLO best.
 * Pure.
 *
 * A mode that was measured (a load run with this contract) counts with what was measured:
 * the highest rate that passed, below the least that failed. The others are predicted:
 * what llmctl load would find with the same words. The requests of the measured run come
 * again, at the same moments and as many as it sent, to a small world of queues whose
 * steps cost what it found on the idle instance
 *
 *   step = start + prompt tokens * prefill_tok + sequences * decode_seq
 *
 * where start is that of a prompt alone, of a batch alone, or the larger of both; rates
 * are judged and searched by its own rules (base/load_search.h). A short run flatters a
 * mode whose queue grows slowly, and its few arrivals are not those of the long run: both
 * are alike in what is measured and what is predicted.
 *
 * A loaded instance's steps take longer than an idle one's: its threads share the cores
 * with those who bring requests and take tokens away. The run says how much (pd_pace_of).
 *
 * Split has two such worlds, each with its share of the devices, and a handoff of T_fixed
 * + S / B for the last chunk, the others travelling while it is computed; all shares are
 * tried. 1 / n of the devices take n to the power of `scale` times as long. Where no run
 * tells it, SCALE_MID is taken, and both ends of what it may be give a range.
 *
 * Where a mode is both measured and predicted, the quotient is the error of the others,
 * and these are predicted again with all steps so much longer or shorter that what was
 * measured comes out. Any thread; some ms a mode. */
#ifndef CTRL_PDADVISE_H
#define CTRL_PDADVISE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/load_search.h"

enum pd_mode { PD_COLOCATED, PD_CHUNKED, PD_SPLIT, PD_MODES };
const char *pd_mode_name(enum pd_mode m); /* as in the configuration */

struct pd_world {
    double prefill_ms, prefill_tok_ms, decode_ms, decode_seq_ms;
    int devices;               /* that can be shared out between two pools */
    int prefill_on, decode_on; /* of them, those on which this was measured; 0 = all */
    int step_tok, max_seqs, prefill_run;
    int prefill_step_tok;               /* of a prefill pool; 0 = step_tok */
    double handoff_ms, handoff_tok_ms;  /* T_fixed, and per token: S / B */
    double prefill_scale, decode_scale; /* 0 = not known */
};

struct pd_arrival {
    double at; /* in mean gaps from the start of the run */
    int n_in, n_out;
};
struct pd_work {
    const struct pd_arrival *come[LOAD_TRIES]; /* of each run of a rate; borrowed */
    int n_come;                                /* of each */
    struct load_span span;                     /* of a run */
    struct load_slo slo;
};

/* The power of pd_world that says: a step of `all` ms on n times as many devices took
 * `part` ms on fewer; of 0..1, 0 where it cannot be told. */
double pd_scale(double all, double part, double n);

/* Steps that engines made, of answers alone and with prompts: how many, the tokens of
 * answers in them, those of prompts, and ms. */
struct pd_steps {
    double answer_steps, answer_seqs, answer_ms;
    double prompt_steps, prompt_seqs, prompt_tok, prompt_ms;
};
/* How many times as long steps took under load as the costs of `w` say, over the same
 * quotient for those that it was measured by. Of either kind; 1 where they were too few.
 */
struct pd_pace {
    double prefill, decode;
};
struct pd_pace pd_pace_of(const struct pd_world *w, const struct pd_steps *idle,
                          const struct pd_steps *loaded);
void pd_pace_set(struct pd_world *w, struct pd_pace p);

struct pd_guess {
    double goodput;      /* requests/s; 0: not even one in a thousand seconds */
    double low, high;    /* what it is if devices scale otherwise */
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
    double goodput, bound; /* the least rate that failed; 0 = none */
    int step_tok;          /* that it had (split: of prompts); 0 = that of the world */
};
struct pd_row {
    enum pd_mode mode;
    bool possible, measured;
    int64_t run;      /* of a measured one */
    double goodput;   /* measured, or predicted and corrected */
    double low, high; /* between which it surely is: the search's ends; or what may be
                         otherwise, and the error */
    double predicted; /* before the correction */
    double error;     /* predicted / measured - 1; NAN where it is not measured */
    struct pd_guess guess;
    char why[240];
};
struct pd_advice {
    struct pd_row row[PD_MODES]; /* the best first */
    double spread; /* largest |error| of the measured ones; NAN without any */
    double
        pace;  /* by what was measured, steps take so many times as long as in pd_world */
    bool sure; /* something was measured, and all of the best one's range is above that
                  of the others */
    int next;  /* not sure: the mode to measure next; PD_MODES = all that matters is
                  measured, and too close */
    char text[480];
};
void pd_advise(const struct pd_world *w, const struct pd_work *k,
               const struct pd_run *runs, int n_runs, struct pd_advice *ret);

#endif

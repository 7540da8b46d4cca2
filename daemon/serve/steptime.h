/* daemon/serve/steptime.h - how long a step will take, learnt from those that ended.
 * Pure.
 *
 * A step's time is taken to be base + tok * (prompt tokens in it) + seq * (sequences that
 * decode in it), none of the three below zero: the least squares of relative errors over
 * the last few hundred steps. Steps with and without prompt tokens are forgotten apart,
 * so that a long time of either does not lose what is known of the other. No clock of its
 * own: whoever has the figures brings them. One owner. */
#ifndef SERVE_STEPTIME_H
#define SERVE_STEPTIME_H

#include <stdbool.h>
#include <stdint.h>

enum {
    STEPTIME_TERMS = 3,
    STEPTIME_MIN = 16 /* steps with prompt tokens: then it is known */
};

struct steptime {
    struct {
        double xx[STEPTIME_TERMS][STEPTIME_TERMS], xy[STEPTIME_TERMS];
    } sum[2];                    /* without and with prompt tokens */
    double coef[STEPTIME_TERMS]; /* us: base, a prompt token, a sequence */
    int n;                       /* steps with prompt tokens, STEPTIME_MIN at most */
};

/* A step of prompt_tok and seqs took us. Zeroed is a model that knows nothing. */
void steptime_add(struct steptime *m, int prompt_tok, int seqs, int64_t us);
bool steptime_known(const struct steptime *m);
/* Of a step, in us; 0 while it is not known. */
double steptime_us(const struct steptime *m, double prompt_tok, int seqs);
/* Prompt tokens that a step beside seqs may have to end within us; may be below zero,
 * INT32_MAX at most. Not while it is not known. */
int steptime_fit(const struct steptime *m, int seqs, double us);

#endif

/* daemon/serve/sampler.h - logits of one row to a token. Pure.
 *
 * Order: logit bias, penalties (repetition over prompt and output; presence and frequency
 * over output), temperature, top-k, top-p, min-p, then one draw. The random number is a
 * pure function of (seed, choice, output position, purpose); ties break by token id, so
 * neither the batch nor a restart changes a choice. Log-probabilities are of the raw
 * logits (before bias, penalties and temperature). */
#ifndef SERVE_SAMPLER_H
#define SERVE_SAMPLER_H

#include <stdint.h>

#include "daemon/serve/step.h"

struct sampler; /* scratch for one thread, for up to n_vocab logits */

struct sampler *sampler_new(int n_vocab);
void sampler_free(struct sampler *s);

/* logits[0..n_vocab) is read only. hist and bias are the slices that sp names. n_top = -1
 * leaves the log-probability fields 0. NaN counts as minus infinity; -1 when no logit is
 * left to choose or the largest is infinite (the device went wrong): *ret is untouched.
 */
int sampler_pick(struct sampler *s, const float *logits, const struct step_sample *sp,
                 const int32_t *hist, const struct step_bias *bias, int n_top,
                 struct step_token *ret);
/* Log-probability and alternatives of a given token; -1 as above or id out of range. */
int sampler_score(struct sampler *s, const float *logits, int32_t id, int n_top,
                  struct step_token *ret);
/* Uniform in [0, 1) from the four inputs (purpose 0 = the draw). */
double sampler_uniform(uint64_t seed, int32_t choice, int32_t out_pos, int32_t purpose);

#endif

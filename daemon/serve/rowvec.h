/* daemon/serve/rowvec.h - passes over one row of logits, four floats at a time.
 *
 * The same additions in the same order on every machine: no instruction set beyond the
 * compiler's baseline, no fused multiply. NaN never counts. Pure. */
#ifndef SERVE_ROWVEC_H
#define SERVE_ROWVEC_H

/* Largest value; -INFINITY when there is none. */
float rowvec_max(const float *x, int n);
/* First index from `from` on with x > v (or == v); n when there is none. */
int rowvec_above(const float *x, int n, int from, float v);
int rowvec_equal(const float *x, int n, int from, float v);
/* exp((x - max) * scale) for x <= max, scale >= 0: about 1e-7 relative, 0 under 1e-37. */
float rowvec_weight(float x, float max, float scale);
/* Sum of the weights, in float64. With out, they are stored there and those under `min`
 * are taken as 0; out may be x. */
double rowvec_weights(const float *x, int n, float max, float scale, float min,
                      float *out);
/* First index at which the running sum of w exceeds t; the last one over 0 when none
 * does, -1 when all are 0. */
int rowvec_draw(const float *w, int n, double t);

#endif

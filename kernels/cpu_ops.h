/* kernels/cpu_ops.h - row kernels of the small ops, one table per instruction set.
 *
 * The portable ones in cpu_ops.c are the definition; the others are held against them.
 * Each works on one row, so what a row gives never depends on its neighbours. */
#ifndef KERNELS_CPU_OPS_H
#define KERNELS_CPU_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu_mat.h"
#include "kernels/dtype.h"

struct cpu_kern {
    /* y = x / sqrt(mean(x^2) + eps) * w; y may be x */
    void (*norm_row)(float *y, const float *x, const float *w, int n, float eps);
    /* Rotate one head in place: cs holds rot/2 cosines, then rot/2 sines. */
    void (*rotate)(float *x, const float *cs, int rot, bool neox);
    /* Round to F16 (beyond its range: to its largest) or BF16, to nearest even. */
    void (*to_half)(enum dtype t, const float *x, uint16_t *out, int n);
};

extern const struct cpu_kern cpu_kern_portable, cpu_kern_avx2, cpu_kern_avx512;
const struct cpu_kern *cpu_kern_get(enum cpu_isa isa);

#endif

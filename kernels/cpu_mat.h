/* kernels/cpu_mat.h - weight matrices of the CPU backend and products with them.
 *
 * Inside floor 1 only (cpu.c is the caller). A matrix keeps its file's bits in an order
 * that suits the instruction set chosen at start: 16-row panels for AVX-512 and so on.
 * Quantised types multiply activations quantised to int8 in blocks of 32 (one scale a
 * block), BF16 multiplies bf16-rounded activations where the ISA has it, F16 and F32 use
 * f32. The portable path is the definition of each: plain loops, same quantisation. */
#ifndef KERNELS_CPU_MAT_H
#define KERNELS_CPU_MAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

struct cpu_mat;
struct cpu_pool;
struct err;
struct team;

enum cpu_isa { CPU_ISA_PORTABLE, CPU_ISA_AVX2, CPU_ISA_AVX512 };
/* What this machine has; a wish above it is an error naming both. */
enum cpu_isa cpu_isa_best(void);
const char *cpu_isa_name(enum cpu_isa isa);

/* pool: where its panels live (cpu_pool.h), or NULL for memory of its own. */
int cpu_mat_new(enum cpu_isa isa, struct team *t, struct cpu_pool *pool, enum dtype type,
                int rows, int cols, const void *data, struct cpu_mat **ret,
                struct err *e);
/* Without values, in memory of its own; then rows of `data` at row.., a multiple of 16.
 */
int cpu_mat_new_empty(enum cpu_isa isa, enum dtype type, int rows, int cols,
                      const void *data, struct cpu_mat **ret, struct err *e);
void cpu_mat_put(struct cpu_mat *m, const void *data, int row, int n);
void cpu_mat_free(struct cpu_mat *m);
size_t cpu_mat_bytes(const struct cpu_mat *m);
/* out[0..cols) = exact values of one row, from the repacked form. */
void cpu_mat_row(const struct cpu_mat *m, int row, float *out);

/* Scratch for products of up to max_rows x max_cols inputs. */
size_t cpu_mat_scratch_bytes(int max_rows, int max_cols);

/* y[j][r*ld..] = x * m[j]^T (+bias) (+y if add) for n_out matrices of one input; glu:
 * n_out = 2 and y[0] = silu(x*m0^T) * (x*m1^T). */
struct cpu_product {
    enum cpu_isa isa;
    int n_rows;     /* rows of x */
    const float *x; /* [n_rows, cols], ld = x_ld */
    int x_ld;
    int n_out;
    const struct cpu_mat *m[3];
    const float *bias[3]; /* or NULL */
    float *y[3];
    int y_ld[3];
    int add, glu;
    void *scratch;
};
/* Runs on the team (quantise, barrier, multiply); returns when done. */
void cpu_product_run(struct team *t, const struct cpu_product *p);

enum { CPU_PHASES = 2 }; /* of rows: as in backend.h */

/* Rows x[pair[i] / per_row] through one expert to y[pair[i]], i < n. */
struct cpu_expert {
    const struct cpu_mat *gate, *up, *down;
    const float *bias[3]; /* of each, or NULL */
    const int32_t *pair;
    int n, later; /* later: pairs of phase 1 among them */
    /* added to, as TALLY_*; NULL = not measured */
    int64_t *service_ns[CPU_PHASES], *queue_ns[CPU_PHASES];
};
/* a: room for the rows between the products, max_rows of them at a time. */
struct cpu_experts {
    enum cpu_isa isa;
    const float *x;
    float *y, *a;
    int x_ld, y_ld, a_ld, per_row, max_rows;
    float limit; /* as in op_experts */
    void *scratch;
    size_t scratch_bytes;
};
/* y := down of act(x * gate^T, x * up^T) for all that `next` gives out until NULL, in
 * few runs of the team (cpu_experts.c). false where the scratch does not hold a row. */
bool cpu_experts_run(struct team *t, const struct cpu_experts *x,
                     const struct cpu_expert *(*next)(void *arg), void *arg);

#endif

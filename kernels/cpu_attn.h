/* kernels/cpu_attn.h - what the attention driver asks of an instruction set.
 *
 * A query row of one head is an "A-row". The driver hands a kernel up to ATTN_A A-rows
 * that share a KV head and one part of the context, ATTN_SPLIT positions; the kernel
 * gives each A-row's maximum, sum and weighted values of that part. A-row results must
 * not depend on which other A-rows are handed along: that is what makes the op
 * row-invariant. */
#ifndef KERNELS_CPU_ATTN_H
#define KERNELS_CPU_ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cpu_mat.h"

enum { ATTN_A = 6, ATTN_BLOCKS = ATTN_SPLIT / KV_BLOCK_TOK };

struct attn_part {
    enum dtype type;
    int n_a;
    int v_dim;         /* 0, or V is the first v_dim of K */
    int dim, pad;      /* head size, and the same rounded up to 16 */
    const uint32_t *q; /* packed rows, pad words apart */
    /* Head blocks of this part. Those that hold no position of [lo, hi) are not read. */
    const char *const *k, *const *v;
    int lo[ATTN_A], hi[ATTN_A]; /* positions within the part; lo = hi = 0: none */
    bool stream;                /* read once: fetch ahead from memory */
    const char *const *next;    /* K of the part that this thread does next, or NULL */
    float m[ATTN_A], l[ATTN_A]; /* out: maximum (log2), sum; -inf and 0 for none */
    float *o;                   /* out: [n_a][pad], not normalised; only where hi > lo */
};

struct attn_kern {
    /* Put one query row into the kernel's form, times scale (log2 e included). */
    void (*pack)(const float *q, float scale, int dim, int pad, uint32_t *out);
    void (*part)(struct attn_part *p);
    /* Fold a part into a running (m, l, o); a running m of -inf with zeros starts it. */
    void (*merge)(float *m, float *l, float *o, float pm, float pl, const float *po,
                  int pad);
    void (*finish)(float *y, const float *o, float l, int dim);
};

extern const struct attn_kern attn_kern_portable, attn_kern_avx2, attn_kern_avx512_bf16,
    attn_kern_avx512_f16;
/* latent: where V is a part of K. The portable one serves that, and KV in F32. */
const struct attn_kern *attn_kern_get(enum cpu_isa isa, enum dtype type, bool latent);

struct attn_scratch;
/* NULL when there is no memory. */
struct attn_scratch *attn_scratch_new(const struct backend_caps *caps, int n_threads);
void attn_scratch_free(struct attn_scratch *s);
size_t attn_scratch_bytes(const struct attn_scratch *s);

#endif

/* kernels/kv_block.h - where an element stands inside a head's block of 16 positions.
 *
 * The order is that of the attention kernels: BF16 pairs up what the pairwise dot product
 * multiplies (two dimensions of K, two positions of V), F16 is plain. Dimensions are
 * padded to 16; rope_store writes zeros there.
 *
 *   BF16  K [dim/2][16 tok][2 dim]   V [tok/2][dim][2 tok]
 *   F16   K [dim][16 tok]            V [tok][dim]           and so is F32
 *
 * A latent has K alone, whose first v_dim dimensions are V too.
 *
 * A head's V follows its K, so that decode reads twice as long a run of memory: with
 * all K before all V, the prefetchers of the machine at hand gave a quarter less.
 */
#ifndef KERNELS_KV_BLOCK_H
#define KERNELS_KV_BLOCK_H

#include <stddef.h>

#include "kernels/backend.h"

enum { KV_MAX_HEAD_DIM = 1024 };

static inline int kv_pad_dim(int dim) { return (dim + 15) & ~15; }

static inline size_t kv_k_index(enum dtype t, int tok, int dim)
{
    if (t == DT_BF16)
        return (size_t)(((dim >> 1) * KV_BLOCK_TOK + tok) * 2 + (dim & 1));
    return (size_t)(dim * KV_BLOCK_TOK + tok);
}

static inline size_t kv_v_index(enum dtype t, int pad_dim, int tok, int dim)
{
    if (t == DT_BF16)
        return (size_t)(((tok >> 1) * pad_dim + dim) * 2 + (tok & 1));
    return (size_t)(tok * pad_dim + dim);
}

/* Byte offset of a head's K (v = 0) or V (v = 1) in a block; a latent's V is its K. */
static inline size_t kv_head_off(const struct kv_layout *l, int layer, int v, int head)
{
    size_t at = l->v_dim ? (size_t)head : (size_t)head * 2 + (size_t)v;

    return (size_t)layer * l->layer_bytes + at * l->head_bytes;
}

#endif

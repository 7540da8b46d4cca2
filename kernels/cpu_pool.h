/* kernels/cpu_pool.h - memory for weights on huge pages, shared by many small matrices.
 *
 * A product reads its weights once, as a stream; on 4 KB pages the prefetcher stops at
 * every page. Most matrices of a small model are no multiple of a huge page, so they are
 * cut one after the other from slabs that are. A slab lives as long as any piece of it;
 * pieces may outlive the pool. One thread. */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include <stddef.h>

struct cpu_pool;
struct cpu_slab;

struct cpu_pool *cpu_pool_new(void);
void cpu_pool_free(struct cpu_pool *p);

/* n bytes at a multiple of 64, not zeroed, or NULL when there is no memory. pool NULL: a
 * slab of its own, no larger than needed. *ret_slab goes back to cpu_slab_unref. */
void *cpu_pool_alloc(struct cpu_pool *p, size_t n, struct cpu_slab **ret_slab);
void cpu_slab_unref(struct cpu_slab *s);

#endif

/* kernels/cpu_rope.h - memory of the rotary op: where rows stand and their angles. */
#ifndef KERNELS_CPU_ROPE_H
#define KERNELS_CPU_ROPE_H

#include <stddef.h>

struct backend_caps;
struct rope_cache;

/* NULL when there is no memory. */
struct rope_cache *rope_cache_new(const struct backend_caps *caps);
void rope_cache_free(struct rope_cache *c);
size_t rope_cache_bytes(const struct rope_cache *c);

#endif

/* kernels/cpu_span.h - is what a step says of its rows true? Device values, so checked at
 * run time: one wrong block number must not become a stray write. */
#ifndef KERNELS_CPU_SPAN_H
#define KERNELS_CPU_SPAN_H

#include <stdbool.h>

struct kv_arena;
struct op_span;
struct stream;

/* Which blocks an op touches: those that hold the rows themselves, or the context too
 * (its last `window` positions, 0 = all). */
enum cpu_span_use { CPU_SPAN_ROWS, CPU_SPAN_CONTEXT };

/* False after remembering the fault on the stream. */
bool cpu_span_ok(struct stream *s, const struct op_span *sp, const struct kv_arena *kv,
                 enum cpu_span_use use, int window);

#endif

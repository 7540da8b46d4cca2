/* kernels/cpu_span.c - run-time checks of rows, positions and block tables. */
#include "kernels/cpu_span.h"

#include "kernels/cpu.h"

static bool blocks_ok(struct stream *s, const int32_t *table, int first, int last,
                      int n_blocks, int item)
{
    for (int b = first; b <= last; b++)
        if (table[b] < 0 || table[b] >= n_blocks) {
            cpu_stream_fault(s, "item %d: KV block %d at place %d, the arena has %d",
                             item, table[b], b, n_blocks);
            return false;
        }
    return true;
}

bool cpu_span_ok(struct stream *s, const struct op_span *sp, const struct kv_arena *kv,
                 enum cpu_span_use use, int window)
{
    const int32_t *row = cpu_iview(&sp->row), *pos = cpu_iview(&sp->pos);
    const int32_t *table = cpu_iview(&sp->table);

    if (row[0] != 0 || row[sp->n_items] != sp->n_rows) {
        cpu_stream_fault(s, "rows %d..%d, the step has %d", row[0], row[sp->n_items],
                         sp->n_rows);
        return false;
    }
    for (int i = 0; i < sp->n_items; i++) {
        int64_t n = (int64_t)row[i + 1] - row[i], end = (int64_t)pos[i] + n;
        int first = pos[i];

        if (n < 0 || pos[i] < 0 || row[i + 1] > sp->n_rows || end > sp->max_ctx ||
            end > (int64_t)sp->max_blocks * KV_BLOCK_TOK) {
            cpu_stream_fault(s, "item %d: %lld rows at position %d of a context of %d", i,
                             (long long)n, pos[i], sp->max_ctx);
            return false;
        }
        if (!n)
            continue;
        if (use == CPU_SPAN_CONTEXT)
            first = window && pos[i] >= window ? pos[i] - window + 1 : 0;
        if (!blocks_ok(s, table + (size_t)i * (size_t)sp->max_blocks,
                       first / KV_BLOCK_TOK, (int)(end - 1) / KV_BLOCK_TOK, kv->n_blocks,
                       i))
            return false;
    }
    return true;
}

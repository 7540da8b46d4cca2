/* kernels/cpu_pack8.c - rows on their way to experts of other ranks, in eight bits, and
 * rows that are scaled. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu.h"

static int rows_of(struct stream *s, const struct iview *count, int most)
{
    int64_t n = 0;

    for (int i = 0; i < count->n; i++)
        n += cpu_iview(count)[i];
    if (n >= 0 && n <= most)
        return (int)n;
    cpu_stream_fault(s, "pack8: %lld rows of at most %d", (long long)n, most);
    return 0;
}

static uint8_t *packed(struct dbuf *d, size_t off, int cols, int r)
{
    return (uint8_t *)((struct cpu_dbuf *)d)->mem + off +
           (size_t)r * op_pack8_bytes(cols);
}

int cpu_op_pack8(struct stream *s, const struct op_pack8 *o, struct err *e)
{
    int n = rows_of(s, &o->count, o->x.rows), cols = o->x.cols;

    (void)e;
    for (int r = 0; r < n; r++) {
        const float *x = cpu_row(&o->x, r);
        uint8_t *to = packed(o->to, o->off, cols, r);
        float max = 0, scale, by;

        for (int i = 0; i < cols; i++)
            max = fabsf(x[i]) > max || isnan(x[i]) ? fabsf(x[i]) : max;
        scale = max / F8_E4M3_MAX;
        if (scale < FLT_MIN) /* as good as nothing: 1 / scale may be too large */
            scale = 0;
        by = scale > 0 ? F8_E4M3_MAX / max : 0;
        memcpy(to, &scale, sizeof(scale));
        for (int i = 0; i < cols; i++)
            to[sizeof(scale) + (size_t)i] = f32_to_f8_e4m3(x[i] * by);
    }
    return 0;
}

int cpu_op_unpack8(struct stream *s, const struct op_unpack8 *o, struct err *e)
{
    int n = rows_of(s, &o->count, o->y.rows), cols = o->y.cols;
    float value[256];

    (void)e;
    for (int i = 0; i < 256; i++)
        value[i] = f8_e4m3_to_f32((uint8_t)i);
    for (int r = 0; r < n; r++) {
        float *y = cpu_row(&o->y, r), scale;
        const uint8_t *from = packed(o->from, o->off, cols, r);

        memcpy(&scale, from, sizeof(scale));
        for (int i = 0; i < cols; i++)
            y[i] = scale * value[from[sizeof(scale) + (size_t)i]];
    }
    return 0;
}

int cpu_op_scale_rows(struct stream *s, const struct op_scale_rows *o, struct err *e)
{
    (void)s, (void)e;
    for (int r = 0; r < o->y.rows; r++) {
        float *y = cpu_row(&o->y, r), g = 1.0f / (1.0f + expf(-*cpu_row(&o->gate, r)));

        for (int c = 0; c < o->y.cols; c++)
            y[c] *= g;
    }
    return 0;
}

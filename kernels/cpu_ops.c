/* kernels/cpu_ops.c - the small ops on the CPU, and their portable row kernels.
 *
 * Rows are shared out over the team in whole rows, so the thread count cannot touch a
 * result; a step of few rows runs in the caller alone, since waking a thread costs more
 * than the work. Matrix products are cpu_mat's, attention and rotary embedding have files
 * of their own. Index values come from the device: a wrong one is remembered on the
 * stream, its row becomes zeros, and sync reports it. */
#include "kernels/cpu_ops.h"

#include <math.h>
#include <string.h>

#include "base/team.h"
#include "kernels/cpu.h"

const struct cpu_kern *cpu_kern_get(enum cpu_isa isa)
{
    switch (isa) {
    case CPU_ISA_AVX512:
        return &cpu_kern_avx512;
    case CPU_ISA_AVX2:
        return &cpu_kern_avx2;
    default:
        return &cpu_kern_portable;
    }
}

void cpu_run(struct cpu_backend *cb, size_t n_elems, team_fn fn, void *arg)
{
    if (n_elems < CPU_TEAM_MIN)
        fn(arg, 0, 1);
    else
        team_run(cb->team, fn, arg);
}

void cpu_share(int n, int member, int n_members, int *ret_lo, int *ret_hi)
{
    *ret_lo = (int)((int64_t)n * member / n_members);
    *ret_hi = (int)((int64_t)n * (member + 1) / n_members);
}

/* ---- embed ---- */

struct embed_job {
    const struct op_embed *o;
    struct stream *s;
};

static void embed_row(const struct cpu_weight *w, int id, float *y)
{
    if (w->mat)
        cpu_mat_row(w->mat, id, y);
    else
        dtype_to_f32(w->type,
                     (const char *)w->rows +
                         (size_t)id * (size_t)dtype_row_bytes(w->type, w->base.cols),
                     y, w->base.cols);
}

static void embed_member(void *arg, int member, int n_members)
{
    const struct op_embed *o = ((struct embed_job *)arg)->o;
    const int32_t *ids = cpu_iview(&o->ids);
    float *y = cpu_view(&o->y);
    int lo, hi;

    cpu_share(o->y.rows, member, n_members, &lo, &hi);
    for (int r = lo; r < hi; r++) {
        float *row = y + (size_t)r * (size_t)o->y.ld;
        int id = ids[r] - o->first;

        if (id < 0 || id >= o->w->rows)
            memset(row, 0, (size_t)o->y.cols * sizeof(float));
        else
            embed_row((const struct cpu_weight *)o->w, id, row);
    }
}

int cpu_op_embed(struct stream *s, const struct op_embed *o, struct err *e)
{
    struct embed_job job = {o, s};
    const int32_t *ids = cpu_iview(&o->ids);

    (void)e;
    for (int r = 0; !o->part && r < o->y.rows; r++)
        if (ids[r] < o->first || ids[r] - o->first >= o->w->rows)
            cpu_stream_fault(s, "embed: id %d of row %d, the table has %d rows", ids[r],
                             r, o->w->rows);
    cpu_run(cpu_of(s), (size_t)o->y.rows * (size_t)o->y.cols, embed_member, &job);
    return 0;
}

/* ---- add ---- */

static void add_member(void *arg, int member, int n_members)
{
    const struct op_add *o = arg;
    const float *x = cpu_view(&o->x);
    float *y = cpu_view(&o->y);
    int lo, hi;

    cpu_share(o->x.rows, member, n_members, &lo, &hi);
    for (int r = lo; r < hi; r++)
        for (int i = 0; i < o->x.cols; i++)
            y[(size_t)r * (size_t)o->y.ld + (size_t)i] +=
                x[(size_t)r * (size_t)o->x.ld + (size_t)i];
}

int cpu_op_add(struct stream *s, const struct op_add *o, struct err *e)
{
    struct op_add copy = *o;

    (void)e;
    cpu_run(cpu_of(s), (size_t)o->x.rows * (size_t)o->x.cols, add_member, &copy);
    return 0;
}

/* ---- norm ---- */

struct norm_job {
    const struct op_norm *o;
    const struct cpu_kern *kern;
};

static void norm_member(void *arg, int member, int n_members)
{
    const struct norm_job *job = arg;
    const struct op_norm *o = job->o;
    const float *x = cpu_view(&o->x), *w = cpu_vec(o->w);
    float *y = cpu_view(&o->y);
    int lo, hi;

    cpu_share(o->x.rows, member, n_members, &lo, &hi);
    for (int r = lo; r < hi; r++)
        job->kern->norm_row(y + (size_t)r * (size_t)o->y.ld,
                            x + (size_t)r * (size_t)o->x.ld, w, o->x.cols, o->eps);
}

int cpu_op_norm(struct stream *s, const struct op_norm *o, struct err *e)
{
    struct norm_job job = {o, cpu_of(s)->kern};

    (void)e;
    cpu_run(cpu_of(s), (size_t)o->x.rows * (size_t)o->x.cols, norm_member, &job);
    return 0;
}

/* Halves of it: rows are few and short, so one portable form serves all. */
int cpu_op_squares(struct stream *s, const struct op_squares *o, struct err *e)
{
    (void)s;
    (void)e;
    for (int r = 0; r < o->x.rows; r++) {
        const float *x = cpu_view(&o->x) + (size_t)r * (size_t)o->x.ld;
        float sum = 0;

        for (int i = 0; i < o->x.cols; i++)
            sum += x[i] * x[i];
        cpu_view(&o->y)[(size_t)r * (size_t)o->y.ld] = o->weigh * sum;
    }
    return 0;
}

int cpu_op_norm_by(struct stream *s, const struct op_norm_by *o, struct err *e)
{
    const float *w = cpu_vec(o->w);

    (void)s;
    (void)e;
    for (int r = 0; r < o->x.rows; r++) {
        const float *x = cpu_view(&o->x) + (size_t)r * (size_t)o->x.ld;
        float *y = cpu_view(&o->y) + (size_t)r * (size_t)o->y.ld;
        float sum = cpu_view(&o->sums)[(size_t)r * (size_t)o->sums.ld];
        float scale = 1.0f / sqrtf(sum / (float)o->n + o->eps);

        for (int i = 0; i < o->x.cols; i++)
            y[i] = x[i] * scale * w[i];
    }
    return 0;
}

/* ---- gather ---- */

int cpu_op_gather(struct stream *s, const struct op_gather *o, struct err *e)
{
    const int32_t *idx = cpu_iview(&o->idx);
    const float *x = cpu_view(&o->x);
    float *y = cpu_view(&o->y);
    size_t bytes = (size_t)o->y.cols * sizeof(float);

    (void)e;
    for (int r = 0; r < o->y.rows; r++) {
        float *row = y + (size_t)r * (size_t)o->y.ld;
        if (idx[r] < 0 || idx[r] >= o->x.rows) {
            cpu_stream_fault(s, "gather: index %d of row %d, there are %d rows", idx[r],
                             r, o->x.rows);
            memset(row, 0, bytes);
            continue;
        }
        memcpy(row, x + (size_t)idx[r] * (size_t)o->x.ld, bytes);
    }
    return 0;
}

/* ---- products ---- */

int cpu_op_matmul(struct stream *s, const struct op_matmul *o, struct err *e)
{
    struct cpu_backend *cb = cpu_of(s);
    struct cpu_product p = {
        .isa = cb->isa,
        .n_rows = o->x.rows,
        .x = cpu_view(&o->x),
        .x_ld = o->x.ld,
        .n_out = o->n_out,
        .add = o->add,
        .scratch = cb->mat_scratch,
    };

    (void)e;
    if (!p.n_rows)
        return 0;
    for (int j = 0; j < o->n_out; j++) {
        p.m[j] = ((const struct cpu_weight *)o->w[j])->mat;
        p.bias[j] = cpu_vec(o->bias[j]);
        p.y[j] = cpu_view(&o->y[j]);
        p.y_ld[j] = o->y[j].ld;
    }
    cpu_product_run(cb->team, &p);
    return 0;
}

struct tail_job {
    const struct op_heads *o;
    int in, out;
};

static void tail_member(void *arg, int member, int n_members)
{
    const struct tail_job *j = arg;
    const struct op_heads *o = j->o;
    int lo, hi;

    cpu_share(o->x.rows, member, n_members, &lo, &hi);
    for (int r = lo; r < hi; r++) {
        const float *x = cpu_view(&o->x) + (size_t)r * (size_t)o->x.ld + j->in;
        float *y = cpu_view(&o->y) + (size_t)r * (size_t)o->y.ld + j->out;
        for (int h = 0; h < o->n_head; h++, x += o->x_step, y += o->y_step)
            memcpy(y, x, (size_t)o->tail * sizeof(float));
    }
}

int cpu_op_heads(struct stream *s, const struct op_heads *o, struct err *e)
{
    struct cpu_backend *cb = cpu_of(s);
    struct tail_job tail = {o, o->w[0]->cols, o->w[0]->rows};

    (void)e;
    if (!o->x.rows)
        return 0;
    for (int h = 0; h < o->n_head; h++) {
        struct cpu_product p = {
            .isa = cb->isa,
            .n_rows = o->x.rows,
            .x = cpu_view(&o->x) + h * o->x_step,
            .x_ld = o->x.ld,
            .n_out = 1,
            .m = {((const struct cpu_weight *)o->w[h])->mat},
            .y = {cpu_view(&o->y) + h * o->y_step},
            .y_ld = {o->y.ld},
            .scratch = cb->mat_scratch,
        };
        cpu_product_run(cb->team, &p);
    }
    if (o->tail)
        cpu_run(cb, (size_t)o->x.rows * (size_t)o->n_head * (size_t)o->tail, tail_member,
                &tail);
    return 0;
}

int cpu_op_glu(struct stream *s, const struct op_glu *o, struct err *e)
{
    struct cpu_backend *cb = cpu_of(s);
    struct cpu_product p = {
        .isa = cb->isa,
        .n_rows = o->x.rows,
        .x = cpu_view(&o->x),
        .x_ld = o->x.ld,
        .n_out = 2,
        .m = {((const struct cpu_weight *)o->gate)->mat,
              ((const struct cpu_weight *)o->up)->mat},
        .y = {cpu_view(&o->y)},
        .y_ld = {o->y.ld},
        .glu = 1,
        .scratch = cb->mat_scratch,
    };

    (void)e;
    if (p.n_rows)
        cpu_product_run(cb->team, &p);
    return 0;
}

/* ---- copies of KV blocks ---- */

int cpu_op_kv_copy(struct stream *s, const struct op_kv_copy *o, struct err *e)
{
    const int32_t *src = cpu_iview(&o->src), *dst = cpu_iview(&o->dst);
    const struct kv_arena *a = o->kv;

    (void)e;
    for (int i = 0; i < o->src.n; i++) {
        if (src[i] < 0 || src[i] >= a->n_blocks || dst[i] < 0 || dst[i] >= a->n_blocks) {
            cpu_stream_fault(s, "kv_copy: block %d to %d, the arena has %d", src[i],
                             dst[i], a->n_blocks);
            continue;
        }
        if (src[i] != dst[i])
            memcpy(cpu_kv_block(a, dst[i]), cpu_kv_block(a, src[i]),
                   a->layout.block_bytes);
    }
    return 0;
}

int cpu_op_kv_move(struct stream *s, const struct op_kv_move *o, struct err *e)
{
    size_t bytes = o->kv->layout.block_bytes;

    (void)s;
    (void)e;
    for (int i = 0; i < o->n; i++) {
        void *block = cpu_kv_block(o->kv, o->at[i].block);
        void *slot = (char *)o->host + (size_t)o->at[i].slot * bytes;

        memcpy(o->at[i].up ? block : slot, o->at[i].up ? slot : block, bytes);
    }
    return 0;
}

/* ---- host code in stream order ---- */

int cpu_op_host(struct stream *s, const struct op_host *o, struct err *e)
{
    void *mem[OP_HOST_BUFS] = {0};

    (void)s;
    for (int i = 0; i < o->n_buf; i++)
        mem[i] = ((struct cpu_dbuf *)o->buf[i])->mem + o->off[i];
    return o->fn(o, mem, e);
}

/* ---- portable row kernels ---- */

static void norm_row(float *y, const float *x, const float *w, int n, float eps)
{
    float sum = 0, scale;

    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

static void rotate(float *x, const float *cs, int rot, bool neox)
{
    int half = rot / 2;

    for (int j = 0; j < half; j++) {
        int a = neox ? j : 2 * j, b = neox ? j + half : 2 * j + 1;
        float xa = x[a], xb = x[b];
        x[a] = xa * cs[j] - xb * cs[half + j];
        x[b] = xa * cs[half + j] + xb * cs[j];
    }
}

static void to_half(enum dtype t, const float *x, uint16_t *out, int n)
{
    if (t == DT_BF16) {
        for (int i = 0; i < n; i++)
            out[i] = f32_to_bf16(x[i]);
        return;
    }
    for (int i = 0; i < n; i++) {
        float v = x[i] > 65504.0f ? 65504.0f : x[i];
        out[i] = f32_to_f16(v < -65504.0f ? -65504.0f : v);
    }
}

const struct cpu_kern cpu_kern_portable = {norm_row, rotate, to_half};

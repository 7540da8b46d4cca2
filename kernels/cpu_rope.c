/* kernels/cpu_rope.c - rotary embedding of q and k, and the store of k and v.
 *
 * The angle of pair j at position p is p * inv_freq[j], formed and reduced in double, so
 * that it is right to the last bit of f32 at position 131072 too. Sine and cosine depend
 * on the position alone and all layers of a step share the positions: the table of a row
 * is kept from one launch to the next and made anew only when the row's position, the
 * frequencies or the scale differ. It is a cache; results are the same without it.
 *
 * Work is shared out in whole rows: norm of each head where the model has it, rotate,
 * round to the arena's type, scatter into the block's order (kv_block.h). q stays f32. */
#include "kernels/cpu_rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/team.h"
#include "kernels/cpu.h"
#include "kernels/cpu_ops.h"
#include "kernels/cpu_span.h"
#include "kernels/kv_block.h"

/* What the table was made from. */
struct rope_key {
    uint64_t freq_id;
    int rot;
    float scale;
};

struct rope_cache {
    struct rope_key key;
    int max_rows, max_dim;
    int32_t *pos;  /* of each row when its table was made, -1 none */
    int32_t *want; /* of each row in this launch */
    int32_t *slot; /* where its K and V go: block * KV_BLOCK_TOK + place */
    float *cs;     /* [max_rows][max_dim] cosines, then sines */
};

void rope_cache_free(struct rope_cache *c)
{
    if (!c)
        return;
    free(c->pos);
    free(c->want);
    free(c->slot);
    free(c->cs);
    free(c);
}

struct rope_cache *rope_cache_new(const struct backend_caps *caps)
{
    struct rope_cache *c = xcalloc(1, sizeof(*c));
    size_t rows = (size_t)caps->max_rows, cells;

    c->max_rows = caps->max_rows;
    c->max_dim = caps->max_head_dim;
    if (size_mul(rows, (size_t)c->max_dim, &cells) < 0)
        cells = SIZE_MAX / sizeof(float);
    c->pos = try_malloc(rows * sizeof(*c->pos));
    c->want = try_malloc(rows * sizeof(*c->want));
    c->slot = try_malloc(rows * sizeof(*c->slot));
    c->cs = try_calloc(cells, sizeof(float));
    if (!c->pos || !c->want || !c->slot || !c->cs) {
        rope_cache_free(c);
        return NULL;
    }
    memset(c->pos, 0xff, rows * sizeof(*c->pos));
    return c;
}

size_t rope_cache_bytes(const struct rope_cache *c)
{
    return (size_t)c->max_rows * ((size_t)c->max_dim + 3) * sizeof(float);
}

static void rope_cache_begin(struct rope_cache *c, const struct op_rope_store *o)
{
    struct rope_key key = {((const struct cpu_weight *)o->inv_freq)->id, o->rot_dim,
                           o->attn_scale};

    if (c->key.freq_id == key.freq_id && c->key.rot == key.rot &&
        c->key.scale == key.scale)
        return;
    c->key = key;
    memset(c->pos, 0xff, (size_t)c->max_rows * sizeof(*c->pos));
}

static const float *rope_table(struct rope_cache *c, int row, const float *inv_freq)
{
    float *cs = c->cs + (size_t)row * (size_t)c->max_dim;
    int half = c->key.rot / 2;

    if (c->pos[row] == c->want[row])
        return cs;
    for (int j = 0; j < half; j++) {
        double angle = (double)c->want[row] * (double)inv_freq[j], sn, co;
        sincos(angle, &sn, &co);
        cs[j] = (float)(co * (double)c->key.scale);
        cs[half + j] = (float)(sn * (double)c->key.scale);
    }
    c->pos[row] = c->want[row];
    return cs;
}

struct rope_job {
    const struct op_rope_store *o;
    const struct cpu_kern *kern;
    struct rope_cache *cache;
};

static void scatter(const struct kv_layout *l, char *block, int layer, int head, int tok,
                    const uint16_t *k, const uint16_t *v)
{
    uint16_t *kb = (uint16_t *)(block + kv_head_off(l, layer, 0, head));
    uint16_t *vb = (uint16_t *)(block + kv_head_off(l, layer, 1, head));
    int pad = kv_pad_dim(l->head_dim);

    for (int i = 0; i < pad; i++)
        kb[kv_k_index(l->type, tok, i)] = k[i];
    for (int i = 0; v && i < pad; i++)
        vb[kv_v_index(l->type, pad, tok, i)] = v[i];
}

/* The same in F32: d values of each, zeros beyond. */
static void scatter_f32(const struct kv_layout *l, char *block, int layer, int head,
                        int tok, const float *k, const float *v)
{
    float *kb = (float *)(void *)(block + kv_head_off(l, layer, 0, head));
    float *vb = (float *)(void *)(block + kv_head_off(l, layer, 1, head));
    int pad = kv_pad_dim(l->head_dim);

    for (int i = 0; i < pad; i++)
        kb[kv_k_index(l->type, tok, i)] = i < l->head_dim ? k[i] : 0;
    for (int i = 0; v && i < pad; i++)
        vb[kv_v_index(l->type, pad, tok, i)] = i < l->head_dim ? v[i] : 0;
}

static void rope_head(const struct rope_job *job, float *x, const float *cs,
                      const float *norm)
{
    const struct op_rope_store *o = job->o;

    if (norm)
        job->kern->norm_row(x, x, norm, o->head_dim, o->eps);
    job->kern->rotate(x + o->rot_from, cs, o->rot_dim, o->neox);
}

static void rope_row(const struct rope_job *job, int row)
{
    const struct op_rope_store *o = job->o;
    const struct kv_layout *l = &o->kv->layout;
    const float *cs = rope_table(job->cache, row, cpu_vec(o->inv_freq));
    float *q = cpu_view(&o->q) + (size_t)row * (size_t)o->q.ld;
    const float *k = cpu_view(&o->k) + (size_t)row * (size_t)o->k.ld;
    const float *v = l->v_dim ? NULL : cpu_view(&o->v) + (size_t)row * (size_t)o->v.ld;
    int slot = job->cache->slot[row], d = o->head_dim;
    char *block = cpu_kv_block(o->kv, slot / KV_BLOCK_TOK);
    float kr[KV_MAX_HEAD_DIM];
    uint16_t kh[KV_MAX_HEAD_DIM], vh[KV_MAX_HEAD_DIM];

    memset(kh + d, 0, sizeof(*kh) * (size_t)(kv_pad_dim(d) - d));
    memset(vh + d, 0, sizeof(*vh) * (size_t)(kv_pad_dim(d) - d));
    for (int h = 0; h < o->n_head; h++)
        rope_head(job, q + h * d, cs, cpu_vec(o->q_norm));
    for (int h = 0; h < o->n_kv_head; h++) {
        memcpy(kr, k + h * d, (size_t)d * sizeof(float));
        rope_head(job, kr, cs, cpu_vec(o->k_norm));
        if (l->type == DT_F32) {
            scatter_f32(l, block, o->layer, h, slot % KV_BLOCK_TOK, kr,
                        v ? v + h * d : v);
            continue;
        }
        job->kern->to_half(l->type, kr, kh, d);
        if (v)
            job->kern->to_half(l->type, v + h * d, vh, d);
        scatter(l, block, o->layer, h, slot % KV_BLOCK_TOK, kh, v ? vh : NULL);
    }
}

static void rope_member(void *arg, int member, int n_members)
{
    const struct rope_job *job = arg;
    int lo, hi;

    cpu_share(job->o->span.n_rows, member, n_members, &lo, &hi);
    for (int r = lo; r < hi; r++)
        rope_row(job, r);
}

/* Positions and slots of the rows as the span has them. */
static bool place_span(struct stream *s, const struct op_rope_store *o,
                       struct rope_cache *c)
{
    const struct op_span *sp = &o->span;
    const int32_t *row = cpu_iview(&sp->row), *pos = cpu_iview(&sp->pos);

    if (!cpu_span_ok(s, sp, o->kv, CPU_SPAN_ROWS, 0))
        return false;
    for (int i = 0; i < sp->n_items; i++) {
        const int32_t *table = cpu_iview(&sp->table) + (size_t)i * (size_t)sp->max_blocks;
        for (int r = row[i]; r < row[i + 1]; r++) {
            int at = pos[i] + r - row[i];
            c->want[r] = at;
            c->slot[r] = table[at / KV_BLOCK_TOK] * KV_BLOCK_TOK + at % KV_BLOCK_TOK;
        }
    }
    return true;
}

/* As each row says itself. */
static bool place_rows(struct stream *s, const struct op_rope_store *o,
                       struct rope_cache *c)
{
    const int32_t *pos = cpu_iview(&o->row_pos), *slot = cpu_iview(&o->row_slot);

    for (int r = 0; r < o->span.n_rows; r++) {
        if (pos[r] < 0 || slot[r] < 0 || slot[r] / KV_BLOCK_TOK >= o->kv->n_blocks) {
            cpu_stream_fault(s, "row %d: position %d in slot %d, the arena has %d blocks",
                             r, pos[r], slot[r], o->kv->n_blocks);
            return false;
        }
        c->want[r] = pos[r];
        c->slot[r] = slot[r];
    }
    return true;
}

int cpu_op_rope_store(struct stream *s, const struct op_rope_store *o, struct err *e)
{
    struct cpu_backend *cb = cpu_of(s);
    struct rope_job job = {o, cb->kern, cb->rope};

    (void)e;
    if (!(o->row_pos.buf ? place_rows : place_span)(s, o, cb->rope))
        return 0;
    rope_cache_begin(cb->rope, o);
    cpu_run(cb, (size_t)o->span.n_rows * (size_t)(o->q.cols + o->k.cols + o->v.cols),
            rope_member, &job);
    return 0;
}

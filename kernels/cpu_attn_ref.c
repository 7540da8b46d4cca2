/* kernels/cpu_attn_ref.c - the portable attention kernel: the definition of a part.
 *
 * Scores in f32 in the log2 domain, one maximum per part, f32 weights, sums in order of
 * position. K and V are read element by element through kv_block.h, so it also serves any
 * head size and both KV types. */
#include <math.h>
#include <string.h>

#include "kernels/cpu_attn.h"
#include "kernels/kv_block.h"

static void pack(const float *q, float scale, int dim, int pad, uint32_t *out)
{
    (void)pad;
    for (int i = 0; i < dim; i++) {
        float f = q[i] * scale;
        memcpy(out + i, &f, sizeof(f));
    }
}

static float half_at(enum dtype t, const char *block, size_t index)
{
    uint16_t h;

    memcpy(&h, block + index * 2, sizeof(h));
    return t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static float score(const struct attn_part *p, const float *q, int pos)
{
    const char *block = p->k[pos / KV_BLOCK_TOK];
    float sum = 0;

    for (int i = 0; i < p->dim; i++)
        sum += q[i] * half_at(p->type, block, kv_k_index(p->type, pos % KV_BLOCK_TOK, i));
    return sum;
}

static void add_value(const struct attn_part *p, float *o, float w, int pos)
{
    const char *block = p->v[pos / KV_BLOCK_TOK];

    for (int i = 0; i < p->dim; i++)
        o[i] += w * half_at(p->type, block,
                            kv_v_index(p->type, p->pad, pos % KV_BLOCK_TOK, i));
}

static void one_row(struct attn_part *p, int a)
{
    const float *q = (const float *)(const void *)(p->q + (size_t)a * (size_t)p->pad);
    float *o = p->o + (size_t)a * (size_t)p->pad;
    float s[ATTN_SPLIT], max = -INFINITY, sum = 0;

    memset(o, 0, (size_t)p->pad * sizeof(float));
    for (int t = p->lo[a]; t < p->hi[a]; t++) {
        s[t] = score(p, q, t);
        max = s[t] > max ? s[t] : max;
    }
    for (int t = p->lo[a]; t < p->hi[a]; t++) {
        float w = exp2f(s[t] - max);
        sum += w;
        add_value(p, o, w, t);
    }
    p->m[a] = max;
    p->l[a] = sum;
}

static void part(struct attn_part *p)
{
    for (int a = 0; a < p->n_a; a++)
        one_row(p, a);
}

static void merge(float *m, float *l, float *o, float pm, float pl, const float *po,
                  int pad)
{
    float max = pm > *m ? pm : *m;
    float old = exp2f(*m - max), add = exp2f(pm - max);

    for (int i = 0; i < pad; i++)
        o[i] = o[i] * old + po[i] * add;
    *l = *l * old + pl * add;
    *m = max;
}

static void finish(float *y, const float *o, float l, int dim)
{
    for (int i = 0; i < dim; i++)
        y[i] = o[i] / l;
}

const struct attn_kern attn_kern_portable = {pack, part, merge, finish};

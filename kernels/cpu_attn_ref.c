/* kernels/cpu_attn_ref.c - the portable attention kernel: the definition of a part.
 *
 * Scores in f32 in the log2 domain, one maximum per part, f32 weights, sums in order of
 * position. A block is turned into f32 once for all A-rows of the call; elements are
 * found through kv_block.h, so it serves any head size and both KV types. */
#include "kernels/cpu_attn.h"

#include <math.h>
#include <string.h>

#include "kernels/kv_block.h"

struct work {
    float s[ATTN_A][ATTN_SPLIT];                 /* scores, then weights */
    float block[KV_BLOCK_TOK * KV_MAX_HEAD_DIM]; /* one head's K or V */
};

static void pack(const float *q, float scale, int dim, int pad, uint32_t *out)
{
    (void)pad;
    for (int i = 0; i < dim; i++) {
        float f = q[i] * scale;
        memcpy(out + i, &f, sizeof(f));
    }
}

/* The positions of a block that an A-row sees. */
static void seen(const struct attn_part *p, int a, int b, int *ret_lo, int *ret_hi)
{
    int start = b * KV_BLOCK_TOK, end = start + KV_BLOCK_TOK;

    *ret_lo = p->lo[a] > start ? p->lo[a] : start;
    *ret_hi = p->hi[a] < end ? p->hi[a] : end;
}

static bool any_sees(const struct attn_part *p, int b)
{
    int lo, hi;

    for (int a = 0; a < p->n_a; a++) {
        seen(p, a, b, &lo, &hi);
        if (lo < hi)
            return true;
    }
    return false;
}

static void scores(const struct attn_part *p, int b, struct work *w)
{
    dtype_to_f32(p->type, p->k[b], w->block, KV_BLOCK_TOK * p->pad);
    for (int a = 0; a < p->n_a; a++) {
        const float *q = (const float *)(const void *)(p->q + (size_t)a * (size_t)p->pad);
        int lo, hi;
        seen(p, a, b, &lo, &hi);
        for (int t = lo; t < hi; t++) {
            float sum = 0;
            for (int i = 0; i < p->dim; i++)
                sum += q[i] * w->block[kv_k_index(p->type, t % KV_BLOCK_TOK, i)];
            w->s[a][t] = sum;
        }
    }
}

static void weights(struct attn_part *p, int a, struct work *w)
{
    float max = -INFINITY, sum = 0;

    for (int t = p->lo[a]; t < p->hi[a]; t++)
        max = w->s[a][t] > max ? w->s[a][t] : max;
    for (int t = p->lo[a]; t < p->hi[a]; t++) {
        w->s[a][t] = exp2f(w->s[a][t] - max);
        sum += w->s[a][t];
    }
    p->m[a] = max;
    p->l[a] = sum;
}

static void values(const struct attn_part *p, int b, struct work *w)
{
    dtype_to_f32(p->type, p->v[b], w->block, KV_BLOCK_TOK * p->pad);
    for (int a = 0; a < p->n_a; a++) {
        float *o = p->o + (size_t)a * (size_t)p->pad;
        int lo, hi;
        seen(p, a, b, &lo, &hi);
        for (int t = lo; t < hi; t++)
            for (int i = 0; i < p->dim; i++)
                o[i] += w->s[a][t] *
                        w->block[kv_v_index(p->type, p->pad, t % KV_BLOCK_TOK, i)];
    }
}

/* The same where V is the beginning of K, in K's order. */
static void latent_values(const struct attn_part *p, int b, struct work *w)
{
    dtype_to_f32(p->type, p->k[b], w->block, KV_BLOCK_TOK * p->pad);
    for (int a = 0; a < p->n_a; a++) {
        float *o = p->o + (size_t)a * (size_t)p->pad;
        int lo, hi;
        seen(p, a, b, &lo, &hi);
        for (int i = 0; i < p->v_dim; i++)
            for (int t = lo; t < hi; t++)
                o[i] += w->s[a][t] * w->block[kv_k_index(p->type, t % KV_BLOCK_TOK, i)];
    }
}

static void part(struct attn_part *p)
{
    struct work w;

    memset(p->o, 0, (size_t)p->n_a * (size_t)p->pad * sizeof(float));
    for (int b = 0; b < ATTN_BLOCKS; b++)
        if (any_sees(p, b))
            scores(p, b, &w);
    for (int a = 0; a < p->n_a; a++)
        weights(p, a, &w);
    for (int b = 0; b < ATTN_BLOCKS; b++)
        if (any_sees(p, b) && p->v_dim)
            latent_values(p, b, &w);
        else if (any_sees(p, b))
            values(p, b, &w);
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

/* daemon/serve/sampler.c - logits of one row to a token.
 *
 * Greedy without bias and penalties is one pass (the maximum, then its first place).
 * Otherwise the logits are adjusted in a copy and one of two draws follows. Without top-k
 * and top-p every token keeps a weight exp((l - max) / T), summed in float64 in id order.
 * With them only the head of the distribution is sorted: top-k keeps the k best in a
 * heap; top-p alone gathers the tokens over a threshold that is lowered until they hold
 * enough of the mass, which is exact because whatever is outside is smaller than all that
 * is inside. Order: value down, then id up.
 *
 * Random numbers: Philox 4x32-10 with the seed as key and (choice, output position,
 * purpose) as counter, so there is no state to hand over. */
#include "daemon/serve/sampler.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/serve/rowvec.h"

/* Stands for the logarithm of zero where a finite number is due. */
static const float logprob_floor = -9999.0f;

struct cand {
    float v;
    int32_t id;
};

struct sampler {
    int n_vocab;
    float *adj;        /* adjusted logits, then weights */
    int32_t *count;    /* of output tokens; all zero between calls */
    uint8_t *seen;     /* in prompt or output; the same */
    struct cand *cand; /* head of the distribution */
};

struct sampler *sampler_new(int n_vocab)
{
    struct sampler *s = xcalloc(1, sizeof(*s));
    size_t n = (size_t)n_vocab;

    s->n_vocab = n_vocab;
    s->adj = xcalloc(n, sizeof(*s->adj));
    s->count = xcalloc(n, sizeof(*s->count));
    s->seen = xcalloc(n, sizeof(*s->seen));
    s->cand = xcalloc(n, sizeof(*s->cand));
    return s;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->adj);
    free(s->count);
    free(s->seen);
    free(s->cand);
    free(s);
}

static void philox_round(uint32_t c[4], const uint32_t k[2])
{
    uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t c1 = c[1], c3 = c[3];

    c[0] = (uint32_t)(b >> 32) ^ c1 ^ k[0];
    c[1] = (uint32_t)b;
    c[2] = (uint32_t)(a >> 32) ^ c3 ^ k[1];
    c[3] = (uint32_t)a;
}

double sampler_uniform(uint64_t seed, int32_t choice, int32_t out_pos, int32_t purpose)
{
    uint32_t c[4] = {(uint32_t)choice, (uint32_t)out_pos, (uint32_t)purpose, 0};
    uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    for (int r = 0; r < 10; r++) {
        philox_round(c, k);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    uint64_t bits = ((uint64_t)c[0] << 32 | c[1]) >> 11;
    return (double)bits * 0x1p-53;
}

/* a comes before b: larger, or equal and of lower id */
static bool before(struct cand a, struct cand b)
{
    return a.v != b.v ? a.v > b.v : a.id < b.id;
}

static int cmp_cand(const void *pa, const void *pb)
{
    const struct cand *a = pa, *b = pb;
    return before(*a, *b) ? -1 : before(*b, *a) ? 1 : 0;
}

/* Heap with the last in order on top. */
static void sift_down(struct cand *h, int n, int i)
{
    struct cand x = h[i];

    for (int c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && before(h[c], h[c + 1]))
            c++;
        if (!before(x, h[c]))
            break;
        h[i] = h[c];
    }
    h[i] = x;
}

/* The k first of x[0..n) in order into out; NaN and minus infinity are left out. Returns
 * how many there are. */
static int top_k(const float *x, int n, int k, struct cand *out)
{
    int m = 0, i = 0;

    for (; i < n && m < k; i++)
        if (x[i] > -INFINITY)
            out[m++] = (struct cand){x[i], i};
    for (int j = k / 2 - 1; m == k && j >= 0; j--)
        sift_down(out, k, j);
    /* ids rise, so an equal value never goes before what is there */
    for (; (i = rowvec_above(x, n, i, out[0].v)) < n; i++) {
        out[0] = (struct cand){x[i], i};
        sift_down(out, k, 0);
    }
    qsort(out, (size_t)m, sizeof(*out), cmp_cand);
    return m;
}

static float logprob_of(float logit, double lse)
{
    double lp = (double)logit - lse;
    return lp > (double)logprob_floor ? (float)lp : logprob_floor; /* NaN too */
}

static int score_row(struct sampler *s, const float *logits, float max, int32_t id,
                     int n_top, struct step_token *ret)
{
    ret->id = id;
    ret->logprob = 0;
    ret->n_top = 0;
    if (n_top < 0)
        return 0;
    double lse = (double)max + log(rowvec_weights(logits, s->n_vocab, max, 1, 0, NULL));
    ret->logprob = logprob_of(logits[id], lse);
    if (n_top > STEP_TOP_MAX)
        n_top = STEP_TOP_MAX;
    if (!n_top)
        return 0;
    ret->n_top = top_k(logits, s->n_vocab, n_top, s->cand);
    for (int i = 0; i < ret->n_top; i++) {
        ret->top_id[i] = s->cand[i].id;
        ret->top_logprob[i] = logprob_of(s->cand[i].v, lse);
    }
    return 0;
}

int sampler_score(struct sampler *s, const float *logits, int32_t id, int n_top,
                  struct step_token *ret)
{
    float max = rowvec_max(logits, s->n_vocab);

    if (id < 0 || id >= s->n_vocab || !isfinite(max))
        return -1;
    return score_row(s, logits, max, id, n_top, ret);
}

static bool valid_id(const struct sampler *s, int32_t id)
{
    return id >= 0 && id < s->n_vocab;
}

static void penalize(struct sampler *s, const struct step_sample *sp, int32_t id)
{
    float l = s->adj[id];

    l = l > 0 ? l / sp->repetition : l * sp->repetition;
    if (s->count[id])
        l -= sp->presence + sp->frequency * (float)s->count[id];
    s->adj[id] = l;
}

/* Bias and penalties into s->adj. */
static void adjust(struct sampler *s, const float *logits, const struct step_sample *sp,
                   const int32_t *hist, const struct step_bias *bias)
{
    memcpy(s->adj, logits, (size_t)s->n_vocab * sizeof(*s->adj));
    for (int i = 0; i < sp->n_bias; i++)
        if (valid_id(s, bias[i].id))
            s->adj[bias[i].id] += bias[i].bias;

    for (int i = sp->n_prompt; i < sp->n_hist; i++)
        if (valid_id(s, hist[i]))
            s->count[hist[i]]++;
    for (int i = 0; i < sp->n_hist; i++)
        if (valid_id(s, hist[i]) && !s->seen[hist[i]]) {
            s->seen[hist[i]] = 1;
            penalize(s, sp, hist[i]);
        }
    for (int i = 0; i < sp->n_hist; i++)
        if (valid_id(s, hist[i]))
            s->seen[hist[i]] = 0, s->count[hist[i]] = 0;
}

/* 1 / temperature; the largest float where that would be infinite. */
static float scale_of(const struct step_sample *sp)
{
    float scale = 1 / sp->temperature;
    return scale < FLT_MAX ? scale : FLT_MAX;
}

/* A draw over all tokens (min-p at most), in id order. */
static int32_t draw_all(struct sampler *s, const float *x, float max,
                        const struct step_sample *sp, double u)
{
    double sum = rowvec_weights(x, s->n_vocab, max, scale_of(sp), sp->min_p, s->adj);
    return rowvec_draw(s->adj, s->n_vocab, u * sum);
}

/* The head of the distribution, in order: enough tokens for `want` of the mass. */
static int gather_head(struct sampler *s, const float *x, float max, float scale,
                       double want)
{
    for (float depth = 4;; depth *= 2) {
        float under = depth < 100 ? max - depth / scale : -INFINITY;
        double mass = 0;
        int m = 0;
        for (int i = 0; (i = rowvec_above(x, s->n_vocab, i, under)) < s->n_vocab; i++) {
            s->cand[m++] = (struct cand){x[i], i};
            mass += (double)rowvec_weight(x[i], max, scale);
        }
        /* the largest itself is no more than `under` when the depth is lost in rounding
         */
        if ((m && mass >= want) || depth >= 100) {
            qsort(s->cand, (size_t)m, sizeof(*s->cand), cmp_cand);
            return m;
        }
    }
}

/* A draw among the first tokens by value, cut by top-k, top-p and min-p in turn. */
static int32_t draw_head(struct sampler *s, const float *x, float max,
                         const struct step_sample *sp, double u)
{
    float scale = scale_of(sp);
    double total = 0, sum = 0, cum = 0;
    int m, n = 0;

    if (sp->top_k > 0 && sp->top_k < s->n_vocab) {
        m = top_k(x, s->n_vocab, sp->top_k, s->cand);
        for (int i = 0; i < m; i++)
            total += (double)rowvec_weight(s->cand[i].v, max, scale);
    } else {
        total = rowvec_weights(x, s->n_vocab, max, scale, 0, NULL);
        m = gather_head(s, x, max, scale, (double)sp->top_p * total);
    }
    while (n < m && (n == 0 || sum < (double)sp->top_p * total))
        sum += (double)rowvec_weight(s->cand[n++].v, max, scale);
    for (; n > 1; n--) {
        float w = rowvec_weight(s->cand[n - 1].v, max, scale);
        if (w >= sp->min_p)
            break;
        sum -= (double)w;
    }
    for (int i = 0; i < n; i++) {
        cum += (double)rowvec_weight(s->cand[i].v, max, scale);
        if (cum > u * sum)
            return s->cand[i].id;
    }
    return s->cand[n - 1].id;
}

int sampler_pick(struct sampler *s, const float *logits, const struct step_sample *sp,
                 const int32_t *hist, const struct step_bias *bias, int n_top,
                 struct step_token *ret)
{
    float raw_max = rowvec_max(logits, s->n_vocab), max = raw_max;
    const float *x = logits;
    int32_t id;

    if (!isfinite(raw_max))
        return -1;
    if (sp->n_bias || sp->n_hist) {
        adjust(s, logits, sp, hist, bias);
        x = s->adj;
        max = rowvec_max(x, s->n_vocab);
        if (!isfinite(max))
            return -1;
    }
    if (sp->temperature <= 0 || sp->top_k == 1) {
        id = rowvec_equal(x, s->n_vocab, 0, max);
    } else {
        double u = sampler_uniform(sp->seed, sp->choice, sp->out_pos, 0);
        bool head = (sp->top_k > 0 && sp->top_k < s->n_vocab) || sp->top_p < 1;
        id = head ? draw_head(s, x, max, sp, u) : draw_all(s, x, max, sp, u);
    }
    return score_row(s, logits, raw_max, id, n_top, ret);
}

/* tests/model/routing.h - what the routers of a run chose, held against another run's.
 *
 * A run on one rank is recorded. Another run's rows, wherever they are computed, are
 * found in the record by what the router was given: the nearest of the layer, which must
 * be near. Where the other run chooses other experts, that is counted, and it is
 * explained only if the record's margin is no larger than the measured error of the
 * scores; forced, the record's choice and weights are put in its place.
 *
 * Margin of a row: how far the worst chosen expert is from the best one that is not, in
 * the scores that choose (logits; with sigmoid gating its values with their bias), and
 * the same of groups of experts where these are limited. */
#ifndef TESTS_MODEL_ROUTING_H
#define TESTS_MODEL_ROUTING_H

#include <pthread.h>

#include "base/mem.h"
#include "tests/model/rig.h"

enum { ROUTING_LAYERS = 8, ROUTING_ROWS = 512, ROUTING_EXPERTS = 64 };

struct routing_layer {
    int n;
    float *x, *logits, *weights; /* [ROUTING_ROWS, ..] */
    int32_t *ids;
    float *bias; /* [n_expert] or NULL */
};

struct routing {
    struct model_info info;
    struct routing_layer layers[ROUTING_LAYERS];
};

static inline void routing_clear(struct routing *r)
{
    for (int i = 0; i < ROUTING_LAYERS; i++) {
        struct routing_layer *l = &r->layers[i];
        free(l->x);
        free(l->logits);
        free(l->weights);
        free(l->ids);
        free(l->bias);
    }
    memset(r, 0, sizeof(*r));
}

static inline void routing_begin(struct routing *r, const char *path)
{
    struct err e = {0};
    struct model *m;

    memset(r, 0, sizeof(*r));
    rig_ok(model_open(path, &m, &e), &e);
    r->info = *model_info(m);
    const struct model_moe *x = &r->info.moe;
    assert_true(r->info.n_layer <= ROUTING_LAYERS && x->n_expert <= ROUTING_EXPERTS);
    for (int i = 0; i < r->info.n_layer && x->n_expert; i++) {
        struct routing_layer *l = &r->layers[i];
        const struct model_tensor *t = model_tensor(m, ROLE_CHOICE_BIAS, i);

        l->x = xcalloc(ROUTING_ROWS, sizeof(float) * (size_t)r->info.n_embd);
        l->logits = xcalloc(ROUTING_ROWS, sizeof(float) * (size_t)x->n_expert);
        l->weights = xcalloc(ROUTING_ROWS, sizeof(float) * (size_t)x->top_k);
        l->ids = xcalloc(ROUTING_ROWS, sizeof(int32_t) * (size_t)x->top_k);
        if (!t)
            continue;
        l->bias = xcalloc((size_t)x->n_expert, sizeof(float));
        dtype_to_f32(t->type, t->data, l->bias, x->n_expert);
    }
    model_free(m);
}

/* A forward_watch_fn; arg is the record. Of one rank. */
static inline void routing_record(void *arg, const struct forward_choice *c)
{
    struct routing *r = arg;
    struct routing_layer *l = &r->layers[c->layer];
    size_t n = (size_t)c->n_row, at = (size_t)l->n, k = (size_t)c->top_k;

    assert_true(l->x && l->n + c->n_row <= ROUTING_ROWS);
    memcpy(l->x + at * (size_t)c->n_embd, c->x, n * (size_t)c->n_embd * sizeof(float));
    memcpy(l->logits + at * (size_t)c->n_expert, c->logits,
           n * (size_t)c->n_expert * sizeof(float));
    memcpy(l->weights + at * k, c->weights, n * k * sizeof(float));
    memcpy(l->ids + at * k, c->ids, n * k * sizeof(int32_t));
    l->n += c->n_row;
}

/* ---- margins ---- */

/* What chooses. */
static inline void routing_scores(const struct routing *r, int layer, const float *logits,
                                  double *ret)
{
    const struct model_moe *x = &r->info.moe;
    const float *bias = r->layers[layer].bias;

    for (int i = 0; i < x->n_expert; i++)
        ret[i] = (x->score == MOE_SIGMOID ? 1 / (1 + exp(-(double)logits[i]))
                                          : (double)logits[i]) +
                 (bias ? (double)bias[i] : 0);
}

/* From the k-th best of n to the next; how many are better than v. */
static inline double routing_gap(const double *v, int n, int k)
{
    double last = INFINITY, next = -INFINITY;

    for (int i = 0; i < n; i++) {
        int better = 0;
        for (int j = 0; j < n; j++)
            better += v[j] > v[i] || (v[j] == v[i] && j < i);
        if (better == k - 1)
            last = v[i];
        if (better == k)
            next = v[i];
    }
    return last - next;
}

/* *ret_in: is expert i of a group that counts? */
static inline double routing_groups(const struct model_moe *x, const double *s,
                                    bool *ret_in)
{
    int each = x->n_expert / x->n_group;
    double value[ROUTING_EXPERTS];

    for (int g = 0; g < x->n_group; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (int i = g * each; i < (g + 1) * each; i++) {
            second = s[i] > best ? best : s[i] > second ? s[i] : second;
            best = s[i] > best ? s[i] : best;
        }
        value[g] = x->score == MOE_SIGMOID ? best + second : best;
    }
    for (int g = 0; g < x->n_group; g++) {
        int better = 0;
        for (int o = 0; o < x->n_group; o++)
            better += value[o] > value[g] || (value[o] == value[g] && o < g);
        for (int i = g * each; i < (g + 1) * each; i++)
            ret_in[i] = better < x->top_group;
    }
    return routing_gap(value, x->n_group, x->top_group);
}

static inline double routing_margin(const struct routing *r, int layer,
                                    const float *logits)
{
    const struct model_moe *x = &r->info.moe;
    double s[ROUTING_EXPERTS], margin = INFINITY, gap;
    bool in[ROUTING_EXPERTS];

    routing_scores(r, layer, logits, s);
    if (x->n_group > 1) {
        margin = routing_groups(x, s, in);
        for (int i = 0; i < x->n_expert; i++)
            s[i] = in[i] ? s[i] : -INFINITY;
    }
    gap = routing_gap(s, x->n_expert, x->top_k);
    return gap < margin ? gap : margin;
}

/* The smallest of the record. */
static inline double routing_smallest(const struct routing *r)
{
    double least = INFINITY;

    for (int i = 0; i < r->info.n_layer; i++)
        for (int row = 0; row < r->layers[i].n; row++) {
            double m = routing_margin(
                r, i, r->layers[i].logits + (size_t)row * (size_t)r->info.moe.n_expert);
            least = m < least ? m : least;
        }
    return least;
}

/* ---- another run ---- */

struct replay {
    const struct routing *of;
    bool force;
    pthread_mutex_t lock;
    int rows, lost, differ, unexplained; /* lost: of no recorded row */
    double error;                        /* of scores, the largest */
};

static inline int routing_find(const struct routing_layer *l, const float *x, int n,
                               double *ret_far)
{
    double least = INFINITY, norm = 0;
    int at = -1;

    for (int i = 0; i < n; i++)
        norm += (double)x[i] * x[i];
    for (int row = 0; row < l->n; row++) {
        const float *y = l->x + (size_t)row * (size_t)n;
        double d = 0;
        for (int i = 0; i < n && d < least; i++)
            d += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        if (d < least) {
            least = d;
            at = row;
        }
    }
    *ret_far = least / norm;
    return at;
}

static inline bool routing_same(const int32_t *a, const int32_t *b, int k)
{
    for (int i = 0; i < k; i++) {
        bool found = false;
        for (int j = 0; j < k; j++)
            found |= a[i] == b[j];
        if (!found)
            return false;
    }
    return true;
}

/* The largest error of a difference between two scores. */
static inline double routing_error(const struct routing *r, int layer, const float *a,
                                   const float *b)
{
    double s[2][ROUTING_EXPERTS], lo = INFINITY, hi = -INFINITY;

    routing_scores(r, layer, a, s[0]);
    routing_scores(r, layer, b, s[1]);
    for (int i = 0; i < r->info.moe.n_expert; i++) {
        double d = s[1][i] - s[0][i];
        lo = d < lo ? d : lo;
        hi = d > hi ? d : hi;
    }
    return hi - lo;
}

static inline void replay_row(struct replay *p, const struct forward_choice *c, int row)
{
    const struct routing *r = p->of;
    const struct routing_layer *l = &r->layers[c->layer];
    size_t k = (size_t)c->top_k, n = (size_t)c->n_expert;
    int32_t *ids = c->ids + (size_t)row * k;
    double far, error;
    int at = routing_find(l, c->x + (size_t)row * (size_t)c->n_embd, c->n_embd, &far);

    p->rows++;
    if (at < 0 || far > 0.05) {
        p->lost++;
        return;
    }
    const float *was = l->logits + (size_t)at * n, *is = c->logits + (size_t)row * n;
    error = routing_error(r, c->layer, was, is);
    p->error = error > p->error ? error : p->error;
    if (routing_same(ids, l->ids + (size_t)at * k, c->top_k))
        return;
    p->differ++;
    /* a group's value may be the sum of two scores; 1e-6: softmax in f32 */
    bool two = r->info.moe.n_group > 1 && r->info.moe.score == MOE_SIGMOID;
    if (!(routing_margin(r, c->layer, was) <= (two ? 2 : 1) * error + 1e-6))
        p->unexplained++;
    if (!p->force)
        return;
    memcpy(ids, l->ids + (size_t)at * k, k * sizeof(*ids));
    memcpy(c->weights + (size_t)row * k, l->weights + (size_t)at * k, k * sizeof(float));
}

/* A forward_watch_fn; arg is the struct replay, one of all ranks. */
static inline void replay_watch(void *arg, const struct forward_choice *c)
{
    struct replay *p = arg;

    pthread_mutex_lock(&p->lock);
    for (int row = 0; row < c->n_row; row++)
        replay_row(p, c, row);
    pthread_mutex_unlock(&p->lock);
}

#endif

/* topo/cost_step.c - one step of a model under a layout, op by op.
 *
 * A layer is a short list of ops; each takes its fixed time plus the longer of its
 * arithmetic and its bytes. Layers of one kind cost the same, so each kind is counted
 * once and multiplied. With stages, a batch passes them in pp micro-batches, and what is
 * returned is the time between two tokens of a sequence: that of all stages one after the
 * other, or, in a full pipeline, of the slowest one as often as there are micro-batches.
 * Arithmetic overlaps with its own bytes, and collectives with arithmetic by
 * COST_OVERLAP. */
#include "topo/cost.h"

#include <math.h>

#include "topo/formula.h"

/* What one rank sees of the step. */
struct rank_view {
    const struct cost_device *d;
    const struct shapes *s;
    const struct layout *l;
    const struct cost_links *k;
    const struct cost_work *w;
    double decode, prefill;  /* rows of its attention group and micro-batch */
    double rows, stage_rows; /* both; and of all attention groups together */
};

static double op_us(const struct rank_view *v, enum weight_format f, double rows,
                    double params, double bytes)
{
    double mul = 2 * rows * params / v->d->flops[f];

    return v->d->fixed_us[f] + 1e6 * fmax(mul, bytes / v->d->hbm_bps);
}

/* n matrices of one part that hold params parameters together. */
static double gemm_us(const struct rank_view *v, enum shape_part part, double params,
                      int n)
{
    enum weight_format f = v->s->format[part];
    double bytes = params * weight_format_bits(f) / 8;

    if (params <= 0)
        return 0;
    return op_us(v, f, v->rows, params, bytes) + (n - 1) * v->d->fixed_us[f];
}

static double mem_us(const struct rank_view *v, int n, double width)
{
    return n * (v->d->mem_us + v->rows * width * 4 / v->d->hbm_bps * 1e6);
}

/* ---- attention ---- */

static double decode_us(const struct rank_view *v, int layer)
{
    const struct shapes *s = v->s;
    enum attn_kind kind = s->layer[layer].attn;
    double ctx = kind == ATTN_WINDOW ? fmin(v->w->ctx, s->window) : v->w->ctx;
    double kv = shapes_kv_token(s, layer, v->w->kv, v->l->tp), read, mul;

    if (v->decode <= 0)
        return 0;
    if (kind == ATTN_STATE)
        return v->d->state_us +
               v->decode * 2 * shapes_state(s, layer, v->l->tp) / v->d->hbm_bps * 1e6;
    if (kind == ATTN_LATENT && s->index_topk && ctx > s->index_topk) {
        read = s->index_topk * kv + (ctx - s->index_topk) * s->index_dim;
        ctx = s->index_topk;
    } else {
        read = ctx * kv;
    }
    read = v->decode * read / v->l->cp / v->d->hbm_bps;
    if (kind != ATTN_LATENT)
        return v->d->attn_us + 1e6 * read;
    mul = v->decode * ctx / v->l->cp * 2.0 * s->n_head / v->l->tp *
          (2.0 * s->kv_lora + s->rope_dim) / v->d->mla_flops;
    return v->d->mla_us + 1e6 * fmax(read, mul);
}

/* Causal: a token sees half of its prompt on average. */
static double prefill_us(const struct rank_view *v, int layer)
{
    const struct shapes *s = v->s;
    enum attn_kind kind = s->layer[layer].attn;
    double seen = v->w->prompt / 2, heads = 1.0 * s->n_head / v->l->tp, wide;

    if (v->prefill <= 0)
        return 0;
    if (kind == ATTN_STATE)
        return v->d->state_us + 1e6 * v->prefill * 8.0 * s->kda_heads / v->l->tp *
                                    s->kda_dim * s->kda_dim / v->d->attn_flops;
    if (kind == ATTN_WINDOW)
        seen = fmin(seen, s->window);
    if (kind == ATTN_LATENT && s->index_topk)
        seen = fmin(seen, s->index_topk);
    wide = kind == ATTN_LATENT ? s->nope_dim + s->rope_dim + s->v_dim : 2.0 * s->head_dim;
    return v->d->attn_us + 1e6 * v->prefill * seen * 2 * heads * wide / v->d->attn_flops;
}

/* What CP moves in a layer: K and V of the others (ring), or heads both ways. */
static double cp_us(const struct rank_view *v, int layer)
{
    const struct shapes *s = v->s;
    const struct cost_group *g = &v->k->cp;
    double kv = v->prefill * v->l->cp * shapes_kv_token(s, layer, v->w->kv, v->l->tp);
    double q = v->prefill * s->n_head * s->head_dim / v->l->tp * 2;

    if (v->l->cp == 1)
        return 0;
    if (v->prefill <= 0) /* decode: partial outputs are merged */
        return cost_all_reduce(v->d, g,
                               v->decode * s->n_head / v->l->tp * s->head_dim * 4, NULL);
    if (v->l->cp_method == CP_ULYSSES)
        return 2 * cost_all_gather(v->d, g, q + kv / v->l->cp);
    return cost_all_gather(v->d, g, kv);
}

static int attn_gemms(const struct shapes *s, enum attn_kind kind)
{
    if (kind == ATTN_LATENT)
        return s->index_heads ? 7 : 5; /* q_a with kv_a, q_b, both halves of kv_b, o */
    return kind == ATTN_STATE ? 4 : 2; /* q, k, v and gates as one or two; o */
}

/* ---- experts ---- */

/* Experts of the busiest rank that n assignments touch: the mean, and the spread of a
 * small number of them over the ranks. */
static double touched(const struct shapes *s, int ep, double n)
{
    double local = 1.0 * s->n_expert / ep;
    double mean = local * (1 - pow(1 - 1.0 / s->n_expert, n));

    return fmin(local,
                mean + (ep > 1 ? sqrt(2 * mean * (1 - mean / local) * log(ep)) : 0));
}

static double experts_us(const struct rank_view *v)
{
    const struct shapes *s = v->s;
    enum weight_format f = s->format[PART_EXPERTS];
    double n = v->stage_rows * s->topk;
    double one = 3.0 * s->expert_hidden * s->moe_inter / v->l->etp;
    double bytes = touched(s, v->l->ep, n) * one * weight_format_bits(f) / 8;
    double mul = 2 * n / v->l->ep * v->w->skew * one / v->d->flops[f];

    return v->d->moe_us + 1e6 * fmax(mul, bytes / v->d->hbm_bps);
}

/* Bytes of an element on its way to experts: quantised before where they multiply so. */
static double sent_bytes(enum weight_format f)
{
    bool narrow = f == FORMAT_FP8 || f == FORMAT_FP8_BLOCK || f == FORMAT_NVFP4;

    return narrow ? weight_format_bits(f) / 8 : 2;
}

/* Ranks of one attention group hold the same rows, so that with adp 1 the experts' sum is
 * the layer's own all-reduce; else rows travel to their experts and back. Where an expert
 * is cut over more ranks than tp, these gather the rows of all their attention groups and
 * scatter the sums. */
static double moe_comm_us(const struct rank_view *v)
{
    const struct shapes *s = v->s;
    double rows = v->rows / v->l->tp * v->w->skew;
    double copies = fmin(s->topk, v->l->ep);
    double wide = sent_bytes(s->format[PART_EXPERTS]), us;

    if (v->l->adp == 1 && v->l->cp == 1)
        return cost_all_reduce(v->d, &v->k->tp, v->rows * s->hidden * 2, NULL);
    us = cost_all_to_all(v->d, &v->k->ep, rows, copies, s->expert_hidden * wide, false) +
         cost_all_to_all(v->d, &v->k->ep, rows, copies, s->expert_hidden * 2.0, true) +
         cost_all_gather(v->d, &v->k->tp, v->rows * s->hidden * 2);
    if (v->l->etp > v->l->tp)
        us += 2 * cost_all_gather(v->d, &v->k->etp,
                                  v->rows / v->l->tp * v->l->etp * s->expert_hidden * 2);
    return us;
}

/* ---- a layer, a step ---- */

static void add_layer(const struct rank_view *v, int layer, double times, double *us)
{
    const struct shapes *s = v->s;
    const struct layer_shape *y = &s->layer[layer];
    int tp = v->l->tp, etp = v->l->etp;

    us[COST_GEMM] +=
        times * gemm_us(v, PART_ATTN, shapes_rank_params(s, layer, PART_ATTN, tp, etp),
                        attn_gemms(s, y->attn));
    us[COST_ATTENTION] += times * (decode_us(v, layer) + prefill_us(v, layer));
    us[COST_CP] += times * cp_us(v, layer);
    us[COST_TP] +=
        times * cost_all_reduce(v->d, &v->k->tp, v->rows * s->hidden * 2, NULL);
    us[COST_SMALL] += times * mem_us(v, 4, s->hidden);
    if (!y->sparse) {
        us[COST_GEMM] +=
            times *
            gemm_us(v, PART_MLP, shapes_rank_params(s, layer, PART_MLP, tp, etp), 2);
        us[COST_TP] +=
            times * cost_all_reduce(v->d, &v->k->tp, v->rows * s->hidden * 2, NULL);
        return;
    }
    for (int p = PART_SHARED; p <= PART_LATENT; p++)
        if (p != PART_EXPERTS)
            us[COST_GEMM] +=
                times * gemm_us(v, (enum shape_part)p,
                                shapes_rank_params(s, layer, (enum shape_part)p, tp, etp),
                                p == PART_ROUTER ? 1 : 2);
    us[COST_EXPERTS] += times * experts_us(v);
    us[v->l->adp * v->l->cp > 1 ? COST_EP : COST_TP] += times * moe_comm_us(v);
}

/* Microseconds of all parts, those of collectives as far as nothing hides them. */
static double sum_of(const double *us)
{
    double sum = 0;

    for (int p = 0; p < COST_PART_COUNT; p++) {
        bool moves = p == COST_TP || p == COST_CP || p == COST_EP || p == COST_PP;
        sum += us[p] * (moves ? 1 - COST_OVERLAP : 1);
    }
    return sum;
}

/* Adds every kind of layer as often as the model has it, and gives what one of each kind
 * takes. */
static void add_layers(const struct rank_view *v, double *us, double one[ATTN_COUNT][2])
{
    int count[ATTN_COUNT][2] = {{0}}, example[ATTN_COUNT][2];

    for (int i = 0; i < v->s->n_layer; i++) {
        const struct layer_shape *y = &v->s->layer[i];
        example[y->attn][y->sparse] = i;
        count[y->attn][y->sparse]++;
    }
    for (int a = 0; a < ATTN_COUNT; a++)
        for (int b = 0; b < 2; b++) {
            double layer[COST_PART_COUNT] = {0};
            if (!count[a][b])
                continue;
            add_layer(v, example[a][b], 1, layer);
            one[a][b] = sum_of(layer);
            for (int p = 0; p < COST_PART_COUNT; p++)
                us[p] += count[a][b] * layer[p];
        }
}

/* The stage that the others wait for: layers do not divide evenly, the last has the head.
 */
static double slowest_stage(const struct rank_view *v, double one[ATTN_COUNT][2],
                            double head, double send)
{
    double most = 0;

    for (int stage = 0; stage < v->l->pp; stage++) {
        int first, n = layout_layers(v->l, v->s, stage, &first);
        double t = stage == v->l->pp - 1 ? head : send * (1 - COST_OVERLAP);
        for (int i = first; i < first + n; i++)
            t += one[v->s->layer[i].attn][v->s->layer[i].sparse];
        most = fmax(most, t);
    }
    return most;
}

void cost_step(const struct cost_device *d, const struct shapes *s,
               const struct layout *l, const struct cost_links *k,
               const struct cost_work *w, struct cost_step *ret)
{
    struct rank_view v = {d, s, l, k, w, 0, 0, 0, 0};
    enum weight_format head = s->format[PART_HEAD];
    double n_head = 1.0 * s->hidden * s->vocab / l->tp, outs, send = 0, batches;
    double one[ATTN_COUNT][2] = {{0}};

    *ret = (struct cost_step){.total_us = 0};
    v.decode = w->decode > 0 ? fmax(w->decode / l->adp / l->pp, 1) : 0;
    v.prefill = w->prefill / l->adp / l->cp / l->pp;
    v.rows = v.decode + v.prefill;
    v.stage_rows = (w->decode + w->prefill) / l->pp;
    add_layers(&v, ret->us, one);
    outs = v.decode + (w->prefill > 0);
    ret->us[COST_HEAD] =
        op_us(&v, head, outs, n_head, n_head * weight_format_bits(head) / 8) +
        cost_all_gather(d, &k->tp, outs * s->vocab * 2);
    if (l->pp > 1)
        send = cost_send(d, k->pp_bps, k->pp_measured, v.rows * s->hidden * 2 / l->tp);
    ret->us[COST_PP] = (l->pp - 1) * send;
    ret->total_us = sum_of(ret->us);
    /* as many micro-batches as there is work for; a full pipeline goes at the pace of its
     * slowest stage */
    batches = w->prefill > 0 ? l->pp : fmin(l->pp, ceil(w->decode / l->adp));
    if (l->pp > 1)
        ret->total_us = fmax(ret->total_us,
                             batches * slowest_stage(&v, one, ret->us[COST_HEAD], send));
    for (int p = 0; p < COST_PART_COUNT; p++)
        if (ret->us[p] > ret->us[ret->bottleneck])
            ret->bottleneck = (enum cost_part)p;
}

const char *cost_part_name(enum cost_part p)
{
    static const char *const names[] = {
#define X(id, name) name,
        COST_PART_MAP(X)
#undef X
    };

    return names[p];
}

double cost_power_skew(const struct shapes *s, int ep, double alpha)
{
    double sum = 0, hot;

    if (!s->n_expert || ep <= 1)
        return 1;
    for (int i = 1; i <= s->n_expert; i++)
        sum += pow(i, -alpha);
    hot = fmin(1 / sum, 1.0 / s->topk);
    return ep * (hot + (1 - hot) * (1.0 * s->n_expert / ep - 1) / (s->n_expert - 1));
}

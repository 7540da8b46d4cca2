/* topo/ledger.c - counts the fullest device, names what is exceeded and the cure.
 *
 * Cures follow the chapter's mapping: a layer too wide asks for TP, too many layers for
 * PP, too many experts for EP, a context too long for CP, too many sequences for DP (or
 * attention groups), activations for SP or a smaller step. Which one applies is decided
 * in that order of what cannot be had otherwise: first what is there before any request
 * (weights), then the step, then KV. */
#include "topo/ledger.h"

#include <math.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"

#define GB 1e9

/* Planning constants. CPU: its matrix kernels keep a row in three forms, int8 with five
 * f32 for 32 elements, bf16 and f32, on huge pages, and its attention partial results of
 * 4 MiB. GPU: 3.5 GB beside the model and 392 MB of communicators, as aiconfigurator
 * states for H200 and GB200; the margin is ours. */
static const struct {
    double context, comm, margin, work_elem, work_fixed, page;
    int act_bytes, budget;
    enum weight_format kv;
} defaults[] = {
    {3.5e9, 0.392e9, 0.05, 0, 0, 0, 2, 8192, FORMAT_BF16},
    {0, 0, 0.05, 7.625, 4.5e6, 2 << 20, 4, 512, FORMAT_BF16},
};

/* The CPU engine has buffers for the worst: all rows at the experts of one rank. */
#define CPU_SKEW 1e9

void ledger_ask_defaults(struct ledger_ask *a, double device_bytes, bool is_cpu)
{
    *a = (struct ledger_ask){.device_bytes = device_bytes,
                             .ctx = 4096,
                             .seqs = 1,
                             .budget = defaults[is_cpu].budget,
                             .kv = defaults[is_cpu].kv,
                             .act_bytes = defaults[is_cpu].act_bytes,
                             .skew = is_cpu ? CPU_SKEW : 1,
                             .work_elem_bytes = defaults[is_cpu].work_elem,
                             .work_fixed_bytes = defaults[is_cpu].work_fixed,
                             .page_bytes = defaults[is_cpu].page,
                             .context_bytes = defaults[is_cpu].context,
                             .comm_fixed_bytes = defaults[is_cpu].comm,
                             .margin = defaults[is_cpu].margin};
}

static int int_max(int a, int b) { return a > b ? a : b; }

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

static double part_bytes(const struct shapes *s, enum shape_part p, double params)
{
    return params * weight_format_bits(s->format[p]) / 8;
}

/* At most as many as the rank has slots in the layer. */
static double moving(const struct shapes *s, const struct layout *l,
                     const struct ledger_ask *a)
{
    return fmin(a->moving, ceil(1.0 * s->n_expert / l->ep) + 1.0 * a->slots / l->ep);
}

static void count_weights(const struct shapes *s, const struct layout *l,
                          const struct ledger_ask *a, struct ledger *g)
{
    int first, n = layout_layers(l, s, g->stage, &first);
    bool is_last = g->stage == l->pp - 1;

    for (int i = first; i < first + n; i++)
        for (int p = PART_ATTN; p < PART_COUNT; p++) {
            /* beside whole experts the shared one is whole too: it sees a rank's rows */
            int tp = p == PART_SHARED && l->etp == 1 ? 1 : l->tp;
            double b =
                part_bytes(s, (enum shape_part)p,
                           shapes_rank_params(s, i, (enum shape_part)p, tp, l->etp));
            if (p == PART_EXPERTS && s->n_expert) {
                g->slots += b / s->n_expert * a->slots / l->ep;
                g->moving = fmax(g->moving, b / s->n_expert * moving(s, l, a));
                b *= ceil(1.0 * s->n_expert / l->ep) / s->n_expert;
            }
            g->weights[p] += b;
        }
    if (g->stage == 0)
        g->weights[PART_EMBED] =
            part_bytes(s, PART_EMBED, shapes_rank_params(s, 0, PART_EMBED, l->tp, 1));
    if (is_last && !(s->tied && l->pp == 1))
        g->weights[PART_HEAD] =
            part_bytes(s, PART_HEAD, shapes_rank_params(s, 0, PART_HEAD, l->tp, 1));
    for (int p = 0; p < PART_COUNT; p++)
        g->weights_all += g->weights[p];
}

static void count_kv(const struct shapes *s, const struct layout *l,
                     const struct ledger_ask *a, struct ledger *g)
{
    int first, n = layout_layers(l, s, g->stage, &first);
    int u = layout_cp_heads(l);
    double tokens = ceil_div(a->ctx, l->cp / u);

    g->seqs = ceil_div(a->seqs, l->adp);
    for (int i = first; i < first + n; i++) {
        enum attn_kind k = s->layer[i].attn;
        double one = shapes_kv_token(s, i, a->kv, l->tp);
        bool plain = k == ATTN_FULL || k == ATTN_WINDOW;
        double apart = plain ? fmax(fmin(u, shapes_kv_heads(s, l->tp)), 1) : 1;
        double seq = one / apart * (k == ATTN_WINDOW ? fmin(tokens, s->window) : tokens) +
                     shapes_state(s, i, l->tp) + shapes_conv_state(s, i, l->tp);
        g->kv[k] += seq * g->seqs;
        g->kv_seq += seq;
        g->kv_token += k == ATTN_WINDOW ? 0 : one;
    }
    g->kv_all = g->kv_seq * g->seqs;
}

/* Elements of a row between the norms of one layer: q, k, v and what attention gives. */
static double attn_width(const struct shapes *s, int layer, int tp)
{
    double heads = 1.0 * s->n_head / tp;

    switch (s->layer[layer].attn) {
    case ATTN_LATENT:
        return heads * (s->nope_dim + s->rope_dim + s->v_dim + 2.0 * s->kv_lora) +
               s->q_lora + s->kv_lora + s->rope_dim;
    case ATTN_STATE:
        return 5.0 * s->kda_heads / tp * s->kda_dim;
    default:
        return 2 * heads * s->head_dim + 2.0 * shapes_kv_heads(s, tp) * s->head_dim;
    }
}

static double round_up(double bytes, double page)
{
    return page > 0 ? ceil(bytes / page) * page : bytes;
}

/* What the heads of a tp rank take at attention, in elements of a row: q on its way to
 * the ranks of its heads and as it attends, K and V, the values, and what goes home. */
struct heads_row {
    double way, q, kv, values, home;
};

static struct heads_row heads_row(const struct shapes *s, const struct layout *l, int u)
{
    double n = 1.0 * s->n_head / l->tp, each = s->head_dim;
    double latent = s->kv_lora + s->rope_dim;

    if (!s->kv_lora)
        return (struct heads_row){n * each, n * each,
                                  2 * fmax(shapes_kv_heads(s, l->tp) / u, 1) * each,
                                  n * each, n * each};
    return (struct heads_row){n * (s->nope_dim + s->rope_dim), n * latent, latent,
                              n * s->kv_lora, n * s->v_dim};
}

/* What ranks that share rows hold for a layer's attention (forward_cp.c): rows for the
 * heads of others and back; parts of all R ranks, q of all, and blocks of KV that come,
 * in f32 and as KV is. */
static double cp_buffers(const struct shapes *s, const struct layout *l,
                         const struct ledger_ask *a, const struct ledger *g, double outs,
                         int n_layer)
{
    int u = layout_cp_heads(l), r = l->cp / u;
    struct heads_row w = heads_row(s, l, u);
    double b = a->budget, f = outs * 2 * fmax(s->hidden, w.home);

    if (l->cp == 1)
        return 0;
    if (u > 1)
        f += 2 * b * (w.way / u + w.kv) + 2 * b * w.home / u;
    if (r > 1)
        f += (r + 1) * b * (w.values + 2.0 * s->n_head / l->tp) / u + 2 * b * w.q / u;
    return 4 * f +
           (r > 1 ? g->kv_all / n_layer * (l->cp_method == CP_GATHER ? 1 + r : 2) : 0);
}

static void count_steps(const struct shapes *s, const struct layout *l,
                        const struct ledger_ask *a, struct ledger *g)
{
    int first, n = layout_layers(l, s, g->stage, &first);
    /* those of one step may all have their positions on one rank */
    double rows = ceil_div(a->budget, layout_cp_heads(l)), h = s->hidden, attn = 0;
    double all = 1.0 * a->budget * l->adp, mlp = 0; /* tokens of a stage's step */
    double local = s->n_expert ? 1.0 * (s->n_expert + a->slots) / l->ep : 0;
    double outs =
        g->stage == l->pp - 1 ? (a->outs ? a->outs : fmin(g->seqs, a->budget)) : 0;
    double residuals = s->attn_res_block ? 1.0 * s->n_layer / s->attn_res_block : 0;
    double routed = 0;

    for (int i = first; i < first + n; i++) {
        bool sparse = s->layer[i].sparse;
        attn = fmax(attn, attn_width(s, i, l->tp));
        mlp = fmax(mlp, 1.0 * (sparse ? s->shared_inter : s->inter) / l->tp);
        if (sparse)
            routed = fmin(all * s->topk / l->ep * a->skew, all * fmin(s->topk, local));
    }
    g->activations = a->act_bytes * rows *
                         ((l->sp ? h / l->tp : h) * (1 + residuals) + h + attn + mlp) +
                     outs * (a->act_bytes * h + 4.0 * s->vocab / l->tp);
    if (l->tp > 1) /* the whole rows, gathered for the sampler */
        g->activations += outs * 4.0 * s->vocab;
    g->workspace =
        a->work_fixed_bytes +
        round_up(rows * fmax(h, fmax(mlp, attn / 2)) * a->work_elem_bytes, a->page_bytes);
    g->routed =
        a->act_bytes * routed * (2.0 * s->expert_hidden + 2.0 * s->moe_inter / l->etp);
    if (layout_ranks(l) == 1)
        return;
    g->comm =
        a->comm_fixed_bytes + cp_buffers(s, l, a, g, outs, n) +
        (l->tp > 1 ? a->act_bytes * rows * h : 0) +
        (l->pp > 1 ? 2 * a->act_bytes * rows * h : 0) +
        (l->ep > 1 && routed > 0 ? 2 * a->act_bytes * rows * s->topk * s->expert_hidden
                                 : 0);
}

/* What one layer without its routed experts weighs here, at most. */
static double widest_layer(const struct shapes *s, const struct layout *l)
{
    double most = 0;

    for (int i = 0; i < s->n_layer; i++) {
        double b = 0;
        for (int p = PART_ATTN; p < PART_COUNT; p++)
            if (p != PART_EXPERTS)
                b += part_bytes(s, (enum shape_part)p,
                                shapes_rank_params(s, i, (enum shape_part)p, l->tp, 1));
        most = fmax(most, b);
    }
    return most;
}

static void say_weights(const struct shapes *s, const struct layout *l, double room,
                        struct ledger *g)
{
    double experts = g->weights[PART_EXPERTS] + g->slots;
    double rest = g->weights_all - g->weights[PART_EXPERTS];

    if (widest_layer(s, l) > room) {
        g->limit = LEDGER_LAYER;
        snprintf(g->why, sizeof(g->why),
                 "one layer's weights of %.2f GB exceed the %.2f GB "
                 "left on a device",
                 widest_layer(s, l) / GB, room / GB);
        snprintf(g->cure, sizeof(g->cure), "split inside the layer: raise tp over %d",
                 l->tp);
    } else if (experts > rest && rest < room) {
        g->limit = LEDGER_EXPERTS;
        snprintf(g->why, sizeof(g->why),
                 "routed experts of %.2f GB a device exceed the "
                 "%.2f GB that the other weights leave",
                 experts / GB, (room - rest) / GB);
        snprintf(g->cure, sizeof(g->cure),
                 "split the experts: ep x etp of at least %.0f "
                 "(now %d)",
                 ceil(l->ep * l->etp * experts / (room - rest)), l->ep * l->etp);
    } else {
        g->limit = LEDGER_DEPTH;
        snprintf(g->why, sizeof(g->why),
                 "the weights of a stage, %.2f GB, exceed the %.2f "
                 "GB left on a device",
                 (g->weights_all + g->slots) / GB, room / GB);
        snprintf(g->cure, sizeof(g->cure),
                 "split between layers: pp of at least %.0f (now "
                 "%d), or a wider tp",
                 ceil(l->pp * (g->weights_all + g->slots) / room), l->pp);
    }
}

static void say_kv(const struct shapes *s, const struct layout *l, double room,
                   struct ledger *g)
{
    bool heads = g->kv[ATTN_FULL] > 0 && l->tp < s->n_kv;

    if (g->kv_seq > room) {
        g->limit = LEDGER_CONTEXT;
        snprintf(g->why, sizeof(g->why),
                 "one sequence's KV of %.2f GB exceeds the %.2f GB "
                 "left on a device",
                 g->kv_seq / GB, room / GB);
        if (s->kda_heads)
            snprintf(g->cure, sizeof(g->cure), "a shorter context, or more stages (pp)");
        else
            snprintf(g->cure, sizeof(g->cure), "split the context: cp of at least %.0f%s",
                     ceil(l->cp * g->kv_seq / room),
                     heads ? ", or a wider tp while KV heads divide" : "");
        return;
    }
    g->limit = LEDGER_SEQUENCES;
    snprintf(g->why, sizeof(g->why),
             "KV of %d sequences, %.2f GB, exceeds the %.2f GB left "
             "on a device: %d would fit",
             g->seqs, g->kv_all / GB, room / GB, g->max_seqs / l->adp);
    snprintf(g->cure, sizeof(g->cure), "split the requests: %.0f %s",
             ceil(1.0 * g->seqs * l->adp / int_max(g->max_seqs, 1)),
             s->n_expert ? "times the attention groups (adp) or replicas" : "replicas");
}

static void judge(const struct shapes *s, const struct layout *l, struct ledger *g)
{
    double room = g->have - g->context - g->margin;
    double step = g->activations + g->workspace + g->routed + g->comm + g->moving;
    double left = room - g->weights_all - g->slots - step;

    g->max_seqs =
        left > 0 && g->kv_seq > 0 ? (int)fmin(left / g->kv_seq, 1 << 24) * l->adp : 0;
    if (room <= 0) {
        g->limit = LEDGER_FIXED;
        snprintf(g->why, sizeof(g->why),
                 "the runtime's %.2f GB and the margin of %.2f GB "
                 "leave nothing of %.2f GB",
                 g->context / GB, g->margin / GB, g->have / GB);
        snprintf(g->cure, sizeof(g->cure), "a device with more memory");
    } else if (g->weights_all + g->slots > room) {
        say_weights(s, l, room, g);
    } else if (left <= 0) {
        g->limit = LEDGER_ACTIVATIONS;
        snprintf(g->why, sizeof(g->why),
                 "activations, routed rows and buffers of a step, "
                 "%.2f GB, exceed the %.2f GB that the weights leave",
                 step / GB, (room - g->weights_all - g->slots) / GB);
        snprintf(g->cure, sizeof(g->cure), "a smaller step budget%s",
                 l->tp > 1 && !l->sp ? ", or sp over the TP ranks" : "");
    } else if (g->kv_all > left) {
        say_kv(s, l, left, g);
    }
}

void ledger_stage(const struct shapes *s, const struct layout *l,
                  const struct ledger_ask *a, int stage, struct ledger *g)
{
    *g = (struct ledger){.stage = stage, .have = a->device_bytes, .limit = LEDGER_FITS};
    g->context = a->context_bytes;
    g->margin = a->margin * a->device_bytes;
    count_weights(s, l, a, g);
    count_kv(s, l, a, g);
    count_steps(s, l, a, g);
    g->total = g->weights_all + g->slots + g->kv_all + g->activations + g->workspace +
               g->routed + g->comm + g->moving + g->context + g->margin;
}

void ledger_count(const struct shapes *s, const struct layout *l,
                  const struct ledger_ask *a, struct ledger *ret)
{
    struct ledger g;

    for (int stage = 0; stage < l->pp; stage++) {
        ledger_stage(s, l, a, stage, &g);
        if (stage == 0 || g.total > ret->total)
            *ret = g;
    }
    judge(s, l, ret);
}

/* ---- print ---- */

static void row(struct buf *out, const char *name, const char *note, double bytes)
{
    if (bytes > 0)
        buf_printf(out, "%-20s %-10s %10.3f GB\n", name, note, bytes / GB);
}

void ledger_print(const struct ledger *g, struct buf *out)
{
    for (int p = 0; p < PART_COUNT; p++)
        row(out, shape_part_name((enum shape_part)p), "weights", g->weights[p]);
    row(out, "expert replicas", "weights", g->slots);
    row(out, "experts on the move", "weights", g->moving);
    for (int k = 0; k < ATTN_COUNT; k++)
        row(out, attn_kind_name((enum attn_kind)k), "KV", g->kv[k]);
    row(out, "activations", "", g->activations);
    row(out, "workspace", "", g->workspace);
    row(out, "routed rows", "", g->routed);
    row(out, "communication", "", g->comm);
    row(out, "runtime", "", g->context);
    row(out, "margin", "", g->margin);
    buf_printf(out, "%-20s %-10s %10.3f GB of %.3f GB\n", "total", "", g->total / GB,
               g->have / GB);
    if (g->limit != LEDGER_FITS)
        buf_printf(out, "does not fit: %s; %s\n", g->why, g->cure);
}

void ledger_json(const struct ledger *g, struct buf *out)
{
    struct jw w;

    jw_init(&w, out);
    jw_obj(&w);
    jw_key(&w, "weights");
    jw_obj(&w);
    for (int p = 0; p < PART_COUNT; p++)
        jw_knum(&w, shape_part_name((enum shape_part)p), g->weights[p]);
    jw_obj_end(&w);
    jw_key(&w, "kv");
    jw_obj(&w);
    for (int k = 0; k < ATTN_COUNT; k++)
        jw_knum(&w, attn_kind_name((enum attn_kind)k), g->kv[k]);
    jw_obj_end(&w);
    jw_knum(&w, "kv_token", g->kv_token);
    jw_knum(&w, "expert_replicas", g->slots);
    jw_knum(&w, "experts_moving", g->moving);
    jw_knum(&w, "activations", g->activations);
    jw_knum(&w, "workspace", g->workspace);
    jw_knum(&w, "routed", g->routed);
    jw_knum(&w, "communication", g->comm);
    jw_knum(&w, "runtime", g->context);
    jw_knum(&w, "margin", g->margin);
    jw_knum(&w, "total", g->total);
    jw_knum(&w, "device", g->have);
    jw_kint(&w, "max_sequences", g->max_seqs);
    jw_kbool(&w, "fits", g->limit == LEDGER_FITS);
    if (g->limit != LEDGER_FITS) {
        jw_kstr(&w, "why", g->why);
        jw_kstr(&w, "cure", g->cure);
    }
    jw_obj_end(&w);
}

/* daemon/ctrl/capacity.c - see capacity.h. */
#include "daemon/ctrl/capacity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/domain.h"
#include "daemon/serve/engine_fit.h"
#include "daemon/serve/forward.h"
#include "daemon/serve/kvmap.h"
#include "daemon/serve/mesh.h"
#include "daemon/serve/model.h"
#include "daemon/serve/moves.h"
#include "kernels/backend.h"
#include "kernels/comm.h"
#include "topo/graph.h"

#define GB 1e9

/* ---- facts ---- */

static const struct role_part {
    enum model_role role;
    enum shape_part part;
} parts[] = {{ROLE_TOK_EMBD, PART_EMBED}, {ROLE_OUT_HEAD, PART_HEAD},
             {ROLE_Q, PART_ATTN},         {ROLE_K, PART_ATTN},
             {ROLE_V, PART_ATTN},         {ROLE_O, PART_ATTN},
             {ROLE_Q_A, PART_ATTN},       {ROLE_Q_B, PART_ATTN},
             {ROLE_KV_A, PART_ATTN},      {ROLE_KV_B, PART_ATTN},
             {ROLE_K_B, PART_ATTN},       {ROLE_V_B, PART_ATTN},
             {ROLE_GATE, PART_MLP},       {ROLE_UP, PART_MLP},
             {ROLE_DOWN, PART_MLP},       {ROLE_ROUTER, PART_ROUTER},
             {ROLE_SH_GATE, PART_SHARED}, {ROLE_SH_UP, PART_SHARED},
             {ROLE_SH_DOWN, PART_SHARED}, {ROLE_EXP_GATE, PART_EXPERTS},
             {ROLE_EXP_UP, PART_EXPERTS}, {ROLE_EXP_DOWN, PART_EXPERTS}};
enum { N_PARTS = sizeof(parts) / sizeof(parts[0]) };

static bool in_each_layer(enum model_role r)
{
    static const bool per_layer[] = {
#define X(id, gguf, hf, per_layer) per_layer,
        MODEL_ROLE_MAP(X)
#undef X
    };
    return per_layer[r];
}

static enum weight_format nearest_format(double bits)
{
    static const enum weight_format formats[] = {
        FORMAT_INT4, FORMAT_Q4_1, FORMAT_Q4_K, FORMAT_Q5_0, FORMAT_Q5_1,
        FORMAT_Q5_K, FORMAT_Q6_K, FORMAT_INT8, FORMAT_BF16, FORMAT_F32};
    enum weight_format best = FORMAT_F32;

    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (fabs(weight_format_bits(formats[i]) - bits) <
            fabs(weight_format_bits(best) - bits) - 1e-9)
            best = formats[i];
    return best;
}

static void fill_formats(const struct model *m, int n_layer, struct shapes *s)
{
    double bytes[PART_COUNT] = {0}, elements[PART_COUNT] = {0};

    for (int i = 0; i < N_PARTS; i++) {
        int layers = in_each_layer(parts[i].role) ? n_layer : 1;
        for (int l = 0; l < layers; l++) {
            const struct model_tensor *t = model_role_is_expert(parts[i].role)
                                               ? model_expert(m, parts[i].role, l, 0)
                                               : model_tensor(m, parts[i].role, l);
            if (!t)
                continue;
            bytes[parts[i].part] += (double)model_tensor_held(t);
            elements[parts[i].part] += (double)t->rows * t->cols;
        }
    }
    for (int p = 0; p < PART_COUNT; p++)
        s->format[p] =
            elements[p] > 0 ? nearest_format(8 * bytes[p] / elements[p]) : FORMAT_BF16;
    s->format[PART_NORM] = FORMAT_F32; /* as the kernels keep vectors */
    if (s->tied)
        s->format[PART_HEAD] = s->format[PART_EMBED];
}

int capacity_shapes(const struct model *m, struct shapes *ret, struct err *e)
{
    const struct model_info *i = model_info(m);
    struct shapes s = {.n_layer = i->n_layer,
                       .hidden = i->n_embd,
                       .n_head = i->n_head,
                       .n_kv = i->n_kv_head,
                       .head_dim = i->head_dim,
                       .inter = i->n_ff,
                       .vocab = i->n_vocab,
                       .ctx = i->n_ctx,
                       .window = i->window_every ? 0 : i->sliding_window,
                       .tied = i->tied_head,
                       .attn_bias = i->qkv_bias,
                       .qk_norm = i->qk_norm,
                       .n_expert = i->moe.n_expert,
                       .topk = i->moe.top_k,
                       .moe_inter = i->moe.n_ff,
                       .shared_inter = i->moe.n_ff_shared,
                       .q_lora = i->mla.q_lora,
                       .kv_lora = i->mla.kv_lora,
                       .nope_dim = i->mla.nope,
                       .rope_dim = i->mla.kv_lora ? i->mla.rope : 0,
                       .v_dim = i->mla.v,
                       .expert_hidden = i->n_embd};

    if (i->n_layer > SHAPES_LAYERS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%d layers, planning takes at most %d",
                       i->n_layer, SHAPES_LAYERS_MAX);
    snprintf(s.name, sizeof(s.name), "%.95s", i->name);
    snprintf(s.type, sizeof(s.type), "%s", i->format);
    for (int l = 0; l < i->n_layer; l++)
        s.layer[l] = (struct layer_shape){i->mla.kv_lora ? ATTN_LATENT : ATTN_FULL,
                                          model_moe_layer(i, l)};
    fill_formats(m, i->n_layer, &s);
    *ret = s;
    return 0;
}

int capacity_shapes_of(const char *path, struct shapes *ret, struct err *e)
{
    struct model *m;
    int rc;

    if (model_open(path, &m, e) < 0)
        return -1;
    rc = capacity_shapes(m, ret, e);
    if (rc == 0)
        rc = model_check(m, e);
    model_free(m);
    return rc;
}

/* ---- devices ---- */

/* The roomiest device in service: no more than this machine has, where a rack is only
 * emulated. */
static void look_at_devices(const struct domain_view *v, struct capacity *c)
{
    double ram = (double)engine_ram_bytes();
    const int *dev;
    int n = v ? graph_devices(v->graph, &dev) : 0;

    for (int i = 0; i < n; i++) {
        const struct node *x = graph_node(v->graph, dev[i]);
        if (domain_cordon_of(v, dev[i]) || x->health == HEALTH_BAD)
            continue;
        c->devices++;
        c->have =
            fmax(c->have, x->memory_bytes.v > 0 ? fmin(x->memory_bytes.v, ram) : ram);
    }
    if (!v) {
        c->devices = c->ranks;
        c->have = ram;
    }
}

/* ---- the check ---- */

static void say(struct capacity *c, const char *why, const char *cure)
{
    snprintf(c->why, sizeof(c->why), "%.255s", why);
    snprintf(c->cure, sizeof(c->cure), "%.159s", cure);
}

static int block_tok(const struct layout *l)
{
    struct forward_part p;

    forward_part_of(l, &p);
    return forward_block_tok(&p);
}

/* Context and pool as the engine makes them; false: it would refuse, and says why. */
static bool size_pool(const struct conf_instance *i, const struct model_info *m,
                      const struct layout *l, struct capacity *c)
{
    struct engine_fit fit;
    struct err why = {0};
    const struct engine_fit_ask ask = {
        .ctx = (int)i->ctx,
        .model_ctx = m->n_ctx,
        .kv_mib = i->kv.mib,
        .max_seqs = (int)i->max_seqs,
        .block_tok = block_tok(l),
        .shards = l->adp,
        .block_bytes =
            forward_kv_block_bytes(m, DT_F16) * (size_t)(block_tok(l) / KV_BLOCK_TOK),
        .ram_bytes = (uint64_t)c->have,
    };

    if (!ask.block_bytes) {
        snprintf(c->why, sizeof(c->why), "no KV layout for heads of %d", m->head_dim);
        return false;
    }
    if (engine_fit(&ask, &fit, &why) < 0) {
        say(c, why.msg, "a shorter ctx, or another kv.mib");
        return false;
    }
    c->n_ctx = fit.n_ctx;
    c->n_blocks = fit.n_blocks;
    c->block_tok = block_tok(l);
    return true;
}

static void ask_of(const struct conf_instance *i, const struct layout *l, double have,
                   int n_ctx, int n_blocks, struct ledger_ask *a)
{
    double tokens = (double)n_blocks * block_tok(l);

    ledger_ask_defaults(a, have, true);
    a->ctx = n_ctx;
    a->slots = l->ep > 1 ? (int)i->experts.spare * l->ep : 0;
    a->moving = a->slots && l->etp == 1 ? MOVE_PUTS : 0;
    a->seqs = (int)fmax(ceil(tokens / n_ctx), 1);
    a->outs = (int)fmin((double)i->max_seqs, ENGINE_HEAD_ROWS);
    a->budget = (int)fmax((double)i->step_tok, (double)i->max_seqs);
}

/* The ledger counts whole sequences; the pool is what it is: of the positions that a rank
 * has, the KV heads that it has, of which there is at least one. */
static double pool_bytes(const struct ledger *g, const struct ledger_ask *a,
                         const struct shapes *s, const struct layout *l, int n_blocks)
{
    double heads = fmax(1.0 * s->n_kv / l->tp, 1);
    double bytes =
        g->kv_token * n_blocks * KV_BLOCK_TOK / fmin(layout_cp_heads(l), heads) / l->adp;

    return a->page_bytes > 0 ? ceil(bytes / a->page_bytes) * a->page_bytes : bytes;
}

/* The ledger counts the experts of the rank with the most; this one may have fewer. */
static double experts_less(const struct shapes *s, const struct layout *l,
                           const struct ledger *g, int rank)
{
    int64_t from, to, most = (s->n_expert + l->ep - 1) / l->ep;
    struct mesh *m;

    if (l->ep < 2 || s->n_expert % l->ep == 0)
        return 0;
    m = xcalloc(1, sizeof(*m));
    to = from = 0;
    if (mesh_make(l, m, NULL) == 0)
        comm_shard(s->n_expert, l->ep, m->ranks[rank].at[MESH_EP], &from, &to);
    free(m);
    return to > from
               ? g->weights[PART_EXPERTS] * (double)(most - (to - from)) / (double)most
               : 0;
}

void capacity_rank(const struct shapes *s, const struct layout *l,
                   const struct conf_instance *i, int n_ctx, int n_blocks, int rank,
                   struct capacity_rank *ret)
{
    struct ledger_ask a;
    struct ledger g;

    ask_of(i, l, 0, n_ctx, n_blocks, &a);
    ledger_stage(s, l, &a, rank / layout_stage(l), &g);
    *ret = (struct capacity_rank){
        .weights = g.weights_all + g.slots - experts_less(s, l, &g, rank),
        .kv = pool_bytes(&g, &a, s, l, n_blocks),
        .scratch = g.activations + g.workspace + g.routed + g.comm,
    };
}

static void count(const struct conf_instance *i, const struct layout *l,
                  const struct shapes *s, struct capacity *c)
{
    struct ledger_ask a;

    ask_of(i, l, c->have, c->n_ctx, c->n_blocks, &a);
    ledger_count(s, l, &a, &c->ledger);
    c->need = c->ledger.total - c->ledger.kv_all +
              pool_bytes(&c->ledger, &a, s, l, c->n_blocks);
    for (int r = 0; r < c->ranks; r++) {
        struct capacity_rank k;

        capacity_rank(s, l, i, c->n_ctx, c->n_blocks, r, &k);
        c->all += k.weights + k.kv + k.scratch + c->ledger.moving + c->ledger.context;
    }
    c->fits = c->need <= c->have;
    if (c->fits)
        return;
    if (c->ledger.limit != LEDGER_FITS)
        say(c, c->ledger.why, c->ledger.cure);
    else
        say(c, "the KV pool is over what the weights leave", "a smaller kv.mib");
}

/* The engine's own rule first, since its sentence is the plainest; then what planning
 * counts by. */
static int check_layout(const struct model *m, const struct conf_instance *i,
                        const struct layout *l, const struct shapes *s, struct err *e)
{
    struct forward_part p;
    struct err why = {0};

    forward_part_of(l, &p);
    if (!i->round_as.unasked) {
        p.as_tp = (int)i->round_as.tp;
        p.as_cp = (int)i->round_as.cp;
    }
    if (forward_part_check(model_info(m), &p, &why) == 0) {
        enum layout_fault f = layout_check(l, s, 0, &why);

        if (f == LAYOUT_NONE || f == LAYOUT_EXPERTS) /* ranks may have one more or less */
            return 0;
    }
    return err_param(e, why.code, "layout", "%s", why.msg);
}

/* KV of an engine of a pool: can another engine read it, or have it? */
static int check_pool(const struct conf_instance *i, const struct layout *l,
                      const struct shapes *s, struct err *e)
{
    struct err why;

    if (i->role == CONF_ROLE_BOTH ||
        kvmap_possible(layout_ranks(l), l->adp, l->cp, s->n_layer, s->n_kv, &why) == 0)
        return 0;
    return err_param(e, why.code, "layout", "%s", why.msg);
}

static int check(const struct model *m, const struct conf_instance *i,
                 const struct layout *l, struct capacity *c, struct err *e)
{
    struct shapes s;

    if (capacity_shapes(m, &s, e) < 0 || check_layout(m, i, l, &s, e) < 0 ||
        check_pool(i, l, &s, e) < 0)
        return -1;
    if (c->ranks > c->devices) {
        snprintf(c->why, sizeof(c->why), "%d ranks and %d devices in service", c->ranks,
                 c->devices);
        snprintf(c->cure, sizeof(c->cure), "a layout of at most %d ranks", c->devices);
        return 0;
    }
    if (size_pool(i, model_info(m), l, c))
        count(i, l, &s, c);
    return 0;
}

void capacity_layout(const struct conf_instance *i, struct layout *ret)
{
    struct layout l = {.pp = (int)i->layout.pp,
                       .tp = (int)i->layout.tp,
                       .ep = (int)i->layout.ep,
                       .sp = i->layout.sp,
                       .cp = (int)i->layout.cp,
                       .adp = (int)i->layout.adp,
                       .cp_method = CP_NONE,
                       .cp_u = 1,
                       .replicas = 1};

    if (l.cp > 1)
        l.cp_method = (enum cp_method)(CP_GATHER + i->layout.cp_method);
    if (l.cp_method == CP_USP)
        l.cp_u = (int)i->layout.cp_u;
    l.etp = layout_stage(&l) % l.ep == 0 ? layout_stage(&l) / l.ep : 1;
    *ret = l;
}

int capacity_check(const char *model_path, const struct conf_instance *i,
                   const struct layout *layout, const struct domain_view *v,
                   struct capacity *ret, struct err *e)
{
    static const struct layout one = {1, 1, 1, 1, 1, 1, false, CP_NONE, 1, 1};
    const struct layout *l = layout ? layout : &one;
    struct capacity c = {.ranks = layout_ranks(l)};
    struct model *m;
    int rc;

    look_at_devices(v, &c);
    if (model_open(model_path, &m, e) < 0)
        return -1;
    rc = check(m, i, l, &c, e);
    if (rc == 0)
        rc = model_check(m, e);
    model_free(m);
    if (rc == 0)
        *ret = c;
    return rc;
}

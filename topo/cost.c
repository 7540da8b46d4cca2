/* topo/cost.c - constants, collectives and devices; the steps stand in cost_step.c.
 *
 * An all-reduce is the cheapest of: one-shot (each rank reads all others' data: one
 * alpha, (p-1) S), ring or two-shot (reduce-scatter and all-gather: two alphas and
 * 2 (p-1)/p S), and over islands a hierarchy (scatter inside, reduce across with 1/fast
 * of the bytes, gather inside). An all-to-all takes as long as its busiest rank, the part
 * that leaves the island on the cut. */
#include "topo/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "topo/facts.h"
#include "topo/formula.h"

/* id, value, unit, source. "tables" are the op measurements that aiconfigurator publishes
 * (systems h200_sxm and gb200): what a large op reaches, and what a small one takes
 * beyond its bytes. HOPPER stands for sm 90 and before, BLACKWELL for later. */
#define CONST_MAP(X)                                                                     \
    X(HBM_SHARE, 0.85, "of peak", "GEMV reads, tables gemm, both systems")               \
    X(HOPPER_BF16, 0.75, "of peak", "8192-row GEMMs, tables gemm vllm 0.24.0")           \
    X(HOPPER_FP8, 0.68, "of peak", "same, Cutlass fp8")                                  \
    X(HOPPER_FP8_BLOCK, 0.63, "of peak", "same, DeepGEMM")                               \
    X(BLACKWELL_BF16, 0.65, "of peak", "tables gemm trtllm 1.3.0rc20")                   \
    X(BLACKWELL_FP8, 0.50, "of peak", "same")                                            \
    X(BLACKWELL_FP8_BLOCK, 0.60, "of peak", "same, DeepGEMM")                            \
    X(BLACKWELL_FP4, 0.41, "of peak", "same, nvfp4")                                     \
    X(HOPPER_BF16_US, 4.0, "us a GEMM", "1-row GEMMs less their bytes, tables gemm")     \
    X(HOPPER_FP8_US, 6.5, "us a GEMM",                                                   \
      "same; block scales taken alike, since their rows "                                \
      "are launch-bound")                                                                \
    X(BLACKWELL_BF16_US, 4.5, "us a GEMM", "same")                                       \
    X(BLACKWELL_FP8_US, 6.5, "us a GEMM", "same, DeepGEMM")                              \
    X(BLACKWELL_FP4_US, 11, "us a GEMM", "same, nvfp4")                                  \
    X(ATTN_US, 8, "us", "decode, batch 1, 4K: 14.8 us on H200, tables attention")        \
    X(MLA_US, 14, "us", "decode, batch 1, 2 tokens: 14.2 us on H200, tables mla")        \
    X(MLA_SHARE, 0.61, "of bf16 peak",                                                   \
      "decode, 128 heads, batch 128: 601 TF, tables mla")                                \
    X(HOPPER_ATTN_SHARE, 0.75, "of bf16 peak", "FlashAttention-3, 740 TF on H100")       \
    X(BLACKWELL_ATTN_SHARE, 0.58, "of bf16 peak", "MHA prefill, 1460 TF on B200")        \
    X(MOE_US, 24, "us a layer",                                                          \
      "EP8, EP32 and EP64 decode less their bytes, tables moe "                          \
      "on H200")                                                                         \
    X(STATE_US, 4, "us", "KDA decode, batch 1, 12 heads: 7.2 us, tables kda on H200")    \
    X(MEM_US, 3, "us", "one memory-bound op beyond its bytes, as aiconfigurator plans")  \
    X(HOPPER_REDUCE_US, 4.7, "us", "custom all-reduce, 8 x H200, 256 bytes, CUDA graph") \
    X(BLACKWELL_REDUCE_US, 5.0, "us",                                                    \
      "custom all-reduce, 4 x GB200, 256 bytes, CUDA "                                   \
      "graph")                                                                           \
    X(HOPPER_LINK_SHARE, 0.93, "of nominal", "custom all-reduce, 8 x H200, 128 MB")      \
    X(BLACKWELL_LINK_SHARE, 0.63, "of nominal", "custom all-reduce, 4 x GB200, 1 GB")    \
    X(HOPPER_A2A_SHARE, 0.53, "of nominal",                                              \
      "DeepEP low latency, 8 x H200, 128 to 256 "                                        \
      "tokens")                                                                          \
    X(HOPPER_A2A_BULK_SHARE, 1.0, "of nominal",                                          \
      "DeepEP normal, 8 x H200, 4096 to 8192 "                                           \
      "tokens; a copy crosses once a rank, so it passes nominal")                        \
    X(BLACKWELL_A2A_SHARE, 0.73, "of nominal",                                           \
      "one-sided, GB200, EP8, 512 to 2048 tokens")                                       \
    X(HOPPER_SEND_US, 10.5, "us", "DeepEP low latency dispatch, 8 x H200, 1 token")      \
    X(HOPPER_RECV_US, 11, "us", "the same, combine")                                     \
    X(HOPPER_BULK_SEND_US, 37, "us",                                                     \
      "DeepEP normal dispatch, 512 tokens less their bytes")                             \
    X(HOPPER_BULK_RECV_US, 77, "us", "the same, combine")                                \
    X(BLACKWELL_SEND_US, 18, "us", "one-sided dispatch, GB200, EP8, 1 to 32 tokens")     \
    X(BLACKWELL_RECV_US, 29, "us", "the same, combine")                                  \
    X(NET_US, 16, "us", "NCCL 2.29 all-reduce of 256 bytes; no table of several hosts")  \
    X(NET_SHARE, 0.8, "of nominal", "assumed; no table of several hosts")                \
    X(SEND_US, 10, "us", "point to point, as aiconfigurator plans")                      \
    X(CPU_HBM, 20e9, "bytes/s", "assumed until probed: one core's share of memory")      \
    X(CPU_FLOPS, 100e9, "FLOP/s", "assumed until probed: one core with wide vectors")

enum {
#define X(id, v, unit, source) K_##id,
    CONST_MAP(X)
#undef X
        K_COUNT
};

static const struct cost_const consts[K_COUNT] = {
#define X(id, v, unit, source) {#id, v, unit, source},
    CONST_MAP(X)
#undef X
};

const struct cost_const *cost_const_at(int i)
{
    return i >= 0 && i < K_COUNT ? &consts[i] : NULL;
}

static double k(int i) { return consts[i].v; }

/* ---- devices ---- */

static void open_cpu(struct cost_device *d)
{
    *d = (struct cost_device){.name = "cpu",
                              .hbm_bps = k(K_CPU_HBM),
                              .attn_flops = k(K_CPU_FLOPS),
                              .mla_flops = k(K_CPU_FLOPS),
                              .link_share = 1,
                              .a2a_share = 1,
                              .a2a_bulk_share = 1,
                              .net_us = k(K_NET_US),
                              .extrapolated = true};
    for (int f = 0; f < FORMAT_COUNT; f++)
        d->flops[f] = k(K_CPU_FLOPS);
}

/* Formats that a device cannot multiply run as the next wider one that it can. */
static void fill_formats(struct cost_device *d, const struct gpu_facts *g, bool late)
{
    double bf16 = g->bf16_flops * k(late ? K_BLACKWELL_BF16 : K_HOPPER_BF16);
    double fp8 = g->fp8_flops * k(late ? K_BLACKWELL_FP8 : K_HOPPER_FP8);
    double block = g->fp8_flops * k(late ? K_BLACKWELL_FP8_BLOCK : K_HOPPER_FP8_BLOCK);
    double fp4 = g->fp4_flops * k(K_BLACKWELL_FP4);
    double bf16_us = k(late ? K_BLACKWELL_BF16_US : K_HOPPER_BF16_US);
    double fp8_us = k(late ? K_BLACKWELL_FP8_US : K_HOPPER_FP8_US);

    for (int f = 0; f < FORMAT_COUNT; f++) {
        d->flops[f] = bf16;
        d->fixed_us[f] = bf16_us;
    }
    d->flops[FORMAT_F32] = bf16 / 2;
    if (fp8 > 0) {
        d->flops[FORMAT_FP8] = fp8;
        d->flops[FORMAT_FP8_BLOCK] = block;
        d->fixed_us[FORMAT_FP8] = d->fixed_us[FORMAT_FP8_BLOCK] = fp8_us;
    }
    if (fp4 > 0) {
        d->flops[FORMAT_NVFP4] = d->flops[FORMAT_MXFP4] = fp4;
        d->fixed_us[FORMAT_NVFP4] = d->fixed_us[FORMAT_MXFP4] = k(K_BLACKWELL_FP4_US);
    }
}

int cost_device_open(const char *model, struct cost_device *ret, struct err *e)
{
    const struct gpu_facts *g = facts_gpu(model);
    bool late = g && g->sm >= 100;

    if (!strcmp(model, "cpu")) {
        open_cpu(ret);
        return 0;
    }
    if (!g || g->hbm_bps <= 0 || g->bf16_flops <= 0)
        return err_set(e, ERR_UNSUPPORTED, "speeds of device '%s' are not known", model);
    *ret = (struct cost_device){
        .hbm_bps = g->hbm_bps * k(K_HBM_SHARE),
        .attn_flops =
            g->bf16_flops * k(late ? K_BLACKWELL_ATTN_SHARE : K_HOPPER_ATTN_SHARE),
        .mla_flops = g->bf16_flops * k(K_MLA_SHARE),
        .attn_us = k(K_ATTN_US),
        .mla_us = k(K_MLA_US),
        .moe_us = k(K_MOE_US),
        .state_us = k(K_STATE_US),
        .mem_us = k(K_MEM_US),
        .link_share = k(late ? K_BLACKWELL_LINK_SHARE : K_HOPPER_LINK_SHARE),
        .a2a_share = k(late ? K_BLACKWELL_A2A_SHARE : K_HOPPER_A2A_SHARE),
        .a2a_bulk_share = k(late ? K_BLACKWELL_A2A_SHARE : K_HOPPER_A2A_BULK_SHARE),
        .reduce_us = k(late ? K_BLACKWELL_REDUCE_US : K_HOPPER_REDUCE_US),
        .net_us = k(K_NET_US),
        .a2a_send_us = k(late ? K_BLACKWELL_SEND_US : K_HOPPER_SEND_US),
        .a2a_recv_us = k(late ? K_BLACKWELL_RECV_US : K_HOPPER_RECV_US),
        .a2a_bulk_send_us = k(late ? K_BLACKWELL_SEND_US : K_HOPPER_BULK_SEND_US),
        .a2a_bulk_recv_us = k(late ? K_BLACKWELL_RECV_US : K_HOPPER_BULK_RECV_US),
        .extrapolated = strcmp(g->name, "H200") && strcmp(g->name, "GB200"),
    };
    snprintf(ret->name, sizeof(ret->name), "%s", g->name);
    fill_formats(ret, g, late);
    return 0;
}

/* ---- collectives ---- */

static double link_bps(const struct cost_device *d, const struct cost_group *g)
{
    return g->measured ? g->bps : g->bps * d->link_share;
}

static double cut_bps(const struct cost_group *g)
{
    return g->cut_measured ? g->cut_bps : g->cut_bps * k(K_NET_SHARE);
}

/* Microseconds of bytes over a link; nothing goes over a link that is not there. */
static double us_of(double bytes, double bps)
{
    return bytes > 0 ? bytes / bps * 1e6 : 0;
}

static void take_less(double us, enum cost_algo a, double *best, enum cost_algo *algo)
{
    if (us < *best) {
        *best = us;
        *algo = a;
    }
}

double cost_all_reduce(const struct cost_device *d, const struct cost_group *g,
                       double bytes, enum cost_algo *ret_algo)
{
    enum cost_algo algo = ALGO_NONE;
    double best = INFINITY, bps = link_bps(d, g), ring = formula_all_reduce(g->n, bytes);
    int islands = g->fast > 0 ? (g->n + g->fast - 1) / g->fast : 1;

    if (g->n <= 1) {
        best = 0;
    } else if (islands == 1) {
        take_less(d->reduce_us + us_of((g->n - 1) * bytes, bps), ALGO_ONE_SHOT, &best,
                  &algo);
        take_less(2 * d->reduce_us + us_of(ring, bps), ALGO_RING, &best, &algo);
    } else {
        double inside = g->fast > 1 ? 2 * d->reduce_us +
                                          us_of(formula_all_reduce(g->fast, bytes), bps)
                                    : 0;
        take_less(d->net_us * 2 + us_of(ring, cut_bps(g)), ALGO_RING, &best, &algo);
        take_less(inside + d->net_us * ceil(log2(islands)) +
                      us_of(formula_all_reduce(islands, bytes / g->fast), cut_bps(g)),
                  ALGO_HIERARCHY, &best, &algo);
    }
    if (ret_algo)
        *ret_algo = algo;
    return best;
}

double cost_all_gather(const struct cost_device *d, const struct cost_group *g,
                       double bytes)
{
    bool cut = g->fast < g->n;

    if (g->n <= 1)
        return 0;
    return (cut ? d->net_us : d->reduce_us) +
           us_of(formula_all_gather(g->n, bytes), cut ? cut_bps(g) : link_bps(d, g));
}

double cost_all_to_all(const struct cost_device *d, const struct cost_group *g,
                       double tokens, double copies, double token_bytes, bool combine)
{
    double bytes = tokens * copies * token_bytes, few, many, out;

    if (g->n <= 1)
        return 0;
    out = g->fast < g->n ? us_of(bytes * (g->n - g->fast) / g->n, cut_bps(g)) + d->net_us
                         : 0;
    bytes = formula_ep_remote(bytes, g->n);
    few = (combine ? d->a2a_recv_us : d->a2a_send_us) +
          us_of(bytes, g->measured ? g->bps : g->bps * d->a2a_share);
    many = (combine ? d->a2a_bulk_recv_us : d->a2a_bulk_send_us) +
           us_of(bytes, g->measured ? g->bps : g->bps * d->a2a_bulk_share);
    return fmax(out, fmin(few, many));
}

double cost_send(const struct cost_device *d, double bps, bool measured, double bytes)
{
    (void)d;
    return k(K_SEND_US) + us_of(bytes, measured ? bps : bps * k(K_NET_SHARE));
}

static int int_min(int a, int b) { return a < b ? a : b; }

static struct cost_group group_of(const struct cost_cut *c, int n, int fast)
{
    fast = fast < 1 ? 1 : int_min(fast, n);
    return (struct cost_group){n, fast, c->bps, c->cut_bps, c->measured, c->cut_measured};
}

void cost_links_uniform(const struct layout *l, const struct cost_cut *c,
                        struct cost_links *ret)
{
    int stage = layout_stage(l), all = layout_ranks(l);

    *ret = (struct cost_links){
        .tp = group_of(c, l->tp, c->domain),
        .cp = group_of(c, l->cp, l->tp * l->cp <= c->domain ? l->cp : c->domain / l->tp),
        .ep = group_of(c, l->ep, stage <= c->domain ? l->ep : c->domain / l->etp),
        .etp = group_of(c, l->etp, c->domain),
        .pp_bps = all <= c->domain ? c->bps : c->cut_bps,
        .pp_measured = all <= c->domain ? c->measured : c->cut_measured};
}

/* topo/explain_topics.c - the topics of `explain`: one function and one row each.
 *
 * Rows carry the arguments with the chapter's own example as defaults, so that a topic
 * without arguments prints the figures known from the text. What comes from others and
 * was not computed here is the topic `reported`, which promises nothing. */
#include "topo/explain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/formula.h"

#define GB 1e9
#define MIB 1048576.0
#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* Datasheet sizes, for the formula only: placement asks the device. */
static const struct {
    const char *name;
    double gb;
} gpus[] = {{"A100-80GB", 80}, {"H200-141GB", 141}, {"B200-180GB", 180}};
static const struct {
    const char *name;
    double bytes;
} formats[] = {{"bf16", 2}, {"fp8", 1}, {"4-bit", 0.5}};

static int run_capacity(struct explain *x, struct err *e)
{
    double params = explain_num(x, "params"), node = explain_num(x, "node");
    double custom = explain_num(x, "device_gb");
    char name[64];

    (void)e;
    for (int f = 0; f < COUNT(formats); f++) {
        double bytes = params * formats[f].bytes;
        snprintf(name, sizeof(name), "%s_bytes", formats[f].name);
        explain_figure(x, name, bytes, "%s at %g bytes a parameter: %.4g TB of weights",
                       formats[f].name, formats[f].bytes, bytes / 1e12);
        for (int g = 0; g <= COUNT(gpus); g++) {
            bool own = g == COUNT(gpus);
            double gb = own ? custom : gpus[g].gb;
            int64_t n = gb > 0 ? formula_units(bytes, gb * GB) : 0;
            if (n == 0)
                continue;
            snprintf(name, sizeof(name), "%s_%s", formats[f].name,
                     own ? "device" : gpus[g].name);
            explain_figure(x, name, (double)n, "  %lld x %s (%g GB)", (long long)n,
                           own ? "the given device" : gpus[g].name, gb);
            snprintf(name, sizeof(name), "%s_%s_nodes", formats[f].name,
                     own ? "device" : gpus[g].name);
            explain_figure(x, name, (double)formula_units((double)n, node),
                           "    in whole nodes of %g: %lld", node,
                           (long long)formula_units((double)n, node));
        }
    }
    return 0;
}

static int run_collective(struct explain *x, struct err *e)
{
    int p = (int)explain_num(x, "p");
    double s = explain_num(x, "bytes"), ar = formula_all_reduce(p, s);
    double ag = formula_all_gather(p, s), tp = formula_tp_forward(p, s);
    double alpha = explain_num(x, "alpha_us"), bps = explain_num(x, "bps");

    (void)e;
    explain_figure(x, "all_reduce", ar, "all-reduce: 2 (p-1)/p S = %.6g bytes a rank",
                   ar);
    explain_figure(x, "all_gather", ag, "all-gather: (p-1)/p S = %.6g bytes a rank", ag);
    explain_figure(x, "reduce_scatter", ag,
                   "reduce-scatter: (p-1)/p S = %.6g bytes a rank", ag);
    explain_figure(x, "tp_forward", tp,
                   "one TP layer forward: 4 (p-1)/p S = %.6g bytes a rank (attention 2, "
                   "MLP 2)",
                   tp);
    explain_figure(
        x, "tp_sp_forward", 4 * ag,
        "with SP, two all-gathers and two reduce-scatters: %.6g, the same total", 4 * ag);
    if (bps > 0)
        explain_figure(x, "all_reduce_us", alpha + ar / bps * 1e6,
                       "all-reduce time: alpha + volume/B = %.4g us",
                       alpha + ar / bps * 1e6);
    return 0;
}

static int run_tp_time(struct explain *x, struct err *e)
{
    double t1 = explain_num(x, "compute_us"), ops = explain_num(x, "collectives");
    double s = explain_num(x, "bytes"), alpha = explain_num(x, "alpha_us");
    double bps = explain_num(x, "bps"), before = t1;
    int max = (int)explain_num(x, "max"), best = 1;
    char name[64];

    (void)e;
    explain_figure(x, "t_1", t1, "TP 1: %.4g us, all of it compute", t1);
    for (int n = 2; n <= max; n *= 2) {
        double c = ops * (alpha + formula_all_reduce(n, s) / bps * 1e6);
        double t = formula_tp_time(t1, n, c);
        snprintf(name, sizeof(name), "t_%d", n);
        explain_figure(x, name, t, "TP %d: %.4g/%d + %.4g = %.4g us", n, t1, n, c, t);
        if (t < before && best == n / 2)
            best = n;
        before = t;
    }
    explain_figure(x, "best", best,
                   "widen to TP %d; beyond it the collectives eat what compute gains",
                   best);
    return 0;
}

static int run_ep_traffic(struct explain *x, struct err *e)
{
    int p = (int)explain_num(x, "P"), k = (int)explain_num(x, "k");
    double logical = formula_ep_logical(explain_num(x, "T"), k, explain_num(x, "H"),
                                        explain_num(x, "bytes"));
    double remote = formula_ep_remote(logical, p);

    (void)e;
    explain_figure(x, "logical", logical, "dispatch, logical T k H b: %.6g MiB a layer",
                   logical / MIB);
    explain_figure(x, "remote_share", (p - 1.0) / p, "remote share (P-1)/P: %d/%d", p - 1,
                   p);
    explain_figure(x, "remote", remote, "dispatch, remote: %.6g MiB", remote / MIB);
    explain_figure(x, "both", 2 * remote,
                   "dispatch + combine, remote: %.6g MiB (%.4g GiB) a layer",
                   2 * remote / MIB, 2 * remote / MIB / 1024);
    explain_figure(x, "rank", 2 * remote / p, "a rank sends %.6g MiB in both passes",
                   2 * remote / p / MIB);
    explain_figure(x, "pair", formula_ep_pair(logical, p),
                   "a source-destination pair: %.6g MiB, dispatch only",
                   formula_ep_pair(logical, p) / MIB);
    return 0;
}

static int run_dispatch(struct explain *x, struct err *e)
{
    int n, n_recv, n_sb, n_rb;
    const double *send = explain_list(x, "send", &n);
    const double *recv = explain_list(x, "recv", &n_recv);
    const double *sb = explain_list(x, "send_bps", &n_sb);
    const double *rb = explain_list(x, "recv_bps", &n_rb);
    double t;

    if (n != n_recv || (n_sb != 1 && n_sb != n) || (n_rb != 1 && n_rb != n))
        return err_set(e, ERR_INVALID,
                       "send and recv need one value a rank, and bandwidths one for all "
                       "or one a rank: %d, %d, %d and %d were given",
                       n, n_recv, n_sb, n_rb);
    t = formula_dispatch(explain_num(x, "fixed_us") * 1e-6, send, recv, n, sb, n_sb, rb,
                         n_rb);
    explain_figure(x, "time_us", t * 1e6,
                   "T_dispatch >= T_fixed + max_i max(send_i/B, recv_i/B) = %.4g us",
                   t * 1e6);
    return 0;
}

static int run_handoff(struct explain *x, struct err *e)
{
    double kv = explain_num(x, "kv_bytes"), tokens = explain_num(x, "tokens");
    double fixed = explain_num(x, "fixed_ms");
    double bps =
        explain_num(x, "links") * explain_num(x, "bps") * explain_num(x, "efficiency");
    double s = kv * tokens, rounded = kv * tokens / 1.024;

    (void)e;
    explain_figure(x, "bytes", s, "KV to hand over: %.4g MB x %.0f tokens = %.4g GB",
                   kv / 1e6, tokens, s / GB);
    explain_figure(x, "ms", fixed + s / bps * 1e3,
                   "T = T_fixed + S / B_effective = %.1f ms over %.4g GB/s",
                   fixed + s / bps * 1e3, bps / GB);
    explain_figure(x, "ms_rounded", fixed + rounded / bps * 1e3,
                   "%.1f ms where 1K tokens is read as 1000 (%.4g GB)",
                   fixed + rounded / bps * 1e3, rounded / GB);
    return 0;
}

static int run_split(struct explain *x, struct err *e)
{
    double gain = explain_num(x, "interference_ms");
    double price = explain_num(x, "handoff_ms") + explain_num(x, "scheduling_ms") +
                   explain_num(x, "queueing_ms");

    (void)e;
    explain_figure(x, "gain_ms", gain - price,
                   "interference removed %.4g ms against handoff + scheduling + queueing "
                   "%.4g ms: the split %s (%+.4g ms)",
                   gain, price, gain > price ? "pays" : "does not pay", gain - price);
    explain_figure(x, "pays", gain > price, "%s", "");
    return 0;
}

static int run_mesh(struct explain *x, struct err *e)
{
    int pp = (int)explain_num(x, "pp"), tp = (int)explain_num(x, "tp");
    int ep = (int)explain_num(x, "ep"), experts = (int)explain_num(x, "experts");
    int replicas = (int)explain_num(x, "replicas"), world = pp * tp * ep;

    if (experts % ep)
        return err_param(e, ERR_INVALID, "ep", "%d experts do not divide over ep %d",
                         experts, ep);
    explain_figure(x, "world", world, "one instance: PP %d x TP %d x EP %d = %d devices",
                   pp, tp, ep, world);
    explain_figure(x, "sp", tp, "SP reuses the %d TP ranks and is no factor", tp);
    explain_figure(x, "experts_per_rank", experts / ep, "%d experts / EP %d = %d a rank",
                   experts, ep, experts / ep);
    explain_figure(x, "devices", (double)world * replicas, "%d DP replica%s: %d devices",
                   replicas, replicas == 1 ? "" : "s", world * replicas);
    explain_say(x, "in layout words: pp %d, tp %d, adp %d, ep %d, etp %d", pp, tp, ep, ep,
                tp);
    return 0;
}

static int run_striped(struct explain *x, struct err *e)
{
    int n = (int)explain_num(x, "positions"), c = (int)explain_num(x, "C");
    int u = (int)explain_num(x, "U");
    char line[256], name[64];

    if (c % u)
        return err_param(e, ERR_INVALID, "U",
                         "USP needs C = U x R: %d is no multiple of %d", c, u);
    for (int r = 0; r < c; r++) {
        int len = 0;
        for (int i = r; i < n && len < (int)sizeof(line) - 16; i += c)
            len += snprintf(line + len, sizeof(line) - (size_t)len, "%s%d",
                            len ? "," : "", i);
        snprintf(name, sizeof(name), "rank%d_count", r);
        explain_figure(x, name, n > r ? (n - r + c - 1) / c : 0, "rank %d: {%s}", r,
                       len ? line : "");
    }
    explain_figure(x, "R", c / u, "USP: C %d = U %d x R %d", c, u, c / u);
    return 0;
}

static int run_ep_load(struct explain *x, struct err *e)
{
    double t = explain_num(x, "T"), k = explain_num(x, "k"),
           n = explain_num(x, "experts");

    (void)e;
    explain_figure(x, "assignments", k * t, "%g T = %.6g assignments a layer", k, k * t);
    explain_figure(x, "mean", k * t / n, "T/%.6g = %.6g an expert on average", n / k,
                   k * t / n);
    explain_figure(x, "active_share", explain_num(x, "active") / explain_num(x, "total"),
                   "%.4g of %.4g parameters act on a token (%.2f %%); all are resident",
                   explain_num(x, "active"), explain_num(x, "total"),
                   100 * explain_num(x, "active") / explain_num(x, "total"));
    return 0;
}

static int run_imbalance(struct explain *x, struct err *e)
{
    int n;
    const double *load = explain_list(x, "load", &n);
    double r = formula_imbalance(load, n);

    if (r <= 0)
        return err_param(e, ERR_INVALID, "load", "load needs at least one token");
    explain_figure(x, "R", r, "R = max n_e / mean n_e = %.4g over %d experts", r, n);
    return 0;
}

static int run_capacity_factor(struct explain *x, struct err *e)
{
    double c = explain_num(x, "c"), t = explain_num(x, "T"), k = explain_num(x, "k");
    double n = explain_num(x, "experts");
    int64_t slots = formula_capacity(c, t, k, n);

    (void)e;
    explain_figure(
        x, "slots", (double)slots,
        "C = ceil(c T k / E) = ceil(%g x %g x %g / %g) = %lld tokens an expert", c, t, k,
        n, (long long)slots);
    explain_say(x, "it bounds an expert's queue; it balances nothing");
    return 0;
}

static int run_moe_time(struct explain *x, struct err *e)
{
    int n, m;
    const double *queue = explain_list(x, "queue_us", &n);
    const double *compute = explain_list(x, "compute_us", &m);
    double t;

    if (n != m)
        return err_set(e, ERR_INVALID,
                       "queue_us has %d values and compute_us %d: one an expert in each",
                       n, m);
    t = formula_moe_time(explain_num(x, "dispatch_us"), queue, compute, n,
                         explain_num(x, "combine_us"));
    explain_figure(
        x, "time_us", t,
        "T_MoE = T_dispatch + max_e (T_queue + T_compute) + T_combine = %.4g us", t);
    return 0;
}

static int run_speculation(struct explain *x, struct err *e)
{
    double a = explain_num(x, "a");
    int k = (int)explain_num(x, "k");

    (void)e;
    explain_figure(x, "advance", formula_spec_advance(a, k),
                   "E[L] = (1 - a^(k+1)) / (1 - a) = %.2f tokens a round",
                   formula_spec_advance(a, k));
    explain_say(x, "a mean advance, not a speed-up: drafting and verifying cost time");
    return 0;
}

static int check_distribution(const double *v, int n, const char *name, struct err *e)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += v[i];
    if (fabs(sum - 1) > 1e-6)
        return err_param(e, ERR_INVALID, name, "%s sums to %g, not to 1", name, sum);
    return 0;
}

static int run_residual(struct explain *x, struct err *e)
{
    int n, m;
    const double *p = explain_list(x, "p", &n), *q = explain_list(x, "q", &m);
    double *r, accept = 0;
    char name[64];

    if (n != m)
        return err_set(e, ERR_INVALID, "p has %d values and q %d", n, m);
    if (check_distribution(p, n, "p", e) < 0 || check_distribution(q, n, "q", e) < 0)
        return -1;
    r = xcalloc((size_t)n, sizeof(*r));
    formula_spec_residual(p, q, n, r);
    for (int i = 0; i < n; i++) {
        double acc = formula_spec_accept(p[i], q[i]);
        accept += q[i] * acc;
        snprintf(name, sizeof(name), "accept%d", i);
        explain_figure(x, name, acc, "token %d: accept with min(1, p/q) = %.4g", i, acc);
        snprintf(name, sizeof(name), "residual%d", i);
        explain_figure(x, name, r[i], "  after a rejection: %.4g", r[i]);
    }
    free(r);
    explain_figure(x, "accept", accept, "a draft is accepted with probability %.4g",
                   accept);
    return 0;
}

static int run_nvlink(struct explain *x, struct err *e)
{
    double n = explain_num(x, "gpus"), both = explain_num(x, "bps");

    (void)e;
    explain_figure(x, "total", n * both,
                   "%g GPUs x %.4g TB/s both ways = %.4g TB/s in all", n, both / 1e12,
                   n * both / 1e12);
    explain_figure(x, "one_way", both / 2, "one way, as a rank sends: %.4g GB/s",
                   both / 2 / GB);
    return 0;
}

static int run_training(struct explain *x, struct err *e)
{
    int p = (int)explain_num(x, "p");
    double s = explain_num(x, "bytes"), tp = formula_tp_train(p, s);
    double sp = formula_tp_sp_train(p, s);

    (void)e;
    explain_say(x, "training only; inference has no backward pass");
    explain_figure(x, "tp", tp, "TP layer forward + backward: 8 (p-1)/p S = %.6g bytes",
                   tp);
    explain_figure(x, "tp_sp", sp,
                   "TP + SP with rebuilt inputs: 10 (p-1)/p S = %.6g bytes", sp);
    explain_figure(x, "extra", p > 1 ? sp / tp - 1 : 0, "that is %+.0f %%",
                   p > 1 ? 100 * (sp / tp - 1) : 0);
    return 0;
}

static const struct {
    const char *name, *text;
    double v;
} claims[] = {
    {"interference_128", "mixed-batch decode, prompts of 128 tokens: 1.8x", 1.8},
    {"interference_1024", "mixed-batch decode, prompts of 1024 tokens: 12.6x", 12.6},
    {"distserve", "DistServe goodput: up to 7.4x", 7.4},
    {"eagle_token", "EAGLE ablation, tokens: 1.5x", 1.5},
    {"eagle_feature", "EAGLE ablation, features: 1.9x", 1.9},
    {"eagle_shifted", "EAGLE ablation, features and shifted tokens: 2.8x", 2.8},
    {"medusa_top1", "Medusa head accuracy, top-1: 60 %", 0.60},
    {"medusa_top5", "Medusa head accuracy, top-5: 80 % (coverage, not acceptance)", 0.80},
};

static int run_reported(struct explain *x, struct err *e)
{
    (void)e;
    explain_say(x, "reported by others under their own conditions, never promised:");
    for (int i = 0; i < COUNT(claims); i++)
        explain_figure(x, claims[i].name, claims[i].v, "  %s", claims[i].text);
    return 0;
}

#define BIG 1e18
/* clang-format off */
static const struct explain_topic topics[] = {
    {"capacity", "how many devices hold the weights alone",
     "decimal GB and TB, datasheet memory, weights only: KV, activations, buffers and a "
     "margin come on top (see plan); placement uses the bytes that a device reports",
     run_capacity,
     {{"params", "2.8T", 1, BIG, false, false, "parameters"},
      {"node", "8", 1, 1024, false, true, "devices of a node"},
      {"device_gb", "0", 0, 1e6, false, false, "one more device size in GB, 0 none"}}},
    {"collective", "volume of ring collectives a rank",
     "a ring; what a rank sends, it receives as much; one message of S bytes",
     run_collective,
     {{"p", "8", 1, 65536, false, true, "ranks"},
      {"bytes", "1M", 0, BIG, false, false, "message S"},
      {"alpha_us", "0", 0, 1e6, false, false, "fixed time of a collective"},
      {"bps", "0", 0, BIG, false, false, "bandwidth one way, 0 for volumes only"}}},
    {"tp-time", "where widening TP stops to pay",
     "compute divides evenly; each collective is a ring all-reduce; no overlap",
     run_tp_time,
     {{"compute_us", "1000", 0, BIG, false, false, "compute of a step on one device"},
      {"collectives", "64", 0, 1e6, false, true, "all-reduces of a step"},
      {"bytes", "64K", 0, BIG, false, false, "message of one"},
      {"alpha_us", "5", 0, 1e6, false, false, "fixed time of one"},
      {"bps", "450G", 1, BIG, false, false, "bandwidth one way"},
      {"max", "64", 1, 4096, false, true, "widest TP to try"}}},
    {"ep-traffic", "expert-parallel dispatch and combine",
     "tokens and choices spread evenly over P ranks; T counts all ranks' tokens; capacity "
     "of the links only, no latency; k times the bytes is not k times the time",
     run_ep_traffic,
     {{"P", "8", 1, 65536, false, true, "expert-parallel ranks"},
      {"T", "4096", 0, 1e12, false, true, "tokens of a step, all ranks together"},
      {"k", "2", 1, 1024, false, true, "experts a token"},
      {"H", "8192", 1, 1e6, false, true, "hidden size"},
      {"bytes", "2", 0.25, 16, false, false, "bytes an element"}}},
    {"dispatch-time", "lower bound of a dispatch by its busiest rank",
     "send and receive overlap fully and each rank has its bandwidth to itself",
     run_dispatch,
     {{"fixed_us", "10", 0, 1e9, false, false, "fixed time"},
      {"send", "14Mi,14Mi", 0, BIG, true, false, "bytes that each rank sends"},
      {"recv", "14Mi,14Mi", 0, BIG, true, false, "bytes that each rank receives"},
      {"send_bps", "450G", 1, BIG, true, false, "bandwidth out, one or one a rank"},
      {"recv_bps", "450G", 1, BIG, true, false, "bandwidth in, one or one a rank"}}},
    {"handoff", "time to hand KV from a prefill to a decode pool",
     "ideal: all links full at once and nothing else on them; not a measurement",
     run_handoff,
     {{"kv_bytes", "4.5M", 1, BIG, false, false, "KV bytes a token"},
      {"tokens", "2048", 1, 1e9, false, true, "tokens of the prompt"},
      {"links", "8", 1, 4096, false, true, "parallel links"},
      {"bps", "64G", 1, BIG, false, false, "bandwidth of one, one way"},
      {"efficiency", "1", 0.001, 1, false, false, "share of it that is reached"},
      {"fixed_ms", "0", 0, 1e6, false, false, "set-up"}}},
    {"split", "whether splitting prefill from decode pays",
     "latency only: a split also doubles resident weights and strands idle devices when "
     "the other pool is full; goodput a device decides",
     run_split,
     {{"interference_ms", "30", 0, 1e9, false, false, "interference removed"},
      {"handoff_ms", "18", 0, 1e9, false, false, "KV handoff"},
      {"scheduling_ms", "1", 0, 1e9, false, false, "added scheduling"},
      {"queueing_ms", "5", 0, 1e9, false, false, "added queueing"}}},
    {"mesh", "devices of a hybrid mesh",
     "experts regroup over the ranks of a stage; SP and the expert groups reuse ranks",
     run_mesh,
     {{"pp", "4", 1, 1024, false, true, "stages"},
      {"tp", "2", 1, 1024, false, true, "tensor-parallel ranks"},
      {"ep", "8", 1, 1024, false, true, "expert-parallel ranks"},
      {"experts", "64", 1, 65536, false, true, "experts of a layer"},
      {"replicas", "2", 1, 1024, false, true, "DP replicas"}}},
    {"striped-cp", "which positions a rank holds in striped context parallelism",
     "rank(i) = i mod C, so that causal work is even; the total stays O(s^2)",
     run_striped,
     {{"positions", "12", 1, 64, false, true, "positions"},
      {"C", "3", 1, 16, false, true, "context-parallel ranks"},
      {"U", "1", 1, 16, false, true, "Ulysses part of USP"}}},
    {"ep-load", "assignments of a mixture-of-experts layer", "even routing", run_ep_load,
     {{"T", "5600", 1, 1e12, false, true, "tokens"},
      {"k", "16", 1, 1024, false, true, "experts a token"},
      {"experts", "896", 1, 65536, false, true, "experts of a layer"},
      {"total", "2.8T", 1, BIG, false, false, "parameters"},
      {"active", "104G", 1, BIG, false, false, "parameters that act on a token"}}},
    {"imbalance", "worst expert over the mean",
     "token counts; equal counts are not equal completion times", run_imbalance,
     {{"load", "100,100,100,100", 0, 1e12, true, false, "tokens of each expert"}}},
    {"capacity-factor", "slots of an expert under a capacity factor",
     "overflow is answered by a policy of its own, and some answers change the output",
     run_capacity_factor,
     {{"c", "1.2", 0.01, 100, false, false, "capacity factor"},
      {"T", "5600", 1, 1e12, false, true, "tokens"},
      {"k", "16", 1, 1024, false, true, "experts a token"},
      {"experts", "896", 1, 65536, false, true, "experts of a layer"}}},
    {"moe-time", "time of a mixture-of-experts layer",
     "no overlap of dispatch and experts: a bound for a schedule with a barrier",
     run_moe_time,
     {{"dispatch_us", "35", 0, 1e9, false, false, "dispatch"},
      {"queue_us", "0,0", 0, 1e9, true, false, "queue time of each expert"},
      {"compute_us", "100,140", 0, 1e9, true, false, "compute time of each expert"},
      {"combine_us", "68", 0, 1e9, false, false, "combine"}}},
    {"speculation", "mean advance of a speculative round",
     "each draft is accepted with probability a, independently of the others",
     run_speculation,
     {{"k", "5", 1, 64, false, true, "drafts a round"},
      {"a", "0.8", 0, 1, false, false, "acceptance"}}},
    {"residual", "acceptance and residual of speculative sampling",
     "exact sampling: the output has the target's distribution", run_residual,
     {{"p", "0.3,0.4,0.3", 0, 1, true, false, "target"},
      {"q", "0.6,0.3,0.1", 0, 1, true, false, "draft"}}},
    {"nvlink", "bandwidth of an NVLink domain",
     "datasheet figures, both directions added; a rank sends at half of its own",
     run_nvlink,
     {{"gpus", "72", 1, 4096, false, true, "GPUs"},
      {"bps", "1.8T", 1, BIG, false, false, "of one GPU, both ways"}}},
    {"training", "volumes of tensor parallelism in training", "training only",
     run_training,
     {{"p", "8", 1, 65536, false, true, "ranks"},
      {"bytes", "1M", 0, BIG, false, false, "message S"}}},
    {"reported", "figures that others report", "nothing: they are quoted, not computed",
     run_reported,
     {{NULL, NULL, 0, 0, false, false, NULL}}},
};
/* clang-format on */

int explain_n_topics(void) { return COUNT(topics); }

const struct explain_topic *explain_topic_at(int i) { return &topics[i]; }

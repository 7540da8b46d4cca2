/* tests/silicon.h - estimates beside what others measured, for test_cost and bench_plan.
 *
 * The end-to-end rows are shared data, read in place; no constant of the cost model was
 * fitted to them. The orders are those that published runs show. */
#ifndef TESTS_SILICON_H
#define TESTS_SILICON_H

#include "tests/test.h"

#include <math.h>

#include "base/err.h"
#include "topo/estimate.h"

/* One at a time: the model, the device, its links and the layout. */
static struct {
    struct shapes s;
    struct cost_device d;
    struct cost_links k;
    struct layout l;
} sil;

static inline void silicon_load(const char *name, const char *precision)
{
    struct err e = {0};
    char path[256];

    snprintf(path, sizeof(path), "etc/models/%s.json", name);
    if (shapes_open(path, &sil.s, &e) < 0 ||
        (precision && shapes_set_precision(&sil.s, precision, &e) < 0))
        fail_msg("%s: %s", path, e.msg);
}

static inline double silicon_link_of(const char *gpu)
{
    return strstr(gpu, "H") ? 450e9 : 900e9;
}

static inline void silicon_use(const char *gpu, const char *layout)
{
    struct err e = {0};

    if (cost_device_open(gpu, &sil.d, &e) < 0 || layout_parse(layout, &sil.l, &e) < 0)
        fail_msg("%s on %s: %s", layout, gpu, e.msg);
    cost_links_uniform(&sil.l,
                       &(struct cost_cut){strstr(gpu, "GB") ? 72 : 8,
                                          silicon_link_of(gpu), 50e9, false, false},
                       &sil.k);
}

static inline struct estimate
silicon_estimate(const char *gpu, const char *layout, double isl, double osl, double n,
                 void (*fn)(const struct estimate_on *, const struct estimate_load *,
                            struct estimate *))
{
    struct estimate_on o = {&sil.d, &sil.s, &sil.l, &sil.k};
    struct estimate_load w = {isl, osl, n, 1, FORMAT_FP8};
    struct estimate r;
    struct err e = {0};

    silicon_use(gpu, layout);
    if (layout_check(&sil.l, &sil.s, 0, &e) != LAYOUT_NONE)
        fail_msg("%s: %s", layout, e.msg);
    fn(&o, &w, &r);
    return r;
}

/* |estimate / measured - 1| of many, and their median. */
struct silicon_errs {
    double v[4096];
    int n;
};

static inline int silicon_by_value(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) -
           (*(const double *)a < *(const double *)b);
}

static inline double silicon_median(struct silicon_errs *x)
{
    qsort(x->v, (size_t)x->n, sizeof(x->v[0]), silicon_by_value);
    return x->n ? x->v[x->n / 2] : NAN;
}

static inline void silicon_note(struct silicon_errs *x, double got, double want)
{
    if (x->n < 4096)
        x->v[x->n++] = fabs(got / want - 1);
}

/* ---- orders that a planner must get right ---- */

/* Tokens/s of R1 on 8 x H200 under TP 8 over attention groups. */
static inline double silicon_tp_over_groups(int concurrency)
{
    silicon_load("deepseek-r1", NULL);
    return silicon_estimate("H200", "tp8 ep8", 1024, 1024, concurrency,
                            estimate_colocated)
               .tokens_s /
           silicon_estimate("H200", "adp8 ep8", 1024, 1024, concurrency,
                            estimate_colocated)
               .tokens_s;
}

/* Kimi K3, one sequence: what TP 16 gains over TP 8. */
static inline double silicon_k3_tp16(void)
{
    silicon_load("kimi-k3", NULL);
    return silicon_estimate("GB300", "tp8 ep8", 1024, 1024, 1, estimate_decode).tpot_ms /
               silicon_estimate("GB300", "tp16 ep16", 1024, 1024, 1, estimate_decode)
                   .tpot_ms -
           1;
}

/* R1 decode a GPU, GB200 over B200: one NVLink domain of 72 against islands of 8. */
static inline double silicon_gb200_over_b200(int ep)
{
    char text[32];
    int n = 256 * ep;

    silicon_load("deepseek-r1", "fp4");
    snprintf(text, sizeof(text), "adp%d ep%d", ep, ep);
    return silicon_estimate("GB200", text, 1024, 1024, n, estimate_decode).tokens_s /
           silicon_estimate("B200", text, 1024, 1024, n, estimate_decode).tokens_s;
}

/* GPUs that prefill needs for each that decodes, at their best batch under 50 ms. */
static inline double silicon_prefill_share(double isl)
{
    double in, best = 0;

    silicon_load("deepseek-r1", "fp4");
    in =
        silicon_estimate("GB200", "adp4 ep4", isl, 1024, 4, estimate_prefill).requests_s /
        4;
    for (double n = 64; n <= 8192; n *= 2) {
        struct estimate r =
            silicon_estimate("GB200", "adp8 ep8", isl, 1024, n, estimate_decode);
        if (r.tpot_ms < 50)
            best = fmax(best, r.requests_s / 8);
    }
    return best / in;
}

/* Time of the experts under skewed routing without replicas, 4096 tokens a rank, over
 * that of even routing. */
static inline double silicon_skew(int ep)
{
    struct cost_work w = {
        .prefill = 4096.0 * ep, .prompt = 4096, .skew = 1, .kv = FORMAT_FP8};
    struct cost_step even, odd;
    char text[32];

    silicon_load("deepseek-r1", NULL);
    snprintf(text, sizeof(text), "adp%d ep%d", ep, ep);
    silicon_use("GB200", text);
    cost_step(&sil.d, &sil.s, &sil.l, &sil.k, &w, &even);
    w.skew = cost_power_skew(&sil.s, ep, 0.6);
    cost_step(&sil.d, &sil.s, &sil.l, &sil.k, &w, &odd);
    return odd.us[COST_EXPERTS] / even.us[COST_EXPERTS];
}

/* ---- end-to-end rows ---- */

struct silicon_row {
    double measured, estimated;
};

struct silicon_runs {
    struct silicon_row row[2048];
    int n;
    struct silicon_errs tpot, ttft;
};

static const struct {
    const char *csv, *ours;
} silicon_models[] = {{"DeepSeek-R1", "deepseek-r1"},
                      {"DeepSeek-R1-NVFP4", "deepseek-r1"},
                      {"Llama-3.1-70B", "llama-3.1-70b"},
                      {"Llama-3.1-8B-Instruct", "llama-3.1-8b"},
                      {"Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"},
                      {"Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"},
                      {"gpt-oss-120b", "gpt-oss-120b"},
                      {"Kimi-K2.5", "kimi-k2.5"},
                      {"GLM-5", "glm-5"}};
static const struct {
    const char *csv, *ours;
} silicon_systems[] = {{"h200_sxm", "H200"},
                       {"h100_sxm", "H100"},
                       {"b200_sxm", "B200"},
                       {"gb200", "GB200"},
                       {"gb300", "GB300"}};

/* The comma-separated fields of a line, in place; empty ones stay. */
static inline int silicon_fields(char *line, char **f, int max)
{
    int n = 0;

    line[strcspn(line, "\r\n")] = '\0';
    while (n < max && line) {
        f[n++] = line;
        line = strchr(line, ',');
        if (line)
            *line++ = '\0';
    }
    return n;
}

static inline bool silicon_load_row(char **f)
{
    const char *model = NULL;

    for (size_t i = 0; i < sizeof(silicon_models) / sizeof(silicon_models[0]); i++)
        if (!strcmp(silicon_models[i].csv, f[1]))
            model = silicon_models[i].ours;
    if (!model)
        return false;
    /* these two are published in the precision that the rows name */
    bool own = !strcmp(model, "gpt-oss-120b") || !strcmp(f[4], "int4") || !*f[4];
    silicon_load(model, own ? NULL : f[4]);
    return true;
}

/* tp.pp.adp.moe_tp.moe_ep into sil.l; false for those that our words do not have. */
static inline bool silicon_shape_row(const char *text, int *workers)
{
    int tp, pp, adp, mtp, mep;

    *workers = 1;
    if (sscanf(text, "%dx(%d.%d.%d.%d.%d)", workers, &tp, &pp, &adp, &mtp, &mep) != 6 &&
        sscanf(text, "%d.%d.%d.%d.%d", &tp, &pp, &adp, &mtp, &mep) != 5)
        return false;
    if (sil.s.n_expert && mtp * mep != tp * adp)
        return false;
    sil.l = (struct layout){pp,       1,     tp,      adp, sil.s.n_expert ? mep : 1,
                            tp * adp, false, CP_NONE, 1,   1};
    sil.l.etp = tp * adp / sil.l.ep;
    return true;
}

/* The estimate for a row of 17 fields; false for rows that cannot be had. *ret_low: an
 * aggregated run of at most 8 sequences, whose TTFT is worth comparing. */
static inline bool silicon_estimate_row(char **f, struct estimate *ret, bool *ret_low)
{
    bool split = !strcmp(f[5], "disagg");
    struct estimate_load w = {atof(f[6]), atof(f[7]), atof(f[8]), 1, FORMAT_FP8};
    struct estimate_on o = {&sil.d, &sil.s, &sil.l, &sil.k};
    const char *gpu = NULL;
    struct err e;
    int workers;

    for (size_t i = 0; i < sizeof(silicon_systems) / sizeof(silicon_systems[0]); i++)
        if (!strcmp(silicon_systems[i].csv, f[0]))
            gpu = silicon_systems[i].ours;
    if (!gpu || w.concurrency < 1 || atof(f[15]) <= 0 || !silicon_load_row(f) ||
        !silicon_shape_row(split ? f[12] : f[10], &workers))
        return false;
    if (!split)
        workers = (int)fmax(atof(f[13]) / layout_ranks(&sil.l), 1);
    if (cost_device_open(gpu, &sil.d, &e) < 0)
        fail_msg("%s", e.msg);
    cost_links_uniform(&sil.l,
                       &(struct cost_cut){strstr(gpu, "GB") ? 72 : 8,
                                          silicon_link_of(gpu), 50e9, false, false},
                       &sil.k);
    w.concurrency /= workers;
    (split ? estimate_decode : estimate_colocated)(&o, &w, ret);
    *ret_low = !split && w.concurrency <= 8;
    return true;
}

static inline void silicon_add(struct silicon_runs *runs, char **f,
                               const struct estimate *r, bool low)
{
    if (runs->n == 2048)
        return;
    silicon_note(&runs->tpot, r->tpot_ms, atof(f[15]));
    if (low)
        silicon_note(&runs->ttft, r->ttft_ms, atof(f[14]));
    runs->row[runs->n++] = (struct silicon_row){atof(f[16]), r->tokens_s_gpu};
}

static inline int silicon_by_measured(const void *a, const void *b)
{
    const struct silicon_row *x = a, *y = b;

    return (x->measured > y->measured) - (x->measured < y->measured);
}

/* Spearman's, from the number of rows below each. */
static inline double silicon_rank_correlation(struct silicon_runs *r)
{
    double sum = 0, n = r->n;

    qsort(r->row, (size_t)r->n, sizeof(r->row[0]), silicon_by_measured);
    for (int i = 0; i < r->n; i++) {
        int below = 0;
        for (int j = 0; j < r->n; j++)
            below += r->row[j].estimated < r->row[i].estimated;
        sum += (1.0 * i - below) * (i - below);
    }
    return 1 - 6 * sum / (n * (n * n - 1));
}

/* fn for every row of the file that can be estimated. */
static inline void silicon_rows(const char *path,
                                void (*fn)(void *arg, char **f, const struct estimate *r,
                                           bool low),
                                void *arg)
{
    FILE *file = fopen(path, "re");
    char line[1024], *f[17];

    while (file && fgets(line, sizeof(line), file)) {
        struct estimate r;
        bool low;
        if (silicon_fields(line, f, 17) == 17 && silicon_estimate_row(f, &r, &low))
            fn(arg, f, &r, low);
    }
    if (file)
        fclose(file);
}

#endif

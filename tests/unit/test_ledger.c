/* The ledger against the figures known of real models and deployments. */
#include "tests/test.h"

#include <math.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "topo/ledger.h"

#define GB 1e9
#define MIB 1048576.0
/* What the devices report, and the datasheet's size where nothing else is known. */
#define H200 (141.0 * 1024 * MIB)
#define B200 (180 * GB)
#define GB200 (189471 * MIB)
#define B300 (288 * GB)
#define GB300 (284208 * MIB)
#define A100 (80 * GB)

static struct shapes s;
static struct ledger g;

static void load(const char *name)
{
    struct err e = {0};
    char path[256];

    snprintf(path, sizeof(path), "etc/models/%s.json", name);
    if (shapes_open(path, &s, &e) < 0)
        fail_msg("%s: %s", path, e.msg);
}

static void count(const char *layout, const struct ledger_ask *a)
{
    struct layout l;
    struct err e = {0};

    if (layout_parse(layout, &l, &e) < 0 || layout_check(&l, &s, a->slots, &e))
        fail_msg("%s on %s: %s", layout, s.name, e.msg);
    ledger_count(&s, &l, a, &g);
}

static struct ledger_ask on(double bytes, int ctx, int seqs)
{
    struct ledger_ask a;

    ledger_ask_defaults(&a, bytes, false);
    a.ctx = ctx;
    a.seqs = seqs;
    return a;
}

static void near(const char *what, double v, double want, double share)
{
    if (!(fabs(v - want) <= share * want))
        fail_msg("%s is %.6g, not %.6g", what, v, want);
}

/* Whole on one huge device, the ledger is the model's own size. */
static void whole_model(void **st)
{
    struct ledger_ask a = on(10e12, 1000, 3);

    (void)st;
    load("kimi-k3");
    count("tp1", &a);
    near("experts", g.weights[PART_EXPERTS], 1.446e12, 0.001);
    near("trunk",
         g.weights_all - g.weights[PART_EXPERTS] - g.weights[PART_EMBED] -
             g.weights[PART_HEAD],
         108.8e9, 0.001);
    near("embedding, head", g.weights[PART_EMBED] + g.weights[PART_HEAD], 4.7e9, 0.002);
    near("KV a token", g.kv_token, 27648, 0);
    near("latent KV", g.kv[ATTN_LATENT], 27648.0 * 1000 * 3, 0);
    near("state", g.kv[ATTN_STATE], 3 * 434e6, 0.04); /* and the convolutions' inputs */
    load("llama-3.1-8b");
    count("tp1", &a);
    near("KV", g.kv_all, 131072.0 * 3000, 0);
    near("weights", g.weights_all, 16.06e9, 0.001);
}

/* Ranks together hold the model: experts over ep, the rest over tp or repeated. */
static void sums(void **st)
{
    struct ledger_ask a = on(H200, 1024, 64);
    double one;

    (void)st;
    load("deepseek-r1");
    count("adp8 ep8", &a);
    one = g.weights[PART_EXPERTS];
    near("experts of a rank", one * 8, shapes_bytes(&s, PART_EXPERTS), 1e-9);
    near("attention of a rank", g.weights[PART_ATTN], shapes_bytes(&s, PART_ATTN), 1e-9);
    assert_int_equal(g.seqs, 8);
    near("KV", g.kv_all, 70272.0 * 1024 * 8, 0);
    count("tp8 ep8", &a);
    near("experts of a rank", g.weights[PART_EXPERTS], one, 1e-9);
    near("KV, repeated on each rank", g.kv_all, 70272.0 * 1024 * 64, 0);
    count("tp8", &a);
    near("experts of a rank", g.weights[PART_EXPERTS], one, 1e-9);
    a.slots = 32;
    count("adp8 ep8", &a);
    near("replica slots", g.slots, one / 256 * 32, 1e-9);
    load("llama-3.1-70b");
    count("tp4 pp2", &a);
    assert_int_equal(g.stage, 1); /* equal halves; the last has the logits too */
    near("weights", g.weights_all,
         (70.55e9 - 2 * 8192.0 * 128256) / 8 * 2 + 8192.0 * 128256 / 4 * 2, 0.001);
    near("KV", g.kv_all, 327680.0 * 1024 * 64 / 8, 0);
}

static void windows(void **st)
{
    struct ledger_ask a = on(H200, 4096, 1);

    (void)st;
    load("gpt-oss-120b");
    count("tp1", &a);
    near("window KV", g.kv[ATTN_WINDOW], 73728.0 / 2 * 128, 0);
    near("full KV", g.kv[ATTN_FULL], 73728.0 / 2 * 4096, 0);
    near("KV of one more token", g.kv_token, 73728.0 / 2, 0);
    a.ctx = 64;
    count("tp1", &a);
    near("window KV of a short context", g.kv[ATTN_WINDOW], 73728.0 / 2 * 64, 0);
}

static void context_split(void **st)
{
    struct ledger_ask a = on(H200, 131072, 1);
    double kv;

    (void)st;
    load("llama-3.1-8b");
    count("tp1", &a);
    kv = g.kv_all;
    count("cp4 ring", &a);
    near("KV over cp 4", g.kv_all, kv / 4, 1e-9);
    count("tp2 cp4 ulysses", &a);
    near("KV over tp 2 and cp 4", g.kv_all, kv / 8, 1e-9);
}

static void fits(const char *model, const char *precision, double device,
                 const char *layout, bool want)
{
    struct ledger_ask a = on(device, 2048, 1);
    struct err e;

    load(model);
    if (precision)
        assert_int_equal(shapes_set_precision(&s, precision, &e), 0);
    a.budget = 2048;
    a.kv = FORMAT_FP8;
    count(layout, &a);
    if ((g.limit == LEDGER_FITS) != want)
        fail_msg("%s on %s: %.1f of %.1f GB a device; %s", model, layout, g.total / GB,
                 g.have / GB, g.why);
}

/* Real deployments are feasible, and what is said not to fit is
 * not. */
static void deployments(void **st)
{
    (void)st;
    fits("kimi-k3", NULL, B300, "tp8 ep8", true);
    fits("kimi-k3", NULL, H200, "tp8 ep8", false);
    fits("kimi-k3", NULL, B200, "tp8 ep8", false);
    fits("kimi-k3", NULL, H200, "tp16 ep16", true);
    fits("kimi-k3", NULL, GB200, "tp16 ep16", true);
    fits("deepseek-r1", NULL, H200, "adp8 ep8", true);
    fits("deepseek-r1", NULL, H200, "tp8 ep8", true);
    fits("deepseek-r1", NULL, H200, "tp4 ep4", false);
    fits("deepseek-r1", "fp4", B200, "adp4 ep4", true);
    fits("deepseek-r1", "fp4", GB200, "adp4 ep4", true);
    fits("deepseek-r1", "fp4", GB300, "adp2 ep2", true);
    fits("deepseek-r1", NULL, GB200, "adp32 ep32", true);
    fits("gpt-oss-120b", NULL, H200, "tp1", true);
    fits("gpt-oss-120b", NULL, B200, "tp1", true);
    fits("llama-3.1-70b", "fp8", H200, "tp1", true);
    fits("llama-3.1-70b", NULL, H200, "tp1", false);
    fits("qwen3-235b-a22b", "fp8", H200, "adp4 ep4", true);
    fits("llama-3.1-405b", "fp8", H200, "tp8", true);
    fits("kimi-k2", NULL, H200, "tp8 ep8", true);
    fits("kimi-k2.5", NULL, H200, "tp8 ep8", true);
}

/* Published runs with the sequences that they had resident. */
static void deployments_at_load(void **st)
{
    static const struct {
        const char *model, *precision, *layout;
        double device;
        int ctx, seqs;
    } rows[] = {
        {"deepseek-r1", NULL, "adp8 ep8", H200, 2048, 256},
        {"deepseek-r1", NULL, "tp8 ep8", H200, 2048, 4},
        {"deepseek-r1", NULL, "adp8 ep8", H200, 2048, 512},
        {"gpt-oss-120b", NULL, "tp1", H200, 2048, 64},
        {"llama-3.1-70b", "fp8", "tp1", H200, 2048, 128},
        {"deepseek-r1", "fp4", "adp4 ep4", B200, 2048, 256},
        {"gpt-oss-120b", NULL, "tp1", B200, 2048, 256},
        {"deepseek-r1", "fp4", "adp4 ep4", GB200, 2048, 3072},
        {"deepseek-r1", NULL, "adp32 ep32", GB200, 9216, 6144},
        {"deepseek-r1", "fp4", "adp8 ep8", GB300, 2048, 8192},
        {"deepseek-r1", "fp4", "adp4 ep4", GB300, 9216, 1076},
        {"deepseek-r1", "fp4", "adp2 ep2", GB300, 9216, 4},
        {"qwen3-235b-a22b", "fp8", "adp4 ep4", H200, 2048, 256},
        {"kimi-k2.5", NULL, "tp8 ep8", H200, 9216, 32},
    };
    struct err e;

    (void)st;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ledger_ask a = on(rows[i].device, rows[i].ctx, rows[i].seqs);
        load(rows[i].model);
        a.kv = FORMAT_FP8;
        if (rows[i].precision)
            assert_int_equal(shapes_set_precision(&s, rows[i].precision, &e), 0);
        count(rows[i].layout, &a);
        if (g.limit != LEDGER_FITS)
            fail_msg("%s on %s with %d sequences of %d: %.1f of %.1f GB; %s",
                     rows[i].model, rows[i].layout, rows[i].seqs, rows[i].ctx,
                     g.total / GB, g.have / GB, g.why);
    }
}

/* Each dimension exceeded on its own, with the split that cures it. */
static void cures(void **st)
{
    struct ledger_ask a = on(A100, 2048, 1);

    (void)st;
    load("deepseek-r1");
    count("adp8 ep8", &a);
    assert_int_equal(g.limit, LEDGER_EXPERTS);
    assert_non_null(strstr(g.cure, "ep x etp of at least 13"));
    count("adp16 ep16", &a);
    assert_int_equal(g.limit, LEDGER_FITS);
    assert_string_equal(g.why, "");

    load("llama-3.1-405b");
    count("tp4", &a);
    assert_int_equal(g.limit, LEDGER_DEPTH);
    assert_non_null(strstr(g.cure, "pp of at least 3"));
    count("tp4 pp4", &a);
    assert_int_equal(g.limit, LEDGER_FITS);
    a.device_bytes = 10 * GB;
    count("tp1", &a);
    assert_int_equal(g.limit, LEDGER_LAYER);
    assert_non_null(strstr(g.cure, "tp"));

    a = on(A100, 1 << 20, 1);
    load("llama-3.1-8b");
    count("tp1", &a);
    assert_int_equal(g.limit, LEDGER_CONTEXT);
    assert_non_null(strstr(g.cure, "cp of at least 3"));
    count("cp3 ring", &a);
    assert_int_equal(g.limit, LEDGER_FITS);

    a = on(A100, 8192, 100);
    count("tp1", &a);
    assert_int_equal(g.limit, LEDGER_SEQUENCES);
    a.seqs = g.max_seqs;
    count("tp1", &a);
    assert_int_equal(g.limit, LEDGER_FITS);
    a.seqs++;
    count("tp1", &a);
    assert_int_equal(g.limit, LEDGER_SEQUENCES);

    a = on(A100, 128, 1);
    a.budget = 1 << 20;
    count("tp1", &a);
    assert_int_equal(g.limit, LEDGER_ACTIVATIONS);
    a = on(3 * GB, 128, 1);
    count("tp1", &a);
    assert_int_equal(g.limit, LEDGER_FIXED);
}

/* sp keeps a slice of the residual stream; skew takes more routed rows. */
static void steps(void **st)
{
    struct ledger_ask a = on(H200, 2048, 1);
    double plain, routed;

    (void)st;
    load("deepseek-r1");
    count("tp8 ep8", &a);
    plain = g.activations;
    count("tp8 ep8 sp", &a);
    near("sp saves", plain - g.activations, 2.0 * 8192 * 7168 * 7 / 8, 1e-9);
    count("adp8 ep8", &a);
    routed = g.routed;
    near("routed rows", routed, 2.0 * 8192 * 8 * (2 * 7168 + 2 * 2048), 1e-9);
    a.skew = 2.5;
    count("adp8 ep8", &a);
    near("routed rows under skew", g.routed, 2.5 * routed, 1e-9);
    a.skew = 1000; /* no more than all tokens, each once an expert it chose */
    count("adp8 ep8", &a);
    near("routed rows at worst", g.routed, 8 * routed, 1e-9);
}

/* The rows of the CPU engine: x, h, q, k, v, attention's output, the MLP's; then outputs
 * and logits, all f32 (daemon/serve/forward.c). */
static void cpu_engine(void **st)
{
    struct ledger_ask a;
    double rows = 512, per_row = 576 + 576 + 576 + 192 + 192 + 576 + 1536;

    (void)st;
    load("smollm2-135m");
    ledger_ask_defaults(&a, 8 * GB, true);
    a.seqs = 8;
    count("tp1", &a);
    near("activations", g.activations, 4 * rows * per_row + 8 * 4.0 * (576 + 49152),
         1e-9);
    near("KV", g.kv_all, 23040.0 * 4096 * 8, 0);
    assert_true(g.comm == 0 && g.context == 0);
}

static void printed(void **st)
{
    struct ledger_ask a = on(A100, 2048, 1);
    struct buf b;
    struct err e;
    json_t *js = NULL;

    (void)st;
    load("deepseek-r1");
    count("adp8 ep8", &a);
    buf_init(&b, 0);
    ledger_print(&g, &b);
    assert_non_null(strstr(b.p, "routed experts"));
    assert_non_null(strstr(b.p, "does not fit: routed experts"));
    buf_clear(&b);
    ledger_json(&g, &b);
    assert_int_equal(js_parse(b.p, b.len, NULL, &js, &e), 0);
    assert_true(json_is_false(json_object_get(js, "fits")));
    json_decref(js);
    buf_done(&b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_model), cmocka_unit_test(sums),
        cmocka_unit_test(windows),     cmocka_unit_test(context_split),
        cmocka_unit_test(deployments), cmocka_unit_test(deployments_at_load),
        cmocka_unit_test(cures),       cmocka_unit_test(steps),
        cmocka_unit_test(cpu_engine),  cmocka_unit_test(printed)};
    return test_main(argc, argv, "ledger", tests, sizeof(tests) / sizeof(tests[0]));
}

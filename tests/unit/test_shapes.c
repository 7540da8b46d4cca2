/* Model facts for planning: sizes and KV bytes of the published models. */
#include "tests/test.h"

#include <math.h>

#include "base/err.h"
#include "topo/shapes.h"

static struct shapes s; /* 6 KB, one at a time */

static void load(const char *name)
{
    struct err e = {0};
    char path[256];

    snprintf(path, sizeof(path), "etc/models/%s.json", name);
    if (shapes_open(path, &s, &e) < 0)
        fail_msg("%s: %s", path, e.msg);
}

static void near(const char *what, double v, double want, double share)
{
    if (!(fabs(v - want) <= share * want))
        fail_msg("%s of %s is %.6g, not %.6g", what, s.name, v, want);
}

static double kv_token(enum weight_format f, int tp)
{
    double n = 0;

    for (int l = 0; l < s.n_layer; l++)
        n += shapes_kv_token(&s, l, f, tp);
    return n;
}

/* In billions, as the models are known by: total and active. */
static void parameters(void **st)
{
    (void)st;
    static const struct {
        const char *name;
        double total, active, share;
    } rows[] = {
        {"smollm2-135m", 0.1345, 0.1345, 0.005},
        {"llama-3.1-8b", 8.03, 8.03, 0.002},
        {"llama-3.1-70b", 70.55, 70.55, 0.002},
        {"llama-3.1-405b", 405.9, 405.9, 0.003},
        {"qwen3-30b-a3b", 30.53, 3.35, 0.01},
        {"qwen3-235b-a22b", 235.1, 22.2, 0.01},
        {"mixtral-8x7b", 46.7, 12.9, 0.005},
        {"deepseek-v3", 671, 37.6, 0.01},
        {"deepseek-r1", 671, 37.6, 0.01},
        {"gpt-oss-20b", 20.9, 4.2, 0.02},
        {"gpt-oss-120b", 116.8, 5.7, 0.02},
        {"glm-5", 744, 40, 0.05},
        {"kimi-k2", 1026, 32.9, 0.02},
        {"kimi-k2.5", 1026, 32.9, 0.02},
        {"kimi-k3", 2780, 104, 0.02},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        load(rows[i].name);
        near("total parameters", shapes_total(&s) / 1e9, rows[i].total, rows[i].share);
        near("active parameters", shapes_active(&s) / 1e9, rows[i].active, rows[i].share);
    }
}

static void kv_bytes(void **st)
{
    (void)st;
    static const struct {
        const char *name;
        int bytes;
    } rows[] = {
        {"deepseek-v3", 70272},     {"deepseek-r1", 70272},   {"kimi-k2", 70272},
        {"kimi-k2.5", 70272},       {"llama-3.1-8b", 131072}, {"llama-3.1-70b", 327680},
        {"llama-3.1-405b", 516096}, {"qwen3-30b-a3b", 98304}, {"qwen3-235b-a22b", 192512},
        {"gpt-oss-120b", 73728},    {"smollm2-135m", 23040},  {"kimi-k3", 27648},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        load(rows[i].name);
        near("KV", kv_token(FORMAT_BF16, 1), rows[i].bytes, 0);
        near("KV in fp8", kv_token(FORMAT_FP8, 1), rows[i].bytes / 2.0, 0);
    }
}

static void kv_kinds(void **st)
{
    (void)st;
    int n[ATTN_COUNT] = {0};
    double state = 0;

    load("gpt-oss-120b");
    for (int l = 0; l < s.n_layer; l++)
        n[s.layer[l].attn]++;
    assert_int_equal(n[ATTN_WINDOW], 18);
    assert_int_equal(n[ATTN_FULL], 18);
    assert_int_equal(s.layer[0].attn, ATTN_WINDOW);

    load("kimi-k3");
    memset(n, 0, sizeof(n));
    for (int l = 0; l < s.n_layer; l++) {
        n[s.layer[l].attn]++;
        state += shapes_state(&s, l, 1);
    }
    assert_int_equal(n[ATTN_LATENT], 24);
    assert_int_equal(n[ATTN_STATE], 69);
    assert_int_equal(s.layer[3].attn, ATTN_LATENT);
    assert_int_equal(s.layer[92].attn, ATTN_LATENT);
    assert_int_equal(s.layer[0].attn, ATTN_STATE);
    assert_false(s.layer[0].sparse);
    assert_true(s.layer[1].sparse);
    near("state", state, 434e6, 0.001);
    near("state at TP 8", state / 8, 54e6, 0.01);
    near("one layer's state at TP 8", shapes_state(&s, 0, 8) * 8, shapes_state(&s, 0, 1),
         0);
}

/* A rank's KV: heads divide, then repeat; a latent is whole on each rank. */
static void kv_ranks(void **st)
{
    (void)st;
    load("llama-3.1-70b");
    near("KV at TP 8", kv_token(FORMAT_BF16, 8), 327680 / 8, 0);
    near("KV at TP 16", kv_token(FORMAT_BF16, 16), 327680 / 8, 0);
    load("deepseek-v3");
    near("KV at TP 8", kv_token(FORMAT_BF16, 8), 70272, 0);
}

static void k3_weights(void **st)
{
    (void)st;
    double trunk = 0;

    load("kimi-k3");
    near("experts", shapes_bytes(&s, PART_EXPERTS), 1.446e12, 0.001);
    near("embedding and head", shapes_bytes(&s, PART_EMBED) + shapes_bytes(&s, PART_HEAD),
         4.7e9, 0.002);
    for (int p = 0; p < PART_COUNT; p++)
        if (p != PART_EXPERTS && p != PART_EMBED && p != PART_HEAD)
            trunk += shapes_bytes(&s, (enum shape_part)p);
    near("trunk", trunk, 108.8e9, 0.001);
}

static void formats(void **st)
{
    struct err e = {0};
    (void)st;
    load("deepseek-v3");
    assert_int_equal(s.format[PART_EXPERTS], FORMAT_FP8_BLOCK);
    assert_int_equal(s.format[PART_ATTN], FORMAT_FP8_BLOCK);
    assert_int_equal(s.format[PART_EMBED], FORMAT_BF16);
    assert_int_equal(s.format[PART_ROUTER], FORMAT_BF16);
    load("kimi-k2.5");
    assert_int_equal(s.format[PART_EXPERTS], FORMAT_INT4);
    assert_int_equal(s.format[PART_ATTN], FORMAT_BF16);
    assert_int_equal(s.format[PART_SHARED], FORMAT_BF16);
    assert_int_equal(s.format[PART_MLP], FORMAT_BF16);
    load("gpt-oss-20b");
    assert_int_equal(s.format[PART_EXPERTS], FORMAT_MXFP4);
    assert_int_equal(s.format[PART_ATTN], FORMAT_BF16);
    assert_true(weight_format_bits(FORMAT_MXFP4) == 4.25);
    assert_true(weight_format_bits(FORMAT_NVFP4) == 4.5);
    load("llama-3.1-70b");
    assert_int_equal(shapes_set_precision(&s, "fp8", &e), 0);
    near("fp8 bytes", shapes_bytes(&s, PART_MLP), 3.0 * 80 * 8192 * 28672, 0.001);
    assert_int_equal(shapes_set_precision(&s, "fp7", &e), -1);
    assert_string_equal(e.param, "precision");
}

/* Split over TP and put together again, a layer has its parameters, and what is whole on
 * each rank is counted as often as there are ranks. */
static void ranks_add_up(void **st)
{
    (void)st;
    load("llama-3.1-405b");
    for (int tp = 1; tp <= 8; tp *= 2)
        for (int p = 0; p < PART_NORM; p++)
            near("a split part",
                 tp * shapes_rank_params(&s, 0, (enum shape_part)p, tp, 1),
                 shapes_rank_params(&s, 0, (enum shape_part)p, 1, 1), 1e-12);
    load("deepseek-v3");
    near("attention at TP 8", shapes_rank_params(&s, 0, PART_ATTN, 8, 1),
         7168 * 1536 + 7168 * 576 +
             (1536.0 * 128 * 192 + 512.0 * 128 * 256 + 128.0 * 128 * 7168) / 8,
         1e-12);
}

static void refuses(const char *text, enum err_code code, const char *param)
{
    struct err e = {0};

    assert_int_equal(shapes_from_config("x", text, strlen(text), &s, &e), -1);
    if (e.code != code || strcmp(e.param, param))
        fail_msg("%s: %s '%s': %s", text, err_name(e.code), e.param, e.msg);
}

#define BASE "\"hidden_size\":64,\"num_attention_heads\":4,\"vocab_size\":10"
static void bad_configs(void **st)
{
    (void)st;
    refuses("", ERR_SYNTAX, "");
    refuses("[]", ERR_SYNTAX, "");
    refuses("{}", ERR_INVALID, "num_hidden_layers");
    refuses("{\"num_hidden_layers\":100000,\"intermediate_size\":1," BASE "}", ERR_TOOBIG,
            "num_hidden_layers");
    refuses("{\"num_hidden_layers\":2.5," BASE "}", ERR_INVALID, "num_hidden_layers");
    refuses("{\"num_hidden_layers\":2," BASE "}", ERR_INVALID, "intermediate_size");
    refuses("{\"num_hidden_layers\":2,\"num_key_value_heads\":3," BASE "}", ERR_INVALID,
            "num_key_value_heads");
    refuses("{\"num_hidden_layers\":2,\"num_experts\":4,\"intermediate_size\":8,"
            "\"num_experts_per_tok\":5," BASE "}",
            ERR_INVALID, "num_experts_per_tok");
    refuses("{\"num_hidden_layers\":2,\"kv_lora_rank\":4,\"intermediate_size\":8," BASE
            "}",
            ERR_INVALID, "qk_nope_head_dim");
    refuses("{\"num_hidden_layers\":2,\"intermediate_size\":8,"
            "\"linear_attn_config\":{\"num_heads\":1,\"head_dim\":4,"
            "\"short_conv_kernel_size\":4,\"kda_layers\":[3]}," BASE "}",
            ERR_RANGE, "kda_layers");
    refuses("{\"num_hidden_layers\":2,\"intermediate_size\":8,"
            "\"quantization_config\":{\"quant_method\":\"odd\"}," BASE "}",
            ERR_UNSUPPORTED, "quantization_config");
}

/* Every prefix of a good file gives an error and nothing worse. */
static void cut_configs(void **st)
{
    static char text[8192];
    struct err e;
    FILE *f = fopen("etc/models/kimi-k3.json", "re");
    size_t n = fread(text, 1, sizeof(text), f);

    (void)st;
    fclose(f);
    for (size_t i = 0; i + 2 < n; i++)
        assert_int_equal(shapes_from_config("cut", text, i, &s, &e), -1);
    assert_int_equal(shapes_from_config("whole", text, n, &s, &e), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters),   cmocka_unit_test(kv_bytes),
        cmocka_unit_test(kv_kinds),     cmocka_unit_test(kv_ranks),
        cmocka_unit_test(k3_weights),   cmocka_unit_test(formats),
        cmocka_unit_test(ranks_add_up), cmocka_unit_test(bad_configs),
        cmocka_unit_test(cut_configs)};
    return test_main(argc, argv, "shapes", tests, sizeof(tests) / sizeof(tests[0]));
}

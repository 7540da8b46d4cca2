/* Hyper-parameters from config.json: defaults, every spelling, limits, what is refused.
 */
#include "daemon/serve/modelinfo.h"

#include "base/err.h"
#include "daemon/serve/model.h"
#include "tests/files.h"

/* The tiny config with members put before the rest; *info as it was understood. */
static int config(const char *members, const char *drop, struct model_info *info,
                  struct err *e)
{
    char text[2048], *at;

    snprintf(text, sizeof(text), "{%s%s%s", members, *members ? "," : "",
             tiny_config + 1);
    at = drop ? strstr(text + 1 + strlen(members), drop) : NULL;
    if (at) /* rename the member that is there: it is as good as absent */
        at[1] = 'X';
    return modelinfo_from_config("c.json", text, strlen(text), info, e);
}

static void reads_config(void **state)
{
    struct model_info i;
    struct err e;

    (void)state;
    assert_int_equal(config("", NULL, &i, &e), 0);
    assert_true(i.family == FAMILY_LLAMA && i.rope_scaling == ROPE_NONE);
    assert_int_equal(i.n_kv_head, 2);
    assert_int_equal(i.head_dim, 8);
    assert_true(i.rope_theta == 10000.0f && i.norm_eps == 1e-5f);
    assert_int_equal(config("", "\"num_key_value_heads", &i, &e), 0);
    assert_int_equal(i.n_kv_head, 4);
    assert_int_equal(config("\"head_dim\":16", NULL, &i, &e), 0);
    assert_int_equal(i.head_dim, 16);
    assert_int_equal(config("\"head_dim\":null", NULL, &i, &e), 0);
    assert_int_equal(i.head_dim, 8);
    assert_int_equal(config("", "\"rope_theta", &i, &e), 0);
    assert_true(i.rope_theta == 10000.0f);
    assert_int_equal(config("", "\"rms_norm_eps", &i, &e), 0);
    assert_true(i.norm_eps == 1e-6f);
}

static void reads_rope_scaling(void **state)
{
    static const struct {
        const char *members;
        enum rope_scaling kind;
        float factor, theta;
    } good[] = {
        {"\"rope_scaling\":null", ROPE_NONE, 0, 10000},
        {"\"rope_scaling\":{\"rope_type\":\"default\"}", ROPE_NONE, 0, 10000},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", ROPE_LINEAR, 2, 10000},
        {"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4.0}", ROPE_LINEAR, 4,
         10000},
        {"\"rope_scaling\":{\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":"
         "4.0,"
         "\"original_max_position_embeddings\":64,\"rope_type\":\"llama3\"}",
         ROPE_LLAMA3, 8, 10000},
        {"\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5}", ROPE_NONE,
         0, 5e5f},
        {"\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":3,\"rope_theta\":2e4}",
         ROPE_LINEAR, 3, 2e4f},
    };
    static const struct {
        const char *members, *part;
    } bad[] = {
        {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}",
         "type 'yarn' is not supported; supported: default, linear, llama3"},
        {"\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}", "type 'dynamic'"},
        {"\"rope_scaling\":7", "rope_scaling must be an object"},
        {"\"rope_scaling\":{\"type\":\"linear\"}", "factor is 0"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":-1}", "factor is -1"},
        {"\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}", "original_max"},
        {"\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}",
         "low_freq_factor 4"},
    };
    struct model_info i;
    struct err e;

    (void)state;
    for (size_t k = 0; k < sizeof(good) / sizeof(good[0]); k++) {
        if (config(good[k].members, NULL, &i, &e) < 0)
            fail_msg("%s: %s", good[k].members, e.msg);
        assert_int_equal(i.rope_scaling, good[k].kind);
        assert_true(i.rope_factor == good[k].factor);
        assert_true(i.rope_theta == good[k].theta || strstr(good[k].members, "theta"));
    }
    for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
        err_clear(&e);
        assert_int_equal(config(bad[k].members, NULL, &i, &e), -1);
        if (!strstr(e.msg, bad[k].part) || strncmp(e.msg, "c.json: ", 8) != 0)
            fail_msg("expected '%s' in: %s", bad[k].part, e.msg);
    }
}

static void reads_windows(void **state)
{
#define MISTRAL "\"model_type\":\"mistral\""
#define QWEN "\"model_type\":\"qwen2\""
    static const struct {
        const char *members;
        int window; /* -1: refused */
    } rows[] = {
        {"\"sliding_window\":16", 0}, /* llama has none */
        {MISTRAL ",\"sliding_window\":null", 0},
        {MISTRAL ",\"sliding_window\":16", 16},
        {MISTRAL ",\"sliding_window\":4096", 0}, /* longer than the context */
        {QWEN ",\"use_sliding_window\":false,\"sliding_window\":16", 0},
        {QWEN ",\"sliding_window\":16", 0},
        {QWEN
         ",\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":0",
         16},
        {QWEN
         ",\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":2",
         0},
        {QWEN
         ",\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":1",
         -1},
    };
    struct model_info i;
    struct err e;

    (void)state;
    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
        int rc =
            config(rows[k].members,
                   strstr(rows[k].members, "model_type") ? "\"model_type" : NULL, &i, &e);

        assert_int_equal(rc, rows[k].window < 0 ? -1 : 0);
        if (rc == 0)
            assert_int_equal(i.sliding_window, rows[k].window);
        else
            assert_non_null(strstr(e.msg, "from layer 1 upwards is not supported"));
    }
}

static void checks_config(void **state)
{
    static const struct {
        const char *members, *drop, *part;
    } bad[] = {
        {"", "\"model_type", "model_type is missing"},
        {"", "\"hidden_size", "hidden_size is missing"},
        {"", "\"vocab_size", "vocab_size is missing"},
        {"\"vocab_size\":99999999", "\"vocab_size", "n_vocab is 99999999; served are"},
        {"\"vocab_size\":4e3", "\"vocab_size", "must be an integer"},
        {"\"num_hidden_layers\":2000", "\"num_hidden_layers", "n_layer is 2000; served"},
        {"\"num_hidden_layers\":-1", "\"num_hidden_layers", "num_hidden_layers is -1"},
        {"\"num_attention_heads\":0", "\"num_attention_heads",
         "num_attention_heads is 0"},
        {"\"num_key_value_heads\":3", "\"num_key_value_heads",
         "4 attention heads cannot"},
        {"\"num_key_value_heads\":0", "\"num_key_value_heads", "n_kv_head is 0"},
        {"\"head_dim\":7", NULL, "head_dim"},
        {"\"rms_norm_eps\":0", "\"rms_norm_eps", "norm_eps is 0"},
        {"\"rope_theta\":-5", "\"rope_theta", "rope_theta is -5"},
        {"\"hidden_act\":\"gelu\"", NULL, "hidden_act 'gelu' is not supported"},
        {"\"partial_rotary_factor\":0.5", NULL, "partial_rotary_factor 0.5"},
        {"\"quantization_config\":{\"quant_method\":\"gptq\"}", NULL, "quantised folder"},
        {"\"a\":1,\"a\":2", NULL, "not well-formed"},
    };
    struct model_info i;
    struct err e;

    (void)state;
    for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
        err_clear(&e);
        assert_int_equal(config(bad[k].members, bad[k].drop, &i, &e), -1);
        if (!strstr(e.msg, bad[k].part) || strncmp(e.msg, "c.json: ", 8) != 0)
            fail_msg("expected '%s' in: %s", bad[k].part, e.msg);
    }
    assert_int_equal(modelinfo_from_config("c.json", "[1]", 3, &i, &e), -1);
    assert_non_null(strstr(e.msg, "not a JSON object"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_config),
        cmocka_unit_test(reads_rope_scaling),
        cmocka_unit_test(reads_windows),
        cmocka_unit_test(checks_config),
    };

    return test_main(argc, argv, "modelinfo", tests, sizeof(tests) / sizeof(tests[0]));
}

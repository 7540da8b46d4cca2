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
        {"\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":4}",
         "type 'longrope' is not supported; supported: default, linear, llama3, yarn"},
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
        {"\"quantization_config\":{\"quant_method\":\"gptq\"}", NULL,
         "quantised by 'gptq'"},
        {"\"quantization_config\":{\"quant_method\":\"fp8\"}", NULL,
         "weight_block_size of [128, 128]"},
        {"\"model_type\":\"kimi_k3\"", "\"model_type", "Kimi K3 (KDA layers and latent"},
        {"\"model_type\":\"deepseek_v4\"", "\"model_type", "DeepSeek-V4 (compressed"},
        {"\"model_type\":\"deepseek_v3\",\"n_routed_experts\":8,\"kv_lora_rank\":4096,"
         "\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":16",
         "\"model_type", "kv_lora_rank 4096"},
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

/* The members that published models of each family have in their config.json. */
static const struct {
    const char *text;
    struct model_info want;
} published[] = {
    {"{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,"
     "\"attention_dropout\":0.0,\"bos_token_id\":128000,\"eos_token_id\":[128001,"
     "128008,128009],\"head_dim\":64,\"hidden_act\":\"silu\",\"hidden_size\":2048,"
     "\"initializer_range\":0.02,\"intermediate_size\":8192,"
     "\"max_position_embeddings\":131072,\"mlp_bias\":false,\"model_type\":\"llama\","
     "\"num_attention_heads\":32,\"num_hidden_layers\":16,\"num_key_value_heads\":8,"
     "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":32.0,"
     "\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,"
     "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"
     "\"rope_theta\":500000.0,\"tie_word_embeddings\":true,"
     "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.45.0\","
     "\"use_cache\":true,\"vocab_size\":128256}",
     {.family = FAMILY_LLAMA,
      .n_layer = 16,
      .n_embd = 2048,
      .n_head = 32,
      .n_kv_head = 8,
      .head_dim = 64,
      .n_ff = 8192,
      .n_vocab = 128256,
      .n_ctx = 131072,
      .rope_theta = 5e5f,
      .rope_scaling = ROPE_LLAMA3,
      .rope_factor = 32,
      .rope_orig_ctx = 8192,
      .tied_head = true}},
    {"{\"architectures\":[\"Qwen2ForCausalLM\"],\"bos_token_id\":151643,"
     "\"eos_token_id\":151645,\"hidden_act\":\"silu\",\"hidden_size\":896,"
     "\"intermediate_size\":4864,\"max_position_embeddings\":32768,"
     "\"max_window_layers\":21,\"model_type\":\"qwen2\",\"num_attention_heads\":14,"
     "\"num_hidden_layers\":24,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,"
     "\"rope_theta\":1000000.0,\"sliding_window\":32768,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
     "\"use_sliding_window\":false,\"vocab_size\":151936}",
     {.family = FAMILY_QWEN2,
      .n_layer = 24,
      .n_embd = 896,
      .n_head = 14,
      .n_kv_head = 2,
      .head_dim = 64,
      .n_ff = 4864,
      .n_vocab = 151936,
      .n_ctx = 32768,
      .rope_theta = 1e6f,
      .tied_head = true}},
    {"{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,"
     "\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\","
     "\"hidden_size\":1024,\"intermediate_size\":3072,"
     "\"max_position_embeddings\":40960,\"max_window_layers\":28,"
     "\"model_type\":\"qwen3\",\"num_attention_heads\":16,"
     "\"num_hidden_layers\":28,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,"
     "\"rope_scaling\":null,\"rope_theta\":1000000,\"sliding_window\":null,"
     "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
     "\"use_sliding_window\":false,\"vocab_size\":151936}",
     {.family = FAMILY_QWEN3,
      .n_layer = 28,
      .n_embd = 1024,
      .n_head = 16,
      .n_kv_head = 8,
      .head_dim = 128,
      .n_ff = 3072,
      .n_vocab = 151936,
      .n_ctx = 40960,
      .rope_theta = 1e6f,
      .tied_head = true}},
    {"{\"architectures\":[\"MistralForCausalLM\"],\"bos_token_id\":1,"
     "\"eos_token_id\":2,\"hidden_act\":\"silu\",\"hidden_size\":4096,"
     "\"intermediate_size\":14336,\"max_position_embeddings\":32768,"
     "\"model_type\":\"mistral\",\"num_attention_heads\":32,"
     "\"num_hidden_layers\":32,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,"
     "\"rope_theta\":10000.0,\"sliding_window\":4096,"
     "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
     "\"vocab_size\":32000}",
     {.family = FAMILY_MISTRAL,
      .n_layer = 32,
      .n_embd = 4096,
      .n_head = 32,
      .n_kv_head = 8,
      .head_dim = 128,
      .n_ff = 14336,
      .n_vocab = 32000,
      .n_ctx = 32768,
      .rope_theta = 1e4f,
      .sliding_window = 4096}},
    {"{\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"torch_dtype\""
     ":\"bfloat16\",\"model_type\":\"mixtral\",\"hidden_size\":4096,\"interm"
     "ediate_size\":14336,\"max_position_embeddings\":32768,\"num_attention_"
     "heads\":32,\"num_experts_per_tok\":2,\"num_hidden_layers\":32,\"num_ke"
     "y_value_heads\":8,\"num_local_experts\":8,\"rms_norm_eps\":1e-05,\"rop"
     "e_theta\":1000000.0,\"sliding_window\":null,\"vocab_size\":32000,\"out"
     "put_router_logits\":false,\"router_aux_loss_coef\":0.02}",
     {.family = FAMILY_MIXTRAL,
      .n_layer = 32,
      .n_embd = 4096,
      .n_head = 32,
      .n_kv_head = 8,
      .head_dim = 128,
      .n_ff = 14336,
      .n_vocab = 32000,
      .n_ctx = 32768,
      .rope_theta = 1e6f,
      .moe = {.n_expert = 8, .top_k = 2, .n_ff = 14336, .normalise = true}}},
    {"{\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"torch_dtype\""
     ":\"bfloat16\",\"model_type\":\"qwen3_moe\",\"attention_bias\":false,\""
     "decoder_sparse_step\":1,\"head_dim\":128,\"hidden_size\":2048,\"interm"
     "ediate_size\":6144,\"max_position_embeddings\":40960,\"mlp_only_layers"
     "\":[],\"moe_intermediate_size\":768,\"norm_topk_prob\":true,\"num_atte"
     "ntion_heads\":32,\"num_experts\":128,\"num_experts_per_tok\":8,\"num_h"
     "idden_layers\":48,\"num_key_value_heads\":4,\"rms_norm_eps\":1e-06,\"r"
     "ope_scaling\":null,\"rope_theta\":1000000.0,\"sliding_window\":null,\""
     "use_sliding_window\":false,\"vocab_size\":151936}",
     {.family = FAMILY_QWEN3_MOE,
      .n_layer = 48,
      .n_embd = 2048,
      .n_head = 32,
      .n_kv_head = 4,
      .head_dim = 128,
      .n_ff = 6144,
      .n_vocab = 151936,
      .n_ctx = 40960,
      .rope_theta = 1e6f,
      .moe = {.n_expert = 128, .top_k = 8, .n_ff = 768, .normalise = true}}},
    {"{\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"torch_dtype\""
     ":\"bfloat16\",\"model_type\":\"olmoe\",\"attention_bias\":false,\"clip"
     "_qkv\":null,\"hidden_size\":2048,\"intermediate_size\":1024,\"max_posi"
     "tion_embeddings\":4096,\"norm_topk_prob\":false,\"num_attention_heads"
     "\":16,\"num_experts\":64,\"num_experts_per_tok\":8,\"num_hidden_layers"
     "\":16,\"num_key_value_heads\":16,\"rms_norm_eps\":1e-05,\"rope_scaling"
     "\":null,\"rope_theta\":10000.0,\"vocab_size\":50304}",
     {.family = FAMILY_OLMOE,
      .n_layer = 16,
      .n_embd = 2048,
      .n_head = 16,
      .n_kv_head = 16,
      .head_dim = 128,
      .n_ff = 1024,
      .n_vocab = 50304,
      .n_ctx = 4096,
      .rope_theta = 1e4f,
      .moe = {.n_expert = 64, .top_k = 8, .n_ff = 1024}}},
    {"{\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"torch_dtype\""
     ":\"bfloat16\",\"model_type\":\"gpt_oss\",\"attention_bias\":true,\"hea"
     "d_dim\":64,\"hidden_size\":2880,\"intermediate_size\":2880,\"layer_typ"
     "es\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\","
     "\"full_attention\",\"sliding_attention\",\"full_attention\",\"sliding_"
     "attention\",\"full_attention\",\"sliding_attention\",\"full_attention"
     "\",\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"fu"
     "ll_attention\",\"sliding_attention\",\"full_attention\",\"sliding_atte"
     "ntion\",\"full_attention\",\"sliding_attention\",\"full_attention\",\""
     "sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_at"
     "tention\"],\"max_position_embeddings\":131072,\"num_attention_heads\":"
     "64,\"num_experts_per_tok\":4,\"experts_per_token\":4,\"num_hidden_laye"
     "rs\":24,\"num_key_value_heads\":8,\"num_local_experts\":32,\"rms_norm_"
     "eps\":1e-05,\"rope_scaling\":{\"beta_fast\":32.0,\"beta_slow\":1.0,\"f"
     "actor\":32.0,\"original_max_position_embeddings\":4096,\"rope_type\":"
     "\"yarn\",\"truncate\":false},\"rope_theta\":150000,\"sliding_window\":"
     "128,\"swiglu_limit\":7.0,\"quantization_config\":{\"modules_to_not_con"
     "vert\":[\"model.layers.*.self_attn\",\"lm_head\"],\"quant_method\":\"m"
     "xfp4\"},\"vocab_size\":201088}",
     {.family = FAMILY_GPT_OSS,
      .n_layer = 24,
      .n_embd = 2880,
      .n_head = 64,
      .n_kv_head = 8,
      .head_dim = 64,
      .n_ff = 2880,
      .n_vocab = 201088,
      .n_ctx = 131072,
      .rope_theta = 1.5e5f,
      .rope_scaling = ROPE_YARN,
      .rope_factor = 32,
      .rope_orig_ctx = 4096,
      .sliding_window = 128,
      .moe = {.n_expert = 32, .top_k = 4, .n_ff = 2880}}},
    {"{\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"torch_dtype\""
     ":\"bfloat16\",\"attention_bias\":false,\"hidden_size\":7168,\"intermed"
     "iate_size\":18432,\"kv_lora_rank\":512,\"moe_intermediate_size\":2048,"
     "\"moe_layer_freq\":1,\"n_shared_experts\":1,\"norm_topk_prob\":true,\""
     "num_experts_per_tok\":8,\"num_hidden_layers\":61,\"q_lora_rank\":1536,"
     "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-0"
     "6,\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"v_head_d"
     "im\":128,\"quantization_config\":{\"activation_scheme\":\"dynamic\",\""
     "fmt\":\"e4m3\",\"quant_method\":\"fp8\",\"weight_block_size\":[128,128"
     "]},\"model_type\":\"deepseek_v3\",\"first_k_dense_replace\":3,\"max_po"
     "sition_embeddings\":163840,\"n_group\":8,\"n_routed_experts\":256,\"nu"
     "m_attention_heads\":128,\"num_key_value_heads\":128,\"num_nextn_predic"
     "t_layers\":1,\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"fact"
     "or\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_"
     "embeddings\":4096,\"type\":\"yarn\"},\"rope_theta\":10000,\"routed_sca"
     "ling_factor\":2.5,\"topk_group\":4,\"vocab_size\":129280}",
     {.family = FAMILY_DEEPSEEK_V3,
      .n_layer = 61,
      .n_embd = 7168,
      .n_head = 128,
      .n_kv_head = 1,
      .head_dim = 576,
      .n_ff = 18432,
      .n_vocab = 129280,
      .n_ctx = 163840,
      .rope_theta = 1e4f,
      .rope_scaling = ROPE_YARN,
      .rope_factor = 40,
      .rope_orig_ctx = 4096,
      .moe = {.n_expert = 256,
              .top_k = 8,
              .n_ff = 2048,
              .n_dense = 3,
              .n_ff_shared = 2048,
              .normalise = true,
              .n_group = 8,
              .top_group = 4},
      .mla = {.q_lora = 1536, .kv_lora = 512, .nope = 128, .rope = 64, .v = 128}}},
    {"{\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"torch_dtype\""
     ":\"bfloat16\",\"attention_bias\":false,\"hidden_size\":7168,\"intermed"
     "iate_size\":18432,\"kv_lora_rank\":512,\"moe_intermediate_size\":2048,"
     "\"moe_layer_freq\":1,\"n_shared_experts\":1,\"norm_topk_prob\":true,\""
     "num_experts_per_tok\":8,\"num_hidden_layers\":61,\"q_lora_rank\":1536,"
     "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-0"
     "6,\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"v_head_d"
     "im\":128,\"quantization_config\":{\"activation_scheme\":\"dynamic\",\""
     "fmt\":\"e4m3\",\"quant_method\":\"fp8\",\"weight_block_size\":[128,128"
     "]},\"model_type\":\"kimi_k2\",\"first_k_dense_replace\":1,\"max_positi"
     "on_embeddings\":131072,\"n_group\":1,\"n_routed_experts\":384,\"num_at"
     "tention_heads\":64,\"num_key_value_heads\":64,\"num_nextn_predict_laye"
     "rs\":0,\"rope_scaling\":{\"beta_fast\":1.0,\"beta_slow\":1.0,\"factor"
     "\":32.0,\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_"
     "embeddings\":4096,\"type\":\"yarn\"},\"rope_theta\":50000.0,\"routed_s"
     "caling_factor\":2.827,\"topk_group\":1,\"vocab_size\":163840}",
     {.family = FAMILY_KIMI_K2,
      .n_layer = 61,
      .n_embd = 7168,
      .n_head = 64,
      .n_kv_head = 1,
      .head_dim = 576,
      .n_ff = 18432,
      .n_vocab = 163840,
      .n_ctx = 131072,
      .rope_theta = 5e4f,
      .rope_scaling = ROPE_YARN,
      .rope_factor = 32,
      .rope_orig_ctx = 4096,
      .moe = {.n_expert = 384,
              .top_k = 8,
              .n_ff = 2048,
              .n_dense = 1,
              .n_ff_shared = 2048,
              .normalise = true,
              .n_group = 1,
              .top_group = 1},
      .mla = {.q_lora = 1536, .kv_lora = 512, .nope = 128, .rope = 64, .v = 128}}},
};

static void reads_configs_as_published(void **state)
{
    struct model_info got;
    struct err e = {0};

    (void)state;
    for (size_t k = 0; k < sizeof(published) / sizeof(published[0]); k++) {
        const struct model_info *want = &published[k].want;

        if (modelinfo_from_config("c.json", published[k].text, strlen(published[k].text),
                                  &got, &e))
            fail_msg("%s", e.msg);
#define SAME(field) assert_true(got.field == want->field)
        SAME(family), SAME(n_layer), SAME(n_embd), SAME(n_head), SAME(n_kv_head);
        SAME(head_dim), SAME(n_ff), SAME(n_vocab), SAME(n_ctx), SAME(rope_theta);
        SAME(rope_scaling), SAME(rope_factor), SAME(rope_orig_ctx), SAME(tied_head);
        SAME(sliding_window);
        SAME(moe.n_expert), SAME(moe.top_k), SAME(moe.n_ff), SAME(moe.n_dense);
        SAME(moe.n_ff_shared), SAME(moe.normalise), SAME(moe.n_group),
            SAME(moe.top_group);
        SAME(mla.q_lora), SAME(mla.kv_lora), SAME(mla.nope), SAME(mla.rope), SAME(mla.v);
        assert_true(got.rope_neox == !want->mla.kv_lora);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_config),
        cmocka_unit_test(reads_configs_as_published),
        cmocka_unit_test(reads_rope_scaling),
        cmocka_unit_test(reads_windows),
        cmocka_unit_test(checks_config),
    };

    return test_main(argc, argv, "modelinfo", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/tiny.h - a tiny random model as a Hugging Face folder, made from a seed in C, for
 * tests that need any model at all and neither Python nor a download. tiny_families says
 * what each family has; weights are F32, every expert is another. */
#ifndef TESTS_TINY_H
#define TESTS_TINY_H

#include <math.h>
#include <sys/stat.h>

#include "tests/test.h"

enum {
    TINY_VOCAB = 320,
    TINY_EMBD = 64,
    TINY_HEADS = 4,
    TINY_KV_HEADS = 2,
    TINY_HEAD_DIM = 16,
    TINY_FF = 96,
    TINY_LAYERS = 2,
    TINY_CTX = 4096,
    TINY_EOS = 258,
    TINY_EXPERTS = 8,
    TINY_TOP_K = 2,
    TINY_FF_EXPERT = 32,
    TINY_FF_SHARED = 64
};

/* What a test may have otherwise: set before the model is made. */
static struct tiny_size {
    int layers, heads, kv_heads;
} tiny_size = {TINY_LAYERS, TINY_HEADS, TINY_KV_HEADS};

enum tiny_norm { TINY_NO_NORM, TINY_HEAD_NORM, TINY_FULL_NORM };

struct tiny_family {
    const char *name;
    enum tiny_norm norm;          /* of q and k */
    bool bias, shared;            /* of q, k, v; a shared expert with its gate */
    const char *mlp;              /* NULL = dense; else where router and experts are */
    const char *gate, *up, *down; /* of an expert */
    const char *config;           /* members of config.json */
};
#define TINY_LATENT                                                                      \
    "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"     \
    "\"n_shared_experts\":1,\"first_k_dense_replace\":1,\"kv_lora_rank\":32,"            \
    "\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":12,"                  \
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"mscale\":1,"                     \
    "\"mscale_all_dim\":1,\"original_max_position_embeddings\":512},"

static const struct tiny_family tiny_families[] = {
    {"llama", TINY_NO_NORM, false, false, NULL, "", "", "", ""},
    {"mistral", TINY_NO_NORM, false, false, NULL, "", "", "", "\"sliding_window\":16,"},
    {"qwen2", TINY_NO_NORM, true, false, NULL, "", "", "", ""},
    {"qwen3", TINY_HEAD_NORM, false, false, NULL, "", "", "", ""},
    {"mixtral", TINY_NO_NORM, false, false, "block_sparse_moe", "w1", "w3", "w2",
     "\"num_local_experts\":8,\"num_experts_per_tok\":2,"},
    {"qwen2_moe", TINY_NO_NORM, true, true, "mlp", "gate_proj", "up_proj", "down_proj",
     "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
     "\"shared_expert_intermediate_size\":64,"},
    {"qwen3_moe", TINY_HEAD_NORM, false, false, "mlp", "gate_proj", "up_proj",
     "down_proj",
     "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
     "\"norm_topk_prob\":true,"},
    {"olmoe", TINY_FULL_NORM, false, false, "mlp", "gate_proj", "up_proj", "down_proj",
     "\"num_experts\":8,\"num_experts_per_tok\":2,"},
    {"gpt_oss", TINY_NO_NORM, true, false, "mlp", "", "", "",
     "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"sliding_window\":16,"
     "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,\"truncate\":false,"
     "\"original_max_position_embeddings\":512},"},
    {"deepseek_v2", TINY_NO_NORM, false, false, NULL, "", "", "",
     "\"n_group\":4,\"topk_group\":2,\"norm_topk_prob\":false,\"q_lora_rank\":null,"
     "\"topk_method\":\"group_limited_greedy\",\"scoring_func\":\"softmax\","
     "\"routed_scaling_factor\":2.0," TINY_LATENT},
    {"deepseek_v3", TINY_NO_NORM, false, false, NULL, "", "", "",
     "\"n_group\":2,\"topk_group\":1,\"routed_scaling_factor\":2.5,"
     "\"norm_topk_prob\":true,\"q_lora_rank\":48," TINY_LATENT},
    {"kimi_k2", TINY_NO_NORM, false, false, NULL, "", "", "",
     "\"n_group\":1,\"topk_group\":1,\"routed_scaling_factor\":1.5,"
     "\"norm_topk_prob\":true,\"q_lora_rank\":48," TINY_LATENT},
};

struct tiny {
    FILE *head, *data; /* of the safetensors file, until they are joined */
    size_t at;
    uint64_t rng;
};

static inline float tiny_normal(uint64_t *rng)
{
    double u = (double)(test_rand(rng) >> 11) / 9007199254740992.0;
    double v = (double)(test_rand(rng) >> 11) / 9007199254740992.0;
    return (float)(sqrt(-2 * log(u + 1e-12)) * cos(6.283185307179586 * v));
}

static inline void tiny_tensor(struct tiny *t, const char *name, int rows, int cols,
                               float mean, float std)
{
    int n = rows ? rows * cols : cols;

    fprintf(t->head, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", t->at ? "," : "", name);
    if (rows)
        fprintf(t->head, "%d,", rows);
    fprintf(t->head, "%d],\"data_offsets\":[%zu,%zu]}", cols, t->at,
            t->at + sizeof(float) * (size_t)n);
    t->at += sizeof(float) * (size_t)n;
    for (int i = 0; i < n; i++) {
        float v = mean + std * tiny_normal(&t->rng);
        fwrite(&v, sizeof(v), 1, t->data);
    }
}

/* [planes, rows, cols] */
static inline void tiny_block(struct tiny *t, const char *name, int planes, int rows,
                              int cols, float std)
{
    size_t n = (size_t)planes * (size_t)rows * (size_t)cols;

    fprintf(t->head, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%d,%d,%d]", name, planes,
            rows, cols);
    fprintf(t->head, ",\"data_offsets\":[%zu,%zu]}", t->at, t->at + sizeof(float) * n);
    t->at += sizeof(float) * n;
    for (size_t i = 0; i < n; i++) {
        float v = std * tiny_normal(&t->rng);
        fwrite(&v, sizeof(v), 1, t->data);
    }
}

static inline void tiny_weight(struct tiny *t, int layer, const char *part, int rows,
                               int cols)
{
    bool vec = rows == 0, bias = strstr(part, ".bias") != NULL;
    char name[128];

    snprintf(name, sizeof(name), "model.layers.%d.%s", layer, part);
    tiny_tensor(t, name, rows, cols, vec && !bias ? 1 : 0,
                vec ? 0.1f : 1.5f / sqrtf((float)cols));
}

static inline void tiny_experts(struct tiny *t, int i, const struct tiny_family *f)
{
    int ff =
        !strcmp(f->mlp, "mlp") && strcmp(f->name, "olmoe") ? TINY_FF_EXPERT : TINY_FF;
    char name[96];

    snprintf(name, sizeof(name), "%s.gate.weight", f->mlp);
    tiny_weight(t, i, name, TINY_EXPERTS, TINY_EMBD);
    for (int x = 0; x < TINY_EXPERTS; x++) {
        snprintf(name, sizeof(name), "%s.experts.%d.%s.weight", f->mlp, x, f->gate);
        tiny_weight(t, i, name, ff, TINY_EMBD);
        snprintf(name, sizeof(name), "%s.experts.%d.%s.weight", f->mlp, x, f->up);
        tiny_weight(t, i, name, ff, TINY_EMBD);
        snprintf(name, sizeof(name), "%s.experts.%d.%s.weight", f->mlp, x, f->down);
        tiny_weight(t, i, name, TINY_EMBD, ff);
    }
    if (!f->shared)
        return;
    tiny_weight(t, i, "mlp.shared_expert_gate.weight", 1, TINY_EMBD);
    tiny_weight(t, i, "mlp.shared_expert.gate_proj.weight", TINY_FF_SHARED, TINY_EMBD);
    tiny_weight(t, i, "mlp.shared_expert.up_proj.weight", TINY_FF_SHARED, TINY_EMBD);
    tiny_weight(t, i, "mlp.shared_expert.down_proj.weight", TINY_EMBD, TINY_FF_SHARED);
}

/* gpt-oss: one tensor for all experts, [expert, column, row]; biases [expert, row]. */
static inline void tiny_packed(struct tiny *t, int i)
{
    static const struct {
        const char *name;
        int cols, rows;
    } parts[] = {{"gate_up_proj", TINY_EMBD, 2 * TINY_FF},
                 {"down_proj", TINY_FF, TINY_EMBD}};
    char name[128];

    tiny_weight(t, i, "mlp.router.weight", TINY_EXPERTS, TINY_EMBD);
    tiny_weight(t, i, "mlp.router.bias", 0, TINY_EXPERTS);
    for (int p = 0; p < 2; p++) {
        snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.%s", i, parts[p].name);
        tiny_block(t, name, TINY_EXPERTS, parts[p].cols, parts[p].rows,
                   1.5f / sqrtf((float)parts[p].cols));
        snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.%s_bias", i,
                 parts[p].name);
        tiny_tensor(t, name, TINY_EXPERTS, parts[p].rows, 0, 0.3f);
    }
}

enum { TINY_Q_LORA = 48, TINY_KV_LORA = 32, TINY_NOPE = 16, TINY_ROPE = 8, TINY_V = 12 };

/* Latent attention and, from layer 1 on, experts with a shared one. */
static inline void tiny_latent(struct tiny *t, int i, const char *family)
{
    bool v2 = !strcmp(family, "deepseek_v2");
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    char name[96];

    if (!v2) {
        tiny_weight(t, i, "self_attn.q_a_proj.weight", TINY_Q_LORA, TINY_EMBD);
        tiny_weight(t, i, "self_attn.q_a_layernorm.weight", 0, TINY_Q_LORA);
    }
    tiny_weight(t, i, v2 ? "self_attn.q_proj.weight" : "self_attn.q_b_proj.weight",
                tiny_size.heads * (TINY_NOPE + TINY_ROPE), v2 ? TINY_EMBD : TINY_Q_LORA);
    tiny_weight(t, i, "self_attn.kv_a_proj_with_mqa.weight", TINY_KV_LORA + TINY_ROPE,
                TINY_EMBD);
    tiny_weight(t, i, "self_attn.kv_a_layernorm.weight", 0, TINY_KV_LORA);
    tiny_weight(t, i, "self_attn.kv_b_proj.weight",
                tiny_size.heads * (TINY_NOPE + TINY_V), TINY_KV_LORA);
    tiny_weight(t, i, "self_attn.o_proj.weight", TINY_EMBD, tiny_size.heads * TINY_V);
    if (i > 0)
        tiny_weight(t, i, "mlp.gate.weight", TINY_EXPERTS, TINY_EMBD);
    if (i > 0 && !v2) {
        snprintf(name, sizeof(name), "model.layers.%d.mlp.gate.e_score_correction_bias",
                 i);
        tiny_tensor(t, name, 0, TINY_EXPERTS, 0.3f, 0.2f);
    }
    for (int x = 0; x < (i ? TINY_EXPERTS + 1 : 1); x++)
        for (int p = 0; p < 3; p++) {
            int ff = i ? TINY_FF_EXPERT : TINY_FF;
            if (i == 0)
                snprintf(name, sizeof(name), "mlp.%s.weight", parts[p]);
            else if (x == TINY_EXPERTS)
                snprintf(name, sizeof(name), "mlp.shared_experts.%s.weight", parts[p]);
            else
                snprintf(name, sizeof(name), "mlp.experts.%d.%s.weight", x, parts[p]);
            tiny_weight(t, i, name, p == 2 ? TINY_EMBD : ff, p == 2 ? ff : TINY_EMBD);
        }
    tiny_weight(t, i, "input_layernorm.weight", 0, TINY_EMBD);
    tiny_weight(t, i, "post_attention_layernorm.weight", 0, TINY_EMBD);
}

static inline void tiny_layer(struct tiny *t, int i, const struct tiny_family *f)
{
    int q = tiny_size.heads * TINY_HEAD_DIM, kv = tiny_size.kv_heads * TINY_HEAD_DIM;
    bool full = f->norm == TINY_FULL_NORM;

    tiny_weight(t, i, "self_attn.q_proj.weight", q, TINY_EMBD);
    tiny_weight(t, i, "self_attn.k_proj.weight", kv, TINY_EMBD);
    tiny_weight(t, i, "self_attn.v_proj.weight", kv, TINY_EMBD);
    tiny_weight(t, i, "self_attn.o_proj.weight", TINY_EMBD, q);
    if (!f->mlp) {
        tiny_weight(t, i, "mlp.gate_proj.weight", TINY_FF, TINY_EMBD);
        tiny_weight(t, i, "mlp.up_proj.weight", TINY_FF, TINY_EMBD);
        tiny_weight(t, i, "mlp.down_proj.weight", TINY_EMBD, TINY_FF);
    }
    tiny_weight(t, i, "input_layernorm.weight", 0, TINY_EMBD);
    tiny_weight(t, i, "post_attention_layernorm.weight", 0, TINY_EMBD);
    if (f->norm) {
        tiny_weight(t, i, "self_attn.q_norm.weight", 0, full ? q : TINY_HEAD_DIM);
        tiny_weight(t, i, "self_attn.k_norm.weight", 0, full ? kv : TINY_HEAD_DIM);
    }
    if (!strcmp(f->name, "gpt_oss")) {
        tiny_weight(t, i, "self_attn.o_proj.bias", 0, TINY_EMBD);
        tiny_weight(t, i, "self_attn.sinks", 0, tiny_size.heads);
        tiny_packed(t, i);
    }
    if (f->bias) {
        tiny_weight(t, i, "self_attn.q_proj.bias", 0, q);
        tiny_weight(t, i, "self_attn.k_proj.bias", 0, kv);
        tiny_weight(t, i, "self_attn.v_proj.bias", 0, kv);
    }
    if (f->mlp && *f->gate)
        tiny_experts(t, i, f);
}

static inline void tiny_tokenizer(FILE *f)
{
    fprintf(f,
            "{\"version\":\"1.0\",\"added_tokens\":["
            "{\"id\":%d,\"content\":\"<|end|>\",\"special\":true,\"single_word\":false,"
            "\"lstrip\":false,\"rstrip\":false,\"normalized\":false}],"
            "\"normalizer\":null,"
            "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
            "\"trim_offsets\":true,\"use_regex\":true},"
            "\"post_processor\":null,"
            "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
            "\"trim_offsets\":true,\"use_regex\":true},"
            "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{",
            TINY_EOS);
    for (int b = 0, extra = 0; b < 256; b++) { /* byte-level letters of each byte */
        bool plain =
            (b >= 33 && b < 127) || (b >= 161 && b < 173) || (b >= 174 && b < 256);
        int c = plain ? b : 256 + extra++;
        char u[3] = {(char)c, 0, 0};
        if (c >= 128) {
            u[0] = (char)(0xc0 | c >> 6);
            u[1] = (char)(0x80 | (c & 63));
        }
        fprintf(f, "%s\"%s%s\":%d", b ? "," : "", c == '"' || c == '\\' ? "\\" : "", u,
                b);
    }
    fprintf(f, "}}}");
}

static inline void tiny_join(const char *dir, struct tiny *t, const char *head)
{
    char path[4096], buf[4096];
    size_t n = strlen(head), pad = (8 - n % 8) % 8;
    uint64_t len = n + pad;

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fwrite(&len, 8, 1, f);
    fwrite(head, 1, n, f);
    fwrite("        ", 1, pad, f);
    rewind(t->data);
    while ((n = fread(buf, 1, sizeof(buf), t->data)) > 0)
        fwrite(buf, 1, n, f);
    fclose(f);
}

static inline FILE *tiny_file(const char *dir, const char *name)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    return f;
}

/* A new folder under /tmp (or TMPDIR) with the model; its path lives until the next call.
 */
static inline const char *tiny_model(const char *family, uint64_t seed)
{
    static char dir[256];
    const char *tmp = getenv("TMPDIR");
    const struct tiny_family *fam = NULL;
    struct tiny t = {.rng = seed * 7919 + 1};
    char *head = NULL;
    size_t head_n;

    for (size_t i = 0; i < sizeof(tiny_families) / sizeof(tiny_families[0]); i++)
        if (!strcmp(tiny_families[i].name, family))
            fam = &tiny_families[i];
    assert_non_null(fam);
    snprintf(dir, sizeof(dir), "%s/llmrack-tiny-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    t.head = open_memstream(&head, &head_n);
    t.data = tmpfile();
    fputc('{', t.head);
    tiny_tensor(&t, "model.embed_tokens.weight", TINY_VOCAB, TINY_EMBD, 0, 1);
    for (int i = 0; i < tiny_size.layers; i++)
        if (strstr(fam->config, "kv_lora_rank"))
            tiny_latent(&t, i, family);
        else
            tiny_layer(&t, i, fam);
    tiny_tensor(&t, "model.norm.weight", 0, TINY_EMBD, 1, 0.1f);
    tiny_tensor(&t, "lm_head.weight", TINY_VOCAB, TINY_EMBD, 0, 0.25f);
    fputc('}', t.head);
    fclose(t.head);
    tiny_join(dir, &t, head);
    fclose(t.data);
    free(head);

    FILE *f = tiny_file(dir, "config.json");
    fprintf(f,
            "{%s\"model_type\":\"%s\",\"hidden_size\":%d,\"num_hidden_layers\":%d,"
            "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
            "\"intermediate_size\":%d,\"vocab_size\":%d,\"max_position_embeddings\":%d,"
            "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,"
            "\"hidden_act\":\"silu\",\"eos_token_id\":%d,\"torch_dtype\":\"float32\"}",
            fam->config, family, TINY_EMBD, tiny_size.layers, tiny_size.heads,
            tiny_size.kv_heads, TINY_HEAD_DIM, TINY_FF, TINY_VOCAB, TINY_CTX, TINY_EOS);
    fclose(f);
    f = tiny_file(dir, "tokenizer.json");
    tiny_tokenizer(f);
    fclose(f);
    f = tiny_file(dir, "tokenizer_config.json");
    fprintf(f, "{\"eos_token\":\"<|end|>\",\"add_bos_token\":false}");
    fclose(f);
    return dir;
}

static inline void tiny_remove(const char *dir)
{
    static const char *const names[] = {"config.json", "tokenizer.json",
                                        "tokenizer_config.json", "model.safetensors"};
    char path[4096];

    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

#endif

/* tests/tiny.h - a tiny random model as a Hugging Face folder, made from a seed in C, for
 * tests that need any model at all and neither Python nor a download. Families llama and
 * qwen3 differ in the norms of q and k; weights are F32. */
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
    TINY_EOS = 258
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

static inline void tiny_layer(struct tiny *t, int i, bool qk_norm)
{
    static const struct {
        const char *name;
        int rows, cols;
    } mats[] = {
        {"self_attn.q_proj", TINY_HEADS * TINY_HEAD_DIM, TINY_EMBD},
        {"self_attn.k_proj", TINY_KV_HEADS * TINY_HEAD_DIM, TINY_EMBD},
        {"self_attn.v_proj", TINY_KV_HEADS * TINY_HEAD_DIM, TINY_EMBD},
        {"self_attn.o_proj", TINY_EMBD, TINY_HEADS * TINY_HEAD_DIM},
        {"mlp.gate_proj", TINY_FF, TINY_EMBD},
        {"mlp.up_proj", TINY_FF, TINY_EMBD},
        {"mlp.down_proj", TINY_EMBD, TINY_FF},
        {"input_layernorm", 0, TINY_EMBD},
        {"post_attention_layernorm", 0, TINY_EMBD},
        {"self_attn.q_norm", 0, TINY_HEAD_DIM},
        {"self_attn.k_norm", 0, TINY_HEAD_DIM},
    };
    char name[128];

    for (int m = 0; m < (qk_norm ? 11 : 9); m++) {
        bool vec = mats[m].rows == 0;
        snprintf(name, sizeof(name), "model.layers.%d.%s.weight", i, mats[m].name);
        tiny_tensor(t, name, mats[m].rows, mats[m].cols, vec ? 1 : 0,
                    vec ? 0.1f : 1.5f / sqrtf((float)mats[m].cols));
    }
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
    bool qk_norm = !strcmp(family, "qwen3");
    struct tiny t = {.rng = seed * 7919 + 1};
    char *head = NULL;
    size_t head_n;

    snprintf(dir, sizeof(dir), "%s/llmrack-tiny-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    t.head = open_memstream(&head, &head_n);
    t.data = tmpfile();
    fputc('{', t.head);
    tiny_tensor(&t, "model.embed_tokens.weight", TINY_VOCAB, TINY_EMBD, 0, 1);
    for (int i = 0; i < TINY_LAYERS; i++)
        tiny_layer(&t, i, qk_norm);
    tiny_tensor(&t, "model.norm.weight", 0, TINY_EMBD, 1, 0.1f);
    tiny_tensor(&t, "lm_head.weight", TINY_VOCAB, TINY_EMBD, 0, 0.25f);
    fputc('}', t.head);
    fclose(t.head);
    tiny_join(dir, &t, head);
    fclose(t.data);
    free(head);

    FILE *f = tiny_file(dir, "config.json");
    fprintf(f,
            "{\"model_type\":\"%s\",\"hidden_size\":%d,\"num_hidden_layers\":%d,"
            "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
            "\"intermediate_size\":%d,\"vocab_size\":%d,\"max_position_embeddings\":%d,"
            "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,"
            "\"hidden_act\":\"silu\",\"eos_token_id\":%d,\"torch_dtype\":\"float32\"}",
            family, TINY_EMBD, TINY_LAYERS, TINY_HEADS, TINY_KV_HEADS, TINY_HEAD_DIM,
            TINY_FF, TINY_VOCAB, TINY_CTX, TINY_EOS);
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

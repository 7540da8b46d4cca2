/* Opening models: families, both formats, what a file must hold, and the sentence for
 * each thing that is wrong. Tiny files made here; the demo model where it is present. */
#include "daemon/serve/model.h"

#include <math.h>

#include "base/err.h"
#include "daemon/serve/gguf.h"
#include "tests/files.h"

static char dir[64], path[128];

static int set_up(void **state)
{
    (void)state;
    files_temp(dir);
    snprintf(path, sizeof(path), "%s/m.gguf", dir);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    files_remove(dir);
    return 0;
}

static struct model *open_ok(const char *p)
{
    struct model *m = NULL;
    struct err e = {0};

    if (model_open(p, &m, &e) < 0)
        fail_msg("%s", e.msg);
    assert_non_null(m);
    return m;
}

static void open_bad(const char *p, const char *file, const char *part)
{
    struct model *m = NULL;
    struct err e = {0};

    assert_int_equal(model_open(p, &m, &e), -1);
    assert_null(m);
    assert_null(strchr(e.msg, '\n'));
    if (!strstr(e.msg, file) || !strstr(e.msg, part))
        fail_msg("expected '%s' and '%s' in: %s", file, part, e.msg);
}

/* Write a GGUF file: the tiny model, with more keys put by the caller into g first. */
static void write_gguf(struct gb *g, const char *arch, const char *type,
                       const struct tweak *t)
{
    struct gb fresh;
    struct buf b;

    if (!g) {
        gb_init(&fresh);
        g = &fresh;
    }
    buf_init(&b, 0);
    tiny_gguf_keys(g, arch);
    tiny_gguf_tensors(g, type, t);
    gb_finish(g, &b);
    files_write(dir, "m.gguf", b.p, b.len);
    buf_done(&b);
    gb_done(g);
}

/* Write a folder into dir. */
static void write_folder(const char *config, const char *type, const char *prefix,
                         size_t pad, const struct tweak *t)
{
    struct buf b;

    buf_init(&b, 0);
    tiny_shard(&b, type, prefix, 0, 1, pad, t);
    files_write(dir, "model.safetensors", b.p, b.len);
    files_write(dir, "config.json", config, strlen(config));
    buf_done(&b);
}

/* ---- what loads ---- */

static void opens_gguf(void **state)
{
    static const char *const types[] = {"F32",  "F16",  "BF16", "Q8_0",
                                        "Q4_0", "Q4_1", "Q5_0", "Q5_1"};
    const struct model_tensor *t;
    const struct model_info *i;
    struct model *m;

    (void)state;
    for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++) {
        write_gguf(NULL, "llama", types[k], NULL);
        m = open_ok(path);
        i = model_info(m);
        assert_int_equal(i->family, FAMILY_LLAMA);
        assert_string_equal(i->name, "tiny");
        assert_string_equal(i->format, "gguf");
        assert_string_equal(i->main_type, types[k]);
        assert_int_equal(i->n_layer, T_LAYER);
        assert_int_equal(i->head_dim, T_DIM);
        assert_int_equal(i->rope_dim, T_DIM);
        assert_int_equal(i->n_vocab, T_VOCAB);
        assert_false(i->rope_neox || i->tied_head || i->qkv_bias || i->qk_norm);
        assert_int_equal(i->n_tensors, 3 + 9 * T_LAYER);
        assert_int_equal(i->n_ignored, 0);
        t = model_tensor(m, ROLE_DOWN, 1);
        assert_string_equal(t->name, "blk.1.ffn_down.weight");
        assert_string_equal(t->file, path);
        assert_int_equal(t->rows, T_EMBD);
        assert_int_equal(t->cols, T_FF);
        assert_int_equal(t->bytes,
                         (size_t)(dtype_row_bytes(t->type, T_FF) * (int64_t)T_EMBD));
        assert_int_equal(model_tensor(m, ROLE_OUT_NORM, 0)->rows, 1);
        assert_null(model_tensor(m, ROLE_Q_BIAS, 0));
        assert_null(model_tensor(m, ROLE_DOWN, T_LAYER));
        assert_null(model_tensor(m, ROLE_DOWN, -1));
        assert_non_null(model_gguf(m));
        assert_null(model_dir(m));
        model_drop_pages(m, t);
        model_free(m);
    }
    model_free(NULL);
}

static void opens_a_folder(void **state)
{
    static const char *const prefixes[] = {"model.", ""};
    struct model *m;

    (void)state;
    for (int k = 0; k < 4; k++) {
        write_folder(tiny_config, k % 2 ? "F32" : "BF16", prefixes[k / 2], 0, NULL);
        m = open_ok(dir);
        assert_string_equal(model_info(m)->format, "safetensors");
        assert_string_equal(model_info(m)->main_type, k % 2 ? "F32" : "BF16");
        assert_string_equal(model_info(m)->name, strrchr(dir, '/') + 1);
        assert_true(model_info(m)->rope_neox);
        assert_int_equal(model_tensor(m, ROLE_K, 1)->rows, T_KV * T_DIM);
        assert_null(model_gguf(m));
        assert_string_equal(model_dir(m), dir);
        model_free(m);
    }
}

/* Old files end their header anywhere: tensors are copied to where they can be read. */
static void aligns_tensors(void **state)
{
    struct model *m;

    (void)state;
    for (size_t pad = 1; pad < 8; pad++) {
        write_folder(tiny_config, "F32", "model.", pad, NULL);
        m = open_ok(dir);
        for (int role = 0; role < ROLE_COUNT; role++) {
            const struct model_tensor *t = model_tensor(m, (enum model_role)role, 0);

            assert_true(!t || (uintptr_t)t->data % 4 == 0);
        }
        model_drop_pages(m, model_tensor(m, ROLE_Q, 0));
        model_free(m);
    }
}

static void write_shards(int n, int left_out, const char *lie)
{
    struct buf b, index;
    char name[64];

    buf_init(&b, 0);
    buf_init(&index, 0);
    buf_puts(&index, "{\"weight_map\":{\"");
    buf_puts(&index, lie ? lie : "model.norm.weight");
    buf_printf(&index, "\":\"s%d.safetensors\"", lie ? 0 : 1);
    for (int s = 0; s < n; s++) {
        buf_clear(&b);
        tiny_shard(&b, "F16", "model.", s, n, 0, NULL);
        snprintf(name, sizeof(name), "s%d.safetensors", s);
        if (s != left_out)
            files_write(dir, name, b.p, b.len);
        /* names, as the header has them */
        for (char *p = b.p + 8 + 30; (p = strstr(p, ",\"")) != NULL; p += 2) {
            char *end = strchr(p + 2, '"');

            if (strncmp(p + 2, "shape", 5) && strncmp(p + 2, "data_", 5) &&
                strncmp(p + 2, "model.norm", 10))
                buf_printf(&index, ",\"%.*s\":\"%s\"", (int)(end - p - 2), p + 2, name);
        }
    }
    buf_puts(&index, "}}");
    files_write(dir, "model.safetensors.index.json", index.p, index.len);
    files_write(dir, "config.json", tiny_config, sizeof(tiny_config) - 1);
    buf_done(&b);
    buf_done(&index);
}

static void opens_shards(void **state)
{
    struct model *m;

    (void)state;
    write_shards(3, -1, NULL);
    m = open_ok(dir);
    assert_int_equal(model_info(m)->n_tensors, 3 + 9 * T_LAYER);
    assert_non_null(strstr(model_tensor(m, ROLE_OUT_NORM, 0)->file, "/s1.safetensors"));
    model_free(m);
    write_shards(3, -1, "model.nowhere");
    open_bad(dir, "index.json", "'model.nowhere' is said to be in 's0.safetensors'");
    files_remove(dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    write_shards(3, 2, NULL);
    open_bad(dir, "/s2.safetensors", "No such file");
}

static void passes_over_what_it_does_not_know(void **state)
{
    struct model *m;
    struct gb g;

    (void)state;
    gb_init(&g);
    gb_u32(&g, "somebody.else", 1);
    gb_strs(&g, "general.tags", 3);
    gb_tensor(&g, "somebody.else.weight", 16, 256, 1, NULL,
              64); /* of a type not served */
    gb_tensor(&g, "blk.0.attn_rot_embd", 0, 8, 0, NULL, 32);
    gb_tensor(&g, "blk.9.attn_norm.bias", 0, 8, 0, NULL, 32); /* no such layer */
    write_gguf(&g, "llama", "F16", NULL);
    m = open_ok(path);
    assert_int_equal(model_info(m)->n_ignored, 3);
    model_free(m);
}

static void falls_back_by_tensor(void **state)
{
    const struct tweak t = {.name = "blk.1.ffn_down.weight", .type = "Q8_0"};
    struct model *m;

    (void)state;
    write_gguf(NULL, "llama", "Q4_0", &t);
    m = open_ok(path);
    assert_int_equal(model_tensor(m, ROLE_DOWN, 0)->type, DT_Q4_0);
    assert_int_equal(model_tensor(m, ROLE_DOWN, 1)->type, DT_Q8_0);
    assert_string_equal(model_info(m)->main_type, "Q4_0");
    model_free(m);
}

static void ties_the_head(void **state)
{
    const struct tweak gguf = {.name = "output.weight", .drop = true};
    const struct tweak hf = {.name = "lm_head.weight", .drop = true};
    char config[1024];
    struct model *m;

    (void)state;
    write_gguf(NULL, "llama", "F16", &gguf);
    m = open_ok(path);
    assert_true(model_info(m)->tied_head);
    assert_null(model_tensor(m, ROLE_OUT_HEAD, 0));
    model_free(m);
    write_folder(tiny_config, "F16", "model.", 0, &hf);
    open_bad(dir, dir, "tensor 'lm_head.weight' is missing");
    snprintf(config, sizeof(config), "{\"tie_word_embeddings\":true,%s", tiny_config + 1);
    write_folder(config, "F16", "model.", 0, &hf);
    m = open_ok(dir);
    assert_true(model_info(m)->tied_head);
    model_free(m);
}

/* ---- families ---- */

static void qwen_needs_its_own(void **state)
{
    static const char *const parts[] = {"attn_q", "attn_k", "attn_v"};
    const struct model_info *i;
    struct model *m;
    struct gb g;

    (void)state;
    write_gguf(NULL, "qwen2", "F16", NULL);
    open_bad(path, path, "tensor 'blk.0.attn_q.bias' is missing: a qwen2 model");
    gb_init(&g);
    for (int k = 0; k < 3 * T_LAYER; k++) {
        char name[64];

        snprintf(name, sizeof(name), "blk.%d.%s.bias", k / 3, parts[k % 3]);
        gb_tensor(&g, name, 0, k % 3 ? T_KV * T_DIM : T_HEAD * T_DIM, 0, NULL, 128);
    }
    write_gguf(&g, "qwen2", "F16", NULL);
    m = open_ok(path);
    i = model_info(m);
    assert_true(i->family == FAMILY_QWEN2 && i->qkv_bias && i->rope_neox && !i->qk_norm);
    assert_int_equal(model_tensor(m, ROLE_K_BIAS, 1)->cols, T_KV * T_DIM);
    model_free(m);

    write_gguf(NULL, "qwen3", "F16", NULL);
    open_bad(path, path, "tensor 'blk.0.attn_q_norm.weight' is missing: a qwen3 model");
    gb_init(&g);
    for (int k = 0; k < 2 * T_LAYER; k++) {
        char name[64];

        snprintf(name, sizeof(name), "blk.%d.%s_norm.weight", k / 2, parts[k % 2]);
        gb_tensor(&g, name, 0, T_DIM, 0, NULL, 32);
    }
    write_gguf(&g, "qwen3", "F16", NULL);
    m = open_ok(path);
    i = model_info(m);
    assert_true(i->family == FAMILY_QWEN3 && i->qk_norm && i->rope_neox && !i->qkv_bias);
    assert_int_equal(model_tensor(m, ROLE_Q_NORM, 0)->cols, T_DIM);
    model_free(m);
}

static void names_families(void **state)
{
    static const char served[] = "supported: llama, mistral, qwen2, qwen3";
    char config[1024];

    (void)state;
    assert_string_equal(
        model_families(),
        "llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, olmoe, gpt_oss, "
        "deepseek_v2, deepseek_v3, kimi_k2");
    write_gguf(NULL, "gemma3", "F16", NULL);
    open_bad(path, path, "family 'gemma3' are not supported");
    open_bad(path, path, served);
    snprintf(config, sizeof(config), "{\"model_type\":\"phi3\"%s",
             strstr(tiny_config, ",\"hidden"));
    write_folder(config, "F16", "model.", 0, NULL);
    open_bad(dir, "/config.json", "family 'phi3' are not supported");
    open_bad(dir, "/config.json", served);
}

/* ---- tensors that are wrong ---- */

static void names_wrong_tensors(void **state)
{
    static const struct {
        struct tweak t;
        const char *part;
    } bad[] = {
        {{.name = "blk.1.attn_k.weight", .drop = true},
         "tensor 'blk.1.attn_k.weight' is missing: a llama model with 2 layers needs it, "
         "with 16 x 32"},
        {{.name = "output_norm.weight", .drop = true}, "'output_norm.weight' is missing"},
        {{.name = "token_embd.weight", .drop = true}, "'token_embd.weight' is missing"},
        {{.name = "token_embd.weight", .rows = 8}, "40 tokens but"},
        {{.name = "blk.0.attn_q.weight", .cols = 64},
         "'blk.0.attn_q.weight' is 32 x 64 (rows x columns); right for this model is 32 "
         "x "
         "32"},
        {{.name = "blk.0.ffn_norm.weight", .cols = 64}, "is 1 x 64"},
        {{.name = "blk.0.ffn_up.weight", .rows = 32}, "right for this model is 64 x 32"},
        {{.name = "blk.0.ffn_norm.weight", .type = "Q8_0"},
         "'blk.0.ffn_norm.weight' is of type Q8_0; a vector may be F32, F16 or BF16"},
        {{.name = "blk.0.ffn_up.weight", .type = "10"},
         "is of type Q2_K, which is not supported; supported: F32 F16 BF16 Q4_0"},
        {{.name = "blk.0.ffn_up.weight", .type = "999"}, "is of type unknown"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_gguf(NULL, "llama", "F16", &bad[i].t);
        open_bad(path, path, bad[i].part);
    }
    write_folder(tiny_config, "F16", "model.", 0,
                 &(struct tweak){.name = "model.layers.1.mlp.up_proj.weight", .rows = 8});
    open_bad(dir, "/model.safetensors",
             "'model.layers.1.mlp.up_proj.weight' is 8 x 32 (rows x columns); right");
    write_folder(
        tiny_config, "F16", "model.", 0,
        &(struct tweak){.name = "model.layers.1.mlp.up_proj.weight", .type = "I16"});
    open_bad(dir, "/model.safetensors", "is of type I16");
}

static void refuses_what_would_change_the_answers(void **state)
{
    static const char *const names[] = {
        "blk.0.attn_output.bias",     "blk.1.ffn_up.bias", "blk.0.attn_norm.bias",
        "blk.1.post_ffw_norm.weight", "blk.1.attn_q.bias", /* layer 0 has none */
        "blk.1.attn_sub_norm.weight",
    };
    struct gb g;

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        gb_init(&g);
        gb_tensor(&g, names[i], 0, T_EMBD, 0, NULL, T_EMBD * 4);
        write_gguf(&g, "llama", "F16", NULL);
        open_bad(path, names[i], "is no part of a llama model as it is served");
    }
}

/* ---- hyper-parameters ---- */

static void checks_gguf_keys(void **state)
{
    static const struct {
        const char *key, *text; /* NULL: the number */
        uint32_t number;
        const char *part;
    } bad[] = {
        {"llama.attention.key_length", NULL, 7, "head_dim is 7"},
        {"llama.attention.key_length", NULL, 4000,
         "head_dim is 4000; served are 2 to 1024"},
        {"llama.attention.value_length", NULL, 4, "keys of 8 and values of 4"},
        {"llama.rope.dimension_count", NULL, 16, "rope_dim is 16"},
        {"llama.rope.dimension_count", NULL, 5, "rope_dim is 5"},
        {"llama.rope.freq_base", NULL, 0, "rope_theta is 0"},
        {"llama.rope.scaling.type", "longrope", 0,
         "RoPE scaling 'longrope' is not supported"},
        {"llama.rope.scaling.type", "linear", 0, "RoPE scaling factor is 0"},
        {"llama.expert_count", NULL, 8, "llama.expert_used_count' is missing"},
        {"split.count", NULL, 4, "one of 4 parts"},
        {"llama.attention.sliding_window", "x", 0, "is STRING; right is an integer"},
    };
    struct gb g;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        gb_init(&g);
        if (bad[i].text)
            gb_str(&g, bad[i].key, bad[i].text);
        else
            gb_u32(&g, bad[i].key, bad[i].number);
        write_gguf(&g, "llama", "F16", NULL);
        open_bad(path, path, bad[i].part);
    }
}

/* ---- RoPE ---- */

static void near(const float *got, const double *want, int n)
{
    for (int j = 0; j < n; j++)
        if (fabs((double)got[j] - want[j]) > 1e-7 * want[j])
            fail_msg("inv_freq[%d] is %.9g, not %.9g", j, (double)got[j], want[j]);
}

static void gives_inverse_frequencies(void **state)
{
    /* theta 10000, 4 pairs; llama3: factor 8, 1, 4, 64: waves 6.28, 62.8, 628, 6283;
     * the second one lies between 16 and 64: smooth (64 / 62.83 - 1) / 3 */
    const double plain[] = {1, 0.1, 0.01, 0.001};
    const double linear[] = {0.25, 0.025, 0.0025, 0.00025};
    const double smooth = (64 / (2 * M_PI / 0.1) - 1) / 3;
    const double llama3[] = {1, (1 - smooth) * 0.1 / 8 + smooth * 0.1, 0.01 / 8,
                             0.001 / 8};
    const float factors[] = {1, 2, 4, 8};
    const double divided[] = {1, 0.05, 0.0025, 0.000125};
    char text[1024];
    struct model *m;
    struct gb g;
    float got[4];

    (void)state;
    write_gguf(NULL, "llama", "F16", NULL);
    m = open_ok(path);
    model_inv_freq(m, got);
    near(got, plain, 4);
    model_free(m);

    gb_init(&g);
    gb_str(&g, "llama.rope.scaling.type", "linear");
    gb_f32(&g, "llama.rope.scaling.factor", 4);
    write_gguf(&g, "llama", "F16", NULL);
    m = open_ok(path);
    model_inv_freq(m, got);
    near(got, linear, 4);
    model_free(m);

    gb_init(&g);
    gb_tensor(&g, "rope_freqs.weight", 0, 4, 0, factors, sizeof(factors));
    write_gguf(&g, "llama", "F16", NULL);
    m = open_ok(path);
    assert_int_equal(model_info(m)->rope_scaling, ROPE_LLAMA3);
    model_inv_freq(m, got);
    near(got, divided, 4);
    model_free(m);

    snprintf(
        text, sizeof(text),
        "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
        "\"high_freq_factor\":4,\"original_max_position_embeddings\":64},%s",
        tiny_config + 1);
    write_folder(text, "F16", "model.", 0, NULL);
    m = open_ok(dir);
    model_inv_freq(m, got);
    near(got, llama3, 4);
    model_free(m);
}

static void checks_rope_factors(void **state)
{
    const float factors[] = {1, 0, 4, 8};
    struct gb g;

    (void)state;
    gb_init(&g);
    gb_tensor(&g, "rope_freqs.weight", 0, 4, 0, factors, sizeof(factors));
    write_gguf(&g, "llama", "F16", NULL);
    open_bad(path, path, "value 1 of tensor 'rope_freqs.weight' is 0");
    gb_init(&g);
    gb_str(&g, "llama.rope.scaling.type", "linear");
    gb_f32(&g, "llama.rope.scaling.factor", 4);
    gb_tensor(&g, "rope_freqs.weight", 0, 4, 0, factors, sizeof(factors));
    write_gguf(&g, "llama", "F16", NULL);
    open_bad(path, path, "'rope_freqs.weight' together with linear");
}

/* ---- places ---- */

static void names_places(void **state)
{
    (void)state;
    open_bad("/nonexistent/m.gguf", "/nonexistent/m.gguf", "No such file");
    open_bad(dir, "/config.json", "No such file");
    files_write(dir, "config.json", tiny_config, sizeof(tiny_config) - 1);
    open_bad(dir, dir, "neither model.safetensors nor");
    files_write(dir, "m.gguf", "PK..............", 16);
    open_bad(path, path, "not a GGUF file");
    files_write(dir, "model.safetensors", "", 0);
    open_bad(dir, "/model.safetensors", "the file is empty");
}

static void opens_the_demo_model(void **state)
{
    struct model *m = open_ok(test_demo_model());
    const struct model_info *i = model_info(m);

    (void)state;
    assert_int_equal(i->family, FAMILY_LLAMA);
    assert_int_equal(i->n_layer, 30);
    assert_int_equal(i->n_embd, 576);
    assert_int_equal(i->n_head, 9);
    assert_int_equal(i->n_kv_head, 3);
    assert_int_equal(i->head_dim, 64);
    assert_int_equal(i->n_vocab, 49152);
    assert_int_equal(i->n_params, 134515008);
    assert_int_equal(i->n_tensors, 272);
    assert_true(i->tied_head && !i->rope_neox && i->rope_theta == 1e5f);
    assert_string_equal(i->main_type, "Q4_1");
    assert_int_equal(model_tensor(m, ROLE_TOK_EMBD, 0)->type, DT_Q8_0);
    model_free(m);
}

/* Everything at once: a model file with any number in its header changed. */
static void survives_changed_headers(void **state)
{
    uint64_t seed = test_seed();
    struct rlimit old;
    struct model *m;
    struct err e;
    struct buf b;
    char was;

    (void)state;
    buf_init(&b, 0);
    tiny_gguf(&b, "llama", "Q4_0", NULL);
    files_limit_memory(16 << 20, &old);
    for (int round = 0; round < 3000; round++) {
        size_t at = 24 + test_rand(&seed) % 1900;

        was = b.p[at];
        b.p[at] ^= (char)(1 << test_rand(&seed) % 8);
        files_write(dir, "m.gguf", b.p, b.len);
        b.p[at] = was;
        err_clear(&e);
        if (model_open(path, &m, &e) < 0)
            assert_memory_equal(e.msg, path, strlen(path));
        else
            model_free(m);
    }
    files_unlimit_memory(&old);
    buf_done(&b);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(opens_gguf),
        T(opens_a_folder),
        T(aligns_tensors),
        T(opens_shards),
        T(passes_over_what_it_does_not_know),
        T(falls_back_by_tensor),
        T(ties_the_head),
        T(qwen_needs_its_own),
        T(names_families),
        T(names_wrong_tensors),
        T(refuses_what_would_change_the_answers),
        T(checks_gguf_keys),
        T(gives_inverse_frequencies),
        T(checks_rope_factors),
        T(names_places),
        T(opens_the_demo_model),
        T(survives_changed_headers),
    };

    return test_main(argc, argv, "model", tests, sizeof(tests) / sizeof(tests[0]));
}

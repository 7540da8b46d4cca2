/* Opening a model while each allocation that a file can drive fails in turn: a sentence,
 * no crash, nothing lost (the leak check of the address sanitizer sees to that), and the
 * same call works afterwards. */
#include "daemon/serve/model.h"

#include "base/err.h"
#include "base/mem.h"
#include "tests/files.h"

static void fail_each(const char *path)
{
    struct model *m = NULL;
    struct err e;
    long calls;

    mem_fail_at(0);
    assert_int_equal(model_open(path, &m, &e), 0);
    calls = mem_fail_count();
    assert_true(calls > 2);
    model_free(m);
    m = NULL;
    for (long n = 1; n <= calls; n++) {
        err_clear(&e);
        mem_fail_at(n);
        assert_int_equal(model_open(path, &m, &e), -1);
        assert_null(m);
        assert_int_equal(e.code, ERR_NOMEM);
        assert_non_null(strstr(e.msg, "no memory for"));
    }
    mem_fail_at(0);
    assert_int_equal(model_open(path, &m, &e), 0);
    model_free(m);
}

static void gguf_without_memory(void **state)
{
    char dir[64], path[128];
    struct buf b;

    (void)state;
    files_temp(dir);
    buf_init(&b, 0);
    tiny_gguf(&b, "llama", "Q8_0", NULL);
    files_write(dir, "m.gguf", b.p, b.len);
    snprintf(path, sizeof(path), "%s/m.gguf", dir);
    fail_each(path);
    buf_done(&b);
    files_remove(dir);
}

static void folder_without_memory(void **state)
{
    char dir[64];
    struct buf b;

    (void)state;
    files_temp(dir);
    buf_init(&b, 0);
    tiny_shard(&b, "F32", "model.", 0, 1, 3, NULL); /* unaligned: tensors are copied */
    files_write(dir, "model.safetensors", b.p, b.len);
    files_write(dir, "config.json", tiny_config, sizeof(tiny_config) - 1);
    fail_each(dir);
    buf_done(&b);
    files_remove(dir);
}

static void shards_without_memory(void **state)
{
    char dir[64];
    struct buf b, index;

    (void)state;
    files_temp(dir);
    buf_init(&b, 0);
    buf_init(&index, 0);
    tiny_shard(&b, "F16", "model.", 0, 1, 0, NULL);
    files_write(dir, "a.safetensors", b.p, b.len);
    buf_puts(&index, "{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\"");
    for (size_t i = 0; i < sizeof(tiny_rows) / sizeof(tiny_rows[0]); i++)
        for (int l = 0; l < T_LAYER && tiny_rows[i].per_layer; l++)
            buf_printf(&index, ",\"model.layers.%d.%s\":\"a.safetensors\"", l,
                       tiny_rows[i].hf);
    buf_puts(&index, ",\"model.embed_tokens.weight\":\"a.safetensors\","
                     "\"lm_head.weight\":\"a.safetensors\"}}");
    files_write(dir, "model.safetensors.index.json", index.p, index.len);
    files_write(dir, "config.json", tiny_config, sizeof(tiny_config) - 1);
    fail_each(dir);
    buf_done(&b);
    buf_done(&index);
    files_remove(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_without_memory),
        cmocka_unit_test(folder_without_memory),
        cmocka_unit_test(shards_without_memory),
    };

    return test_main(argc, argv, "model_nomem", tests, sizeof(tests) / sizeof(tests[0]));
}

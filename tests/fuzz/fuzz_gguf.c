/* Any bytes as a GGUF file: parsed, every tensor inside, every getter on every key it
 * knows, hyper-parameters read. */
#include "daemon/serve/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "daemon/serve/model.h"
#include "daemon/serve/modelinfo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_err(const struct err *e)
{
    if (e->code == ERR_OK || strncmp(e->msg, "f: ", 3) != 0 || strchr(e->msg, '\n'))
        abort();
}

static void read_key(const struct gguf *g, const char *key)
{
    struct gguf_str s, strs[4];
    struct err e;
    int32_t ints[4];
    float floats[4];
    uint64_t u;
    double d;
    size_t n = 0;
    bool b;

    if (gguf_string(g, key, &s, &e) == 0 && s.n)
        b = s.p[s.n - 1];
    gguf_u64(g, key, &u, &e);
    gguf_f64(g, key, &d, &e);
    gguf_bool(g, key, &b, &e);
    gguf_arr_len(g, key, &n, &e);
    n = n < 4 ? n : 4;
    gguf_arr_i32(g, key, ints, n, &e);
    gguf_arr_f32(g, key, floats, n, &e);
    if (gguf_arr_strings(g, key, strs, n, &e) == 0)
        for (size_t i = 0; i < n; i++)
            if (strs[i].n && strs[i].p[strs[i].n - 1] == 'x')
                b = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const keys[] = {
        "general.architecture",
        "general.name",
        "tokenizer.ggml.tokens",
        "llama.block_count",
        "tokenizer.ggml.scores",
        "a",
        "b",
        "tokenizer.ggml.add_bos",
        "general.alignment",
    };
    struct err e = {0};
    struct model_info info;
    struct gguf *g;

    if (gguf_parse("f", data, n, &g, &e) < 0) {
        check_err(&e);
        return 0;
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor(g, i);
        const uint8_t *p = t->data;
        char name[128];

        if (p < data || t->bytes > n - (size_t)(p - data))
            abort();
        memcpy(name, t->name.p, t->name.n);
        name[t->name.n] = '\0';
        if (gguf_find(g, name) != t)
            abort();
    }
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        read_key(g, keys[i]);
    if (modelinfo_from_gguf(g, "f", &info, &e) < 0)
        check_err(&e);
    gguf_free(g);
    return 0;
}

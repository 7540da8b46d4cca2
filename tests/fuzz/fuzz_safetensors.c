/* Any bytes as a safetensors file; text that begins with '{' as an index of shards. */
#include "daemon/serve/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_err(const struct err *e)
{
    if (e->code == ERR_OK || strncmp(e->msg, "f: ", 3) != 0 || strchr(e->msg, '\n'))
        abort();
}

static void one_index(const uint8_t *data, size_t n)
{
    struct safetensors_index x;
    struct err e = {0};

    if (safetensors_index_parse("f", data, n, &x, &e) < 0) {
        check_err(&e);
        return;
    }
    for (size_t i = 0; i < x.n_names; i++)
        if (x.file_of[i] >= x.n_files || strchr(x.files[x.file_of[i]], '/'))
            abort();
    safetensors_index_done(&x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct safetensors *s;
    struct err e = {0};

    if (n && *data == '{') {
        one_index(data, n);
        return 0;
    }
    if (safetensors_parse("f", data, n, &s, &e) < 0) {
        check_err(&e);
        return 0;
    }
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const struct safetensors_tensor *t = safetensors_at(s, i);
        const uint8_t *p = t->data;

        if (p < data + 8 || t->bytes > n - (size_t)(p - data))
            abort();
        if (safetensors_find(s, t->name) != t)
            abort();
    }
    safetensors_free(s);
    return 0;
}

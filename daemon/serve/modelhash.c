/* daemon/serve/modelhash.c - the tensors of a file in one hash. */
#include "daemon/serve/modelhash.h"

#include "base/buf.h"
#include "base/err.h"
#include "daemon/serve/modelfiles.h"

enum { SAMPLE = 128 };

static void add_tensor(struct buf *b, const struct file_tensor *t)
{
    const char *p = t->data;
    uint64_t n = t->bytes;

    buf_printf(b, "%.*s %s", (int)t->name_len, t->name, t->type);
    for (int i = 0; i < t->n_dims && i < 4; i++)
        buf_printf(b, " %llu", (unsigned long long)t->dims[i]);
    buf_printf(b, " %llu\n", (unsigned long long)n);
    if (n <= 3 * SAMPLE) {
        buf_add(b, p, n);
        return;
    }
    buf_add(b, p, SAMPLE);
    buf_add(b, p + n / 2, SAMPLE);
    buf_add(b, p + n - SAMPLE, SAMPLE);
}

int modelhash(const char *path, char ret[SHA256_CHARS + 1], struct err *e)
{
    struct modelfiles *f;
    struct file_tensor t;
    struct buf b;
    int rc;

    if (modelfiles_open(path, &f, e) < 0)
        return -1;
    buf_init(&b, 0);
    rc = modelfiles_check(f, e);
    for (size_t i = 0; rc == 0 && i < modelfiles_count(f); i++) {
        modelfiles_at(f, i, &t);
        add_tensor(&b, &t);
    }
    if (rc == 0)
        sha256_hex(b.p ? b.p : "", b.len, ret);
    buf_done(&b);
    modelfiles_close(f);
    return rc;
}

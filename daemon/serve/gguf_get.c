/* Look-ups in a parsed GGUF file: the getters of gguf.h. Values are read where they lie
 * in the map (unaligned, hence memcpy); parsing has checked that they lie there whole. */
#include "daemon/serve/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "daemon/serve/blame.h"
#include "daemon/serve/gguf_kv.h"

static const struct gguf_kv *find(const struct gguf *g, const char *key)
{
    struct gguf_kv want = {.key = {key, strlen(key)}};

    return bsearch(&want, g->kv, g->n_kv, sizeof(*g->kv), gguf_kv_cmp);
}

static int wrong_type(const struct gguf *g, const struct gguf_kv *kv, const char *want,
                      struct err *e)
{
    struct blame_name b;

    return blame(e, ERR_CORRUPT, g->path, "key '%s' is %s%s; right is %s",
                 blame_name(&b, kv->key.p, kv->key.n), kv->is_array ? "an array of " : "",
                 gguf_value_types[kv->type].name, want);
}

/* Strings are read with a cursor again: who writes into the file while it is in use can
 * spoil the answers, but not make us read past the map. */
static struct gguf_cursor values(const struct gguf *g, const struct gguf_kv *kv)
{
    return (struct gguf_cursor){kv->val, g->bytes - (size_t)(kv->val - g->data)};
}

static int changed(const struct gguf *g, const struct gguf_kv *kv, struct err *e)
{
    struct blame_name b;

    return blame(e, ERR_CORRUPT, g->path,
                 "the value of key '%s' has changed since the file was opened",
                 blame_name(&b, kv->key.p, kv->key.n));
}

/* Element i of an integer type. False: another type, or out of int64's range. */
static bool int_at(const struct gguf_kv *kv, size_t i, int64_t *ret)
{
    const uint8_t *p = kv->val + i * gguf_value_types[kv->type].bytes;
    uint64_t u = 0;
    size_t n = gguf_value_types[kv->type].bytes;
    bool is_signed =
        kv->type == V_I8 || kv->type == V_I16 || kv->type == V_I32 || kv->type == V_I64;
    bool is_unsigned =
        kv->type == V_U8 || kv->type == V_U16 || kv->type == V_U32 || kv->type == V_U64;

    if (!is_signed && !is_unsigned)
        return false;
    memcpy(&u, p, n);
    if (is_signed && n < 8 && u >> (8 * n - 1))
        u |= UINT64_MAX << (8 * n);
    *ret = (int64_t)u;
    return is_signed || u <= INT64_MAX;
}

static bool float_at(const struct gguf_kv *kv, size_t i, double *ret)
{
    const uint8_t *p = kv->val + i * gguf_value_types[kv->type].bytes;
    int64_t v;
    float f;

    if (kv->type == V_F64) {
        memcpy(ret, p, sizeof(*ret));
        return true;
    }
    if (kv->type == V_F32) {
        memcpy(&f, p, sizeof(f));
        *ret = f;
        return true;
    }
    if (!int_at(kv, i, &v))
        return false;
    *ret = (double)v;
    return true;
}

bool gguf_has(const struct gguf *g, const char *key) { return find(g, key) != NULL; }

int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret, struct err *e)
{
    const struct gguf_kv *kv = find(g, key);
    int64_t v;

    if (!kv)
        return 1;
    if (kv->is_array || !int_at(kv, 0, &v) || v < 0)
        return wrong_type(g, kv, "an integer of 0 or more", e);
    *ret = (uint64_t)v;
    return 0;
}

int gguf_f64(const struct gguf *g, const char *key, double *ret, struct err *e)
{
    const struct gguf_kv *kv = find(g, key);
    double v;

    if (!kv)
        return 1;
    if (kv->is_array || !float_at(kv, 0, &v))
        return wrong_type(g, kv, "a number", e);
    *ret = v;
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *ret, struct err *e)
{
    const struct gguf_kv *kv = find(g, key);

    if (!kv)
        return 1;
    if (kv->is_array || kv->type != V_BOOL)
        return wrong_type(g, kv, "a BOOL", e);
    *ret = *kv->val != 0;
    return 0;
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_str *ret,
                struct err *e)
{
    const struct gguf_kv *kv = find(g, key);
    struct gguf_cursor c;

    if (!kv)
        return 1;
    if (kv->is_array || kv->type != V_STRING)
        return wrong_type(g, kv, "a STRING", e);
    c = values(g, kv);
    return gguf_take_string(&c, ret) ? 0 : changed(g, kv, e);
}

int gguf_arr_len(const struct gguf *g, const char *key, size_t *ret, struct err *e)
{
    const struct gguf_kv *kv = find(g, key);

    if (!kv)
        return 1;
    if (!kv->is_array)
        return wrong_type(g, kv, "an array", e);
    *ret = kv->count;
    return 0;
}

/* The array of a key with n elements or more: 0, 1 absent, -1. */
static int find_array(const struct gguf *g, const char *key, size_t n,
                      const struct gguf_kv **ret, struct err *e)
{
    const struct gguf_kv *kv = find(g, key);
    struct blame_name b;

    if (!kv)
        return 1;
    if (!kv->is_array)
        return wrong_type(g, kv, "an array", e);
    if (kv->count < n)
        return blame(
            e, ERR_CORRUPT, g->path, "key '%s' has %llu elements; right are %zu or more",
            blame_name(&b, kv->key.p, kv->key.n), (unsigned long long)kv->count, n);
    *ret = kv;
    return 0;
}

int gguf_arr_strings(const struct gguf *g, const char *key, struct gguf_str *out,
                     size_t n, struct err *e)
{
    const struct gguf_kv *kv;
    struct gguf_cursor c;
    int rc = find_array(g, key, n, &kv, e);

    if (rc)
        return rc;
    if (kv->type != V_STRING)
        return wrong_type(g, kv, "an array of STRING", e);
    c = values(g, kv);
    for (size_t i = 0; i < n; i++)
        if (!gguf_take_string(&c, &out[i]))
            return changed(g, kv, e);
    return 0;
}

int gguf_arr_i32(const struct gguf *g, const char *key, int32_t *out, size_t n,
                 struct err *e)
{
    const struct gguf_kv *kv;
    int64_t v;
    int rc = find_array(g, key, n, &kv, e);

    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        if (!int_at(kv, i, &v) || v < INT32_MIN || v > INT32_MAX)
            return wrong_type(g, kv, "an array of 32-bit integers", e);
        out[i] = (int32_t)v;
    }
    return 0;
}

int gguf_arr_f32(const struct gguf *g, const char *key, float *out, size_t n,
                 struct err *e)
{
    const struct gguf_kv *kv;
    double v;
    int rc = find_array(g, key, n, &kv, e);

    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        if (!float_at(kv, i, &v))
            return wrong_type(g, kv, "an array of numbers", e);
        out[i] = (float)v;
    }
    return 0;
}

size_t gguf_n_tensors(const struct gguf *g) { return g->n_tensors; }

const struct gguf_tensor *gguf_tensor(const struct gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    struct gguf_tensor want = {.name = {name, strlen(name)}};
    const struct gguf_tensor *key = &want, **hit;

    hit = bsearch(&key, g->by_name, g->n_tensors, sizeof(*g->by_name), gguf_name_cmp);
    return hit ? *hit : NULL;
}

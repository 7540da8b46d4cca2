/* See gguf.h. The file, little-endian throughout:
 *
 *   "GGUF" version:u32 n_tensors:u64 n_kv:u64
 *   n_kv      x  key:string type:u32 value
 *   n_tensors x  name:string n_dims:u32 dims:u64[n_dims] type:u32 offset:u64
 *   padding to the alignment, then the data that the offsets count from
 *
 * One pass with a cursor that cannot leave the map. Counts are held against the bytes
 * that are left before anything is allocated for them, so memory stays in proportion to
 * the file. Values are not copied: a key remembers where its value lies, and the getters
 * read it there (unaligned, hence memcpy). Keys and tensors are kept in sorted order too,
 * which finds duplicates and serves look-ups. */
#include "daemon/serve/gguf.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/blame.h"
#include "kernels/dtype.h"

enum {
    MAX_KEY = 65535,       /* bytes, as the format has it */
    MAX_NAME = 127,        /* bytes of a tensor's name; the format says 64 */
    MAX_ALIGN = 1 << 20,   /* of tensor data */
    MAX_KV = 1 << 16,      /* keys */
    MAX_TENSORS = 1 << 17, /* tensors */
    MAX_NEST = 4,          /* arrays in arrays */
    MIN_KV = 14,           /* bytes of the smallest key with its value */
    MIN_TENSOR = 33        /* bytes of the smallest tensor entry */
};

/*    id       number bytes (0: varies) */
#define VALUE_MAP(X)                                                                     \
    X(U8, 0, 1)                                                                          \
    X(I8, 1, 1)                                                                          \
    X(U16, 2, 2)                                                                         \
    X(I16, 3, 2)                                                                         \
    X(U32, 4, 4)                                                                         \
    X(I32, 5, 4)                                                                         \
    X(F32, 6, 4)                                                                         \
    X(BOOL, 7, 1)                                                                        \
    X(STRING, 8, 0)                                                                      \
    X(ARRAY, 9, 0)                                                                       \
    X(U64, 10, 8)                                                                        \
    X(I64, 11, 8)                                                                        \
    X(F64, 12, 8)

enum value_type {
#define X(id, number, bytes) V_##id = number,
    VALUE_MAP(X)
#undef X
        V_COUNT
};

static const struct {
    const char *name;
    size_t bytes;
} value_types[V_COUNT] = {
#define X(id, number, bytes) [number] = {#id, bytes},
    VALUE_MAP(X)
#undef X
};

struct kv {
    struct gguf_str key;
    uint32_t type;      /* of the value; of the elements when is_array */
    bool is_array;      /* one level; deeper ones only as type V_ARRAY */
    uint64_t count;     /* elements, 1 for a scalar */
    const uint8_t *val; /* first element */
};

struct gguf {
    char *path;
    const uint8_t *data;
    size_t bytes;
    struct kv *kv; /* sorted by key */
    size_t n_kv;
    struct gguf_tensor *tensors;        /* in file order */
    const struct gguf_tensor **by_name; /* sorted */
    size_t n_tensors;
    uint64_t align;
};

/* ---- the cursor ---- */

struct cursor {
    const uint8_t *p;
    size_t left;
};

static bool take(struct cursor *c, void *out, size_t n)
{
    if (n > c->left)
        return false;
    if (out)
        memcpy(out, c->p, n);
    c->p += n;
    c->left -= n;
    return true;
}

static bool take_string(struct cursor *c, struct gguf_str *ret)
{
    uint64_t n;

    if (!take(c, &n, sizeof(n)) || n > c->left)
        return false;
    ret->p = (const char *)c->p;
    ret->n = n;
    return take(c, NULL, n);
}

static int str_cmp(const struct gguf_str *a, const struct gguf_str *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int d = n ? memcmp(a->p, b->p, n) : 0;

    return d ? d : (a->n > b->n) - (a->n < b->n);
}

/* ---- parsing ---- */

static int cut_short(const struct gguf *g, struct err *e, const char *what)
{
    return blame(
        e, ERR_CORRUPT, g->path,
        "the file ends inside %s: it is %zu bytes long and was cut short, or its "
        "lengths are wrong",
        what, g->bytes);
}

static int header(struct gguf *g, struct cursor *c, uint64_t *ret_tensors,
                  uint64_t *ret_kv, struct err *e)
{
    char magic[4];
    uint32_t version;

    if (!take(c, magic, sizeof(magic)) || memcmp(magic, "GGUF", sizeof(magic)) != 0)
        return blame(e, ERR_CORRUPT, g->path,
                     "not a GGUF file: it does not begin with 'GGUF'");
    if (!take(c, &version, sizeof(version)))
        return cut_short(g, e, "the header");
    if (version == 0x03000000 || version == 0x02000000)
        return blame(e, ERR_UNSUPPORTED, g->path,
                     "GGUF in big-endian order; served: little-endian files");
    if (version != 2 && version != 3) /* 2 and 3 have the same layout */
        return blame(e, ERR_UNSUPPORTED, g->path,
                     "GGUF version %u; served: version 3 (and 2)", version);
    if (!take(c, ret_tensors, 8) || !take(c, ret_kv, 8))
        return cut_short(g, e, "the header");
    if (*ret_kv > c->left / MIN_KV)
        return blame(
            e, ERR_CORRUPT, g->path,
            "the header counts %llu keys, more than a file of %zu bytes can hold",
            (unsigned long long)*ret_kv, g->bytes);
    if (*ret_tensors > c->left / MIN_TENSOR)
        return blame(
            e, ERR_CORRUPT, g->path,
            "the header counts %llu tensors, more than a file of %zu bytes can hold",
            (unsigned long long)*ret_tensors, g->bytes);
    if (*ret_kv > MAX_KV || *ret_tensors > MAX_TENSORS)
        return blame(e, ERR_TOOBIG, g->path,
                     "%llu keys and %llu tensors; served: at most %d and %d",
                     (unsigned long long)*ret_kv, (unsigned long long)*ret_tensors,
                     MAX_KV, MAX_TENSORS);
    return 0;
}

/* Move over count values of a type. depth: arrays around them. -1: cut short, -2: bad. */
static int skip_values(struct cursor *c, uint32_t type, uint64_t count, int depth)
{
    if (type >= V_COUNT || depth > MAX_NEST)
        return -2;
    if (value_types[type].bytes) {
        if (count > c->left / value_types[type].bytes)
            return -1;
        take(c, NULL, count * value_types[type].bytes);
        return 0;
    }
    if (count > c->left / 8) /* a string or an array takes 8 bytes or more */
        return -1;
    for (uint64_t i = 0; i < count; i++) {
        struct gguf_str s;
        uint32_t sub;
        uint64_t n;
        int rc;

        if (type == V_STRING) {
            if (!take_string(c, &s))
                return -1;
            continue;
        }
        if (!take(c, &sub, sizeof(sub)) || !take(c, &n, sizeof(n)))
            return -1;
        rc = skip_values(c, sub, n, depth + 1);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int parse_kv(struct gguf *g, struct cursor *c, struct kv *kv, struct err *e)
{
    struct blame_name b;
    int rc;

    if (!take_string(c, &kv->key))
        return cut_short(g, e, "its keys");
    blame_name(&b, kv->key.p, kv->key.n);
    if (!kv->key.n || kv->key.n > MAX_KEY || memchr(kv->key.p, 0, kv->key.n))
        return blame(e, ERR_CORRUPT, g->path,
                     "key '%s' is no name: right are 1 to %d bytes without NUL", b.s,
                     MAX_KEY);
    if (!take(c, &kv->type, sizeof(kv->type)))
        return cut_short(g, e, "its keys");
    kv->count = 1;
    kv->is_array = kv->type == V_ARRAY;
    if (kv->is_array &&
        (!take(c, &kv->type, sizeof(kv->type)) || !take(c, &kv->count, 8)))
        return cut_short(g, e, "its keys");
    kv->val = c->p;
    rc = skip_values(c, kv->type, kv->count, 1);
    if (rc == -2)
        return blame(
            e, ERR_CORRUPT, g->path,
            "key '%s' has a value of type %u; right are types 0 to %d, and arrays "
            "at most %d deep",
            b.s, kv->type, V_COUNT - 1, MAX_NEST);
    if (rc < 0)
        return blame(e, ERR_CORRUPT, g->path,
                     "the value of key '%s' reaches beyond the end of the file", b.s);
    if (kv->type == V_BOOL && !kv->is_array && *kv->val > 1)
        return blame(e, ERR_CORRUPT, g->path,
                     "key '%s' is a BOOL of value %u; right are 0 and 1", b.s, *kv->val);
    return 0;
}

static int kv_cmp(const void *a, const void *b)
{
    return str_cmp(&((const struct kv *)a)->key, &((const struct kv *)b)->key);
}

static int parse_keys(struct gguf *g, struct cursor *c, uint64_t n, struct err *e)
{
    struct blame_name b;

    g->kv = try_calloc(n ? n : 1, sizeof(*g->kv));
    if (!g->kv)
        return blame(e, ERR_NOMEM, g->path, "no memory for %llu keys",
                     (unsigned long long)n);
    for (; g->n_kv < n; g->n_kv++)
        if (parse_kv(g, c, &g->kv[g->n_kv], e) < 0)
            return -1;
    qsort(g->kv, g->n_kv, sizeof(*g->kv), kv_cmp);
    for (size_t i = 1; i < g->n_kv; i++)
        if (!str_cmp(&g->kv[i - 1].key, &g->kv[i].key))
            return blame(e, ERR_CORRUPT, g->path, "key '%s' is there twice",
                         blame_name(&b, g->kv[i].key.p, g->kv[i].key.n));
    return 0;
}

static int parse_alignment(struct gguf *g, struct err *e)
{
    int rc = gguf_u64(g, "general.alignment", &g->align, e);

    if (rc < 0)
        return -1;
    if (rc > 0)
        g->align = 32;
    if (g->align < 8 || g->align > MAX_ALIGN || (g->align & (g->align - 1)))
        return blame(
            e, ERR_CORRUPT, g->path,
            "general.alignment is %llu; right are the powers of two from 8 to %d",
            (unsigned long long)g->align, MAX_ALIGN);
    return 0;
}

/* The bytes of a tensor from its type and dimensions; offset is checked by the caller. */
static int tensor_bytes(const struct gguf *g, struct gguf_tensor *t, struct err *e)
{
    struct blame_name b;
    uint64_t rows = 1, elems;
    int dt = dtype_from_gguf(t->type);
    int64_t row;

    blame_name(&b, t->name.p, t->name.n);
    for (int i = 1; i < t->n_dims; i++)
        if (__builtin_mul_overflow(rows, t->dims[i], &rows))
            rows = UINT64_MAX;
    if (__builtin_mul_overflow(rows, t->dims[0], &elems) || elems > INT64_MAX)
        return blame(e, ERR_CORRUPT, g->path,
                     "tensor '%s' has dimensions whose product is no 63-bit number", b.s);
    if (dt < 0)
        return 0;
    row = dtype_row_bytes((enum dtype)dt, (int64_t)t->dims[0]);
    if (row < 0)
        return blame(
            e, ERR_CORRUPT, g->path,
            "tensor '%s' has rows of %llu elements, no whole number of %s blocks "
            "of %d",
            b.s, (unsigned long long)t->dims[0], dtype_name((enum dtype)dt),
            dtype_block((enum dtype)dt));
    if (__builtin_mul_overflow((uint64_t)row, rows, &t->bytes))
        return blame(e, ERR_CORRUPT, g->path,
                     "tensor '%s' has dimensions whose bytes are no 64-bit number", b.s);
    return 0;
}

static int parse_tensor(struct gguf *g, struct cursor *c, struct gguf_tensor *t,
                        uint64_t *ret_offset, struct err *e)
{
    struct blame_name b;
    uint32_t n_dims;

    if (!take_string(c, &t->name))
        return cut_short(g, e, "its tensor table");
    blame_name(&b, t->name.p, t->name.n);
    if (!t->name.n || t->name.n > MAX_NAME || memchr(t->name.p, 0, t->name.n))
        return blame(e, ERR_CORRUPT, g->path,
                     "tensor '%s' has no good name: right are 1 to %d bytes without NUL",
                     b.s, MAX_NAME);
    if (!take(c, &n_dims, sizeof(n_dims)))
        return cut_short(g, e, "its tensor table");
    if (n_dims < 1 || n_dims > 4)
        return blame(e, ERR_CORRUPT, g->path,
                     "tensor '%s' has %u dimensions; right are 1 to 4", b.s, n_dims);
    t->n_dims = (int)n_dims;
    for (int i = 0; i < 4; i++)
        t->dims[i] = 1;
    if (!take(c, t->dims, n_dims * sizeof(t->dims[0])) || !take(c, &t->type, 4) ||
        !take(c, ret_offset, 8))
        return cut_short(g, e, "its tensor table");
    for (int i = 0; i < t->n_dims; i++)
        if (!t->dims[i])
            return blame(e, ERR_CORRUPT, g->path, "dimension %d of tensor '%s' is 0", i,
                         b.s);
    return tensor_bytes(g, t, e);
}

static int place_tensor(const struct gguf *g, struct gguf_tensor *t, size_t data_at,
                        uint64_t offset, struct err *e)
{
    struct blame_name b;
    size_t room = data_at <= g->bytes ? g->bytes - data_at : 0;

    if (offset % g->align)
        return blame(e, ERR_CORRUPT, g->path,
                     "tensor '%s' begins at %llu, no multiple of the alignment %llu",
                     blame_name(&b, t->name.p, t->name.n), (unsigned long long)offset,
                     (unsigned long long)g->align);
    if (offset > room || t->bytes > room - offset || data_at > g->bytes)
        return blame(e, ERR_CORRUPT, g->path,
                     "tensor '%s' needs %llu bytes at %llu but the file has %zu bytes of "
                     "data: it was cut short, or its offsets are wrong",
                     blame_name(&b, t->name.p, t->name.n), (unsigned long long)t->bytes,
                     (unsigned long long)offset, room);
    t->data = g->data + data_at + offset;
    return 0;
}

static int name_cmp(const void *a, const void *b)
{
    return str_cmp(&(*(const struct gguf_tensor *const *)a)->name,
                   &(*(const struct gguf_tensor *const *)b)->name);
}

static int index_tensors(struct gguf *g, struct err *e)
{
    struct blame_name b;

    for (size_t i = 0; i < g->n_tensors; i++)
        g->by_name[i] = &g->tensors[i];
    qsort(g->by_name, g->n_tensors, sizeof(*g->by_name), name_cmp);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (!str_cmp(&g->by_name[i - 1]->name, &g->by_name[i]->name))
            return blame(e, ERR_CORRUPT, g->path, "tensor '%s' is there twice",
                         blame_name(&b, g->by_name[i]->name.p, g->by_name[i]->name.n));
    return 0;
}

static int parse_tensors(struct gguf *g, struct cursor *c, uint64_t n, struct err *e)
{
    uint64_t *offsets = try_calloc(n ? n : 1, sizeof(*offsets));
    size_t data_at;
    int rc = -1;

    g->tensors = try_calloc(n ? n : 1, sizeof(*g->tensors));
    g->by_name = try_calloc(n ? n : 1, sizeof(*g->by_name));
    if (!offsets || !g->tensors || !g->by_name) {
        blame(e, ERR_NOMEM, g->path, "no memory for a table of %llu tensors",
              (unsigned long long)n);
        goto out;
    }
    for (; g->n_tensors < n; g->n_tensors++)
        if (parse_tensor(g, c, &g->tensors[g->n_tensors], &offsets[g->n_tensors], e) < 0)
            goto out;
    data_at = (size_t)(c->p - g->data);
    data_at = (data_at + g->align - 1) & ~(size_t)(g->align - 1);
    for (size_t i = 0; i < n; i++)
        if (place_tensor(g, &g->tensors[i], data_at, offsets[i], e) < 0)
            goto out;
    rc = index_tensors(g, e);
out:
    free(offsets);
    return rc;
}

int gguf_parse(const char *path, const void *data, size_t n, struct gguf **ret,
               struct err *e)
{
    struct gguf *g = xcalloc(1, sizeof(*g));
    struct cursor c = {data, n};
    uint64_t n_tensors = 0, n_kv = 0;

    g->path = xstrdup(path);
    g->data = data;
    g->bytes = n;
    if (header(g, &c, &n_tensors, &n_kv, e) < 0 || parse_keys(g, &c, n_kv, e) < 0 ||
        parse_alignment(g, e) < 0 || parse_tensors(g, &c, n_tensors, e) < 0) {
        gguf_free(g);
        return -1;
    }
    *ret = g;
    return 0;
}

void gguf_free(struct gguf *g)
{
    if (!g)
        return;
    free(g->path);
    free(g->kv);
    free(g->tensors);
    free(g->by_name);
    free(g);
}

/* ---- look-ups ---- */

static const struct kv *find(const struct gguf *g, const char *key)
{
    struct kv want = {.key = {key, strlen(key)}};

    return bsearch(&want, g->kv, g->n_kv, sizeof(*g->kv), kv_cmp);
}

static int wrong_type(const struct gguf *g, const struct kv *kv, const char *want,
                      struct err *e)
{
    struct blame_name b;

    return blame(e, ERR_CORRUPT, g->path, "key '%s' is %s%s; right is %s",
                 blame_name(&b, kv->key.p, kv->key.n), kv->is_array ? "an array of " : "",
                 value_types[kv->type].name, want);
}

/* Element i of an integer type. False: another type, or out of int64's range. */
static bool int_at(const struct kv *kv, size_t i, int64_t *ret)
{
    const uint8_t *p = kv->val + i * value_types[kv->type].bytes;
    uint64_t u = 0;
    size_t n = value_types[kv->type].bytes;
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

static bool float_at(const struct kv *kv, size_t i, double *ret)
{
    const uint8_t *p = kv->val + i * value_types[kv->type].bytes;
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
    const struct kv *kv = find(g, key);
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
    const struct kv *kv = find(g, key);
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
    const struct kv *kv = find(g, key);

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
    const struct kv *kv = find(g, key);
    uint64_t n;

    if (!kv)
        return 1;
    if (kv->is_array || kv->type != V_STRING)
        return wrong_type(g, kv, "a STRING", e);
    memcpy(&n, kv->val, sizeof(n));
    ret->p = (const char *)kv->val + sizeof(n);
    ret->n = n;
    return 0;
}

int gguf_arr_len(const struct gguf *g, const char *key, size_t *ret, struct err *e)
{
    const struct kv *kv = find(g, key);

    if (!kv)
        return 1;
    if (!kv->is_array)
        return wrong_type(g, kv, "an array", e);
    *ret = kv->count;
    return 0;
}

/* The array of a key with n elements or more: 0, 1 absent, -1. */
static int find_array(const struct gguf *g, const char *key, size_t n,
                      const struct kv **ret, struct err *e)
{
    const struct kv *kv = find(g, key);
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
    const struct kv *kv;
    struct cursor c;
    int rc = find_array(g, key, n, &kv, e);

    if (rc)
        return rc;
    if (kv->type != V_STRING)
        return wrong_type(g, kv, "an array of STRING", e);
    c = (struct cursor){kv->val, g->bytes - (size_t)(kv->val - g->data)};
    for (size_t i = 0; i < n; i++)
        take_string(&c, &out[i]);
    return 0;
}

int gguf_arr_i32(const struct gguf *g, const char *key, int32_t *out, size_t n,
                 struct err *e)
{
    const struct kv *kv;
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
    const struct kv *kv;
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

    hit = bsearch(&key, g->by_name, g->n_tensors, sizeof(*g->by_name), name_cmp);
    return hit ? *hit : NULL;
}

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
#include "daemon/serve/gguf_kv.h"
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

const struct gguf_value_type gguf_value_types[V_COUNT] = {
#define X(id, number, bytes) [number] = {#id, bytes},
    VALUE_MAP(X)
#undef X
};

/* ---- parsing ---- */

static int cut_short(const struct gguf *g, struct err *e, const char *what)
{
    return blame(
        e, ERR_CORRUPT, g->path,
        "the file ends inside %s: it is %zu bytes long and was cut short, or its "
        "lengths are wrong",
        what, g->bytes);
}

static int header(struct gguf *g, struct gguf_cursor *c, uint64_t *ret_tensors,
                  uint64_t *ret_kv, struct err *e)
{
    char magic[4];
    uint32_t version;

    if (!gguf_take(c, magic, sizeof(magic)) || memcmp(magic, "GGUF", sizeof(magic)) != 0)
        return blame(e, ERR_CORRUPT, g->path,
                     "not a GGUF file: it does not begin with 'GGUF'");
    if (!gguf_take(c, &version, sizeof(version)))
        return cut_short(g, e, "the header");
    if (version == 0x03000000 || version == 0x02000000)
        return blame(e, ERR_UNSUPPORTED, g->path,
                     "GGUF in big-endian order; served: little-endian files");
    if (version != 2 && version != 3) /* 2 and 3 have the same layout */
        return blame(e, ERR_UNSUPPORTED, g->path,
                     "GGUF version %u; served: version 3 (and 2)", version);
    if (!gguf_take(c, ret_tensors, 8) || !gguf_take(c, ret_kv, 8))
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
static int skip_values(struct gguf_cursor *c, uint32_t type, uint64_t count, int depth)
{
    if (type >= V_COUNT || depth > MAX_NEST)
        return -2;
    if (gguf_value_types[type].bytes) {
        if (count > c->left / gguf_value_types[type].bytes)
            return -1;
        gguf_take(c, NULL, count * gguf_value_types[type].bytes);
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
            if (!gguf_take_string(c, &s))
                return -1;
            continue;
        }
        if (!gguf_take(c, &sub, sizeof(sub)) || !gguf_take(c, &n, sizeof(n)))
            return -1;
        rc = skip_values(c, sub, n, depth + 1);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int parse_kv(struct gguf *g, struct gguf_cursor *c, struct gguf_kv *kv,
                    struct err *e)
{
    struct blame_name b;
    int rc;

    if (!gguf_take_string(c, &kv->key))
        return cut_short(g, e, "its keys");
    blame_name(&b, kv->key.p, kv->key.n);
    if (!kv->key.n || kv->key.n > MAX_KEY || memchr(kv->key.p, 0, kv->key.n))
        return blame(e, ERR_CORRUPT, g->path,
                     "key '%s' is no name: right are 1 to %d bytes without NUL", b.s,
                     MAX_KEY);
    if (!gguf_take(c, &kv->type, sizeof(kv->type)))
        return cut_short(g, e, "its keys");
    kv->count = 1;
    kv->is_array = kv->type == V_ARRAY;
    if (kv->is_array &&
        (!gguf_take(c, &kv->type, sizeof(kv->type)) || !gguf_take(c, &kv->count, 8)))
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

static int parse_keys(struct gguf *g, struct gguf_cursor *c, uint64_t n, struct err *e)
{
    struct blame_name b;

    g->kv = try_calloc(n ? n : 1, sizeof(*g->kv));
    if (!g->kv)
        return blame(e, ERR_NOMEM, g->path, "no memory for %llu keys",
                     (unsigned long long)n);
    for (; g->n_kv < n; g->n_kv++)
        if (parse_kv(g, c, &g->kv[g->n_kv], e) < 0)
            return -1;
    qsort(g->kv, g->n_kv, sizeof(*g->kv), gguf_kv_cmp);
    for (size_t i = 1; i < g->n_kv; i++)
        if (!gguf_str_cmp(&g->kv[i - 1].key, &g->kv[i].key))
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

static int parse_tensor(struct gguf *g, struct gguf_cursor *c, struct gguf_tensor *t,
                        uint64_t *ret_offset, struct err *e)
{
    struct blame_name b;
    uint32_t n_dims;

    if (!gguf_take_string(c, &t->name))
        return cut_short(g, e, "its tensor table");
    blame_name(&b, t->name.p, t->name.n);
    if (!t->name.n || t->name.n > MAX_NAME || memchr(t->name.p, 0, t->name.n))
        return blame(e, ERR_CORRUPT, g->path,
                     "tensor '%s' has no good name: right are 1 to %d bytes without NUL",
                     b.s, MAX_NAME);
    if (!gguf_take(c, &n_dims, sizeof(n_dims)))
        return cut_short(g, e, "its tensor table");
    if (n_dims < 1 || n_dims > 4)
        return blame(e, ERR_CORRUPT, g->path,
                     "tensor '%s' has %u dimensions; right are 1 to 4", b.s, n_dims);
    t->n_dims = (int)n_dims;
    for (int i = 0; i < 4; i++)
        t->dims[i] = 1;
    if (!gguf_take(c, t->dims, n_dims * sizeof(t->dims[0])) ||
        !gguf_take(c, &t->type, 4) || !gguf_take(c, ret_offset, 8))
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

static int index_tensors(struct gguf *g, struct err *e)
{
    struct blame_name b;

    for (size_t i = 0; i < g->n_tensors; i++)
        g->by_name[i] = &g->tensors[i];
    qsort(g->by_name, g->n_tensors, sizeof(*g->by_name), gguf_name_cmp);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (!gguf_str_cmp(&g->by_name[i - 1]->name, &g->by_name[i]->name))
            return blame(e, ERR_CORRUPT, g->path, "tensor '%s' is there twice",
                         blame_name(&b, g->by_name[i]->name.p, g->by_name[i]->name.n));
    return 0;
}

static int parse_tensors(struct gguf *g, struct gguf_cursor *c, uint64_t n, struct err *e)
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
    struct gguf_cursor c = {data, n};
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

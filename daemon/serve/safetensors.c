/* See safetensors.h. The file: 8 bytes of header length (little-endian), a JSON object,
 * the data. Each member of the object is a tensor: {"dtype", "shape", "data_offsets"},
 * but for
 * "__metadata__", which is passed over.
 *
 * The JSON library builds a tree that takes many times the text; before it sees the text,
 * length and marks of structure are held against limits that real headers stay far below,
 * so a hostile header cannot make it large. */
#include "daemon/serve/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "daemon/serve/blame.h"

enum {
    MAX_JSON = 32 << 20,   /* bytes of a header or an index */
    MAX_MARKS = 1 << 20,   /* commas, colons and opening brackets in it */
    MAX_TENSORS = 1 << 17, /* in one file or index */
    MAX_NAME = 255,        /* bytes of a name */
    MAX_FILES = 1000,      /* shards */
    MAX_DEPTH = 4
};

/*    name    bits an element */
#define TYPE_MAP(X)                                                                      \
    X("BOOL", 8)                                                                         \
    X("U8", 8)                                                                           \
    X("I8", 8)                                                                           \
    X("F8_E5M2", 8)                                                                      \
    X("F8_E4M3", 8)                                                                      \
    X("F8_E8M0", 8)                                                                      \
    X("I16", 16)                                                                         \
    X("U16", 16)                                                                         \
    X("F16", 16)                                                                         \
    X("BF16", 16)                                                                        \
    X("I32", 32)                                                                         \
    X("U32", 32)                                                                         \
    X("F32", 32)                                                                         \
    X("F64", 64)                                                                         \
    X("I64", 64)                                                                         \
    X("U64", 64)                                                                         \
    X("C64", 64)                                                                         \
    X("F4", 4)                                                                           \
    X("F6_E2M3", 6)                                                                      \
    X("F6_E3M2", 6)

static const struct {
    const char *name;
    unsigned bits;
} types[] = {
#define X(name, bits) {name, bits},
    TYPE_MAP(X)
#undef X
};

struct safetensors {
    char *path;
    const unsigned char *data; /* what data_offsets count from */
    size_t bytes;              /* of it */
    json_t *json;              /* owns the names */
    struct safetensors_tensor *tensors;
    size_t n;
};

/* JSON text that came out of a file, held against the limits above. */
static int parse_json(const char *path, const char *what, const char *text, size_t n,
                      json_t **ret, struct err *e)
{
    struct js_limits lim = {.max_bytes = MAX_JSON, .max_depth = MAX_DEPTH};
    struct err why;
    json_t *root;
    size_t marks = 0;

    for (size_t i = 0; i < n && n <= MAX_JSON; i++)
        marks += text[i] == ',' || text[i] == ':' || text[i] == '[' || text[i] == '{';
    if (n > MAX_JSON || marks > MAX_MARKS)
        return blame(
            e, ERR_TOOBIG, path,
            "%s of %zu bytes and %zu values is larger than the %d and %d that are "
            "served",
            what, n, marks, MAX_JSON, MAX_MARKS);
    if (js_parse(text, n, &lim, &root, &why) < 0)
        return blame(e, ERR_CORRUPT, path, "%s is broken: %s", what, why.msg);
    if (!json_is_object(root)) {
        json_decref(root);
        return blame(e, ERR_CORRUPT, path, "%s is no JSON object", what);
    }
    *ret = root;
    return 0;
}

static int get_u64(const json_t *v, uint64_t *ret)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return -1;
    *ret = (uint64_t)json_integer_value(v);
    return 0;
}

static int parse_shape(const struct safetensors *s, struct safetensors_tensor *t,
                       const json_t *shape, uint64_t *ret_elems, struct err *e)
{
    struct blame_name b;
    uint64_t elems = 1;
    size_t n = json_array_size(shape);

    blame_name(&b, t->name, strlen(t->name));
    if (!json_is_array(shape) || n > SAFETENSORS_DIMS)
        return blame(e, ERR_CORRUPT, s->path,
                     "tensor '%s' has no good \"shape\": right is a list of 0 to %d "
                     "dimensions",
                     b.s, SAFETENSORS_DIMS);
    t->n_dims = (int)n;
    for (size_t i = 0; i < n; i++) {
        if (get_u64(json_array_get(shape, i), &t->dims[i]) < 0)
            return blame(e, ERR_CORRUPT, s->path,
                         "dimension %zu of tensor '%s' is no integer of 0 or more", i,
                         b.s);
        if (__builtin_mul_overflow(elems, t->dims[i], &elems) || elems > INT64_MAX / 64)
            return blame(e, ERR_CORRUPT, s->path,
                         "tensor '%s' has dimensions whose product is too large", b.s);
    }
    *ret_elems = elems;
    return 0;
}

static int parse_tensor(const struct safetensors *s, struct safetensors_tensor *t,
                        const json_t *v, struct err *e)
{
    const json_t *offs = json_object_get(v, "data_offsets");
    const char *type = json_string_value(json_object_get(v, "dtype"));
    struct blame_name b;
    uint64_t from, to, elems = 0;

    blame_name(&b, t->name, strlen(t->name));
    if (!*t->name || strlen(t->name) > MAX_NAME)
        return blame(e, ERR_CORRUPT, s->path,
                     "tensor '%s' has no good name: right are 1 to %d bytes", b.s,
                     MAX_NAME);
    if (!type || !*type || strlen(type) >= sizeof(t->type))
        return blame(e, ERR_CORRUPT, s->path,
                     "tensor '%s' has no \"dtype\" such as \"BF16\"", b.s);
    strcpy(t->type, type);
    if (parse_shape(s, t, json_object_get(v, "shape"), &elems, e) < 0)
        return -1;
    if (json_array_size(offs) != 2 || get_u64(json_array_get(offs, 0), &from) < 0 ||
        get_u64(json_array_get(offs, 1), &to) < 0 || from > to)
        return blame(e, ERR_CORRUPT, s->path,
                     "tensor '%s' has no good \"data_offsets\": right are two integers, "
                     "begin and end",
                     b.s);
    if (to > s->bytes)
        return blame(e, ERR_CORRUPT, s->path,
                     "tensor '%s' reaches to %llu but the file has %zu bytes of data: it "
                     "was cut short, or its offsets are wrong",
                     b.s, (unsigned long long)to, s->bytes);
    t->data = s->data + from;
    t->bytes = to - from;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (!strcmp(types[i].name, type) && t->bytes * 8 != elems * types[i].bits)
            return blame(e, ERR_CORRUPT, s->path,
                         "tensor '%s' has %llu bytes; %llu elements of %s take %llu", b.s,
                         (unsigned long long)t->bytes, (unsigned long long)elems, type,
                         (unsigned long long)(elems * types[i].bits / 8));
    return 0;
}

static int tensor_cmp(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_tensor *)a)->name,
                  ((const struct safetensors_tensor *)b)->name);
}

static int parse_header(struct safetensors *s, struct err *e)
{
    const char *name;
    json_t *v;

    if (json_object_size(s->json) > MAX_TENSORS)
        return blame(e, ERR_TOOBIG, s->path, "%zu tensors; served: at most %d",
                     json_object_size(s->json), MAX_TENSORS);
    s->tensors = try_calloc(json_object_size(s->json) + 1, sizeof(*s->tensors));
    if (!s->tensors)
        return blame(e, ERR_NOMEM, s->path, "no memory for a table of %zu tensors",
                     json_object_size(s->json));
    json_object_foreach(s->json, name, v)
    {
        if (!strcmp(name, "__metadata__"))
            continue;
        s->tensors[s->n].name = name;
        if (parse_tensor(s, &s->tensors[s->n], v, e) < 0)
            return -1;
        s->n++;
    }
    qsort(s->tensors, s->n, sizeof(*s->tensors), tensor_cmp);
    return 0;
}

int safetensors_parse(const char *path, const void *data, size_t n,
                      struct safetensors **ret, struct err *e)
{
    struct safetensors *s;
    const char *text;
    uint64_t len = 0;

    for (int i = 7; i >= 0 && n >= 8; i--)
        len = len << 8 | ((const unsigned char *)data)[i];
    if (n < 8 || len > n - 8)
        return blame(e, ERR_CORRUPT, path,
                     "the header should have %llu bytes but the file has %zu: it is no "
                     "safetensors file or was cut short",
                     (unsigned long long)len, n);
    text = (const char *)data + 8;
    if (!len || *text != '{')
        return blame(e, ERR_CORRUPT, path,
                     "not a safetensors file: its header is no JSON object");
    s = xcalloc(1, sizeof(*s));
    s->path = xstrdup(path);
    s->data = (const unsigned char *)text + len;
    s->bytes = n - 8 - len;
    if (parse_json(path, "its header", text, len, &s->json, e) < 0 ||
        parse_header(s, e) < 0) {
        safetensors_free(s);
        return -1;
    }
    *ret = s;
    return 0;
}

void safetensors_free(struct safetensors *s)
{
    if (!s)
        return;
    json_decref(s->json);
    free(s->tensors);
    free(s->path);
    free(s);
}

size_t safetensors_count(const struct safetensors *s) { return s->n; }

const struct safetensors_tensor *safetensors_at(const struct safetensors *s, size_t i)
{
    return i < s->n ? &s->tensors[i] : NULL;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s,
                                                  const char *name)
{
    struct safetensors_tensor want = {.name = name};

    return bsearch(&want, s->tensors, s->n, sizeof(*s->tensors), tensor_cmp);
}

/* ---- the index of shards ---- */

static int str_cmp(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A shard lies in the index's own folder: its name goes nowhere else. */
static bool plain_name(const char *s)
{
    size_t n = strlen(s);

    return n > 12 && n <= MAX_NAME && *s != '.' && !strchr(s, '/') &&
           !strcmp(s + n - 12, ".safetensors");
}

static int index_files(struct safetensors_index *x, const char *path, json_t *map,
                       struct err *e)
{
    const char *name, *file;
    struct blame_name b, f;
    json_t *v;
    size_t n = json_object_size(map), unique = 0;

    x->files = try_calloc(n + 1, sizeof(*x->files));
    if (!x->files)
        return blame(e, ERR_NOMEM, path, "no memory for %zu tensors", n);
    json_object_foreach(map, name, v)
    {
        file = json_string_value(v);
        if (!file || !plain_name(file))
            return blame(e, ERR_CORRUPT, path,
                         "tensor '%s' is said to be in '%s'; right is the name of a "
                         ".safetensors file in the same folder",
                         blame_name(&b, name, strlen(name)),
                         blame_name(&f, file ? file : "", file ? strlen(file) : 0));
        x->files[x->n_files++] = (char *)file; /* borrowed until they are unique */
    }
    qsort(x->files, x->n_files, sizeof(*x->files), str_cmp);
    for (size_t i = 0; i < x->n_files; i++)
        if (!unique || strcmp(x->files[unique - 1], x->files[i]) != 0)
            x->files[unique++] = x->files[i];
    x->n_files = unique;
    if (unique > MAX_FILES)
        return blame(e, ERR_TOOBIG, path, "%zu shards; served: at most %d", unique,
                     MAX_FILES);
    return 0;
}

static int index_names(struct safetensors_index *x, const char *path, json_t *map,
                       struct err *e)
{
    const char *name;
    size_t n = json_object_size(map);
    json_t *v;

    x->names = try_calloc(n + 1, sizeof(*x->names));
    x->file_of = try_calloc(n + 1, sizeof(*x->file_of));
    if (!x->names || !x->file_of)
        return blame(e, ERR_NOMEM, path, "no memory for %zu tensors", n);
    json_object_foreach(map, name, v) { x->names[x->n_names++] = xstrdup(name); }
    qsort(x->names, x->n_names, sizeof(*x->names), str_cmp);
    for (size_t i = 0; i < n; i++) {
        const char *file = json_string_value(json_object_get(map, x->names[i]));
        char **hit = bsearch(&file, x->files, x->n_files, sizeof(*x->files), str_cmp);

        x->file_of[i] = (size_t)(hit - x->files);
    }
    return 0;
}

int safetensors_index_parse(const char *path, const void *text, size_t n,
                            struct safetensors_index *ret, struct err *e)
{
    struct safetensors_index x = {0};
    json_t *root, *map;
    int rc = -1;

    if (parse_json(path, "the index", text, n, &root, e) < 0)
        return -1;
    map = json_object_get(root, "weight_map");
    if (!json_object_size(map) || json_object_size(map) > MAX_TENSORS)
        blame(e, ERR_CORRUPT, path,
              "\"weight_map\" is missing, empty or larger than %d: right is an object of "
              "tensor names and files",
              MAX_TENSORS);
    else if (index_files(&x, path, map, e) == 0 && index_names(&x, path, map, e) == 0)
        rc = 0;
    for (size_t i = 0; i < x.n_files; i++) /* all were borrowed from the JSON */
        x.files[i] = rc < 0 ? NULL : xstrdup(x.files[i]);
    json_decref(root);
    if (rc < 0)
        safetensors_index_done(&x);
    else
        *ret = x;
    return rc;
}

void safetensors_index_done(struct safetensors_index *x)
{
    for (size_t i = 0; i < x->n_files; i++)
        free(x->files[i]);
    for (size_t i = 0; i < x->n_names; i++)
        free(x->names[i]);
    free(x->files);
    free(x->names);
    free(x->file_of);
    *x = (struct safetensors_index){0};
}

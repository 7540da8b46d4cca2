/* daemon/serve/gguf_kv.h - what gguf.c (parsing) and gguf_get.c (look-ups) share.
 *
 * Private to the two. A cursor cannot leave its bytes; a key remembers where its value
 * lies in the map. */
#ifndef SERVE_GGUF_KV_H
#define SERVE_GGUF_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "daemon/serve/gguf.h"

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

struct gguf_value_type {
    const char *name;
    size_t bytes; /* of an element; 0: varies */
};
extern const struct gguf_value_type gguf_value_types[V_COUNT];

struct gguf_kv {
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
    struct gguf_kv *kv; /* sorted by key */
    size_t n_kv;
    struct gguf_tensor *tensors;        /* in file order */
    const struct gguf_tensor **by_name; /* sorted */
    size_t n_tensors;
    uint64_t align;
};

/* ---- the cursor ---- */

struct gguf_cursor {
    const uint8_t *p;
    size_t left;
};

static inline bool gguf_take(struct gguf_cursor *c, void *out, size_t n)
{
    if (n > c->left)
        return false;
    if (out)
        memcpy(out, c->p, n);
    c->p += n;
    c->left -= n;
    return true;
}

static inline bool gguf_take_string(struct gguf_cursor *c, struct gguf_str *ret)
{
    uint64_t n;

    if (!gguf_take(c, &n, sizeof(n)) || n > c->left)
        return false;
    ret->p = (const char *)c->p;
    ret->n = n;
    return gguf_take(c, NULL, n);
}

static inline int gguf_str_cmp(const struct gguf_str *a, const struct gguf_str *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int d = n ? memcmp(a->p, b->p, n) : 0;

    return d ? d : (a->n > b->n) - (a->n < b->n);
}

/* for qsort and bsearch */
static inline int gguf_kv_cmp(const void *a, const void *b)
{
    return gguf_str_cmp(&((const struct gguf_kv *)a)->key,
                        &((const struct gguf_kv *)b)->key);
}

static inline int gguf_name_cmp(const void *a, const void *b)
{
    return gguf_str_cmp(&(*(const struct gguf_tensor *const *)a)->name,
                        &(*(const struct gguf_tensor *const *)b)->name);
}

#endif

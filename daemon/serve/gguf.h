/* daemon/serve/gguf.h - a GGUF v3 file: key-value metadata and tensor table, checked.
 *
 * Parses memory, so that a fuzzer can drive it. Strings and arrays point into the map and
 * are not NUL-terminated. Immutable; any thread. */
#ifndef SERVE_GGUF_H
#define SERVE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct gguf;

struct gguf_str {
    const char *p;
    size_t n;
};

struct gguf_tensor {
    struct gguf_str name;
    uint32_t type; /* GGUF number, may be one we do not serve */
    int n_dims;
    uint64_t dims[4]; /* dims[0] is the row length */
    const void *data; /* inside the map, whole */
    uint64_t bytes;   /* 0 when the type is unknown */
};

/* data[0..n) stays mapped for the life of *ret; path is for sentences (copied). Every
 * length, offset, count and dimension is checked here; what comes back can be used. */
int gguf_parse(const char *path, const void *data, size_t n, struct gguf **ret,
               struct err *e);
void gguf_free(struct gguf *g);

bool gguf_has(const struct gguf *g, const char *key);
/* 0 and *ret when the key is there with a fitting type; 1 when absent; -1 wrong type. */
int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret, struct err *e);
int gguf_f64(const struct gguf *g, const char *key, double *ret, struct err *e);
int gguf_bool(const struct gguf *g, const char *key, bool *ret, struct err *e);
int gguf_string(const struct gguf *g, const char *key, struct gguf_str *ret,
                struct err *e);
/* Arrays: element count, then elements. */
int gguf_arr_len(const struct gguf *g, const char *key, size_t *ret, struct err *e);
int gguf_arr_strings(const struct gguf *g, const char *key, struct gguf_str *out,
                     size_t n, struct err *e);
int gguf_arr_i32(const struct gguf *g, const char *key, int32_t *out, size_t n,
                 struct err *e);
int gguf_arr_f32(const struct gguf *g, const char *key, float *out, size_t n,
                 struct err *e);

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, size_t i);
/* By exact name, or NULL. */
const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name);

#endif

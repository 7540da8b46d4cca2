/* daemon/serve/safetensors.h - the header of a safetensors file, checked.
 *
 * Parses memory, so that a fuzzer can drive it. Every length, offset, count and dimension
 * is checked: what comes back can be used. Immutable; any thread. */
#ifndef SERVE_SAFETENSORS_H
#define SERVE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct safetensors;

enum { SAFETENSORS_DIMS = 8 };

struct safetensors_tensor {
    const char *name;
    char type[12]; /* as the file has it: "BF16" */
    int n_dims;    /* 0 for a scalar */
    uint64_t dims[SAFETENSORS_DIMS];
    const void *data; /* inside data, whole; any alignment */
    uint64_t bytes;
};

/* data[0..n) stays mapped for the life of *ret; path is for sentences (copied). */
int safetensors_parse(const char *path, const void *data, size_t n,
                      struct safetensors **ret, struct err *e);
void safetensors_free(struct safetensors *s);
size_t safetensors_count(const struct safetensors *s);
/* In the order of the names. */
const struct safetensors_tensor *safetensors_at(const struct safetensors *s, size_t i);
const struct safetensors_tensor *safetensors_find(const struct safetensors *s,
                                                  const char *name);

/* The shards that model.safetensors.index.json names, each once, in order of name; and
 * which tensor is in which. */
struct safetensors_index {
    char **files; /* plain names in the index's folder */
    size_t n_files;
    char **names; /* sorted */
    size_t *file_of;
    size_t n_names;
};
int safetensors_index_parse(const char *path, const void *text, size_t n,
                            struct safetensors_index *ret, struct err *e);
void safetensors_index_done(struct safetensors_index *x);

#endif

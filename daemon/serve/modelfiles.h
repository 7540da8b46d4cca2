/* daemon/serve/modelfiles.h - a model's files on disk as one table of tensors.
 *
 * A GGUF file, or a folder with config.json and safetensors (one, or shards by an index):
 * mapped, parsed, checked; tensors are found by the name in the file, whatever the
 * format. Immutable after open; any thread. */
#ifndef SERVE_MODELFILES_H
#define SERVE_MODELFILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct gguf;
struct map;
struct modelfiles;

/* A tensor as planes of matrices: rows of cols elements, a vector is one row, a matrix
 * one plane. More than three dimensions that are not 1 leave rows 0. Borrowed from the
 * files. */
struct file_tensor {
    const char *name;
    size_t name_len;
    const char *file;
    int dtype;        /* enum dtype, -1 when not served */
    const char *type; /* its name, served or not */
    uint64_t planes, rows, cols;
    int n_dims; /* as the file has them, the outermost first; at most 4 are kept */
    uint64_t dims[4];
    const void *data;
    uint64_t bytes;
};

/* path: a .gguf file or a folder. */
int modelfiles_open(const char *path, struct modelfiles **ret, struct err *e);
void modelfiles_close(struct modelfiles *f);

bool modelfiles_find(const struct modelfiles *f, const char *name,
                     struct file_tensor *ret);
size_t modelfiles_count(const struct modelfiles *f);
void modelfiles_at(const struct modelfiles *f, size_t i, struct file_tensor *ret);

const struct gguf *modelfiles_gguf(const struct modelfiles *f);  /* NULL for a folder */
const char *modelfiles_dir(const struct modelfiles *f);          /* NULL for GGUF */
const struct map *modelfiles_config(const struct modelfiles *f); /* NULL for GGUF */
const char *modelfiles_path(const struct modelfiles *f);         /* as it was opened */
size_t modelfiles_bytes(const struct modelfiles *f);             /* of weights files */
/* -1 with a sentence when a file was cut short since (see map_check). */
int modelfiles_check(const struct modelfiles *f, struct err *e);
/* Pages inside p[0..n) are not needed now. */
void modelfiles_drop(const struct modelfiles *f, const void *p, size_t n);

#endif

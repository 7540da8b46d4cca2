/* daemon/serve/modelinfo.h - a model's hyper-parameters out of its file, checked.
 *
 * Two sources, one result: the keys of a GGUF file (ggufinfo.c) and config.json
 * (hfconfig.c). What only the tensors can tell (vocabulary size of a GGUF file, biases,
 * norms of q and k, a tied head) is left for model.c. Pure; any thread. */
#ifndef SERVE_MODELINFO_H
#define SERVE_MODELINFO_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/serve/model.h"

struct err;
struct gguf;

/* path is for sentences. *ret is set whole, zero where the source says nothing. */
int modelinfo_from_gguf(const struct gguf *g, const char *path, struct model_info *ret,
                        struct err *e);
int modelinfo_from_config(const char *path, const char *text, size_t n,
                          struct model_info *ret, struct err *e);

/* The limits of every number, and how they belong together. */
int modelinfo_check(const struct model_info *i, const char *path, struct err *e);

/* Families of latent attention. set: what follows from its sizes, after they were read.
 */
bool modelinfo_has_mla(enum model_family f);
int modelinfo_set_mla(struct model_info *i, struct err *e);

/* An unknown family's sentence: what it is called and which ones are served. */
int modelinfo_refuse_family(const char *path, const char *name, size_t n, struct err *e);

#endif

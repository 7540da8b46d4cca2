/* daemon/serve/model_roles.h - which tensors a model has, what files call them and what
 * shape they have, as rows.
 *
 * Pure: facts of a model in, names and sizes out. Used by model.c alone; any thread. */
#ifndef SERVE_MODEL_ROLES_H
#define SERVE_MODEL_ROLES_H

#include <stdbool.h>

#include "daemon/serve/model.h"

struct role_file {
    bool gguf;
    const char *prefix; /* of a folder's tensor names: "model." or "" */
};
struct role_name {
    char s[112];
};

/* expert: its number, where a folder has a tensor for each. Returns n->s. */
const char *model_role_name(const struct model_info *i, const struct role_file *f,
                            enum model_role role, int layer, int expert,
                            struct role_name *n);
/* What follows the number of the layer; NULL for a role that has no layer. */
const char *model_role_part(const struct model_info *i, bool gguf, enum model_role role);
bool model_role_per_layer(enum model_role role);
/* Does this model have it (in this layer)? */
bool model_role_needed(const struct model_info *i, enum model_role role, int layer);
bool model_role_is_vector(enum model_role role);
int model_role_rows(const struct model_info *i, enum model_role role);
/* Matrices of that shape which one tensor has (GGUF: heads), else 1. */
int model_role_planes(const struct model_info *i, enum model_role role);
int model_role_cols(const struct model_info *i, enum model_role role);

/* What a family always has, others have when the file does. */
bool model_family_has_bias(enum model_family f);
bool model_family_has_qk_norm(enum model_family f);
const char *model_family_name(enum model_family f);

#endif

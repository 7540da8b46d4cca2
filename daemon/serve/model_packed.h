/* daemon/serve/model_packed.h - experts as folders of gpt-oss hold them.
 *
 * One tensor has gate and up of all experts of a layer, their rows in turn (the even are
 * the gate's), another has down. Either as MXFP4 in two tensors, NAME_blocks
 * [expert, row, block, 16] and NAME_scales [expert, row, block], or as floats the other
 * way round, NAME [expert, column, row]; NAME_bias [expert, row]. Pure. */
#ifndef SERVE_MODEL_PACKED_H
#define SERVE_MODEL_PACKED_H

#include "daemon/serve/model.h"
#include "daemon/serve/modelfiles.h"

struct packed {
    char name[128];
    struct file_tensor data, scales; /* scales.data NULL: floats */
    int rows, cols;                  /* of one expert's matrix */
    int step, at;                    /* its rows are at, at + step, .. */
    bool bias;
    int n_tensors; /* of the files, that this role is the first to use */
    uint64_t n_params;
};

/* -1: there is none, or its shape is wrong. */
int model_packed_find(const struct modelfiles *f, const char *prefix,
                      const struct model_info *i, enum model_role role, int layer,
                      struct packed *ret, struct err *e);
/* All but the name. */
void model_packed_get(const struct packed *p, int expert, struct model_tensor *ret);

#endif

/* daemon/serve/forward_cut.h - a part of a tensor in the form that a device takes.
 *
 * Rows and columns are a run of each. What stands in the file as it is wanted is used in
 * place, else it is copied; values are never changed. Pure; any thread. */
#ifndef SERVE_FORWARD_CUT_H
#define SERVE_FORWARD_CUT_H

struct err;
struct model_tensor;
struct weight_src;

struct run {
    int from, n;
};

/* Fills in rows, cols, type and data of src; *ret_copy is malloc'ed where data is a copy,
 * else untouched. */
int forward_cut(const struct model_tensor *t, struct run rows, struct run cols,
                struct weight_src *src, void **ret_copy, struct err *e);

/* The same with rows and columns exchanged; in F32 where the type has blocks. */
int forward_cut_turned(const struct model_tensor *t, struct run rows, struct run cols,
                       struct weight_src *src, void **ret_copy, struct err *e);

#endif

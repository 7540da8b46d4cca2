/* kernels/backend_impl.h - what an implementation of kernels/backend.h fills in.
 *
 * Inside floor 1 only. backend.c checks every argument that the host can check (shapes,
 * bounds of views, owners) and then calls through the table; an implementation relies on
 * that. Each implementation's objects start with the struct of the same name here. */
#ifndef KERNELS_BACKEND_IMPL_H
#define KERNELS_BACKEND_IMPL_H

#include "kernels/backend.h"

/* The ops, by name: a function, a parameter struct and a table entry each. */
#define OP_MAP(X)                                                                        \
    X(host)                                                                              \
    X(embed)                                                                             \
    X(add)                                                                               \
    X(norm)                                                                              \
    X(squares)                                                                           \
    X(norm_by)                                                                           \
    X(gather)                                                                            \
    X(matmul)                                                                            \
    X(glu)                                                                               \
    X(heads)                                                                             \
    X(rope_store)                                                                        \
    X(attn)                                                                              \
    X(attn_part)                                                                         \
    X(attn_merge)                                                                        \
    X(kv_pack)                                                                           \
    X(kv_copy)                                                                           \
    X(kv_move)                                                                           \
    X(route)                                                                             \
    X(capacity)                                                                          \
    X(spread)                                                                            \
    X(pack8)                                                                             \
    X(unpack8)                                                                           \
    X(dispatch)                                                                          \
    X(group)                                                                             \
    X(experts)                                                                           \
    X(combine)                                                                           \
    X(scale_rows)

struct backend_vt {
    const char *name;
    int (*open)(const struct backend_cfg *cfg, struct backend **ret, struct err *e);
    void (*close)(struct backend *b);
    const char *(*isa)(const struct backend *b);
    enum dtype (*kv_dtype)(const struct backend *b);
    void (*mem_used)(const struct backend *b, struct backend_mem *ret);
    int (*threads)(struct backend *b, int n, const int *cpus, struct err *e);

    int (*dbuf_new)(struct backend *b, size_t bytes, struct dbuf **ret, struct err *e);
    void (*dbuf_free)(struct dbuf *d);

    int (*stream_new)(struct backend *b, struct stream **ret, struct err *e);
    void (*stream_free)(struct stream *s);
    int (*upload)(struct stream *s, struct dbuf *dst, size_t off, const void *src,
                  size_t n, struct err *e);
    int (*download)(struct stream *s, void *dst, const struct dbuf *src, size_t off,
                    size_t n, struct err *e);
    int (*sync)(struct stream *s, struct err *e);

    int (*weight_new)(struct backend *b, const struct weight_src *src,
                      struct weight **ret, struct err *e);
    void (*weight_free)(struct weight *w);
    void (*weight_part)(struct weight *w, const struct weight_src *part, int row);
    void (*weight_read)(const struct weight *w, int row, float *out);
    void (*weight_join)(struct weight *w);

    int (*kv_new)(struct backend *b, const struct kv_layout *l, int n_blocks,
                  struct kv_arena **ret, struct err *e);
    void (*kv_free)(struct kv_arena *a);
    int (*kv_fd)(const struct kv_arena *a);

#define X(op) int (*op)(struct stream * s, const struct op_##op *o, struct err *e);
    OP_MAP(X)
#undef X
};

struct backend {
    const struct backend_vt *vt;
    struct backend_caps caps;
};
struct dbuf {
    struct backend *b;
    size_t bytes;
};
struct stream {
    struct backend *b;
};
struct weight {
    struct backend *b;
    int rows, cols, flags;
};
struct kv_arena {
    struct backend *b;
    struct kv_layout layout;
    int n_blocks;
};

extern const struct backend_vt backend_cpu, backend_far;

/* Host-side checks of one op (backend_check.c): -1 with a sentence that names the op. */
#define X(op)                                                                            \
    int check_##op(const struct backend *b, const struct op_##op *o, struct err *e);
OP_MAP(X)
#undef X

#endif

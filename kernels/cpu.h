/* kernels/cpu.h - the inside of the CPU backend, shared by cpu*.c and far.c only.
 *
 * One rank thread opens the backend and drives all its streams; it is member 0 of the
 * kernel team. An op runs to its end in the call. */
#ifndef KERNELS_CPU_H
#define KERNELS_CPU_H

#include "base/err.h"
#include "base/team.h"
#include "kernels/backend_impl.h"
#include "kernels/cpu_mat.h"

struct attn_kern;
struct attn_scratch;
struct cpu_kern;
struct cpu_pool;
struct rope_cache;

/* Cut-off for sharing an op over the team: below this many elements the caller alone is
 * faster than waking others. Results do not depend on it. */
enum { CPU_TEAM_MIN = 24 * 1024 };

struct cpu_backend {
    struct backend base;
    enum cpu_isa isa;
    struct team *team;
    bool spin; /* its members may, while they wait */
    const struct cpu_kern *kern;
    struct cpu_pool *pool; /* where matrices live */
    void *mat_scratch;
    size_t mat_scratch_bytes;
    struct attn_scratch *attn;
    struct rope_cache *rope;
    struct backend_mem mem;
    uint64_t last_weight_id;
};

struct cpu_dbuf {
    struct dbuf base;
    char *mem;
    size_t map_bytes;
};

struct cpu_stream {
    struct stream base;
    bool faulted; /* a device value was wrong; sync reports it once */
    struct err fault;
};

struct cpu_weight {
    struct weight base;
    uint64_t id;         /* never used twice in a backend */
    struct cpu_mat *mat; /* WEIGHT_MATMUL */
    float *vec;          /* WEIGHT_VECTOR */
    void *rows;          /* WEIGHT_LOOKUP alone: the file's rows */
    enum dtype type;
    size_t bytes;
};

struct cpu_arena {
    struct kv_arena base;
    int fd;
    char *mem;
    size_t map_bytes;
};

/* In place, so that far can build on it. done takes a half-built one. */
int cpu_backend_init(struct cpu_backend *cb, const struct backend_vt *vt,
                     const struct backend_cfg *cfg, struct err *e);
void cpu_backend_done(struct cpu_backend *cb);
void cpu_stream_init(struct cpu_stream *s, struct backend *b);
/* Remember the first wrong device value. */
void cpu_stream_fault(struct stream *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The table's entries that far uses as they are. */
const char *cpu_isa_of(const struct backend *b);
enum dtype cpu_kv_dtype(const struct backend *b);
void cpu_mem_used(const struct backend *b, struct backend_mem *ret);
int cpu_threads(struct backend *b, int n, const int *cpus, struct err *e);
int cpu_dbuf_new(struct backend *b, size_t bytes, struct dbuf **ret, struct err *e);
void cpu_dbuf_free(struct dbuf *d);
int cpu_upload(struct stream *s, struct dbuf *dst, size_t off, const void *src, size_t n,
               struct err *e);
int cpu_download(struct stream *s, void *dst, const struct dbuf *src, size_t off,
                 size_t n, struct err *e);
int cpu_sync(struct stream *s, struct err *e);
int cpu_weight_new(struct backend *b, const struct weight_src *src, struct weight **ret,
                   struct err *e);
void cpu_weight_free(struct weight *w);
void cpu_weight_part(struct weight *w, const struct weight_src *part, int row);
void cpu_weight_read(const struct weight *w, int row, float *out);
void cpu_weight_join(struct weight *w);
int cpu_kv_new(struct backend *b, const struct kv_layout *l, int n_blocks,
               struct kv_arena **ret, struct err *e);
void cpu_kv_free(struct kv_arena *a);
int cpu_kv_fd(const struct kv_arena *a);

static inline struct cpu_backend *cpu_of(const struct stream *s)
{
    return (struct cpu_backend *)s->b;
}
static inline float *cpu_view(const struct view *v)
{
    return (float *)(((struct cpu_dbuf *)v->buf)->mem + v->off);
}
static inline int64_t *cpu_lview(const struct lview *v) /* NULL where it is left out */
{
    return v->buf ? (int64_t *)(void *)(((struct cpu_dbuf *)v->buf)->mem + v->off) : NULL;
}
static inline const int32_t *cpu_iview(const struct iview *v)
{
    return (const int32_t *)(((struct cpu_dbuf *)v->buf)->mem + v->off);
}
static inline float *cpu_row(const struct view *v, int r)
{
    return cpu_view(v) + (size_t)r * (size_t)v->ld;
}
static inline int32_t *cpu_ints(const struct iview *v) /* that an op writes */
{
    return (int32_t *)(uintptr_t)cpu_iview(v);
}
static inline const float *cpu_vec(const struct weight *w)
{
    return w ? ((const struct cpu_weight *)w)->vec : NULL;
}
static inline char *cpu_kv_block(const struct kv_arena *a, int block)
{
    return ((const struct cpu_arena *)a)->mem + (size_t)block * a->layout.block_bytes;
}

/* Run fn over the team, or by the caller alone when n_elems is small. */
void cpu_run(struct cpu_backend *cb, size_t n_elems, team_fn fn, void *arg);
/* Half-open share [ret_lo, ret_hi) of n for one member. */
void cpu_share(int n, int member, int n_members, int *ret_lo, int *ret_hi);

#define X(op) int cpu_op_##op(struct stream *s, const struct op_##op *o, struct err *e);
OP_MAP(X)
#undef X

#endif

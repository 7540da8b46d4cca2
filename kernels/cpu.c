/* kernels/cpu.c - the CPU as a device: memory, streams, weights and the KV arena.
 *
 * A stream runs each op at once in the calling thread, over the team of kernel threads;
 * so an upload is a memcpy and sync only reports what went wrong meanwhile. Scratch of
 * all ops is made at open from the caps, because ops never allocate. Device memory is
 * mapped, not malloc'ed: page-aligned (far protects it), zero at birth, on huge pages
 * where it is large. The KV arena is a memfd so that another process can be given it; its
 * size is sealed, as who reads there would fall if it were cut short.
 *
 * open -> dbufs, weights, arenas, streams, in any order -> all freed -> close. One thread
 * (the rank's) does all of it. */
#include "kernels/cpu.h"

#include <assert.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/team.h"
#include "kernels/cpu_attn.h"
#include "kernels/cpu_ops.h"
#include "kernels/cpu_pool.h"
#include "kernels/cpu_rope.h"

enum { HUGE_BYTES = 2 << 20, FILL_BYTES = 256 << 20 };

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static int pick_isa(const char *wish, enum cpu_isa *ret, struct err *e)
{
    enum cpu_isa best = cpu_isa_best();

    if (!wish || !strcmp(wish, "auto")) {
        *ret = best;
        return 0;
    }
    for (int i = CPU_ISA_PORTABLE; i <= CPU_ISA_AVX512; i++) {
        if (strcmp(wish, cpu_isa_name((enum cpu_isa)i)))
            continue;
        if (i > (int)best)
            return err_set(e, ERR_UNSUPPORTED,
                           "this machine has no %s; its best instruction set is %s", wish,
                           cpu_isa_name(best));
        *ret = (enum cpu_isa)i;
        return 0;
    }
    return err_set(e, ERR_INVALID,
                   "instruction set '%s'; auto, portable, avx2 or avx512 would be right",
                   wish);
}

static int count_cpus(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return 1;
    return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

/* A place for size bytes that starts on a huge page, so that huge pages can back it. */
static void *map_aligned(int fd, size_t size)
{
    char *p =
        mmap(NULL, size + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t skip;

    if (p == MAP_FAILED)
        return NULL;
    skip = (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
    if (skip)
        munmap(p, skip);
    if (skip < HUGE_BYTES)
        munmap(p + skip + size, HUGE_BYTES - skip);
    p += skip;
    if (mmap(p, size, PROT_READ | PROT_WRITE,
             MAP_FIXED | (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS), fd,
             0) == MAP_FAILED) {
        munmap(p, size);
        return NULL;
    }
    return p;
}

/* A memory file gets huge pages only when asked for them one by one where the system's
 * setting for shared memory is `never`, the usual one. That fills them, so it is done for
 * the first 256 MiB alone (0.1 s). All of this is advice: without it the same, slower. */
static void advise_huge(int fd, char *p, size_t size)
{
    size_t now = size < FILL_BYTES ? size : (size_t)FILL_BYTES;

    madvise(p, size, MADV_HUGEPAGE);
    if (fd < 0)
        return;
    for (size_t i = 0; i < now; i += HUGE_BYTES)
        *(volatile char *)(p + i) = 0;
    madvise(p, now, MADV_COLLAPSE);
}

/* Zeroed memory of at least n bytes, huge pages where it pays; NULL when there is none.
 */
static void *map_bytes(int fd, size_t n, size_t *ret_map)
{
    size_t page = n >= HUGE_BYTES ? (size_t)HUGE_BYTES : 4096, size;
    void *p;

    if (n > SIZE_MAX / 2)
        return NULL;
    size = (n + page - 1) / page * page;
    if (fd >= 0 && ftruncate(fd, (off_t)size) < 0)
        return NULL;
    p = map_aligned(fd, size);
    if (p && size >= HUGE_BYTES)
        advise_huge(fd, p, size);
    if (p)
        *ret_map = size;
    return p;
}

int cpu_backend_init(struct cpu_backend *cb, const struct backend_vt *vt,
                     const struct backend_cfg *cfg, struct err *e)
{
    int n = cfg->n_threads ? cfg->n_threads : count_cpus();

    memset(cb, 0, sizeof(*cb));
    cb->base.vt = vt;
    cb->base.caps = cfg->caps;
    if (pick_isa(cfg->isa, &cb->isa, e) < 0)
        return -1;
    cb->kern = cpu_kern_get(cb->isa);
    cb->spin = cfg->spin;
    if (team_new(n, cfg->cpus, cfg->spin, &cb->team, e) < 0)
        return -1;

    cb->mat_scratch_bytes = cpu_mat_scratch_bytes(cfg->caps.max_rows, cfg->caps.max_cols);
    if (cb->mat_scratch_bytes) {
        cb->mat_scratch = map_bytes(-1, cb->mat_scratch_bytes, &cb->mat_scratch_bytes);
        if (!cb->mat_scratch)
            return err_set(e, ERR_NOMEM, "no %zu bytes of scratch for matrix products",
                           cb->mat_scratch_bytes);
    }
    cb->pool = cpu_pool_new();
    cb->attn = attn_scratch_new(&cfg->caps, n);
    cb->rope = rope_cache_new(&cfg->caps);
    if (!cb->attn || !cb->rope)
        return err_set(e, ERR_NOMEM, "no scratch for steps of %d rows over %d items",
                       cfg->caps.max_rows, cfg->caps.max_items);
    cb->mem.scratch_bytes =
        cb->mat_scratch_bytes + attn_scratch_bytes(cb->attn) + rope_cache_bytes(cb->rope);
    return 0;
}

/* What is sized by the number of threads is made anew. */
int cpu_threads(struct backend *b, int n, const int *cpus, struct err *e)
{
    struct cpu_backend *cb = (struct cpu_backend *)b;
    struct attn_scratch *attn = attn_scratch_new(&b->caps, n);
    struct team *team;

    if (!attn)
        return err_set(e, ERR_NOMEM, "no scratch for %d kernel threads", n);
    if (team_new(n, cpus, cb->spin, &team, e) < 0) {
        attn_scratch_free(attn);
        return -1;
    }
    cb->mem.scratch_bytes += attn_scratch_bytes(attn) - attn_scratch_bytes(cb->attn);
    attn_scratch_free(cb->attn);
    team_free(cb->team);
    cb->attn = attn;
    cb->team = team;
    return 0;
}

void cpu_backend_done(struct cpu_backend *cb)
{
    rope_cache_free(cb->rope);
    attn_scratch_free(cb->attn);
    if (cb->mat_scratch)
        munmap(cb->mat_scratch, cb->mat_scratch_bytes);
    cpu_pool_free(cb->pool);
    team_free(cb->team);
}

static void cpu_close(struct backend *b)
{
    struct cpu_backend *cb = (struct cpu_backend *)b;

    cpu_backend_done(cb);
    free(cb);
}

static int cpu_open(const struct backend_cfg *cfg, struct backend **ret, struct err *e)
{
    struct cpu_backend *cb = xcalloc(1, sizeof(*cb));

    if (cpu_backend_init(cb, &backend_cpu, cfg, e) < 0) {
        cpu_close(&cb->base);
        return err_wrap(e, "cpu backend");
    }
    *ret = &cb->base;
    return 0;
}

const char *cpu_isa_of(const struct backend *b)
{
    return cpu_isa_name(((const struct cpu_backend *)b)->isa);
}

/* AVX-512 has a dot product of BF16 pairs, AVX2 a conversion of F16; plain C turns BF16
 * into f32 by a shift. */
enum dtype cpu_kv_dtype(const struct backend *b)
{
    return ((const struct cpu_backend *)b)->isa == CPU_ISA_AVX2 ? DT_F16 : DT_BF16;
}

void cpu_mem_used(const struct backend *b, struct backend_mem *ret)
{
    *ret = ((const struct cpu_backend *)b)->mem;
}

/* ---- buffers and streams ---- */

int cpu_dbuf_new(struct backend *b, size_t bytes, struct dbuf **ret, struct err *e)
{
    struct cpu_backend *cb = (struct cpu_backend *)b;
    size_t size;
    char *p = map_bytes(-1, bytes ? bytes : 1, &size);
    struct cpu_dbuf *d;

    if (!p)
        return err_set(e, ERR_NOMEM, "no device buffer of %zu bytes", bytes);
    d = xcalloc(1, sizeof(*d));
    d->base.b = b;
    d->base.bytes = bytes;
    d->mem = p;
    d->map_bytes = size;
    cb->mem.other_bytes += size;
    *ret = &d->base;
    return 0;
}

void cpu_dbuf_free(struct dbuf *d)
{
    struct cpu_dbuf *cd = (struct cpu_dbuf *)d;

    ((struct cpu_backend *)d->b)->mem.other_bytes -= cd->map_bytes;
    munmap(cd->mem, cd->map_bytes);
    free(cd);
}

void cpu_stream_init(struct cpu_stream *s, struct backend *b)
{
    memset(s, 0, sizeof(*s));
    s->base.b = b;
}

void cpu_stream_fault(struct stream *s, const char *fmt, ...)
{
    struct cpu_stream *cs = (struct cpu_stream *)s;
    char text[256];
    va_list ap;

    if (cs->faulted)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    cs->faulted = true;
    err_set(&cs->fault, ERR_DEVICE, "%s", text);
}

static int cpu_stream_new(struct backend *b, struct stream **ret, struct err *e)
{
    struct cpu_stream *s = xmalloc(sizeof(*s));

    (void)e;
    cpu_stream_init(s, b);
    *ret = &s->base;
    return 0;
}

static void cpu_stream_free(struct stream *s) { free(s); }

int cpu_upload(struct stream *s, struct dbuf *dst, size_t off, const void *src, size_t n,
               struct err *e)
{
    (void)s;
    (void)e;
    memcpy(((struct cpu_dbuf *)dst)->mem + off, src, n);
    return 0;
}

int cpu_download(struct stream *s, void *dst, const struct dbuf *src, size_t off,
                 size_t n, struct err *e)
{
    (void)s;
    (void)e;
    memcpy(dst, ((const struct cpu_dbuf *)src)->mem + off, n);
    return 0;
}

int cpu_sync(struct stream *s, struct err *e)
{
    struct cpu_stream *cs = (struct cpu_stream *)s;

    if (!cs->faulted)
        return 0;
    cs->faulted = false;
    if (e)
        *e = cs->fault;
    return -1;
}

/* ---- weights ---- */

void cpu_weight_free(struct weight *w)
{
    struct cpu_weight *cw = (struct cpu_weight *)w;

    if (!(w->flags & WEIGHT_APART))
        ((struct cpu_backend *)w->b)->mem.weight_bytes -= cw->bytes;
    cpu_mat_free(cw->mat);
    free(cw->vec);
    free(cw->rows);
    free(cw);
}

static int fill_vector(struct cpu_weight *w, const struct weight_src *src, struct err *e)
{
    size_t n = (size_t)src->cols * sizeof(float);

    w->vec = try_malloc(n);
    if (!w->vec)
        return err_set(e, ERR_NOMEM, "no %zu bytes", n);
    dtype_to_f32(src->type, src->data, w->vec, src->cols);
    w->bytes += n;
    return 0;
}

static int fill_rows(struct cpu_weight *w, const struct weight_src *src, struct err *e)
{
    size_t row = (size_t)dtype_row_bytes(src->type, src->cols), n;

    if (size_mul(row, (size_t)src->rows, &n) < 0 || !(w->rows = try_malloc(n)))
        return err_set(e, ERR_NOMEM, "no room for %d rows of %zu bytes", src->rows, row);
    memcpy(w->rows, src->data, n);
    w->bytes += n;
    return 0;
}

static int fill_weight(struct cpu_backend *cb, struct cpu_weight *w,
                       const struct weight_src *src, struct err *e)
{
    if (src->flags & WEIGHT_VECTOR && fill_vector(w, src, e) < 0)
        return -1;
    if (src->flags & WEIGHT_MATMUL) {
        if (cpu_mat_new(cb->isa, cb->team, cb->pool, src->type, src->rows, src->cols,
                        src->data, &w->mat, e) < 0)
            return -1;
        w->bytes += cpu_mat_bytes(w->mat);
        return 0;
    }
    return src->flags & WEIGHT_LOOKUP ? fill_rows(w, src, e) : 0;
}

/* Nothing of the backend that its thread changes is touched. */
static int new_apart(struct backend *b, const struct weight_src *src, struct weight **ret,
                     struct err *e)
{
    enum cpu_isa isa = ((struct cpu_backend *)b)->isa;
    struct cpu_weight *w = xcalloc(1, sizeof(*w));
    int rc;

    w->base = (struct weight){b, src->rows, src->cols, src->flags};
    w->type = src->type;
    rc = src->flags & WEIGHT_VECTOR ? fill_vector(w, src, e)
                                    : cpu_mat_new_empty(isa, src->type, src->rows,
                                                        src->cols, src->data, &w->mat, e);
    if (rc < 0) {
        cpu_weight_free(&w->base);
        return err_wrap(e, "tensor '%s'", src->name);
    }
    w->bytes += w->mat ? cpu_mat_bytes(w->mat) : 0;
    *ret = &w->base;
    return 0;
}

void cpu_weight_part(struct weight *w, const struct weight_src *part, int row)
{
    cpu_mat_put(((struct cpu_weight *)w)->mat, part->data, row, part->rows);
}

void cpu_weight_read(const struct weight *w, int row, float *out)
{
    const struct cpu_weight *cw = (const struct cpu_weight *)w;

    if (cw->mat)
        cpu_mat_row(cw->mat, row, out);
    else
        memcpy(out, cw->vec, (size_t)w->cols * sizeof(*out));
}

void cpu_weight_join(struct weight *w)
{
    struct cpu_backend *cb = (struct cpu_backend *)w->b;
    struct cpu_weight *cw = (struct cpu_weight *)w;

    w->flags &= ~WEIGHT_APART;
    cw->id = ++cb->last_weight_id;
    cb->mem.weight_bytes += cw->bytes;
}

int cpu_weight_new(struct backend *b, const struct weight_src *src, struct weight **ret,
                   struct err *e)
{
    if (src->flags & WEIGHT_APART)
        return new_apart(b, src, ret, e);
    struct cpu_backend *cb = (struct cpu_backend *)b;
    struct cpu_weight *w = xcalloc(1, sizeof(*w));
    int rc;

    w->base.b = b;
    w->base.rows = src->rows;
    w->base.cols = src->cols;
    w->base.flags = src->flags;
    w->id = ++cb->last_weight_id;
    w->type = src->type;
    rc = fill_weight(cb, w, src, e);
    cb->mem.weight_bytes += w->bytes;
    if (rc < 0) {
        cpu_weight_free(&w->base);
        return err_wrap(e, "tensor '%s'", src->name);
    }
    *ret = &w->base;
    return 0;
}

/* ---- KV arena ---- */

int cpu_kv_new(struct backend *b, const struct kv_layout *l, int n_blocks,
               struct kv_arena **ret, struct err *e)
{
    struct cpu_backend *cb = (struct cpu_backend *)b;
    struct cpu_arena *a;
    size_t bytes, size;
    char *p;
    int fd;

    if (size_mul(l->block_bytes, (size_t)n_blocks, &bytes) < 0)
        return err_set(e, ERR_NOMEM, "a KV arena of %d blocks of %zu bytes", n_blocks,
                       l->block_bytes);
    fd = memfd_create("llmrack-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_errno(e, ERR_NOMEM, "memory file for the KV arena");
    p = map_bytes(fd, bytes, &size);
    if (p && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
        munmap(p, size);
        p = NULL;
    }
    if (!p) {
        err_errno(e, ERR_NOMEM, "a KV arena of %zu bytes", bytes);
        close(fd);
        return -1;
    }
    a = xcalloc(1, sizeof(*a));
    a->base.b = b;
    a->base.layout = *l;
    a->base.n_blocks = n_blocks;
    a->fd = fd;
    a->mem = p;
    a->map_bytes = size;
    cb->mem.kv_bytes += size;
    *ret = &a->base;
    return 0;
}

void cpu_kv_free(struct kv_arena *a)
{
    struct cpu_arena *ca = (struct cpu_arena *)a;

    ((struct cpu_backend *)a->b)->mem.kv_bytes -= ca->map_bytes;
    munmap(ca->mem, ca->map_bytes);
    close(ca->fd);
    free(ca);
}

int cpu_kv_fd(const struct kv_arena *a) { return ((const struct cpu_arena *)a)->fd; }

const struct backend_vt backend_cpu = {.name = "cpu",
                                       .open = cpu_open,
                                       .close = cpu_close,
                                       .isa = cpu_isa_of,
                                       .kv_dtype = cpu_kv_dtype,
                                       .mem_used = cpu_mem_used,
                                       .threads = cpu_threads,
                                       .dbuf_new = cpu_dbuf_new,
                                       .dbuf_free = cpu_dbuf_free,
                                       .stream_new = cpu_stream_new,
                                       .stream_free = cpu_stream_free,
                                       .upload = cpu_upload,
                                       .download = cpu_download,
                                       .sync = cpu_sync,
                                       .weight_new = cpu_weight_new,
                                       .weight_free = cpu_weight_free,
                                       .weight_part = cpu_weight_part,
                                       .weight_read = cpu_weight_read,
                                       .weight_join = cpu_weight_join,
                                       .kv_new = cpu_kv_new,
                                       .kv_free = cpu_kv_free,
                                       .kv_fd = cpu_kv_fd,
#define X(op) .op = cpu_op_##op,
                                       OP_MAP(X)
#undef X
};

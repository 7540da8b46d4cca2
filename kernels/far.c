/* kernels/far.c - a device for tests: far away, late, and strict about it.
 *
 * It computes as the CPU backend does (same instruction set, same bits) but behaves like
 * a device behind a bus, at its most unhelpful:
 *
 *  - Device memory is mapped without any access right and opened only while the stream's
 *    own thread works, when the host is inside stream_sync: a stray host pointer faults.
 *  - Nothing runs before stream_sync. Launches copy their parameters into a queue.
 *  - An upload remembers a checksum of the host's bytes and complains when they changed
 *    before they were fetched. A download fills the host's memory with poison at once and
 *    complains when somebody wrote there before the data came.
 *
 * Complaints are device faults, reported by stream_sync. Objects are those of cpu.c with
 * another table. One host thread per stream; streams take turns on the device. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "kernels/cpu.h"

enum { POISON = 0xa5, MAX_CMDS = 1 << 20 };

struct region {
    void *mem;
    size_t bytes;
};

struct far_backend {
    struct cpu_backend cpu;
    pthread_mutex_t device; /* held while a stream works; guards regions */
    struct region *regions;
    size_t n_regions;
};

enum far_kind {
    FAR_UPLOAD,
    FAR_DOWNLOAD,
#define X(op) FAR_##op,
    OP_MAP(X)
#undef X
};

struct far_copy {
    struct dbuf *buf;
    size_t off, n;
    const unsigned char *src;
    unsigned char *dst;
    uint64_t sum;
};

struct far_cmd {
    enum far_kind kind;
    union {
        struct far_copy copy;
#define X(op) struct op_##op op;
        OP_MAP(X)
#undef X
    } u;
};

struct far_stream {
    struct cpu_stream cpu;
    struct far_cmd *cmds;
    size_t n_cmds, cap_cmds;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    bool go, stop; /* by lock */
};

static struct far_backend *far_of(struct backend *b) { return (struct far_backend *)b; }

/* ---- memory that the host cannot touch ---- */

static void far_hide(struct backend *b, void *mem, size_t bytes)
{
    struct far_backend *fb = far_of(b);

    pthread_mutex_lock(&fb->device);
    fb->regions = xrealloc(fb->regions, (fb->n_regions + 1) * sizeof(*fb->regions));
    fb->regions[fb->n_regions++] = (struct region){mem, bytes};
    mprotect(mem, bytes, PROT_NONE);
    pthread_mutex_unlock(&fb->device);
}

static void far_forget(struct backend *b, const void *mem)
{
    struct far_backend *fb = far_of(b);

    pthread_mutex_lock(&fb->device);
    for (size_t i = 0; i < fb->n_regions; i++)
        if (fb->regions[i].mem == mem)
            fb->regions[i] = fb->regions[--fb->n_regions];
    pthread_mutex_unlock(&fb->device);
}

static void far_protect(const struct far_backend *fb, int prot)
{
    for (size_t i = 0; i < fb->n_regions; i++)
        mprotect(fb->regions[i].mem, fb->regions[i].bytes, prot);
}

static int far_dbuf_new(struct backend *b, size_t bytes, struct dbuf **ret, struct err *e)
{
    struct dbuf *d;

    if (cpu_dbuf_new(b, bytes, &d, e) < 0)
        return -1;
    far_hide(b, ((struct cpu_dbuf *)d)->mem, ((struct cpu_dbuf *)d)->map_bytes);
    *ret = d;
    return 0;
}

static void far_dbuf_free(struct dbuf *d)
{
    far_forget(d->b, ((struct cpu_dbuf *)d)->mem);
    cpu_dbuf_free(d);
}

static int far_kv_new(struct backend *b, const struct kv_layout *l, int n_blocks,
                      struct kv_arena **ret, struct err *e)
{
    struct kv_arena *a;

    if (cpu_kv_new(b, l, n_blocks, &a, e) < 0)
        return -1;
    far_hide(b, ((struct cpu_arena *)a)->mem, ((struct cpu_arena *)a)->map_bytes);
    *ret = a;
    return 0;
}

static void far_kv_free(struct kv_arena *a)
{
    far_forget(a->b, ((struct cpu_arena *)a)->mem);
    cpu_kv_free(a);
}

/* ---- the stream's thread ---- */

static uint64_t checksum(const unsigned char *p, size_t n)
{
    uint64_t h = 1469598103934665603ull;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 1099511628211ull;
    return h;
}

static void far_upload_now(struct stream *s, const struct far_copy *c)
{
    if (checksum(c->src, c->n) != c->sum)
        cpu_stream_fault(s, "upload of %zu bytes: the host changed them before sync",
                         c->n);
    cpu_upload(s, c->buf, c->off, c->src, c->n, NULL);
}

static void far_download_now(struct stream *s, const struct far_copy *c)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->dst[i] != POISON) {
            cpu_stream_fault(s, "download of %zu bytes: the host wrote there before sync",
                             c->n);
            break;
        }
    cpu_download(s, c->dst, c->buf, c->off, c->n, NULL);
}

static void far_run_cmd(struct far_stream *fs, const struct far_cmd *cmd)
{
    struct stream *s = &fs->cpu.base;
    struct err e = {0};
    int rc = 0;

    switch (cmd->kind) {
    case FAR_UPLOAD:
        far_upload_now(s, &cmd->u.copy);
        break;
    case FAR_DOWNLOAD:
        far_download_now(s, &cmd->u.copy);
        break;
#define X(op)                                                                            \
    case FAR_##op:                                                                       \
        rc = cpu_op_##op(s, &cmd->u.op, &e);                                             \
        break;
        OP_MAP(X)
#undef X
    }
    if (rc < 0)
        cpu_stream_fault(s, "%s", e.msg);
}

static void *far_thread(void *arg)
{
    struct far_stream *fs = arg;
    struct far_backend *fb = far_of(fs->cpu.base.b);

    pthread_mutex_lock(&fs->lock);
    for (;;) {
        while (!fs->go && !fs->stop)
            pthread_cond_wait(&fs->wake, &fs->lock);
        if (fs->stop)
            break;
        pthread_mutex_lock(&fb->device);
        far_protect(fb, PROT_READ | PROT_WRITE);
        for (size_t i = 0; i < fs->n_cmds; i++)
            far_run_cmd(fs, &fs->cmds[i]);
        far_protect(fb, PROT_NONE);
        pthread_mutex_unlock(&fb->device);
        fs->n_cmds = 0;
        fs->go = false;
        pthread_cond_signal(&fs->done);
    }
    pthread_mutex_unlock(&fs->lock);
    return NULL;
}

static int far_sync(struct stream *s, struct err *e)
{
    struct far_stream *fs = (struct far_stream *)s;

    pthread_mutex_lock(&fs->lock);
    fs->go = true;
    pthread_cond_signal(&fs->wake);
    while (fs->go)
        pthread_cond_wait(&fs->done, &fs->lock);
    pthread_mutex_unlock(&fs->lock);
    return cpu_sync(s, e);
}

static int far_push(struct stream *s, const struct far_cmd *cmd, struct err *e)
{
    struct far_stream *fs = (struct far_stream *)s;

    if (fs->n_cmds == MAX_CMDS)
        return err_set(e, ERR_DEVICE, "%d launches without a sync", (int)MAX_CMDS);
    pthread_mutex_lock(&fs->lock);
    if (fs->n_cmds == fs->cap_cmds) {
        fs->cap_cmds = fs->cap_cmds ? 2 * fs->cap_cmds : 64;
        fs->cmds = xrealloc(fs->cmds, fs->cap_cmds * sizeof(*fs->cmds));
    }
    fs->cmds[fs->n_cmds++] = *cmd;
    pthread_mutex_unlock(&fs->lock);
    return 0;
}

static int far_upload(struct stream *s, struct dbuf *dst, size_t off, const void *src,
                      size_t n, struct err *e)
{
    struct far_cmd cmd = {.kind = FAR_UPLOAD};

    cmd.u.copy = (struct far_copy){dst, off, n, src, NULL, checksum(src, n)};
    return far_push(s, &cmd, e);
}

static int far_download(struct stream *s, void *dst, const struct dbuf *src, size_t off,
                        size_t n, struct err *e)
{
    struct far_cmd cmd = {.kind = FAR_DOWNLOAD};

    memset(dst, POISON, n);
    cmd.u.copy = (struct far_copy){(struct dbuf *)src, off, n, NULL, dst, 0};
    return far_push(s, &cmd, e);
}

#define X(op)                                                                            \
    static int far_op_##op(struct stream *s, const struct op_##op *o, struct err *e)     \
    {                                                                                    \
        struct far_cmd cmd = {.kind = FAR_##op};                                         \
        cmd.u.op = *o;                                                                   \
        return far_push(s, &cmd, e);                                                     \
    }
OP_MAP(X)
#undef X

static int far_stream_new(struct backend *b, struct stream **ret, struct err *e)
{
    struct far_stream *fs = xcalloc(1, sizeof(*fs));
    int rc;

    cpu_stream_init(&fs->cpu, b);
    pthread_mutex_init(&fs->lock, NULL);
    pthread_cond_init(&fs->wake, NULL);
    pthread_cond_init(&fs->done, NULL);
    rc = pthread_create(&fs->thread, NULL, far_thread, fs);
    if (rc) {
        free(fs);
        return err_set(e, ERR_NOMEM, "no thread for a stream: %s", strerror(rc));
    }
    *ret = &fs->cpu.base;
    return 0;
}

/* Launches that were never synced are dropped. */
static void far_stream_free(struct stream *s)
{
    struct far_stream *fs = (struct far_stream *)s;

    pthread_mutex_lock(&fs->lock);
    fs->stop = true;
    pthread_cond_signal(&fs->wake);
    pthread_mutex_unlock(&fs->lock);
    pthread_join(fs->thread, NULL);
    pthread_cond_destroy(&fs->done);
    pthread_cond_destroy(&fs->wake);
    pthread_mutex_destroy(&fs->lock);
    free(fs->cmds);
    free(fs);
}

/* ---- the device ---- */

static void far_close(struct backend *b)
{
    struct far_backend *fb = far_of(b);

    cpu_backend_done(&fb->cpu);
    pthread_mutex_destroy(&fb->device);
    free(fb->regions);
    free(fb);
}

static int far_open(const struct backend_cfg *cfg, struct backend **ret, struct err *e)
{
    struct far_backend *fb = xcalloc(1, sizeof(*fb));

    pthread_mutex_init(&fb->device, NULL);
    if (cpu_backend_init(&fb->cpu, &backend_far, cfg, e) < 0) {
        far_close(&fb->cpu.base);
        return err_wrap(e, "far backend");
    }
    *ret = &fb->cpu.base;
    return 0;
}

/* The exported fd stays: a mapping of one's own is how another process gets at KV. */
const struct backend_vt backend_far = {.name = "far",
                                       .open = far_open,
                                       .close = far_close,
                                       .isa = cpu_isa_of,
                                       .kv_dtype = cpu_kv_dtype,
                                       .mem_used = cpu_mem_used,
                                       .threads = cpu_threads,
                                       .dbuf_new = far_dbuf_new,
                                       .dbuf_free = far_dbuf_free,
                                       .stream_new = far_stream_new,
                                       .stream_free = far_stream_free,
                                       .upload = far_upload,
                                       .download = far_download,
                                       .sync = far_sync,
                                       .weight_new = cpu_weight_new,
                                       .weight_free = cpu_weight_free,
                                       .weight_part = cpu_weight_part,
                                       .weight_read = cpu_weight_read,
                                       .weight_join = cpu_weight_join,
                                       .kv_new = far_kv_new,
                                       .kv_free = far_kv_free,
                                       .kv_fd = cpu_kv_fd,
#define X(op) .op = far_op_##op,
                                       OP_MAP(X)
#undef X
};

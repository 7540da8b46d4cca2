/* kernels/backend.c - the one way into a device: find the implementation, check, call.
 *
 * Whatever can be known on the host (shapes, bounds, owners, sizes against the caps) is
 * checked here once for all implementations, so that a wrong launch is a sentence and not
 * a stray write on some device. Values that live on the device (ids, block tables) are
 * the implementation's to check; they surface from stream_sync.
 *
 * "far" is compiled into every build but serves only who asks for it by name. */
#include "kernels/backend.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "kernels/backend_impl.h"
#include "kernels/kv_block.h"

enum { MAX_DIM = 1 << 26, MAX_THREADS = 1024, MAX_KV_BLOCKS = 1 << 26 };

static const struct backend_vt *const backends[] = {&backend_cpu, &backend_far};

static int check_caps(const struct backend_caps *c, struct err *e)
{
    const struct {
        const char *name;
        int value;
    } f[] = {
        {"max_rows", c->max_rows},   {"max_cols", c->max_cols},
        {"max_items", c->max_items}, {"max_context", c->max_context},
        {"max_heads", c->max_heads}, {"max_head_dim", c->max_head_dim},
    };
    for (size_t i = 0; i < sizeof(f) / sizeof(f[0]); i++)
        if (f[i].value < 1 || f[i].value > MAX_DIM)
            return err_set(e, ERR_RANGE, "backend: %s is %d, outside 1..%d", f[i].name,
                           f[i].value, (int)MAX_DIM);
    return 0;
}

int backend_open(const struct backend_cfg *cfg, struct backend **ret, struct err *e)
{
    if (cfg->n_threads < 0 || cfg->n_threads > MAX_THREADS)
        return err_set(e, ERR_RANGE, "backend: %d kernel threads, outside 0..%d",
                       cfg->n_threads, (int)MAX_THREADS);
    if (check_caps(&cfg->caps, e) < 0)
        return -1;
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++)
        if (cfg->name && !strcmp(cfg->name, backends[i]->name))
            return backends[i]->open(cfg, ret, e);
    return err_set(e, ERR_UNSUPPORTED, "there is no backend '%s'; there is: cpu",
                   cfg->name ? cfg->name : "");
}

void backend_close(struct backend *b)
{
    if (b)
        b->vt->close(b);
}

const char *backend_isa(const struct backend *b) { return b->vt->isa(b); }

enum dtype backend_kv_dtype(const struct backend *b) { return b->vt->kv_dtype(b); }

int backend_set_threads(struct backend *b, int n, const int *cpus, struct err *e)
{
    if (n < 1 || n > MAX_THREADS)
        return err_set(e, ERR_RANGE, "backend: %d kernel threads, outside 1..%d", n,
                       (int)MAX_THREADS);
    return b->vt->threads(b, n, cpus, e);
}

void backend_mem_used(const struct backend *b, struct backend_mem *ret)
{
    b->vt->mem_used(b, ret);
}

/* ---- memory ---- */

int dbuf_new(struct backend *b, size_t bytes, struct dbuf **ret, struct err *e)
{
    return b->vt->dbuf_new(b, bytes, ret, e);
}

void dbuf_free(struct dbuf *d)
{
    if (d)
        d->b->vt->dbuf_free(d);
}

size_t dbuf_bytes(const struct dbuf *d) { return d->bytes; }

int stream_new(struct backend *b, struct stream **ret, struct err *e)
{
    return b->vt->stream_new(b, ret, e);
}

void stream_free(struct stream *s)
{
    if (s)
        s->b->vt->stream_free(s);
}

static int check_range(const struct stream *s, const struct dbuf *d, size_t off, size_t n,
                       const char *what, struct err *e)
{
    if (d->b != s->b)
        return err_set(e, ERR_INTERNAL, "%s: the buffer is of another backend", what);
    if (off > d->bytes || n > d->bytes - off)
        return err_set(e, ERR_INTERNAL, "%s: %zu bytes at %zu of a buffer of %zu", what,
                       n, off, d->bytes);
    return 0;
}

int stream_upload(struct stream *s, struct dbuf *dst, size_t off, const void *src,
                  size_t n, struct err *e)
{
    if (check_range(s, dst, off, n, "upload", e) < 0)
        return -1;
    return n ? s->b->vt->upload(s, dst, off, src, n, e) : 0;
}

int stream_download(struct stream *s, void *dst, const struct dbuf *src, size_t off,
                    size_t n, struct err *e)
{
    if (check_range(s, src, off, n, "download", e) < 0)
        return -1;
    return n ? s->b->vt->download(s, dst, src, off, n, e) : 0;
}

int stream_sync(struct stream *s, struct err *e) { return s->b->vt->sync(s, e); }

int weight_new(struct backend *b, const struct weight_src *src, struct weight **ret,
               struct err *e)
{
    if (src->rows < 1 || src->cols < 1)
        return err_set(e, ERR_INVALID, "tensor '%s' is %d x %d", src->name, src->rows,
                       src->cols);
    if (dtype_row_bytes(src->type, src->cols) < 0)
        return err_set(
            e, ERR_INVALID,
            "tensor '%s': a row of %d elements is no whole number of %s blocks",
            src->name, src->cols, dtype_name(src->type));
    if (src->flags & WEIGHT_VECTOR && src->rows != 1)
        return err_set(e, ERR_INVALID, "tensor '%s' should be a vector and has %d rows",
                       src->name, src->rows);
    if (!(src->flags & (WEIGHT_MATMUL | WEIGHT_LOOKUP | WEIGHT_VECTOR)))
        return err_set(e, ERR_INTERNAL, "tensor '%s': no use named", src->name);
    if (src->flags & WEIGHT_APART && src->flags & WEIGHT_LOOKUP)
        return err_set(e, ERR_INTERNAL, "tensor '%s': a table is not made apart",
                       src->name);
    return b->vt->weight_new(b, src, ret, e);
}

void weight_free(struct weight *w)
{
    if (w)
        w->b->vt->weight_free(w);
}

int weight_part(struct weight *w, const struct weight_src *part, int row, struct err *e)
{
    bool last = row + part->rows == w->rows;

    if (!(w->flags & WEIGHT_APART) || !(w->flags & WEIGHT_MATMUL) ||
        part->cols != w->cols || part->rows < 1 || row < 0 ||
        part->rows > w->rows - row || row % WEIGHT_PART_ROWS ||
        (part->rows % WEIGHT_PART_ROWS && !last))
        return err_set(e, ERR_INTERNAL,
                       "tensor '%s': rows %d..%d of %d columns are no part of %d x %d",
                       part->name, row, row + part->rows - 1, part->cols, w->rows,
                       w->cols);
    w->b->vt->weight_part(w, part, row);
    return 0;
}

int weight_read(const struct weight *w, int row, float *out, struct err *e)
{
    if (!(w->flags & (WEIGHT_MATMUL | WEIGHT_VECTOR)) || row < 0 || row >= w->rows)
        return err_set(e, ERR_INTERNAL, "row %d of a weight of %d rows", row, w->rows);
    w->b->vt->weight_read(w, row, out);
    return 0;
}

void weight_join(struct weight *w)
{
    if (w && w->flags & WEIGHT_APART)
        w->b->vt->weight_join(w);
}

int weight_cols(const struct weight *w) { return w->cols; }

/* ---- KV ---- */

int kv_layout_fill(struct kv_layout *l, struct err *e)
{
    size_t head, layer, block;

    if (l->type != DT_F16 && l->type != DT_BF16 && l->type != DT_F32)
        return err_set(e, ERR_UNSUPPORTED, "KV type %s; F16, BF16 or F32 would be right",
                       (unsigned)l->type < DT_COUNT ? dtype_name(l->type) : "?");
    if (l->block_tok != KV_BLOCK_TOK)
        return err_set(e, ERR_UNSUPPORTED, "KV blocks of %d positions; %d would be right",
                       l->block_tok, (int)KV_BLOCK_TOK);
    if (l->n_layer < 1 || l->n_layer > 65536 || l->n_kv_head < 1 ||
        l->n_kv_head > 65536 || l->head_dim < 1 || l->head_dim > KV_MAX_HEAD_DIM ||
        l->v_dim < 0 || l->v_dim > l->head_dim)
        return err_set(e, ERR_RANGE, "KV of %d layers, %d heads of %d", l->n_layer,
                       l->n_kv_head, l->head_dim);
    head = (size_t)KV_BLOCK_TOK * (size_t)kv_pad_dim(l->head_dim) *
           (l->type == DT_F32 ? sizeof(float) : sizeof(uint16_t));
    layer = (l->v_dim ? 1 : 2) * (size_t)l->n_kv_head * head;
    block = layer * (size_t)l->n_layer;
    l->head_bytes = head;
    l->layer_bytes = layer;
    l->block_bytes = block;
    return 0;
}

int kv_arena_new(struct backend *b, const struct kv_layout *l, int n_blocks,
                 struct kv_arena **ret, struct err *e)
{
    struct kv_layout own = *l;

    if (kv_layout_fill(&own, e) < 0)
        return -1;
    if (own.head_dim > b->caps.max_head_dim)
        return err_set(e, ERR_RANGE, "KV heads of %d, scratch was made for %d",
                       own.head_dim, b->caps.max_head_dim);
    if (n_blocks < 1 || n_blocks > MAX_KV_BLOCKS)
        return err_set(e, ERR_RANGE, "%d KV blocks, outside 1..%d", n_blocks,
                       (int)MAX_KV_BLOCKS);
    return b->vt->kv_new(b, &own, n_blocks, ret, e);
}

void kv_arena_free(struct kv_arena *a)
{
    if (a)
        a->b->vt->kv_free(a);
}

int kv_arena_fd(const struct kv_arena *a) { return a->b->vt->kv_fd(a); }

/* ---- ops ---- */

#define X(op)                                                                            \
    int op_##op(struct stream *s, const struct op_##op *o, struct err *e)                \
    {                                                                                    \
        return check_##op(s->b, o, e) < 0 ? -1 : s->b->vt->op(s, o, e);                  \
    }
OP_MAP(X)
#undef X

/* daemon/serve/kvmap.c - regions, and an index from (cp rank, shard, layer, head) to
 * them.
 *
 * Heads may stand in several regions (more tp ranks than KV heads, tp ranks of a latent):
 * the first is read. */
#include "daemon/serve/kvmap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/region.h"
#include "kernels/kv_block.h"

enum { INDEX_MAX = 1 << 24, SHARDS_MAX = 256 };

static const uint64_t PAGE_MAGIC = 0x314b5652434c4cull;

struct kvmap {
    bool writable, whole;
    uint64_t incarnation;
    int n_arenas, n, shards;
    struct kvregion *region;
    struct kvpage *page;
    int page_blocks;
    int16_t *index; /* [cp][shard][layer][head] */
};

/* ---- the page ---- */

size_t kvpage_bytes(int n_blocks)
{
    return sizeof(struct kvpage) + (size_t)n_blocks * sizeof(_Atomic uint32_t);
}

int kvpage_new(int n_blocks, uint64_t incarnation, struct kvpage **ret, int *ret_fd,
               struct err *e)
{
    struct kvpage *p;
    void *mem;

    if (region_new("llmrack-kvpage", "the page of KV generations", kvpage_bytes(n_blocks),
                   ret_fd, &mem, e) < 0)
        return -1;
    p = mem;
    p->magic = PAGE_MAGIC;
    p->n_blocks = (uint32_t)n_blocks;
    atomic_store(&p->incarnation, incarnation);
    *ret = p;
    return 0;
}

void kvpage_free(struct kvpage *p)
{
    if (p)
        region_unmap(p, kvpage_bytes((int)p->n_blocks));
}

/* ---- regions ---- */

struct kvmap *kvmap_new(bool writable)
{
    struct kvmap *m = xcalloc(1, sizeof(*m));

    m->writable = writable;
    return m;
}

void kvmap_free(struct kvmap *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n; i++)
        munmap(m->region[i].mem, (size_t)m->region[i].at.bytes);
    if (m->page)
        munmap(m->page, kvpage_bytes(m->page_blocks));
    free(m->region);
    free(m->index);
    free(m);
}

static void *map_fd(const struct kvmap *m, int fd, uint64_t bytes, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0) {
        err_errno(e, ERR_IO, "the KV of another engine");
        return NULL;
    }
    if (st.st_size < 0 || (uint64_t)st.st_size < bytes) {
        err_set(e, ERR_CORRUPT, "an exported region has %lld bytes, %llu were named",
                (long long)st.st_size, (unsigned long long)bytes);
        return NULL;
    }
    if (!region_keeps_size(fd)) {
        err_set(e, ERR_CORRUPT, "an exported region can be cut short while it is read");
        return NULL;
    }
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | (m->writable ? PROT_WRITE : 0),
                   MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        err_errno(e, ERR_NOMEM, "mapping %llu bytes of KV", (unsigned long long)bytes);
        return NULL;
    }
    return p;
}

static int add_page(struct kvmap *m, const struct wire_arena *a, int fd, struct err *e)
{
    if (m->page || a->bytes != kvpage_bytes(a->n_blocks))
        return err_set(e, ERR_CORRUPT, "not the page of an engine's KV");
    struct kvpage *p = map_fd(m, fd, a->bytes, e);
    if (!p)
        return -1;
    m->page = p;
    m->page_blocks = a->n_blocks;
    if (p->magic != PAGE_MAGIC || p->n_blocks != (uint32_t)a->n_blocks)
        return err_set(e, ERR_CORRUPT, "not the page of an engine's KV");
    return 0;
}

static bool same_model(const struct wire_arena *a, const struct wire_arena *b)
{
    return a->all_layers == b->all_layers && a->all_heads == b->all_heads &&
           a->head_dim == b->head_dim && a->v_dim == b->v_dim && a->type == b->type;
}

static int add_region(struct kvmap *m, const struct wire_arena *a, int fd, struct err *e)
{
    struct kvregion r = {.at = *a,
                         .layout = {.n_layer = a->n_layer,
                                    .n_kv_head = a->n_head,
                                    .head_dim = a->head_dim,
                                    .block_tok = KV_BLOCK_TOK,
                                    .type = (enum dtype)a->type,
                                    .v_dim = a->v_dim}};
    const struct wire_arena *b = m->n ? &m->region[0].at : NULL;
    size_t want;

    if (kv_layout_fill(&r.layout, e) < 0)
        return -1;
    if (size_mul(r.layout.block_bytes, (size_t)a->n_blocks, &want) < 0 || want > a->bytes)
        return err_set(e, ERR_CORRUPT, "%d KV blocks of %zu bytes do not fit %llu bytes",
                       a->n_blocks, r.layout.block_bytes, (unsigned long long)a->bytes);
    if (b && (!same_model(a, b) || a->cp != b->cp || a->striped != b->striped ||
              a->n_blocks != b->n_blocks))
        return err_set(e, ERR_CORRUPT, "rank %d's KV is not of its engine's layout",
                       a->rank);
    r.mem = map_fd(m, fd, a->bytes, e);
    if (!r.mem)
        return -1;
    m->region = xrealloc(m->region, (size_t)(m->n + 1) * sizeof(r));
    m->region[m->n++] = r;
    if (a->shard >= m->shards)
        m->shards = a->shard + 1;
    return 0;
}

static size_t index_at(const struct kvmap *m, int cp_at, int shard, int layer, int head)
{
    const struct wire_arena *a = &m->region[0].at;

    return (((size_t)cp_at * (size_t)m->shards + (size_t)shard) * (size_t)a->all_layers +
            (size_t)layer) *
               (size_t)a->all_heads +
           (size_t)head;
}

int kvmap_possible(int ranks, int shards, int cp, int n_layer, int n_head, struct err *e)
{
    size_t all = 0;

    if (ranks >= WIRE_ARENAS_MAX || shards > SHARDS_MAX)
        return err_set(e, ERR_RANGE,
                       "the KV of %d ranks is not handed over between pools: a layout of "
                       "at most %d would be right",
                       ranks, WIRE_ARENAS_MAX - 1);
    if (size_mul((size_t)cp * (size_t)shards, (size_t)n_layer, &all) < 0 ||
        size_mul(all, (size_t)n_head, &all) < 0 || all > INDEX_MAX)
        return err_set(
            e, ERR_RANGE,
            "the KV of %d layers and %d heads over %d ranks is not handed over "
            "between pools: a smaller cp or adp would be right",
            n_layer, n_head, ranks);
    return 0;
}

static int make_index(struct kvmap *m, struct err *e)
{
    const struct wire_arena *a = &m->region[0].at;
    size_t all =
        (size_t)a->cp * (size_t)m->shards * (size_t)a->all_layers * (size_t)a->all_heads;

    if (kvmap_possible(m->n, m->shards, a->cp, a->all_layers, a->all_heads, e) < 0)
        return -1;
    if (m->page_blocks != (int64_t)a->n_blocks * m->shards)
        return err_set(e, ERR_CORRUPT, "%d KV blocks, %d shards of %d", m->page_blocks,
                       m->shards, a->n_blocks);
    m->index = xmalloc(all * sizeof(*m->index));
    memset(m->index, 0xff, all * sizeof(*m->index));
    for (int i = m->n - 1; i >= 0; i--) {
        const struct wire_arena *r = &m->region[i].at;
        for (int l = r->first_layer; l < r->first_layer + r->n_layer; l++)
            for (int h = r->head_from; h < r->head_from + r->n_head; h++)
                m->index[index_at(m, r->cp_at, r->shard, l, h)] = (int16_t)i;
    }
    for (size_t i = 0; i < all; i++)
        if (m->index[i] < 0)
            return err_set(e, ERR_CORRUPT, "the KV of an engine has a hole");
    return 0;
}

static int add_one(struct kvmap *m, const struct wire_arena *a, int fd, struct err *e)
{
    if (m->whole ||
        (m->n_arenas && (a->incarnation != m->incarnation || a->n_arenas != m->n_arenas)))
        return err_set(e, ERR_CONFLICT, "a region of another engine's KV");
    m->incarnation = a->incarnation;
    m->n_arenas = a->n_arenas;
    if ((a->rank < 0 ? add_page(m, a, fd, e) : add_region(m, a, fd, e)) < 0)
        return -1;
    if (m->n + (m->page != NULL) < m->n_arenas)
        return 0;
    if (!m->page || make_index(m, e) < 0)
        return m->page ? -1 : err_set(e, ERR_CORRUPT, "an engine's KV without its page");
    m->whole = true;
    return 1;
}

int kvmap_add(struct kvmap *m, const struct wire_arena *a, int fd, struct err *e)
{
    int rc;

    if (fd < 0)
        return err_set(e, ERR_CORRUPT, "a region of KV came without its descriptor");
    rc = add_one(m, a, fd, e);
    close(fd);
    return rc;
}

bool kvmap_whole(const struct kvmap *m) { return m->whole; }
int kvmap_block_tok(const struct kvmap *m) { return m->region[0].at.block_tok; }
int kvmap_n_blocks(const struct kvmap *m) { return m->page_blocks; }
int kvmap_regions(const struct kvmap *m) { return m->n; }

const struct kvregion *kvmap_region(const struct kvmap *m, int i)
{
    return &m->region[i];
}

int kvmap_fits(const struct kvmap *from, const struct kvmap *to, struct err *e)
{
    const struct wire_arena *a = &from->region[0].at, *b = &to->region[0].at;

    if (same_model(a, b))
        return 0;
    return err_set(e, ERR_CONFLICT,
                   "KV of %d layers, %d heads of %d as %s is not KV of %d layers, %d "
                   "heads of %d as %s",
                   a->all_layers, a->all_heads, a->head_dim,
                   dtype_name((enum dtype)a->type), b->all_layers, b->all_heads,
                   b->head_dim, dtype_name((enum dtype)b->type));
}

/* ---- finding ---- */

struct kvspot kvmap_find(const struct kvmap *m, const struct kvtable *t, int layer,
                         int head, int pos)
{
    const struct wire_arena *a = &m->region[0].at;
    int32_t id = t->id[pos / a->block_tok - t->first];
    int in = pos % a->block_tok, shard = id / a->n_blocks;
    int cp_at = (a->striped ? pos : pos / KV_BLOCK_TOK) % a->cp;
    const struct kvregion *r =
        &m->region[m->index[index_at(m, cp_at, shard, layer, head)]];
    size_t local = (size_t)(id - shard * a->n_blocks);

    return (struct kvspot){.in = r,
                           .off = local * r->layout.block_bytes +
                                  kv_head_off(&r->layout, layer - r->at.first_layer, 0,
                                              head - r->at.head_from),
                           .tok = a->striped ? in / a->cp : in % KV_BLOCK_TOK};
}

bool kvmap_still(const struct kvmap *m, uint64_t incarnation,
                 const struct wire_block *blocks, int n)
{
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load(&m->page->incarnation) != incarnation)
        return false;
    for (int i = 0; i < n; i++)
        if (atomic_load_explicit(&m->page->gen[blocks[i].id], memory_order_relaxed) !=
            blocks[i].gen)
            return false;
    return true;
}

/* ---- sums ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

static uint64_t sum_row(const struct kvspot *s, int v, uint64_t key)
{
    const struct kv_layout *l = &s->in->layout;
    const uint8_t *head = s->in->mem + s->off + (v ? l->head_bytes : 0);
    int pad = kv_pad_dim(l->head_dim);
    size_t bytes = kvmap_element(l);
    uint64_t sum = 0;

    for (int d = 0; d < l->head_dim; d++) {
        size_t at =
            v ? kv_v_index(l->type, pad, s->tok, d) : kv_k_index(l->type, s->tok, d);
        uint32_t x = 0;
        memcpy(&x, head + at * bytes, bytes);
        sum += mix(key + (uint64_t)d) * ((uint64_t)x + 1);
    }
    return sum;
}

static bool has(const struct wire_arena *a, int cp_at, int shard, int layer, int head)
{
    return a->cp_at == cp_at && a->shard == shard && layer >= a->first_layer &&
           layer < a->first_layer + a->n_layer && head >= a->head_from &&
           head < a->head_from + a->n_head;
}

/* From region `at` on, the first that has it; -1. */
static int next_copy(const struct kvmap *m, int at, const struct kvspot *s, int layer,
                     int head)
{
    for (; at < m->n; at++)
        if (has(&m->region[at].at, s->in->at.cp_at, s->in->at.shard, layer, head))
            return at;
    return -1;
}

/* *s where the copy'th rank has it, or the last. */
static void other_copy(const struct kvmap *m, struct kvspot *s, int copy, int layer,
                       int head)
{
    int at = (int)(s->in - m->region);
    size_t block = s->off / s->in->layout.block_bytes;

    for (int next = at; copy > 0 && next >= 0; copy--) {
        next = next_copy(m, next + 1, s, layer, head);
        at = next < 0 ? at : next;
    }
    s->in = &m->region[at];
    s->off = block * s->in->layout.block_bytes +
             kv_head_off(&s->in->layout, layer - s->in->at.first_layer, 0,
                         head - s->in->at.head_from);
}

int kvmap_copies(const struct kvmap *m)
{
    int most = 1;

    for (int i = 0; i < m->n; i++) {
        const struct wire_arena *a = &m->region[i].at;
        int n = 0;
        for (int k = 0; k < m->n; k++)
            n += has(&m->region[k].at, a->cp_at, a->shard, a->first_layer, a->head_from);
        most = n > most ? n : most;
    }
    return most;
}

uint64_t kvmap_sum(const struct kvmap *m, const struct kvtable *t, int from, int upto,
                   int copy)
{
    const struct wire_arena *a = &m->region[0].at;
    uint64_t sum = 0;

    for (int p = from; p < upto; p++)
        for (int l = 0; l < a->all_layers; l++)
            for (int h = 0; h < a->all_heads; h++) {
                struct kvspot s = kvmap_find(m, t, l, h, p);
                if (copy)
                    other_copy(m, &s, copy, l, h);
                uint64_t key = mix((uint64_t)p << 32 ^ (uint64_t)l << 16 ^ (uint64_t)h);
                sum += sum_row(&s, 0, key);
                if (!a->v_dim)
                    sum += sum_row(&s, 1, mix(key));
            }
    return sum ? sum : 1;
}

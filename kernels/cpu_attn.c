/* kernels/cpu_attn.c - attention over the paged cache: how the work is cut and put
 * together.
 *
 * The context is cut at multiples of ATTN_SPLIT counted from position 0. A part's
 * (maximum, sum, values) comes from one kernel call whose result for an A-row (one query
 * row of one head) does not depend on the A-rows beside it; parts are merged in order. So
 * a row has the same bits alone or in a prefill tile, with any chunking and any number of
 * threads, and everything below is free to choose how to share the work:
 *
 *   unit = up to `tile` A-rows of one (item, KV head). The query heads of a KV head stand
 *          together, so K and V are read once for all of them.
 *   many units: each is done whole by one thread, which takes the next from a counter,
 *          the last rows of a prompt (the heaviest) first.
 *   few units (decode of few sequences): the threads share (unit, part) pairs, leave the
 *          parts in scratch, meet, and merge by A-row; in rounds where scratch is short.
 */
#include "kernels/cpu_attn.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/team.h"
#include "kernels/cpu.h"
#include "kernels/cpu_span.h"
#include "kernels/kv_block.h"

enum {
    TILE_MAX = 96, /* A-rows of a unit: q and o of a tile stay in the L2 cache */
    TILE_MIN = 24,
    UNITS_PER_THREAD = 4, /* fewer than that: cut finer */
    PART_FLOATS = 1 << 20,
};

#define LOG2_E 1.44269504088896340736f

struct attn_unit {
    int item, a0, n_a; /* A-rows a0.. of one KV head of the item */
    int first;         /* A-rows of the units before it, for its place in scratch */
};

struct attn_scratch {
    int n_threads, max_units, pad;
    struct attn_unit *units;
    size_t thread_floats;
    float *thread_mem; /* per thread: packed q, running o, part o, running m and l */
    float *part_mem;   /* PART_FLOATS */
    size_t bytes;
};

const struct attn_kern *attn_kern_get(enum cpu_isa isa, enum dtype type, bool latent)
{
    if (latent || type == DT_F32)
        return &attn_kern_portable;
    if (isa == CPU_ISA_AVX512)
        return type == DT_BF16 ? &attn_kern_avx512_bf16 : &attn_kern_avx512_f16;
    return isa == CPU_ISA_AVX2 ? &attn_kern_avx2 : &attn_kern_portable;
}

void attn_scratch_free(struct attn_scratch *s)
{
    if (!s)
        return;
    free(s->units);
    free(s->thread_mem);
    free(s->part_mem);
    free(s);
}

static float *try_floats(size_t n)
{
    float *p;

    if (n > SIZE_MAX / 8 || posix_memalign((void **)&p, 64, n * sizeof(float)))
        return NULL;
    memset(p, 0, n * sizeof(float));
    return p;
}

struct attn_scratch *attn_scratch_new(const struct backend_caps *caps, int n_threads)
{
    struct attn_scratch *s = xcalloc(1, sizeof(*s));
    size_t rows = (size_t)caps->max_rows * (size_t)caps->max_heads, units;

    s->n_threads = n_threads;
    s->pad = kv_pad_dim(caps->max_head_dim);
    units = rows / TILE_MAX + (size_t)caps->max_items +
            2 * UNITS_PER_THREAD * (size_t)n_threads + 1;
    s->thread_floats = (size_t)(2 * TILE_MAX + ATTN_A) * (size_t)s->pad + 2 * TILE_MAX;
    s->max_units = (int)units;
    s->units = units < (1u << 28) ? try_malloc(units * sizeof(*s->units)) : NULL;
    s->thread_mem = try_floats(s->thread_floats * (size_t)n_threads);
    s->part_mem = try_floats(PART_FLOATS);
    if (!s->units || !s->thread_mem || !s->part_mem) {
        attn_scratch_free(s);
        return NULL;
    }
    s->bytes = units * sizeof(*s->units) +
               (s->thread_floats * (size_t)n_threads + PART_FLOATS) * sizeof(float);
    return s;
}

size_t attn_scratch_bytes(const struct attn_scratch *s) { return s->bytes; }

/* ---- one launch ---- */

struct attn_job {
    const struct op_attn *o;
    const struct attn_kern *kern;
    struct attn_scratch *sc;
    struct cpu_backend *cb;
    const int32_t *row, *pos, *table;
    const float *q, *sinks;
    float *y;
    int group, pad; /* query heads of a KV head; padded head size */
    int v_dim;      /* of y's heads */
    int n_chunks;   /* units of each KV head, in sc->units */
    int n_units;    /* n_chunks * KV heads */
    int n_a;        /* A-rows of one KV head in all */
    int n_splits, round;
    atomic_int next;
};

/* The buffers of one thread. */
struct attn_local {
    uint32_t *q;     /* [TILE_MAX][pad] */
    float *o, *part; /* [TILE_MAX][pad], [ATTN_A][pad] */
    float *m, *l;    /* [TILE_MAX] */
};

static struct attn_local local_of(const struct attn_job *j, int member)
{
    float *p = j->sc->thread_mem + (size_t)member * j->sc->thread_floats;
    size_t tile = (size_t)TILE_MAX * (size_t)j->sc->pad;
    struct attn_local l = {(uint32_t *)(void *)p, p + tile, p + 2 * tile, NULL, NULL};

    l.m = l.part + (size_t)ATTN_A * (size_t)j->sc->pad;
    l.l = l.m + TILE_MAX;
    return l;
}

static int cut_units(struct attn_job *j, int tile)
{
    int n = 0, first = 0;

    for (int i = 0; i < j->o->span.n_items; i++) {
        int rows = (j->row[i + 1] - j->row[i]) * j->group;
        for (int a = 0; a < rows; a += tile) {
            struct attn_unit *u = &j->sc->units[n++];
            u->item = i;
            u->a0 = a;
            u->n_a = rows - a < tile ? rows - a : tile;
            u->first = first;
            first += u->n_a;
        }
    }
    j->n_a = first;
    return n;
}

/* Where an A-row stands in q or y, whose heads are dim wide. */
static size_t row_index(const struct attn_job *j, const struct attn_unit *u, int kv_head,
                        int a, int ld, int dim)
{
    int row = j->row[u->item] + (u->a0 + a) / j->group;
    int head = kv_head * j->group + (u->a0 + a) % j->group;

    return (size_t)row * (size_t)ld + (size_t)head * (size_t)dim;
}

static void pack_unit(const struct attn_job *j, const struct attn_unit *u, int kv_head,
                      uint32_t *q)
{
    float scale = j->o->scale * LOG2_E;

    for (int a = 0; a < u->n_a; a++)
        j->kern->pack(j->q + row_index(j, u, kv_head, a, j->o->q.ld, j->o->head_dim),
                      scale, j->o->head_dim, j->pad, q + (size_t)a * (size_t)j->pad);
}

/* The A-row's sum with its head's sink, whose logit is here in the log2 domain as m is.
 */
static float with_sink(const struct attn_job *j, const struct attn_unit *u, int kv_head,
                       int a, float m, float l)
{
    int head = kv_head * j->group + (u->a0 + a) % j->group;

    return j->sinks ? l + exp2f(j->sinks[head] * LOG2_E - m) : l;
}

static int row_pos(const struct attn_job *j, const struct attn_unit *u, int a)
{
    return j->pos[u->item] + (u->a0 + a) / j->group;
}

/* First position that the A-row sees. */
static int row_from(const struct attn_job *j, int pos)
{
    return j->o->window && pos >= j->o->window ? pos - j->o->window + 1 : 0;
}

static void unit_splits(const struct attn_job *j, const struct attn_unit *u, int *ret_lo,
                        int *ret_hi)
{
    *ret_lo = row_from(j, row_pos(j, u, 0)) / ATTN_SPLIT;
    *ret_hi = row_pos(j, u, u->n_a - 1) / ATTN_SPLIT + 1;
}

/* A part of the context of a unit of one KV head; u = NULL: none. */
struct task {
    const struct attn_unit *u;
    int kv_head, split;
};

static bool task_empty(const struct attn_job *j, const struct task *t)
{
    int lo, hi;

    if (!t->u)
        return true;
    unit_splits(j, t->u, &lo, &hi);
    return t->split < lo || t->split >= hi;
}

/* The head blocks that a unit sees of one part; places that it does not see point to a
 * neighbour that it does. */
struct blocks {
    const char *k[ATTN_BLOCKS], *v[ATTN_BLOCKS];
};

static void find_blocks(const struct attn_job *j, const struct task *t, struct blocks *bl)
{
    const struct attn_unit *u = t->u;
    int kv_head = t->kv_head, split = t->split;
    const struct kv_layout *l = &j->o->kv->layout;
    const int32_t *table =
        j->table + (size_t)u->item * (size_t)j->o->span.max_blocks + split * ATTN_BLOCKS;
    size_t k_off = kv_head_off(l, j->o->layer, 0, kv_head);
    size_t v_off = kv_head_off(l, j->o->layer, 1, kv_head);
    int lo = row_from(j, row_pos(j, u, 0)) / KV_BLOCK_TOK - split * ATTN_BLOCKS;
    int hi = row_pos(j, u, u->n_a - 1) / KV_BLOCK_TOK - split * ATTN_BLOCKS;

    for (int b = 0; b < ATTN_BLOCKS; b++) {
        int at = b < lo ? lo : b > hi ? hi : b;
        const char *block = cpu_kv_block(j->o->kv, table[at]);
        bl->k[b] = block + k_off;
        bl->v[b] = block + v_off;
    }
}

/* What each A-row sees of the part; false when none sees anything. */
static bool set_limits(const struct attn_job *j, const struct attn_unit *u, int a0,
                       int split, struct attn_part *p)
{
    bool any = false;

    for (int a = 0; a < p->n_a; a++) {
        int pos = row_pos(j, u, a0 + a), start = split * ATTN_SPLIT;
        int lo = row_from(j, pos) - start, hi = pos + 1 - start;
        lo = lo < 0 ? 0 : lo;
        hi = hi > ATTN_SPLIT ? ATTN_SPLIT : hi;
        p->lo[a] = hi > lo ? lo : 0;
        p->hi[a] = hi > lo ? hi : 0;
        any |= hi > lo;
    }
    return any;
}

/* Point p to the blocks of t and, where memory is the bound, to those of the task after.
 */
static void part_blocks(const struct attn_job *j, const struct task *t,
                        const struct task *after, struct attn_part *p,
                        struct blocks bl[2])
{
    p->next = NULL;
    if (!task_empty(j, t)) {
        find_blocks(j, t, &bl[0]);
        p->k = bl[0].k;
        p->v = bl[0].v;
    }
    if (p->stream && !task_empty(j, after)) {
        find_blocks(j, after, &bl[1]);
        p->next = bl[1].k;
    }
}

static void part_init(const struct attn_job *j, const struct attn_unit *u,
                      struct attn_part *p)
{
    memset(p, 0, sizeof(*p));
    p->type = j->o->kv->layout.type;
    p->dim = j->o->head_dim;
    p->v_dim = j->o->kv->layout.v_dim;
    p->pad = j->pad;
    p->stream = u->n_a <= ATTN_A;
}

/* The A-rows a0.. of a part, folded into the running ones. */
static void whole_part(const struct attn_job *j, const struct task *t, int a0,
                       struct attn_part *p, const struct attn_local *w)
{
    int left = t->u->n_a - a0;

    p->n_a = left < ATTN_A ? left : ATTN_A;
    p->q = w->q + (size_t)a0 * (size_t)j->pad;
    p->o = w->part;
    if (!set_limits(j, t->u, a0, t->split, p))
        return;
    j->kern->part(p);
    for (int a = 0; a < p->n_a; a++)
        if (p->hi[a] > p->lo[a])
            j->kern->merge(&w->m[a0 + a], &w->l[a0 + a],
                           w->o + (size_t)(a0 + a) * (size_t)j->pad, p->m[a], p->l[a],
                           p->o + (size_t)a * (size_t)j->pad, j->pad);
}

/* The n-th unit to be done: the last rows of a prompt, the heaviest, come first. */
static struct task unit_at(const struct attn_job *j, int n)
{
    int u = j->n_units - 1 - n, kv = j->o->n_kv_head, hi;
    struct task t = {NULL, 0, 0};

    if (n >= j->n_units)
        return t;
    t.u = &j->sc->units[u / kv];
    t.kv_head = u % kv;
    unit_splits(j, t.u, &t.split, &hi);
    return t;
}

static void whole_unit(const struct attn_job *j, struct task t, const struct task *after,
                       const struct attn_local *w)
{
    const struct attn_unit *u = t.u;
    struct blocks bl[2];
    struct attn_part p;
    int lo, hi;

    part_init(j, u, &p);
    pack_unit(j, u, t.kv_head, w->q);
    unit_splits(j, u, &lo, &hi);
    memset(w->o, 0, (size_t)u->n_a * (size_t)j->pad * sizeof(float));
    for (int a = 0; a < u->n_a; a++) {
        w->m[a] = -INFINITY;
        w->l[a] = 0;
    }
    for (; t.split < hi; t.split++) {
        struct task next = {u, t.kv_head, t.split + 1};
        part_blocks(j, &t, t.split + 1 < hi ? &next : after, &p, bl);
        for (int a0 = 0; a0 < u->n_a; a0 += ATTN_A)
            whole_part(j, &t, a0, &p, w);
    }
    for (int a = 0; a < u->n_a; a++)
        j->kern->finish(j->y + row_index(j, u, t.kv_head, a, j->o->y.ld, j->v_dim),
                        w->o + (size_t)a * (size_t)j->pad,
                        with_sink(j, u, t.kv_head, a, w->m[a], w->l[a]), j->v_dim);
}

static void whole_member(void *arg, int member, int n_members)
{
    struct attn_job *j = arg;
    struct attn_local w = local_of(j, member);
    struct task t = unit_at(j, atomic_fetch_add(&j->next, 1));

    (void)n_members;
    while (t.u) {
        struct task after = unit_at(j, atomic_fetch_add(&j->next, 1));
        whole_unit(j, t, &after, &w);
        t = after;
    }
}

/* ---- few units: parts shared out, then merged ----
 *
 * part_mem holds a cell (values, maximum, sum) per A-row and part of the round, after one
 * running cell per A-row. An A-row's number is kv_head * n_a + its place. */

static size_t cell_floats(const struct attn_job *j) { return (size_t)j->pad + 16; }

static float *cell_of(const struct attn_job *j, int a, int part)
{
    size_t n_rows = (size_t)j->n_a * (size_t)j->o->n_kv_head;
    size_t at =
        part < 0 ? (size_t)a : n_rows + (size_t)a * (size_t)j->round + (size_t)part;

    return j->sc->part_mem + at * cell_floats(j);
}

static void unit_part(const struct attn_job *j, const struct task *t,
                      const struct task *after, int part, const struct attn_local *w)
{
    const struct attn_unit *u = t->u;
    struct blocks bl[2];
    struct attn_part p;

    part_init(j, u, &p);
    part_blocks(j, t, after, &p, bl);
    pack_unit(j, u, t->kv_head, w->q);
    for (int a0 = 0; a0 < u->n_a; a0 += ATTN_A) {
        bool any;
        p.n_a = u->n_a - a0 < ATTN_A ? u->n_a - a0 : ATTN_A;
        p.q = w->q + (size_t)a0 * (size_t)j->pad;
        p.o = w->part;
        any = set_limits(j, u, a0, t->split, &p);
        if (any)
            j->kern->part(&p);
        for (int a = 0; a < p.n_a; a++) {
            float *cell = cell_of(j, t->kv_head * j->n_a + u->first + a0 + a, part);
            cell[j->pad] = any && p.hi[a] > p.lo[a] ? p.m[a] : -INFINITY;
            cell[j->pad + 1] = p.l[a];
            if (cell[j->pad] > -INFINITY)
                memcpy(cell, p.o + (size_t)a * (size_t)j->pad,
                       (size_t)j->pad * sizeof(float));
        }
    }
}

static void merge_rows(const struct attn_job *j, int lo, int hi, int n_parts, bool first)
{
    for (int a = lo; a < hi; a++) {
        float *run = cell_of(j, a, -1);
        if (first) {
            memset(run, 0, cell_floats(j) * sizeof(float));
            run[j->pad] = -INFINITY;
        }
        for (int p = 0; p < n_parts; p++) {
            const float *c = cell_of(j, a, p);
            if (c[j->pad] > -INFINITY)
                j->kern->merge(&run[j->pad], &run[j->pad + 1], run, c[j->pad],
                               c[j->pad + 1], c, j->pad);
        }
    }
}

static void finish_rows(const struct attn_job *j, int lo, int hi)
{
    for (int c = 0; c < j->n_chunks; c++)
        for (int kv = 0; kv < j->o->n_kv_head; kv++) {
            const struct attn_unit *u = &j->sc->units[c];
            for (int a = 0; a < u->n_a; a++) {
                int at = kv * j->n_a + u->first + a;
                const float *run = cell_of(j, at, -1);
                if (at >= lo && at < hi)
                    j->kern->finish(
                        j->y + row_index(j, u, kv, a, j->o->y.ld, j->v_dim), run,
                        with_sink(j, u, kv, a, run[j->pad], run[j->pad + 1]), j->v_dim);
            }
        }
}

/* Pair i of a round of n parts from `base` on. */
static struct task pair_at(const struct attn_job *j, int i, int n, int base)
{
    int kv = j->o->n_kv_head;
    struct task t = {&j->sc->units[i / n / kv], i / n % kv, base + i % n};

    return t;
}

static void split_member(void *arg, int member, int n_members)
{
    struct attn_job *j = arg;
    struct attn_local w = local_of(j, member);
    int lo, hi, from, to;

    cpu_share(j->n_a * j->o->n_kv_head, member, n_members, &lo, &hi);
    for (int base = 0; base < j->n_splits; base += j->round) {
        int left = j->n_splits - base, n = left < j->round ? left : j->round;
        cpu_share(j->n_units * n, member, n_members, &from, &to);
        for (int i = from; i < to; i++) {
            struct task t = pair_at(j, i, n, base), after = {NULL, 0, 0};
            if (i + 1 < to)
                after = pair_at(j, i + 1, n, base);
            unit_part(j, &t, &after, i % n, &w);
        }
        team_sync(j->cb->team);
        merge_rows(j, lo, hi, n, base == 0);
        if (base + j->round < j->n_splits)
            team_sync(j->cb->team); /* the cells are free again */
    }
    finish_rows(j, lo, hi);
}

/* Parts of a round that fit into scratch, 0 when sharing parts does not pay. */
static int plan_round(const struct attn_job *j)
{
    size_t rows = (size_t)j->n_a * (size_t)j->o->n_kv_head;
    size_t cells = PART_FLOATS / cell_floats(j);

    if (j->n_splits < 2 || j->n_units >= UNITS_PER_THREAD * j->sc->n_threads ||
        cells < rows * 9)
        return 0;
    cells = cells / rows - 1;
    return cells < (size_t)j->n_splits ? (int)cells : j->n_splits;
}

static void plan_units(struct attn_job *j)
{
    int tile = TILE_MAX, enough = UNITS_PER_THREAD * j->sc->n_threads, deepest = 0;

    j->n_chunks = cut_units(j, tile);
    while (tile > TILE_MIN && j->n_chunks * j->o->n_kv_head < enough) {
        tile /= 2;
        j->n_chunks = cut_units(j, tile);
    }
    j->n_units = j->n_chunks * j->o->n_kv_head;
    for (int c = 0; c < j->n_chunks; c++) {
        int lo, hi;
        unit_splits(j, &j->sc->units[c], &lo, &hi);
        deepest = hi > deepest ? hi : deepest;
    }
    j->n_splits = deepest;
    j->round = plan_round(j);
}

int cpu_op_attn(struct stream *s, const struct op_attn *o, struct err *e)
{
    struct cpu_backend *cb = cpu_of(s);
    struct attn_job j = {
        .o = o,
        .kern = attn_kern_get(cb->isa, o->kv->layout.type, o->kv->layout.v_dim > 0),
        .sc = cb->attn,
        .cb = cb,
        .row = cpu_iview(&o->span.row),
        .pos = cpu_iview(&o->span.pos),
        .table = cpu_iview(&o->span.table),
        .q = cpu_view(&o->q),
        .sinks = cpu_vec(o->sinks),
        .y = cpu_view(&o->y),
        .group = o->n_head / o->n_kv_head,
        .pad = kv_pad_dim(o->head_dim),
        .v_dim = o->kv->layout.v_dim ? o->kv->layout.v_dim : o->head_dim,
    };

    (void)e;
    if (!cpu_span_ok(s, &o->span, o->kv, CPU_SPAN_CONTEXT, o->window))
        return 0;
    plan_units(&j);
    if (j.round)
        team_run(cb->team, split_member, &j);
    else if (j.n_units * j.n_splits < 2)
        whole_member(&j, 0, 1);
    else
        team_run(cb->team, whole_member, &j);
    return 0;
}

/* kernels/cpu_mat.c - matrices of the CPU backend: made, freed, multiplied by a team.
 *
 * A product has two halves. First the rows of x are put in tiles, in the form that the
 * matrices want (int8, bf16, f32); the members share the rows and meet at a barrier. For
 * a few rows every member makes its own tiles instead, which costs less than the barrier
 * and gives the same bits. Then the panels of all matrices, as one list, are cut in equal
 * shares by bytes, and a member walks its share: for each panel all tiles of a group that
 * fits the L2 cache, so that weights come from memory once and activations from L2.
 *
 * A row's result depends on the row and the panel alone: the share, the group and the
 * tile's width change only who computes it and when. */
#include "kernels/cpu_mat_impl.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/team.h"
#include "kernels/cpu_pool.h"

enum { LINE = 64, GROUP_BYTES = 384 << 10, PARALLEL_BYTES = 256 << 10, PUT_CHUNKS = 8 };
/* Up to this many rows, if all members' copies are within PRIVATE_SUM rows. */
enum { PRIVATE_ROWS = 4, PRIVATE_SUM = 32 };

/* ---- instruction sets ---- */
enum cpu_isa cpu_isa_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))
        return CPU_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        return CPU_ISA_AVX2;
#endif
    return CPU_ISA_PORTABLE;
}

const char *cpu_isa_name(enum cpu_isa isa)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    return names[isa];
}

const struct mat_isa *mat_isa_table(enum cpu_isa isa)
{
    static const struct mat_isa *const tables[] = {&mat_isa_ref, &mat_isa_avx2,
                                                   &mat_isa_avx512};
    return tables[isa];
}

/* ---- matrices ---- */
static const struct {
    enum mat_code code;
    enum mat_scale scale;
} KINDS[] = {
#define X(id, code, scale, zero) {code, scale},
    MAT_KIND_MAP(X)
#undef X
};

static enum mat_kind kind_of(enum dtype t)
{
    static const enum mat_kind kinds[] = {
        [DT_F32] = KIND_F32,    [DT_F16] = KIND_F16,    [DT_BF16] = KIND_BF16,
        [DT_Q4_0] = KIND_U4_D,  [DT_Q4_1] = KIND_U4_DM, [DT_Q5_0] = KIND_U5_D,
        [DT_Q5_1] = KIND_U5_DM, [DT_Q8_0] = KIND_U8_D,  [DT_Q4_K] = KIND_U4_K,
        [DT_Q5_K] = KIND_U5_K,  [DT_Q6_K] = KIND_U6_K,
    };
    return kinds[t];
}

static enum mat_form form_of(enum mat_code code)
{
    if (code == CODE_BF16)
        return FORM_BF16;
    return code == CODE_F16 || code == CODE_F32 ? FORM_F32 : FORM_Q8;
}

static void lay_out(struct cpu_mat *m)
{
    static const size_t code_bytes[] = {
        [CODE_U4] = 256,   [CODE_U5] = 320,  [CODE_U6] = 384,  [CODE_U8] = 512,
        [CODE_BF16] = 512, [CODE_F16] = 256, [CODE_F32] = 512,
    };
    static const size_t scale_bytes[] = {
        [SCALE_NONE] = 0, [SCALE_D] = 32,  [SCALE_DM] = 64,
        [SCALE_K] = 32,   [SCALE_K6] = 32,
    };
    static const size_t block_bytes[] = {
        [SCALE_NONE] = 0, [SCALE_D] = 0, [SCALE_DM] = 0, [SCALE_K] = 64, [SCALE_K6] = 32,
    };

    m->kind = kind_of(m->type);
    m->code = KINDS[m->kind].code;
    m->scale = KINDS[m->kind].scale;
    m->form = form_of(m->code);
    int step = mat_form_elems(m->form);
    m->n_chunks = m->cols / step + (m->cols % step != 0);
    m->n_panels = m->rows / MAT_PANEL + (m->rows % MAT_PANEL != 0);
    m->chunk_bytes = code_bytes[m->code];
    m->scale_bytes = scale_bytes[m->scale];
    m->block_bytes = block_bytes[m->scale];
    size_t n = (size_t)m->n_chunks;
    m->scale_off = (n + 7) / 8 * m->block_bytes;
    m->code_off = m->scale_off + n * m->scale_bytes;
    m->code_off = (m->code_off + LINE - 1) / LINE * LINE;
    m->panel_bytes = m->code_off + n * m->chunk_bytes;
    m->panel_bytes = (m->panel_bytes + LINE - 1) / LINE * LINE;
}

static int alloc_panels(struct cpu_mat *m, struct cpu_pool *pool, struct err *e)
{
    if (size_mul((size_t)m->n_panels, m->panel_bytes, &m->bytes) < 0)
        return err_set(e, ERR_TOOBIG, "a matrix of %d x %d is too large", m->rows,
                       m->cols);
    m->data = cpu_pool_alloc(pool, m->bytes, &m->slab);
    if (!m->data)
        return err_set(e, ERR_NOMEM, "no memory for a matrix of %d x %d (%zu bytes)",
                       m->rows, m->cols, m->bytes);
    return 0;
}

struct pack_job {
    const struct cpu_mat *m;
    const void *src;
};

/* Of a panel's rows in the file. */
static size_t panel_src_bytes(const struct cpu_mat *m)
{
    return MAT_PANEL * (size_t)dtype_row_bytes(m->from, m->cols);
}

static void pack_member(void *arg, int member, int n_members)
{
    const struct pack_job *j = arg;
    int64_t n = j->m->n_panels;

    for (int64_t i = n * member / n_members; i < n * (member + 1) / n_members; i++)
        mat_pack_panel(j->m, (const uint8_t *)j->src + (size_t)i * panel_src_bytes(j->m),
                       (int)i);
}

static int mat_alloc(enum cpu_isa isa, struct cpu_pool *pool, enum dtype type, int rows,
                     int cols, const void *data, struct cpu_mat **ret, struct err *e)
{
    enum cpu_isa best = cpu_isa_best();
    struct cpu_mat *m;

    if (isa > best)
        return err_set(e, ERR_UNSUPPORTED, "this machine has %s, not %s",
                       cpu_isa_name(best), cpu_isa_name(isa));
    if (rows <= 0 || cols <= 0 || cols % dtype_block(type) != 0)
        return err_set(e, ERR_INVALID,
                       "a %s matrix of %d x %d needs rows and a multiple of %d columns",
                       dtype_name(type), rows, cols, dtype_block(type));
    m = xcalloc(1, sizeof(*m));
    m->isa = isa;
    m->from = type;
    m->type = mat_kept_type(type, rows, cols, data);
    m->rows = rows;
    m->cols = cols;
    lay_out(m);
    if (alloc_panels(m, pool, e) < 0) {
        cpu_mat_free(m);
        return -1;
    }
    *ret = m;
    return 0;
}

int cpu_mat_new(enum cpu_isa isa, struct team *t, struct cpu_pool *pool, enum dtype type,
                int rows, int cols, const void *data, struct cpu_mat **ret, struct err *e)
{
    struct cpu_mat *m = NULL;

    if (mat_alloc(isa, pool, type, rows, cols, data, &m, e) < 0)
        return -1;
    struct pack_job job = {m, data};
    if (t && m->bytes > PARALLEL_BYTES)
        team_run(t, pack_member, &job);
    else
        pack_member(&job, 0, 1);
    *ret = m;
    return 0;
}

int cpu_mat_new_empty(enum cpu_isa isa, enum dtype type, int rows, int cols,
                      const void *data, struct cpu_mat **ret, struct err *e)
{
    return mat_alloc(isa, NULL, type, rows, cols, data, ret, e);
}

void cpu_mat_put(struct cpu_mat *m, const void *data, int row, int n)
{
    size_t step = panel_src_bytes(m);

    for (int i = 0; i * MAT_PANEL < n; i++)
        mat_pack_panel(m, (const uint8_t *)data + (size_t)i * step, row / MAT_PANEL + i);
}

void cpu_mat_free(struct cpu_mat *m)
{
    if (!m)
        return;
    cpu_slab_unref(m->slab);
    free(m);
}

size_t cpu_mat_bytes(const struct cpu_mat *m) { return m->bytes + sizeof(*m); }

/* ---- tiles of x ---- */
/* All tiles of one x in one form. */
struct act {
    uint8_t *x;
    float *meta;
    int n_chunks;
};

static const int WIDTHS[] = {
#define X(w, none) w,
    MAT_WIDTHS(X, 0)
#undef X
};

/* Index of the narrowest tile that takes n rows. */
static int width_index(int n)
{
    int i = 0;

    while (WIDTHS[i] < n)
        i++;
    return i;
}

static int tile_rows(int n_rows, int tile)
{
    int left = n_rows - tile * MAT_TILE;
    return left < MAT_TILE ? left : MAT_TILE;
}

/* Rows that n_rows take up with the last tile filled. */
static int filled_rows(int n_rows)
{
    int rest = n_rows % MAT_TILE;
    return n_rows - rest + (rest ? WIDTHS[width_index(rest)] : 0);
}

static size_t form_bytes(enum mat_form f, size_t rows, int cols)
{
    size_t n_chunks = (size_t)(cols / mat_form_elems(f)) + 1;
    size_t per_row = MAT_ROW_BYTES + (f == FORM_Q8 ? META_COUNT * sizeof(float) : 0);

    return (rows * n_chunks * per_row + LINE - 1) / LINE * LINE;
}

static size_t slot_bytes(size_t rows, int cols)
{
    size_t n = 0;

    for (int f = 0; f < FORM_COUNT; f++)
        n += form_bytes(f, rows, cols);
    return n;
}

size_t cpu_mat_scratch_bytes(int max_rows, int max_cols)
{
    size_t rows = ((size_t)max_rows + MAT_TILE - 1) / MAT_TILE * MAT_TILE;
    size_t shared = slot_bytes(rows, max_cols);
    size_t slots = PRIVATE_SUM * slot_bytes(1, max_cols);

    return (shared > slots ? shared : slots) + LINE;
}

static void act_init(struct act a[FORM_COUNT], uint8_t *slot, int rows, int cols)
{
    for (int f = 0; f < FORM_COUNT; f++) {
        int step = mat_form_elems(f);
        a[f].n_chunks = cols / step + (cols % step != 0);
        a[f].x = slot;
        a[f].meta = NULL;
        if (f == FORM_Q8)
            a[f].meta =
                (float *)(slot + (size_t)rows * (size_t)a[f].n_chunks * MAT_ROW_BYTES);
        slot += form_bytes(f, (size_t)rows, cols);
    }
}

static uint8_t *act_tile(const struct act *a, int tile)
{
    return a->x + (size_t)tile * (size_t)a->n_chunks * (MAT_TILE * MAT_ROW_BYTES);
}

static float *act_meta(const struct act *a, int tile)
{
    if (!a->meta)
        return NULL;
    return a->meta + (size_t)tile * (size_t)a->n_chunks * (MAT_TILE * META_COUNT);
}

/* ---- the product ---- */
struct run {
    const struct cpu_product *p;
    const struct mat_isa *isa;
    struct team *team;
    uint8_t *scratch;
    unsigned forms; /* bit f: some matrix wants form f */
    int n_meta;
    bool private;
};

void mat_zero_row(int n, int w, int r, uint8_t *tile, float *meta)
{
    for (int c = 0; c < n; c++) {
        memset(tile + (size_t)(c * w + r) * MAT_ROW_BYTES, 0, MAT_ROW_BYTES);
        for (int i = 0; i < META_COUNT && meta; i++)
            meta[(c * META_COUNT + i) * w + r] = 0;
    }
}

/* What part of the tiles a member makes: tiles t0..t1-1, chunks c0..c1-1 of form f. */
struct part {
    enum mat_form f;
    int t0, t1, c0, c1;
};

/* Chunks c0..c1-1 of one tile. */
static void put_tile(const struct run *r, const struct act *a, enum mat_form f, int tile,
                     int c0, int c1)
{
    const struct cpu_product *p = r->p;
    int step = mat_form_elems(f), cols = p->m[0]->cols;
    int k0 = c0 * step, k1 = c1 * step < cols ? c1 * step : cols;
    int n = tile_rows(p->n_rows, tile), w = WIDTHS[width_index(n)];
    const float *row = p->x + (size_t)(tile * MAT_TILE) * (size_t)p->x_ld + k0;
    uint8_t *x = act_tile(a, tile) + (size_t)(c0 * w) * MAT_ROW_BYTES;
    float *meta = a->meta ? act_meta(a, tile) + c0 * w * META_COUNT : NULL;

    for (int i = 0; i < w; i++, row += p->x_ld)
        if (i < n)
            r->isa->put_row(f, row, k1 - k0, w, i, r->n_meta, x, meta);
        else
            mat_zero_row(c1 - c0, w, i, x, meta);
}

/* A few chunks of all rows of a tile at a time: all of K would not stay in L1. */
static void put_part(const struct run *r, const struct act *a, const struct part *part)
{
    for (int t = part->t0; t < part->t1; t++)
        for (int c = part->c0; c < part->c1; c += PUT_CHUNKS) {
            int end = c + PUT_CHUNKS < part->c1 ? c + PUT_CHUNKS : part->c1;
            put_tile(r, a, part->f, t, c, end);
        }
}

/* Part `part` of `parts` of the tiles. Many rows: whole tiles, as row-wise ops before
 * have left them in the caches. Few rows: ranges of K, so that nobody shares a line with
 * others, and members read what they wrote as their share of the product before. */
static void put_tiles(const struct run *r, const struct act a[FORM_COUNT], int64_t part,
                      int64_t parts)
{
    int n_tiles = (r->p->n_rows + MAT_TILE - 1) / MAT_TILE;

    for (int f = 0; f < FORM_COUNT; f++) {
        struct part q = {f, 0, n_tiles, 0, a[f].n_chunks};
        if (!(r->forms >> f & 1))
            continue;
        if (n_tiles >= 2 * parts) {
            q.t0 = (int)(n_tiles * part / parts);
            q.t1 = (int)(n_tiles * (part + 1) / parts);
        } else {
            q.c0 = (int)(a[f].n_chunks * part / parts);
            q.c1 = (int)(a[f].n_chunks * (part + 1) / parts);
        }
        put_part(r, &a[f], &q);
    }
}

static void multiply(const struct run *r, const struct cpu_mat *m, const struct act *a,
                     int panel, int tile, float *acc)
{
    int w = width_index(tile_rows(r->p->n_rows, tile));

    r->isa->tile[m->kind][w](m, m->data + (size_t)panel * m->panel_bytes,
                             act_tile(&a[m->form], tile), act_meta(&a[m->form], tile),
                             acc);
}

static void do_tile(const struct run *r, const struct act *a, int j, int panel, int tile)
{
    _Alignas(64) float acc[2][MAT_TILE * MAT_PANEL];
    const struct cpu_product *p = r->p;
    const struct cpu_mat *m = p->m[j];
    int col = panel * MAT_PANEL, left = m->rows - col;
    struct mat_out o = {
        .y = p->y[j] + (size_t)(tile * MAT_TILE) * (size_t)p->y_ld[j] + col,
        .ld = p->y_ld[j],
        .n_rows = tile_rows(p->n_rows, tile),
        .n = left < MAT_PANEL ? left : MAT_PANEL,
        .bias = p->bias[j] ? p->bias[j] + col : NULL,
        .add = p->add,
    };

    multiply(r, m, a, panel, tile, acc[0]);
    if (p->glu) {
        multiply(r, p->m[1], a, panel, tile, acc[1]);
        r->isa->finish_glu(&o, acc[0], acc[1]);
    } else {
        r->isa->finish(&o, acc[0]);
    }
}

/* The first panel of matrix j that belongs to member `part` of `parts`: shares are equal
 * in bytes over the joint list. */
static int share(const struct run *r, int j, int n_mats, int64_t part, int64_t parts)
{
    int64_t total = 0, before = 0;

    for (int i = 0; i < n_mats; i++) {
        int64_t n = (int64_t)r->p->m[i]->n_panels * (int64_t)r->p->m[i]->panel_bytes;
        before += i < j ? n : 0;
        total += n;
    }
    int64_t at = total * part / parts - before;
    int64_t each = (int64_t)r->p->m[j]->panel_bytes;
    int64_t panel = at <= 0 ? 0 : (at + each / 2) / each;
    return (int)(panel < r->p->m[j]->n_panels ? panel : r->p->m[j]->n_panels);
}

static void do_share(const struct run *r, const struct act *a, int member, int n_members)
{
    const struct cpu_product *p = r->p;
    int n_tiles = (p->n_rows + MAT_TILE - 1) / MAT_TILE;
    int n_mats = p->glu ? 1 : p->n_out;
    int tile_bytes =
        p->m[0]->n_chunks * MAT_TILE * (MAT_ROW_BYTES + 2 * (int)sizeof(float));
    int group = GROUP_BYTES / tile_bytes > 0 ? GROUP_BYTES / tile_bytes : 1;

    for (int t0 = 0; t0 < n_tiles; t0 += group)
        for (int j = 0; j < n_mats; j++) {
            int from = share(r, j, n_mats, member, n_members);
            int to = share(r, j, n_mats, member + 1, n_members);
            for (int panel = from; panel < to; panel++)
                for (int t = t0; t < n_tiles && t < t0 + group; t++)
                    do_tile(r, a, j, panel, t);
        }
}

static void product_member(void *arg, int member, int n_members)
{
    const struct run *r = arg;
    struct act a[FORM_COUNT];
    int rows = filled_rows(r->p->n_rows), cols = r->p->m[0]->cols;

    if (r->private) {
        size_t slot = slot_bytes((size_t)rows, cols);
        act_init(a, r->scratch + (size_t)member * slot, rows, cols);
        put_tiles(r, a, 0, 1);
    } else {
        act_init(a, r->scratch, rows, cols);
        put_tiles(r, a, member, n_members);
        team_sync(r->team);
    }
    do_share(r, a, member, n_members);
}

void cpu_product_run(struct team *t, const struct cpu_product *p)
{
    struct run r = {.p = p, .isa = mat_isa_table(p->isa), .team = t};
    uintptr_t s = (uintptr_t)p->scratch;

    if (p->n_rows <= 0)
        return;
    assert(!p->glu || (p->n_out == 2 && p->m[0]->rows == p->m[1]->rows));
    for (int j = 0; j < p->n_out; j++) {
        assert(p->m[j]->cols == p->m[0]->cols && p->m[j]->isa == p->isa);
        r.forms |= 1u << p->m[j]->form;
        if (mat_n_meta(p->m[j]->scale) > r.n_meta)
            r.n_meta = mat_n_meta(p->m[j]->scale);
    }
    r.scratch = (uint8_t *)((s + LINE - 1) / LINE * LINE);
    r.private =
        p->n_rows <= PRIVATE_ROWS && filled_rows(p->n_rows) * team_size(t) <= PRIVATE_SUM;
    team_run(t, product_member, &r);
}

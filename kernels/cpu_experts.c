/* kernels/cpu_experts.c - the products of many experts in one run of the team.
 *
 * An expert has a few rows and its matrices are small: one product after the other would
 * be mostly barriers. So a run takes as many experts as fit the scratch and goes through
 * two halves, gate and up, then down. In each the rows of x are put in tiles (for a few
 * rows every member makes its own, without a barrier; else the members take tiles in
 * turn), then the members take a few panels at a time of the joint list until there are
 * none left. Who computes a panel changes nothing: a row's result depends on the row and
 * the panel alone, by the kernels of cpu_mat in the same order.
 *
 * Where it is asked for, the time in an expert's panels is taken by each member (a
 * counter read between experts, not between panels) and scaled by the clock at the ends
 * of the run.
 *
 * Rows are gathered as they are put in tiles and scattered as they are finished. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/team.h"
#include "kernels/cpu_mat_impl.h"

enum { LINE = 64, UNIT_BYTES = 16 << 10, PRIVATE_SUM = 64, MAX_EXPERTS = 128 };
enum { PUT_CHUNKS = 8 }; /* of all rows of a tile at a time, as in cpu_mat */

/* Tiles of one expert's rows in one form. */
struct half {
    const struct cpu_mat *m[2]; /* m[1] NULL: one matrix */
    size_t at[2];               /* of each matrix's tiles, in the scratch of the half */
    size_t step[2],
        meta[2];         /* from tile to tile; from a full tile to its meta, 0 = none */
    size_t last_meta[2]; /* of the last tile, which may be narrower */
    int n_meta;
};

struct part {
    const int32_t *pair;
    const float *bias[3];               /* of gate, up, down */
    int n, first, n_tiles;              /* first: row of the run */
    int last_n, last_width, last_index; /* of the last tile */
    struct half half[2];
    double later; /* the share of phase 1 in its pairs */
    int64_t *service_ns[CPU_PHASES], *queue_ns[CPU_PHASES];
    _Atomic uint64_t ticks, began; /* in its panels, by all; of the first of them */
};

struct run {
    const struct cpu_experts *x;
    const struct mat_isa *isa;
    struct team *team;
    uint8_t *scratch;
    size_t bytes[2]; /* of a half's tiles */
    uint64_t ticks;  /* since when rows wait */
    int64_t ns;      /* the same by the clock */
    int n, rows;
    bool private;
    struct {
        _Alignas(LINE) atomic_int next;
    } turn[4]; /* tiles, panels of each half */
    struct part part[MAX_EXPERTS];
};

/* ---- sizes ---- */

static int width_index(int n)
{
    static const int widths[] = {
#define X(w, none) w,
        MAT_WIDTHS(X, 0)
#undef X
    };
    int i = 0;

    while (widths[i] < n)
        i++;
    return i;
}

static int width(int n)
{
    static const int widths[] = {
#define X(w, none) w,
        MAT_WIDTHS(X, 0)
#undef X
    };
    return widths[width_index(n)];
}

static size_t line_up(size_t n) { return (n + LINE - 1) / LINE * LINE; }

/* A tile of w rows: values, then what int8 needs beside them. */
static size_t meta_off(const struct cpu_mat *m, int w)
{
    return m->form == FORM_Q8 ? line_up((size_t)m->n_chunks * (size_t)w * MAT_ROW_BYTES)
                              : 0;
}

static size_t tile_bytes(const struct cpu_mat *m, int w)
{
    size_t n = (size_t)m->n_chunks * (size_t)w;

    return line_up(n * MAT_ROW_BYTES) +
           (m->form == FORM_Q8 ? line_up(n * META_COUNT * sizeof(float)) : 0);
}

/* ---- a run ---- */

static void lay_out_matrix(struct half *h, int j, const struct cpu_mat *m,
                           const struct part *p, size_t *bytes)
{
    h->m[j] = m;
    h->at[j] = *bytes;
    h->step[j] = tile_bytes(m, MAT_TILE);
    h->meta[j] = meta_off(m, MAT_TILE);
    h->last_meta[j] = meta_off(m, p->last_width);
    if (mat_n_meta(m->scale) > h->n_meta)
        h->n_meta = mat_n_meta(m->scale);
    if (j && m->form == h->m[0]->form)
        h->at[1] = h->at[0]; /* the same tiles */
    else
        *bytes += (size_t)(p->n_tiles - 1) * h->step[j] + tile_bytes(m, p->last_width);
}

static void fill_part(struct part *p, const struct cpu_expert *e, int from, int n,
                      int first)
{
    memset(p, 0, sizeof(*p));
    p->pair = e->pair + from;
    p->n = n;
    p->first = first;
    p->later = (double)e->later / e->n;
    memcpy(p->service_ns, e->service_ns, sizeof(p->service_ns));
    memcpy(p->queue_ns, e->queue_ns, sizeof(p->queue_ns));
    memcpy(p->bias, e->bias, sizeof(p->bias));
    p->n_tiles = (n + MAT_TILE - 1) / MAT_TILE;
    p->last_n = n - (p->n_tiles - 1) * MAT_TILE;
    p->last_index = width_index(p->last_n);
    p->last_width = width(p->last_n);
}

/* Take rows of the expert into the run while they fit; how many. */
static int add_part(struct run *r, const struct cpu_expert *e, int from)
{
    const struct cpu_experts *x = r->x;
    struct part *p = &r->part[r->n];
    int n = e->n - from;

    if (r->n == MAX_EXPERTS || r->rows == x->max_rows)
        return 0;
    if (n > x->max_rows - r->rows)
        n = x->max_rows - r->rows;
    for (;; n = (n - 1) / MAT_TILE * MAT_TILE) {
        size_t bytes[2] = {r->bytes[0], r->bytes[1]};
        if (n <= 0)
            return 0;
        fill_part(p, e, from, n, r->rows);
        lay_out_matrix(&p->half[0], 0, e->gate, p, &bytes[0]);
        lay_out_matrix(&p->half[0], 1, e->up, p, &bytes[0]);
        lay_out_matrix(&p->half[1], 0, e->down, p, &bytes[1]);
        if (bytes[0] + bytes[1] <= x->scratch_bytes - LINE) {
            memcpy(r->bytes, bytes, sizeof(bytes));
            break;
        }
    }
    r->rows += n;
    r->n++;
    return n;
}

static uint8_t *half_scratch(const struct run *r, int half, int member)
{
    uint8_t *own = r->scratch;

    if (r->private)
        own += (size_t)member * (r->bytes[0] + r->bytes[1]);
    return own + (half ? r->bytes[0] : 0);
}

/* One tile of a part as a kernel takes it. */
struct tile {
    int n, width, index;
    uint8_t *x;
    float *meta;
};

static struct tile tile_of(const struct part *p, const struct half *h, int j, int t,
                           uint8_t *scratch)
{
    bool last = t == p->n_tiles - 1;
    size_t meta = last ? h->last_meta[j] : h->meta[j];
    uint8_t *x = scratch + h->at[j] + (size_t)t * h->step[j];

    return (struct tile){.n = last ? p->last_n : MAT_TILE,
                         .width = last ? p->last_width : MAT_TILE,
                         .index = last ? p->last_index : MAT_N_WIDTHS - 1,
                         .x = x,
                         .meta = meta ? (float *)(x + meta) : NULL};
}

/* ---- tiles ---- */

static const float *row_of(const struct run *r, const struct part *p, int half, int i)
{
    const struct cpu_experts *x = r->x;

    return half ? x->a + (size_t)(p->first + i) * (size_t)x->a_ld
                : x->x + (size_t)(p->pair[i] / x->per_row) * (size_t)x->x_ld;
}

/* Chunks c0..c1 of one tile, a row at a time. */
static void put_chunks(const struct run *r, const struct part *p, int half,
                       const struct cpu_mat *m, const struct tile *y, int t, int c0,
                       int c1)
{
    int step = mat_form_elems(m->form), k0 = c0 * step;
    int k1 = c1 * step < m->cols ? c1 * step : m->cols;
    uint8_t *x = y->x + (size_t)(c0 * y->width) * MAT_ROW_BYTES;
    float *meta = y->meta ? y->meta + c0 * y->width * META_COUNT : NULL;

    for (int i = 0; i < y->width; i++)
        if (i < y->n)
            r->isa->put_row(m->form, row_of(r, p, half, t * MAT_TILE + i) + k0, k1 - k0,
                            y->width, i, p->half[half].n_meta, x, meta);
        else
            mat_zero_row(c1 - c0, y->width, i, x, meta);
}

static void put_tile(const struct run *r, const struct part *p, int half, int t,
                     uint8_t *scratch)
{
    const struct half *h = &p->half[half];

    for (int j = 0; j < 2 && h->m[j] && !(j && h->at[1] == h->at[0]); j++) {
        struct tile y = tile_of(p, h, j, t, scratch);
        int all = h->m[j]->n_chunks;

        for (int c = 0; c < all; c += PUT_CHUNKS)
            put_chunks(r, p, half, h->m[j], &y, t, c,
                       c + PUT_CHUNKS < all ? c + PUT_CHUNKS : all);
    }
}

static void put_tiles(struct run *r, int half, int member)
{
    uint8_t *scratch = half_scratch(r, half, member);
    int unit = 0, mine = 0;

    if (!r->private)
        mine = atomic_fetch_add(&r->turn[2 * half].next, 1);
    for (int i = 0; i < r->n; i++)
        for (int t = 0; t < r->part[i].n_tiles; t++, unit++) {
            if (!r->private && unit != mine)
                continue;
            put_tile(r, &r->part[i], half, t, scratch);
            if (!r->private)
                mine = atomic_fetch_add(&r->turn[2 * half].next, 1);
        }
    if (!r->private)
        team_sync(r->team);
}

/* ---- panels ---- */

static void multiply(const struct run *r, const struct cpu_mat *m, int panel,
                     const struct tile *x, float *acc)
{
    r->isa->tile[m->kind][x->index](m, m->data + (size_t)panel * m->panel_bytes, x->x,
                                    x->meta, acc);
}

/* acc + bias, then the unit, a value at a time. */
static void finish_other(const struct mat_out *o, const struct run *r, const float *gate,
                         const float *up, const float *const bias[2], int col)
{
    float limit = r->x->limit;

    for (int i = 0; i < o->n_rows; i++)
        for (int c = 0; c < o->n; c++) {
            float g = gate[i * MAT_PANEL + c], u = up[i * MAT_PANEL + c];
            g = bias[0] ? g + bias[0][col + c] : g;
            u = bias[1] ? u + bias[1][col + c] : u;
            float *y = o->y + (size_t)i * (size_t)o->ld + c;
            if (limit > 0) {
                g = fminf(g, limit);
                u = fmaxf(fminf(u, limit), -limit);
                *y = g / (1.0f + expf(-1.702f * g)) * (u + 1);
            } else {
                *y = g / (1.0f + expf(-g)) * u;
            }
        }
}

static void gate_up(const struct run *r, const struct part *p, int panel, int t,
                    uint8_t *scratch)
{
    _Alignas(LINE) float acc[2][MAT_TILE * MAT_PANEL];
    const struct half *h = &p->half[0];
    struct tile gate = tile_of(p, h, 0, t, scratch), up = tile_of(p, h, 1, t, scratch);
    int col = panel * MAT_PANEL, left = h->m[0]->rows - col;
    struct mat_out o = {
        .y = r->x->a + (size_t)(p->first + t * MAT_TILE) * (size_t)r->x->a_ld + col,
        .ld = r->x->a_ld,
        .n_rows = gate.n,
        .n = left < MAT_PANEL ? left : MAT_PANEL,
    };

    multiply(r, h->m[0], panel, &gate, acc[0]);
    multiply(r, h->m[1], panel, &up, acc[1]);
    if (r->x->limit > 0 || p->bias[0] || p->bias[1])
        finish_other(&o, r, acc[0], acc[1], p->bias, col);
    else
        r->isa->finish_glu(&o, acc[0], acc[1]);
}

/* Rows go where their pairs stand. */
static void down(const struct run *r, const struct part *p, int panel, int t,
                 uint8_t *scratch)
{
    _Alignas(LINE) float acc[MAT_TILE * MAT_PANEL];
    const struct half *h = &p->half[1];
    struct tile x = tile_of(p, h, 0, t, scratch);
    int col = panel * MAT_PANEL, left = h->m[0]->rows - col;
    size_t n = (size_t)(left < MAT_PANEL ? left : MAT_PANEL) * sizeof(float);
    const int32_t *pair = p->pair + t * MAT_TILE;

    multiply(r, h->m[0], panel, &x, acc);
    for (int i = 0; i < x.n; i++) {
        for (int c = 0; p->bias[2] && c < MAT_PANEL && c < left; c++)
            acc[i * MAT_PANEL + c] += p->bias[2][col + c];
        float *y = r->x->y + (size_t)pair[i] * (size_t)r->x->y_ld + col;
        if (left >= MAT_PANEL)
            memcpy(y, acc + i * MAT_PANEL, MAT_PANEL * sizeof(float));
        else
            memcpy(y, acc + i * MAT_PANEL, n);
    }
}

/* Panels that are taken at once: enough to be worth the turn. */
static int unit_panels(const struct part *p, int half)
{
    size_t bytes = p->half[half].m[0]->panel_bytes * (half ? 1 : 2);
    int n = (int)(UNIT_BYTES / bytes) / p->n_tiles;

    return n < 1 ? 1 : n;
}

/* A member has worked on a part since `since`. */
static void took(struct part *p, uint64_t since, uint64_t now)
{
    uint64_t none = 0;

    atomic_fetch_add_explicit(&p->ticks, now - since, memory_order_relaxed);
    atomic_compare_exchange_strong(&p->began, &none, since);
}

static void do_panels(struct run *r, int half, int member)
{
    uint8_t *scratch = half_scratch(r, half, member);
    atomic_int *turn = &r->turn[2 * half + 1].next;
    int before = 0, mine = atomic_fetch_add(turn, 1);
    uint64_t since = clock_ticks();

    for (int i = 0; i < r->n; i++) {
        struct part *p = &r->part[i];
        int all = p->half[half].m[0]->n_panels, step = unit_panels(p, half);
        int units = (all + step - 1) / step;
        bool any = mine < before + units;

        while (mine < before + units) {
            int from = (mine - before) * step, to = from + step < all ? from + step : all;
            for (int panel = from; panel < to; panel++)
                for (int t = 0; t < p->n_tiles; t++)
                    (half ? down : gate_up)(r, p, panel, t, scratch);
            mine = atomic_fetch_add(turn, 1);
        }
        before += units;
        if (any && p->service_ns[0]) {
            uint64_t now = clock_ticks();
            took(p, since, now);
            since = now;
        }
    }
}

static void run_member(void *arg, int member, int n_members)
{
    struct run *r = arg;

    (void)n_members;
    put_tiles(r, 0, member);
    do_panels(r, 0, member);
    team_sync(r->team);
    put_tiles(r, 1, member);
    do_panels(r, 1, member);
}

static void start_run(struct run *r, struct team *t, const struct cpu_experts *x)
{
    uintptr_t s = (uintptr_t)x->scratch;

    r->x = x;
    r->isa = mat_isa_table(x->isa);
    r->team = t;
    r->scratch = (uint8_t *)((s + LINE - 1) / LINE * LINE);
    r->n = r->rows = 0;
    r->bytes[0] = r->bytes[1] = 0;
    for (int i = 0; i < 4; i++)
        atomic_store(&r->turn[i].next, 0);
}

/* ns to both phases, by how many pairs of the part are of each. */
static void divide(const struct part *p, int64_t *const to[CPU_PHASES], int64_t ns)
{
    int64_t later = (int64_t)((double)ns * p->later);

    *to[0] += ns - later;
    *to[1] += later;
}

/* Ticks into nanoseconds, by how many there were of both since rows began to wait. */
static void tell_times(struct run *r)
{
    double ticks = (double)(clock_ticks() - r->ticks);
    double ns = ticks > 0 ? (double)(clock_now_ns() - r->ns) / ticks : 0;
    int members = team_size(r->team);

    for (int i = 0; i < r->n; i++) {
        struct part *p = &r->part[i];
        double wait = (double)(atomic_load(&p->began) - r->ticks) * p->n;

        if (!p->service_ns[0])
            continue;
        divide(p, p->service_ns,
               (int64_t)((double)atomic_load(&p->ticks) * ns / members));
        divide(p, p->queue_ns, (int64_t)(wait * ns));
    }
}

static void end_run(struct run *r)
{
    size_t all = (r->bytes[0] + r->bytes[1]) * (size_t)team_size(r->team);

    if (!r->n)
        return;
    r->private =
        r->rows * team_size(r->team) <= PRIVATE_SUM && all <= r->x->scratch_bytes - LINE;
    team_run(r->team, run_member, r);
    if (r->part[0].service_ns[0])
        tell_times(r);
}

bool cpu_experts_run(struct team *t, const struct cpu_experts *x,
                     const struct cpu_expert *(*next)(void *arg), void *arg)
{
    const struct cpu_expert *e = next(arg);
    struct run r;

    r.ticks = clock_ticks();
    r.ns = clock_now_ns();
    start_run(&r, t, x);
    for (int from = 0; e;) {
        int n = add_part(&r, e, from);

        from += n;
        if (from == e->n) {
            e = next(arg);
            from = 0;
        } else if (!r.n) {
            return false; /* not even one tile of it fits */
        } else {
            end_run(&r);
            start_run(&r, t, x);
        }
    }
    end_run(&r);
    return true;
}

/* kernels/cpu_attn_part.c - attention over a part of the positions, and parts put
 * together: what context parallel ranks do.
 *
 * A member's positions are cut at multiples of ATTN_SPLIT of its own, counted from its
 * first, and merged in order; then the members' parts are merged in theirs. So a row has
 * the same bits however the step was cut and wherever its part was computed: over the
 * arena or over blocks that were sent. The kernels are those of cpu_attn.c; a task is a
 * few A-rows (query rows of a head) of one KV head over all that they see. */
#include <math.h>
#include <string.h>

#include "kernels/cpu.h"
#include "kernels/cpu_attn.h"
#include "kernels/kv_block.h"

#define LOG2_E 1.44269504088896340736f

struct part_job {
    const struct op_attn_part *o;
    const struct attn_kern *kern;
    const int32_t *pos, *seq, *table, *first;
    int group, pad, n_tasks; /* query heads of a KV head; tasks of one KV head */
    int v_dim;               /* of what a head gives */
};

/* Positions of the sequence's first `end` that the member has. */
static int held(const struct kv_share *s, int end)
{
    int round = s->n * KV_BLOCK_TOK, full = end / round, left = end % round, more;

    if (s->striped)
        more = left > s->at ? (left - s->at + s->n - 1) / s->n : 0;
    else
        more = left - s->at * KV_BLOCK_TOK;
    more = more < 0 ? 0 : more > KV_BLOCK_TOK ? KV_BLOCK_TOK : more;
    return full * KV_BLOCK_TOK + more;
}

/* What row r sees of them: [*ret_lo, *ret_hi). */
static void sees(const struct part_job *j, int r, int *ret_lo, int *ret_hi)
{
    int end = j->pos[r] + 1, window = j->o->window;

    *ret_hi = held(&j->o->share, end);
    *ret_lo = window && end > window ? held(&j->o->share, end - window) : 0;
}

/* Where in the table of a sequence the member's block b stands. */
static int64_t in_table(const struct op_attn_part *o, int b)
{
    return o->whole ? (int64_t)b * o->share.n + o->share.at : b;
}

static const char *block_at(const struct part_job *j, int seq, int b)
{
    const struct op_attn_part *o = j->o;
    const struct kv_layout *l = &o->kv->layout;

    if (o->blocks)
        return ((struct cpu_dbuf *)o->blocks)->mem + o->off +
               (size_t)(j->first[seq] + b) * l->layer_bytes;
    return cpu_kv_block(o->kv, j->table[(int64_t)seq * o->max_blocks + in_table(o, b)]) +
           (size_t)o->layer * l->layer_bytes;
}

/* Is every block that row r reads there? */
static bool row_ok(struct stream *s, const struct part_job *j, int r)
{
    const struct op_attn_part *o = j->o;
    int seq = j->seq[r], lo, hi, last, max = o->kv->n_blocks;

    if (j->pos[r] < 0 || seq < 0 || seq >= o->n_seq) {
        cpu_stream_fault(s, "attention of row %d: position %d of sequence %d of %d", r,
                         j->pos[r], seq, o->n_seq);
        return false;
    }
    sees(j, r, &lo, &hi);
    last = (hi - 1) / KV_BLOCK_TOK;
    for (int b = lo / KV_BLOCK_TOK; hi > lo && b <= last; b++) {
        int at = -1;
        if (o->blocks) {
            at = j->first[seq] + b;
            max = o->n_blocks;
        } else if (in_table(o, b) < o->max_blocks) {
            at = j->table[(int64_t)seq * o->max_blocks + in_table(o, b)];
        }
        if (at < 0 || at >= max) {
            cpu_stream_fault(s, "attention of row %d: block %d at place %d, there are %d",
                             r, at, b, max);
            return false;
        }
    }
    return true;
}

/* A-rows a.. of one sequence and KV head, with what each sees. */
struct few {
    int n, row[ATTN_A], head[ATTN_A], lo[ATTN_A], hi[ATTN_A];
    int from, to; /* of them all */
};

static void few_of(const struct part_job *j, int kv_head, int a, int end, struct few *w)
{
    w->n = 0;
    w->from = INT32_MAX;
    w->to = 0;
    for (; a < end && j->seq[a / j->group] == j->seq[w->n ? w->row[0] : a / j->group];
         a++) {
        int i = w->n++;
        w->row[i] = a / j->group;
        w->head[i] = kv_head * j->group + a % j->group;
        sees(j, w->row[i], &w->lo[i], &w->hi[i]);
        if (w->hi[i] <= w->lo[i])
            continue;
        w->from = w->lo[i] < w->from ? w->lo[i] : w->from;
        w->to = w->hi[i] > w->to ? w->hi[i] : w->to;
    }
}

/* The head blocks of one split; places that none sees point to a neighbour. */
static void find_blocks(const struct part_job *j, const struct few *w, int kv_head,
                        int split, const char **k, const char **v)
{
    const struct kv_layout *l = &j->o->kv->layout;
    int lo = w->from / KV_BLOCK_TOK, hi = (w->to - 1) / KV_BLOCK_TOK;

    for (int b = 0; b < ATTN_BLOCKS; b++) {
        int at = split * ATTN_BLOCKS + b;
        const char *block = block_at(j, j->seq[w->row[0]],
                                     at < lo   ? lo
                                     : at > hi ? hi
                                               : at);
        k[b] = block + kv_head_off(l, 0, 0, kv_head);
        v[b] = block + kv_head_off(l, 0, 1, kv_head);
    }
}

struct running {
    float m[ATTN_A], l[ATTN_A];
    _Alignas(64) float o[ATTN_A * KV_MAX_HEAD_DIM], part[ATTN_A * KV_MAX_HEAD_DIM];
    _Alignas(64) uint32_t q[ATTN_A * KV_MAX_HEAD_DIM];
};

static void run_split(const struct part_job *j, const struct few *w, int kv_head,
                      int split, struct running *run)
{
    const char *k[ATTN_BLOCKS], *v[ATTN_BLOCKS];
    struct attn_part p = {.type = j->o->kv->layout.type,
                          .n_a = w->n,
                          .dim = j->o->head_dim,
                          .v_dim = j->o->kv->layout.v_dim,
                          .pad = j->pad,
                          .q = run->q,
                          .k = k,
                          .v = v,
                          .o = run->part};
    int start = split * ATTN_SPLIT;

    find_blocks(j, w, kv_head, split, k, v);
    for (int i = 0; i < w->n; i++) {
        int lo = w->lo[i] > start ? w->lo[i] - start : 0, hi = w->hi[i] - start;
        hi = hi > ATTN_SPLIT ? ATTN_SPLIT : hi;
        p.lo[i] = hi > lo ? lo : 0;
        p.hi[i] = hi > lo ? hi : 0;
    }
    j->kern->part(&p);
    for (int i = 0; i < w->n; i++)
        if (p.hi[i] > p.lo[i])
            j->kern->merge(&run->m[i], &run->l[i], run->o + i * j->pad, p.m[i], p.l[i],
                           run->part + i * j->pad, j->pad);
}

static void run_few(const struct part_job *j, const struct few *w, int kv_head)
{
    const struct op_attn_part *o = j->o;
    float scale = o->scale * LOG2_E;
    const float *q = cpu_view(&o->q);
    struct running run;
    int d = o->head_dim, dv = j->v_dim;

    for (int i = 0; i < w->n; i++) {
        run.m[i] = -INFINITY;
        run.l[i] = 0;
        j->kern->pack(q + (size_t)w->row[i] * (size_t)o->q.ld + w->head[i] * d, scale, d,
                      j->pad, run.q + i * j->pad);
    }
    memset(run.o, 0, (size_t)(w->n * j->pad) * sizeof(float));
    for (int s = w->from / ATTN_SPLIT; s * ATTN_SPLIT < w->to; s++)
        run_split(j, w, kv_head, s, &run);
    for (int i = 0; i < w->n; i++) {
        float *y = cpu_view(&o->y) + (size_t)w->row[i] * (size_t)o->y.ld;
        memcpy(y + w->head[i] * dv, run.o + i * j->pad, (size_t)dv * sizeof(float));
        y[o->n_head * dv + w->head[i]] = run.m[i];
        y[o->n_head * (dv + 1) + w->head[i]] = run.l[i];
    }
}

static void part_member(void *arg, int member, int n_members)
{
    const struct part_job *j = arg;
    int n_a = j->o->q.rows * j->group, lo, hi;

    cpu_share(j->n_tasks * j->o->n_kv_head, member, n_members, &lo, &hi);
    for (int t = lo; t < hi; t++) {
        int kv_head = t / j->n_tasks, a = t % j->n_tasks * ATTN_A;
        int end = a + ATTN_A < n_a ? a + ATTN_A : n_a;
        while (a < end) {
            struct few w;
            few_of(j, kv_head, a, end, &w);
            run_few(j, &w, kv_head);
            a += w.n;
        }
    }
}

int cpu_op_attn_part(struct stream *s, const struct op_attn_part *o, struct err *e)
{
    struct cpu_backend *cb = cpu_of(s);
    int v_dim = o->kv->layout.v_dim;
    struct part_job j = {.o = o,
                         .kern = attn_kern_get(cb->isa, o->kv->layout.type, v_dim > 0),
                         .v_dim = v_dim ? v_dim : o->head_dim,
                         .pos = cpu_iview(&o->pos),
                         .seq = cpu_iview(&o->seq),
                         .group = o->n_head / o->n_kv_head,
                         .pad = kv_pad_dim(o->head_dim)};

    (void)e;
    if (o->blocks)
        j.first = cpu_iview(&o->first);
    else
        j.table = cpu_iview(&o->table);
    j.n_tasks = (o->q.rows * j.group + ATTN_A - 1) / ATTN_A;
    for (int r = 0; r < o->q.rows; r++)
        if (!row_ok(s, &j, r))
            return 0;
    if (j.n_tasks * o->n_kv_head < 2)
        part_member(&j, 0, 1);
    else
        team_run(cb->team, part_member, &j);
    return 0;
}

/* ---- parts put together ---- */

struct merge_job {
    const struct op_attn_merge *o;
    const struct attn_kern *kern;
    const float *sinks;
};

static void merge_head(const struct merge_job *j, int row, int head)
{
    const struct op_attn_merge *o = j->o;
    int d = o->head_dim, pad = kv_pad_dim(d);
    _Alignas(64) float sum[KV_MAX_HEAD_DIM], part[KV_MAX_HEAD_DIM];
    float m = -INFINITY, l = 0;

    memset(sum, 0, (size_t)pad * sizeof(float));
    memset(part, 0, (size_t)pad * sizeof(float));
    for (int p = 0; p < o->n_part; p++) {
        const float *x =
            cpu_view(&o->x) + (size_t)(p * o->y.rows + row) * (size_t)o->x.ld;
        float pm = x[o->n_head * d + head], pl = x[o->n_head * (d + 1) + head];
        if (pm == -INFINITY)
            continue;
        memcpy(part, x + head * d, (size_t)d * sizeof(float));
        j->kern->merge(&m, &l, sum, pm, pl, part, pad);
    }
    if (j->sinks)
        l += exp2f(j->sinks[head] * LOG2_E - m);
    j->kern->finish(cpu_view(&o->y) + (size_t)row * (size_t)o->y.ld + head * d, sum, l,
                    d);
}

static void merge_member(void *arg, int member, int n_members)
{
    const struct merge_job *j = arg;
    int lo, hi;

    cpu_share(j->o->y.rows * j->o->n_head, member, n_members, &lo, &hi);
    for (int i = lo; i < hi; i++)
        merge_head(j, i / j->o->n_head, i % j->o->n_head);
}

int cpu_op_attn_merge(struct stream *s, const struct op_attn_merge *o, struct err *e)
{
    struct cpu_backend *cb = cpu_of(s);
    struct merge_job j = {o, attn_kern_get(cb->isa, DT_F16, false), cpu_vec(o->sinks)};

    (void)e;
    cpu_run(cb, (size_t)o->x.rows * (size_t)o->x.cols, merge_member, &j);
    return 0;
}

int cpu_op_kv_pack(struct stream *s, const struct op_kv_pack *o, struct err *e)
{
    const struct kv_layout *l = &o->kv->layout;
    const int32_t *idx = cpu_iview(&o->idx);
    char *to = ((struct cpu_dbuf *)o->to)->mem + o->off;

    (void)e;
    for (int i = 0; i < o->idx.n; i++) {
        if (idx[i] < 0 || idx[i] >= o->kv->n_blocks) {
            cpu_stream_fault(s, "KV block %d at place %d, the arena has %d", idx[i], i,
                             o->kv->n_blocks);
            return 0;
        }
        memcpy(to + (size_t)i * l->layer_bytes,
               cpu_kv_block(o->kv, idx[i]) + (size_t)o->layer * l->layer_bytes,
               l->layer_bytes);
    }
    return 0;
}

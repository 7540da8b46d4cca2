/* kernels/cpu_moe.c - the ops of mixtures of experts on the CPU.
 *
 * Routing, grouping and combining are plain loops, shared by rows; the experts' products
 * are those of cpu_experts. Every row's result depends
 * on that row alone: sums run in order of the experts' ranks in its own choice. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu.h"

_Static_assert((int)CPU_PHASES == (int)OP_PHASES, "phases");

/* ---- route ---- */

/* What experts are chosen by and what they weigh; NaN reads as the worst. */
static void score_row(const struct op_route *o, const float *x, float *score)
{
    int n = o->logits.cols;
    float max = -INFINITY, sum = 0;

    if (o->score == ROUTE_CHOSEN) {
        memcpy(score, x, (size_t)n * sizeof(*score));
        return;
    }
    if (o->score == ROUTE_SIGMOID) {
        for (int i = 0; i < n; i++)
            score[i] = 1.0f / (1.0f + expf(-x[i]));
        return;
    }
    for (int i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int i = 0; i < n; i++)
        sum += score[i] = expf(x[i] - max);
    for (int i = 0; i < n; i++)
        score[i] /= sum;
}

/* Softmax over the k weights, of which the first is the largest. */
static void softmax_chosen(float *w, int k)
{
    float max = w[0], sum = 0;

    for (int i = 0; i < k; i++)
        sum += w[i] = expf(w[i] - max);
    for (int i = 0; i < k; i++)
        w[i] /= sum;
}

/* What a group of n is chosen by: its best, or the sum of its best two. */
static float group_score(const float *by, int n, bool two)
{
    float best = -INFINITY, next = -INFINITY;

    for (int i = 0; i < n; i++) {
        next = by[i] > best ? best : by[i] > next ? by[i] : next;
        best = by[i] > best ? by[i] : best;
    }
    return two && n > 1 ? best + next : best;
}

/* Experts of groups that are not among the best are chosen by 0. */
static void mask_groups(const struct op_route *o, float *by)
{
    int n = o->logits.cols / o->n_group;
    float score[OP_GROUP_MAX_SLOTS];
    bool kept[OP_GROUP_MAX_SLOTS] = {false};

    for (int g = 0; g < o->n_group; g++)
        score[g] = group_score(by + g * n, n, o->score == ROUTE_SIGMOID);
    for (int k = 0; k < o->top_group; k++) {
        int best = -1;
        for (int g = 0; g < o->n_group; g++)
            if (!kept[g] && (best < 0 || score[g] > score[best]))
                best = g;
        kept[best] = true;
    }
    for (int i = 0; i < o->logits.cols; i++)
        by[i] = kept[i / n] ? by[i] : 0;
}

static bool chosen(const int32_t *ids, int k, int x)
{
    for (int j = 0; j < k; j++)
        if (ids[j] == x)
            return true;
    return false;
}

/* The lowest expert that is not among the k that a row has. */
static int any_other(const int32_t *ids, int k)
{
    int x = 0;

    while (chosen(ids, k, x))
        x++;
    return x;
}

static void route_row(const struct op_route *o, int r)
{
    float score[OP_GROUP_MAX_SLOTS], by[OP_GROUP_MAX_SLOTS], sum = 0;
    const float *bias = cpu_vec(o->bias);
    int32_t *ids = cpu_ints(&o->ids) + (size_t)r * (size_t)o->top_k;
    float *w = cpu_row(&o->weights, r);
    int n = o->logits.cols;

    score_row(o, cpu_row(&o->logits, r), score);
    for (int i = 0; i < n; i++)
        by[i] = bias ? score[i] + bias[i] : score[i];
    if (o->n_group > 1)
        mask_groups(o, by);
    for (int k = 0; k < o->top_k; k++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!isnan(by[i]) && (best < 0 || by[i] > by[best]))
                best = i;
        if (best < 0) /* nothing but NaN is left */
            best = any_other(ids, k);
        ids[k] = best;
        w[k] = score[best];
        sum += w[k];
        by[best] = NAN;
    }
    if (o->score == ROUTE_CHOSEN)
        softmax_chosen(w, o->top_k);
    for (int k = 0; k < o->top_k; k++)
        w[k] = (o->normalise ? w[k] / (sum + 1e-20f) : w[k]) * o->scale;
}

static void route_member(void *arg, int member, int n_members)
{
    const struct op_route *o = arg;
    int lo, hi;

    cpu_share(o->logits.rows, member, n_members, &lo, &hi);
    for (int r = lo; r < hi; r++)
        route_row(o, r);
}

int cpu_op_route(struct stream *s, const struct op_route *o, struct err *e)
{
    struct op_route copy = *o;

    (void)e;
    cpu_run(cpu_of(s), (size_t)o->logits.rows * (size_t)o->logits.cols * (size_t)o->top_k,
            route_member, &copy);
    return 0;
}

/* ---- what rows are of ---- */

/* Is what is done to a row counted here? */
static bool counted(const struct op_rows *w, int r)
{
    return !w->mark.buf || (r >= w->first && r - w->first < w->n);
}

static int phase_of(const struct iview *mark, int r)
{
    return mark->buf ? cpu_iview(mark)[r] % OP_PHASES : 0;
}

/* Of the item of a row that is counted; one beyond those that there are is a fault. */
static void note(struct stream *s, const struct op_rows *w, int r, int32_t bits)
{
    int item;

    if (!bits || !w->mark.buf || !w->item.buf)
        return;
    item = cpu_iview(&w->mark)[r] / OP_PHASES;
    if (item < 0 || item >= w->item.n)
        cpu_stream_fault(s, "a row of item %d of %d", item, w->item.n);
    else
        cpu_ints(&w->item)[item] |= bits;
}

/* ---- capacity ---- */

static void take_away(const struct op_capacity *o, int32_t *ids, int32_t *count)
{
    int pairs = o->route.logits.rows * o->route.top_k;

    memset(count, 0, (size_t)o->route.logits.cols * sizeof(*count));
    for (int p = 0; p < pairs; p++)
        if (ids[p] >= 0 && count[ids[p]]++ >= o->cap) {
            count[ids[p]]--;
            ids[p] = -1;
        }
}

/* What a row's choices weigh, where some are none. */
static void weigh(const struct op_route *o, const float *score, const int32_t *ids,
                  float *w)
{
    float max = -INFINITY, sum = 0;

    for (int k = 0; k < o->top_k; k++)
        if (ids[k] >= 0 && score[ids[k]] > max)
            max = score[ids[k]];
    for (int k = 0; k < o->top_k; k++) {
        w[k] = ids[k] < 0                 ? 0
               : o->score == ROUTE_CHOSEN ? expf(score[ids[k]] - max)
                                          : score[ids[k]];
        sum += w[k];
    }
    for (int k = 0; k < o->top_k; k++) {
        if (o->score == ROUTE_CHOSEN)
            w[k] = sum > 0 ? w[k] / sum : 0;
        w[k] = (o->score != ROUTE_CHOSEN && o->normalise ? w[k] / (sum + 1e-20f) : w[k]) *
               o->scale;
    }
}

/* The row's choices that were taken away, to the best that have room. */
static int choose_next(const struct op_capacity *o, int r, int32_t *ids, int32_t *count)
{
    float score[OP_GROUP_MAX_SLOTS], by[OP_GROUP_MAX_SLOTS];
    const struct op_route *t = &o->route;
    const float *bias = cpu_vec(t->bias);
    int n = t->logits.cols, found = 0;

    score_row(t, cpu_row(&t->logits, r), score);
    for (int i = 0; i < n; i++)
        by[i] = bias ? score[i] + bias[i] : score[i];
    if (t->n_group > 1)
        mask_groups(t, by);
    for (int k = 0; k < t->top_k; k++) {
        int best = -1;
        if (ids[k] >= 0)
            continue;
        for (int i = 0; i < n; i++)
            if (count[i] < o->cap && !isnan(by[i]) && !chosen(ids, t->top_k, i) &&
                (best < 0 || by[i] > by[best]))
                best = i;
        if (best < 0)
            continue;
        ids[k] = best;
        count[best]++;
        found++;
    }
    weigh(t, score, ids, cpu_row(&t->weights, r));
    return found;
}

static void count_lost(struct stream *s, const struct op_capacity *o, int r, int which,
                       int n)
{
    int64_t *lost = cpu_lview(&o->lost[phase_of(&o->who.mark, r)]);

    if (lost)
        lost[which] += n;
    note(s, &o->who, r, o->note[which]);
}

int cpu_op_capacity(struct stream *s, const struct op_capacity *o, struct err *e)
{
    int32_t *ids = cpu_ints(&o->route.ids), *count = cpu_ints(&o->count);
    int32_t *pos = cpu_ints(&o->pos);
    int k = o->route.top_k;

    (void)e;
    take_away(o, ids, count);
    for (int r = 0; r < o->route.logits.rows; r++) {
        int32_t *own = ids + (size_t)r * (size_t)k;
        float *w = cpu_row(&o->route.weights, r);
        int n[2] = {0};

        if (!o->drop && chosen(own, k, -1))
            n[0] = choose_next(o, r, own, count);
        for (int j = 0; j < k; j++) {
            pos[r * k + j] = own[j] < 0 ? -1 : r * k + j;
            w[j] = own[j] < 0 ? 0 : w[j];
            n[1] += own[j] < 0;
        }
        for (int i = 0; i < 2 && counted(&o->who, r); i++)
            if (n[i])
                count_lost(s, o, r, i, n[i]);
    }
    return 0;
}

/* ---- dispatch ---- */

int cpu_op_dispatch(struct stream *s, const struct op_dispatch *o, struct err *e)
{
    const int32_t *to = cpu_iview(&o->to), *to_slot = cpu_iview(&o->to_slot);
    int32_t *send = cpu_ints(&o->send), *pos = cpu_ints(&o->pos),
            *slot = cpu_ints(&o->slot);
    int32_t *from = o->from.buf ? cpu_ints(&o->from) : NULL;
    const struct iview *mark = &o->who.mark;
    int n = o->x.rows * o->top_k, at = 0;

    (void)e;
    memset(send, 0, (size_t)o->n_rank * sizeof(*send));
    for (int p = 0; p < n; p++)
        if (to[p] < -1 || to[p] >= o->n_rank) {
            cpu_stream_fault(s, "dispatch: a pair to rank %d of %d", to[p], o->n_rank);
            return 0;
        }
    for (int m = -1; m < o->n_rank; m++)
        for (int p = 0; p < n; p++) {
            if (to[p] != m)
                continue;
            if (m < 0) {
                pos[p] = -1;
                continue;
            }
            memcpy(cpu_row(&o->out, at), cpu_row(&o->x, p / o->top_k),
                   (size_t)o->x.cols * sizeof(float));
            slot[at] = to_slot[p] | OP_TAG_PHASE * phase_of(mark, p / o->top_k);
            note(s, &o->who, p / o->top_k, o->note);
            if (from)
                from[at] = p / o->top_k;
            pos[p] = at++;
            send[m]++;
        }
    return 0;
}

/* ---- group ---- */

/* Of pair number i of a slot. */
static int group_of(const struct op_group *o, int slot, int i)
{
    return o->second && o->cap && i >= o->cap ? o->n_slot + slot : slot;
}

/* Of pair p, which has one. */
static int slot_of(const struct op_group *o, int p)
{
    return cpu_iview(&o->slot)[p] % OP_TAG_PHASE;
}

static int pair_phase(const struct op_group *o, int p)
{
    return o->mark.buf ? phase_of(&o->mark, p / o->per_row)
                       : cpu_iview(&o->slot)[p] / OP_TAG_PHASE;
}

/* Pairs that there are; -1 with a fault. */
static int count_pairs(struct stream *s, const struct op_group *o)
{
    const int32_t *slot = cpu_iview(&o->slot);
    int n = o->n_pair;

    if (n < 0) {
        n = 0;
        for (int i = 0; i < o->count.n; i++)
            n += cpu_iview(&o->count)[i];
    }
    if (n < 0 || n > o->slot.n) {
        cpu_stream_fault(s, "group: %d pairs of at most %d", n, o->slot.n);
        return -1;
    }
    for (int p = 0; p < n; p++)
        if (slot[p] < -1 || slot[p] / OP_TAG_PHASE >= OP_PHASES ||
            slot[p] % OP_TAG_PHASE >= o->n_slot) {
            cpu_stream_fault(s, "group: slot %d of %d", slot[p], o->n_slot);
            return -1;
        }
    return n;
}

int cpu_op_group(struct stream *s, const struct op_group *o, struct err *e)
{
    const int32_t *slot = cpu_iview(&o->slot);
    int32_t *order = cpu_ints(&o->order), *start = cpu_ints(&o->start);
    int32_t size[OP_GROUP_MAX_SLOTS], *later = o->later.buf ? cpu_ints(&o->later) : NULL;
    int64_t *tally[OP_PHASES] = {cpu_lview(&o->tally[0]), cpu_lview(&o->tally[1])};
    int n = count_pairs(s, o), groups = o->n_slot * (o->second ? 2 : 1), all;

    (void)e;
    memset(start, 0, ((size_t)groups + 1) * sizeof(*start));
    memset(size, 0, (size_t)o->n_slot * sizeof(*size));
    if (later)
        memset(later, 0, (size_t)groups * sizeof(*later));
    for (int p = 0; p < n; p++) {
        if (slot[p] < 0)
            continue;
        int of = slot_of(o, p), phase = pair_phase(o, p), at = size[of]++;
        int group = group_of(o, of, at);

        start[group + 1]++;
        if (later)
            later[group] += phase;
        if (tally[phase]) {
            tally[phase][of * OP_TALLY + TALLY_ROWS]++;
            tally[phase][of * OP_TALLY + TALLY_OVER] += o->cap && at >= o->cap;
        }
    }
    for (int i = 0; i < groups; i++)
        start[i + 1] += start[i];
    all = start[groups];
    /* fill from the ends of the groups backwards, then start is as it was */
    for (int p = n - 1; p >= 0; p--)
        if (slot[p] >= 0)
            order[--start[group_of(o, slot_of(o, p), --size[slot_of(o, p)]) + 1]] = p;
    for (int i = 0; i < groups; i++)
        start[i] = start[i + 1];
    start[groups] = all;
    return 0;
}

/* ---- experts ---- */

struct slots {
    const struct op_experts *o;
    int64_t *tally[OP_PHASES];
    int at, n; /* groups */
    struct cpu_expert e;
};

static const struct cpu_mat *mat_of(const struct weight *w)
{
    return ((const struct cpu_weight *)w)->mat;
}

static const float *bias_of(const struct op_experts *o, int k, int slot)
{
    return o->bias[k] ? cpu_vec(o->bias[k][slot]) : NULL;
}

static const struct cpu_expert *next_expert(void *arg)
{
    struct slots *s = arg;
    const int32_t *start = cpu_iview(&s->o->start);
    int slot;

    while (s->at < s->n && start[s->at] == start[s->at + 1])
        s->at++;
    if (s->at == s->n)
        return NULL;
    slot = s->at % s->o->n_slot;
    s->e = (struct cpu_expert){
        .gate = mat_of(s->o->gate[slot]),
        .up = mat_of(s->o->up[slot]),
        .down = mat_of(s->o->down[slot]),
        .bias = {bias_of(s->o, 0, slot), bias_of(s->o, 1, slot), bias_of(s->o, 2, slot)},
        .pair = cpu_iview(&s->o->order) + start[s->at],
        .n = start[s->at + 1] - start[s->at],
        .later = s->o->later.buf ? cpu_iview(&s->o->later)[s->at] : 0,
    };
    for (int p = 0; p < OP_PHASES && s->tally[p]; p++) {
        s->e.service_ns[p] = &s->tally[p][slot * OP_TALLY + TALLY_SERVICE_NS];
        s->e.queue_ns[p] = &s->tally[p][slot * OP_TALLY + TALLY_QUEUE_NS];
    }
    s->at++;
    return &s->e;
}

int cpu_op_experts(struct stream *s, const struct op_experts *o, struct err *e)
{
    const struct cpu_backend *cb = cpu_of(s);
    const int32_t *start = cpu_iview(&o->start);
    int groups = o->n_slot * (o->second ? 2 : 1);
    struct slots slots = {
        .o = o, .tally = {cpu_lview(&o->tally[0]), cpu_lview(&o->tally[1])}, .n = groups};
    const struct cpu_experts x = {
        .isa = cb->isa,
        .x = cpu_view(&o->x),
        .y = cpu_view(&o->y),
        .a = cpu_view(&o->act),
        .x_ld = o->x.ld,
        .y_ld = o->y.ld,
        .a_ld = o->act.ld,
        .per_row = o->per_row,
        .max_rows = o->act.rows,
        .limit = o->limit,
        .scratch = cb->mat_scratch,
        .scratch_bytes = cb->mat_scratch_bytes,
    };

    for (int i = 0; i < groups; i++)
        if (!o->gate[i % o->n_slot] && start[i] != start[i + 1]) {
            cpu_stream_fault(s, "experts: %d pairs in slot %d, which is empty",
                             start[i + 1] - start[i], i % o->n_slot);
            return 0;
        }
    if (start[groups] > o->y.rows || start[groups] > o->x.rows * o->per_row) {
        cpu_stream_fault(s, "experts: %d pairs of %d rows", start[groups], o->y.rows);
        return 0;
    }
    return cpu_experts_run(cb->team, &x, next_expert, &slots)
               ? 0
               : err_set(e, ERR_INTERNAL, "experts: the backend was opened for less");
}

/* ---- combine ---- */

static void combine_member(void *arg, int member, int n_members)
{
    const struct op_combine *o = arg;
    const int32_t *from = o->from.buf ? cpu_iview(&o->from) : NULL;
    int lo, hi;

    cpu_share(o->y.rows, member, n_members, &lo, &hi);
    for (int r = lo; r < hi; r++) {
        const float *w = cpu_row(&o->weights, r);
        float *y = cpu_row(&o->y, r);

        for (int c = 0; c < o->y.cols; c++) {
            float sum = 0;
            for (int j = 0; j < o->top_k; j++) {
                int p = r * o->top_k + j;
                if (!from || from[p] >= 0)
                    sum += w[j] * cpu_row(&o->x, from ? from[p] : p)[c];
            }
            y[c] = sum;
        }
    }
}

int cpu_op_combine(struct stream *s, const struct op_combine *o, struct err *e)
{
    const int32_t *from = o->from.buf ? cpu_iview(&o->from) : NULL;
    struct op_combine copy = *o;

    (void)e;
    for (int p = 0; from && p < o->y.rows * o->top_k; p++)
        if (from[p] < -1 || from[p] >= o->x.rows) {
            cpu_stream_fault(s, "combine: row %d of %d", from[p], o->x.rows);
            return 0;
        }
    cpu_run(cpu_of(s), (size_t)o->y.rows * (size_t)o->y.cols * (size_t)o->top_k,
            combine_member, &copy);
    return 0;
}

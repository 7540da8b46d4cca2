/* daemon/serve/forward_tally.c - what a rank's layers of experts did, on the device until
 * the step is over.
 *
 * A bank of int64 for each phase: of each layer its slots' counts (OP_TALLY each), to
 * which the ops add, each row to the bank of its own phase, then the traffic, to which
 * host code in stream order adds what the counters of the collectives went up by, divided
 * by the rows of each phase in the run. A report is one download of the banks of the
 * phases that the last step had rows of, and of the other where counts began again. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/expertpage.h"
#include "daemon/serve/forward_moe.h"
#include "daemon/serve/step.h"
#include "daemon/serve/tracepage.h"

_Static_assert((int)OP_TALLY == (int)EXPERT_COUNT_CELLS, "cells");
_Static_assert(offsetof(struct expert_traffic, next) ==
                       (EXPERT_TRAFFIC_CELLS - 2) * sizeof(int64_t) &&
                   sizeof(struct expert_traffic) ==
                       EXPERT_TRAFFIC_CELLS * sizeof(int64_t),
               "next and dropped are last");
_Static_assert(TALLY_ROWS == 0 && TALLY_OVER == 1 && TALLY_SERVICE_NS == 2,
               "their order");

struct forward_tally {
    struct dbuf *cells;      /* [EXPERT_PHASES][n_layer][stride] */
    bool has[EXPERT_PHASES]; /* rows, in this step */
    int stride;
    size_t bank;                /* cells */
    int64_t *host;              /* as cells */
    struct route_layer *routes; /* [n_layer], of this rank's slots */
    struct expert_left *left;   /* [EXPERT_PHASES][n_layer][n_expert] */
    bool any_left, told; /* since the last report; what that one said is done with */
    bool began;          /* again, counts of any phase, since the last report */
    uint64_t bytes;      /* of the all-to-alls when last looked at */
    int64_t us;
    struct tracepage *trace; /* NULL: nobody asks */
    int trace_rank;
    int64_t came_us; /* the last mark, when rows had come; 0 = it was of another kind */
};

void forward_trace(struct forward *f, struct tracepage *p, int rank)
{
    struct forward_tally *t = f->moe ? f->moe->tally : NULL;

    if (!t)
        return;
    t->trace = p;
    t->trace_rank = rank;
    t->came_us = 0;
}

int forward_tally_new(struct forward *f, struct err *e)
{
    struct forward_moe *m = f->moe;
    struct forward_tally *t = m->tally = xcalloc(1, sizeof(*t));
    size_t slots = (size_t)f->w.d.n_slot;

    t->stride = expert_report_stride(f->w.d.n_slot);
    t->bank = (size_t)t->stride * (size_t)m->n_layer;
    t->host = xcalloc(EXPERT_PHASES * t->bank + 1, sizeof(*t->host));
    t->left =
        xcalloc(EXPERT_PHASES * (size_t)m->n_layer * (size_t)f->w.info.moe.n_expert + 1,
                sizeof(*t->left));
    t->routes = xcalloc((size_t)m->n_layer + 1, sizeof(*t->routes));
    for (int i = 0; i < m->n_layer; i++) {
        t->routes[i].expert = xcalloc(slots, sizeof(*t->routes[i].expert));
        t->routes[i].share = xcalloc(slots, sizeof(*t->routes[i].share));
    }
    if (!m->n_layer)
        return 0;
    return dbuf_new(f->b, EXPERT_PHASES * t->bank * sizeof(int64_t), &t->cells, e) < 0
               ? -1
               : forward_counts_clear(f, e);
}

void forward_tally_free(struct forward *f)
{
    struct forward_tally *t = f->moe->tally;

    if (!t)
        return;
    for (int i = 0; i < f->moe->n_layer; i++) {
        free(t->routes[i].expert);
        free(t->routes[i].share);
    }
    dbuf_free(t->cells);
    free(t->host);
    free(t->left);
    free(t->routes);
    free(t);
}

static void forget_left(const struct forward *f, struct forward_tally *t)
{
    memset(t->left, 0,
           EXPERT_PHASES * (size_t)f->moe->n_layer * (size_t)f->w.info.moe.n_expert *
               sizeof(*t->left));
    t->any_left = t->told = false;
}

int forward_counts_clear(struct forward *f, struct err *e)
{
    struct forward_tally *t = f->moe ? f->moe->tally : NULL;

    if (!t || !t->cells)
        return 0;
    memset(t->host, 0, EXPERT_PHASES * t->bank * sizeof(*t->host));
    forget_left(f, t);
    t->began = true;
    for (size_t i = 0; i < EXPERT_PHASES; i++)
        if (stream_upload(f->s, t->cells, i * t->bank * sizeof(int64_t), t->host,
                          t->bank * sizeof(int64_t), e) < 0)
            return -1;
    return stream_sync(f->s, e);
}

void forward_tally_begin(struct forward *f, const struct step *st)
{
    const struct step_item *it = step_items(st);
    bool *has = f->moe->tally->has;

    memset(has, 0, EXPERT_PHASES * sizeof(*has));
    for (int i = 0; i < st->n_items; i++)
        has[it[i].decode ? EXPERT_DECODE : EXPERT_PREFILL] = true;
}

/* An expert leaves a slot: what it counted there is kept apart, the slot begins again. */
static int leave(struct forward *f, struct forward_tally *t, int layer, int slot,
                 int expert, struct err *e)
{
    static const struct expert_count none;
    const struct forward_part *part = &f->cfg.part;
    const struct routes_dims d = {f->w.info.moe.n_expert, part->ep, f->w.d.n_slot};
    bool home = routes_home(&d, expert) == part->ep_at * d.n_slot + slot;
    int n = d.n_expert;

    if (t->told)
        forget_left(f, t);
    for (int p = 0; p < EXPERT_PHASES; p++) {
        size_t at = ((size_t)p * t->bank + (size_t)(layer * t->stride) +
                     (size_t)(slot * OP_TALLY)) *
                    sizeof(int64_t);
        struct expert_count had;
        struct expert_left *to =
            &t->left[((size_t)p * (size_t)f->moe->n_layer + (size_t)layer) * (size_t)n +
                     (size_t)expert];

        if (stream_download(f->s, &had, t->cells, at, sizeof(had), e) < 0 ||
            stream_upload(f->s, t->cells, at, &none, sizeof(none), e) < 0 ||
            stream_sync(f->s, e) < 0)
            return -1;
        to->n.rows += had.rows;
        to->n.over += had.over;
        to->n.service_ns += had.service_ns;
        to->n.queue_ns += had.queue_ns;
        to->replica += home ? 0 : had.rows;
    }
    t->any_left = t->began = true;
    return 0;
}

int forward_tally_route(struct forward *f, int layer, const struct route_layer *l,
                        int from, struct err *e)
{
    struct forward_tally *t = f->moe->tally;
    struct route_layer *to = &t->routes[layer];

    for (int s = 0; to->generation && s < f->w.d.n_slot; s++)
        if (to->expert[s] >= 0 && to->expert[s] != l->expert[from + s] &&
            leave(f, t, layer, s, to->expert[s], e) < 0)
            return -1;
    to->generation = l->generation;
    for (int s = 0; s < f->w.d.n_slot; s++) {
        to->expert[s] = l->expert[from + s];
        to->share[s] = l->share[from + s];
    }
    return 0;
}

static size_t cell_of(const struct forward *f, const struct forward_layer *l, int phase,
                      int at)
{
    const struct forward_tally *t = f->moe->tally;

    return (size_t)phase * t->bank + (size_t)moe_index(f, l) * (size_t)t->stride +
           (size_t)at;
}

struct lview forward_tally_slots(const struct forward *f, const struct forward_layer *l,
                                 int phase)
{
    return (struct lview){f->moe->tally->cells, 8 * cell_of(f, l, phase, 0),
                          f->w.d.n_slot * OP_TALLY};
}

struct lview forward_tally_lost(const struct forward *f, const struct forward_layer *l,
                                int phase)
{
    return (struct lview){f->moe->tally->cells,
                          8 * cell_of(f, l, phase, f->w.d.n_slot * OP_TALLY + 4), 3};
}

/* The all-to-all took the last us; what is between one that brought rows and one that
 * takes them home is the experts' own. */
static void trace_mark(struct forward_tally *t, int layer, bool home, int64_t us)
{
    int64_t now = clock_now_us(clock_real());
    struct trace_event v = {.kind = home ? TRACE_COMBINE : TRACE_DISPATCH,
                            .rank = t->trace_rank,
                            .start_us = now - us,
                            .us = us,
                            .a = layer};

    tracepage_put(t->trace, &v);
    if (home && t->came_us && t->came_us <= v.start_us) {
        v.kind = TRACE_EXPERT;
        v.us = v.start_us - t->came_us;
        v.start_us = t->came_us;
        tracepage_put(t->trace, &v);
    }
    t->came_us = home ? 0 : now;
}

static int here(const struct op_host *o, void *const *mem, struct err *e)
{
    struct forward_tally *t = ((struct forward *)(uintptr_t)o->arg[0])->moe->tally;
    int64_t now = clock_now_us(clock_real());
    const struct trace_event v = {.kind = TRACE_EXPERT,
                                  .rank = t->trace_rank,
                                  .start_us = t->came_us,
                                  .us = now - t->came_us,
                                  .a = (int)o->arg[1]};

    (void)mem;
    (void)e;
    if (o->arg[2])
        tracepage_put(t->trace, &v);
    t->came_us = now;
    return 0;
}

int forward_tally_here(struct forward *f, const struct forward_layer *l, bool ended,
                       struct err *e)
{
    const struct op_host o = {
        .fn = here,
        .arg = {(uintptr_t)f, (uint64_t)(f->moe->first_layer + moe_index(f, l)), ended}};

    return f->moe->tally->trace ? op_host(f->s, &o, e) : 0;
}

static int marked(const struct op_host *o, void *const *mem, struct err *e)
{
    struct forward *f = (struct forward *)(uintptr_t)o->arg[0];
    struct forward_tally *t = f->moe->tally;
    int64_t all = (int64_t)o->arg[3], later = (int64_t)o->arg[4], n[2];
    struct comm_count now[COMM_CALL_COUNT];

    (void)e;
    comm_counts(f->cfg.part.ep_comm, now);
    n[0] = (int64_t)(now[COMM_ALL_TO_ALL].bytes - t->bytes);
    n[1] = now[COMM_ALL_TO_ALL].us - t->us;
    for (int i = 0; i < 2; i++) {
        int64_t decode = all ? n[i] * later / all : 0;

        ((int64_t *)mem[EXPERT_DECODE])[i] += decode;
        ((int64_t *)mem[EXPERT_PREFILL])[i] += n[i] - decode;
    }
    if (t->trace)
        trace_mark(t, (int)o->arg[1], o->arg[2], n[1]);
    t->bytes = now[COMM_ALL_TO_ALL].bytes;
    t->us = now[COMM_ALL_TO_ALL].us;
    return 0;
}

static int paired(const struct op_host *o, void *const *mem, struct err *e)
{
    _Atomic uint32_t *cells = (_Atomic uint32_t *)(uintptr_t)o->arg[0];
    int rows = (int)o->arg[1], k = (int)o->arg[2];
    const int32_t *ids = mem[0];

    (void)e;
    for (int r = 0; r < rows; r++, ids += k)
        for (int i = 0; i < k; i++)
            for (int j = 0; j < i; j++) {
                int a = ids[i] < ids[j] ? ids[i] : ids[j];
                int b = ids[i] < ids[j] ? ids[j] : ids[i];

                if (a >= 0)
                    atomic_fetch_add_explicit(&cells[a * EXPERTPAGE_PAIRED + b], 1,
                                              memory_order_relaxed);
            }
    return 0;
}

/* Of rows that no other rank counts. */
int forward_tally_pairs(struct forward *f, const struct forward_layer *l,
                        const struct op_route *r, struct err *e)
{
    const struct forward_moe *m = f->moe;
    int rows = f->w.d.etp > 1 && f->cfg.part.tp_at > 0 ? 0 : m->n_own;
    size_t row = (size_t)r->top_k * sizeof(int32_t);
    size_t layer = (size_t)(moe_index(f, l) + f->moe->first_layer);
    _Atomic uint32_t *cells = f->cfg.part.experts.pairs;
    const struct op_host o = {
        .fn = paired,
        .arg = {(uintptr_t)(cells + layer * EXPERTPAGE_PAIRED * EXPERTPAGE_PAIRED),
                (uint64_t)rows, (uint64_t)r->top_k},
        .n_buf = 1,
        .buf = {r->ids.buf},
        .off = {r->ids.off + (size_t)m->own * row},
        .bytes = {(size_t)rows * row}};

    return cells && rows ? op_host(f->s, &o, e) : 0;
}

int forward_tally_mark(struct forward *f, const struct forward_layer *l, bool home,
                       struct err *e)
{
    int at = f->w.d.n_slot * OP_TALLY + (home ? 2 : 0);
    const struct op_host o = {
        .fn = marked,
        .arg = {(uintptr_t)f, (uint64_t)(f->moe->first_layer + moe_index(f, l)), home,
                (uint64_t)f->moe->of.all, (uint64_t)f->moe->of.later},
        .n_buf = 2,
        .buf = {f->moe->tally->cells, f->moe->tally->cells},
        .off = {8 * cell_of(f, l, 0, at), 8 * cell_of(f, l, 1, at)},
        .bytes = {16, 16}};

    return op_host(f->s, &o, e);
}

/* The counts of the phases of the last step; of all, where they began again. */
static int fetch(struct forward *f, struct forward_tally *t, struct expert_report *ret,
                 struct err *e)
{
    for (int p = 0; p < EXPERT_PHASES; p++) {
        size_t at = (size_t)p * t->bank;

        if (!t->began && !t->has[p])
            continue;
        if (stream_download(f->s, t->host + at, t->cells, at * sizeof(int64_t),
                            t->bank * sizeof(int64_t), e) < 0)
            return -1;
        ret->cells[p] = t->host + at;
    }
    return stream_sync(f->s, e);
}

int forward_report(struct forward *f, struct expert_report *ret, struct err *e)
{
    const struct forward_part *p = &f->cfg.part;
    struct forward_tally *t = f->moe ? f->moe->tally : NULL;

    *ret = (struct expert_report){0};
    if (!t || !t->cells || (f->w.d.etp > 1 && p->tp_at > 0))
        return 0;
    *ret = (struct expert_report){.rank = p->ep > 1 ? p->ep_at : 0,
                                  .phase = t->has[EXPERT_PREFILL]  ? EXPERT_PREFILL
                                           : t->has[EXPERT_DECODE] ? EXPERT_DECODE
                                                                   : EXPERT_PHASES,
                                  .first = f->moe->first_layer,
                                  .n_layer = f->moe->n_layer,
                                  .n_slot = f->w.d.n_slot,
                                  .routes = t->routes,
                                  .left = t->any_left && !t->told ? t->left : NULL,
                                  .n_expert = f->w.info.moe.n_expert};
    t->told = t->any_left;
    if (fetch(f, t, ret, e) < 0)
        return -1;
    t->began = false;
    return 0;
}

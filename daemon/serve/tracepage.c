/* daemon/serve/tracepage.c - a table that fills once. */
#include "daemon/serve/tracepage.h"

#include <stdatomic.h>

#include "base/err.h"
#include "base/region.h"
#include "daemon/serve/step.h"

/* kind is written last: an event without one is not whole yet. */
struct cell {
    _Atomic uint64_t kind_rank; /* kind, then rank + 1 in the upper half */
    _Atomic int64_t start_us, us;
    _Atomic uint64_t request, ref, ab;
};

struct tracepage {
    _Atomic uint32_t on;
    _Atomic uint64_t request;
    _Atomic int64_t since_us, until_us;
    _Atomic int64_t n; /* claimed, also beyond the room */
    struct cell cell[TRACE_EVENTS];
};

#define WHAT "the page of traces"

int tracepage_new(int *ret_fd, struct tracepage **ret, struct err *e)
{
    void *p;

    if (region_new("llmrack-trace", WHAT, sizeof(**ret), ret_fd, &p, e) < 0)
        return -1;
    *ret = p;
    return 0;
}

int tracepage_map(int fd, struct tracepage **ret, struct err *e)
{
    void *p;

    if (region_map(fd, WHAT, sizeof(**ret), &p, e) < 0)
        return -1;
    *ret = p;
    return 0;
}

void tracepage_free(struct tracepage *p) { region_unmap(p, sizeof(*p)); }

/* ---- the daemon ---- */

void tracepage_begin(struct tracepage *p, int64_t now_us, int64_t until_us,
                     uint64_t request)
{
    int64_t n = atomic_load(&p->n);

    atomic_store(&p->on, 0);
    for (int64_t i = 0; i < n && i < TRACE_EVENTS; i++)
        atomic_store_explicit(&p->cell[i].kind_rank, 0, memory_order_relaxed);
    atomic_store(&p->request, request);
    atomic_store(&p->since_us, now_us);
    atomic_store(&p->until_us, until_us);
    atomic_store(&p->n, 0);
    atomic_store(&p->on, 1);
}

void tracepage_end(struct tracepage *p) { atomic_store(&p->on, 0); }

static bool get(const struct cell *c, struct trace_event *ret)
{
    uint64_t k = atomic_load_explicit(&c->kind_rank, memory_order_acquire);
    uint64_t ab = atomic_load_explicit(&c->ab, memory_order_relaxed);

    *ret = (struct trace_event){
        .kind = (enum trace_kind)(k & 0xff),
        .rank = (int)((k >> 32) & 0xffff) - 1,
        .start_us = atomic_load_explicit(&c->start_us, memory_order_relaxed),
        .us = atomic_load_explicit(&c->us, memory_order_relaxed),
        .request = atomic_load_explicit(&c->request, memory_order_relaxed),
        .ref = atomic_load_explicit(&c->ref, memory_order_relaxed),
        .a = (int32_t)(uint32_t)(ab >> 32),
        .b = (int32_t)(uint32_t)ab};
    return ret->kind > TRACE_NONE && ret->kind < TRACE_KINDS && ret->us >= 0;
}

int64_t tracepage_count(const struct tracepage *p)
{
    int64_t n = atomic_load(&p->n);

    return n < 0 ? 0 : n;
}

int tracepage_read(const struct tracepage *p, struct trace_event *ret, int max,
                   int64_t *ret_lost)
{
    int64_t claimed = tracepage_count(p), since = atomic_load(&p->since_us),
            until = atomic_load(&p->until_us);
    int64_t room = claimed < TRACE_EVENTS ? claimed : TRACE_EVENTS;
    int n = 0;

    *ret_lost = claimed > room ? claimed - room : 0;
    for (int64_t i = 0; i < room; i++) {
        struct trace_event v;

        /* what ended before the trace is of a writer that was late */
        if (!get(&p->cell[i], &v) || v.start_us + v.us < since || v.start_us > until)
            continue;
        if (n < max)
            ret[n++] = v;
        else
            ++*ret_lost;
    }
    return n;
}

/* ---- the engine ---- */

bool tracepage_on(const struct tracepage *p)
{
    return p && atomic_load_explicit(&p->on, memory_order_relaxed);
}

bool tracepage_wants_request(const struct tracepage *p, uint64_t request)
{
    uint64_t only;

    if (!tracepage_on(p))
        return false;
    only = atomic_load_explicit(&p->request, memory_order_relaxed);
    return !only || only == request;
}

bool tracepage_wants(const struct tracepage *p, const struct step *st)
{
    const struct step_item *it;

    if (!tracepage_on(p))
        return false;
    if (!atomic_load_explicit(&p->request, memory_order_relaxed))
        return true;
    it = step_items(st);
    for (int i = 0; i < st->n_items; i++)
        if (tracepage_wants_request(p, it[i].request))
            return true;
    return false;
}

void tracepage_put(struct tracepage *p, const struct trace_event *v)
{
    struct cell *c;
    int64_t at;

    if (!tracepage_on(p))
        return;
    if (v->start_us > atomic_load_explicit(&p->until_us, memory_order_relaxed)) {
        atomic_store(&p->on, 0);
        return;
    }
    at = atomic_fetch_add(&p->n, 1);
    if (at < 0 || at >= TRACE_EVENTS)
        return;
    c = &p->cell[at];
    atomic_store_explicit(&c->start_us, v->start_us, memory_order_relaxed);
    atomic_store_explicit(&c->us, v->us, memory_order_relaxed);
    atomic_store_explicit(&c->request, v->request, memory_order_relaxed);
    atomic_store_explicit(&c->ref, v->ref, memory_order_relaxed);
    atomic_store_explicit(&c->ab, (uint64_t)(uint32_t)v->a << 32 | (uint32_t)v->b,
                          memory_order_relaxed);
    atomic_store_explicit(&c->kind_rank,
                          (uint64_t)v->kind | (uint64_t)(uint32_t)(v->rank + 1) << 32,
                          memory_order_release);
}

/* daemon/api/tracejson.c - see tracejson.h. */
#include "daemon/api/tracejson.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "daemon/ctrl/traceview.h"

/* Thread numbers: ranks from RANKS on, two of each request from REQUESTS on; 0 means an
 * idle CPU to Perfetto. They are the order in which threads are shown, too. */
enum { SCHEDULER = 1, RANKS = 1000, REQUESTS = 10000 };
/* A step's flow, from the scheduler to its ranks: engine and step. */
enum { FLOW_STEP_BITS = 40 };

static const char *const names[TRACE_KINDS] = {
    [TRACE_STEP] = "step",      [TRACE_ITEM] = "prefill chunk",
    [TRACE_QUEUE] = "queue",    [TRACE_PREFILL] = "prefill",
    [TRACE_DECODE] = "decode",  [TRACE_LOAD] = "requests",
    [TRACE_RANK] = "rank step", [TRACE_DISPATCH] = "dispatch",
    [TRACE_EXPERT] = "expert",  [TRACE_COMBINE] = "combine",
};

static const char *const cats[TRACE_KINDS] = {
    [TRACE_STEP] = "scheduler",  [TRACE_ITEM] = "request",     [TRACE_QUEUE] = "request",
    [TRACE_PREFILL] = "request", [TRACE_DECODE] = "request",   [TRACE_LOAD] = "scheduler",
    [TRACE_RANK] = "rank",       [TRACE_DISPATCH] = "experts", [TRACE_EXPERT] = "experts",
    [TRACE_COMBINE] = "experts",
};

/* By enum finish_reason. */
static const char *const reasons[] = {"stop",  "length",      "canceled",
                                      "error", "handed over", "given back"};

struct engine {
    struct trace_view *v;
    int pid;
    uint64_t *request; /* distinct, ascending */
    int n_request;
    const struct trace_event **step; /* by number */
    uint64_t *number;                /* [n_step], theirs */
    int n_step;
};

static bool has_request(enum trace_kind k)
{
    return k >= TRACE_ITEM && k <= TRACE_DECODE;
}

/* ---- order ---- */

static int by_id(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static int by_step(const void *a, const void *b)
{
    const struct trace_event *const *x = a, *const *y = b;

    return ((*x)->ref > (*y)->ref) - ((*x)->ref < (*y)->ref);
}

/* Of two that begin together the longer one is around the other. */
static int by_time(const void *a, const void *b)
{
    const struct trace_event *x = a, *y = b;

    if (x->start_us != y->start_us)
        return x->start_us < y->start_us ? -1 : 1;
    return (x->us < y->us) - (x->us > y->us);
}

static void index_steps(struct engine *g)
{
    g->step = xcalloc((size_t)g->v->n + 1, sizeof(*g->step));
    for (int i = 0; i < g->v->n; i++)
        if (g->v->event[i].kind == TRACE_STEP)
            g->step[g->n_step++] = &g->v->event[i];
    qsort(g->step, (size_t)g->n_step, sizeof(*g->step), by_step);
}

static void index_requests(struct engine *g)
{
    int n = 0;

    g->request = xcalloc((size_t)g->v->n + 1, sizeof(*g->request));
    for (int i = 0; i < g->v->n; i++)
        if (has_request(g->v->event[i].kind))
            g->request[n++] = g->v->event[i].request;
    qsort(g->request, (size_t)n, sizeof(*g->request), by_id);
    for (int i = 0; i < n; i++)
        if (!g->n_request || g->request[g->n_request - 1] != g->request[i])
            g->request[g->n_request++] = g->request[i];
}

/* The steps' numbers alone. */
static void keep_numbers(struct engine *g)
{
    g->number = xcalloc((size_t)g->n_step + 1, sizeof(*g->number));
    for (int i = 0; i < g->n_step; i++)
        g->number[i] = g->step[i]->ref;
    free(g->step);
    g->step = NULL;
}

/* Items take the time of their step; those of one that is not over are left out. */
static void place_items(struct engine *g)
{
    struct trace_event *v = g->v->event;

    index_steps(g);
    for (int i = 0; i < g->v->n; i++) {
        const struct trace_event *key = &v[i], **found;

        if (v[i].kind != TRACE_ITEM)
            continue;
        found = g->n_step
                    ? bsearch(&key, g->step, (size_t)g->n_step, sizeof(*g->step), by_step)
                    : NULL;
        if (!found) {
            v[i].kind = TRACE_NONE;
            continue;
        }
        v[i].start_us = (*found)->start_us;
        v[i].us = (*found)->us;
    }
    keep_numbers(g); /* the events are about to change places */
}

/* ---- text ---- */

static void open_event(struct jw *w, const char *ph, const char *name,
                       const struct engine *g, int tid)
{
    jw_obj(w);
    jw_kstr(w, "ph", ph);
    jw_kstr(w, "name", name);
    jw_kint(w, "pid", g->pid);
    jw_kint(w, "tid", tid);
}

static void put_name(struct jw *w, const struct engine *g, const char *what, int tid,
                     const char *name)
{
    open_event(w, "M", what, g, tid);
    jw_key(w, "args");
    jw_obj(w);
    jw_kstr(w, "name", name);
    jw_obj_end(w);
    jw_obj_end(w);
}

static void put_order(struct jw *w, const struct engine *g, const char *what, int tid,
                      int at)
{
    open_event(w, "M", what, g, tid);
    jw_key(w, "args");
    jw_obj(w);
    jw_kint(w, "sort_index", at);
    jw_obj_end(w);
    jw_obj_end(w);
}

static void put_thread(struct jw *w, const struct engine *g, int tid, const char *name)
{
    put_name(w, g, "thread_name", tid, name);
    put_order(w, g, "thread_sort_index", tid, tid);
}

static void put_names(struct jw *w, const struct engine *g)
{
    char name[200];

    snprintf(name, sizeof(name), "%s, engine %d", g->v->instance, g->v->generation);
    put_name(w, g, "process_name", SCHEDULER, name);
    put_order(w, g, "process_sort_index", SCHEDULER, g->pid);
    put_thread(w, g, SCHEDULER, "scheduler");
    for (int i = 0; i < g->v->n_ranks; i++) {
        snprintf(name, sizeof(name), "rank %d", i);
        put_thread(w, g, RANKS + i, name);
    }
    for (int i = 0; i < g->n_request; i++) {
        unsigned long long id = g->request[i];

        snprintf(name, sizeof(name), "request %llu", id);
        put_thread(w, g, REQUESTS + 2 * i, name);
        snprintf(name, sizeof(name), "request %llu, steps", id);
        put_thread(w, g, REQUESTS + 2 * i + 1, name);
    }
}

static int thread_of(const struct engine *g, const struct trace_event *v)
{
    const uint64_t *at;

    if (!has_request(v->kind))
        return v->rank < 0 ? SCHEDULER : RANKS + v->rank;
    at = bsearch(&v->request, g->request, (size_t)g->n_request, sizeof(*g->request),
                 by_id);
    return REQUESTS + 2 * (int)(at - g->request) + (v->kind == TRACE_ITEM);
}

static void put_end(struct jw *w, const struct trace_event *v)
{
    size_t n = sizeof(reasons) / sizeof(reasons[0]);

    jw_kstr(w, "end", (size_t)v->a < n ? reasons[v->a] : "unknown");
}

static void put_args(struct jw *w, const struct trace_event *v)
{
    jw_key(w, "args");
    jw_obj(w);
    if (has_request(v->kind))
        jw_kint(w, "request", (int64_t)v->request);
    switch (v->kind) {
    case TRACE_STEP:
        jw_kint(w, "step", (int64_t)v->ref);
        jw_kint(w, "items", v->a);
        jw_kint(w, "tokens", v->b);
        break;
    case TRACE_ITEM:
        jw_kint(w, "step", (int64_t)v->ref);
        jw_kint(w, "position", v->a);
        jw_kint(w, "tokens", v->b);
        break;
    case TRACE_RANK:
        jw_kint(w, "step", (int64_t)v->ref);
        break;
    case TRACE_PREFILL:
    case TRACE_DECODE:
        jw_kint(w, "tokens", v->b);
        put_end(w, v);
        break;
    case TRACE_QUEUE:
        put_end(w, v);
        break;
    case TRACE_LOAD:
        jw_kint(w, "running", v->a);
        jw_kint(w, "waiting", v->b);
        break;
    case TRACE_DISPATCH:
    case TRACE_EXPERT:
    case TRACE_COMBINE:
        jw_kint(w, "layer", v->a);
        break;
    default:
        break;
    }
    jw_obj_end(w);
}

/* An arrow from a step to what a rank did of it: bound to the spans that begin there. */
static void put_flow(struct jw *w, const struct engine *g, const struct trace_event *v,
                     int64_t zero_us)
{
    bool from = v->kind == TRACE_STEP;

    if (!from &&
        !(v->kind == TRACE_RANK && g->n_step &&
          bsearch(&v->ref, g->number, (size_t)g->n_step, sizeof(*g->number), by_id)))
        return;
    open_event(w, from ? "s" : "f", "step", g, thread_of(g, v));
    jw_kstr(w, "cat", "step");
    jw_kint(w, "id",
            (int64_t)g->pid << FLOW_STEP_BITS |
                (int64_t)(v->ref & (((uint64_t)1 << FLOW_STEP_BITS) - 1)));
    if (!from)
        jw_kstr(w, "bp", "e");
    jw_kint(w, "ts", v->start_us - zero_us);
    jw_obj_end(w);
}

static void put_event(struct jw *w, const struct engine *g, const struct trace_event *v,
                      int64_t zero_us)
{
    /* one token of a request: it decodes, or its prompt's last piece is that short */
    const char *name =
        v->kind == TRACE_ITEM && v->b == 1 ? "decode step" : names[v->kind];

    open_event(w, v->kind == TRACE_LOAD ? "C" : "X", name, g, thread_of(g, v));
    jw_kstr(w, "cat", cats[v->kind]);
    jw_kint(w, "ts", v->start_us - zero_us);
    if (v->kind != TRACE_LOAD)
        jw_kint(w, "dur", v->us);
    put_args(w, v);
    jw_obj_end(w);
    put_flow(w, g, v, zero_us);
}

/* All engines in one order of time: the next event is the earliest of their next ones. */
static void put_events(struct jw *w, const struct engine *g, int n, int64_t zero_us)
{
    int *at = xcalloc((size_t)n + 1, sizeof(*at));

    for (;;) {
        int best = -1;

        for (int i = 0; i < n; i++) {
            const struct trace_view *v = g[i].v;

            while (at[i] < v->n && v->event[at[i]].kind == TRACE_NONE)
                at[i]++;
            if (at[i] < v->n && (best < 0 || v->event[at[i]].start_us <
                                                 g[best].v->event[at[best]].start_us))
                best = i;
        }
        if (best < 0)
            break;
        put_event(w, &g[best], &g[best].v->event[at[best]++], zero_us);
    }
    free(at);
}

/* When the first engine had no more room; zero_us: none of them. */
static int64_t full_at(const struct trace_view *v, int n, int64_t zero_us)
{
    int64_t first = 0;

    for (int i = 0; i < n; i++) {
        int64_t last = zero_us;

        for (int k = 0; v[i].lost && k < v[i].n; k++)
            if (v[i].event[k].start_us + v[i].event[k].us > last)
                last = v[i].event[k].start_us + v[i].event[k].us;
        if (last > zero_us && (!first || last < first))
            first = last;
    }
    return first ? first : zero_us;
}

static void put_other(struct jw *w, const struct trace_view *v, int n,
                      const char *version, int64_t zero_us)
{
    int64_t lost = 0;

    for (int i = 0; i < n; i++)
        lost += v[i].lost;
    jw_kstr(w, "displayTimeUnit", "ms");
    jw_key(w, "otherData");
    jw_obj(w);
    jw_kstr(w, "version", version);
    jw_kint(w, "engines", n);
    jw_kint(w, "room", TRACE_EVENTS);
    jw_kint(w, "dropped_events", lost);
    if (lost)
        jw_knum(w, "full_after_s", (double)(full_at(v, n, zero_us) - zero_us) / 1e6);
    else
        jw_knull(w, "full_after_s");
    jw_obj_end(w);
}

void tracejson(struct trace_view *v, int n, const char *version, struct buf *out)
{
    struct engine *g = xcalloc((size_t)n + 1, sizeof(*g));
    int64_t zero_us = INT64_MAX;
    struct jw w;

    for (int i = 0; i < n; i++) {
        g[i] = (struct engine){.v = &v[i], .pid = i + 1};
        place_items(&g[i]);
        index_requests(&g[i]);
        qsort(v[i].event, (size_t)v[i].n, sizeof(*v[i].event), by_time);
        if (v[i].n && v[i].event[0].start_us < zero_us)
            zero_us = v[i].event[0].start_us;
    }
    jw_init(&w, out);
    jw_obj(&w);
    put_other(&w, v, n, version, zero_us);
    jw_key(&w, "traceEvents");
    jw_arr(&w);
    for (int i = 0; i < n; i++)
        put_names(&w, &g[i]);
    put_events(&w, g, n, zero_us);
    jw_arr_end(&w);
    jw_obj_end(&w);
    for (int i = 0; i < n; i++) {
        free(g[i].request);
        free(g[i].number);
    }
    free(g);
}

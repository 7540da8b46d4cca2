/* daemon/ctrl/linkwatch.c - differences between two looks, laid on links, summed up. */
#include "daemon/ctrl/linkwatch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/linkload.h"
#include "daemon/ctrl/pairview.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/rack.h"

/* A rack that instances emulate; graph NULL where there is none of that name. */
struct emulated {
    char name[64];
    struct domain_view view; /* graph and paths only, owned */
};

struct linkwatch {
    struct alarms *alarms;
    struct pair_view *seen; /* at the last look */
    int n_seen;
    int64_t at_us; /* when that was, 0 = never */
    struct emulated *emulated;
    int n_emulated;
    pthread_mutex_t lock; /* what follows; written by looks only */
    struct link_row *row;
    int n_row;
    int64_t span_us;
};

struct linkwatch *linkwatch_new(struct alarms *a)
{
    struct linkwatch *w = xcalloc(1, sizeof(*w));

    w->alarms = a;
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

void linkwatch_free(struct linkwatch *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n_emulated; i++) {
        paths_free(w->emulated[i].view.paths);
        graph_free(w->emulated[i].view.graph);
    }
    free(w->emulated);
    pairview_free(w->seen, w->n_seen);
    pthread_mutex_destroy(&w->lock);
    free(w->row);
    free(w);
}

/* ---- what was read since the last look ---- */

static const struct pair_view *before(const struct linkwatch *w,
                                      const struct pair_view *v)
{
    for (int i = 0; i < w->n_seen; i++)
        if (w->seen[i].generation == v->generation &&
            !strcmp(w->seen[i].instance, v->instance))
            return &w->seen[i];
    return NULL;
}

static int order(const struct pair_read *a, const struct pair_read *b)
{
    return a->rank != b->rank ? a->rank - b->rank : a->from - b->from;
}

/* A counter that is behind began again from zero. *at: where in was to look on. */
static void less(struct pair_read *p, const struct pair_view *was, int *at)
{
    const struct pair_read *o;

    while (was && *at < was->n && order(&was->pair[*at], p) < 0)
        ++*at;
    if (!was || *at >= was->n || order(&was->pair[*at], p))
        return;
    o = &was->pair[*at];
    for (int k = 0; k < COMM_CALL_COUNT; k++)
        if (p->n[k].bytes >= o->n[k].bytes && p->n[k].link_us >= o->n[k].link_us) {
            p->n[k].bytes -= o->n[k].bytes;
            p->n[k].link_us -= o->n[k].link_us;
        }
}

/* ---- the rack that it went over ---- */

struct over {
    const char *name; /* "" the daemon's own */
    const struct domain_view *view;
    struct link_load *sum, *one; /* of all engines; of the one at hand; [links] */
    double *most;                /* bytes of the instance that sent most, [links] */
    const char **by;             /* and its name */
};

static const struct emulated *emulated_of(struct linkwatch *w, const char *name)
{
    struct emulated *m;
    struct err e;

    for (int i = 0; i < w->n_emulated; i++)
        if (!strcmp(w->emulated[i].name, name))
            return &w->emulated[i];
    w->emulated =
        xrealloc(w->emulated, (size_t)(w->n_emulated + 1) * sizeof(*w->emulated));
    m = &w->emulated[w->n_emulated++];
    *m = (struct emulated){0};
    snprintf(m->name, sizeof(m->name), "%s", name);
    if (rack_build(name, 0, &m->view.graph, &e) == 0 &&
        paths_new(m->view.graph, &m->view.paths, &e) < 0) {
        graph_free(m->view.graph);
        m->view.graph = NULL;
    }
    return m;
}

/* The node of each rank's device, -1 where it is not in the rack. */
static void find_devices(const struct over *o, const struct pair_view *v, int *node)
{
    const int *dev;
    int n = graph_devices(o->view->graph, &dev);
    char id[160];

    for (int i = 0; i < v->n_ranks; i++)
        node[i] = o->name[0] && i < n ? dev[i] : -1;
    for (int d = 0; d < n && !o->name[0]; d++) {
        domain_device_id(o->view, dev[d], id, sizeof(id));
        for (int i = 0; i < v->n_ranks; i++)
            if (!strcmp(id, v->device[i]))
                node[i] = dev[d];
    }
}

/* The engine's traffic since the last look. */
static void add_engine(const struct linkwatch *w, struct over *o,
                       const struct pair_view *v)
{
    const struct pair_view *was = before(w, v);
    int node[COMM_MAX_RANKS], n = graph_n_links(o->view->graph), at = 0;

    find_devices(o, v, node);
    memset(o->one, 0, (size_t)n * sizeof(*o->one));
    for (int i = 0; i < v->n; i++) {
        struct pair_read p = v->pair[i];

        less(&p, was, &at);
        if (node[p.from] >= 0 && node[p.rank] >= 0)
            linkload_add(o->one, o->view->paths, node[p.from], node[p.rank], p.n);
    }
    for (int i = 0; i < n; i++) {
        struct link_load *to = &o->sum[i], *one = &o->one[i];
        double all = one->bytes[0] + one->bytes[1];

        for (int d = 0; d < 2; d++) {
            to->bytes[d] += one->bytes[d];
            to->taken_s[d] += one->taken_s[d];
        }
        for (int k = 0; k < COMM_CALL_COUNT; k++)
            to->by_call[k] += one->by_call[k];
        if (all > o->most[i]) {
            o->most[i] = all;
            o->by[i] = v->instance;
        }
    }
}

/* ---- rows ---- */

/* As operators know it: with its host where there are several. */
static void name_end(const struct graph *g, int id, char ret[64])
{
    const struct node *n = graph_node(g, id);
    bool many = graph_count(g, NODE_HOST) > 1 && n->host >= 0 && n->host != id;

    snprintf(ret, 64, "%.31s%s%.31s", many ? graph_node(g, n->host)->name : "",
             many ? "/" : "", n->name);
}

static bool is_row(const struct link_row *r, const struct over *o, const char *kind,
                   const char *a, const char *b)
{
    return !strcmp(r->a, a) && !strcmp(r->b, b) && !strcmp(r->kind, kind) &&
           !strcmp(r->rack, o->name);
}

/* *at: a guess, since links come in one order; NULL: there are too many. */
static struct link_row *row_of(struct linkwatch *w, const struct over *o,
                               const struct link *l, int *at)
{
    const char *kind = link_kind_name(l->kind);
    struct link_row *r;
    char a[64], b[64];

    name_end(o->view->graph, l->a, a);
    name_end(o->view->graph, l->b, b);
    for (int i = 0; i < w->n_row; i++) {
        int k = (*at + i) % w->n_row;

        if (is_row(&w->row[k], o, kind, a, b)) {
            *at = k + 1;
            return &w->row[k];
        }
    }
    if (w->n_row == LINK_ROWS_MAX)
        return NULL;
    w->row = xrealloc(w->row, (size_t)(w->n_row + 1) * sizeof(*w->row));
    r = &w->row[w->n_row++];
    *r = (struct link_row){.kind = kind, .share = -1};
    memcpy(r->a, a, sizeof(a));
    memcpy(r->b, b, sizeof(b));
    snprintf(r->rack, sizeof(r->rack), "%s", o->name);
    *at = w->n_row;
    return r;
}

static void add_rows(struct linkwatch *w, const struct over *o)
{
    double s = (double)w->span_us / 1e6;
    int at = 0;

    for (int i = 0; i < graph_n_links(o->view->graph); i++) {
        const struct link *l = graph_link(o->view->graph, i);
        const struct link_load *n = &o->sum[i];
        struct link_row *r;

        if (n->bytes[0] + n->bytes[1] <= 0 || !(r = row_of(w, o, l, &at)))
            continue;
        r->bps = l->measured.conf == CONF_MEASURED ? l->measured.v : l->nominal.v;
        snprintf(r->by, sizeof(r->by), "%s", o->by[i]);
        for (int k = 0; k < COMM_CALL_COUNT; k++)
            r->by_call[k] += n->by_call[k];
        for (int d = 0; d < 2; d++) {
            r->bytes[d] += n->bytes[d];
            r->bytes_s[d] = s > 0 ? n->bytes[d] / s : 0;
            if (s > 0 && r->bps > 0 && n->taken_s[d] / s > r->share) {
                r->share = n->taken_s[d] / s;
                r->back = d;
            }
        }
    }
}

/* Is there to be an alarm? */
static void judge(struct link_row *r)
{
    r->over = r->share > LINK_ENTER ? r->over + 1 : 0;
    r->congested = r->over >= LINK_LOOKS || (r->congested && r->share >= LINK_LEAVE);
}

static void tell(struct linkwatch *w, const struct link_row *r, bool was)
{
    char id[96], text[256];

    snprintf(id, sizeof(id), "link.congested %.39s %.39s", r->a, r->b);
    if (!r->congested) {
        if (was)
            alarm_clear(w->alarms, id);
        return;
    }
    snprintf(text, sizeof(text),
             "the %s link from %.39s to %.39s%s%.20s was taken %.0f %% of the time, at "
             "%.3g MB/s, mostly by instance %.40s: steps wait for it",
             r->kind, r->back ? r->b : r->a, r->back ? r->a : r->b,
             r->rack[0] ? " of emulated " : "", r->rack, 100 * r->share,
             r->bytes_s[r->back] / 1e6, r->by);
    alarm_raise(w->alarms, id, ALARM_WARNING, text);
}

/* ---- a look ---- */

static bool already(const struct pair_view *v, int i)
{
    for (int k = 0; k < i; k++)
        if (!strcmp(v[k].emulate, v[i].emulate))
            return true;
    return false;
}

/* All engines whose ranks meet over this rack. */
static void look_over(struct linkwatch *w, struct over *o, const struct pair_view *v,
                      int n)
{
    size_t links = (size_t)graph_n_links(o->view->graph) + 1;

    o->sum = xcalloc(links, sizeof(*o->sum));
    o->one = xcalloc(links, sizeof(*o->one));
    o->most = xcalloc(links, sizeof(*o->most));
    o->by = xcalloc(links, sizeof(*o->by));
    for (int i = 0; i < n; i++)
        if (!strcmp(v[i].emulate, o->name))
            add_engine(w, o, &v[i]);
    pthread_mutex_lock(&w->lock);
    add_rows(w, o);
    pthread_mutex_unlock(&w->lock);
    free(o->sum);
    free(o->one);
    free(o->most);
    free((void *)o->by);
}

static void begin(struct linkwatch *w, int64_t now_us)
{
    pthread_mutex_lock(&w->lock);
    w->span_us = w->at_us ? now_us - w->at_us : 0;
    for (int i = 0; i < w->n_row; i++) {
        struct link_row *r = &w->row[i];

        r->bytes_s[0] = r->bytes_s[1] = 0;
        r->share = r->bps > 0 ? 0 : -1;
        r->by[0] = '\0';
    }
    pthread_mutex_unlock(&w->lock);
    w->at_us = now_us;
}

void linkwatch_look(struct linkwatch *w, const struct domain_view *own,
                    struct pair_view *v, int n, int64_t now_us)
{
    begin(w, now_us);
    for (int i = 0; i < n; i++) {
        struct over o = {.name = v[i].emulate, .view = own};

        if (already(v, i))
            continue;
        if (o.name[0])
            o.view = &emulated_of(w, o.name)->view;
        if (o.view && o.view->graph)
            look_over(w, &o, v, n);
    }
    for (int i = 0; i < w->n_row; i++) { /* nobody else writes rows */
        bool was = w->row[i].congested;

        pthread_mutex_lock(&w->lock);
        judge(&w->row[i]);
        pthread_mutex_unlock(&w->lock);
        tell(w, &w->row[i], was);
    }
    pairview_free(w->seen, w->n_seen);
    w->seen = v;
    w->n_seen = n;
}

int linkwatch_rows(struct linkwatch *w, struct link_row **ret, int64_t *ret_span_us)
{
    int n;

    pthread_mutex_lock(&w->lock);
    n = w->n_row;
    *ret = xcalloc((size_t)n + 1, sizeof(**ret));
    if (n)
        memcpy(*ret, w->row, (size_t)n * sizeof(**ret));
    *ret_span_us = w->span_us;
    pthread_mutex_unlock(&w->lock);
    return n;
}

/* daemon/ctrl/linkwatch.c - shares of time between two looks, and when they are too much.
 */
#include "daemon/ctrl/linkwatch.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/rankview.h"

/* What a rank had done in a group when last looked at. */
struct seen {
    char instance[64];
    int generation, rank, dim;
    int64_t span_us, taken_us;
    uint64_t bytes;
};

/* The worst link of a group of an instance. */
struct group {
    char instance[64];
    int dim, over; /* looks in a row that it was */
    bool raised, there;
    int rank;
    double share, bytes_s; /* of this look; share -1 = nothing to compare with */
};

struct linkwatch {
    struct alarms *alarms;
    struct seen *seen; /* of the last look */
    int n_seen;
    struct group *group;
    int n_group;
};

struct linkwatch *linkwatch_new(struct alarms *a)
{
    struct linkwatch *w = xcalloc(1, sizeof(*w));

    w->alarms = a;
    return w;
}

void linkwatch_free(struct linkwatch *w)
{
    if (!w)
        return;
    free(w->seen);
    free(w->group);
    free(w);
}

int64_t link_taken_us(const struct comm_count *c)
{
    return c->link_us ? c->link_us : c->us > c->wait_us ? c->us - c->wait_us : 0;
}

static struct seen now_of(const struct rank_view *v, int dim)
{
    struct seen s = {
        .generation = v->generation, .rank = v->rank, .dim = dim, .span_us = v->span_us};

    memcpy(s.instance, v->instance, sizeof(s.instance));
    for (int k = 0; k < COMM_CALL_COUNT; k++) {
        s.taken_us += link_taken_us(&v->s.counts[dim][k]);
        s.bytes += v->s.counts[dim][k].bytes;
    }
    return s;
}

static const struct seen *before(const struct linkwatch *w, const struct seen *s)
{
    for (int i = 0; i < w->n_seen; i++)
        if (w->seen[i].rank == s->rank && w->seen[i].dim == s->dim &&
            w->seen[i].generation == s->generation &&
            !strcmp(w->seen[i].instance, s->instance))
            return &w->seen[i];
    return NULL;
}

static struct group *group_of(struct linkwatch *w, const struct seen *s)
{
    struct group *g;

    for (int i = 0; i < w->n_group; i++)
        if (w->group[i].dim == s->dim && !strcmp(w->group[i].instance, s->instance))
            return &w->group[i];
    w->group = xrealloc(w->group, (size_t)(w->n_group + 1) * sizeof(*w->group));
    g = &w->group[w->n_group++];
    *g = (struct group){.dim = s->dim, .share = -1};
    memcpy(g->instance, s->instance, sizeof(g->instance));
    return g;
}

static void note(struct linkwatch *w, const struct seen *s)
{
    const struct seen *was = before(w, s);
    struct group *g = group_of(w, s);
    int64_t span = was ? s->span_us - was->span_us : 0;
    double share;

    g->there = true;
    if (span <= 0 || s->taken_us < was->taken_us || s->bytes < was->bytes)
        return;
    share = (double)(s->taken_us - was->taken_us) / (double)span;
    if (share <= g->share)
        return;
    g->share = share;
    g->rank = s->rank;
    g->bytes_s = (double)(s->bytes - was->bytes) * 1e6 / (double)span;
}

static void settle(struct linkwatch *w, struct group *g)
{
    char id[96], text[256];

    snprintf(id, sizeof(id), "link.congested %.60s %s", g->instance,
             mesh_dim_name((enum mesh_dim)g->dim));
    g->over = g->share > LINK_ENTER ? g->over + 1 : 0;
    if (g->over >= LINK_LOOKS || (g->raised && g->share >= LINK_LEAVE)) {
        snprintf(text, sizeof(text),
                 "the link of rank %d in its %s group was taken %.0f %% of the time, at "
                 "%.3g MB/s: steps wait for it",
                 g->rank, mesh_dim_name((enum mesh_dim)g->dim), 100 * g->share,
                 g->bytes_s / 1e6);
        alarm_raise(w->alarms, id, ALARM_WARNING, text);
        g->raised = true;
    } else if (g->raised && (!g->there || g->share >= 0)) {
        alarm_clear(w->alarms, id);
        g->raised = false;
    }
}

void linkwatch_look(struct linkwatch *w, const struct rank_view *v, int n)
{
    struct seen *now = xcalloc((size_t)n * MESH_DIM_COUNT + 1, sizeof(*now));
    int n_now = 0, kept = 0;

    for (int i = 0; i < w->n_group; i++) {
        w->group[i].there = false;
        w->group[i].share = -1;
    }
    for (int i = 0; i < n; i++)
        for (int d = 0; d < MESH_DIM_COUNT; d++) {
            if (v[i].s.at.group[d] < 0)
                continue;
            now[n_now] = now_of(&v[i], d);
            note(w, &now[n_now++]);
        }
    for (int i = 0; i < w->n_group; i++) {
        settle(w, &w->group[i]);
        if (w->group[i].there)
            w->group[kept++] = w->group[i];
    }
    w->n_group = kept;
    free(w->seen);
    w->seen = now;
    w->n_seen = n_now;
}

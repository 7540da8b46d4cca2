/* daemon/ctrl/domain_measure.c - what was measured between devices: stored, and laid over
 * the paths of the rack, so that planning takes it instead of what links promise. */
#include "daemon/ctrl/domain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/ctrl/domain_impl.h"
#include "daemon/ctrl/measure.h"
#include "daemon/ctrl/side.h"
#include "topo/graph.h"
#include "topo/path.h"

int domain_read_figures(struct domain *d, struct err *e)
{
    d->figures = xcalloc(DOMAIN_FIGURES_MAX, sizeof(*d->figures));
    if (!d->store)
        return 0;
    d->n_figures = measurement_list(d->store, d->rack, d->figures, DOMAIN_FIGURES_MAX, e);
    return d->n_figures < 0 ? -1 : 0;
}

int domain_lay_figures(const struct domain *d, const struct graph *g, struct paths *p)
{
    struct graph_pair *m = xcalloc((size_t)d->n_figures + 1, sizeof(*m));
    int n = 0;

    for (int i = 0; i < d->n_figures; i++) {
        const struct measurement_row *f = &d->figures[i];
        m[n] = (struct graph_pair){.bps = f->bytes_per_s,
                                   .spread = f->spread,
                                   .latency_us = f->latency_s * 1e6,
                                   .at_ms = f->at_ms};
        if (domain_find(g, f->a, &m[n].a) == 1 && domain_find(g, f->b, &m[n].b) == 1)
            n++;
    }
    paths_measure(p, m, n);
    free(m);
    return paths_measured(p);
}

/* ---- measuring ---- */

struct measuring {
    struct domain *d;
    struct domain_view *v; /* what is measured; held */
    struct measure *m;
    char actor[64], origin[64];
    bool failed;
    struct err why;
};

static void measuring_free(void *arg)
{
    struct measuring *x = arg;

    domain_put(x->v);
    measure_free(x->m);
    free(x);
}

static void measuring_run(void *arg)
{
    struct measuring *x = arg;

    x->failed = measure_run(x->m, &x->why) < 0;
}

/* The new figures replace those of the same pairs. */
static void keep_figure(struct domain *d, const struct measurement_row *f)
{
    for (int i = 0; i < d->n_figures; i++)
        if (!strcmp(d->figures[i].a, f->a) && !strcmp(d->figures[i].b, f->b)) {
            d->figures[i] = *f;
            return;
        }
    if (d->n_figures < DOMAIN_FIGURES_MAX)
        d->figures[d->n_figures++] = *f;
}

static int store_figures(struct measuring *x, struct err *e)
{
    struct domain *d = x->d;
    struct measurement_row *row = xcalloc((size_t)x->m->n_pairs + 1, sizeof(*row));
    int n = 0, rc;

    for (int i = 0; i < x->m->n_pairs; i++) {
        const struct measure_pair *p = &x->m->pair[i];
        struct measurement_row *f = &row[n];
        if (!p->done)
            continue;
        n++;
        domain_device_id(x->v, p->a, f->a, sizeof(f->a));
        domain_device_id(x->v, p->b, f->b, sizeof(f->b));
        f->at_ms = clock_wall_ms();
        f->bytes_per_s = measure_bps(p);
        f->spread = p->spread;
        f->latency_s = p->latency_us / 1e6;
    }
    rc = d->store && n ? measurement_put(d->store, d->rack, row, n, e) : 0;
    for (int i = 0; i < n && rc == 0; i++)
        keep_figure(d, &row[i]);
    free(row);
    return rc;
}

/* The same graph with paths that know the figures. */
static int show_measured(struct domain *d, struct err *e)
{
    struct domain_rack *now = d->view->rack, *base = now->base ? now->base : now;
    struct domain_rack *r = xcalloc(1, sizeof(*r));

    atomic_init(&r->refs, 1);
    if (paths_new(base->graph, &r->paths, e) < 0) {
        free(r);
        return -1;
    }
    atomic_fetch_add(&base->refs, 1);
    r->base = base;
    r->graph = base->graph;
    r->n_measured = domain_lay_figures(d, r->graph, r->paths);
    domain_show(d, r);
    return 0;
}

/* Tells who asked, once. */
static void answer(struct domain *d, const struct domain_view *v, const struct measure *m,
                   const struct err *why)
{
    domain_measured_fn done = d->measured;

    d->measured = NULL;
    if (done)
        done(d->measured_arg, v, m, why);
}

static void measuring_done(void *arg, void *job)
{
    struct domain *d = arg;
    struct measuring *x = job;
    char text[160];

    if (!x->failed)
        x->failed = store_figures(x, &x->why) < 0 || show_measured(d, &x->why) < 0;
    snprintf(text, sizeof(text), "%d pairs of %d devices", x->m->n_pairs, x->m->n_dev);
    domain_note(d, x->actor, x->origin, "rack.measured", d->rack,
                x->failed ? "failed" : "ok", x->failed ? x->why.msg : text);
    answer(d, x->v, x->failed ? NULL : x->m, x->failed ? &x->why : NULL);
}

void domain_measure_end(struct domain *d)
{
    struct err e;

    err_set(&e, ERR_CANCELED, "the daemon stops");
    answer(d, NULL, NULL, &e);
}

int domain_measure(struct domain *d, int64_t seconds, const char *actor,
                   const char *origin, domain_measured_fn done, void *arg, struct err *e)
{
    struct measuring *x;
    struct measure *m;
    struct side_job j = {
        .run = measuring_run, .done = measuring_done, .free = measuring_free, .arg = d};

    if (!d->view)
        return err_set(e, ERR_UNAVAIL, "the rack is not known yet");
    if (measure_new(d->view->graph, seconds * 1000000, &m, e) < 0)
        return -1;
    x = xcalloc(1, sizeof(*x));
    x->d = d;
    x->v = domain_get(d);
    x->m = m;
    snprintf(x->actor, sizeof(x->actor), "%s", actor);
    snprintf(x->origin, sizeof(x->origin), "%s", origin);
    j.job = x;
    if (side_start(d->measurer, &j, e) == 0) {
        d->measured = done;
        d->measured_arg = arg;
        return 0;
    }
    measuring_free(x);
    return err_wrap(e, "paths are not measured");
}

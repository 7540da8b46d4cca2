/* daemon/ctrl/domain.c - the present view of the rack, and the cordons in it.
 *
 * A new view is built whole and only then the lock is taken to swap it in. Views that
 * differ only in their cordons share one rack. */
#include "daemon/ctrl/domain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "daemon/ctrl/domain_impl.h"
#include "daemon/ctrl/side.h"
#include "state/journal.h"
#include "topo/finding.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/probe.h"

static int read_cordons(struct domain *d, struct err *e)
{
    struct cordon_row *row;
    int n;

    if (!d->store)
        return 0;
    row = xcalloc(DOMAIN_CORDONS_MAX, sizeof(*row));
    n = cordon_list(d->store, row, DOMAIN_CORDONS_MAX, e);
    for (int i = 0; i < n; i++) {
        struct domain_cordon *c = &d->cordons[d->n_cordons++];
        *c = (struct domain_cordon){.at_ms = row[i].at_ms, .node = -1};
        memcpy(c->device, row[i].device, sizeof(c->device));
        memcpy(c->reason, row[i].reason, sizeof(c->reason));
        memcpy(c->actor, row[i].actor, sizeof(c->actor));
    }
    free(row);
    return n < 0 ? -1 : 0;
}

int domain_new(const struct domain_cfg *cfg, struct domain **ret, struct err *e)
{
    struct domain *d = xcalloc(1, sizeof(*d));

    d->rack = xstrdup(cfg->rack);
    d->gpu = cfg->gpu && cfg->gpu[0] ? xstrdup(cfg->gpu) : NULL;
    d->loop = cfg->loop;
    d->check_s = cfg->check_s;
    d->store = cfg->store;
    d->news = cfg->news;
    d->arg = cfg->arg;
    pthread_mutex_init(&d->lock, NULL);
    if (side_new(d->loop, &d->reader, e) < 0 || side_new(d->loop, &d->measurer, e) < 0 ||
        read_cordons(d, e) < 0 || domain_read_figures(d, e) < 0) {
        domain_free(d);
        return -1;
    }
    *ret = d;
    return 0;
}

void domain_free(struct domain *d)
{
    if (!d)
        return;
    domain_measure_end(d);
    side_free(d->reader);
    side_free(d->measurer);
    if (d->fabric)
        loop_timer_free(d->fabric);
    if (d->check)
        loop_timer_free(d->check);
    domain_put(d->view);
    graph_free(d->baseline);
    free(d->next_baseline);
    probe_free(d->probe);
    pthread_mutex_destroy(&d->lock);
    free(d->figures);
    free(d->rack);
    free(d->gpu);
    free(d);
}

const char *domain_rack(const struct domain *d) { return d->rack; }

void domain_note(struct domain *d, const char *actor, const char *origin,
                 const char *what, const char *subject, const char *result,
                 const char *detail)
{
    const struct journal_note n = {actor, origin, what, subject, result, detail};
    struct err e;

    if (d->store && journal_note(d->store, &n, &e) < 0)
        log_error("%s", e.msg);
}

/* ---- views ---- */

void domain_rack_unref(struct domain_rack *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    paths_free(r->paths);
    if (!r->base) {
        graph_free(r->graph);
        free(r->nvlinks);
    }
    domain_rack_unref(r->base);
    free(r);
}

static bool same_name_elsewhere(const struct graph *g, int node)
{
    const int *dev;
    int n = graph_devices(g, &dev);

    for (int i = 0; i < n; i++)
        if (dev[i] != node &&
            !strcmp(graph_node(g, dev[i])->name, graph_node(g, node)->name))
            return true;
    return false;
}

static void device_id(const struct graph *g, int node, char *ret, size_t cap)
{
    const struct node *n = graph_node(g, node);

    if (same_name_elsewhere(g, node))
        snprintf(ret, cap, "%s/%s", graph_node(g, n->host)->name, n->name);
    else
        snprintf(ret, cap, "%s", n->name);
}

int domain_find(const struct graph *g, const char *text, int *ret)
{
    const int *dev;
    int n = graph_devices(g, &dev), found = 0;
    char full[160];

    for (int i = 0; i < n; i++) {
        const struct node *x = graph_node(g, dev[i]);
        snprintf(full, sizeof(full), "%s/%s", graph_node(g, x->host)->name, x->name);
        if (strcmp(text, x->name) && strcmp(text, full) &&
            (!x->uuid[0] || strcmp(text, x->uuid)))
            continue;
        if (found++ == 0)
            *ret = dev[i];
    }
    return found;
}

static struct domain_view *view_new(const struct domain *d, struct domain_rack *r)
{
    struct domain_view *v = xcalloc(1, sizeof(*v));
    struct domain_cordon *c = xcalloc((size_t)d->n_cordons + 1, sizeof(*c));
    int *avoid = xcalloc((size_t)d->n_cordons + 1, sizeof(*avoid));
    const struct domain_rack *first = r->base ? r->base : r;

    atomic_init(&v->refs, 1);
    v->rack = r;
    v->graph = r->graph;
    v->paths = r->paths;
    v->n_measured = r->n_measured;
    v->nvlinks = first->nvlinks;
    v->n_nvlinks = first->n_nvlinks;
    v->nvlinks_us = first->nvlinks_us;
    v->findings = findings_new(r->graph, d->baseline, first->host);
    memcpy(c, d->cordons, (size_t)d->n_cordons * sizeof(*c));
    for (int i = 0; i < d->n_cordons; i++) {
        if (domain_find(r->graph, c[i].device, &c[i].node) == 1)
            avoid[v->n_avoid++] = c[i].node;
        else
            c[i].node = -1;
    }
    v->cordons = c;
    v->n_cordons = d->n_cordons;
    v->avoid = avoid;
    findings_note_cordons(v->findings, r->graph, avoid, v->n_avoid);
    return v;
}

void domain_show(struct domain *d, struct domain_rack *r)
{
    struct domain_view *v = view_new(d, r), *old;

    pthread_mutex_lock(&d->lock);
    old = d->view;
    d->view = v;
    pthread_mutex_unlock(&d->lock);
    domain_put(old);
    if (d->news)
        d->news(d->arg, NULL);
}

struct domain_view *domain_get(struct domain *d)
{
    struct domain_view *v;

    pthread_mutex_lock(&d->lock);
    v = d->view;
    if (v)
        atomic_fetch_add(&v->refs, 1);
    pthread_mutex_unlock(&d->lock);
    return v;
}

void domain_put(struct domain_view *v)
{
    if (!v || atomic_fetch_sub(&v->refs, 1) != 1)
        return;
    findings_free(v->findings);
    domain_rack_unref(v->rack);
    free((void *)v->cordons);
    free((void *)v->avoid);
    free(v);
}

bool domain_emulated(struct domain *d)
{
    struct domain_view *v = domain_get(d);
    bool emulated = v && graph_emulated(v->graph);

    domain_put(v);
    return emulated;
}

void domain_device_id(const struct domain_view *v, int node, char *ret, size_t cap)
{
    device_id(v->graph, node, ret, cap);
}

/* ---- cordons ---- */

const struct domain_cordon *domain_cordon_of(const struct domain_view *v, int node)
{
    for (int i = 0; i < v->n_cordons; i++)
        if (v->cordons[i].node == node)
            return &v->cordons[i];
    return NULL;
}

bool domain_device_out(const struct domain_view *v, const char *device)
{
    const int *dev;
    int n = graph_devices(v->graph, &dev);
    char id[64];

    for (int i = 0; i < n; i++) {
        domain_device_id(v, dev[i], id, sizeof(id));
        if (!strcmp(id, device))
            return domain_cordon_of(v, dev[i]) ||
                   graph_node(v->graph, dev[i])->health == HEALTH_BAD;
    }
    return true;
}

static int cordon_at(const struct domain *d, const char *id)
{
    for (int i = 0; i < d->n_cordons; i++)
        if (!strcmp(d->cordons[i].device, id))
            return i;
    return -1;
}

/* The id of the device that is meant. */
static int name_device(const struct domain *d, const char *device, char *ret, size_t cap,
                       struct err *e)
{
    int node = -1, n = domain_find(d->view->graph, device, &node);
    char id[160];

    if (n > 1)
        return err_param(e, ERR_INVALID, "device",
                         "%d hosts have a device '%.64s'; name it as host/%.64s", n,
                         device, device);
    if (n == 1)
        device_id(d->view->graph, node, id, sizeof(id));
    else if (strlen(device) < sizeof(id) && cordon_at(d, device) >= 0)
        snprintf(id, sizeof(id), "%s", device);
    else
        return err_param(e, ERR_NOTFOUND, "device",
                         "the rack has no device '%.64s'; show topology lists them",
                         device);
    if (strlen(id) >= cap)
        return err_param(e, ERR_TOOBIG, "device", "the id '%s' has over %zu bytes", id,
                         cap - 1);
    snprintf(ret, cap, "%s", id);
    return 0;
}

static int store_cordon(struct domain *d, const struct domain_cordon *c, bool on,
                        struct err *e)
{
    struct cordon_row row = {.at_ms = c->at_ms};

    if (!d->store)
        return 0;
    if (!on)
        return cordon_remove(d->store, c->device, e);
    memcpy(row.device, c->device, sizeof(row.device));
    memcpy(row.reason, c->reason, sizeof(row.reason));
    memcpy(row.actor, c->actor, sizeof(row.actor));
    return cordon_put(d->store, &row, e);
}

int domain_cordon(struct domain *d, const char *device, bool on, const char *reason,
                  const char *actor, const char *origin, struct err *e)
{
    struct domain_cordon c = {.at_ms = clock_wall_ms(), .node = -1};
    int at;

    if (!d->view)
        return err_set(e, ERR_UNAVAIL, "the rack is not known yet");
    if (name_device(d, device, c.device, sizeof(c.device), e) < 0)
        return -1;
    snprintf(c.reason, sizeof(c.reason), "%s", reason);
    snprintf(c.actor, sizeof(c.actor), "%s", actor);
    at = cordon_at(d, c.device);
    if (on ? at >= 0 && !strcmp(d->cordons[at].reason, c.reason) : at < 0)
        return 0;
    if (at < 0 && d->n_cordons == DOMAIN_CORDONS_MAX)
        return err_set(e, ERR_TOOBIG, "%d devices are cordoned already", d->n_cordons);
    if (store_cordon(d, &c, on, e) < 0)
        return -1;
    if (!on)
        d->cordons[at] = d->cordons[--d->n_cordons];
    else
        d->cordons[at < 0 ? d->n_cordons++ : at] = c;
    domain_note(d, actor, origin, on ? "device.cordon" : "device.uncordon", c.device,
                "ok", reason);
    atomic_fetch_add(&d->view->rack->refs, 1);
    domain_show(d, d->view->rack);
    return 1;
}

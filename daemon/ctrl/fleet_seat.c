/* daemon/ctrl/fleet_seat.c - which layout an instance has here, and which device each of
 * its ranks.
 *
 * A new engine is placed on devices in service that no other engine has; where those are
 * too few, it shares. A device that is cordoned later keeps what runs on it until its
 * engine is replaced. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpuset.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/fleet_int.h"
#include "daemon/ctrl/layouts.h"
#include "topo/graph.h"
#include "topo/placement.h"

/* ---- the layout ---- */

/* Devices in service; -1: there is no rack. */
static int in_service(struct fleet *f)
{
    struct domain_view *v = f->cfg.domain ? domain_get(f->cfg.domain) : NULL;
    const int *dev;
    int n = v ? graph_devices(v->graph, &dev) : 0, good = 0;

    for (int i = 0; i < n; i++)
        good += !domain_cordon_of(v, dev[i]) &&
                graph_node(v->graph, dev[i])->health != HEALTH_BAD;
    domain_put(v);
    return v ? good : -1;
}

void fleet_spec(struct fleet *f, const struct conf *c, const struct conf_instance *i,
                struct unit_spec *ret, char refused[256])
{
    const struct conf_model *m = conf_model(c, i->model);
    int devices = in_service(f);
    struct layout chosen;
    struct err e = {0};
    bool asked = i->layout.automatic;
    char said[160] = "";

    refused[0] = '\0';
    if (asked && layouts_choose(f->layouts, f->cfg.domain, m ? m->path : "", i, &chosen,
                                said, &e) < 0)
        snprintf(refused, 256, "%.255s", e.msg);
    unit_spec_init(ret, c, i, asked && !refused[0] ? &chosen : NULL);
    snprintf(ret->said, sizeof(ret->said), "%s", said);
    if (!refused[0] && devices >= 0 && layout_ranks(&ret->layout) > devices)
        snprintf(refused, 256,
                 "%d ranks and %d devices in service (rack %s): a layout of at most so "
                 "many ranks would be right",
                 layout_ranks(&ret->layout), devices, domain_rack(f->cfg.domain));
    else if (!refused[0] && i->experts.spare && ret->layout.ep > 1 && ret->layout.etp > 1)
        snprintf(
            refused, 256,
            "experts.spare %lld, and its layout cuts every expert into %d parts, which "
            "do not move: ep = tp x cp x adp would be right, or spare 0",
            (long long)i->experts.spare, ret->layout.etp);
}

/* ---- the devices ---- */

struct avoid {
    int *v, n;
};

static void add(struct avoid *a, int node)
{
    for (int i = 0; i < a->n; i++)
        if (a->v[i] == node)
            return;
    a->v[a->n++] = node;
}

static bool has_seat(const struct unit *u, const char *device)
{
    for (int i = 0; i < u->n_seats; i++)
        if (!strcmp(u->seats[i].device, device))
            return true;
    return false;
}

static void add_taken(struct fleet *f, const struct domain_view *v, const struct unit *me,
                      struct avoid *a)
{
    const int *dev;
    int n = graph_devices(v->graph, &dev);
    char name[64];

    for (int i = 0; i < n; i++) {
        domain_device_id(v, dev[i], name, sizeof(name));
        list_for(it, &f->units)
        {
            const struct unit *u = list_entry(it, struct unit, link);
            if (u != me && u->phase != UNIT_GONE && has_seat(u, name))
                add(a, dev[i]);
        }
    }
}

static int place(const struct domain_view *v, const struct layout *l,
                 const struct avoid *a, struct placement **ret, struct err *e)
{
    const struct placement_ask ask = {l, 1, a->v, a->n};

    return placement_compute(v->graph, v->paths, &ask, ret, e);
}

/* On devices of its own, or on those that others have too. */
static int place_somewhere(struct fleet *f, const struct domain_view *v,
                           const struct unit *u, struct placement **ret, struct err *e)
{
    const int *dev;
    int n = graph_devices(v->graph, &dev), usable, rc;
    struct avoid a = {xcalloc((size_t)n + 1, sizeof(int)), 0};

    for (int i = 0; i < n; i++)
        if (domain_cordon_of(v, dev[i]) ||
            graph_node(v->graph, dev[i])->health == HEALTH_BAD)
            add(&a, dev[i]);
    usable = a.n;
    add_taken(f, v, u, &a);
    rc = place(v, &u->spec.layout, &a, ret, e);
    if (rc < 0 && a.n > usable) {
        a.n = usable;
        rc = place(v, &u->spec.layout, &a, ret, e);
    }
    free(a.v);
    return rc;
}

/* CPUs at a device of this machine: its own, or those of its NUMA node. */
static void near_cpus(const struct domain_view *v, const struct place_rank *r,
                      cpu_set_t *ret)
{
    const char *cpus = graph_node(v->graph, r->device)->cpus;
    struct err e;

    CPU_ZERO(ret);
    if (graph_emulated(v->graph))
        return;
    if (!cpus[0] && r->numa >= 0)
        cpus = graph_node(v->graph, r->numa)->cpus;
    if (cpus[0] && cpuset_parse(cpus, strlen(cpus), ret, &e) < 0)
        log_warn("device '%s': %s", graph_node(v->graph, r->device)->name, e.msg);
}

void fleet_seat(struct fleet *f, struct unit *u)
{
    struct domain_view *v = f->cfg.domain ? domain_get(f->cfg.domain) : NULL;
    const struct place_rank *r;
    struct placement *p = NULL;
    struct rank_seat *seats;
    struct err e = {0};
    int n;

    if (!v)
        return;
    if (place_somewhere(f, v, u, &p, &e) < 0) {
        fleet_note(f, "instance.place", u->inst->name, "failed", e.msg);
        log_about(LOG_LV_WARN, &(struct log_about){.instance = u->inst->name},
                  "instance '%s' has no devices of the rack: %s", u->inst->name, e.msg);
        domain_put(v);
        return;
    }
    n = placement_ranks(p, &r);
    seats = xcalloc((size_t)n, sizeof(*seats));
    for (int i = 0; i < n; i++) {
        domain_device_id(v, r[i].device, seats[i].device, sizeof(seats[i].device));
        near_cpus(v, &r[i], &seats[i].near);
    }
    unit_seat(u, seats, n);
    if (u->spec.said[0])
        fleet_note(f, "instance.layout", u->inst->name, "ok", u->spec.said);
    placement_free(p);
    domain_put(v);
}

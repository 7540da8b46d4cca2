/* daemon/api/devices.c - the devices of the rack, and keeping one out of placement. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/ranks.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/rankview.h"
#include "topo/finding.h"
#include "topo/graph.h"

enum { REASON_MAX = 255 };

static void put_findings(struct jw *w, const struct domain_view *v, int node)
{
    jw_key(w, "findings");
    jw_arr(w);
    for (int i = 0; i < findings_count(v->findings); i++) {
        const struct finding *f = findings_get(v->findings, i);

        if (f->node == node)
            jw_str(w, f->text);
    }
    jw_arr_end(w);
}

/* "main/2 tp2": the instance, its rank, the coordinates. */
static void put_ranks(struct jw *w, const struct rank_view *v, int n, const char *device)
{
    char at[64], text[160];

    jw_key(w, "ranks");
    jw_arr(w);
    for (int i = 0; i < n; i++) {
        if (strcmp(v[i].seat.device, device))
            continue;
        ranks_at(&v[i], at);
        snprintf(text, sizeof(text), "%s/%d%s%s", v[i].instance, v[i].rank,
                 at[0] ? " " : "", at);
        jw_str(w, text);
    }
    jw_arr_end(w);
}

struct device_ranks {
    struct rank_view *v;
    int n;
};

static void put_device(struct jw *w, const struct domain_view *v, int id,
                       const struct device_ranks *on)
{
    const struct node *n = graph_node(v->graph, id);
    const struct domain_cordon *c = domain_cordon_of(v, id);
    char name[160];

    domain_device_id(v, id, name, sizeof(name));
    jw_obj(w);
    jw_kstr(w, "id", name);
    jw_kstr(w, "kind", n->mig ? "mig" : n->is_cpu ? "cpu" : "gpu");
    jw_kstr(w, "host", graph_node(v->graph, n->host)->name);
    jw_kstr(w, "model", n->model[0] ? n->model : NULL);
    jw_key(w, "memory_bytes");
    if (n->memory_bytes.conf == CONF_UNKNOWN)
        jw_null(w);
    else
        jw_num(w, n->memory_bytes.v);
    jw_kint(w, "numa", n->numa);
    jw_kstr(w, "state", c ? "cordoned" : "in service");
    jw_kstr(w, "reason", c ? c->reason : NULL);
    jw_kstr(w, "actor", c ? c->actor : NULL);
    put_ranks(w, on->v, on->n, name);
    put_findings(w, v, id);
    jw_obj_end(w);
}

/* A cordon outlives the device: it is listed, so that it can be taken away. */
static void put_missing(struct jw *w, const struct domain_cordon *c)
{
    jw_obj(w);
    jw_kstr(w, "id", c->device);
    jw_kstr(w, "kind", "missing");
    jw_knull(w, "host");
    jw_knull(w, "model");
    jw_knull(w, "memory_bytes");
    jw_kint(w, "numa", -1);
    jw_kstr(w, "state", "cordoned");
    jw_kstr(w, "reason", c->reason);
    jw_kstr(w, "actor", c->actor);
    put_ranks(w, NULL, 0, "");
    jw_key(w, "findings");
    jw_arr(w);
    jw_arr_end(w);
    jw_obj_end(w);
}

void control_devices(struct conn *c)
{
    struct domain_view *v = c->h->cfg.domain ? domain_get(c->h->cfg.domain) : NULL;
    struct device_ranks on;
    const int *dev;
    struct reply r;
    struct err e;
    int n;

    if (!v) {
        err_set(&e, ERR_UNAVAIL, "the rack is not known yet");
        conn_answer_err(c, &e);
        return;
    }
    n = graph_devices(v->graph, &dev);
    on.n = rankview_get(c->h->router, &on.v);
    reply_open(&r);
    jw_key(&r.w, "devices");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++)
        put_device(&r.w, v, dev[i], &on);
    for (int i = 0; i < v->n_cordons; i++)
        if (v->cordons[i].node < 0)
            put_missing(&r.w, &v->cordons[i]);
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(on.v);
    domain_put(v);
}

static void cordon(struct conn *c, bool on)
{
    const char *reason = "", *id = c->match.arg[0];
    struct domain *d = c->h->cfg.domain;
    json_t *root = NULL;
    struct reply r;
    struct err e;
    int rc = -1;

    if (!d)
        err_set(&e, ERR_UNAVAIL, "this server has no rack");
    else if (body_object(c, "reason", &root, &e) == 0 &&
             body_text(root, "reason", REASON_MAX, &reason, &e) >= 0)
        rc = domain_cordon(d, id, on, reason, c->who.actor, c->who.origin, &e);
    if (rc < 0) {
        conn_answer_err(c, &e);
    } else {
        reply_open(&r);
        jw_kstr(&r.w, "id", id);
        jw_kstr(&r.w, "state", on ? "cordoned" : "in service");
        jw_kbool(&r.w, "changed", rc == 1);
        reply_send(c, &r, 200);
    }
    json_decref(root);
}

void control_cordon(struct conn *c) { cordon(c, true); }

void control_uncordon(struct conn *c) { cordon(c, false); }

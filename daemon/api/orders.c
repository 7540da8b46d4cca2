/* daemon/api/orders.c - what operators order of instances: start, stop, restart, drain,
 * undrain. Answered with an operation that looks at the engines until the order is done.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/news.h"
#include "daemon/api/operation.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/fleet.h"
#include "daemon/ctrl/router.h"

enum { MAX_INSTANCES = 128, REASON_MAX = 160, ORDER_S = 3600 };

static const char *const kinds[] = {
    [FLEET_ORDER_START] = "instance.start",     [FLEET_ORDER_STOP] = "instance.stop",
    [FLEET_ORDER_RESTART] = "instance.restart", [FLEET_ORDER_DRAIN] = "instance.drain",
    [FLEET_ORDER_UNDRAIN] = "instance.undrain", [FLEET_ORDER_WIPE] = "instance.wipe",
};

/* The engines of one instance at a glance. */
struct glance {
    int generation; /* of the newest, 0 none */
    enum instance_state state;
    char error[512];
    int live;   /* requests of all of them */
    bool alive; /* one has not ended */
};

struct order {
    struct router *router;
    char name[64];
    enum fleet_order kind;
    int before; /* generation of the newest when it was given */
};

static void look(struct router *r, const char *name, struct glance *g)
{
    struct instance_status *s = xcalloc(MAX_INSTANCES, sizeof(*s));
    int n = router_instances(r, s, MAX_INSTANCES);

    memset(g, 0, sizeof(*g));
    for (int i = 0; i < n; i++) {
        if (strcmp(s[i].name, name))
            continue;
        g->live += s[i].live;
        g->alive =
            g->alive || (s[i].state != INSTANCE_STOPPED && s[i].state != INSTANCE_FAILED);
        if (s[i].generation < g->generation)
            continue;
        g->generation = s[i].generation;
        g->state = s[i].state;
        memcpy(g->error, s[i].error, sizeof(g->error));
    }
    free(s);
}

/* An engine newer than those of before is ready. */
static enum operation_state poll_start(const struct order *o, const struct glance *g,
                                       char message[512])
{
    if (g->generation <= o->before)
        return OPERATION_RUNNING;
    snprintf(message, 512, "%s%s%.480s", instance_state_name(g->state),
             g->error[0] ? ": " : "", g->error);
    return g->state == INSTANCE_READY ? OPERATION_DONE
           : g->state == INSTANCE_FAILED || g->state == INSTANCE_STOPPED
               ? OPERATION_FAILED
               : OPERATION_RUNNING;
}

static enum operation_state poll_drain(const struct glance *g, char message[512])
{
    if (!g->alive || g->state == INSTANCE_READY) {
        snprintf(message, 512, g->alive ? "it was let in again" : "its engine has ended");
        return g->alive ? OPERATION_FAILED : OPERATION_DONE;
    }
    snprintf(message, 512, "%d requests run", g->live);
    return g->live ? OPERATION_RUNNING : OPERATION_DONE;
}

static enum operation_state poll_order(void *arg, char message[512])
{
    const struct order *o = arg;
    struct glance g;

    look(o->router, o->name, &g);
    switch (o->kind) {
    case FLEET_ORDER_START:
    case FLEET_ORDER_RESTART:
        return poll_start(o, &g, message);
    case FLEET_ORDER_DRAIN:
        return poll_drain(&g, message);
    case FLEET_ORDER_STOP:
        if (g.generation > o->before) {
            snprintf(message, 512, "it was started again");
            return OPERATION_FAILED;
        }
        snprintf(message, 512, g.alive ? "%d requests run" : "stopped", g.live);
        return g.alive ? OPERATION_RUNNING : OPERATION_DONE;
    case FLEET_ORDER_WIPE:
        snprintf(message, 512, "its engines were told");
        return OPERATION_DONE;
    case FLEET_ORDER_UNDRAIN:
        snprintf(message, 512, "%s", instance_state_name(g.state));
        return g.state == INSTANCE_DRAINING ? OPERATION_RUNNING : OPERATION_DONE;
    }
    return OPERATION_FAILED;
}

static void give(struct conn *c, enum fleet_order kind)
{
    const char *reason = "", *name = c->match.arg[0];
    struct operation_watch w = {poll_order, free, NULL, ORDER_S * (int64_t)1000000};
    struct order *o = NULL;
    json_t *root = NULL;
    struct glance g;
    struct err e;

    if (!c->h->cfg.fleet) {
        err_set(&e, ERR_UNAVAIL, "this server has no instances to order about");
        goto fail;
    }
    if (body_object(c, "reason", &root, &e) < 0 ||
        body_text(root, "reason", REASON_MAX, &reason, &e) < 0)
        goto fail;
    look(c->h->router, name, &g);
    if (operation_room(news_operations(c->h->news), &e) < 0 ||
        fleet_order(c->h->cfg.fleet, name, kind, c->who.actor, c->who.origin, reason,
                    &e) < 0)
        goto fail;
    w.arg = o = xcalloc(1, sizeof(*o));
    o->router = c->h->router;
    o->kind = kind;
    o->before = g.generation;
    snprintf(o->name, sizeof(o->name), "%s", name);
    json_decref(root);
    news_start(c->h->news, c, kinds[kind], name, &w, "");
    return;

fail:
    conn_answer_err(c, &e);
    json_decref(root);
}

void control_instance_start(struct conn *c) { give(c, FLEET_ORDER_START); }
void control_instance_stop(struct conn *c) { give(c, FLEET_ORDER_STOP); }
void control_instance_restart(struct conn *c) { give(c, FLEET_ORDER_RESTART); }
void control_instance_drain(struct conn *c) { give(c, FLEET_ORDER_DRAIN); }
void control_instance_undrain(struct conn *c) { give(c, FLEET_ORDER_UNDRAIN); }
void control_instance_wipe(struct conn *c) { give(c, FLEET_ORDER_WIPE); }

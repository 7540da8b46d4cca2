/* daemon/ctrl/fleet.h - the engines that run, made to be those that a configuration
 * wants.
 *
 * fleet_plan says what would happen, purely; fleet_apply does it: hot values in place; an
 * instance whose engine would differ is started beside the old one, warmed, given the
 * traffic, and the old one drains; where both do not fit it drains first and the plan
 * says so. Engines of an instance that are wanted no more (fewer replicas, another mode)
 * end once those that are new are ready. One unit (unit.h) an engine. The engines
 * that are there share out the machine's CPUs, near the devices of their ranks where
 * these are known; when one comes or goes the others take more or less of them while they
 * run. Control thread only; done comes from the loop. */
#ifndef CTRL_FLEET_H
#define CTRL_FLEET_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/loader.h"

struct conf;
struct conf_instance;
struct domain;
struct err;
struct experts;
struct fleet;
struct loop;
struct metric_page;
struct router;
struct store;

struct fleet_cfg {
    struct loop *loop;
    struct router *router;
    struct store *store;      /* NULL in tests */
    struct domain *domain;    /* whose devices ranks are on; NULL in tests: none */
    struct metric_page *page; /* the daemon's */
    struct experts *experts;  /* NULL in tests: nobody watches them */
    const char *program;      /* the engine */
    int64_t memory_bytes;     /* that engines may use together; 0 = of this machine */
    void (*ready)(void *arg, const char *instance); /* each time one becomes ready */
    /* Its engine is in trouble, each time; why NULL: not any more, or it is gone. */
    void (*trouble)(void *arg, const char *instance, enum alarm_engine kind,
                    const char *why);
    void *arg;
    /* For tests; NULL and 0: the model's file, the estimate, the documented times. */
    loader_open_fn open;
    uint64_t (*need)(const char *model_path, const struct conf_instance *i);
    int64_t backoff_us, stop_us;
};

enum fleet_action_kind {
    FLEET_KEEP,
    FLEET_HOT,         /* values change in place */
    FLEET_START,       /* a new instance */
    FLEET_REPLACE,     /* new engine beside the old one */
    FLEET_DRAIN_FIRST, /* both do not fit: the old one ends before the new one starts */
    FLEET_RETIRE,      /* ends once the other engines of its instance are ready */
    FLEET_STOP
};
struct fleet_action {
    enum fleet_action_kind kind;
    char instance[64];
    char why[160];       /* "mode chunked -> colocated" */
    int live;            /* requests that would be drained */
    uint64_t need, have; /* bytes: the new engine's by estimate; free now */
    int ctx, block_tok;  /* that its KV is sized for, by estimate; 0 = not known */
    bool fits;           /* false: it cannot be applied at all */
    char refused[256];   /* why, where it is not the memory; "" */
};

/* Reads what operators have said of instances. */
int fleet_new(const struct fleet_cfg *cfg, struct fleet **ret, struct err *e);
/* From what runs to `to`; returns the count of actions (at most max). */
int fleet_plan(struct fleet *f, const struct conf *to, struct fleet_action *ret, int max);
/* Takes a reference to `to`. done once: NULL when every wanted instance is ready (or was
 * stopped by an operator), else why, with the engine's last lines; then what was changed
 * stays as it is and the caller applies the former conf: an instance that was to be
 * replaced still has its old engine, one that is new, or had to drain first, tries again
 * by itself. NOFIT, before anything is done, when it cannot fit at all. One apply at a
 * time (CONFLICT). done does not come once the daemon stops. */
typedef void (*fleet_done_fn)(void *arg, const struct err *why);
int fleet_apply(struct fleet *f, const struct conf *to, fleet_done_fn done, void *arg,
                struct err *e);
/* The conf last applied, a new reference; NULL before the first. */
struct conf *fleet_conf(struct fleet *f);

/* By an operator, stored: stop drains up to the drain limit, then ends the engine; it
 * stays ended when the daemon is started again, as a drain stays on. Returns when it has
 * begun. NOTFOUND names what is there; CONFLICT while a configuration is applied. */
enum fleet_order {
    FLEET_ORDER_START,
    FLEET_ORDER_STOP,
    FLEET_ORDER_RESTART,
    FLEET_ORDER_DRAIN,
    FLEET_ORDER_UNDRAIN,
    FLEET_ORDER_WIPE /* its KV below the device's; nothing of it is stored */
};
int fleet_order(struct fleet *f, const char *instance, enum fleet_order o,
                const char *actor, const char *origin, const char *reason, struct err *e);

/* The whole daemon stops: no new requests; then end the engines; then ask. */
void fleet_drain(struct fleet *f);
void fleet_stop(struct fleet *f);
bool fleet_stopped(const struct fleet *f);
void fleet_free(struct fleet *f); /* kills what still runs */

#endif

/* daemon/ctrl/domain.h - the rack that this daemon owns: its graph, paths, findings, and
 * which of its devices an operator keeps out.
 *
 * `auto` is this machine as the probes see it; a built-in name, cpu:N, cpu:HxN or a file
 * is a rack that is emulated, and says so. A view is immutable and reference counted:
 * HTTP threads hold one while they answer, the control thread replaces it on SIGHUP and
 * when a device is cordoned. */
#ifndef CTRL_DOMAIN_H
#define CTRL_DOMAIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct domain;
struct domain_rack;
struct err;
struct findings;
struct graph;
struct paths;

enum { DOMAIN_CORDONS_MAX = 256 };

/* A device that no group may lie on, until it is uncordoned. */
struct domain_cordon {
    char device[64]; /* "0000:1b:00.0", "cpu3"; "host/name" where hosts share names */
    char reason[256], actor[64];
    int64_t at_ms;
    int node; /* in the view's graph, -1: the present rack has no such device */
};

struct domain_view {
    struct graph *graph; /* these two belong to rack */
    struct paths *paths;
    struct domain_rack *rack;
    struct findings *findings;
    const struct domain_cordon *cordons;
    int n_cordons;
    const int *avoid; /* node ids of those that the rack has: the planner's avoid */
    int n_avoid;
    atomic_int refs; /* domain_get and domain_put only */
};

/* rack as above; gpu: model that completes a file which does not say ("" none). Loads
 * nothing yet. */
struct domain *domain_new(const char *rack, const char *gpu);
void domain_free(struct domain *d);
const char *domain_rack(const struct domain *d);

/* Probe or read the rack (again) and compare it with baseline_json, the graph as last
 * recorded (NULL: with none). changed (may be NULL) gets one line a difference. On
 * failure the former view stays. Control thread. */
typedef void (*domain_changed_fn)(void *arg, const char *what);
int domain_load(struct domain *d, const char *baseline_json, domain_changed_fn changed,
                void *arg, struct err *e);

/* Keep a device out of placement (on), or let it in again. device: its id, its UUID or
 * "host/id". 1 = changed (also a new reason), 0 = it was so already, -1: NOTFOUND, or an
 * id that several hosts have. A cordon outlives a rack that lacks the device; only such a
 * one is found by its id alone. Control thread. */
int domain_cordon(struct domain *d, const char *device, bool on, const char *reason,
                  const char *actor, struct err *e);

/* The present view, NULL before the first load. Any thread; domain_put gives it back. */
struct domain_view *domain_get(struct domain *d);
void domain_put(struct domain_view *v); /* NULL allowed */
bool domain_emulated(struct domain *d);

/* Of a view. The device's id as cordons have it; NULL when it is not cordoned. */
void domain_device_id(const struct domain_view *v, int node, char *ret, size_t cap);
const struct domain_cordon *domain_cordon_of(const struct domain_view *v, int node);

#endif

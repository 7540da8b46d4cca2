/* daemon/ctrl/domain.h - the rack that this daemon owns: its graph, paths, findings, what
 * was measured on it, and which of its devices an operator keeps out.
 *
 * `auto` is this machine as the probes see it; a built-in name, cpu:N, cpu:HxN or a file
 * is a rack that is emulated, and says so. It is read beside the control thread (a driver
 * or a file system may be stuck), compared with the last one of the same name, journalled
 * and remembered. A view is immutable and reference counted: HTTP threads hold one while
 * they answer, the control thread replaces it. All calls from the control thread but
 * those that say any. */
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
struct loop;
struct measure;
struct nvlink_count;
struct paths;
struct store;

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
    int n_measured; /* pairs whose figures are measured ones */
    /* What the driver counts of NVLinks (topo/nvlinks.h), and the time that rates are
     * over; these belong to rack too */
    const struct nvlink_count *nvlinks;
    int n_nvlinks;
    int64_t nvlinks_us;
    atomic_int refs; /* domain_get and domain_put only */
};

struct domain_cfg {
    const char *rack; /* as above */
    const char *gpu;  /* model that completes a file which does not say; "" none */
    int64_t check_s;  /* a machine with GPUs is read again so often, 0 = never */
    struct loop *loop;
    struct store *store; /* NULL in tests: nothing is remembered */
    /* There is a new view, also after a cordon; why: the reading failed and the former
     * view stays. NULL allowed. */
    void (*news)(void *arg, const struct err *why);
    void *arg;
};

/* Copies the strings; reads cordons and figures from the store, but no rack yet. */
int domain_new(const struct domain_cfg *cfg, struct domain **ret, struct err *e);
void domain_free(struct domain *d);
const char *domain_rack(const struct domain *d); /* any thread */

/* The first reading, waited for: every probe has its deadline. */
int domain_load(struct domain *d, struct err *e);
/* Once more, in the background; why: for the log. One that comes while another runs
 * follows it. Differences from the reading before are journalled as rack.changed; a
 * device that was lost stays a finding until it is back, or the daemon starts anew. A
 * device that has not joined its fabric yet is looked at again, ever more seldom, for
 * DOMAIN_FABRIC_S. */
void domain_reload(struct domain *d, const char *why);
enum { DOMAIN_FABRIC_S = 600 };

/* Keep a device out of placement (on), or let it in again; stored and journalled. device:
 * its id, its UUID or "host/id". 1 = changed (also a new reason), 0 = it was so already,
 * -1: NOTFOUND, or an id that several hosts have. A cordon outlives a rack that lacks the
 * device; only such a one is found by its id alone. */
int domain_cordon(struct domain *d, const char *device, bool on, const char *reason,
                  const char *actor, const char *origin, struct err *e);

/* Measure the paths between all devices: in the background, pairs begin within seconds;
 * stored, journalled, and from then on what paths say. done once, with the figures and
 * the view that has their nodes, or why there are none. BUSY while another runs;
 * UNSUPPORTED where there is nothing to measure (GPUs), with a sentence. */
typedef void (*domain_measured_fn)(void *arg, const struct domain_view *v,
                                   const struct measure *m, const struct err *why);
int domain_measure(struct domain *d, int64_t seconds, const char *actor,
                   const char *origin, domain_measured_fn done, void *arg, struct err *e);
enum { DOMAIN_MEASURE_S = 20, DOMAIN_MEASURE_MAX_S = 60 };

/* The present view, NULL before the first load. Any thread; domain_put gives it back. */
struct domain_view *domain_get(struct domain *d);
void domain_put(struct domain_view *v); /* NULL allowed */
bool domain_emulated(struct domain *d); /* any thread */

/* Of a view, any thread. The device's id as cordons have it; NULL when it is not
 * cordoned. */
void domain_device_id(const struct domain_view *v, int node, char *ret, size_t cap);
const struct domain_cordon *domain_cordon_of(const struct domain_view *v, int node);
/* Is the device of this id out of service: cordoned, bad, or not in the rack any more? */
bool domain_device_out(const struct domain_view *v, const char *device);

#endif

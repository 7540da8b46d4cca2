/* daemon/ctrl/domain.h - the rack that this daemon owns: its graph, paths and findings.
 *
 * `auto` is this machine as the probes see it; a built-in name, cpu:N, cpu:HxN or a file
 * is a rack that is emulated, and says so. A view is immutable and reference counted:
 * HTTP threads hold one while they answer, the control thread replaces it on SIGHUP. */
#ifndef CTRL_DOMAIN_H
#define CTRL_DOMAIN_H

#include <stdatomic.h>
#include <stdbool.h>

struct domain;
struct err;
struct findings;
struct graph;
struct paths;

struct domain_view {
    struct graph *graph;
    struct paths *paths;
    struct findings *findings;
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

/* The present view, NULL before the first load. Any thread; domain_put gives it back. */
struct domain_view *domain_get(struct domain *d);
void domain_put(struct domain_view *v); /* NULL allowed */
bool domain_emulated(struct domain *d);

#endif

/* daemon/ctrl/domain.c - loading, comparing and handing out the rack.
 *
 * A load builds a whole new view and only then takes the lock to swap it in, so that a
 * file that does not parse or a probe that fails leaves what is known as it is. Views
 * that differ only in their cordons share one rack. */
#include "daemon/ctrl/domain.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "topo/file.h"
#include "topo/finding.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/probe.h"
#include "topo/probe_child.h"
#include "topo/rack.h"

/* What a load made, shared by views. */
struct domain_rack {
    struct graph *graph, *before; /* before: the baseline, NULL none */
    struct paths *paths;
    char host[64];
    atomic_int refs;
};

struct domain {
    char *rack, *gpu;
    struct probe *probe;                              /* made once; control thread */
    struct domain_cordon cordons[DOMAIN_CORDONS_MAX]; /* control thread */
    int n_cordons;
    pthread_mutex_t lock;
    struct domain_view *view; /* by lock */
};

struct domain *domain_new(const char *rack, const char *gpu)
{
    struct domain *d = xcalloc(1, sizeof(*d));

    d->rack = xstrdup(rack);
    d->gpu = gpu && gpu[0] ? xstrdup(gpu) : NULL;
    pthread_mutex_init(&d->lock, NULL);
    return d;
}

void domain_free(struct domain *d)
{
    if (!d)
        return;
    domain_put(d->view);
    probe_free(d->probe);
    pthread_mutex_destroy(&d->lock);
    free(d->rack);
    free(d->gpu);
    free(d);
}

const char *domain_rack(const struct domain *d) { return d->rack; }

/* A regular file of at most TOPO_BYTES_MAX bytes, whole. */
static int read_file(const char *path, struct buf *out, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = -1;
    struct stat st;
    char chunk[65536];
    ssize_t n;

    if (fd < 0)
        return err_errno(e, ERR_NOTFOUND, "rack file '%s'", path);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        err_set(e, ERR_INVALID, "rack file '%s' is no regular file", path);
        goto out;
    }
    buf_init(out, TOPO_BYTES_MAX);
    while ((n = read(fd, chunk, sizeof(chunk))) > 0 && !out->over)
        buf_add(out, chunk, (size_t)n);
    if (n < 0)
        err_errno(e, ERR_IO, "rack file '%s'", path);
    else if (out->over)
        err_set(e, ERR_TOOBIG, "rack file '%s' is over %d MiB", path,
                TOPO_BYTES_MAX >> 20);
    else
        rc = 0;
    if (rc < 0)
        buf_done(out);
out:
    close(fd);
    return rc;
}

static double ram_bytes(void)
{
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

static int probe_machine(struct domain *d, struct graph **ret, struct err *e)
{
    const struct probe_cfg cfg = {
        .program = "/proc/self/exe", .sysfs = "/sys", .deadline_us = PROBE_DEADLINE_US};

    if (!d->probe && probe_new(&cfg, &d->probe, e) < 0)
        return -1;
    return probe_read(d->probe, ret, e);
}

static int build(struct domain *d, struct graph **ret, struct err *e)
{
    struct buf bytes;
    int rc;

    if (!strcmp(d->rack, "auto"))
        return probe_machine(d, ret, e);
    if (rack_is_builtin(d->rack) || !strncmp(d->rack, "cpu:", 4))
        return rack_build(d->rack, ram_bytes(), ret, e);
    if (read_file(d->rack, &bytes, e) < 0)
        return err_wrap(e,
                        "--rack takes auto, cpu:N, cpu:HxN, a built-in name or a file");
    rc = topo_load(bytes.p ? bytes.p : "", bytes.len, d->rack, d->gpu, ret, e);
    buf_done(&bytes);
    return rc;
}

struct told {
    domain_changed_fn fn;
    void *arg;
};

static void on_difference(void *arg, enum graph_change c, const char *what)
{
    const struct told *t = arg;

    (void)c; /* the line begins with it */
    t->fn(t->arg, what);
}

/* ---- views ---- */

static void rack_unref(struct domain_rack *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    paths_free(r->paths);
    graph_free(r->graph);
    graph_free(r->before);
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

/* Devices that `text` names: their count, the first in *ret. */
static int find_device(const struct graph *g, const char *text, int *ret)
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

/* Takes a reference of the rack over. */
static struct domain_view *view_new(const struct domain *d, struct domain_rack *r)
{
    struct domain_view *v = xcalloc(1, sizeof(*v));
    struct domain_cordon *c = xcalloc((size_t)d->n_cordons + 1, sizeof(*c));
    int *avoid = xcalloc((size_t)d->n_cordons + 1, sizeof(*avoid));

    atomic_init(&v->refs, 1);
    v->rack = r;
    v->graph = r->graph;
    v->paths = r->paths;
    v->findings = findings_new(r->graph, r->before, r->host);
    memcpy(c, d->cordons, (size_t)d->n_cordons * sizeof(*c));
    for (int i = 0; i < d->n_cordons; i++) {
        if (find_device(r->graph, c[i].device, &c[i].node) == 1)
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

static void swap_view(struct domain *d, struct domain_view *v)
{
    struct domain_view *old;

    pthread_mutex_lock(&d->lock);
    old = d->view;
    d->view = v;
    pthread_mutex_unlock(&d->lock);
    domain_put(old);
}

int domain_load(struct domain *d, const char *baseline_json, domain_changed_fn changed,
                void *arg, struct err *e)
{
    struct domain_rack *r = xcalloc(1, sizeof(*r));
    struct told told = {changed, arg};

    atomic_init(&r->refs, 1);
    if (baseline_json &&
        topo_from_json(baseline_json, strlen(baseline_json), &r->before, e) < 0) {
        err_wrap(e, "the rack as last recorded");
        goto fail;
    }
    if (build(d, &r->graph, e) < 0 || paths_new(r->graph, &r->paths, e) < 0)
        goto fail;
    gethostname(r->host, sizeof(r->host) - 1);
    if (r->before && changed)
        graph_diff(r->before, r->graph, on_difference, &told);
    swap_view(d, view_new(d, r));
    return 0;

fail:
    rack_unref(r);
    return -1;
}

/* ---- cordons ---- */

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
    int node = -1, n = find_device(d->view->graph, device, &node);
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

int domain_cordon(struct domain *d, const char *device, bool on, const char *reason,
                  const char *actor, struct err *e)
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
    if (!on)
        d->cordons[at] = d->cordons[--d->n_cordons];
    else
        d->cordons[at < 0 ? d->n_cordons++ : at] = c;
    atomic_fetch_add(&d->view->rack->refs, 1);
    swap_view(d, view_new(d, d->view->rack));
    return 1;
}

void domain_device_id(const struct domain_view *v, int node, char *ret, size_t cap)
{
    device_id(v->graph, node, ret, cap);
}

const struct domain_cordon *domain_cordon_of(const struct domain_view *v, int node)
{
    for (int i = 0; i < v->n_cordons; i++)
        if (v->cordons[i].node == node)
            return &v->cordons[i];
    return NULL;
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
    rack_unref(v->rack);
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

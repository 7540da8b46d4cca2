/* daemon/ctrl/domain.c - loading, comparing and handing out the rack.
 *
 * A load builds a whole new view and only then takes the lock to swap it in, so that a
 * file that does not parse or a probe that fails leaves what is known as it is. */
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
#include "base/err.h"
#include "base/mem.h"
#include "topo/file.h"
#include "topo/finding.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/probe.h"
#include "topo/probe_child.h"
#include "topo/rack.h"

struct domain {
    char *rack, *gpu;
    struct probe *probe; /* made once; control thread */
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

int domain_load(struct domain *d, const char *baseline_json, domain_changed_fn changed,
                void *arg, struct err *e)
{
    struct domain_view *v = xcalloc(1, sizeof(*v)), *old;
    struct graph *before = NULL;
    struct told told = {changed, arg};
    char host[64] = "";

    atomic_init(&v->refs, 1);
    if (baseline_json &&
        topo_from_json(baseline_json, strlen(baseline_json), &before, e) < 0) {
        err_wrap(e, "the rack as last recorded");
        goto fail;
    }
    if (build(d, &v->graph, e) < 0 || paths_new(v->graph, &v->paths, e) < 0)
        goto fail;
    gethostname(host, sizeof(host) - 1);
    v->findings = findings_new(v->graph, before, host);
    if (before && changed)
        graph_diff(before, v->graph, on_difference, &told);
    graph_free(before);

    pthread_mutex_lock(&d->lock);
    old = d->view;
    d->view = v;
    pthread_mutex_unlock(&d->lock);
    domain_put(old);
    return 0;

fail:
    graph_free(before);
    domain_put(v);
    return -1;
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
    paths_free(v->paths);
    graph_free(v->graph);
    free(v);
}

bool domain_emulated(struct domain *d)
{
    struct domain_view *v = domain_get(d);
    bool emulated = v && graph_emulated(v->graph);

    domain_put(v);
    return emulated;
}

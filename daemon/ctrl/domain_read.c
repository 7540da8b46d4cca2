/* daemon/ctrl/domain_read.c - the rack read beside the control thread, compared,
 * remembered.
 *
 *   reload --> reading (a thread: probes or a file, graph, paths) --> taken
 *                 ^                                                    |
 *                 +-- asked again meanwhile; a fabric that is not up --+
 *
 * A file that does not parse or a probe that fails leaves what is known as it is. */
#include "daemon/ctrl/domain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "daemon/ctrl/domain_impl.h"
#include "daemon/ctrl/side.h"
#include "state/inventory.h"
#include "state/store.h"
#include "topo/file.h"
#include "topo/graph.h"
#include "topo/nvlinks.h"
#include "topo/path.h"
#include "topo/probe.h"
#include "topo/probe_child.h"
#include "topo/rack.h"

#define LOAD_US (4 * PROBE_DEADLINE_US)
#define FABRIC_FIRST_US ((int64_t)5000000)
#define FABRIC_SELDOM_US ((int64_t)60000000)

/* What the reading thread owns. */
struct reading {
    char *rack, *gpu;
    struct probe *probe;
    struct graph *graph;
    struct paths *paths;
    struct nvlink_count *nvlinks;
    int n_nvlinks;
    int64_t nvlinks_us;
    bool failed;
    struct err why;
};

static void reading_free(void *arg)
{
    struct reading *r = arg;

    probe_free(r->probe);
    paths_free(r->paths);
    graph_free(r->graph);
    free(r->nvlinks);
    free(r->rack);
    free(r->gpu);
    free(r);
}

/* ---- on the other thread ---- */

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

static int probe_machine(struct reading *r, struct err *e)
{
    const struct probe_cfg cfg = {.program = "/proc/self/exe",
                                  .sysfs = "/sys",
                                  .dev = "/dev",
                                  .deadline_us = PROBE_DEADLINE_US};

    const struct nvlink_count *at;

    if (!r->probe && probe_new(&cfg, &r->probe, e) < 0)
        return -1;
    if (probe_read(r->probe, &r->graph, e) < 0)
        return -1;
    r->n_nvlinks = probe_nvlinks(r->probe, &at, &r->nvlinks_us);
    r->nvlinks = xcalloc((size_t)r->n_nvlinks + 1, sizeof(*r->nvlinks));
    for (int i = 0; i < r->n_nvlinks; i++)
        r->nvlinks[i] = at[i];
    return 0;
}

static int build(struct reading *r, struct err *e)
{
    struct buf bytes;
    int rc;

    if (!strcmp(r->rack, "auto"))
        return probe_machine(r, e);
    if (rack_is_builtin(r->rack))
        return rack_build(r->rack, ram_bytes(), &r->graph, e);
    if (read_file(r->rack, &bytes, e) < 0)
        return err_wrap(e,
                        "--rack takes auto, cpu:N, cpu:HxN, a built-in name or a file");
    rc = topo_load(bytes.p ? bytes.p : "", bytes.len, r->rack, r->gpu, &r->graph, e);
    buf_done(&bytes);
    return rc;
}

static void reading_run(void *arg)
{
    struct reading *r = arg;

    r->failed = build(r, &r->why) < 0 || paths_new(r->graph, &r->paths, &r->why) < 0;
}

/* ---- back on the control thread ---- */

static void on_difference(void *arg, enum graph_change c, const char *what)
{
    struct domain *d = arg;

    (void)c; /* the line begins with it */
    log_warn("rack: %s", what);
    domain_note(d, "daemon", "", "rack.changed", d->rack, "ok", what);
}

/* The graph as the last run recorded it, if it was of this rack. One that cannot be read
 * any more is none. */
static int read_recorded(struct domain *d, struct graph **ret, struct err *e)
{
    char *name = NULL, *json = NULL;
    int had = d->store ? inventory_rack(d->store, &name, &json, e) : 0;
    struct err why;

    if (had > 0 && !strcmp(name, d->rack) &&
        topo_from_json(json, strlen(json), ret, &why) < 0)
        log_warn("the rack as last recorded is not compared with: %s", why.msg);
    free(name);
    free(json);
    return had < 0 ? -1 : 0;
}

static char *json_of(const struct graph *g)
{
    struct buf json;

    buf_init(&json, 0);
    topo_to_json(g, NULL, &json);
    return json.p;
}

static void count_lost(void *arg, enum graph_change c, const char *what)
{
    *(int *)arg += c == GRAPH_LOST && !strncmp(what, "lost device ", 12);
}

/* What findings compare with. The first reading's is what the last run recorded; a later
 * one's is the reading before it, unless a device was missing then: that stays a finding
 * until it is back or the daemon starts anew. */
static int next_baseline(struct domain *d, const struct graph *g, struct err *e)
{
    struct graph *next = NULL;
    int lost = 0;

    if (!d->view) {
        if (read_recorded(d, &d->baseline, e) < 0)
            return -1;
    } else if (d->next_baseline) {
        if (topo_from_json(d->next_baseline, strlen(d->next_baseline), &next, e) < 0)
            return -1;
        graph_free(d->baseline);
        d->baseline = next;
    }
    free(d->next_baseline);
    d->next_baseline = NULL;
    if (d->baseline)
        graph_diff(d->baseline, g, count_lost, &lost);
    if (!lost)
        d->next_baseline = json_of(g);
    return 0;
}

/* Remember the rack as it is now: the next start compares with it. */
static int record(struct domain *d, const struct graph *g, struct err *e)
{
    char *json;
    int rc;

    if (!d->store)
        return 0;
    json = json_of(g);
    rc = inventory_put_rack(d->store, d->rack, json, e);
    free(json);
    return rc;
}

static int start_reading(struct domain *d, struct err *e);
static void failed(struct domain *d, const struct err *why);

static void on_fabric(void *arg) { domain_reload(arg, "a GPU is not in its fabric yet"); }

/* Devices whose registration in the fabric has not ended are looked at again. */
static void watch_fabric(struct domain *d, const struct graph *g)
{
    int64_t now = clock_now_us(clock_real());
    int waiting = 0;
    char text[160];

    for (int i = 0; i < graph_n_nodes(g); i++)
        waiting += graph_node(g, i)->fabric == FABRIC_IS_NOT_STARTED ||
                   graph_node(g, i)->fabric == FABRIC_IS_IN_PROGRESS;
    if (!waiting || graph_emulated(g)) {
        d->fabric_since_us = 0;
        return;
    }
    if (!d->fabric_since_us) {
        d->fabric_since_us = now;
        d->fabric_step_us = FABRIC_FIRST_US;
    }
    if (now - d->fabric_since_us > DOMAIN_FABRIC_S * (int64_t)1000000) {
        snprintf(
            text, sizeof(text),
            "%d GPUs are still not in their fabric after %d s: they are used without "
            "NVLink; SIGHUP looks again",
            waiting, DOMAIN_FABRIC_S);
        log_error("%s", text);
        domain_note(d, "daemon", "", "rack.fabric", d->rack, "failed", text);
        return;
    }
    if (!d->fabric)
        d->fabric = loop_timer_new(d->loop, on_fabric, d);
    loop_timer_set(d->fabric, now + d->fabric_step_us);
    if (d->fabric_step_us < FABRIC_SELDOM_US)
        d->fabric_step_us *= 2;
}

static void on_check(void *arg)
{
    struct domain *d = arg;
    struct err e = {0};

    if (side_busy(d->reader))
        return; /* its end arms the timer again */
    if (start_reading(d, &e) < 0)
        failed(d, &e);
}

/* The health of GPUs is telemetry: their driver is asked again and again. */
static void watch_health(struct domain *d)
{
    const struct graph *g = d->view ? d->view->graph : NULL;
    int gpus = 0;

    for (int i = 0; g && !graph_emulated(g) && i < graph_n_nodes(g); i++)
        gpus += graph_node(g, i)->kind == NODE_DEVICE && !graph_node(g, i)->is_cpu;
    if (!gpus || !d->check_s)
        return;
    if (!d->check)
        d->check = loop_timer_new(d->loop, on_check, d);
    loop_timer_set(d->check, clock_now_us(clock_real()) + d->check_s * 1000000);
}

static int take(struct domain *d, struct reading *in, struct err *e)
{
    struct domain_rack *r;
    const struct graph *before;

    if (in->failed) {
        *e = in->why;
        return -1;
    }
    if (next_baseline(d, in->graph, e) < 0 || record(d, in->graph, e) < 0)
        return -1;
    r = xcalloc(1, sizeof(*r));
    atomic_init(&r->refs, 1);
    r->graph = in->graph;
    r->paths = in->paths;
    in->graph = NULL;
    in->paths = NULL;
    r->n_measured = domain_lay_figures(d, r->graph, r->paths);
    r->n_nvlinks = in->n_nvlinks;
    r->nvlinks = in->nvlinks;
    r->nvlinks_us = in->nvlinks_us;
    in->nvlinks = NULL;
    gethostname(r->host, sizeof(r->host) - 1);
    before = d->view ? d->view->graph : d->baseline;
    if (before)
        graph_diff(before, r->graph, on_difference, d);
    domain_show(d, r);
    watch_fabric(d, r->graph);
    return 0;
}

static void failed(struct domain *d, const struct err *why)
{
    if (d->loading) {
        d->load_err = *why;
        return;
    }
    log_error("%s; what was known of the rack stays", why->msg);
    domain_note(d, "daemon", "", "rack.load", d->rack, "failed", why->msg);
    if (d->news)
        d->news(d->arg, why);
}

static void reading_done(void *arg, void *job)
{
    struct domain *d = arg;
    struct reading *r = job;
    struct err e = {0};

    d->probe = r->probe;
    r->probe = NULL;
    if (take(d, r, &e) < 0)
        failed(d, &e);
    watch_health(d);
    if (d->again) {
        d->again = false;
        domain_reload(d, "it was asked for meanwhile");
    }
}

static int start_reading(struct domain *d, struct err *e)
{
    struct reading *r = xcalloc(1, sizeof(*r));
    const struct side_job j = {.run = reading_run,
                               .done = reading_done,
                               .free = reading_free,
                               .arg = d,
                               .job = r};

    r->rack = xstrdup(d->rack);
    r->gpu = d->gpu ? xstrdup(d->gpu) : NULL;
    r->probe = d->probe;
    d->probe = NULL;
    if (side_start(d->reader, &j, e) == 0)
        return 0;
    d->probe = r->probe;
    r->probe = NULL;
    reading_free(r);
    return err_wrap(e, "the rack is not read");
}

int domain_load(struct domain *d, struct err *e)
{
    int rc;

    d->load_err = (struct err){0};
    d->loading = true;
    rc = start_reading(d, e);
    if (rc == 0 && side_wait(d->reader, LOAD_US, e) < 0)
        rc = err_wrap(e, "the rack could not be read");
    d->loading = false;
    if (rc == 0 && d->load_err.code) {
        *e = d->load_err;
        rc = -1;
    }
    return rc;
}

void domain_reload(struct domain *d, const char *why)
{
    struct err e = {0};

    if (side_busy(d->reader)) {
        d->again = true;
        return;
    }
    log_info("the rack is read again: %s", why);
    if (start_reading(d, &e) < 0)
        failed(d, &e);
}

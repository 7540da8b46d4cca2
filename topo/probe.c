/* topo/probe.c - see probe.h: runs the probes; probe_merge.c joins what they say. */
#include "topo/probe.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/mem.h"
#include "topo/graph.h"
#include "topo/nvlinks.h"
#include "topo/nvml_report.h"
#include "topo/probe_child.h"
#include "topo/probe_net.h"
#include "topo/probe_pci.h"

enum { END_US = 1000000 };

struct probe {
    struct probe_cfg cfg;
    struct loop *loop;
    struct probe_child *child;
    /* of the question that is open */
    bool done;
    struct nvml_report *nvml;
    struct err why;
    /* of the last reading */
    struct nvlink_count *nvlinks;
    int n_nvlinks;
    int64_t read_us, span_us; /* when, 0 = never; since the one before it */
};

static char *const helper_args[] = {"--probe", "nvml", NULL};

static void on_answer(void *arg, const char *line, size_t n, const struct err *e)
{
    struct probe *p = arg;

    p->done = true;
    if (e)
        p->why = *e;
    else
        nvml_report_read(line, n, &p->nvml, &p->why);
}

int probe_new(const struct probe_cfg *cfg, struct probe **ret, struct err *e)
{
    struct probe_child_cfg c = {.program = cfg->program,
                                .args = helper_args,
                                .deadline_us = cfg->deadline_us,
                                .kill_signal = SIGKILL};
    struct probe *p = xcalloc(1, sizeof(*p));

    p->cfg = *cfg;
    if (cfg->program) {
        if (loop_new(&p->loop, e) < 0) {
            free(p);
            return -1;
        }
        p->child = probe_child_new(p->loop, &c, on_answer, p);
    }
    *ret = p;
    return 0;
}

void probe_free(struct probe *p)
{
    if (!p)
        return;
    probe_child_free(p->child);
    loop_free(p->loop);
    free(p->nvlinks);
    free(p);
}

/* Ends the helper, by its own exit where it can. One that stays is killed, and found
 * again (gone or not) at the next reading. */
static void end_helper(struct probe *p)
{
    int64_t until = clock_now_us(clock_real()) + END_US;

    probe_child_end(p->child, false);
    while (probe_child_pid(p->child) && clock_now_us(clock_real()) < until)
        if (loop_once(p->loop, until, NULL) < 0)
            break;
    probe_child_end(p->child, true);
}

/* p->nvml, or the reason in p->why. */
static void ask_nvml(struct probe *p)
{
    int64_t until = clock_now_us(clock_real()) + p->cfg.deadline_us + END_US;

    p->done = false;
    p->nvml = NULL;
    err_clear(&p->why);
    if (!p->child) {
        err_set(&p->why, ERR_UNAVAIL, "NVML was not asked");
        return;
    }
    loop_once(p->loop, 0, NULL); /* the end of an earlier helper is noticed here */
    if (probe_child_ask(p->child, &p->why) < 0)
        return;
    while (!p->done && clock_now_us(clock_real()) < until)
        if (loop_once(p->loop, until, &p->why) < 0)
            break;
    end_helper(p);
}

/* Memory is exported to other hosts through a channel device, which the administrator
 * makes and the IMEX daemon serves. Which domain it belongs to no file says. */
static int look_for_imex(const char *dev)
{
    char path[512];
    struct dirent *x;
    DIR *d;
    int found = IMEX_IS_ABSENT;

    if (!dev)
        return IMEX_IS_UNKNOWN;
    snprintf(path, sizeof(path), "%s/nvidia-caps-imex-channels", dev);
    d = opendir(path);
    while (d && (x = readdir(d)))
        if (!strncmp(x->d_name, "channel", strlen("channel")))
            found = IMEX_IS_READY;
    if (d)
        closedir(d);
    return found;
}

static void count_nvlinks(struct probe *p)
{
    struct nvlink_count *now;
    int64_t at = clock_now_us(clock_real());
    int n = nvlinks_of(p->nvml, &now);

    p->span_us = p->read_us ? at - p->read_us : 0;
    nvlinks_rate(now, n, p->nvlinks, p->n_nvlinks, p->span_us);
    free(p->nvlinks);
    p->nvlinks = now;
    p->n_nvlinks = n;
    p->read_us = at;
}

int probe_nvlinks(const struct probe *p, const struct nvlink_count **ret, int64_t *ret_us)
{
    *ret = p->nvlinks;
    *ret_us = p->span_us;
    return p->n_nvlinks;
}

int probe_read(struct probe *p, struct graph **ret, struct err *e)
{
    struct pci_report *pci = NULL;
    struct net_report *net = NULL;
    char why[600] = "";
    int rc = -1;

    ask_nvml(p);
    if (p->why.code)
        snprintf(why, sizeof(why), "%s", p->why.msg);
    count_nvlinks(p);
    if (probe_pci_read(p->cfg.hwloc_xml, p->cfg.sysfs, &pci, e) < 0)
        goto out;
    probe_net_read(p->cfg.sysfs, &net);
    rc = probe_merge(pci, p->nvml, why, net, look_for_imex(p->cfg.dev), ret, e);
out:
    nvml_report_free(p->nvml);
    p->nvml = NULL;
    net_report_free(net);
    pci_report_free(pci);
    return rc;
}

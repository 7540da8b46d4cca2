/* daemon/app_rack.c - the rack that the daemon owns: its first reading, and news of it.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "daemon/api/http.h"
#include "daemon/app_impl.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/linkwatch.h"
#include "daemon/options.h"
#include "daemon/serve/metrics.h"
#include "daemon/service.h"
#include "topo/net_watch.h"

/* Also after a cordon or a measurement; a failed reading was said already. */
static void on_rack_news(void *arg, const struct err *why)
{
    struct app *a = arg;

    if (!why)
        metric_set(a->page, M_EMULATED, 0, domain_emulated(a->domain));
    if (a->reloading)
        service_reload(a->service, false);
    a->reloading = false;
}

static void on_nic(void *arg, enum net_change c, const char *name, const char *what)
{
    struct app *a = arg;

    log_info("%s", what);
    app_note(a, "nic.changed", name, c == NET_WENT_DOWN || c == NET_LEFT ? "down" : "ok",
             what);
    domain_reload(a->domain, what);
}

/* NICs of this machine matter to a rack that is this machine. */
static int watch_nics(struct app *a, const char *rack, struct err *e)
{
    if (strcmp(rack, "auto"))
        return 0;
    if (net_watch_new(a->loop, on_nic, a, &a->nics, e) < 0)
        return -1;
    if (net_watch_rdma(a->nics) == NET_RDMA_POLLED)
        log_info("this kernel does not report RDMA devices that come and go: they are "
                 "looked at twice a second");
    return 0;
}

int app_start_rack(struct app *a, struct err *e)
{
    struct conf *conf = confmgr_conf(a->confmgr);
    const struct domain_cfg c = {.rack = conf->rack,
                                 .gpu = conf->rack_gpu,
                                 .check_s = conf->rack_check_s,
                                 .loop = a->loop,
                                 .store = a->store,
                                 .news = on_rack_news,
                                 .arg = a};
    int rc = metric_page_new(metrics_defs, METRICS_N, NULL, &a->page, e);

    if (rc == 0)
        rc = domain_new(&c, &a->domain, e);
    if (rc == 0)
        rc = domain_load(a->domain, e);
    if (rc == 0)
        rc = watch_nics(a, conf->rack, e);
    conf_unref(conf);
    return rc;
}

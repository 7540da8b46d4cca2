/* daemon/app_impl.h - what app.c and app_rack.c share. Not for others. */
#ifndef DAEMON_APP_IMPL_H
#define DAEMON_APP_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/app.h"
#include "daemon/ctrl/apply.h"
#include "daemon/ctrl/chores.h"
#include "daemon/ctrl/conf.h"

struct err;
struct loop_timer;

enum { OVERRIDES_MAX = 96 };

struct app {
    const struct daemon_opts *opts;
    char *socket, *engine, *models_dir;
    struct conf_override over[OVERRIDES_MAX];
    int n_over;
    int64_t start_us;

    struct loop *loop;
    struct store *store;
    struct confmgr *confmgr;
    struct apply apply; /* its decisions */
    struct domain *domain;
    struct net_watch *nics; /* NULL for an emulated rack */
    struct metric_page *page;
    struct router *router;
    struct fleet *fleet;
    struct alarms *alarms;
    struct slo *slo;
    struct chores chores;
    struct experts *experts;
    struct access *access;
    struct http *http;
    struct service *service; /* what the service manager hears */
    int socket_fd;           /* that it opened for us, 0 */

    struct loop_timer *drain, *tick;
    int64_t drain_until_us; /* 0 = not draining */
    bool told, reloading;
};

/* Into the journal, by the daemon. */
void app_note(struct app *a, const char *what, const char *subject, const char *result,
              const char *detail);
/* app_rack.c */
int app_start_rack(struct app *a, struct err *e);

#endif

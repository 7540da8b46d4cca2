/* daemon/app.c - llmrackd: start order, what passes between its parts, stop in reverse.
 *
 *   loop and signals, store (takes the folder), configuration, rack, router, fleet,
 *   access, HTTP; then the configuration is applied, which starts engines
 *
 * SIGTERM or SIGINT drains: no new requests, running ones go on up to limits.drain_s; a
 * second signal ends the wait. SIGHUP reads certificates and the rack again, never the
 * configuration: a terminal that goes away is no reason to stop, and what is configured
 * is in the store. Without a model the daemon runs all the same, to be told one. */
#include "daemon/app.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/systemd.h"
#include "daemon/api/access.h"
#include "daemon/app_impl.h"
#include "daemon/api/http.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/apply.h"
#include "daemon/ctrl/chores.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/confmgr.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/experts.h"
#include "daemon/ctrl/fleet.h"
#include "daemon/ctrl/linkwatch.h"
#include "daemon/ctrl/modelpath.h"
#include "daemon/ctrl/quality.h"
#include "daemon/ctrl/router_ctl.h"
#include "daemon/ctrl/slo.h"
#include "daemon/ctrl/system.h"
#include "daemon/options.h"
#include "daemon/place.h"
#include "daemon/serve/map.h"
#include "daemon/serve/metrics.h"
#include "daemon/service.h"
#include "state/revision.h"
#include "state/store.h"
#include "topo/net_watch.h"

enum {
    DRAIN_TICK_US = 50000,
    TICK_US = 1000000,
    START_US = 120000000 /* a schema upgrade, a slow probe */
};

void app_note(struct app *a, const char *what, const char *subject, const char *result,
              const char *detail)
{
    struct err e;

    if (journal_add(a->store, "daemon", what, subject, result, &e, "%s", detail) < 0)
        log_error("the journal lacks '%s %s': %s", what, result, e.msg);
}

/* ---- the configuration in force ---- */

/* Values that change in place; the fleet sees to the engines. */
static void on_runs(void *arg, const struct conf *c, int64_t revision)
{
    struct app *a = arg;
    int level = log_level_parse(c->log_level);

    if (level >= 0)
        log_level_set((enum log_level)level);
    access_set_conf(a->access, c);
    slo_set_conf(a->slo, c, revision);
    http_set_conf(a->http, c);
}

static int check_conf(void *arg, const struct conf *c, struct err *e)
{
    struct app *a = arg;
    struct conf *runs = confmgr_conf(a->confmgr);
    int rc = modelpath_check_all(c, runs, a->over, a->n_over, e);

    conf_unref(runs);
    if (rc < 0 || quality_check(a->store, c, LLMRACK_VERSION, e) < 0)
        return -1;
    return http_check_conf(a->http, c, e);
}

static void on_alarm(void *arg, const struct alarm_status *s)
{
    struct app *a = arg;

    app_note(a, s->ended_ms ? "alarm.clear" : "alarm.raise", s->id,
             alarm_severity_name(s->severity), s->text);
    http_on_alarm(a->http, s);
}

static void on_journal(void *arg, const struct journal_row *r)
{
    struct app *a = arg;

    /* the hash outside the store, so that a journal cut off in there shows; what we do by
     * ourselves has lines of its own at info */
    log_about(strcmp(r->actor, "daemon") ? LOG_LV_INFO : LOG_LV_DEBUG,
              &(struct log_about){.revision = r->revision, .head = r->hash},
              "journal row %lld: %s %s %s, by %s, hash %s", (long long)r->id, r->what,
              r->subject, r->result, r->actor, r->hash);
    http_on_journal(a->http, r);
}

/* Deadlines and guard; at least once a second, since a request may have set one. */
static void on_tick(void *arg)
{
    struct app *a = arg;
    int64_t now = clock_now_us(clock_real()), at = confmgr_tick(a->confmgr, now),
            due = -1;

    chores_tick(&a->chores, now, clock_wall_ms());
    if (a->experts)
        due = experts_tick(a->experts, now);
    if (due >= 0 && (at < 0 || due < at))
        at = due;
    if (at < 0 || at > now + TICK_US)
        at = now + TICK_US;
    loop_timer_set(a->tick, at);
}

/* The file of --config is read for an empty store only: later it may be gone. */
static int start_conf(struct app *a, struct err *e)
{
    struct confmgr_cfg c = {
        .store = a->store,
        .clock = clock_real(),
        .over = a->over,
        .n_over = a->n_over,
        .ops = apply_ops(&a->apply),
    };
    char boot[40], *seed = NULL;
    struct rev_point stored;
    struct buf sample;
    int rc;

    if (rev_point_get(a->store, &stored, e) < 0)
        return -1;
    if (!stored.good && a->opts->config[0] &&
        !(seed = place_read_conf(a->opts->config, e)))
        return -1;
    buf_init(&sample, 0);
    conf_sample(&sample); /* without models */
    system_boot_id(boot);
    c.boot_id = boot;
    c.seed = seed ? seed : sample.p;
    rc = confmgr_new(&c, &a->confmgr, e);
    buf_done(&sample);
    free(seed);
    return rc;
}

/* ---- engines ---- */

/* The host part of an address, and one that a client on this machine can name. */
static void listen_host(const char *address, bool reach, char *ret, size_t cap)
{
    const char *colon = strrchr(address, ':');

    snprintf(ret, cap, "%.*s", colon ? (int)(colon - address) : 0, address);
    if (reach && !strcmp(ret, "0.0.0.0"))
        snprintf(ret, cap, "127.0.0.1");
    else if (reach && !strcmp(ret, "[::]"))
        snprintf(ret, cap, "[::1]");
}

/* How to ask it, once. */
static void tell(struct app *a, const struct served *m)
{
    bool chat = m->chat != TEMPLATE_NONE;
    struct conf *c = confmgr_conf(a->confmgr);
    char host[256];

    listen_host(c->listen.address, true, host, sizeof(host));
    if (http_port(a->http))
        printf("'%s' answers: curl http%s://%s:%d/v1/%s -H 'Content-Type: "
               "application/json' -d '%s'\n",
               m->name, c->listen.tls_cert[0] ? "s" : "", host, http_port(a->http),
               chat ? "chat/completions" : "completions",
               chat ? "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}"
                    : "{\"prompt\":\"Hello\"}");
    else
        printf("'%s' answers: llmctl --socket %s chat\n", m->name, a->socket);
    fflush(stdout);
    conf_unref(c);
}

static void on_ready(void *arg, const char *instance)
{
    struct app *a = arg;
    const struct served *m[CONF_MAX_NAMES];
    int n;

    if (a->told || !a->http)
        return;
    n = router_models(a->router, m, CONF_MAX_NAMES);
    for (int i = 0; i < n; i++) {
        if (!a->told && !strcmp(m[i]->instance, instance)) {
            a->told = true;
            tell(a, m[i]);
        }
        router_unref(a->router, m[i]);
    }
}

static void on_trouble(void *arg, const char *instance, enum alarm_engine kind,
                       const char *why)
{
    struct app *a = arg;

    alarm_engine(a->alarms, kind, instance, why);
}

static int start_fleet(struct app *a, struct err *e)
{
    struct fleet_cfg c = {
        .loop = a->loop,
        .store = a->store,
        .domain = a->domain,
        .program = a->engine,
        .ready = on_ready,
        .trouble = on_trouble,
        .arg = a,
    };

    if (router_new(a->page, &a->router, e) < 0)
        return -1;
    a->chores.router = a->router;
    a->chores.domain = a->domain;
    a->chores.page = a->page;
    c.router = a->router;
    c.page = a->page;
    if (experts_new(a->loop, a->store, a->page, &a->experts, e) < 0)
        return -1;
    c.experts = a->experts;
    if (fleet_new(&c, &a->fleet, e) < 0)
        return -1;
    a->apply = (struct apply){.fleet = a->fleet,
                              .slo = a->slo,
                              .router = a->router,
                              .alarms = a->alarms,
                              .check = check_conf,
                              .runs = on_runs,
                              .arg = a};
    return 0;
}

/* ---- signals ---- */

static int64_t drain_s(struct app *a)
{
    struct conf *c = confmgr_conf(a->confmgr);
    int64_t s = c->limits.drain_s;

    conf_unref(c);
    return s;
}

static void on_drain_tick(void *arg)
{
    struct app *a = arg;
    int64_t now = clock_now_us(clock_real());
    int live = router_live(a->router), open = http_active(a->http);

    if (live == 0 && open == 0) {
        loop_stop(a->loop);
    } else if (now >= a->drain_until_us) {
        log_warn("%d requests are ended, %lld s after the stop was asked for",
                 live > open ? live : open, (long long)drain_s(a));
        loop_stop(a->loop);
    } else {
        loop_timer_set(a->drain, now + DRAIN_TICK_US);
    }
}

static void on_stop_signal(void *arg, int signo)
{
    struct app *a = arg;

    if (a->drain_until_us || !a->http) {
        loop_stop(a->loop);
        return;
    }
    log_info("%s: no new requests; %d running", strsignal(signo), router_live(a->router));
    app_note(a, "daemon.drain", "", "ok", strsignal(signo));
    a->drain_until_us = clock_now_us(clock_real()) + drain_s(a) * 1000000;
    service_stopping(a->service, drain_s(a) * 1000000);
    http_drain(a->http);
    fleet_drain(a->fleet);
    on_drain_tick(a);
}

static void on_hangup_signal(void *arg, int signo)
{
    struct app *a = arg;
    struct err e;

    log_info("%s: certificates and the rack are read again", strsignal(signo));
    if (a->http && http_reload_tls(a->http, &e) < 0)
        log_error("%s; the certificate that was in use stays", e.msg);
    if (a->access)
        access_find_groups(a->access);
    if (!a->domain)
        return;
    service_reload(a->service, true); /* until the rack was read */
    a->reloading = true;
    domain_reload(a->domain, strsignal(signo));
}

/* ---- the service manager ---- */

static bool is_alive(void *arg)
{
    struct app *a = arg;

    return !a->http || http_alive(a->http);
}

static bool status_line(void *arg, char *text, size_t cap)
{
    struct app *a = arg;

    return service_line(a->router, a->drain_until_us != 0, text, cap);
}

static int start_service(struct app *a, struct err *e)
{
    const struct service_cfg c = {
        .loop = a->loop, .alive = is_alive, .status = status_line, .arg = a};

    service_starting(START_US);
    a->service = service_new(&c);
    return systemd_listen(&a->socket_fd, e) < 0 ? -1 : 0;
}

/* ---- start and stop ---- */

struct app *app_new(const struct daemon_opts *o)
{
    struct app *a = xcalloc(1, sizeof(*a));

    a->opts = o;
    a->socket =
        o->socket[0] ? xstrdup(o->socket) : xasprintf("%s/llmrackd.sock", o->state_dir);
    a->engine = o->engine[0] ? xstrdup(o->engine) : place_beside("llmrack-engine");
    a->models_dir = o->models_dir[0] ? xstrdup(o->models_dir) : place_models_dir();
    a->start_us = clock_now_us(clock_real());
    return a;
}

static int start_loop(struct app *a, struct err *e)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes is a write that fails */
    map_sigbus_survive();     /* a model's file cut short is the engine's end, not ours */
    if (loop_new(&a->loop, e) < 0 ||
        loop_signal(a->loop, SIGTERM, on_stop_signal, a, e) < 0 ||
        loop_signal(a->loop, SIGINT, on_stop_signal, a, e) < 0 ||
        loop_signal(a->loop, SIGHUP, on_hangup_signal, a, e) < 0)
        return -1;
    a->drain = loop_timer_new(a->loop, on_drain_tick, a);
    a->tick = loop_timer_new(a->loop, on_tick, a);
    return 0;
}

/* With the values of the command line, which are part of what runs. */
static int start_store(struct app *a, struct err *e)
{
    struct buf over;
    int n = options_overrides(a->opts, a->over, OVERRIDES_MAX, e), rc;

    if (n < 0)
        return -1;
    a->n_over = n;
    if (store_open(a->opts->state_dir, &a->store, e) < 0)
        return -1;
    a->alarms = alarms_new(on_alarm, a);
    a->slo = slo_new();
    a->chores = (struct chores){.slo = a->slo,
                                .store = a->store,
                                .alarms = a->alarms,
                                .links = linkwatch_new(a->alarms)};
    journal_listen(a->store, on_journal, a);
    buf_init(&over, 0);
    for (int i = 0; i < n; i++)
        buf_printf(&over, " %s=%s", a->over[i].path, a->over[i].value);
    rc = journal_add(a->store, "daemon", "daemon.start", "", "ok", e,
                     "llmrackd %s, process %d%s%s", LLMRACK_VERSION, (int)getpid(),
                     n ? ", for this run:" : "", over.len ? over.p : "");
    buf_done(&over);
    return rc;
}

static int start_http(struct app *a, struct err *e)
{
    struct conf *conf = confmgr_conf(a->confmgr);
    int cpus = system_cpus(), threads = cpus < 8 ? 2 : cpus < 32 ? cpus / 4 : 8, rc;
    struct http_cfg c = {
        .conf = conf,
        .socket_path = a->socket,
        .socket_fd = a->socket_fd,
        .n_threads = threads,
        .n_workers = threads,
        .version = LLMRACK_VERSION,
        .schema = store_schema_version(a->store),
        .start_us = a->start_us,
        .state_dir = a->opts->state_dir,
        .models_dir = a->models_dir,
        .domain = a->domain,
        .loop = a->loop,
        .access = a->access,
        .alarms = a->alarms,
        .confmgr = a->confmgr,
        .experts = a->experts,
        .fleet = a->fleet,
        .links = a->chores.links,
        .slo = a->slo,
        .store = a->store,
    };

    access_set_conf(a->access, conf);
    rc = http_start(&c, a->router, a->page, &a->http, e);
    conf_unref(conf);
    return rc;
}

static void say_where(struct app *a)
{
    struct conf *c = confmgr_conf(a->confmgr);
    char host[256];

    listen_host(c->listen.address, false, host, sizeof(host));
    if (http_port(a->http))
        printf("llmrackd %s listens on http%s://%s:%d, control socket %s\n",
               LLMRACK_VERSION, c->listen.tls_cert[0] ? "s" : "", host,
               http_port(a->http), a->socket);
    else
        printf("llmrackd %s listens on the control socket %s\n", LLMRACK_VERSION,
               a->socket);
    fflush(stdout);
    conf_unref(c);
}

int app_start(struct app *a, struct err *e)
{
    if (start_loop(a, e) < 0 || start_service(a, e) < 0 || start_store(a, e) < 0 ||
        start_conf(a, e) < 0 || app_start_rack(a, e) < 0 || start_fleet(a, e) < 0 ||
        access_new(a->store, &a->access, e) < 0 || start_http(a, e) < 0)
        return -1;
    say_where(a);
    service_ready(a->service);
    if (confmgr_start(a->confmgr, e) < 0)
        return -1;
    on_tick(a);
    return 0;
}

int app_run(struct app *a, struct err *e) { return loop_run(a->loop, e); }

static void stop_engines(struct app *a)
{
    struct err e;

    if (a->fleet)
        fleet_stop(a->fleet);
    while (a->fleet && !fleet_stopped(a->fleet) && loop_once(a->loop, -1, &e) == 0)
        continue;
    fleet_free(a->fleet);
    experts_free(a->experts);
    a->fleet = NULL;
    a->experts = NULL;
}

void app_free(struct app *a, int code)
{
    char detail[32];

    loop_timer_free(a->drain);
    loop_timer_free(a->tick);
    net_watch_free(a->nics);
    http_stop(a->http);
    a->http = NULL;
    stop_engines(a);
    service_free(a->service);
    a->service = NULL;
    access_free(a->access);
    router_free(a->router);
    confmgr_free(a->confmgr);
    snprintf(detail, sizeof(detail), "exit code %d", code);
    if (a->store) {
        app_note(a, "daemon.stop", "", code ? "failed" : "ok", detail);
        chores_end(&a->chores, clock_now_us(clock_real()), clock_wall_ms());
    }
    domain_free(a->domain);
    metric_page_free(a->page);
    linkwatch_free(a->chores.links);
    alarms_free(a->alarms);
    slo_free(a->slo);
    store_close(a->store);
    loop_free(a->loop);
    options_overrides_free(a->over, a->n_over);
    free(a->socket);
    free(a->engine);
    free(a->models_dir);
    free(a);
}

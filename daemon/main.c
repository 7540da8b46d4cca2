/* daemon/main.c - llmrackd: options, start order, stop in exact reverse.
 *
 *   loop and signals, store (takes the folder), metric pages, router, supervisor, HTTP
 *
 * SIGTERM or SIGINT drains: no new requests, running ones go on up to --drain-s; a second
 * signal ends the wait. SIGHUP reads the rack again and changes nothing else: a terminal
 * that goes away is no reason to stop. The main thread is the control thread: it owns the
 * loop, the store and the engine, and runs the sinks of HTTP. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/api/access.h"
#include "daemon/api/http.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/router_ctl.h"
#include "daemon/ctrl/supervisor.h"
#include "daemon/ctrl/system.h"
#include "daemon/ctrl/target.h"
#include "daemon/options.h"
#include "daemon/print.h"
#include "daemon/serve/map.h"
#include "daemon/serve/metrics.h"
#include "state/store.h"
#include "topo/net_watch.h"
#include "topo/probe_nvml.h"

enum {
    ARGS_MAX = 64,
    DRAIN_TICK_US = 50000,
    IDLE_S = 75,
    STUCK_COLOCATED = 30 /* times: a step there may be a whole prompt */
};

struct app {
    struct daemon_opts opts;
    char *socket, *engine, *models_dir, *args[ARGS_MAX];
    int n_args;
    struct buf options; /* as JSON, for the journal and the inventory */
    struct domain *domain;
    struct net_watch *nics; /* NULL for an emulated rack */
    int64_t start_us;

    struct loop *loop;
    struct store *store;
    struct metric_page *page;
    int engine_page_fd;
    struct router *router;
    struct target *target;
    struct supervisor *sup;
    struct access *access;
    struct http *http;

    struct loop_timer *drain;
    int64_t drain_until_us; /* 0 = not draining */
    bool told;
};

/* ---- options ---- */

/* 0 go on, 1 done, -1. */
static int read_options(struct app *a, int argc, char **argv, struct err *e)
{
    struct daemon_opts *o = &a->opts;
    int rest, level;

    if (opt_parse(daemon_opt_defs, n_daemon_opt_defs, argc, argv, o, &rest, e) < 0)
        return -1;
    if (print_asked(o) || o->probe)
        return 1;
    if (rest < argc)
        return err_set(e, ERR_INVALID, "'%s' is no option; --help lists them",
                       argv[rest]);
    if (!o->inst.model || !o->inst.model[0])
        return err_param(e, ERR_INVALID, "model",
                         "which model? --model takes a .gguf file or a folder");
    level = log_level_parse(o->log_level);
    if (level < 0)
        return err_param(e, ERR_INVALID, "log-level",
                         "--log-level is '%s' and must be one of error|warn|info|debug",
                         o->log_level);
    log_level_set((enum log_level)level);
    return 0;
}

/* A path relative to the folder of our own program. */
static char *beside(const char *rest)
{
    char self[PATH_MAX], *slash;
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    return xasprintf("%.*s/%s", slash ? (int)(slash - self) : 0, self, rest);
}

/* Published shapes: installed, or in the source tree. */
static char *models_dir(void)
{
    char *installed = beside("../share/llmrack/models");

    if (access(installed, R_OK) == 0)
        return installed;
    free(installed);
    return beside("../etc/models");
}

static void derive_options(struct app *a)
{
    const struct daemon_opts *o = &a->opts;
    struct jw w;

    a->socket =
        o->socket[0] ? xstrdup(o->socket) : xasprintf("%s/llmrackd.sock", o->state_dir);
    a->engine = o->engine[0] ? xstrdup(o->engine) : beside("llmrack-engine");
    a->models_dir = o->models_dir[0] ? xstrdup(o->models_dir) : models_dir();
    a->n_args = options_instance_argv(&o->inst, a->args, ARGS_MAX);
    buf_init(&a->options, 0);
    jw_init(&w, &a->options);
    jw_arr(&w);
    for (int i = 0; i < a->n_args; i++)
        if (strncmp(a->args[i], "--model=", 8)) /* stands in the model's own row */
            jw_str(&w, a->args[i]);
    jw_arr_end(&w);
}

/* ---- callbacks of the control thread ---- */

/* The host part of --listen, and one that a client on this machine can name. */
static void listen_host(const struct app *a, bool reach, char *ret, size_t cap)
{
    const char *colon = strrchr(a->opts.listen, ':');

    snprintf(ret, cap, "%.*s", colon ? (int)(colon - a->opts.listen) : 0, a->opts.listen);
    if (reach && !strcmp(ret, "0.0.0.0"))
        snprintf(ret, cap, "127.0.0.1");
    else if (reach && !strcmp(ret, "[::]"))
        snprintf(ret, cap, "[::1]");
}

static void on_ready(void *arg, const struct served *m)
{
    struct app *a = arg;
    int port = a->http ? http_port(a->http) : 0;
    bool chat = m->chat != TEMPLATE_NONE;
    char host[256];

    if (a->told)
        return;
    a->told = true;
    listen_host(a, true, host, sizeof(host));
    if (port)
        printf("'%s' answers: curl http://%s:%d/v1/%s -H 'Content-Type: "
               "application/json' -d '%s'\n",
               m->name, host, port, chat ? "chat/completions" : "completions",
               chat ? "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}"
                    : "{\"prompt\":\"Hello\"}");
    else
        printf("'%s' answers: llmctl --socket %s chat\n", m->name, a->socket);
    fflush(stdout);
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
                 live > open ? live : open, (long long)a->opts.drain_s);
        loop_stop(a->loop);
    } else {
        loop_timer_set(a->drain, now + DRAIN_TICK_US);
    }
}

static void on_stop_signal(void *arg, int signo)
{
    struct app *a = arg;
    struct err e;

    if (a->drain_until_us || !a->http) {
        loop_stop(a->loop);
        return;
    }
    log_info("%s: no new requests; %d running", strsignal(signo), router_live(a->router));
    if (journal_add(a->store, "daemon", "daemon.drain", "", "ok", &e, "%s",
                    strsignal(signo)) < 0)
        log_error("%s", e.msg);
    a->drain_until_us = clock_now_us(clock_real()) + a->opts.drain_s * 1000000;
    http_drain(a->http);
    router_drain(a->router);
    supervisor_drain(a->sup, true);
    on_drain_tick(a);
}

/* Also after a cordon or a measurement; a failed reading was said already. */
static void on_rack_news(void *arg, const struct err *why)
{
    struct app *a = arg;

    if (!why)
        metric_set(a->page, M_EMULATED, 0, domain_emulated(a->domain));
}

static int start_rack(struct app *a, struct err *e)
{
    const struct domain_cfg c = {.rack = a->opts.rack,
                                 .gpu = a->opts.rack_gpu,
                                 .loop = a->loop,
                                 .store = a->store,
                                 .news = on_rack_news,
                                 .arg = a};

    return domain_new(&c, &a->domain, e) < 0 ? -1 : domain_load(a->domain, e);
}

static void on_nic(void *arg, enum net_change c, const char *name, const char *what)
{
    struct app *a = arg;
    struct err e;

    log_info("%s", what);
    if (journal_add(a->store, "daemon", "nic.changed", name,
                    c == NET_WENT_DOWN || c == NET_LEFT ? "down" : "ok", &e, "%s",
                    what) < 0)
        log_error("%s", e.msg);
    domain_reload(a->domain, what);
}

/* NICs of this machine matter to a rack that is this machine. */
static int watch_nics(struct app *a, struct err *e)
{
    if (strcmp(a->opts.rack, "auto"))
        return 0;
    if (net_watch_new(a->loop, on_nic, a, &a->nics, e) < 0)
        return -1;
    if (net_watch_rdma(a->nics) == NET_RDMA_POLLED)
        log_info("this kernel does not report RDMA devices that come and go: they are "
                 "looked at twice a second");
    return 0;
}

static void on_hangup_signal(void *arg, int signo)
{
    struct app *a = arg;
    struct err e;

    log_info("%s: certificates and the rack are read again", strsignal(signo));
    if (a->http && http_reload_tls(a->http, &e) < 0)
        log_error("%s; the certificate that was in use stays", e.msg);
    access_find_groups(a->access);
    domain_reload(a->domain, strsignal(signo));
}

/* ---- start and stop ---- */

static int start_loop(struct app *a, struct err *e)
{
    signal(SIGPIPE, SIG_IGN);
    map_sigbus_survive(); /* a model's file cut short is the engine's end, not ours */
    if (loop_new(&a->loop, e) < 0 ||
        loop_signal(a->loop, SIGTERM, on_stop_signal, a, e) < 0 ||
        loop_signal(a->loop, SIGINT, on_stop_signal, a, e) < 0 ||
        loop_signal(a->loop, SIGHUP, on_hangup_signal, a, e) < 0)
        return -1;
    a->drain = loop_timer_new(a->loop, on_drain_tick, a);
    return 0;
}

static int start_store(struct app *a, struct err *e)
{
    if (store_open(a->opts.state_dir, &a->store, e) < 0)
        return -1;
    return journal_add(a->store, "daemon", "daemon.start", a->opts.inst.model, "ok", e,
                       "llmrackd %s, process %d, %s", LLMRACK_VERSION, (int)getpid(),
                       a->options.p);
}

static int start_router(struct app *a, struct err *e)
{
    struct target_cfg c = {
        .instance = "0",
        .generation = 1,
        .max_live = (int)(a->opts.inst.max_seqs + a->opts.inst.max_waiting),
    };

    if (metric_page_new(metrics_defs, METRICS_N, NULL, &a->page, e) < 0 ||
        router_new(a->page, &a->router, e) < 0 ||
        metric_page_new(metrics_defs, METRICS_N, &a->engine_page_fd, &c.page, e) < 0)
        return -1;
    if (target_new(a->router, &c, &a->target, e) < 0) {
        metric_page_free(c.page);
        return -1;
    }
    target_set_hot(a->target, &(struct served_hot){.temperature = 0.6f, .top_p = 0.9f});
    return 0;
}

static int start_supervisor(struct app *a, struct err *e)
{
    const struct daemon_opts *o = &a->opts;
    struct supervisor_cfg c = {
        .loop = a->loop,
        .target = a->target,
        .store = a->store,
        .page = a->page,
        .engine_page_fd = a->engine_page_fd,
        .instance = "0",
        .model_path = o->inst.model,
        .model_name = o->name,
        .mode = o->inst.mode == SCHED_COLOCATED ? "colocated" : "chunked",
        .options = a->options.p,
        .program = a->engine,
        .log_level = o->log_level,
        .args = a->args,
        .n_args = a->n_args,
        .open = loader_open_model,
        .ready = on_ready,
        .arg = a,
    };

    supervisor_cfg_times(&c);
    c.stuck_us = o->stuck_s * 1000000;
    if (o->inst.mode == SCHED_COLOCATED)
        c.stuck_us *= STUCK_COLOCATED;
    return supervisor_new(&c, &a->sup, e);
}

static int start_http(struct app *a, struct err *e)
{
    const struct daemon_opts *o = &a->opts;
    int cpus = system_cpus(), threads = cpus < 8 ? 2 : cpus < 32 ? cpus / 4 : 8;
    const struct conf conf = {
        .listen = {o->listen, "", ""},
        .access = {.anonymous = 1, .failures_per_min = 30},
        .limits = {.max_body_mib = o->max_body_mib,
                   .max_connections = o->max_connections,
                   .header_s = o->header_s,
                   .body_s = o->body_s,
                   .idle_s = IDLE_S},
    };
    struct http_cfg c = {
        .conf = &conf,
        .socket_path = a->socket,
        .n_threads = threads,
        .n_workers = threads,
        .version = LLMRACK_VERSION,
        .schema = store_schema_version(a->store),
        .start_us = a->start_us,
        .state_dir = a->opts.state_dir,
        .models_dir = a->models_dir,
        .domain = a->domain,
        .loop = a->loop,
        .access = a->access,
        .store = a->store,
    };

    return http_start(&c, a->router, a->page, &a->http, e);
}

static int start(struct app *a, struct err *e)
{
    char host[256];

    a->start_us = clock_now_us(clock_real());
    if (start_loop(a, e) < 0 || start_store(a, e) < 0 || start_router(a, e) < 0 ||
        start_rack(a, e) < 0 || watch_nics(a, e) < 0 || start_supervisor(a, e) < 0 ||
        access_new(a->store, &a->access, e) < 0 || start_http(a, e) < 0)
        return -1;
    supervisor_start(a->sup);
    listen_host(a, false, host, sizeof(host));
    if (http_port(a->http))
        printf("llmrackd %s listens on http://%s:%d, control socket %s\n",
               LLMRACK_VERSION, host, http_port(a->http), a->socket);
    else
        printf("llmrackd %s listens on the control socket %s\n", LLMRACK_VERSION,
               a->socket);
    fflush(stdout);
    return 0;
}

static void stop(struct app *a, int code)
{
    struct err e;

    loop_timer_free(a->drain);
    net_watch_free(a->nics);
    http_stop(a->http);
    a->http = NULL;
    access_free(a->access);
    if (a->sup) {
        supervisor_stop(a->sup, NULL, NULL);
        while (!supervisor_stopped(a->sup) && loop_once(a->loop, -1, &e) == 0)
            continue;
    }
    supervisor_free(a->sup);
    target_free(a->target);
    router_free(a->router);
    metric_page_free(a->page);
    if (a->engine_page_fd >= 0)
        close(a->engine_page_fd);
    if (a->store && journal_add(a->store, "daemon", "daemon.stop", "",
                                code ? "failed" : "ok", &e, "exit code %d", code) < 0)
        log_error("%s", e.msg);
    domain_free(a->domain);
    store_close(a->store);
    loop_free(a->loop);
    for (int i = 0; i < a->n_args; i++)
        free(a->args[i]);
    free(a->socket);
    free(a->engine);
    free(a->models_dir);
    buf_done(&a->options);
}

int main(int argc, char **argv)
{
    struct app a = {.engine_page_fd = -1};
    struct err e = {0};
    int rc, code;

    log_open("llmrackd", LOG_LV_INFO);
    rc = read_options(&a, argc, argv, &e);
    if (rc == 0) {
        derive_options(&a);
        rc = start(&a, &e) < 0 || loop_run(a.loop, &e) < 0 ? -1 : 0;
    }
    if (rc < 0)
        log_error("%s", e.msg);
    code = rc < 0 ? err_exit(e.code) : 0;
    if (rc > 0 && a.opts.probe)
        code = probe_nvml_run("libnvidia-ml.so.1", isatty(0) ? -1 : 0, 1);
    stop(&a, code);
    return code;
}

/* daemon/engine_main.c - llmrack-engine: options, start order, stop in reverse.
 *
 * Started by llmrackd with a socket and two pages as descriptors. Signals that a
 * terminal or a service manager sends to the whole group are ignored: the daemon drains
 * first and then says STOP, or goes, which ends the socket. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/options.h"
#include "daemon/serve/engine.h"
#include "daemon/serve/map.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/expertpage.h"
#include "daemon/serve/rankpage.h"
#include "daemon/serve/tracepage.h"
#include "daemon/serve/wire.h"

/* What waits for a daemon that does not read; past it the engine ends. */
static const size_t OUT_MAX = (size_t)WIRE_MAX;

static struct engine_opts arg_opts;

/* A page of the model's file is gone. Runs in a signal handler. */
static void last_words(const char *path)
{
    uint8_t frame[WIRE_FAIL_BYTES];
    size_t n = wire_fail_frame(
        frame, ERR_CORRUPT, "the model's file was cut short while it was read: ", path);

    send((int)arg_opts.fd, frame, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static int parse_secret(const char *hex, uint8_t out[16], struct err *e)
{
    if (!hex[0]) {
        if (getrandom(out, 16, 0) != 16)
            return err_errno(e, ERR_IO, "no random numbers");
        return 0;
    }
    for (int i = 0; i < 16; i++) {
        unsigned v;
        int n = 0;
        if (sscanf(hex + 2 * i, "%2x%n", &v, &n) != 1 || n != 2)
            return err_set(e, ERR_INVALID, "secret: 32 hex digits would be right");
        out[i] = (uint8_t)v;
    }
    if (hex[32])
        return err_set(e, ERR_INVALID, "secret: 32 hex digits would be right");
    return 0;
}

static int parse_factor(const char *what, const char *s, double *ret, struct err *e)
{
    char *end;

    *ret = strtod(s, &end);
    if (end == s || *end || !(*ret >= 0 && *ret <= 1000))
        return err_set(e, ERR_RANGE, "%s '%s': a number from 0 to 1000 is right", what,
                       s);
    return 0;
}

static int fill_cfg(const struct engine_opts *o, struct engine_cfg *c, struct err *e)
{
    static const char *const isas[] = {"auto", "portable", "avx2", "avx512"};
    static const char *const backends[] = {"cpu"};
    static const char *const methods[] = {"allgather", "ring", "striped", "ulysses",
                                          "usp"};
    char layout[96];
    const struct instance_opts *i = &o->inst;
    double affinity;

    *c = (struct engine_cfg){
        .model = i->model,
        .mode = (enum sched_mode)i->mode,
        .step_tok = (int)i->step_tok,
        .max_seqs = (int)i->max_seqs,
        .max_waiting = (int)i->max_waiting,
        .prefill_run = (int)i->prefill_run,
        .order = (enum sched_order)i->order,
        .refuse_late = i->refuse_late,
        .kv_mib = i->kv_mib,
        .kv_host_mib = i->kv_host_mib,
        .kv_disk_mib = i->kv_disk_mib,
        .kv_file = o->kv_file,
        .cpus = o->cpus,
        .ctx = (int)i->ctx,
        .kv_type = (enum engine_kv)i->kv_type,
        .threads = (int)i->threads,
        .backend = backends[i->backend],
        .isa = isas[i->isa],
        .null_exec = i->executor == 1,
        .reuse = i->reuse,
        .chunks = (int)i->chunks,
        .as_tp = (int)i->as_tp,
        .as_cp = (int)i->as_cp,
        .moe = {.spare = (int)i->spare,
                .routing = (enum spread)i->routing,
                .overflow = (enum moe_overflow)i->overflow,
                .transfer = (enum moe_transfer)i->transfer},
        .emulate = i->emulate,
        .role = (enum engine_role)o->role,
        .kv_sums = o->kv_sums,
        .handoff_ms = o->handoff_ms,
    };
    snprintf(layout, sizeof(layout), "pp%d tp%d adp%d ep%d cp%d cp_u%d %s %s", (int)i->pp,
             (int)i->tp, (int)i->adp, (int)i->ep, (int)i->cp,
             i->cp_method == 4 ? (int)i->cp_u : 1, i->cp > 1 ? methods[i->cp_method] : "",
             i->sp ? "sp" : "");
    if (parse_factor("capacity", i->capacity, &c->moe.capacity, e) < 0 ||
        parse_factor("affinity", i->affinity, &affinity, e) < 0 ||
        layout_parse(layout, &c->layout, e) < 0)
        return -1;
    c->moe.count_pairs = affinity > 0;
    return parse_secret(o->secret, c->secret, e);
}

static void print_help(void)
{
    struct buf b;

    buf_init(&b, 0);
    opt_help(engine_opt_defs, n_engine_opt_defs, &b);
    printf("usage: llmrack-engine [options]   (started by llmrackd)\n\n%s", b.p);
    buf_done(&b);
}

/* 0 go on, 1 done, -1. */
static int options(int argc, char **argv, struct engine_cfg *cfg, struct err *e)
{
    int rest;

    if (opt_parse(engine_opt_defs, n_engine_opt_defs, argc, argv, &arg_opts, &rest, e) <
        0)
        return -1;
    if (rest < argc)
        return err_set(e, ERR_INVALID, "'%s': options only would be right", argv[rest]);
    if (arg_opts.help)
        print_help();
    if (arg_opts.version)
        printf("llmrack-engine %s\n", LLMRACK_VERSION);
    if (arg_opts.help || arg_opts.version)
        return 1;
    int level = log_level_parse(arg_opts.log_level);
    if (level < 0)
        return err_set(e, ERR_INVALID, "log-level '%s': error, warn, info or debug",
                       arg_opts.log_level);
    log_level_set((enum log_level)level);
    if (fcntl((int)arg_opts.fd, F_GETFD) < 0)
        return err_set(e, ERR_INVALID,
                       "descriptor %d is not open: llmrackd starts this program",
                       (int)arg_opts.fd);
    int rc = fill_cfg(&arg_opts, cfg, e);
    explicit_bzero((char *)arg_opts.secret, strlen(arg_opts.secret)); /* out of ps */
    return rc;
}

int main(int argc, char **argv)
{
    struct engine_cfg cfg;
    struct metric_page *page = NULL;
    struct wire_conn *conn;
    struct err e;

    log_open("llmrack-engine", LOG_LV_INFO);
    int rc = options(argc, argv, &cfg, &e);
    if (rc != 0) {
        if (rc < 0)
            log_error("%s", e.msg);
        return rc < 0 ? err_exit(e.code) : 0;
    }
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes is a write that fails */
    map_sigbus_install(last_words);
    conn = wire_conn_new((int)arg_opts.fd, OUT_MAX);
    rc = metric_page_map(metrics_defs, METRICS_N, (int)arg_opts.page_fd, &page, &e);
    if (rc == 0)
        rc = rankpage_map((int)arg_opts.ranks_fd, &cfg.ranks, &e);
    if (rc == 0)
        rc = expertpage_map((int)arg_opts.experts_fd, &cfg.experts, &e);
    if (rc == 0)
        rc = tracepage_map((int)arg_opts.trace_fd, &cfg.trace, &e);
    if (rc == 0)
        rc = engine_run(&cfg, conn, page, &e);
    if (rc < 0)
        log_error("%s", e.msg);
    rankpage_free(cfg.ranks);
    expertpage_free(cfg.experts);
    tracepage_free(cfg.trace);
    metric_page_free(page);
    wire_conn_free(conn);
    return rc < 0 ? err_exit(e.code) : 0;
}

/* daemon/main.c - llmrackd: its options, then its parts (app.h). */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "daemon/api/stored.h"
#include "daemon/app.h"
#include "daemon/options.h"
#include "daemon/print.h"
#include "state/store.h"
#include "topo/probe_nvml.h"

/* 0 go on, 1 done, -1. */
static int read_options(struct daemon_opts *o, int argc, char **argv, struct err *e)
{
    int rest, level;

    if (opt_parse(daemon_opt_defs, n_daemon_opt_defs, argc, argv, o, &rest, e) < 0)
        return -1;
    if (print_asked(o) || o->probe)
        return 1;
    if (rest < argc)
        return err_set(e, ERR_INVALID, "'%s' is no option; --help lists them",
                       argv[rest]);
    level = o->log_level ? log_level_parse(o->log_level) : LOG_LV_INFO;
    if (level >= 0) /* until the configuration is there, which checks it */
        log_level_set((enum log_level)level);
    return 0;
}

static int recover(const struct daemon_opts *o)
{
    struct err e = {0};
    char *what;

    if (store_recover(o->state_dir, &what, &e) < 0) {
        log_error("%s", e.msg);
        return err_exit(e.code);
    }
    printf("%s: %s\n", o->state_dir, what);
    free(what);
    return 0;
}

static int support(const struct daemon_opts *o)
{
    struct err e = {0};
    struct buf json;
    int rc;

    buf_init(&json, 0);
    rc = stored_support(o->state_dir, &json, &e);
    puts(json.p);
    buf_done(&json);
    if (rc < 0)
        log_error("%s", e.msg);
    return rc < 0 ? err_exit(e.code) : 0;
}

static int run(const struct daemon_opts *o)
{
    struct app *a = app_new(o);
    struct err e = {0};
    int code = 0;

    if (app_start(a, &e) < 0 || app_run(a, &e) < 0) {
        log_error("%s", e.msg);
        code = err_exit(e.code);
    }
    app_free(a, code);
    return code;
}

int main(int argc, char **argv)
{
    struct daemon_opts o = {0};
    struct err e = {0};
    int rc;

    log_open("llmrackd", LOG_LV_INFO);
    rc = read_options(&o, argc, argv, &e);
    if (rc < 0) {
        log_error("%s", e.msg);
        return err_exit(e.code);
    }
    if (o.probe)
        return probe_nvml_run("libnvidia-ml.so.1", isatty(0) ? -1 : 0, 1);
    if (rc > 0)
        return 0;
    if (o.support)
        return support(&o);
    return o.recover ? recover(&o) : run(&o);
}

/* daemon/ctrl/unit.c - one generation of one instance. See unit.h.
 *
 * The unit holds a reference to the conf that it was made from, since its supervisor
 * borrows strings of it, and one to the conf that its hot values are from. */
#include "daemon/ctrl/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/cpuset.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/capacity.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/split.h"
#include "daemon/ctrl/experts.h"
#include "daemon/ctrl/supervisor.h"
#include "daemon/ctrl/target.h"
#include "daemon/serve/cpuplan.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/expertpage.h"
#include "daemon/serve/rankpage.h"
#include "daemon/serve/tracepage.h"
#include "state/store.h"

enum { DRAIN_TICK_US = 20000 };

/* ---- what makes an engine ---- */

void unit_spec_init(struct unit_spec *s, const struct conf *c,
                    const struct conf_instance *i, const struct layout *layout)
{
    const struct conf_model *m = conf_model(c, i->model);
    struct conf_instance cut = *i;

    *s = (struct unit_spec){.conf = conf_ref(c), .inst = i};
    s->model_path = m ? m->path : "";
    if (layout) {
        cut.layout.pp = layout->pp;
        cut.layout.tp = layout->tp;
        cut.layout.ep = layout->ep;
        cut.layout.adp = layout->adp;
        cut.layout.sp = layout->sp;
        cut.layout.cp = layout->cp;
        cut.layout.cp_u = layout->cp_u;
        if (layout->cp > 1)
            cut.layout.cp_method = (int)(layout->cp_method - CP_GATHER);
    }
    capacity_layout(&cut, &s->layout);
    s->n_args = conf_engine_args(c, &cut, s->args, UNIT_ARGS);
}

void unit_spec_done(struct unit_spec *s)
{
    for (int i = 0; i < s->n_args; i++)
        free(s->args[i]);
    conf_unref(s->conf);
    *s = (struct unit_spec){0};
}

static bool same_args(const struct unit_spec *a, const struct unit_spec *b)
{
    int i = 0, k = 0;

    for (;; i++, k++) { /* what is hot stands aside */
        while (i < a->n_args && conf_arg_hot(a->args[i]))
            i++;
        while (k < b->n_args && conf_arg_hot(b->args[k]))
            k++;
        if (i == a->n_args || k == b->n_args)
            return i == a->n_args && k == b->n_args;
        if (strcmp(a->args[i], b->args[k]))
            return false;
    }
}

struct first {
    const char *instance, *model;
    char *why; /* 160 */
};

/* Is the row one of a pool that the engine is not in? */
static bool of_other_pool(const char *engine, const char *row)
{
    const char *pool = engine + conf_name_len(engine);
    size_t n = strcspn(row, ".");

    return ((n == 7 && !strncmp(row, "prefill", n)) ||
            (n == 6 && !strncmp(row, "decode", n))) &&
           (pool[0] != '/' || strncmp(pool + 1, row, n));
}

/* The first change that concerns the engine, in words. */
static void on_change(void *arg, const struct conf_change *c)
{
    struct first *f = arg;
    const char *row = NULL;
    size_t n = conf_name_len(f->instance), m = strlen(f->model);

    if (!strncmp(c->path, "instances.", 10) && !strncmp(c->path + 10, f->instance, n) &&
        c->path[10 + n] == '.')
        row = c->path + 10 + n + 1;
    if (row && of_other_pool(f->instance, row))
        row = NULL;
    if (!strncmp(c->path, "models.", 7) && !strncmp(c->path + 7, f->model, m) &&
        c->path[7 + m] == '.')
        row = c->path;
    if (row && c->class == CONF_DRAIN && !f->why[0])
        snprintf(f->why, 160, "%s %.48s -> %.48s", row, c->from ? c->from : "(none)",
                 c->to ? c->to : "(none)");
}

bool unit_spec_differs(const struct unit_spec *a, const struct unit_spec *b,
                       char why[160])
{
    struct first f = {b->inst->name, b->inst->model, why};
    bool args = !same_args(a, b), name = strcmp(a->inst->served_as, b->inst->served_as);

    why[0] = '\0';
    if (b->said[0] && !layout_same(&a->layout, &b->layout)) {
        char from[64], to[64];

        layout_print(&a->layout, from, sizeof(from));
        layout_print(&b->layout, to, sizeof(to));
        snprintf(why, 160, "layout %s -> %s, by the planner", from, to);
    }
    if (!why[0] && (args || name))
        conf_diff(a->conf, b->conf, on_change, &f);
    const struct conf_instance *was = a->inst, *is = b->inst;
    if (!why[0] && (was->round_as.tp != is->round_as.tp ||
                    was->round_as.cp != is->round_as.cp)) /* by the other pool's layout */
        snprintf(why, 160, "rounds as tp %d cp %d -> tp %d cp %d, like the other pool",
                 (int)was->round_as.tp, (int)was->round_as.cp, (int)is->round_as.tp,
                 (int)is->round_as.cp);
    if (!why[0] && (args || name))
        snprintf(why, 160, "other options");
    return args || name;
}

/* ---- life ---- */

/* Bytes of each rank by the ledger, with the context and pool that the engine has. */
static void count_seats(struct unit *u)
{
    const struct instance_status *st = supervisor_status(u->sup);
    const struct shapes *s = supervisor_shapes(u->sup);
    int n = layout_ranks(&u->spec.layout);
    struct rank_seat *v = xcalloc((size_t)n, sizeof(*v));

    for (int i = 0; i < n; i++) {
        struct capacity_rank c;

        if (i < u->n_seats)
            v[i] = u->seats[i];
        if (!s || st->n_blocks <= 0 || st->n_ctx <= 0)
            continue;
        capacity_rank(s, &u->spec.layout, u->inst, st->n_ctx, st->n_blocks, i, &c);
        v[i].counted = true;
        v[i].weights = c.weights;
        v[i].kv = c.kv;
        v[i].scratch = c.scratch;
    }
    target_set_seats(u->target, v, n);
    free(v);
}

static void on_trouble(void *arg, enum alarm_engine kind, const char *why)
{
    struct unit *u = arg;

    u->env->trouble(u->env->arg, u->inst->name, kind, why);
}

static void on_ready(void *arg, const struct served *m)
{
    struct unit *u = arg;

    (void)m;
    count_seats(u);
    u->was_ready = true;
    on_trouble(u, ALARM_ENGINE_FAILED, NULL);
    u->env->ready(u->env->arg, u->inst->name);
    u->env->news(u->env->arg);
}

/* The reason and the engine's last lines, as one sentence; no line that says the reason
 * and nothing beside it. */
static void explain(const struct unit *u, const struct err *why, struct err *ret)
{
    const char *all = supervisor_lines(u->sup);
    size_t n = strlen(all);
    char lines[UNIT_LINES + 1];

    snprintf(lines, sizeof(lines), "%s", n > UNIT_LINES ? all + n - UNIT_LINES : all);
    for (char *p = lines; *p; p++)
        *p = *p == '\n' ? '|' : *p;
    if (lines[0] && (!strstr(lines, why->msg) || strchr(lines, '|')))
        err_set(ret, why->code, "instance '%.63s': %.160s; its last lines: %s",
                u->inst->name, why->msg, lines);
    else
        err_set(ret, why->code, "instance '%.63s': %.400s", u->inst->name, why->msg);
}

static void on_failed(void *arg, const struct err *why)
{
    struct unit *u = arg;
    struct err e;

    explain(u, why, &e);
    if (u->phase == UNIT_RUNS)
        on_trouble(u, ALARM_ENGINE_FAILED, e.msg);
    if (u->failed || u->was_ready)
        return;
    u->failed = true;
    u->why = e;
    u->env->news(u->env->arg);
}

static void on_stopped(void *arg)
{
    struct unit *u = arg;

    u->env->news(u->env->arg);
}

static char *options_json(const struct unit_spec *s)
{
    struct buf b;
    struct jw w;
    char *out;

    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_arr(&w);
    for (int i = 0; i < s->n_args; i++)
        if (strncmp(s->args[i], "--model=", 8)) /* stands in the model's own row */
            jw_str(&w, s->args[i]);
    jw_arr_end(&w);
    out = xstrdup(b.p);
    buf_done(&b);
    return out;
}

static int new_supervisor(struct unit *u, struct err *e)
{
    static const char *const modes[] = {"chunked", "colocated", "split"};
    const struct conf_instance *i = u->spec.inst;
    struct supervisor_cfg c = {
        .loop = u->env->loop,
        .target = u->target,
        .store = u->env->store,
        .page = u->env->page,
        .engine_page_fd = u->page_fd,
        .engine_ranks_fd = u->ranks_fd,
        .engine_experts_fd = u->experts_fd,
        .engine_trace_fd = u->trace_fd,
        .instance = i->name,
        .model_path = u->spec.model_path,
        .model_name = i->served_as,
        .mode = modes[i->mode],
        .options = u->options,
        .layout_why = u->spec.said,
        .program = u->env->program,
        .log_level = u->spec.conf->log_level,
        .args = u->spec.args,
        .n_args = u->spec.n_args,
        .open = u->env->open,
        .ready = on_ready,
        .failed = on_failed,
        .stopped = on_stopped,
        .facts = unit_experts_ready,
        .moved = unit_experts_moved,
        .trouble = on_trouble,
        .arg = u,
    };
    char name[96], *file = NULL;
    int rc;

    if (u->env->store && i->kv.disk_mib) {
        snprintf(name, sizeof(name), "kv/%s.kv", i->name);
        for (char *p = name + 3; *p; p++)
            *p = *p == '/' || *p == ':' ? '_' : *p;
        c.kv_file = file = store_file(u->env->store, name);
    }
    supervisor_cfg_times(&c);
    unit_hot_first(u, &c);
    if (u->env->backoff_us)
        c.backoff_us = u->env->backoff_us;
    if (u->env->stop_us)
        c.stop_us = u->env->stop_us;
    rc = supervisor_new(&c, &u->sup, e);
    free(file);
    return rc;
}

int unit_new(const struct unit_env *env, struct unit_spec *spec, int generation,
             struct unit **ret, struct err *e)
{
    struct unit *u = xcalloc(1, sizeof(*u));
    const struct conf_instance *i = spec->inst;
    struct target_cfg t = {
        .instance = i->name,
        .generation = generation,
        .role = i->role,
        .emulate = i->layout.emulate,
        .max_live = (int)(i->max_seqs + i->max_waiting),
    };

    u->env = env;
    u->spec = *spec;
    u->generation = generation;
    u->page_fd = u->ranks_fd = u->experts_fd = u->trace_fd = -1;
    list_init(&u->link);
    u->conf = conf_ref(spec->conf);
    u->inst = i;
    u->options = options_json(spec);
    if (metric_page_new(metrics_defs, METRICS_N, &u->page_fd, &t.page, e) < 0)
        goto fail;
    if (rankpage_new(&u->ranks_fd, &t.ranks, e) < 0 ||
        expertpage_new(&u->experts_fd, &t.experts, e) < 0 ||
        tracepage_new(&u->trace_fd, &t.trace, e) < 0 ||
        target_new(env->router, &t, &u->target, e) < 0) {
        rankpage_free(t.ranks);
        expertpage_free(t.experts);
        tracepage_free(t.trace);
        metric_page_free(t.page);
        goto fail;
    }
    if (new_supervisor(u, e) < 0)
        goto fail;
    *spec = (struct unit_spec){0};
    *ret = u;
    return 0;

fail:
    u->spec = (struct unit_spec){0}; /* stays the caller's */
    unit_free(u);
    return -1;
}

void unit_seat(struct unit *u, struct rank_seat *seats, int n)
{
    free(u->seats);
    u->seats = seats;
    u->n_seats = n;
    target_set_seats(u->target, seats, n);
}

void unit_start(struct unit *u) { supervisor_start(u->sup); }

int unit_threads(const struct unit *u)
{
    if (u->phase == UNIT_GONE)
        return 0;
    return cpuplan_threads((int)u->inst->threads, CPU_COUNT(&u->cpus),
                           layout_ranks(&u->spec.layout));
}

void unit_set_cpus(struct unit *u, const cpu_set_t *v, int n)
{
    char one[CPUSET_TEXT_MAX];
    struct buf b;

    if (u->phase == UNIT_GONE)
        return;
    buf_init(&b, 0);
    CPU_ZERO(&u->cpus);
    for (int i = 0; i < n; i++) {
        CPU_OR(&u->cpus, &u->cpus, &v[i]);
        cpuset_print(&v[i], one, sizeof(one));
        buf_printf(&b, "%s%s", i ? ";" : "", one);
    }
    supervisor_set_cpus(u->sup, &u->cpus, b.p, unit_threads(u));
    buf_done(&b);
}

void unit_spin(struct unit *u, bool on)
{
    if (u->phase != UNIT_GONE)
        supervisor_set_spin(u->sup, on);
}

void unit_halt(struct unit *u, const char *reason)
{
    u->phase = UNIT_GONE;
    u->halted = true;
    supervisor_stop(u->sup, NULL, reason);
}

void unit_free(struct unit *u)
{
    struct err e;

    if (!u)
        return;
    if (u->target)
        split_gone(u->target);
    supervisor_free(u->sup);
    if (u->env->experts)
        experts_gone(u->env->experts, u);
    if (u->target) {
        err_set(&e, ERR_UNAVAIL, "the server is stopping");
        target_fail_all(u->target, &e);
    }
    target_free(u->target);
    if (u->page_fd >= 0)
        close(u->page_fd);
    if (u->ranks_fd >= 0)
        close(u->ranks_fd);
    if (u->experts_fd >= 0)
        close(u->experts_fd);
    if (u->trace_fd >= 0)
        close(u->trace_fd);
    unit_spec_done(&u->spec);
    conf_unref(u->conf);
    free(u->seats);
    free(u->options);
    free(u);
}

/* ---- leaving ---- */

int unit_live(const struct unit *u) { return target_live(u->target, NULL); }

bool unit_ready(const struct unit *u)
{
    enum instance_state s = supervisor_status(u->sup)->state;

    return s == INSTANCE_READY || s == INSTANCE_DRAINING;
}

void unit_drain(struct unit *u, bool on)
{
    if (u->phase == UNIT_RUNS)
        supervisor_drain(u->sup, on);
}

void unit_wipe(struct unit *u)
{
    if (u->phase == UNIT_RUNS)
        supervisor_wipe(u->sup);
}

static void end(struct unit *u)
{
    u->phase = UNIT_ENDS;
    supervisor_stop(u->sup, &u->end, u->halted ? u->reason : NULL);
}

void unit_leave(struct unit *u, int64_t drain_s, const struct err *why,
                const char *reason)
{
    if (u->phase != UNIT_RUNS)
        return;
    u->phase = UNIT_DRAINS;
    u->end = *why;
    u->drain_s = drain_s;
    u->drain_until_us = clock_now_us(clock_real()) + drain_s * 1000000;
    u->halted = reason != NULL;
    snprintf(u->reason, sizeof(u->reason), "%s", reason ? reason : "");
    supervisor_drain(u->sup, true);
    if (u->failed)
        on_trouble(u, ALARM_ENGINE_FAILED, NULL);
    if (!unit_ready(u))
        end(u);
    u->env->news(u->env->arg);
}

void unit_end(struct unit *u, const struct err *why)
{
    if (u->phase != UNIT_RUNS && u->phase != UNIT_DRAINS)
        return;
    u->end = *why;
    end(u);
}

/* The time is over: those that are left are counted and told. */
static void cut(struct unit *u, int n)
{
    struct err e;

    log_about(LOG_LV_WARN, &(struct log_about){.instance = u->inst->name},
              "instance '%s': %d requests are ended, %lld s after its drain began",
              u->inst->name, n, (long long)u->drain_s);
    if (u->env->store &&
        journal_add(u->env->store, "daemon", "instance.drain", u->inst->name, "failed",
                    &e, "%d requests were ended after %lld s", n,
                    (long long)u->drain_s) < 0)
        log_error("%s", e.msg);
    target_fail_all(u->target, &u->end);
}

int64_t unit_step(struct unit *u, int64_t now_us)
{
    int n = u->phase == UNIT_DRAINS ? unit_live(u) : 0;
    bool busy = n || (u->phase == UNIT_DRAINS && split_exports(u->target));

    if (u->phase == UNIT_DRAINS && busy && now_us < u->drain_until_us)
        return now_us + DRAIN_TICK_US < u->drain_until_us ? now_us + DRAIN_TICK_US
                                                          : u->drain_until_us;
    if (u->phase == UNIT_DRAINS) {
        if (n)
            cut(u, n);
        end(u);
    }
    if (u->phase == UNIT_ENDS && supervisor_stopped(u->sup))
        u->phase = UNIT_GONE;
    return -1;
}

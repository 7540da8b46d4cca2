/* daemon/serve/engine.c - the scheduler thread of an engine process.
 *
 * One epoll loop over two descriptors, and in a half of a split those of
 * engine_handoff.h:
 *
 *   wire   ADD, CANCEL, DRAIN, STOP -> events of the scheduler; PING -> PONG
 *   exec   a finished step          -> DONE
 *
 * After either: ask the scheduler for steps until it has none (engine_pump), so that the
 * device has its next step before anything else is done; then write the metric page, so
 * that who hears of an end finds it counted; then tell the daemon what happened
 * (engine_tell), in one write. Nothing but handoffs is timed: when the descriptors
 * are quiet the thread sleeps.
 *
 * A request that cannot be served is answered with FINISH and its reason. A message that
 * is not well-formed, a daemon that does not read, and a failed device end the engine:
 * the daemon starts another one. */
#include "daemon/serve/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/loop.h"
#include "base/spin.h"
#include "daemon/serve/cpuplan.h"
#include "daemon/serve/engine_check.h"
#include "daemon/serve/engine_handoff.h"
#include "daemon/serve/engine_experts.h"
#include "daemon/serve/engine_load.h"
#include "daemon/serve/engine_metrics.h"
#include "daemon/serve/engine_tiers.h"
#include "daemon/serve/engine_trace.h"
#include "daemon/serve/executor.h"
#include "daemon/serve/rankpage.h"
#include "daemon/serve/ranks.h"
#include "daemon/serve/wire.h"
#include "daemon/serve/wire_experts.h"

enum { STEPS_KEPT = 8 }; /* a power of two over any depth */

struct engine {
    const struct engine_cfg *cfg; /* borrowed */
    struct wire_conn *conn;       /* borrowed */
    struct engine_loaded l;
    struct engine_metrics metrics;
    struct engine_trace trace;
    struct engine_handoff *handoff; /* NULL: not a half of a split */
    struct engine_tiers *tiers;     /* NULL: no tier on disk */
    struct rankpage *ranks;         /* borrowed; NULL */
    int64_t ready_us;
    struct loop *loop;
    struct loop_fd *wire_fd, *exec_fd;
    bool watch_write;
    struct sched *sched;
    struct step *step;
    int step_toks[STEPS_KEPT];      /* tokens of a step, by ticket */
    struct engine_experts *experts; /* NULL where none can move */
    struct loop_fd *expert_fd[2];
    struct loop_timer *expert_timer;
    struct err why; /* of failed */
    bool failed;
};

static int64_t engine_now(void) { return clock_now_us(clock_real()); }

/* *why was filled in: leave the loop with it. */
static void engine_fail(struct engine *g)
{
    g->failed = true;
    loop_stop(g->loop);
}

/* ---- steps ---- */

static int engine_pump(struct engine *g)
{
    uint64_t ticket;

    while (sched_next(g->sched, engine_now(), g->step)) {
        if (executor_submit(g->l.x, g->step, &ticket, &g->why) < 0)
            return -1;
        g->step_toks[ticket % STEPS_KEPT] = g->step->n_toks;
        engine_trace_submitted(&g->trace, g->sched, g->step, ticket, engine_now());
        sched_submitted(g->sched, engine_now(), ticket);
        if (g->experts)
            engine_experts_submitted(g->experts, ticket);
    }
    return 0;
}

/* ---- telling the daemon ---- */

static int tell_finish(struct engine *g, const struct sched_out *o)
{
    struct wire_finish f = {
        .id = o->id,
        .reason = o->reason,
        .stop_id = o->stop_id,
        .n_prompt = o->n_prompt,
        .n_cached = o->n_cached,
        .n_out = o->n_out,
        .n_preempted = o->n_preempted,
        .queue_us = o->queue_us,
        .prefill_us = o->prefill_us,
        .decode_us = o->decode_us,
        .retry_us = o->retry_us,
    };

    if (o->kind == SCHED_OUT_REFUSE)
        f.reason = FINISH_ERROR;
    if (o->error) {
        f.code = o->error->code;
        snprintf(f.msg, sizeof(f.msg), "%.*s", (int)sizeof(f.msg) - 1, o->error->msg);
    }
    return wire_send(g->conn, WIRE_FINISH, &(struct wire_part){&f, sizeof(f)}, 1,
                     &g->why);
}

static int engine_tell(struct engine *g)
{
    const struct sched_out *outs;
    size_t n = sched_out(g->sched, &outs);

    wire_cork(g->conn);
    for (size_t i = 0; i < n; i++) {
        const struct sched_out *o = &outs[i];
        int rc = engine_handoff_out(g->handoff, o, &g->why);

        if (rc == 0 && o->kind == SCHED_OUT_TOKENS)
            rc = wire_send_tokens(g->conn, o->id, o->scored, o->toks, o->n_toks, &g->why);
        else if (rc == 0 && (o->kind == SCHED_OUT_FINISH || o->kind == SCHED_OUT_REFUSE))
            rc = tell_finish(g, o);
        if (rc < 0)
            return -1;
        engine_metrics_out(&g->metrics, o);
        engine_trace_out(&g->trace, o, engine_now());
    }
    return wire_uncork(g->conn, &g->why);
}

static int engine_check(struct engine *g)
{
    if (sched_check(g->sched, &g->why) < 0)
        return -1;
    return engine_handoff_check(g->handoff, &g->why);
}

/* What follows every event. */
static void engine_settle(void *arg)
{
    struct engine *g = arg;
    int more;

    do { /* what a handoff gives back or brings may be computed at once */
        if (engine_pump(g) < 0)
            goto fail;
        engine_metrics_sched(&g->metrics, g->sched);
        if (engine_tell(g) < 0 || (more = engine_handoff_settle(g->handoff, &g->why)) < 0)
            goto fail;
    } while (more);
    engine_tiers_settle(g->tiers);
    if (fault_on() && engine_check(g) < 0)
        engine_check_failed(g->conn, &g->why);
    bool want = wire_wants_write(g->conn);
    if (want != g->watch_write)
        loop_fd_set(g->wire_fd, EPOLLIN | (want ? EPOLLOUT : 0));
    g->watch_write = want;
    return;

fail:
    engine_fail(g);
}

/* ---- the executor's completions ---- */

static void tell_ranks(struct engine *g)
{
    struct rank_status s;

    if (!g->ranks || !g->l.ready.n_ranks)
        return;
    for (int i = 0; i < g->l.ready.n_ranks; i++) {
        ranks_status(g->l.x, i, &s);
        rankpage_set(g->ranks, i, &s);
    }
    rankpage_tell(g->ranks, g->l.ready.n_ranks, g->ready_us, engine_now());
}

/* ---- experts that move ---- */

static void experts_settle(struct engine *g)
{
    if (g->experts)
        loop_timer_set(g->expert_timer, engine_experts_deadline(g->experts));
}

static void on_expert_news(void *arg, const struct moves_news *n)
{
    struct engine *g = arg;

    if (wire_send_moved(g->conn, n, &g->why) < 0)
        engine_fail(g);
}

static void on_expert_broken(void *arg, const struct err *why)
{
    struct engine *g = arg;

    g->why = *why;
    engine_fail(g);
}

static void experts_poll(struct engine *g)
{
    engine_experts_poll(g->experts, engine_now());
    experts_settle(g);
    if (!g->failed)
        engine_settle(g);
}

static void on_experts(void *arg, int fd, uint32_t events)
{
    (void)fd, (void)events;
    experts_poll(arg);
}

static void on_experts_time(void *arg) { experts_poll(arg); }

static int on_expert_orders(struct engine *g, const void *p, size_t n)
{
    struct wire_expert_orders o;
    int64_t now = engine_now();

    if (wire_parse_experts(p, n, &o, &g->why) < 0)
        return -1;
    if (!g->experts)
        return err_set(&g->why, ERR_SYNTAX,
                       "an EXPERTS message: no expert can move here");
    engine_experts_pace(g->experts, o.h.step_bytes, o.h.copy_share);
    if (o.h.cancel)
        engine_experts_cancel(g->experts, now, "it was called back");
    for (int32_t i = 0; i < o.h.n_moves; i++)
        engine_experts_order(g->experts, now, &o.moves[i]);
    for (int32_t i = 0; i < o.h.n_layers; i++)
        if (engine_experts_shares(g->experts, now, o.layers[i],
                                  o.shares + (size_t)i * (size_t)o.h.n_slots, o.h.n_slots,
                                  &g->why) < 0)
            return -1;
    experts_settle(g);
    return 0;
}

/* Of each state of a move; a test does not wait so long. */
static int64_t expert_state_us(void)
{
    const char *ms = fault_setting("LLMRACK_MOVE_STATE_MS");

    return ms ? 1000 * atoll(ms) : 0;
}

static int experts_start(struct engine *g, struct err *e)
{
    const struct engine_experts_cfg c = {.x = g->l.x,
                                         .model = g->l.model,
                                         .state_us = expert_state_us(),
                                         .tell = on_expert_news,
                                         .broken = on_expert_broken,
                                         .arg = g};

    if (!g->l.model)
        return 0;
    if (engine_experts_new(&c, &g->experts, e) < 0)
        return -1;
    g->l.model = NULL; /* taken */
    g->expert_timer = loop_timer_new(g->loop, on_experts_time, g);
    for (int i = 0; i < 2; i++)
        if (loop_fd_add(g->loop, engine_experts_fd(g->experts, i), EPOLLIN, on_experts, g,
                        &g->expert_fd[i], e) < 0)
            return -1;
    return 0;
}

static void on_exec(void *arg, int fd, uint32_t events)
{
    struct engine *g = arg;
    struct step_done d;

    (void)fd, (void)events;
    while (!g->failed && executor_poll(g->l.x, &d)) {
        struct sched_event ev = {.kind = SCHED_DONE, .done = &d};
        if (d.error && d.error->code == ERR_DEVICE) {
            g->why = *d.error; /* whose requests it had decides what becomes of them */
            engine_metrics_step(&g->metrics, &d, g->step_toks[d.ticket % STEPS_KEPT]);
            tell_ranks(g);
            engine_fail(g);
            return;
        }
        sched_event(g->sched, engine_now(), &ev);
        engine_trace_done(&g->trace, &d, g->step_toks[d.ticket % STEPS_KEPT]);
        engine_metrics_step(&g->metrics, &d, g->step_toks[d.ticket % STEPS_KEPT]);
        tell_ranks(g);
        if (g->experts)
            engine_experts_step(g->experts, engine_now(), d.ticket,
                                d.end_us - d.start_us);
        experts_settle(g);
        engine_settle(g);
    }
}

/* ---- messages ---- */

static const char *ids_fault(const struct engine *g, const struct wire_add *a)
{
    int32_t n = g->l.ready.n_vocab;

    for (int32_t i = 0; i < a->params.n_prompt + a->params.n_gen; i++)
        if (a->prompt[i] < 0 || a->prompt[i] >= n)
            return "prompt";
    for (int32_t i = 0; i < a->params.n_stop; i++)
        if (a->stops[i] < 0 || a->stops[i] >= n)
            return "stop_token_ids";
    for (int32_t i = 0; i < a->params.n_bias; i++)
        if (a->biases[i].id < 0 || a->biases[i].id >= n)
            return "logit_bias";
    return NULL;
}

static int refuse(struct engine *g, uint64_t id, int32_t n_prompt, const struct err *e)
{
    const struct sched_out o = {.kind = SCHED_OUT_REFUSE,
                                .id = id,
                                .stop_id = -1,
                                .n_prompt = n_prompt,
                                .error = e};
    return tell_finish(g, &o);
}

static int on_add(struct engine *g, const void *p, size_t n)
{
    struct wire_add a;
    struct err e;
    int rc = wire_parse_add(p, n, &a, &e);

    if (rc < 0 && e.code != ERR_RANGE) {
        g->why = e;
        return -1;
    }
    const char *fault = rc < 0 ? NULL : ids_fault(g, &a);
    if (fault)
        rc = err_param(&e, ERR_RANGE, fault,
                       "%s holds a token id that the model does not have", fault);
    if (rc == 0)
        rc = engine_handoff_add(g->handoff, &a.params, &e);
    if (rc < 0)
        return refuse(g, a.params.id, a.params.n_prompt, &e);
    struct sched_event ev = {
        .kind = SCHED_ADD,
        .params = &a.params,
        .prompt = a.prompt,
        .stops = a.stops,
        .biases = a.biases,
        .eog = g->l.eog,
        .n_eog = g->l.n_eog,
    };
    sched_event(g->sched, engine_now(), &ev);
    engine_metrics_add(&g->metrics, &a.params, g->l.ready.n_ctx);
    return 0;
}

static int on_cancel(struct engine *g, const void *p, size_t n)
{
    struct sched_event ev = {.kind = SCHED_CANCEL};

    if (wire_parse(WIRE_CANCEL, p, n, &ev.id, &g->why) < 0)
        return -1;
    sched_event(g->sched, engine_now(), &ev);
    return 0;
}

static int on_spin(struct engine *g, const void *p, size_t n)
{
    uint32_t on;

    if (wire_parse(WIRE_SPIN, p, n, &on, &g->why) < 0)
        return -1;
    spin_allow(on != 0);
    return 0;
}

/* The CPUs are others: all threads go there at once, and the kernel threads are as many
 * as these with the next step. */
static int on_cpus(struct engine *g, const void *p, size_t n)
{
    const struct engine_cfg *cfg = g->cfg;
    struct cpuplan plan;

    if (!n || n > CPUPLAN_TEXT_MAX || memchr(p, 0, n) != (const char *)p + n - 1)
        return err_set(&g->why, ERR_SYNTAX, "a CPUS message of %zu bytes is no text", n);
    if (cpuplan_make(p, cfg->threads, cfg->layout.tp ? layout_ranks(&cfg->layout) : 1,
                     &plan, &g->why) < 0)
        return -1;
    cpuplan_move_all(&plan.all);
    if (!cfg->null_exec)
        ranks_set_cpus(g->l.x, &plan);
    cpuplan_done(&plan);
    return 0;
}

static int on_policy(struct engine *g, const void *p, size_t n)
{
    struct wire_policy v;

    if (wire_parse(WIRE_POLICY, p, n, &v, &g->why) < 0)
        return -1;
    sched_event(g->sched, engine_now(),
                &(struct sched_event){.kind = SCHED_POLICY,
                                      .order = (enum sched_order)v.order,
                                      .refuse_late = v.refuse_late != 0,
                                      .prefill_run = v.prefill_run});
    return 0;
}

static int on_message(struct engine *g, enum wire_kind kind, const void *p, size_t n)
{
    struct sched_event drain = {.kind = SCHED_DRAIN}, yield = {.kind = SCHED_YIELD};

    switch (kind) {
    case WIRE_ADD:
        return on_add(g, p, n);
    case WIRE_CANCEL:
        return on_cancel(g, p, n);
    case WIRE_DRAIN:
        sched_event(g->sched, engine_now(), &drain);
        return 0;
    case WIRE_STOP:
        loop_stop(g->loop);
        return 0;
    case WIRE_SPIN:
        return on_spin(g, p, n);
    case WIRE_CPUS:
        return on_cpus(g, p, n);
    case WIRE_POLICY:
        return on_policy(g, p, n);
    case WIRE_EXPERTS:
        return on_expert_orders(g, p, n);
    case WIRE_KV_WIPE:
        engine_tiers_wipe(g->tiers, g->sched);
        return 0;
    case WIRE_PING:
        return wire_send(g->conn, WIRE_PONG, NULL, 0, &g->why);
    case WIRE_YIELD:
        sched_event(g->sched, engine_now(), &yield);
        return 0;
    default:
        return engine_handoff_message(g->handoff, kind, p, n, &g->why);
    }
}

static void on_wire(void *arg, int fd, uint32_t events)
{
    struct engine *g = arg;
    enum wire_kind kind;
    const void *p;
    size_t n;
    int got = 0, closed = 0;

    (void)fd;
    if ((events & EPOLLOUT) && wire_flush(g->conn, &g->why) < 0) {
        engine_fail(g);
        return;
    }
    if (events & ~(uint32_t)EPOLLOUT)
        closed = wire_fill(g->conn, &g->why);
    while (closed == 0 && (got = wire_next(g->conn, &kind, &p, &n, &g->why)) == 1)
        if (on_message(g, kind, p, n) < 0)
            got = closed = -1;
    if (closed < 0 || got < 0) {
        engine_fail(g);
        return;
    }
    if (closed) { /* the daemon is gone, and whoever asked with it */
        loop_stop(g->loop);
        return;
    }
    engine_settle(g);
}

/* ---- life ---- */

static int engine_start(struct engine *g, struct err *e)
{
    struct wire_ready *r = &g->l.ready;

    g->step = step_new(&g->l.caps);
    if (loop_new(&g->loop, e) < 0 ||
        engine_handoff_new(g->cfg, &g->l, g->conn, g->metrics.page, &g->handoff, e) < 0)
        return -1;
    g->sched = sched_new(&g->l.sched);
    if (engine_handoff_start(g->handoff, g->sched, g->loop, engine_settle, g, e) < 0)
        return -1;
    if (loop_fd_add(g->loop, wire_conn_fd(g->conn), EPOLLIN, on_wire, g, &g->wire_fd, e) <
            0 ||
        loop_fd_add(g->loop, g->l.x->fd, EPOLLIN, on_exec, g, &g->exec_fd, e) < 0)
        return -1;
    if (experts_start(g, e) < 0 ||
        engine_tiers_new(g->cfg, &g->l, g->conn, g->sched, g->loop, engine_settle, g,
                         &g->tiers, e) < 0)
        return -1;
    if (g->l.sched.kv.group[0].n_blocks)
        g->metrics.block_bytes = r->kv_bytes / (uint64_t)g->l.sched.kv.group[0].n_blocks;
    engine_metrics_sched(&g->metrics, g->sched);
    g->ready_us = engine_now();
    tell_ranks(g);
    if (wire_send(g->conn, WIRE_READY, &(struct wire_part){r, sizeof(*r)}, 1, e) < 0)
        return -1;
    return engine_handoff_arenas(g->handoff, e);
}

static void engine_done(struct engine *g)
{
    engine_handoff_free(g->handoff);
    engine_tiers_free(g->tiers);
    loop_fd_del(g->exec_fd);
    loop_fd_del(g->wire_fd);
    loop_fd_del(g->expert_fd[0]);
    loop_fd_del(g->expert_fd[1]);
    loop_timer_free(g->expert_timer);
    engine_experts_free(g->experts);
    loop_free(g->loop);
    engine_loaded_done(&g->l);
    sched_free(g->sched);
    free(g->step);
}

static int engine_hello(struct wire_conn *conn, struct err *e)
{
    struct wire_hello h = {WIRE_VERSION, (uint32_t)getpid()};

    return wire_send(conn, WIRE_HELLO, &(struct wire_part){&h, sizeof(h)}, 1, e);
}

static void engine_last_words(struct wire_conn *conn, const struct err *e)
{
    struct wire_fail f = {.code = e->code};

    snprintf(f.msg, sizeof(f.msg), "%s", e->msg);
    wire_send(conn, WIRE_FAIL, &(struct wire_part){&f, sizeof(f)}, 1, NULL);
}

int engine_run(const struct engine_cfg *cfg, struct wire_conn *conn,
               struct metric_page *page, struct err *e)
{
    static const char *const roles[] = {"both", "prefill", "decode"};
    struct engine g = {.cfg = cfg,
                       .conn = conn,
                       .metrics = {.page = page},
                       .ranks = cfg->ranks,
                       .trace = {.page = cfg->trace}};
    int rc = -1;

    fault_whose(roles[cfg->role]);
    if (engine_hello(conn, e) < 0 || engine_load(cfg, conn, &g.l, e) < 0)
        goto done;
    if (engine_start(&g, e) < 0 || loop_run(g.loop, e) < 0)
        goto done;
    if (g.failed) {
        *e = g.why;
    } else {
        engine_tiers_flush(g.tiers);
        rc = 0;
    }

done:
    if (rc < 0)
        engine_last_words(conn, e);
    engine_done(&g);
    return rc;
}

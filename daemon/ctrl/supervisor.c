/* daemon/ctrl/supervisor.c - one engine: its model, its process, its restarts.
 *
 *   start -> loader (vocabulary) -> child (HELLO, LOADING, READY) -> warm -> .. -> gone
 *     ^                                                                             |
 *     +----------------------- wait, doubling up to backoff_max --------------------+
 *
 * The vocabulary is opened again at each start, because the file may have changed and the
 * tokenizer must be that of the weights. A tick checks that a starting engine speaks,
 * that a loading one gets on, that steps end while requests are pending (the count of
 * steps in the shared page moves) and that one without work answers (pulse.h); one that
 * does not is killed, which is then a failure like any other. When the engine goes, every
 * request of its target gets its error, or waits for another engine, before a new one can
 * be accepted.
 */
#include "daemon/ctrl/supervisor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/cpuset.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/child.h"
#include "daemon/ctrl/facts.h"
#include "daemon/ctrl/split.h"
#include "daemon/ctrl/supervisor_impl.h"
#include "daemon/ctrl/target.h"
#include "daemon/ctrl/warming.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/expertpage.h"
#include "daemon/serve/rankpage.h"
#include "daemon/serve/tokenizer.h"
#include "daemon/serve/wire.h"
#include "state/store.h"

static int64_t now_us(void) { return clock_now_us(clock_real()); }

void supervisor_cfg_times(struct supervisor_cfg *cfg)
{
    const char *ms = fault_setting("LLMRACK_BACKOFF_MAX_MS");

    cfg->backoff_us = 500000;
    cfg->backoff_max_us = ms ? 1000 * atoll(ms) : 30000000;
    cfg->stable_us = 60000000;
    cfg->hello_us = 10000000;
    cfg->load_us = 120000000;
    cfg->stuck_us = 60000000;
    cfg->stop_us = 5000000;
    cfg->silent_us = 60000000;
    cfg->answer_us = 5000000;
}

void supervisor_note(struct supervisor *s, const char *what, const char *result,
                     const char *detail)
{
    struct err e;

    if (!s->cfg.store)
        return;
    if (journal_add(s->cfg.store, "daemon", what, s->st.model, result, &e, "%s", detail) <
        0)
        log_error("the journal lacks '%s %s': %s", what, result, e.msg);
}

void supervisor_enter(struct supervisor *s, enum instance_state state)
{
    s->st.state = state;
    s->st.since_us = s->moved_us = now_us();
    s->load_done = 0;
    s->st.load_done = supervisor_is_ready(s);
    target_set_status(s->cfg.target, &s->st);
    if (!supervisor_is_ready(s))
        supervisor_watch_from_now(s);
}

/* ---- failure and the next try ---- */

static void wait_and_retry(struct supervisor *s, enum instance_state state,
                           const struct err *why)
{
    int64_t now = now_us();

    if (state == INSTANCE_BACKOFF && now - s->ready_us >= s->cfg.stable_us)
        s->delay_us = s->cfg.backoff_us;
    snprintf(s->st.error, sizeof(s->st.error), "%s", why->msg);
    s->st.retry_at_us = now + s->delay_us;
    s->st.pid = 0;
    supervisor_enter(s, state);
    loop_timer_set(s->retry, s->st.retry_at_us);
    log_about(LOG_LV_ERROR, &(struct log_about){.instance = s->cfg.instance},
              "'%s': %s; next try in %.1f s", s->st.model, why->msg,
              (double)s->delay_us / 1e6);
    s->delay_us *= 2;
    if (s->delay_us > s->cfg.backoff_max_us)
        s->delay_us = s->cfg.backoff_max_us;
    if (state == INSTANCE_FAILED && s->cfg.failed)
        s->cfg.failed(s->cfg.arg, why);
}

static void stopped(struct supervisor *s)
{
    s->st.pid = 0;
    s->st.retry_at_us = 0;
    loop_timer_set(s->kill, -1);
    supervisor_enter(s, INSTANCE_STOPPED);
    target_fail_all(s->cfg.target, &s->stop_why);
    if (s->cfg.stopped)
        s->cfg.stopped(s->cfg.arg);
}

/* ---- news of the engine ---- */

static void on_hello(void *arg) { supervisor_enter(arg, INSTANCE_LOADING); }

static void on_loading(void *arg, double done)
{
    struct supervisor *s = arg;

    s->st.load_done = done < 0 ? 0 : done > 1 ? 1 : done;
    target_set_status(s->cfg.target, &s->st);
}

static void on_ready(void *arg, const struct wire_ready *r)
{
    struct supervisor *s = arg;

    facts_take(r, &s->st);
    s->st.load_done = 1;
    target_set_status(s->cfg.target, &s->st);
    s->next.facts.n_ctx = r->n_ctx;
    s->told = true;
    split_ready(s->cfg.target, s->child, r);
    child_spin(s->child, !s->no_spin);
    if (s->has_policy)
        child_policy(s->child, &s->policy);
    if (s->moved_on)
        supervisor_tell_cpus(s);
    if (s->cfg.facts)
        s->cfg.facts(s->cfg.arg, r);
    warming_start(&s->warming, s->child, target_page(s->cfg.target));
}

/* ---- ready ---- */

static void pump(struct supervisor *s);

static void be_ready(struct supervisor *s)
{
    const struct served facts = s->next.facts;
    char detail[128];
    struct err e;

    if (s->cfg.store && facts_store(s->cfg.store, &facts, s->cfg.instance, s->cfg.mode,
                                    s->cfg.options, &e) < 0)
        log_error("the inventory lacks '%s': %s", facts.name, e.msg);
    target_set_model(s->cfg.target, &s->next.facts, s->next.tok);
    s->next.tok = NULL;
    s->ready_us = now_us();
    s->steps = metric_get(target_page(s->cfg.target), M_STEPS, 0);
    supervisor_watch_from_now(s);
    s->st.error[0] = '\0';
    supervisor_enter(s, s->draining ? INSTANCE_DRAINING : INSTANCE_READY);
    snprintf(detail, sizeof(detail), "pid %d, loaded in %.2f s, %s, %d threads",
             s->st.pid, (double)s->st.load_us / 1e6, s->st.isa, s->st.n_threads);
    supervisor_note(s, "engine.ready", "ok", detail);
    log_about(LOG_LV_INFO, &(struct log_about){.instance = s->cfg.instance},
              "'%s' is ready: %s", s->st.model, detail);
    pump(s); /* those that waited for it */
    if (s->cfg.ready)
        s->cfg.ready(s->cfg.arg, &facts);
}

static void on_warmed(struct supervisor *s, const struct wire_finish *w)
{
    struct err e;

    warming_end(&s->warming, target_page(s->cfg.target), target_experts(s->cfg.target));
    if (w->reason >= 0 && w->reason < FINISH_ERROR) {
        be_ready(s);
        return;
    }
    err_set(&e, ERR_UNAVAIL, "its first generation failed: %s", w->msg);
    child_kill(s->child, &e);
}

static void on_tokens(void *arg, uint64_t id, const struct step_token *toks, int n,
                      bool scored)
{
    struct supervisor *s = arg;

    if (id != WARMING_ID)
        target_tokens(s->cfg.target, id, toks, n, scored);
}

static void on_arena(void *arg, const struct wire_arena *a, int fd)
{
    split_arena(((struct supervisor *)arg)->cfg.target, a, fd);
}

static void on_kv(void *arg, enum wire_kind kind, const void *p, size_t n)
{
    split_heard(((struct supervisor *)arg)->cfg.target, kind, p, n);
}

static void on_pong(void *arg) { supervisor_heard(arg); }

static void on_note(void *arg, const struct wire_note *n)
{
    struct supervisor *s = arg;

    bool bad = n->alarm == WIRE_ALARM_RAISE;
    enum alarm_engine kind = alarm_engine_named(n->action);

    log_warn("%s: %s", s->cfg.instance, n->text);
    supervisor_note(s, n->action, bad ? "failed" : "ok", n->text);
    if (n->alarm && kind < ALARM_ENGINE_COUNT)
        supervisor_trouble(s, kind, bad ? n->text : NULL);
}

static void on_finish(void *arg, const struct wire_finish *w)
{
    struct supervisor *s = arg;
    struct gen_finish f;
    struct err e = {0};

    if (w->id == WARMING_ID) {
        if (s->warming.on && !s->stopping)
            on_warmed(s, w);
        return;
    }
    facts_finish(w, &f, &e);
    if (f.reason == FINISH_RETURNED)
        target_return(s->cfg.target, w->id);
    else
        target_finish(s->cfg.target, w->id, &f);
}

static void on_writable(void *arg)
{
    struct supervisor *s = arg;

    loop_fd_set(s->orders, EPOLLIN);
    pump(s);
}

/* What becomes of the requests of an engine that failed, once new ones are refused. */
static void lose_requests(struct supervisor *s, const struct err *why)
{
    struct err e;
    int n;

    err_set(&e, ERR_UNAVAIL, "the engine of '%s' failed, try again: %s", s->st.model,
            why->msg);
    n = target_lose(s->cfg.target, &e);
    if (n)
        log_about(LOG_LV_WARN, &(struct log_about){.instance = s->cfg.instance},
                  "'%s': %d requests go on with another engine or the next", s->st.model,
                  n);
}

static void on_gone(void *arg, bool asked, const struct err *why)
{
    struct supervisor *s = arg;
    bool was_ready = s->st.state == INSTANCE_READY || s->st.state == INSTANCE_DRAINING;
    struct err e = *why; /* the child's, which goes now */

    split_gone(s->cfg.target);
    child_lines(s->child, s->lines, sizeof(s->lines));
    child_free(s->child);
    s->child = NULL;
    for (int k = 0; k < ALARM_ENGINE_COUNT; k++)
        supervisor_trouble(s, (enum alarm_engine)k, NULL);
    if (s->told && s->cfg.facts)
        s->cfg.facts(s->cfg.arg, NULL);
    s->told = false;
    warming_end(&s->warming, target_page(s->cfg.target), target_experts(s->cfg.target));
    loop_fd_set(s->orders, EPOLLIN);
    facts_clear(target_page(s->cfg.target));
    if (target_ranks(s->cfg.target))
        rankpage_clear(target_ranks(s->cfg.target));
    if (target_experts(s->cfg.target))
        expertpage_clear(target_experts(s->cfg.target));
    if (asked) {
        bool late = e.code == ERR_TIMEOUT;
        supervisor_note(s, "engine.stop", late ? "failed" : "ok", late ? e.msg : "");
    } else {
        metric_add(s->cfg.page, M_ENGINE_FAILURES, 0, 1);
        supervisor_note(s, was_ready ? "engine.run" : "engine.load", "failed", e.msg);
    }
    if (s->stopping) {
        stopped(s);
        return;
    }
    wait_and_retry(s, was_ready ? INSTANCE_BACKOFF : INSTANCE_FAILED, &e);
    lose_requests(s, &e);
}

static void on_moved(void *arg, const struct wire_moved *m)
{
    struct supervisor *s = arg;

    if (s->cfg.moved)
        s->cfg.moved(s->cfg.arg, m);
}

static const struct child_news news = {
    .hello = on_hello,
    .loading = on_loading,
    .ready = on_ready,
    .tokens = on_tokens,
    .finish = on_finish,
    .arena = on_arena,
    .kv = on_kv,
    .moved = on_moved,
    .note = on_note,
    .pong = on_pong,
    .writable = on_writable,
    .gone = on_gone,
};

/* ---- start ---- */

static void start_child(struct supervisor *s)
{
    struct child_cfg c = {
        .program = s->cfg.program,
        .args = s->cfg.args,
        .n_args = s->cfg.n_args,
        .page_fd = s->cfg.engine_page_fd,
        .ranks_fd = s->cfg.engine_ranks_fd,
        .experts_fd = s->cfg.engine_experts_fd,
        .trace_fd = s->cfg.engine_trace_fd,
        .log_level = s->cfg.log_level,
        .kv_file = s->kv_file,
        .instance = s->cfg.instance,
        .cpus = s->rank_cpus ? &s->cpus : NULL,
        .rank_cpus = s->rank_cpus,
    };
    char detail[64];
    struct err e;

    s->moved_on = false;
    memcpy(c.secret, s->secret, sizeof(c.secret));
    if (child_start(s->cfg.loop, &c, &news, s, &s->child, &e) < 0) {
        supervisor_note(s, "engine.start", "failed", e.msg);
        wait_and_retry(s, INSTANCE_FAILED, &e);
        return;
    }
    metric_add(s->cfg.page, M_ENGINE_STARTS, 0, 1);
    s->st.pid = child_pid(s->child);
    s->moved_us = now_us();
    target_set_status(s->cfg.target, &s->st);
    snprintf(detail, sizeof(detail), "pid %d", s->st.pid);
    supervisor_note(s, "engine.start", "ok", detail);
}

static void on_opened(void *arg, struct loaded *m, const struct err *why)
{
    struct supervisor *s = arg;
    struct err e;

    if (why)
        e = *why; /* the loader's, which goes now */
    loader_free(s->loader);
    s->loader = NULL;
    if (s->stopping) {
        tokenizer_free(m ? m->tok : NULL);
        free(m ? m->shapes : NULL);
        stopped(s);
        return;
    }
    if (!m) {
        supervisor_note(s, "model.open", "failed", e.msg);
        wait_and_retry(s, INSTANCE_FAILED, &e);
        return;
    }
    tokenizer_free(s->next.tok);
    free(s->next.shapes);
    s->next = *m;
    memcpy(s->st.model, m->facts.name, sizeof(s->st.model));
    start_child(s);
}

void supervisor_start(struct supervisor *s)
{
    struct err e;

    s->st.retry_at_us = 0;
    supervisor_enter(s, INSTANCE_STARTING);
    if (loader_start(s->cfg.loop, s->cfg.open, s->cfg.model_path, s->cfg.model_name,
                     on_opened, s, &s->loader, &e) < 0)
        wait_and_retry(s, INSTANCE_FAILED, &e);
}

static void on_retry(void *arg)
{
    struct supervisor *s = arg;

    s->st.restarts++;
    supervisor_start(s);
}

/* ---- orders of the HTTP threads ---- */

bool supervisor_is_ready(const struct supervisor *s)
{
    return s->st.state == INSTANCE_READY || s->st.state == INSTANCE_DRAINING;
}

static void pump(struct supervisor *s)
{
    struct wire_add add;
    uint64_t id;

    if (!supervisor_is_ready(s)) {
        target_sweep(s->cfg.target);
        return;
    }
    while (!child_full(s->child)) {
        enum target_order order = target_take(s->cfg.target, &add, &id);
        if (order == TARGET_NOTHING)
            return;
        if (order == TARGET_ADD)
            child_add(s->child, &add);
        else
            child_cancel(s->child, id);
    }
    loop_fd_set(s->orders, 0); /* until the engine reads again, or is gone */
}

static void on_orders(void *arg, int fd, uint32_t events)
{
    (void)fd, (void)events;
    pump(arg);
}

/* ---- lifecycle ---- */

static void on_kill(void *arg)
{
    struct supervisor *s = arg;
    struct err e;

    err_set(&e, ERR_TIMEOUT, "the engine did not stop within %.1f s",
            (double)s->cfg.stop_us / 1e6);
    if (s->child)
        child_kill(s->child, &e);
}

int supervisor_new(const struct supervisor_cfg *cfg, struct supervisor **ret,
                   struct err *e)
{
    struct supervisor *s = xcalloc(1, sizeof(*s));
    const char *slash = strrchr(cfg->model_path, '/');

    s->cfg = *cfg;
    s->delay_us = cfg->backoff_us;
    if (cfg->store)
        store_secret(cfg->store, s->secret);
    s->kv_file = cfg->kv_file ? xstrdup(cfg->kv_file) : NULL;
    snprintf(s->st.name, sizeof(s->st.name), "%s", cfg->instance);
    snprintf(s->st.mode, sizeof(s->st.mode), "%s", cfg->mode);
    snprintf(s->st.layout_why, sizeof(s->st.layout_why), "%s",
             cfg->layout_why ? cfg->layout_why : "");
    /* until the file tells its own name */
    snprintf(s->st.model, sizeof(s->st.model), "%s",
             cfg->model_name[0] ? cfg->model_name
             : slash            ? slash + 1
                                : cfg->model_path);
    s->retry = loop_timer_new(cfg->loop, on_retry, s);
    s->tick = loop_timer_new(cfg->loop, supervisor_tick, s);
    s->kill = loop_timer_new(cfg->loop, on_kill, s);
    if (warming_init(&s->warming, e) < 0 ||
        loop_fd_add(cfg->loop, target_fd(cfg->target), EPOLLIN, on_orders, s, &s->orders,
                    e) < 0) {
        supervisor_free(s);
        return -1;
    }
    loop_timer_set(s->tick, now_us() + supervisor_tick_us(s));
    target_set_status(cfg->target, &s->st);
    *ret = s;
    return 0;
}

void supervisor_free(struct supervisor *s)
{
    if (!s)
        return;
    loader_free(s->loader);
    child_free(s->child);
    tokenizer_free(s->next.tok);
    free(s->kv_file);
    free(s->rank_cpus);
    free(s->next.shapes);
    warming_done(&s->warming);
    loop_fd_del(s->orders);
    loop_timer_free(s->retry);
    loop_timer_free(s->tick);
    loop_timer_free(s->kill);
    free(s);
}

void supervisor_stop(struct supervisor *s, const struct err *why, const char *reason)
{
    if (s->stopping)
        return;
    s->stopping = true;
    if (why)
        s->stop_why = *why;
    else
        err_set(&s->stop_why, ERR_UNAVAIL, "the server is stopping");
    if (reason)
        snprintf(s->st.error, sizeof(s->st.error), "%s", reason);
    target_drain(s->cfg.target, true);
    loop_timer_set(s->retry, -1);
    if (s->child) {
        child_stop(s->child);
        loop_timer_set(s->kill, now_us() + s->cfg.stop_us);
    } else if (!s->loader) {
        stopped(s);
    }
}

const struct instance_status *supervisor_status(const struct supervisor *s)
{
    return &s->st;
}

const struct shapes *supervisor_shapes(const struct supervisor *s)
{
    return s->next.shapes;
}

const char *supervisor_lines(const struct supervisor *s) { return s->lines; }

bool supervisor_stopped(const struct supervisor *s)
{
    return s->st.state == INSTANCE_STOPPED;
}

/* tests/unit/test_supervisor.c - an engine that starts, crashes, hangs, says nonsense or
 * will not stop, and what becomes of its requests. The engine is fake_engine.h. */
#include "tests/test.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/router_ctl.h"
#include "daemon/ctrl/supervisor.h"
#include "daemon/ctrl/target.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/expertpage.h"
#include "daemon/serve/rankpage.h"
#include "daemon/serve/tracepage.h"
#include "tests/unit/fake_engine.h"

/* ---- the fixture ---- */

struct fix {
    struct loop *l;
    struct router *r;
    struct target *t;
    struct supervisor *s;
    struct metric_page *page;
    struct supervisor_cfg cfg;
    int page_fd, ranks_fd, experts_fd, trace_fd, ready;
    char fake[32], *args[1];
    char silent[256]; /* why that was told last; "" it is well */
};

static int n_opens, n_bad_opens;

static int fake_open(const char *path, const char *name, struct loaded *ret,
                     struct err *e)
{
    (void)name;
    if (n_opens++ < n_bad_opens)
        return err_set(e, ERR_CORRUPT, "%s: cut short", path);
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->facts.name, sizeof(ret->facts.name), "model");
    return 0;
}

static void on_ready(void *arg, const struct served *m)
{
    struct fix *f = arg;

    assert_string_equal(m->name, "model");
    f->ready++;
}

static void on_trouble(void *arg, enum alarm_engine kind, const char *why)
{
    struct fix *f = arg;

    assert_int_equal(kind, ALARM_ENGINE_SILENT);
    snprintf(f->silent, sizeof(f->silent), "%s", why ? why : "");
}

static int set_up(void **state)
{
    struct fix *f = calloc(1, sizeof(*f));
    struct target_cfg tc = {.instance = "0", .generation = 1, .max_live = 100000};
    struct err e;

    n_opens = n_bad_opens = 0;
    metric_page_new(metrics_defs, METRICS_N, NULL, &f->page, &e);
    metric_page_new(metrics_defs, METRICS_N, &f->page_fd, &tc.page, &e);
    rankpage_new(&f->ranks_fd, &tc.ranks, &e);
    expertpage_new(&f->experts_fd, &tc.experts, &e);
    tracepage_new(&f->trace_fd, &tc.trace, &e);
    if (loop_new(&f->l, &e) < 0 || router_new(f->page, &f->r, &e) < 0 ||
        target_new(f->r, &tc, &f->t, &e) < 0)
        return -1;
    f->args[0] = f->fake;
    f->cfg = (struct supervisor_cfg){
        .loop = f->l,
        .target = f->t,
        .page = f->page,
        .engine_page_fd = f->page_fd,
        .engine_ranks_fd = f->ranks_fd,
        .engine_experts_fd = f->experts_fd,
        .engine_trace_fd = f->trace_fd,
        .instance = "0",
        .model_path = "/models/file.gguf",
        .model_name = "",
        .mode = "chunked",
        .options = "{}",
        .program = "/proc/self/exe",
        .log_level = "error",
        .args = f->args,
        .n_args = 1,
        .open = fake_open,
        .ready = on_ready,
        .trouble = on_trouble,
        .arg = f,
    };
    supervisor_cfg_times(&f->cfg);
    f->cfg.backoff_us = 10000;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fix *f = *state;

    supervisor_free(f->s);
    target_free(f->t);
    router_free(f->r);
    loop_free(f->l);
    metric_page_free(f->page);
    close(f->page_fd);
    close(f->ranks_fd);
    close(f->experts_fd);
    close(f->trace_fd);
    free(f);
    return 0;
}

static void start(struct fix *f, const char *act)
{
    struct err e;

    snprintf(f->fake, sizeof(f->fake), "--fake=%s", act);
    assert_int_equal(supervisor_new(&f->cfg, &f->s, &e), 0);
    supervisor_start(f->s);
}

static struct instance_status status(struct fix *f)
{
    struct instance_status s;

    router_instances(f->r, &s, 1);
    return s;
}

/* Turn the loop until the condition holds; a test that never gets there is ended by the
 * time limit of the binary. */
#define UNTIL(f, cond)                                                                   \
    while (!(cond))                                                                      \
    assert_int_equal(loop_once((f)->l, clock_now_us(clock_real()) + 20000, NULL), 0)

static void until_state(struct fix *f, enum instance_state want)
{
    UNTIL(f, status(f).state == want);
}

struct seen {
    int tokens, finishes;
    enum finish_reason reason;
    enum err_code code;
    char msg[512];
};

static void on_tokens(void *arg, const struct step_token *t, int n, bool scored)
{
    struct seen *s = arg;

    (void)scored;
    assert_int_equal(t[0].id, 7);
    s->tokens += n;
}

static void on_finish(void *arg, const struct gen_finish *g)
{
    struct seen *s = arg;

    s->finishes++;
    s->reason = g->reason;
    s->code = g->error ? g->error->code : ERR_OK;
    snprintf(s->msg, sizeof(s->msg), "%s", g->error ? g->error->msg : "");
}

static uint64_t ask_for(struct fix *f, struct seen *s, int max_tokens)
{
    static const int32_t prompt[2] = {1, 2};
    struct gen_submit g = {
        .params = {.n_prompt = 2,
                   .max_tokens = max_tokens,
                   .top_p = 1,
                   .repetition = 1,
                   .n_top = -1},
        .prompt = prompt,
        .sink = {on_tokens, on_finish, s},
    };
    const struct served *m = router_model(f->r, NULL, NULL);
    uint64_t id = 0;
    struct err e;

    assert_non_null(m);
    if (router_submit(f->r, m, &g, 1, &id, &e) < 0)
        fail_msg("%s", e.msg);
    router_unref(f->r, m);
    return id;
}

static uint64_t ask(struct fix *f, struct seen *s) { return ask_for(f, s, 3); }

/* ---- the tests ---- */

static void serves_and_stops(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};

    start(f, "echo");
    assert_string_equal(status(f).model, "file.gguf");
    until_state(f, INSTANCE_READY);
    assert_int_equal(f->ready, 1);
    assert_string_equal(status(f).model, "model");
    assert_int_equal(status(f).n_ctx, 64);
    ask(f, &s);
    UNTIL(f, s.finishes);
    assert_int_equal(s.tokens, 3);
    assert_int_equal(s.reason, FINISH_LENGTH);
    supervisor_stop(f->s, NULL, NULL);
    UNTIL(f, supervisor_stopped(f->s));
    /* one request: the generation that warms it is counted nowhere */
    assert_true(metric_get(target_page(f->t), M_STEPS, 0) == 1);
    assert_true(metric_get(target_page(f->t), M_ITER_TOK, 0) == 1);
    assert_true(metric_get(f->page, M_ENGINE_FAILURES, 0) == 0);
    assert_true(metric_get(f->page, M_ENGINE_STARTS, 0) == 1);
}

static int open_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void crash_fails_requests_and_restarts(void **state)
{
    struct fix *f = *state;
    struct seen s[3] = {0};
    struct err e;
    int fds;

    start(f, "hold");
    until_state(f, INSTANCE_READY);
    for (int i = 0; i < 3; i++)
        ask(f, &s[i]);
    UNTIL(f, s[2].tokens);
    fds = open_descriptors();
    assert_int_equal(status(f).running, 5);
    kill(status(f).pid, SIGKILL);
    UNTIL(f, s[0].finishes);
    assert_int_not_equal(status(f).state, INSTANCE_READY);
    assert_int_equal(status(f).running, 0);
    assert_int_equal(router_ready(f->r, &e), -1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s[i].finishes, 1);
        assert_int_equal(s[i].reason, FINISH_ERROR);
        assert_int_equal(s[i].code, ERR_UNAVAIL);
        assert_non_null(strstr(s[i].msg, "signal 9"));
    }
    until_state(f, INSTANCE_READY);
    assert_int_equal(f->ready, 2);
    assert_int_equal(status(f).restarts, 1);
    assert_int_equal(open_descriptors(), fds);
    assert_true(metric_get(f->page, M_ENGINE_FAILURES, 0) == 1);
}

static void recompute(struct fix *f)
{
    struct served_hot h = {.temperature = 1, .top_p = 1, .recompute = true};

    h.restart_wait_us = 60000000;
    target_set_hot(f->t, &h);
}

/* One token of each engine, and the third ends it: its client sees the three and no more.
 * A second death under the others is their end. */
static void crash_is_outlived(void **state)
{
    struct fix *f = *state;
    struct seen s[2] = {0};

    start(f, "hold");
    recompute(f);
    until_state(f, INSTANCE_READY);
    ask_for(f, &s[0], 2);
    ask(f, &s[1]);
    UNTIL(f, s[0].tokens == 1 && s[1].tokens == 1);
    kill(status(f).pid, SIGKILL);
    UNTIL(f, s[0].finishes);
    assert_int_equal(s[0].reason, FINISH_LENGTH);
    assert_int_equal(s[0].tokens, 2);
    UNTIL(f, s[1].tokens == 2);
    assert_int_equal(s[1].finishes, 0);
    assert_int_equal(f->ready, 2);
    kill(status(f).pid, SIGKILL);
    UNTIL(f, s[1].finishes);
    assert_int_equal(s[1].reason, FINISH_ERROR);
    assert_int_equal(s[1].code, ERR_INTERNAL);
    assert_non_null(strstr(s[1].msg, "failed 2 times under this request"));
    assert_non_null(strstr(s[1].msg, "signal 9"));
    assert_true(metric_get(target_page(f->t), M_REQ_RESUMED, 0) == 2);
}

static void poison_is_not_tried_for_ever(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};

    start(f, "poison");
    recompute(f);
    until_state(f, INSTANCE_READY);
    ask(f, &s);
    UNTIL(f, s.finishes);
    assert_int_equal(s.code, ERR_INTERNAL);
    assert_int_equal(s.tokens, 3); /* the first engine said all before it ended */
    UNTIL(f, f->ready == 3);
}

/* Those that wait for an engine that does not come are told when it is stopped. */
static void stop_ends_those_that_wait(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};

    f->cfg.backoff_us = 60000000;
    start(f, "hold");
    recompute(f);
    until_state(f, INSTANCE_READY);
    ask(f, &s);
    UNTIL(f, s.tokens);
    kill(status(f).pid, SIGKILL);
    until_state(f, INSTANCE_BACKOFF);
    assert_int_equal(s.finishes, 0);
    supervisor_stop(f->s, NULL, NULL);
    assert_int_equal(s.finishes, 1);
    assert_int_equal(s.code, ERR_UNAVAIL);
    assert_true(supervisor_stopped(f->s));
}

static void cancels(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    uint64_t id;

    start(f, "hold");
    until_state(f, INSTANCE_READY);
    id = ask(f, &s);
    UNTIL(f, s.tokens);
    router_cancel(f->r, id);
    UNTIL(f, s.finishes);
    assert_int_equal(s.reason, FINISH_ABORT);
}

static void refusal_keeps_its_code(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};

    start(f, "refuse");
    until_state(f, INSTANCE_READY);
    ask(f, &s);
    UNTIL(f, s.finishes);
    assert_int_equal(s.code, ERR_BUSY);
    assert_string_equal(s.msg, "the queue is full");
}

static void failures_while_starting(void **state)
{
    static const struct {
        const char *act, *why;
        enum instance_state seen;
    } rows[] = {
        {"exit", "exit code 3", INSTANCE_FAILED},
        {"fail", "it needs 9 GiB", INSTANCE_FAILED},
        {"fail-stay", "it needs 9 GiB", INSTANCE_FAILED},
        {"silent", "said nothing for 0.2 s", INSTANCE_FAILED},
        {"lame", "not got on for 0.2 s", INSTANCE_FAILED},
        {"stops", "not got on for 0.2 s", INSTANCE_FAILED},
        {"cold", "its first generation failed: the queue is full", INSTANCE_FAILED},
        {"garbage", "not a message", INSTANCE_BACKOFF},
        {"hangup", "closed its connection", INSTANCE_BACKOFF},
    };
    struct fix *f = *state;

    f->cfg.backoff_us = 60000000;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        /* a limit only where it is waited for: a busy machine is slow to start one */
        f->cfg.hello_us = strcmp(rows[i].act, "silent") ? 60000000 : 200000;
        f->cfg.load_us = strstr(rows[i].why, "not got on") ? 200000 : 60000000;
        start(f, rows[i].act);
        until_state(f, rows[i].seen);
        if (!strstr(status(f).error, rows[i].why))
            fail_msg("%s: %s", rows[i].act, status(f).error);
        supervisor_free(f->s);
        f->s = NULL;
    }
}

static void backoff_doubles(void **state)
{
    struct fix *f = *state;
    int64_t wait[4], last = 0;

    f->cfg.backoff_us = 10000;
    f->cfg.backoff_max_us = 30000;
    start(f, "exit");
    for (int i = 0; i < 4; i++) {
        UNTIL(f, status(f).state == INSTANCE_FAILED && status(f).retry_at_us != last);
        last = status(f).retry_at_us;
        wait[i] = last - status(f).since_us;
    }
    assert_in_range(wait[0], 9000, 10000);
    assert_in_range(wait[1], 19000, 20000);
    assert_in_range(wait[2], 29000, 30000);
    assert_in_range(wait[3], 29000, 30000);
}

static void unreadable_model(void **state)
{
    struct fix *f = *state;
    struct err e;

    n_bad_opens = 2;
    f->cfg.program = "/nonexistent/engine";
    start(f, "echo");
    until_state(f, INSTANCE_FAILED);
    assert_string_equal(status(f).error, "/models/file.gguf: cut short");
    assert_int_equal(router_ready(f->r, &e), -1);
    assert_non_null(strstr(e.msg, "cut short; next try in"));
    assert_null(router_model(f->r, NULL, &e));
    UNTIL(f, strstr(status(f).error, "/nonexistent/engine"));
    assert_true(n_opens >= 3);
}

static void stuck_is_killed(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};

    f->cfg.stuck_us = 300000;
    f->cfg.backoff_us = 60000000;
    start(f, "hold");
    until_state(f, INSTANCE_READY);
    for (int64_t until = clock_now_us(clock_real()) + 500000;
         clock_now_us(clock_real()) < until;)
        loop_once(f->l, until, NULL);
    assert_int_equal(status(f).state, INSTANCE_READY); /* idle is not stuck */
    ask(f, &s);
    UNTIL(f, s.finishes);
    assert_int_equal(s.tokens, 1);
    assert_int_equal(s.code, ERR_UNAVAIL);
    assert_non_null(strstr(status(f).error, "no step has ended"));
}

/* One that has nothing to do and does not say that it is alive. */
static void mute_is_killed(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    struct err e;

    f->cfg.answer_us = 100000;
    f->cfg.silent_us = 400000;
    f->cfg.backoff_us = 60000000;
    start(f, "mute");
    until_state(f, INSTANCE_READY);
    until_state(f, INSTANCE_SILENT);
    assert_string_equal(status(f).error, "its engine gives no sign of life");
    assert_int_equal(router_ready(f->r, &e), -1);
    assert_non_null(strstr(e.msg, "no sign of life for "));
    assert_true(metric_get(f->page, M_READY, 0) == 0);
    assert_non_null(strstr(f->silent, "no sign of life for "));
    assert_non_null(strstr(f->silent, "it is restarted after 0.4 s"));
    ask(f, &s); /* a step that ends is a sign too */
    UNTIL(f, s.finishes);
    assert_int_equal(s.reason, FINISH_LENGTH);
    until_state(f, INSTANCE_READY);
    assert_string_equal(f->silent, "");
    assert_string_equal(status(f).error, "");
    assert_int_equal(router_ready(f->r, &e), 0);
    until_state(f, INSTANCE_BACKOFF);
    assert_non_null(strstr(status(f).error, "the engine has not answered for "));
    assert_string_equal(f->silent, "");
    assert_int_equal(status(f).restarts, 0);
}

/* It is stopped while it is idle or drains, and goes on in time: nothing was lost. Then
 * it does not, and what waited in it is answered by the next. */
static void stopped_while_idle(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    int pid;

    f->cfg.answer_us = 100000;
    start(f, "echo");
    recompute(f);
    until_state(f, INSTANCE_READY);
    pid = status(f).pid;
    for (int drained = 0; drained < 2; drained++) {
        supervisor_drain(f->s, drained);
        kill(pid, SIGSTOP);
        until_state(f, INSTANCE_SILENT);
        s = (struct seen){0};
        if (!drained)
            ask(f, &s);
        kill(pid, SIGCONT);
        until_state(f, drained ? INSTANCE_DRAINING : INSTANCE_READY);
        UNTIL(f, drained || s.finishes);
    }
    assert_int_equal(status(f).pid, pid);
    assert_int_equal(status(f).restarts, 0);
    supervisor_set_limits(f->s, 60000000, 100000, 1000000);
    supervisor_drain(f->s, false);
    kill(pid, SIGSTOP);
    until_state(f, INSTANCE_SILENT);
    s = (struct seen){0};
    ask(f, &s);
    UNTIL(f, s.finishes);
    assert_int_equal(s.reason, FINISH_LENGTH);
    assert_int_equal(s.tokens, 3);
    assert_int_not_equal(status(f).pid, pid);
    assert_true(status(f).restarts >= 1);
    pid = status(f).pid;
    supervisor_set_limits(f->s, 0, 100000, 0); /* never killed */
    kill(pid, SIGSTOP);
    until_state(f, INSTANCE_SILENT);
    supervisor_set_limits(f->s, 0, 0, 0); /* nor asked: nobody knows */
    assert_int_equal(status(f).state, INSTANCE_READY);
    assert_int_equal(status(f).pid, pid);
}

static void drains(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    struct err e;
    uint64_t id;

    start(f, "hold");
    until_state(f, INSTANCE_READY);
    id = ask(f, &s);
    supervisor_drain(f->s, true);
    assert_int_equal(status(f).state, INSTANCE_DRAINING);
    assert_int_equal(router_ready(f->r, &e), -1);
    UNTIL(f, s.tokens);
    router_cancel(f->r, id);
    UNTIL(f, s.finishes);
    assert_int_equal(s.reason, FINISH_ABORT);
    supervisor_stop(f->s, NULL, NULL);
    UNTIL(f, supervisor_stopped(f->s));
}

static void drain_ends(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    struct err e;

    start(f, "echo");
    supervisor_drain(f->s, true); /* while it loads: it is drained when it is ready */
    until_state(f, INSTANCE_DRAINING);
    assert_int_equal(router_ready(f->r, &e), -1);
    assert_non_null(strstr(e.msg, "draining"));
    supervisor_drain(f->s, false);
    assert_int_equal(router_ready(f->r, &e), 0);
    ask(f, &s);
    UNTIL(f, s.finishes);
    assert_int_equal(s.reason, FINISH_LENGTH);
}

static void last_lines_are_kept(void **state)
{
    struct fix *f = *state;
    const char *lines, *last;

    f->cfg.backoff_us = 60000000;
    start(f, "noisy");
    until_state(f, INSTANCE_FAILED);
    lines = supervisor_lines(f->s);
    last = strrchr(lines, '\n');
    assert_string_equal(last, "\nno newline at the end");
    assert_non_null(strstr(lines, "line 29\n"));
    assert_null(strstr(lines, "line 10\n")); /* the last twenty */
    assert_non_null(strstr(lines, "line 11\n"));
}

static void deaf_engine_is_killed_at_stop(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};

    f->cfg.stop_us = 100000;
    start(f, "deaf");
    until_state(f, INSTANCE_READY);
    supervisor_stop(f->s, NULL, NULL);
    UNTIL(f, supervisor_stopped(f->s));
    assert_int_equal(s.finishes, 0);
}

static void stop_while_opening_and_waiting(void **state)
{
    struct fix *f = *state;

    start(f, "silent");
    supervisor_stop(f->s, NULL, NULL); /* the loader is at work */
    UNTIL(f, supervisor_stopped(f->s));
    supervisor_free(f->s);
    f->cfg.backoff_us = 60000000;
    start(f, "exit");
    until_state(f, INSTANCE_FAILED);
    supervisor_stop(f->s, NULL, NULL);
    assert_true(supervisor_stopped(f->s));
}

/* More than a socket holds, so that handing over stops and goes on. */
static void many_large_requests(void **state)
{
    enum { N = 300, PROMPT = 8000 };
    static int32_t prompt[PROMPT];
    static struct seen seen[N];
    struct fix *f = *state;
    const struct served *m;
    int done = 0;

    start(f, "echo");
    until_state(f, INSTANCE_READY);
    m = router_model(f->r, NULL, NULL);
    for (int i = 0; i < N; i++) {
        struct gen_submit g = {
            .params = {.n_prompt = PROMPT,
                       .max_tokens = 2,
                       .top_p = 1,
                       .repetition = 1,
                       .n_top = -1},
            .prompt = prompt,
            .sink = {on_tokens, on_finish, &seen[i]},
        };
        uint64_t id;
        assert_int_equal(router_submit(f->r, m, &g, 1, &id, NULL), 0);
    }
    router_unref(f->r, m);
    while (done < N) {
        UNTIL(f, seen[done].finishes);
        assert_int_equal(seen[done].tokens, 2);
        assert_int_equal(seen[done++].finishes, 1);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
static const struct CMUnitTest tests[] = {
    T(serves_and_stops),
    T(crash_fails_requests_and_restarts),
    T(crash_is_outlived),
    T(poison_is_not_tried_for_ever),
    T(stop_ends_those_that_wait),
    T(cancels),
    T(refusal_keeps_its_code),
    T(failures_while_starting),
    T(backoff_doubles),
    T(unreadable_model),
    T(stuck_is_killed),
    T(mute_is_killed),
    T(stopped_while_idle),
    T(drains),
    T(drain_ends),
    T(last_lines_are_kept),
    T(deaf_engine_is_killed_at_stop),
    T(stop_while_opening_and_waiting),
    T(many_large_requests),
};

int main(int argc, char **argv)
{
    fake_engine_main(argc, argv);
    return test_main(argc, argv, "supervisor", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/unit/test_fleet.c - what a change of the configuration does to engines that run:
 * nothing, a replacement beside or after the old one, a failure; and what operators
 * order. Engines are fake_engine.h, chosen by the last word of the model's path. */
#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/cpuset.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/fleet.h"
#include "daemon/ctrl/router_ctl.h"
#include "state/store.h"
#include "tests/unit/fake_engine.h"

struct fix {
    struct loop *l;
    struct router *r;
    struct fleet *f;
    struct store *store;
    struct metric_page *page;
    struct fleet_cfg cfg;
    char dir[64];
    int done, ready;
    struct err why;    /* of the last done; OK = NULL */
    char trouble[512]; /* the last that was told; "" = NULL */
};

static uint64_t need_mib; /* of each engine; 0 = not known */

static uint64_t fake_need(const char *path, const struct conf_instance *i)
{
    (void)path, (void)i;
    return need_mib << 20;
}

static int fake_open(const char *path, const char *name, struct loaded *ret,
                     struct err *e)
{
    (void)e;
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->facts.name, sizeof(ret->facts.name), "%s",
             name[0] ? name : strrchr(path, '/') + 1);
    return 0;
}

static void on_ready(void *arg, const char *instance)
{
    struct fix *f = arg;

    (void)instance;
    f->ready++;
}

static void on_trouble(void *arg, const char *instance, enum alarm_engine kind,
                       const char *why)
{
    struct fix *f = arg;

    (void)instance;
    if (kind == ALARM_ENGINE_FAILED)
        snprintf(f->trouble, sizeof(f->trouble), "%s", why ? why : "");
}

static void new_fleet(struct fix *f)
{
    struct err e;

    assert_int_equal(router_new(f->page, &f->r, &e), 0);
    f->cfg.router = f->r;
    assert_int_equal(fleet_new(&f->cfg, &f->f, &e), 0);
}

static int set_up(void **state)
{
    struct fix *f = calloc(1, sizeof(*f));
    struct err e;

    need_mib = 0;
    snprintf(f->dir, sizeof(f->dir), "/tmp/test-fleet-XXXXXX");
    if (!mkdtemp(f->dir) || store_open(f->dir, &f->store, &e) < 0 ||
        loop_new(&f->l, &e) < 0 ||
        metric_page_new(metrics_defs, METRICS_N, NULL, &f->page, &e) < 0)
        return -1;
    f->cfg = (struct fleet_cfg){
        .loop = f->l,
        .store = f->store,
        .page = f->page,
        .program = "/proc/self/exe",
        .memory_bytes = (int64_t)100 << 20,
        .ready = on_ready,
        .trouble = on_trouble,
        .arg = f,
        .open = fake_open,
        .need = fake_need,
        .backoff_us = 10000,
    };
    new_fleet(f);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fix *f = *state;
    char cmd[128];

    fleet_free(f->f);
    router_free(f->r);
    loop_free(f->l);
    store_close(f->store);
    metric_page_free(f->page);
    snprintf(cmd, sizeof(cmd), "rm -r %s", f->dir);
    if (system(cmd) != 0)
        return -1;
    free(f);
    return 0;
}

/* Turn the loop until the condition holds; a test that never gets there is ended by the
 * time limit of the binary. */
#define UNTIL(f, cond)                                                                   \
    while (!(cond))                                                                      \
    assert_int_equal(loop_once((f)->l, clock_now_us(clock_real()) + 20000, NULL), 0)

static struct conf *parse(const char *text)
{
    struct conf_faults faults = {0};
    struct conf *c = NULL;

    if (conf_parse(text, strlen(text), NULL, 0, &c, &faults) < 0)
        fail_msg("line %d: %s: %s", faults.v[0].line, faults.v[0].path, faults.v[0].msg);
    return c;
}

/* One instance "one" that serves "alpha". */
static struct conf *one(const char *model, const char *more)
{
    struct conf *c;
    struct buf b;

    buf_init(&b, 0);
    buf_printf(&b,
               "models:\n  a:\n    path: %s\ninstances:\n  one:\n    model: a\n"
               "    served_as: alpha\n%s",
               model, more);
    c = parse(b.p);
    buf_done(&b);
    return c;
}

static void on_done(void *arg, const struct err *why)
{
    struct fix *f = arg;

    f->done++;
    f->why = why ? *why : (struct err){0};
}

static void begin(struct fix *f, struct conf *c)
{
    struct err e;

    f->done = 0;
    if (fleet_apply(f->f, c, on_done, f, &e) < 0)
        fail_msg("%s", e.msg);
    conf_unref(c);
}

static void apply(struct fix *f, struct conf *c)
{
    begin(f, c);
    UNTIL(f, f->done);
    if (f->why.code != ERR_OK)
        fail_msg("%s", f->why.msg);
}

static int instances(struct fix *f, struct instance_status s[8])
{
    return router_instances(f->r, s, 8);
}

static struct instance_status first(struct fix *f)
{
    struct instance_status s[8];

    assert_true(instances(f, s) > 0);
    return s[0];
}

struct seen {
    int tokens, finishes;
    enum finish_reason reason;
    char msg[512], instance[64];
};

static void on_tokens(void *arg, const struct step_token *t, int n, bool scored)
{
    struct seen *s = arg;

    (void)t, (void)scored;
    s->tokens += n;
}

static void on_finish(void *arg, const struct gen_finish *g)
{
    struct seen *s = arg;

    s->finishes++;
    s->reason = g->reason;
    snprintf(s->msg, sizeof(s->msg), "%s", g->error ? g->error->msg : "");
    snprintf(s->instance, sizeof(s->instance), "%s", g->instance);
}

static int try_ask(struct fix *f, const char *name, struct seen *s, uint64_t *ret_id,
                   struct err *e)
{
    static const int32_t prompt[2] = {1, 2};
    struct gen_submit g = {
        .params =
            {.n_prompt = 2, .max_tokens = 3, .top_p = 1, .repetition = 1, .n_top = -1},
        .prompt = prompt,
        .sink = {on_tokens, on_finish, s},
    };
    const struct served *m = router_model(f->r, name, e);
    int rc = m ? router_submit(f->r, m, &g, 1, ret_id, e) : -1;

    router_unref(f->r, m);
    return rc;
}

static uint64_t ask(struct fix *f, const char *name, struct seen *s)
{
    uint64_t id = 0;
    struct err e;

    if (try_ask(f, name, s, &id, &e) < 0)
        fail_msg("%s", e.msg);
    return id;
}

static int plan(struct fix *f, struct conf *c, struct fleet_action a[8])
{
    int n = fleet_plan(f->f, c, a, 8);

    conf_unref(c);
    return n;
}

/* Those of this process, as instances tell them. */
static const char *all_cpus(void)
{
    static char out[64];
    cpu_set_t mine;

    cpuset_mine(&mine);
    cpuset_print(&mine, out, sizeof(out));
    return out;
}

/* ---- changes ---- */

static void hot_touches_nothing(void **state)
{
    struct fix *f = *state;
    struct fleet_action a[8];
    struct served_hot h;
    const struct served *m;
    const char *hot = "    sampling:\n      temperature: 0.25\n    stuck_s: 7\n";
    struct conf *c;
    int pid;

    assert_null(fleet_conf(f->f));
    assert_int_equal(plan(f, one("/fake/echo", ""), a), 1);
    assert_int_equal(a[0].kind, FLEET_START);
    apply(f, one("/fake/echo", ""));
    assert_int_equal(f->ready, 1);
    pid = first(f).pid;
    assert_int_equal(plan(f, one("/fake/echo", ""), a), 1);
    assert_int_equal(a[0].kind, FLEET_KEEP);
    assert_int_equal(plan(f, one("/fake/echo", hot), a), 1);
    assert_int_equal(a[0].kind, FLEET_HOT);
    assert_string_equal(a[0].why, "sampling.temperature 0.6 -> 0.25");
    apply(f, one("/fake/echo", hot));
    assert_int_equal(first(f).pid, pid);
    assert_int_equal(first(f).generation, 1);
    assert_int_equal(f->ready, 1);
    m = router_model(f->r, "alpha", NULL);
    router_hot(f->r, m, &h);
    router_unref(f->r, m);
    assert_true(h.temperature == 0.25f && h.top_p == 0.9f);
    c = fleet_conf(f->f);
    assert_true(c->instances[0].sampling.temperature == 0.25);
    conf_unref(c);
}

/* What the engines of alpha were told of spinning: 1 yes and 2 no, summed. */
static int told_of_spin(struct fix *f)
{
    struct page_group *g = xcalloc(8, sizeof(*g));
    int n = router_groups_get(f->r, g, 8);
    double sum = 0;

    for (int i = 0; i < n; i++)
        if (!strcmp(g[i].model, "alpha") && g[i].instance[0])
            sum = metric_total(g[i].pages, g[i].n, M_KV_BLOCKS_FREE, 0);
    router_pages_put(f->r);
    free(g);
    return (int)sum;
}

static void replaces_without_losing_a_request(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct fleet_action a[8];
    struct seen old = {0}, fresh = {0};
    uint64_t id;
    int pid;

    apply(f, one("/fake/hold", ""));
    pid = first(f).pid;
    UNTIL(f, told_of_spin(f) == 1); /* alone on its CPUs */
    id = ask(f, "alpha", &old);
    UNTIL(f, old.tokens);
    assert_int_equal(plan(f, one("/fake/hold", "    mode: colocated\n"), a), 1);
    assert_int_equal(a[0].kind, FLEET_REPLACE);
    assert_string_equal(a[0].why, "mode chunked -> colocated");
    assert_int_equal(a[0].live, 1);
    assert_true(a[0].fits);
    apply(f, one("/fake/hold", "    mode: colocated\n"));
    assert_int_equal(instances(f, s),
                     2); /* done, and the old one still has its request */
    assert_int_equal(s[0].pid, pid);
    assert_int_equal(s[0].state, INSTANCE_DRAINING);
    assert_int_equal(s[1].state, INSTANCE_READY);
    assert_int_equal(s[1].generation, 2);
    assert_int_equal(old.finishes, 0);
    UNTIL(f, told_of_spin(f) == 4); /* there are twice as many threads as CPUs */
    ask(f, "alpha", &fresh);
    UNTIL(f, fresh.tokens);
    assert_int_equal(instances(f, s), 2);
    assert_int_equal(s[0].live, 1);
    assert_int_equal(s[1].live, 1);
    router_cancel(f->r, id); /* the fake engine ends it so; a real one would by itself */
    UNTIL(f, old.finishes);
    assert_int_equal(old.reason, FINISH_ABORT);
    UNTIL(f, instances(f, s) == 1);
    assert_int_equal(s[0].generation, 2);
    UNTIL(f, told_of_spin(f) == 1);
    assert_int_equal(fresh.finishes, 0);
    assert_true(metric_get(f->page, M_ENGINE_FAILURES, 0) == 0);
}

/* Requests keep being answered while the new engine loads, also those that come then. */
static void the_old_one_serves_meanwhile(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct seen a = {0}, b = {0};
    char path[128];

    snprintf(path, sizeof(path), "%s/gated", f->dir);
    apply(f, one("/fake/echo", ""));
    begin(f, one(path, ""));
    UNTIL(f, instances(f, s) == 2 && s[1].state == INSTANCE_LOADING);
    ask(f, NULL, &a);
    UNTIL(f, a.finishes);
    assert_int_equal(a.reason, FINISH_LENGTH);
    assert_int_equal(f->done, 0);
    snprintf(path, sizeof(path), "%s/gated.go", f->dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    UNTIL(f, f->done);
    UNTIL(f, instances(f, s) == 1);
    ask(f, NULL, &b);
    UNTIL(f, b.finishes);
    assert_string_equal(b.instance, "one");
    assert_int_equal(s[0].generation, 2);
}

static void drains_first_where_both_do_not_fit(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct fleet_action a[8];
    struct seen seen = {0};
    struct conf *c;
    struct err e;
    uint64_t id;

    need_mib = 60; /* of 100 */
    apply(f, one("/fake/hold", ""));
    id = ask(f, NULL, &seen);
    UNTIL(f, seen.tokens);
    assert_int_equal(plan(f, one("/fake/hold", "    step_tok: 64\n"), a), 1);
    assert_int_equal(a[0].kind, FLEET_DRAIN_FIRST);
    assert_true(a[0].need == (uint64_t)60 << 20 && a[0].have == (uint64_t)40 << 20);
    assert_true(a[0].fits);
    begin(f, one("/fake/hold", "    step_tok: 64\n"));
    for (int i = 0; i < 5; i++)
        loop_once(f->l, clock_now_us(clock_real()) + 5000, NULL);
    assert_int_equal(instances(f, s), 1); /* the new one waits */
    assert_int_equal(s[0].state, INSTANCE_DRAINING);
    assert_int_equal(router_ready(f->r, &e), -1);
    router_cancel(f->r, id);
    UNTIL(f, f->done);
    assert_int_equal(f->why.code, ERR_OK);
    assert_int_equal(instances(f, s), 1);
    assert_int_equal(s[0].generation, 2);
    need_mib = 101; /* alone it is too much */
    c = one("/fake/hold", "    step_tok: 32\n");
    assert_int_equal(fleet_apply(f->f, c, on_done, f, &e), -1);
    assert_int_equal(e.code, ERR_NOFIT);
    assert_non_null(strstr(e.msg, "needs 101 MiB"));
    conf_unref(c);
    assert_int_equal(router_ready(f->r, &e), 0);
}

static void failed_start_tells_and_the_old_one_goes_on(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct seen seen = {0};
    int pid;

    apply(f, one("/fake/echo", ""));
    pid = first(f).pid;
    begin(f, one("/fake/noisy", ""));
    UNTIL(f, f->done);
    assert_int_equal(f->done, 1);
    assert_int_equal(f->why.code, ERR_UNAVAIL);
    assert_non_null(
        strstr(f->why.msg, "instance 'one': the engine ended with exit code 3"));
    assert_non_null(strstr(f->why.msg, "line 29|no newline at the end"));
    ask(f, "alpha", &seen);
    UNTIL(f, seen.finishes);
    assert_int_equal(seen.reason, FINISH_LENGTH);
    UNTIL(f, instances(f, s) == 1);
    assert_int_equal(s[0].pid, pid);
    apply(f, one("/fake/echo", "")); /* the former one: nothing is left to do */
    assert_int_equal(first(f).pid, pid);
}

/* A new instance that fails says so once and goes on trying by itself. */
static void failed_first_start_tries_on(void **state)
{
    struct fix *f = *state;

    begin(f, one("/fake/fail", ""));
    UNTIL(f, f->done);
    assert_non_null(strstr(f->why.msg, "it needs 9 GiB"));
    UNTIL(f, first(f).restarts >= 2);
    assert_int_equal(f->done, 1);
    assert_non_null(strstr(f->trouble, "it needs 9 GiB"));
    apply(f, one("/fake/echo", "")); /* and is replaced without a wait */
    UNTIL(f, first(f).state == INSTANCE_READY);
    assert_string_equal(f->trouble, "");
}

/* The old engine had to go before the new one failed: the former conf brings it back. */
static void failed_after_drain_first_comes_back(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct seen seen = {0};

    need_mib = 60;
    apply(f, one("/fake/echo", ""));
    begin(f, one("/fake/exit", ""));
    UNTIL(f, f->done);
    assert_non_null(strstr(f->why.msg, "exit code 3"));
    apply(f, one("/fake/echo", ""));
    ask(f, "alpha", &seen);
    UNTIL(f, seen.finishes);
    assert_int_equal(seen.reason, FINISH_LENGTH);
    UNTIL(f, instances(f, s) == 1);
    assert_string_equal(f->trouble, "");
}

/* What waits in the engine that is replaced goes to the new one at once. */
static void the_queue_moves_to_the_new_one(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct seen waits = {0};

    apply(f, one("/fake/queue", ""));
    ask(f, "alpha", &waits);
    UNTIL(f, first(f).running == 6); /* the engine has it */
    apply(f, one("/fake/queue", "    mode: colocated\n"));
    UNTIL(f, instances(f, s) == 1); /* nothing is left of the old one */
    assert_int_equal(s[0].generation, 2);
    assert_int_equal(s[0].live, 1);
    assert_int_equal(waits.finishes, 0);
}

static void the_drain_has_an_end(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    struct instance_status is[8];

    apply(f, one("/fake/hold", "limits:\n  drain_s: 0\n"));
    ask(f, NULL, &s);
    UNTIL(f, s.tokens);
    apply(f, one("/fake/hold", "    ctx: 64\nlimits:\n  drain_s: 0\n"));
    UNTIL(f, s.finishes);
    assert_int_equal(s.finishes, 1);
    assert_int_equal(s.reason, FINISH_ERROR);
    assert_string_equal(s.msg, "instance 'one' is being replaced and the 0 s for running "
                               "requests are over: try again");
    UNTIL(f, instances(f, is) == 1);
}

#define TWO                                                                              \
    "models:\n  a:\n    path: /fake/echo\n  b:\n    path: /fake/hold\n"                  \
    "instances:\n  one:\n    model: a\n    served_as: alpha\n"                           \
    "  two:\n    model: b\n    served_as: beta\n"

#define TWO_HOLD                                                                         \
    "models:\n  a:\n    path: /fake/hold\n"                                              \
    "instances:\n  one:\n    model: a\n    served_as: alpha\n"                           \
    "  two:\n    model: a\n    served_as: beta\n"

static void two_instances_of_two_models(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct seen a = {0}, b = {0}, none = {0};
    struct fleet_action act[8];
    struct err e;
    uint64_t id;
    int pid;

    apply(f, parse(TWO));
    assert_int_equal(instances(f, s), 2);
    assert_int_equal(try_ask(f, NULL, &none, &id, &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    assert_string_equal(e.msg, "which model? this server has 'alpha', 'beta'");
    ask(f, "alpha", &a);
    ask(f, "beta", &b);
    UNTIL(f, a.finishes && b.tokens);
    assert_string_equal(a.instance, "one");
    pid = s[0].pid;
    kill(s[1].pid, SIGKILL); /* the other one does not notice */
    UNTIL(f, b.tokens == 2); /* its request goes on with the next engine */
    instances(f, s);
    kill(s[1].pid, SIGKILL);
    UNTIL(f, b.finishes);
    assert_int_equal(b.reason, FINISH_ERROR);
    assert_int_equal(first(f).pid, pid);
    assert_int_equal(router_ready(f->r, &e), 0);
    /* with one instance less the other has all CPUs to itself, and is told so */
    assert_int_equal(plan(f, one("/fake/echo", ""), act), 2);
    assert_int_equal(act[0].kind, FLEET_STOP);
    assert_string_equal(act[0].instance, "two");
    assert_int_equal(act[1].kind, FLEET_HOT);
    assert_string_equal(act[1].why, "engines that share out the CPUs: 2 -> 1");
    apply(f, one("/fake/echo", ""));
    UNTIL(f, instances(f, s) == 1);
    assert_string_equal(s[0].name, "one");
    assert_int_equal(s[0].pid, pid);
    assert_string_equal(s[0].cpus, all_cpus());
}

/* What the engine was told last: how many CPUs, by fake_engine.h. */
static int told_of_cpus(struct fix *f, const char *instance)
{
    struct page_group *g = xcalloc(8, sizeof(*g));
    int n = router_groups_get(f->r, g, 8), told = 0;

    for (int i = 0; i < n; i++)
        if (!strcmp(g[i].instance, instance))
            told = (int)metric_total(g[i].pages, g[i].n, M_KV_BLOCKS_CACHED, 0);
    router_pages_put(f->r);
    free(g);
    return told;
}

/* An instance that comes takes CPUs of those that run, and gives them back: no engine is
 * started anew for that, and a request does not notice. */
static void cpus_change_hands_live(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct fleet_action act[8];
    struct seen held = {0};
    cpu_set_t mine, half[2];
    char text[2][64];
    int pid;

    cpuset_mine(&mine);
    for (int i = 0; i < 2; i++) {
        cpuset_share(&mine, i, 2, &half[i]);
        cpuset_print(&half[i], text[i], sizeof(text[i]));
    }
    apply(f, one("/fake/hold", ""));
    pid = first(f).pid;
    assert_string_equal(first(f).cpus, all_cpus());
    ask(f, "alpha", &held);
    UNTIL(f, held.tokens);
    assert_int_equal(plan(f, parse(TWO_HOLD), act), 2);
    assert_int_equal(act[0].kind, FLEET_HOT);
    assert_string_equal(act[0].why, "engines that share out the CPUs: 1 -> 2");
    assert_int_equal(act[1].kind, FLEET_START);
    apply(f, parse(TWO_HOLD));
    UNTIL(f, told_of_cpus(f, "one") == CPU_COUNT(&half[0]));
    assert_int_equal(instances(f, s), 2);
    assert_int_equal(s[0].pid, pid);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(s[i].cpus, text[i]);
        assert_int_equal(s[i].generation, i + 1);
    }
    assert_int_equal(s[0].n_threads, CPU_COUNT(&half[0]));
    assert_int_equal(fleet_order(f->f, "two", FLEET_ORDER_STOP, "u", "", "", NULL), 0);
    UNTIL(f, told_of_cpus(f, "one") == CPU_COUNT(&mine)); /* it is gone */
    assert_string_equal(first(f).cpus, all_cpus());
    assert_int_equal(held.finishes, 0);
    assert_int_equal(first(f).pid, pid);
}

static void order(struct fix *f, enum fleet_order o)
{
    struct err e;

    if (fleet_order(f->f, "one", o, "uid 0", "", "test", &e) < 0)
        fail_msg("%s", e.msg);
}

static const char *name_of(const struct fleet_action *a, int n,
                           enum fleet_action_kind kind)
{
    for (int i = 0; i < n; i++)
        if (a[i].kind == kind)
            return a[i].instance;
    return "none";
}

#define SPLIT                                                                            \
    "    mode: split\n"                                                                  \
    "    prefill: {engines: 2}\n"

/* From one engine to two pools: the old one goes on until all new ones are ready. */
static void pools_in_place_of_one(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct fleet_action act[8];
    struct seen a = {0};
    struct err e;
    int n, ready = 0;
    uint64_t id;

    apply(f, one("/fake/hold", ""));
    id = ask(f, "alpha", &a);
    UNTIL(f, a.tokens);
    n = plan(f, one("/fake/hold", SPLIT), act);
    assert_int_equal(n, 4);
    assert_string_equal(name_of(act, n, FLEET_RETIRE), "one");
    assert_string_equal(name_of(act, n, FLEET_START), "one/prefill");
    apply(f, one("/fake/hold", SPLIT));
    assert_int_equal(instances(f, s), 4); /* the request holds the old one */
    for (int i = 0; i < 4; i++)
        ready += s[i].state == INSTANCE_READY && !strcmp(s[i].mode, "split");
    assert_int_equal(ready, 3);
    assert_int_equal(first(f).state, INSTANCE_DRAINING);
    if (a.finishes)
        fail_msg("finished: reason %d, error '%s'", a.reason, a.msg);
    router_cancel(f->r, id);
    UNTIL(f, instances(f, s) == 3);
    assert_int_equal(a.reason, FINISH_ABORT);
    /* and back */
    apply(f, one("/fake/hold", ""));
    UNTIL(f, instances(f, s) == 1);
    assert_string_equal(s[0].name, "one");
    assert_int_equal(router_ready(f->r, &e), 0);
}

/* Both pools count; where they do not fit beside the old engine it goes first. */
static void pools_need_room(void **state)
{
    struct fix *f = *state;
    struct fleet_action act[8];
    struct instance_status s[8];
    int n;

    need_mib = 30; /* of 100 */
    apply(f, one("/fake/echo", ""));
    n = plan(f, one("/fake/echo", SPLIT), act);
    assert_int_equal(n, 4);
    assert_string_equal(name_of(act, n, FLEET_STOP), "one");
    for (int i = 0; i < n; i++)
        assert_true(act[i].fits);
    apply(f, one("/fake/echo", SPLIT));
    UNTIL(f, instances(f, s) == 3);
    n = plan(f,
             one("/fake/echo",
                 "    mode: split\n    prefill: {engines: 2, step_tok: 32}\n"
                 "    decode: {step_tok: 64}\n"),
             act);
    assert_int_equal(n, 3);
    assert_string_equal(act[0].why, "prefill.step_tok 0 -> 32");
    assert_string_equal(act[2].why, "decode.step_tok 0 -> 64");
    need_mib = 40;
    n = plan(f, one("/fake/echo", SPLIT "    ctx: 32\n"), act);
    for (int i = 0; i < n; i++)
        assert_false(act[i].fits);
}

static void orders_for_both_pools(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct err e;

    apply(f, one("/fake/echo", SPLIT));
    order(f, FLEET_ORDER_DRAIN);
    instances(f, s);
    for (int i = 0; i < 3; i++)
        assert_int_equal(s[i].state, INSTANCE_DRAINING);
    assert_int_equal(
        fleet_order(f->f, "one/decode", FLEET_ORDER_UNDRAIN, "u", "", "", &e), 0);
    instances(f, s);
    assert_int_equal(s[0].state, INSTANCE_DRAINING);
    assert_int_equal(s[2].state, INSTANCE_READY);
    order(f, FLEET_ORDER_STOP);
    assert_int_equal(fleet_order(f->f, "one", FLEET_ORDER_STOP, "u", "", "", &e), -1);
    assert_string_equal(e.msg, "instance 'one/decode' does not run");
    order(f, FLEET_ORDER_START);
    UNTIL(f, f->ready == 6);
}

/* ---- operators ---- */

static void again(struct fix *f)
{
    fleet_stop(f->f);
    UNTIL(f, fleet_stopped(f->f));
    fleet_free(f->f);
    router_free(f->r);
    new_fleet(f);
}

static void a_stop_outlives_the_daemon(void **state)
{
    struct fix *f = *state;
    struct fleet_action a[8];
    struct seen s = {0};
    struct err e;
    uint64_t id;

    apply(f, one("/fake/hold", ""));
    id = ask(f, NULL, &s);
    UNTIL(f, s.tokens);
    order(f, FLEET_ORDER_STOP);
    assert_int_equal(first(f).state, INSTANCE_DRAINING);
    router_cancel(f->r, id);
    UNTIL(f, first(f).state == INSTANCE_STOPPED);
    assert_string_equal(first(f).error, "by uid 0: test");
    assert_int_equal(first(f).pid, 0);
    assert_int_equal(fleet_order(f->f, "one", FLEET_ORDER_STOP, "uid 0", "", "", &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(fleet_order(f->f, "two", FLEET_ORDER_STOP, "uid 0", "", "", &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_string_equal(e.msg, "there is no instance 'two'; there is 'one'");
    again(f);
    assert_int_equal(plan(f, one("/fake/hold", ""), a), 1);
    assert_string_equal(a[0].why, "stopped by an operator");
    apply(f, one("/fake/hold", ""));
    assert_int_equal(first(f).state, INSTANCE_STOPPED);
    assert_string_equal(first(f).error, "by uid 0: test");
    assert_int_equal(router_ready(f->r, &e), -1);
    assert_non_null(strstr(e.msg, "stopped: by uid 0: test"));
    order(f, FLEET_ORDER_START);
    UNTIL(f, router_ready(f->r, &e) == 0);
    again(f);
    apply(f, one("/fake/hold", ""));
    assert_int_equal(first(f).state, INSTANCE_READY);
}

static void drain_and_restart(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    struct seen seen = {0};
    struct err e;
    uint64_t id;
    int pid;

    apply(f, one("/fake/echo", ""));
    order(f, FLEET_ORDER_DRAIN);
    assert_int_equal(try_ask(f, NULL, &seen, &id, &e), -1);
    assert_int_equal(e.code, ERR_UNAVAIL);
    again(f);
    apply(f, one("/fake/echo", "")); /* it is ready and still takes nothing */
    assert_int_equal(first(f).state, INSTANCE_DRAINING);
    order(f, FLEET_ORDER_UNDRAIN);
    ask(f, NULL, &seen);
    UNTIL(f, seen.finishes);
    pid = first(f).pid;
    order(f, FLEET_ORDER_RESTART);
    assert_int_equal(fleet_order(f->f, "one", FLEET_ORDER_RESTART, "u", "", "", &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    UNTIL(f, instances(f, s) == 2); /* beside the old one: nobody is turned away */
    assert_int_equal(router_ready(f->r, &e), 0);
    UNTIL(f, instances(f, s) == 1 && s[0].pid != pid);
    assert_int_equal(s[0].state, INSTANCE_READY);
    ask(f, NULL, &seen);
    UNTIL(f, seen.finishes == 2);
}

/* Also one that does not get ready, in the middle of an apply, which then goes well. */
static void stop_while_it_starts(void **state)
{
    struct fix *f = *state;
    struct instance_status s[8];
    char path[128];

    snprintf(path, sizeof(path), "%s/gated", f->dir);
    begin(f, one(path, ""));
    UNTIL(f, instances(f, s) == 1 && s[0].state == INSTANCE_LOADING);
    order(f, FLEET_ORDER_STOP);
    UNTIL(f, f->done);
    assert_int_equal(f->why.code, ERR_OK);
    UNTIL(f, first(f).state == INSTANCE_STOPPED);
}

static void the_daemon_stops(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    struct err e;
    uint64_t id;

    apply(f, one("/fake/hold", ""));
    ask(f, NULL, &s);
    UNTIL(f, s.tokens);
    fleet_drain(f->f);
    assert_int_equal(try_ask(f, NULL, &s, &id, &e), -1);
    assert_non_null(strstr(e.msg, "stopping"));
    assert_int_equal(s.finishes, 0);
    fleet_stop(f->f);
    UNTIL(f, fleet_stopped(f->f));
    assert_int_equal(s.finishes, 1);
    assert_string_equal(s.msg, "the server is stopping");
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
static const struct CMUnitTest tests[] = {
    T(hot_touches_nothing),
    T(replaces_without_losing_a_request),
    T(the_old_one_serves_meanwhile),
    T(drains_first_where_both_do_not_fit),
    T(failed_start_tells_and_the_old_one_goes_on),
    T(failed_first_start_tries_on),
    T(failed_after_drain_first_comes_back),
    T(pools_in_place_of_one),
    T(pools_need_room),
    T(orders_for_both_pools),
    T(the_queue_moves_to_the_new_one),
    T(the_drain_has_an_end),
    T(two_instances_of_two_models),
    T(cpus_change_hands_live),
    T(a_stop_outlives_the_daemon),
    T(drain_and_restart),
    T(stop_while_it_starts),
    T(the_daemon_stops),
};

int main(int argc, char **argv)
{
    fake_engine_main(argc, argv);
    return test_main(argc, argv, "fleet", tests, sizeof(tests) / sizeof(tests[0]));
}

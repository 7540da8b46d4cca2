/* tests/unit/test_pools.c - requests on two pools through fleet, router and real engine
 * processes (fake_pool.h): whatever engine dies, stops or fails at whatever state of a
 * handoff, the client gets each token once, in order, and one finish. */
#include "tests/test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/metric.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/fleet.h"
#include "daemon/ctrl/router_ctl.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/ctrl/split.h"
#include "tests/unit/fake_pool.h"

struct fix {
    struct loop *l;
    struct router *r;
    struct fleet *f;
    struct metric_page *page;
    char dir[64];
    int done;
    struct err why;
};

static int fake_open(const char *path, const char *name, struct loaded *ret,
                     struct err *e)
{
    (void)e, (void)path;
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->facts.name, sizeof(ret->facts.name), "%s", name);
    return 0;
}

static uint64_t no_need(const char *path, const struct conf_instance *i)
{
    (void)path, (void)i;
    return 0;
}

static int set_up(void **state)
{
    struct fix *f = calloc(1, sizeof(*f));
    struct fleet_cfg c = {.program = "/proc/self/exe",
                          .memory_bytes = (int64_t)100 << 20,
                          .open = fake_open,
                          .need = no_need,
                          .backoff_us = 10000};
    struct err e;

    snprintf(f->dir, sizeof(f->dir), "/tmp/test-split-XXXXXX");
    if (!mkdtemp(f->dir) || loop_new(&f->l, &e) < 0 ||
        metric_page_new(metrics_defs, METRICS_N, NULL, &f->page, &e) < 0 ||
        router_new(f->page, &f->r, &e) < 0)
        return -1;
    c.loop = f->l;
    c.page = f->page;
    c.router = f->r;
    *state = f;
    return fleet_new(&c, &f->f, &e);
}

static int tear_down(void **state)
{
    struct fix *f = *state;
    char cmd[128];

    fleet_free(f->f);
    router_free(f->r);
    loop_free(f->l);
    metric_page_free(f->page);
    snprintf(cmd, sizeof(cmd), "rm -r %s", f->dir);
    if (system(cmd) != 0)
        return -1;
    free(f);
    return 0;
}

/* A test that never gets there is ended by the time limit of the binary. */
#define UNTIL(f, cond)                                                                   \
    while (!(cond))                                                                      \
    assert_int_equal(loop_once((f)->l, clock_now_us(clock_real()) + 20000, NULL), 0)

static void on_done(void *arg, const struct err *why)
{
    struct fix *f = arg;

    f->done++;
    f->why = why ? *why : (struct err){0};
}

static void begin_with(struct fix *f, const char *two, const char *more)
{
    struct conf_faults faults = {0};
    struct conf *c = NULL;
    struct buf b;
    struct err e;

    buf_init(&b, 0);
    buf_printf(&b,
               "models: {a: {path: %s/pool}, b: {path: /x/echo}}\n"
               "instances:\n%s"
               "  one:\n    model: a\n    served_as: alpha\n    stuck_s: 1\n%s",
               f->dir, two, more);
    if (conf_parse(b.p, b.len, NULL, 0, &c, &faults) < 0)
        fail_msg("%s: %s", faults.v[0].path, faults.v[0].msg);
    buf_done(&b);
    f->done = 0;
    if (fleet_apply(f->f, c, on_done, f, &e) < 0)
        fail_msg("%s", e.msg);
    conf_unref(c);
}

static void begin(struct fix *f, const char *more)
{
    begin_with(f, "  two: {model: b, served_as: beta}\n", more);
}

static void only_one(struct fix *f, const char *more) { begin_with(f, "", more); }

static void apply(struct fix *f, const char *more)
{
    begin(f, more);
    UNTIL(f, f->done);
    if (f->why.code != ERR_OK)
        fail_msg("%s", f->why.msg);
}

#define SPLIT "    mode: split\n"
#define SPLIT_2X2 SPLIT "    prefill: {engines: 2}\n    decode: {engines: 2}\n"

struct seen {
    int tokens, finishes, out_of_order;
    enum finish_reason reason;
    int n_out;
    char msg[512], instance[64];
};

static void on_tokens(void *arg, const struct step_token *t, int n, bool scored)
{
    struct seen *s = arg;

    (void)scored;
    for (int i = 0; i < n; i++)
        s->out_of_order += t[i].id != 100 + s->tokens++;
}

static void on_finish(void *arg, const struct gen_finish *g)
{
    struct seen *s = arg;

    s->finishes++;
    s->reason = g->reason;
    s->n_out = g->n_out;
    snprintf(s->msg, sizeof(s->msg), "%s", g->error ? g->error->msg : "");
    snprintf(s->instance, sizeof(s->instance), "%s", g->instance);
}

static uint64_t ask_n(struct fix *f, const char *name, int p, int d, int max,
                      struct seen *s, int n)
{
    static int32_t serial;
    int32_t prompt[20] = {p, d, ++serial};
    struct gen_submit g[4];
    uint64_t ids[4] = {0};
    const struct served *m;
    struct err e;

    for (int i = 0; i < n; i++)
        g[i] = (struct gen_submit){.params = {.n_prompt = 20,
                                              .max_tokens = max,
                                              .choice = i,
                                              .top_p = 1,
                                              .repetition = 1,
                                              .n_top = -1},
                                   .prompt = prompt,
                                   .sink = {on_tokens, on_finish, &s[i]}};
    m = router_model(f->r, name, &e);
    if (!m || router_submit(f->r, m, g, n, ids, &e) < 0)
        fail_msg("%s", e.msg);
    router_unref(f->r, m);
    return ids[0];
}

static uint64_t ask(struct fix *f, int p, int d, struct seen *s)
{
    return ask_n(f, "alpha", p, d, 5, s, 1);
}

static struct instance_status status(struct fix *f, const char *name)
{
    struct instance_status s[8];
    int n = router_instances(f->r, s, 8);

    for (int i = 0; i < n; i++)
        if (!strcmp(s[i].name, name))
            return s[i];
    return (struct instance_status){0};
}

static double counted(struct fix *f, int id)
{
    struct metric_page *p[64];
    int n = router_pages_get(f->r, p, 64);
    double v = 0;

    for (int i = 0; i < n; i++)
        v += metric_get(p[i], id, 0);

    router_pages_put(f->r);
    return v;
}

static void all_of_it(struct fix *f, const struct seen *s)
{
    UNTIL(f, s->finishes);
    if (s->reason != FINISH_LENGTH)
        fail_msg("reason %d, '%s'", s->reason, s->msg);
    assert_int_equal(s->tokens, 5);
    assert_int_equal(s->n_out, 5);
    assert_int_equal(s->out_of_order, 0);
    assert_int_equal(s->finishes, 1);
}

/* Nothing is left of any request, on no engine. */
static void at_rest(struct fix *f)
{
    struct instance_status s[8];
    int n = router_instances(f->r, s, 8);

    assert_int_equal(router_live(f->r), 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(s[i].live, 0);
        assert_int_equal(s[i].load, 0);
    }
}

/* What show pools tells when all is over. */
static void shown(struct fix *f, int handoffs)
{
    struct pool_status p[8];
    struct pool_window w[8];
    int n = router_pools(f->r, p, 8), n_windows = router_pool_windows(f->r, w, 8);
    int sum = 0;

    assert_int_equal(n, 4);
    for (int i = 0; i < n; i++) {
        assert_true(p[i].ready);
        assert_int_equal(p[i].helping + p[i].away, 0);
        assert_string_equal(p[i].role, i < 2 ? "prefill" : "decode");
        sum += (int)p[i].handoffs;
        if (p[i].handoffs)
            assert_true(p[i].p50_s > 0 && p[i].p50_s <= p[i].p99_s);
    }
    assert_int_equal(sum, handoffs);
    assert_int_equal(n_windows, 1);
    assert_string_equal(w[0].instance, "one");
    assert_int_equal(w[0].handoffs, handoffs);
    assert_true(w[0].handoff_s > 0 && w[0].scheduling_s > 0);
}

/* What kills an engine may do it again. */
static void unlink_died(struct fix *f)
{
    char died[128];

    snprintf(died, sizeof(died), "%s/pool.died", f->dir);
    unlink(died);
}

static void prompt_here_answer_there(void **state)
{
    struct fix *f = *state;
    struct seen s[20] = {{0}};

    apply(f, SPLIT_2X2);
    for (int i = 0; i < 20; i++)
        ask(f, P_WELL, D_WELL, &s[i]);
    for (int i = 0; i < 20; i++) {
        all_of_it(f, &s[i]);
        assert_int_equal(strncmp(s[i].instance, "one/decode", 10), 0);
    }
    at_rest(f);
    assert_int_equal((int)counted(f, M_HANDOFF_TIME), 20);
    shown(f, 20);
}

static void choices_each_on_their_own(void **state)
{
    struct fix *f = *state;
    struct seen s[4] = {{0}};

    apply(f, SPLIT);
    ask_n(f, "alpha", P_WELL, D_WELL, 5, s, 4);
    for (int i = 0; i < 4; i++)
        all_of_it(f, &s[i]);
    at_rest(f);
}

/* What is all prompt is the prefill engine's alone, as long as there is one. */
static void one_token_is_the_prefill_engines(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    struct err e;

    apply(f, SPLIT_2X2);
    for (int i = 0; i < 6; i++) {
        s = (struct seen){0};
        ask_n(f, "alpha", P_WELL, D_WELL, 1, &s, 1);
        UNTIL(f, s.finishes);
        assert_int_equal(s.tokens, 1);
        assert_int_equal(strncmp(s.instance, "one/prefill", 11), 0);
    }
    assert_int_equal((int)counted(f, M_HANDOFF_TIME), 0);
    /* an engine that ends under it: another one has it, with nothing done twice */
    unlink_died(f);
    s = (struct seen){0};
    ask_n(f, "alpha", P_WELL, D_DIES_AFTER_TOKEN, 1, &s, 1);
    UNTIL(f, s.finishes);
    assert_int_equal(s.tokens, 1);
    assert_int_equal(s.out_of_order, 0);
    for (int i = 0; i < 2; i++)
        fleet_order(f->f, i ? "one/prefill:2" : "one/prefill", FLEET_ORDER_STOP, "u", "",
                    "", &e);
    s = (struct seen){0};
    ask_n(f, "alpha", P_WELL, D_WELL, 1, &s, 1);
    UNTIL(f, s.finishes);
    assert_int_equal(s.tokens, 1);
    assert_int_equal(strncmp(s.instance, "one/decode", 10), 0);
    UNTIL(f, router_live(f->r) == 0);
    at_rest(f);
}

/* The client sees a pause only; an instance beside has no part in it. */
static void whatever(struct fix *f, int p, int d)
{
    int other = status(f, "two").pid;
    struct seen s[4] = {{0}}, echo = {0};

    unlink_died(f);
    for (int i = 0; i < 4; i++)
        ask(f, p, d, &s[i]);
    ask_n(f, "beta", 1, 1, 2, &echo, 1);
    for (int i = 0; i < 4; i++)
        all_of_it(f, &s[i]);
    UNTIL(f, echo.finishes);
    assert_int_equal(echo.reason, FINISH_LENGTH);
    assert_int_equal(status(f, "two").pid, other);
    UNTIL(f, status(f, "one/prefill").state == INSTANCE_READY &&
                 status(f, "one/decode").state == INSTANCE_READY);
    UNTIL(f, !status(f, "one/prefill").live && !status(f, "one/decode").live);
    at_rest(f);
}

#define WHATEVER(name, p, d)                                                             \
    static void name(void **state)                                                       \
    {                                                                                    \
        apply(*state, SPLIT);                                                            \
        whatever(*state, p, d);                                                          \
    }                                                                                    \
    static void name##_of_four(void **state)                                             \
    {                                                                                    \
        apply(*state, SPLIT_2X2);                                                        \
        whatever(*state, p, d);                                                          \
    }
WHATEVER(p_dies_at_add, P_DIES_AT_ADD, D_WELL)
WHATEVER(p_dies_before_its_token, P_DIES_BEFORE_TOKEN, D_WELL)
WHATEVER(p_dies_after_its_token, P_DIES_AFTER_TOKEN, D_WELL)
WHATEVER(p_fails, P_FAILS, D_WELL)
WHATEVER(p_gives_back, P_RETURNS, D_WELL)
WHATEVER(p_stops, P_STOPS, D_WELL)
WHATEVER(d_dies_at_add, P_WELL, D_DIES_AT_ADD)
WHATEVER(d_dies_reserved, P_WELL, D_DIES_RESERVED)
WHATEVER(d_dies_at_the_last, P_WELL, D_DIES_AT_LAST)
WHATEVER(d_dies_after_its_token, P_WELL, D_DIES_AFTER_TOKEN)
WHATEVER(d_loses, P_WELL, D_LOSES)
WHATEVER(d_stops, P_WELL, D_STOPS)

static void the_helper_may_end_it(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};

    apply(f, SPLIT);
    ask(f, P_WHOLE, D_WELL, &s);
    UNTIL(f, s.finishes);
    assert_int_equal(s.reason, FINISH_STOP);
    assert_int_equal(s.tokens, 1);
    ask(f, P_WELL, D_WELL, &(struct seen){0});
    UNTIL(f, router_live(f->r) == 0);
    at_rest(f);
}

static void cancel_reaches_both(void **state)
{
    struct fix *f = *state;
    struct seen s[3] = {{0}};
    struct pool_status p[8];
    uint64_t id[3];

    apply(f, SPLIT);
    id[0] = ask(f, P_SILENT, D_WELL, &s[0]);
    id[1] = ask(f, P_WELL, D_HAS_NO_KV, &s[1]);
    id[2] = ask(f, P_WELL, D_HOLDS, &s[2]);
    UNTIL(f, s[2].tokens == 2 && status(f, "one/prefill").live == 2);
    /* what has no room at the one is kept from the other */
    assert_int_equal(router_pools(f->r, p, 8), 2);
    assert_int_equal(p[0].helping, 2);
    assert_int_equal(p[1].away, 1);
    for (int i = 0; i < 3; i++)
        router_cancel(f->r, id[i]);
    UNTIL(f, s[0].finishes && s[1].finishes && s[2].finishes);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s[i].reason, FINISH_ABORT);
        assert_int_equal(s[i].finishes, 1);
    }
    UNTIL(f, !status(f, "one/prefill").live);
    at_rest(f);
    /* and both go on */
    s[0] = (struct seen){0};
    ask(f, P_WELL, D_WELL, &s[0]);
    all_of_it(f, &s[0]);
}

static struct target *engine_of(struct fix *f, const char *name, int pid)
{
    list_for(it, &f->r->targets)
    {
        struct target *t = list_entry(it, struct target, link);
        if (name ? !strcmp(t->st.name, name) : t->st.pid == pid)
            return t;
    }
    fail_msg("there is no %s %d", name ? name : "process", pid);
    return NULL;
}

/* What an engine says in the place of another one goes nowhere. */
static void who_speaks_for_another(void **state)
{
    static const struct wire_block block = {.gen = 1};
    struct wire_export o = {.n = 1, .upto = 4, .n_tok = 20, .block_tok = 4};
    struct fix *f = *state;
    struct seen s = {0}, held = {0};
    uint8_t msg[sizeof(o) + sizeof(block)];
    struct target *p, *other;
    struct req *q;

    apply(f, SPLIT_2X2);
    ask(f, P_WELL, D_CLAIMS, &s); /* another reader's PULLED */
    all_of_it(f, &s);
    assert_true(counted(f, M_RELAY_LATE) >= 1);
    assert_int_equal((int)counted(f, M_HANDOFF_TIME), 0);
    /* another's offer, with its incarnation and a request that it has */
    o.id = ask(f, P_SILENT, D_WELL, &held);
    q = router_find(f->r, o.id);
    UNTIL(f, q->leg.asked);
    p = q->leg.helper;
    bool second = !strcmp(p->st.name, "one/prefill:2");
    other = engine_of(f, second ? "one/prefill" : "one/prefill:2", 0);
    o.incarnation = p->end.incarnation;
    memcpy(msg, &o, sizeof(o));
    memcpy(msg + sizeof(o), &block, sizeof(block));
    double late = counted(f, M_RELAY_LATE);
    split_heard(other, WIRE_EXPORT, msg, sizeof(msg));
    assert_true(counted(f, M_RELAY_LATE) == late + 1);
    split_heard(p, WIRE_EXPORT, msg, sizeof(msg));
    assert_true(counted(f, M_RELAY_LATE) == late + 1);
    router_cancel(f->r, o.id);
    UNTIL(f, held.finishes);
    UNTIL(f, !status(f, "one/prefill").live && !status(f, "one/prefill:2").live);
    at_rest(f);
}

/* Its client is gone when there is room at last: nobody computes the prompt. */
static void cancelled_before_there_is_room(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    struct wire_reserved r = {0};
    struct req *q;

    apply(f, SPLIT);
    r.id = ask(f, P_SILENT, D_HAS_NO_KV, &s);
    q = router_find(f->r, r.id);
    UNTIL(f, q->leg.helper);
    double late = counted(f, M_RELAY_LATE);
    router_cancel(f->r, r.id); /* and the order waits */
    split_heard(q->target, WIRE_RESERVED, &r, sizeof(r));
    assert_false(q->leg.asked);
    assert_int_equal(engine_of(f, "one/prefill", 0)->end.n_owed, 0);
    assert_true(counted(f, M_RELAY_LATE) == late + 1);
    UNTIL(f, s.finishes);
    assert_int_equal(s.reason, FINISH_ABORT);
    at_rest(f);
}

/* Imports end before the exporter does: one that is replaced stays until its KV is read.
 */
static void read_before_it_ends(void **state)
{
    struct fix *f = *state;
    struct seen s[2] = {{0}};
    int pid;

    apply(f, SPLIT);
    pid = status(f, "one/prefill").pid;
    ask(f, P_WELL, D_READS_ON, &s[0]);
    all_of_it(f, &s[0]);
    begin(f, SPLIT "    prefill: {threads: 2}\n");
    UNTIL(f, engine_of(f, NULL, pid)->st.state == INSTANCE_DRAINING);
    for (int i = 0; i < 30; i++)
        loop_once(f->l, clock_now_us(clock_real()) + 20000, NULL);
    assert_int_equal(engine_of(f, NULL, pid)->st.state, INSTANCE_DRAINING);
    ask(f, P_WELL, D_WELL, &s[1]);
    all_of_it(f, &s[1]);
    UNTIL(f, f->done && kill(pid, 0) < 0);
    at_rest(f);
}

static void kill_engine(struct fix *f, const char *name)
{
    struct instance_status s = status(f, name);

    assert_true(s.pid > 0);
    kill(s.pid, SIGKILL);
    UNTIL(f, status(f, name).pid != s.pid);
}

static struct pool_status prefill(struct fix *f)
{
    struct pool_status p[8];
    int n = router_pools(f->r, p, 8);

    for (int i = 0; i < n; i++)
        if (!strcmp(p[i].role, "prefill"))
            return p[i];
    return (struct pool_status){0};
}

/* An engine that computes nothing of the prompts that it has is passed over until it says
 * a word, and restarted where it never does. */
static void stalled_prefill_is_passed_over(void **state)
{
    struct fix *f = *state;
    struct seen s[4] = {{0}};
    int pid;

    apply(f, SPLIT "    handoff: {stall_ms: 100}\n");
    pid = status(f, "one/prefill").pid;
    ask(f, P_SILENT, D_WELL, &s[0]);
    all_of_it(f, &s[0]);
    UNTIL(f, !prefill(f).stalled); /* it answered the CANCEL */
    ask(f, P_WHOLE, D_WELL, &s[1]);
    UNTIL(f, s[1].finishes);
    assert_int_equal(s[1].n_out, 1); /* by the prefill engine: it is asked again */
    ask(f, P_STOPS, D_WELL, &s[2]);
    UNTIL(f, prefill(f).stalled);
    all_of_it(f, &s[2]);
    ask(f, P_WHOLE, D_WELL, &s[3]);
    all_of_it(f, &s[3]);
    assert_string_equal(s[3].instance, "one/decode");
    UNTIL(f, status(f, "one/prefill").pid != pid &&
                 status(f, "one/prefill").state == INSTANCE_READY);
    assert_false(prefill(f).stalled);
    at_rest(f);
}

static void until_ready(struct fix *f, const char *name, int other_than)
{
    UNTIL(f,
          status(f, name).state == INSTANCE_READY && status(f, name).pid != other_than);
}

/* An engine of either pool is stopped while it is idle: the other pool has what comes at
 * once; one that goes on in time is as before, one that does not is restarted. */
static void stopped_while_idle(void **state)
{
    static const char *const name[] = {"one/prefill", "one/decode"};
    struct fix *f = *state;

    apply(f, SPLIT "    answer_ms: 200\n");
    for (int i = 0; i < 4; i++) {
        struct seen s[2] = {{0}};
        int pid = status(f, name[i % 2]).pid;

        assert_int_equal(kill(pid, SIGSTOP), 0);
        UNTIL(f, status(f, name[i % 2]).state == INSTANCE_SILENT);
        ask(f, P_WELL, D_WELL, &s[0]);
        all_of_it(f, &s[0]);
        assert_string_equal(s[0].instance, name[1 - i % 2]);
        if (i < 2)
            assert_int_equal(kill(pid, SIGCONT), 0);
        until_ready(f, name[i % 2], i < 2 ? 0 : pid);
        assert_true(i >= 2 || status(f, name[i % 2]).pid == pid);
        ask(f, P_WELL, D_WELL, &s[1]);
        all_of_it(f, &s[1]);
        assert_string_equal(s[1].instance, "one/decode");
    }
    at_rest(f);
}

/* One pool without an engine: the other serves alone. */
static void one_pool_is_enough(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    struct err e;

    apply(f, SPLIT);
    assert_int_equal(fleet_order(f->f, "one/prefill", FLEET_ORDER_STOP, "u", "", "", &e),
                     0);
    ask(f, P_SILENT, D_WELL, &s);
    all_of_it(f, &s);
    assert_string_equal(s.instance, "one/decode");
    UNTIL(f, status(f, "one/prefill").state == INSTANCE_STOPPED);
    assert_int_equal(fleet_order(f->f, "one/prefill", FLEET_ORDER_START, "u", "", "", &e),
                     0);
    UNTIL(f, status(f, "one/prefill").state == INSTANCE_READY);
    assert_int_equal(fleet_order(f->f, "one/decode", FLEET_ORDER_STOP, "u", "", "", &e),
                     0);
    s = (struct seen){0};
    ask(f, P_WELL, D_WELL, &s);
    all_of_it(f, &s);
    assert_string_equal(s.instance, "one/prefill");
    assert_int_equal(fleet_order(f->f, "one/prefill", FLEET_ORDER_STOP, "u", "", "", &e),
                     0);
    assert_int_equal(router_ready(f->r, &e), 0); /* two is */
}

static int degraded(struct fix *f, const char *words)
{
    struct err why[8];
    int n = router_degraded(f->r, why, 8);

    for (int i = 0; i < n; i++)
        assert_non_null(strstr(why[i].msg, words));
    return n;
}

/* Half of a new instance is not ready; of one that was whole it is, and told. */
static void ready_with_both_pools(void **state)
{
    struct fix *f = *state;
    struct err e;
    char path[128];

    snprintf(path, sizeof(path), "%s/pool.late", f->dir);
    close(open(path, O_CREAT | O_WRONLY, 0600)); /* prefill engines wait for its end */
    only_one(f, SPLIT_2X2);
    UNTIL(f, status(f, "one/decode").state == INSTANCE_READY &&
                 status(f, "one/decode:2").state == INSTANCE_READY);
    assert_int_equal(router_ready(f->r, &e), -1);
    assert_int_equal(e.code, ERR_UNAVAIL);
    assert_true(metric_get(f->page, M_READY, 0) == 0);
    assert_int_equal(degraded(f, "one/prefill: "), 1);
    unlink(path);
    UNTIL(f, f->done);
    assert_int_equal(router_ready(f->r, &e), 0);
    assert_true(metric_get(f->page, M_READY, 0) == 1);
    assert_int_equal(degraded(f, ""), 0);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    kill(status(f, "one/prefill").pid, SIGKILL);
    UNTIL(f, status(f, "one/prefill").state != INSTANCE_READY);
    assert_int_equal(degraded(f, ""), 0); /* the pool has another */
    kill(status(f, "one/prefill:2").pid, SIGKILL);
    UNTIL(f, degraded(f, "one/prefill: ") == 1);
    assert_int_equal(router_ready(f->r, &e), 0);
    unlink(path);
    UNTIL(f, degraded(f, "") == 0);
}

/* A running answer stays with the decode engine when the prefill engine is gone, and a
 * new one of either pool is introduced to all of the other. */
static void engines_come_and_go(void **state)
{
    struct fix *f = *state;
    struct seen held = {0}, s = {0};
    uint64_t id;

    apply(f, SPLIT_2X2);
    id = ask(f, P_WELL, D_HOLDS, &held);
    UNTIL(f, held.tokens == 2);
    kill_engine(f, "one/prefill");
    kill_engine(f, "one/prefill:2");
    assert_int_equal(held.finishes, 0);
    for (int i = 0; i < 8; i++) {
        s = (struct seen){0};
        ask(f, P_WELL, D_WELL, &s);
        all_of_it(f, &s);
    }
    router_cancel(f->r, id);
    UNTIL(f, held.finishes);
    assert_int_equal(held.reason, FINISH_ABORT);
    UNTIL(f, status(f, "one/prefill").state == INSTANCE_READY &&
                 status(f, "one/prefill:2").state == INSTANCE_READY);
    kill_engine(f, "one/decode");
    kill_engine(f, "one/decode:2");
    UNTIL(f, status(f, "one/decode").state == INSTANCE_READY &&
                 status(f, "one/decode:2").state == INSTANCE_READY);
    int before = (int)counted(f, M_HANDOFF_TIME);
    for (int i = 0; i < 8; i++) {
        s = (struct seen){0};
        ask(f, P_WELL, D_WELL, &s);
        all_of_it(f, &s);
    }
    assert_int_equal((int)counted(f, M_HANDOFF_TIME), before + 8);
    at_rest(f);
}

/* Between the modes and back while requests come: none is lost. */
static void modes_change_under_load(void **state)
{
    static const char *const modes[] = {SPLIT, "", SPLIT_2X2, "    mode: colocated\n",
                                        SPLIT};
    struct fix *f = *state;
    struct seen s[400] = {{0}};
    int n = 0;

    apply(f, "");
    for (int m = 0; m < 5; m++) {
        begin(f, modes[m]);
        while (!f->done) {
            if (n < 400 && router_live(f->r) < 16)
                ask(f, P_WELL, D_WELL, &s[n++]);
            loop_once(f->l, clock_now_us(clock_real()) + 1000, NULL);
        }
        assert_int_equal(f->why.code, ERR_OK);
    }
    for (int i = 0; i < n; i++)
        all_of_it(f, &s[i]);
    UNTIL(f, status(f, "one").pid == 0);
    at_rest(f);
    assert_true(n > 5);
}

/* Requests that go well, fail in some way or hang, cancelled at any moment, and now and
 * then an engine that dies: each has one finish, and nothing is left. */
static void random_cancels(void **state)
{
    static const int ps[] = {P_WELL, P_WELL, P_SILENT, P_FAILS, P_RETURNS, P_WHOLE},
                     ds[] = {D_WELL, D_WELL, D_LOSES, D_HAS_NO_KV, D_HOLDS};
    enum { N = 10000, AT_ONCE = 24 };
    struct fix *f = *state;
    struct seen *s = calloc(N, sizeof(*s));
    uint64_t rnd = test_seed(), id[AT_ONCE] = {0};
    int n = 0, ended = 0, pid;

    apply(f, SPLIT_2X2);
    while (ended < N) {
        int live = router_live(f->r), k = (int)(test_rand(&rnd) % AT_ONCE);

        if (n < N && live < AT_ONCE) {
            id[n % AT_ONCE] =
                ask(f, ps[test_rand(&rnd) % 6], ds[test_rand(&rnd) % 5], &s[n]);
            n++;
        } else {
            router_cancel(f->r, id[k]);
        }
        pid = status(f, test_rand(&rnd) % 2 ? "one/prefill:2" : "one/decode:2").pid;
        if (pid > 0 && test_rand(&rnd) % 1000 == 0)
            kill(pid, SIGKILL);
        loop_once(f->l, n < N ? 0 : clock_now_us(clock_real()) + 2000, NULL);
        ended = n - router_live(f->r);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(s[i].finishes, 1);
        assert_int_equal(s[i].out_of_order, 0);
        if (s[i].reason == FINISH_LENGTH)
            assert_int_equal(s[i].tokens, 5);
    }
    UNTIL(f, !status(f, "one/prefill").live && !status(f, "one/prefill:2").live);
    at_rest(f);
    free(s);
}

enum { ASKERS = 2, ASKS = 150 };
struct asker {
    struct fix *f;
    uint64_t rnd;
    struct seen seen[ASKS]; /* the control thread's */
};
static atomic_int askers_done;

static void *ask_and_leave(void *arg)
{
    static const int ps[] = {P_WELL, P_WELL, P_FAILS, P_RETURNS, P_WHOLE},
                     ds[] = {D_WELL, D_WELL, D_LOSES};
    struct asker *a = arg;
    struct pool_status p[8];
    uint64_t id;

    for (int i = 0; i < ASKS; i++) {
        int32_t prompt[20] = {ps[test_rand(&a->rnd) % 5], ds[test_rand(&a->rnd) % 3], i,
                              (int32_t)(a->rnd % 1000)};
        struct gen_submit g = {.params = {.n_prompt = 20,
                                          .max_tokens = 5,
                                          .top_p = 1,
                                          .repetition = 1,
                                          .n_top = -1},
                               .prompt = prompt,
                               .sink = {on_tokens, on_finish, &a->seen[i]}};
        const struct served *m = router_model(a->f->r, "alpha", NULL);
        while (router_submit(a->f->r, m, &g, 1, &id, NULL) < 0)
            clock_sleep_us(500); /* the queue is full */
        router_unref(a->f->r, m);
        if (test_rand(&a->rnd) % 2)
            clock_sleep_us((int64_t)(test_rand(&a->rnd) % 1000));
        if (test_rand(&a->rnd) % 2)
            router_cancel(a->f->r, id);
        if (i % 16 == 0)
            router_pools(a->f->r, p, 8);
    }
    atomic_fetch_add(&askers_done, 1);
    return NULL;
}

/* As HTTP threads do, while the control thread relays. */
static void threads_ask_and_leave(void **state)
{
    static struct asker askers[ASKERS];
    struct fix *f = *state;
    pthread_t t[ASKERS];

    apply(f, SPLIT_2X2);
    for (int i = 0; i < ASKERS; i++) {
        askers[i].f = f;
        askers[i].rnd = test_seed() + 1 + (uint64_t)i;
        assert_int_equal(pthread_create(&t[i], NULL, ask_and_leave, &askers[i]), 0);
    }
    UNTIL(f, atomic_load(&askers_done) == ASKERS && router_live(f->r) == 0);
    for (int i = 0; i < ASKERS; i++) {
        pthread_join(t[i], NULL);
        for (int k = 0; k < ASKS; k++) {
            const struct seen *s = &askers[i].seen[k];
            assert_int_equal(s->finishes, 1);
            assert_int_equal(s->out_of_order, 0);
            assert_true(s->reason != FINISH_LENGTH || s->tokens == 5);
        }
    }
    UNTIL(f, !status(f, "one/prefill").live && !status(f, "one/prefill:2").live);
    at_rest(f);
}

static void the_last_minute(void **state)
{
    struct split_window w = {0};
    double sum[SPLIT_SUMS];

    (void)state;
    for (int64_t s = 0; s < 120; s++)
        split_window_add(&w, s * 1000000, SPLIT_HANDOFF, 0.5);
    split_window_sum(&w, (int64_t)119 * 1000000, sum);
    assert_true(sum[SPLIT_HANDOFF] == 30);
    assert_true(sum[SPLIT_REMOVED] == 0);
    split_window_sum(&w, (int64_t)300 * 1000000, sum);
    assert_true(sum[SPLIT_HANDOFF] == 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define T2(name) T(name), T(name##_of_four)
static const struct CMUnitTest tests[] = {
    T(prompt_here_answer_there),
    T(choices_each_on_their_own),
    T(one_token_is_the_prefill_engines),
    T2(p_dies_at_add),
    T2(p_dies_before_its_token),
    T2(p_dies_after_its_token),
    T2(p_fails),
    T2(p_gives_back),
    T2(p_stops),
    T2(d_dies_at_add),
    T2(d_dies_reserved),
    T2(d_dies_at_the_last),
    T2(d_dies_after_its_token),
    T2(d_loses),
    T2(d_stops),
    T(the_helper_may_end_it),
    T(cancel_reaches_both),
    T(who_speaks_for_another),
    T(cancelled_before_there_is_room),
    T(read_before_it_ends),
    T(stalled_prefill_is_passed_over),
    T(stopped_while_idle),
    T(one_pool_is_enough),
    T(ready_with_both_pools),
    T(engines_come_and_go),
    T(modes_change_under_load),
    T(random_cancels),
    T(threads_ask_and_leave),
    cmocka_unit_test(the_last_minute),
};

int main(int argc, char **argv)
{
    fake_pool_main(argc, argv);
    fake_engine_main(argc, argv);
    return test_main(argc, argv, "pools", tests, sizeof(tests) / sizeof(tests[0]));
}

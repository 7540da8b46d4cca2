/* The daemon's side of experts that move, with an engine that is made up: counts in,
 * plans out as moves, news back; what is told, shown and counted. */
#include "daemon/ctrl/experts.h"

#include <math.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/metric.h"
#include "daemon/ctrl/conf.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/routes.h"
#include "daemon/serve/wire.h"
#include "daemon/serve/wire_experts.h"
#include "state/store.h"
#include "tests/test.h"

enum { L = 2, X = 16, D = 4, S = 6, SLOTS = D * S, MOST = 256 };
static const int64_t SEC = 1000000;
static const struct experts_who who = {"ops", "a test"};

struct engine {
    struct loop *loop;
    struct metric_page *page;
    struct experts *x;
    struct conf_instance conf;
    struct move got[MOST];
    int n_got, n_shares, n_cancel;
    bool deaf, counts_none;
    double load[L * X], sum[L * X], steps, step_ms, in_steps_us;
    int64_t step_bytes; /* as told last */
    int n_paced;        /* orders that said no more than that */
    struct routes *map; /* as the engine has it */
    uint8_t out[D];
    int64_t now;
};

static bool on_send(void *arg, const struct wire_expert_orders *o)
{
    struct engine *g = arg;

    if (g->deaf)
        return false;
    g->n_cancel += o->h.cancel;
    g->n_paced += o->h.step_bytes > 0 && !o->h.n_moves;
    if (o->h.step_bytes > 0)
        g->step_bytes = o->h.step_bytes;
    g->n_shares += o->h.n_layers;
    for (int i = 0; i < o->h.n_moves && g->n_got < MOST; i++)
        g->got[g->n_got++] = o->moves[i];
    return true;
}

static bool on_read(void *arg, int n_layer, int n_expert, struct experts_counts *ret)
{
    struct engine *g = arg;

    assert_int_equal(n_layer * n_expert, L * X);
    if (g->counts_none)
        return false;
    ret->steps[CONTROLLER_DECODE] = ret->all_steps = g->steps;
    ret->step_us = g->in_steps_us;
    for (int i = 0; i < L * X; i++) {
        ret->tokens[CONTROLLER_DECODE][i] = g->sum[i];
        ret->service_us[CONTROLLER_DECODE][i] = g->sum[i] * 10;
    }
    return true;
}

static void on_out(void *arg, int n_rank, uint8_t *ret)
{
    const struct engine *g = arg;

    assert_int_equal(n_rank, D);
    memcpy(ret, g->out, D);
}

static void ready(struct engine *g)
{
    const struct experts_engine e = {"main", on_send, on_read, NULL, on_out, g};
    const struct wire_ready r = {.expert_layers = L,
                                 .experts = X,
                                 .expert_ranks = D,
                                 .expert_slots = S,
                                 .expert_bytes = 1 << 20};
    const struct routes_dims d = {X, D, S};
    struct err err;

    routes_free(g->map);
    assert_int_equal(routes_new(&d, L, &g->map, &err), 0);
    experts_ready(g->x, &e, &g->conf, &r);
}

static void begin(struct engine *g, enum controller_policy policy)
{
    struct err e;

    memset(g, 0, sizeof(*g));
    g->now = 1000 * SEC;
    assert_int_equal(metric_page_new(metrics_defs, METRICS_N, NULL, &g->page, &e), 0);
    assert_int_equal(loop_new(&g->loop, &e), 0);
    assert_int_equal(experts_new(g->loop, NULL, g->page, &g->x, &e), 0);
    g->conf.name = "main";
    g->conf.experts.policy = (int)policy;
    g->conf.experts.sample_ms = 1000;
    g->conf.experts.share_s = 5;
    g->conf.experts.dwell_s = 60;
    g->conf.experts.horizon_s = 3600;
    g->conf.experts.deadline_s = 600;
    g->conf.experts.enter = 0.9;
    g->conf.experts.leave = 0.96;
    g->conf.experts.min_gain = 0.03;
    g->conf.experts.prefill_share = 0.5;
    g->conf.experts.slack_share = 0.1;
    for (int i = 0; i < L * X; i++) /* two hot ones on the first rank of layer 0 */
        g->load[i] = i == 0 || i == 1 ? 1000 : 50;
    ready(g);
}

static void end(struct engine *g)
{
    experts_free(g->x);
    routes_free(g->map);
    metric_page_free(g->page);
    loop_free(g->loop);
}

/* The plan that was ordered is made: its order is over, or carried out. */
static void made(struct engine *g, uint64_t order, struct experts_progress *p)
{
    int64_t until = clock_now_us(clock_real()) + 60 * SEC;
    struct err e;

    for (;;) {
        if (experts_progress(g->x, "main", order, p, &e) < 0)
            fail_msg("%s", e.msg);
        if (p->plan || p->over)
            return;
        if (clock_now_us(clock_real()) > until)
            fail_msg("no plan was made");
        assert_int_equal(loop_once(g->loop, until, &e), 0);
    }
}

/* So many seconds of steps: of 10 ms, if nothing else was said. */
static void run(struct engine *g, int seconds)
{
    for (int s = 0; s < seconds; s++) {
        double n = 1000 / (g->step_ms > 0 ? g->step_ms : 10);
        g->steps += n;
        g->in_steps_us += n * g->step_ms * 1000;
        for (int i = 0; i < L * X; i++)
            g->sum[i] += g->load[i] * n / 100;
        g->now += SEC;
        experts_tick(g->x, g->now);
    }
}

static void news(struct engine *g, const struct move *v, enum move_state state,
                 const char *why)
{
    struct wire_moved m = {.id = v->id,
                           .layer = v->layer,
                           .state = (int32_t)state,
                           .bytes = v->n << 20,
                           .load_us = 100000,
                           .work_us = 10000,
                           .all_us = 200000,
                           .before_mean_us = 1000,
                           .before_max_us = 2000,
                           .during_mean_us = 1100,
                           .during_max_us = 2500,
                           .n_steps = 50};

    snprintf(m.why, sizeof(m.why), "%s", why);
    experts_moved(g->x, g, &m, g->now);
}

/* The engine makes a move: its map must stay one that routes_check takes. */
static void make(struct engine *g, const struct move *v)
{
    struct route_layer *l = &g->map->layer[v->layer];
    struct err e;

    for (int s = MOVE_LOADING; s <= MOVE_DONE; s++) {
        if (s == MOVE_DRAINING) {
            for (int i = 0; i < v->n; i++)
                l->expert[v->put[i].rank * S + v->put[i].slot] = v->put[i].expert;
            for (int i = 0; i < SLOTS; i++)
                l->share[i] =
                    l->expert[i] < 0
                        ? 0
                        : 1.0f / (float)routes_copies(g->map, v->layer, l->expert[i]);
            if (routes_check(g->map, &e) < 0)
                fail_msg("%s", e.msg);
        }
        news(g, v, (enum move_state)s, "");
    }
}

static double metric(const struct engine *g, int id, int at)
{
    return metric_get(g->page, id, at);
}

static void view(struct engine *g, struct experts_view *v)
{
    struct err e;

    if (experts_view(g->x, "main", v, &e) < 0)
        fail_msg("%s", e.msg);
}

static int told(const struct experts_view *v, const char *what)
{
    int n = 0;

    for (int i = 0; i < v->n_history; i++)
        n += !strcmp(v->history[i].what, what);
    return n;
}

static void test_auto(void **state)
{
    (void)state;
    struct engine g;
    struct experts_view v;
    double whole = 0;

    begin(&g, CONTROLLER_AUTO);
    run(&g, 300);
    view(&g, &v);
    if (!g.n_got)
        fail_msg("no plan: %s", v.why);
    assert_true(v.plan > 0 && v.n_move == g.n_got);
    assert_true(v.unbalanced[0] < 0.5 && v.balanced[0] < 0.5 && v.balanced[1] > 0.95);
    assert_true(v.imbalance[0] > 5);
    experts_view_done(&v);
    for (int i = 0; i < g.n_got; i++)
        make(&g, &g.got[i]);
    view(&g, &v);
    assert_int_equal(v.plan, 0);
    assert_int_equal(v.n_done, g.n_got);
    assert_int_equal(v.n_aborted, 0);
    assert_true(v.balanced[0] > v.unbalanced[0] + 0.2);
    assert_memory_equal(v.map, g.map->layer[0].expert, SLOTS * sizeof(*v.map));
    assert_int_equal(told(&v, "plan"), 2); /* that it began, that it is over */
    assert_int_equal(told(&v, "move"), g.n_got);
    assert_int_equal(v.added_mean_us, 100);
    assert_int_equal(v.added_max_us, 500);
    assert_int_equal((int)metric(&g, M_EXPERT_MOVES, 0), g.n_got);
    assert_int_equal((int)metric(&g, M_EXPERT_PLANS, 0), 1);
    assert_true(metric(&g, M_EXPERT_MOVE_BYTES, 0) > 0);
    experts_view_done(&v);
    run(&g, 20); /* shares follow in seconds */
    view(&g, &v);
    assert_int_equal(v.n_measured, 0);
    double sum = 0;
    for (int i = 0; i < SLOTS; i++)
        sum += v.map[i] == 0 ? (double)v.share[i] : 0;
    assert_true(sum > 0.99 && sum < 1.01);
    experts_view_done(&v);
    run(&g, 15); /* half a dwell time: what the moves brought */
    view(&g, &v);
    sum = 0;
    for (int i = 0; i < v.n_history; i++)
        if (!strcmp(v.history[i].what, "move"))
            sum += v.history[i].realised_us;
        else if (!strcmp(v.history[i].what, "outcome"))
            whole += v.history[i].realised_us;
    assert_int_equal(v.n_measured, g.n_got);
    assert_true(whole > 0 && fabs(sum - whole) < 1e-6 * whole);
    assert_true(fabs(v.realised_us - sum) < 1e-6 * whole);
    assert_true(fabs(v.realised_us - v.predicted_us) < 0.1 * whole);
    experts_view_done(&v);
    end(&g);
}

static void test_advise_and_off(void **state)
{
    (void)state;
    struct engine g;
    struct experts_view v;

    begin(&g, CONTROLLER_ADVISE);
    run(&g, 300);
    assert_int_equal(g.n_got + g.n_shares, 0);
    view(&g, &v);
    assert_true(told(&v, "advice") > 0);
    assert_int_equal(v.plan, 0);
    experts_view_done(&v);
    g.conf.experts.policy = CONTROLLER_OFF; /* in place */
    experts_conf(g.x, &g, &g.conf);
    run(&g, 300);
    assert_int_equal(g.n_got + g.n_shares, 0);
    end(&g);
}

/* One move fails: what has flipped stays, the rest is given up, and it says so. */
static void test_aborted(void **state)
{
    (void)state;
    struct engine g;
    struct experts_view v;

    begin(&g, CONTROLLER_AUTO);
    run(&g, 300);
    assert_true(g.n_got > 1);
    make(&g, &g.got[0]);
    news(&g, &g.got[1], MOVE_ABORTED, "loading: not done within 30.0 s");
    if (g.n_got > 2)
        assert_int_equal(g.n_cancel, 1);
    for (int i = 2; i < g.n_got; i++)
        news(&g, &g.got[i], MOVE_ABORTED, "queued: it was called back");
    view(&g, &v);
    assert_int_equal(v.plan, 0);
    assert_int_equal(v.n_done, 1);
    assert_int_equal(v.n_stalled, 1);
    assert_memory_equal(v.map, g.map->layer[0].expert, SLOTS * sizeof(*v.map));
    assert_non_null(strstr(v.history[0].text, "1 of"));
    assert_int_equal((int)metric(&g, M_EXPERT_STALLED, 0), 1);
    experts_view_done(&v);
    news(&g, &g.got[0], MOVE_DONE, ""); /* late: nothing */
    end(&g);
}

/* The engine goes with a plan in hand: a new one begins as loaded. */
static void test_engine_gone(void **state)
{
    (void)state;
    struct engine g;
    struct experts_view v;
    struct err e;

    begin(&g, CONTROLLER_AUTO);
    run(&g, 300);
    make(&g, &g.got[0]);
    experts_gone(g.x, &g);
    assert_int_equal(experts_view(g.x, "main", &v, &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    news(&g, &g.got[0], MOVE_DONE, "");
    ready(&g);
    view(&g, &v);
    assert_int_equal(v.plan, 0);
    assert_memory_equal(v.map, g.map->layer[0].expert, SLOTS * sizeof(*v.map));
    experts_view_done(&v);
    g.deaf = true;
    g.sum[0] = g.steps = 0;
    run(&g, 300);
    view(&g, &v); /* a plan that does not go out is over */
    assert_int_equal(v.plan, 0);
    experts_view_done(&v);
    end(&g);
}

static void test_operator(void **state)
{
    (void)state;
    struct engine g;
    struct experts_view v;
    struct err e = {0};
    char names[4][64];
    struct experts_progress p;
    uint64_t order = 0;

    begin(&g, CONTROLLER_OFF);
    assert_int_equal(experts_list(g.x, names, 4), 1);
    assert_string_equal(names[0], "main");
    run(&g, 30);
    assert_int_equal(experts_freeze(g.x, "main", true, &who, "a test", &e), 0);
    assert_int_equal(experts_freeze(g.x, "main", true, &who, "", &e), -1);
    assert_int_equal(experts_apply(g.x, "main", CONTROLLER_PLANNER, &who, &order, &e),
                     -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    experts_gone(g.x, &g); /* it stays frozen over a restart of the engine */
    ready(&g);
    view(&g, &v);
    assert_true(v.frozen);
    experts_view_done(&v);
    assert_int_equal(experts_freeze(g.x, "main", false, &who, "", &e), 0);
    run(&g, 30);
    if (experts_apply(g.x, "main", CONTROLLER_PLANNER, &who, &order, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(g.n_got, 0); /* it is made elsewhere, and only one at a time */
    assert_int_equal(experts_apply(g.x, "main", CONTROLLER_EPLB, &who, &order, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    made(&g, order, &p);
    assert_true(g.n_got > 0 && p.plan == 1 && p.n_move >= g.n_got && !p.over);
    run(&g, 30); /* the policy is off: it was asked for all the same */
    assert_int_equal(g.n_cancel, 0);
    assert_int_equal(experts_apply(g.x, "main", CONTROLLER_PLANNER, &who, &order, &e),
                     -1);
    assert_int_equal(experts_freeze(g.x, "main", true, &who, "", &e), 0);
    assert_int_equal(g.n_cancel, 1); /* the plan is called back */
    for (int i = 0; i < g.n_got; i++)
        news(&g, &g.got[i], MOVE_ABORTED, "queued: it was called back");
    view(&g, &v);
    assert_int_equal(v.plan, 0);
    experts_view_done(&v);
    assert_int_equal(experts_freeze(g.x, "other", true, &who, "", &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_int_equal(experts_progress(g.x, "main", order, &p, &e), 0);
    assert_true(p.over && !p.whole && p.n_done == 0 && strstr(p.why, "called back"));
    end(&g);
}

/* While its plan is being made: frozen, nothing is moved; the engine gone, nothing is
 * said to the next one. */
static void test_overtaken(void **state)
{
    (void)state;
    struct engine g;
    struct experts_progress p;
    struct experts_view v;
    uint64_t order = 0;
    struct err e = {0};

    begin(&g, CONTROLLER_OFF);
    run(&g, 30);
    assert_int_equal(experts_apply(g.x, "main", CONTROLLER_EPLB, &who, &order, &e), 0);
    assert_int_equal(experts_freeze(g.x, "main", true, &who, "", &e), 0);
    made(&g, order, &p);
    assert_true(p.over && !p.whole && !p.plan && strstr(p.why, "frozen"));
    assert_int_equal(g.n_got, 0);
    assert_int_equal(experts_freeze(g.x, "main", false, &who, "", &e), 0);
    assert_int_equal(experts_apply(g.x, "main", CONTROLLER_EPLB, &who, &order, &e), 0);
    experts_gone(g.x, &g);
    ready(&g);
    for (int64_t until = clock_now_us(clock_real()) + 60 * SEC;
         experts_apply(g.x, "main", CONTROLLER_EPLB, &who, &order, &e) < 0;) {
        assert_int_equal(e.code, ERR_CONFLICT); /* the first one is still being made */
        assert_int_equal(experts_progress(g.x, "main", order, &p, &e), -1);
        assert_true(clock_now_us(clock_real()) < until);
        assert_int_equal(loop_once(g.loop, until, &e), 0);
    }
    made(&g, order, &p);
    view(&g, &v);
    assert_int_equal(told(&v, "apply"), 1);
    experts_view_done(&v);
    end(&g);
}

/* Frozen in the store: a daemon that is started again knows. */
static void test_frozen_is_kept(void **state)
{
    (void)state;
    char dir[] = "/tmp/llmrack-experts-XXXXXX", cmd[64], names[4][64];
    struct engine g;
    struct store *store;
    struct experts_view v;
    struct err e = {0};

    assert_non_null(mkdtemp(dir));
    begin(&g, CONTROLLER_OFF);
    for (int turn = 0; turn < 3; turn++) {
        experts_free(g.x);
        if (store_open(dir, &store, &e) < 0)
            fail_msg("%s", e.msg);
        assert_int_equal(experts_new(g.loop, store, g.page, &g.x, &e), 0);
        ready(&g);
        view(&g, &v);
        assert_int_equal(v.frozen, turn == 1);
        experts_view_done(&v);
        if (turn < 2 && experts_freeze(g.x, "main", turn == 0, &who, "why", &e) < 0)
            fail_msg("%s", e.msg);
        assert_int_equal(freeze_list(store, names, 4, &e), turn == 0);
        store_close(store);
    }
    end(&g);
    snprintf(cmd, sizeof(cmd), "rm -r %s", dir);
    assert_int_equal(system(cmd), 0);
}

/* A device that is cordoned: all that it has is planned elsewhere at once, also while it
 * is level; nothing while frozen, and when nothing fits it says so, once. */
static void test_cordoned(void **state)
{
    (void)state;
    struct engine g;
    struct experts_view v;
    struct err e;

    begin(&g, CONTROLLER_AUTO);
    for (int i = 0; i < L * X; i++)
        g.load[i] = 50;
    run(&g, 200);
    assert_int_equal(g.n_got, 0);
    assert_int_equal(experts_freeze(g.x, "main", true, &who, "", &e), 0);
    g.out[2] = 1;
    run(&g, 20);
    assert_int_equal(g.n_got, 0); /* held back */
    assert_int_equal(experts_freeze(g.x, "main", false, &who, "", &e), 0);
    run(&g, 2);
    assert_true(g.n_got > 0);
    for (int i = 0; i < g.n_got; i++)
        make(&g, &g.got[i]);
    view(&g, &v);
    assert_int_equal(v.plan, 0);
    for (int i = 0; i < L * D * S; i++)
        assert_true(i / S % D != 2 || v.map[i] == -1);
    experts_view_done(&v);
    g.out[0] = 1; /* 12 slots are left for 16 experts */
    g.n_got = 0;
    run(&g, 20);
    assert_int_equal(g.n_got, 0);
    view(&g, &v);
    assert_non_null(strstr(v.why, "16 experts"));
    int said = 0;
    for (int i = 0; i < v.n_history; i++)
        said += !strcmp(v.history[i].text, v.why);
    assert_int_equal(said, 1);
    experts_view_done(&v);
    end(&g);
}

/* Bytes that may be copied beside a step follow what the objective leaves of it. */
static void test_pace(void **state)
{
    (void)state;
    static const struct {
        double step_ms;
        int64_t want;
    } turns[] = {
        /* a tenth of the slack at 300 MB/s, as long as nothing was measured; where there
         * is no slack, an expert in 256 steps */
        {18, 60000},
        {19.5, 15000},
        {20, (1 << 20) / 256 + 1},
        {45, (1 << 20) / 256 + 1},
        {10, 300000},
        {0.001, 599970},
    };
    struct engine g;
    struct experts_view v;

    begin(&g, CONTROLLER_AUTO);
    g.conf.slo.tpot_ms = 20;
    experts_conf(g.x, &g, &g.conf);
    g.step_ms = 10;
    run(&g, 300);
    assert_true(g.n_got > 0); /* a plan is in hand, and stays so */
    assert_int_equal(g.step_bytes, 300000);
    assert_int_equal(g.n_paced, 0);
    for (size_t i = 0; i < sizeof(turns) / sizeof(*turns); i++) {
        int before = g.n_paced;
        g.step_ms = turns[i].step_ms;
        run(&g, 3);
        if (llabs(g.step_bytes - turns[i].want) > 1)
            fail_msg("steps of %g ms: %lld bytes, not %lld", g.step_ms,
                     (long long)g.step_bytes, (long long)turns[i].want);
        assert_true(g.n_paced <= before + 1); /* once, and only what is news */
        view(&g, &v);
        assert_int_equal(v.step_bytes, g.step_bytes);
        assert_true(v.slack_us > 20000 - 1000 * g.step_ms - 1 &&
                    v.slack_us < 20000 - 1000 * g.step_ms + 1);
        experts_view_done(&v);
    }
    end(&g);
    begin(&g, CONTROLLER_AUTO); /* without an objective nothing is held back */
    g.step_ms = 45;
    run(&g, 300);
    assert_true(g.n_got > 0 && g.step_bytes >= 1 << 20);
    view(&g, &v);
    assert_true(v.slack_us != v.slack_us);
    experts_view_done(&v);
    end(&g);
}

/* An engine whose loader copies what it is told beside each step, one move after the
 * other, and gives up one that takes longer than 30 s. Until the plan is over; how long
 * that took, s. */
static int load_all(struct engine *g)
{
    struct experts_view v;
    int64_t began = g->now, first = g->now;
    double bytes = 0;

    for (int i = 0; i < g->n_got;) {
        const struct move *m = &g->got[i];
        int loads = 0;
        for (int k = 0; k < m->n; k++)
            loads += m->put[k].expert >= 0;
        run(g, 1);
        bytes += 1000 / g->step_ms * (double)g->step_bytes;
        if (!g->n_cancel && bytes >= (double)(loads << 20)) {
            make(g, m);
        } else if (g->n_cancel || g->now - began >= 30 * SEC) {
            news(g, m, MOVE_ABORTED,
                 g->n_cancel ? "queued: it was called back"
                             : "loading: not done within 30.0 s");
        } else
            continue;
        began = g->now;
        bytes = 0;
        i++;
    }
    view(g, &v);
    assert_int_equal(v.plan, 0);
    assert_memory_equal(v.map, g->map->layer[0].expert, SLOTS * sizeof(*v.map));
    experts_view_done(&v);
    return (int)((g->now - first) / SEC);
}

/* No slack from the middle of a plan on: it goes on slowly and is made; is given up by
 * the deadline of a move; or by that of the plan. Meanwhile no other is begun. */
static void test_no_slack(void **state)
{
    (void)state;
    static const struct {
        double step_ms;
        int deadline_s, done, stalled; /* done: -1 = some, but not all */
    } cases[] = {{30, 600, 1, 0}, {400, 600, 0, 1}, {60, 40, -1, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct engine g;
        struct experts_view v;
        int n;

        begin(&g, CONTROLLER_AUTO);
        g.conf.slo.tpot_ms = 20;
        g.conf.experts.deadline_s = cases[i].deadline_s;
        experts_conf(g.x, &g, &g.conf);
        g.step_ms = 10;
        while (!g.n_got && g.now < 2000 * SEC)
            run(&g, 1);
        n = g.n_got;
        assert_true(n > 2);
        g.step_ms = cases[i].step_ms;
        run(&g, 1);
        assert_true(load_all(&g) <= cases[i].deadline_s + 30);
        view(&g, &v);
        assert_int_equal(v.n_stalled, cases[i].stalled);
        assert_int_equal(v.n_done + v.n_aborted, n);
        if (cases[i].done >= 0)
            assert_int_equal(v.n_done, cases[i].done ? n : 0);
        else
            assert_true(v.n_done > 0 && v.n_aborted > 0 && told(&v, "call-back") == 1);
        experts_view_done(&v);
        run(&g, 300);
        assert_int_equal(g.n_got, n);
        g.out[2] = 1; /* but what has to be is, and as slowly */
        run(&g, 2);
        assert_true(g.n_got > n);
        assert_int_equal(g.step_bytes, (1 << 20) / 256 + 1);
        end(&g);
    }
}

static void test_no_counts(void **state)
{
    (void)state;
    struct engine g;

    begin(&g, CONTROLLER_AUTO);
    g.counts_none = true;
    run(&g, 300);
    assert_int_equal(g.n_got, 0);
    end(&g);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_auto),           cmocka_unit_test(test_advise_and_off),
    cmocka_unit_test(test_aborted),        cmocka_unit_test(test_engine_gone),
    cmocka_unit_test(test_operator),       cmocka_unit_test(test_overtaken),
    cmocka_unit_test(test_no_counts),      cmocka_unit_test(test_cordoned),
    cmocka_unit_test(test_frozen_is_kept), cmocka_unit_test(test_pace),
    cmocka_unit_test(test_no_slack),
};
TEST_MAIN("experts", tests)

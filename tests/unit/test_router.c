/* tests/unit/test_router.c - every submitted id gets exactly one finish, whatever
 * happens; models are counted references; what is refused and why. */
#include "tests/test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/router_ctl.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/ctrl/target.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/wire.h"

struct fix {
    struct router *r;
    struct target *t;
    struct metric_page *page;
    const struct served *m;
};

static void set_state_of(struct target *t, enum instance_state state)
{
    struct instance_status s = {.model = "m", .state = state};

    s.load_done = 0.4;
    snprintf(s.error, sizeof(s.error), "it broke");
    s.retry_at_us = clock_now_us(clock_real()) + 4000000;
    target_set_status(t, &s);
}

static void set_state(struct fix *f, enum instance_state state)
{
    set_state_of(f->t, state);
}

/* A ready engine that serves `model`, NULL: not loaded yet. */
static struct target *add_target(struct fix *f, const char *instance, int generation,
                                 const char *model)
{
    struct target_cfg cfg = {
        .instance = instance, .generation = generation, .max_live = 100};
    struct served m = {.n_ctx = 8};
    struct target *t;
    struct err e;

    assert_int_equal(metric_page_new(metrics_defs, METRICS_N, NULL, &cfg.page, &e), 0);
    assert_int_equal(target_new(f->r, &cfg, &t, &e), 0);
    set_state_of(t, model ? INSTANCE_READY : INSTANCE_STARTING);
    if (model) {
        snprintf(m.name, sizeof(m.name), "%s", model);
        target_set_model(t, &m, NULL);
    }
    return t;
}

static int set_up(void **state)
{
    struct fix *f = calloc(1, sizeof(*f));
    struct err e;

    metric_page_new(metrics_defs, METRICS_N, NULL, &f->page, &e);
    if (router_new(f->page, &f->r, &e) < 0)
        return -1;
    f->t = add_target(f, "0", 1, "m");
    f->m = router_model(f->r, "m", &e);
    *state = f;
    return f->m ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fix *f = *state;

    router_unref(f->r, f->m);
    target_free(f->t);
    router_free(f->r);
    metric_page_free(f->page);
    free(f);
    return 0;
}

/* What a sink saw. */
struct seen {
    atomic_int tokens, finishes;
    enum finish_reason reason;
    enum err_code code;
};

static void on_tokens(void *arg, const struct step_token *t, int n, bool scored)
{
    struct seen *s = arg;

    (void)t, (void)scored;
    assert_int_equal(atomic_load(&s->finishes), 0);
    atomic_fetch_add(&s->tokens, n);
}

static void on_finish(void *arg, const struct gen_finish *f)
{
    struct seen *s = arg;

    s->reason = f->reason;
    s->code = f->error ? f->error->code : ERR_OK;
    atomic_fetch_add(&s->finishes, 1);
}

static struct gen_submit ask(struct seen *s)
{
    static const int32_t prompt[3] = {1, 2, 3};

    return (struct gen_submit){
        .params = {.n_prompt = 3, .max_tokens = 4},
        .prompt = prompt,
        .sink = {on_tokens, on_finish, s},
        .label = "req",
    };
}

static bool bell(struct target *t)
{
    struct pollfd p = {target_fd(t), POLLIN, 0};
    return poll(&p, 1, 0) == 1;
}

static void one_request(void **state)
{
    struct fix *f = *state;
    struct seen s = {0};
    struct gen_submit g = ask(&s);
    struct step_token tok[2] = {{.id = 5}, {.id = 6}};
    struct gen_finish fin = {.reason = FINISH_LENGTH, .n_out = 2};
    struct request_status rs[2];
    struct wire_add add;
    struct err e;
    uint64_t id = 0, got = 0;
    int sent;

    assert_false(bell(f->t));
    assert_int_equal(router_submit(f->r, f->m, &g, 1, &id, &e), 0);
    assert_true(bell(f->t));
    assert_int_equal(target_live(f->t, &sent), 1);
    assert_int_equal(sent, 0);
    assert_int_equal(target_take(f->t, &add, &got), TARGET_ADD);
    assert_int_equal(got, id);
    assert_int_equal(add.params.id, id);
    assert_int_equal(add.params.group, 0);
    assert_int_equal(add.prompt[2], 3);
    assert_int_equal(target_take(f->t, &add, &got), TARGET_NOTHING);
    assert_false(bell(f->t));
    target_tokens(f->t, id, tok, 2, false);
    target_tokens(f->t, id + 7, tok, 2, false); /* unknown: nothing happens */
    assert_int_equal(router_requests(f->r, rs, 2), 1);
    assert_int_equal(rs[0].n_out, 2);
    assert_string_equal(rs[0].label, "req");
    assert_true(rs[0].ttft_us >= 0);
    target_finish(f->t, id, &fin);
    target_finish(f->t, id, &fin);
    router_cancel(f->r, id);
    assert_int_equal(s.tokens, 2);
    assert_int_equal(s.finishes, 1);
    assert_int_equal(s.reason, FINISH_LENGTH);
    assert_int_equal(target_take(f->t, &add, &got), TARGET_NOTHING);
    assert_int_equal(router_live(f->r), 0);
}

static void cancels(void **state)
{
    struct fix *f = *state;
    struct seen s[2] = {0};
    struct gen_submit g[2] = {ask(&s[0]), ask(&s[1])};
    struct gen_finish fin = {.reason = FINISH_ABORT};
    struct wire_add add;
    struct err e;
    uint64_t ids[2], got;

    assert_int_equal(router_submit(f->r, f->m, g, 2, ids, &e), 0);
    router_cancel(f->r, ids[0]); /* before the engine hears of it */
    assert_int_equal(target_take(f->t, &add, &got), TARGET_ADD);
    assert_int_equal(got, ids[1]);
    assert_int_equal(add.params.group, ids[0]);
    assert_int_equal(s[0].finishes, 1);
    assert_int_equal(s[0].reason, FINISH_ABORT);
    router_cancel(f->r, ids[1]);
    router_cancel(f->r, ids[1]);
    assert_int_equal(target_take(f->t, &add, &got), TARGET_CANCEL);
    assert_int_equal(got, ids[1]);
    assert_int_equal(target_take(f->t, &add, &got), TARGET_NOTHING);
    assert_int_equal(s[1].finishes, 0);
    target_finish(f->t, ids[1], &fin);
    assert_int_equal(s[1].finishes, 1);
}

static void engine_dies(void **state)
{
    struct fix *f = *state;
    struct seen s[3] = {0};
    struct gen_submit g[3] = {ask(&s[0]), ask(&s[1]), ask(&s[2])};
    struct step_token tok = {.id = 5};
    struct wire_add add;
    struct err e, why;
    uint64_t ids[3], got;

    assert_int_equal(router_submit(f->r, f->m, g, 3, ids, &e), 0);
    target_take(f->t, &add, &got);
    target_tokens(f->t, ids[0], &tok, 1, false);
    target_take(f->t, &add, &got);
    router_cancel(f->r, ids[1]);
    set_state(f, INSTANCE_BACKOFF);
    err_set(&why, ERR_UNAVAIL, "gone");
    target_fail_all(f->t, &why);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s[i].finishes, 1);
        assert_int_equal(s[i].reason, FINISH_ERROR);
        assert_int_equal(s[i].code, ERR_UNAVAIL);
    }
    target_tokens(f->t, ids[0], &tok, 1, false); /* late */
    assert_int_equal(s[0].tokens, 1);
    assert_int_equal(target_take(f->t, &add, &got), TARGET_NOTHING);
    assert_int_equal(router_submit(f->r, f->m, g, 1, ids, &e), -1);
    assert_int_equal(e.code, ERR_UNAVAIL);
    assert_int_equal(router_retry_after(f->r) >= 4, 1);
}

static void refuses(void **state)
{
    struct fix *f = *state;
    static struct seen s[101];
    struct gen_submit g = ask(&s[0]);
    struct err e, why;
    uint64_t id;

    set_state(f, INSTANCE_LOADING);
    assert_int_equal(router_ready(f->r, &e), -1);
    assert_string_equal(e.msg, "'m' is loading, 40 % done");
    assert_true(metric_get(f->page, M_READY, 0) == 0);
    set_state(f, INSTANCE_FAILED);
    assert_int_equal(router_submit(f->r, f->m, &g, 1, &id, &e), -1);
    assert_non_null(strstr(e.msg, "it broke; next try in 4 s"));
    set_state(f, INSTANCE_READY);
    assert_int_equal(router_ready(f->r, &e), 0);
    assert_true(metric_get(f->page, M_READY, 0) == 1);
    for (int i = 0; i < 100; i++) {
        g = ask(&s[i]);
        assert_int_equal(router_submit(f->r, f->m, &g, 1, &id, &e), 0);
    }
    assert_int_equal(router_submit(f->r, f->m, &g, 1, &id, &e), -1);
    assert_int_equal(e.code, ERR_BUSY);
    err_set(&why, ERR_UNAVAIL, "end");
    target_fail_all(f->t, &why);
    router_drain(f->r);
    assert_int_equal(router_submit(f->r, f->m, &g, 1, &id, &e), -1);
    assert_int_equal(e.code, ERR_UNAVAIL);
    assert_non_null(strstr(e.msg, "stopping"));
}

static void models(void **state)
{
    struct fix *f = *state;
    struct served next = {.name = "n"};
    const struct served *m[3];
    struct err e;

    assert_null(router_model(f->r, "x", &e));
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_string_equal(e.param, "model");
    assert_non_null(strstr(e.msg, "'m'"));
    assert_int_equal(router_models(f->r, m, 3), 1);
    target_set_model(f->t, &next, NULL);
    assert_string_equal(m[0]->name, "m"); /* the old one lives while it is held */
    router_unref(f->r, m[0]);
    m[0] = router_model(f->r, "", &e);
    assert_string_equal(m[0]->name, "n");
    router_unref(f->r, m[0]);
    router_unref(f->r, NULL);
}

static void no_memory(void **state)
{
    struct fix *f = *state;
    struct seen s[2] = {0};
    struct gen_submit g[2] = {ask(&s[0]), ask(&s[1])};
    struct err e, why;
    uint64_t ids[2];
    long n = 1;

    for (;; n++) {
        mem_fail_at(n);
        int rc = router_submit(f->r, f->m, g, 2, ids, &e);
        mem_fail_at(0);
        if (rc == 0)
            break;
        assert_int_equal(e.code, ERR_NOMEM);
        assert_int_equal(router_live(f->r), 0);
    }
    assert_int_equal(n, 5); /* two requests of two blocks each */
    err_set(&why, ERR_UNAVAIL, "end");
    target_fail_all(f->t, &why);
    assert_int_equal(s[0].finishes + s[1].finishes, 2);
}

/* ---- several engines ---- */

static uint64_t submit(struct fix *f, const char *name, struct seen *s)
{
    const struct served *m = router_model(f->r, name, NULL);
    struct gen_submit g = ask(s);
    uint64_t id = 0;
    struct err e;

    assert_non_null(m);
    if (router_submit(f->r, m, &g, 1, &id, &e) < 0)
        fail_msg("%s", e.msg);
    router_unref(f->r, m);
    return id;
}

static void two_models(void **state)
{
    struct fix *f = *state;
    struct target *t = add_target(f, "1", 1, "n");
    const struct served *m[3];
    struct seen a = {0}, b = {0};
    struct gen_finish fin = {.reason = FINISH_STOP};
    struct instance_status is[3];
    struct err e, why;
    uint64_t ia, ib;

    assert_null(router_model(f->r, NULL, &e));
    assert_int_equal(e.code, ERR_INVALID);
    assert_string_equal(e.msg, "which model? this server has 'm', 'n'");
    assert_null(router_model(f->r, "o", &e));
    assert_int_equal(e.code, ERR_NOTFOUND);
    assert_non_null(strstr(e.msg, "'m', 'n'"));
    assert_int_equal(router_models(f->r, m, 3), 2);
    assert_string_equal(m[1]->name, "n");
    assert_string_equal(m[1]->instance, "1");
    router_unref(f->r, m[0]);
    router_unref(f->r, m[1]);
    ia = submit(f, "m", &a);
    ib = submit(f, "n", &b);
    assert_int_equal(router_instances(f->r, is, 3), 2);
    assert_string_equal(is[1].name, "1");
    assert_int_equal(is[1].live, 1);
    target_finish(t, ia, &fin); /* not its request */
    assert_int_equal(a.finishes, 0);
    err_set(&why, ERR_UNAVAIL, "end");
    target_fail_all(t, &why); /* and no other's */
    assert_int_equal(a.finishes, 0);
    assert_int_equal(b.finishes, 1);
    target_finish(t, ib, &fin);
    target_finish(f->t, ia, &fin);
    assert_int_equal(b.finishes, 1);
    assert_int_equal(a.finishes, 1);
    target_free(t);
    assert_null(router_model(f->r, "n", &e));
    m[0] = router_model(f->r, NULL, &e); /* one again: it needs no name */
    assert_non_null(m[0]);
    router_unref(f->r, m[0]);
}

/* A new engine beside the old one: it takes what comes once it is ready, the old one
 * keeps what it has. */
static void replacement(void **state)
{
    struct fix *f = *state;
    struct target *t = add_target(f, "0", 2, NULL);
    struct served other = {.name = "m", .n_ctx = 8, .n_vocab = 9};
    struct seen s[4] = {0};
    struct gen_submit g = ask(&s[3]);
    struct gen_finish fin = {.reason = FINISH_STOP};
    struct wire_add add;
    struct err e;
    uint64_t id[4], got;

    id[0] = submit(f, NULL, &s[0]); /* the one that loads makes no second model of it */
    assert_int_equal(target_take(f->t, &add, &got), TARGET_ADD); /* its engine has it */
    target_set_model(t, f->m, NULL);
    assert_int_equal(target_live(t, NULL), 0);
    set_state_of(t, INSTANCE_READY);
    target_drain(f->t, true);
    id[1] = submit(f, NULL, &s[1]);
    assert_int_equal(target_live(f->t, NULL), 1);
    assert_int_equal(target_live(t, NULL), 1);
    assert_int_equal(router_ready(f->r, &e), 0);
    target_finish(f->t, id[0], &fin);
    target_finish(t, id[1], &fin);
    target_drain(f->t, false); /* two replicas: the one with less to do */
    id[0] = submit(f, "m", &s[0]);
    id[1] = submit(f, "m", &s[1]);
    assert_int_equal(target_live(f->t, NULL), 1);
    assert_int_equal(target_live(t, NULL), 1);
    target_finish(f->t, id[0], &fin);
    id[2] = submit(f, "m", &s[2]);
    assert_int_equal(target_live(f->t, NULL), 1);
    target_finish(f->t, id[2], &fin);
    target_finish(t, id[1], &fin);
    /* another file under the same name: ids of the old vocabulary mean nothing there */
    target_set_model(t, &other, NULL);
    target_drain(f->t, true);
    assert_int_equal(router_submit(f->r, f->m, &g, 1, &id[3], &e), -1);
    assert_int_equal(e.code, ERR_UNAVAIL);
    assert_non_null(strstr(e.msg, "replaced"));
    for (int i = 0; i < 3; i++)
        assert_true(s[i].finishes >= 1);
    target_free(t);
}

/* One that gives no sign of life: what it has not heard of and what comes goes to the
 * other; what no other can take waits at it, and is taken from it when the other is back.
 */
static void silent(void **state)
{
    struct fix *f = *state;
    struct target *t = add_target(f, "0:2", 1, NULL);
    struct gen_finish fin = {.reason = FINISH_STOP};
    struct instance_status st[2];
    struct seen s[5] = {0};
    uint64_t id[5], got;
    struct wire_add add;
    struct err e, why;

    id[0] = submit(f, NULL, &s[0]);
    assert_int_equal(target_take(f->t, &add, &got), TARGET_ADD); /* its engine has it */
    id[1] = submit(f, NULL, &s[1]);
    target_set_model(t, f->m, NULL);
    target_set_silent(f->t, clock_now_us(clock_real()) - 2500000);
    assert_int_equal(router_ready(f->r, &e), -1);
    assert_non_null(
        strstr(e.msg, "'m' does not answer: its engine has given no sign of"));
    assert_true(metric_get(f->page, M_READY, 0) == 0);
    id[2] = submit(f, NULL, &s[2]); /* there is no other */
    assert_int_equal(target_live(f->t, NULL), 3);
    assert_int_equal(router_degraded(f->r, &why, 1), 1);
    set_state_of(t, INSTANCE_READY);
    assert_int_equal(target_live(f->t, NULL), 1);
    assert_int_equal(target_live(t, NULL), 2);
    assert_true(bell(t));
    assert_int_equal(router_ready(f->r, &e), 0);
    assert_true(metric_get(f->page, M_READY, 0) == 1);
    assert_int_equal(router_degraded(f->r, &why, 1), 0); /* its pool answers */
    assert_int_equal(router_instances(f->r, st, 2), 2);
    assert_int_equal(st[0].state, INSTANCE_SILENT);
    assert_int_equal(st[1].state, INSTANCE_READY);
    id[3] = submit(f, NULL, &s[3]); /* though the other has more to do */
    assert_int_equal(target_live(t, NULL), 3);
    target_set_silent(t, 1);
    target_set_silent(f->t, 0); /* it has them all now */
    assert_int_equal(target_live(f->t, NULL), 4);
    target_set_silent(t, 0);
    id[4] = submit(f, NULL, &s[4]);
    assert_int_equal(target_live(t, NULL), 1);
    for (int i = 0; i < 5; i++) {
        target_finish(f->t, id[i], &fin);
        target_finish(t, id[i], &fin);
        assert_int_equal(s[i].finishes, 1);
    }
    target_free(t);
}

/* What the engine of a draining one has not heard of goes to the other, choices of one
 * request together; what it has, or was cancelled, stays. */
static void moved_off(void **state)
{
    struct fix *f = *state;
    struct target *t = add_target(f, "0:2", 1, NULL);
    struct seen s[6] = {0}, late[8] = {0};
    struct gen_submit three[3] = {ask(&s[1]), ask(&s[2]), ask(&s[3])};
    struct err e, why;
    struct wire_add add;
    uint64_t id[6], got;
    int sent;

    err_set(&why, ERR_UNAVAIL, "over");
    id[0] = submit(f, NULL, &s[0]);
    assert_int_equal(target_take(f->t, &add, &got), TARGET_ADD);
    assert_int_equal(router_submit(f->r, f->m, three, 3, &id[1], &e), 0);
    id[4] = submit(f, NULL, &s[4]);
    router_cancel(f->r, id[4]);
    id[5] = submit(f, NULL, &s[5]);
    router_cancel(f->r, id[0]); /* an order about one that stays */
    target_set_model(t, f->m, NULL);
    set_state_of(t, INSTANCE_READY);
    assert_false(bell(t));
    target_drain(f->t, true);
    assert_true(bell(t));
    assert_int_equal(target_live(t, &sent), 4);
    assert_int_equal(sent, 0);
    assert_int_equal(target_live(f->t, NULL), 2);
    for (int i = 1; i <= 5; i++) {
        if (i == 4)
            continue;
        assert_int_equal(target_take(t, &add, &got), TARGET_ADD);
        assert_int_equal(got, id[i]);
        assert_int_equal(add.params.group, i < 4 ? id[1] : 0);
        assert_int_equal(add.prompt[2], 3); /* the arrays went along */
    }
    assert_int_equal(target_take(t, &add, &got), TARGET_NOTHING);
    assert_int_equal(target_take(f->t, &add, &got), TARGET_CANCEL);
    assert_int_equal(got, id[0]);
    assert_int_equal(target_take(f->t, &add, &got), TARGET_NOTHING);
    assert_int_equal(s[4].finishes, 1);
    target_fail_all(f->t, &why);
    target_fail_all(t, &why);
    for (int i = 0; i <= 5; i++)
        assert_int_equal(s[i].finishes, 1);

    target_drain(f->t, false); /* there and back */
    target_drain(t, true);
    for (int i = 0; i < 3; i++)
        submit(f, NULL, &late[i]);
    target_drain(t, false);
    target_drain(f->t, true);
    assert_int_equal(target_live(t, NULL), 3);
    target_drain(f->t, false);
    target_drain(t, true);
    assert_int_equal(target_live(f->t, NULL), 3);
    target_drain(f->t, true); /* nowhere to go */
    assert_int_equal(target_live(f->t, NULL), 3);
    target_fail_all(f->t, &why);
    target_free(t);
    for (int i = 0; i < 3; i++)
        assert_int_equal(late[i].finishes, 1);
}

/* ---- engines that go ---- */

static void go_on(struct fix *f, int64_t wait_us)
{
    struct served_hot h = {.temperature = 1, .top_p = 1, .recompute = true};

    h.restart_wait_us = wait_us;
    target_set_hot(f->t, &h);
}

/* Order, tokens, death, the same order with its answer so far, and so on. */
static void goes_on_after_restart(void **state)
{
    struct fix *f = *state;
    struct seen s[3] = {0};
    struct gen_submit g[3] = {ask(&s[0]), ask(&s[1]), ask(&s[2])};
    struct step_token tok[3] = {{.id = 5}, {.id = 6}, {.id = 7}};
    struct gen_finish fin = {.reason = FINISH_LENGTH, .n_prompt = 3, .n_out = 4};
    struct instance_status is;
    struct wire_add add;
    struct err e, why;
    uint64_t ids[3], got;
    int64_t load;
    int sent;

    go_on(f, 1000000000);
    assert_int_equal(router_submit(f->r, f->m, g, 3, ids, &e), 0);
    router_instances(f->r, &is, 1);
    load = is.load;
    assert_int_equal(load, 3 * (3 + 4));
    target_take(f->t, &add, &got);
    target_take(f->t, &add, &got);
    target_tokens(f->t, ids[0], tok, 2, true);
    target_tokens(f->t, ids[0], tok, 3, false);
    err_set(&why, ERR_UNAVAIL, "gone");
    set_state(f, INSTANCE_BACKOFF);
    assert_int_equal(target_lose(f->t, &why), 3);
    assert_true(metric_get(target_page(f->t), M_REQ_RESUMED, 0) == 2);
    assert_int_equal(target_live(f->t, &sent), 3);
    assert_int_equal(sent, 0);
    router_instances(f->r, &is, 1);
    assert_int_equal(is.load, load); /* all of it is to be computed again */
    target_tokens(f->t, ids[2] + 1, tok, 1, false);
    set_state(f, INSTANCE_READY);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(target_take(f->t, &add, &got), TARGET_ADD);
        assert_int_equal(got, ids[i]);
        assert_int_equal(add.params.group, ids[0]);
        assert_int_equal(add.params.n_prompt, 3);
        assert_int_equal(add.params.n_gen, i ? 0 : 3);
        assert_int_equal(add.params.n_scored, i ? 0 : 2);
        assert_int_equal(add.prompt[2], 3);
        for (int k = 0; k < add.params.n_gen; k++)
            assert_int_equal(add.prompt[3 + k], 5 + k);
    }
    target_tokens(f->t, ids[0], tok, 1, false);
    target_finish(f->t, ids[0], &fin);
    assert_int_equal(s[0].finishes, 1);
    assert_int_equal(s[0].tokens, 2 + 3 + 1);
    assert_int_equal(s[0].reason, FINISH_LENGTH);
    router_instances(f->r, &is, 1);
    assert_int_equal(is.load, 2 * (3 + 4));
    /* the second engine goes: those that it had too are not tried again */
    set_state(f, INSTANCE_BACKOFF);
    assert_int_equal(target_lose(f->t, &why), 1);
    assert_int_equal(s[1].finishes, 1);
    assert_int_equal(s[1].reason, FINISH_ERROR);
    assert_int_equal(s[1].code, ERR_INTERNAL);
    assert_int_equal(s[2].finishes, 0); /* the first one never heard of it */
    target_fail_all(f->t, &why);
    assert_int_equal(s[2].finishes, 1);
    router_instances(f->r, &is, 1);
    assert_int_equal(is.load, 0);
}

/* While no engine is there: what is cancelled ends at once, the rest at its deadline, and
 * nothing is taken. Another file under the name ends all. */
static void waits_in_vain(void **state)
{
    struct fix *f = *state;
    struct seen s[4] = {0};
    struct served other = {.name = "m", .n_vocab = 7};
    struct wire_add add;
    struct err why;
    uint64_t id[4], got;

    err_set(&why, ERR_UNAVAIL, "gone");
    go_on(f, 1000000000);
    for (int i = 0; i < 3; i++)
        id[i] = submit(f, NULL, &s[i]);
    for (int i = 0; i < 2; i++)
        target_take(f->t, &add, &got);
    router_cancel(f->r, id[1]); /* the engine is to be told when it goes */
    set_state(f, INSTANCE_BACKOFF);
    assert_int_equal(target_lose(f->t, &why), 2);
    assert_int_equal(s[1].finishes, 1);
    assert_int_equal(s[1].reason, FINISH_ABORT);
    target_sweep(f->t);
    router_cancel(f->r, id[0]);
    assert_true(bell(f->t));
    target_sweep(f->t);
    assert_false(bell(f->t));
    assert_int_equal(s[0].finishes, 1);
    assert_int_equal(s[0].reason, FINISH_ABORT);
    assert_int_equal(s[2].finishes, 0);
    go_on(f, 0);
    target_sweep(f->t);
    assert_int_equal(s[2].finishes, 1);
    assert_int_equal(s[2].reason, FINISH_ERROR);
    assert_int_equal(s[2].code, ERR_UNAVAIL);
    go_on(f, 1000000000);
    set_state(f, INSTANCE_READY);
    id[3] = submit(f, NULL, &s[3]);
    target_take(f->t, &add, &got);
    set_state(f, INSTANCE_BACKOFF);
    target_lose(f->t, &why);
    target_set_model(f->t, &other, NULL);
    assert_int_equal(s[3].finishes, 1);
    assert_int_equal(s[3].code, ERR_UNAVAIL);
    assert_int_equal(router_live(f->r), 0);
    assert_true(got == id[3]);
}

/* What a silent engine has goes on with one that answers, once: under a new number, so
 * that what the first still says of it is of nobody. */
static void silent_gives_up(void **state)
{
    struct fix *f = *state;
    struct target *t = add_target(f, "0:2", 1, NULL);
    struct gen_finish fin = {.reason = FINISH_STOP}, gone = {.reason = FINISH_ABORT};
    struct step_token tok = {.id = 9};
    struct seen s[3] = {0};
    uint64_t id[3], got, at_t;
    struct wire_add add;

    for (int i = 0; i < 3; i++) {
        id[i] = submit(f, NULL, &s[i]);
        assert_int_equal(target_take(f->t, &add, &got), TARGET_ADD);
    }
    router_cancel(f->r, id[1]);
    target_tokens(f->t, id[0], &tok, 1, false);
    target_set_silent(f->t, 1);
    go_on(f, 1000000000);
    assert_int_equal(target_pass_on(f->t), 0); /* there is no other */
    target_set_model(t, f->m, NULL);
    set_state_of(t, INSTANCE_READY);
    assert_int_equal(target_pass_on(f->t), 2);
    assert_int_equal(target_pass_on(f->t), 0);
    assert_int_equal(target_live(f->t, NULL), 1); /* its end is waited for */
    assert_int_equal(target_take(t, &add, &at_t), TARGET_ADD);
    assert_int_not_equal(at_t, id[0]);
    assert_int_equal(add.params.id, at_t);
    assert_int_equal(add.params.n_gen, 1);
    assert_int_equal(add.prompt[3], 9);
    target_tokens(f->t, id[0], &tok, 1, false); /* late words */
    target_finish(f->t, id[0], &gone);
    target_finish(f->t, id[1], &gone);
    assert_int_equal(s[1].finishes, 1);
    target_tokens(t, at_t, &tok, 1, false);
    assert_int_equal(s[0].tokens, 2);
    target_set_silent(t, 1);
    target_set_silent(f->t, 0); /* the one that waits comes back, its order with it */
    assert_int_equal(target_take(f->t, &add, &got), TARGET_ADD);
    assert_int_not_equal(got, id[2]);
    target_finish(f->t, got, &fin);
    assert_int_equal(target_pass_on(t), 0); /* not a second time */
    target_finish(t, at_t, &fin);
    for (int i = 0; i < 3; i++)
        assert_int_equal(s[i].finishes, 1);
    assert_int_equal(s[0].reason, FINISH_STOP);
    assert_int_equal(router_live(f->r), 0);
    target_free(t);
}

/* With another engine of the model: at once, or as soon as it is ready; choices of one
 * request together. What a draining one gives back goes there too. */
static void goes_on_elsewhere(void **state)
{
    struct fix *f = *state;
    struct target *t = add_target(f, "0:2", 1, NULL);
    struct seen s[5] = {0};
    struct gen_submit two[2] = {ask(&s[0]), ask(&s[1])};
    struct step_token tok = {.id = 9};
    struct wire_add add;
    struct err e, why;
    uint64_t id[5], got;

    err_set(&why, ERR_UNAVAIL, "gone");
    go_on(f, 1000000000);
    assert_int_equal(router_submit(f->r, f->m, two, 2, id, &e), 0);
    target_take(f->t, &add, &got);
    target_take(f->t, &add, &got);
    target_tokens(f->t, id[1], &tok, 1, false);
    assert_false(target_has_other(f->t));
    set_state(f, INSTANCE_BACKOFF);
    assert_int_equal(target_lose(f->t, &why), 2);
    assert_int_equal(target_live(f->t, NULL), 2);
    target_set_model(t, f->m, NULL);
    set_state_of(t, INSTANCE_READY); /* it comes, and has them */
    assert_true(bell(t));
    assert_int_equal(target_live(f->t, NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(target_take(t, &add, &got), TARGET_ADD);
        assert_int_equal(got, id[i]);
        assert_int_equal(add.params.n_gen, i);
        assert_int_equal(add.prompt[i ? 3 : 2], i ? 9 : 3);
    }
    target_tokens(f->t, id[0], &tok, 1, false); /* late words of the first engine */
    assert_int_equal(s[0].tokens, 0);
    set_state(f, INSTANCE_READY);
    set_state_of(t, INSTANCE_BACKOFF); /* fails where it is not configured to go on */
    target_lose(t, &why);
    assert_true(s[0].finishes == 1 && s[1].finishes == 1);
    set_state_of(t, INSTANCE_READY);
    for (int i = 2; i < 5; i++) {
        target_drain(t, true);
        id[i] = submit(f, NULL, &s[i]);
        target_drain(t, false);
        target_take(f->t, &add, &got);
    }
    router_cancel(f->r, id[4]);
    assert_true(target_has_other(f->t));
    target_drain(f->t, true);
    target_return(f->t, id[3]);
    target_return(f->t, id[4]);
    target_return(f->t, id[0]); /* gone */
    target_return(t, id[2]);    /* not its own */
    assert_int_equal(s[4].finishes, 1);
    assert_int_equal(s[4].reason, FINISH_ABORT);
    assert_int_equal(target_live(f->t, NULL), 1);
    assert_int_equal(target_take(t, &add, &got), TARGET_ADD);
    assert_int_equal(got, id[3]);
    target_drain(t, true); /* nowhere else: back where it was */
    target_return(t, id[3]);
    assert_int_equal(target_take(t, &add, &got), TARGET_ADD);
    assert_int_equal(got, id[3]);
    target_fail_all(f->t, &why);
    target_fail_all(t, &why);
    for (int i = 2; i < 5; i++)
        assert_int_equal(s[i].finishes, 1);
    target_free(t);
}

static void none_at_all(void **state)
{
    struct fix *f = *state;
    struct err e;

    target_free(f->t);
    f->t = NULL;
    assert_null(router_model(f->r, NULL, &e));
    assert_int_equal(e.code, ERR_UNAVAIL);
    assert_int_equal(router_ready(f->r, &e), -1);
    assert_string_equal(e.msg, "no instance is configured: no model is served");
    assert_true(metric_get(f->page, M_READY, 0) == 0);
}

static void hot_values(void **state)
{
    struct fix *f = *state;
    struct served_hot h = {.temperature = 0.25f, .top_p = 0.5f, .isolate = 1}, got;

    target_set_hot(f->t, &h);
    router_hot(f->r, f->m, &got);
    assert_true(got.temperature == 0.25f && got.top_p == 0.5f && got.isolate == 1);
}

static struct page_group groups[8];

static struct page_group *group(int n, const char *model, const char *instance)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(groups[i].model, model) && !strcmp(groups[i].instance, instance))
            return &groups[i];
    fail_msg("no group %s %s", model, instance);
    return NULL;
}

/* What an engine counted stays in the sums of its model and instance, once, when it has
 * gone: held while somebody reads, folded then. */
static void pages_of_the_gone(void **state)
{
    struct fix *f = *state;
    struct target *t = add_target(f, "1", 1, "n"), *next = add_target(f, "1", 2, "n");
    struct page_group *g;
    struct metric_page *all[16];
    int n;

    metric_add(target_page(t), M_STEPS, 0, 5);
    metric_observe(target_page(t), M_ITER_TOK, 3);
    metric_set(target_page(t), M_RUNNING, 0, 2);
    metric_add(target_page(next), M_STEPS, 0, 7);
    metric_add(router_model_page(f->r, "n"), M_REJECTIONS, 0, 1);
    n = router_groups_get(f->r, groups, 8);
    assert_int_equal(n, 5); /* the daemon; m and n; 0 of m and 1 of n */
    g = group(n, "n", "1");
    assert_int_equal(g->n, 3);
    target_free(t);
    assert_true(metric_total(g->pages, g->n, M_STEPS, 0) == 12); /* while it is held */
    router_pages_put(f->r);
    n = router_groups_get(f->r, groups, 8);
    g = group(n, "n", "1");
    assert_int_equal(g->n, 2);
    assert_true(metric_total(g->pages, g->n, M_STEPS, 0) == 12);
    assert_true(metric_get(g->pages[0], M_ITER_TOK, 0) == 1);
    assert_true(metric_sum(g->pages[0], M_ITER_TOK) == 3);
    assert_true(metric_total(g->pages, g->n, M_RUNNING, 0) == 0);
    g = group(n, "m", "0");
    assert_true(metric_total(g->pages, g->n, M_STEPS, 0) == 0);
    g = group(n, "n", "");
    assert_true(metric_get(g->pages[0], M_REJECTIONS, 0) == 1);
    router_pages_put(f->r);
    n = router_pages_get(f->r, all, 16);
    assert_true(metric_total(all, n, M_STEPS, 0) == 12);
    router_pages_put(f->r);
    target_free(next);
}

/* Beyond the accounts that are kept, what is counted is kept together. */
static void accounts_are_bounded(void **state)
{
    struct fix *f = *state;
    struct metric_page *first = router_model_page(f->r, "m"), *p = NULL;
    char name[16];

    for (int i = 0; i < 2 * ROUTER_ACCOUNTS; i++) {
        snprintf(name, sizeof(name), "model-%d", i);
        p = router_model_page(f->r, name);
        metric_add(p, M_REJECTIONS, 0, 1);
    }
    assert_ptr_equal(p, f->r->accounts[0]->page);
    assert_true(metric_get(p, M_REJECTIONS, 0) > ROUTER_ACCOUNTS - 3);
    assert_ptr_equal(router_model_page(f->r, "m"), first);
}

/* ---- many threads ask and cancel while the control thread answers and fails ---- */

enum { THREADS = 3, ASKS = 400 };

struct asker {
    struct fix *f;
    uint64_t seed;
    struct seen seen[ASKS];
    int accepted;
};
static struct asker askers[THREADS];
static atomic_int done_threads;

static void *ask_many(void *arg)
{
    struct asker *a = arg;
    struct request_status rs[4];
    struct instance_status is;
    uint64_t id;

    for (int i = 0; i < ASKS; i++) {
        struct gen_submit g = ask(&a->seen[i]);
        while (router_submit(a->f->r, a->f->m, &g, 1, &id, NULL) < 0)
            sched_yield();
        a->accepted++;
        if (test_rand(&a->seed) % 3 == 0)
            router_cancel(a->f->r, id);
        if (i % 50 == 0) {
            router_requests(a->f->r, rs, 4);
            router_instances(a->f->r, &is, 1);
        }
    }
    atomic_fetch_add(&done_threads, 1);
    return NULL;
}

static void act(struct fix *f, uint64_t *seed)
{
    struct step_token tok = {.id = 1};
    struct gen_finish fin = {.reason = FINISH_STOP};
    struct wire_add add;
    struct err why;
    uint64_t id;

    switch (target_take(f->t, &add, &id)) {
    case TARGET_ADD:
        assert_int_equal(add.prompt[0], 1);
        target_tokens(f->t, id, &tok, 1, false);
        if (test_rand(seed) % 2)
            target_finish(f->t, id, &fin);
        break;
    case TARGET_CANCEL:
        target_finish(f->t, id, &fin);
        break;
    case TARGET_NOTHING:
        if (test_rand(seed) % 64 && atomic_load(&done_threads) < THREADS)
            break;
        set_state(f, INSTANCE_BACKOFF);
        err_set(&why, ERR_UNAVAIL, "gone");
        go_on(f, 1000000000);
        if (test_rand(seed) % 2)
            target_lose(f->t, &why);
        else
            target_fail_all(f->t, &why);
        set_state(f, INSTANCE_READY);
        break;
    }
}

static void threads(void **state)
{
    struct fix *f = *state;
    pthread_t t[THREADS];
    uint64_t seed = test_seed();

    for (int i = 0; i < THREADS; i++) {
        askers[i].f = f;
        askers[i].seed = seed + 1 + (uint64_t)i;
        assert_int_equal(pthread_create(&t[i], NULL, ask_many, &askers[i]), 0);
    }
    while (atomic_load(&done_threads) < THREADS || router_live(f->r))
        act(f, &seed);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(askers[i].accepted, ASKS);
        for (int k = 0; k < ASKS; k++)
            assert_int_equal(atomic_load(&askers[i].seen[k].finishes), 1);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
static const struct CMUnitTest tests[] = {
    T(one_request),
    T(cancels),
    T(engine_dies),
    T(refuses),
    T(models),
    T(no_memory),
    T(two_models),
    T(replacement),
    T(silent),
    T(moved_off),
    T(silent_gives_up),
    T(goes_on_after_restart),
    T(waits_in_vain),
    T(goes_on_elsewhere),
    T(none_at_all),
    T(hot_values),
    T(pages_of_the_gone),
    T(accounts_are_bounded),
    T(threads),
};

TEST_MAIN("router", tests)

/* tests/unit/test_sched_burst.c - what requests cost that come while very many wait, in
 * counted work (prompts and answers looked at), not in time. All seeds are written down
 * here. */
#include "tests/test.h"

#include "tests/unit/slackworld.h"

enum { RUN = 256, WAIT = 10000, LOOKED = 2 * RUN + SCHED_LOOK };

struct cost {
    uint64_t most, sum; /* of one arrival; of all */
    int n, refused, forecasts;
};

static double law(const struct world *w, const struct flight *fl)
{
    return w->base + w->tok * fl->n_prompt_tok + w->seq * fl->n_decode;
}

static void step(struct world *w)
{
    struct step_done d;

    assert_true(sched_next(w->s, w->now, w->st));
    sched_submitted(w->s, w->now, ++w->x.ticket);
    double us = law(w, &w->s->flights[w->s->flight_head]);
    light_run(w, &d);
    d.start_us = w->now;
    w->now += (int64_t)us;
    d.end_us = w->now;
    sched_event(w->s, w->now, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
}

static void come(struct world *w, struct cost *c, int n_prompt, int n_out, int64_t ttft)
{
    static int32_t prompt[PROMPT_MAX];
    static uint64_t id;
    struct gen_params p = sim_params(++id, n_prompt, n_out);
    struct sched_event ev = {.kind = SCHED_ADD, .params = &p, .prompt = prompt};
    uint64_t refused = w->s->st.refused_late, work = w->s->work;

    for (int i = 0; i < 4; i++) /* no two alike */
        prompt[i] = (int32_t)(id >> 6 * i & 63);
    p.ignore_eos = true;
    p.ttft_us = ttft;
    p.tpot_us = 60000;
    w->now += 1;
    sched_event(w->s, w->now, &ev);
    work = w->s->work - work;
    c->n++;
    c->refused += w->s->st.refused_late > refused;
    c->forecasts += work > 0;
    c->most = work > c->most ? work : c->most;
    c->sum += work;
}

/* RUN answers run, and nobody waits. */
static void full_house(struct world *w, enum sched_mode mode, enum sched_order order)
{
    struct cost c = {0};
    const struct sched_out *o;

    init(w, order, true, 71);
    w->light = true;
    w->cfg.mode = mode;
    w->cfg.max_seqs = w->cfg.max_outs = RUN;
    w->cfg.step_tok = 1024;
    w->cfg.max_waiting = 2 * WAIT;
    w->cfg.kv.group[0].n_blocks = 60000;
    w->tok = 20, w->seq = 10;
    open_world(w);
    for (int i = 0; i < 40; i++) { /* to know the machine */
        come(w, &c, 100 + 10 * i, 3, 0);
        step(w);
    }
    for (int i = 0; i < RUN; i++)
        come(w, &c, 20 + rnd(w, 100), 30 + rnd(w, 300), 0); /* some end meanwhile */
    while (w->s->n_waiting)
        step(w);
    assert_true(steptime_known(&w->s->time));
    assert_int_equal(c.refused, 0);
    sched_out(w->s, &o);
}

static void over(struct world *w)
{
    sched_free(w->s);
    sim_exec_done(&w->x);
    free(w->st);
}

/* What one forecast costs at most, and all three that a refusal may need. */
static uint64_t bound(void) { return 3 * (16384 + 20 * sched_sort_work(LOOKED)); }

/* A burst between two steps: n like those of a mix, with targets or without. */
static void burst(struct world *w, struct cost *c, int n, bool targets)
{
    const struct sched_out *o;

    for (int i = 0; i < n; i++) {
        int64_t ttft = targets ? 500000 + rnd(w, 30) * 1000000 : 0;
        come(w, c, 10 + rnd(w, rnd(w, 4) ? 200 : 1900), 20, ttft);
    }
    sched_out(w->s, &o);
}

static void costs(enum sched_mode mode, enum sched_order order)
{
    static struct world w;
    struct cost wait = {0}, late = {0}, later = {0};
    uint64_t most = 0;

    /* a burst of requests with targets comes to an empty queue */
    full_house(&w, mode, order);
    burst(&w, &late, WAIT, true);
    printf("# %s, %s: a burst of %d: %d refused, %d looked ahead, work %llu each, %llu "
           "at most\n",
           mode ? "colocated" : "chunked", order ? "slack" : "age", late.n, late.refused,
           late.forecasts, (unsigned long long)late.sum / WAIT,
           (unsigned long long)late.most);
    /* by slack who can still be in time as the next of all waits, and is dropped later */
    assert_true(order == SCHED_BY_SLACK || late.refused > WAIT / 10);
    assert_true(late.most <= bound());
    assert_true(late.forecasts <= WAIT / 20);
    assert_true(late.sum <= (uint64_t)WAIT * 8 * LOOKED);
    /* and a few steps, each with some more */
    for (int i = 0; i < 20; i++) {
        uint64_t work = w.s->work;
        step(&w);
        work = w.s->work - work;
        most = work > most ? work : most;
        burst(&w, &later, 50, true);
    }
    printf("#   a step %llu at most, one that comes then %llu, %llu at most\n",
           (unsigned long long)most, (unsigned long long)later.sum / (20 * 50),
           (unsigned long long)later.most);
    assert_true(later.most <= bound());
    assert_true(most <= 4 * bound());
    over(&w);

    /* or to WAIT that wait already, and have no targets */
    full_house(&w, mode, order);
    burst(&w, &wait, WAIT, false);
    assert_int_equal(wait.refused, 0);
    assert_int_equal(w.s->n_waiting, WAIT);
    late = (struct cost){0};
    burst(&w, &late, 1000, true);
    printf("#   behind %d: %d of 1000 refused, %d looked ahead, work %llu each, %llu at "
           "most\n",
           WAIT, late.refused, late.forecasts, (unsigned long long)late.sum / 1000,
           (unsigned long long)late.most);
    assert_true(late.most <= bound());
    assert_true(late.forecasts <= 100);
    over(&w);
}

static void test_chunked(void **state)
{
    (void)state;
    costs(SCHED_CHUNKED, SCHED_BY_AGE);
    costs(SCHED_CHUNKED, SCHED_BY_SLACK);
}

static void test_colocated(void **state)
{
    (void)state;
    costs(SCHED_COLOCATED, SCHED_BY_AGE);
    costs(SCHED_COLOCATED, SCHED_BY_SLACK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_chunked),
    cmocka_unit_test(test_colocated),
};

TEST_MAIN("sched_burst", tests)

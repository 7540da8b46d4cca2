/* tests/unit/test_sched_lands.c - what must hold of refusal and of fairness in whatever
 * world: many random ones (lands.h) on virtual time. All seeds are written down here. */
#include "tests/test.h"

#include "tests/unit/lands.h"

enum { LANDS = 120, WORLDS = 3 };

static const char *const roles[] = {"both", "prefill", "decode"};

/* ---- refusal ---- */

static int n_good(const struct world *w, int *ret_all)
{
    int good = 0;

    for (int i = 0; i < w->n; i++) {
        bool target = w->r[i].p.ttft_us || w->r[i].p.tpot_us;
        *ret_all += target;
        good += target && met(&w->r[i]);
    }
    return good;
}

static int run_land(const struct land *l, struct world *w, bool refuse, uint64_t seed,
                    int *ret_all)
{
    land_fill(l, w, refuse, seed);
    open_world(w);
    run_until(w, INT64_MAX);
    close_world(w);
    return n_good(w, ret_all);
}

struct sum {
    int all, good, with;
};

static void add(struct sum *s, const struct sum *x)
{
    s->all += x->all, s->good += x->good, s->with += x->with;
}

/* Refusal costs no goodput in any kind of land, and pays in all of them together. In one
 * land alone others may be better off behind requests that are late than beside those
 * that get what refusal frees: ones that nobody refuses, where they fill the engine (not
 * looked at here), ones whose steps or blocks cost answers their TPOT. So there a few of
 * them may be lost: 1 in 20 at most. */
static void test_goodput(void **state)
{
    (void)state;
    static struct world w;
    struct sum of[2][2][3] = {0}, total = {0};
    int lost = 0;

    for (uint64_t seed = 0; seed < LANDS; seed++) {
        struct land l;
        struct sum x = {0};
        int again = 0;

        land_draw(&l, seed);
        for (uint64_t k = 0; k < WORLDS; k++) {
            x.good += run_land(&l, &w, false, 100 + k, &x.all);
            x.with += run_land(&l, &w, true, 100 + k, &again);
        }
        add(&of[l.cfg.mode][l.cfg.order][l.role], &x);
        add(&total, &x);
        lost += x.with < x.good ? x.good - x.with : 0;
        if (x.with < x.good - x.all / 100)
            printf("# land %d, %s, %s, %s, held %.2f: of %d good %d, with refusal %d\n",
                   (int)seed, l.cfg.mode ? "colocated" : "chunked",
                   l.cfg.order ? "slack" : "age", roles[l.role], l.held, x.all, x.good,
                   x.with);
        if (l.held < 0.9)
            assert_true(x.with >= x.good - x.all * 5 / 100);
    }
    for (int m = 0; m < 2; m++)
        for (int o = 0; o < 2; o++)
            for (int r = 0; r < 3; r++) {
                const struct sum *x = &of[m][o][r];
                printf("# %s, %s, %s: of %d good %d, with refusal %d\n",
                       m ? "colocated" : "chunked", o ? "slack" : "age", roles[r], x->all,
                       x->good, x->with);
                assert_true(x->all > 0 && x->with >= x->good - x->all / 200);
            }
    printf("# in all: of %d good %d, with refusal %d; %d fewer in those with fewer\n",
           total.all, total.good, total.with, lost);
    assert_true(total.with > total.good + total.all / 20);
    assert_true(lost < (total.with - total.good) / 20);
}

/* ---- fairness ---- */

/* Of each request while it waits. */
struct wait {
    uint64_t num;
    int before,
        passed; /* older ones that wait, or came back; others that started since */
};

struct fair {
    struct wait q[REQS];
    int n, row, steps;
    uint64_t oldest; /* prompt that runs before the step; 0 = none */
};

static struct wait *wait_of(struct fair *f, uint64_t num)
{
    for (int i = 0; i < f->n; i++)
        if (f->q[i].num == num)
            return &f->q[i];
    assert_true(f->n < REQS);
    f->q[f->n] = (struct wait){.num = num};
    return &f->q[f->n++];
}

/* Before a step is formed: who waits, behind how many. */
static void before_step(struct fair *f, const struct world *w)
{
    int n = 0;

    list_for(it, &w->s->waiting)
    {
        struct wait *q = wait_of(f, list_entry(it, struct sched_seq, link)->num);
        q->before = n > q->before ? n : q->before;
        n++;
    }
    f->oldest = 0;
    list_for(it, &w->s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (!f->oldest && sched_rest(q) > 0)
            f->oldest = q->num;
    }
}

/* k older ones waiting, at most (k + 1) (SCHED_AGE + 1) others start before it. */
static void check_starts(struct fair *f, const struct world *w, int running,
                         uint64_t preempted)
{
    int started = w->s->n_running - running + (int)preempted;

    list_for(it, &w->s->waiting)
    {
        struct wait *q = wait_of(f, list_entry(it, struct sched_seq, link)->num);
        q->passed += started;
        /* one that is preempted is older again than those that wait */
        int k = q->before + (int)w->s->st.preemptions;
        assert_true(q->passed <= (k + 1) * (SCHED_AGE + 1));
    }
}

/* Chunked: whoever has an answer that can go on gets a token of it in each step, and the
 * oldest prompt its share of the rest: half by age, something in SCHED_AGE + 1 steps by
 * slack. Colocated: prompts in a row while answers wait are bounded. */
static void check_shares(struct fair *f, const struct world *w)
{
    const struct flight *fl = &w->s->flights[w->s->flight_head];
    const struct sched_cfg *c = &w->cfg;
    const struct sched_seq *oldest = NULL, *first = NULL;
    int answers = 0, got = 0, need = 0;

    list_for(it, &w->s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        int n = 0, at = q->next_pos;
        for (int i = 0; i < fl->n_items; i++)
            if (fl->items[i].q == q)
                n = fl->items[i].n_tok, at = fl->items[i].first_pos;
        if (q->importing)
            continue;
        if (at < q->prefill_end && !first)
            first = q; /* it may have started with this step */
        if (at >= q->prefill_end)
            answers++;
        else if (q->num == f->oldest && (oldest = q))
            got = n, need = q->prefill_end - at;
    }
    if (c->mode == SCHED_CHUNKED) {
        assert_int_equal(fl->n_decode, answers);
        int half = (c->step_tok - answers + 1) / 2;
        if (oldest && c->order == SCHED_BY_AGE)
            assert_true(got >= (need < half ? need : half));
    } else {
        assert_true(!fl->n_prompt_tok || !fl->n_decode);
        f->row = fl->n_prompt_tok && answers ? f->row + 1 : 0;
        assert_true(f->row <= c->prefill_run);
    }
    if (first && c->order == SCHED_BY_SLACK)
        assert_true(first->skipped <= SCHED_AGE);
}

/* One step after the other, as run_until. */
static void fair_run(struct world *w)
{
    static struct fair f;
    struct step_done d;
    struct err e;

    memset(&f, 0, sizeof(f));
    for (;;) {
        arrive(w);
        hear(w);
        int64_t soon = pulled(w);
        int running = w->s->n_running;
        uint64_t preempted = w->s->st.preemptions;
        before_step(&f, w);
        bool formed = sched_next(w->s, w->now, w->st);
        hear(w);
        check_starts(&f, w, running, w->s->st.preemptions - preempted);
        if (++f.steps % 8 == 0 && sched_check(w->s, &e) < 0)
            fail_msg("%s", e.msg);
        if (!formed) {
            if (w->next == w->n && !w->n_pulls)
                return;
            if (w->next < w->n && w->r[w->next].at_us < soon)
                soon = w->r[w->next].at_us;
            w->now = soon < INT64_MAX && soon > w->now ? soon : w->now + 1;
            continue;
        }
        sched_submitted(w->s, w->now, ++w->x.ticket);
        const struct flight *fl = &w->s->flights[w->s->flight_head];
        check_shares(&f, w);
        double us = w->base + w->tok * fl->n_prompt_tok + w->seq * fl->n_decode;
        light_run(w, &d);
        d.start_us = w->now;
        w->now += (int64_t)us;
        d.end_us = w->now;
        sched_event(w->s, w->now, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
    }
}

static void test_fairness(void **state)
{
    (void)state;
    static struct world w;
    uint64_t preempted = 0;
    int done = 0, refused = 0;

    for (uint64_t seed = 0; seed < LANDS; seed++) {
        struct land l;

        land_draw(&l, 10000 + seed);
        land_fill(&l, &w, seed % 3 == 0, 200);
        open_world(&w);
        fair_run(&w);
        preempted += w.s->st.preemptions;
        close_world(&w);
        for (int i = 0; i < w.n; i++) {
            assert_true(w.r[i].done); /* nobody starves */
            refused += w.r[i].refused;
            done += !w.r[i].refused;
        }
    }
    printf("# %d done, %d refused, %llu preempted\n", done, refused,
           (unsigned long long)preempted);
    assert_true(preempted > 20 && refused > 100);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_goodput),
    cmocka_unit_test(test_fairness),
};

TEST_MAIN("sched_lands", tests)

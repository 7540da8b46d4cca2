/* tests/unit/test_sched_refuse.c - early refusal in many worlds on virtual time: what is
 * limited by prompts, places or blocks, in both modes and orders, from light load to
 * overload. All seeds are written down here. */
#include "tests/test.h"

#include "tests/unit/slackworld.h"

enum { N = 200, SEEDS = 3, AGAIN = 2 /* of those refused in a world are sent again */ };
enum kind { MIX, SHORT, LONG, PLACES, BLOCKS, KINDS };

static const struct {
    const char *name;
    int capacity_us; /* a request in so long is about what it can serve */
} kinds[] = {{"mix", 46000},
             {"short", 16000},
             {"long", 128000},
             {"few places", 46000},
             {"few blocks", 46000}};
static const double loads[] = {0.4, 0.9, 1.3, 2.0};
enum { LIGHT, BUSY, OVER, FAR_OVER, LOADS };

/* Decoding stands still while whole prompts are computed: longer targets for it. */
static void relax(struct world *w, int from)
{
    for (int i = from; i < w->n && w->cfg.mode == SCHED_COLOCATED; i++)
        w->r[i].p.tpot_us *= 4;
}

static void some(struct world *w, enum kind k, int n, int gap_us)
{
    int64_t at = 0;

    if (k != SHORT && k != LONG) {
        mixed(w, n, gap_us);
        return;
    }
    for (int i = 0; i < n; i++) {
        at += rnd(w, 2 * gap_us);
        if (k == SHORT)
            want(w, at, 30 + rnd(w, 100), 5 + rnd(w, 30), 150000, 30000);
        else
            want(w, at, 500 + rnd(w, 1400), 5 + rnd(w, 20), 1500000, 60000);
    }
}

struct setting {
    enum sched_mode mode;
    enum sched_order order;
    enum kind kind;
    double load;
    uint64_t seed;
};

static void build(struct world *w, const struct setting *v, bool refuse)
{
    init(w, v->order, refuse, v->seed);
    w->cfg.mode = v->mode;
    w->light = true;
    if (v->kind == PLACES)
        w->cfg.max_seqs = w->cfg.max_outs = 4;
    if (v->kind == BLOCKS)
        w->cfg.kv.group[0].n_blocks = 300;
    some(w, v->kind, N, (int)(kinds[v->kind].capacity_us / v->load));
    relax(w, 0);
}

static void run(struct world *w)
{
    open_world(w);
    run_until(w, INT64_MAX);
    close_world(w);
}

struct sum {
    int all, good, refused, good_all; /* good_all: where nothing is refused */
    int again, kept, again_busy, kept_busy;
};

static int n_good(const struct world *w)
{
    int n = 0;

    for (int i = 0; i < w->n; i++)
        n += w->r[i].p.ttft_us && met(&w->r[i]);
    return n;
}

/* Request i, which was refused, once more when it was told to; until then nobody comes,
 * or, busy, requests as before at a third of what can be served. Did it meet its target?
 */
static bool sent_again(const struct setting *v, const struct r *r, bool busy)
{
    static struct world w;
    int64_t at = r->refused_us, when = r->refused_us + r->retry_us;
    int n = 0, gap = 3 * kinds[v->kind].capacity_us;

    build(&w, v, true);
    while (n < w.n && w.r[n].at_us <= r->refused_us)
        n++;
    w.n = n;
    while (busy && (at += rnd(&w, 2 * gap)) < when && w.n < REQS - 1) {
        const struct r *like = &w.r[rnd(&w, n)];
        want(&w, at, like->p.n_prompt, like->p.max_tokens, like->p.ttft_us,
             like->p.tpot_us);
    }
    struct r *x = want(&w, when, r->p.n_prompt, 3, r->p.ttft_us, 0);
    run(&w);
    return !x->refused && met_first(x);
}

static void compare(const struct setting *v, struct sum *sum)
{
    static struct world all, part;
    int refused = 0, left = 0;

    build(&all, v, false);
    build(&part, v, true);
    run(&all);
    run(&part);
    for (int i = 0; i < part.n; i++) {
        sum->all += part.r[i].p.ttft_us > 0;
        refused += part.r[i].refused;
        assert_true(!part.r[i].refused || part.r[i].p.ttft_us);
    }
    sum->good_all += n_good(&all);
    sum->good += n_good(&part);
    sum->refused += refused;
    for (int i = 0; i < part.n; i++)
        if (part.r[i].refused && left++ % (refused / AGAIN + 1) == 0) {
            sum->again++;
            sum->kept += sent_again(v, &part.r[i], false);
            sum->again_busy++;
            sum->kept_busy += sent_again(v, &part.r[i], true);
        }
}

/* Light: nobody is refused who would have been in time. Near what can be served: no fewer
 * are good than without refusal. Above it: more, whatever the limit is. And who comes
 * again when told is in time. */
static void worlds(enum sched_mode mode, enum sched_order order)
{
    struct sum all = {0};

    for (int k = 0; k < KINDS; k++) {
        struct sum at[LOADS] = {0};

        for (int l = 0; l < LOADS; l++) {
            for (uint64_t seed = 0; seed < SEEDS; seed++)
                compare(&(struct setting){mode, order, (enum kind)k, loads[l], 60 + seed},
                        &at[l]);
            printf(
                "# %s, %s, %s, load %.1f: of %d good %d, with refusal %d; %d refused\n",
                mode ? "colocated" : "chunked", order ? "slack" : "age", kinds[k].name,
                loads[l], at[l].all, at[l].good_all, at[l].good, at[l].refused);
            all.again += at[l].again, all.kept += at[l].kept;
            all.again_busy += at[l].again_busy, all.kept_busy += at[l].kept_busy;
        }
        if (k == PLACES) /* answers in a row may hold all four of them */
            assert_true(at[LIGHT].refused <= at[LIGHT].all / 50);
        else
            assert_int_equal(at[LIGHT].refused, 0);
        for (int l = LIGHT; l <= BUSY; l++)
            assert_true(at[l].good >= at[l].good_all - at[l].all / 100);
        assert_true(at[OVER].refused > 0 && at[FAR_OVER].refused > at[OVER].refused);
        assert_true(at[OVER].good + at[FAR_OVER].good >
                    at[OVER].good_all + at[FAR_OVER].good_all);
    }
    printf("# sent again when told: %d of %d in time, while others come %d of %d\n",
           all.kept, all.again, all.kept_busy, all.again_busy);
    assert_true(all.again > 20);
    assert_true(100 * all.kept >= 95 * all.again);
    assert_true(100 * all.kept_busy >= 90 * all.again_busy); /* nobody knows of them */
}

static void test_chunked_by_age(void **state)
{
    (void)state;
    worlds(SCHED_CHUNKED, SCHED_BY_AGE);
}

static void test_chunked_by_slack(void **state)
{
    (void)state;
    worlds(SCHED_CHUNKED, SCHED_BY_SLACK);
}

static void test_colocated_by_age(void **state)
{
    (void)state;
    worlds(SCHED_COLOCATED, SCHED_BY_AGE);
}

static void test_colocated_by_slack(void **state)
{
    (void)state;
    worlds(SCHED_COLOCATED, SCHED_BY_SLACK);
}

/* Estimates of steps are near what was measured, and refusals are counted. */
static void test_counted(void **state)
{
    (void)state;
    static struct world w;
    struct sched_stats st;
    int refused = 0;

    build(&w, &(struct setting){.load = 1.3, .seed = 41}, true);
    open_world(&w);
    run_until(&w, INT64_MAX);
    for (int i = 0; i < w.n; i++)
        refused += w.r[i].refused;
    sched_stats(w.s, &st);
    assert_true(refused > 0);
    assert_int_equal(st.refused_late, refused);
    assert_true(st.est_steps > 100 && (double)st.est_off_us < 0.1 * (double)st.est_us);
    close_world(&w);
}

/* Who is never refused. */
static void test_not_refused(void **state)
{
    (void)state;
    static struct world w;

    init(&w, SCHED_BY_AGE, true, 51);
    for (int i = 0; i < 10; i++) /* not known yet, though hopeless */
        want(&w, 0, 250, 2, 1, 0);
    for (int i = 0; i < 30; i++)
        want(&w, 1000000 + i * 200000, 100 + 10 * i, 3, 0, 0);
    for (int i = 0; i < 20; i++)
        want(&w, 10000000, 1000, 2, 0, 0); /* 2 s of work, no target */
    want(&w, 10000001, 1000, 2, 50000, 0); /* alone too long for it: 100 ms */
    want(&w, 10000001, 100, 2, 0, 0);
    struct r *gone_on = want(&w, 10000001, 100, 2, 50000, 0);
    gone_on->p.n_gen = 1;
    gone_on->p.n_prompt--;
    gone_on->p.max_tokens++;
    int late = w.n;
    struct r *first = want(&w, 10000001, 100, 2, 50000, 0);
    struct r *second = want(&w, 10000001, 100, 2, 50000, 0);
    first->p.group = second->p.group = 77;
    open_world(&w);
    run_until(&w, INT64_MAX);
    for (int i = 0; i < late; i++)
        assert_false(w.r[i].refused);
    assert_true(first->refused && second->refused); /* choices: both */
    assert_true(first->retry_us == second->retry_us);
    close_world(&w);
}

/* What waits before one that comes, and costs it no time: prompts that another engine
 * computes, and such as need be computed once only. */
static void test_not_in_the_way(void **state)
{
    (void)state;
    static struct world w;

    for (int same = 0; same < 2; same++) {
        init(&w, SCHED_BY_AGE, true, 52);
        for (int i = 0; i < 30; i++)
            want(&w, i * 200000, 100 + 10 * i, 3, 0, 0);
        int first = w.n;
        for (int i = 0; i < 20; i++) { /* 2 s of work, if it were */
            struct r *r = want(&w, 10000000, 1000, 2, 0, 0);
            r->base = w.r[first].base;
            r->p.handoff = same ? GEN_HERE : GEN_IMPORT;
        }
        struct r *own = want(&w, 10000000, 1000, 2, 400000, 0);
        own->base = same ? w.r[first].base : own->base;
        open_world(&w);
        run_until(&w, INT64_MAX);
        assert_false(own->refused);
        assert_true(met_first(own));
        close_world(&w);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_chunked_by_age),   cmocka_unit_test(test_chunked_by_slack),
    cmocka_unit_test(test_colocated_by_age), cmocka_unit_test(test_colocated_by_slack),
    cmocka_unit_test(test_counted),          cmocka_unit_test(test_not_refused),
    cmocka_unit_test(test_not_in_the_way),
};

TEST_MAIN("sched_refuse", tests)

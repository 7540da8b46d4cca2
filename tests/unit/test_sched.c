/* tests/unit/test_sched.c - the rules of the scheduler one by one, on the simulated
 * device of simworld.h; test_sched_sim.c mixes them. */
#include "tests/test.h"

#include "tests/unit/simworld.h"

struct w {
    struct sched *s;
    struct sim_exec x;
    struct step *st; /* the last step */
    int64_t now;
    int steps;
};

static void w_init(struct w *w, const struct sched_cfg *c)
{
    *w = (struct w){.s = sched_new(c)};
    sim_exec_init(&w->x, c, 1);
    w->st = step_new(&w->x.caps);
}

static void w_done(struct w *w)
{
    sched_free(w->s);
    sim_exec_done(&w->x);
    free(w->st);
}

static void check(struct w *w)
{
    struct err e;

    if (sched_check(w->s, &e) < 0)
        fail_msg("%s", e.msg);
}

/* Prompt base, base + 1, .. modulo the vocabulary. */
static void add(struct w *w, struct gen_params p, int base)
{
    static int32_t prompt[40000];
    static const int32_t eog[] = {SIM_EOS};
    struct sched_event ev = {
        .kind = SCHED_ADD, .params = &p, .prompt = prompt, .eog = eog, .n_eog = 1};

    for (int i = 0; i < p.n_prompt && i < 40000; i++)
        prompt[i] = (base + i * (1 + base)) % SIM_VOCAB;
    sched_event(w->s, w->now, &ev);
    check(w);
}

/* A request that ends by its length only. */
static struct gen_params req(uint64_t id, int n_prompt, int max_tokens)
{
    struct gen_params p = sim_params(id, n_prompt, max_tokens);

    p.ignore_eos = true;
    return p;
}

static void cancel(struct w *w, uint64_t id)
{
    sched_event(w->s, w->now, &(struct sched_event){.kind = SCHED_CANCEL, .id = id});
    check(w);
}

static bool next(struct w *w)
{
    if (!sched_next(w->s, w->now, w->st))
        return false;
    sched_submitted(w->s, w->now, sim_submit(&w->x, w->st));
    w->steps++;
    check(w);
    return true;
}

static void back(struct w *w)
{
    struct step_done d;

    w->now += 1000;
    sim_run(&w->x, &d);
    sched_event(w->s, w->now, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
    check(w);
}

/* One step there and back; false when there is nothing to run. */
static bool turn(struct w *w)
{
    if (!next(w))
        return false;
    back(w);
    return true;
}

/* Item of request number num (order of arrival) in the last step, or NULL. */
static const struct step_item *item(struct w *w, uint64_t num)
{
    for (int i = 0; i < w->st->n_items; i++)
        if (step_items(w->st)[i].seq == num)
            return &step_items(w->st)[i];
    return NULL;
}

static int toks_of(struct w *w, uint64_t num)
{
    const struct step_item *it = item(w, num);
    return it ? it->n_tok : 0;
}

struct seen {
    int n_toks, n_scored, finishes, refused;
    struct sched_out last; /* FINISH or REFUSE */
    enum err_code code;
};

/* What came out for id since the last look; other ids are dropped. */
static void look(struct w *w, uint64_t id, struct seen *ret)
{
    const struct sched_out *o;
    size_t n = sched_out(w->s, &o);

    for (size_t i = 0; i < n; i++) {
        if (o[i].id != id)
            continue;
        if (o[i].kind == SCHED_OUT_TOKENS) {
            *(o[i].scored ? &ret->n_scored : &ret->n_toks) += o[i].n_toks;
            continue;
        }
        ret->finishes += o[i].kind == SCHED_OUT_FINISH;
        ret->refused += o[i].kind == SCHED_OUT_REFUSE;
        ret->last = o[i];
        ret->code = o[i].error ? o[i].error->code : ERR_OK;
    }
}

static int used(struct w *w)
{
    struct sched_stats v;

    sched_stats(w->s, &v);
    return v.kv.n_used;
}

static struct sched_stats stats(struct w *w)
{
    struct sched_stats v;

    sched_stats(w->s, &v);
    return v;
}

static void test_one_request(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 64);
    struct w w;
    struct seen s = {0};

    w_init(&w, &c);
    w.now = 5000;
    add(&w, req(9, 100, 5), 1);
    w.now = 7000;
    while (turn(&w))
        ;
    look(&w, 9, &s);
    assert_int_equal(s.n_toks, 5);
    assert_int_equal(s.finishes, 1);
    assert_int_equal(s.last.reason, FINISH_LENGTH);
    assert_int_equal(s.last.n_prompt, 100);
    assert_int_equal(s.last.n_out, 5);
    assert_int_equal(w.steps, 2 + 4); /* 64 + 36 of the prompt, then 4 */
    assert_int_equal(s.last.queue_us, 2000);
    assert_int_equal(s.last.prefill_us, 2000);
    assert_int_equal(s.last.decode_us, 4000);
    assert_true(sched_idle(w.s));
    assert_int_equal(used(&w), 0);
    assert_int_equal(stats(&w).gen_tok, 5);
    w_done(&w);
}

static enum err_code refusal(struct w *w, struct gen_params p)
{
    struct seen s = {0};

    add(w, p, 1);
    look(w, p.id, &s);
    return s.refused ? s.code : ERR_OK;
}

static void test_refusals(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 64);
    struct w w;
    struct gen_params p = req(7, 10, 1);

    c.max_waiting = 2;
    c.max_seqs = 2;
    w_init(&w, &c);
    assert_int_equal(refusal(&w, req(1, 0, 1)), ERR_INVALID);
    assert_int_equal(refusal(&w, req(1, 1025, 1)), ERR_CONTEXT);
    assert_int_equal(refusal(&w, req(1, 1024, 1)), ERR_CONTEXT);
    p.n_bias = 1 << 20;
    assert_int_equal(refusal(&w, p), ERR_TOOBIG);
    for (uint64_t id = 1; id <= 4; id++) /* two places, two may wait */
        assert_int_equal(refusal(&w, req(id, 10, 50)), ERR_OK);
    assert_int_equal(refusal(&w, req(2, 10, 1)), ERR_CONFLICT);
    assert_int_equal(refusal(&w, req(5, 10, 1)), ERR_BUSY);
    assert_true(turn(&w));
    assert_int_equal(refusal(&w, req(5, 10, 1)), ERR_BUSY);
    cancel(&w, 4);
    sched_event(w.s, 0, &(struct sched_event){.kind = SCHED_DRAIN});
    assert_int_equal(refusal(&w, req(6, 10, 1)), ERR_UNAVAIL);
    while (turn(&w)) /* those that were taken finish */
        ;
    struct seen s = {0};
    look(&w, 3, &s);
    assert_int_equal(s.finishes, 1);
    assert_true(sched_idle(w.s));
    w_done(&w);

    c = sim_cfg(16, 4); /* 64 positions in all */
    w_init(&w, &c);
    assert_int_equal(refusal(&w, req(1, 64, 1)), ERR_CONTEXT);
    assert_int_equal(refusal(&w, req(1, 63, 9)), ERR_OK);
    while (turn(&w))
        ;
    look(&w, 1, &s);
    assert_true(s.last.reason == FINISH_LENGTH && s.last.n_out == 1);
    w_done(&w);
}

static void test_ends(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 64);
    struct w w;
    struct seen s = {0};
    struct gen_params p = sim_params(1, 20, 900);
    int32_t prompt[20] = {0}, eog[] = {SIM_EOS};
    struct sched_event ev = {
        .kind = SCHED_ADD, .params = &p, .prompt = prompt, .eog = eog, .n_eog = 1};

    w_init(&w, &c);
    sched_event(w.s, 0, &ev);
    while (turn(&w))
        ;
    look(&w, 1, &s);
    assert_true(s.last.reason == FINISH_STOP && s.last.stop_id == SIM_EOS);
    assert_int_equal(s.last.n_out, s.n_toks); /* the stop is not among them */

    int32_t stop = 7; /* a stop of the request, also with ignore_eos */
    p.id = 2, p.n_stop = 1, p.ignore_eos = true;
    ev.stops = &stop;
    sched_event(w.s, 0, &ev);
    while (turn(&w))
        ;
    look(&w, 2, &s);
    assert_true(s.last.reason == FINISH_STOP && s.last.stop_id == 7);

    p.id = 3, p.max_tokens = 0; /* nothing asked: over at once */
    sched_event(w.s, 0, &ev);
    look(&w, 3, &s);
    assert_true(s.finishes == 3 && s.last.reason == FINISH_LENGTH && !s.last.n_out);
    p = req(4, 20, -1); /* up to the context */
    add(&w, p, 1);
    while (turn(&w))
        ;
    look(&w, 4, &s);
    assert_int_equal(s.last.n_out, 1024 - 20);
    w_done(&w);
}

static void test_decode_first(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 200);
    struct w w;

    w_init(&w, &c);
    for (uint64_t id = 1; id <= 4; id++)
        add(&w, req(id, 10, 50), (int)id);
    assert_true(turn(&w));
    add(&w, req(5, 900, 5), 30);
    for (int i = 0; i < 10; i++) {
        assert_true(turn(&w));
        for (uint64_t id = 1; id <= 4; id++)
            assert_int_equal(toks_of(&w, id), 1);
        assert_int_equal(toks_of(&w, 5), 60); /* all that is left */
    }
    w_done(&w);
}

/* A short prompt behind one of 32k: rule 1 and both bounds. */
static void test_short_behind_long(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 3000);
    struct w w;
    int finished_at = 0;

    c.max_ctx = 33000;
    c.step_tok = 512;
    w_init(&w, &c);
    add(&w, req(1, 32768, 2), 1);
    assert_true(turn(&w));
    assert_int_equal(toks_of(&w, 1), 512); /* alone it has everything */
    add(&w, req(2, 400, 1), 2);
    add(&w, req(3, 100, 1), 3);
    for (int i = 1; i <= 3; i++) {
        assert_true(turn(&w));
        assert_true(toks_of(&w, 1) >= 256);
        struct seen s = {0};
        look(&w, 2, &s);
        finished_at = s.finishes ? i : finished_at;
    }
    assert_int_equal(finished_at, 2); /* 100 first, then 156 and 244 of 400 */
    assert_true(turn(&w));
    assert_int_equal(toks_of(&w, 1), 512);
    w_done(&w);
}

/* Short ones without end do not keep a long one from running, nor from a place. */
static void test_long_among_short(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 3000);
    struct w w;
    uint64_t id = 2;
    int started = 0, n_short = 0;

    c.max_ctx = 33000;
    c.max_seqs = 2;
    w_init(&w, &c);
    for (; id < 40; id++)
        add(&w, req(id + 1000, 8, 3), (int)id);
    add(&w, req(1, 30000, 1), 1); /* arrives 39th */
    for (int i = 0; i < 5000 && !stats(&w).waiting == 0; i++) {
        id++;
        add(&w, req(id + 1000, 8, 3), (int)id % 40);
        assert_true(turn(&w));
        n_short += !started;
        started |= toks_of(&w, 39) > 0;
        if (item(&w, 39)) /* then it gets half at least */
            assert_true(toks_of(&w, 39) >= (64 - 2) / 2 ||
                        item(&w, 39)->out_from < toks_of(&w, 39));
        if (stats(&w).prompt_tok > 30000 && !item(&w, 39))
            break;
    }
    assert_true(started);
    /* 38 before it, each admitted within SCHED_AGE = 16 admissions when it is oldest */
    assert_true(n_short < 39 * 17 * 3);
    w_done(&w);
}

/* No blocks for the oldest: smaller ones pass, SCHED_AGE times and no more. */
static void test_passed_over(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 64);
    struct w w;
    int before = 0;

    c.kv.reuse = false;
    w_init(&w, &c);
    add(&w, req(1, 600, 200), 1); /* 38 of 64 blocks, and growing */
    assert_true(turn(&w));
    add(&w, req(2, 700, 1), 2); /* does not fit beside it */
    for (uint64_t id = 3; id < 80; id++)
        add(&w, req(id, 20, 1), (int)id % 40);
    while (turn(&w) && !item(&w, 2)) {
        const struct sched_out *o;
        size_t n = sched_out(w.s, &o);
        for (size_t i = 0; i < n; i++)
            before += o[i].kind == SCHED_OUT_FINISH && o[i].id > 2;
    }
    assert_non_null(item(&w, 2));
    assert_int_equal(before, 16);
    w_done(&w);
}

static void test_preemption(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 24);
    struct w w;
    const struct sched_out *o;
    uint64_t order[3] = {0};
    int n_done = 0;

    c.max_ctx = 96;
    w_init(&w, &c);
    for (uint64_t id = 1; id <= 3; id++)
        add(&w, req(id, 16, 40), (int)id * 3); /* 14 blocks each in the end */
    while (turn(&w)) {
        size_t n = sched_out(w.s, &o);
        for (size_t i = 0; i < n; i++)
            if (o[i].kind == SCHED_OUT_FINISH) {
                order[n_done++] = o[i].id;
                assert_int_equal(o[i].n_out, 40);
                assert_true((o[i].n_preempted > 0) == (o[i].id != 1));
            }
    }
    assert_int_equal(n_done, 3);
    for (int i = 0; i < 3; i++) /* seniority is kept */
        assert_int_equal(order[i], i + 1);
    assert_true(stats(&w).preemptions >= 2);
    assert_true(stats(&w).recomputed_tok > 0);
    assert_int_equal(used(&w), 0);
    w_done(&w);
}

static void test_cancel(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 64);
    struct w w;
    struct seen s = {0};

    c.max_seqs = 2;
    w_init(&w, &c);
    for (uint64_t id = 1; id <= 3; id++)
        add(&w, req(id, 16, 40), (int)id);
    cancel(&w, 77);
    assert_int_equal(stats(&w).late, 1);
    assert_true(turn(&w));
    cancel(&w, 3); /* waiting */
    cancel(&w, 1); /* running, nothing in flight: blocks are back */
    assert_int_equal(used(&w), 4);
    assert_true(next(&w));
    cancel(&w, 2); /* in flight: told at once, blocks with the result */
    look(&w, 2, &s);
    assert_true(s.finishes == 1 && s.last.reason == FINISH_ABORT);
    assert_int_equal(used(&w), 5);
    back(&w);
    assert_int_equal(used(&w), 0);
    look(&w, 2, &s);
    assert_int_equal(s.finishes, 1);
    cancel(&w, 2);
    assert_int_equal(stats(&w).late, 2);
    assert_true(sched_idle(w.s));
    w_done(&w);
}

static void test_choices_share(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 200);
    struct w w;
    struct gen_params p = req(1, 80, 3);

    w_init(&w, &c);
    for (int i = 0; i < 4; i++) {
        p.id = (uint64_t)i + 1, p.group = 5, p.choice = i;
        add(&w, p, 1);
    }
    assert_true(turn(&w));
    assert_int_equal(w.st->n_items, 1); /* the others wait for the prompt */
    cancel(&w, 1);                      /* 64 of 80 are there: the next goes on */
    assert_true(turn(&w));
    assert_int_equal(w.st->n_items, 1);
    assert_int_equal(item(&w, 2)->first_pos, 64);
    assert_true(turn(&w));
    assert_int_equal(w.st->n_items, 3);
    assert_int_equal(item(&w, 3)->first_pos, 76);
    assert_int_equal(item(&w, 3)->n_tok, 4);
    assert_int_equal(item(&w, 4)->first_pos, 76);
    while (turn(&w))
        ;
    struct seen s = {0};
    look(&w, 4, &s);
    assert_true(s.finishes == 1 && s.last.n_cached == 76 && s.last.n_out == 3);
    w_done(&w);
}

/* Equal prompts run one after the other, so the second finds the first one's blocks. */
static void test_same_prompt_twice(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 200);
    struct w w;

    w_init(&w, &c);
    add(&w, req(1, 128, 3), 1);
    add(&w, req(2, 128, 3), 1);
    assert_true(turn(&w));
    assert_int_equal(toks_of(&w, 1), 64);
    assert_true(turn(&w));
    assert_int_equal(toks_of(&w, 1), 64);
    assert_true(turn(&w));
    assert_int_equal(item(&w, 2)->first_pos, 124);
    w_done(&w);
}

static void test_two_in_flight(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 64);
    struct w w;
    struct seen s = {0};
    struct gen_params p = sim_params(1, 7, 30);
    int32_t prompt[7] = {1, 2, 3, 4, 5, 6, 7}, first;
    uint64_t h = 1;

    for (int i = 0; i < 7; i++)
        h = sim_mix(h, (uint64_t)prompt[i]);
    first = sim_token(h, 1, 0, 0);
    c.depth = 2;
    w_init(&w, &c);
    struct sched_event ev = {
        .kind = SCHED_ADD, .params = &p, .prompt = prompt, .eog = &first, .n_eog = 1};
    sched_event(w.s, 0, &ev);
    assert_true(next(&w));
    assert_true(next(&w)); /* on a token that is not there yet */
    assert_int_equal(w.st->n_refs, 1);
    assert_int_equal(step_refs(w.st)[0].ticket, 1);
    assert_false(next(&w));
    assert_int_equal(used(&w), 2);
    back(&w); /* the first token ends it: the second is thrown away */
    look(&w, 1, &s);
    assert_true(s.finishes == 1 && s.n_toks == 0 && s.last.stop_id == first);
    assert_int_equal(used(&w), 2);
    back(&w);
    assert_int_equal(used(&w), 0);
    look(&w, 1, &s);
    assert_true(s.finishes == 1 && s.n_toks == 0);

    /* not past the last token that is wanted */
    s = (struct seen){0};
    add(&w, req(2, 7, 2), 3);
    assert_true(next(&w));
    assert_true(next(&w));
    back(&w);
    assert_false(next(&w));
    back(&w);
    look(&w, 2, &s);
    assert_true(s.finishes == 1 && s.n_toks == 2);
    w_done(&w);
}

static void test_accepts_none_or_several(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 64);
    struct w w;
    struct step_done d;
    struct sched_event ev = {.kind = SCHED_DONE, .done = &d};

    c.depth = 2;
    w_init(&w, &c);
    add(&w, req(1, 7, 30), 1);
    assert_true(next(&w));
    assert_true(next(&w));
    sim_run(&w.x, &d);
    d.results[0].n_accepted = 0; /* the last row has to run again */
    sched_event(w.s, 0, &ev);
    check(&w);
    assert_true(next(&w));
    assert_int_equal(item(&w, 1)->first_pos, 6);
    assert_int_equal(item(&w, 1)->n_tok, 1);
    assert_int_equal(step_samples(w.st)[0].out_pos, 0);
    back(&w); /* the void one */
    back(&w);
    assert_true(next(&w));
    assert_int_equal(item(&w, 1)->first_pos, 7);

    w.x.odd_accept = 0;
    sim_run(&w.x, &d);
    struct step_token more[3] = {d.toks[0], {.id = 3}, {.id = 4}};
    d.toks = more, d.n_toks = 3;
    d.results[0].tok_off = 0, d.results[0].n_accepted = 3;
    sched_event(w.s, 0, &ev);
    check(&w);
    assert_true(next(&w)); /* the three are fed together, one sampled */
    assert_int_equal(item(&w, 1)->first_pos, 8);
    assert_int_equal(item(&w, 1)->n_tok, 3);
    assert_int_equal(step_samples(w.st)[0].out_pos, 4);
    w_done(&w);
}

static void test_prompt_logprobs(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 200);
    struct w w;
    struct seen s = {0};
    struct gen_params p = req(2, 100, 0);

    w_init(&w, &c); /* 16 output rows a step */
    add(&w, req(1, 100, 1), 1);
    while (turn(&w))
        ;
    p.prompt_logprobs = true;
    p.n_top = 3;
    add(&w, p, 1);
    assert_true(turn(&w)); /* the prompt is cached, and yet computed */
    assert_int_equal(item(&w, 2)->first_pos, 0);
    assert_int_equal(item(&w, 2)->n_tok, 16);
    assert_int_equal(item(&w, 2)->out_from, 0);
    assert_int_equal(item(&w, 2)->next, step_toks(w.st)[15] + 2);
    while (turn(&w))
        ;
    look(&w, 2, &s);
    assert_int_equal(s.n_scored, 99);
    assert_true(s.n_toks == 0 && s.finishes == 1 && s.last.reason == FINISH_LENGTH);
    p.id = 3, p.max_tokens = 2;
    add(&w, p, 1);
    while (turn(&w))
        ;
    s = (struct seen){0};
    look(&w, 3, &s);
    assert_true(s.n_scored == 99 && s.n_toks == 2 && s.finishes == 1);
    w_done(&w);
}

static void test_device_error(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 64);
    struct w w;
    struct seen s = {0};
    struct step_done d;
    struct err e;

    c.depth = 2;
    w_init(&w, &c);
    add(&w, req(1, 7, 30), 1);
    add(&w, req(2, 7, 30), 2);
    assert_true(next(&w) && next(&w));
    add(&w, req(3, 7, 3), 3);
    sim_run(&w.x, &d);
    err_set(&e, ERR_DEVICE, "gone");
    d.error = &e, d.n_results = 0;
    sched_event(w.s, 0, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
    check(&w);
    look(&w, 2, &s);
    assert_true(s.finishes == 1 && s.last.reason == FINISH_ERROR && s.code == ERR_DEVICE);
    back(&w);
    while (turn(&w)) /* the others go on */
        ;
    s = (struct seen){0};
    look(&w, 3, &s);
    assert_true(s.finishes == 1 && s.last.reason == FINISH_LENGTH);
    assert_int_equal(used(&w), 0);

    add(&w, req(4, 7, 3), 4); /* a result that is not what was asked */
    assert_true(next(&w));
    sim_run(&w.x, &d);
    d.results[0].seq = 99;
    sched_event(w.s, 0, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
    look(&w, 4, &s);
    assert_true(s.last.reason == FINISH_ERROR && s.code == ERR_INTERNAL);
    d.ticket = 12345; /* late or foreign: counted */
    sched_event(w.s, 0, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
    assert_int_equal(stats(&w).late, 1);
    assert_true(sched_idle(w.s));
    w_done(&w);
}

static void test_colocated(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 200);
    struct w w;
    int row = 0, worst = 0;

    c.mode = SCHED_COLOCATED;
    w_init(&w, &c);
    add(&w, req(1, 40, 60), 1);
    assert_true(turn(&w));
    for (uint64_t id = 2; id < 8; id++)
        add(&w, req(id, 40, 60), (int)id); /* two do not fit in one step of 64 */
    for (int i = 0; i < 20; i++) {
        assert_true(turn(&w));
        bool prefill = step_items(w.st)[0].n_tok > 1;
        for (int k = 0; k < w.st->n_items; k++) {
            const struct step_item *it = &step_items(w.st)[k];
            assert_int_equal(it->n_tok, prefill ? 40 : 1); /* whole, and not mixed */
        }
        row = prefill ? row + 1 : 0;
        worst = row > worst ? row : worst;
    }
    assert_int_equal(worst, c.prefill_run);
    add(&w, req(9, 300, 2), 9); /* longer than a step: cut */
    int most = 0;
    while (turn(&w))
        most = toks_of(&w, 8) > most ? toks_of(&w, 8) : most;
    assert_int_equal(most, 64);
    w_done(&w);
}

/* A decode step whose only member is preempted must not end in no step at all. */
static void test_colocated_goes_on(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 53);
    struct w w;
    int n_done = 0;

    c.mode = SCHED_COLOCATED;
    c.prefill_run = 1;
    c.step_tok = 16;
    c.max_ctx = 212;
    w_init(&w, &c);
    add(&w, req(1, 200, 5), 1); /* 50 blocks, 13 steps */
    add(&w, req(2, 7, 30), 2);  /* decodes beside it until the 53 are used up */
    while (turn(&w)) {
        const struct sched_out *o;
        size_t n = sched_out(w.s, &o);
        for (size_t i = 0; i < n; i++)
            n_done += o[i].kind == SCHED_OUT_FINISH;
    }
    assert_int_equal(n_done, 2);
    assert_int_equal(stats(&w).preemptions, 1);
    w_done(&w);
}

/* Freed with requests in every state: nothing leaks, nothing is freed twice. */
static void test_free_midway(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 64);
    struct w w;
    struct gen_params p = req(1, 60, 60);

    c.depth = 2;
    c.max_seqs = 3;
    w_init(&w, &c);
    for (uint64_t id = 1; id <= 12; id++) {
        p.id = id, p.group = 1 + id / 4, p.choice = (int32_t)id;
        add(&w, p, (int)(id / 4));
    }
    assert_true(next(&w) && next(&w));
    cancel(&w, 1); /* a zombie; one of its group takes over */
    assert_int_equal(stats(&w).waiting, 12 - 1 - stats(&w).running);
    w_done(&w);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 64);
    struct w w;

    w_init(&w, &c);
    for (long at = 1; at <= 2; at++) { /* tokens, ids that end it */
        mem_fail_at(at);
        assert_int_equal(refusal(&w, req(1, 20, 1)), ERR_NOMEM);
        mem_fail_at(0);
        assert_true(sched_idle(w.s));
    }
    assert_int_equal(refusal(&w, req(1, 20, 1)), ERR_OK);
    w_done(&w);
}

/* Histories are bounded per step; who is left out goes first in the next one. */
static void test_histories_take_turns(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 4000);
    struct w w;
    int got[6] = {0};

    c.depth = 2;
    c.max_ctx = 8192;
    c.step_tok = 4096;
    w_init(&w, &c); /* room for 8192 + 128 + 4096 tokens of history */
    for (uint64_t id = 1; id <= 6; id++) {
        struct gen_params p = req(id, 4000, 100);
        p.frequency = 0.1f;
        add(&w, p, (int)id);
    }
    for (int i = 0; i < 30; i++) {
        while (next(&w))
            ;
        back(&w);
        const struct sched_out *o;
        size_t n = sched_out(w.s, &o);
        for (size_t k = 0; k < n; k++)
            got[o[k].id - 1] += i >= 15 ? o[k].n_toks : 0;
    }
    for (int i = 0; i < 6; i++)
        assert_true(got[i] >= 3);
    w_done(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_decode_first),
        cmocka_unit_test(test_short_behind_long),
        cmocka_unit_test(test_long_among_short),
        cmocka_unit_test(test_passed_over),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_choices_share),
        cmocka_unit_test(test_same_prompt_twice),
        cmocka_unit_test(test_two_in_flight),
        cmocka_unit_test(test_accepts_none_or_several),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_device_error),
        cmocka_unit_test(test_colocated),
        cmocka_unit_test(test_colocated_goes_on),
        cmocka_unit_test(test_free_midway),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_histories_take_turns),
    };
    return test_main(argc, argv, "sched", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/unit/test_sched.c - the life of a request, one rule at a time; test_sched_form.c
 * has the rules of who runs, test_sched_sim.c mixes everything. */
#include "tests/test.h"

#include "tests/unit/simsched.h"

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

/* A request remembers what was done to its own rows, not to others of its steps. */
static void test_altered(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(16, 64);
    struct w w;
    struct seen s = {0};
    int both = 0, of[4] = {-1, -1, -1, -1};

    w_init(&w, &c);
    add(&w, req(1, 10, 3), 1);
    add(&w, req(3, 10, 3), 1);
    for (int i = 0; next(&w); i++) {
        struct step_done d;
        w.now += 1000;
        sim_run(&w.x, &d);
        assert_true(d.n_results > 0);
        d.results[0].altered = i == 1   ? STEP_ALTERED_NEXT
                               : i == 2 ? STEP_ALTERED_DROP
                                        : 0;
        both += d.n_results == 2 && d.results[0].altered;
        sched_event(w.s, w.now, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
    }
    assert_true(both);
    const struct sched_out *o;
    size_t n = sched_out(w.s, &o);
    for (size_t i = 0; i < n; i++)
        if (o[i].kind == SCHED_OUT_FINISH)
            of[o[i].id] = (int)o[i].altered;
    assert_int_equal(of[1], STEP_ALTERED_NEXT | STEP_ALTERED_DROP);
    assert_int_equal(of[3], 0);
    s = (struct seen){0};
    add(&w, req(2, 10, 3), 1);
    while (turn(&w))
        ;
    look(&w, 2, &s);
    assert_int_equal(s.finishes, 1);
    assert_int_equal(s.last.altered, 0);
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

/* Whatever waits is given back, also what is parked behind a choice that runs or has been
 * preempted; what runs goes on. */
static void test_yield(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 64);
    struct sched_event yield = {.kind = SCHED_YIELD};
    struct w w;
    struct gen_params p = req(2, 100, 4);
    struct seen s[8] = {0};
    const struct sched_out *o;
    size_t n;

    c.max_seqs = 2;
    w_init(&w, &c);
    add(&w, req(1, 10, 20), 1);
    p.group = 2;
    for (p.id = 2; p.id < 5; p.id++) /* one runs, two are parked */
        add(&w, p, 2);
    assert_true(turn(&w));
    add(&w, req(5, 10, 4), 3);
    p.group = 6; /* neither has a place */
    for (p.id = 6; p.id < 8; p.id++)
        add(&w, p, 4);
    assert_int_equal(stats(&w).running, 2);
    assert_int_equal(stats(&w).waiting, 5);
    sched_out(w.s, &o);
    sched_event(w.s, w.now, &yield);
    check(&w);
    n = sched_out(w.s, &o);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(o[i].kind, SCHED_OUT_FINISH);
        assert_int_equal(o[i].reason, FINISH_RETURNED);
        s[o[i].id].finishes++;
    }
    for (int i = 1; i < 8; i++)
        assert_int_equal(s[i].finishes, i > 2);
    assert_int_equal(stats(&w).waiting, 0);
    while (turn(&w))
        ;
    look(&w, 2, &s[2]);
    assert_true(s[2].n_toks > 0 && s[2].last.reason == FINISH_LENGTH);
    assert_true(sched_idle(w.s));
    assert_int_equal(used(&w), 0);
    w_done(&w);
}

/* What was preempted is given back too, and goes on elsewhere with what it has. */
static void test_yield_of_preempted(void **state)
{
    (void)state;
    struct sched_cfg c = sim_cfg(4, 24);
    struct w w;
    const struct sched_out *o;
    int n_toks[4] = {0}, given = 0;

    c.max_ctx = 96;
    w_init(&w, &c);
    for (uint64_t id = 1; id <= 3; id++)
        add(&w, req(id, 16, 40), 1 + (int)id);
    while (!stats(&w).preemptions)
        assert_true(turn(&w));
    sched_event(w.s, w.now, &(struct sched_event){.kind = SCHED_YIELD});
    check(&w);
    size_t n = sched_out(w.s, &o);
    for (size_t i = 0; i < n; i++) {
        if (o[i].kind == SCHED_OUT_TOKENS)
            n_toks[o[i].id] += o[i].n_toks;
        else
            given += o[i].reason == FINISH_RETURNED && o[i].n_out == n_toks[o[i].id] &&
                     o[i].n_out > 0;
    }
    assert_true(given >= 1);
    while (turn(&w))
        ;
    assert_true(sched_idle(w.s));
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_altered),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_choices_share),
        cmocka_unit_test(test_two_in_flight),
        cmocka_unit_test(test_accepts_none_or_several),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_yield),
        cmocka_unit_test(test_yield_of_preempted),
        cmocka_unit_test(test_device_error),
        cmocka_unit_test(test_free_midway),
        cmocka_unit_test(test_no_memory),
    };
    return test_main(argc, argv, "sched", tests, sizeof(tests) / sizeof(tests[0]));
}

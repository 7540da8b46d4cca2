/* tests/unit/test_sched_sim.c - thousands of random requests through the scheduler on
 * virtual time: shared prefixes, choices, cancels, stops, preemption, several steps in
 * flight, steps that accept 0, 1 or several tokens, steps that fail. At every step: the
 * invariants of scheduler and KV cache, the budgets; at the end: each request was told
 * finished once, its text is what its history alone gives, no block is missing, and a
 * second run decides the same. SIM_REQUESTS scales it. */
#include "tests/test.h"

#include "daemon/serve/sched_impl.h"
#include "tests/unit/simworld.h"

enum { MAX_PROMPT = 260, MAX_OUT = 120, N_PREFIX = 6 };

struct sim_req {
    struct gen_params p;
    int32_t prompt[MAX_PROMPT], stop, got[MAX_OUT + 1];
    struct step_bias bias[4];
    int n_got, n_scored, finishes;
    uint64_t score_h; /* history of the prompt up to what was scored */
    bool added, canceled, refused;
};

struct sim {
    struct sched_cfg cfg;
    struct sched *s;
    struct sim_exec x;
    struct step *st;
    struct sim_req *req;
    int n_req, n_added, n_live;
    uint64_t rng, steps, decisions;
    int64_t now;
    int32_t prefix[N_PREFIX][128];
    uint64_t errors;
    int crowd;       /* none are added while more are there */
    uint64_t oldest; /* order slack: the oldest running prompt, and steps without it */
    int without;
    bool policies; /* change while it runs */
};

static int rnd(struct sim *w, int n) { return (int)(test_rand(&w->rng) % (uint64_t)n); }

static void make_req(struct sim *w, int i)
{
    struct sim_req *r = &w->req[i];
    int n_prefix = rnd(w, 3) ? rnd(w, 128) : 0, n_own = 1 + rnd(w, 30);

    if (rnd(w, 20) == 0)
        n_own += 100;
    const int32_t *prefix = w->prefix[rnd(w, N_PREFIX)];
    for (int k = 0; k < n_prefix + n_own; k++)
        r->prompt[k] = k < n_prefix ? prefix[k] : rnd(w, SIM_VOCAB);
    r->p = sim_params((uint64_t)i + 1, n_prefix + n_own, rnd(w, MAX_OUT));
    r->p.ignore_eos = rnd(w, 2);
    r->p.no_cache = rnd(w, 10) == 0;
    r->p.prompt_logprobs = rnd(w, 8) == 0;
    r->p.salt = rnd(w, 10) == 0;
    if (rnd(w, 8) == 0)
        r->p.presence = 0.5f;
    r->p.ttft_us = rnd(w, 3) ? 1 + rnd(w, 40000) : 0;
    r->p.tpot_us = rnd(w, 3) ? 1 + rnd(w, 4000) : 0;
    r->p.n_stop = rnd(w, 4) == 0;
    r->stop = rnd(w, SIM_VOCAB);
    r->p.n_bias = rnd(w, 8) ? 0 : rnd(w, 4);
    for (int k = 0; k < 4; k++)
        r->bias[k] = (struct step_bias){k, 1};
    r->score_h = sim_mix(1, (uint64_t)r->prompt[0]);
}

static void make_reqs(struct sim *w)
{
    for (int i = 0; i < N_PREFIX; i++)
        for (int k = 0; k < 128; k++)
            w->prefix[i][k] = rnd(w, SIM_VOCAB);
    for (int i = 0; i < w->n_req; i++) {
        make_req(w, i);
        for (int n = rnd(w, 8) ? 0 : 1 + rnd(w, 4); n > 0 && i + 1 < w->n_req; n--, i++) {
            w->req[i].p.group = w->req[i].p.group ? w->req[i].p.group : (uint64_t)i + 1;
            w->req[i + 1] = w->req[i];
            w->req[i + 1].p.id = (uint64_t)i + 2;
            w->req[i + 1].p.choice++;
        }
    }
}

static void sim_add(struct sim *w)
{
    static const int32_t eog[] = {SIM_EOS};
    struct sim_req *r = &w->req[w->n_added++];
    struct sched_event ev = {.kind = SCHED_ADD,
                             .params = &r->p,
                             .prompt = r->prompt,
                             .stops = &r->stop,
                             .biases = r->bias,
                             .eog = eog,
                             .n_eog = 1};

    r->added = true;
    w->n_live++;
    sched_event(w->s, w->now, &ev);
}

static void sim_cancel(struct sim *w)
{
    int i = w->n_added - 1 - rnd(w, 40);
    struct sched_event ev = {.kind = SCHED_CANCEL, .id = (uint64_t)i + 1};

    if (i < 0)
        return;
    if (!w->req[i].finishes)
        w->req[i].canceled = true;
    sched_event(w->s, w->now, &ev);
}

static void on_toks(struct sim_req *r, const struct sched_out *o)
{
    assert_int_equal(r->finishes, 0);
    for (int i = 0; i < o->n_toks && !o->scored; i++) {
        assert_true(r->n_got < MAX_OUT);
        r->got[r->n_got++] = o->toks[i].id;
    }
    for (int i = 0; i < o->n_toks && o->scored; i++) {
        float want = -(float)(r->score_h % 1000) / 1000;
        assert_true(r->p.prompt_logprobs && r->n_got == 0);
        int32_t id = r->prompt[++r->n_scored];
        assert_int_equal(o->toks[i].id, id);
        assert_true(o->toks[i].logprob == want);
        r->score_h = sim_mix(r->score_h, (uint64_t)id);
    }
}

static void check_text(const struct sim_req *r, const struct sched_out *o, int ctx)
{
    uint64_t h = 1;
    int n = 0, limit = r->p.max_tokens;
    bool whole = o->reason == FINISH_STOP || o->reason == FINISH_LENGTH;
    int32_t id = -1;

    if (r->p.n_prompt + limit > ctx)
        limit = ctx - r->p.n_prompt;
    for (int i = 0; i < r->p.n_prompt; i++)
        h = sim_mix(h, (uint64_t)r->prompt[i]);
    for (; n < limit; n++) {
        id = sim_token(h, r->p.seed, r->p.choice, n);
        if ((id == SIM_EOS && !r->p.ignore_eos) || (r->p.n_stop && id == r->stop))
            break;
        if (n >= r->n_got)
            break;
        assert_int_equal(r->got[n], id);
        h = sim_mix(h, (uint64_t)id);
    }
    assert_int_equal(n, r->n_got); /* none after the end */
    assert_int_equal(o->n_out, r->n_got);
    if (!whole)
        return;
    if (n < limit)
        assert_true(o->reason == FINISH_STOP && o->stop_id == id);
    else
        assert_true(o->reason == FINISH_LENGTH && o->stop_id == -1);
    if (r->p.prompt_logprobs)
        assert_int_equal(r->n_scored, r->p.n_prompt - 1);
}

static void drain_outs(struct sim *w)
{
    const struct sched_out *o;
    size_t n = sched_out(w->s, &o);

    for (size_t i = 0; i < n; i++) {
        struct sim_req *r = &w->req[o[i].id - 1];
        w->decisions = sim_mix(w->decisions, o[i].id * 8 + o[i].kind);
        if (o[i].kind == SCHED_OUT_TOKENS) {
            on_toks(r, &o[i]);
            continue;
        }
        r->finishes++;
        w->n_live--;
        if (o[i].kind == SCHED_OUT_REFUSE) {
            assert_true(o[i].error->code == ERR_BUSY || o[i].error->code == ERR_CONTEXT);
            r->refused = true;
            continue;
        }
        assert_true(o[i].reason != FINISH_ABORT || r->canceled);
        assert_true((o[i].reason == FINISH_ERROR) == (o[i].error != NULL));
        check_text(r, &o[i], w->cfg.max_ctx);
    }
}

static void check_step(struct sim *w, const struct step *st)
{
    int outs = 0;

    assert_true(st->n_toks <= w->cfg.step_tok && st->n_items <= w->cfg.max_seqs);
    for (int i = 0; i < st->n_items; i++) {
        const struct step_item *it = &step_items(st)[i];
        outs += it->n_tok - it->out_from;
        w->decisions = sim_mix(w->decisions, it->seq);
        w->decisions = sim_mix(w->decisions, (uint64_t)it->first_pos << 32 | it->n_tok);
        const int32_t *block = step_blocks(st) + it->block_off;
        int each =
            w->cfg.kv.group[0].n_blocks / (w->cfg.kv.shards ? w->cfg.kv.shards : 1);
        for (int b = 0; b < it->n_block; b++) {
            w->decisions = sim_mix(w->decisions, (uint64_t)block[b]);
            assert_int_equal(block[b] / each, block[0] / each); /* of one shard */
        }
    }
    assert_true(outs <= w->cfg.max_outs);
}

/* One step at a time, nothing comes before the oldest running request. */
static void check_oldest(struct sim *w, const struct step *st)
{
    if (w->cfg.depth > 1 || w->cfg.mode != SCHED_CHUNKED || list_empty(&w->s->running))
        return;
    uint64_t num = list_entry(w->s->running.next, struct sched_seq, link)->num;
    w->without = w->oldest == num ? w->without + 1 : 1;
    w->oldest = num;
    for (int i = 0; i < st->n_items; i++)
        if (step_items(st)[i].seq == num) {
            w->without = 0;
            return;
        }
    if (w->cfg.order == SCHED_BY_SLACK && w->without <= SCHED_AGE)
        return; /* the bound of that order */
    fail_msg("step %llu: the oldest request is not in it", (unsigned long long)w->steps);
}

static void check_all(struct sim *w)
{
    struct err e;

    if (sched_check(w->s, &e) < 0)
        fail_msg("step %llu: %s", (unsigned long long)w->steps, e.msg);
}

/* sched_next; when it had to preempt, nobody new starts in the same step. */
static bool form(struct sim *w)
{
    uint64_t preempted = w->s->st.preemptions;
    int running = w->s->n_running;
    bool formed = sched_next(w->s, w->now, w->st);

    preempted = w->s->st.preemptions - preempted;
    if (preempted)
        assert_int_equal(w->s->n_running, running - (int)preempted);
    return formed;
}

static void submit_all(struct sim *w)
{
    while (form(w)) {
        w->steps++;
        check_step(w, w->st);
        check_oldest(w, w->st);
        sched_submitted(w->s, w->now, sim_submit(&w->x, w->st));
        check_all(w);
    }
    /* what waits for the disk may: its reads come to an end */
    while (w->x.n_flight == 0 && !sched_idle(w->s) && w->cfg.kv.n_disk) {
        bool begun = sim_disk(&w->x, w->s, true, true);
        if (!sim_disk(&w->x, w->s, false, true) && !begun)
            break;
        if (form(w)) {
            w->steps++;
            sched_submitted(w->s, w->now, sim_submit(&w->x, w->st));
        }
    }
    if (w->x.n_flight == 0 && !sched_idle(w->s))
        fail_msg("step %llu: requests are there and nothing runs",
                 (unsigned long long)w->steps);
}

static void complete_one(struct sim *w)
{
    struct step_done d;
    struct sched_event ev = {.kind = SCHED_DONE, .done = &d};

    sim_run(&w->x, &d);
    d.start_us = w->now; /* a step-time law, with noise */
    d.end_us = w->now + 200 + 20 * d.n_results + rnd(w, 50);
    if (w->errors && test_rand(&w->rng) % w->errors == 0) {
        err_set(&w->x.error, ERR_DEVICE, "the device is gone");
        d.error = &w->x.error;
        d.n_results = 0;
        /* a later step may still refer to what never came: it gets nothing */
        w->x.past[d.ticket % (SIM_DEPTH + 1)].failed = true;
    }
    sched_event(w->s, w->now, &ev);
    check_all(w);
}

/* Another order and other bounds, between two steps. */
static void sim_policy(struct sim *w)
{
    w->cfg.order = rnd(w, 2) ? SCHED_BY_SLACK : SCHED_BY_AGE;
    w->without = 0;
    sched_event(w->s, w->now,
                &(struct sched_event){.kind = SCHED_POLICY,
                                      .order = w->cfg.order,
                                      .refuse_late = rnd(w, 4) == 0,
                                      .prefill_run = 1 + rnd(w, 4)});
}

static void sim_loop(struct sim *w)
{
    while (w->n_added < w->n_req || w->n_live) {
        int burst = rnd(w, 3) ? 0 : 1 + rnd(w, rnd(w, 20) ? 4 : 40);
        if (w->n_live > w->crowd)
            burst = 0;
        w->now += 1 + rnd(w, 1000);
        for (; burst > 0 && w->n_added < w->n_req; burst--)
            sim_add(w);
        if (rnd(w, 12) == 0)
            sim_cancel(w);
        if (w->policies && rnd(w, 40) == 0)
            sim_policy(w);
        submit_all(w);
        for (int n = w->cfg.kv.n_disk ? rnd(w, 4) : 0; n > 0; n--)
            sim_disk(&w->x, w->s, rnd(w, 2), rnd(w, 20));
        if (w->x.n_flight && (w->x.n_flight == w->cfg.depth || rnd(w, 2)))
            complete_one(w);
        if (rnd(w, 12) == 0) {
            sim_cancel(w); /* between a result and the next step */
            check_all(w);
        }
        drain_outs(w);
    }
    while (w->x.n_flight)
        complete_one(w);
    while (w->x.n_jobs)
        sim_disk(&w->x, w->s, false, true);
    drain_outs(w);
}

/* One run; returns the hash of all decisions. */
static uint64_t sim_world(const struct sched_cfg *cfg, int n_req, uint64_t seed,
                          int odd_accept, uint64_t errors, struct sched_stats *ret,
                          int *refused)
{
    struct sim w = {.cfg = *cfg, .rng = seed, .n_req = n_req, .errors = errors};

    w.crowd = 1 + rnd(&w, cfg->max_waiting);
    w.policies = rnd(&w, 3) == 0;

    w.req = xcalloc((size_t)n_req, sizeof(*w.req));
    w.s = sched_new(cfg);
    sim_exec_init(&w.x, cfg, seed + 77);
    w.x.odd_accept = odd_accept;
    w.st = step_new(&w.x.caps);
    make_reqs(&w);
    sim_loop(&w);

    assert_true(sched_idle(w.s));
    check_all(&w);
    for (int i = 0; i < n_req; i++)
        assert_int_equal(w.req[i].finishes, 1), *refused += w.req[i].refused;
    sched_stats(w.s, ret);
    assert_int_equal(ret->kv.n_used, 0);
    assert_int_equal(ret->kv.n_free + ret->kv.n_cached, ret->kv.n_blocks);
    sched_free(w.s);
    sim_exec_done(&w.x);
    free(w.st);
    free(w.req);
    return w.decisions;
}

static int sim_requests(void)
{
    const char *n = getenv("SIM_REQUESTS");
    return n ? atoi(n) : 10000;
}

static struct sched_cfg vary(uint64_t *rng, int shards)
{
    static const int budget[] = {8, 16, 64, 256}, seqs[] = {3, 8, 32};
    int bt = test_rand(rng) % 2 ? 4 : 16, more = (int)(test_rand(rng) % 400);
    struct sched_cfg c =
        sim_cfg(bt, (320 + (test_rand(rng) % 2 ? more : more / 16)) / bt + 1);

    c.mode = test_rand(rng) % 3 ? SCHED_CHUNKED : SCHED_COLOCATED;
    c.order = test_rand(rng) % 2 ? SCHED_BY_SLACK : SCHED_BY_AGE;
    c.refuse_late = test_rand(rng) % 4 == 0;
    c.step_tok = budget[test_rand(rng) % 4];
    c.max_seqs = seqs[test_rand(rng) % 3];
    c.max_outs = c.max_seqs + (int)(test_rand(rng) % 32);
    c.max_ctx = 320;
    c.depth = 1 + (int)(test_rand(rng) % 3);
    c.max_waiting = test_rand(rng) % 3 ? 120 : 8;
    c.prefill_run = 1 + (int)(test_rand(rng) % 4);
    c.kv.reuse = test_rand(rng) % 5 != 0;
    c.kv.shards = shards;
    c.kv.group[0].n_blocks *= shards;
    return c;
}

/* Tiers below, from too small to be of use to larger than the device's. */
static void add_tiers(uint64_t *rng, struct sched_cfg *c)
{
    int n = c->kv.group[0].n_blocks;

    c->kv.reuse = true;
    c->kv.n_host = 1 + (int)(test_rand(rng) % (uint64_t)(2 * n));
    c->kv.n_disk = test_rand(rng) % 3 ? (int)(test_rand(rng) % (uint64_t)(3 * n)) : 0;
    c->kv.max_moves = test_rand(rng) % 4 ? 2 * n : 3;
}

static void worlds(int shards, bool tiers)
{
    uint64_t rng = test_seed() * 1000 + (uint64_t)shards;
    struct sched_stats sum = {0}, v;
    int n_each = 400, refused = 0;

    for (int done = 0; done < sim_requests(); done += n_each) {
        struct sched_cfg c = vary(&rng, shards);
        if (tiers)
            add_tiers(&rng, &c);
        uint64_t seed = test_rand(&rng);
        int odd = test_rand(&rng) % 2 ? 20 : 0;
        uint64_t errors = test_rand(&rng) % 4 ? 0 : 60;
        uint64_t a = sim_world(&c, n_each, seed, odd, errors, &v, &refused);
        if (done % 2000 == 0)
            assert_true(a == sim_world(&c, n_each, seed, odd, errors, &v, &refused));
        sum.preemptions += v.preemptions;
        sum.late += v.late;
        sum.steps += v.steps;
        sum.recomputed_tok += v.recomputed_tok;
        sum.cached_tok += v.cached_tok;
        sum.kv.evicted += v.kv.evicted;
        sum.tier.up += v.tier.up;
        sum.tier.down += v.tier.down;
        sum.tier.read += v.tier.read;
        sum.tier.written += v.tier.written;
    }
    printf("# %d refused, %llu steps, %llu preemptions, %llu tokens recomputed, %llu "
           "cached\n",
           refused, (unsigned long long)sum.steps, (unsigned long long)sum.preemptions,
           (unsigned long long)sum.recomputed_tok, (unsigned long long)sum.cached_tok);
    printf("# %llu blocks down, %llu up, %llu written, %llu read\n",
           (unsigned long long)sum.tier.down, (unsigned long long)sum.tier.up,
           (unsigned long long)sum.tier.written, (unsigned long long)sum.tier.read);
    assert_true(!tiers || (sum.tier.up > 100 && sum.tier.read > 100));
    /* the world was hard enough to mean something */
    assert_true(sum.preemptions > 100 && sum.late > 0 && sum.recomputed_tok > 0 &&
                sum.cached_tok > 0 && sum.kv.evicted > 0);
}

static void test_worlds(void **state)
{
    (void)state;
    worlds(1, false);
}

static void test_shards(void **state)
{
    (void)state;
    worlds(2, false);
}

static void test_tiers(void **state)
{
    (void)state;
    worlds(1, true);
    worlds(2, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worlds),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_tiers),
    };
    return test_main(argc, argv, "sched_sim", tests, sizeof(tests) / sizeof(tests[0]));
}

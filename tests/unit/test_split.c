/* Prompts computed by one engine and answers by another: real executors on tiny models in
 * this process, the daemon's part (relaying, and what it does when something goes wrong)
 * played by the test. Whatever the layouts, whatever fails on the way, the tokens are
 * those of one engine alone, and in the end no block is held. */
#include "tests/split_rig.h"

/* ---- tests ---- */

/* Lengths around the borders of blocks and chunks. */
static const int lengths[] = {1, 2, 15, 16, 17, 31, 33, 64, 65, 127, 200, 333, 500, 512};
enum { N_LENGTHS = sizeof(lengths) / sizeof(lengths[0]), N_NEW = 24 };

static void ask_all(struct world *w)
{
    for (int i = 0; i < N_LENGTHS; i++)
        ask(w, params((uint64_t)i + 1, lengths[i], N_NEW));
}

/* By one engine of that layout. */
static const struct req *alone(const char *layout)
{
    static struct {
        const char *family, *layout;
        struct req *req;
    } known[8];
    static int n_known;
    struct side s;
    struct world w;
    struct engine_cfg c = base_cfg(ENGINE_BOTH, layout);

    for (int i = 0; i < n_known; i++)
        if (known[i].layout == layout && known[i].family == family)
            return known[i].req;
    world_init(&w);
    launch(&s, &c);
    w.p = w.d = &s;
    ask_all(&w);
    run(&w, 0);
    assert_int_equal(stop(&s), 0);
    free(w.buf);
    assert_true(n_known < 8);
    known[n_known].family = family;
    known[n_known].layout = layout;
    known[n_known].req = w.req;
    return known[n_known++].req;
}

/* How like one engine's the answers are. Layouts that sum in another order have other
 * last bits (tp); where the positions are shared (cp by ring or stripes) attention rounds
 * at other places too, and a token may be another one: then NEAR what one engine gives,
 * as far as it goes the same way. */
enum like { BITS, IDS, NEAR };

static void check_one(const struct req *r, const struct req *want, enum like like,
                      int *n_near)
{
    bool same = true;

    assert_true(r->done);
    assert_int_equal(r->f.reason, FINISH_LENGTH);
    assert_int_equal(r->f.n_out, N_NEW);
    assert_int_equal(r->f.n_prompt, r->p.n_prompt);
    assert_int_equal(r->n, N_NEW);
    if (like == BITS)
        assert_memory_equal(r->toks, want->toks, N_NEW * sizeof(r->toks[0]));
    for (int k = 0; k < N_NEW && same; k++) {
        same = r->toks[k].id == want->toks[k].id;
        if (like == IDS)
            assert_true(same);
        if (!same)
            break;
        assert_true(fabsf(r->toks[k].logprob - want->toks[k].logprob) < 0.05f);
        *n_near += k > 0;
    }
}

static void check_like(const struct world *w, const char *layout, enum like like)
{
    const struct req *want = alone(layout);
    int n_near = 0;

    for (int i = 1; i <= N_LENGTHS; i++)
        check_one(&w->req[i], &want[i], like, &n_near);
    assert_true(n_near > N_LENGTHS * (N_NEW - 1) / 3);
}

static void same_tokens(const char *layout_p, const char *layout_d, const char *as,
                        enum like like)
{
    struct side p, d;
    struct world w;

    world_init(&w);
    launch_pair(&w, &p, &d, layout_p, layout_d, 0);
    ask_all(&w);
    run(&w, 0);
    check_like(&w, as, like);
    for (int i = 1; i <= N_LENGTHS; i++) {
        assert_int_equal(w.req[i].from_p, 1); /* the first token is P's */
        assert_true(w.req[i].handed && !w.req[i].lost);
    }
    assert_true(w.req[N_LENGTHS].exports > 3); /* chunk by chunk */
    settle(&w);
    assert_int_equal(metric_get(d.page, M_HANDOFFS, 0), N_LENGTHS);
    assert_int_equal(metric_get(d.page, M_HANDOFF_LOST, 0), 0);
    assert_true(metric_get(d.page, M_HANDOFF_BYTES, 0) > 0);
    assert_int_equal(stop(&p), 0);
    assert_int_equal(stop(&d), 0);
    world_done(&w);
}

static void test_same_layout(void **state)
{
    (void)state;
    same_tokens(NULL, NULL, NULL, BITS);
}

static void test_tp(void **state)
{
    (void)state;
    same_tokens("tp2", NULL, NULL, IDS);
    same_tokens(NULL, "tp2", NULL, IDS);
}

static void test_pp(void **state)
{
    (void)state;
    same_tokens("pp2", NULL, NULL, BITS);
    same_tokens("tp2", "pp2", NULL, IDS);
}

static void test_cp(void **state)
{
    (void)state;
    static const char ring[] = "cp2 ring";

    same_tokens("cp2 ulysses", NULL, NULL, BITS);
    same_tokens(ring, ring, ring, BITS);
    same_tokens(ring, NULL, NULL, NEAR);
    same_tokens("cp2 striped", NULL, NULL, NEAR);
    same_tokens(NULL, "cp2 striped", NULL, NEAR);
    same_tokens("cp2 striped", ring, ring, NEAR);
}

static void test_families(void **state)
{
    (void)state;
    family = "qwen3_moe";
    same_tokens("adp2 ep2", NULL, NULL, IDS);
    same_tokens(NULL, "adp2 ep2", NULL, IDS);
    family = "deepseek_v3"; /* a latent */
    same_tokens("tp2", NULL, NULL, IDS);
    same_tokens("pp2", "cp2 ring ep2", NULL, NEAR);
    family = "llama";
}

/* The other order of elements in a block. */
static void test_f16(void **state)
{
    (void)state;
    kv_type = ENGINE_KV_F16;
    family = "qwen3";
    same_tokens("cp2 striped", "tp2", NULL, NEAR);
    same_tokens("pp2", NULL, NULL, BITS);
    family = "llama";
    kv_type = ENGINE_KV_AUTO;
}

/* ---- what goes wrong ---- */

static void end_pair(struct world *w)
{
    assert_int_equal(stop(w->p), 0);
    assert_int_equal(stop(w->d), 0);
    world_done(w);
}

static int count_lost(const struct world *w)
{
    int n = 0;

    for (int i = 1; i <= N_LENGTHS; i++)
        n += w->req[i].lost;
    return n;
}

/* Offers that do not come, come twice, or name blocks that are others by now: the answer
 * side computes the prompt, and the client gets the same. */
static void test_lost_offers(void **state)
{
    (void)state;
    struct side p, d;
    struct world w;

    for (int fault = 0; fault < 3; fault++) {
        world_init(&w);
        launch_pair(&w, &p, &d, NULL, NULL, 300);
        w.drop_exports = fault == 0 ? 5 : 0;
        w.twice = fault == 1 ? 5 : 0;
        w.spoil_gen = fault == 2;
        ask_all(&w);
        run(&w, 0);
        check_like(&w, NULL, BITS);
        assert_true(count_lost(&w) > 0);
        settle(&w);
        assert_true(metric_get(d.page, M_HANDOFF_RECOMPUTED, 0) >= count_lost(&w));
        end_pair(&w);
    }
}

/* A reader that never says that it is done: its lease ends, the blocks are in quarantine,
 * and are taken back. */
static void test_silent_reader(void **state)
{
    (void)state;
    struct side p, d;
    struct world w;

    world_init(&w);
    launch_pair(&w, &p, &d, NULL, NULL, 100);
    w.drop_pulled = 1 << 20;
    ask_all(&w);
    run(&w, 0);
    check_like(&w, NULL, BITS);
    check_no_blocks(&p);
    assert_true(metric_get(p.page, M_HANDOFF_QUARANTINES, 0) > 0);
    assert_true(metric_get(p.page, M_HANDOFF_TAKEN_BACK, 0) > 0);
    check_no_blocks(&d);
    end_pair(&w);
}

/* The prompts' engine ends in the middle. */
static void test_exporter_ends(void **state)
{
    (void)state;
    struct side p, d;
    struct world w;

    for (int64_t after = 500; after < 20000; after *= 3) {
        enum wire_kind kind;
        const void *m;
        size_t n;

        world_init(&w);
        launch_pair(&w, &p, &d, "pp2", "tp2", 0);
        ask_all(&w);
        run(&w, after);
        assert_int_equal(wire_send(p.daemon, WIRE_STOP, NULL, 0, NULL), 0);
        while (next(&p, &kind, &m, &n))
            hear(&w, true, kind, m, n);
        p.gone = true;
        say_id(&d, WIRE_PEER_GONE, p.ready.incarnation);
        for (int i = 1; i <= N_LENGTHS; i++)
            if (w.req[i].on_p && !w.req[i].handed)
                recompute(&w, &w.req[i]);
        run(&w, 0);
        check_like(&w, NULL, IDS);
        check_no_blocks(&d);
        assert_int_equal(join(&p), 0);
        assert_int_equal(stop(&d), 0);
        world_done(&w);
    }
}

/* Either engine is stopped in the middle (SIGSTOP) and goes on long after its leases: a
 * stopped exporter is not waited for, and a stopped reader's blocks come back. */
static void test_stopped(void **state)
{
    (void)state;
    struct side p, d;
    struct world w;

    for (int64_t after = 500; after < 50000; after *= 3)
        for (int reader = 0; reader < 2; reader++) {
            struct engine_cfg cp = base_cfg(ENGINE_PREFILL, "pp2");
            struct engine_cfg cd = base_cfg(ENGINE_DECODE, NULL);

            cp.handoff_ms = cd.handoff_ms = 100;
            world_init(&w);
            w.p = &p;
            w.d = &d;
            launch_process(reader ? &d : &p, reader ? &cd : &cp);
            launch(reader ? &p : &d, reader ? &cp : &cd);
            introduce(&p, &d);
            ask_all(&w);
            run(&w, after);
            pid_t pid = reader ? d.pid : p.pid;
            assert_int_equal(kill(pid, SIGSTOP), 0);
            if (reader) {
                for (int n = 0; n < 60; n++) /* the exporter is heard meanwhile */
                    run(&w, 1000);
                check_no_blocks(&p); /* whatever was exported was taken back */
            } else {
                run(&w, 0);
            }
            assert_int_equal(kill(pid, SIGCONT), 0);
            run(&w, 0);
            check_like(&w, NULL, BITS);
            settle(&w);
            end_pair(&w);
        }
}

/* Clients that leave in any state. */
static void test_cancels(void **state)
{
    (void)state;
    struct side p, d;
    struct world w;
    uint64_t rng = test_seed();
    int n = 1;

    world_init(&w);
    launch_pair(&w, &p, &d, "tp2", NULL, 0);
    for (int round = 0; round < 60; round++) {
        int first = n;
        for (int i = 0; i < 8; i++, n++)
            ask(&w, params((uint64_t)n, 1 + (int)(test_rand(&rng) % 500), 8));
        run(&w, 1 + (int64_t)(test_rand(&rng) % 4000));
        for (int i = first; i < n; i++)
            if (!w.req[i].done && !w.req[i].canceled && test_rand(&rng) % 4)
                cancel(&w, (uint64_t)i);
    }
    run(&w, 0);
    settle(&w);
    int n_aborted = 0;
    for (int i = 1; i < n; i++) {
        assert_true(w.req[i].done);
        n_aborted += w.req[i].f.reason == FINISH_ABORT;
    }
    assert_true(n_aborted > 50);
    end_pair(&w);
}

/* The answers' engine has room for one: the prompts of the others are not begun. */
static void test_back_pressure(void **state)
{
    (void)state;
    struct side p, d;
    struct world w;
    struct engine_cfg c = base_cfg(ENGINE_PREFILL, NULL);

    world_init(&w);
    launch(&p, &c);
    c = base_cfg(ENGINE_DECODE, NULL);
    c.max_seqs = 1;
    launch(&d, &c);
    introduce(&p, &d);
    w.p = &p;
    w.d = &d;
    ask_all(&w);
    run(&w, 0);
    check_like(&w, NULL, BITS);
    assert_int_equal(w.most_on_p, 1);
    settle(&w);
    end_pair(&w);
}

/* An engine of another model: its requests are computed where the answers are. */
static void test_other_model(void **state)
{
    (void)state;
    struct side p, d;
    struct world w;
    struct engine_cfg c;

    world_init(&w);
    family = "deepseek_v3";
    c = base_cfg(ENGINE_PREFILL, NULL);
    launch(&p, &c);
    family = "llama";
    c = base_cfg(ENGINE_DECODE, NULL);
    launch(&d, &c);
    introduce(&p, &d);
    w.p = &p;
    w.d = &d;
    ask_all(&w);
    run(&w, 0);
    check_like(&w, NULL, BITS);
    assert_int_equal(count_lost(&w), N_LENGTHS);
    end_pair(&w);
}

/* ---- what there is besides ---- */

/* Like those before, on one engine in the mode, with the rows of a step. */
static void same_in_mode(enum sched_mode mode, int step_tok, int64_t kv_mib)
{
    struct engine_cfg c = base_cfg(ENGINE_BOTH, NULL);
    struct side s;
    struct world w;

    c.mode = mode;
    c.step_tok = step_tok;
    c.kv_mib = kv_mib;
    c.ctx = 560;
    c.max_seqs = 14;
    world_init(&w);
    launch(&s, &c);
    w.p = w.d = &s;
    ask_all(&w);
    run(&w, 0);
    check_like(&w, NULL, BITS);
    assert_int_equal(stop(&s), 0);
    world_done(&w);
}

/* Pools too small for what is asked: the prefill side's cold blocks go to host memory and
 * come back, the decode side has few places. Asked again and again, at last with offers
 * that do not come. One engine in any mode answers so too. */
static void test_tiers(void **state)
{
    (void)state;
    struct side p, d;
    struct world w;
    struct engine_cfg c;

    family = "qwen2";
    tiny_size.layers = 14; /* 585 positions a MiB */
    same_in_mode(SCHED_CHUNKED, 64, 8);
    same_in_mode(SCHED_COLOCATED, 1024, 8);
    same_in_mode(SCHED_CHUNKED, 64, 1);
    world_init(&w);
    c = base_cfg(ENGINE_PREFILL, NULL);
    c.kv_mib = 2;
    c.kv_host_mib = 8;
    c.handoff_ms = 500;
    launch(&p, &c);
    c = base_cfg(ENGINE_DECODE, "pp2");
    c.kv_mib = 1;
    c.ctx = 560;
    c.max_seqs = 14;
    c.handoff_ms = 500;
    launch(&d, &c);
    introduce(&p, &d);
    w.p = &p;
    w.d = &d;
    for (int round = 0; round < 3; round++) {
        w.drop_exports = round == 2 ? 4 : 0;
        ask_all(&w);
        run(&w, 0);
        check_like(&w, NULL, BITS);
        settle(&w);
    }
    assert_true(count_lost(&w) > 0);
    assert_true(metric_get(p.page, M_KV_TIER_HITS, 0) > 0);
    end_pair(&w);
    tiny_size.layers = TINY_LAYERS;
    family = "llama";
}

/* The first ones have all of the threads: under the thread sanitizer, which is slow, the
 * others are run by name only. */
#ifdef __SANITIZE_THREAD__
enum { FIRST = 4 };
#else
enum { FIRST = 0 }; /* all */
#endif
static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_same_layout),
    cmocka_unit_test(test_tp),
    cmocka_unit_test(test_silent_reader),
    cmocka_unit_test(test_cancels),
    cmocka_unit_test(test_pp),
    cmocka_unit_test(test_cp),
    cmocka_unit_test(test_families),
    cmocka_unit_test(test_f16),
    cmocka_unit_test(test_lost_offers),
    cmocka_unit_test(test_exporter_ends),
    cmocka_unit_test(test_stopped),
    cmocka_unit_test(test_back_pressure),
    cmocka_unit_test(test_other_model),
    cmocka_unit_test(test_tiers),
};

int main(int argc, char **argv)
{
    size_t all = sizeof(tests) / sizeof(tests[0]);
    int rc = test_main(argc, argv, "split", tests, argc > 1 || !FIRST ? all : FIRST);

    for (int i = 0; models[i].family; i++)
        tiny_remove(models[i].dir);
    return rc;
}

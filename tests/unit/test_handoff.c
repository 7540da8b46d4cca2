/* The states of a handoff on virtual time, one rule at a time; test_handoff_sim.c mixes
 * everything. */
#include "daemon/serve/handoff.h"

#include "tests/test.h"

enum { P = 77, D = 88, ID = 5, BT = 16 };

static const struct handoff_cfg cfg = {.lease_us = 100,
                                       .quarantine_us = 1000,
                                       .quarantine_blocks = 10,
                                       .first_us = 500,
                                       .next_us = 100,
                                       .pull_us = 50,
                                       .tries = 3};

static const struct handoff_act *acts;
static size_t n_acts;

/* What is to be done since the last look; exactly n things. */
static void look(struct handoff *h, size_t n)
{
    struct err e;

    if (handoff_check(h, &e) < 0)
        fail_msg("%s", e.msg);
    n_acts = handoff_acts(h, &acts);
    assert_int_equal(n_acts, n);
}

static struct handoff_stats stats(const struct handoff *h)
{
    struct handoff_stats st;

    handoff_stats(h, &st);
    return st;
}

static void export_blocks(struct handoff *h, uint64_t id, int first, int n)
{
    int32_t ids[64];

    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)id * 100 + first + i;
    handoff_export(h, 0, id, D, ids, n);
}

static void acked(struct handoff *h, int64_t now, uint64_t id, bool final)
{
    const struct wire_pulled p = {
        .id = id, .incarnation = P, .reader = D, .upto = 16, .final = final};

    handoff_acked(h, now, &p);
}

/* ---- exports ---- */

static void test_export_given_back_whole(void **state)
{
    (void)state;
    struct handoff *h = handoff_new(&cfg);

    export_blocks(h, ID, 0, 2);
    export_blocks(h, ID, 2, 3);
    acked(h, 10, ID, false);
    assert_int_equal(handoff_deadline(h), -1); /* it still computes */
    handoff_export_end(h, 20, ID);
    assert_int_equal(handoff_deadline(h), 120);
    acked(h, 90, ID, false); /* it is heard of */
    handoff_tick(h, 120);
    look(h, 0);
    assert_int_equal(handoff_deadline(h), 190);
    acked(h, 100, ID, true);
    look(h, 1);
    assert_int_equal(acts[0].kind, HANDOFF_UNPIN);
    assert_int_equal(acts[0].n, 5);
    assert_int_equal(acts[0].ids[4], 504);
    assert_false(acts[0].forced);
    acked(h, 110, ID, true); /* late: normal */
    handoff_export_end(h, 110, ID);
    look(h, 0);
    assert_int_equal(stats(h).late, 1);
    assert_int_equal(stats(h).exports, 0);
    handoff_free(h);
}

/* A reader that left early: nothing goes before the whole chain can. */
static void test_export_read_before_its_end(void **state)
{
    (void)state;
    struct handoff *h = handoff_new(&cfg);

    for (int gone = 0; gone < 2; gone++) {
        export_blocks(h, ID, 0, 2);
        if (gone)
            handoff_peer_gone(h, 5, D);
        else
            acked(h, 5, ID, true);
        export_blocks(h, ID, 2, 1);
        look(h, 0);
        handoff_export_end(h, 20, ID);
        look(h, 1);
        assert_int_equal(acts[0].n, 3);
    }
    assert_int_equal(stats(h).export_blocks, 0);
    handoff_free(h);
}

static void test_lease_and_quarantine(void **state)
{
    (void)state;
    struct handoff *h = handoff_new(&cfg);

    for (uint64_t id = 1; id <= 3; id++) {
        export_blocks(h, id, 0, 4);
        handoff_export_end(h, (int64_t)id, id);
    }
    handoff_tick(h, 102); /* leases of 1 and 2 are over */
    look(h, 0);
    assert_int_equal(stats(h).quarantined, 2);
    assert_int_equal(stats(h).quarantined_blocks, 8);
    assert_int_equal(stats(h).export_blocks, 12);
    handoff_tick(h, 103); /* 12 blocks are more than may be: the oldest go */
    look(h, 1);
    assert_true(acts[0].kind == HANDOFF_UNPIN && acts[0].id == 1 && acts[0].forced);
    assert_int_equal(stats(h).taken_back, 4);
    acked(h, 104, 2, true); /* it was stopped, and goes on */
    look(h, 1);
    assert_true(acts[0].id == 2 && !acts[0].forced);
    assert_int_equal(handoff_deadline(h), 1103);
    handoff_tick(h, 1103);
    look(h, 1);
    assert_true(acts[0].id == 3 && acts[0].forced);
    assert_int_equal(handoff_deadline(h), -1);
    acked(h, 2000, 3, true);
    look(h, 0);
    assert_int_equal(stats(h).late, 1);
    assert_int_equal(stats(h).quarantines, 3);
    handoff_free(h);
}

static void test_reader_goes(void **state)
{
    (void)state;
    struct handoff *h = handoff_new(&cfg);

    for (uint64_t id = 1; id <= 2; id++) {
        export_blocks(h, id, 0, 2);
        handoff_export_end(h, 0, id);
    }
    handoff_tick(h, 100);
    handoff_peer_gone(h, 101, D + 1);
    look(h, 0);
    handoff_peer_gone(h, 101, D);
    look(h, 2);
    assert_int_equal(stats(h).exports, 0);
    handoff_free(h);
}

/* What one reader says frees nothing that another reads; the number of a request that
 * began anew names the new one only. */
static void test_another_reader(void **state)
{
    (void)state;
    struct handoff *h = handoff_new(&cfg);
    const struct wire_pulled p = {
        .id = ID, .incarnation = P, .reader = D + 1, .upto = 16, .final = true};

    export_blocks(h, ID, 0, 2);
    handoff_acked(h, 5, &p);
    handoff_export_end(h, 10, ID);
    handoff_acked(h, 15, &p);
    look(h, 0);
    assert_int_equal(stats(h).late, 2);
    assert_int_equal(stats(h).export_blocks, 2);
    export_blocks(h, ID, 5, 1);
    look(h, 1);
    assert_true(acts[0].kind == HANDOFF_UNPIN && acts[0].n == 2 && acts[0].forced);
    handoff_tick(h, 120); /* the lease of the one before */
    look(h, 0);
    assert_int_equal(handoff_deadline(h), -1);
    handoff_export_end(h, 130, ID);
    acked(h, 140, ID, true);
    look(h, 1);
    assert_true(acts[0].n == 1 && acts[0].ids[0] == 505 && !acts[0].forced);
    handoff_free(h);
}

/* ---- imports ---- */

static void offer(struct handoff *h, int64_t now, int first, int n, int upto, int n_tok)
{
    static struct wire_block blocks[64];
    static const int32_t gen[] = {42};
    bool last = upto == n_tok;
    struct wire_offer o = {.h = {.id = ID,
                                 .incarnation = P,
                                 .first = first,
                                 .n = n,
                                 .upto = upto,
                                 .n_tok = n_tok,
                                 .block_tok = BT,
                                 .n_gen = last,
                                 .last = last},
                           .blocks = blocks,
                           .gen = gen};

    for (int i = 0; i < n; i++)
        blocks[i] = (struct wire_block){.id = first + i, .gen = 9};
    handoff_offer(h, now, &o);
}

static struct handoff *waiting(int have, int n_tok)
{
    struct handoff *h = handoff_new(&cfg);

    handoff_import(h, 0, ID, P);
    assert_int_equal(handoff_deadline(h),
                     -1); /* for a place it waits as long as it takes */
    handoff_reserved(h, 0, ID, have, n_tok);
    assert_int_equal(handoff_deadline(h), 500);
    look(h, 0);
    return h;
}

static void pull_ok(struct handoff *h, int64_t now, uint64_t pull)
{
    handoff_pull_end(h, now, pull, NULL, 1000, 7);
}

static void test_import_chunk_by_chunk(void **state)
{
    (void)state;
    struct handoff *h = waiting(16, 100);
    int n_gen;

    offer(h, 10, 0, 2, 32, 100);
    look(h, 1);
    assert_true(acts[0].kind == HANDOFF_PULL && acts[0].upto == 32);
    assert_int_equal(acts[0].first, 1); /* what is there is not read */
    assert_int_equal(acts[0].n, 1);
    uint64_t pull = acts[0].pull;
    offer(h, 20, 2, 2, 64, 100);
    offer(h, 21, 4, 3, 100, 100);
    look(h, 0); /* one copy at a time */
    assert_null(handoff_gen(h, pull, &n_gen));
    pull_ok(h, 30, pull);
    look(h, 2);
    assert_true(acts[0].kind == HANDOFF_PULLED && acts[0].pulled.upto == 32 &&
                !acts[0].pulled.final);
    assert_true(acts[1].kind == HANDOFF_PULL && acts[1].upto == 100 &&
                acts[1].first == 2 && acts[1].n == 5);
    pull = acts[1].pull;
    assert_int_equal(handoff_gen(h, pull, &n_gen)[0], 42);
    assert_int_equal(n_gen, 1);
    pull_ok(h, 40, pull);
    look(h, 2);
    assert_true(acts[0].kind == HANDOFF_PULLED && acts[0].pulled.final);
    assert_true(acts[1].kind == HANDOFF_DONE && acts[1].bytes == 2000 &&
                acts[1].copy_us == 14 && acts[1].wait_us == 19);
    assert_false(handoff_reads(h, P));
    handoff_recompute(h, 50, ID); /* of what is there: late */
    offer(h, 50, 7, 1, 100, 100);
    look(h, 0);
    assert_int_equal(stats(h).late, 2);
    assert_int_equal(stats(h).done, 1);
    handoff_free(h);
}

static void test_copies_again_then_lost(void **state)
{
    (void)state;
    struct handoff *h = waiting(0, 32);
    struct err bad, other;

    err_set(&bad, ERR_CORRUPT, "sums");
    err_set(&other, ERR_CONFLICT, "others");
    offer(h, 1, 0, 2, 32, 32);
    for (int i = 0; i < 2; i++) {
        look(h, 1);
        handoff_pull_end(h, 2, acts[0].pull, &bad, 0, 0);
    }
    look(h, 1);
    handoff_pull_end(h, 2, acts[0].pull, &bad, 0, 0);
    look(h, 1);
    assert_true(acts[0].kind == HANDOFF_LOST && acts[0].why.code == ERR_CORRUPT);
    assert_int_equal(stats(h).retries, 2);
    handoff_recompute(h, 3, ID);
    look(h, 1);
    assert_true(acts[0].kind == HANDOFF_PULLED && acts[0].pulled.final);
    handoff_free(h);

    h = waiting(0, 32); /* blocks that are others: once is enough */
    offer(h, 1, 0, 2, 32, 32);
    look(h, 1);
    handoff_pull_end(h, 2, acts[0].pull, &other, 0, 0);
    look(h, 1);
    assert_int_equal(acts[0].kind, HANDOFF_LOST);
    handoff_import_end(h, 3, ID);
    look(h, 1);
    handoff_free(h);
}

static void test_deadlines(void **state)
{
    (void)state;
    struct handoff *h = waiting(0, 64);

    handoff_tick(h, 499);
    look(h, 0);
    handoff_tick(h, 500); /* never came */
    look(h, 1);
    assert_int_equal(acts[0].kind, HANDOFF_LOST);
    handoff_tick(h, 5000); /* told once */
    offer(h, 5000, 0, 2, 32, 64);
    look(h, 0);
    assert_int_equal(handoff_deadline(h), -1);
    handoff_free(h);

    h = waiting(0, 64); /* came, and then no more */
    offer(h, 10, 0, 2, 32, 64);
    look(h, 1);
    assert_int_equal(handoff_deadline(h), 60);
    pull_ok(h, 20, acts[0].pull);
    look(h, 1);
    assert_int_equal(handoff_deadline(h), 120);
    handoff_tick(h, 120);
    look(h, 1);
    assert_int_equal(acts[0].kind, HANDOFF_LOST);
    handoff_free(h);
}

/* The exporter's blocks are given back only when nothing copies any more, whatever became
 * of the request. */
static void test_copy_outlives_its_request(void **state)
{
    (void)state;

    for (int how = 0; how < 3; how++) {
        struct handoff *h = waiting(0, 64);
        int n_gen;
        offer(h, 10, 0, 4, 64, 64);
        look(h, 1);
        uint64_t pull = acts[0].pull;
        if (how == 0) {
            handoff_import_end(h, 20, ID);
            look(h, 0);
        } else {
            handoff_tick(h, 60); /* late */
            look(h, 1);
            assert_int_equal(acts[0].kind, HANDOFF_LOST);
            if (how == 1)
                handoff_recompute(h, 61, ID);
            look(h, 0);
        }
        assert_true(handoff_reads(h, P));
        assert_null(handoff_gen(h, pull, &n_gen));
        pull_ok(h, 70, pull);
        if (how == 2) {
            look(h, 0);
            handoff_recompute(h, 71, ID);
        }
        look(h, 1);
        assert_true(acts[0].kind == HANDOFF_PULLED && acts[0].pulled.final &&
                    acts[0].pulled.upto == 0);
        assert_false(handoff_reads(h, P));
        assert_int_equal(stats(h).late, 1);
        pull_ok(h, 80, pull);
        assert_int_equal(stats(h).late, 2);
        handoff_free(h);
    }
}

/* What it may write into is nobody's; a copy that comes back at last is in time. */
static void test_copy_that_never_comes_back(void **state)
{
    (void)state;

    for (int back = 0; back < 2; back++) {
        struct handoff *h = waiting(0, 64);
        offer(h, 10, 0, 4, 64, 64);
        look(h, 1);
        uint64_t pull = acts[0].pull;
        handoff_recompute(h, 20, ID);
        look(h, 0);
        assert_int_equal(stats(h).copies, 1);
        assert_int_equal(handoff_deadline(h), 1020);
        handoff_tick(h, 9000); /* all stood still */
        look(h, 0);
        assert_int_equal(handoff_deadline(h), 9050);
        if (back) {
            pull_ok(h, 9040, pull);
            look(h, 1);
            assert_true(acts[0].kind == HANDOFF_PULLED && acts[0].pulled.final);
            handoff_tick(h, 9050);
            look(h, 0);
            assert_int_equal(stats(h).copies + stats(h).closing, 0);
        } else {
            handoff_tick(h, 9050);
            look(h, 1);
            assert_true(acts[0].kind == HANDOFF_STUCK && acts[0].why.code == ERR_TIMEOUT);
        }
        handoff_free(h);
    }
}

static void test_offers_that_do_not_fit(void **state)
{
    (void)state;

    for (int how = 0; how < 4; how++) {
        struct handoff *h = waiting(0, 64);
        offer(h, 1, 0, 1, 16, 64);
        look(h, 1);
        switch (how) {
        case 0:
            offer(h, 2, 0, 1, 16, 64); /* twice */
            break;
        case 1:
            offer(h, 2, 2, 1, 48, 64); /* with a hole */
            break;
        case 2:
            offer(h, 2, 1, 1, 32, 65); /* of another length */
            break;
        default:
            handoff_import(h, 2, ID, P + 1); /* the same number again: as if nothing */
            offer(h, 2, 1, 1, 32, 64);
            look(h, 0);
            handoff_peer_gone(h, 3, P); /* before all is offered */
        }
        look(h, 1);
        assert_int_equal(acts[0].kind, HANDOFF_LOST);
        handoff_free(h);
    }
}

/* All is offered: the memory is still there when its engine is not. */
static void test_exporter_goes_after_the_last(void **state)
{
    (void)state;
    struct handoff *h = waiting(0, 64);

    offer(h, 1, 0, 4, 64, 64);
    look(h, 1);
    uint64_t pull = acts[0].pull;
    handoff_peer_gone(h, 2, P);
    look(h, 0);
    assert_true(handoff_reads(h, P));
    pull_ok(h, 3, pull);
    look(h, 2);
    assert_int_equal(acts[1].kind, HANDOFF_DONE);
    handoff_free(h);
}

static void test_cannot_begin(void **state)
{
    (void)state;
    struct handoff *h = handoff_new(&cfg);
    struct err e;

    err_set(&e, ERR_UNAVAIL, "unknown");
    handoff_import(h, 0, ID, P);
    handoff_fail(h, 0, ID, &e);
    look(h, 1);
    assert_int_equal(acts[0].kind, HANDOFF_LOST);
    handoff_reserved(h, 1, ID, 0, 10);
    offer(h, 1, 0, 1, 10, 10);
    look(h, 0);
    handoff_recompute(h, 2, ID);
    look(h, 1);
    handoff_fail(h, 2, ID, &e); /* unknown */
    look(h, 0);
    handoff_free(h);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_export_given_back_whole),
    cmocka_unit_test(test_export_read_before_its_end),
    cmocka_unit_test(test_lease_and_quarantine),
    cmocka_unit_test(test_reader_goes),
    cmocka_unit_test(test_another_reader),
    cmocka_unit_test(test_import_chunk_by_chunk),
    cmocka_unit_test(test_copies_again_then_lost),
    cmocka_unit_test(test_deadlines),
    cmocka_unit_test(test_copy_outlives_its_request),
    cmocka_unit_test(test_copy_that_never_comes_back),
    cmocka_unit_test(test_offers_that_do_not_fit),
    cmocka_unit_test(test_exporter_goes_after_the_last),
    cmocka_unit_test(test_cannot_begin),
};

TEST_MAIN("handoff", tests)

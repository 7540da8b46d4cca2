/* Tiers below the device's KV: random traffic against memory that is really copied. */
#include "tests/test.h"

#include "base/err.h"
#include "daemon/serve/kvtier.h"

#define TEST(name) static void name(void **state __attribute__((unused)))

enum { BT = 4, KEYS = 60, DEV = 16, HOST = 8, DISK = 12, MOVES = 6 };

static int32_t toks[KEYS][BT];

static struct kv_key key(int i)
{
    return (struct kv_key){.hash = {{(uint64_t)i + 1, 7}},
                           .before = {{(uint64_t)i, 7}},
                           .depth = i,
                           .toks = toks[i]};
}

static void make_keys(void)
{
    for (int i = 0; i < KEYS; i++)
        for (int k = 0; k < BT; k++)
            toks[i][k] = i * BT + k;
}

static struct kvtier *tiers(int host, int disk)
{
    make_keys();
    return kvtier_new(&(struct kvtier_cfg){.n_host = host,
                                           .n_disk = disk,
                                           .block_tok = BT,
                                           .shards = 1,
                                           .max_moves = MOVES});
}

static void sound(const struct kvtier *t)
{
    struct err e;

    if (kvtier_check(t, &e) < 0)
        fail_msg("%s", e.msg);
}

/* What is where: key + 1, 0 = nothing. */
struct world {
    struct kvtier *t;
    int dev[DEV], host[HOST], disk[DISK];
    uint64_t steps, done;
    struct kv_move run[8][MOVES]; /* steps not done yet */
    int n_run[8];
    struct kv_job out[KVTIER_JOBS];
    int n_out, ups, hits;
};

static void form_step(struct world *w)
{
    if (w->steps - w->done == 8)
        return;
    int at = (int)(++w->steps % 8);
    w->n_run[at] = kvtier_moves(w->t, w->steps, w->run[at]);
}

static void run_step(struct world *w)
{
    if (w->done == w->steps)
        return;
    int at = (int)(++w->done % 8);
    for (int i = 0; i < w->n_run[at]; i++) {
        const struct kv_move *m = &w->run[at][i];
        if (m->up)
            w->dev[m->block] = w->host[m->slot];
        else
            w->host[m->slot] = w->dev[m->block];
    }
    kvtier_step_done(w->t, w->done);
}

static void job(struct world *w)
{
    if (w->n_out < KVTIER_JOBS && kvtier_job(w->t, &w->out[w->n_out]))
        w->n_out++;
}

/* The copy is made at any time before it is told. */
static void end_job(struct world *w, int i, bool ok)
{
    struct kv_job j = w->out[i];

    if (j.write)
        w->disk[j.disk] = ok ? w->host[j.host] : -1;
    else if (ok)
        w->host[j.host] = w->disk[j.disk];
    if (j.write && ok)
        assert_int_equal(w->host[j.host], j.key.depth + 1);
    if (!j.write && ok)
        assert_int_equal(w->disk[j.disk], j.key.depth + 1);
    w->out[i] = w->out[--w->n_out];
    kvtier_job_done(w->t, j.id, ok);
}

/* Everything that was formed is done; what moved up is there. */
static void settle(struct world *w)
{
    form_step(w);
    while (w->done < w->steps)
        run_step(w);
}

static void up(struct world *w, int i, int block)
{
    struct kv_key k = key(i);

    w->ups++;
    if (!kvtier_up(w->t, &k, block))
        return;
    w->hits++;
    settle(w);
    assert_int_equal(w->dev[block], i + 1);
}

static void down(struct world *w, int i, int block)
{
    struct kv_key k = key(i);

    while (w->done < w->steps) /* the device's block is there when it is given up */
        run_step(w);
    w->dev[block] = i + 1;
    kvtier_down(w->t, 0, block, &k);
    if (w->steps % 3 == 0)
        settle(w);
    else
        form_step(w);
}

TEST(random_traffic)
{
    struct world w = {.t = tiers(HOST, DISK)};
    uint64_t r = test_seed();
    struct kvtier_stats st;

    for (int n = 0; n < 200000; n++) {
        int i = (int)(test_rand(&r) % KEYS), b = (int)(test_rand(&r) % DEV);
        struct kv_key k = key(i);
        switch (test_rand(&r) % 8) {
        case 0:
        case 1:
            down(&w, i, b);
            break;
        case 2:
            up(&w, i, b);
            break;
        case 3:
            kvtier_want(w.t, 0, &k);
            break;
        case 4:
        case 5:
            job(&w);
            break;
        case 6:
            if (w.n_out)
                end_job(&w, (int)(test_rand(&r) % (uint64_t)w.n_out),
                        test_rand(&r) % 16 != 0);
            break;
        default:
            run_step(&w);
            if (test_rand(&r) % 500 == 0) {
                kvtier_wipe(w.t);
                assert_int_equal(kvtier_find(w.t, &k), KVTIER_NOWHERE);
            }
        }
        if (n % 64 == 0)
            sound(w.t);
    }
    kvtier_stats(w.t, &st);
    assert_true(w.hits > w.ups / 20 && st.read > 1000 && st.written > 1000);
    assert_true(st.failed > 100 && st.lost > 100);
    assert_int_equal(st.host_hit_tok, st.up * BT);
    while (w.n_out)
        end_job(&w, 0, true);
    sound(w.t);
    kvtier_free(w.t);
}

TEST(what_moved_up_goes_first)
{
    struct world w = {.t = tiers(HOST, 0)};

    for (int i = 0; i < HOST; i++)
        down(&w, i, 0);
    up(&w, 3, 3); /* it is on the device: its slot is the first to be given up */
    down(&w, 20, 0);
    struct kv_key zero = key(0), three = key(3);
    assert_int_equal(kvtier_find(w.t, &zero), KVTIER_HOST);
    assert_int_equal(kvtier_find(w.t, &three), KVTIER_NOWHERE);
    down(&w, 21, 0); /* then the coldest */
    assert_int_equal(kvtier_find(w.t, &zero), KVTIER_NOWHERE);
    up(&w, 2, 3);
    down(&w, 2, 3); /* it came back: the hottest */
    for (int i = 30; i < 30 + HOST - 1; i++)
        down(&w, i, 0);
    struct kv_key two = key(2), six = key(21);
    assert_int_equal(kvtier_find(w.t, &two), KVTIER_HOST);
    assert_int_equal(kvtier_find(w.t, &six), KVTIER_NOWHERE);
    kvtier_free(w.t);
}

/* All jobs that there are, to their end. */
static void run_jobs(struct world *w)
{
    for (;;) {
        job(w);
        if (!w->n_out)
            return;
        end_job(w, 0, true);
    }
}

/* What one LRU of all slots would hold is held, whatever goes up and down: one user, who
 * asks for one block at a time. Without the margin and the device's own. */
TEST(the_tiers_hold_their_sum)
{
    enum { ALL = HOST + DISK - 4 };
    struct world w = {.t = tiers(HOST, DISK)};
    uint64_t r = test_seed();
    int used[ALL], n = 0; /* hottest first */
    struct kvtier_stats st;

    for (int turns = 0; turns < 20000; turns++) {
        int i = (int)(test_rand(&r) % (ALL + 6)), at = 0;
        struct kv_key k = key(i);
        while (at < n && used[at] != i)
            at++;
        bool known = at < n;
        kvtier_want(w.t, 0, &k);
        run_jobs(&w);
        if (known)
            assert_int_equal(kvtier_find(w.t, &k), KVTIER_HOST);
        up(&w, i, 0);
        down(&w, i, 0);
        settle(&w);
        run_jobs(&w);
        n += !known && n < ALL;
        at = at < n ? at : n - 1;
        memmove(used + 1, used, (size_t)at * sizeof(*used));
        used[0] = i;
        sound(w.t);
    }
    kvtier_stats(w.t, &st);
    assert_true(st.read > 1000 && st.written > 1000);
    kvtier_free(w.t);
}

/* Blocks that come back while they are on disk still are not written again, and nothing
 * is written that does not fall out. */
TEST(nothing_is_written_for_nothing)
{
    struct world w = {.t = tiers(HOST, DISK)};
    struct kvtier_stats st;

    for (int n = 0; n < 50; n++)
        for (int i = 0; i < HOST / 2; i++) {
            up(&w, i, 0);
            down(&w, i, 0);
            settle(&w);
            run_jobs(&w);
        }
    kvtier_stats(w.t, &st);
    assert_int_equal(st.written, 0);
    for (int n = 0; n < 50; n++)
        for (int i = 0; i < HOST + 4; i++) {
            struct kv_key k = key(i);
            kvtier_want(w.t, 0, &k);
            run_jobs(&w);
            up(&w, i, 0);
            down(&w, i, 0);
            settle(&w);
            run_jobs(&w);
        }
    kvtier_stats(w.t, &st);
    assert_int_equal(st.written, HOST + 4);
    assert_true(st.read > 100);
    assert_int_equal(st.lost, 0);
    kvtier_free(w.t);
}

/* At the end of an engine: all that was in host memory is on disk, or as much of it as
 * fits, the hottest; what is there already stays. */
static void flush(int disk, int n_down)
{
    struct world w = {.t = tiers(HOST, disk)};
    struct kvtier_stats st;

    for (int i = 0; i < n_down; i++) {
        down(&w, i, 0);
        settle(&w);
        run_jobs(&w);
    }
    up(&w, n_down - 2, 1); /* not to be lost with the device */
    kvtier_flush(w.t);
    run_jobs(&w);
    kvtier_stats(w.t, &st);
    int all = n_down < disk ? n_down : disk;
    assert_int_equal(st.disk_used, all);
    for (int i = n_down - (all < HOST ? all : HOST); i < n_down; i++) {
        struct kv_key k = key(i);
        bool there = false;
        for (int d = 0; d < disk; d++)
            there |= w.disk[d] == i + 1;
        assert_true(there);
        assert_int_not_equal(kvtier_find(w.t, &k), KVTIER_NOWHERE);
    }
    sound(w.t);
    kvtier_free(w.t);
}

TEST(a_flush_saves_the_host_tier)
{
    flush(DISK, HOST);
    flush(DISK, HOST + 7);
    flush(DISK, HOST + DISK + 9);
    flush(5, HOST);
}

TEST(a_block_that_came_up_goes_down_for_nothing)
{
    struct world w = {.t = tiers(HOST, 0)};
    struct kvtier_stats st;
    struct kv_move m[MOVES];
    struct kv_key k = key(5);

    down(&w, 5, 2);
    settle(&w);
    up(&w, 5, 4);
    kvtier_down(w.t, 0, 4, &k);
    kvtier_stats(w.t, &st);
    assert_int_equal(st.down, 1);
    assert_int_equal(kvtier_moves(w.t, w.steps + 1, m), 0);
    kvtier_free(w.t);
}

TEST(the_copies_of_a_step_are_bounded)
{
    struct kvtier *t = tiers(HOST, 0);
    struct kvtier_stats st;
    struct kv_move m[MOVES];

    for (int i = 0; i < MOVES + 2; i++) {
        struct kv_key k = key(i);
        kvtier_down(t, 0, i, &k);
    }
    struct kv_key first = key(0);
    assert_false(kvtier_up(t, &first, 9));
    assert_int_equal(kvtier_moves(t, 1, m), MOVES);
    assert_true(kvtier_up(t, &first, 9));
    kvtier_stats(t, &st);
    assert_int_equal(st.lost, 2);
    kvtier_free(t);
}

TEST(jobs_wait_for_the_step_that_copies)
{
    struct kvtier *t = tiers(HOST, DISK);
    struct kv_move m[MOVES];
    struct kv_job j, r;
    struct kv_key k = key(1);

    for (int i = 10; i < 10 + HOST - 3; i++) { /* so that it is of the margin */
        struct kv_key other = key(i);
        kvtier_down(t, 0, 3, &other);
    }
    kvtier_moves(t, 7, m);
    kvtier_down(t, 0, 3, &k);
    assert_false(kvtier_job(t, &j));
    kvtier_step_done(t, 6);
    assert_false(kvtier_job(t, &j));
    kvtier_step_done(t, 7);
    assert_true(kvtier_job(t, &j) && j.write && j.host == m[0].slot);
    assert_false(kvtier_job(t, &r)); /* it is on its way */
    kvtier_job_done(t, j.id, true);
    kvtier_job_done(t, j.id, true); /* late: of no account */
    assert_false(kvtier_job(t, &r));
    sound(t);
    kvtier_free(t);
}

TEST(what_was_on_disk_is_read_ahead)
{
    struct kvtier *t = tiers(2, DISK);
    struct kv_job j, none;
    struct kv_key a = key(1), b = key(2);
    struct kv_move m[MOVES];

    assert_true(kvtier_adopt(t, 4, &a));
    assert_false(kvtier_adopt(t, 4, &b));
    assert_false(kvtier_adopt(t, 5, &a));
    assert_false(kvtier_adopt(t, DISK, &b));
    assert_int_equal(kvtier_find(t, &a), KVTIER_DISK);
    kvtier_want(t, 0, &a);
    kvtier_want(t, 0, &a);
    kvtier_want(t, 0, &b);
    assert_int_equal(kvtier_find(t, &a), KVTIER_COMING);
    assert_true(kvtier_job(t, &j) && !j.write && j.disk == 4);
    assert_false(kvtier_job(t, &none));
    assert_false(kvtier_up(t, &a, 0));
    kvtier_job_done(t, j.id, true);
    assert_true(kvtier_up(t, &a, 0));
    assert_int_equal(kvtier_moves(t, 1, m), 1);
    sound(t);
    kvtier_free(t);
}

TEST(what_cannot_be_read_is_forgotten)
{
    struct kvtier *t = tiers(2, DISK);
    struct kv_job j;
    struct kv_key a = key(1);

    assert_true(kvtier_adopt(t, 4, &a));
    kvtier_want(t, 0, &a);
    assert_true(kvtier_job(t, &j));
    kvtier_job_done(t, j.id, false);
    assert_int_equal(kvtier_find(t, &a), KVTIER_NOWHERE);
    sound(t);
    kvtier_free(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(random_traffic),
    cmocka_unit_test(what_moved_up_goes_first),
    cmocka_unit_test(the_tiers_hold_their_sum),
    cmocka_unit_test(nothing_is_written_for_nothing),
    cmocka_unit_test(a_flush_saves_the_host_tier),
    cmocka_unit_test(a_block_that_came_up_goes_down_for_nothing),
    cmocka_unit_test(the_copies_of_a_step_are_bounded),
    cmocka_unit_test(jobs_wait_for_the_step_that_copies),
    cmocka_unit_test(what_was_on_disk_is_read_ahead),
    cmocka_unit_test(what_cannot_be_read_is_forgotten),
};

TEST_MAIN("kvtier", tests)

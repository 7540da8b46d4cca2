/* tests/ops/test_spread.c - which copy a pair goes to: shares are kept, loads are level,
 * nearness only breaks ties, capacity moves what is over; the reference and the far
 * backend agree; damaged tables are faults. */
#include "tests/ops/rig.h"

#include "kernels/cpu.h"

enum { EXPERTS = 6, RANKS = 4, COPIES = 12, ROWS = 64, TOP = 2, PAIRS = ROWS * TOP };

/* Expert 0 has a copy everywhere, 1 on ranks 0 and 3, 2 on 1 and 2, the others one. */
static const int32_t first[EXPERTS + 1] = {0, 4, 6, 8, 9, 10, 11};
static const int32_t copy_rank[COPIES] = {0, 1, 2, 3, 0, 3, 1, 2, 0, 1, 2, -1};
static const int32_t copy_slot[COPIES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, -1};

struct world {
    struct rig r;
    struct dbuf *ints;
    int32_t ids[PAIRS], upto[COPIES], host[RANKS], to[PAIRS], slot[PAIRS];
};

enum {
    AT_IDS = 0,
    AT_FIRST = AT_IDS + PAIRS,
    AT_RANK = AT_FIRST + 16,
    AT_SLOT = AT_RANK + 16,
    AT_UPTO = AT_SLOT + 16,
    AT_HOST = AT_UPTO + 16,
    AT_TO = AT_HOST + 16,
    AT_TO_SLOT = AT_TO + PAIRS,
    AT_SCRATCH = AT_TO_SLOT + PAIRS,
    AT_END = AT_SCRATCH + 2 * EXPERTS + RANKS + 2 * COPIES
};

static void share(struct world *w, int x, const double *s)
{
    double sum = 0;

    for (int c = first[x]; c < first[x + 1]; c++) {
        sum += s ? s[c - first[x]] : 1.0 / (first[x + 1] - first[x]);
        w->upto[c] = (int32_t)(sum * SPREAD_ONE);
    }
    w->upto[first[x + 1] - 1] = SPREAD_ONE;
}

static void open_world(struct world *w, const char *backend)
{
    memset(w, 0, sizeof(*w));
    rig_open(&w->r, backend, "portable", 1, 64);
    w->ints = rig_put(&w->r, NULL, AT_END * 4);
    for (int x = 0; x < EXPERTS; x++)
        share(w, x, NULL);
    w->host[2] = w->host[3] = 1;
}

static void close_world(struct world *w)
{
    dbuf_free(w->ints);
    rig_close(&w->r);
}

static struct iview at(const struct world *w, int off, int n)
{
    return (struct iview){w->ints, (size_t)off * 4, n};
}

static void put(struct world *w, int off, const int32_t *x, int n)
{
    rig_must(stream_upload(w->r.s, w->ints, (size_t)off * 4, x, (size_t)n * 4, &w->r.e),
             &w->r.e);
    rig_sync(&w->r);
}

static struct op_spread op_of(struct world *w, enum spread policy, int rows)
{
    put(w, AT_IDS, w->ids, PAIRS);
    put(w, AT_FIRST, first, EXPERTS + 1);
    put(w, AT_RANK, copy_rank, COPIES);
    put(w, AT_SLOT, copy_slot, COPIES);
    put(w, AT_UPTO, w->upto, COPIES);
    put(w, AT_HOST, w->host, RANKS);
    return (struct op_spread){.policy = policy,
                              .rows = rows,
                              .top_k = TOP,
                              .n_rank = RANKS,
                              .ids = at(w, AT_IDS, PAIRS),
                              .first = at(w, AT_FIRST, EXPERTS + 1),
                              .rank = at(w, AT_RANK, COPIES),
                              .slot = at(w, AT_SLOT, COPIES),
                              .upto = at(w, AT_UPTO, COPIES),
                              .host = at(w, AT_HOST, RANKS),
                              .to = at(w, AT_TO, PAIRS),
                              .to_slot = at(w, AT_TO_SLOT, PAIRS),
                              .scratch = at(w, AT_SCRATCH, AT_END - AT_SCRATCH)};
}

static void get(struct world *w)
{
    rig_must(stream_download(w->r.s, w->to, w->ints, AT_TO * 4, PAIRS * 4, &w->r.e),
             &w->r.e);
    rig_must(
        stream_download(w->r.s, w->slot, w->ints, AT_TO_SLOT * 4, PAIRS * 4, &w->r.e),
        &w->r.e);
    rig_sync(&w->r);
}

static void run(struct world *w, const struct op_spread *o)
{
    rig_must(op_spread(w->r.s, o, &w->r.e), &w->r.e);
    get(w);
    for (int p = 0; p < o->rows * TOP; p++) { /* a copy of its own expert, and whole */
        int x = w->ids[p], found = x < 0 && w->to[p] == -1 && w->slot[p] == -1;
        for (int c = x < 0 ? 0 : first[x]; x >= 0 && c < first[x + 1]; c++)
            found += w->to[p] == copy_rank[c] && w->slot[p] == copy_slot[c];
        assert_int_equal(found, 1);
    }
}

/* Pairs of expert x (-1: of any) that went to a rank. */
static int count(const struct world *w, int n, int x, int rank)
{
    int k = 0;

    for (int p = 0; p < n; p++)
        k += (x < 0 || w->ids[p] == x) && w->to[p] == rank;
    return k;
}

static void fill(struct world *w, const int *n)
{
    int p = 0;

    for (int i = 0; i < PAIRS; i++)
        w->ids[i] = -1;
    for (int x = 0; x < EXPERTS; x++)
        for (int i = 0; i < n[x]; i++)
            w->ids[p++] = x;
}

/* ---- shares ---- */

static void test_static(void **state)
{
    static const double s[] = {0.5, 0.25, 0, 0.25};
    const int n[EXPERTS] = {40, 10, 0, 0, 0, 0};
    int all[RANKS] = {0};
    struct world w;

    (void)state;
    open_world(&w, "cpu");
    share(&w, 0, s);
    fill(&w, n);
    struct op_spread o = op_of(&w, SPREAD_STATIC, ROWS);
    run(&w, &o);
    for (int r = 0; r < RANKS; r++) /* in one batch, within one */
        assert_true(abs(count(&w, PAIRS, 0, r) - (int)(40 * s[r])) <= 1);
    assert_true(abs(count(&w, PAIRS, 1, 0) - 5) <= 1);
    /* batches of one pair: over many steps, by the phase */
    fill(&w, (const int[EXPERTS]){1, 0, 0, 0, 0, 0});
    o = op_of(&w, SPREAD_STATIC, 1);
    for (uint32_t step = 1; step <= 1000; step++) {
        o.phase = step * 0x9e3779b9u;
        run(&w, &o);
        for (int r = 0; r < RANKS; r++)
            all[r] += count(&w, TOP, 0, r);
    }
    for (int r = 0; r < RANKS; r++)
        assert_true(fabs(all[r] - 1000 * s[r]) <= 3);
    close_world(&w);
}

/* What a pair gets depends on its number, not on what else is in the batch. */
static void test_probabilities(void **state)
{
    static const double s[] = {0.1, 0.2, 0.3, 0.4};
    const int n[EXPERTS] = {PAIRS, 0, 0, 0, 0, 0};
    int32_t to[PAIRS];
    struct world w;

    (void)state;
    open_world(&w, "cpu");
    share(&w, 0, s);
    fill(&w, n);
    struct op_spread o = op_of(&w, SPREAD_PROBABILITIES, ROWS);
    run(&w, &o);
    for (int r = 0; r < RANKS; r++)
        assert_true(fabs(count(&w, PAIRS, 0, r) - PAIRS * s[r]) <= 3);
    memcpy(to, w.to, sizeof(to));
    for (int p = 0; p < PAIRS; p += 2)
        w.ids[p] = 3;
    o = op_of(&w, SPREAD_PROBABILITIES, ROWS);
    run(&w, &o);
    for (int p = 1; p < PAIRS; p += 2)
        assert_int_equal(w.to[p], to[p]);
    close_world(&w);
}

/* ---- load ---- */

/* The least that the fullest rank can have: that of the set of ranks that is worst off
 * with the experts which have no copy outside it. */
static int least_peak(const int *n)
{
    int peak = 0;

    for (unsigned set = 1; set < 1u << RANKS; set++) {
        int sum = 0, size = __builtin_popcount(set);
        for (int x = 0; x < EXPERTS; x++) {
            bool inside = true;
            for (int c = first[x]; c < first[x + 1]; c++)
                inside = inside && (set >> copy_rank[c] & 1);
            sum += inside ? n[x] : 0;
        }
        peak = (sum + size - 1) / size > peak ? (sum + size - 1) / size : peak;
    }
    return peak;
}

static void test_least_loaded(void **state)
{
    const int flat[EXPERTS] = {60, 0, 0, 20, 10, 0};
    uint64_t rng = test_seed();
    struct world w;
    int worse = 0;

    (void)state;
    open_world(&w, "cpu");
    fill(&w, flat); /* 60 over four ranks with 20, 10, 0, 0: to 22, 22, 23, 23 */
    struct op_spread o = op_of(&w, SPREAD_LEAST_LOADED, ROWS);
    run(&w, &o);
    for (int r = 0; r < RANKS; r++)
        assert_true(count(&w, PAIRS, -1, r) == 22 || count(&w, PAIRS, -1, r) == 23);
    for (int i = 0; i < 200; i++) {
        int n[EXPERTS], left = PAIRS, peak = 0;
        for (int x = 0; x < EXPERTS; x++)
            left -= n[x] = (int)(test_rand(&rng) % (uint64_t)(left / 2 + 1));
        fill(&w, n);
        o = op_of(&w, SPREAD_LEAST_LOADED, ROWS);
        run(&w, &o);
        for (int r = 0; r < RANKS; r++)
            peak = count(&w, PAIRS, -1, r) > peak ? count(&w, PAIRS, -1, r) : peak;
        int least = least_peak(n);
        assert_true(peak >= least);
        worse += peak > least;
        assert_true(peak <= least + least / 4 + 1);
    }
    printf("# %d of 200 above the least there is\n", worse);
    assert_true(worse < 20); /* mostly the least there is */
    close_world(&w);
}

static void test_near(void **state)
{
    const int one[EXPERTS] = {0, 1, 0, 0, 0, 0}, some[EXPERTS] = {0, 8, 0, 0, 0, 0};
    struct world w;

    (void)state;
    open_world(&w, "cpu");
    fill(&w, one);
    for (int src = 0; src < RANKS; src += 3) { /* a tie: its own rank */
        struct op_spread o = op_of(&w, SPREAD_LEAST_LOADED, 1);
        o.src = src;
        run(&w, &o);
        assert_int_equal(w.to[0], src);
    }
    /* rows 0..3 of four ranks, two pairs a row, all of expert 1: those of ranks 0 and 3
     * stay, the others go to what is left, on their own host */
    fill(&w, some);
    struct op_spread o = op_of(&w, SPREAD_LEAST_LOADED, 4);
    o.n_src = RANKS;
    run(&w, &o);
    static const int32_t want[] = {0, 0, 0, 0, 3, 3, 3, 3};
    assert_memory_equal(w.to, want, sizeof(want));
    /* no nearness makes a rank busier: rank 0 has 6 of its own, so all go to rank 3 */
    fill(&w, (const int[EXPERTS]){0, 4, 0, 6, 0, 0});
    o = op_of(&w, SPREAD_LEAST_LOADED, 5);
    run(&w, &o);
    assert_int_equal(count(&w, 10, 1, 3), 4);
    close_world(&w);
}

/* ---- capacity ---- */

static void test_capacity(void **state)
{
    static const double all[] = {1, 0, 0, 0};
    struct world w;

    (void)state;
    open_world(&w, "cpu");
    share(&w, 0, all);
    fill(&w, (const int[EXPERTS]){30, 0, 0, 20, 0, 0});
    struct op_spread o = op_of(&w, SPREAD_STATIC, ROWS);
    run(&w, &o);
    assert_int_equal(count(&w, PAIRS, 0, 0), 30);
    o.cap = 10;
    run(&w, &o);
    assert_int_equal(count(&w, PAIRS, 0, 0), 10);
    for (int r = 1; r < RANKS; r++)
        assert_int_equal(count(&w, PAIRS, 0, r), r < 3 ? 7 : 6);
    assert_int_equal(count(&w, PAIRS, 3, 0), 20); /* it has one copy only */
    o.cap = 5;                                    /* there is not room for all */
    run(&w, &o);
    assert_int_equal(count(&w, PAIRS, 0, 0), 15);
    close_world(&w);
}

/* ---- other backends, faults ---- */

static void test_far(void **state)
{
    struct world w, f;
    uint64_t rng = test_seed();

    (void)state;
    open_world(&w, "cpu");
    open_world(&f, "far");
    for (int i = 0; i < PAIRS; i++)
        w.ids[i] = f.ids[i] = (int32_t)(test_rand(&rng) % (EXPERTS + 1)) - 1;
    for (int p = 0; p < SPREAD_COUNT; p++) {
        struct op_spread a = op_of(&w, (enum spread)p, ROWS);
        struct op_spread b = op_of(&f, (enum spread)p, ROWS);
        a.phase = b.phase = 77;
        a.n_src = b.n_src = RANKS;
        run(&w, &a);
        run(&f, &b);
        assert_memory_equal(w.to, f.to, sizeof(w.to));
        assert_memory_equal(w.slot, f.slot, sizeof(w.slot));
    }
    close_world(&w);
    close_world(&f);
}

static void test_faults(void **state)
{
    const int32_t high = EXPERTS, broken[] = {0, 4, 3};
    struct world w;

    (void)state;
    open_world(&w, "cpu");
    struct op_spread o = op_of(&w, SPREAD_STATIC, ROWS);
    put(&w, AT_IDS + 3, &high, 1);
    rig_must(op_spread(w.r.s, &o, &w.r.e), &w.r.e);
    assert_int_equal(stream_sync(w.r.s, &w.r.e), -1);
    assert_non_null(strstr(w.r.e.msg, "expert 6 of 6 stands nowhere"));
    o = op_of(&w, SPREAD_STATIC, ROWS);
    put(&w, AT_FIRST, broken, 3);
    rig_must(op_spread(w.r.s, &o, &w.r.e), &w.r.e);
    assert_int_equal(stream_sync(w.r.s, &w.r.e), -1);
    assert_non_null(strstr(w.r.e.msg, "expert 1 has copies 4 to 3"));
    o.scratch.n--;
    assert_int_equal(op_spread(w.r.s, &o, &w.r.e), -1);
    o = op_of(&w, SPREAD_COUNT, ROWS);
    assert_int_equal(op_spread(w.r.s, &o, &w.r.e), -1);
    close_world(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_static),       cmocka_unit_test(test_probabilities),
        cmocka_unit_test(test_least_loaded), cmocka_unit_test(test_near),
        cmocka_unit_test(test_capacity),     cmocka_unit_test(test_far),
        cmocka_unit_test(test_faults),
    };
    return test_main(argc, argv, "spread", tests, sizeof(tests) / sizeof(tests[0]));
}

/* tests/unit/test_expertpage.c - what ranks write of their slots is what the daemon
 * reads, by phase, layer, rank and slot; a new table of a layer is told once all ranks
 * have it; beginning again; what does not fit, and a page of another size, are refused.
 */
#include "tests/test.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "daemon/serve/expertpage.h"
#include "kernels/comm.h"

enum { LAYERS = 3, RANKS = 2, SLOTS = 5, EXPERTS = 8 };
static const struct routes_dims dims = {EXPERTS, RANKS, SLOTS};

static struct expertpage *page(struct expertpage **ret_other)
{
    struct expertpage *p;
    struct err e;
    int fd;

    assert_int_equal(expertpage_new(&fd, &p, &e), 0);
    if (ret_other)
        assert_int_equal(expertpage_map(fd, ret_other, &e), 0);
    close(fd);
    return p;
}

/* Layers 1 and 2 of a rank: every cell with a value of its own. */
static void report(struct expertpage *p, int rank, int phase, uint64_t generation)
{
    int16_t expert[2][SLOTS];
    float share[2][SLOTS];
    int64_t cells[2 * (SLOTS * EXPERT_COUNT_CELLS + EXPERT_TRAFFIC_CELLS)];
    const struct route_layer l[2] = {{generation, expert[0], share[0]},
                                     {generation, expert[1], share[1]}};
    struct expert_left left[EXPERT_PHASES * 2 * EXPERTS] = {{{0}, 0}};
    struct expert_report r = {.rank = rank,
                              .phase = phase,
                              .first = 1,
                              .n_layer = 2,
                              .n_slot = SLOTS,
                              .routes = l,
                              .left = left,
                              .n_expert = EXPERTS};

    left[(EXPERT_DECODE * 2 + 1) * EXPERTS + 5] = (struct expert_left){{7, 1, 20, 30}, 3};

    r.cells[phase] = cells;
    assert_int_equal(2 * expert_report_stride(SLOTS) * 8, sizeof(cells));
    for (int i = 0; i < 2; i++)
        for (int s = 0; s < SLOTS; s++) {
            expert[i][s] = (int16_t)(s == 4 ? -1 : rank * 4 + s);
            share[i][s] = s == 4 ? 0 : 0.25f * (float)generation;
        }
    for (size_t i = 0; i < sizeof(cells) / 8; i++)
        cells[i] = 1000000 * rank + 100000 * phase + (int64_t)i;
    expertpage_put(p, &r);
    expertpage_step(p, phase);
}

static void test_two_maps(void **state)
{
    struct expertpage *theirs, *mine = page(&theirs);
    struct expert_traffic t;
    struct routes_dims d;
    struct expert_slot s;
    struct err e;
    int n;

    (void)state;
    assert_false(expertpage_dims(mine, &d, &n));
    assert_int_equal(expertpage_open(theirs, &dims, LAYERS, &e), 0);
    assert_true(expertpage_dims(mine, &d, &n));
    assert_int_equal(n, LAYERS);
    assert_memory_equal(&d, &dims, sizeof(d));
    expertpage_slot(mine, 1, 1, 2, &s);
    assert_int_equal(s.expert, -1); /* nobody has told yet */
    report(theirs, 0, EXPERT_PREFILL, 1);
    assert_int_equal(expertpage_generation(mine, 1), 0); /* rank 1 has not */
    report(theirs, 1, EXPERT_DECODE, 1);
    assert_int_equal(expertpage_generation(mine, 1), 1);
    assert_int_equal(expertpage_generation(mine, 0), 0);
    for (int i = 0; i < 2; i++) {
        int at = i * expert_report_stride(SLOTS);
        for (int k = 0; k < SLOTS; k++) {
            expertpage_slot(mine, 1 + i, 1, k, &s);
            assert_int_equal(s.expert, k == 4 ? -1 : 4 + k);
            assert_true(s.share == (k == 4 ? 0 : 0.25f));
            assert_int_equal(s.n[EXPERT_PREFILL].rows, 0);
            assert_int_equal(s.n[EXPERT_DECODE].rows, 1100000 + at + 4 * k);
            assert_int_equal(s.n[EXPERT_DECODE].over, 1100000 + at + 4 * k + 1);
            assert_int_equal(s.n[EXPERT_DECODE].service_ns, 1100000 + at + 4 * k + 2);
            assert_int_equal(s.n[EXPERT_DECODE].queue_ns, 1100000 + at + 4 * k + 3);
        }
        expertpage_traffic(mine, 1 + i, 0, EXPERT_PREFILL, &t);
        assert_int_equal(t.dispatch_bytes, at + 4 * SLOTS);
        assert_int_equal(t.combine_us, at + 4 * SLOTS + 3);
        assert_int_equal(t.dropped, at + 4 * SLOTS + 6);
    }
    expertpage_traffic(mine, 0, 0, EXPERT_PREFILL, &t);
    assert_int_equal(t.dispatch_bytes, 0);
    assert_int_equal(expertpage_steps(mine, EXPERT_DECODE), 1);
    struct expert_left all[EXPERTS],
        *n5 = &all[5]; /* in slot 1 of rank 1, and what it left, told twice */
    expertpage_slot(mine, 2, 1, 1, &s);
    expertpage_experts(mine, 2, EXPERT_DECODE, EXPERTS, all);
    assert_int_equal(n5->n.rows, s.n[EXPERT_DECODE].rows + 14);
    assert_int_equal(n5->n.queue_ns, s.n[EXPERT_DECODE].queue_ns + 60);
    /* 5 was loaded into slot 1 of rank 1: only what it left elsewhere */
    assert_int_equal(n5->replica, 6);
    expertpage_experts(mine, 1, EXPERT_DECODE, EXPERTS, all);
    expertpage_slot(mine, 1, 1, 1, &s);
    assert_int_equal(n5->n.rows, s.n[EXPERT_DECODE].rows);
    report(theirs, 1, EXPERT_DECODE, 2);
    assert_int_equal(expertpage_generation(mine, 2), 1); /* rank 0 has the old one */
    expertpage_slot(mine, 2, 1, 0, &s);
    assert_true(s.share == 0.5f);
    expertpage_free(theirs);
    expertpage_free(mine);
    expertpage_free(NULL);
}

static void test_again(void **state)
{
    struct expertpage *p = page(NULL);
    struct routes_dims d;
    struct expert_slot s;
    struct err e;
    int n;

    (void)state;
    assert_int_equal(expertpage_open(p, &dims, LAYERS, &e), 0);
    report(p, 0, EXPERT_PREFILL, 1);
    uint64_t was = expertpage_epoch(p);
    expertpage_restart(p);
    assert_true(expertpage_epoch(p) > was);
    assert_int_equal(expertpage_steps(p, EXPERT_PREFILL), 0);
    expertpage_clear(p);
    assert_false(expertpage_dims(p, &d, &n));
    assert_int_equal(expertpage_open(p, &dims, LAYERS, &e), 0); /* the next engine */
    expertpage_slot(p, 1, 0, 0, &s);
    assert_int_equal(s.expert, -1);
    assert_int_equal(s.n[EXPERT_PREFILL].rows, 0);
    expertpage_free(p);
}

static void test_refused(void **state)
{
    const struct routes_dims wide = {EXPERTS, 2, ROUTES_MAX_SLOTS},
                             many = {EXPERTS, COMM_MAX_RANKS + 1, 1};
    struct expertpage *p = page(NULL), *other;
    struct routes_dims d;
    struct err e;
    int n, fd = memfd_create("small", MFD_CLOEXEC);

    (void)state;
    assert_int_equal(expertpage_open(p, &dims, EXPERTPAGE_LAYERS + 1, &e), -1);
    assert_int_equal(expertpage_open(p, &wide, 1, &e), -1);
    assert_int_equal(expertpage_open(p, &many, 1, &e), -1);
    assert_false(expertpage_dims(p, &d, &n));
    assert_int_equal(expertpage_map(fd, &other, &e), -1);
    assert_non_null(strstr(e.msg, "has 0 bytes"));
    close(fd);
    expertpage_free(p);
}

/* Which experts are chosen together: only when asked for, both ways round, from zero. */
static void test_pairs(void **state)
{
    struct expertpage *theirs, *mine = page(&theirs);
    static double with[EXPERTS * EXPERTS];
    struct err e;

    (void)state;
    assert_int_equal(expertpage_open(theirs, &dims, LAYERS, &e), 0);
    assert_false(expertpage_pairs_of(mine, 1, EXPERTS, with));
    for (int turn = 0; turn < 2; turn++) {
        expertpage_pairs_begin(theirs);
        expertpage_pairs(theirs)[(EXPERTPAGE_PAIRED + 2) * EXPERTPAGE_PAIRED + 5] += 7;
        assert_true(expertpage_pairs_of(mine, 1, EXPERTS, with));
        for (int i = 0; i < EXPERTS * EXPERTS; i++)
            assert_true(with[i] ==
                        (i == 2 * EXPERTS + 5 || i == 5 * EXPERTS + 2 ? 7 : 0));
        assert_true(expertpage_pairs_of(mine, 0, EXPERTS, with));
        assert_true(with[2 * EXPERTS + 5] == 0);
    }
    expertpage_restart(mine);
    assert_true(expertpage_pairs_of(mine, 1, EXPERTS, with));
    assert_true(with[2 * EXPERTS + 5] == 0);
    assert_false(expertpage_pairs_of(mine, EXPERTPAGE_LAYERS, EXPERTS, with));
    assert_false(expertpage_pairs_of(mine, 0, EXPERTPAGE_PAIRED + 1, with));
    assert_int_equal(expertpage_open(theirs, &dims, LAYERS, &e), 0);
    assert_false(expertpage_pairs_of(mine, 1, EXPERTS, with));
    expertpage_free(mine);
    expertpage_free(theirs);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_maps),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_refused),
    };
    return test_main(argc, argv, "expertpage", tests, sizeof(tests) / sizeof(tests[0]));
}

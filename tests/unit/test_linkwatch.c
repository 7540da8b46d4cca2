/* tests/unit/test_linkwatch.c - a link that is taken most of the time is told of after a
 * while, and no longer when it is not. */
#include "daemon/ctrl/linkwatch.h"

#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/rankview.h"
#include "tests/test.h"

enum { RANKS = 4, S = 1000000 };

struct world {
    struct alarms *alarms;
    struct linkwatch *w;
    struct rank_view v[RANKS];
    int changes;
};

static void on_change(void *arg, const struct alarm_status *a)
{
    (void)a;
    ((struct world *)arg)->changes++;
}

static void open_world(struct world *w)
{
    memset(w, 0, sizeof(*w));
    w->alarms = alarms_new(on_change, w);
    w->w = linkwatch_new(w->alarms);
    for (int i = 0; i < RANKS; i++) {
        snprintf(w->v[i].instance, sizeof(w->v[i].instance), "main");
        w->v[i].generation = 1;
        w->v[i].rank = i;
        for (int d = 0; d < MESH_DIM_COUNT; d++)
            w->v[i].s.at.group[d] = d == MESH_EP || d == MESH_TP ? d : -1;
    }
    linkwatch_look(w->w, w->v, RANKS);
}

static void close_world(struct world *w)
{
    linkwatch_free(w->w);
    alarms_free(w->alarms);
}

/* Ten seconds, in which rank 2's link in its expert group is taken for a share. */
static void look(struct world *w, double share)
{
    struct comm_count *c = &w->v[2].s.counts[MESH_EP][COMM_ALL_TO_ALL];

    c->calls++;
    c->link_us += (int64_t)(share * 10 * S);
    c->bytes += 50000000;
    for (int i = 0; i < RANKS; i++) {
        w->v[i].span_us += 10 * S;
        w->v[i].s.counts[MESH_TP][COMM_ALL_REDUCE].us += 5 * S; /* half waiting */
        w->v[i].s.counts[MESH_TP][COMM_ALL_REDUCE].wait_us += 2 * S;
    }
    linkwatch_look(w->w, w->v, RANKS);
}

static int active(struct world *w, struct alarm_status *ret)
{
    struct alarm_status all[8];
    int n = alarms_list(w->alarms, all, 8), k = 0;

    for (int i = 0; i < n; i++)
        if (!all[i].ended_ms) {
            *ret = all[i];
            k++;
        }
    return k;
}

static void test_congested(void **state)
{
    struct alarm_status a;
    struct world w;

    (void)state;
    open_world(&w);
    look(&w, 0.9);
    look(&w, 0.9);
    assert_int_equal(active(&w, &a), 0);
    look(&w, 0.93);
    assert_int_equal(active(&w, &a), 1);
    assert_string_equal(a.id, "link.congested main ep");
    assert_non_null(strstr(a.text, "rank 2 in its ep group was taken 93 %"));
    assert_non_null(strstr(a.text, "5 MB/s"));
    look(&w, 0.7); /* better, not yet well */
    assert_int_equal(active(&w, &a), 1);
    look(&w, 0.5);
    assert_int_equal(active(&w, &a), 0);
    assert_int_equal(w.changes, 2);
    close_world(&w);
}

/* A moment is nothing; nor is a link that is often taken, or what waits for others. */
static void test_quiet(void **state)
{
    struct alarm_status a;
    struct world w;

    (void)state;
    open_world(&w);
    for (int i = 0; i < 30; i++)
        look(&w, i % 3 ? 0.95 : 0.75);
    assert_int_equal(active(&w, &a), 0);
    assert_int_equal(w.changes, 0);
    close_world(&w);
}

/* A new engine counts from zero, and says nothing of the old one's; one that is gone has
 * no alarm. */
static void test_engines(void **state)
{
    struct alarm_status a;
    struct world w;

    (void)state;
    open_world(&w);
    for (int i = 0; i < 3; i++)
        look(&w, 0.9);
    assert_int_equal(active(&w, &a), 1);
    for (int i = 0; i < RANKS; i++) {
        memset(w.v[i].s.counts, 0, sizeof(w.v[i].s.counts));
        w.v[i].generation = 2;
        w.v[i].span_us = 0;
    }
    linkwatch_look(w.w, w.v, RANKS);
    look(&w, 0.1);
    assert_int_equal(active(&w, &a), 0);
    for (int i = 0; i < 3; i++)
        look(&w, 0.9);
    assert_int_equal(active(&w, &a), 1);
    linkwatch_look(w.w, NULL, 0);
    assert_int_equal(active(&w, &a), 0);
    close_world(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_congested),
        cmocka_unit_test(test_quiet),
        cmocka_unit_test(test_engines),
    };
    return test_main(argc, argv, "linkwatch", tests, sizeof(tests) / sizeof(tests[0]));
}

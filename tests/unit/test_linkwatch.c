/* tests/unit/test_linkwatch.c - what ranks read of each other lands on the links between
 * their devices; a link that is taken most of the time is told of after a while, by its
 * two ends, and no longer when it is not. */
#include "daemon/ctrl/linkwatch.h"

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/pairview.h"
#include "tests/test.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/rack.h"

enum { S = 1000000, MB = 1000000 };
static const double CUT = 1.25e9; /* bytes/s between hosts of cpu:HxN */

struct world {
    struct alarms *alarms;
    struct linkwatch *w;
    struct domain_view own;
    const char *emulate;
    int generation, changes;
    int64_t now_us;
    struct rank_read sent; /* of rank 3 by rank 0, since the engine began */
    struct link_row *row;
    int n;
    int64_t span_us;
};

static void on_change(void *arg, const struct alarm_status *a)
{
    (void)a;
    ((struct world *)arg)->changes++;
}

/* Four ranks on two hosts of two. */
static struct pair_view *engine(const struct world *w)
{
    struct pair_view *v = xcalloc(1, sizeof(*v));
    const int *dev;
    int n = graph_devices(w->own.graph, &dev);

    snprintf(v->instance, sizeof(v->instance), "main");
    snprintf(v->emulate, sizeof(v->emulate), "%s", w->emulate);
    v->generation = w->generation;
    v->n_ranks = 4;
    v->device = xcalloc(4, sizeof(*v->device));
    for (int i = 0; i < 4 && i < n; i++)
        domain_device_id(&w->own, dev[i], v->device[i], sizeof(v->device[i]));
    v->pair = xcalloc(16, sizeof(*v->pair));
    if (w->sent.bytes) {
        v->pair[0] = (struct pair_read){.rank = 0, .from = 3};
        v->pair[0].n[COMM_ALL_TO_ALL] = w->sent;
        v->n = 1;
    }
    return v;
}

static void look(struct world *w, int n)
{
    w->now_us += 5 * S;
    linkwatch_look(w->w, &w->own, n ? engine(w) : xcalloc(1, sizeof(struct pair_view)), n,
                   w->now_us);
    free(w->row);
    w->n = linkwatch_rows(w->w, &w->row, &w->span_us);
}

static void open_rack(struct world *w, const char *rack)
{
    struct err e;

    memset(w, 0, sizeof(*w));
    assert_int_equal(rack_build(rack, 0, &w->own.graph, &e), 0);
    assert_int_equal(paths_new(w->own.graph, &w->own.paths, &e), 0);
    w->alarms = alarms_new(on_change, w);
    w->w = linkwatch_new(w->alarms);
    w->emulate = "";
    w->generation = 1;
    look(w, 1);
}

static void close_rack(struct world *w)
{
    linkwatch_free(w->w);
    alarms_free(w->alarms);
    paths_free(w->own.paths);
    graph_free(w->own.graph);
    free(w->row);
}

/* Five seconds in which the cut is taken for a share, by its bandwidth. */
static void carry(struct world *w, double share)
{
    w->sent.bytes += (uint64_t)(share * 5 * CUT);
    look(w, 1);
}

static int active(struct world *w, struct alarm_status ret[8])
{
    struct alarm_status all[16];
    int n = alarms_list(w->alarms, all, 16), k = 0;

    for (int i = 0; i < n && k < 8; i++)
        if (!all[i].ended_ms)
            ret[k++] = all[i];
    return k;
}

static const struct link_row *row(const struct world *w, const char *a, const char *b)
{
    for (int i = 0; i < w->n; i++)
        if (!strcmp(w->row[i].a, a) && !strcmp(w->row[i].b, b))
            return &w->row[i];
    fail_msg("no row %s %s", a, b);
    return NULL;
}

/* Four links on the way, each with all the bytes in the direction of the way; the others
 * have no row. */
static void test_rows(void **state)
{
    const struct link_row *r;
    struct world w;

    (void)state;
    open_rack(&w, "cpu:2x2");
    assert_int_equal(w.n, 0);
    carry(&w, 0.5);
    assert_int_equal(w.n, 4);
    assert_int_equal(w.span_us, 5 * S);
    r = row(&w, "host1/numa0", "host1/cpu3");
    assert_string_equal(r->kind, "memory");
    assert_true(r->bytes[0] == 0 && r->bytes[1] == 2.5 * CUT);
    assert_float_equal(r->share, 0.5 * CUT / r->bps, 1e-6);
    r = row(&w, "network", "host0");
    assert_true(r->bytes[0] == 2.5 * CUT && r->bytes[1] == 0);
    assert_float_equal(r->bytes_s[0], 0.5 * CUT, 1);
    assert_float_equal(r->share, 0.5, 1e-6);
    assert_true(r->by_call[COMM_ALL_TO_ALL] == 2.5 * CUT && r->by_call[COMM_SEND] == 0);
    assert_string_equal(r->by, "main");
    row(&w, "network", "host1");
    row(&w, "host0/numa0", "host0/cpu0");
    carry(&w, 0); /* bytes stay, rates do not */
    r = row(&w, "network", "host0");
    assert_true(r->bytes[0] == 2.5 * CUT && r->bytes_s[0] == 0 && r->share == 0);
    close_rack(&w);
}

/* Time that an emulation took counts as it was, also where bytes alone were few. */
static void test_emulated(void **state)
{
    const struct link_row *r;
    struct world w;

    (void)state;
    open_rack(&w, "cpu:4"); /* one host: the emulated rack has two */
    w.emulate = "cpu:2x2";
    w.sent = (struct rank_read){.bytes = MB, .link_us = 4 * S};
    look(&w, 1);
    assert_int_equal(w.n, 4);
    r = row(&w, "network", "host1");
    assert_string_equal(r->rack, "cpu:2x2");
    assert_float_equal(r->share, 0.8, 1e-6);
    r = row(&w, "host1/numa0", "host1/cpu3");
    assert_float_equal(r->share, 0.8 * CUT / r->bps, 1e-6);
    w.emulate = "no such rack"; /* then there is nothing to say */
    w.generation = 2;
    look(&w, 1);
    assert_int_equal(w.n, 4);
    close_rack(&w);
}

/* Both ends of the slow way are named, what is wide is not; hysteresis. */
static void test_congested(void **state)
{
    struct alarm_status a[8];
    struct world w;

    (void)state;
    open_rack(&w, "cpu:2x2");
    carry(&w, 0.9);
    carry(&w, 0.9);
    assert_int_equal(active(&w, a), 0);
    carry(&w, 0.93);
    assert_int_equal(active(&w, a), 2);
    assert_int_equal(!strcmp(a[0].id, "link.congested network host0") +
                         !strcmp(a[1].id, "link.congested network host0"),
                     1);
    assert_int_equal(!strcmp(a[0].id, "link.congested network host1") +
                         !strcmp(a[1].id, "link.congested network host1"),
                     1);
    for (int i = 0; i < 2; i++) {
        assert_non_null(strstr(a[i].text, strstr(a[i].id, "host0")
                                              ? "net link from network to host0 was"
                                              : "net link from host1 to network was"));
        assert_non_null(strstr(a[i].text, "taken 93 % of the time"));
        assert_non_null(strstr(a[i].text, "instance main"));
    }
    assert_true(row(&w, "network", "host0")->congested);
    carry(&w, 0.7); /* better, not yet well */
    assert_int_equal(active(&w, a), 2);
    carry(&w, 0.5);
    assert_int_equal(active(&w, a), 0);
    assert_int_equal(w.changes, 4);
    assert_false(row(&w, "network", "host0")->congested);
    close_rack(&w);
}

/* A moment is nothing; nor is a link that is often taken. */
static void test_quiet(void **state)
{
    struct alarm_status a[8];
    struct world w;

    (void)state;
    open_rack(&w, "cpu:2x2");
    for (int i = 0; i < 30; i++)
        carry(&w, i % 3 ? 0.95 : 0.75);
    assert_int_equal(active(&w, a), 0);
    assert_int_equal(w.changes, 0);
    close_rack(&w);
}

/* A new engine counts from zero, also one in the place of the old; with one that is gone
 * its alarm ends, and what it sent is not forgotten. */
static void test_engines(void **state)
{
    struct alarm_status a[8];
    struct world w;

    (void)state;
    open_rack(&w, "cpu:2x2");
    for (int i = 0; i < 3; i++)
        carry(&w, 0.9);
    assert_int_equal(active(&w, a), 2);
    w.sent.bytes = 0;
    w.generation = 2;
    carry(&w, 0.1);
    assert_int_equal(active(&w, a), 0);
    assert_float_equal(row(&w, "network", "host0")->bytes[0], (3 * 0.9 + 0.1) * 5 * CUT,
                       10);
    w.sent.bytes = 0; /* started again by its supervisor */
    carry(&w, 0.05);
    assert_float_equal(row(&w, "network", "host0")->bytes[0], (3 * 0.9 + 0.15) * 5 * CUT,
                       10);
    for (int i = 0; i < 3; i++)
        carry(&w, 0.9);
    assert_int_equal(active(&w, a), 2);
    look(&w, 0);
    assert_int_equal(active(&w, a), 0);
    assert_int_equal(w.n, 4);
    close_rack(&w);
}

/* 72 ranks that all read of each other: as many rows as there are links that they use. */
static void test_many(void **state)
{
    struct world w;
    struct pair_view *v = xcalloc(1, sizeof(*v));
    double sum = 0;

    (void)state;
    open_rack(&w, "gb200-nvl72");
    snprintf(v->instance, sizeof(v->instance), "big");
    snprintf(v->emulate, sizeof(v->emulate), "gb200-nvl72");
    v->n_ranks = 72;
    v->device = xcalloc(72, sizeof(*v->device));
    v->pair = xcalloc(72 * 72, sizeof(*v->pair));
    for (int i = 0; i < 72 * 72; i++)
        if (i / 72 != i % 72) {
            v->pair[v->n] = (struct pair_read){.rank = i / 72, .from = i % 72};
            v->pair[v->n++].n[COMM_SEND].bytes = 1000;
        }
    w.now_us += 5 * S;
    linkwatch_look(w.w, &w.own, v, 1, w.now_us);
    free(w.row);
    w.n = linkwatch_rows(w.w, &w.row, &w.span_us);
    assert_true(w.n >= 72 && w.n <= graph_n_links(w.own.graph));
    for (int i = 0; i < w.n; i++) {
        assert_string_equal(w.row[i].kind, "nvlink");
        sum += w.row[i].bytes[0] + w.row[i].bytes[1];
    }
    assert_float_equal(sum, 2.0 * 72 * 71 * 1000, 1); /* out of one, into the other */
    close_rack(&w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_rows),      cmocka_unit_test(test_emulated),
    cmocka_unit_test(test_congested), cmocka_unit_test(test_quiet),
    cmocka_unit_test(test_engines),   cmocka_unit_test(test_many),
};
TEST_MAIN("linkwatch", tests)

/* tests/unit/test_trace.c - the page of traces, and its events as JSON. */
#include "tests/test.h"

#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "daemon/api/tracejson.h"
#include "daemon/ctrl/traceview.h"
#include "daemon/serve/step.h"
#include "daemon/serve/tracepage.h"

static struct tracepage *page;
static struct trace_event got[TRACE_EVENTS];

static int set_up(void **state)
{
    struct err e;
    int fd;

    (void)state;
    if (tracepage_new(&fd, &page, &e) < 0)
        return -1;
    close(fd);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tracepage_free(page);
    return 0;
}

static void put(enum trace_kind kind, int rank, int64_t start, int64_t us,
                uint64_t request)
{
    tracepage_put(page, &(struct trace_event){kind, rank, start, us, request, 7, -3, 9});
}

static void test_off_until_it_is_asked(void **state)
{
    int64_t lost;

    (void)state;
    assert_false(tracepage_on(NULL));
    assert_false(tracepage_on(page));
    put(TRACE_RANK, 0, 10, 5, 0);
    assert_int_equal(tracepage_read(page, got, 8, &lost), 0);

    tracepage_begin(page, 100, 200, 0);
    put(TRACE_STEP, -1, 80, 5, 1);  /* ended before it */
    put(TRACE_RANK, 65, 90, 20, 1); /* began before it, ended in it */
    put(TRACE_COMBINE, 0, 200, 1, 2);
    put(TRACE_RANK, 0, 201, 1, 2); /* over: this turns it off */
    assert_false(tracepage_on(page));
    put(TRACE_RANK, 0, 150, 1, 2);
    assert_int_equal(tracepage_read(page, got, 8, &lost), 2);
    assert_true(got[0].kind == TRACE_RANK && got[0].rank == 65 && got[0].start_us == 90);
    assert_true(got[0].us == 20 && got[0].request == 1 && got[0].ref == 7);
    assert_true(got[0].a == -3 && got[0].b == 9);
    assert_true(got[1].kind == TRACE_COMBINE && lost == 0);

    tracepage_begin(page, 300, 400, 0); /* what there was is gone */
    assert_int_equal(tracepage_read(page, got, 8, &lost), 0);
    tracepage_end(page);
    put(TRACE_RANK, 0, 310, 1, 2);
    assert_int_equal(tracepage_read(page, got, 8, &lost), 0);
}

static void test_of_one_request(void **state)
{
    struct step_caps caps = {.items = 2, .toks = 4, .blocks = 2, .samples = 2, .outs = 2};
    struct step *st = step_new(&caps);

    (void)state;
    step_clear(st);
    st->n_items = 2;
    step_items(st)[0].request = 5;
    step_items(st)[1].request = 6;
    assert_false(tracepage_wants(page, st));
    tracepage_begin(page, 0, 100, 0);
    assert_true(tracepage_wants(page, st) && tracepage_wants_request(page, 9));
    tracepage_begin(page, 0, 100, 6);
    assert_true(tracepage_wants(page, st) && tracepage_wants_request(page, 6));
    assert_false(tracepage_wants_request(page, 5));
    tracepage_begin(page, 0, 100, 7);
    assert_false(tracepage_wants(page, st));
    free(st);
}

static void test_what_has_no_room_is_counted(void **state)
{
    int64_t lost;

    (void)state;
    tracepage_begin(page, 0, 1 << 30, 0);
    for (int i = 0; i < TRACE_EVENTS + 10; i++)
        put(TRACE_RANK, 0, i, 1, 0);
    assert_int_equal(tracepage_read(page, got, TRACE_EVENTS, &lost), TRACE_EVENTS);
    assert_int_equal(lost, 10);
    assert_int_equal(got[TRACE_EVENTS - 1].start_us, TRACE_EVENTS - 1);
    assert_int_equal(tracepage_read(page, got, 5, &lost), 5);
    assert_int_equal(lost, TRACE_EVENTS + 5);
}

/* ---- as JSON ---- */

static struct trace_event *copy(const struct trace_event *v, size_t n)
{
    struct trace_event *out = xcalloc(n, sizeof(*out));

    memcpy(out, v, n * sizeof(*v));
    return out;
}

static double at(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    assert_non_null(s);
    return s;
}

/* Every event has a process and a thread that have a name; times rise; spans have an
 * end, arrows a beginning of their number. Returns the list of spans and counters. */
static json_t *checked(json_t *root)
{
    json_t *events = json_object_get(root, "traceEvents"), *names = json_object(),
           *out = json_array();
    double last = 0;

    assert_string_equal(text(root, "displayTimeUnit"), "ms");
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *v = json_array_get(events, i);
        const char *ph = text(v, "ph");
        char key[40];

        snprintf(key, sizeof(key), "%g %g", at(v, "pid"), at(v, "tid"));
        if (!strcmp(ph, "M")) {
            if (strstr(text(v, "name"), "sort_index"))
                continue;
            assert_true(*text(json_object_get(v, "args"), "name"));
            if (!strcmp(text(v, "name"), "thread_name"))
                json_object_set_new(names, key, json_true());
            continue;
        }
        assert_non_null(json_object_get(names, key));
        assert_true(at(v, "ts") >= last);
        last = at(v, "ts");
        assert_true(*text(v, "cat"));
        if (!strcmp(ph, "s") || !strcmp(ph, "f")) {
            snprintf(key, sizeof(key), "flow %.17g", at(v, "id"));
            if (*ph == 's')
                json_object_set_new(names, key, json_true());
            assert_non_null(json_object_get(names, key));
            continue;
        }
        assert_true(!strcmp(ph, "X") || !strcmp(ph, "C"));
        assert_true(json_is_integer(json_object_get(v, "dur")) == (*ph == 'X'));
        assert_true(at(v, "dur") >= 0);
        json_array_append(out, v);
    }
    json_decref(names);
    return out;
}

static int n_flows(const json_t *root)
{
    const json_t *events = json_object_get(root, "traceEvents");
    int n = 0;

    for (size_t i = 0; i < json_array_size(events); i++)
        n += *text(json_array_get(events, i), "ph") == 's' ||
             *text(json_array_get(events, i), "ph") == 'f';
    return n;
}

static void test_json(void **state)
{
    static const struct trace_event first[] =
        {
            {TRACE_ITEM, -1, 90, 0, 4, 11, 0, 16}, /* its step is told later */
            {TRACE_ITEM, -1, 90, 0, 5, 11, 33, 1},
            {TRACE_LOAD, -1, 95, 0, 0, 11, 2, 1},
            {TRACE_RANK, 1, 101, 7, 0, 11, 2, 17},
            {TRACE_EXPERT, 1, 103, 2, 0, 0, 5, 0},
            {TRACE_STEP, -1, 100, 10, 0, 11, 2, 17},
            {TRACE_QUEUE, -1, 70, 20, 4, 0, 2, 0},
            {TRACE_ITEM, -1, 120, 0, 4, 12, 16, 1}, /* its step is not over */
        },
                                    second[] = {{TRACE_RANK, 0, 80, 5, 0, 1, 1, 1}};
    static const char *const order[] = {"queue", "rank step", "requests",  "",
                                        "",      "",          "rank step", "expert"};
    struct trace_view v[2] = {{.instance = "main", .n_ranks = 2, .n = 8, .lost = 3},
                              {.instance = "main:2", .n_ranks = 1, .n = 1}};
    static const struct js_limits lim = {1 << 20, 8};
    json_t *root, *list;
    struct buf b;
    struct err e;

    (void)state;
    v[0].event = copy(first, 8);
    v[1].event = copy(second, 1);
    buf_init(&b, 0);
    tracejson(v, 2, "1.2", &b);
    assert_int_equal(js_parse(b.p, b.len, &lim, &root, &e), 0);
    list = checked(root);
    assert_int_equal(json_array_size(list), 8);
    for (size_t i = 0; i < 8; i++) {
        const json_t *x = json_array_get(list, i);
        bool spans = !strcmp(text(x, "name"), "prefill chunk") ||
                     !strcmp(text(x, "name"), "decode step") ||
                     !strcmp(text(x, "name"), "step");

        if (i < 3 || i > 5)
            assert_string_equal(text(x, "name"), order[i]);
        else /* of one time */
            assert_true(spans && at(x, "ts") == 30 && at(x, "dur") == 10);
    }
    assert_true(at(json_object_get(root, "otherData"), "dropped_events") == 3);
    /* the last that was kept is of 120, the first began at 70 */
    assert_float_equal(at(json_object_get(root, "otherData"), "full_after_s"), 50e-6,
                       1e-9);
    assert_string_equal(text(json_object_get(json_array_get(list, 0), "args"), "end"),
                        "canceled");
    assert_true(at(json_object_get(json_array_get(list, 0), "args"), "request") == 4);
    assert_int_equal(n_flows(root), 2); /* step 11 to rank 1; rank 0's step is not told */
    json_decref(list);
    json_decref(root);
    buf_done(&b);
    free(v[0].event);
    free(v[1].event);
}

static void test_json_of_nothing(void **state)
{
    static const struct js_limits lim = {1 << 20, 8};
    json_t *root;
    struct buf b;
    struct err e;

    (void)state;
    buf_init(&b, 0);
    tracejson(NULL, 0, "1", &b);
    assert_int_equal(js_parse(b.p, b.len, &lim, &root, &e), 0);
    assert_int_equal(json_array_size(json_object_get(root, "traceEvents")), 0);
    json_decref(root);
    buf_done(&b);
}

#define T(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static const struct CMUnitTest tests[] = {
    T(test_off_until_it_is_asked),          T(test_of_one_request),
    T(test_what_has_no_room_is_counted),    cmocka_unit_test(test_json),
    cmocka_unit_test(test_json_of_nothing),
};
TEST_MAIN("trace", tests)

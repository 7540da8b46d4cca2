/* tests/unit/test_operation.c - operations from start to end, and the last log lines. */
#include "tests/test.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/logring.h"
#include "daemon/api/operation.h"

static struct {
    int changes, frees;
    struct operation last;
    enum operation_state say;
    const char *message;
} seen;

static void on_change(void *arg, const struct operation *op)
{
    (void)arg;
    seen.changes++;
    seen.last = *op;
}

static enum operation_state poll_it(void *arg, char message[512])
{
    assert_ptr_equal(arg, &seen);
    snprintf(message, 512, "%s", seen.message);
    return seen.say;
}

static void free_it(void *arg)
{
    assert_ptr_equal(arg, &seen);
    seen.frees++;
}

static const struct operation_watch watch = {poll_it, free_it, &seen, 5000000};

static void reset(void)
{
    memset(&seen, 0, sizeof(seen));
    seen.message = "";
}

static void test_life(void **state)
{
    struct operations *o = operations_new(on_change, NULL);
    int64_t now = clock_now_us(clock_real());
    struct operation op;
    char id[OPERATION_ID];
    struct err e;

    (void)state;
    reset();
    assert_int_equal(operation_start(o, "model.verify", "m", "uid 7", &watch, id, &e), 0);
    assert_int_equal(seen.changes, 1);
    assert_int_equal(operation_get(o, id, &op, &e), 0);
    assert_int_equal(op.state, OPERATION_RUNNING);
    assert_string_equal(op.kind, "model.verify");
    assert_string_equal(op.subject, "m");
    assert_string_equal(op.actor, "uid 7");
    assert_true(op.started_ms > 0 && op.ended_ms == 0);

    assert_int_equal(operations_tick(o, now), 1);
    assert_int_equal(seen.changes, 1); /* nothing is new */
    seen.message = "half";
    assert_int_equal(operations_tick(o, now), 1);
    assert_int_equal(seen.changes, 2);
    assert_string_equal(seen.last.message, "half");
    seen.say = OPERATION_DONE;
    seen.message = "whole";
    assert_int_equal(operations_tick(o, now), 0);
    assert_int_equal(seen.changes, 3);
    assert_int_equal(seen.frees, 1);
    assert_int_equal(operation_get(o, id, &op, &e), 0);
    assert_int_equal(op.state, OPERATION_DONE);
    assert_true(op.ended_ms >= op.started_ms);
    seen.say = OPERATION_FAILED; /* too late */
    assert_int_equal(operations_tick(o, now), 0);
    assert_int_equal(seen.changes, 3);
    assert_int_equal(operation_get(o, "nobody", &op, &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    operations_free(o);
    assert_int_equal(seen.frees, 1);
}

static void test_deadline(void **state)
{
    struct operations *o = operations_new(on_change, NULL);
    int64_t now = clock_now_us(clock_real());
    char id[OPERATION_ID];
    struct err e;

    (void)state;
    reset();
    assert_int_equal(operation_start(o, "k", "s", "a", &watch, id, &e), 0);
    assert_int_equal(operations_tick(o, now + 4000000), 1);
    assert_int_equal(operations_tick(o, now + 7000000), 0);
    assert_int_equal(seen.last.state, OPERATION_FAILED);
    assert_string_equal(seen.last.message, "not done within 5 s");
    assert_int_equal(seen.frees, 1);
    operations_free(o);
}

/* The list is bounded: ended ones make room, running ones do not. */
static void test_bounded(void **state)
{
    struct operations *o = operations_new(NULL, NULL);
    int64_t now = clock_now_us(clock_real());
    struct operation *all = calloc(OPERATIONS_MAX, sizeof(*all));
    char first[OPERATION_ID], id[OPERATION_ID];
    struct err e;

    (void)state;
    reset();
    for (int i = 0; i < OPERATIONS_MAX; i++)
        assert_int_equal(operation_start(o, "k", "s", "a", &watch, i ? id : first, &e),
                         0);
    assert_int_equal(operation_start(o, "k", "s", "a", &watch, id, &e), -1);
    assert_int_equal(e.code, ERR_UNAVAIL);
    assert_int_equal(operation_room(o, &e), -1);
    assert_int_equal(seen.frees, 1); /* what the refused one brought */
    seen.say = OPERATION_DONE;
    assert_int_equal(operations_tick(o, now), 0);
    assert_int_equal(operation_room(o, &e), 0);
    assert_int_equal(operation_start(o, "new", "s", "a", &watch, id, &e), 0);
    assert_int_equal(operation_get(o, first, all, &e), -1); /* the oldest gave way */
    assert_int_equal(operations_list(o, all, OPERATIONS_MAX), OPERATIONS_MAX);
    assert_string_equal(all[0].id, id);
    assert_string_equal(all[0].kind, "new");
    for (int i = 1; i < OPERATIONS_MAX; i++)
        assert_true(all[i].seq < all[i - 1].seq);
    assert_int_equal(operations_list(o, all, 3), 3);
    assert_string_equal(all[0].kind, "new");
    operations_free(o);
    assert_int_equal(seen.frees, OPERATIONS_MAX + 2);
    free(all);
}

static void test_log_lines(void **state)
{
    static struct logring_line l[LOGRING_LINES];
    uint64_t start = logring_last();
    int n;

    (void)state;
    for (int i = 0; i < LOGRING_LINES + 20; i++)
        logring_add(LOG_LV_WARN, "line of text", i % 12);
    assert_int_equal(logring_last(), start + LOGRING_LINES + 20);
    n = logring_get(0, l, LOGRING_LINES);
    assert_int_equal(n, LOGRING_LINES);
    for (int i = 0; i < n; i++) {
        assert_int_equal(l[i].seq, start + 21 + (uint64_t)i);
        assert_int_equal(strlen(l[i].text), (20 + i) % 12);
        free(l[i].text);
    }
    n = logring_get(logring_last() - 3, l, LOGRING_LINES);
    assert_int_equal(n, 3);
    for (int i = 0; i < n; i++)
        free(l[i].text);
    n = logring_get(0, l, 2); /* the newest */
    assert_int_equal(n, 2);
    assert_int_equal(l[1].seq, logring_last());
    for (int i = 0; i < n; i++)
        free(l[i].text);
    assert_int_equal(logring_get(logring_last(), l, 2), 0);
    log_level_set(LOG_LV_ERROR);
    log_info("not written");
    assert_int_equal(logring_last(), start + LOGRING_LINES + 20);
    log_error("written\nwith a break");
    assert_int_equal(logring_get(logring_last() - 1, l, 2), 1);
    assert_string_equal(l[0].text, "written with a break");
    assert_int_equal(l[0].level, LOG_LV_ERROR);
    free(l[0].text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_life),
    cmocka_unit_test(test_deadline),
    cmocka_unit_test(test_bounded),
    cmocka_unit_test(test_log_lines),
};
TEST_MAIN("operation", tests)

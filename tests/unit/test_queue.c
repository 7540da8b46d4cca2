/* tests/unit/test_queue.c - order, refusal when full, many producers, waiting. */
#include "tests/test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/err.h"
#include "base/queue.h"

static int readable(struct queue *q)
{
    struct pollfd p = {queue_fd(q), POLLIN, 0};
    return poll(&p, 1, 0);
}

static void order_and_bound(void **state)
{
    int v[4];
    struct queue *q;
    struct err e;

    (void)state;
    assert_int_equal(queue_new(3, &q, &e), 0);
    assert_int_equal(readable(q), 0);
    assert_null(queue_pop(q));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 3; i++)
            assert_int_equal(queue_push(q, &v[i]), 0);
        assert_int_equal(queue_push(q, &v[3]), -1);
        assert_int_equal(queue_len(q), 3);
        assert_int_equal(readable(q), 1);
        for (int i = 0; i < 3; i++)
            assert_ptr_equal(queue_pop(q), &v[i]);
        assert_null(queue_pop(q));
        assert_int_equal(readable(q), 0);
    }
    assert_null(queue_pop_wait(q, 2000));
    assert_int_equal(queue_push(q, &v[0]), 0);
    assert_ptr_equal(queue_pop_wait(q, 0), &v[0]);
    queue_free(q);
    queue_free(NULL);
}

enum { PRODUCERS = 4, EACH = 5000 };

struct producer {
    struct queue *q;
    int number;
};

static int items[PRODUCERS][EACH];

static void *produce(void *arg)
{
    struct producer *p = arg;

    for (int i = 0; i < EACH; i++) {
        items[p->number][i] = i;
        while (queue_push(p->q, &items[p->number][i]) < 0)
            sched_yield();
    }
    return NULL;
}

/* Nothing is lost and each producer's order is kept. */
static void many_producers(void **state)
{
    struct producer p[PRODUCERS];
    pthread_t t[PRODUCERS];
    int next[PRODUCERS] = {0};
    struct queue *q;
    struct err e;

    (void)state;
    assert_int_equal(queue_new(64, &q, &e), 0);
    for (int i = 0; i < PRODUCERS; i++) {
        p[i] = (struct producer){q, i};
        assert_int_equal(pthread_create(&t[i], NULL, produce, &p[i]), 0);
    }
    for (int n = 0; n < PRODUCERS * EACH; n++) {
        int *it = queue_pop_wait(q, 10000000);
        assert_non_null(it);
        int k = (int)((it - &items[0][0]) / EACH);
        assert_int_equal(*it, next[k]++);
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(queue_len(q), 0);
    queue_free(q);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(order_and_bound),
    cmocka_unit_test(many_producers),
};

TEST_MAIN("queue", tests)

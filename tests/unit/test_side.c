/* tests/unit/test_side.c - one job beside the loop: its end, one at a time, one that is
 * stuck and left behind. */
#include "tests/test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "daemon/ctrl/side.h"

/* A job that runs until a byte (or the end) comes down its pipe. */
struct job {
    int gate[2];
    atomic_int ran, freed;
    int done;
    pthread_t done_on;
};

static void run(void *job)
{
    struct job *j = job;
    char c;

    while (read(j->gate[0], &c, 1) < 0)
        continue;
    atomic_fetch_add(&j->ran, 1);
}

static void done(void *arg, void *job)
{
    struct job *j = job;

    assert_ptr_equal(arg, (void *)0x77);
    assert_int_equal(atomic_load(&j->ran), 1);
    j->done++;
    j->done_on = pthread_self();
}

static void release(void *job)
{
    struct job *j = job;

    atomic_fetch_add(&j->freed, 1);
}

static struct side_job job_of(struct job *j)
{
    *j = (struct job){.done = 0};
    assert_int_equal(pipe(j->gate), 0);
    return (struct side_job){run, done, release, (void *)0x77, j};
}

static void let_go(struct job *j) { assert_int_equal(write(j->gate[1], "x", 1), 1); }

static void close_job(struct job *j)
{
    close(j->gate[0]);
    close(j->gate[1]);
}

static void test_one_at_a_time(void **state)
{
    struct job a, b;
    struct side_job ja = job_of(&a), jb = job_of(&b);
    struct side *s;
    struct loop *l;
    struct err e;
    int64_t until = clock_now_us(clock_real()) + 60000000;

    (void)state;
    assert_int_equal(loop_new(&l, &e), 0);
    assert_int_equal(side_new(l, &s, &e), 0);
    assert_false(side_busy(s));
    assert_int_equal(side_start(s, &ja, &e), 0);
    assert_true(side_busy(s));
    assert_int_equal(side_start(s, &jb, &e), -1);
    assert_int_equal(e.code, ERR_BUSY);
    let_go(&a);
    while (!a.done && clock_now_us(clock_real()) < until)
        assert_int_equal(loop_once(l, until, &e), 0);
    assert_int_equal(a.done, 1);
    assert_true(pthread_equal(a.done_on, pthread_self()));
    assert_int_equal(atomic_load(&a.freed), 1);

    assert_int_equal(side_start(s, &jb, &e), 0);
    assert_int_equal(side_wait(s, 1000, &e), -1); /* it goes on */
    assert_int_equal(e.code, ERR_TIMEOUT);
    let_go(&b);
    assert_int_equal(side_wait(s, 60000000, &e), 0);
    assert_int_equal(b.done, 1);
    assert_int_equal(side_wait(s, 1000, &e), 0); /* nothing to wait for */
    side_free(s);
    loop_free(l);
    close_job(&a);
    close_job(&b);
}

/* The owner goes while the job is stuck: nobody is told, and the job frees itself. */
static void test_left_behind(void **state)
{
    struct job a;
    struct side_job ja = job_of(&a);
    struct side *s;
    struct loop *l;
    struct err e;
    int64_t until;

    (void)state;
    assert_int_equal(loop_new(&l, &e), 0);
    assert_int_equal(side_new(l, &s, &e), 0);
    assert_int_equal(side_start(s, &ja, &e), 0);
    side_free(s);
    loop_free(l);
    assert_int_equal(atomic_load(&a.freed), 0);
    let_go(&a);
    until = clock_now_us(clock_real()) + 60000000;
    while (!atomic_load(&a.freed) && clock_now_us(clock_real()) < until)
        poll(NULL, 0, 1);
    assert_int_equal(atomic_load(&a.freed), 1);
    assert_int_equal(a.done, 0);
    close_job(&a);
    side_free(NULL);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_one_at_a_time),
    cmocka_unit_test(test_left_behind),
};
TEST_MAIN("side", tests)
